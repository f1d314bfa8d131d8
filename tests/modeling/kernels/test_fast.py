"""Fast parts of a layer: they and their gradients equal the plain ones."""

import types

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.modeling.encoder import Computation
from albert_tf.modeling.kernels import fast as fused, plain as plain_parts, random
from albert_tf.modeling.kernels import layer_runs
from albert_tf.modeling.kernels.random import DropoutSeeds
from tests import models, tiny_run
from tests.modeling.kernels.test_packing import assert_close

BATCH, LENGTH, HEADS, SIZE = 2, 5, 2, 3
WIDTH = HEADS * SIZE
ACTIVATIONS = ("gelu", "gelu_erf", "relu", "tanh", "linear")


def numbers(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape)


def arguments(part, dropped):
    """Float arguments of a part as arrays, and a function of (parts, tensors)."""
    rows = (BATCH, LENGTH, WIDTH)
    heads = (BATCH, HEADS, LENGTH, SIZE)
    if part.startswith("attend"):
        # With large scores, the second sequence has no key at all.
        large = part == "attend:large"
        mask = -10000.0 * ((np.arange(LENGTH) > (-1 if large else 3))
                           * np.array([[0], [1]]))[:, None, None]
        if part == "attend:rows":  # A mask of each row.
            mask = -10000.0 * (numbers(5, BATCH, 1, LENGTH, LENGTH) > 0.5)
        units = dropped_of((BATCH, HEADS, LENGTH, LENGTH)) if dropped else None
        return ([(4 if large and seed < 2 else 1) * numbers(seed, *heads)
                 for seed in range(3)],
                lambda parts, x: parts.attend(
                    *x, tf.cast(mask, fused.wide(x[0]).dtype), units))
    if part.startswith("add_and_normalize"):
        epsilon = float(part.split(":")[1]) if ":" in part else 1e-12
        units = dropped_of(rows) if dropped else None
        return ([numbers(0, *rows), numbers(1, WIDTH), numbers(2, *rows),
                 numbers(3, WIDTH), numbers(4, WIDTH)],
                lambda parts, x: parts.add_and_normalize(*x, units, epsilon))
    name = part.split(":")[1]
    return ([numbers(0, *rows), numbers(1, WIDTH)],
            lambda parts, x: parts.add_activation(*x, name))


def dropped_of(shape):
    return plain_parts.Dropped(tf.constant(numbers(9, *shape) > -0.5), 0.3)


CASES = [("attend", False), ("attend", True), ("attend:rows", False),
         ("attend:rows", True),
         ("add_and_normalize", False), ("add_and_normalize", True),
         ("add_and_normalize:0.3", True),
         *((f"add_activation:{name}", False) for name in ACTIVATIONS)]


def value_and_gradients(parts, part, dropped, dtype, compiled=False):
    arrays, function = arguments(part, dropped)

    def run():
        # What is one number for each column stays wide.
        tensors = [tf.constant(array, dtype if array.ndim > 1 or dtype == tf.float64
                               else tf.float32) for array in arrays]
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            outputs = tf.nest.flatten(function(parts, tensors))
            total = tf.add_n([tf.reduce_sum(
                fused.wide(out) * tf.cast(
                    numbers(7 + i, *out.shape), fused.wide(out).dtype))
                for i, out in enumerate(outputs)])
        return outputs, tape.gradient(total, tensors), total

    # Uncompiled as it is written; whole models are traced.
    outputs, gradients, total = (
        tf.function(run, jit_compile=True, autograph=False) if compiled else run)()
    assert all(out.dtype == dtype for out in outputs)
    return outputs, gradients, total


# One of each part, in the types and ways that differ little from others.
SOME = {("attend", True), ("attend:rows", False), ("add_and_normalize:0.3", True),
        ("add_activation:gelu", False)}


@pytest.mark.parametrize("part, dropped, dtype, tolerance, compiled", [
    (*case, *how) for case in CASES for how in (
        ("float32", 2e-6, False), ("float32", 2e-6, True), ("float64", 1e-8, False),
        ("bfloat16", 3e-2, False), ("float16", 4e-3, False))
    if how[0] in ("float64", "bfloat16") or case in SOME])
def test_fast_is_plain(part, dropped, dtype, tolerance, compiled):
    dtype = tf.as_dtype(dtype)
    plain = value_and_gradients(plain_parts.PLAIN, part, dropped, dtype)
    fast = value_and_gradients(fused.FAST, part, dropped, dtype, compiled)
    assert_close(fast[:2], plain[:2], tolerance)


