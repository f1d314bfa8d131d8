"""Whole steps with --dtype and --recompute: compiled or not, plain or fast."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from albert_tf import fused, heads
from albert_tf.errors import InputError
from albert_tf.modeling import compute_as
from tests import tiny_run
from tests.test_training_steps import (
    DROPOUT, LOSSES, Training, assert_close, assert_same_training, column, even_batches)


@pytest.fixture(name="fast")
def _fast(monkeypatch):
    """The fast parts, however small the model is."""
    monkeypatch.setattr(fused, "MIN_SIZE", 0)


def training(dtype="float32", recompute=False, **options):
    made = Training(**options)
    compute_as(made.model, dtype, recompute)
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
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_recomputed_step_is_the_step(fast, dtype, sharing):
    config = dict(DROPOUT, parameter_sharing=sharing)
    assert_same_training(training(dtype, config=config),
                         training(dtype, recompute=True, config=config), even_batches())


COMBINATIONS = list(itertools.product(
    ("float32", "bfloat16"), (False, True), (1, 2), (False, True)))


@pytest.mark.slow
@pytest.mark.parametrize("dtype, recompute, parts, fast_parts", COMBINATIONS)
def test_compiled_step_is_the_step(dtype, recompute, parts, fast_parts, monkeypatch):
    monkeypatch.setattr(fused, "MIN_SIZE", 0 if fast_parts else 1 << 60)
    one, other = (
        training(dtype, recompute, gradient_accumulation_steps=parts, jit_compile=jit)
        for jit in (False, True))
    if dtype == "float32":
        assert_same_training(one, other, even_batches())
        return
    # XLA leaves out roundings to bfloat16 between the operations that it fuses.
    rows, other_rows = (each.run(even_batches(), 3) for each in (one, other))
    for name in (*LOSSES, "gradient_norm"):
        np.testing.assert_allclose(column(rows, name), column(other_rows, name),
                                   rtol=0.05)


@pytest.mark.parametrize("fast_parts", [False, True])
def test_compiled_step_with_everything(fast_parts, monkeypatch):
    monkeypatch.setattr(fused, "MIN_SIZE", 0 if fast_parts else 1 << 60)
    assert_same_training(*(
        training(recompute=True, gradient_accumulation_steps=2, jit_compile=jit)
        for jit in (False, True)), even_batches())


@pytest.mark.slow
@pytest.mark.parametrize("jit_compile", [False, True])
def test_replicas_with_fast_parts(fast, jit_compile):
    assert_same_training(
        training(clip_norm=100.0), training(
            clip_norm=100.0, replicas=2, recompute=True, jit_compile=jit_compile),
        even_batches())


@pytest.mark.parametrize("fast_parts", [False, True])
def test_bfloat16_trains_to_the_same_loss(fast_parts, monkeypatch):
    monkeypatch.setattr(fused, "MIN_SIZE", 0 if fast_parts else 1 << 60)
    rows = {dtype: training(dtype).run(even_batches(), 20)
            for dtype in ("float32", "bfloat16")}
    losses = {dtype: np.array(column(found, "total_loss"))
              for dtype, found in rows.items()}
    assert losses["float32"][-1] < 0.8 * losses["float32"][0]
    np.testing.assert_allclose(losses["bfloat16"], losses["float32"], rtol=0.05)
    assert not np.array_equal(losses["bfloat16"], losses["float32"])


@pytest.mark.parametrize("fast_parts", [False, True])
def test_products_are_in_bfloat16_and_the_rest_is_not(fast_parts, monkeypatch):
    monkeypatch.setattr(fused, "MIN_SIZE", 0 if fast_parts else 1 << 60)
    model = heads.AlbertForPreTraining(tiny_run.config(**DROPOUT))
    compute_as(model, "bfloat16", False)
    batch = {name: tf.constant(value)
             for name, value in even_batches(1)[0].items()}

    @tf.function
    def run():
        with tf.GradientTape() as tape:
            outputs = model(batch, training=True, seed=tf.constant([1, 2]))
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
    low = [op for op in products if op.outputs[0].dtype == tf.bfloat16]
    layers = model.config.num_hidden_layers
    assert len(low) >= 3 * 6 * layers


def test_unknown_type_is_named():
    model = heads.AlbertForPreTraining(tiny_run.config())
    with pytest.raises(InputError, match="dtype is 'float8'; choose one of float32"):
        compute_as(model, "float8", False)
