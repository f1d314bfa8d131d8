"""Packing: the layers compute the tokens of a batch without its padding.

The sequences of a batch differ in length, and padding costs as much as tokens. All
parts of a layer but attention treat each position separately and need no padding.
Packed, the tokens of all sequences follow each other (flash-attention: `unpad_input`),
and after them spare ones (*). Only attention uses [B, A, S, D], with the first spare
one at every position of padding (`pad_input`):

    a b c . .    packed    a b c d e * *    for attention    a b c * *
    d e . . .                                                d e * * *

This is exact as long as the outputs at positions of padding are not read. Their keys
have the probability 0 (exactly, because of the mask), so that no token depends on a
spare one. The gradient at spare ones is 0 everywhere: in the outputs because they are
not read, and in the layers because products and element-wise parts turn zeros into
zeros. Therefore unpadding and padding, both of them gathers, are each other's gradient.

Shapes: B batch, S sequence, N packed rows, H width, A heads, D = H / A; n tensors
beside each other in the last axis.
"""

from typing import Optional

import tensorflow as tf

from albert_tf.modeling.kernels import fast, tpu
from albert_tf.modeling.kernels.fast import product, with_gradient
from albert_tf.modeling.kernels.plain import Dropped, Parts, sizes, wide

# N is a multiple of B · S / 16, because XLA compiles the element-wise parts for each N.
_SIZES = 16


