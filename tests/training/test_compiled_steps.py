"""Every combination of a step's options compiles with XLA, and is the step uncompiled.

All combinations would take hours; here every pair of two options' values occurs in
some step (pairwise cover). What a device other than a CPU gets stands here too.
"""

import functools
import itertools
import types

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.checkpoints.tf1 import load_tf1_tensors, tf1_tensors
from albert_tf.modeling import models
from albert_tf.modeling.encoder import Computation
from albert_tf.modeling.kernels import fast, plain
from albert_tf.training import objectives, optimization
from albert_tf.training.loss_scaling import LossScaling
from albert_tf.training.options import StepOptions
from albert_tf.training.steps import Trainer
from tests import tiny_run
from tests.training.test_steps import assert_close, batches_of, column

STEPS, BATCH = 3, 4

# Model and objective of a task; all dropout is off, since XLA makes other floats of
# the same random bits.
TASKS = {
    "pretraining": (models.AlbertForPreTraining, None),
    "classification": (functools.partial(
        models.AlbertForSequenceClassification, num_labels=3,
        dropout_prob=0.0), objectives.CLASSIFICATION),
    "regression": (functools.partial(
        models.AlbertForSequenceClassification, num_labels=1,
        dropout_prob=0.0), objectives.REGRESSION),
    "choice": (functools.partial(
        models.AlbertForMultipleChoice, dropout_prob=0.0),
        objectives.CHOICE),
    "spans": (models.AlbertForSpans, objectives.SPANS),
    "conditional_spans": (functools.partial(
        models.AlbertForConditionalSpans, dropout_prob=0.0),
        objectives.CONDITIONAL_SPANS),
}

OPTIONS = {
    "dtype": ("float32", "bfloat16", "float16"),
    "task": tuple(TASKS),
    "groups": (1, 2),  # Of two layers.
    "recompute": (False, True),
    "gradient_accumulation_steps": (1, 2),
    "count_duplicate_rows": (False, True),
    "optimizer": ("lamb", "adamw"),
    "fast_parts": (False, True),
    "replicas": (1, 2),
}


def possible(chosen):
    """Rows of one word cannot be told apart once parts of a batch are summed."""
    return not (chosen["count_duplicate_rows"]
                and chosen["gradient_accumulation_steps"] > 1)


def pairs(chosen):
    """Every two of the chosen values, with their options' names."""
    return set(itertools.combinations(sorted(
        (name, str(value)) for name, value in chosen.items()), 2))


def pairwise_cover():
    """Few combinations in which every possible pair of values occurs."""
    every = [dict(zip(OPTIONS, values))
             for values in itertools.product(*OPTIONS.values())]
    every = [(chosen, pairs(chosen)) for chosen in every if possible(chosen)]
    missing, cover = set().union(*(found for _, found in every)), []
    while missing:
        chosen, found = max(every, key=lambda each: len(each[1] & missing))
        missing -= found
        cover.append(chosen)
    return cover


def features(task):
    """A batch for a task, with even halves for two replicas."""
    batch = tiny_run.features(tiny_run.examples(BATCH, 3, masked=2))
    if task == "pretraining":
        return batch
    random = np.random.default_rng(0)
    batch = {name: batch[name] for name in ("input_ids", "input_mask", "segment_ids")}

    def labels(count):
        return random.integers(0, count, [BATCH, 1]).astype(np.int32)

    if task == "choice":
        batch = {name: np.stack([value, np.roll(value, 1, axis=0)], 1)
                 for name, value in batch.items()}
        return {**batch, "label_ids": labels(2)}
    if task == "classification":
        return {**batch, "label_ids": labels(3)}
    if task == "regression":
        return {**batch, "label_ids": random.standard_normal([BATCH, 1]).astype("f")}
    spans = {"start_positions": labels(3), "end_positions": 3 + labels(3),
             "is_impossible": labels(2)}
    return {**batch, **spans, "p_mask": 1.0 - batch["input_mask"].astype("f")}


class Steps:
    """Steps of a task, compiled or not."""

    def __init__(self, chosen, jit_compile):
        make, objective = TASKS[chosen["task"]]
        config = tiny_run.config(num_hidden_groups=chosen["groups"],
                                 num_hidden_layers=chosen.get("layers", 2))
        strategy = tiny_run.strategy(chosen["replicas"])
        with strategy.scope():
            self.model = make(config)
            random = np.random.default_rng(1)
            load_tf1_tensors(self.model, {
                name: (name.endswith("gamma")
                       + 0.3 * random.standard_normal(value.shape)).astype("f")
                for name, value in sorted(tf1_tensors(self.model).items())})
            self.optimizer = optimization.create_optimizer(
                0.01, 100, 0, optimizer=chosen["optimizer"])
            # Both optimizers divide a gradient by its own size, which would magnify
            # the roundings of one that is almost 0 a thousand times.
            self.optimizer.epsilon = 1e-2
            self.optimizer.build(self.model.trainable_variables)
            task = (tiny_run.task(self.model) if objective is None else
                    objectives.Task(self.model, objective, "loss"))
            batches = [features(chosen["task"])]
            data = strategy.distribute_datasets_from_function(
                lambda _: batches_of(batches, chosen["replicas"]).repeat(STEPS))
            trainer = Trainer(
                task, self.optimizer, [data], StepOptions(
                    jit_compile=jit_compile, clip_norm=2.0, dtype=chosen["dtype"],
                    recompute=chosen["recompute"],
                    gradient_accumulation_steps=chosen["gradient_accumulation_steps"],
                    count_duplicate_rows=chosen["count_duplicate_rows"]),
                scaling=LossScaling() if chosen["dtype"] == "float16" else None,
                computation=Computation(chosen["dtype"], chosen["recompute"]))
            self.rows = [trainer.train(tf.constant(1)) for _ in range(STEPS)]

    def state(self):
        return tf1_tensors(self.model) | {
            name: slot.numpy() for name, slot in self.optimizer.slots.items()}


