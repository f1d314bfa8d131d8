"""A uniform shuffle of more instances than fit into memory, and the shards it fills.

Every instance has a random number of 64 bits, `order`. Its rank is the count of smaller
numbers. Sorting by rank on disk shuffles uniformly:

    sorted files  rows as they are planned, sorted and written about a million at a time
    cells         2^14 ranges of equal size that divide the numbers; a file beside each
                  sorted file says where in it each cell begins
    units         consecutive cells; a unit's rows, read from all sorted files and
                  sorted, are the instances of consecutive ranks

An instance's rank does not depend on the number of rows, files or units.

    ranks      0 ......................................... N - 1
    units      |    0    |    1    |    2    |    3    |    4    |   made in any order
    shards     |            0           |            1           |
    fragments  |   0-0   |   0-1   |0-2 |1-2 |   1-3   |   1-4   |   shard-unit

A unit's worker writes a fragment for each shard that its ranks overlap. Fragments are
appended to the shards and removed, so that the disk holds the records only once. A
shard consists of the fragments of consecutive units. After an interruption it holds the
first of them.
"""

import bisect
import dataclasses
import os
from typing import Iterable, Iterator, NamedTuple, Sequence

import numpy as np

from albert_tf import files
from albert_tf.errors import Interruption
from albert_tf.pretraining_data.encoder import sums_before
from albert_tf.pretraining_data.plans import PLAN
from albert_tf.jobs.work_folder import READ_BYTES, WorkFolder, extended, has_sum

_CELL_BITS = 14
NUM_CELLS = 1 << _CELL_BITS
_MOST_ROWS_PER_UNIT = 1 << 18
_ROWS_PER_FILE = 1 << 20  # of 50 bytes each


class Unit(NamedTuple):
    """Instances of consecutive ranks, which are those in some consecutive cells."""

    number: int  # counts units from 0
    first_cell: int
    end_cell: int
    first_rank: int  # in the whole data set
    end_rank: int


