"""The parts of a layer (see plain), faster on CPUs.

Between two matrix products a layer does little arithmetic but much memory access: each
operation reads and writes all activations, and automatic differentiation keeps the
inputs of each operation. FAST has handwritten gradients that keep only what they need,
and lets XLA compile the operations between two products into single loops. The products
stay outside, because XLA's are slower on a CPU than oneDNN's. SERVED is for exported
models on CPUs, whose batches have any shape and need no gradients.

`parts_for` chooses FAST on CPUs, and PLAIN on GPUs. TPUs have a layout of their own
(packing.OnTpu) with the parts of kernels.tpu.
"""

import functools
import math
from typing import Optional

import tensorflow as tf

from albert_tf.modeling.kernels import plain
from albert_tf.modeling.kernels.plain import Parts, drop, wide

# Compiling a loop for each shape takes tens of milliseconds, which is not worth it for
# batches with fewer numbers than this (B · S · H).
MIN_SIZE = 1 << 15

_GELU_SLOPE = math.sqrt(2.0 / math.pi)
_GELU_CUBIC = 0.044715


# ---- the choice ------------------------------------------------------------


def parts_for(shape: tf.TensorShape, served: bool = False) -> Parts:
    """Returns the parts for the device and for a batch's shape, [B, S, H] or [N, H];
    if N is unknown but has few values, pass the largest. Unknown shapes use the plain
    parts, because XLA would compile again for every shape."""
    if served and device_kind() == "CPU":
        return SERVED
    return FAST if is_compiled(shape) else plain.PLAIN


def is_compiled(shape: tf.TensorShape) -> bool:
    """Returns whether XLA compiles what is computed between products: on CPUs."""
    size = shape.num_elements()
    return size is not None and size >= MIN_SIZE and device_kind() == "CPU"


def device_kind() -> str:
    """Returns "CPU", "GPU" or "TPU": on what the current strategy computes."""
    if tf.distribute.has_strategy():
        devices = tf.distribute.get_strategy().extended.worker_devices
        kinds = {tf.DeviceSpec.from_string(device).device_type for device in devices}
    else:
        kinds = {kind for kind in ("TPU", "GPU") if tf.config.list_logical_devices(kind)}
    return next((kind for kind in ("TPU", "GPU") if kind in kinds), "CPU")


# ---- products --------------------------------------------------------------


def product(inputs: tf.Tensor, kernel: tf.Tensor, bias: Optional[tf.Tensor] = None,
            transpose_b: bool = False) -> tf.Tensor:
    """[..., in] × [in, out] + bias [out] float32 → [..., out], as one product of
    matrices. With `transpose_b`, the kernel is [out, in]."""
    # One product [B·S, in] × [in, out] is faster than one for each sequence.
    is_flat = inputs.shape.rank == 2
    in_size, size = reversed(kernel.shape) if transpose_b else kernel.shape
    rows = inputs if is_flat else tf.reshape(inputs, [-1, in_size])
    output = tf.matmul(rows, kernel, transpose_b=transpose_b)
    # TensorFlow fuses a bias into a product if it is added directly after it.
    if bias is not None and output.dtype == bias.dtype:
        output = tf.nn.bias_add(output, bias)
    elif bias is not None:
        output = with_gradient(
            lambda inputs, bias: tf.nn.bias_add(inputs, tf.cast(bias, inputs.dtype)),
            lambda upstream: (upstream, *_sum_rows(upstream)), output, bias)
    if is_flat:
        return output
    # Restore the axes, and the sizes that are known, which reshaping forgets. (ONNX
    # exports know the product of all rows by these operations.)
    output = tf.reshape(output, tf.concat([tf.shape(inputs)[:-1], [size]], axis=0))
    output.set_shape(inputs.shape[:-1].concatenate([size]))
    return output


def with_gradient(function, gradient, *inputs):
    """Returns function(*inputs), whose gradients are gradient(*upstream)."""
    return tf.custom_gradient(lambda *inputs: (function(*inputs), gradient))(*inputs)


def _sum_rows(*tensors):
    """Sums the rows of each tensor, [..., H] → [H], in the type of biases.

    The sums are not part of the compiled gradient, in which XLA would compute each
    number twice, to store it and to sum it. TensorFlow's sums would add bfloat16 in
    bfloat16, where 256 + 1 is 256. oneDNN's product with ones adds in float32 and
    rounds once, as in the gradients of kernels.
    """
    flat = [tf.reshape(tensor, [-1, tensor.shape[-1]]) for tensor in tensors]
    if flat[0].dtype == tf.bfloat16 and device_kind() == "CPU":
        ones = tf.ones([1, tf.shape(flat[0])[0]], tf.bfloat16)
        return [wide(tf.matmul(ones, rows)[0]) for rows in flat]
    if flat[0].dtype.size == 2:
        return [tf.reduce_sum(wide(rows), axis=0) for rows in flat]
    return [tf.raw_ops.BiasAddGrad(out_backprop=rows) for rows in flat]


