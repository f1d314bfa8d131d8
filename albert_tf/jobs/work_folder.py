"""A folder of finished units of work, from which an interrupted run is resumed.

A unit is finished when its JSON file exists. This file is written last and holds the
sizes of the unit's files. Files get their names when they are complete.
"""

import contextlib
import dataclasses
import json
import os
import shutil
from typing import (
    Any, BinaryIO, Callable, ContextManager, Iterable, Iterator, Mapping, Sequence)

from absl import logging

from albert_tf import files, text_files
from albert_tf.jobs import locks
from albert_tf.jobs.progress import Progress
from albert_tf.errors import InputError, Interruption

# All files of a run begin so, which no other program's do.
_OURS = "albert_tf."
_SETTINGS = "unfinished"
_LOCK = "albert_tf.lock"


def state_of(paths: Iterable[str]) -> list[list]:
    """Returns the state of files, which shows changes, for `inputs` of a WorkFolder."""
    return [[path, *((files.size(path), os.stat(path).st_mtime_ns)
                     if not files.is_remote(path) else ())] for path in paths]


@dataclasses.dataclass(frozen=True)
class WorkFolder:
    """Units of work in a local folder; it can be pickled.

        folder = WorkFolder("data.unfinished")
        with folder.used({"seed": 1}, ["a.txt"]):
            with folder.write("rows") as stream:
                stream.write(b"...")
            folder.finish("unit-0", {"count": 1}, ["rows"])
    """

    path: str

    @classmethod
    def beside(cls, output: str, work_dir: str | None, others: Iterable[str]
               ) -> "WorkFolder":
        """Returns the folder `work_dir`, by default `<output>.unfinished`.

        Raises InputError if the output or one of the `others` is inside it, or if
        `work_dir` is missing for a remote output.
        """
        if files.is_remote(work_dir or output):
            named = (f"--work_dir={work_dir}" if work_dir
                     else f"--work_dir is missing, but {output}")
            raise InputError(f"{named} is not on this machine; give a local folder for "
                             "unfinished work.")
        work_dir = work_dir or f"{output}.unfinished"
        inside = os.path.join(os.path.realpath(work_dir), "")
        for path in (output, *others):
            if os.path.join(os.path.realpath(path), "").startswith(inside):
                raise InputError(
                    f"--work_dir={work_dir} is removed at the end, but {path} is in "
                    "it; give a separate folder.")
        return cls(work_dir)

    def file(self, name: str) -> str:
        """Returns the path of a file in the folder."""
        return os.path.join(self.path, f"{_OURS}{name}")

    def write(self, name: str) -> ContextManager[BinaryIO]:
        """Opens a file that gets its name when the block ends without an error."""
        return files.atomic_write(self.file(name))

    @contextlib.contextmanager
    def used(self, settings: Mapping[str, Any], inputs: Any) -> Iterator[None]:
        """Makes and locks the folder for a run, and removes it at the end.

        An unfinished run with the same `settings` and `inputs`, which are JSON values,
        is resumed. If the inputs differ, its work is removed. Raises InputError if the
        settings differ, or if the folder holds files of anyone else. After an error the
        folder is kept if a unit is finished, but not after an InputError that is no
        Interruption: then the inputs or settings will change.
        """
        others = self._others()
        if others:
            raise InputError(
                f"{self.path} holds files that are not unfinished work, such as "
                f"{others[0]}; give an empty or new folder (--work_dir), because it is "
                "removed at the end. Nothing there was changed.")
        files.make_directory(self.path, "the folder for unfinished work")
        with locks.hold(self.path, name=_LOCK):
            now = json.loads(json.dumps({"settings": settings, "inputs": inputs}))
            before = self.known(_SETTINGS)
            if before == now:
                logging.info("Resuming the unfinished run in %s.", self.path)
            else:
                self._check_settings((before or now)["settings"], now["settings"])
                self._clear(but=_LOCK)
                files.write(self.file(f"{_SETTINGS}.json"), json.dumps(now).encode())
            try:
                yield
            except BaseException as error:
                units = [name for name in files.names_in(self.path)
                         if name.endswith(".json") and _SETTINGS not in name]
                if units and (isinstance(error, Interruption)
                              or not isinstance(error, InputError)):
                    logging.info("Finished work is kept in %s. Run the same command "
                                 "again to resume.", self.path)
                else:
                    self._remove()
                raise
            self._remove()

    def _others(self) -> list[str]:
        """Returns the names in the folder that are not of our files."""
        return [name for name in files.names_in(self.path)
                if not name.startswith(_OURS) or files.is_folder(
                    os.path.join(self.path, name))]

    def _remove(self) -> None:
        """Removes the run's files, and the folder if nothing else is in it."""
        self._clear()
        with contextlib.suppress(OSError):
            os.rmdir(self.path)

    def _clear(self, but: str = "") -> None:
        for name in {*files.names_in(self.path)} - {*self._others(), but}:
            files.remove(os.path.join(self.path, name))

    def _check_settings(self, before: Mapping, now: Mapping) -> None:
        for name in sorted({*before, *now}):
            if before.get(name) != now.get(name):
                raise InputError(
                    f"{self.path} holds an unfinished run with {name}="
                    f"{_short(before.get(name))}, but this run has "
                    f"{_short(now.get(name))}; finish that run with its own flags, "
                    "or remove the folder.")

    def finish(self, unit: str, info: Mapping[str, Any],
               names: Iterable[str] = ()) -> dict[str, Any]:
        """Marks a unit as finished; returns what `finished` will return for it: `info`,
        which holds JSON values. `names` are those of the unit's files."""
        sizes = {name: os.path.getsize(self.file(name)) for name in names}
        content = json.dumps({**info, "files": sizes})
        files.write(self.file(f"{unit}.json"), content.encode())
        return json.loads(content)

    def finished(self, unit: str) -> dict[str, Any] | None:
        """Returns the information on a finished unit; None if a file is missing or has
        a different size."""
        info = self.known(unit)
        whole = info and all(
            os.path.isfile(self.file(name)) and os.path.getsize(self.file(name)) == size
            for name, size in info["files"].items())
        return info if whole else None

    def known(self, unit: str) -> dict[str, Any] | None:
        """Returns the information on a finished unit without checking its files."""
        try:
            return text_files.read_object(self.file(f"{unit}.json"))
        except InputError:
            return None  # The file is missing or damaged, so the unit is done again.

    def write_lines(self, path: str, units: Iterable[Sequence[Any]],
                    answer: Callable[[Any], tuple[Iterable[str], Mapping[str, Any]]],
                    progress: Callable[[int], Progress],
                    count: Callable[[Mapping[str, Any]], None]) -> None:
        """Writes the file `path`: the lines for all units of inputs, of which only
        those that are not finished are computed.

        `units` are lists of inputs, the same ones in every run; `answer` returns the
        lines for a unit, and JSON values to keep with them, which `count` takes;
        `progress` returns the log for the number of inputs that are already done.
        """
        names, done, log = [], 0, None
        for number, unit in enumerate(units):
            name = f"unit-{number:06d}"
            names.append(f"{name}.jsonl")
            info = self.finished(name)
            if info is None:
                log = log or progress(done)
                lines, values = answer(unit)
                with self.write(names[-1]) as stream:
                    stream.write("".join(f"{line}\n" for line in lines).encode())
                info = self.finish(name, values, names[-1:])
            count(info)
            done += len(unit)
            if log:
                log.update(done)
        if log:
            log.report(done)
        with files.atomic_write(path) as output:
            for name in names:
                with files.open_binary(self.file(name)) as part:
                    shutil.copyfileobj(part, output, 1 << 20)


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
