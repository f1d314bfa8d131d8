"""A folder of finished units of work, from which an interrupted run is resumed.

A unit is finished when its JSON file is there, which is written last and holds sizes
and checksums of the unit's files, so that a damaged or missing one is found before it
is used. Files appear under their names when they are whole.
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
    """[size, CRC-32C] of what had `total`, and then of `data`."""
    return [total[0] + len(data), google_crc32c.extend(total[1], bytes(data))]


def has_sum(path: str, expected: list[int]) -> bool:
    """Whether a file is there with this [size, CRC-32C]."""
    if not os.path.isfile(path) or os.path.getsize(path) != expected[0]:
        return False
    total = [0, 0]
    with files.open_binary(path) as stream:
        while data := stream.read(READ_BYTES):
            total = extended(total, data)
    return total == expected


def state_of(paths: Iterable[str]) -> list[list]:
    """What shows that one of these files was changed, as `inputs` of a WorkFolder."""
    return [[path, *((files.size(path), os.stat(path).st_mtime_ns)
                     if not files.is_remote(path) else ())] for path in paths]


@dataclasses.dataclass
class FileSum:
    """A file while it is written; `sum` is [size, CRC-32C] of what it holds."""

    stream: BinaryIO
    sum: list[int] = dataclasses.field(default_factory=lambda: [0, 0])

    def write(self, data: bytes) -> None:
        self.stream.write(data)
        self.sum = extended(self.sum, data)


@dataclasses.dataclass(frozen=True)
class WorkFolder:
    """Units of work in a local folder; can be pickled.

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
        """By default the output's name and ".unfinished"; refuses a `work_dir` in which
        one of the `others`, or the output, lies."""
        if not work_dir and files.is_remote(output):
            raise InputError(
                f"--work_dir is missing: {output} is not on this machine; give a local "
                "folder for unfinished work, with room for all records.")
        work_dir = work_dir or f"{output}.unfinished"
        inside = os.path.join(os.path.realpath(work_dir), "")
        for path in (output, *others):
            if os.path.join(os.path.realpath(path), "").startswith(inside):
                raise InputError(
                    f"--work_dir: {work_dir} is removed in the end, but {path} lies in "
                    "it; give a folder of its own.")
        return cls(work_dir)

    def file(self, name: str) -> str:
        return os.path.join(self.path, name)

    @contextlib.contextmanager
    def used(self, settings: Mapping[str, Any], inputs: Any,
             keeps: Callable[[BaseException], bool] = lambda error: True
             ) -> Iterator[None]:
        """Claims the folder for a run and removes it at the end. After an error it
        stays, so that the run can be resumed, if a unit is finished and
        `keeps(error)`."""
        with self.claimed(settings, inputs) as resumed:
            if resumed:
                logging.info("Resuming the unfinished run in %s.", self.path)
            try:
                yield
            except BaseException as error:
                if keeps(error) and not self.is_empty():
                    logging.info("What is finished stays in %s; the same command "
                                 "resumes it.", self.path)
                else:
                    files.remove_folder(self.path)
                raise
            files.remove_folder(self.path)

    @contextlib.contextmanager
    def claimed(self, settings: Mapping[str, Any], inputs: Any) -> Iterator[bool]:
        """Makes the folder and keeps other runs out; yields whether a run is resumed:
        one with the same `settings`, else it is refused, and the same state of its
        `inputs`, else what it made is removed. Both are JSON values."""
        files.make_directory(self.path, "the folder for unfinished work")
        names = sorted(os.listdir(self.path))
        others = [name for name in names if name != _LOCK
                  # Left by a process that was killed in its first moments.
                  and not name.startswith(
                      (f"{_SETTINGS}.json.incomplete", ".writable-"))]
        if others and f"{_SETTINGS}.json" not in names:
            raise InputError(
                f"{self.path} holds other files, such as {others[0]}; the folder for "
                "unfinished work must be empty or new, since it is removed in the end.")
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
                    f"{_short(before.get(name))}, this one has "
                    f"{_short(now.get(name))}; finish that run with its own flags, "
                    "or remove the folder.")

    @contextlib.contextmanager
    def write(self, name: str) -> Iterator[FileSum]:
        """Opens a file that appears under its name when the block ends well."""
        with files.atomic_write(self.file(name)) as stream:
            yield FileSum(stream)

    def finish(self, unit: str, info: Mapping[str, Any],
               sums: Mapping[str, list[int]]) -> dict[str, Any]:
        """Marks a unit as finished; returns what `finished` gives from now on: `info`,
        JSON values, and "files": `sums`, the unit's files → FileSum.sum."""
        content = json.dumps({**info, "files": dict(sums)})
        files.write(self.file(f"{unit}.json"), content.encode())
        return json.loads(content)

    def finished(self, unit: str) -> dict[str, Any] | None:
        """What is kept of a finished unit whose files are whole; else None."""
        info = self.known(unit)
        whole = info and all(has_sum(self.file(name), expected)
                             for name, expected in info["files"].items())
        return info if whole else None

    def known(self, unit: str) -> dict[str, Any] | None:
        """What is kept of a finished unit, without a look at its files."""
        path = self.file(f"{unit}.json")
        if not os.path.exists(path):
            return None
        try:
            return text_files.read_object(path)
        except InputError:
            return None  # Damaged: the unit is made again.

    def is_empty(self) -> bool:
        """Whether no unit was finished."""
        return not any(name.endswith(".json") and name != f"{_SETTINGS}.json"
                       for name in os.listdir(self.path))


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
