"""A folder of finished units of work, from which an interrupted run goes on.

A unit is finished when its JSON file is there. That is written last, and holds sizes
and checksums of the unit's files, so that a damaged or missing one is found before
it is used. Files appear under their names when they are whole.
"""

import contextlib
import json
import os
from typing import Any, BinaryIO, Iterator, Mapping, Optional

import google_crc32c

from albert_tf import files
from albert_tf.errors import InputError

_SETTINGS = "settings.json"
_LOCK = "lock"
_READ_BYTES = 1 << 20


class FileSum:
    """A file while it is written: counts bytes and their CRC-32C.

    Attributes:
      size: bytes so far.
    """

    def __init__(self, stream: BinaryIO):
        self._stream = stream
        self._crc = 0
        self.size = 0

    def write(self, data: bytes) -> None:
        """Appends bytes."""
        self._stream.write(data)
        self._crc = google_crc32c.extend(self._crc, bytes(data))
        self.size += len(data)

    @property
    def sum(self) -> list[int]:
        """[size, CRC-32C], as `has_sum` takes it."""
        return [self.size, self._crc]


def has_sum(path: str, expected: list[int]) -> bool:
    """Whether a file is there with this size and CRC-32C."""
    if not os.path.isfile(path) or os.path.getsize(path) != expected[0]:
        return False
    crc = 0
    with files.open_binary(path) as stream:
        while data := stream.read(_READ_BYTES):
            crc = google_crc32c.extend(crc, data)
    return crc == expected[1]


class WorkFolder:
    """Units of work in a folder; can be pickled.

    Args:
      path: the folder; a local one.
    """

    def __init__(self, path: str):
        self.path = path

    def file(self, name: str) -> str:
        """Path of a file in the folder."""
        return os.path.join(self.path, name)

    @contextlib.contextmanager
    def claimed(self, settings: Mapping[str, Any], inputs: Any) -> Iterator[bool]:
        """Makes the folder, and keeps other runs out of it.

        Args:
          settings: JSON values; what is in the folder was made with the same.
          inputs: JSON value that tells the input's state. Where it has changed,
            what is in the folder is of no use and is removed.

        Yields:
          Whether an interrupted run is gone on with.

        Raises:
          InputError: if the folder cannot be made, another run is at work in it, it
            was made with other settings, or holds what is not ours.
        """
        files.make_directory(self.path, "the folder for unfinished work")
        self._check_files()
        with open(self.file(_LOCK), "wb") as lock:
            self._lock(lock)
            now = json.loads(json.dumps({"settings": settings, "inputs": inputs}))
            before = self._read(_SETTINGS)
            if before != now:
                if before is not None:
                    self._check_settings(before.get("settings", {}), now["settings"])
                self.clear()
                before = None
            if before is None:
                self._write(_SETTINGS, now)
            yield before is not None

    def _lock(self, stream: BinaryIO) -> None:
        try:
            import fcntl
        except ImportError:  # Windows: no lock, and no check.
            return
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise InputError(
                f"{self.path}: another run is at work in this folder; wait for it, or "
                "stop it.") from error

    def _check_files(self) -> None:
        """Refuses a folder of other files: at the end it is removed as a whole."""
        names = sorted(os.listdir(self.path))
        others = [name for name in names if name != _LOCK
                  # Left by a process that was killed in its first moments.
                  and not name.startswith((f"{_SETTINGS}.incomplete", ".writable-"))]
        if others and _SETTINGS not in names:
            raise InputError(
                f"{self.path} holds other files, such as {others[0]}; the folder for "
                "unfinished work must be empty or new, since it is removed in the end.")

    def _check_settings(self, before: Mapping, now: Mapping) -> None:
        for name in sorted({*before, *now}):
            if before.get(name) != now.get(name):
                raise InputError(
                    f"{self.path} holds an unfinished run with {name}="
                    f"{_short(before.get(name))}, this one has "
                    f"{_short(now.get(name))}; finish that run with its own flags, "
                    "or remove the folder.")

    def clear(self) -> None:
        """Removes all units."""
        for name in os.listdir(self.path):
            if name != _LOCK:
                os.remove(self.file(name))

    def remove(self) -> None:
        """Removes the folder with all that is in it."""
        files.remove_folder(self.path)

    @contextlib.contextmanager
    def write(self, name: str) -> Iterator[FileSum]:
        """Opens a file that appears under its name when the block ends well.

        Raises:
          InputError: if it cannot be written, as on a full disk.
        """
        with files.atomic_write(self.file(name)) as stream:
            yield FileSum(stream)

    def finish(self, unit: str, info: Mapping[str, Any],
               sums: Mapping[str, list[int]]) -> dict[str, Any]:
        """Marks a unit as finished.

        Args:
          unit: its name.
          info: JSON values to be kept with it.
          sums: name of each file of the unit → its FileSum.sum.

        Returns:
          What `finished` gives from now on: `info`, and "files": `sums`.
        """
        info = {**info, "files": dict(sums)}
        self._write(f"{unit}.json", info)
        return json.loads(json.dumps(info))

    def finished(self, unit: str) -> Optional[dict[str, Any]]:
        """What is kept of a finished unit whose files are whole; else None."""
        info = self._read(f"{unit}.json")
        if info is None or not all(
                has_sum(self.file(name), expected)
                for name, expected in info["files"].items()):
            return None
        return info

    def known(self, unit: str) -> Optional[dict[str, Any]]:
        """What is kept of a finished unit, without a look at its files."""
        return self._read(f"{unit}.json")

    def is_empty(self) -> bool:
        """Whether no unit was finished."""
        return not any(name.endswith(".json") and name != _SETTINGS
                       for name in os.listdir(self.path))

    def _read(self, name: str) -> Optional[Any]:
        path = self.file(name)
        if not os.path.exists(path):
            return None
        try:
            with files.open_binary(path) as stream:
                return json.load(stream)
        except ValueError:
            return None  # Damaged: the unit is made again.

    def _write(self, name: str, value: Any) -> None:
        with files.atomic_write(self.file(name)) as stream:
            stream.write(json.dumps(value).encode())


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
