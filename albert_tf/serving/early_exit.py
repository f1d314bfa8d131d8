"""Answers of a model with exits: a sequence leaves the batch as soon as its answer is
sure, and the rest goes on in a smaller one.

    pass 1   a b c d    after it b is sure            b: 1 pass
    pass 2   a c d      after it a and d are sure     a, d: 2 passes
    ...
    pass L   c          the ordinary answer           c: L passes

A loop in the graph, which ends when no sequence is left. A sequence's answer does not
depend on those beside it, as padding is masked or left out. Sequences leave together,
once a quarter of those that are there is sure: products of a size that they have not had
are slower the first time.

Shapes: B batch, S sequence, H hidden, K labels.
"""

import dataclasses
from typing import Any, Callable, Mapping, NamedTuple

import tensorflow as tf

from albert_tf.modeling.albert import attention_bias
from albert_tf.modeling.encoder import Computation
from albert_tf.modeling.kernels.packing import layout_of
from albert_tf.modeling.layers import DropoutSeeds
from albert_tf.serving.saved_model import EXIT_INPUT


def answers(model: Any, output_layer: Callable[[tf.Tensor], tf.Tensor],
            features: Mapping[str, tf.Tensor], threshold: tf.Tensor,
            computation: Computation) -> dict[str, tf.Tensor]:
    """`logits` and `probabilities` [B, K] of the first pass whose exit gives a label a
    probability above the threshold, else of the last; and which it was, `passes` int32
    [B], from 1.

    Args:
      model: with `bert` and `exit_head`.
      output_layer: of the last pass.
      features: `input_ids`, `input_mask`, `segment_ids` int32 [B, S].
      threshold: float32 [] or [B], 0 to 1; with 1 all passes are made.
    """
    layers = _Layers(model, computation)
    mask = tf.convert_to_tensor(features["input_mask"])
    batch = tf.shape(mask)[0]
    with tf.control_dependencies([tf.debugging.Assert(
            tf.reduce_all((threshold >= 0) & (threshold <= 1)),
            [f"{EXIT_INPUT} must be a probability, 0 to 1, but is", threshold])]):
        threshold = tf.broadcast_to(threshold, [batch])
    here = _Here(
        layers.enter(features), mask, tf.range(batch), tf.zeros([batch, layers.labels]),
        tf.zeros([batch], tf.int32))
    _, here = _while(
        lambda done, here: (done < layers.last - 1) & (tf.size(here.rows) > 0),
        lambda done, here: _until_some_leave(layers, threshold, done, here),
        (tf.constant(0), here), [
            [], [None, None, layers.hidden_size], [None, None], [None],
            [None, layers.labels], [None]])
    ordinary = output_layer(model.bert.pooler(layers.at_the_end(here.hidden, here.mask)))
    here = here.answered(
        ordinary, tf.fill([tf.size(here.rows)], layers.last), tf.zeros([0], tf.int32))
    return {"logits": here.logits, "probabilities": tf.nn.softmax(here.logits),
            "passes": here.passes}


class _Here(NamedTuple):
    """Sequences that are there still, N of them, and the answers of all."""

    hidden: tf.Tensor  # [N, S, H]
    mask: tf.Tensor  # [N, S]
    rows: tf.Tensor  # of the batch, [N]
    logits: tf.Tensor  # [B, K]
    passes: tf.Tensor  # [B]

    def answered(self, logits, passes, staying) -> "_Here":
        """With answers [N, K] and passes [N] of those here; `staying` go on."""
        rows = tf.expand_dims(self.rows, 1)
        return _Here(
            *(tf.gather(each, staying) for each in (self.hidden, self.mask, self.rows)),
            tf.tensor_scatter_nd_update(self.logits, rows, logits),
            tf.tensor_scatter_nd_update(self.passes, rows, passes))


