"""Steps: the release's runs, clipping on replicas, dropout, shapes, broken loss.

That a step is the same however it is computed is in test_same_step.
"""

import collections
import gzip

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from albert_tf import records
from albert_tf.checkpoints.restore import load_tf1_tensors, tf1_tensors
from albert_tf.config import AlbertConfig
from albert_tf.training import losses, optimization
from albert_tf.training.losses import Objective
from albert_tf.training.options import StepOptions
from albert_tf.training.evaluation import Evaluator
from albert_tf.training.steps import Task, Trainer
from tests import models, pipelines, tiny_run
from tests.golden import training as golden_training
from tests.helpers import FIXTURES
from tests.training.tiny_trainer import (
    Training, assert_close, column, dataset_of, even_batches, training, uneven_batches)


@pytest.fixture(scope="module", name="golden_records")
def _golden_records(tmp_path_factory):
    source = FIXTURES / "records" / "default_32_for_training.tfrecord.gz"
    path = tmp_path_factory.mktemp("golden") / "train.tfrecord"
    path.write_bytes(gzip.decompress(source.read_bytes()))
    spec = records.pretraining_spec(32, 5, 4000, 2)
    return records.check_files([str(path)], spec), spec


def test_batches_are_those_of_the_release(golden_records):
    infos, spec = golden_records
    batch = next(iter(pipelines.training_dataset(infos, spec, 16, 1, shuffle_buffer=0)))
    expected = dict(np.load(golden_training.FOLDER / "first_batch.npz"))
    expected["sentence_order_labels"] = expected.pop("next_sentence_labels")
    assert batch.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(batch[name], value, err_msg=name)


def check_golden_run(run, start, final, infos, spec):
    """Trains as the release did; returns the optimizer."""
    model = models.AlbertForPreTraining(AlbertConfig.from_dict(run["config"]))
    load_tf1_tensors(model, start)
    optimizer = optimization.create_optimizer(
        run["learning_rate"], run["num_train_steps"], run["num_warmup_steps"],
        optimizer=run["optimizer"], poly_power=run["poly_power"],
        start_warmup_step=run["start_warmup_step"])
    optimizer.build(model.trainable_variables)
    strategy = tf.distribute.get_strategy()
    task = tiny_run.task_with_loss(model)
    data = strategy.distribute_datasets_from_function(
        lambda context: pipelines.training_dataset(
            infos, spec, 16, 1, shuffle_buffer=0))
    trainer = Trainer(task, optimizer, [data], StepOptions(count_duplicate_rows=True))
    evaluator = Evaluator(task, [
        pipelines.evaluation_dataset(infos, spec, 16, max_eval_steps=6)])

    def check_evaluation(expected):
        metrics = evaluator.evaluate()
        for name in ("masked_lm_loss", "masked_lm_accuracy", "sentence_order_loss",
                     "sentence_order_accuracy"):
            assert metrics[name] == pytest.approx(expected[name], abs=1e-5), name

    check_evaluation(run["eval_at_start_first_6_batches"])
    rows = [trainer.train(tf.constant(1)) for _ in range(run["num_train_steps"])]
    np.testing.assert_allclose(
        column(rows, "total_loss"), run["loss_before_each_step"], rtol=0, atol=1e-5)
    np.testing.assert_allclose(
        column(rows, "learning_rate"), run["learning_rate_of_each_step"], rtol=1e-6)
    check_evaluation(run["eval_at_end_first_6_batches"])
    found = tf1_tensors(model) | {n: s.numpy() for n, s in optimizer.slots.items()}
    found["global_step"] = optimizer.iterations.numpy()
    for name, value in final.items():
        np.testing.assert_allclose(
            golden_training.compared(name, found[name], value), value, rtol=0,
            atol=5e-6, err_msg=name)
    assert trainer.first_bad_step.numpy() == -1


@pytest.mark.parametrize("name", [golden_training.FIXTURE_RUNS[0], *(
    pytest.param(name, marks=pytest.mark.long) for name in golden_training.FIXTURE_RUNS[1:])])
def test_golden_run(name, golden_records):
    check_golden_run(*golden_training.fixture_run(name), *golden_records)


@pytest.mark.shared
@pytest.mark.slow
@pytest.mark.parametrize("name, final", [
    ("lamb_default_lr", "final_lamb_default_lr_with_slots.ckpt"), ("adamw", "")])
