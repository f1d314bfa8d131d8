"""Files: lines, JSON, and names that appear whole or not at all.

Compressed and damaged text: tests/pretraining_data/test_spans.py.
"""

import errno
import os

import pytest

from albert_tf import files
from albert_tf.errors import InputError, Interruption


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_lines_and_the_bytes_read(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\n" + b"two\n" * 600 + b"three")
    told = []
    lines = list(files.read_lines(str(path), told.append))
    assert [lines[0], lines[1], lines[-1]] == [(1, "one"), (2, "two"), (602, "three")]
    assert len(told) == 3 and sum(told) == path.stat().st_size
    kept = [line for _, line in files.read_lines(str(path), keep_ends=True)]
    assert [kept[0], kept[1], kept[-1]] == ["one\r\n", "two\n", "three"]


def test_total_size(tmp_path):
    for name in "ab":
        (tmp_path / name).write_bytes(b"123")
    assert files.total_size([str(tmp_path / name) for name in "ab"]) == 6
    assert files.total_size(["gs://bucket/a", str(tmp_path / "a")]) is None


@pytest.mark.parametrize("content, message", [
    ('{"a":\n}', "a.json, line 2: not JSON .*; mend it"),
    ("[1]", "a.json: not a JSON object; mend it")])
def test_json_objects(tmp_path, content, message):
    path = tmp_path / "a.json"
    path.write_text('{"a": 1}')
    assert files.read_object(str(path)) == {"a": 1}
    path.write_text(content)
    with pytest.raises(InputError, match=message):
        files.read_object(str(path), "mend it")


def test_files_and_folders_get_their_names_together(tmp_path):
    paths = [str(tmp_path / "new" / name) for name in ("a", "model/")]
    with files.staged(*paths) as (file, folder):
        with open(file, "wb") as stream:
            stream.write(b"1")
        os.mkdir(folder)
        assert not os.path.exists(paths[0])
    assert names(tmp_path / "new") == ["a", "model"]


@pytest.mark.parametrize("error, raised, message", [
    (InputError("wrong"), InputError, "wrong"),
    (KeyboardInterrupt(), KeyboardInterrupt, None),
    (OSError(errno.ENOSPC, "No space left"), Interruption,
     "/a: cannot be written: No space left")])
def test_what_was_there_stays_if_writing_fails(tmp_path, error, raised, message):
    (tmp_path / "a").write_text("old")
    with pytest.raises(raised, match=message), files.staged(
            str(tmp_path / "a"), str(tmp_path / "b")) as (first, folder):
        with open(first, "wb"):
            os.mkdir(folder)
        raise error
    path = str(tmp_path / "a")
    with pytest.raises(raised, match=message), files.atomic_write(path) as stream:
        stream.write(b"new")
        raise error
    assert names(tmp_path) == ["a"] and (tmp_path / "a").read_text() == "old"


def test_moving_renames_or_copies_to_another_disk(tmp_path, monkeypatch):
    source, target = str(tmp_path / "a"), str(tmp_path / "b")
    for code in (None, errno.EXDEV, errno.EACCES):
        (tmp_path / "a").write_text(str(code))
        calls = iter([code])
        rename = os.replace

        def replace(*paths):
            if (first := next(calls, None)) is not None:
                raise OSError(first, "no")
            rename(*paths)

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", replace)
            if code == errno.EACCES:
                with pytest.raises(Interruption, match="b: cannot be written: no;"):
                    files.move(source, target)
            else:
                files.move(source, target)
                assert names(tmp_path) == ["b"]
                assert (tmp_path / "b").read_text() == str(code)
