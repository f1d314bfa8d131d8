"""Recomputing: what is left in memory between forward and backward pass."""

import pytest
import tensorflow as tf

from albert_tf.modeling.encoder import Computation
from albert_tf.modeling.kernels import fast as fused, layer_runs
from albert_tf.training import losses
from tests import models, tiny_run

WIDTH, LENGTH, HEADS = 128, 64, 8
HIDDEN_BYTES = 4 * 2 * LENGTH * WIDTH
DRAWN_BYTES = 2 * HEADS * LENGTH * LENGTH  # of attention's dropout, bool


def gradients_of(layers: int, recompute: bool):
    """A function of a seed: the gradients of a model with dropout."""
    config = tiny_run.config(
        hidden_size=WIDTH, num_attention_heads=HEADS, intermediate_size=4 * WIDTH,
        num_hidden_layers=layers, max_position_embeddings=LENGTH,
        hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
    model = models.AlbertForPreTraining(config)
    batch = {
        "input_ids": tf.ones([2, LENGTH], tf.int32),
        "masked_lm_positions": tf.ones([2, 1], tf.int32),
        "masked_lm_ids": tf.ones([2, 1], tf.int32),
        "masked_lm_weights": tf.ones([2, 1]),
        "sentence_order_labels": tf.ones([2], tf.int32)}

    @tf.function(autograph=False)
    def gradients(seed):
        with tf.GradientTape() as tape:
            outputs = model(batch, training=True, seed=seed,
                            computation=Computation(recompute=recompute))
            loss = losses.pretraining_losses(outputs, batch)["total_loss"]
        return tape.gradient(loss, model.trainable_variables,
                             unconnected_gradients="zero")

    return gradients


@pytest.mark.slow
def test_of_a_layer_its_input_alone_is_kept(monkeypatch):
    """Neither what is in it, nor draws of dropout, nor gradients of its kernels, which
    are summed one by one."""
    monkeypatch.setattr(fused, "MIN_SIZE", 0)
    monkeypatch.setattr(layer_runs, "_SUMMED_BYTES", 1)

    def most_bytes(layers, recompute):
        gradients = gradients_of(layers, recompute)
        return tiny_run.most_bytes(lambda: gradients(tf.constant([1, 2])))

    a_layer = {recompute: (most_bytes(8, recompute) - most_bytes(2, recompute)) / 6
               for recompute in (False, True)}
    assert a_layer[True] < HIDDEN_BYTES + DRAWN_BYTES
    assert a_layer[False] > 5 * a_layer[True]


def computations(graph, given=(), numbers=None):
    """[(operation, its number)] and the outputs' numbers: equal where TensorFlow or XLA
    may compute once for all. Functions that XLA does not compile are part of the graph
    that calls them; `given` are the numbers of what it is called with."""
    found, known, numbers = {}, [], {} if numbers is None else numbers
    places = {tensor.op: given[place] for place, tensor in enumerate(graph.inputs)
              if given}
    for op in graph.get_operations():
        inputs = tuple(found[part.op][part.value_index] for part in op.inputs)
        if op.type.endswith("PartitionedCall") and not compiled(op):
            called = graph._get_function(op.get_attr("f").name).graph
            more, found[op] = computations(called, inputs, numbers)
            known += more
            continue
        key = (op.type, str(sorted(op.node_def.attr.items(), key=lambda item: item[0])),
               inputs, op.name if op.type == "Placeholder" else "")
        own = places[op] if op in places else (numbers.setdefault(key, len(numbers)), 0)
        found[op] = [own] if op in places else [
            (own[0], place) for place in range(len(op.outputs))]
        known.append((op, own))
    return known, [found[tensor.op][tensor.value_index] for tensor in graph.outputs]


def compiled(op) -> bool:
    return op.node_def.attr["_XlaMustCompile"].b


def test_draws_of_dropout_are_made_again():
    """Those of both passes must not be seen to be the same, and be kept in between."""
    graph = gradients_of(2, recompute=True).get_concrete_function(
        tf.TensorSpec([2], tf.int32)).graph
    draws = [number for op, number in computations(graph)[0]
             if op.outputs and op.outputs[0].shape.rank and (
                 "RandomUniform" in op.type
                 or op.type.endswith("Call") and "philox" in op.get_attr("f").name)]
    # Of the embeddings, and of three places in each of two layers, twice; each bytes
    # and the word that rounds their threshold.
    assert len(draws) == len(set(draws)) == 2 * (1 + 2 * 3 * 2)