@pytest.mark.parametrize("dtype, tolerance", [
    ("float32", 2e-6), ("bfloat16", 3e-2), ("float16", 4e-3)])
@pytest.mark.parametrize("part", [part for part, dropped in CASES if not dropped])
def test_served_is_plain(part, dtype, tolerance):
    dtype = tf.as_dtype(dtype)
    assert_close(*(value_and_gradients(parts, part, False, dtype)[0]
                   for parts in (fused.SERVED, plain_parts.PLAIN)), tolerance)


def test_units_dropped_on_accelerators_are_tensorflows(monkeypatch):
    """Of the release's successor, tf.nn's stateless dropout, from the same seeds."""
    monkeypatch.setattr(fused, "device_kind", lambda: "GPU")
    for dtype in (tf.float32, tf.bfloat16):
        seeds = DropoutSeeds(tf.constant([3, 4]))
        for count, rate in enumerate((0.1, 0.5)):
            expected = tf.nn.experimental.stateless_dropout(
                tf.ones([4, 6, 8]), rate,
                tf.bitwise.bitwise_and(
                    tf.random.fold_in(tf.constant([3, 4]), count), tf.int32.max))
            found = seeds.dropout(tf.ones([4, 6, 8], dtype), rate)
            np.testing.assert_allclose(tf.cast(found, tf.float32), expected, rtol=4e-3)


def test_softmax_of_float16_is_computed_in_float32():
    """Sums over 512 keys would be off by several roundings else."""
    query, key, value = (
        tf.constant(numbers(seed, 1, 2, rows, 8), tf.float16)
        for seed, rows in enumerate((16, 512, 512)))
    mask = tf.zeros([1, 1, 1, 512])
    np.testing.assert_allclose(
        fused.FAST.attend(query, key, value, mask, None),
        plain_parts.PLAIN.attend(query, key, value, mask, None), rtol=0, atol=5e-4)


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.999])
def test_units_dropped_on_cpus(rate):
    """Each with the probability `rate`, by itself; an odd number of them."""
    seeds, calls, shape = DropoutSeeds(tf.constant([3, 4])), 64, [3, 51, 27]
    kept = np.stack([seeds.draw(shape, rate).keep.numpy() for _ in range(calls)])
    assert kept.shape == (calls, *shape)
    # The rate of a call is a multiple of 1 / 256.
    deviation = np.sqrt(rate * (1 - rate) / kept.size + 0.25 / 256 ** 2 / calls)
    assert abs(1 - kept.mean() - rate) < 4 * deviation
    numbers = kept.reshape(calls, -1) - kept.mean()
    for distance in (1, 2, 3, 4, 27):
        both = np.mean(numbers[:, distance:] * numbers[:, :-distance])
        assert abs(both) < 5 * (deviation ** 2 + rate * (1 - rate) / kept.size ** 0.5)


def test_units_dropped_on_cpus_depend_on_the_seed_alone():
    def units(dtype, seed, compiled=False):
        def draw():
            seeds = DropoutSeeds(tf.constant(seed))
            return seeds.dropout(tf.ones([4, 6, 8], dtype), 0.1)

        drawn = tf.function(draw, jit_compile=compiled, autograph=False)()
        return tf.cast(drawn, tf.float32).numpy()

    found = units("float32", [3, 4])
    np.testing.assert_allclose(np.unique(found), [0.0, 1 / 0.9])
    for seed in ([3, 4], [-3, 4]):
        np.testing.assert_array_equal(
            units("float32", seed, compiled=True), units("float32", seed))
    np.testing.assert_allclose(units("bfloat16", [3, 4]), found, rtol=4e-3)
    assert not np.array_equal(units("float32", [3, 5]), found)


@pytest.mark.parametrize("kind", ["GPU", "CPU"])
@pytest.mark.parametrize("shape", [[6, 5], [6, 2, 3, 7], [6, 16]])
def test_a_part_of_a_batch_drops_what_the_whole_would(shape, kind, monkeypatch):
    monkeypatch.setattr(fused, "device_kind", lambda: kind)

    def drawn(seed, rows):
        seeds = DropoutSeeds(tf.constant(seed), purpose=7)
        return [seeds.draw([rows, *shape[1:]], rate).keep.numpy()
                for rate in (0.3, 0.7)]

    whole = drawn([3, 4], 6)
    for first, rows in ((0, 2), (2, 4), (5, 1)):
        for part, of in zip(drawn([3, 4, first], rows), whole):
            np.testing.assert_array_equal(part, of[first:first + rows])
    assert len({row.tobytes() for row in whole[0]}) > 3


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_gradients_of_biases_are_summed_in_float32(dtype):
    """In bfloat16 a sum of ones would end at 256."""
    rows, bias = tf.ones([4000, 16], dtype), tf.zeros([16])
    for parts in (plain_parts.PLAIN, fused.FAST):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(bias)
            outputs = (fused.product(rows, tf.eye(16, dtype=dtype), bias),
                       parts.add_activation(rows, bias, "linear"))
        for output in outputs:
            np.testing.assert_array_equal(tape.gradient(output, bias), [4000.0] * 16)


