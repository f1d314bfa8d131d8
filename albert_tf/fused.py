"""The element-wise parts of a layer, plain and fast.

Between two matrix products a layer does little arithmetic but moves much memory:
each operation of its own reads and writes all activations, and automatic
differentiation keeps what each of them needs. Here stand the four parts of a layer,

    split_heads         add bias, scale the query, split into heads
    attend              softmax(q · kᵀ + mask), dropout, · v
    add_activation      add bias, activation
    add_and_normalize   add bias, dropout, add residual, LayerNorm

each twice: PLAIN, as one would write it, and FAST, with a gradient by hand that
keeps only what it needs, and XLA to compile what stands between two products into
single loops. The products stay outside, since XLA's own are slower on a CPU than
oneDNN's. `parts_for` chooses: FAST on CPUs, PLAIN on GPUs and TPUs, where XLA
compiles whole steps.

Activations may be float32, bfloat16 or float16; biases, gains and all arithmetic
within a part are float32 (float64 for float64 activations).
Shapes: B batch, S sequence, H width, A heads, D = H / A; `...` any axes before the
last.
"""

import functools
import math
from typing import Callable, NamedTuple, Optional, Sequence

import tensorflow as tf

LAYER_NORM_EPSILON = 1e-12

# Compiling a loop for each shape takes tens of milliseconds, so that it does not pay
# for batches of fewer numbers than this (B · S · H).
MIN_SIZE = 1 << 15

# Gradients of a kernel that are summed at once hold so many bytes at the most.
_SUMMED_BYTES = 1 << 27

_GELU_SLOPE = math.sqrt(2.0 / math.pi)
_GELU_CUBIC = 0.044715


class Dropped(NamedTuple):
    """Units that dropout leaves.

    Attributes:
      keep: bool, of the shape of what is dropped from.
      rate: share that is dropped; the rest is divided by 1 - rate.
    """

    keep: tf.Tensor
    rate: float


def drop(inputs: tf.Tensor, dropped: Optional[Dropped]) -> tf.Tensor:
    """`inputs` with dropout; None drops nothing."""
    if dropped is None:
        return inputs
    scale = tf.cast(1.0 / (1.0 - dropped.rate), inputs.dtype)
    return tf.where(dropped.keep, inputs * scale, tf.zeros([], inputs.dtype))


def _wide(inputs: tf.Tensor) -> tf.Tensor:
    """In the type that is computed in."""
    return inputs if inputs.dtype == tf.float64 else tf.cast(inputs, tf.float32)


# ---- plain -----------------------------------------------------------------


def activation(name: str) -> Callable[[tf.Tensor], tf.Tensor]:
    """The function of a `hidden_act`; gelu in its tanh form."""
    return {
        "gelu": lambda x: tf.nn.gelu(x, approximate=True),
        "relu": tf.nn.relu,
        "tanh": tf.tanh,
        "linear": tf.identity,
    }[name]


def _plain_split_heads(qkv, bias, num_heads):
    shape = tf.shape(qkv)
    size = qkv.shape[-1] // (3 * num_heads)
    wide = _wide(qkv) + bias
    wide = tf.reshape(wide, [shape[0], shape[1], 3, num_heads, size])
    query, key, value = tf.unstack(tf.transpose(wide, [2, 0, 3, 1, 4]))
    query *= size ** -0.5
    return tuple(tf.cast(part, qkv.dtype) for part in (query, key, value))


def _plain_attend(query, key, value, mask, dropped):
    scores = _wide(tf.matmul(query, key, transpose_b=True))  # [B, A, S, S]
    probs = drop(tf.nn.softmax(scores + mask), dropped)
    context = tf.matmul(tf.cast(probs, value.dtype), value)
    return _merge_heads(context)


def _merge_heads(context):
    """[B, A, S, D] → [B, S, H]."""
    shape = tf.shape(context)
    merged = tf.reshape(tf.transpose(context, [0, 2, 1, 3]),
                        [shape[0], shape[2], context.shape[1] * context.shape[3]])
    return merged


def _plain_add_activation(inputs, bias, name):
    return tf.cast(activation(name)(_wide(inputs) + bias), inputs.dtype)


def _plain_add_and_normalize(inputs, bias, residual, gamma, beta, dropped):
    total = _wide(residual) + drop(_wide(inputs) + bias, dropped)
    return tf.cast(normalize(total, gamma, beta), inputs.dtype)


def normalize(inputs, gamma, beta):
    """LayerNorm over the last axis."""
    mean, variance = tf.nn.moments(inputs, axes=[-1], keepdims=True)
    return tf.nn.batch_normalization(
        inputs, mean, variance, beta, gamma, LAYER_NORM_EPSILON)


