"""A small run that must learn: pretraining gets where guessing cannot.

    python -m pytest tests/training/test_learning.py
"""

import numpy as np
import tf_keras

from albert_tf.records.checks import check_files
from albert_tf.records.tfrecord import RecordWriter
from albert_tf.training import input_pipeline, loop
from albert_tf.training.options import RunOptions
from tests import models, tiny_run
from tests.helpers import serialized

# Sentences of one piece each: 6 follows 5, 8 follows 7, ... The pairs are swapped at
# random, so that a masked piece is that of its segment, and the order can be told.
PAIRS = np.arange(5, tiny_run.VOCAB_SIZE - 1, 2)


def example(random: np.random.Generator) -> dict:
    swapped = int(random.integers(2))
    first = random.choice(PAIRS)
    half = tiny_run.LENGTH // 2
    original = np.repeat([first + swapped, first + 1 - swapped], half)
    positions = np.sort(random.choice(tiny_run.LENGTH, 2, replace=False))
    ids = original.copy()
    ids[positions] = tiny_run.MASK_ID
    return dict(
        input_ids=ids, input_mask=np.ones(tiny_run.LENGTH, np.int64),
        segment_ids=np.repeat([0, 1], half),
        token_boundary=np.zeros(tiny_run.LENGTH, np.int64),
        masked_lm_positions=np.append(positions, 0),
        masked_lm_ids=np.append(original[positions], 0),
        masked_lm_weights=np.array([1, 1, 0], np.float32),
        next_sentence_labels=np.array([swapped]))


def write(path, count, seed):
    random = np.random.default_rng(seed)
    with RecordWriter(str(path)) as writer:
        for _ in range(count):
            writer.write(serialized(tiny_run.SPEC, example(random)))
    return check_files([str(path)], tiny_run.SPEC)


def test_a_run_learns_pieces_and_their_order(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "draw_curves", lambda *args: None)
    tf_keras.utils.set_random_seed(1)
    config = tiny_run.config(
        embedding_size=16, hidden_size=32, intermediate_size=64, num_hidden_layers=1,
        initializer_range=0.2, hidden_dropout_prob=0, attention_probs_dropout_prob=0)
    model = models.AlbertForPreTraining(config)
    batches = input_pipeline.RecordBatches(
        tiny_run.SPEC, write(tmp_path / "train.tfrecord", 1000, 1),
        write(tmp_path / "dev.tfrecord", 200, 2), train_batch_size=32,
        eval_batch_size=50, seed=1)
    metrics = loop.Run(
        tiny_run.task(model), config, RunOptions(
            str(tmp_path / "run"), num_train_steps=200, train_batch_size=32,
            eval_batch_size=50, save_checkpoints_steps=200),
        batches, tiny_run.optimizer(model, rate=0.02, steps=200, warmup=20)).train()
    # Guessing finds one piece of 24 and half of the orders.
    assert metrics["masked_lm_accuracy"] > 0.8
    assert metrics["masked_lm_loss"] < 1.0 < np.log(24)
    assert metrics["sentence_order_accuracy"] > 0.95
