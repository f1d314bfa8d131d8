"""The parts of a layer (see plain) for TPUs, where XLA compiles whole steps.

XLA fuses what stands between two products into them. What costs time there is memory
traffic: transposes, numbers written for a second pass, and comparisons of random
numbers. Each form below is the one of several that the TPU's compiler estimates to be
the fastest (benchmarks/tpu_compile.py; NOTES.md there has the others):

  Heads stay where the products put them, [B, S, A, D], and each product with them is
    one einsum, so that XLA chooses their order in memory.
  Scores stand the other way around, [B, A, T, S] with T keys: XLA sums a query's keys
    faster along the last axis but one.
  Scores are computed twice, first only for their largest numbers: that costs less
    than to write them to memory and to read them again.
  Probabilities are normalized after the product with the values, which is smaller.
  Gradients are handwritten and keep one tensor for all of attention's probabilities.
  A 32-bit random number decides on dropout for two units: fewer numbers to write, and
    XLA does not pack the decisions into bits, which would take a pass of its own.

They compute the same as plain up to rounding, in every dtype but float16, which TPUs
lack.
"""

import tensorflow as tf

from albert_tf.modeling.kernels import fast, plain
from albert_tf.modeling.kernels.fast import with_gradient
from albert_tf.modeling.kernels.plain import Parts, drop, wide

_HALF = 16  # bits of a random number that decide on one unit


# ---- attention -------------------------------------------------------------


def _attend(query, key, value, mask, dropped):
    """[B, S, A, D], twice [B, T, A, D], [B, 1, 1 or S, T] → [B, S, A, D]; `dropped` is
    of [B, A, T, S].

    With scores Z, their largest number m, E = exp(Z - m) and its sum l, the
    probabilities are P = E / l, and after dropout U. P does not depend on m, which is
    rounded to the dtype here. What is kept is E, negative where it is dropped: its
    absolute value is E, and its positive part U · l · (1 - rate).
    The rest is as in kernels.fast: dV = Uᵀ · dC, dU = dC · Vᵀ, and
    dZ = U ∘ dU - P · rowsum(C ∘ dC).
    """
    keep, rate = dropped or (None, 0.0)
    dtype, factor = query.dtype, query.shape[-1] ** -0.5
    mask = tf.linalg.matrix_transpose(mask)  # [B, 1, T, 1 or S]

    @tf.custom_gradient
    def attend(query, key, value):
        # Largest scores, from a product that XLA must not take for the next one.
        largest = factor * wide(tf.reduce_max(
            tf.einsum("btad,bsad->bats", key, query) + tf.cast(mask / factor, dtype),
            axis=-2, keepdims=True))
        scaled = tf.cast(wide(query) * factor, dtype)
        scores = wide(tf.einsum("btad,bsad->bats", key, scaled)) + mask
        exps = tf.exp(scores - largest)
        sums = tf.reduce_sum(exps, axis=-2, keepdims=True)  # [B, A, 1, S]
        signed = tf.cast(exps if keep is None else tf.where(keep, exps, -exps), dtype)
        inverse = tf.transpose(1.0 / (sums * (1.0 - rate)), [0, 3, 1, 2])  # [B, S, A, 1]
        context = tf.cast(inverse * wide(
            tf.einsum("bats,btad->bsad", tf.nn.relu(signed), value)), dtype)

        def gradient(upstream):
            over_sums = tf.cast(inverse * wide(upstream), dtype)
            d_value = tf.einsum("bats,bsad->btad", tf.nn.relu(signed), over_sums)
            d_used = wide(tf.einsum("btad,bsad->bats", value, over_sums))
            rows = tf.reduce_sum(wide(context) * wide(upstream), axis=-1, keepdims=True)
            rows = tf.transpose(rows, [0, 2, 3, 1]) / sums  # [B, A, 1, S]
            d_scores = tf.cast(
                tf.nn.relu(wide(signed)) * d_used - tf.abs(wide(signed)) * rows, dtype)
            d_query = tf.einsum("bats,btad->bsad", d_scores, key)
            return (tf.cast(wide(d_query) * factor, dtype),
                    tf.einsum("bats,bsad->btad", d_scores, scaled), d_value)

        return context, gradient

    return attend(query, key, value)


