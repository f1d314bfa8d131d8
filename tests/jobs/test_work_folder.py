"""Units of work: what counts as finished, whose folder it is."""

import os
import pathlib

import pytest

from albert_tf.errors import InputError
from albert_tf.jobs.work_folder import WorkFolder
from tests.helpers import run_python


@pytest.fixture
def folder(tmp_path):
    folder = WorkFolder(str(tmp_path / "work"))
    with folder.claimed({"max_seq_length": 128}, []):
        yield folder


def _finish(folder, unit="part-1", content=b"some bytes"):
    with folder.write(f"{unit}.bytes") as stream:
        stream.write(content[:4])
        stream.write(content[4:])
    return folder.finish(unit, {"count": 3}, {f"{unit}.bytes": stream.sum})


def test_a_finished_unit_is_known_again(folder):
    assert folder.finished("part-1") is None and folder.is_empty()
    info = _finish(folder)
    assert folder.finished("part-1") == info and info["count"] == 3
    assert folder.known("part-1") == info and not folder.is_empty()


@pytest.mark.parametrize("damage", [
    lambda path: os.truncate(path, 5), os.remove,
    lambda path: pathlib.Path(path).write_bytes(b"Xome bytes"),
    lambda path: os.truncate(path.replace(".bytes", ".json"), 5),
], ids=["cut", "gone", "changed", "mark"])
def test_a_unit_whose_files_are_not_whole_is_not_finished(folder, damage):
    _finish(folder)
    damage(folder.file("part-1.bytes"))
    assert folder.finished("part-1") is None


def test_a_file_appears_when_it_is_whole(folder):
    with pytest.raises(ZeroDivisionError):
        with folder.write("part-1.bytes") as stream:
            stream.write(b"half")
            raise ZeroDivisionError
    assert not any("part-1" in name for name in os.listdir(folder.path))


def _claim(path, settings, inputs=()):
    with WorkFolder(path).claimed(settings, list(inputs)) as resumed:
        return resumed


def test_the_same_run_is_resumed_and_another_is_refused(tmp_path):
    path = str(tmp_path / "work")
    assert not _claim(path, {"dupe_factor": 5, "ngram": 3})
    assert _claim(path, {"ngram": 3, "dupe_factor": 5})
    with pytest.raises(InputError, match="work .*dupe_factor=5, but this run has 10"):
        _claim(path, {"dupe_factor": 10, "ngram": 3})


def _write(folder, contents):
    for name, content in contents.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content)


@pytest.mark.parametrize("contents, named", [
    ({"mine.txt": "mine"}, "mine.txt"),
    ({"photos/1.png": "mine"}, "photos"),
    ({"lock": ""}, "lock"),
    ({"part-1.bytes": "mine"}, "part-1.bytes"),
    ({"settings.json": '// an editor\'s\n{"theme": "dark",}'}, "settings.json"),
    ({"settings.json": '{"settings": {"theme": "dark"}, "inputs": []}',
      "lock": ""}, "lock"),
    ({"settings.json": "{}", "unit-1.json": "mine", "drafts/a": "mine"}, "drafts"),
], ids=["file", "folder", "lock", "name", "comments", "keys", "JSON"])
def test_a_folder_of_other_files_is_refused_and_left_alone(contents, named, tmp_path):
    _write(tmp_path, contents)
    with pytest.raises(InputError, match=rf"files that are not .*, such as {named};"):
        _claim(str(tmp_path), {})
    assert {str(path.relative_to(tmp_path)): path.read_text()
            for path in tmp_path.rglob("*") if path.is_file()} == contents


def test_a_file_of_someone_else_in_our_folder_stays(folder, tmp_path):
    (tmp_path / "work/notes.txt").write_text("mine")
    with pytest.raises(InputError, match="such as notes.txt"):
        _claim(folder.path, {})
    _finish(folder)
    folder.remove()
    assert os.listdir(folder.path) == ["notes.txt"]


@pytest.mark.parametrize("name", [
    "albert_tf.lock", ".writable-7", "albert_tf.unfinished.json.incomplete-7"])
def test_a_run_killed_in_its_first_moments_is_no_hindrance(name, tmp_path):
    (tmp_path / name).write_text("")
    assert not _claim(str(tmp_path), {})


@pytest.mark.parametrize("settings, size, damaged", [
    ({"ngram": 2}, 10, True), ({"ngram": 3}, 11, False)],
    ids=["unknown settings", "other text"])
def test_units_of_another_run_are_removed(settings, size, damaged, tmp_path):
    folder = WorkFolder(str(tmp_path))
    with folder.claimed({"ngram": 3}, [["a.txt", 10]]):
        _finish(folder)
    if damaged:
        (tmp_path / "albert_tf.unfinished.json").write_text("{")
    with folder.claimed(settings, [["a.txt", size]]) as resumed:
        assert not resumed and folder.is_empty() and not folder.finished("part-1")


def test_two_runs_do_not_share_a_folder(folder):
    code = ("import sys\n"
            "from albert_tf.jobs.work_folder import WorkFolder\n"
            "with WorkFolder(sys.argv[1]).claimed({'max_seq_length': 128}, []): pass")
    done = run_python("-c", code, folder.path)
    assert done.returncode and "another run is using this folder" in done.stderr
