"""A model of a few hundred parameters and records for it, to train in tests."""

import contextlib
import dataclasses
import itertools
import re
import signal

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.checkpoints.restore import export_tf1, load_tf1_tensors, write_config
from albert_tf.config import AlbertConfig
from albert_tf.records.spec import pretraining_spec
from albert_tf.records.tfrecord import RecordWriter
from albert_tf.training import losses, optimization, steps
from albert_tf.training.batches import Batches

from tests import models
from tests.helpers import serialized

VOCAB_SIZE = 30
LENGTH = 8
PREDICTIONS = 3
MASK_ID = 4
SPEC = pretraining_spec(LENGTH, PREDICTIONS, VOCAB_SIZE, 2)
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "film", "is", "good",
          "bad", "fine", "poor", ".", *map(str, range(17))]

_group_keys = itertools.count(1000, 1000)


def strategy(replicas: int = 1) -> tf.distribute.Strategy:
    """The default strategy, or one of two replicas on the CPU."""
    if replicas == 1:
        return tf.distribute.get_strategy()

    # Strategies of one process number their exchanges alike, and so would mix
    # them up; this is how TensorFlow's own tests keep them apart.
    class Mirrored(tf.distribute.MirroredStrategy):
        _collective_key_base = next(_group_keys)

    return Mirrored([f"CPU:{i}" for i in range(replicas)])


def config(**changes) -> AlbertConfig:
    values = dict(
        vocab_size=VOCAB_SIZE, embedding_size=4, hidden_size=8, num_hidden_layers=2,
        num_attention_heads=2, intermediate_size=12, max_position_embeddings=LENGTH)
    return AlbertConfig(**{**values, **changes})


