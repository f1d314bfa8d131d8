"""The memory of the backward pass: layers computed once more, shared kernels.

Recomputing (Chen et al. 2016) leaves between forward and backward pass the inputs of
the L layers, L · B · S · H numbers, and what is in one layer. `tf.recompute_grad` does
not: it computes again, but sets no order, and TensorFlow and XLA compute an operation
as soon as they like once its inputs are there. It is the order that saves memory:

  a layer is computed again only when the gradient of its output is there, else all
    layers might be at once, or be seen to be computed twice and be kept (`after`);
  so is what needs no input of the layer: the draws of dropout (DropoutSeeds.after);
  the gradient of its input is handed on only when those of its weights are there:
    the executor might put off the products that give them, and keep what they need.

Kernels that several layers share are cast once, and their gradients, one from each
layer, are summed as they come (`copies`).
"""

from typing import Callable

import tensorflow as tf

from albert_tf.modeling.kernels import fast
from albert_tf.modeling.kernels.plain import wide

# At most so many bytes of gradients are summed at once: the more, the less often the
# sum so far is read and written.
_SUMMED_BYTES = 1 << 25


class Recomputed:
    """A layer of which nothing is kept for the backward pass, which computes it once
    more: it must give the same each time, and what it computes that is large must
    depend on `hidden`.

    It is traced once, and once for its gradient, however many layers it computes: of 24
    layers each by itself the graph takes half a gigabyte, and many seconds to make.

    Args:
      layer: (hidden, number, *weights) → hidden; tensors that it takes from outside are
        the same for all layers, and none of them has a gradient.
    """

    def __init__(self, layer: Callable[..., tf.Tensor]):
        def gradient(upstream, hidden, number, *weights):
            late = after(hidden, upstream)
            with tf.GradientTape() as tape:
                tape.watch([late, *weights])
                output = layer(late, number, *weights)
            d_hidden, *d_weights = tape.gradient(
                output, [late, *weights], output_gradients=upstream)
            with tf.control_dependencies(d_weights):
                return (tf.identity(d_hidden), *d_weights)

        self._layer = tf.function(layer, autograph=False)
        self._gradient = tf.function(gradient, autograph=False)

    def __call__(self, hidden: tf.Tensor, number: int, *weights: tf.Tensor) -> tf.Tensor:
        number = tf.constant(number)

        @tf.custom_gradient
        def call(hidden, *weights):
            def gradient(upstream):
                return self._gradient(upstream, hidden, number, *weights)

            return self._layer(hidden, number, *weights), gradient

        return call(hidden, *weights)


def after(tensor: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
    """`tensor`, but not before `other`, of floats, is there.

    XLA knows no order but that of data; a number that is 0 unless the first of `other`
    is NaN makes one that it cannot see through.
    """
    first = tf.reshape(other, [-1])[0]
    zero = tf.where(tf.equal(first, first), tf.zeros([], first.dtype), first)
    return tensor + tf.cast(zero, tensor.dtype)


def copies(kernel: tf.Tensor, dtype: tf.DType, uses: int) -> list[tf.Tensor]:
    """A float32 kernel in the type of the products, once for each of its `uses`.

    The gradients of the uses are summed in float32, a number of them at once.
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
            # TensorFlow makes one sum of sums of sums, and so would keep the gradients
            # of all layers to the end; it cannot see into an island.
            size = kernel.shape.num_elements()
            if size >= fast.MIN_SIZE and fast.on_cpu():
                return fast.island(_sum, *upstream)
            return _sum(*upstream)

        rest = () if last else (tf.identity(kernel),)
        return (*(tf.identity(low) for _ in range(count)), *rest), gradient

    return tap(kernel)


def _sum(*tensors):
    return tf.add_n([wide(tensor) for tensor in tensors])
