"""Early exit: answers before the last pass, by one head that all passes share.

With shared layers a pass changes the hidden states less and less (paper, Figure 1), and
every pass speaks the same language: one head reads all of them, where a model whose
layers differ would need one for each.

    pass 1 ─► pass 2 ─► ... ─► pass L ─► pooler ─► output layer: the ordinary answer
      └─► exit ─┴─► exit ─ ...           the same exit head after each pass before

The last pass keeps its own head, so that a model with exits is an ordinary one with four
tensors besides (`exit/...`), and answers as such wherever exits are not asked for.

`answers` computes only as many passes as each sequence needs: it leaves the batch as
soon as its answer is sure, and the others go on in a smaller batch.

    pass 1   a b c d    after it b is sure            b: 1 pass
    pass 2   a c d      after it a and d are sure     a, d: 2 passes
    ...
    pass L   c          the ordinary answer           c: L passes

This is a loop in the graph, which ends when no sequence is left. A sequence's answer
does not depend on those beside it, as padding is masked or left out. Sequences leave
together, once a quarter of those that are active is sure: products of a size that they
have not had are slower the first time.

Shapes: B batch, N active sequences, S sequence, L passes, H hidden, K labels.
"""

import dataclasses
from typing import Any, Mapping, NamedTuple, Sequence

import tensorflow as tf

from albert_tf.config import AlbertConfig
from albert_tf.errors import InputError
from albert_tf.modeling.albert import attention_bias
from albert_tf.modeling.encoder import Computation
from albert_tf.modeling.kernels.packing import layout_of
from albert_tf.modeling.layers import (
    Dense, DropoutSeeds, NamedLayer, OutputLayer, kernel_initializer)


class ExitHead(NamedLayer):
    """A pooler and an output layer on the first token after a pass: "exit/...".

    `weight` is what the exits' loss counts in what the encoder learns; with 0 it learns
    as without exits, and the head alone learns to read it.
    """

    def __init__(self, config: AlbertConfig, num_labels: int, weight: float = 1.0):
        if config.num_hidden_layers < 2:
            raise InputError("early exit needs a pass before the last one, but the "
                             "config has num_hidden_layers=1.")
        super().__init__("exit")
        self.weight, self._every = weight, config.inner_group_num
        size = config.hidden_size
        self.pooler = Dense(
            "exit/pooler/dense", size, size, kernel_initializer(config), "tanh")
        self.output_layer = OutputLayer("exit", size, num_labels)

    def call(self, first, seeds: DropoutSeeds = DropoutSeeds(None),
             dropout_prob: float = 0.0):
        """The first token's hidden states [B, H] or [B, L - 1, H] → logits [B, K] or
        [B, L - 1, K]."""
        pooled = seeds.dropout(self.pooler(first), dropout_prob)
        logits = self.output_layer(tf.reshape(pooled, [-1, pooled.shape[-1]]))
        return tf.reshape(logits, tf.concat(
            [tf.shape(first)[:-1], tf.shape(logits)[1:]], axis=0))

    def of_passes(self, encoder_outputs: Sequence[tf.Tensor], *dropout) -> tf.Tensor:
        """AlbertModel's `encoder_outputs` → logits [B, L - 1, K] after each pass but
        the last."""
        first = tf.stack([tf.cast(output[:, 0], tf.float32) for output in
                          encoder_outputs[self._every - 1:-1:self._every]], axis=1)
        if self.weight != 1.0:
            first = self.weight * first + (1.0 - self.weight) * tf.stop_gradient(first)
        logits = self(first, *dropout)
        logits.set_shape([None, first.shape[1], self.output_layer.output_bias.shape[0]])
        return logits


