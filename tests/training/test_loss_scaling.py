"""The loss scale by itself; whole steps in float16 are in test_step_types."""

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from albert_tf.training import loss_scaling
from albert_tf.training.loss_scaling import LossScaling


def state(scaling):
    return [float(scaling.scale.numpy()), int(scaling.good_steps.numpy())]


def test_scale_goes_as_that_of_keras(monkeypatch):
    """Growth, halving, and the smallest scale, over some hundred steps."""
    monkeypatch.setattr(loss_scaling, "GROWTH_STEPS", 3)
    keras = tf_keras.mixed_precision.LossScaleOptimizer(
        tf_keras.optimizers.SGD(0.0), dynamic_growth_steps=3)
    weight = tf.Variable(1.0)
    keras.build([weight])
    scaling = LossScaling()
    assert state(scaling) == [2.0 ** 15, 0]
    random = np.random.default_rng(0)
    # First so many bad steps that the scale ends at 1, later more good ones.
    steps = np.concatenate([random.random(100) < 0.4, random.random(100) < 0.95])
    scales = set()
    for good in steps:
        gradient = tf.constant(0.5 if good else np.inf)
        keras.apply_gradients([(gradient, weight)])
        scaling.update(tf.math.is_finite(gradient))
        assert state(scaling) == [float(keras.loss_scale), int(keras.dynamic_counter)]
        assert bool(scaling.at_smallest) == (float(keras.loss_scale) == 1.0)
        scales.add(float(keras.loss_scale))
    assert 1.0 in scales and max(scales) > 2.0 ** 15
    assert scaling.values() == {
        "loss_scale": float(keras.loss_scale), "skipped_steps": (~steps).sum()}


def test_scale_stays_finite():
    scaling = LossScaling()
    scaling.scale.assign(loss_scaling.LARGEST_SCALE)
    scaling.good_steps.assign(loss_scaling.GROWTH_STEPS - 1)
    scaling.update(tf.constant(True))
    assert state(scaling) == [loss_scaling.LARGEST_SCALE, 0]


@pytest.mark.parametrize("scale", [1.0, 2.0 ** 15, loss_scaling.LARGEST_SCALE])
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
