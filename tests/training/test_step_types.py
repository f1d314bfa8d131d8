"""Whole steps with --dtype and --recompute, plain or fast.

That compiled steps are the same is in test_compiled_steps.
"""

import functools

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.errors import InputError
from albert_tf.modeling import models
from albert_tf.modeling.encoder import Computation
from albert_tf.modeling.kernels import fast as fused
from albert_tf.training.loss_scaling import INITIAL_SCALE, LossScaling
from tests import tiny_run
from tests.training.test_steps import (
    DROPOUT, LOSSES, ONE_LAYER, Training, assert_close, assert_same_training, column,
    even_batches)


@pytest.fixture(name="fast")
def _fast(monkeypatch):
    """The fast parts, however small the model is."""
    monkeypatch.setattr(fused, "MIN_SIZE", 0)


def training(dtype="float32", recompute=False, **options):
    made = Training(computation=Computation(dtype, recompute), **options)
    if dtype == "float16":
        with made.strategy.scope():
            made.trainer.scaling = LossScaling()
    return made


def test_fast_step_is_the_plain_step(monkeypatch):
    """With dropout: the same units are dropped."""
    plain = training(config=DROPOUT)
    rows = plain.run(even_batches())
    state = plain.state()
    monkeypatch.setattr(fused, "MIN_SIZE", 0)
    fast = training(config=DROPOUT)
    for name in (*LOSSES, "gradient_norm"):
        np.testing.assert_allclose(column(fast.run(even_batches()), name),
                                   column(rows, name), rtol=1e-5)
    assert_close(fast.state(), state, 1e-5)


@pytest.mark.parametrize("sharing", [
    "all", pytest.param("none", marks=pytest.mark.slow)])
@pytest.mark.parametrize("dtype", [
    "float32", "bfloat16", pytest.param("float16", marks=pytest.mark.slow)])
def test_recomputed_step_is_the_step(fast, dtype, sharing):
    config = dict(DROPOUT, parameter_sharing=sharing)
    assert_same_training(training(dtype, config=config),
                         training(dtype, recompute=True, config=config), even_batches())


@pytest.mark.slow
@pytest.mark.parametrize("jit_compile", [False, True])
def test_replicas_with_fast_parts(fast, jit_compile):
    assert_same_training(
        training(clip_norm=100.0), training(
            clip_norm=100.0, replicas=2, recompute=True, jit_compile=jit_compile),
        even_batches())


@pytest.fixture(scope="module", name="whole_losses")
def _whole_losses():
    """Of 20 steps in float32."""
    rows = training(config=ONE_LAYER).run(2 * even_batches(), 20)
    losses = column(rows, "total_loss")
    assert losses[-1] < 0.8 * losses[0]
    return losses


@pytest.mark.parametrize("dtype, fast_parts, tolerance", [
    ("bfloat16", True, 0.05), ("float16", True, 0.005),
    pytest.param("bfloat16", False, 0.05, marks=pytest.mark.slow),
    pytest.param("float16", False, 0.005, marks=pytest.mark.slow)])
def test_half_the_bits_train_to_the_same_loss(
        dtype, fast_parts, tolerance, whole_losses, monkeypatch):
    monkeypatch.setattr(fused, "MIN_SIZE", 0 if fast_parts else 1 << 60)
    losses = column(training(dtype, config=ONE_LAYER).run(2 * even_batches(), 20),
                    "total_loss")
    np.testing.assert_allclose(losses, whole_losses, rtol=tolerance)
    assert not np.array_equal(losses, whole_losses)


@pytest.mark.parametrize("dtype, fast_parts", [
    ("bfloat16", False), ("bfloat16", True), ("float16", True)])
def test_products_are_in_the_type_and_the_rest_is_not(dtype, fast_parts, monkeypatch):
    monkeypatch.setattr(fused, "MIN_SIZE", 0 if fast_parts else 1 << 60)
    model = models.AlbertForPreTraining(tiny_run.config(**DROPOUT))
    batch = {name: tf.constant(value)
             for name, value in even_batches(1)[0].items()}

    @tf.function
    def run():
        with tf.GradientTape() as tape:
            outputs = model(batch, training=True, seed=tf.constant([1, 2]),
                            computation=Computation(dtype))
            loss = tf.reduce_sum(outputs["mlm_logits"])
        return outputs, tape.gradient(loss, model.trainable_variables,
                                      unconnected_gradients="zero")

    outputs, gradients = run()
    assert all(output.dtype == tf.float32 for output in outputs.values())
    assert all(gradient.dtype == tf.float32 for gradient in gradients)
    assert all(variable.dtype == tf.float32 for variable in model.variables)
    products = [op for op in run.get_concrete_function().graph.get_operations()
                if op.type in ("MatMul", "BatchMatMulV2")]
    # In a layer query, key and value, scores, context and three dense layers; each
    # once forward and twice backward.
    low = [op for op in products if op.outputs[0].dtype == dtype]
    layers = model.config.num_hidden_layers
    assert len(low) >= 3 * 6 * layers