# ---- activation, LayerNorm -------------------------------------------------


def _add_activation(inputs, bias, name):
    """Adds a bias and applies an activation; keeps only the inputs for the gradient."""
    def gradient(upstream):
        d_inputs = wide(upstream) * fast.DERIVATIVES[name](wide(inputs) + bias)
        return (tf.cast(d_inputs, inputs.dtype),
                tf.reduce_sum(d_inputs, axis=[0, 1]))

    return with_gradient(lambda inputs, bias: plain.add_activation(inputs, bias, name),
                         gradient, inputs, bias)


def _add_and_normalize(inputs, bias, residual, gamma, beta, dropped, epsilon):
    """As in kernels.fast, but keeps the sum in place of its normalized form, so that
    one pass after the product suffices: mean and variance come from the sums of the
    numbers and of their squares. In bfloat16 the sum is rounded before it is
    normalized."""
    dtype = inputs.dtype

    @tf.custom_gradient
    def add_and_normalize(inputs, bias, residual, gamma, beta):
        total = wide(residual) + drop(wide(inputs) + bias, dropped)
        mean = tf.reduce_mean(total, axis=-1, keepdims=True)
        square = tf.reduce_mean(total * total, axis=-1, keepdims=True)
        scale = tf.math.rsqrt(tf.maximum(square - mean * mean, 0.0) + epsilon)
        total = tf.cast(total, dtype)
        outputs = tf.cast((wide(total) - mean) * scale * gamma + beta, dtype)

        def gradient(upstream):
            wide_upstream, normal = wide(upstream), (wide(total) - mean) * scale
            scaled = wide_upstream * gamma
            d_total = scale * (
                scaled - tf.reduce_mean(scaled, axis=-1, keepdims=True)
                - normal * tf.reduce_mean(scaled * normal, axis=-1, keepdims=True))
            d_inputs = drop(d_total, dropped)
            return (tf.cast(d_inputs, dtype), tf.reduce_sum(d_inputs, axis=[0, 1]),
                    tf.cast(d_total, dtype),
                    tf.reduce_sum(wide_upstream * normal, axis=[0, 1]),
                    tf.reduce_sum(wide_upstream, axis=[0, 1]))

        return outputs, gradient

    return add_and_normalize(inputs, bias, residual, gamma, beta)


TPU = Parts(_attend, _add_activation, _add_and_normalize)


# ---- dropout ---------------------------------------------------------------


def keep(seed: tf.Tensor, shape, rate: float) -> tf.Tensor:
    """Draws which units of a tensor stay, bool of a static `shape`, with probability
    1 - rate up to 2^-17.

    The numbers come from the generator that XLA takes for the device; on TPUs it is
    that of the hardware.
    """
    # Two units share a number: halves of the first axis of even size. The last two
    # axes are not halved, because that would move numbers in memory.
    axis = next((axis for axis, size in enumerate(shape[:-2]) if size % 2 == 0), None)
    drawn = list(shape)
    if axis is not None:
        drawn[axis] //= 2
    key, counter = tf.raw_ops.StatelessRandomGetKeyCounter(seed=seed)
    bits = tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=drawn, key=key, counter=counter, dtype=tf.uint32,
        alg=tf.raw_ops.StatelessRandomGetAlg())
    level = tf.constant(round(rate * 2 ** _HALF), tf.uint32)
    if axis is None:
        return tf.bitwise.right_shift(bits, tf.constant(_HALF, tf.uint32)) >= level
    shifts = tf.reshape(tf.constant([0, _HALF], tf.uint32),
                        [2] + [1] * (len(shape) - axis))
    halves = tf.bitwise.bitwise_and(
        tf.bitwise.right_shift(tf.expand_dims(bits, axis), shifts),
        tf.constant(2 ** _HALF - 1, tf.uint32))
    return tf.reshape(halves >= level, shape)