# ---- compiled between products ---------------------------------------------

_compiled = functools.cache(functools.partial(
    tf.function, jit_compile=True, autograph=False))


def island(function, *args):
    """Calls function(*args), compiled by XLA once for each type and shape of the
    tensors, so that all layers share it; other arguments are constants."""
    return _compiled(function)(*args)


def _row_sums(inputs):
    """Sums rows, [..., H] → [..., 1], by a matrix product, which is faster than XLA's
    sums of rows in small windows."""
    size = inputs.shape[-1]
    sums = tf.matmul(tf.reshape(inputs, [-1, size]), tf.ones([size, 1], inputs.dtype))
    # N in [N, H] may be unknown.
    return sums if len(inputs.shape) == 2 else tf.reshape(sums, [*inputs.shape[:-1], 1])


def _row_means(inputs):
    return _row_sums(inputs) / inputs.shape[-1]


# ---- attention -------------------------------------------------------------


def _fast_attend(query, key, value, mask, dropped):
    """Computes attention; keeps the probabilities and the dropout mask for the
    gradient, but not the probabilities after dropout.

    With s = 1 / sqrt(D), Z = s · Q · Kᵀ + mask, P = softmax(Z), U = drop(P), C = U · V
    and upstream dC: dV = Uᵀ · dC, dU = dC · Vᵀ, dP = drop(dU), and from the softmax,
    whose Jacobian in a row is diag(p) - p · pᵀ, dZ = P ∘ (dP - rowsum(P ∘ dP)). Because
    P ∘ dP = U ∘ dU has the row sums of C ∘ dC, which has D columns and not S (Dao et
    al. 2022), dZ takes one pass. dQ = s · dZ · K and dK = s · dZᵀ · Q; the mask is
    constant.
    """
    def used(probs):
        return probs if dropped is None else island(_dropped_probs, probs, dropped)

    @tf.custom_gradient
    def attend(query, key, value, mask):
        probs = _probabilities(query, key, mask)
        context = tf.matmul(used(probs), value)

        def gradient(upstream):
            d_value = tf.matmul(used(probs), upstream, transpose_a=True)
            d_used = tf.matmul(upstream, value, transpose_b=True)
            d_scores = island(_scores_gradient, d_used, probs, context, upstream,
                              dropped, query.shape[-1] ** -0.5)
            return (tf.matmul(d_scores, key),
                    tf.matmul(d_scores, query, transpose_a=True), d_value, None)

        return context, gradient

    return attend(query, key, value, mask)


def _probabilities(query, key, mask):
    # TensorFlow fuses this into one oneDNN operation: scale and mask cost nothing.
    scores = (tf.matmul(query, key, transpose_b=True)
              * tf.constant(query.shape[-1] ** -0.5, query.dtype)
              + tf.cast(mask, query.dtype))
    # TensorFlow's softmax is used, because XLA's is slower here: it does not vectorize
    # the maximum of a row. TensorFlow's computes bfloat16 in float32, but float16 not.
    if scores.dtype == tf.float16:
        scores = wide(scores)
    return tf.cast(tf.nn.softmax(scores), query.dtype)


def _dropped_probs(probs, dropped):
    return tf.cast(drop(wide(probs), dropped), probs.dtype)


def _scores_gradient(d_used, probs, context, upstream, dropped, factor):
    d_probs = drop(wide(d_used), dropped)
    sums = _row_sums(wide(context) * wide(upstream))
    return tf.cast(factor * wide(probs) * (d_probs - sums), d_used.dtype)


# ---- activation ------------------------------------------------------------


def _fast_add_activation(inputs, bias, name):
    """Adds a bias and applies an activation; keeps only the inputs for the gradient."""
    def gradient(upstream):
        d_inputs = island(_activation_gradient, upstream, inputs, bias, name)
        return (d_inputs, *_sum_rows(d_inputs))

    return with_gradient(
        lambda inputs, bias: island(plain.add_activation, inputs, bias, name), gradient,
        inputs, bias)


def _gelu_derivative(x):
    # gelu = x / 2 · (1 + t) with t = tanh(u), u = s · (x + c · x³), therefore
    # gelu' = (1 + t) / 2 + x / 2 · (1 - t²) · u', u' = s · (1 + 3c · x²).
    square = x * x
    t = tf.tanh(_GELU_SLOPE * x * (1.0 + _GELU_CUBIC * square))
    slope = _GELU_SLOPE * (1.0 + 3.0 * _GELU_CUBIC * square)
    return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * slope


def _erf_gelu_derivative(x):
    # gelu = x · F(x) with the normal distribution F; gelu' = F(x) + x · F'(x).
    return (0.5 * (1.0 + tf.math.erf(x * math.sqrt(0.5)))
            + x * tf.exp(-0.5 * x * x) / math.sqrt(2.0 * math.pi))


