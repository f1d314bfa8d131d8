"""Models of the tasks, with the weights that the release's heads had."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.checkpoints import formats
from albert_tf.checkpoints.restore import load_tf1_tensors, restore_tf1, tf1_tensors
from albert_tf.config import AlbertConfig
from albert_tf.modeling.kernels import random
from tests import models, tiny_run
from tests.golden import interop
from tests.golden.heads import (
    HEADS, KINDS, build, case, close, train_losses, without_dropout)
from tests.helpers import FIXTURES
from tests.models import TAGGING

PER_POSITION = ("input_ids", "input_mask", "segment_ids", "p_mask")


# ---- independence ----------------------------------------------------------


def padded(features, length):
    """The batch with its sequences padded to `length`."""
    return {name: value if name not in PER_POSITION else np.pad(
        value, [(0, 0)] * (value.ndim - 1) + [(0, length - value.shape[-1])],
        constant_values=name == "p_mask") for name, value in features.items()}


@functools.lru_cache(maxsize=None)
def long_model(name):
    """The golden head on an encoder that takes 384 positions."""
    config = case(name).config.replace(max_position_embeddings=384)
    model = KINDS[name][0](config)
    numbers = np.random.default_rng(5)
    table = "bert/embeddings/position_embeddings"
    positions = 0.1 * numbers.standard_normal((384, config.embedding_size))
    load_tf1_tensors(model, {**case(name).weights, table: positions.astype("f")})
    return model


@pytest.mark.parametrize("name", HEADS)
def test_padding_does_not_matter(name):
    features = case(name).features()
    real = features["input_mask"].shape[-1]
    model, objective = long_model(name), KINDS[name][1]
    batches = padded(features, 64), padded(features, 384)
    kept = [objective.predictions(model(batch), batch) for batch in batches]
    for key, short in kept[0].items():
        short, long = short.numpy(), kept[1][key].numpy()
        if key in ("start_log_probs", "end_log_probs"):
            assert short.shape[1] == 64 and long.shape[1] == 384
            close(np.exp(short).sum(1), 1.0)
            short, long = short[:, :real], long[:, :real]
        if key.endswith("index"):
            np.testing.assert_array_equal(short, long)
        else:
            close(short, long)
    if "spans" in name:  # Whose loss is over all positions.
        close(*(objective.losses(model(batch, training=True, seed=[1, 2]), batch,
                                 objective.denominators(batch))["total_loss"]
                for batch in batches))


def test_positions_of_padding_count_only_where_it_is_wanted():
    features = case("spans").features()
    padding = features["input_mask"] == 0
    log_probs = {}
    for mask in (True, False):
        model, _ = build("spans", mask_padding=mask)
        log_probs[mask] = model(features)["start_log_probs"].numpy()
    assert np.isfinite(log_probs[True]).all()
    assert (log_probs[True][padding] < -1e29).all()
    assert (log_probs[False][padding] > -20).all()


def test_fewer_positions_than_wanted_are_filled_with_impossible_ones():
    whole = case("conditional_spans").features()
    features = {name: value[:, :4] if name in PER_POSITION else value
                for name, value in whole.items()}
    features["p_mask"] = np.tile([[0, 1, 0, 1]], (5, 1))
    model, _ = without_dropout("conditional_spans")
    outputs = {name: value.numpy() for name, value in model(features).items()}
    assert outputs["start_top_index"].shape == (5, 5)
    assert outputs["end_top_index"].shape == (5, 20)
    for key in ("start", "end"):
        index = outputs[f"{key}_top_index"].reshape(5, -1, 5 if key == "start" else 4)
        scores = outputs[f"{key}_top_log_probs"].reshape(index.shape)
        assert np.all(np.sort(index[..., :2]) == [0, 2])
        assert np.all(scores[..., :2] > -20) and np.all(scores[..., 2:] < -1e29)
        close(np.exp(scores[..., :2]).sum(-1), 1.0)
    # A longer padding gives the same answers: ends of the two possible starts.
    longer = model(padded(features, 12))
    for name, value in outputs.items():
        close(value[..., :8], longer[name][..., :8])


def test_a_batch_of_nothing_but_padding_has_loss_0():
    features = {**case("cola").features(), "example_weights": np.zeros(7, "f")}
    assert train_losses("cola", features)[1]["total_loss"] == 0


# ---- training --------------------------------------------------------------


@pytest.mark.parametrize("name", HEADS)
def test_every_variable_gets_a_gradient(name):
    model, objective = without_dropout(name)
    features = case(name).features()
    with tf.GradientTape() as tape:
        outputs = model(features, training=True)
        loss = objective.losses(
            outputs, features, objective.denominators(features))["total_loss"]
    for variable, gradient in zip(model.trainable_variables, tape.gradient(
            loss, model.trainable_variables)):
        assert gradient is not None, variable.name
        size = np.abs(tf.convert_to_tensor(gradient).numpy()).max()
        # Softmax over positions or choices takes no notice of a constant.
        blind = (name in ("race", "spans", "conditional_spans")
                 and variable.name in ("output_bias:0", "cls/squad/output_bias:0",
                                       "start_logits/dense/bias:0",
                                       "end_logits/dense_1/bias:0",
                                       "end_logits/LayerNorm/beta:0")
                 or variable.name.endswith("/key/bias:0"))
        assert blind or size > 1e-7, variable.name


@pytest.mark.parametrize("name", ["cola", "race", "conditional_spans"])
def test_dropout_is_repeated_by_its_seed_and_off_in_prediction(name):
    model, objective = build(name, dropout_prob=0.5)
    features = case(name).features()

    def logits(training, seed=None):
        outputs = model(features, training=training, seed=seed)
        return outputs["cls_logits" if "cls_logits" in outputs else "logits"].numpy()

    plain = logits(False)
    np.testing.assert_array_equal(plain, logits(False))
    first = logits(True, [3, 4])
    np.testing.assert_array_equal(first, logits(True, [3, 4]))
    for other in (plain, logits(True, [3, 5]), logits(True)):
        assert not np.allclose(first, other)
    # Unseeded calls differ from each other.
    assert not np.allclose(logits(True), logits(True))


@pytest.mark.parametrize("name", ["cola", "race", "conditional_spans"])
def test_every_dropout_of_a_step_has_a_seed_of_its_own(name, monkeypatch):
    config = case(name).config.replace(hidden_dropout_prob=0.1)
    model = KINDS[name][0](config, dropout_prob=0.1)
    seeds = []

    def keep(seed, first_row, shape, rate, draw=random._keep):
        seeds.append(tuple(seed.numpy()))
        return draw(seed, first_row, shape, rate)

    monkeypatch.setattr(random, "_keep", keep)
    model(case(name).features(), training=True, seed=[1, 2])
    # Embeddings, two in each layer, the head.
    assert len(set(seeds)) == len(seeds) == 2 + 2 * config.num_hidden_layers


@pytest.mark.parametrize("batch, length", [(None, None), (5, 20)])
def test_prediction_in_a_graph_equals_the_eager_one(batch, length):
    model, _ = without_dropout("conditional_spans")
    features = {key: tf.constant(value) for key, value
                in case("conditional_spans").features().items() if key in PER_POSITION}
    spec = {key: tf.TensorSpec([batch, length], value.dtype)
            for key, value in features.items()}
    graph = tf.function(model, input_signature=[spec], autograph=False,
                        jit_compile=length is not None and batch is not None)(features)
    for name, value in model(features).items():
        close(graph[name], value)
        assert graph[name].shape == value.shape


# ---- use -------------------------------------------------------------------


@pytest.mark.parametrize("name", HEADS)
def test_a_model_is_made_again_from_its_config(name):
    model, _ = without_dropout(name)
    with tf.name_scope("outer"):  # Names do not depend on the scope around.
        again = type(model).from_config(model.get_config())
    assert again.get_config() == model.get_config()
    load_tf1_tensors(again, tf1_tensors(model))
    features = case(name).features()
    for key, value in model(features).items():
        np.testing.assert_array_equal(again(features)[key], value)


def test_initial_values_of_heads():
    config = AlbertConfig(
        vocab_size=20, embedding_size=4, hidden_size=256, num_hidden_layers=1,
        num_attention_heads=2, intermediate_size=16, max_position_embeddings=12,
        initializer_range=0.1)
    values = tf1_tensors(models.classifier(config, num_labels=4))
    assert not values["output_bias"].any()
    assert 0.015 < np.abs(values["output_weights"]).max() <= 0.04 + 1e-6
    # The layers of the SQuAD 2.0 head follow the config.
    values = tf1_tensors(models.conditional_spans(config))
    assert 0.15 < np.abs(values["end_logits/dense_0/kernel"]).max() <= 0.2 + 1e-6


def test_span_metrics_are_shares_of_right_positions():
    features = case("conditional_spans").features()
    outputs, losses = train_losses("conditional_spans", features)
    metrics = KINDS["conditional_spans"][1].metrics(outputs, features, losses)
    assert set(metrics) == {
        "loss", "start_accuracy", "end_accuracy", "answerability_accuracy"}
    hits = outputs["end_log_probs"].numpy().argmax(1) == features["end_positions"][:, 0]
    np.testing.assert_array_equal(metrics["end_accuracy"][0], hits)
    said = outputs["cls_logits"].numpy() > 0
    np.testing.assert_array_equal(
        metrics["answerability_accuracy"][0], said == features["is_impossible"][:, 0])


# ---- a label per word ------------------------------------------------------


def test_the_loss_of_tags_is_the_mean_over_words_with_labels():
    path, features, outputs = interop.case(
        FIXTURES / "interop" / "hf" / "token_classification")
    found = formats.read(path)
    model = models.tagger(
        found.config, found.heads["token_classification"], dropout_prob=0.0)
    restore_tf1(model, path)
    ids, there = features["input_ids"], features["input_mask"] == 1
    labels = there * np.random.default_rng(1).integers(0, 6, ids.shape)
    features = {**features, "label_ids": labels.astype("i4")}

    def losses_of(part, denominators=None):
        return TAGGING.losses(model(part, training=True), part,
                              denominators or TAGGING.denominators(part))

    losses, outputs = losses_of(features), model(features)
    probabilities = tf.nn.softmax(outputs["logits"]).numpy()
    close(losses["total_loss"], np.mean([
        -np.log(probabilities[row, place, labels[row, place] - 1])
        for row, place in zip(*np.nonzero(labels))]))
    predictions = TAGGING.predictions(outputs, features)
    assert {value.shape for value in predictions.values()} == {there.shape}
    close(predictions["probabilities"][there], probabilities.max(-1)[there])
    metrics = TAGGING.metrics(outputs, features, losses)
    for values, weights in metrics.values():
        assert values.shape == weights.shape == labels.shape
    values, weights = metrics["accuracy"]
    hits = probabilities.argmax(-1) + 1 == labels
    close(np.average(values, weights=weights), hits[labels > 0].mean())
    # Parts of a batch add up, and rows that pad it do not count.
    close(losses["total_loss"], sum(
        losses_of({key: value[i:i + 1] for key, value in features.items()},
                  TAGGING.denominators(features))["total_loss"]
        for i in range(len(labels))))
    assert losses_of({**features, "example_weights": np.zeros(
        len(labels), "f")})["total_loss"] == 0


# ---- in a run's checkpoints ------------------------------------------------


@pytest.mark.parametrize("make, layers", [
    (lambda config: models.classifier(config, 3), {"output_layer"}),
    (lambda config: models.tagger(config, 3), {"output_layer"}),
    (models.spans, {"output_layer"}), (models.multiple_choice, {"output_layer"}),
    (models.conditional_spans, {"start_head", "end_head", "answerability_head"})])
def test_a_runs_checkpoints_name_layers_as_those_of_earlier_versions(make, layers,
                                                                     tmp_path):
    """Else a run that was begun before could not be resumed."""
    model = make(tiny_run.config())
    path = tf.train.Checkpoint(model=model).write(str(tmp_path / "ckpt"))
    keys = tf.train.load_checkpoint(path).get_variable_to_shape_map()
    assert {key.split("/")[1] for key in keys if key.startswith("model/")} == {
        "bert", *layers}
