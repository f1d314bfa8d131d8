"""The names that a run owns: which files it may replace, and in whose folder."""

import os

import pytest

from albert_tf.checkpoints import folders
from albert_tf.errors import InputError
from albert_tf.finetuning.classification.task import ClassificationTask
from tests.test_architecture import TASKS


def write(folder, name):
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
    write(tmp_path, name)
    top = name.split("/")[0]
    with pytest.raises(InputError, match=f"--output_dir=.* holds {top}, which a run"):
        folders.claim_run_folder(str(tmp_path), task)
    assert contents(tmp_path) == {name: "mine"}


@pytest.mark.parametrize("task, name", [
    ("", "notes.txt"), ("", "predictions.conll"), ("", "albert_config.json"),
    ("tagging", "predictions.tsv")])
def test_other_names_are_no_hindrance_and_the_folder_is_marked(task, name, tmp_path):
    write(tmp_path, name)
    folders.claim_run_folder(str(tmp_path), task)
    assert contents(tmp_path)[name] == "mine"
    # From now on these names are the run's.
    write(tmp_path, "options.json")
    folders.claim_run_folder(str(tmp_path), task)


def test_inputs_among_the_files_of_a_run_are_found(tmp_path):
    for name in ("predictions.conll", "eval_predictions/predictions.jsonl", "notes"):
        write(tmp_path, name)
    (tmp_path / "tensorboard").mkdir()
    assert [os.path.relpath(path, tmp_path) for path in folders.files_of_run(
        str(tmp_path))] == ["predictions.conll", "eval_predictions/predictions.jsonl"]


def test_each_task_has_its_names():
    assert sorted(folders.tasks()) == TASKS
    assert ClassificationTask.__module__.split(".")[-2] in TASKS
