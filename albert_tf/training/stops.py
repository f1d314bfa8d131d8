"""How a run ends between two steps, two parts of a step or two batches of an evaluation.

    SIGTERM ─► thread ─► Trainer.stop ─► the loop over a step's parts ends, and the step
                                         is dropped
            └► Python's handler, when the step has ended ─► Run._stop_after_signal

Python runs its signal handlers between its own instructions, not while TensorFlow
computes a step. The file descriptor of signal.set_wakeup_fd is written at once.
"""

import os
import signal
import socket
import threading
import time
from typing import Any, Callable, Optional

from absl import logging

from albert_tf.errors import ONE_CTRL_C


class StopSignals:
    """A context that stores SIGTERM and SIGINT in `received` instead of ending the
    program. A second signal, later than one Ctrl-C may send several, goes to the
    earlier handler. In other threads than the main one, as of joblib or a web server,
    Python sets no handlers, and signals stay what they were.

        with StopSignals() as signals:
            while signals.received is None: ...

    At once after the first signal another thread calls `on_signal` and logs a line.
    """

    def __init__(self):
        self.received: Optional[int] = None
        self.on_signal: Callable[[], object] = lambda: None
        self._since = 0.0
        self._old_handlers: dict[int, Any] = {}

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is threading.main_thread():
            self._old_handlers = {number: signal.signal(number, self._note)
                                  for number in (signal.SIGTERM, signal.SIGINT)}
            receiver, self._sender = socket.socketpair()
            self._sender.setblocking(False)
            self._old_fd = signal.set_wakeup_fd(
                self._sender.fileno(), warn_on_full_buffer=False)
            threading.Thread(target=self._listen, args=(receiver,), daemon=True).start()
        return self

    def __exit__(self, *exception_info):
        if self._old_handlers:
            signal.set_wakeup_fd(self._old_fd)
            self._sender.close()
        for number, handler in self._old_handlers.items():
            signal.signal(number, handler)

    def _listen(self, receiver: socket.socket) -> None:
        told = False
        while number := receiver.recv(1):
            if not told and number[0] in self._old_handlers:
                told = True
                logging.info("Stopping as soon as the step allows it; a second signal "
                             "ends the program at once.")
                self.on_signal()
            if self._old_fd >= 0:
                os.write(self._old_fd, number)
        receiver.close()

    def _note(self, number, frame):
        if self.received is None:
            self.received, self._since = number, time.monotonic()
        elif time.monotonic() - self._since >= ONE_CTRL_C:
            handler = self._old_handlers[number]
            if callable(handler):
                handler(number, frame)
