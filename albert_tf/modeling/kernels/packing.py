"""Which rows the layers compute: those of all positions, or of pieces alone.

All of a layer but attention treats each position by itself, and so needs no rows of
padding. Packed, the rows of the pieces of all sequences follow each other, and after
them come spare ones (*). Only attention sees [B, A, S, D], with the first spare row
at every position of padding:

    a b c . .    packed    a b c d e * *    for attention    a b c * *
    d e . . .                                                d e * * *

This is exact as long as nobody reads positions of padding. Their keys have the
probability 0 (exactly, through the mask), so that no piece depends on a spare row, and
the gradient of spare rows is 0 everywhere: of the outputs because they are not read,
and through the layers because each of the products and element-wise parts gives a row
of zeros for a row of zeros. Hence packing and its reverse, both of them gathers, are
each other's gradient.

Shapes: B batch, S sequence, N rows that are computed, H width, A heads, D = H / A;
n tensors beside each other in a row.
"""

import tensorflow as tf

from albert_tf.modeling.kernels import fast

# XLA compiles the element-wise parts for each N, so that it is a multiple of a 16th
# of B · S.
_SIZES = 16


def at_positions(hidden: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
    """Rows of hidden [B, S, H] at positions int [B, Q]: [B, Q, H]."""
    batch, length, size = tf.unstack(tf.shape(hidden))
    # Row numbers into [B·S, H]: a gather of flat rows, whose gradient is a sum by
    # row that every device has.
    rows = tf.cast(positions, tf.int32) + length * tf.range(batch)[:, tf.newaxis]
    found = tf.gather(tf.reshape(hidden, [-1, size]), rows)
    found.set_shape([hidden.shape[0], positions.shape[1], hidden.shape[-1]])
    return found


class AllRows:
    """Every position has a row: the layers compute [B, S, H]."""

    def pack(self, hidden: tf.Tensor) -> tf.Tensor:
        """[B, S, H] → rows."""
        return hidden

    def unpack(self, rows: tf.Tensor) -> tf.Tensor:
        """Rows → [B, S, H]."""
        return rows

    def at(self, rows: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
        """Rows at positions int [B, Q]: [B, Q, H]."""
        return at_positions(rows, positions)

    def to_heads(self, rows: tf.Tensor, heads: int, depth: int) -> list[tf.Tensor]:
        """Rows of n · A · D columns → n tensors [B, A, S, D]."""
        batch, length, _ = tf.unstack(tf.shape(rows))
        split = tf.reshape(rows, [
            batch, length, rows.shape[-1] // (heads * depth), heads, depth])
        return tf.unstack(tf.transpose(split, [2, 0, 3, 1, 4]))

    def from_heads(self, context: tf.Tensor) -> tf.Tensor:
        """[B, A, S, D] → rows of A · D columns."""
        _, heads, _, depth = context.shape
        batch, _, length, _ = tf.unstack(tf.shape(context))
        rows = tf.reshape(tf.transpose(context, [0, 2, 1, 3]),
                          [batch, length, heads * depth])
        rows.set_shape([context.shape[0], context.shape[2], heads * depth])
        return rows

    def parts(self, rows: tf.Tensor) -> fast.Parts:
        """The element-wise parts that suit the rows."""
        return fast.parts_for(rows)


ALL_ROWS = AllRows()


class PackedRows(AllRows):
    """Pieces alone have rows, of which there are [N, H]; N is known when it runs.

    Position 0 counts as a piece, since the pooler reads it, and so do all positions of
    a sequence that is all padding, since it attends to them.

    Args:
      mask: [B, S], not 0 for pieces. Where B or S is unknown, nothing is compiled, and
        there is one spare row and no other.
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
        # One spare row at least; without padding none is needed.
        step = -(-self._most // _SIZES) if self._known else 1
        size = tf.minimum((count // step + 1) * step, self._most)
        # Of each row, its position in [B · S]; spare rows have that of some padding.
        # A served batch may have no sequences, of which there is no least value.
        padding = tf.argmin(
            tf.pad(tf.cast(real, tf.int32), [[0, 1]], constant_values=1),
            output_type=tf.int32)
        self._positions = tf.concat(
            [tf.cast(tf.where(real)[:, 0], tf.int32),
             tf.fill([size - count], padding)], axis=0)
        # Of each position, its row.
        self._rows = tf.where(real, tf.cumsum(tf.cast(real, tf.int32)) - 1, count)

    def pack(self, hidden):
        return self._gather(tf.reshape(hidden, [self._most, hidden.shape[-1]]),
                            self._positions, self._rows)

    def unpack(self, rows):
        found = self._gather(rows, self._rows, self._positions)
        return tf.reshape(found, [self._batch, self._length, rows.shape[-1]])

    def _gather(self, inputs, indices, reverse):
        @tf.custom_gradient
        def gather(inputs):
            return (tf.gather(inputs, indices),
                    lambda upstream: tf.gather(upstream, reverse))

        return gather(inputs)

    def at(self, rows, positions):
        positions += self._length * tf.range(self._batch)[:, tf.newaxis]
        indices = tf.gather(self._rows, positions)

        @tf.custom_gradient
        def gather(rows):
            # By hand, since TensorFlow warns of a gather's gradient of unknown size.
            return tf.gather(rows, indices), lambda upstream: (
                tf.math.unsorted_segment_sum(upstream, indices, tf.shape(rows)[0]))

        return gather(rows)

    def to_heads(self, rows, heads, depth):
        count = rows.shape[-1] // (heads * depth)

        @tf.custom_gradient
        def convert(rows):
            return (self._to_heads(rows, count, heads, depth),
                    lambda *upstream: self._from_heads(tf.stack(upstream)))

        return convert(rows)

    def from_heads(self, context):
        _, heads, _, depth = context.shape

        @tf.custom_gradient
        def convert(context):
            return (self._from_heads(context[tf.newaxis]),
                    lambda upstream: self._to_heads(upstream, 1, heads, depth)[0])

        return convert(context)

    # A head's row of D numbers moves as a whole, so that one gather packs and
    # transposes; it takes no longer than a transpose.

    def _to_heads(self, rows, count, heads, depth):
        """[N, n · A · D] → n tensors [B, A, S, D]."""
        row = tf.reshape(self._rows, [1, self._batch, 1, self._length])
        place = tf.reshape(tf.range(count * heads), [count, 1, heads, 1])
        found = tf.gather(tf.reshape(rows, [-1, depth]), row * (count * heads) + place)
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

    def parts(self, rows):
        if self._served and fast.on_cpu():
            return fast.SERVED
        return fast.parts_for(rows, self._most if self._known else None)


def rows_of(mask: tf.Tensor, skip_padding: bool, served: bool = False) -> AllRows:
    """The rows to compute of a batch with a mask [B, S]."""
    empty = mask.shape.num_elements() == 0
    return PackedRows(mask, served) if skip_padding and not empty else ALL_ROWS
