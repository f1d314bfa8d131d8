"""Units of work: what counts as finished, whose folder it is; one run in a folder."""

import os
import subprocess
import sys

import pytest

from albert_tf import files
from albert_tf.errors import InputError
from albert_tf.jobs import work_folder
from albert_tf.jobs.work_folder import WorkFolder, hold
from tests.helpers import ROOT


class Stop(Exception):
    """Ends a run as an accident would."""


def run(path, settings, inputs=(), finished=()):
    """Starts a run, which stops after one unit; returns those that it met, finished."""
    folder = WorkFolder(str(path))
    with pytest.raises(Stop), folder.used(settings, inputs):
        found = [unit for unit in finished if folder.finished(unit)]
        files.write(folder.file("part-1.bytes"), b"some bytes")
        assert folder.finish("part-1", {"count": 3}, ["part-1.bytes"]) == (
            folder.finished("part-1"))
        raise Stop
    return found


@pytest.fixture(name="folder")
def _folder(tmp_path):
    run(tmp_path / "work", {"max_seq_length": 128})
    return WorkFolder(str(tmp_path / "work"))


@pytest.mark.parametrize("damage", [
    lambda path: os.truncate(path, 5), os.remove,
    lambda path: os.truncate(path.replace(".bytes", ".json"), 5),
], ids=["cut", "gone", "mark"])
def test_a_unit_whose_files_are_not_whole_is_not_finished(folder, damage):
    assert folder.finished("part-1") == {"count": 3, "files": {"part-1.bytes": 10}}
    damage(folder.file("part-1.bytes"))
    assert folder.finished("part-1") is folder.finished("part-2") is None


def test_the_same_run_is_resumed_and_another_is_refused(tmp_path):
    path = tmp_path / "work"
    assert not run(path, {"dupe_factor": 5, "ngram": 3}, finished=["part-1"])
    assert run(path, {"ngram": 3, "dupe_factor": 5}, finished=["part-1"])
    with pytest.raises(InputError, match="work .*dupe_factor=5, but this run has 10"):
        run(path, {"dupe_factor": 10, "ngram": 3})


def test_files_of_others_stay(tmp_path):
    work = tmp_path / "work"
    (work / "albert_tf.models").mkdir(parents=True)
    (work / "notes.txt").write_text("mine")
    folder = WorkFolder(str(work))
    for text in ("s3://a.txt", "s3://b.txt"):
        run(work, {"seed": 1}, [text])
    with folder.used({"seed": 1}, ["s3://b.txt"]):
        assert folder.finished("part-1")
        with pytest.raises(InputError, match="another run is using"):
            run(work, {"seed": 1}, ["s3://b.txt"])
    assert sorted(os.listdir(work)) == ["albert_tf.models", "notes.txt"]


@pytest.mark.parametrize("name", [
    "run.lock", "albert_tf.unfinished.json.incomplete"])
def test_a_run_killed_in_its_first_moments_is_no_hindrance(name, tmp_path):
    (tmp_path / name).write_text("")
    run(tmp_path, {})


@pytest.mark.parametrize("settings, size, damaged", [
    ({"ngram": 2}, 10, True), ({"ngram": 3}, 11, False)],
    ids=["unknown settings", "other text"])
def test_units_of_another_run_are_removed(settings, size, damaged, tmp_path):
    (text := tmp_path / "a.txt").write_bytes(bytes(10))
    run(tmp_path, {"ngram": 3}, [str(text)])
    if damaged:
        (tmp_path / "albert_tf.unfinished.json").write_text("{")
    os.truncate(text, size)
    assert not run(tmp_path, settings, [str(text)], finished=["part-1"])


# ---- locks -------------------------------------------------------------------

# Holds the lock of a folder until it is killed.
HOLDER = """
import sys
from albert_tf.jobs.work_folder import hold
with hold(sys.argv[1], "--output_dir"):
    print("held", flush=True)
    sys.stdin.readline()
"""


def test_an_error_gives_the_lock_back_and_so_does_a_kill(tmp_path):
    folder = str(tmp_path)
    with pytest.raises(KeyError), hold(folder, "--output_dir"):
        with pytest.raises(InputError, match=(
                rf"--output_dir={tmp_path}: another run is using this folder "
                rf"\(process {os.getpid()} on .*, since 20.*\); wait for it")):
            with hold(folder, "--output_dir"):
                pass
        raise KeyError
    with subprocess.Popen(
            [sys.executable, "-c", HOLDER, folder], cwd=ROOT, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE) as first:
        assert first.stdout.readline() == "held\n"
        with pytest.raises(InputError, match=f"process {first.pid} on"):
            with hold(folder, "--output_dir"):
                pass
        first.kill()
    with hold(folder, "--output_dir"):
        pass


def test_a_file_of_the_name_that_is_no_lock_stays(tmp_path):
    path = tmp_path / work_folder.LOCK_FILE
    path.write_text("mine")
    with pytest.raises(InputError, match="run.lock is not the lock of a run"):
        with hold(str(tmp_path), "--output_dir"):
            pass
    assert path.read_text() == "mine"


def test_a_lock_that_its_run_removes_meanwhile_is_not_held(tmp_path, monkeypatch):
    lock = work_folder.fcntl.flock

    def after_removal(stream, how):
        os.remove(stream.name)
        lock(stream, how)

    monkeypatch.setattr(work_folder.fcntl, "flock", after_removal)
    with pytest.raises(InputError, match="--output_dir=.*another run"):
        with hold(str(tmp_path), "--output_dir"):
            pass


@pytest.mark.parametrize("folder, system", [("memory://bucket/run", True), ("", None)])
def test_stores_and_windows_have_no_lock(folder, system, tmp_path, monkeypatch):
    monkeypatch.setattr(work_folder, "fcntl", system and work_folder.fcntl)
    path = folder or str(tmp_path)
    with hold(path, ""), hold(path, ""):
        assert not list(tmp_path.iterdir())