def shards_of_ranks(first: int, end: int, num_instances: int,
                    num_shards: int) -> Iterator[tuple[int, int, int]]:
    """Divides the ranks first ... end - 1 by shard; yields (shard, first, end).

    Shard k holds the ranks from k · N // S up to (k + 1) · N // S, without the last, so
    that the sizes of shards differ by at most one.
    """
    borders = [shard * num_instances // num_shards for shard in range(num_shards + 1)]
    shard = bisect.bisect_right(borders, first) - 1
    while first < end:
        stop = min(end, borders[shard + 1])
        if stop > first:
            yield shard, first, stop
        first, shard = stop, shard + 1


def units_of_cells(cells: np.ndarray, fewest_rows: int) -> list[Unit]:
    """Returns units of about equal size, with at least `fewest_rows` instances if there
    are that many; `cells` is the number of instances in each cell."""
    total = int(cells.sum())
    # Enough units for many workers and for steady progress, but none that is too large.
    size = min(_MOST_ROWS_PER_UNIT, max(fewest_rows, total // 256))
    ends = np.cumsum(cells)
    units, cell, rank = [], 0, 0
    while rank < total:
        end_cell = min(int(np.searchsorted(ends, rank + size)), len(cells) - 1) + 1
        end_rank = int(ends[end_cell - 1])
        units.append(Unit(len(units), cell, end_cell, rank, end_rank))
        cell, rank = end_cell, end_rank
    return units


@dataclasses.dataclass
class SortedWriter:
    """A writer of sorted files that sorts about a million rows at a time in memory."""

    folder: WorkFolder
    prefix: str  # of the files' names
    names: list[str] = dataclasses.field(default_factory=list)  # of the sorted files
    # Name on disk → size and checksum, for WorkFolder.finish.
    sums: dict[str, list[int]] = dataclasses.field(default_factory=dict)
    _held: list[np.ndarray] = dataclasses.field(default_factory=list)

    def add(self, rows: np.ndarray) -> None:
        """Adds PLAN rows in any order."""
        self._held.append(rows)
        if sum(map(len, self._held)) >= _ROWS_PER_FILE:
            self.flush()

    def flush(self) -> None:
        if not self._held:
            return
        rows = sort_by_rank(np.concatenate(self._held))
        self._held = []
        cells = (rows["order"] >> np.uint64(64 - _CELL_BITS)).astype(np.int64)
        starts = sums_before(np.bincount(cells, minlength=NUM_CELLS)).astype("<u4")
        name = f"{self.prefix}-{len(self.names):04d}"
        for kind, array in (("rows", rows), ("cells", starts)):
            with self.folder.write(f"{name}.{kind}") as stream:
                stream.write(array.tobytes())
            self.sums[f"{name}.{kind}"] = stream.sum
        self.names.append(name)


def sort_by_rank(rows: np.ndarray) -> np.ndarray:
    """Sorts PLAN rows by rank; mask keys decide between equal numbers."""
    return rows[np.lexsort((rows["mask"], rows["order"]))]


def cells_of(folder: WorkFolder, name: str) -> np.ndarray:
    """Returns the number of rows in each cell of a sorted file: int64 [NUM_CELLS]."""
    return np.diff(np.fromfile(folder.file(f"{name}.cells"), "<u4").astype(np.int64))


def rows_of_unit(folder: WorkFolder, names: Iterable[str], unit: Unit) -> np.ndarray:
    """Returns the PLAN rows of a unit from all sorted files, sorted by rank."""
    parts = [np.zeros(0, PLAN)]
    for name in names:
        with files.open_binary(folder.file(f"{name}.cells")) as stream:
            stream.seek(4 * unit.first_cell)
            starts = np.frombuffer(
                stream.read(4 * (unit.end_cell - unit.first_cell + 1)), "<u4")
        first, end = int(starts[0]), int(starts[-1])
        if end > first:
            with files.open_binary(folder.file(f"{name}.rows")) as stream:
                stream.seek(first * PLAN.itemsize)
                parts.append(np.frombuffer(
                    stream.read((end - first) * PLAN.itemsize), PLAN))
    return sort_by_rank(np.concatenate(parts))


# ---- the shards while they grow ----------------------------------------------


# The names of files in the work folder: a unit's records that belong to a shard; the
# note that a unit is finished; a complete shard. Existing unfinished runs use them.
fragment_name = "piece-{:05d}-{:06d}".format  # shard, unit
unit_name = "unit-{:06d}".format
shard_name = "shard-{:05d}".format


class GrowingFile:
    """A local file to which fragments are appended, also after an interruption.

    If the file exists, `sums` are [size, CRC-32C] of the fragments that it may hold, in
    order. Fragments that are complete and unchanged are kept, and the rest is cut off.
    `num_fragments` is the number of fragments it holds, `sum` its own [size, CRC-32C].
    """

    def __init__(self, path: str, sums: Iterable[list[int]] = ()):
        self.path = path
        self.num_fragments = 0
        self.sum = [0, 0]
        try:
            with open(path, "r+b" if os.path.exists(path) else "w+b") as stream:
                for expected in sums:
                    ranges, whole = [0, 0], self.sum
                    while data := stream.read(min(READ_BYTES, expected[0] - ranges[0])):
                        ranges, whole = extended(ranges, data), extended(whole, data)
                    if ranges != expected:
                        break
                    self.num_fragments, self.sum = self.num_fragments + 1, whole
                stream.truncate(self.sum[0])
        except OSError as error:
            raise _cannot_write(path, error) from error

    def append(self, fragment: str) -> None:
        """Appends a file and then removes it.

        Raises Interruption if there is no space; earlier content is then kept.
        """
        total = self.sum
        try:
            with (open(self.path, "r+b") as stream,
                  files.open_binary(fragment) as source):
                stream.seek(total[0])
                while data := source.read(READ_BYTES):
                    stream.write(data)
                    total = extended(total, data)
        except OSError as error:
            raise _cannot_write(self.path, error) from error
        self.num_fragments, self.sum = self.num_fragments + 1, total
        files.remove(fragment)


def _cannot_write(path: str, error: OSError) -> Interruption:
    return Interruption(
        f"{path}: cannot be written: {error.strerror or error}; free some disk space, "
        "then run the same command again to resume.")


class Shards:
    """The output files as far as they are written.

    `outputs` are their final names, `units` all units of the data set, by number.
    """

    def __init__(self, folder: WorkFolder, outputs: Sequence[str],
                 units: Sequence[Unit], num_instances: int):
        self._folder = folder
        units_of = [[] for _ in outputs]
        self._shards_of: dict[int, list[int]] = {}
        for unit in units:
            ranges = shards_of_ranks(
                unit.first_rank, unit.end_rank, num_instances, len(outputs))
            self._shards_of[unit.number] = [shard for shard, _, _ in ranges]
            for shard in self._shards_of[unit.number]:
                units_of[shard].append(unit.number)
        # Complete shards; for the others the number of the first unit, and the file.
        self._whole: set[int] = set()
        self._growing: dict[int, tuple[int, GrowingFile]] = {}
        for shard, (path, numbers) in enumerate(zip(outputs, units_of)):
            name = shard_name(shard)
            finished = folder.known(name)
            # A complete shard may have its final name already.
            if finished and any(has_sum(each, finished["files"][name])
                                for each in (folder.file(name), path)):
                self._whole.add(shard)
            else:
                self._growing[shard] = numbers[0], GrowingFile(
                    folder.file(f"{name}.growing"), self._sums(shard, numbers))

    def _sums(self, shard: int, units: Iterable[int]) -> Iterator[list[int]]:
        """Yields [size, CRC-32C] of a shard's fragments, up to an unfinished unit."""
        for unit in units:
            info = self._folder.known(unit_name(unit)) or {"files": {}}
            if fragment_name(shard, unit) not in info["files"]:
                return
            yield info["files"][fragment_name(shard, unit)]

    def _holds(self, shard: int, unit: Unit) -> bool:
        if shard in self._whole:
            return True
        first, growing = self._growing[shard]
        return unit.number - first < growing.num_fragments

    def hold(self, unit: Unit) -> bool:
        """Returns whether the shards hold all fragments of a unit."""
        return all(self._holds(shard, unit) for shard in self._shards_of[unit.number])

    def append(self, unit: Unit) -> None:
        """Appends a unit's fragments; those of all earlier units must be there."""
        for shard in self._shards_of[unit.number]:
            fragment = self._folder.file(fragment_name(shard, unit.number))
            if self._holds(shard, unit):  # It was written again for a different shard.
                files.remove(fragment)
            else:
                self._growing[shard][1].append(fragment)

    def finish(self) -> None:
        """Marks all shards as complete."""
        for shard, (_, growing) in self._growing.items():
            name = shard_name(shard)
            os.replace(growing.path, self._folder.file(name))
            self._folder.finish(name, {}, {name: growing.sum})