# ---- compiled between products ---------------------------------------------

# (function, its options, types and shapes of its arguments) → the compiled one.
_compiled = {}


def _island(function, *tensors, **options):
    """function(*tensors, **options), compiled by XLA; None among the tensors stays.

    One tf.function for each signature, so that all layers of a shape share it, and
    TensorFlow does not warn that a single one was traced for many shapes.
    """
    given = [tensor for tensor in tensors if tensor is not None]
    places = tuple(tensor is not None for tensor in tensors)
    key = (function, tuple(sorted(options.items())), places,
           tuple((t.dtype, tuple(t.shape)) for t in given))

    def call(*given):
        rest = iter(given)
        return function(*(next(rest) if there else None for there in places), **options)

    if key not in _compiled:
        _compiled[key] = tf.function(call, jit_compile=True, autograph=False)
    return _compiled[key](*given)


def _dropped(keep, rate):
    return None if keep is None else Dropped(keep, rate)


def _keep_and_rate(dropped):
    return (None, 0.0) if dropped is None else dropped


def _sum_rows(inputs):
    """The gradient of a bias: [..., H] → [H]."""
    return tf.reduce_sum(tf.reshape(inputs, [-1, inputs.shape[-1]]), axis=0)


# ---- heads -----------------------------------------------------------------


def _fast_split_heads(qkv, bias, num_heads):
    @tf.custom_gradient
    def split(qkv, bias):
        heads = _island(_plain_split_heads, qkv, bias, num_heads=num_heads)

        def gradient(*upstream):
            return _island(_split_heads_gradient, *upstream)

        return heads, gradient

    return split(qkv, bias)


def _split_heads_gradient(query, key, value):
    """Puts the gradients side by side again, as the values were: [B, S, 3H], [3H]."""
    size = query.shape[-1]
    query = _wide(query) * size ** -0.5
    stacked = tf.stack([query, _wide(key), _wide(value)])  # [3, B, A, S, D]
    merged = tf.transpose(stacked, [1, 3, 0, 2, 4])
    batch, length, _, heads, _ = merged.shape
    merged = tf.reshape(merged, [batch, length, 3 * heads * size])
    return tf.cast(merged, key.dtype), _sum_rows(merged)


# ---- attention -------------------------------------------------------------


def _fast_attend(query, key, value, mask, dropped):
    """Keeps the probabilities and which were dropped, but not the dropped ones.

    With P = softmax(Z), Q = drop(P), C = Q · V and upstream dC: dV = Qᵀ · dC,
    dQ = dC · Vᵀ, dP = drop(dQ), and from the softmax, whose Jacobian in a row is
    diag(p) - p · pᵀ, dZ = P ∘ (dP - rowsum(P ∘ dP)). The mask is constant.
    """
    keep, rate = _keep_and_rate(dropped)

    @tf.custom_gradient
    def attend(query, key, value, mask):
        scores = tf.matmul(query, key, transpose_b=True)
        probs = _island(_softmax, scores, mask)
        context = tf.matmul(_drop_probs(probs, keep, rate), value)

        def gradient(upstream):
            # [B, S, H] → [B, A, S, D]
            upstream = _island(_split_context, upstream, num_heads=query.shape[1])
            used = _drop_probs(probs, keep, rate)
            d_value = tf.matmul(used, upstream, transpose_a=True)
            d_used = tf.matmul(upstream, value, transpose_b=True)
            d_scores = _island(_softmax_gradient, d_used, probs, keep, rate=rate)
            return (tf.matmul(d_scores, key),
                    tf.matmul(d_scores, query, transpose_a=True), d_value, None)

        return _island(_merge_heads, context), gradient

    return attend(query, key, value, mask)


def _softmax(scores, mask):
    scores_wide = _wide(scores) + mask
    powers = tf.exp(scores_wide - tf.reduce_max(scores_wide, axis=-1, keepdims=True))
    scale = 1.0 / tf.reduce_sum(powers, axis=-1, keepdims=True)
    return tf.cast(powers * scale, scores.dtype)


def _drop_probs(probs, keep, rate):
    if keep is None:
        return probs
    return _island(_dropped_probs, probs, keep, rate=rate)


def _dropped_probs(probs, keep, rate):
    return tf.cast(drop(_wide(probs), Dropped(keep, rate)), probs.dtype)