def _until_some_leave(layers: "_Layers", threshold, done, here: _Here):
    """Passes for those that are there, until a quarter of them is sure."""
    own, bias = layers.layout(here.mask), attention_bias(here.mask)
    limit, count = tf.gather(threshold, here.rows), tf.size(here.rows)

    def one_pass(done, hidden, sure, found, after):
        hidden = layers.one_pass(done, hidden, bias, own)
        exits = layers.exits(hidden, own, count)
        # Whoever was not sure is answered anew by each pass.
        found = tf.where(tf.expand_dims(sure, 1), found, exits)
        after = tf.where(sure, after, done + 1)
        sure |= tf.reduce_max(tf.nn.softmax(exits), axis=-1) > limit
        return done + 1, hidden, sure, found, after

    def go_on(done, hidden, sure, *found):
        return (done < layers.last - 1) & (
            4 * tf.reduce_sum(tf.cast(sure, tf.int32)) < count)

    hidden = own.unpad(here.hidden)
    done, hidden, sure, found, after = _while(go_on, one_pass, (
        done, hidden, tf.zeros([count], tf.bool), tf.zeros([count, layers.labels]),
        tf.zeros([count], tf.int32)), [
            [], [None] * (hidden.shape.rank - 1) + [layers.hidden_size], [None],
            [None, layers.labels], [None]])
    here = here._replace(hidden=own.pad(hidden))
    return done, here.answered(found, after, tf.where(~sure)[:, 0])


def _while(go_on, body, start, shapes):
    """A loop; `shapes` are those of its values one after the other, of which what is
    None differs from turn to turn."""
    return tf.while_loop(
        go_on, body, start, parallel_iterations=1, shape_invariants=(
            tf.nest.pack_sequence_as(start, list(map(tf.TensorShape, shapes)))))


class _Layers:
    """A model's passes, one at a time, by weights that are computed once."""

    def __init__(self, model: Any, computation: Computation):
        self._bert, self._exit_head, config = model.bert, model.exit_head, model.config
        self._encoder = model.bert.encoder
        self._served = computation.constants is not None
        self.last, self.hidden_size = config.num_hidden_layers, config.hidden_size
        self.labels = model.exit_head.output_layer.output_bias.shape[0]
        if not self._served:
            dtype = tf.as_dtype(computation.dtype)
            computation = dataclasses.replace(computation, constants={
                block.scope: block.layer_weights(dtype, 1)[0]
                for block in self._encoder.blocks})
        self._computation = computation
        # Layers that share their blocks are one branch of the loop.
        blocks = [(config.attention_index(layer), config.ffn_index(layer))
                  for layer in range(self.last - 1)]
        self._branches = [blocks.index(kind) for kind in dict.fromkeys(blocks)]
        self._branch_of = [list(dict.fromkeys(blocks)).index(kind) for kind in blocks]

    def layout(self, mask):
        return layout_of(mask, self._computation.skip_padding, self._served)

    def enter(self, features):
        """What the first pass takes, [B, S, H]."""
        embedded = tf.cast(self._bert.embeddings(
            features["input_ids"], features["segment_ids"], DropoutSeeds(None)),
                           self._computation.dtype)
        own = self.layout(features["input_mask"])
        return own.pad(self._encoder.enter(embedded, own))

    def one_pass(self, number, hidden, bias, own):
        """The pass of a number, a tensor, from 0; not the last."""
        branches = [lambda layer=layer: self._encoder.one_pass(
            layer, hidden, bias, self._computation, own) for layer in self._branches]
        return branches[0]() if len(branches) == 1 else tf.switch_case(
            tf.constant(self._branch_of)[number], branches)

    def exits(self, hidden, own, count):
        """The exit's logits of `count` sequences, [N, K]."""
        first = tf.zeros([count, 1], tf.int32)
        return self._exit_head(tf.cast(own.at(hidden, first)[:, 0], tf.float32))

    def at_the_end(self, hidden, mask):
        """The last pass of [N, S, H], of which the first position is read: [N, H]."""
        own = self.layout(mask)
        return tf.cast(self._encoder.one_pass(
            self.last - 1, own.unpad(hidden), attention_bias(mask), self._computation,
            own, tf.zeros([tf.shape(mask)[0], 1], tf.int32))[:, 0], tf.float32)
