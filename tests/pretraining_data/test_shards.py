"""Output files that grow by units' pieces: which units they hold already."""

import itertools

import pytest

from albert_tf.pretraining_data.growing_file import GrowingFile
from albert_tf.pretraining_data.shards import Shards, piece_name, shard_name, unit_name
from albert_tf.pretraining_data.shuffle import Unit
from albert_tf.pretraining_data.work_folder import WorkFolder

OUTPUTS = ("a", "b", "c")


def _units(count, size):
    return [Unit(n, n, n + 1, n * size, (n + 1) * size) for n in range(count)]


def _finish(folder, unit, shards):
    """A unit's pieces, each with its shard's and its own number."""
    sums = {}
    for shard in shards:
        with folder.write(piece_name(shard, unit)) as stream:
            stream.write(f"<{shard}-{unit}>".encode())
        sums[piece_name(shard, unit)] = stream.sum
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


def test_a_piece_that_was_made_again_is_not_appended_twice(folder, tmp_path):
    shards = _open(folder)
    for unit in _units(5, 3)[:2]:
        shards.append(unit)
    _finish(folder, 1, SHARDS_OF[1])
    shards.append(_units(5, 3)[1])
    assert not (tmp_path / piece_name(0, 1)).exists()
    assert (tmp_path / "shard-00000.growing").read_text() == WHOLE[0]


def test_many_units(tmp_path, monkeypatch):
    """Time for each does not grow with their number, or this would take minutes."""
    def counts(self, piece):
        self.num_pieces += 1

    monkeypatch.setattr(GrowingFile, "append", counts)
    units = _units(100_000, 7)
    shards = Shards(WorkFolder(str(tmp_path)), OUTPUTS, units, 700_000)
    for unit in units:
        assert not shards.hold(unit)
        shards.append(unit)
        assert shards.hold(unit)