def _softmax_gradient(d_used, probs, keep, rate):
    d_probs = drop(_wide(d_used), _dropped(keep, rate))
    wide = _wide(probs)
    row = tf.reduce_sum(wide * d_probs, axis=-1, keepdims=True)
    return tf.cast(wide * (d_probs - row), d_used.dtype)


def _split_context(upstream, num_heads):
    batch, length, size = upstream.shape
    split = tf.reshape(upstream, [batch, length, num_heads, size // num_heads])
    return tf.transpose(split, [0, 2, 1, 3])


# ---- activation ------------------------------------------------------------


def _fast_add_activation(inputs, bias, name):
    """Keeps the inputs alone; the derivative is computed from them again."""
    @tf.custom_gradient
    def add_activation(inputs, bias):
        outputs = _island(_plain_add_activation, inputs, bias, name=name)

        def gradient(upstream):
            return _island(_activation_gradient, upstream, inputs, bias, name=name)

        return outputs, gradient

    return add_activation(inputs, bias)


def _gelu_derivative(x):
    # gelu = x / 2 · (1 + t) with t = tanh(u), u = s · (x + c · x³), and so
    # gelu' = (1 + t) / 2 + x / 2 · (1 - t²) · u', u' = s · (1 + 3c · x²).
    square = x * x
    t = tf.tanh(_GELU_SLOPE * x * (1.0 + _GELU_CUBIC * square))
    slope = _GELU_SLOPE * (1.0 + 3.0 * _GELU_CUBIC * square)
    return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * slope


_DERIVATIVES = {
    "gelu": _gelu_derivative,
    "relu": lambda x: tf.cast(x > 0, x.dtype),
    "tanh": lambda x: 1.0 - tf.square(tf.tanh(x)),
    "linear": tf.ones_like,
}


def _activation_gradient(upstream, inputs, bias, name):
    derivative = _DERIVATIVES[name](_wide(inputs) + bias)
    gradient = _wide(upstream) * derivative
    return tf.cast(gradient, inputs.dtype), _sum_rows(gradient)


# ---- LayerNorm -------------------------------------------------------------


def _fast_add_and_normalize(inputs, bias, residual, gamma, beta, dropped):
    """Keeps the normalized sum and one number for each row.

    With t the sum in a row, m its mean, r = 1 / sqrt(variance + ε), n = r · (t - m),
    output y = n ∘ γ + β and upstream dy, let g = dy ∘ γ. Since m and r depend on t,
    dt = r · (g - mean(g) - n ∘ mean(g ∘ n)). It goes to the residual as it is and to
    the inputs through the dropout; dγ and dβ are the sums of dy ∘ n and dy over rows.
    """
    keep, rate = _keep_and_rate(dropped)

    @tf.custom_gradient
    def add_and_normalize(inputs, bias, residual, gamma, beta):
        outputs, normal, scale = _island(
            _normalize_forward, inputs, bias, residual, gamma, beta, keep, rate=rate)

        def gradient(upstream):
            d_inputs, d_residual, *rest = _island(
                _normalize_gradient, upstream, normal, scale, gamma, keep, rate=rate)
            return (d_inputs, rest[0], d_residual, rest[1], rest[2])

        return outputs, gradient

    return add_and_normalize(inputs, bias, residual, gamma, beta)


def _normalize_forward(inputs, bias, residual, gamma, beta, keep, rate):
    """Outputs, the normalized sum [..., H], and r [..., 1]."""
    total = _wide(residual) + drop(_wide(inputs) + bias, _dropped(keep, rate))
    centred = total - tf.reduce_mean(total, axis=-1, keepdims=True)
    variance = tf.reduce_mean(tf.square(centred), axis=-1, keepdims=True)
    scale = tf.math.rsqrt(variance + LAYER_NORM_EPSILON)
    normal = centred * scale
    return (tf.cast(normal * gamma + beta, inputs.dtype),
            tf.cast(normal, inputs.dtype), scale)


def _normalize_gradient(upstream, normal, scale, gamma, keep, rate):
    """Gradients of inputs, residual, bias, gamma, beta."""
    dtype = upstream.dtype
    upstream, normal = _wide(upstream), _wide(normal)
    scaled = upstream * gamma
    mean = tf.reduce_mean(scaled, axis=-1, keepdims=True)
    slope = tf.reduce_mean(scaled * normal, axis=-1, keepdims=True)
    d_total = scale * (scaled - mean - normal * slope)
    d_inputs = drop(d_total, _dropped(keep, rate))
    return (tf.cast(d_inputs, dtype), tf.cast(d_total, dtype), _sum_rows(d_inputs),
            _sum_rows(upstream * normal), _sum_rows(upstream))


# ---- the choice ------------------------------------------------------------


class Parts(NamedTuple):
    """The parts of a layer.

    Attributes:
      split_heads: (products with the kernels of query, key and value side by side
        [B, S, 3H], bias [3H], A) → query / sqrt(D), key, value [B, A, S, D].
      attend: (query, key, value [B, A, S, D], mask [B, 1, 1, S], Dropped of
        [B, A, S, S] or None) → context [B, S, H].
      add_activation: (inputs [..., H], bias [H], name) → [..., H].
      add_and_normalize: (inputs [..., H], bias [H], residual [..., H], gamma [H],
        beta [H], Dropped of the inputs or None) → [..., H].
    """

    split_heads: Callable[..., Sequence[tf.Tensor]]
    attend: Callable[..., tf.Tensor]
    add_activation: Callable[..., tf.Tensor]
    add_and_normalize: Callable[..., tf.Tensor]


PLAIN = Parts(_plain_split_heads, _plain_attend, _plain_add_activation,
              _plain_add_and_normalize)
FAST = Parts(_fast_split_heads, _fast_attend, _fast_add_activation,
             _fast_add_and_normalize)


def _on_cpu() -> bool:
    """Whether the current strategy computes on CPUs."""
    strategy = tf.distribute.get_strategy()
    if not tf.distribute.has_strategy():
        return not (tf.config.list_logical_devices("GPU")
                    or tf.config.list_logical_devices("TPU"))
    return all("CPU" in device.upper() for device in strategy.extended.worker_devices)


def parts_for(hidden: tf.Tensor) -> Parts:
    """The parts that suit the device and size of `hidden` [B, S, H].

    Unknown shapes get the plain ones: XLA would compile for every shape that comes.
    """
    size = hidden.shape.num_elements()
    return FAST if size is not None and size >= MIN_SIZE and _on_cpu() else PLAIN


# ---- kernels ---------------------------------------------------------------


def copies(kernel: tf.Tensor, dtype: tf.DType, uses: int) -> list[tf.Tensor]:
    """A kernel in the type of the products, once for each of its `uses`.

    It is cast once, and the gradients of the uses, which layers that share the
    kernel have one each, are summed in float32, a number of them at once.

    Args:
      kernel: float32.
      dtype: of the copies.
      uses: how many.
    """
    low = tf.stop_gradient(tf.cast(kernel, dtype))
    group = max(1, _SUMMED_BYTES // (low.dtype.size * kernel.shape.num_elements()))
    found = []
    while len(found) < uses:
        count = min(group, uses - len(found))
        last = len(found) + count == uses
        outputs = _tap(kernel, low, count, last)
        found.extend(outputs[:count])
        kernel = outputs[-1]
    return found


def _tap(kernel, low, count, last):
    """`count` copies of `low`, and, unless they are the last, the kernel for others."""
    @tf.custom_gradient
    def tap(kernel):
        def gradient(*upstream):
            size = kernel.shape.num_elements()
            if low.dtype != kernel.dtype and size >= MIN_SIZE and _on_cpu():
                return _island(_sum, *upstream)
            return _sum(*upstream)

        rest = () if last else (tf.identity(kernel),)
        return (*(tf.identity(low) for _ in range(count)), *rest), gradient

    return tap(kernel)


def _sum(*tensors):
    return tf.add_n([_wide(tensor) for tensor in tensors])


# ---- memory ----------------------------------------------------------------


def recomputed(function: Callable[..., tf.Tensor], hidden: tf.Tensor,
               *weights: tf.Tensor) -> tf.Tensor:
    """function(hidden, *weights), of which nothing is kept for the backward pass.

    There it is computed once more. It must give the same each time.
    """
    @tf.custom_gradient
    def call(hidden, *weights):
        def gradient(upstream):
            late = _after(hidden, upstream)
            with tf.GradientTape() as tape:
                tape.watch([late, *weights])
                output = function(late, *weights)
            return tape.gradient(output, [late, *weights], output_gradients=upstream)

        return function(hidden, *weights), gradient

    return call(hidden, *weights)


def _after(hidden, upstream):
    """`hidden`, but not before `upstream` is there.

    Else TensorFlow or XLA would see that a layer is computed twice from the same,
    and keep the first result. XLA knows no order but that of data; a number that is
    0 unless the gradient is NaN makes one that it cannot see through.
    """
    first = tf.reshape(upstream, [-1])[0]
    zero = tf.where(tf.equal(first, first), tf.zeros([], first.dtype), first)
    return hidden + tf.cast(zero, hidden.dtype)
