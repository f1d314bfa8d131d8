"""The parts for TPUs, computed here on a CPU: they and their gradients equal the plain
ones. benchmarks/tpu_compile.py compiles them for TPUs."""

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.modeling.albert import AlbertModel
from albert_tf.modeling.encoder import Computation
from albert_tf.modeling.kernels import random
from albert_tf.modeling.kernels import fast, packing, plain, tpu
from albert_tf.modeling.kernels.layer_runs import LayerRuns
from albert_tf.modeling.kernels.plain import Dropped
from albert_tf.modeling.pretraining import AlbertForPreTraining
from tests.modeling.kernels import test_fast, test_packing

@pytest.fixture
def on_tpu(monkeypatch):
    monkeypatch.setattr(fast, "device_kind", lambda: "TPU")


def attend(*tensors_mask_dropped):
    """That of TPUs, whose heads are [B, S, A, D] and whose scores are transposed."""
    *tensors, mask, dropped = tensors_mask_dropped
    return swapped(tpu.TPU.attend(*map(swapped, tensors), mask, dropped and Dropped(
        tf.linalg.matrix_transpose(dropped.keep), dropped.rate)))


def swapped(tensor):
    return tf.transpose(tensor, [0, 2, 1, 3])


@pytest.mark.parametrize("dtype, tolerance", [
    ("float32", 3e-6), ("float64", 3e-8), ("bfloat16", 3e-2)])
@pytest.mark.parametrize("part, dropped", [*test_fast.CASES, ("attend:large", False)])
def test_equal_to_plain(part, dropped, dtype, tolerance):
    ours, plain_ones = (
        test_fast.value_and_gradients(parts, part, dropped, tf.as_dtype(dtype))[:2]
        for parts in (tpu.TPU._replace(attend=attend), plain.PLAIN))
    # Largest scores are known to the dtype's precision only, which hardly shows.
    test_packing.assert_close(
        ours, plain_ones, tolerance * (3 if part == "attend:large" else 1))


@pytest.mark.parametrize("positions, computation", [
    (None, {"passes": 1}), (test_packing.POSITIONS, {"recompute": True}), *(
        pytest.param(*each, marks=pytest.mark.long) for each in (
            (None, {}), (test_packing.POSITIONS, {}),
            (test_packing.POSITIONS, {"recompute": True, "compiled": True})))])
def test_a_model_computes_the_same(positions, computation, monkeypatch):
    model = test_packing.with_weights(
        AlbertModel, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    expected = test_packing.outputs_and_gradients(
        model, positions=positions, **computation)
    monkeypatch.setattr(fast, "device_kind", lambda: "TPU")
    ours = test_packing.outputs_and_gradients(
        model, positions=positions, **computation)
    test_packing.assert_close(ours, expected, 1e-4)


@pytest.mark.parametrize("dtype, compiled", [
    ("float32", False), pytest.param("bfloat16", False, marks=pytest.mark.long),
    pytest.param("float32", True, marks=pytest.mark.long)])
def test_layers_in_a_loop_are_those_one_after_another(
        dtype, compiled, on_tpu, monkeypatch):
    """With dropout: each layer of the loop draws its own units, as without the loop."""
    model = test_packing.with_weights(
        AlbertForPreTraining, num_hidden_layers=3,
        hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.2)

    def run():
        return test_packing.outputs_and_gradients(
            model, compiled=compiled, recompute=True, dtype=dtype)

    loops, in_a_loop = [], LayerRuns.in_a_loop

    def counted(self, hidden, layers):
        hidden, left = in_a_loop(self, hidden, layers)
        loops.append(len(layers) - len(left))
        return hidden, left

    monkeypatch.setattr(LayerRuns, "in_a_loop", counted)
    ours = run()
    assert loops == [2]
    monkeypatch.setattr(LayerRuns, "in_a_loop", lambda self, *of: of)
    tolerance = 1e-5 if dtype == "float32" else 3e-2
    test_packing.assert_close(ours, run(), tolerance)


def test_layers_in_a_loop_leave_the_last_alone(on_tpu):
    model = test_packing.with_weights(AlbertModel, num_hidden_layers=4)
    for recompute, count in ((False, 4), (True, 1)):
        computation = Computation(recompute=recompute)
        assert len(model(test_packing.INPUTS, computation=computation)[
            "encoder_outputs"]) == count


def test_a_tpu_has_its_layout(on_tpu):
    mask = tf.ones([2, 8])
    assert packing.layout_of(mask, skip_padding=True) is packing.ON_TPU
    assert packing.ON_TPU.parts(mask) is tpu.TPU
    assert packing.ON_TPU.of_positions is packing.ON_TPU


@pytest.mark.parametrize("shape", [
    (4, 3, 50, 40), (3, 2, 50, 40), (3, 5, 50, 40), (8, 50, 40), (7, 50, 40), (80, 100)])
@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_units_stay_with_the_probability_asked_for(shape, rate, on_tpu):
    """Independently of each other, also where two share one random number."""
    def keep(*seed):
        kept = random.DropoutSeeds(tf.constant(seed)).draw(shape, rate)
        assert kept.rate == rate and kept.keep.dtype == tf.bool
        return kept.keep.numpy()

    kept = keep(1, 2)
    assert kept.shape == shape
    deviation = np.sqrt(rate * (1 - rate) / kept.size)
    assert abs(kept.mean() - (1 - rate)) < 5 * deviation
    for axis in range(len(shape)):
        half = shape[axis] // 2
        first, second = (np.take(kept, range(start, start + half), axis)
                         for start in (0, shape[axis] - half))
        both = (first & second).mean() - (1 - rate) ** 2
        assert abs(both) < 8 * deviation
    np.testing.assert_array_equal(kept, keep(1, 2))
    # Another seed, and another replica or part of the batch, draw others.
    for other in ((1, 3), (1, 2, shape[0])):
        assert np.mean(kept & keep(*other)) == pytest.approx(
            (1 - rate) ** 2, abs=8 * deviation)
