"""The shuffle's units, and the shards that they fill, also after an interruption."""

import itertools

import google_crc32c
import numpy as np
import pytest

from albert_tf.pretraining_data.shuffle import (
    NUM_CELLS, GrowingFile, Shards, Unit, fragment_name, shard_name, shards_of_ranks,
    unit_name, units_of_cells)
from albert_tf.jobs.work_folder import WorkFolder, has_sum

OUTPUTS = ("a", "b", "c")


@pytest.mark.parametrize("first, end, count, shards, expected", [
    (0, 10, 10, 1, [(0, 0, 10)]),
    (2, 7, 10, 3, [(0, 2, 3), (1, 3, 6), (2, 6, 7)]),
    (0, 2, 2, 4, [(1, 0, 1), (3, 1, 2)]),
    (5, 5, 10, 2, []),
])
def test_shards_of_ranks(first, end, count, shards, expected):
    assert list(shards_of_ranks(first, end, count, shards)) == expected


def test_units_hold_every_rank_once():
    cells = np.random.RandomState(1).poisson(3, NUM_CELLS)
    cells[100:5000] = 0
    units = units_of_cells(cells, 2048)
    assert len(units) > 3
    assert [u.first_rank for u in units] == [0] + [u.end_rank for u in units[:-1]]
    assert units[-1].end_rank == cells.sum()
    for unit in units:
        assert unit.end_rank - unit.first_rank == cells[
            unit.first_cell:unit.end_cell].sum()


# ---- shards ------------------------------------------------------------------


def _units(count, size):
    return [Unit(n, n, n + 1, n * size, (n + 1) * size) for n in range(count)]


def _finish(folder, unit, shards):
    """A unit's fragments, each with its shard's and its own number."""
    sums = {}
    for shard in shards:
        with folder.write(fragment_name(shard, unit)) as stream:
            stream.write(f"<{shard}-{unit}>".encode())
        sums[fragment_name(shard, unit)] = stream.sum
    folder.finish(unit_name(unit), {}, sums)


# 5 units of 3 ranks over 3 shards of 5 ranks.
SHARDS_OF = [[0], [0, 1], [1], [1, 2], [2]]
WHOLE = ["<0-0><0-1>", "<1-1><1-2><1-3>", "<2-3><2-4>"]


@pytest.fixture
def folder(tmp_path):
    folder = WorkFolder(str(tmp_path))
    for unit, shards in enumerate(SHARDS_OF):
        _finish(folder, unit, shards)
    return folder


def _open(folder):
    return Shards(folder, [folder.file(name) for name in OUTPUTS], _units(5, 3), 15)


@pytest.mark.parametrize("stops", itertools.product([False, True], repeat=5))
def test_shards_are_opened_again_with_what_they_held(folder, stops):
    shards, units = _open(folder), _units(5, 3)
    for unit, stopped in zip(units, stops):
        assert [shards.hold(each) for each in units] == [
            each.number < unit.number for each in units]
        shards.append(unit)
        if stopped:
            shards = _open(folder)
    shards.finish()
    for shard, content in enumerate(WHOLE):
        with open(folder.file(shard_name(shard)), encoding="utf-8") as stream:
            assert stream.read() == content
    assert all(_open(folder).hold(unit) for unit in units)


def test_a_fragment_that_was_made_again_is_not_appended_twice(folder, tmp_path):
    shards = _open(folder)
    for unit in _units(5, 3)[:2]:
        shards.append(unit)
    _finish(folder, 1, SHARDS_OF[1])
    shards.append(_units(5, 3)[1])
    assert not (tmp_path / fragment_name(0, 1)).exists()
    assert (tmp_path / "shard-00000.growing").read_text() == WHOLE[0]


def test_many_units(tmp_path, monkeypatch):
    """Time for each does not grow with their number, or this would take minutes."""
    def counts(self, fragment):
        self.num_fragments += 1

    monkeypatch.setattr(GrowingFile, "append", counts)
    units = _units(20_000, 7)
    shards = Shards(WorkFolder(str(tmp_path)), OUTPUTS, units, 140_000)
    for unit in units:
        assert not shards.hold(unit)
        shards.append(unit)
        assert shards.hold(unit)


# ---- one file ----------------------------------------------------------------

FRAGMENTS = [b"first", b"the second one", b"3"]
SUMS = [[len(fragment), google_crc32c.value(fragment)] for fragment in FRAGMENTS]


def _grow(growing, tmp_path, number):
    fragment = tmp_path / f"fragment-{number}"
    fragment.write_bytes(FRAGMENTS[number])
    growing.append(str(fragment))
    assert not fragment.exists()


def test_fragments_follow_each_other(tmp_path):
    growing = GrowingFile(str(tmp_path / "whole"))
    for number in range(3):
        _grow(growing, tmp_path, number)
    assert (tmp_path / "whole").read_bytes() == b"".join(FRAGMENTS)
    assert growing.num_fragments == 3 and has_sum(growing.path, growing.sum)


@pytest.mark.parametrize("there, kept", [
    (b"", 0), (b"fir", 0), (b"first", 1), (b"firstthe sec", 1),
    (b"firstthe second one3", 3), (b"firstthe second oneX", 2),
    (b"firsXthe second one3", 0), (b"firstthe second one3 and more", 3)])
def test_whole_fragments_are_kept_and_the_rest_is_made_again(there, kept, tmp_path):
    path = tmp_path / "whole"
    path.write_bytes(there)
    growing = GrowingFile(str(path), SUMS)
    assert growing.num_fragments == kept
    for number in range(kept, 3):
        _grow(growing, tmp_path, number)
    assert path.read_bytes() == b"".join(FRAGMENTS)
    assert has_sum(growing.path, growing.sum)


def test_a_file_of_unknown_fragments_is_begun_anew(tmp_path):
    (tmp_path / "whole").write_bytes(b"firstthe second one")
    assert GrowingFile(str(tmp_path / "whole"), SUMS[:1]).num_fragments == 1
    assert (tmp_path / "whole").read_bytes() == b"first"
