"""The parts of a layer (see plain), faster on CPUs.

Between two matrix products a layer does little arithmetic but moves much memory: each
operation of its own reads and writes all activations, and automatic differentiation
keeps what each of them needs. FAST has a gradient by hand that keeps only what it
needs, and XLA to compile what stands between two products into single loops. The
products stay outside, since XLA's own are slower on a CPU than oneDNN's. SERVED is for
exported models on CPUs, whose batches have any shape and need no gradients.

`parts_for` chooses: FAST on CPUs, PLAIN on GPUs and TPUs, where XLA compiles whole
steps.
"""

import math

import tensorflow as tf
from tensorflow.python.ops import control_flow_util

from albert_tf.modeling.kernels import plain
from albert_tf.modeling.kernels.plain import Dropped, Parts, drop, wide

# Compiling a loop for each shape takes tens of milliseconds, so that it does not pay
# for batches of fewer numbers than this (B · S · H).
MIN_SIZE = 1 << 15

_GELU_SLOPE = math.sqrt(2.0 / math.pi)
_GELU_CUBIC = 0.044715


# ---- the choice ------------------------------------------------------------


def parts_for(shape: tf.TensorShape, served: bool = False) -> Parts:
    """The parts that suit the device and the shape, [B, S, H] or [N, H], of a batch.

    Unknown shapes get the plain ones: XLA would compile for every shape that comes.
    Where N is unknown but takes few values, give the largest. `served`: for an exported
    model.
    """
    if not on_cpu():
        return plain.PLAIN
    if served:
        return SERVED
    size = shape.num_elements()
    return FAST if size is not None and size >= MIN_SIZE else plain.PLAIN


def on_cpu() -> bool:
    """Whether the current strategy computes on CPUs."""
    strategy = tf.distribute.get_strategy()
    if not tf.distribute.has_strategy():
        return not (tf.config.list_logical_devices("GPU")
                    or tf.config.list_logical_devices("TPU"))
    return all("CPU" in device.upper() for device in strategy.extended.worker_devices)


def _within_xla():
    """Whether XLA will compile the graph that is being built: a step with --jit_compile,
    Keras' own jit_compile. TensorFlow has no public name for it."""
    return control_flow_util.GraphOrParentsInXlaContext(
        tf.compat.v1.get_default_graph())


# ---- bias ------------------------------------------------------------------


