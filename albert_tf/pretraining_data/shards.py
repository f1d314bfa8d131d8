"""The output files of a run while they grow: units' records, in the units' order.

    ranks    0 ......................................... N - 1
    units    |    0    |    1    |    2    |    3    |    4    |   made in any order
    shards   |            0           |            1           |
    pieces   |   0-0   |   0-1   |0-2 |1-2 |   1-3   |   1-4   |   shard-unit

A unit's worker writes a piece for each shard that its ranks reach. Pieces are appended
to the shards and removed, so that the disk holds the records once. A shard has the
pieces of consecutive units, and what it holds after an interruption are the first
of them.
"""

import itertools
import os
from typing import Sequence

from albert_tf import files
from albert_tf.pretraining_data import shuffle
from albert_tf.pretraining_data.growing_file import GrowingFile
from albert_tf.pretraining_data.shuffle import Unit
from albert_tf.pretraining_data.work_folder import WorkFolder, has_sum


def piece_name(shard: int, unit: int) -> str:
    """File of a unit's records that belong to a shard."""
    return f"piece-{shard:05d}-{unit:06d}"


def unit_name(unit: int) -> str:
    """What a finished unit is noted by in the folder; its files are its pieces."""
    return f"unit-{unit:06d}"


def shard_name(shard: int) -> str:
    """File of a whole shard while others are unfinished."""
    return f"shard-{shard:05d}"


class Shards:
    """All output files, as far as they have grown.

    Args:
      folder: of unfinished work.
      outputs: the final names, one for each shard.
      units: all of the data set, by their numbers 0, 1, ...
      num_instances: of the data set.
    """

    def __init__(self, folder: WorkFolder, outputs: Sequence[str],
                 units: Sequence[Unit], num_instances: int):
        self._folder = folder
        units_of = [[] for _ in outputs]
        self._shards_of: dict[int, list[int]] = {}
        for unit in units:
            found = shuffle.shards_of_ranks(
                unit.first_rank, unit.end_rank, num_instances, len(outputs))
            self._shards_of[unit.number] = [shard for shard, _, _ in found]
            for shard in self._shards_of[unit.number]:
                units_of[shard].append(unit.number)
        # Whole shards; of the others, the number of the first unit and the file.
        self._whole: set[int] = set()
        self._growing: dict[int, tuple[int, GrowingFile]] = {}
        for shard, (path, numbers) in enumerate(zip(outputs, units_of)):
            if self._is_whole(shard, path):
                self._whole.add(shard)
                continue
            sums = (self._sum_of_piece(shard, number) for number in numbers)
            self._growing[shard] = numbers[0], GrowingFile(
                folder.file(f"{shard_name(shard)}.growing"),
                itertools.takewhile(bool, sums))

    def _sum_of_piece(self, shard: int, unit: int) -> list[int] | None:
        """[size, CRC-32C] of a piece; None before its unit is finished."""
        info = self._folder.known(unit_name(unit)) or {"files": {}}
        return info["files"].get(piece_name(shard, unit))

    def _is_whole(self, shard: int, path: str) -> bool:
        """Whether a shard is finished, here or already under its final name."""
        info = self._folder.known(shard_name(shard))
        if info is None:
            return False
        (expected,) = info["files"].values()
        return any(has_sum(each, expected)
                   for each in (self._folder.file(shard_name(shard)), path))

    def _holds(self, shard: int, unit: Unit) -> bool:
        if shard in self._whole:
            return True
        first, growing = self._growing[shard]
        return unit.number - first < growing.num_pieces

    def hold(self, unit: Unit) -> bool:
        """Whether the shards hold all pieces of a unit."""
        return all(self._holds(shard, unit) for shard in self._shards_of[unit.number])

    def append(self, unit: Unit) -> None:
        """Takes over a unit's pieces; those of the units before it are there."""
        for shard in self._shards_of[unit.number]:
            piece = self._folder.file(piece_name(shard, unit.number))
            if self._holds(shard, unit):  # It was made again for another shard's sake.
                files.remove(piece)
            else:
                self._growing[shard][1].append(piece)

    def finish(self) -> None:
        """Marks all as whole."""
        for shard, (_, growing) in self._growing.items():
            name = shard_name(shard)
            os.replace(growing.path, self._folder.file(name))
            self._folder.finish(name, {}, {name: growing.sum})
