"""Layers that the backward pass computes once more, to save memory.

Of L layers of B sequences of S pieces, width H, there are left between forward and
backward pass the inputs of the layers, L · B · S · H numbers, and what is in one layer.
Without an order of its own a graph would not keep to that: TensorFlow and XLA compute
an operation as soon as they like once its inputs are there. So

  a layer is computed again only when the gradient of its output is there, else all
    layers might be at once, or be seen to be computed twice and be kept (`after`);
  so is what needs no input of the layer: the draws of dropout (DropoutSeeds.after);
  the gradient of its input is handed on only when those of its weights are there:
    the executor might put off the products that give them, and keep what they need.
"""

from typing import Callable

import tensorflow as tf


def recomputed(function: Callable[..., tf.Tensor], hidden: tf.Tensor,
               *weights: tf.Tensor) -> tf.Tensor:
    """function(hidden, *weights), of which nothing is kept for the backward pass.

    There it is computed once more. It must give the same each time, and all that it
    computes, and is large, must depend on `hidden`.
    """
    @tf.custom_gradient
    def call(hidden, *weights):
        def gradient(upstream):
            late = after(hidden, upstream)
            with tf.GradientTape() as tape:
                tape.watch([late, *weights])
                output = function(late, *weights)
            d_hidden, *d_weights = tape.gradient(
                output, [late, *weights], output_gradients=upstream)
            with tf.control_dependencies(d_weights):
                return (tf.identity(d_hidden), *d_weights)

        return function(hidden, *weights), gradient

    return call(hidden, *weights)


def after(tensor: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
    """`tensor`, but not before `other`, of floats, is there.

    XLA knows no order but that of data; a number that is 0 unless the first of `other`
    is NaN makes one that it cannot see through.
    """
    first = tf.reshape(other, [-1])[0]
    zero = tf.where(tf.equal(first, first), tf.zeros([], first.dtype), first)
    return tensor + tf.cast(zero, tensor.dtype)
