"""Packing: the layers compute the pieces of a batch without its padding.

Texts of a batch differ in length, and padding costs as much as pieces do. All of a
layer but attention treats each position by itself, and so needs no padding. Packed, the
pieces of all sequences follow each other (flash-attention: `unpad_input`), and after
them come spare ones (*). Only attention sees [B, A, S, D], with the first spare one at
every position of padding (`pad_input`):

    a b c . .    packed    a b c d e * *    for attention    a b c * *
    d e . . .                                                d e * * *

This is exact as long as positions of padding are not read. Their keys have the
probability 0 (exactly, through the mask), so that no piece depends on a spare one, and
the gradient at spare ones is 0 everywhere: of the outputs because they are not read,
and through the layers because products and element-wise parts turn zeros into zeros.
Hence unpadding and padding, both of them gathers, are each other's gradient.

Shapes: B batch, S sequence, N places of the packed, H width, A heads, D = H / A;
n tensors beside each other in the last axis.
"""

from typing import Optional

import tensorflow as tf

from albert_tf.modeling.kernels import fast
from albert_tf.modeling.kernels.plain import Dropped, Parts

# XLA compiles the element-wise parts for each N, so that it is a multiple of a 16th
# of B · S.
_SIZES = 16


def at_positions(hidden: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
    """[B, S, H] at positions int [B, Q]: [B, Q, H]."""
    batch, length, size = tf.unstack(tf.shape(hidden))
    # Row numbers into [B·S, H]: a gather of flat rows, whose gradient is a sum by
    # row that every device has.
    rows = tf.cast(positions, tf.int32) + length * tf.range(batch)[:, tf.newaxis]
    found = tf.gather(tf.reshape(hidden, [-1, size]), rows)
    found.set_shape([hidden.shape[0], positions.shape[1], hidden.shape[-1]])
    return found


class Padded:
    """Activations of every position, [B, S, H]: the layout that leaves padding in."""

    def unpad(self, hidden: tf.Tensor) -> tf.Tensor:
        """[B, S, H] → the layout's own shape, [..., H]."""
        return hidden

    def pad(self, hidden: tf.Tensor) -> tf.Tensor:
        """[..., H] → [B, S, H]."""
        return hidden

    def at(self, hidden: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
        """[..., H] at positions int [B, Q]: [B, Q, H]."""
        return at_positions(hidden, positions)

    def to_heads(self, hidden: tf.Tensor, heads: int, depth: int) -> list[tf.Tensor]:
        """[..., n · A · D] → n tensors [B, A, S, D]."""
        batch, length, _ = tf.unstack(tf.shape(hidden))
        split = tf.reshape(hidden, [
            batch, length, hidden.shape[-1] // (heads * depth), heads, depth])
        return tf.unstack(tf.transpose(split, [2, 0, 3, 1, 4]))

    def from_heads(self, context: tf.Tensor) -> tf.Tensor:
        """[B, A, S, D] → [..., A · D]."""
        _, heads, _, depth = context.shape
        batch, _, length, _ = tf.unstack(tf.shape(context))
        hidden = tf.reshape(tf.transpose(context, [0, 2, 1, 3]),
                            [batch, length, heads * depth])
        hidden.set_shape([context.shape[0], context.shape[2], heads * depth])
        return hidden

    def dropped(self, seeds, hidden: tf.Tensor, rate: float) -> Optional[Dropped]:
        """Which of the units of `hidden` [..., H] stay, by layers.DropoutSeeds: the
        same in every layout."""
        return seeds.draw(tf.shape(hidden), rate)

    def parts(self, hidden: tf.Tensor) -> Parts:
        """The element-wise parts that suit `hidden` [..., H]."""
        return fast.parts_for(hidden.shape)


PADDED = Padded()


class Packed(Padded):
    """Activations of pieces alone, [N, H]; N is known when it runs.

    Position 0 counts as a piece, since the pooler reads it, and so do all positions of
    a sequence that is all padding, since it attends to them.

    Args:
      mask: [B, S], not 0 for pieces. Where B or S is unknown, nothing is compiled, and
        there is a single spare place.
      served: whether it is for an exported model.
    """

    def __init__(self, mask: tf.Tensor, served: bool = False):
        self._served = served
        self._known = mask.shape.is_fully_defined()
        self._batch, self._length = mask.shape if self._known else tf.unstack(
            tf.shape(mask))
        self._most = self._batch * self._length
        real = tf.not_equal(mask, 0)
        real |= tf.logical_not(tf.reduce_any(real, axis=1, keepdims=True))
        real |= tf.range(self._length) == 0
        real = tf.reshape(real, [-1])
        count = tf.reduce_sum(tf.cast(real, tf.int32))
        # One spare place at least; without padding none is needed.
        step = -(-self._most // _SIZES) if self._known else 1
        size = tf.minimum((count // step + 1) * step, self._most)
        # Of each place, its position in [B · S]; spare ones have that of some padding.
        # A served batch may have no sequences, of which there is no least value.
        padding = tf.argmin(
            tf.pad(tf.cast(real, tf.int32), [[0, 1]], constant_values=1),
            output_type=tf.int32)
        self._positions = tf.concat(
            [tf.cast(tf.where(real)[:, 0], tf.int32),
             tf.fill([size - count], padding)], axis=0)
        # Of each position, its place in [N].
        self._places = tf.where(real, tf.cumsum(tf.cast(real, tf.int32)) - 1, count)

    def unpad(self, hidden):
        return self._gather(tf.reshape(hidden, [self._most, hidden.shape[-1]]),
                            self._positions, self._places)

    def pad(self, hidden):
        found = self._gather(hidden, self._places, self._positions)
        return tf.reshape(found, [self._batch, self._length, hidden.shape[-1]])

    def _gather(self, inputs, indices, reverse):
        @tf.custom_gradient
        def gather(inputs):
            return (tf.gather(inputs, indices),
                    lambda upstream: tf.gather(upstream, reverse))

        return gather(inputs)

    def at(self, hidden, positions):
        positions += self._length * tf.range(self._batch)[:, tf.newaxis]
        indices = tf.gather(self._places, positions)

        @tf.custom_gradient
        def gather(hidden):
            # By hand, since TensorFlow warns of a gather's gradient of unknown size.
            return tf.gather(hidden, indices), lambda upstream: (
                tf.math.unsorted_segment_sum(upstream, indices, tf.shape(hidden)[0]))

        return gather(hidden)

    def to_heads(self, hidden, heads, depth):
        count = hidden.shape[-1] // (heads * depth)

        @tf.custom_gradient
        def convert(hidden):
            return (self._to_heads(hidden, count, heads, depth),
                    lambda *upstream: self._from_heads(tf.stack(upstream)))

        return convert(hidden)

    def from_heads(self, context):
        _, heads, _, depth = context.shape

        @tf.custom_gradient
        def convert(context):
            return (self._from_heads(context[tf.newaxis]),
                    lambda upstream: self._to_heads(upstream, 1, heads, depth)[0])

        return convert(context)

    # A head's D numbers move as a whole, so that one gather packs and transposes; it
    # takes no longer than a transpose.

    def _to_heads(self, hidden, count, heads, depth):
        """[N, n · A · D] → n tensors [B, A, S, D]."""
        place = tf.reshape(self._places, [1, self._batch, 1, self._length])
        head = tf.reshape(tf.range(count * heads), [count, 1, heads, 1])
        found = tf.gather(tf.reshape(hidden, [-1, depth]),
                          place * (count * heads) + head)
        return tf.unstack(found)  # [n, B, A, S, D]

    def _from_heads(self, tensors):
        """[n, B, A, S, D] → [N, n · A · D]."""
        count, _, heads, _, depth = tensors.shape
        sequence, position = (
            part[:, tf.newaxis, tf.newaxis] for part in (
                self._positions // self._length, self._positions % self._length))
        number = tf.range(count)[:, tf.newaxis] * self._batch + sequence
        number = number * heads + tf.range(heads)  # [N, n, A]
        found = tf.gather(tf.reshape(tensors, [-1, depth]),
                          number * self._length + position)
        return tf.reshape(found, [-1, count * heads * depth])

    def dropped(self, seeds, hidden, rate):
        size = hidden.shape[-1]
        drawn = seeds.draw([self._batch, self._length, size], rate)
        return drawn and drawn._replace(keep=tf.gather(
            tf.reshape(drawn.keep, [self._most, size]), self._positions))

    def parts(self, hidden):
        most = self._most if self._known else hidden.shape[0]
        return fast.parts_for(tf.TensorShape([most, *hidden.shape[1:]]), self._served)


def layout_of(mask: tf.Tensor, skip_padding: bool, served: bool = False) -> Padded:
    """How the layers hold a batch with a mask [B, S].

        layout = layout_of(mask, skip_padding=True)
        layout.pad(layout.unpad(hidden))  # The same at all pieces.
    """
    empty = mask.shape.num_elements() == 0
    return Packed(mask, served) if skip_padding and not empty else PADDED