def test_unknown_type_is_named():
    with pytest.raises(InputError, match="dtype is 'float8'; choose one of float32"):
        Computation("float8")


# ---- float16: the loss scale -----------------------------------------------


@functools.cache
def half(**options):
    """A Training in float16 with fast parts, which several tests use."""
    return training("float16", config=ONE_LAYER, **options)


def set_scaling(made, scale=INITIAL_SCALE, good=0, skipped=0):
    with made.strategy.scope():
        made.trainer.scaling.scale.assign(scale)
        made.trainer.scaling.good_steps.assign(good)
        made.trainer.scaling.skipped_steps.assign(skipped)


def held(made):
    """Loss scale, skipped steps, and steps done."""
    values = made.trainer.scaling.values()
    return [values["loss_scale"], values["skipped_steps"],
            made.optimizer.iterations.numpy()]


OVERFLOWS = 2.0 ** 40


def check_overflow(made):
    """A step that overflows changes the scale, the counts and nothing else."""
    set_scaling(made)
    made.run(even_batches(), 2)
    state = made.state()
    assert held(made) == [INITIAL_SCALE, 0, 2]
    set_scaling(made, OVERFLOWS)
    row = made.more(1)[0]
    assert_close(made.state(), state, 0)
    assert held(made) == [OVERFLOWS / 2, 1, 3]
    # What was not made is in no mean.
    assert row.keys() == {"loss_scale", "skipped_steps", "steps_per_second"}
    assert [row["loss_scale"], row["skipped_steps"]] == [OVERFLOWS / 2, 1]
    set_scaling(made, skipped=1)
    row = made.more(1)[0]
    assert held(made) == [INITIAL_SCALE, 1, 4] and row["skipped_steps"] == 1
    assert np.isfinite(row["total_loss"]) and row["gradient_norm"] > 0
    assert made.trainer.first_bad_step.numpy() == -1
    return row


def test_step_that_overflows_is_skipped(fast):
    row = check_overflow(half())
    # The schedule counts the step that was skipped.
    assert row["learning_rate"] == pytest.approx(0.01 * (1 - 3 / 100))


@pytest.mark.slow
@pytest.mark.parametrize("options", [
    dict(jit_compile=True), dict(gradient_accumulation_steps=2, recompute=True),
    dict(gradient_accumulation_steps=2, jit_compile=True, recompute=True),
    dict(replicas=2, gradient_accumulation_steps=2), dict(replicas=2, jit_compile=True),
    dict(name="adamw", count_duplicate_rows=True)])
def test_step_that_overflows_is_skipped_however_it_is_computed(fast, options):
    check_overflow(half(**options))


@pytest.mark.slow
def test_replicas_skip_together(fast):
    """Though one alone overflows: the other has nothing to learn from its batch."""
    made = half(replicas=2)
    batch = even_batches(1)[0]
    batch["masked_lm_weights"][2:] = 0.0
    batch["sentence_order_labels"][:] = 1
    quiet = {name: np.concatenate([value[2:], value[2:]])
             for name, value in batch.items()}
    for chosen, skipped in ((quiet, 0), (batch, 1)):
        made.run([chosen], 0)
        made.model.seq_relationship.output_bias.assign([-100.0, 100.0])
        state = made.state()
        set_scaling(made, OVERFLOWS)
        made.more(1)
        assert held(made) == [OVERFLOWS / (1 + skipped), skipped, 1]
    assert_close(made.state(), state, 0)


def test_scale_grows_after_enough_good_steps(fast):
    made = half()
    set_scaling(made, good=1997)
    rows = made.run(even_batches(), 4)
    assert column(rows, "loss_scale") == 2 * [INITIAL_SCALE] + 2 * [2 * INITIAL_SCALE]


def test_gradients_that_float16_would_lose(fast):
    """The norm told is that of the loss itself, if not for what is lost below 6e-8."""
    made, norms = half(), []
    for scale in (2.0 ** -20, INITIAL_SCALE, 4 * INITIAL_SCALE):
        set_scaling(made, scale)
        norms.append(made.run(even_batches(), 1)[0]["gradient_norm"])
    assert norms[1] == pytest.approx(norms[2], rel=1e-3)
    assert abs(norms[0] - norms[1]) > 0.01 * norms[1]


def test_what_no_scale_helps_is_a_bad_step(fast):
    made = half()
    made.run(even_batches(), 1)
    bias = made.model.bert.pooler.weights[-1]
    bias.assign(tf.fill(bias.shape, np.nan))
    set_scaling(made, 4.0)
    made.more(2)
    assert made.trainer.first_bad_step.numpy() == -1
    made.more(2)
    assert made.trainer.first_bad_step.numpy() == 3
    assert held(made) == [1.0, 4, 5]