DERIVATIVES = {
    "gelu": _gelu_derivative,
    "gelu_erf": _erf_gelu_derivative,
    "relu": lambda x: tf.cast(x > 0, x.dtype),
    "tanh": lambda x: 1.0 - tf.square(tf.tanh(x)),
    "linear": tf.ones_like,
}


def _activation_gradient(upstream, inputs, bias, name):
    derivative = DERIVATIVES[name](wide(inputs) + bias)
    return tf.cast(wide(upstream) * derivative, inputs.dtype)


# ---- LayerNorm -------------------------------------------------------------


def _fast_add_and_normalize(inputs, bias, residual, gamma, beta, dropped, epsilon):
    """Adds bias and residual and normalizes; keeps the normalized sum and one number
    per row for the gradient.

    With t the sum in a row, m its mean, r = 1 / sqrt(variance + ε), n = r · (t - m),
    output y = n ∘ γ + β and upstream dy, let g = dy ∘ γ. Because m and r depend on t,
    dt = r · (g - mean(g) - n ∘ mean(g ∘ n)). This is the gradient of the residual and,
    after dropout, of the inputs; dγ and dβ are the sums of dy ∘ n and dy over rows.
    """
    @tf.custom_gradient
    def add_and_normalize(inputs, bias, residual, gamma, beta):
        outputs, normal, scale = island(
            _normalize_forward, inputs, bias, residual, gamma, beta, dropped, epsilon)

        def gradient(upstream):
            d_inputs, d_residual, d_gamma = island(
                _normalize_gradient, upstream, normal, scale, gamma, dropped)
            d_bias, d_gamma, d_beta = _sum_rows(d_inputs, d_gamma, upstream)
            return d_inputs, d_bias, d_residual, d_gamma, d_beta

        return outputs, gradient

    return add_and_normalize(inputs, bias, residual, gamma, beta)


def _normalize_forward(inputs, bias, residual, gamma, beta, dropped, epsilon):
    """Returns the outputs, the normalized sum [..., H], and r [..., 1]."""
    total = wide(residual) + drop(wide(inputs) + bias, dropped)
    centred = total - _row_means(total)
    variance = _row_means(tf.square(centred))
    scale = tf.math.rsqrt(variance + epsilon)
    normal = centred * scale
    return (tf.cast(normal * gamma + beta, inputs.dtype),
            tf.cast(normal, inputs.dtype), scale)


def _normalize_gradient(upstream, normal, scale, gamma, dropped):
    """Returns the gradients of inputs and residual, and that of gamma in each row."""
    dtype = upstream.dtype
    upstream, normal = wide(upstream), wide(normal)
    scaled = upstream * gamma
    mean, slope = _row_means(scaled), _row_means(scaled * normal)
    d_total = scale * (scaled - mean - normal * slope)
    return (tf.cast(drop(d_total, dropped), dtype), tf.cast(d_total, dtype),
            tf.cast(upstream * normal, dtype))


# ---- loss ------------------------------------------------------------------


def cross_entropy(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Returns the softmax cross-entropy: float32 [..., V], int32 [...] → [...].

    It is three times as fast as TensorFlow's, because it uses oneDNN's softmax. With
    probabilities p and k the index of the largest, log Σ exp(x) = x[k] - log p[k],
    where p[k] is at least 1 / V.
    """
    if not is_compiled(logits.shape):
        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)

    @tf.custom_gradient
    def loss(logits):
        probs = tf.nn.softmax(logits)
        largest = tf.argmax(logits, axis=-1, output_type=tf.int32)

        def of(numbers, places):
            return tf.gather(numbers, places, batch_dims=labels.shape.rank)

        losses = (of(logits, largest) - of(logits, labels)
                  - tf.math.log(of(probs, largest)))
        return losses, lambda upstream: island(
            _cross_entropy_gradient, upstream, probs, labels)

    return loss(logits)


def _cross_entropy_gradient(upstream, probs, labels):
    one = tf.equal(tf.range(probs.shape[-1]), labels[..., tf.newaxis])
    return upstream[..., tf.newaxis] * (probs - tf.cast(one, probs.dtype))


# ---- served ----------------------------------------------------------------


def _served_attend(query, key, value, mask, _):  # Served models have no dropout.
    return tf.matmul(_probabilities(query, key, mask), value)


def _served_add_activation(inputs, bias, name):
    """Adds a bias and applies an activation, so that TensorFlow fuses bias and gelu
    with the product before them, and oneDNN computes them in float32. On other devices
    than CPUs they are not fused, and gelu is computed in the type of the inputs."""
    if inputs.dtype == tf.float16 or name != "gelu":
        return plain.add_activation(inputs, bias, name)
    return plain.activation(name)(tf.nn.bias_add(inputs, tf.cast(bias, inputs.dtype)))


FAST = Parts(_fast_attend, _fast_add_activation, _fast_add_and_normalize)
SERVED = Parts(_served_attend, _served_add_activation, plain.add_and_normalize)
