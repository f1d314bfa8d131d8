"""Folders of runs and of checkpoints: which files a run may replace, what a path stands
for, and that a checkpoint is written completely or not at all.
"""

import contextlib
import os
import pathlib
import shutil

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.checkpoints import folders
from albert_tf.errors import InputError
from albert_tf.finetuning.classification.task import ClassificationTask
from tests.test_architecture import TASKS


def write(folder, tensors, name="model.ckpt"):
    folders.write_tensors(tensors, path := str(folder / name))
    return path


# ---- paths -----------------------------------------------------------------


def test_all_ways_to_name_a_checkpoint(tmp_path):
    one, two, best = (write(tmp_path, {"w": np.float32(i)}, name) for i, name in
                      enumerate(("model.ckpt-1", "model.ckpt-2", "model.ckpt-best")))
    for path in (one, f"{one}.index", f"{one}.data-00000-of-00001"):
        assert folders.find_checkpoint(path) == one
    assert folders.find_checkpoint(str(tmp_path)) == best
    (tmp_path / "model.ckpt-best.index").unlink()
    with pytest.raises(InputError, match="neither model.ckpt-best nor.*model.ckpt-1"):
        folders.find_checkpoint(str(tmp_path))
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-2"\n')
    assert folders.find_checkpoint(str(tmp_path)) == two
    moved = str(shutil.copytree(tmp_path, tmp_path / "moved [1]"))
    assert folders.find_checkpoint(moved) == f"{moved}/model.ckpt-2"
    (tmp_path / "model.ckpt-2.index").unlink()
    assert folders.find_checkpoint(str(tmp_path)) == one  # the only one left


