"""A file of pieces: what an interruption leaves of it."""

import google_crc32c
import pytest

from albert_tf.pretraining_data.growing_file import GrowingFile
from albert_tf.pretraining_data.work_folder import has_sum

PIECES = [b"first", b"the second one", b"3"]
SUMS = [[len(piece), google_crc32c.value(piece)] for piece in PIECES]


def _append(growing, tmp_path, number):
    piece = tmp_path / f"piece-{number}"
    piece.write_bytes(PIECES[number])
    growing.append(str(piece))
    assert not piece.exists()


def test_pieces_follow_each_other(tmp_path):
    growing = GrowingFile(str(tmp_path / "whole"))
    for number in range(3):
        _append(growing, tmp_path, number)
    assert (tmp_path / "whole").read_bytes() == b"".join(PIECES)
    assert growing.num_pieces == 3 and has_sum(growing.path, growing.sum)


@pytest.mark.parametrize("there, kept", [
    (b"", 0), (b"fir", 0), (b"first", 1), (b"firstthe sec", 1),
    (b"firstthe second one3", 3), (b"firstthe second oneX", 2),
    (b"firsXthe second one3", 0), (b"firstthe second one3 and more", 3)])
def test_whole_pieces_are_kept_and_the_rest_is_made_again(there, kept, tmp_path):
    path = tmp_path / "whole"
    path.write_bytes(there)
    growing = GrowingFile(str(path), SUMS)
    assert growing.num_pieces == kept
    for number in range(kept, 3):
        _append(growing, tmp_path, number)
    assert path.read_bytes() == b"".join(PIECES) and has_sum(growing.path, growing.sum)


def test_a_file_of_unknown_pieces_is_begun_anew(tmp_path):
    (tmp_path / "whole").write_bytes(b"firstthe second one")
    assert GrowingFile(str(tmp_path / "whole"), SUMS[:1]).num_pieces == 1
    assert (tmp_path / "whole").read_bytes() == b"first"
