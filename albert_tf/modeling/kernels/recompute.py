"""Saving memory in the backward pass: recomputed layers and shared kernels.

With recomputation (Chen et al. 2016) only the inputs of the L layers, L · B · S · H
numbers, and the activations of one layer are kept between forward and backward pass.
`tf.recompute_grad` does not achieve this: it computes again, but sets no order, and
TensorFlow and XLA may compute an operation as soon as its inputs exist. The order saves
the memory:

  A layer is computed again only when the gradient of its output exists. Otherwise all
    layers might be recomputed at once, or XLA might notice that they are computed twice
    and keep them (`after`).
  The same is true for the draws of dropout, which need no input of the layer
    (DropoutSeeds.after).
  The gradient of a layer's input is passed on only when those of its weights exist.
    Otherwise the executor might delay the products for these, and keep their inputs.

Kernels that several layers share are cast once, and their gradients, one from each
layer, are summed as soon as they exist (`copies`).
"""

from typing import Callable

import tensorflow as tf

from albert_tf.modeling.kernels import fast
from albert_tf.modeling.kernels.plain import wide

# Maximum number of bytes of gradients that are summed at once. The larger it is, the
# less often the intermediate sum is read and written.
_SUMMED_BYTES = 1 << 25


class Recomputed:
    """A layer that the backward pass computes again, so that none of its activations
    are kept. It must return the same values each time, and all its large activations
    must depend on `hidden`.

    It is traced once, and once for its gradient, for any number of layers: the graph of
    24 separate layers would need half a gigabyte and many seconds to build.

    Args:
      layer: (hidden, number, *weights) → hidden; tensors that it captures from outside
        must be the same for all layers and need no gradient.
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

    def __call__(self, hidden: tf.Tensor, number: int, *weights: tf.Tensor
                 ) -> tf.Tensor:
        number = tf.convert_to_tensor(number)

        @tf.custom_gradient
        def call(hidden, *weights):
            def gradient(upstream):
                return self._gradient(upstream, hidden, number, *weights)

            return self._layer(hidden, number, *weights), gradient

        return call(hidden, *weights)


def after(tensor: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
    """Returns `tensor`, but not before `other`, a tensor of floats, exists.

    XLA orders operations only by their data. Therefore this adds a number that XLA
    cannot simplify: it is 0 unless the first number in `other` is NaN.
    """
    first = tf.reshape(other, [-1])[0]
    zero = tf.where(tf.equal(first, first), tf.zeros([], first.dtype), first)
    return tensor + tf.cast(zero, tensor.dtype)


def copies(kernel: tf.Tensor, dtype: tf.DType, uses: int) -> list[tf.Tensor]:
    """Returns a float32 kernel in the type of the products, once for each of its
    `uses`.

    The gradients of the uses are summed in float32, several of them at once.
    """
    low = tf.stop_gradient(tf.cast(kernel, dtype))
    group = max(1, _SUMMED_BYTES // (low.dtype.size * kernel.shape.num_elements()))
    kernels = []
    while len(kernels) < uses:
        count = min(group, uses - len(kernels))
        last = len(kernels) + count == uses
        outputs = _tap(kernel, low, count, last)
        kernels.extend(outputs[:count])
        kernel = outputs[-1]
    return kernels


def _tap(kernel, low, count, last):
    """Returns `count` copies of `low` and, unless they are the last, the kernel for the
    next ones."""
    def gradient(*upstream):
        # TensorFlow merges nested sums into one, which would keep the gradients of all
        # layers until the end. It does not merge the sum in an island.
        if kernel.shape.num_elements() >= fast.MIN_SIZE and fast.on_cpu():
            return fast.island(_sum, *upstream)
        return _sum(*upstream)

    return fast.with_gradient(
        lambda kernel: (*(tf.identity(low) for _ in range(count)),
                        *([] if last else [tf.identity(kernel)])), gradient, kernel)


def _sum(*tensors):
    return tf.add_n([wide(tensor) for tensor in tensors])
