"""Files in numbered parts: arrays read from anywhere, with few files open at a time."""

import contextlib
import itertools
import os
from typing import Iterator

import numpy as np

from albert_tf.errors import InputError
from albert_tf.pretraining_data.work_folder import WorkFolder

_MOST_OPEN = 1024


def part_name(number: int, kind: str) -> str:
    """Name of a part's file in its folder: part-00012.tokens."""
    return f"part-{number:05d}.{kind}"


class PartFiles:
    """Reads the files of parts; can be pickled.

    Numbers that say where to read count items of a dtype, not bytes. All that reads
    raises InputError if a file is missing, unreadable or too short.
    """

    def __init__(self, folder: WorkFolder):
        self._folder = folder
        # Open files by name, the one that was used longest ago first.
        self._open: dict[str, int] = {}
        self._most_open = _most_open_files()

    def close(self) -> None:
        """Closes files; they are opened again when they are needed."""
        while self._open:
            os.close(self._open.popitem()[1])

    def __del__(self):
        self.close()

    def __getstate__(self):
        return {**self.__dict__, "_open": {}}

    def path(self, number: int, kind: str) -> str:
        """Path of a file."""
        return self._folder.file(part_name(number, kind))

    def num_parts(self, kind: str) -> int:
        """How many parts, from number 0 on, have a file of this kind."""
        return next(number for number in itertools.count()
                    if not os.path.exists(self.path(number, kind)))

    def size(self, number: int, kind: str) -> int:
        """Size of a file in bytes."""
        with self._errors(number, kind):
            return os.path.getsize(self.path(number, kind))

    def array(self, number: int, kind: str, dtype: np.dtype, first: int,
              count: int) -> np.ndarray:
        """Items first, ..., first + count - 1 of a file."""
        return self.read(kind, dtype, np.array([number]), np.array([first]),
                         np.array([count]))

    def mapped(self, number: int, kind: str, dtype: np.dtype, first: int,
               count: int) -> np.ndarray:
        """As `array`, but what is not looked at is not read."""
        if not count:
            return np.zeros(0, dtype)
        if self.size(number, kind) < (first + count) * dtype.itemsize:
            raise self._too_short(number, kind)
        with self._errors(number, kind):
            return np.memmap(self.path(number, kind), dtype, "r",
                             first * dtype.itemsize, (count,))

    def read(self, kind: str, dtype: np.dtype, parts: np.ndarray, starts: np.ndarray,
             counts: np.ndarray) -> np.ndarray:
        """Items from K places.

        Args:
          kind: of the files.
          dtype: of the items.
          parts: number of the part, [K].
          starts: the first item, [K].
          counts: how many items, [K].

        Returns:
          The items of all places, in the order given, one place after the other.
        """
        order = np.argsort(parts, kind="stable")  # Each file is looked up once.
        sizes = np.asarray(counts).astype(np.int64) * dtype.itemsize
        offsets = np.asarray(starts).astype(np.int64) * dtype.itemsize
        found = [b""] * len(order)
        pread, number, descriptor = os.pread, -1, -1
        for i, part, size, offset in zip(
                order.tolist(), np.asarray(parts)[order].tolist(),
                sizes[order].tolist(), offsets[order].tolist()):
            if part != number:
                number, descriptor = part, self._descriptor(part, kind)
            found[i] = pread(descriptor, size, offset)
        content = b"".join(found)
        if len(content) != int(sizes.sum()):
            short = next(i for i, data in enumerate(found) if len(data) != sizes[i])
            raise self._too_short(int(parts[short]), kind)
        return np.frombuffer(content, dtype)

    def _descriptor(self, number: int, kind: str) -> int:
        name = part_name(number, kind)
        descriptor = self._open.pop(name, None)
        if descriptor is None:
            if len(self._open) >= self._most_open:
                os.close(self._open.pop(next(iter(self._open))))
            with self._errors(number, kind):
                descriptor = os.open(self.path(number, kind), os.O_RDONLY)
        self._open[name] = descriptor
        return descriptor

    @contextlib.contextmanager
    def _errors(self, number: int, kind: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise InputError(
                f"{self.path(number, kind)}: cannot be read: {error.strerror}; it is "
                "part of an unfinished run: remove its folder and start again."
            ) from error

    def _too_short(self, number: int, kind: str) -> InputError:
        return InputError(
            f"{self.path(number, kind)}: shorter than it was made; remove its folder "
            "and start again.")


def _most_open_files() -> int:
    """How many files may be open: half of what the process may have, or fewer."""
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST_OPEN if soft < 0 else max(16, min(_MOST_OPEN, soft // 2))