def answers(model: Any, features: Mapping[str, tf.Tensor], threshold: tf.Tensor,
            computation: Computation) -> dict[str, tf.Tensor]:
    """`logits` and `probabilities` [B, K] of the first pass whose exit gives a label a
    probability above the threshold, else of the last; and which it was, `passes` int32
    [B], from 1.

    Args:
      model: an AlbertWithHeads that classifies and has exits.
      features: `input_ids`, `input_mask`, `segment_ids` int32 [B, S].
      threshold: float32 [] or [B], 0 to 1; with 1 all passes are made.
    """
    layers = _Layers(model, computation)
    mask = tf.convert_to_tensor(features["input_mask"])
    batch = tf.shape(mask)[0]
    with tf.control_dependencies([tf.debugging.Assert(
            tf.reduce_all((threshold >= 0) & (threshold <= 1)),
            ["exit_threshold must be a probability, 0 to 1, but is", threshold])]):
        threshold = tf.broadcast_to(threshold, [batch])
    active = _Active(
        layers.enter(features), mask, tf.range(batch), tf.zeros([batch, layers.labels]),
        tf.zeros([batch], tf.int32))
    _, active = _while(
        lambda done, active: (done < layers.last - 1) & (tf.size(active.rows) > 0),
        lambda done, active: _until_some_leave(layers, threshold, done, active),
        (tf.constant(0), active), [
            [], [None, None, layers.hidden_size], [None, None], [None],
            [None, layers.labels], [None]])
    ordinary = layers.output_layer(
        model.bert.pooler(layers.at_the_end(active.hidden, active.mask)))
    active = active.answered(
        ordinary, tf.fill([tf.size(active.rows)], layers.last), tf.zeros([0], tf.int32))
    return {"logits": active.logits, "probabilities": tf.nn.softmax(active.logits),
            "passes": active.passes}


class _Active(NamedTuple):
    """Sequences without an answer yet, N of them, and the answers of all."""

    hidden: tf.Tensor  # [N, S, H]
    mask: tf.Tensor  # [N, S]
    rows: tf.Tensor  # of the batch, [N]
    logits: tf.Tensor  # [B, K]
    passes: tf.Tensor  # [B]

    def answered(self, logits, passes, kept) -> "_Active":
        """With answers [N, K] and passes [N] of those here; `kept` go on."""
        rows = tf.expand_dims(self.rows, 1)
        return _Active(
            *(tf.gather(each, kept) for each in (self.hidden, self.mask, self.rows)),
            tf.tensor_scatter_nd_update(self.logits, rows, logits),
            tf.tensor_scatter_nd_update(self.passes, rows, passes))


def _until_some_leave(layers: "_Layers", threshold, done, active: _Active):
    """Passes for the active sequences, until a quarter of them is sure."""
    own, bias = layers.layout(active.mask), attention_bias(active.mask)
    limit, count = tf.gather(threshold, active.rows), tf.size(active.rows)

    def one_pass(done, hidden, sure, found, after):
        hidden = layers.one_pass(done, hidden, bias, own)
        exits = layers.exits(hidden, own, count)
        # Sequences below the threshold take the newest prediction.
        found = tf.where(tf.expand_dims(sure, 1), found, exits)
        after = tf.where(sure, after, done + 1)
        sure |= tf.reduce_max(tf.nn.softmax(exits), axis=-1) > limit
        return done + 1, hidden, sure, found, after

    def go_on(done, hidden, sure, *found):
        return (done < layers.last - 1) & (
            4 * tf.reduce_sum(tf.cast(sure, tf.int32)) < count)

    hidden = own.unpad(active.hidden)
    done, hidden, sure, found, after = _while(go_on, one_pass, (
        done, hidden, tf.zeros([count], tf.bool), tf.zeros([count, layers.labels]),
        tf.zeros([count], tf.int32)), [
            [], [None] * (hidden.shape.rank - 1) + [layers.hidden_size], [None],
            [None, layers.labels], [None]])
    active = active._replace(hidden=own.pad(hidden))
    return done, active.answered(found, after, tf.where(~sure)[:, 0])


def _while(go_on, body, start, shapes):
    """A loop; `shapes` are those of its values one after the other, of which what is
    None differs from turn to turn."""
    return tf.while_loop(
        go_on, body, start, parallel_iterations=1, shape_invariants=(
            tf.nest.pack_sequence_as(start, list(map(tf.TensorShape, shapes)))))


class _Layers:
    """A model's passes, one at a time, by weights that are computed once."""

    def __init__(self, model: Any, computation: Computation):
        self._bert, config = model.bert, model.config
        heads = model.head_layers
        self._exit_head = {**heads["classification"], **heads.get("early_exit", {})}[
            "exit_head"]
        self.output_layer = heads["classification"]["output_layer"]
        self._encoder = model.bert.encoder
        self._served = computation.constants is not None
        self.last, self.hidden_size = config.num_hidden_layers, config.hidden_size
        self.labels = self._exit_head.output_layer.output_bias.shape[0]
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