def test_golden_run_whole(name, final, golden_records):
    check_golden_run(*golden_training.shared_run(name, final), *golden_records)


@pytest.mark.long
def test_replicas_clip_before_they_sum():
    """Each by its own norm, and with its own number of masked pieces."""
    [batch] = uneven_batches(1)
    two = training(replicas=2, clip_norm=0.5, replica_gradients="sum")
    row = two.run([batch], 1)[0]

    model = models.AlbertForPreTraining(tiny_run.config(num_hidden_layers=1))
    load_tf1_tensors(model, two.weights)
    task = tiny_run.task_with_loss(model)
    found, norms, clipped = [], [], []
    for half in range(2):
        part = {name: np.array_split(value, 2)[half] for name, value in batch.items()}
        with tf.GradientTape() as tape:
            loss = task.objective.losses(
                model(part, training=True), part)["total_loss"]
        gradients = [tf.convert_to_tensor(g).numpy().astype(np.float64)
                     for g in tape.gradient(loss, model.trainable_variables)]
        norms.append(np.sqrt(sum((g ** 2).sum() for g in gradients)))
        clipped.append([g * min(1.0, 0.5 / norms[-1]) for g in gradients])
        found.append(float(loss))
    assert min(norms) > 0.5 and abs(norms[0] - norms[1]) > 0.1
    assert row["total_loss"] == pytest.approx(np.mean(found), rel=1e-6)
    assert row["gradient_norm"] == pytest.approx(np.mean(norms), rel=1e-5)
    optimizer = tiny_run.optimizer(model)
    joined = [tf.constant(a + b, tf.float32) for a, b in zip(*clipped)]
    optimizer.apply_gradients(zip(joined, model.trainable_variables))
    expected = tf1_tensors(model) | {n: s.numpy() for n, s in optimizer.slots.items()}
    assert_close(two.state(), expected, 1e-5)


@pytest.mark.long
@pytest.mark.parametrize("options", [
    {}, pytest.param(dict(gradient_accumulation_steps=2), marks=pytest.mark.slow)])
def test_loop_on_the_device_is_the_loop_on_the_host(options, monkeypatch):
    """As on TPUs: several steps in one call, in a tf.while_loop."""
    host = training(dropout=0.3, **options)
    rows = host.run(steps=4)
    default = type(tf.distribute.get_strategy())
    monkeypatch.setattr(tf.distribute, "TPUStrategy", default)
    device = Training(dropout=0.3, **options)
    assert device.trainer.runs_on_device and not host.trainer.runs_on_device
    device.run(steps=0)
    row = device.trainer.train(tf.constant(4))
    assert device.optimizer.iterations.numpy() == 4
    for name in ("masked_lm_loss", "sentence_order_loss", "gradient_norm",
                 "learning_rate"):
        assert row[name] == pytest.approx(np.mean(column(rows, name)), rel=1e-6)
    assert_close(device.state(), host.state(), 1e-6)


@pytest.mark.long  # In float32 also test_loop, by a signal.
@pytest.mark.parametrize("options", [dict(replicas=2), dict(dtype="float16")])
def test_nothing_remains_of_a_step_that_is_stopped(options):
    """Between two parts of its batch; XLA does not stop there."""
    stopped = Training(dropout=0.3, gradient_accumulation_steps=2, **options)
    stopped.run(steps=1)
    before = stopped.state()
    stopped.trainer.stop.assign(True)
    stopped.trainer.train(tf.constant(1))
    assert stopped.trainer.stops and stopped.optimizer.iterations.numpy() == 1
    assert_close(stopped.state(), before, 0)
    assert int(stopped.trainer.first_bad_step.numpy()) == -1
    assert not Training(gradient_accumulation_steps=2, jit_compile=True).trainer.stops


class _Weighted(tf_keras.Model):
    """One weight, so that tracing takes no time."""

    def __init__(self):
        super().__init__()
        self.weight = self.add_weight(name="weight", shape=[], initializer="ones")

    def call(self, features, training=False, seed=None, computation=None):
        return self.weight * features["values"]


@pytest.mark.long
@pytest.mark.parametrize("options, device", [
    ({}, False), ({}, True), (dict(jit_compile=True), False),
    pytest.param(dict(replicas=2, jit_compile=True), False, marks=pytest.mark.slow)])