@pytest.mark.parametrize("dtype, uses, limit", [
    ("float32", 5, 1 << 27), ("bfloat16", 5, 1 << 27), ("bfloat16", 5, 400),
    ("float32", 1, 1)])
def test_copies_of_a_kernel_sum_their_gradients(dtype, uses, limit, monkeypatch):
    monkeypatch.setattr(layer_runs, "_SUMMED_BYTES", limit)
    monkeypatch.setattr(fused, "MIN_SIZE", 0)
    kernel = tf.constant(numbers(0, 8, 10), tf.float32)
    # In bfloat16 their sum would lose most of the last ones.
    factors = [256.0] + [1.0] * (uses - 1)

    @tf.function(autograph=False)
    def run():
        with tf.GradientTape() as tape:
            tape.watch(kernel)
            found = layer_runs.copies(kernel, tf.as_dtype(dtype), uses)
            total = tf.add_n([factor * tf.reduce_sum(tf.cast(copy, tf.float32))
                              for copy, factor in zip(found, factors)])
        return found, tape.gradient(total, kernel)

    found, gradient = run()
    assert len(found) == uses and all(copy.dtype == dtype for copy in found)
    np.testing.assert_array_equal(found[-1], tf.cast(kernel, dtype))
    np.testing.assert_allclose(gradient, np.full([8, 10], sum(factors)), rtol=1e-6)


# ---- which parts -----------------------------------------------------------