def check_compiled(chosen, monkeypatch):
    monkeypatch.setattr(fast, "MIN_SIZE", 0 if chosen["fast_parts"] else 1 << 60)
    plain, compiled = Steps(chosen, False), Steps(chosen, True)
    assert len(plain.rows) == STEPS and plain.rows[0].keys() == compiled.rows[0].keys()
    # XLA leaves out roundings between the operations that it fuses.
    tolerance = {"float32": 2e-5, "bfloat16": 0.1, "float16": 0.01}[chosen["dtype"]]
    for name in plain.rows[0].keys() - {"steps_per_second"}:
        if "accuracy" in name and chosen["dtype"] != "float32":
            continue
        np.testing.assert_allclose(
            column(compiled.rows, name), column(plain.rows, name),
            rtol=tolerance, atol=1e-6, err_msg=name)
    if chosen["dtype"] == "float32":
        assert_close(compiled.state(), plain.state(), 2e-5)


def name_of(chosen):
    return "-".join(f"{value}" if name in ("dtype", "task", "optimizer") else
                    f"{name}={value}" for name, value in chosen.items())


@pytest.mark.slow
@pytest.mark.parametrize("chosen", pairwise_cover(), ids=name_of)
def test_compiled_step_is_the_step(chosen, monkeypatch):
    check_compiled(chosen, monkeypatch)


@pytest.mark.parametrize("dtype, task", [
    ("float32", "pretraining"),
    pytest.param("float16", "classification", marks=pytest.mark.slow)])
def test_compiled_step_of_one_layer_with_everything(dtype, task, monkeypatch):
    """A cheap sample of the above."""
    check_compiled(dict(
        dtype=dtype, task=task, groups=1, layers=1, recompute=True,
        gradient_accumulation_steps=2, count_duplicate_rows=False, optimizer="lamb",
        fast_parts=True, replicas=1), monkeypatch)


def test_pairs_are_all_there():
    """Of any two options, of all their values that go together."""
    cover = pairwise_cover()
    assert len(cover) < 30 and all(map(possible, cover))
    for one, other in itertools.combinations(OPTIONS, 2):
        expected = set(itertools.product(OPTIONS[one], OPTIONS[other]))
        if {one, other} == {"count_duplicate_rows", "gradient_accumulation_steps"}:
            expected = {pair for pair in expected if set(pair) != {True, 2}}
        assert {(chosen[one], chosen[other]) for chosen in cover} == expected


# ---- other devices ---------------------------------------------------------


def devices(*names):
    """A strategy that computes on other devices, as far as `on_cpu` can tell."""
    return types.SimpleNamespace(extended=types.SimpleNamespace(
        worker_devices=[
            f"/job:worker/replica:0/task:0/device:{name}" for name in names]))


LARGE = tf.TensorShape([8, 64, 64])


@pytest.mark.parametrize("names, parts", [
    (["CPU:0"], fast.FAST), (["CPU:0", "CPU:1"], fast.FAST),
    (["GPU:0"], plain.PLAIN), (["GPU:0", "GPU:1"], plain.PLAIN),
    (["TPU:0"], plain.PLAIN), (["CPU:0", "GPU:0"], plain.PLAIN)])
def test_parts_suit_the_devices_of_the_strategy(names, parts, monkeypatch):
    monkeypatch.setattr(tf.distribute, "has_strategy", lambda: True)
    monkeypatch.setattr(tf.distribute, "get_strategy", lambda: devices(*names))
    assert fast.parts_for(LARGE) is parts


@pytest.mark.parametrize("there, parts", [
    ([], fast.FAST), (["GPU"], plain.PLAIN), (["TPU"], plain.PLAIN)])
def test_parts_suit_the_device_without_a_strategy(there, parts, monkeypatch):
    monkeypatch.setattr(tf.config, "list_logical_devices",
                        lambda kind: ["one"] if kind in there else [])
    assert fast.parts_for(LARGE) is parts


@pytest.mark.parametrize("strategy", [
    lambda: tf.distribute.OneDeviceStrategy("CPU:0"), lambda: tiny_run.strategy(2)])
def test_strategies_on_cpus_get_the_fast_parts(strategy):
    with strategy().scope():
        assert fast.parts_for(LARGE) is fast.FAST


def test_nothing_for_cpus_is_left_on_elsewhere(monkeypatch):
    """In the whole forward and backward pass of a model that is large enough."""
    def no_island(*_, **__):
        raise AssertionError("an island")

    monkeypatch.setattr(fast, "MIN_SIZE", 0)
    monkeypatch.setattr(fast, "island", no_island)
    model = models.AlbertForPreTraining(tiny_run.config(num_hidden_layers=1))
    batch = {name: tf.constant(value)
             for name, value in features("pretraining").items()}

    @tf.function
    def run():
        with tf.GradientTape() as tape:
            outputs = model(batch, training=True,
                            computation=Computation("bfloat16", recompute=True))
            loss = tf.reduce_sum(outputs["mlm_logits"])
        return tape.gradient(loss, model.trainable_variables,
                             unconnected_gradients="zero")

    with pytest.raises(AssertionError, match="an island"):
        run.get_concrete_function()
    monkeypatch.setattr(fast, "on_cpu", lambda: False)
    run.get_concrete_function()
