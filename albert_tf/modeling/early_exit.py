"""Early exit: predictions before the last pass, by one head that all passes share.

With shared layers each pass changes the hidden states less than the one before (paper,
Figure 1), and the hidden states of all passes are similar. Therefore one head can read
all of them, while a model with different layers would need one head for each.

    pass 1 ─► pass 2 ─► ... ─► pass L ─► pooler ─► output layer: the ordinary answer
      └─► exit ─┴─► exit ─ ...           the same exit head after each earlier pass

The last pass keeps its own head. A model with exits is therefore an ordinary model with
four more tensors (`exit/...`), and works like one if exits are not used.

`answers` computes only as many passes as each sequence needs: a sequence leaves the
batch as soon as its prediction is certain enough, and the others continue in a smaller
batch.

    pass 1   a b c d    b is certain after it         b: 1 pass
    pass 2   a c d      a and d are certain after it  a, d: 2 passes
    ...
    pass L   c          the ordinary answer           c: L passes

This is a loop in the graph, which ends when no sequence is left. A sequence's
prediction does not depend on the others, because padding is masked or left out.
Sequences leave together, as soon as a quarter of the active ones is certain, because
the first matrix product of each new size is slow.

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

    `weight` is the weight of the exits' loss for the encoder. With 0 the encoder learns
    as without exits, and only the head is trained to read it.
    """

    def __init__(self, config: AlbertConfig, num_labels: int, weight: float = 1.0):
        if config.num_hidden_layers < 2:
            raise InputError("early exit needs a pass before the last one, but the "
                             "config has num_hidden_layers=1; use a deeper model.")
        super().__init__("exit")
        self.weight, self._every = weight, config.inner_group_num
        size = config.hidden_size
        self.pooler = Dense(
            "exit/pooler/dense", size, size, kernel_initializer(config), "tanh")
        self.output_layer = OutputLayer("exit", size, num_labels)

    def call(self, first, seeds: DropoutSeeds = DropoutSeeds(None),
             dropout_prob: float = 0.0):
        """Computes logits [B, K] or [B, L - 1, K] from the first token's hidden states
        [B, H] or [B, L - 1, H]."""
        pooled = seeds.dropout(self.pooler(first), dropout_prob)
        logits = self.output_layer(tf.reshape(pooled, [-1, pooled.shape[-1]]))
        return tf.reshape(logits, tf.concat(
            [tf.shape(first)[:-1], tf.shape(logits)[1:]], axis=0))

    def of_passes(self, encoder_outputs: Sequence[tf.Tensor], *dropout) -> tf.Tensor:
        """Returns the logits [B, L - 1, K] after each pass but the last, from
        AlbertModel's `encoder_outputs`."""
        first = tf.stack([tf.cast(output[:, 0], tf.float32) for output in
                          encoder_outputs[self._every - 1:-1:self._every]], axis=1)
        if self.weight != 1.0:
            first = self.weight * first + (1.0 - self.weight) * tf.stop_gradient(first)
        logits = self(first, *dropout)
        logits.set_shape([None, first.shape[1], self.output_layer.output_bias.shape[0]])
        return logits


def answers(model: Any, features: Mapping[str, tf.Tensor], threshold: tf.Tensor,
            computation: Computation) -> dict[str, tf.Tensor]:
    """Returns the predictions of the first pass whose exit gives a label a probability
    above the threshold, else of the last pass.

    Args:
      model: an AlbertWithHeads that classifies and has exits.
      features: `input_ids`, `input_mask`, `segment_ids` int32 [B, S].
      threshold: float32 [] or [B], 0 to 1; with 1 all passes are computed.

    Returns:
      `logits` and `probabilities` [B, K]; `passes` int32 [B], the number of passes that
      each sequence took.
    """
    layers = _Layers(model, computation)
    mask = tf.convert_to_tensor(features["input_mask"])
    batch = tf.shape(mask)[0]
    with tf.control_dependencies([tf.debugging.Assert(
            tf.reduce_all((threshold >= 0) & (threshold <= 1)),
            ["exit_threshold must be a probability from 0 to 1, but is", threshold])]):
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
    """The N sequences that are not finished, and the predictions of all B sequences."""

    hidden: tf.Tensor  # [N, S, H]
    mask: tf.Tensor  # [N, S]
    rows: tf.Tensor  # rows in the batch, [N]
    logits: tf.Tensor  # [B, K]
    passes: tf.Tensor  # [B]

    def answered(self, logits, passes, kept) -> "_Active":
        """Returns the state with new logits [N, K] and passes [N] of the active
        sequences; only those at the indices `kept` stay active."""
        rows = tf.expand_dims(self.rows, 1)
        return _Active(
            *(tf.gather(each, kept) for each in (self.hidden, self.mask, self.rows)),
            tf.tensor_scatter_nd_update(self.logits, rows, logits),
            tf.tensor_scatter_nd_update(self.passes, rows, passes))


