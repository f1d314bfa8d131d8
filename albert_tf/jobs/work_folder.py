"""A folder of finished units of work, from which an interrupted run is resumed.

A unit is finished when its JSON file exists. This file is written last and holds the
sizes and checksums of the unit's files, so that a damaged or missing file is found
before it is used. Files get their names when they are complete.
"""

import contextlib
import dataclasses
import json
import os
import re
import shutil
from typing import Any, BinaryIO, Callable, Iterable, Iterator, Mapping, Sequence

import google_crc32c
from absl import logging

from albert_tf import files, text_files
from albert_tf.jobs import locks
from albert_tf.jobs.progress import Progress
from albert_tf.errors import InputError

# Marks a folder as ours. The name is one that no other program uses.
_SETTINGS = "albert_tf.unfinished"
_LOCK = "albert_tf.lock"
# The names of all other files that a run writes into its folder.
_OURS = re.compile(
    rf"((part|plans|piece|unit|shard|summary)-\d[\d-]*(\.[a-z]+)?"
    rf"|{re.escape(_SETTINGS)}\.json|{re.escape(_LOCK)})(\.incomplete-\d+)?"
    r"|\.writable-\d+")
READ_BYTES = 1 << 20


def extended(total: list[int], data: bytes) -> list[int]:
    """Returns [size, CRC-32C] after appending `data` to content that has `total`."""
    return [total[0] + len(data), google_crc32c.extend(total[1], bytes(data))]


def has_sum(path: str, expected: list[int]) -> bool:
    """Returns whether a file exists and has this [size, CRC-32C]."""
    if not os.path.isfile(path) or os.path.getsize(path) != expected[0]:
        return False
    total = [0, 0]
    with files.open_binary(path) as stream:
        while data := stream.read(READ_BYTES):
            total = extended(total, data)
    return total == expected


def state_of(paths: Iterable[str]) -> list[list]:
    """Returns the state of files, which shows changes, for `inputs` of a WorkFolder."""
    return [[path, *((files.size(path), os.stat(path).st_mtime_ns)
                     if not files.is_remote(path) else ())] for path in paths]


@dataclasses.dataclass
class FileSum:
    """A file that is being written; `sum` is [size, CRC-32C] of its content so far."""

    stream: BinaryIO
    sum: list[int] = dataclasses.field(default_factory=lambda: [0, 0])

    def write(self, data: bytes) -> None:
        self.stream.write(data)
        self.sum = extended(self.sum, data)


