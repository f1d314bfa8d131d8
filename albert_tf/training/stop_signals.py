"""SIGTERM and SIGINT end a run between two steps, not in the middle of one."""

import signal
from typing import Optional


class StopSignals:
    """Within its `with` block a signal is noted instead of ending the program.

    For the main thread, as all handling of signals in Python.

    Attributes:
      received: number of the signal that came, or None.
    """

    def __init__(self):
        self.received: Optional[int] = None
        self._old_handlers = {}

    def __enter__(self) -> "StopSignals":
        def note(number, frame):
            self.received = number

        self._old_handlers = {number: signal.signal(number, note)
                              for number in (signal.SIGTERM, signal.SIGINT)}
        return self

    def __exit__(self, *exception_info):
        for number, handler in self._old_handlers.items():
            signal.signal(number, handler)
