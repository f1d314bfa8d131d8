"""Ctrl-C and SIGTERM end a script in one sentence, at any moment.

A script imports `albert_tf.cli.script` first, and that this module, so that a signal
while the rest is imported ends in a sentence too. Only the standard library is loaded.
"""

import contextlib
import os
import signal
import sys
import time

from albert_tf.errors import Stopped

_NAMES = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}
# Of one Ctrl-C several signals may come: from the terminal, from quickstart.py.
_ONE_CTRL_C = 2.0

working = False  # whether the script's main runs, so that there is something to clean up
received: int | None = None
_since = 0.0


def install() -> None:
    """Takes SIGINT and SIGTERM, unless something else did or they are ignored."""
    for number in _NAMES:
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            with contextlib.suppress(ValueError):  # not the main thread
                signal.signal(number, _handle)


def say(number: int) -> None:
    """The sentence, past Python's buffers."""
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    line = f"{os.path.basename(sys.argv[0])}: stopped by {_NAMES[number]}" + (
        "; what is finished is kept." if working else ".")
    with contextlib.suppress(OSError):
        os.write(2, f"{line}\n".encode())


def _handle(number, frame):
    global received, _since
    if received is not None and time.monotonic() - _since < _ONE_CTRL_C:
        return
    # An exception does not come through everything that is imported, such as C++.
    if received is not None or not working or _is_importing(frame):
        say(number)
        os._exit(128 + number)
    received, _since = number, time.monotonic()
    raise Stopped(number)


def _is_importing(frame) -> bool:
    while frame:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


_main = getattr(sys.modules["__main__"], "__file__", None)
if _main and os.path.dirname(os.path.realpath(_main)) == os.path.realpath(
        os.path.join(os.path.dirname(__file__), "..", "..")):
    install()
