"""A tiny model that a Trainer trains on batches in memory, computed as a test says."""

import dataclasses
import functools
from unittest import mock

import numpy as np
import tensorflow as tf

from albert_tf.checkpoints.restore import load_tf1_tensors, tf1_tensors
from albert_tf.modeling.encoder import Computation
from albert_tf.modeling.kernels import fast as fast_parts
from albert_tf.training import losses, permutation
from albert_tf.training.options import StepOptions
from albert_tf.training.steps import LossScaling, Task, Trainer
from tests import models, tiny_run

# Model and objective of a task; the heads drop nothing.
TASKS = {
    "pretraining": (models.AlbertForPreTraining, None),
    "permutation": (permutation.AlbertForPermutation, dataclasses.replace(
        losses.PRETRAINING, metrics=permutation.metrics)),
    "classification": (functools.partial(
        models.classifier, num_labels=3, dropout_prob=0.0),
        models.CLASSIFICATION),
    "regression": (functools.partial(
        models.classifier, num_labels=1, dropout_prob=0.0),
        models.REGRESSION),
    "choice": (functools.partial(models.multiple_choice, dropout_prob=0.0),
               models.CHOICE),
    "spans": (models.spans, models.SPANS),
    "conditional_spans": (functools.partial(
        models.conditional_spans, dropout_prob=0.0),
        models.CONDITIONAL_SPANS)}


