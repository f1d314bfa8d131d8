"""A uniform shuffle of more instances than fit into memory.

Every instance has a random number of 64 bits, `order`; its rank is how many of these
numbers are smaller. Sorting by it on disk shuffles uniformly:

    sorted files  rows as they are made, about a million at a time, sorted and written
    cells         the 2^14 ranges of equal size that divide the numbers; beside a sorted
                  file lies where in it each cell begins
    units         consecutive cells; a unit's rows, read from all sorted files and
                  sorted, are the instances of consecutive ranks

No number of rows, files or units changes an instance's rank.
"""

import bisect
from typing import Iterable, Iterator, NamedTuple

import numpy as np

from albert_tf import files
from albert_tf.pretraining_data.encoder import sums_before
from albert_tf.pretraining_data.plans import PLAN
from albert_tf.pretraining_data.work_folder import WorkFolder

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


class SortedWriter:
    """Sorts rows in memory, so many at a time, and writes them as sorted files.

    Attributes:
      names: of the sorted files, which begin with `prefix`.
      sums: name on disk → size and checksum, for WorkFolder.finish.
    """

    def __init__(self, folder: WorkFolder, prefix: str):
        self._folder = folder
        self._prefix = prefix
        self._held: list[np.ndarray] = []
        self.names: list[str] = []
        self.sums: dict[str, list[int]] = {}

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
        name = f"{self._prefix}-{len(self.names):04d}"
        for kind, array in (("rows", rows), ("cells", starts)):
            with self._folder.write(f"{name}.{kind}") as stream:
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
