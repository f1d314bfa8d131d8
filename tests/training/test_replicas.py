"""Any number of replicas and processes trains the same model: the same batches, masks
and dropout, and losses and weights within rounding.

    python -m pytest tests/training/test_replicas.py
"""

import functools
import json
import re

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.checkpoints.restore import load_tf1_tensors
from albert_tf.masking.in_training import DynamicMasking
from albert_tf.masking.options import MaskingOptions, SpecialIds
from albert_tf.records.checks import check_files, unmasked_spec
from albert_tf.records.tfrecord import RecordWriter
from albert_tf.training import input_pipeline, loop, permutation
from albert_tf.training.options import RunOptions, StepOptions
from albert_tf.training.steps import Task
from tests import models, tiny_run
from tests.commands import finish, start_cluster
from tests.finetuning.test_length_batching import SHAPES, make_table
from tests.helpers import serialized

STEPS, BATCH = 6, 8
IDS = SpecialIds(cls=2, sep=3, mask=tiny_run.MASK_ID)
DROPOUT = dict(hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.2)


def train(task, config, batches, output_dir, num_steps, depth=None, **options):
    load_tf1_tensors(task.model, tiny_run.weights_of(task.model))
    loop.Run(task, config, RunOptions(
        str(output_dir), num_train_steps=num_steps, train_batch_size=BATCH,
        iterations_per_loop=1, step=StepOptions(clip_norm=0.5, **options)),
        batches, tiny_run.optimizer(task.model), depth=depth).train()


def pretrain(path, output_dir, num_steps, streams=4, in_order=False, **options):
    """Trains in the current strategy, with masks or orders that are drawn while it
    does."""
    config = tiny_run.config(**DROPOUT)
    spec = unmasked_spec(tiny_run.SPEC)
    batches = input_pipeline.RecordBatches(
        spec, check_files([str(path)], spec), None, train_batch_size=BATCH,
        eval_batch_size=BATCH, seed=1, streams=streams, shuffle_buffer=12,
        random_map=(permutation.Orders if in_order else DynamicMasking)(
            MaskingOptions(tiny_run.PREDICTIONS, masked_lm_prob=0.4), IDS,
            tiny_run.LENGTH, tiny_run.VOCAB_SIZE))
    task = Task(
        permutation.AlbertForPermutation(config), permutation.objective(),
        "permutation_accuracy") if in_order else tiny_run.task(
            models.AlbertForPreTraining(config))
    train(task, config, batches, output_dir, num_steps, **options)


def finetune(make, table, objective, output_dir, num_steps, **options):
    from albert_tf.finetuning.length_batching import FeatureBatches, Padded

    config = tiny_run.config(
        **DROPOUT, vocab_size=100, max_position_embeddings=SHAPES[-1])
    batches = FeatureBatches(
        Padded(table, SHAPES), train_batch_size=BATCH, num_steps=num_steps, seed=1)
    train(Task(make(config), objective, "loss"), config, batches,
          output_dir, num_steps, **options)


TASKS = {
    "pretraining": pretrain,
    "permutation": functools.partial(pretrain, in_order=True),
    "regression": lambda path, *rest, **options: finetune(
        lambda config: models.classifier(config, 1),
        make_table("regression"), models.REGRESSION, *rest, **options),
    "choices": lambda path, *rest, **options: finetune(
        models.multiple_choice, make_table("choices"), models.CHOICE,
        *rest, **options),
    "spans": lambda path, *rest, **options: finetune(
        models.conditional_spans, make_table("spans"),
        models.CONDITIONAL_SPANS, *rest, **options)}


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
    rows, other_rows = (
        list(map(json.loads, (folder / "metrics.jsonl").read_text().splitlines()))
        for folder in (one, other))
    assert [row["step"] for row in rows] == [row["step"] for row in other_rows] == (
        list(range(1, STEPS + 1)))
    for row, other_row in zip(rows, other_rows):
        for name in row.keys() - {"split", "steps_per_second"}:
            assert row[name] == pytest.approx(
                other_row[name], rel=1e-4 if "loss" in name else 1e-3, abs=1e-5), name
    reader, other_reader = (
        tf.train.load_checkpoint(str(folder)) for folder in (one, other))
    for name in reader.get_variable_to_shape_map():
        if "OBJECT_GRAPH" in name or "save_counter" in name:
            continue
        # Biases before a softmax have a gradient of 0 but for rounding errors.
        noise = re.search("/(key/bias|start_head/bias|output_bias)/", name)
        np.testing.assert_allclose(
            reader.get_tensor(name), other_reader.get_tensor(name), rtol=0,
            atol=1e-3 if noise else 2e-5, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("task, replicas, options", [
    ("pretraining", 2, {}), ("pretraining", 4, dict(gradient_accumulation_steps=2)),
    ("permutation", 4, dict(gradient_accumulation_steps=2)),
    *((task, replicas, {}) for task in ("regression", "choices", "spans")
      for replicas in (2, 4))])
def test_replicas_train_as_one(task, replicas, options, path, tmp_path):
    TASKS[task](path, tmp_path / "one", STEPS)
    with tiny_run.strategy(replicas).scope():
        TASKS[task](path, tmp_path / "several", STEPS, **options)
    assert_same_run(tmp_path / "one", tmp_path / "several")


@pytest.mark.long
@pytest.mark.parametrize("task", ["pretraining", "permutation"])
def test_a_run_continues_on_another_number_of_replicas(task, path, tmp_path):
    TASKS[task](path, tmp_path / "one", STEPS)
    for replicas, steps in ((2, 3), (4, STEPS)):
        with tiny_run.strategy(replicas).scope():
            TASKS[task](path, tmp_path / "several", steps)
    assert_same_run(tmp_path / "one", tmp_path / "several")


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, 4])
def test_processes_train_as_one(workers, path, tmp_path):
    TASKS["pretraining"](path, tmp_path / "one", STEPS)
    program = ["-m", "tests.worker", path, str(tmp_path / "several"), str(STEPS)]
    for process in start_cluster(*[program] * workers):
        finish(process)
    assert_same_run(tmp_path / "one", tmp_path / "several")
