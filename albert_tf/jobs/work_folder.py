"""A folder of finished units of work, from which an interrupted run is resumed.

A unit is finished when its JSON file exists. This file is written last and holds the
sizes and checksums of the unit's files, so that a damaged or missing file is found
before it is used. Files get their names when they are complete.
"""

import contextlib
import dataclasses
import json
import os
from typing import Any, BinaryIO, Callable, Iterable, Iterator, Mapping

import google_crc32c
from absl import logging

from albert_tf import files, text_files
from albert_tf.jobs import locks
from albert_tf.errors import InputError

_SETTINGS = "settings"
_LOCK = "lock"
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
                    files.remove_folder(self.path)
                raise
            files.remove_folder(self.path)

    @contextlib.contextmanager
    def claimed(self, settings: Mapping[str, Any], inputs: Any) -> Iterator[bool]:
        """Makes the folder and locks it; yields whether an unfinished run is resumed.

        Raises InputError if the unfinished run has different `settings`. If its
        `inputs` differ, its work is removed. Both are JSON values.
        """
        files.make_directory(self.path, "the folder for unfinished work")
        names = sorted(os.listdir(self.path))
        others = [name for name in names if name != _LOCK
                  # A process that was killed at its start may leave these.
                  and not name.startswith(
                      (f"{_SETTINGS}.json.incomplete", ".writable-"))]
        if others and f"{_SETTINGS}.json" not in names:
            raise InputError(
                f"{self.path} holds other files, such as {others[0]}; give an empty or "
                "new folder for unfinished work, because it is removed at the end.")
        with locks.hold(self.path, name=_LOCK):
            files.remove_leftovers(self.path)
            now = json.loads(json.dumps({"settings": settings, "inputs": inputs}))
            before = self.known(_SETTINGS)
            if before != now:
                if before is not None:
                    self._check_settings(before.get("settings", {}), now["settings"])
                for name in os.listdir(self.path):
                    if name != _LOCK:
                        os.remove(self.file(name))
                before = None
            if before is None:
                files.write(self.file(f"{_SETTINGS}.json"), json.dumps(now).encode())
            yield before is not None

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

    def keep(self, unit: str, end: str, content: bytes, info: Mapping[str, Any]
             ) -> dict[str, Any]:
        """Writes the only file of a unit, `<unit><end>`, and finishes the unit."""
        with self.write(f"{unit}{end}") as stream:
            stream.write(content)
        return self.finish(unit, info, {f"{unit}{end}": stream.sum})

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
