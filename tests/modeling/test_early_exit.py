"""The exit head: the model beside it is the ordinary one; one head reads every pass.

    python -m pytest tests/modeling/test_early_exit.py
"""

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.errors import InputError
from albert_tf.modeling.early_exit import ExitHead
from albert_tf.modeling.encoder import Computation
from albert_tf.modeling.layers import DropoutSeeds
from tests import models, tiny_run

IDS = tf.constant([[7, 9, 8, 5, 6], [9, 5, 0, 0, 0], [5, 5, 5, 0, 0]])
FEATURES = {"input_ids": IDS, "input_mask": tf.cast(IDS > 0, tf.int32),
            "segment_ids": tf.zeros_like(IDS)}
SEED = tf.constant([3, 4, 0])


def pair(exit_weight=1.0, **config):
    """A model with exits, and the ordinary one of the same weights."""
    config = tiny_run.config(**{"num_hidden_layers": 4, "initializer_range": 0.3,
                                **config})
    model = models.classifier(config, 3, 0.2, exit_weight)
    ordinary = models.classifier(config, 3, 0.2)
    weights = {weight.name: weight for weight in model.weights}
    for weight in ordinary.weights:
        weight.assign(weights.pop(weight.name))
    assert sorted(weights) == ["exit/output_bias:0", "exit/output_weights:0",
                               "exit/pooler/dense/bias:0", "exit/pooler/dense/kernel:0"]
    return model, ordinary


CONFIGS = [{}, {"num_hidden_groups": 2}, {"inner_group_num": 2},
           {"parameter_sharing": "none"}]


@pytest.mark.parametrize("config", CONFIGS)
def test_the_one_head_reads_the_first_piece_after_each_pass(config):
    model, ordinary = pair(**config)
    found = model(FEATURES)
    np.testing.assert_array_equal(found["logits"], ordinary(FEATURES)["logits"])
    assert found["exit_logits"].shape == (3, 3, 3)
    for passes in (1, 2, 3):
        hidden = model.bert(FEATURES, computation=Computation(passes=passes))
        np.testing.assert_allclose(
            found["exit_logits"][:, passes - 1],
            model.head_layers["classification"]["exit_head"](
                hidden["sequence_output"][:, 0]), atol=1e-5)
    packed = model(FEATURES, computation=Computation(skip_padding=True))
    np.testing.assert_allclose(packed["exit_logits"], found["exit_logits"], atol=1e-5)


@pytest.mark.parametrize("exit_weight", [0.0, 0.25, 1.0])
def test_weight_is_what_the_encoder_learns_of_the_exits(exit_weight):
    model, ordinary = pair(exit_weight, hidden_dropout_prob=0.1)

    def gradients(of, loss):
        with tf.GradientTape() as tape:
            value = loss(of(FEATURES, training=True, seed=SEED))
        return dict(zip((weight.name for weight in of.trainable_weights), tape.gradient(
            value, of.trainable_weights, unconnected_gradients="zero")))

    def last(found):
        return tf.reduce_sum(found["logits"] ** 2)

    def exits(found):
        return tf.reduce_sum(found["exit_logits"] ** 2)

    both = gradients(model, lambda found: last(found) + exits(found))
    alone, full = gradients(ordinary, last), gradients(pair_of(model), exits)
    assert any(np.any(tf.convert_to_tensor(full[name])) for name in alone)
    for name, gradient in both.items():
        expected = (full[name] if name.startswith("exit/") else tf.convert_to_tensor(
            alone[name]) + exit_weight * tf.convert_to_tensor(full[name]))
        np.testing.assert_allclose(
            tf.convert_to_tensor(gradient), expected, atol=1e-4, rtol=1e-3)


def pair_of(model):
    """The same model, whose exits count in full."""
    whole = models.classifier(model.config, 3, 0.2, 1.0)
    for weight, value in zip(whole.weights, model.weights):
        weight.assign(value)
    return whole


def test_dropout_of_the_exits_leaves_that_of_the_last_pass_as_it_was():
    model, ordinary = pair(hidden_dropout_prob=0.1)
    found = model(FEATURES, training=True, seed=SEED)
    np.testing.assert_array_equal(
        found["logits"], ordinary(FEATURES, training=True, seed=SEED)["logits"])
    head, first = model.head_layers["classification"]["exit_head"], tf.ones([3, 2, 8])
    assert np.any(head(first, DropoutSeeds(SEED), 0.5) != head(first))


def test_one_layer_has_no_pass_before_its_last():
    with pytest.raises(InputError, match="needs a pass before the last one, but the "
                                         "config has num_hidden_layers=1"):
        ExitHead(tiny_run.config(num_hidden_layers=1), 2)
