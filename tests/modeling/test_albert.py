"""AlbertModel: variables, sharing, dropout, inputs."""

import functools
import math

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.checkpoints.restore import load_tf1_tensors, tf1_tensors
from albert_tf.config import AlbertConfig
from albert_tf.modeling.albert import AlbertModel
from albert_tf.modeling.kernels.plain import Dropped, activation
from albert_tf.modeling.kernels.random import DropoutSeeds
from tests import models, tiny_run

TINY = AlbertConfig(
    vocab_size=20, embedding_size=4, hidden_size=8, num_hidden_layers=4,
    num_attention_heads=2, intermediate_size=16, max_position_embeddings=12)
BLOCK = "bert/encoder/transformer/group_{}/inner_group_0"
IDS = np.array([[2, 7, 8, 3, 9, 3], [2, 11, 3, 12, 3, 0]], np.int32)


@functools.cache
def encoder(**changes):
    """A tiny model with weights large enough to tell layers apart."""
    model = AlbertModel(TINY.replace(**changes))
    load_tf1_tensors(model, tiny_run.weights_of(model))
    return model


def sequence_output(model, **options):
    return model({"input_ids": IDS}, **options)["sequence_output"].numpy()


# ---- variables -------------------------------------------------------------


def test_activations():
    x = np.linspace(-4, 4, 17).astype("f")
    cubic = np.sqrt(2 / np.pi) * (x + 0.044715 * x ** 3)
    exact = [0.5 * v * (1 + math.erf(v / math.sqrt(2))) for v in x]
    expected = {"gelu": 0.5 * x * (1 + np.tanh(cubic)), "gelu_erf": exact,
                "relu": np.maximum(x, 0),
                "tanh": np.tanh(x), "linear": x}
    for name, values in expected.items():
        np.testing.assert_allclose(activation(name)(x), values, atol=1e-6)


def test_initial_values():
    model = models.AlbertForPreTraining(TINY.replace(
        hidden_size=64, embedding_size=32, vocab_size=500))
    for name, value in tf1_tensors(model).items():
        if name.endswith("gamma"):
            assert np.all(value == 1), name
        elif name.endswith(("bias", "beta")):
            assert np.all(value == 0), name
        else:
            assert value.ndim == 2, name
            # Truncated at two standard deviations.
            assert 0.015 < np.abs(value).max() <= 0.04 + 1e-6, name
            if value.size > 500:
                assert value.std() == pytest.approx(0.02 * 0.88, rel=0.1), name
    # No two kernels start alike.
    kernels = [value for name, value in tf1_tensors(model).items()
               if name.endswith(("/self/query/kernel", "/self/key/kernel"))]
    assert not np.array_equal(*kernels)


# ---- sharing ---------------------------------------------------------------


def test_sharing_nothing_is_one_group_per_layer():
    unshared = encoder(parameter_sharing="none")
    groups = AlbertModel(TINY.replace(num_hidden_groups=4))
    load_tf1_tensors(groups, tf1_tensors(unshared))
    np.testing.assert_array_equal(sequence_output(unshared), sequence_output(groups))


@pytest.mark.parametrize("sharing, part", [
    ("attention", "ffn_1/intermediate/dense/bias"),
    ("ffn", "attention_1/self/value/bias")])
def test_each_layer_uses_its_own_unshared_part(sharing, part):
    model = AlbertModel(TINY.replace(parameter_sharing=sharing))
    load_tf1_tensors(model, tf1_tensors(encoder(parameter_sharing=sharing)))
    before = [layer.numpy() for layer in model({"input_ids": IDS})["encoder_outputs"]]
    variable = next(v for v in model.weights
                    if v.name == f"{BLOCK.format(2)}/{part}:0")
    variable.assign_add(tf.ones_like(variable))
    after = model({"input_ids": IDS})["encoder_outputs"]
    changed = [not np.allclose(a, b, atol=1e-5) for a, b in zip(before, after)]
    assert changed == [False, False, True, True]


# ---- dropout ---------------------------------------------------------------


def test_dropout_places_are_the_releases():
    places = []

    class Recorder(DropoutSeeds):
        def draw(self, shape, rate):
            shape = tf.convert_to_tensor(shape)
            places.append((rate, len(shape), int(shape[-1])))

    model = encoder(hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.3)
    seeds = Recorder(None)
    embedded = model.embeddings(IDS, tf.zeros_like(IDS), seeds)
    model.encoder(embedded, tf.zeros([2, 1, 1, 6]), seeds)
    # Embeddings of width 4; then probabilities [B, A, 6, 6] and both sub-layers'
    # outputs of width 8, in each of 4 layers. None after the projection.
    assert places == [(0.2, 3, 4)] + 4 * [(0.3, 4, 6), (0.2, 3, 8), (0.2, 3, 8)]


def test_dropout_before_the_sum_and_after_the_norm_of_the_embeddings():
    class DropAll(DropoutSeeds):
        def draw(self, shape, rate):
            return Dropped(tf.zeros(shape, tf.bool), 0.5)

    model, seeds = encoder(), DropAll(None)
    assert not np.any(model.embeddings(IDS, tf.zeros_like(IDS), seeds))
    hidden = tf.constant(
        np.random.default_rng(3).standard_normal([2, 6, 8]), tf.float32)
    attention, ffn = model.encoder.attention["0_0"], model.encoder.ffn["0_0"]
    np.testing.assert_allclose(
        attention(hidden, tf.zeros([2, 1, 1, 6]), seeds, attention.layer_weights()),
        attention.layer_norm(hidden))
    np.testing.assert_allclose(
        ffn(hidden, seeds, ffn.layer_weights()), ffn.layer_norm(hidden))


# ---- inputs ----------------------------------------------------------------


def test_inputs_of_any_integer_type():
    for kind in (np.int64, np.int8):
        out = encoder()({"input_ids": IDS.astype(kind),
                         "input_mask": np.ones_like(IDS, bool),
                         "segment_ids": np.zeros_like(IDS, kind)})
        np.testing.assert_array_equal(
            out["sequence_output"], sequence_output(encoder()))


# ---- compiled, saved, in single precision ----------------------------------


def test_no_double_precision():
    config = TINY.replace(hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
    model = models.AlbertForPreTraining(config)

    @tf.function(autograph=False)
    def run(batch):
        return model(batch, training=True)

    graph = run.get_concrete_function(
        {"input_ids": IDS, "masked_lm_positions": np.array([[1, 2], [3, 0]])}).graph
    functions = [graph.as_graph_def().node, *(
        f.node_def for f in graph.as_graph_def().library.function)]
    types = {attr.type for nodes in functions for node in nodes
             for attr in node.attr.values()}
    assert tf.float32.as_datatype_enum in types
    assert tf.float64.as_datatype_enum not in types


def test_pretraining_scores_all_positions_by_default():
    model, inputs = models.AlbertForPreTraining(TINY), {"input_ids": [[2, 4, 3]]}
    np.testing.assert_allclose(
        model(inputs)["mlm_logits"],
        model({**inputs, "masked_lm_positions": [[0, 1, 2]]})["mlm_logits"], atol=1e-6)