def write_pretrained(folder) -> str:
    """Writes a pretrained model with one layer and a WordPiece vocabulary, PIECES."""
    shape = config(num_hidden_layers=1, max_position_embeddings=16)
    write_config(str(folder), shape)
    (folder / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    model = models.AlbertForPreTraining(shape)
    # The same in each process: some weights would magnify rounding more than others do.
    load_tf1_tensors(model, weights_of(model))
    export_tf1(model, str(folder / "model.ckpt-best"))
    return str(folder)


def example(random: np.random.Generator, masked: int | None = None) -> dict:
    """One record; `masked` positions of it, or 1 to all of them."""
    masked = int(random.integers(1, PREDICTIONS + 1)) if masked is None else masked
    size = int(random.integers(6, LENGTH + 1))
    ids = np.zeros(LENGTH, np.int64)
    ids[:size] = random.integers(5, VOCAB_SIZE, size)
    # A rule that can be learnt: pieces repeat.
    ids[2:size:2] = ids[1]
    positions = np.zeros(PREDICTIONS, np.int64)
    positions[:masked] = np.sort(random.choice(np.arange(1, size), masked, False))
    labels = np.zeros(PREDICTIONS, np.int64)
    labels[:masked] = ids[positions[:masked]]
    ids[positions[:masked]] = MASK_ID
    return dict(
        input_ids=ids, input_mask=(np.arange(LENGTH) < size).astype(np.int64),
        segment_ids=(np.arange(LENGTH) * 2 >= size).astype(np.int64),
        token_boundary=np.zeros(LENGTH, np.int64), masked_lm_positions=positions,
        masked_lm_ids=labels,
        masked_lm_weights=(np.arange(PREDICTIONS) < masked).astype(np.float32),
        next_sentence_labels=random.integers(0, 2, 1))


def most_bytes(step) -> int:
    """The bytes that the tensors of a step hold at one time."""
    memory, found = tf.config.experimental, []
    try:
        for _ in range(4):  # The order of operations is not always the same.
            memory.reset_memory_stats("CPU:0")
            before = memory.get_memory_info("CPU:0")["current"]
            step()
            found.append(memory.get_memory_info("CPU:0")["peak"] - before)
    except ValueError:
        pytest.skip("TensorFlow does not count this device's memory")
    return min(found)


def examples(count: int, seed: int = 0, masked: int | None = None) -> list[dict]:
    random = np.random.default_rng(seed)
    return [example(random, masked) for _ in range(count)]


def write_records(path, count: int, seed: int = 0) -> str:
    """Writes a file of `count` records; returns its path."""
    with RecordWriter(str(path)) as writer:
        for values in examples(count, seed):
            writer.write(serialized(SPEC, values))
    return str(path)


SHORT = pretraining_spec(5, 2, VOCAB_SIZE, 2)


def write_short_records(path, count: int, seed: int = 0) -> str:
    """Likewise, of SHORT: the beginnings of the others."""
    with RecordWriter(str(path)) as writer:
        for row in examples(count, seed, masked=1):
            row["masked_lm_positions"] %= 5
            writer.write(serialized(SHORT, {
                name: value[:{LENGTH: 5, PREDICTIONS: 2}.get(len(value))]
                for name, value in row.items()}))
    return str(path)


def features(rows: list[dict]) -> dict:
    """Records as a batch of features, as they are parsed."""
    batch = {name: np.stack([row[name] for row in rows]) for name in rows[0]
             if name != "token_boundary"}
    batch["sentence_order_labels"] = batch.pop("next_sentence_labels")
    return {name: value if value.dtype == np.float32 else value.astype(np.int32)
            for name, value in batch.items()}


# The number of saves, which a stop adds to, is no part of a run's state.
STATE = "(?!save_counter)"


def stored(folder, name: str, begins: str = "") -> dict[str, np.ndarray]:
    """Everything in a checkpoint, or what begins with a pattern: weights, moments."""
    reader = tf.train.load_checkpoint(f"{folder}/{name}")
    return {key: reader.get_tensor(key) for key in reader.get_variable_to_shape_map()
            if key != "_CHECKPOINTABLE_OBJECT_GRAPH" and re.match(begins, key)}


def assert_equal_tensors(found: dict, expected: dict, rtol=0, atol=0):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(
            found[name], value, rtol=rtol, atol=atol, err_msg=name)


class FixedBatches(Batches):
    """One dataset to train on, as it is."""

    def __init__(self, dataset: tf.data.Dataset, batch_size: int):
        super().__init__(batch_size, batch_size)
        self._dataset = dataset

    def training_dataset(self, shape, start_step, pipeline):
        assert shape == 0 and start_step == 0
        return self._dataset


class SignalAt(contextlib.nullcontext):
    """In place of a run's signals: SIGTERM comes during a step."""

    def __init__(self, run, step: int):
        super().__init__()
        self._run, self._step = run, step

    @property
    def received(self):
        return signal.SIGTERM if self._run.current_step == self._step else None


def weights_of(model, seed: int = 0, scale: float = 0.3) -> dict:
    """Random weights by name, larger than a model's first, so that all of it counts."""
    from albert_tf.checkpoints.restore import tf1_tensors

    random = np.random.default_rng(seed)
    return {
        name: (name.endswith("gamma") + scale * random.standard_normal(value.shape)
               ).astype(np.float32)
        for name, value in tf1_tensors(model).items()}


def weights(shape_of: AlbertConfig, seed: int = 0, scale: float = 0.3) -> dict:
    """Those of a model for pretraining."""
    return weights_of(models.AlbertForPreTraining(shape_of), seed, scale)


def task(model, metrics=losses.pretraining_metrics,
         best_metric="masked_lm_accuracy") -> steps.Task:
    """Pretraining, as run_pretraining.py has it."""
    return steps.Task(model, dataclasses.replace(
        losses.PRETRAINING, metrics=metrics), best_metric)


def task_with_loss(model) -> steps.Task:
    """With the loss of each step among the metrics."""

    def metrics(outputs, batch, values):
        return {**losses.pretraining_metrics(outputs, batch, values),
                "total_loss": (values["total_loss"][None], 1.0)}

    return task(model, metrics)


def optimizer(model, rate: float = 0.01, steps: int = 100, warmup: int = 0,
              name: str = "lamb"):
    made = optimization.create_optimizer(rate, steps, warmup, optimizer=name)
    made.build(model.trainable_variables)
    return made
