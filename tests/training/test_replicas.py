"""Any number of replicas and processes trains the same model: the same batches, masks
and dropout, and losses and weights within rounding."""

import sys

import pytest
import tensorflow as tf

from albert_tf.checkpoints.restore import load_tf1_tensors
from albert_tf.masking.in_training import DynamicMasking
from albert_tf.masking.options import MaskingOptions, SpecialIds
from albert_tf.records.checks import check_files, unmasked_spec
from albert_tf.records.tfrecord import RecordWriter
from albert_tf.training import input_pipeline, log, loop, permutation
from albert_tf.training.options import RunOptions, StepOptions
from albert_tf.training.steps import Task
from tests import models, tiny_run
from tests.commands import finish, start_cluster
from tests.helpers import serialized
from tests.training.tiny_trainer import TASKS, assert_close

STEPS, BATCH = 6, 8
IDS = SpecialIds(cls=2, sep=3, mask=tiny_run.MASK_ID)


def train(path, output_dir, num_steps=STEPS, objective="pretraining", **options):
    """Trains in the current strategy, with masks or orders that are drawn while it
    does."""
    config = tiny_run.config(hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.2)
    spec = unmasked_spec(tiny_run.SPEC)
    in_order = objective == "permutation"
    batches = input_pipeline.RecordBatches(
        spec, check_files([str(path)], spec), None, train_batch_size=BATCH,
        eval_batch_size=BATCH, seed=1, streams=4, shuffle_buffer=12,
        random_map=(permutation.Orders if in_order else DynamicMasking)(
            MaskingOptions(tiny_run.PREDICTIONS, masked_lm_prob=0.4), IDS,
            tiny_run.LENGTH, tiny_run.VOCAB_SIZE))
    task = Task(
        permutation.AlbertForPermutation(config), TASKS["permutation"][1],
        "permutation_accuracy") if in_order else tiny_run.task(
            models.AlbertForPreTraining(config))
    load_tf1_tensors(task.model, tiny_run.weights_of(task.model))
    loop.Run(task, config, RunOptions(
        str(output_dir), num_train_steps=num_steps, train_batch_size=BATCH,
        iterations_per_loop=1, step=StepOptions(clip_norm=0.5, **options)),
        batches, tiny_run.optimizer(task.model)).train()


@pytest.fixture(name="path")
def _path(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "draw_curves", lambda *args: None)
    path = str(tmp_path / "train.tfrecord")
    with RecordWriter(path) as writer:
        for values in tiny_run.examples(50):
            # Every piece is a word.
            writer.write(serialized(
                tiny_run.SPEC, {**values, "token_boundary": values["input_mask"]}))
    return path


def assert_same_run(one, other):
    rows, other_rows = (log.read_metrics(str(folder / "metrics.jsonl"))
                        for folder in (one, other))
    assert [row["step"] for row in rows] == [*range(1, STEPS + 1)]
    for row, other_row in zip(rows, other_rows, strict=True):
        for name in row.keys() - {"split", "steps_per_second"}:
            assert row[name] == pytest.approx(
                other_row[name], rel=1e-4 if "loss" in name else 1e-3, abs=1e-5), name
    assert_close(*(tiny_run.stored(folder, f"model.ckpt-{STEPS}", tiny_run.STATE)
                   for folder in (one, other)), 2e-5)


@pytest.mark.long
@pytest.mark.parametrize("objective", ["pretraining", "permutation"])
def test_a_run_continues_on_another_number_of_replicas(objective, path, tmp_path):
    train(path, tmp_path / "one", objective=objective)
    for replicas, steps in ((2, 3), (4, STEPS)):
        with tiny_run.strategy(replicas).scope():
            train(path, tmp_path / "several", steps, objective,
                  gradient_accumulation_steps=replicas // 2)
    assert_same_run(tmp_path / "one", tmp_path / "several")


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, 4])
def test_processes_train_as_one(workers, path, tmp_path):
    train(path, tmp_path / "one")
    program = ["-m", "tests.training.test_replicas", path, str(tmp_path / "several")]
    for process in start_cluster(*[program] * workers):
        finish(process)
    assert_same_run(tmp_path / "one", tmp_path / "several")


if __name__ == "__main__":  # One of the processes.
    with tf.distribute.MultiWorkerMirroredStrategy().scope():
        train(*sys.argv[1:])
