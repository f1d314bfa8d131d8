"""The computations of a layer between its matrix products, written plainly.

These parts alone are enough for ALBERT: attention, softmax(q · kᵀ / sqrt(D) + mask) · v;
bias and activation; bias, residual and LayerNorm.

Activations may be float32, bfloat16 or float16; biases, gains and all arithmetic
within a part are float32 (float64 for float64 activations).
Shapes: B batch, S sequence, H width, A heads, D = H / A; `...` any axes before the
last.
"""

from typing import Callable, NamedTuple, Optional

import tensorflow as tf


class Dropped(NamedTuple):
    """The units that dropout keeps."""

    keep: tf.Tensor  # bool, in the shape of the tensor to which dropout is applied
    rate: float  # share of dropped units; the others are divided by 1 - rate


class Parts(NamedTuple):
    """The parts of a layer; `Dropped` may be None.

        attend              query, key, value [B, A, S, D], mask [B, 1, 1, S] or
                            [B, 1, S, S], Dropped of [B, A, S, S]
                            → context [B, A, S, D]
        add_activation      inputs [..., H], bias [H], name → [..., H]
        add_and_normalize   inputs [..., H], bias [H], residual [..., H], gamma [H],
                            beta [H], Dropped of the inputs, epsilon → [..., H]
    """

    attend: Callable[..., tf.Tensor]
    add_activation: Callable[..., tf.Tensor]
    add_and_normalize: Callable[..., tf.Tensor]


def drop(inputs: tf.Tensor, dropped: Optional[Dropped]) -> tf.Tensor:
    """Applies dropout to `inputs`; None drops nothing."""
    if dropped is None:
        return inputs
    scale = tf.cast(1.0 / (1.0 - dropped.rate), inputs.dtype)
    return tf.where(dropped.keep, inputs * scale, tf.zeros([], inputs.dtype))


def wide(inputs: tf.Tensor) -> tf.Tensor:
    """Casts `inputs` to the type of the arithmetic within a part."""
    return inputs if inputs.dtype == tf.float64 else tf.cast(inputs, tf.float32)


def sizes(tensor: tf.Tensor) -> list:
    """Returns the sizes of a tensor's axes: ints, or scalars where they are known only
    when the graph runs."""
    return [tf.shape(tensor)[axis] if size is None else size
            for axis, size in enumerate(tensor.shape)]


def activation(name: str) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns the function of a `hidden_act`; "gelu" is the tanh approximation, as in
    the original implementation."""
    return {"gelu": lambda x: tf.nn.gelu(x, approximate=True),
            "gelu_erf": lambda x: tf.nn.gelu(x, approximate=False),
            "relu": tf.nn.relu, "tanh": tf.tanh, "linear": tf.identity}[name]


def normalize(inputs, gamma, beta, epsilon):
    """Applies LayerNorm over the last axis (Ba et al. 2016)."""
    mean, variance = tf.nn.moments(inputs, axes=[-1], keepdims=True)
    return tf.nn.batch_normalization(
        inputs, mean, variance, beta, gamma, epsilon)


def attend(query, key, value, mask, dropped):
    scores = wide(tf.matmul(query, key, transpose_b=True)) * query.shape[-1] ** -0.5
    probs = drop(tf.nn.softmax(scores + mask), dropped)
    return tf.matmul(tf.cast(probs, value.dtype), value)


def add_activation(inputs, bias, name):
    return tf.cast(activation(name)(wide(inputs) + bias), inputs.dtype)


def add_and_normalize(inputs, bias, residual, gamma, beta, dropped, epsilon):
    total = wide(residual) + drop(wide(inputs) + bias, dropped)
    return tf.cast(normalize(total, gamma, beta, epsilon), inputs.dtype)


PLAIN = Parts(attend, add_activation, add_and_normalize)