LARGE = tf.TensorShape([2, 16, fused.MIN_SIZE // 32])


@pytest.mark.parametrize("names, fast", [
    (["CPU:0", "CPU:1"], True), (["GPU:0"], False), (["TPU:7"], False),
    (["CPU:0", "GPU:0"], False)])
def test_parts_suit_the_devices_of_the_strategy(names, fast, monkeypatch):
    """Not those that the name of its job would tell."""
    monkeypatch.setattr(tf.distribute, "has_strategy", lambda: True)
    monkeypatch.setattr(tf.distribute, "get_strategy", lambda: types.SimpleNamespace(
        extended=types.SimpleNamespace(worker_devices=[
            f"/job:tpu_worker/replica:0/task:3/device:{name}" for name in names])))
    assert fused.parts_for(LARGE) is (fused.FAST if fast else plain_parts.PLAIN)
    if len(names) == 1:
        assert fused.device_kind() == names[0][:3]


@pytest.mark.parametrize("there", [(), ("GPU",), ("TPU",)])
def test_parts_suit_the_devices_and_the_size(there, monkeypatch):
    monkeypatch.setattr(tf.config, "list_logical_devices",
                        lambda kind: ["one"] if kind in there else [])
    assert fused.parts_for(LARGE) is (plain_parts.PLAIN if there else fused.FAST)
    for small in ([1, 16, LARGE[-1]], [None, *LARGE[1:]]):
        assert fused.parts_for(tf.TensorShape(small)) is plain_parts.PLAIN
    # A strategy that computes on CPUs does so where there is a GPU too.
    for strategy in (tf.distribute.OneDeviceStrategy("CPU:0"), tiny_run.strategy(2)):
        with strategy.scope():
            assert fused.parts_for(LARGE) is fused.FAST


# ---- whole models ----------------------------------------------------------


def model_and_step(computation):
    """A model, and a function of nothing: its outputs and the gradients of a loss."""
    model = models.AlbertForPreTraining(tiny_run.config(
        num_hidden_layers=1, hidden_dropout_prob=0.3, attention_probs_dropout_prob=0.3))
    batch = {name: tf.constant(value) for name, value in tiny_run.features(
        tiny_run.examples(4)).items()}

    @tf.function(autograph=False)
    def step():
        with tf.GradientTape() as tape:
            outputs = model(batch, training=True, seed=tf.constant([1, 2]),
                            computation=computation)
            loss = tf.reduce_sum(outputs["mlm_logits"])
        return outputs, tape.gradient(loss, model.trainable_variables,
                                      unconnected_gradients="zero")

    return model, step


@pytest.mark.long
def test_nothing_for_cpus_is_left_on_elsewhere(monkeypatch):
    """In the whole forward and backward pass of a model that is large enough."""
    def no_island(*_, **__):
        raise AssertionError("an island")

    monkeypatch.setattr(fused, "MIN_SIZE", 0)
    monkeypatch.setattr(fused, "island", no_island)
    _, step = model_and_step(Computation("bfloat16", recompute=True))
    with pytest.raises(AssertionError, match="an island"):
        step.get_concrete_function()
    monkeypatch.setattr(fused, "device_kind", lambda: "GPU")
    step.get_concrete_function()


# ---- draws -----------------------------------------------------------------


@pytest.mark.parametrize("counter", [
    [3, 4], [2 ** 32 - 1000, 0], [2 ** 64 - 1000, 2 ** 33 + 5], [2 ** 64 - 1] * 2])
def test_random_bytes_are_those_of_tensorflow(counter):
    blocks = fused.MIN_SIZE // 16
    key, counter = (tf.constant(numbers, tf.uint64) for numbers in (
        [7 * 2 ** 40 + 11], counter))
    expected = tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=[4 * blocks], key=key, counter=counter, dtype=tf.uint32,
        alg=tf.random.Algorithm.PHILOX.value)
    for number in (blocks, tf.constant(blocks)):
        found = random.random_bytes(key, counter, number).numpy()
        np.testing.assert_array_equal(found.view(np.uint32), expected)


def test_random_bytes_are_the_same_however_they_are_drawn(monkeypatch):
    """Eagerly, in steps that XLA compiles, and on accelerators."""
    blocks = fused.MIN_SIZE // 16
    key, counter = tf.constant([3], tf.uint64), tf.constant([5, 7], tf.uint64)

    def draw():
        return random.random_bytes(key, counter, blocks)

    expected = draw()
    for call in (draw, tf.recompute_grad(draw)):
        np.testing.assert_array_equal(tf.function(
            call, jit_compile=True, autograph=False)(), expected)
    monkeypatch.setattr(fused, "device_kind", lambda: "GPU")
    monkeypatch.delattr(fused, "island")  # Which compiles for CPUs.
    np.testing.assert_array_equal(draw(), expected)


def test_draws_do_not_depend_on_what_is_known_of_a_shape():
    seeds, shape = tf.constant([5, 7, 3]), [4, 3, 57, 59]
    known = DropoutSeeds(seeds).draw(shape, 0.1).keep
    unknown = tf.function(
        lambda shape: DropoutSeeds(seeds).draw(tf.unstack(shape), 0.1).keep,
        input_signature=[tf.TensorSpec([4], tf.int32)])(tf.constant(shape))
    np.testing.assert_array_equal(known, unknown)


# ---- loss ------------------------------------------------------------------


def losses_and_gradient(function, logits, labels):
    @tf.function(autograph=False)
    def run(logits, labels):
        with tf.GradientTape() as tape:
            tape.watch(logits)
            losses = function(logits, labels)
            total = tf.reduce_sum(losses * tf.cast(numbers(5, *labels.shape), tf.float32))
        return losses, tape.gradient(total, logits)

    return run(logits, labels)


@pytest.mark.parametrize("shape", [(64, 600), (4, 16, 600)])
def test_cross_entropy_is_that_of_tensorflow(shape):
    logits = 30.0 * numbers(0, *shape)
    logits[..., 0] = 300.0  # Others' probabilities are 0, some labels' too.
    logits[-1] = 0.0
    logits[0, ..., 2] = -np.inf
    labels = np.random.default_rng(1).integers(3, 5, shape[:-1])
    labels[1] = 0
    logits, labels = tf.constant(logits, tf.float32), tf.constant(labels, tf.int32)
    ours, theirs = (losses_and_gradient(function, logits, labels) for function in (
        fused.cross_entropy,
        lambda logits, labels: tf.nn.sparse_softmax_cross_entropy_with_logits(
            labels, logits)))
    for found, expected in zip(ours, theirs):
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_cross_entropy_of_what_is_no_number_is_not_finite(number):
    logits = tf.Variable(tf.zeros([64, 600]))
    logits[3, 5].assign(number)
    losses, gradient = losses_and_gradient(
        fused.cross_entropy, tf.convert_to_tensor(logits), tf.zeros([64], tf.int32))
    wrong = np.arange(64) == 3
    np.testing.assert_array_equal(np.isfinite(losses), ~wrong)
    np.testing.assert_array_equal(np.isfinite(gradient).all(axis=-1), ~wrong)
