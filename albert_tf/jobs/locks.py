"""Locks a local folder for one run; the lock ends with the process that holds it.

    with locks.hold("runs/base", "--output_dir"):
        ...  # no other run writes there

Two runs in one folder would overwrite each other's checkpoints and mix their logs. The
lock is the operating system's (flock) on the file `run.lock`, so a run that was killed
leaves no lock. Folders in a store and under Windows are not locked.
"""

import contextlib
import os
import socket
import time
from typing import Iterator

from albert_tf import files
from albert_tf.errors import InputError, reading

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

LOCK_FILE = "run.lock"


@contextlib.contextmanager
def hold(folder: str, flag: str = "", name: str = LOCK_FILE) -> Iterator[None]:
    """Holds the lock of an existing folder, which `flag` names."""
    path, named = os.path.join(folder, name), f"{flag}={folder}" if flag else folder
    if fcntl is None or files.is_remote(folder):
        yield
        return
    with reading(os.path.join(named, name)):
        stream = open(path, "a+", errors="replace")
    with stream:
        stream.seek(0)
        owner = stream.readline(200).strip()
        if owner and not owner.startswith("process "):
            raise InputError(f"{named}: {path} is not the lock of a run; move it away.")
        with contextlib.suppress(OSError):  # Some network file systems have no locks.
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # The run that held it may just have ended and removed it.
                if not os.path.samestat(os.fstat(stream.fileno()), os.stat(path)):
                    raise BlockingIOError
            except (BlockingIOError, FileNotFoundError) as error:
                raise InputError(
                    f"{named}: another run is using this folder ({owner}); wait for it, "
                    "stop it, or give a different folder.") from error
        stream.truncate(0)
        print(f"process {os.getpid()} on {socket.gethostname()}, since "
              f"{time.strftime('%Y-%m-%d %H:%M:%S')}", file=stream, flush=True)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                os.remove(path)
