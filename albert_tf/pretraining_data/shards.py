"""The output files while they grow: units' records, in the units' order.

    ranks      0 ......................................... N - 1
    units      |    0    |    1    |    2    |    3    |    4    |   made in any order
    shards     |            0           |            1           |
    fragments  |   0-0   |   0-1   |0-2 |1-2 |   1-3   |   1-4   |   shard-unit

A unit's worker writes a fragment for each shard that its ranks reach. Fragments are
appended to the shards and removed, so that the disk holds the records once. A shard has
the fragments of consecutive units, and what it holds after an interruption are the
first of them.
"""

import os
from typing import Iterable, Iterator, Sequence

from albert_tf import files
from albert_tf.errors import Interruption
from albert_tf.pretraining_data import shuffle
from albert_tf.pretraining_data.shuffle import Unit
from albert_tf.pretraining_data.work_folder import (
    READ_BYTES, WorkFolder, extended, has_sum)


def fragment_name(shard: int, unit: int) -> str:
    """File of a unit's records that belong to a shard."""
    return f"piece-{shard:05d}-{unit:06d}"  # The name that unfinished runs have.


def unit_name(unit: int) -> str:
    """Notes in the folder that a unit is finished; its files are its fragments."""
    return f"unit-{unit:06d}"


def shard_name(shard: int) -> str:
    """File of a whole shard while others are unfinished."""
    return f"shard-{shard:05d}"


class GrowingFile:
    """A local file to which fragments are appended, also after an interruption.

    Where the file is there, `sums` are [size, CRC-32C] of the fragments that it may
    hold, in order: as many as are found whole and unchanged are kept, the rest is cut
    off.

    Attributes:
      num_fragments: how many the file holds.
      sum: its [size, CRC-32C], as work_folder.has_sum takes it.
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
            found = shuffle.shards_of_ranks(
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
