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
from typing import Any, Callable, Mapping

import tensorflow as tf

from albert_tf.modeling.albert import attention_bias
from albert_tf.modeling.encoder import Computation
from albert_tf.modeling.kernels.packing import layout_of
from albert_tf.modeling.layers import DropoutSeeds
from albert_tf.serving.server import EXIT_INPUT


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
    bert, encoder, config = model.bert, model.bert.encoder, model.config
    served, last = computation.constants is not None, config.num_hidden_layers
    if not served:
        dtype = tf.as_dtype(computation.dtype)
        computation = dataclasses.replace(computation, constants={
            block.scope: block.layer_weights(dtype, 1)[0] for block in encoder.blocks})

    def layout(mask):
        return layout_of(mask, computation.skip_padding, served)

    # Layers that share their blocks are one branch of the loop.
    kinds: dict[tuple[int, int], int] = {}
    for layer in range(last - 1):
        kinds.setdefault((config.attention_index(layer), config.ffn_index(layer)), layer)
    branch_of = tf.constant([list(kinds).index(
        (config.attention_index(layer), config.ffn_index(layer)))
                             for layer in range(last - 1)])

    def until_some_leave(done, hidden, mask, rows, logits, passes):
        """Passes for those that are there, until a quarter of them is sure."""
        own, bias, there = layout(mask), attention_bias(mask), tf.size(rows)
        limit, first = tf.gather(threshold, rows), tf.zeros([there, 1], tf.int32)

        def one_pass(done, hidden, sure, found, after):
            branches = [lambda layer=layer: encoder.one_pass(
                layer, hidden, bias, computation, own) for layer in kinds.values()]
            hidden = branches[0]() if len(branches) == 1 else tf.switch_case(
                branch_of[done], branches)
            exits = model.exit_head(tf.cast(own.at(hidden, first)[:, 0], tf.float32))
            # Whoever was not sure is answered anew by each pass.
            found = tf.where(tf.expand_dims(sure, 1), found, exits)
            after = tf.where(sure, after, done + 1)
            sure |= tf.reduce_max(tf.nn.softmax(exits), axis=-1) > limit
            return done + 1, hidden, sure, found, after

        def go_on(done, hidden, sure, *found):
            return (done < last - 1) & (
                4 * tf.reduce_sum(tf.cast(sure, tf.int32)) < there)

        hidden = own.unpad(hidden)
        done, hidden, sure, found, after = tf.while_loop(go_on, one_pass, (
            done, hidden, tf.zeros([there], tf.bool), tf.zeros([there, width]),
            tf.zeros([there], tf.int32)), shape_invariants=tuple(
                tf.TensorShape(shape) for shape in (
                    [], [None] * (hidden.shape.rank - 1) + [config.hidden_size], [None],
                    [None, width], [None])), parallel_iterations=1)
        answered, staying = tf.expand_dims(rows, 1), tf.where(~sure)[:, 0]
        return (done, *(tf.gather(of, staying) for of in (own.pad(hidden), mask, rows)),
                tf.tensor_scatter_nd_update(logits, answered, found),
                tf.tensor_scatter_nd_update(passes, answered, after))

    mask = tf.convert_to_tensor(features["input_mask"])
    batch = tf.shape(mask)[0]
    embedded = tf.cast(bert.embeddings(
        features["input_ids"], features["segment_ids"], DropoutSeeds(None)),
                       computation.dtype)
    own, width = layout(mask), model.exit_head.output_layer.output_bias.shape[0]
    start = (tf.constant(0), own.pad(encoder.enter(embedded, own)), mask,
             tf.range(batch), tf.zeros([batch, width]), tf.zeros([batch], tf.int32))
    with tf.control_dependencies([tf.debugging.Assert(
            tf.reduce_all((threshold >= 0) & (threshold <= 1)),
            [f"{EXIT_INPUT} must be a probability, 0 to 1, but is", threshold])]):
        threshold = tf.broadcast_to(threshold, [batch])
    _, hidden, mask, rows, logits, passes = tf.while_loop(
        lambda done, hidden, mask, rows, *found: (done < last - 1) & (tf.size(rows) > 0),
        until_some_leave, start, shape_invariants=tuple(tf.TensorShape(shape) for shape in (
            [], [None, None, config.hidden_size], [None, None], [None], [None, width],
            [None])), parallel_iterations=1)
    own = layout(mask)
    first = encoder.one_pass(
        last - 1, own.unpad(hidden), attention_bias(mask), computation, own,
        tf.zeros([tf.size(rows), 1], tf.int32))
    ordinary = output_layer(bert.pooler(tf.cast(first[:, 0], tf.float32)))
    answered = tf.expand_dims(rows, 1)
    logits = tf.tensor_scatter_nd_update(logits, answered, ordinary)
    passes = tf.tensor_scatter_nd_update(
        passes, answered, tf.fill([tf.size(rows)], last))
    return {"logits": logits, "probabilities": tf.nn.softmax(logits), "passes": passes}
