"""The last layer at the positions alone that somebody reads."""

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from albert_tf.checkpoints.tf1 import load_tf1_tensors, tf1_tensors
from albert_tf.modeling.albert import AlbertModel
from albert_tf.modeling.encoder import Computation
from albert_tf.modeling.kernels import fast as fused
from albert_tf.modeling.kernels.packing import at_positions
from albert_tf.modeling.models import (
    AlbertForMultipleChoice, AlbertForPreTraining, AlbertForSequenceClassification)
from tests import tiny_run

IDS = np.random.default_rng(0).integers(5, tiny_run.VOCAB_SIZE, [3, 7]).astype(np.int32)
INPUTS = {
    "input_ids": IDS, "input_mask": (np.arange(7) < [[7], [4], [1]]).astype(np.int32),
    "segment_ids": (np.arange(7) > [[3], [2], [0]]).astype(np.int32)}
# In no order, one twice, and one of padding.
POSITIONS = np.array([[6, 2, 0], [3, 3, 1], [0, 0, 4]], np.int32)

SLOW = pytest.mark.slow
CONFIGS = [
    (False, {}),
    (True, dict(num_hidden_groups=2, inner_group_num=2)),
    *(pytest.param(fast, changes, marks=SLOW) for fast in (False, True)
      for changes in (dict(num_hidden_layers=1), dict(num_hidden_groups=2),
                      dict(inner_group_num=2), dict(parameter_sharing="none")))]


def with_weights(make, config):
    """A model with weights large enough to tell positions and layers apart."""
    tf_keras.utils.set_random_seed(1)
    model = make(tiny_run.config(**config))
    random = np.random.default_rng(1)
    load_tf1_tensors(model, {
        name: (value + 0.3 * random.standard_normal(value.shape)).astype("f")
        for name, value in sorted(tf1_tensors(model).items())})
    return model


def outputs_and_gradients(model, positions, compiled=False, **how):
    """Sequence output at POSITIONS, pooled output, and gradients of both."""
    def run():
        with tf.GradientTape() as tape:
            out = model(INPUTS, training=True, seed=tf.constant([1, 2]),
                        positions=positions, computation=Computation(**how))
            rows = out["sequence_output"]
            if positions is None:
                rows = at_positions(rows, tf.constant(POSITIONS))
            weights = np.random.default_rng(2).standard_normal(rows.shape)
            loss = (tf.reduce_sum(tf.cast(rows, tf.float32) * weights)
                    + tf.reduce_sum(out["pooled_output"] ** 3))
        return rows, out["pooled_output"], [
            tf.convert_to_tensor(g) for g in tape.gradient(
                loss, model.trainable_variables)]

    return tf.function(run, jit_compile=compiled)()


def assert_close(found, expected, tolerance=1e-5):
    for ours, theirs in zip(tf.nest.flatten(found), tf.nest.flatten(expected),
                            strict=True):
        ours, theirs = (tf.cast(x, tf.float32).numpy() for x in (ours, theirs))
        np.testing.assert_allclose(
            ours, theirs, rtol=tolerance,
            atol=tolerance * max(1.0, np.abs(theirs).max()))


@pytest.mark.parametrize("fast, changes", CONFIGS)
def test_rows_and_gradients_are_those_of_all_positions(fast, changes, monkeypatch):
    monkeypatch.setattr(fused, "MIN_SIZE", 0 if fast else 1 << 60)
    model = with_weights(AlbertModel, changes)
    assert_close(outputs_and_gradients(model, POSITIONS),
                 outputs_and_gradients(model, None))


@pytest.mark.parametrize("options, tolerance", [
    (dict(compiled=True, recompute=True), 1e-5), (dict(dtype="bfloat16"), 5e-2),
    pytest.param(dict(recompute=True), 1e-5, marks=SLOW),
    pytest.param(dict(compiled=True), 1e-5, marks=SLOW)])
def test_however_it_is_computed(options, tolerance, monkeypatch):
    monkeypatch.setattr(fused, "MIN_SIZE", 0)
    model = with_weights(AlbertModel, {})
    assert_close(outputs_and_gradients(model, POSITIONS, **options),
                 outputs_and_gradients(model, None), tolerance)


def test_shapes_without_and_with_positions():
    model = with_weights(AlbertModel, {})
    whole, some, none = (
        model(INPUTS, positions=positions)
        for positions in (None, POSITIONS, IDS[:, :0]))
    for out, count in ((whole, 7), (some, 3), (none, 0)):
        assert out["sequence_output"].shape == [3, count, 8]
        assert out["sequence_output"] is out["encoder_outputs"][-1]
        assert [o.shape[1] for o in out["encoder_outputs"]] == [7, count]
        assert_close(out["pooled_output"], whole["pooled_output"])


def test_sizes_that_are_not_known():
    model = with_weights(AlbertModel, {})

    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32)] * 2)
    def run(ids, positions):
        return model({"input_ids": ids}, positions=positions)["sequence_output"]

    whole = model({"input_ids": IDS})["sequence_output"]
    assert_close(run(IDS, POSITIONS), at_positions(whole, tf.constant(POSITIONS)))
    assert run(IDS, IDS[:, :0]).shape == [3, 0, 8]


CHOICES = {name: value.reshape(1, 3, 7) for name, value in INPUTS.items()}


@pytest.mark.parametrize("make, features, count", [
    (AlbertForPreTraining, {**INPUTS, "masked_lm_positions": POSITIONS}, 4),
    (lambda config: AlbertForSequenceClassification(config, 2), INPUTS, 1),
    (AlbertForMultipleChoice, CHOICES, 1)],
    ids=["pretraining", "classification", "multiple choice"])
def test_models_compute_no_row_that_they_do_not_read(make, features, count):
    model = make(tiny_run.config(num_hidden_layers=3))
    graph = tf.function(
        lambda: model({k: tf.constant(v) for k, v in features.items()})
    ).get_concrete_function().graph
    width = model.config.intermediate_size
    rows = [op.outputs[0].shape[0] for op in graph.get_operations()
            if op.type == "MatMul" and op.outputs[0].shape[1] == width]
    assert rows == [21, 21, 3 * count]
