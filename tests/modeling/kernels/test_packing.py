"""Fewer rows: packed, without padding, or those that are read of the last layer alone;
the same outputs and gradients as of all rows, and no others.
"""

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.checkpoints.restore import load_tf1_tensors
from albert_tf.modeling.albert import AlbertModel
from albert_tf.modeling.encoder import Computation
from albert_tf.modeling.heads import MASKED_LM
from albert_tf.modeling.kernels import fast as fused, packing, random
from albert_tf.modeling.models import AlbertWithHeads
from albert_tf.training import loop
from albert_tf.training.batches import Batches
from albert_tf.training.options import RunOptions, StepOptions
from tests import models, tiny_run

LENGTH = 7
# Pieces of each sequence; 0 is an example that only pads a batch.
LENGTHS = {"ragged": (7, 3, 1, 5), "whole": (7, 7, 7, 7), "one more": (7, 7, 7, 6),
           "short": (1, 1, 1, 1), "none": (4, 0, 2, 0)}
SLOW, LONG = pytest.mark.slow, pytest.mark.long


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


RAGGED = inputs(LENGTHS["ragged"])
INPUTS = {name: RAGGED[name] for name in ("input_ids", "input_mask", "segment_ids")}
IDS = INPUTS["input_ids"]
# In no order, one twice, and some of padding.
POSITIONS = np.array([[6, 2, 0], [3, 3, 1], [0, 0, 4], [4, 6, 1]], np.int32)


def there(features):
    """Positions of which the outputs have a meaning, [B, S, 1]."""
    mask = features["input_mask"]
    return (mask | ~mask.any(axis=1, keepdims=True))[..., np.newaxis] != 0


def with_weights(make, **changes):
    """A model with weights large enough to tell positions and layers apart."""
    model = make(tiny_run.config(**changes))
    load_tf1_tensors(model, tiny_run.weights_of(model, seed=1))
    return model


def outputs_and_gradients(model, features=None, positions=None, read=None,
                          compiled=False, **how):
    """What may be read of the outputs, and the gradients of a loss of it.

    Of an encoder those are the rows that are not padding; with `positions` the rows
    that it computes there, with `read` the rows there of all that it computes.
    """
    features = features or RAGGED
    how = {"training": True, "seed": tf.constant([1, 2]),
           "computation": Computation(**how)}
    real = there(features)

    def outputs(features):
        if not isinstance(model, AlbertModel):
            found = dict(model(features, **how))
            if "sequence_output" in found and found["sequence_output"].shape[1] == LENGTH:
                # What it is of padding nobody reads.
                found["sequence_output"] = tf.where(real, found["sequence_output"], 0)
            return found
        found = model(features, positions=positions, **how)
        rows = found["sequence_output"]
        if read is not None:
            rows = packing.PADDED.at(rows, tf.constant(read))
        elif positions is None:
            rows = tf.where(real, rows, 0)
        return {"rows": rows, "pooled_output": found["pooled_output"]}

    @tf.function(jit_compile=compiled, autograph=False)
    def run(features):
        with tf.GradientTape() as tape:
            found = outputs(features)
            loss = tf.add_n([tf.reduce_sum(tf.cast(value, tf.float32) * weights(value))
                             for value in found.values()])
        return found, [tf.convert_to_tensor(g) for g in tape.gradient(
            loss, model.trainable_variables)]

    return run({name: tf.constant(value) for name, value in features.items()})


def weights(tensor):
    """Different numbers for all elements, of which none depends on the others."""
    return tf.reshape(tf.sin(tf.range(tf.cast(
        tf.size(tensor), tf.float32))), tf.shape(tensor))


def assert_close(found, expected, tolerance=1e-5, same_types=True):
    for ours, theirs in zip(tf.nest.flatten(found), tf.nest.flatten(expected),
                            strict=True):
        assert ours.dtype == theirs.dtype or not same_types
        ours, theirs = (tf.cast(x, tf.float64).numpy() for x in (ours, theirs))
        np.testing.assert_allclose(
            ours, theirs, rtol=tolerance,
            atol=tolerance * max(1.0, np.abs(theirs).max()))


def check_packed(model, features=None, tolerance=1e-5, **how):
    packed, padded = (outputs_and_gradients(model, features, skip_padding=skip, **how)
                      for skip in (True, False))
    assert_close(packed, padded, tolerance)


@pytest.fixture(name="fast")
def _fast(monkeypatch):
    monkeypatch.setattr(fused, "MIN_SIZE", 0)


# ---- layouts ---------------------------------------------------------------


def test_few_sizes_whatever_the_padding():
    sizes, sequences = set(), np.arange(64)
    for count in range(0, 64 * 9 + 1, 8):
        mask = (np.arange(9) < np.clip(count - 9 * sequences, 1, 9)[:, np.newaxis])
        layout = packing.Packed(tf.constant(mask.astype(np.int32)))
        sizes.add(int(layout.unpad(tf.zeros([64, 9, 1])).shape[0]))
    assert max(sizes) == 64 * 9 and len(sizes) <= 16


# ---- models ----------------------------------------------------------------

GROUPS = dict(num_hidden_groups=2, inner_group_num=2)
NARROW = dict(embedding_size=8, parameter_sharing="none")


@pytest.mark.parametrize("make, changes, lengths, fast, how", [
    (models.AlbertForPreTraining, {}, "ragged", True, {}),
    *(pytest.param(models.AlbertForPreTraining, {}, name, True, {}, marks=SLOW)
      for name in ("whole", "one more", "short", "none")),
    pytest.param(AlbertModel, GROUPS, "ragged", False, dict(recompute=True), marks=LONG),
    pytest.param(AlbertModel, NARROW, "ragged", False, {}, marks=SLOW),
    pytest.param(models.AlbertForPreTraining, {}, "ragged", True,
                 dict(tolerance=0.1, dtype="bfloat16"), marks=LONG)])
