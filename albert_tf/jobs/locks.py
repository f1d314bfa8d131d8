"""Locks a folder for one run; the lock ends with the process that holds it.

    with locks.hold("runs/base", "--output_dir"):
        ...  # no other run writes there

Two runs in one folder would overwrite each other's checkpoints and mix their logs. On a
local disk the lock is the operating system's (flock, locking) on the file `run.lock`, so a run
that was killed leaves no lock. An object store has no locks. There `run.lock` is an
object that its run rewrites every few seconds, and a lock that no longer changes is
taken over. If the store was unavailable for long and a different run took over, the
first run logs an error and stops renewing its lock.
"""

# The package filelock is not used: it does not tell which process holds a lock (up to
# version 3 it empties that file when a second run tries), and does not support object
# stores.
import contextlib
import json
import os
import socket
import threading
import time
from typing import BinaryIO, Iterator

from absl import logging

from albert_tf import files
from albert_tf.errors import InputError

try:
    import fcntl
except ImportError:  # Windows, which has msvcrt
    fcntl = None  # type: ignore[assignment]

LOCK_FILE = "run.lock"
# Seconds between two renewals of a lock in an object store, and to wait for one.
BEAT, PATIENCE = 15.0, 50.0
_LOCKED_BYTE = 1 << 20  # on Windows


def hold(folder: str, flag: str = "", name: str = LOCK_FILE, beat: float = BEAT,
         patience: float = PATIENCE) -> contextlib.AbstractContextManager[None]:
    """Holds the lock of an existing folder during a with-block.

    Raises InputError if a different run holds it. `flag` is the flag that names the
    folder, if there is one. `beat` and `patience`, in seconds, are for object stores.
    """
    path, named = os.path.join(folder, name), f"{flag}={folder}" if flag else folder
    if files.is_remote(folder):
        return _remote(path, named, beat, patience)
    return _local(path, named)


def _owner() -> dict[str, object]:
    return {"host": socket.gethostname(), "process": os.getpid(),
            "since": time.strftime("%Y-%m-%d %H:%M:%S")}


def _refusal(named: str, owner: dict) -> InputError:
    known = all(key in owner for key in ("host", "process", "since"))
    return InputError(
        f"{named}: another run is using this folder"
        + (f" (process {owner['process']} on {owner['host']}, since {owner['since']})"
           if known else "") + "; wait for it, stop it, or give a different folder.")


def _check_ours(content: bytes, path: str, named: str) -> None:
    """Raises InputError if a different program wrote the lock file."""
    if content and not {"host", "process"} <= _parsed(content).keys():
        raise InputError(
            f"{named}: {path} is not the lock of a run, which would "
            "replace it; move that file away, or give a different folder.")


def _parsed(content: bytes) -> dict:
    with contextlib.suppress(ValueError):
        value = json.loads(content)
        if isinstance(value, dict):
            return value
    return {}


@contextlib.contextmanager
def _local(path: str, named: str) -> Iterator[None]:
    """Holds the lock file at `path`. `named` is the folder with its flag, for errors."""
    with _opened(path, named) as stream:
        try:
            _lock(stream)
        except BlockingIOError as error:
            stream.seek(0)
            raise _refusal(named, _parsed(stream.read())) from error
        except OSError as error:
            # Some network file systems do not support locks.
            logging.warning("%s cannot be locked (%s). Make sure that no other run "
                            "writes to %s.", path, error.strerror, os.path.dirname(path))
        if not os.path.exists(path) or not os.path.samestat(
                os.fstat(stream.fileno()), os.stat(path)):
            # It was opened just before the run that held it ended and removed it.
            raise _refusal(named, {})
        stream.seek(0)
        _check_ours(stream.read(), path, named)
        stream.truncate(0)
        stream.write(json.dumps(_owner()).encode() + b"\n")
        stream.flush()
        try:
            yield
        finally:
            if not fcntl:  # Windows removes no file that is open.
                stream.close()
            with contextlib.suppress(OSError):
                os.remove(path)


def _lock(stream: BinaryIO) -> None:
    """Locks a file until it is closed. Raises BlockingIOError if another run has
    locked it."""
    if fcntl:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return
    import msvcrt

    # A locked byte cannot be read there. This one is behind the content, from which
    # other runs read who holds the lock.
    os.lseek(stream.fileno(), _LOCKED_BYTE, os.SEEK_SET)
    try:
        msvcrt.locking(stream.fileno(), msvcrt.LK_NBLCK, 1)
    except PermissionError as error:
        raise BlockingIOError(*error.args) from error


def _opened(path: str, named: str) -> BinaryIO:
    try:
        return open(path, "a+b")
    except OSError as error:
        raise InputError(
            f"{named}: {path} cannot be written ({error.strerror}); change its "
            "permissions or give a different folder.") from error


@contextlib.contextmanager
def _remote(path: str, named: str, beat: float, patience: float) -> Iterator[None]:
    mine = {**_owner(), "id": os.urandom(8).hex()}

    def read() -> bytes:
        if not files.exists(path):
            return b""
        with files.open_binary(path) as stream:
            return stream.read()

    def is_mine() -> bool:
        return _parsed(read()).get("id") == mine["id"]

    def write(count: int) -> None:
        files.write(path, json.dumps({**mine, "beat": count}).encode())

    content = read()
    _check_ours(content, path, named)
    if content:
        logging.info("%s exists. Waiting %.0f s to see whether another run is still "
                     "using this folder.", path, patience)
        end = time.monotonic() + patience
        while time.monotonic() < end:
            time.sleep(min(beat / 3, 5.0))
            now = read()
            if not now:
                break  # That run has ended.
            if now != content:
                raise _refusal(named, _parsed(now))
    write(0)
    time.sleep(min(beat / 5, 2.0))
    # If two runs found no lock, the last one that writes it holds it.
    if not is_mine():
        raise _refusal(named, _parsed(read()))
    ended = threading.Event()

    def beats():
        count = 0
        while not ended.wait(beat):
            count += 1
            try:
                if not is_mine():
                    logging.error(
                        "%s: another run has taken this folder over, because the lock "
                        "of this one was not renewed for %.0f s. Stop one of them.",
                        named, patience)
                    return
                write(count)
            except Exception as error:  # The store may be unavailable for a while.
                logging.warning("%s cannot be renewed: %s", path, error)

    thread = threading.Thread(target=beats, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        with contextlib.suppress(Exception):
            if is_mine():
                files.remove(path)
