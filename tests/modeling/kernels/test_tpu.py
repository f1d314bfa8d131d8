"""The parts for TPUs, computed here on a CPU: they and their gradients equal the plain
ones. benchmarks/tpu_compile.py compiles them for TPUs."""

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.modeling.albert import AlbertModel
from albert_tf.modeling.encoder import Computation, Encoder
from albert_tf.modeling.kernels import random
from albert_tf.modeling.kernels import fast, packing, plain, tpu
from albert_tf.modeling.kernels.layer_runs import LayerRuns
from albert_tf.modeling.kernels.plain import Dropped
from albert_tf.modeling.pretraining import AlbertForPreTraining
from tests.modeling.kernels import test_packing

BATCH, LENGTH, KEYS, HEADS, DEPTH, WIDTH = 2, 5, 6, 2, 3, 6


def numbers(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape)


@pytest.fixture
def on_tpu(monkeypatch):
    monkeypatch.setattr(fast, "device_kind", lambda: "TPU")


def attention(parts, tensors, keep, of_rows=False, visible=3):
    """Attention of [B, S, A, D]; `keep` is of [B, A, T, S] or None. The mask is one for
    all rows of a sequence, whose last has `visible` + 1 keys, or one for each."""
    query, key, value = tensors
    hidden = (np.arange(KEYS) > visible) * np.array([[0], [1]])
    mask = tf.constant(-1e4 * hidden[:, None, None])
    if of_rows:
        mask = tf.constant(-1e4 * (numbers(5, BATCH, 1, LENGTH, KEYS) > 0.5))
    mask = tf.cast(mask, plain.wide(query).dtype)
    if parts is tpu.TPU:
        return parts.attend(query, key, value, mask, keep and Dropped(*keep))
    dropped = keep and Dropped(tf.transpose(keep[0], [0, 1, 3, 2]), keep[1])
    query, key, value = (tf.transpose(x, [0, 2, 1, 3]) for x in (query, key, value))
    return tf.transpose(parts.attend(query, key, value, mask, dropped), [0, 2, 1, 3])


def units(*shape):
    return tf.constant(numbers(9, *shape) > -0.5), 0.3


def of_heads(*scales):
    """Query, key and value."""
    return [scale * numbers(i, BATCH, rows, HEADS, DEPTH)
            for i, (rows, scale) in enumerate(zip((LENGTH, KEYS, KEYS), scales))]


UNITS = (BATCH, HEADS, KEYS, LENGTH)
PARTS = {
    "attend": (of_heads(1, 1, 1), lambda parts, x: attention(parts, x, None)),
    "attend with dropout": (
        of_heads(1, 1, 1), lambda parts, x: attention(parts, x, units(*UNITS))),
    "attend with a mask of each row": (
        of_heads(1, 1, 1),
        lambda parts, x: attention(parts, x, units(*UNITS), of_rows=True)),
    # Largest scores are known to the dtype's precision only, which must not show.
    "attend with large scores and a sequence without any key": (
        of_heads(4, 4, 1),
        lambda parts, x: attention(parts, x, units(*UNITS), visible=-1)),
    **{f"add_activation {name}": (
        [numbers(0, BATCH, LENGTH, WIDTH), numbers(1, WIDTH)],
        lambda parts, x, name=name: parts.add_activation(*x, name))
       for name in fast.DERIVATIVES},
    **{f"add_and_normalize {dropped}": (
        [numbers(0, BATCH, LENGTH, WIDTH), numbers(1, WIDTH),
         numbers(2, BATCH, LENGTH, WIDTH), numbers(3, WIDTH), numbers(4, WIDTH)],
        lambda parts, x, dropped=dropped: parts.add_and_normalize(
            *x, Dropped(*units(BATCH, LENGTH, WIDTH)) if dropped else None, 0.3))
       for dropped in (False, True)},
}


def value_and_gradients(parts, part, dtype):
    arrays, function = PARTS[part]
    tensors = [tf.constant(array, dtype if array.ndim > 1 or dtype == "float64"
                           else "float32") for array in arrays]
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        output = function(parts, tensors)
        total = tf.reduce_sum(plain.wide(output) * tf.cast(
            numbers(7, *output.shape), plain.wide(output).dtype))
    return [output, *tape.gradient(total, tensors)]


@pytest.mark.parametrize("dtype, tolerance", [
    ("float32", 3e-6), ("float64", 3e-8), ("bfloat16", 3e-2)])
@pytest.mark.parametrize("part", PARTS)
def test_equal_to_plain(part, dtype, tolerance):
    test_packing.assert_close(value_and_gradients(tpu.TPU, part, dtype),
                              value_and_gradients(plain.PLAIN, part, dtype), tolerance)


@pytest.mark.parametrize("positions, computation", [
    (None, {}), (test_packing.POSITIONS, {}), (None, {"passes": 1}),
    (test_packing.POSITIONS, {"recompute": True}),
    pytest.param(test_packing.POSITIONS, {"recompute": True, "compiled": True},
                 marks=pytest.mark.long)])
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
    call = Encoder.call
    monkeypatch.setattr(  # The last argument says whether all layers are read.
        Encoder, "call", lambda self, *args: call(self, *args[:-1], True))
    tolerance = 1e-5 if dtype == "float32" else 3e-2
    test_packing.assert_close(ours, run(), tolerance)
    assert loops == [2]


def test_whoever_reads_layers_gets_them(on_tpu):
    model = test_packing.with_weights(AlbertModel, num_hidden_layers=4)
    how = {"computation": Computation(recompute=True)}
    assert len(model(test_packing.INPUTS, **how)["encoder_outputs"]) == 4
    assert len(model(test_packing.INPUTS, layers_are_read=False, **how)[
        "encoder_outputs"]) == 1


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