def test_outputs_and_gradients_are_those_with_padding(
        make, changes, lengths, fast, how, monkeypatch):
    monkeypatch.setattr(fused, "MIN_SIZE", 0 if fast else fused.MIN_SIZE)
    check_packed(with_weights(make, **changes), inputs(LENGTHS[lengths]), **how)


def test_one_trace_takes_every_mask(fast):
    model = with_weights(models.AlbertForPreTraining)
    outputs = {}
    for skip_padding in (False, True):
        computation = Computation(skip_padding=skip_padding)
        step = tf.function(lambda features: model(features, computation=computation),
                           autograph=False)
        outputs[skip_padding] = [
            step({name: tf.constant(value) for name, value in inputs(lengths).items()})
            for lengths in LENGTHS.values()]
        assert step.experimental_get_tracing_count() == 1
    assert_close(outputs[True], outputs[False])


def test_layers_compute_pieces_alone(fast):
    model = AlbertModel(tiny_run.config(hidden_dropout_prob=0.1))
    features = inputs((2, 1, 1, 1))  # 5 of 28: with a spare place 6.
    computed = []

    class Recorder(packing.Packed):
        def dropped(self, seeds, hidden, rate):
            computed.append(hidden.shape)

    layout = Recorder(tf.constant(features["input_mask"]))
    bias = tf.zeros([4, 1, 1, LENGTH])
    model.encoder(tf.zeros([4, LENGTH, 4]), bias, random.DropoutSeeds(None, False),
                  layout=layout)
    assert computed == 2 * [[6, 8], [6, 8]]


@LONG
@pytest.mark.parametrize("make", [
    lambda config: models.spans(config, mask_padding=False),
    models.conditional_spans,
    pytest.param(models.spans, marks=SLOW)])
def test_spans_read_padding_only_where_they_say_so(make):
    check_packed(with_weights(make), {
        **RAGGED, "p_mask": 1 - RAGGED["input_mask"],
        "start_positions": np.array([6, 1, 0, 3], np.int32)})


def test_a_model_that_may_read_padding_finds_it_there():
    """Such as that of all heads, among which there may be one that reads it."""
    model = with_weights(lambda config: AlbertWithHeads(config, [MASKED_LM]))
    expected, found = (
        model(RAGGED, computation=Computation(skip_padding=skip))["sequence_output"]
        for skip in (False, True))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("jit_compile", [False, True])
def test_a_run_skips_padding_unless_xla_compiles_it(jit_compile, tmp_path):
    model = models.AlbertForPreTraining(tiny_run.config())
    run = loop.Run(tiny_run.task_with_loss(model), model.config, RunOptions(
        str(tmp_path), 1, 8, step=StepOptions(jit_compile=jit_compile)), Batches(8, 8))
    assert run.computation == Computation(skip_padding=not jit_compile)


# ---- the last layer at the positions that are read --------------------------


@pytest.mark.parametrize("fast, changes, how, tolerance", [
    (True, {}, {}, 1e-5), *(pytest.param(*case, marks=LONG) for case in (
        (False, {}, {}, 1e-5), (True, GROUPS, {}, 1e-5),
        (True, dict(parameter_sharing="none"), {}, 1e-5),
        (True, {}, dict(compiled=True, recompute=True), 1e-5),
        (True, {}, dict(dtype="bfloat16"), 5e-2))),
    *(pytest.param(True, {}, {how: True}, 1e-5, marks=SLOW)
      for how in ("recompute", "compiled"))])
def test_rows_and_gradients_are_those_of_all_positions(
        fast, changes, how, tolerance, monkeypatch):
    monkeypatch.setattr(fused, "MIN_SIZE", 0 if fast else 1 << 60)
    model = with_weights(AlbertModel, **changes)
    assert_close(outputs_and_gradients(model, positions=POSITIONS, **how),
                 outputs_and_gradients(model, read=POSITIONS), tolerance,
                 same_types="dtype" not in how)


def test_sizes_that_are_not_known():
    model = with_weights(AlbertModel)

    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32)] * 2,
                 autograph=False)
    def run(ids, positions):
        return model({"input_ids": ids}, positions=positions)["sequence_output"]

    whole = model({"input_ids": IDS})["sequence_output"]
    assert_close(run(IDS, POSITIONS), packing.PADDED.at(whole, POSITIONS))
    assert run(IDS, IDS[:, :0]).shape == [4, 0, 8]


@pytest.mark.parametrize("make, features, count", [
    (models.AlbertForPreTraining, RAGGED, 4),
    (lambda config: models.classifier(config, 2), INPUTS, 1),
    (models.multiple_choice,
     {name: value[np.newaxis] for name, value in INPUTS.items()}, 1)],
    ids=["pretraining", "classification", "multiple choice"])
def test_models_compute_no_row_that_they_do_not_read(make, features, count):
    model = make(tiny_run.config(num_hidden_layers=3))
    graph = tf.function(
        lambda: model({k: tf.constant(v) for k, v in features.items()}), autograph=False
    ).get_concrete_function().graph
    width = model.config.intermediate_size
    rows = [op.outputs[0].shape[0] for op in graph.get_operations()
            if op.type == "MatMul" and op.outputs[0].shape[1] == width]
    assert rows == [28, 28, 4 * count]
