"""Folders of long work: the lock of one run, and finished units, from which an
interrupted run is resumed.

The lock is the operating system's (flock) on a file, so a run that was killed leaves no
lock. Folders in a store and under Windows are not locked.
"""

import contextlib
import dataclasses
import itertools
import json
import os
import pathlib
import shutil
import socket
import time
from typing import Any, Callable, Iterable, Iterator, Mapping

from absl import logging

from albert_tf import files, text_files
from albert_tf.errors import InputError, Interruption, reading
from albert_tf.jobs.progress import Progress

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

LOCK_FILE = "run.lock"
# All files of a run begin so. Nothing else in the folder is touched.
_OURS = "albert_tf."
_SETTINGS = "unfinished"


@contextlib.contextmanager
def hold(folder: str, flag: str) -> Iterator[None]:
    """Holds the lock of an existing folder, which `flag` names.

        with hold("runs/base", "--output_dir"):
            ...  # no other run writes there
    """
    if fcntl is None or files.is_remote(folder):
        yield
        return
    path = os.path.join(folder, LOCK_FILE)
    with reading(path):
        stream = open(path, "a+", errors="replace")
    with stream:
        stream.seek(0)
        owner = stream.readline(200).strip()
        if owner and not owner.startswith("process "):
            raise InputError(f"{path} is not the lock of a run; move it away.")
        with contextlib.suppress(OSError):  # Some network file systems have no locks.
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # The run that held it may just have ended and removed it.
                if not os.path.samestat(os.fstat(stream.fileno()), os.stat(path)):
                    raise BlockingIOError
            except (BlockingIOError, FileNotFoundError) as error:
                raise InputError(
                    f"{flag}={folder}: another run is using this folder ({owner}); wait "
                    "for it, stop it, or give a different folder.") from error
        stream.truncate(0)
        print(f"process {os.getpid()} on {socket.gethostname()}, since "
              f"{time.strftime('%Y-%m-%d %H:%M:%S')}", file=stream, flush=True)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                os.remove(path)


@dataclasses.dataclass(frozen=True)
class WorkFolder:
    """Units of work in a local folder. A unit's JSON file, which is written last, holds
    the sizes of its files.

        folder = WorkFolder("data.unfinished")
        with folder.used({"seed": 1}, ["a.txt"]):
            files.write(folder.file("rows"), b"...")
            folder.finish("unit-0", {"count": 1}, ["rows"])
    """

    path: str

    @classmethod
    def beside(cls, output: str, work_dir: str | None) -> "WorkFolder":
        """Returns the folder `work_dir`, by default `<output>.unfinished`."""
        path = work_dir or f"{output}.unfinished"
        if files.is_remote(path):
            raise InputError(f"--work_dir={path} is not on this machine; give a local "
                             "folder for unfinished work.")
        return cls(files.expanded(path))

    def file(self, name: str) -> str:
        return os.path.join(self.path, f"{_OURS}{name}")

    @contextlib.contextmanager
    def used(self, settings: Mapping[str, Any], inputs: Iterable[str]) -> Iterator[None]:
        """Makes and locks the folder for a run, and removes its files at the end.

        An unfinished run with the same `settings`, which are JSON values, on the same
        files `inputs` is resumed; other settings raise InputError; the work on files that
        are different or have changed is removed.
        After an error the work is kept if a unit is finished, but not after an
        InputError that is no Interruption: then inputs or settings will change.
        """
        files.make_directory(self.path)
        try:
            with hold(self.path, "--work_dir"):
                self._begin(settings, inputs)
                try:
                    yield
                except BaseException as error:
                    units = [*pathlib.Path(self.path).glob(f"{_OURS}*.json")][1:]
                    if not units or isinstance(error, InputError) and not isinstance(
                            error, Interruption):
                        self._clear()
                    else:
                        logging.info("Finished work is kept in %s. Run the same command "
                                     "again to resume.", self.path)
                    raise
                self._clear()
        finally:
            with contextlib.suppress(OSError):  # Something is in it.
                os.rmdir(self.path)

    def _begin(self, settings: Mapping[str, Any], inputs: Iterable[str]) -> None:
        now = json.loads(json.dumps({"settings": settings, "inputs": [
            [path, *((files.size(path), os.stat(path).st_mtime_ns)
                     if not files.is_remote(path) else ())] for path in inputs]}))
        before = self.known(_SETTINGS) or now
        for name in sorted({*before["settings"], *now["settings"]}):
            old, new = (each["settings"].get(name) for each in (before, now))
            if old != new:
                raise InputError(
                    f"{self.path} holds an unfinished run with {name}={old!r:.60}, but this "
                    f"run has {new!r:.60}; finish that run with its own flags, or remove "
                    "the folder.")
        if before is not now and before["inputs"] == now["inputs"]:
            logging.info("Resuming the unfinished run in %s.", self.path)
        else:
            self._clear()
            self.finish(_SETTINGS, now)

    def _clear(self) -> None:
        for path in pathlib.Path(self.path).glob(f"{_OURS}*"):
            if path.is_file():
                path.unlink()

    def finish(self, unit: str, info: Mapping[str, Any],
               names: Iterable[str] = ()) -> dict[str, Any]:
        """Marks a unit as finished, with the names of its files, and returns what
        `finished` will: `info`, JSON values."""
        content = json.dumps({**info, "files": {
            name: os.path.getsize(self.file(name)) for name in names}})
        files.write(self.file(f"{unit}.json"), content.encode())
        return json.loads(content)

    def finished(self, unit: str) -> dict[str, Any] | None:
        """Returns what `finish` kept of a unit; None if a file of it is not complete."""
        info = self.known(unit)
        return info if info and all(
            os.path.isfile(self.file(name)) and os.path.getsize(self.file(name)) == size
            for name, size in info["files"].items()) else None

    def known(self, unit: str) -> dict[str, Any] | None:
        """Returns what `finish` kept of a unit, without checking its files."""
        try:
            return text_files.read_object(self.file(f"{unit}.json"))
        except InputError:
            return None  # The file is missing or damaged, so the unit is done again.

    def write_lines(self, path: str, inputs: Iterator[Any], size: int,
                    answer: Callable[[Any], tuple[Iterable[str], Mapping[str, Any]]],
                    progress: tuple[str, str, int | None]) -> list[dict[str, Any]]:
        """Writes the file `path`: the lines for inputs, the same ones in every run, in
        units of `size`, computed unless a unit is finished. `answer` returns the lines
        for a unit, and JSON values to keep with them, which are returned for each unit;
        `progress` are Progress's arguments."""
        names: list[str] = []
        infos, done, log = [], 0, Progress(*progress)
        while unit := list(itertools.islice(inputs, size)):
            name = f"unit-{len(names):06d}"
            names.append(self.file(f"{name}.jsonl"))
            done += len(unit)
            info = self.finished(name)
            if info:
                log.restart(done)
            else:
                lines, values = answer(unit)
                files.write(names[-1], "".join(f"{line}\n" for line in lines).encode())
                info = self.finish(name, values, [f"{name}.jsonl"])
                log.update(done)
            infos.append(info)
        log.report(done)
        with files.atomic_write(path) as output:
            for name in names:
                with open(name, "rb") as part:
                    shutil.copyfileobj(part, output, 1 << 20)
        return infos