def _until_some_leave(layers: "_Layers", threshold, done, active: _Active):
    """Runs passes on the active sequences, until a quarter of them is certain."""
    layout, bias = layers.layout(active.mask), attention_bias(active.mask)
    limit, count = tf.gather(threshold, active.rows), tf.size(active.rows)

    def one_pass(done, hidden, certain, logits, passes):
        hidden = layers.one_pass(done, hidden, bias, layout)
        exits = layers.exits(hidden, layout, count)
        # Sequences below the threshold take the newest prediction.
        logits = tf.where(tf.expand_dims(certain, 1), logits, exits)
        passes = tf.where(certain, passes, done + 1)
        certain |= tf.reduce_max(tf.nn.softmax(exits), axis=-1) > limit
        return done + 1, hidden, certain, logits, passes

    def go_on(done, hidden, certain, *rest):
        return (done < layers.last - 1) & (
            4 * tf.reduce_sum(tf.cast(certain, tf.int32)) < count)

    hidden = layout.unpad(active.hidden)
    done, hidden, certain, logits, passes = _while(go_on, one_pass, (
        done, hidden, tf.zeros([count], tf.bool), tf.zeros([count, layers.labels]),
        tf.zeros([count], tf.int32)), [
            [], [None] * (hidden.shape.rank - 1) + [layers.hidden_size], [None],
            [None, layers.labels], [None]])
    active = active._replace(hidden=layout.pad(hidden))
    return done, active.answered(logits, passes, tf.where(~certain)[:, 0])


def _while(go_on, body, start, shapes):
    """Runs a tf.while_loop. `shapes` are the shapes of its values, in order; sizes that
    are None may change from turn to turn."""
    return tf.while_loop(
        go_on, body, start, parallel_iterations=1, shape_invariants=(
            tf.nest.pack_sequence_as(start, list(map(tf.TensorShape, shapes)))))


class _Layers:
    """The passes of a model, run one at a time, with weights that are cast once."""

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
        # All layers that share their blocks use one branch of the loop.
        blocks = [(config.attention_index(layer), config.ffn_index(layer))
                  for layer in range(self.last - 1)]
        self._branches = [blocks.index(kind) for kind in dict.fromkeys(blocks)]
        self._branch_of = [list(dict.fromkeys(blocks)).index(kind) for kind in blocks]

    def layout(self, mask):
        """Returns the layout of a batch with a mask [N, S]."""
        return layout_of(mask, self._computation.skip_padding, self._served)

    def enter(self, features):
        """Returns the input of the first pass, [B, S, H]."""
        embedded = tf.cast(self._bert.embeddings(
            features["input_ids"], features["segment_ids"], DropoutSeeds(None)),
                           self._computation.dtype)
        layout = self.layout(features["input_mask"])
        return layout.pad(self._encoder.enter(embedded, layout))

    def one_pass(self, number, hidden, bias, layout):
        """Runs a pass but the last; `number`, a tensor, counts from 0."""
        branches = [lambda layer=layer: self._encoder.one_pass(
            layer, hidden, bias, self._computation, layout) for layer in self._branches]
        return branches[0]() if len(branches) == 1 else tf.switch_case(
            tf.constant(self._branch_of)[number], branches)

    def exits(self, hidden, layout, count):
        """Returns the logits of the exit for `count` sequences, [N, K]."""
        first = tf.zeros([count, 1], tf.int32)
        return self._exit_head(tf.cast(layout.at(hidden, first)[:, 0], tf.float32))

    def at_the_end(self, hidden, mask):
        """Runs the last pass on [N, S, H]; returns its first position, [N, H]."""
        layout = self.layout(mask)
        first = tf.zeros([tf.shape(mask)[0], 1], tf.int32)
        return tf.cast(self._encoder.one_pass(
            self.last - 1, layout.unpad(hidden), attention_bias(mask),
            self._computation, layout, first)[:, 0], tf.float32)
