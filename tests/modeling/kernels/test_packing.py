"""Packing: the same outputs, losses and gradients as with padding, and no others."""

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.modeling import layers
from albert_tf.modeling.albert import AlbertModel
from albert_tf.modeling.encoder import Computation
from albert_tf.modeling.kernels import fast as fused, packing
from albert_tf.modeling.models import (
    AlbertForConditionalSpans, AlbertForPreTraining, AlbertForSequenceClassification,
    AlbertForSpans)
from albert_tf.training import loop
from albert_tf.training.distribution import Batches
from albert_tf.training.options import RunOptions, StepOptions
from tests import tiny_run
from tests.modeling.test_read_positions import assert_close, with_weights
from tests.training.test_steps import (
    ONE_LAYER, Training, assert_same_training, even_batches)

LENGTH = 7
# Pieces of each sequence; 0 is an example that only pads a batch.
LENGTHS = {"ragged": (7, 3, 1, 5), "whole": (7, 7, 7, 7), "one more": (7, 7, 7, 6),
           "short": (1, 1, 1, 1), "none": (4, 0, 2, 0)}
SLOW = pytest.mark.slow


def inputs(lengths):
    random = np.random.default_rng(0)
    lengths = np.array(lengths)[:, np.newaxis]
    mask = (np.arange(LENGTH) < lengths).astype(np.int32)
    ids = random.integers(5, tiny_run.VOCAB_SIZE, mask.shape).astype(np.int32)
    return {
        "input_ids": np.where(mask, ids, 0), "input_mask": mask,
        "segment_ids": (np.arange(LENGTH) > lengths // 2).astype(np.int32) * mask,
        "masked_lm_positions": (
            random.integers(0, LENGTH, [4, 3]) % np.maximum(lengths, 1)
        ).astype(np.int32)}


def there(features):
    """Positions of which the outputs have a meaning, [B, S, 1]."""
    mask = features["input_mask"]
    return (mask | ~mask.any(axis=1, keepdims=True))[..., np.newaxis] != 0


def outputs_and_gradients(model, features, skip_padding, **how):
    """What may be read of the outputs, and the gradients of a loss of it."""
    how = {"computation": Computation(skip_padding=skip_padding, **how)}
    if isinstance(model, AlbertModel):
        how["padding_is_read"] = False
    real = there(features)

    @tf.function
    def run(features):
        with tf.GradientTape() as tape:
            found = model(features, training=True, seed=tf.constant([1, 2]), **how)
            if "sequence_output" in found:
                found = {"rows": tf.where(real, found["sequence_output"], 0),
                         "pooled_output": found["pooled_output"]}
            loss = tf.add_n([tf.reduce_sum(tf.cast(value, tf.float32) * weights(value))
                             for value in found.values()])
        return found, [tf.convert_to_tensor(g) for g in tape.gradient(
            loss, model.trainable_variables)]

    return run({name: tf.constant(value) for name, value in features.items()})


def weights(tensor):
    """Different numbers for all elements, of which none depends on the others."""
    return tf.reshape(tf.sin(tf.range(float(tf.size(tensor)))), tf.shape(tensor))


def check(model, features, tolerance=1e-5, **options):
    assert_close(outputs_and_gradients(model, features, True, **options),
                 outputs_and_gradients(model, features, False, **options), tolerance)


@pytest.fixture(name="fast")
def _fast(monkeypatch):
    monkeypatch.setattr(fused, "MIN_SIZE", 0)


# ---- layouts ---------------------------------------------------------------


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_what_is_packed_comes_back(lengths):
    features = inputs(lengths)
    layout = packing.Packed(tf.constant(features["input_mask"]))
    hidden = tf.random.stateless_normal([4, LENGTH, 6], [1, 2])
    packed = layout.unpad(hidden)
    real = there(features)
    assert packed.shape[0] >= min(real.sum() + 1, real.size)
    assert packed.shape[0] in (real.size, *range(2, real.size, 2))  # 28 / 16, up
    np.testing.assert_array_equal(
        np.where(real, layout.pad(packed), 0), np.where(real, hidden, 0))
    first, second, third = layout.to_heads(tf.concat([packed] * 3, axis=1), 3, 2)
    np.testing.assert_array_equal(first, third)
    np.testing.assert_array_equal(
        first, tf.transpose(tf.reshape(layout.pad(packed), [4, LENGTH, 3, 2]),
                            [0, 2, 1, 3]))
    np.testing.assert_array_equal(
        layout.pad(layout.from_heads(second)), layout.pad(packed))
    positions = features["masked_lm_positions"]
    np.testing.assert_array_equal(
        layout.at(packed, tf.constant(positions)),
        np.take_along_axis(hidden.numpy(), positions[..., np.newaxis], axis=1))


def test_few_sizes_whatever_the_padding():
    sizes, sequences = set(), np.arange(64)
    for count in range(0, 64 * 9 + 1, 8):
        mask = (np.arange(9) < np.clip(count - 9 * sequences, 1, 9)[:, np.newaxis])
        layout = packing.Packed(tf.constant(mask.astype(np.int32)))
        sizes.add(int(layout.unpad(tf.zeros([64, 9, 1])).shape[0]))
    assert max(sizes) == 64 * 9 and len(sizes) <= 16


def test_gradients_of_what_is_read_are_those_of_all_positions():
    """Where the upstream gradient of padding is 0, as the layers have it."""
    features = inputs(LENGTHS["ragged"])
    real = tf.constant(there(features), tf.float32)
    packed = packing.Packed(tf.constant(features["input_mask"]))

    def gradient(layout):
        hidden = tf.random.stateless_normal([4, LENGTH, 12], [1, 2])
        with tf.GradientTape() as tape:
            tape.watch(hidden)
            mine = layout.unpad(hidden)
            heads = tf.stack(layout.to_heads(tf.square(mine), 3, 2))  # [2, B, A, S, D]
            context = layout.from_heads(heads[0] * heads[1] * tf.reshape(
                real, [1, 4, 1, LENGTH, 1])[0])
            read = layout.at(mine, tf.constant(features["masked_lm_positions"]))
            loss = tf.reduce_sum(layout.pad(context)[..., :3] * real) + tf.reduce_sum(
                read * weights(read))
        return tape.gradient(loss, hidden)

    assert_close(gradient(packed), gradient(packing.PADDED))


# ---- models ----------------------------------------------------------------


@pytest.mark.parametrize("lengths", [
    LENGTHS["ragged"], *(pytest.param(LENGTHS[name], marks=SLOW)
                         for name in ("whole", "one more", "short", "none"))])
def test_outputs_and_gradients_are_those_with_padding(lengths, fast):
    check(with_weights(AlbertForPreTraining, {}), inputs(lengths))


@pytest.mark.parametrize("changes", [
    dict(num_hidden_groups=2, inner_group_num=2),
    pytest.param(dict(embedding_size=8, parameter_sharing="none"), marks=SLOW)])
@pytest.mark.parametrize("options, tolerance", [
    (dict(recompute=True), 1e-5),
    pytest.param({}, 1e-5, marks=SLOW)])
def test_whole_sequence_output(changes, options, tolerance, monkeypatch):
    """All layers, plain parts."""
    monkeypatch.setattr(fused, "MIN_SIZE", 1 << 60)
    model = with_weights(AlbertModel, changes)
    check(model, inputs(LENGTHS["ragged"]), tolerance, **options)


@pytest.mark.slow
@pytest.mark.parametrize("changes", [
    dict(num_hidden_groups=2, inner_group_num=2),
    dict(embedding_size=8, parameter_sharing="none")])
def test_plain_parts_in_bfloat16(changes, monkeypatch):
    """Against float32: flat products take the bias with them and round once less, so
    that two ways in bfloat16 differ by more than this one from the truth."""
    monkeypatch.setattr(fused, "MIN_SIZE", 1 << 60)
    model, features = with_weights(AlbertModel, changes), inputs(LENGTHS["ragged"])
    assert_close(outputs_and_gradients(model, features, True, dtype="bfloat16"),
                 outputs_and_gradients(model, features, False), 5e-2)


def test_bfloat16(fast):
    check(with_weights(AlbertForPreTraining, {}), inputs(LENGTHS["ragged"]), 0.1,
          dtype="bfloat16")


def test_one_trace_takes_every_mask(fast):
    model = with_weights(AlbertForPreTraining, {})
    outputs = {}
    for skip_padding in (False, True):
        computation = Computation(skip_padding=skip_padding)
        step = tf.function(lambda features: model(features, computation=computation))
        outputs[skip_padding] = [
            step({name: tf.constant(value) for name, value in inputs(lengths).items()})
            for lengths in LENGTHS.values()]
        assert step.experimental_get_tracing_count() == 1
    assert_close(outputs[True], outputs[False])


def test_layers_compute_pieces_alone(fast):
    """Dropout is drawn for as many numbers as the layers compute."""
    model = AlbertModel(tiny_run.config(hidden_dropout_prob=0.1))
    features = inputs((2, 1, 1, 1))  # 5 of 28: with a spare place 6.
    drawn = []

    class Recorder(layers.DropoutSeeds):
        def draw(self, shape, rate):
            drawn.append(list(np.array(shape)))

    layout = packing.Packed(tf.constant(features["input_mask"]))
    bias = tf.zeros([4, 1, 1, LENGTH])
    model.encoder(tf.zeros([4, LENGTH, 4]), bias, Recorder(None), layout=layout)
    attention = [4, 2, LENGTH, LENGTH]
    assert drawn == 2 * [attention, [6, 8], [6, 8]]


SPANS = {"p_mask": 1 - inputs(LENGTHS["ragged"])["input_mask"],
         "start_positions": np.array([6, 1, 0, 3], np.int32)}


@pytest.mark.parametrize("make", [
    lambda config: AlbertForSpans(config, mask_padding=False),
    AlbertForConditionalSpans,
    pytest.param(AlbertForSpans, marks=SLOW)])
def test_spans_read_padding_only_where_they_say_so(make):
    model = with_weights(make, {})
    check(model, {**inputs(LENGTHS["ragged"]), **SPANS})


def test_a_model_that_may_read_padding_finds_it_there():
    """Such as a user's own head, which was written without knowing of this."""
    model = with_weights(AlbertModel, {})
    features = inputs(LENGTHS["ragged"])
    expected, found = (
        model(features, computation=Computation(skip_padding=skip))["sequence_output"]
        for skip in (False, True))
    np.testing.assert_array_equal(found, expected)


# ---- steps -----------------------------------------------------------------


@pytest.mark.parametrize("options", [
    dict(gradient_accumulation_steps=2),
    pytest.param(dict(replicas=2, clip_norm=100.0), marks=SLOW)])
def test_steps_are_those_with_padding(options, fast):
    one, other = (
        Training(config=ONE_LAYER, computation=Computation(skip_padding=skip),
                 **options)
        for skip in (False, True))
    assert_same_training(one, other, even_batches())


@pytest.mark.parametrize("jit_compile", [False, True])
def test_a_run_skips_padding_unless_xla_compiles_it(jit_compile, tmp_path):
    model = AlbertForPreTraining(tiny_run.config())
    run = loop.Run(tiny_run.task_with_loss(model), model.config, RunOptions(
        str(tmp_path), 1, 8, step=StepOptions(jit_compile=jit_compile)), Batches(8, 8))
    assert run.computation == Computation(skip_padding=not jit_compile)


def test_an_exported_model_takes_any_size():
    """Padding is skipped where sizes are known alone."""
    model = AlbertForSequenceClassification(tiny_run.config(), 2)
    features = inputs(LENGTHS["ragged"])
    names = ("input_ids", "input_mask", "segment_ids")
    how = Computation(skip_padding=True)
    step = tf.function(lambda x: model(x, computation=how)["logits"], input_signature=[
        {name: tf.TensorSpec([None, None], tf.int32) for name in names}])
    expected = model(features)["logits"]
    found = step({name: features[name][:, :6] for name in names})
    assert found.shape == [4, 2]
    assert_close(step({name: features[name] for name in names}), expected)