class Layout:
    """How the layers hold a batch; this one with padding: every position, [B, S, H]."""

    def __init__(self):
        self.of_positions = self  # the layout of what `at` returns

    def unpad(self, hidden: tf.Tensor) -> tf.Tensor:
        """Converts [B, S, H] to the layout's shape, [..., H]."""
        return hidden

    def pad(self, hidden: tf.Tensor) -> tf.Tensor:
        """Converts [..., H] to [B, S, H]."""
        return hidden

    def at(self, hidden: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
        """Returns the rows of [..., H] at positions int [B, Q]: [B, Q, H]."""
        batch, length, size = tf.unstack(tf.shape(hidden))
        # Row numbers into [B·S, H], because every device supports the gradient of a
        # gather of flat rows, a sum by row.
        rows = tf.cast(positions, tf.int32) + length * tf.range(batch)[:, tf.newaxis]
        selected = tf.gather(tf.reshape(hidden, [-1, size]), rows)
        selected.set_shape([hidden.shape[0], positions.shape[1], hidden.shape[-1]])
        return selected

    def product(self, hidden: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        """[..., in] × [in, out] → [..., out]."""
        return product(hidden, kernel)

    def heads(self, hidden: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor, heads: int
              ) -> list[tf.Tensor]:
        """[..., H] × [H, n·H] + [n·H] → n tensors [B, A, S, D]."""
        size, output = hidden.shape[-1], product(hidden, kernel, bias)
        batch, length, _ = tf.unstack(tf.shape(output))
        split = tf.reshape(output, [
            batch, length, output.shape[-1] // size, heads, size // heads])
        return tf.unstack(tf.transpose(split, [2, 0, 3, 1, 4]))

    def join(self, context: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
        """Puts the heads [B, A, S, D] side by side: [..., A · D] × [A · D, H] →
        [..., H]."""
        _, heads, _, depth = context.shape
        batch, _, length, _ = tf.unstack(tf.shape(context))
        hidden = tf.reshape(tf.transpose(context, [0, 2, 1, 3]),
                            [batch, length, heads * depth])
        hidden.set_shape([context.shape[0], context.shape[2], heads * depth])
        return product(hidden, kernel)

    def dropped_probs(self, seeds, query: tf.Tensor, key: tf.Tensor, rate: float
                      ) -> Optional[Dropped]:
        """Draws which attention probabilities dropout keeps."""
        return seeds.draw([*sizes(query)[:-1], sizes(key)[2]], rate)

    def dropped(self, seeds, hidden: tf.Tensor, rate: float) -> Optional[Dropped]:
        """Draws which units of `hidden` [..., H] dropout keeps, by random.DropoutSeeds;
        the same units in every layout."""
        return seeds.draw(sizes(hidden), rate)

    def parts(self, hidden: tf.Tensor) -> Parts:
        """Returns the element-wise parts for `hidden` [..., H]."""
        return fast.parts_for(hidden.shape)


PADDED = Layout()


class OnTpu(Layout):
    """The layout on TPUs: with padding, because all sizes must be known to compile.
    Heads are [B, S, A, D]."""

    def at(self, hidden, positions):
        positions = tf.cast(positions, tf.int32)

        # A product, because a TPU would sort the positions before it adds to their rows.
        def gradient(upstream):
            chosen = tf.one_hot(positions, hidden.shape[1], axis=1, dtype=upstream.dtype)
            return tf.einsum("bsq,bqh->bsh", chosen, upstream)

        return with_gradient(
            lambda hidden: tf.gather(hidden, positions, batch_dims=1), gradient, hidden)

    def product(self, hidden, kernel):
        return tf.einsum("bsh,hi->bsi", hidden, kernel)

    def heads(self, hidden, kernel, bias, heads):
        size = hidden.shape[-1]
        count, shape = kernel.shape[1] // size, [heads, size // heads]

        def add_bias(inputs, bias):
            return with_gradient(
                lambda inputs, bias: inputs + tf.cast(bias, inputs.dtype),
                lambda upstream: (
                    upstream, tf.reduce_sum(wide(upstream), axis=[0, 1])), inputs, bias)

        return [add_bias(tf.einsum("bsh,had->bsad", hidden,
                                   tf.reshape(part, [size, *shape])),
                         tf.reshape(part_bias, shape))
                for part, part_bias in zip(tf.split(kernel, count, axis=1),
                                           tf.split(bias, count))]

    def join(self, context, kernel):
        _, _, heads, depth = context.shape
        return tf.einsum("bsad,adh->bsh", context,
                         tf.reshape(kernel, [heads, depth, kernel.shape[1]]))

    def dropped_probs(self, seeds, query, key, rate):
        batch, length, heads, _ = query.shape
        return seeds.draw([batch, heads, key.shape[1], length], rate)

    def parts(self, hidden):
        return tpu.TPU


ON_TPU = OnTpu()


class Packed(Layout):
    """The layout without padding: activations of tokens only, [N, H]; N is known when
    the graph runs.

    Position 0 always counts as a token, because the pooler reads it. All positions of a
    sequence without tokens count, too, because it attends to them. `mask` is [B, S], not
    0 for tokens; if B or S is unknown, nothing is compiled, and there is a single spare
    row. `served` is True for an exported model.
    """

    def __init__(self, mask: tf.Tensor, served: bool = False):
        self._served, self.of_positions = served, PADDED
        self._known = mask.shape.num_elements()  # B · S, or None
        self._batch, self._length = sizes(mask)
        self._most = self._batch * self._length
        is_token = tf.not_equal(mask, 0)
        is_token |= tf.logical_not(tf.reduce_any(is_token, axis=1, keepdims=True))
        is_token |= tf.range(self._length) == 0
        is_token = tf.reshape(is_token, [-1])
        count = tf.reduce_sum(tf.cast(is_token, tf.int32))
        # There is at least one spare row; without padding none is needed.
        step = -(-self._known // _SIZES) if self._known else 1
        size = tf.minimum((count // step + 1) * step, self._most)
        # The position in [B · S] of each packed row; spare rows have those of padding.
        self._positions = tf.concat([
            tf.cast(tf.where(chosen)[:, 0], tf.int32)
            for chosen in (is_token, ~is_token)], axis=0)[:size]
        # The row in [N] of each position.
        self._places = tf.where(
            is_token, tf.cumsum(tf.cast(is_token, tf.int32)) - 1, count)

    def unpad(self, hidden):
        return _moved(tf.reshape(hidden, [self._most, hidden.shape[-1]]),
                      self._positions, self._places)

    def pad(self, hidden):
        return tf.reshape(_moved(hidden, self._places, self._positions),
                          [self._batch, self._length, hidden.shape[-1]])

    def at(self, hidden, positions):
        return PADDED.at(self.pad(hidden), positions)

    def heads(self, hidden, kernel, bias, heads):
        size, output = hidden.shape[-1], product(hidden, kernel, bias)
        packed, padded = self._numbers(output.shape[-1] // size, heads)
        return tf.unstack(_moved(tf.reshape(output, [-1, size // heads]), packed, padded))

    def join(self, context, kernel):
        _, heads, _, depth = context.shape
        packed, padded = self._numbers(1, heads)
        hidden = _moved(tf.reshape(context, [-1, depth]), padded, packed)
        return product(tf.reshape(hidden, [-1, heads * depth]), kernel)

    def _numbers(self, count, heads):
        """Returns the row of each head in [N, n, A] as [n, B, A, S], and its row there as
        [N, n, A]. The D numbers of a head move together, so that one gather packs and
        transposes. It is as fast as a transpose."""
        place = tf.reshape(self._places, [1, self._batch, 1, self._length])
        head = tf.reshape(tf.range(count * heads), [count, 1, heads, 1])
        sequence, position = (
            part[:, tf.newaxis, tf.newaxis] for part in (
                self._positions // self._length, self._positions % self._length))
        number = tf.range(count)[:, tf.newaxis] * self._batch + sequence
        number = number * heads + tf.range(heads)
        return place * (count * heads) + head, number * self._length + position

    def dropped(self, seeds, hidden, rate):
        size = hidden.shape[-1]
        drawn = seeds.draw([self._batch, self._length, size], rate)
        return drawn and drawn._replace(keep=tf.gather(
            tf.reshape(drawn.keep, [self._most, size]), self._positions))

    def parts(self, hidden):
        return fast.parts_for(
            tf.TensorShape([self._known, hidden.shape[-1]]), self._served)


def _moved(rows: tf.Tensor, places: tf.Tensor, back: tf.Tensor) -> tf.Tensor:
    """Gathers rows [..., H], whose gradients are gathered `back`."""
    size = rows.shape[-1]

    def gradient(upstream):
        return tf.reshape(tf.gather(tf.reshape(upstream, [-1, size]), back), [-1, size])

    return with_gradient(lambda rows: tf.gather(rows, places), gradient, rows)


def layout_of(mask: tf.Tensor, skip_padding: bool, served: bool = False) -> Layout:
    """Returns the layout in which the layers hold a batch with a mask [B, S]."""
    if fast.device_kind() == "TPU":
        return ON_TPU
    return Packed(mask, served) if skip_padding else PADDED
