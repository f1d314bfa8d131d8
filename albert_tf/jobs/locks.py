"""One run at a time in a folder: a lock that ends with the process that holds it.

    with locks.hold("runs/base", "--output_dir"):
        ...  # no other run writes there

Two runs in one folder would overwrite each other's checkpoints and mix their logs. On a
local disk the lock is the operating system's (flock) on the file `run.lock`, so a run
that was killed leaves none. An object store has no locks: there `run.lock` is an object
that its run writes anew every few seconds, and one that no longer changes is taken
over. A run that finds its own taken over, as the store was away for long, says so and
leaves it to the other.
"""

# Not by the package filelock: it does not say who holds a lock (up to version 3 it
# empties the file that does when a second run tries), and knows no object stores.
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

LOCK_FILE = "run.lock"
# Seconds between two signs of life in an object store, and how long one is waited for.
BEAT, PATIENCE = 15.0, 50.0


def hold(folder: str, flag: str = "", name: str = LOCK_FILE, beat: float = BEAT,
         patience: float = PATIENCE) -> contextlib.AbstractContextManager[None]:
    """Holds the lock of a folder, which is there, while a with-block lasts.

    Refuses where another run holds it; `flag` is the folder's, if it has one.
    `beat` and `patience` are for object stores.
    """
    path = os.path.join(folder, name)
    if files.is_remote(folder):
        return _remote(path, folder, flag, beat, patience)
    return _local(path, folder, flag)


def _owner() -> dict[str, object]:
    return {"host": socket.gethostname(), "process": os.getpid(),
            "since": time.strftime("%Y-%m-%d %H:%M:%S")}


def _named(flag: str, folder: str) -> str:
    return f"{flag}={folder}" if flag else folder


def _refusal(folder: str, flag: str, owner: dict) -> InputError:
    known = all(key in owner for key in ("host", "process", "since"))
    return InputError(
        f"{_named(flag, folder)}: another run is at work in this folder"
        + (f" (process {owner['process']} on {owner['host']}, since {owner['since']})"
           if known else "") + "; wait for it, stop it, or give another folder.")


def _parsed(content: bytes) -> dict:
    with contextlib.suppress(ValueError):
        value = json.loads(content)
        if isinstance(value, dict):
            return value
    return {}


@contextlib.contextmanager
def _local(path: str, folder: str, flag: str) -> Iterator[None]:
    try:
        import fcntl
    except ImportError:  # Windows has another kind.
        yield
        return
    with _opened(path, _named(flag, folder)) as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            stream.seek(0)
            raise _refusal(folder, flag, _parsed(stream.read())) from error
        except OSError as error:
            # Some network file systems have no locks.
            logging.warning("%s cannot be locked (%s): see to it that no other run "
                            "writes to %s.", path, error.strerror, folder)
        if not os.path.exists(path) or not os.path.samestat(
                os.fstat(stream.fileno()), os.stat(path)):
            # Opened right before the run that held it ended and removed it.
            raise _refusal(folder, flag, {})
        stream.truncate(0)
        stream.write(json.dumps(_owner()).encode() + b"\n")
        stream.flush()
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                os.remove(path)


def _opened(path: str, named: str) -> BinaryIO:
    try:
        return open(path, "a+b")
    except OSError as error:
        raise InputError(
            f"{named}: {path} cannot be written ({error.strerror}).") from error


@contextlib.contextmanager
def _remote(path: str, folder: str, flag: str, beat: float, patience: float
            ) -> Iterator[None]:
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

    found = read()
    if found:
        logging.info("%s is there; for %.0f s it is watched for another run's signs of "
                     "life.", path, patience)
        end = time.monotonic() + patience
        while time.monotonic() < end:
            time.sleep(min(beat / 3, 5.0))
            now = read()
            if not now:
                break  # That run has ended.
            if now != found:
                raise _refusal(folder, flag, _parsed(now))
    write(0)
    time.sleep(min(beat / 5, 2.0))
    # Of two that found none, the last to write holds it.
    if not is_mine():
        raise _refusal(folder, flag, _parsed(read()))
    ended = threading.Event()

    def beats():
        count = 0
        while not ended.wait(beat):
            count += 1
            try:
                if not is_mine():
                    logging.error(
                        "%s: another run has taken this folder over, as it saw no sign "
                        "of this one for %.0f s; stop one of them.",
                        _named(flag, folder), patience)
                    return
                write(count)
            except Exception as error:  # The store may be away for a while.
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