def uneven_batches(count=2, size=4):
    """Batches whose parts hold different numbers of masked pieces."""
    return [tiny_run.features([
        tiny_run.examples(1, 100 * seed + row, masked=1 if row < size // 2 else 3)[0]
        for row in range(size)]) for seed in range(count)]


def even_batches(count=2, size=4):
    """Batches whose halves hold the same number of masked pieces."""
    return [tiny_run.features(tiny_run.examples(size, seed, masked=2))
            for seed in range(count)]


def batches_for(task, size=4):
    if task == "pretraining":
        return uneven_batches(size=size)
    if task == "permutation":
        return [with_order(batch) for batch in uneven_batches(size=size)]
    random = np.random.default_rng(0)
    [batch] = even_batches(1, size)
    batch = {name: batch[name] for name in ("input_ids", "input_mask", "segment_ids")}

    def labels(count):
        return random.integers(0, count, [size, 1]).astype(np.int32)

    if task == "choice":
        batch = {name: np.stack([value, np.roll(value, 1, axis=0)], 1)
                 for name, value in batch.items()}
        return [{**batch, "label_ids": labels(2)}]
    if task == "classification":
        return [{**batch, "label_ids": labels(3)}]
    if task == "regression":
        return [{**batch, "label_ids": random.standard_normal([size, 1]).astype("f")}]
    return [{**batch, "start_positions": labels(3), "end_positions": 3 + labels(3),
             "is_impossible": labels(2),
             "p_mask": 1.0 - batch["input_mask"].astype("f")}]


def with_order(batch):
    """What is masked in a batch, put into an order instead."""
    ids, order = batch["input_ids"].copy(), np.zeros_like(batch["input_ids"])
    random = np.random.default_rng(0)
    for row, places, positions, labels, weights in zip(ids, order, *(
            batch[f"masked_lm_{name}"] for name in ("positions", "ids", "weights"))):
        count = int(weights.sum())
        row[positions[:count]] = labels[:count]
        places[positions[:count]] = 1 + random.permutation(count)
    return {**batch, "input_ids": ids, "order": order}


def dataset_of(batches, replicas=1):
    """A dataset of `batches` for one host, each cut into one part per replica."""
    parts = [{name: np.array_split(value, replicas)[r] for name, value in batch.items()}
             for batch in batches for r in range(replicas)]
    data = tf.data.Dataset.from_tensor_slices(
        {name: np.stack([part[name] for part in parts]) for name in parts[0]})
    options = tf.data.Options()
    # An iterator that goes may wait for its tuning thread for half a minute.
    options.autotune.enabled = False
    return data.with_options(options)


class Training:
    """A model at given weights, and a Trainer that takes batches over and over.

    `fast` takes the fast parts, however small the model; `dropout` is the rate of every
    layer's, `passes` are the layers that steps run, in turns; `options` are those of a
    step.
    """

    def __init__(self, task="pretraining", layers=1, groups=1, sharing="all",
                 dropout=0.0, replicas=1, optimizer="lamb", epsilon=1e-6,
                 dtype="float32", recompute=False, skip_padding=False, fast=False,
                 passes=(None,), **options):
        make, objective = TASKS[task]
        self.replicas, self.batches = replicas, batches_for(task)
        self.strategy = tiny_run.strategy(replicas)
        self._parts = mock.patch.object(
            fast_parts, "MIN_SIZE", 0 if fast else 1 << 60)
        with self.strategy.scope(), self._parts:
            self.model = make(tiny_run.config(
                num_hidden_layers=layers, num_hidden_groups=groups,
                parameter_sharing=sharing, hidden_dropout_prob=dropout,
                attention_probs_dropout_prob=dropout))
            self.weights = tiny_run.weights_of(self.model)
            self.optimizer = tiny_run.optimizer(self.model, name=optimizer)
            self.optimizer.epsilon = epsilon
            scaling = None
            if dtype == "float16":
                scaling = LossScaling()
                # A replica's share of a gradient may be larger than the whole, and
                # overflow, so that replicas skip a step that one takes.
                scaling.scale.assign(1024.0)
            self.trainer = Trainer(
                tiny_run.task_with_loss(self.model) if objective is None
                else Task(self.model, objective, "loss"), self.optimizer,
                [self._distributed(self.batches)], StepOptions(
                    dtype=dtype, recompute=recompute, **options),
                kind_of_step=lambda step: (0, passes[step % len(passes)]),
                scaling=scaling,
                computation=Computation(dtype, recompute, skip_padding))

    def _distributed(self, batches):
        return self.strategy.distribute_datasets_from_function(
            lambda context: dataset_of(batches, self.replicas).repeat())

    def run(self, batches=None, steps=3, first=0):
        """Metrics of each step, from step `first` and the weights of the start on."""
        load_tf1_tensors(self.model, self.weights)
        for slot in self.optimizer.slots.values():
            slot.assign(tf.zeros_like(slot))
        self.optimizer.iterations.assign(first)
        self.trainer.first_bad_step.assign(-1)
        with self.strategy.scope():
            self._feed(batches or self.batches)
            return self.more(steps)

    def _feed(self, batches):
        self.trainer.datasets = [self._distributed(batches)]
        vars(self.trainer).pop("_inputs", None)

    def more(self, steps):
        """Metrics of some steps more."""
        with self.strategy.scope(), self._parts:
            return [self.trainer.train(tf.constant(1)) for _ in range(steps)]

    def take_over(self, other):
        """Weights, moments and step of another Training."""
        load_tf1_tensors(self.model, tf1_tensors(other.model))
        for name, slot in self.optimizer.slots.items():
            slot.assign(other.optimizer.slots[name])
        self.optimizer.iterations.assign(other.optimizer.iterations)
        with self.strategy.scope():
            self._feed([
                self.batches[(int(other.optimizer.iterations) + i) % len(self.batches)]
                for i in range(len(self.batches))])

    def state(self):
        """Weights and moments."""
        return tf1_tensors(self.model) | {
            name: slot.numpy() for name, slot in self.optimizer.slots.items()}


def training(**how):
    """A Training that several tests use, since tracing takes the most time."""
    return _training(frozenset(how.items()))


@functools.cache
def _training(how):
    return Training(**dict(how))


def column(rows, name):
    return [row[name] for row in rows]


def assert_close(found, expected, atol):
    """Of weights and moments."""
    assert found.keys() == expected.keys()
    for name in expected:
        # The gradient of the key's bias is 0 in exact arithmetic; what the
        # optimizer makes of its rounding errors is noise.
        noise = 100 if "/key/bias" in name else 1
        np.testing.assert_allclose(
            found[name], expected[name], rtol=0, atol=noise * atol, err_msg=name)
