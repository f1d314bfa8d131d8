"""The loss scale by itself, and in whole steps in float16."""

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from albert_tf.training import steps
from albert_tf.training.steps import INITIAL_SCALE, LossScaling
from tests.training.tiny_trainer import assert_close, even_batches, training


def state(scaling):
    return [float(scaling.scale.numpy()), int(scaling.good_steps.numpy())]


def test_scale_goes_as_that_of_keras(monkeypatch):
    """Growth, halving, and the smallest scale, over some hundred steps."""
    monkeypatch.setattr(steps, "GROWTH_STEPS", 3)
    keras = tf_keras.mixed_precision.LossScaleOptimizer(
        tf_keras.optimizers.SGD(0.0), dynamic_growth_steps=3)
    weight = tf.Variable(1.0)
    keras.build([weight])
    scaling = LossScaling()
    assert state(scaling) == [2.0 ** 15, 0]
    random = np.random.default_rng(0)
    # First so many bad steps that the scale ends at 1, later more good ones.
    good_ones = np.concatenate([random.random(100) < 0.4, random.random(100) < 0.95])
    scales = set()
    for good in good_ones:
        gradient = tf.constant(0.5 if good else np.inf)
        keras.apply_gradients([(gradient, weight)])
        scaling.update(tf.math.is_finite(gradient))
        assert state(scaling) == [float(keras.loss_scale), int(keras.dynamic_counter)]
        assert bool(scaling.scale <= 1.0) == (float(keras.loss_scale) == 1.0)
        scales.add(float(keras.loss_scale))
    assert 1.0 in scales and max(scales) > 2.0 ** 15
    assert scaling.values() == {
        "loss_scale": float(keras.loss_scale), "skipped_steps": (~good_ones).sum()}


def test_scale_stays_finite():
    scaling = LossScaling()
    scaling.scale.assign(steps.LARGEST_SCALE)
    scaling.good_steps.assign(steps.GROWTH_STEPS - 1)
    scaling.update(tf.constant(True))
    assert state(scaling) == [steps.LARGEST_SCALE, 0]


@pytest.mark.parametrize("scale", [1.0, 2.0 ** 15, steps.LARGEST_SCALE])
def test_unscaled_gradients_are_not_rounded(scale):
    scaling = LossScaling()
    scaling.scale.assign(scale)
    values = np.random.default_rng(0).standard_normal([3, 2]).astype(np.float32)
    np.testing.assert_array_equal(scaling.unscale(tf.constant(values * scale)), values)
    rows = scaling.unscale(tf.IndexedSlices(
        tf.constant(values * scale), tf.constant([4, 0, 4]), tf.constant([5, 2])))
    assert isinstance(rows, tf.IndexedSlices)
    np.testing.assert_array_equal(rows.values, values)
    np.testing.assert_array_equal(rows.indices, [4, 0, 4])


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


@pytest.mark.parametrize("options", [{}, *(
    pytest.param(options, marks=pytest.mark.slow) for options in (
        dict(jit_compile=True), dict(gradient_accumulation_steps=2, recompute=True),
        dict(gradient_accumulation_steps=2, jit_compile=True, recompute=True),
        dict(replicas=2, gradient_accumulation_steps=2), dict(replicas=2, jit_compile=True),
        dict(optimizer="adamw", count_duplicate_rows=True)))])
def test_step_that_overflows_is_skipped(options):
    """It changes the scale, the counts and nothing else."""
    made = training(dtype="float16", **options)
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
    # The schedule counts the step that was skipped.
    assert row["learning_rate"] == pytest.approx(0.01 * (1 - 3 / 100))


@pytest.mark.slow
def test_replicas_skip_together():
    """Though one alone overflows: the other has nothing to learn from its batch."""
    made = training(dtype="float16", replicas=2)
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


def test_gradients_that_float16_would_lose():
    """The norm told is that of the loss itself, if not for what is lost below 6e-8."""
    made, norms = training(dtype="float16"), []
    for scale in (2.0 ** -20, INITIAL_SCALE, 4 * INITIAL_SCALE):
        set_scaling(made, scale)
        norms.append(made.run(even_batches(), 1)[0]["gradient_norm"])
    assert norms[1] == pytest.approx(norms[2], rel=1e-3)
    assert abs(norms[0] - norms[1]) > 0.01 * norms[1]
