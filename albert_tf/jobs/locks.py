"""Locks a local folder for one run; the lock ends with the process that holds it.

    with locks.hold("runs/base", "--output_dir"):
        ...  # no other run writes there

Two runs in one folder would overwrite each other's checkpoints and mix their logs. The
lock is the operating system's (flock) on the file `run.lock`, so a run that was killed
leaves no lock. Folders in a store and under Windows are not locked.
"""

# The package filelock is not used: it does not tell which process holds a lock (up to
# version 3 it empties that file when a second run tries).
import contextlib
import json
import os
import socket
import time
from typing import Iterator

from absl import logging

from albert_tf import files
from albert_tf.errors import InputError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

LOCK_FILE = "run.lock"


@contextlib.contextmanager
def hold(folder: str, flag: str = "", name: str = LOCK_FILE) -> Iterator[None]:
    """Holds the lock of an existing folder during a with-block.

    Raises InputError if a different run holds it. `flag` is the flag that names the
    folder, if there is one.
    """
    path, named = os.path.join(folder, name), f"{flag}={folder}" if flag else folder
    if fcntl is None or files.is_remote(folder):
        yield
        return
    try:
        stream = open(path, "a+b")
    except OSError as error:
        raise InputError(
            f"{named}: {path} cannot be written ({error.strerror}); change its "
            "permissions or give a different folder.") from error
    with stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            stream.seek(0)
            raise _refusal(named, _parsed(stream.read())) from error
        except OSError as error:
            # Some network file systems do not support locks.
            logging.warning("%s cannot be locked (%s). Make sure that no other run "
                            "writes to %s.", path, error.strerror, folder)
        if not os.path.exists(path) or not os.path.samestat(
                os.fstat(stream.fileno()), os.stat(path)):
            # It was opened just before the run that held it ended and removed it.
            raise _refusal(named, {})
        stream.seek(0)
        content = stream.read()
        if content and not {"host", "process"} <= _parsed(content).keys():
            raise InputError(
                f"{named}: {path} is not the lock of a run, which would replace it; "
                "move that file away, or give a different folder.")
        stream.truncate(0)
        stream.write(json.dumps({
            "host": socket.gethostname(), "process": os.getpid(),
            "since": time.strftime("%Y-%m-%d %H:%M:%S")}).encode() + b"\n")
        stream.flush()
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                os.remove(path)


def _refusal(named: str, owner: dict) -> InputError:
    known = all(key in owner for key in ("host", "process", "since"))
    return InputError(
        f"{named}: another run is using this folder"
        + (f" (process {owner['process']} on {owner['host']}, since {owner['since']})"
           if known else "") + "; wait for it, stop it, or give a different folder.")


def _parsed(content: bytes) -> dict:
    with contextlib.suppress(ValueError):
        value = json.loads(content)
        if isinstance(value, dict):
            return value
    return {}