def test_each_shape_is_traced_once(options, device, caplog, monkeypatch):
    """However often evaluation and loops of any number of steps take turns; batches
    have 1 to 5 examples."""
    if device:
        default = type(tf.distribute.get_strategy())
        monkeypatch.setattr(tf.distribute, "TPUStrategy", default)
    monkeypatch.setattr(tf.get_logger(), "handlers", [caplog.handler])
    replicas, traced = options.get("replicas", 1), collections.Counter()
    strategy = tiny_run.strategy(replicas)

    def losses_of(outputs, features, denominators):
        traced[outputs.shape[0]] += 1
        return {"total_loss": tf.reduce_mean(outputs)}

    with strategy.scope():
        model, optimizer = _Weighted(), optimization.create_optimizer(0.1, 100, 0)
        optimizer.build(model.trainable_variables)
        task = Task(model, Objective(
            lambda features: {}, losses_of,
            lambda outputs, features, losses: {"mean": (outputs, 1.0)}), "")
        data = [strategy.distribute_datasets_from_function(
            lambda context, size=size: dataset_of(
                [{"values": np.ones([size], np.float32)}]).repeat()) for size in range(1, 6)]
        trainer = Trainer(task, optimizer, data, StepOptions(
            jit_compile="jit_compile" in options), kind_of_step=lambda step: (step % 5, None))
        evaluator = Evaluator(task, [(each, 1) for each in data])
        traced.clear()
        evaluator.evaluate()
        for steps in (5, 1, 7):
            trainer.train(tf.constant(steps))
            evaluator.evaluate()
            evaluator.predict([(each, 2) for each in data])
            # In training and in evaluation; replicas trace on their own.
            assert traced == dict.fromkeys(range(1, 6), 2 * replicas)
    assert "retracing" not in caplog.text


@pytest.mark.long
def test_a_step_is_a_function_of_its_number_and_seed():
    batches, dropping = even_batches(1), training(dropout=0.3)
    first = column(dropping.run(batches, 2), "total_loss")
    tf.random.set_seed(99)
    assert column(dropping.run(batches, 2), "total_loss") == first
    # The same weights and batch at another step, and with another seed.
    assert dropping.run(batches, 1, first=1)[0]["total_loss"] != first[0]
    other = training(dropout=0.3, random_seed=1).run(batches, 1)
    assert other[0]["total_loss"] != first[0]


@pytest.mark.long
@pytest.mark.parametrize(
    "options", [dict(dropout=0.3), dict(replicas=2, clip_norm=0.5)])
def test_first_step_that_is_not_finite_is_remembered(options):
    broken = training(**options)
    broken.run(steps=2)
    assert broken.trainer.first_bad_step.numpy() == -1
    bias = broken.model.bert.pooler.weights[-1]
    bias.assign(tf.fill(bias.shape, np.nan))
    broken.more(2)
    assert broken.trainer.first_bad_step.numpy() == 2


def test_evaluation_weighs_every_example_once(tmp_path, replicas=2, batch_size=3):
    path = tiny_run.write_records(tmp_path / "dev.tfrecord", 13, seed=5)
    infos = records.check_files([path], tiny_run.SPEC)
    strategy = tiny_run.strategy(replicas)
    weights = tiny_run.weights(tiny_run.config())
    with strategy.scope():
        model = models.AlbertForPreTraining(tiny_run.config())
        load_tf1_tensors(model, weights)
        data, steps = pipelines.evaluation_dataset(
            infos, tiny_run.SPEC, batch_size, replicas=replicas)
        dataset = strategy.distribute_datasets_from_function(lambda _: data)
        evaluator = Evaluator(tiny_run.task_with_loss(model), [(dataset, steps)])
        metrics = evaluator.evaluate()

    batch = tiny_run.features(tiny_run.examples(13, 5))
    plain = models.AlbertForPreTraining(tiny_run.config())
    load_tf1_tensors(plain, weights)
    outputs = plain(batch)
    values = losses.pretraining_losses(outputs, batch)
    expected = {name: np.average(value, weights=np.broadcast_to(weight, value.shape))
                for name, (value, weight) in losses.pretraining_metrics(
                    outputs, batch, values).items()}
    assert len(expected) == 4
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, rel=1e-5)
