"""A kernel that several layers share: cast once, its gradients summed in float32."""

import tensorflow as tf

from albert_tf.modeling.kernels import fast

# Gradients that are summed at once hold so many bytes at the most: more of them take
# less time, as the sum so far is read and written more seldom.
_SUMMED_BYTES = 1 << 25


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
    return tf.add_n([fast.wide(tensor) for tensor in tensors])