def add_bias(inputs: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    """`inputs` [..., H] + `bias` [H] float32, in the type of the inputs."""
    if inputs.dtype == bias.dtype:
        return tf.nn.bias_add(inputs, bias)

    @tf.custom_gradient
    def add(inputs, bias):
        outputs = tf.nn.bias_add(inputs, tf.cast(bias, inputs.dtype))
        return outputs, lambda upstream: (upstream, *_sum_rows(upstream))

    return add(inputs, bias)


def _sum_rows(*tensors):
    """[..., H] → [H] of each, in the type of biases.

    Apart from the part that made them, in which XLA would compute each number twice, to
    store it and to sum it. TensorFlow's own sums would add up bfloat16 in bfloat16,
    where 256 + 1 is 256; oneDNN's product with ones adds up in float32 and rounds once,
    as in the gradients of kernels.
    """
    flat = [tf.reshape(tensor, [-1, tensor.shape[-1]]) for tensor in tensors]
    if flat[0].dtype == tf.bfloat16 and on_cpu():
        ones = tf.ones([1, tf.shape(flat[0])[0]], tf.bfloat16)
        return [wide(tf.matmul(ones, rows)[0]) for rows in flat]
    if flat[0].dtype.size == 2:
        return [tf.reduce_sum(wide(rows), axis=0) for rows in flat]
    return [tf.raw_ops.BiasAddGrad(out_backprop=rows) for rows in flat]


# ---- compiled between products ---------------------------------------------

# (function, its options, types and shapes of its arguments) → the compiled one.
_compiled = {}


def island(function, *tensors, **options):
    """function(*tensors, **options), compiled by XLA; None among the tensors stays.

    One tf.function for each signature: all layers of a shape share it, and TensorFlow
    does not warn of one that was traced for many shapes.
    """
    given = [tensor for tensor in tensors if tensor is not None]
    places = tuple(tensor is not None for tensor in tensors)
    key = (function, tuple(sorted(options.items())), places,
           tuple((t.dtype, tuple(t.shape)) for t in given))

    def call(*given):
        rest = iter(given)
        return function(*(next(rest) if there else None for there in places), **options)

    if key not in _compiled:
        call.__name__ = function.__name__  # Profiles show it.
        _compiled[key] = tf.function(call, jit_compile=True, autograph=False)
    return _compiled[key](*given)


def _dropped(keep, rate):
    return None if keep is None else Dropped(keep, rate)


def _keep_and_rate(dropped):
    return (None, 0.0) if dropped is None else dropped


def _row_sums(inputs):
    """[..., H] → [..., 1], as a product: XLA sums rows of floats in small windows,
    which takes longer."""
    size = inputs.shape[-1]
    sums = tf.matmul(tf.reshape(inputs, [-1, size]), tf.ones([size, 1], inputs.dtype))
    # Of [N, H], N may be unknown.
    return sums if len(inputs.shape) == 2 else tf.reshape(sums, [*inputs.shape[:-1], 1])


def _row_means(inputs):
    return _row_sums(inputs) / inputs.shape[-1]


# ---- attention -------------------------------------------------------------


def _fast_attend(query, key, value, mask, dropped):
    """Keeps the probabilities and which were dropped, but not the dropped ones.

    With s = 1 / sqrt(D), Z = s · Q · Kᵀ + mask, P = softmax(Z), U = drop(P), C = U · V
    and upstream dC: dV = Uᵀ · dC, dU = dC · Vᵀ, dP = drop(dU), and from the softmax,
    whose Jacobian in a row is diag(p) - p · pᵀ, dZ = P ∘ (dP - rowsum(P ∘ dP)). Since
    P ∘ dP = U ∘ dU, a row of whose sum is that of C ∘ dC, which has D columns and not
    S (Dao et al. 2022), dZ takes one pass. dQ = s · dZ · K and dK = s · dZᵀ · Q; the
    mask is constant.
    """
    keep, rate = _keep_and_rate(dropped)
    factor = plain.score_scale(query)

    @tf.custom_gradient
    def attend(query, key, value, mask):
        probs = _probabilities(query, key, mask)
        context = tf.matmul(_drop_probs(probs, keep, rate), value)

        def gradient(upstream):
            used = _drop_probs(probs, keep, rate)
            d_value = tf.matmul(used, upstream, transpose_a=True)
            d_used = tf.matmul(upstream, value, transpose_b=True)
            d_scores = island(_scores_gradient, d_used, probs, context, upstream, keep,
                              rate=rate, factor=factor)
            return (tf.matmul(d_scores, key),
                    tf.matmul(d_scores, query, transpose_a=True), d_value, None)

        return context, gradient

    return attend(query, key, value, mask)


def _probabilities(query, key, mask):
    # TensorFlow makes this one operation of oneDNN's: scale and mask cost nothing.
    scores = (tf.matmul(query, key, transpose_b=True)
              * tf.constant(plain.score_scale(query), query.dtype)
              + tf.cast(mask, query.dtype))
    # Its own softmax, since XLA's is slower here: it finds the largest score of a row
    # one by one. Of bfloat16 it computes in float32, of float16 it does not.
    if scores.dtype == tf.float16:
        scores = wide(scores)
    return tf.cast(tf.nn.softmax(scores), query.dtype)


def _drop_probs(probs, keep, rate):
    if keep is None:
        return probs
    return island(_dropped_probs, probs, keep, rate=rate)


def _dropped_probs(probs, keep, rate):
    return tf.cast(drop(wide(probs), Dropped(keep, rate)), probs.dtype)


def _scores_gradient(d_used, probs, context, upstream, keep, rate, factor):
    d_probs = drop(wide(d_used), _dropped(keep, rate))
    sums = _row_sums(wide(context) * wide(upstream))
    return tf.cast(factor * wide(probs) * (d_probs - sums), d_used.dtype)


# ---- dropout ---------------------------------------------------------------


def random_bytes(key: tf.Tensor, counter: tf.Tensor, blocks) -> tf.Tensor:
    """uint8 [16 · blocks], the numbers of TensorFlow's Philox.

    Args:
      key, counter: uint64 [1] and [2], as tf.raw_ops.StatelessRandomUniformFullIntV2
        takes them, which takes three times as long.
      blocks: an int; a tensor if it is not known before, then nothing is compiled.
    """
    # XLA cannot cast the bits of complex numbers, so they have to leave it first.
    if (isinstance(blocks, int) and MIN_SIZE // 16 <= blocks < 2 ** 31
            and on_cpu() and not _within_xla()):
        numbers = island(_philox, key[0], counter, blocks=blocks)
    else:
        numbers = tf.raw_ops.StatelessRandomUniformFullIntV2(
            shape=[4 * blocks], key=key, counter=counter, dtype=tf.uint32,
            alg=tf.random.Algorithm.PHILOX.value)
    return tf.reshape(tf.bitcast(numbers, tf.uint8), [-1])


def _philox(key, counter, blocks):
    """Philox 4x32-10 (Salmon et al. 2011) of `blocks` counters: complex128 [blocks],
    four words each, since XLA makes one loop of what has one output."""
    def low(number):
        return tf.cast(number, tf.uint32)

    def high(number):
        return low(tf.bitwise.right_shift(number, tf.constant(32, tf.uint64)))

    def product(factor, word):
        return tf.constant(factor, tf.uint64) * tf.cast(word, tf.uint64)

    def pair(first, second):
        bits = tf.cast(first, tf.uint64) | tf.bitwise.left_shift(
            tf.cast(second, tf.uint64), tf.constant(32, tf.uint64))
        return tf.bitcast(bits, tf.float64)

    first = counter[0] + tf.cast(tf.range(blocks), tf.uint64)
    second = counter[1] + tf.cast(first < counter[0], tf.uint64)
    words = low(first), high(first), low(second), high(second)
    keys = low(key), high(key)
    for _ in range(10):
        left, right = product(0xD2511F53, words[0]), product(0xCD9E8D57, words[2])
        words = (high(right) ^ words[1] ^ keys[0], low(right),
                 high(left) ^ words[3] ^ keys[1], low(left))
        keys = (keys[0] + tf.constant(0x9E3779B9, tf.uint32),
                keys[1] + tf.constant(0xBB67AE85, tf.uint32))
    return tf.complex(pair(*words[:2]), pair(*words[2:]))


# ---- activation ------------------------------------------------------------


def _fast_add_activation(inputs, bias, name):
    """Keeps the inputs alone; the derivative is computed from them again."""
    @tf.custom_gradient
    def add_activation(inputs, bias):
        outputs = island(plain.add_activation, inputs, bias, name=name)

        def gradient(upstream):
            d_inputs = island(_activation_gradient, upstream, inputs, bias, name=name)
            return (d_inputs, *_sum_rows(d_inputs))

        return outputs, gradient

    return add_activation(inputs, bias)


def _gelu_derivative(x):
    # gelu = x / 2 · (1 + t) with t = tanh(u), u = s · (x + c · x³), and so
    # gelu' = (1 + t) / 2 + x / 2 · (1 - t²) · u', u' = s · (1 + 3c · x²).
    square = x * x
    t = tf.tanh(_GELU_SLOPE * x * (1.0 + _GELU_CUBIC * square))
    slope = _GELU_SLOPE * (1.0 + 3.0 * _GELU_CUBIC * square)
    return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * slope


def _erf_gelu_derivative(x):
    # gelu = x · F(x) with the normal distribution F, and so gelu' = F(x) + x · F'(x).
    return (0.5 * (1.0 + tf.math.erf(x * math.sqrt(0.5)))
            + x * tf.exp(-0.5 * x * x) / math.sqrt(2.0 * math.pi))


_DERIVATIVES = {
    "gelu": _gelu_derivative,
    "gelu_erf": _erf_gelu_derivative,
    "relu": lambda x: tf.cast(x > 0, x.dtype),
    "tanh": lambda x: 1.0 - tf.square(tf.tanh(x)),
    "linear": tf.ones_like,
}


def _activation_gradient(upstream, inputs, bias, name):
    derivative = _DERIVATIVES[name](wide(inputs) + bias)
    return tf.cast(wide(upstream) * derivative, inputs.dtype)


# ---- LayerNorm -------------------------------------------------------------


def _fast_add_and_normalize(inputs, bias, residual, gamma, beta, dropped,
                            epsilon=plain.LAYER_NORM_EPSILON):
    """Keeps the normalized sum and one number for each row.

    With t the sum in a row, m its mean, r = 1 / sqrt(variance + ε), n = r · (t - m),
    output y = n ∘ γ + β and upstream dy, let g = dy ∘ γ. Since m and r depend on t,
    dt = r · (g - mean(g) - n ∘ mean(g ∘ n)). It goes to the residual as it is and to
    the inputs through the dropout; dγ and dβ are the sums of dy ∘ n and dy over rows.
    """
    keep, rate = _keep_and_rate(dropped)

    @tf.custom_gradient
    def add_and_normalize(inputs, bias, residual, gamma, beta):
        outputs, normal, scale = island(
            _normalize_forward, inputs, bias, residual, gamma, beta, keep, rate=rate,
            epsilon=epsilon)

        def gradient(upstream):
            d_inputs, d_residual, d_gamma = island(
                _normalize_gradient, upstream, normal, scale, gamma, keep, rate=rate)
            d_bias, d_gamma, d_beta = _sum_rows(d_inputs, d_gamma, upstream)
            return d_inputs, d_bias, d_residual, d_gamma, d_beta

        return outputs, gradient

    return add_and_normalize(inputs, bias, residual, gamma, beta)


def _normalize_forward(inputs, bias, residual, gamma, beta, keep, rate, epsilon):
    """Outputs, the normalized sum [..., H], and r [..., 1]."""
    total = wide(residual) + drop(wide(inputs) + bias, _dropped(keep, rate))
    centred = total - _row_means(total)
    variance = _row_means(tf.square(centred))
    scale = tf.math.rsqrt(variance + epsilon)
    normal = centred * scale
    return (tf.cast(normal * gamma + beta, inputs.dtype),
            tf.cast(normal, inputs.dtype), scale)


def _normalize_gradient(upstream, normal, scale, gamma, keep, rate):
    """Gradients of inputs, residual, and of gamma in each row."""
    dtype = upstream.dtype
    upstream, normal = wide(upstream), wide(normal)
    scaled = upstream * gamma
    mean, slope = _row_means(scaled), _row_means(scaled * normal)
    d_total = scale * (scaled - mean - normal * slope)
    d_inputs = drop(d_total, _dropped(keep, rate))
    return (tf.cast(d_inputs, dtype), tf.cast(d_total, dtype),
            tf.cast(upstream * normal, dtype))


# ---- loss ------------------------------------------------------------------


def cross_entropy(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Softmax cross-entropy: [..., V], int32 [...] → [...].

    TensorFlow's takes three times as long as oneDNN's softmax and what is left to do.
    With probabilities p and k the largest, log Σ exp(x) = x[k] - log p[k], where p[k] is
    at least 1 / V.
    """
    size = logits.shape.num_elements()
    if not on_cpu() or size is None or size < MIN_SIZE or logits.dtype != tf.float32:
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


def _served_attend(query, key, value, mask, dropped):
    del dropped  # There is none.
    return tf.matmul(_probabilities(query, key, mask), value)


def _served_add_activation(inputs, bias, name):
    """TensorFlow makes bias and gelu part of the product right before them, and oneDNN
    computes them in float32. Where it does not (a model that was exported on a CPU and
    is served on another device), gelu is computed in the type of the inputs."""
    if inputs.dtype == tf.float16 or name != "gelu":
        return plain.add_activation(inputs, bias, name)
    return plain.activation(name)(tf.nn.bias_add(inputs, tf.cast(bias, inputs.dtype)))


FAST = Parts(_fast_attend, _fast_add_activation, _fast_add_and_normalize)
SERVED = Parts(_served_attend, _served_add_activation, plain.add_and_normalize)
