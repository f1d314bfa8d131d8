"""A uniform shuffle of more instances than fit into memory, and the shards it fills.

Every instance has a random number of 64 bits, `order`; its rank is how many of these
numbers are smaller. Sorting by it on disk shuffles uniformly:

    sorted files  rows as they are made, about a million at a time, sorted and written
    cells         the 2^14 ranges of equal size that divide the numbers; beside a sorted
                  file lies where in it each cell begins
    units         consecutive cells; a unit's rows, read from all sorted files and
                  sorted, are the instances of consecutive ranks

No number of rows, files or units changes an instance's rank.

    ranks      0 ......................................... N - 1
    units      |    0    |    1    |    2    |    3    |    4    |   made in any order
    shards     |            0           |            1           |
    fragments  |   0-0   |   0-1   |0-2 |1-2 |   1-3   |   1-4   |   shard-unit

A unit's worker writes a fragment for each shard that its ranks reach. Fragments are
appended to the shards and removed, so that the disk holds the records once. A shard has
the fragments of consecutive units, and what it holds after an interruption are the
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
    """Instances of consecutive ranks: those of some cells."""

    number: int  # counts the units
    first_cell: int
    end_cell: int
    first_rank: int  # in the whole data set
    end_rank: int


def shards_of_ranks(first: int, end: int, num_instances: int,
                    num_shards: int) -> Iterator[tuple[int, int, int]]:
    """(shard, first rank, end rank) of the ranks first ... end - 1.

    Shard k holds the ranks k · N // S up to (k + 1) · N // S: sizes differ by one.
    """
    borders = [shard * num_instances // num_shards for shard in range(num_shards + 1)]
    shard = bisect.bisect_right(borders, first) - 1
    while first < end:
        stop = min(end, borders[shard + 1])
        if stop > first:
            yield shard, first, stop
        first, shard = stop, shard + 1


def units_of_cells(cells: np.ndarray, fewest_rows: int) -> list[Unit]:
    """Units of about equal size, of at least `fewest_rows` instances where there are as
    many; `cells` is the number of instances in each cell."""
    total = int(cells.sum())
    # Enough units for many workers and for an even progress, none too large.
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
    """Sorts rows in memory, so many at a time, and writes them as sorted files."""

    folder: WorkFolder
    prefix: str  # of the files' names
    names: list[str] = dataclasses.field(default_factory=list)  # of the sorted files
    # Name on disk → size and checksum, for WorkFolder.finish.
    sums: dict[str, list[int]] = dataclasses.field(default_factory=dict)
    _held: list[np.ndarray] = dataclasses.field(default_factory=list)

    def add(self, rows: np.ndarray) -> None:
        """Takes PLAN rows in any order."""
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
    """PLAN rows in the order of their ranks; masks decide between equal numbers."""
    return rows[np.lexsort((rows["mask"], rows["order"]))]


def cells_of(folder: WorkFolder, name: str) -> np.ndarray:
    """Rows of a sorted file in each cell: int64 [NUM_CELLS]."""
    return np.diff(np.fromfile(folder.file(f"{name}.cells"), "<u4").astype(np.int64))


def rows_of_unit(folder: WorkFolder, names: Iterable[str], unit: Unit) -> np.ndarray:
    """The PLAN rows of a unit from all sorted files, in the order of their ranks."""
    found = [np.zeros(0, PLAN)]
    for name in names:
        with files.open_binary(folder.file(f"{name}.cells")) as stream:
            stream.seek(4 * unit.first_cell)
            starts = np.frombuffer(
                stream.read(4 * (unit.end_cell - unit.first_cell + 1)), "<u4")
        first, end = int(starts[0]), int(starts[-1])
        if end > first:
            with files.open_binary(folder.file(f"{name}.rows")) as stream:
                stream.seek(first * PLAN.itemsize)
                found.append(np.frombuffer(
                    stream.read((end - first) * PLAN.itemsize), PLAN))
    return sort_by_rank(np.concatenate(found))


# ---- the shards while they grow ----------------------------------------------


# Files in the work folder, under the names that unfinished runs have: a unit's records
# that belong to a shard; the note that a unit is finished; a whole shard.
fragment_name = "piece-{:05d}-{:06d}".format  # shard, unit
unit_name = "unit-{:06d}".format
shard_name = "shard-{:05d}".format


class GrowingFile:
    """A local file to which fragments are appended, also after an interruption.

    Where the file is there, `sums` are [size, CRC-32C] of the fragments that it may
    hold, in order: as many as are found whole and unchanged are kept, the rest is cut
    off. It holds `num_fragments`; `sum` is its own [size, CRC-32C].
    """

    def __init__(self, path: str, sums: Iterable[list[int]] = ()):
        self.path = path
        self.num_fragments = 0
        self.sum = [0, 0]
        try:
            with open(path, "r+b" if os.path.exists(path) else "w+b") as stream:
                for expected in sums:
                    found, whole = [0, 0], self.sum
                    while data := stream.read(min(READ_BYTES, expected[0] - found[0])):
                        found, whole = extended(found, data), extended(whole, data)
                    if found != expected:
                        break
                    self.num_fragments, self.sum = self.num_fragments + 1, whole
                stream.truncate(self.sum[0])
        except OSError as error:
            raise _cannot_write(path, error) from error

    def append(self, fragment: str) -> None:
        """Appends a file, and removes it. An Interruption, if there is no room, leaves
        what the file held."""
        whole = self.sum
        try:
            with (open(self.path, "r+b") as stream,
                  files.open_binary(fragment) as source):
                stream.seek(whole[0])
                while data := source.read(READ_BYTES):
                    stream.write(data)
                    whole = extended(whole, data)
        except OSError as error:
            raise _cannot_write(self.path, error) from error
        self.num_fragments, self.sum = self.num_fragments + 1, whole
        files.remove(fragment)


def _cannot_write(path: str, error: OSError) -> Interruption:
    return Interruption(f"{path}: cannot be written: {error.strerror or error}.")


class Shards:
    """All output files, as far as they have grown.

    `outputs` are their final names; `units` are all of the data set, by their numbers.
    """

    def __init__(self, folder: WorkFolder, outputs: Sequence[str],
                 units: Sequence[Unit], num_instances: int):
        self._folder = folder
        units_of = [[] for _ in outputs]
        self._shards_of: dict[int, list[int]] = {}
        for unit in units:
            found = shards_of_ranks(
                unit.first_rank, unit.end_rank, num_instances, len(outputs))
            self._shards_of[unit.number] = [shard for shard, _, _ in found]
            for shard in self._shards_of[unit.number]:
                units_of[shard].append(unit.number)
        # Whole shards; of the others, the number of the first unit and the file.
        self._whole: set[int] = set()
        self._growing: dict[int, tuple[int, GrowingFile]] = {}
        for shard, (path, numbers) in enumerate(zip(outputs, units_of)):
            name = shard_name(shard)
            finished = folder.known(name)
            # It may have its final name already.
            if finished and any(has_sum(each, finished["files"][name])
                                for each in (folder.file(name), path)):
                self._whole.add(shard)
            else:
                self._growing[shard] = numbers[0], GrowingFile(
                    folder.file(f"{name}.growing"), self._sums(shard, numbers))

    def _sums(self, shard: int, units: Iterable[int]) -> Iterator[list[int]]:
        """[size, CRC-32C] of a shard's fragments, up to the first unfinished unit."""
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
        """Whether the shards hold all fragments of a unit."""
        return all(self._holds(shard, unit) for shard in self._shards_of[unit.number])

    def append(self, unit: Unit) -> None:
        """Takes over a unit's fragments; those of the units before it are there."""
        for shard in self._shards_of[unit.number]:
            fragment = self._folder.file(fragment_name(shard, unit.number))
            if self._holds(shard, unit):  # It was made again for another shard's sake.
                files.remove(fragment)
            else:
                self._growing[shard][1].append(fragment)

    def finish(self) -> None:
        """Marks all as whole."""
        for shard, (_, growing) in self._growing.items():
            name = shard_name(shard)
            os.replace(growing.path, self._folder.file(name))
            self._folder.finish(name, {}, {name: growing.sum})