def test_the_list_as_tensorflow_writes_it(tmp_path):
    folder = tmp_path / 'a "list"'
    paths = [write(folder, {"w": np.float32(i)}, f"model.ckpt-{i}") for i in (1, 2)]
    tf.compat.v1.train.update_checkpoint_state(str(folder), paths[-1], paths)
    assert folders.checkpoint_of(str(folder), best=False) == paths[-1]
    best = write(folder, {"w": np.float32(4)}, "model.ckpt-best")
    assert folders.checkpoint_of(str(folder)) == best
    moved = folder.rename(tmp_path / "moved")
    assert folders.checkpoint_of(str(moved), best=False) == str(moved / "model.ckpt-2")
    folder = moved
    (folder / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-')
    with pytest.raises(InputError, match="checkpoint does not name"):
        folders.checkpoint_of(str(folder), best=False)


@pytest.mark.parametrize("names", [
    ["model.ckpt-3", "model.ckpt-12", "model.ckpt-best"], ["model.ckpt-best"]])
def test_checkpoints_without_their_list_are_not_overwritten(names, tmp_path):
    for name in names:
        write(tmp_path, {"w": np.float32(1)}, name)
    assert folders.holds_checkpoint(str(tmp_path))
    with pytest.raises(InputError, match="does not name.*--resume_from=STEP "):
        folders.checkpoint_of(str(tmp_path), best=False, to_train=True)
    # What evaluates may use the best one.
    assert folders.checkpoint_of(str(tmp_path)).endswith("best")


def test_a_kill_in_the_first_save_is_no_lost_list(tmp_path):
    place = dict(best=False, to_train=True)
    assert folders.checkpoint_of(str(tmp_path), **place) is None
    path = write(tmp_path, {"w": np.float32(1)}, "model.ckpt-4")
    assert folders.checkpoint_of(str(tmp_path), **place) == path


def test_paths_that_are_no_checkpoint(tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    gone = tmp_path / "gone"
    gone.mkdir()
    (gone / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-7"\n')
    for path, words in (
            (tmp_path / "notes.txt", "notes.txt.index"), (tmp_path, "model.ckpt-best"),
            (tmp_path / "absent.index", "absent.index"), (gone, "'checkpoint'")):
        with pytest.raises(InputError, match=f"{path}.*{words}"):
            folders.find_checkpoint(str(path))


# ---- writing ---------------------------------------------------------------


def test_writing_replaces_and_leaves_nothing_else(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    prefix = "model.ckpt-best"
    for step in (1, 2):
        checkpoint = tf.train.Checkpoint(step=tf.Variable(step))
        folders.write_whole(checkpoint, prefix)
    # An older one of more data files.
    (tmp_path / "model.ckpt-best.data-00001-of-00002").write_bytes(b"old")
    folders.write_whole(tf.train.Checkpoint(step=tf.Variable(3)), prefix)
    assert sorted(os.listdir(tmp_path)) == [
        "model.ckpt-best.data-00000-of-00001", "model.ckpt-best.index"]
    step = tf.Variable(0)
    tf.train.Checkpoint(step=step).read(prefix).assert_consumed()
    assert int(step) == 3


class Killed(BaseException):
    pass


def kill_at(monkeypatch, number):
    """Raises Killed at the operation on files with this number; nothing after it, such
    as cleaning up, has an effect."""
    count = 0

    def killing(name):
        operation = getattr(os, name)

        def run(*args, **options):
            nonlocal count
            count += 1
            if count >= number:
                raise Killed
            return operation(*args, **options)

        monkeypatch.setattr(os, name, run)

    for name in ("replace", "remove", "unlink", "link", "rename"):
        killing(name)


@pytest.mark.parametrize("write", [
    lambda value, prefix: folders.write_tensors({"w": np.float32(value)}, prefix),
    lambda value, prefix: folders.copy_whole(write(
        pathlib.Path(prefix).parent / "other", {"w": np.float32(value)}, "x"), prefix)],
    ids=["write", "copy"])
def test_a_kill_leaves_the_old_or_the_new_or_is_noticed(write, tmp_path, monkeypatch):
    """Each kill is followed by a write that succeeds, from what the kill has left."""
    prefix = str(tmp_path / "model.ckpt-best")

    def value():
        try:
            return folders.read_tensors(prefix)["w"]
        except InputError as error:
            assert "wrong checksum" in str(error)
            with pytest.raises(tf.errors.OpError, match="Checksum"):
                tf.train.load_checkpoint(prefix).get_tensor("w")
            return "mixed"

    folders.write_tensors({"w": np.float32(0)}, prefix)
    seen = []
    for number in range(1, 50):
        before = value()
        with monkeypatch.context() as patch:
            kill_at(patch, number)
            with contextlib.suppress(Killed):
                write(number, prefix)
                break
        assert value() in (before, number, "mixed")
        seen.append(value() == "mixed")
        write(number + 100, prefix)
        assert value() == number + 100
    assert value() == number > 2 and sum(seen) == 1
    assert sorted(path.name for path in tmp_path.glob("model.ckpt-best.*")
                  if "incomplete" not in path.name) == [
        "model.ckpt-best.data-00000-of-00001", "model.ckpt-best.index"]


def test_a_failed_write_keeps_the_old(tmp_path):
    prefix = str(tmp_path / "model.ckpt-best")
    folders.write_tensors({"w": np.float32(1)}, prefix)

    class Broken:
        def write(self, temporary):
            assert temporary != prefix
            for suffix in ("data-00000-of-00001", "index"):
                with open(f"{temporary}.{suffix}", "wb"):
                    pass
            raise tf.errors.ResourceExhaustedError(None, None, "disk full")

    with pytest.raises(InputError, match="model.ckpt-best.*disk full"):
        folders.write_whole(Broken(), prefix)
    assert len(os.listdir(tmp_path)) == 2
    assert folders.read_tensors(prefix) == {"w": 1.0}


# ---- the files of a run -----------------------------------------------------


def write_file(folder, name):
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text("mine")


def contents(folder):
    return {str(path.relative_to(folder)): path.read_text()
            for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("task, name", [
    ("", "options.json"), ("", "curves.png"), ("", "run.lock"), ("", "tensorboard/x"),
    ("tagging", "predictions.conll"), ("tagging", "eval_predictions/predictions.conll"),
    ("classification", "predictions.tsv"), ("classification", "task.json"),
    ("squad", "null_odds.json"), ("race", "predictions.json"), ("squad", "seed-7/x")])
def test_a_file_that_no_run_wrote_is_refused(task, name, tmp_path):
    write_file(tmp_path, name)
    top = name.split("/")[0]
    with pytest.raises(InputError, match=f"--output_dir=.* holds {top}, which a run"):
        folders.claim_run_folder(str(tmp_path), task)
    assert contents(tmp_path) == {name: "mine"}


@pytest.mark.parametrize("task, name", [
    ("", "notes.txt"), ("", "predictions.conll"), ("", "albert_config.json"),
    ("tagging", "predictions.tsv")])
def test_other_names_are_no_hindrance_and_the_folder_is_marked(task, name, tmp_path):
    write_file(tmp_path, name)
    folders.claim_run_folder(str(tmp_path), task)
    assert contents(tmp_path)[name] == "mine"
    # From now on these names are the run's.
    write_file(tmp_path, "options.json")
    folders.claim_run_folder(str(tmp_path), task)


def test_inputs_among_the_files_of_a_run_are_found(tmp_path):
    for name in ("predictions.conll", "eval_predictions/predictions.jsonl", "notes"):
        write_file(tmp_path, name)
    (tmp_path / "tensorboard").mkdir()
    assert [os.path.relpath(path, tmp_path) for path in folders.files_of_run(
        str(tmp_path))] == ["predictions.conll", "eval_predictions/predictions.jsonl"]


def test_each_task_has_its_names():
    assert sorted(folders.tasks()) == TASKS
    assert ClassificationTask.__module__.split(".")[-2] in TASKS