@dataclasses.dataclass(frozen=True)
class WorkFolder:
    """Units of work in a local folder; it can be pickled.

        folder = WorkFolder("data.unfinished")
        with folder.used({"seed": 1}, ["a.txt"]):
            with folder.write("rows") as stream:
                stream.write(b"...")
            folder.finish("unit-0", {"count": 1}, {"rows": stream.sum})
    """

    path: str

    @classmethod
    def beside(cls, output: str, work_dir: str | None, others: Iterable[str]
               ) -> "WorkFolder":
        """Returns the folder `work_dir`, by default `<output>.unfinished`.

        Raises InputError if the output or one of the `others` is inside it, or if
        `work_dir` is missing for a remote output.
        """
        if not work_dir and files.is_remote(output):
            raise InputError(
                f"--work_dir is missing, but {output} is not on this machine; give a "
                "local folder for unfinished work, with room for all records.")
        work_dir = work_dir or f"{output}.unfinished"
        if files.is_remote(work_dir):
            raise InputError(f"--work_dir={work_dir} is not on this machine; give a local "
                             "folder.")
        inside = os.path.join(os.path.realpath(work_dir), "")
        for path in (output, *others):
            if os.path.join(os.path.realpath(path), "").startswith(inside):
                raise InputError(
                    f"--work_dir={work_dir} is removed at the end, but {path} is in "
                    "it; give a separate folder.")
        return cls(work_dir)

    def file(self, name: str) -> str:
        return os.path.join(self.path, name)

    @contextlib.contextmanager
    def used(self, settings: Mapping[str, Any], inputs: Any,
             keeps: Callable[[BaseException], bool] = lambda error: True
             ) -> Iterator[None]:
        """Claims the folder for a run and removes it at the end.

        After an error the folder is kept if a unit is finished and `keeps(error)`, so
        that the run can be resumed.
        """
        with self.claimed(settings, inputs) as resumed:
            if resumed:
                logging.info("Resuming the unfinished run in %s.", self.path)
            try:
                yield
            except BaseException as error:
                if keeps(error) and not self.is_empty():
                    logging.info("Finished work is kept in %s. Run the same command "
                                 "again to resume.", self.path)
                else:
                    self.remove()
                raise
            self.remove()

    @contextlib.contextmanager
    def claimed(self, settings: Mapping[str, Any], inputs: Any) -> Iterator[bool]:
        """Makes the folder and locks it; yields whether an unfinished run is resumed.

        Raises InputError if the folder holds files that no run of ours wrote, or if the
        unfinished run has different `settings`. If its `inputs` differ, its work is
        removed. Both are JSON values.
        """
        self._check_others()
        files.make_directory(self.path, "the folder for unfinished work")
        with locks.hold(self.path, name=_LOCK):
            files.remove_leftovers(self.path)
            now = json.loads(json.dumps({"settings": settings, "inputs": inputs}))
            before = self.known(_SETTINGS)
            if before != now:
                if before is not None:
                    self._check_settings(before.get("settings", {}), now["settings"])
                self._clear(keep=(_LOCK,))
                files.write(self.file(f"{_SETTINGS}.json"), json.dumps(now).encode())
            yield before == now

    def _others(self) -> list[str]:
        """Returns the names in the folder that are not of our files."""
        return [name for name in files.names_in(self.path)
                if not _OURS.fullmatch(name) or files.is_folder(self.file(name))]

    def _check_others(self) -> None:
        """Raises InputError if the folder holds anything that is not a run's."""
        names, others = files.names_in(self.path), self._others()
        # A run that was killed at its start leaves files without settings.
        unclear = [] if f"{_SETTINGS}.json" in names else [
            name for name in names if not name.startswith(
                (_SETTINGS, _LOCK, ".writable-"))]
        if others or unclear:
            raise InputError(
                f"{self.path} holds files that are not unfinished work, such as "
                f"{(others or unclear)[0]}; give an empty or new folder (--work_dir), "
                "because it is removed at the end. Nothing there was changed.")

    def remove(self) -> None:
        """Removes the run's files, and the folder if nothing else is in it."""
        others = self._others()
        self._clear(keep=others)
        if others:
            logging.warning("%s is kept, because it holds other files, such as %s.",
                            self.path, others[0])
        else:
            with contextlib.suppress(OSError):  # Something else may have been added.
                os.rmdir(self.path)

    def _clear(self, keep: Iterable[str]) -> None:
        # The settings are last, so that the folder is ours until it is empty.
        names = {*files.names_in(self.path)} - {*keep}
        for name in sorted(names, key=lambda name: (
                name.startswith((_SETTINGS, _LOCK)), name)):
            files.remove(self.file(name))

    def _check_settings(self, before: Mapping, now: Mapping) -> None:
        for name in sorted({*before, *now}):
            if before.get(name) != now.get(name):
                raise InputError(
                    f"{self.path} holds an unfinished run with {name}="
                    f"{_short(before.get(name))}, but this run has "
                    f"{_short(now.get(name))}; finish that run with its own flags, "
                    "or remove the folder.")

    @contextlib.contextmanager
    def write(self, name: str) -> Iterator[FileSum]:
        """Opens a file that gets its name when the block ends without an error."""
        with files.atomic_write(self.file(name)) as stream:
            yield FileSum(stream)

    def finish(self, unit: str, info: Mapping[str, Any],
               sums: Mapping[str, list[int]]) -> dict[str, Any]:
        """Marks a unit as finished; returns what `finished` will return for it.

        That is `info`, which holds JSON values, and under "files" `sums`: the unit's
        files → FileSum.sum.
        """
        content = json.dumps({**info, "files": dict(sums)})
        files.write(self.file(f"{unit}.json"), content.encode())
        return json.loads(content)

    def write_lines(self, path: str, units: Iterable[Sequence[Any]],
                    answer: Callable[[Any], tuple[Iterable[str], Mapping[str, Any]]],
                    progress: Callable[[int], Progress],
                    count: Callable[[Mapping[str, Any]], None]) -> None:
        """Writes the file `path`: the lines for all units of inputs, of which only
        those that are not finished are computed.

        Args:
          path: the output.
          units: lists of inputs, the same ones in every run.
          answer: returns the lines for a unit, and JSON values to keep with them.
          progress: returns the log for the number of inputs that are already done.
          count: takes the JSON values of each unit.
        """
        names, done, log = [], 0, None
        for number, unit in enumerate(units):
            name = f"unit-{number:06d}"
            info = self.finished(name)
            if info is None:
                log = log or progress(done)
                lines, values = answer(unit)
                with self.write(f"{name}.jsonl") as stream:
                    stream.write("".join(f"{line}\n" for line in lines).encode())
                info = self.finish(name, values, {f"{name}.jsonl": stream.sum})
            count(info)
            names.append(name)
            done += len(unit)
            if log:
                log.update(done)
        if log:
            log.report(done)
        with files.atomic_write(path) as output:
            for name in names:
                with files.open_binary(self.file(f"{name}.jsonl")) as part:
                    shutil.copyfileobj(part, output, READ_BYTES)

    def finished(self, unit: str) -> dict[str, Any] | None:
        """Returns the information on a finished unit; None if a file is damaged."""
        info = self.known(unit)
        whole = info and all(has_sum(self.file(name), expected)
                             for name, expected in info["files"].items())
        return info if whole else None

    def known(self, unit: str) -> dict[str, Any] | None:
        """Returns the information on a finished unit without checking its files."""
        path = self.file(f"{unit}.json")
        if not os.path.exists(path):
            return None
        try:
            return text_files.read_object(path)
        except InputError:
            return None  # The file is damaged, so the unit is done again.

    def is_empty(self) -> bool:
        """Returns whether no unit is finished."""
        return not any(name.endswith(".json") and name != f"{_SETTINGS}.json"
                       for name in os.listdir(self.path))


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
