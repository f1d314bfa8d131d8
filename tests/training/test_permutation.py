"""The permutation objective: orders, what the two streams see, the loss.

How a step is computed does not change it: test_same_step; nor do replicas and stops:
test_replicas and scripts/test_run_pretraining.
"""

import dataclasses
import types

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.checkpoints import formats
from albert_tf.checkpoints.formats import convert
from albert_tf.checkpoints.restore import (
    load, load_tf1_tensors, restore_tf1, tf1_tensors)
from albert_tf.masking import reference
from albert_tf.masking.options import MaskingOptions, cumulative_ngram_probabilities
from albert_tf.modeling.parameter_count import QUERY_VECTOR
from albert_tf.modeling.pretraining import AlbertForPreTraining
from albert_tf.training import losses, permutation
from albert_tf.training.permutation import AlbertForPermutation, Orders
from tests import tiny_run
from tests.masking.maskers import (
    IDS, ODD_ROWS, VOCABULARY, features, random_rows, words_of)


def spans_of(row, places, sizes, options):
    """The n-grams that reference.choose_ngrams takes when it draws these, as lists of
    positions, first the one that it takes first."""
    words, _ = words_of(row, options)
    order = sorted(range(len(words)), key=lambda word: places[word])
    shares = iter((sizes[order].astype(float) + 2**31 + 0.5) / 2**32)
    positions, counts = reference.choose_ngrams(
        words, order, int(options.num_to_predict(len(row))), set(),
        cumulative_ngram_probabilities(options), types.SimpleNamespace(
            numpy=types.SimpleNamespace(random_sample=lambda: next(shares))))
    starts, place = {word[0]: i for i, word in enumerate(words)}, 0
    for count in counts:
        first = starts[positions[place]]
        span = [at for word in words[first:first + count] for at in word]
        assert positions[place:place + len(span)] == span
        yield span
        place += len(span)


@pytest.mark.parametrize("options", [
    MaskingOptions(20, 1 / 6), MaskingOptions(100, 1 / 3, ngram=6),
    MaskingOptions(4, 1 / 3), MaskingOptions(100, 1 / 3, do_whole_word_mask=False),
    MaskingOptions(100, 1.0)], ids=str)
def test_the_end_of_the_order_are_the_ngrams_of_the_reference(options):
    """The first n-gram is the last in the order, and is read from left to right; special
    tokens and padding have no place."""
    rows = ODD_ROWS + random_rows(60)
    batch = features(rows)
    size = batch["input_ids"].shape[1]
    draws = np.random.default_rng(0).integers(
        -2**31, 2**31, [len(rows), 2, size]).astype(np.int32)
    # Without a mask on any token.
    found = {name: value.numpy() for name, value in Orders(
        options, IDS, size, len(VOCABULARY))(
            batch, tf.constant(draws.reshape(len(rows), -1))).items()}
    assert "token_boundary" not in found
    np.testing.assert_array_equal(found["input_ids"], batch["input_ids"])
    for row, drawn, order, positions, weights, labels in zip(
            rows, draws, found["order"], *(found[f"masked_lm_{name}"] for name in (
                "positions", "weights", "ids"))):
        spans = list(spans_of(row, *drawn, options))
        in_order = [at for span in reversed(spans) for at in span]
        count = int(weights.sum())
        assert np.argsort(order, kind="stable").tolist()[len(order) - count:] == in_order
        assert positions[:count].tolist() == sorted(in_order)
        assert np.flatnonzero(order).tolist() == sorted(in_order)
        assert labels[:count].tolist() == [row[at] for at in positions[:count]]
        assert not positions[count:].any() and not labels[count:].any()
        assert not {row[at] for at in in_order} & {IDS.cls, IDS.sep}


def batch_of(orders, ids):
    """Features with the given orders; the sequences are equal."""
    orders = np.array(orders, np.int32)
    most = int((orders > 0).sum(axis=1).max())
    positions = np.zeros([len(orders), most], np.int32)
    for row, order in zip(positions, orders):
        predicted = np.flatnonzero(order)
        row[:len(predicted)] = predicted
    ids = np.tile(np.array(ids, np.int32), [len(orders), 1])
    used = np.take_along_axis(orders, positions, axis=1) > 0
    return {"input_ids": ids, "order": orders, "masked_lm_positions": positions,
            "masked_lm_ids": np.take_along_axis(ids, positions, axis=1) * used,
            "masked_lm_weights": used.astype(np.float32),
            "sentence_order_labels": np.zeros([len(orders), 1], np.int32)}


def model_with_weights(make=AlbertForPermutation, **changes):
    model = make(tiny_run.config(**changes))
    load_tf1_tensors(model, tiny_run.weights_of(model, scale=0.5))
    return model


@pytest.mark.parametrize("segments", [1, 2])
def test_without_predictions_it_is_the_model_of_masked_tokens(segments):
    model = model_with_weights(num_hidden_layers=3, type_vocab_size=segments)
    plain = AlbertForPreTraining(model.config)
    load_tf1_tensors(plain, {name: value for name, value in tf1_tensors(model).items()
                             if name != QUERY_VECTOR})
    features = tiny_run.features(tiny_run.examples(5))
    found = model({**features, "order": np.zeros_like(features["input_ids"])})
    np.testing.assert_allclose(
        found["sentence_order_logits"], plain(features)["sentence_order_logits"],
        rtol=0, atol=1e-6)


def test_later_uses_drop_the_vector_by_name(tmp_path):
    """Of a run's folder, as fine-tuning, load and convert read it."""
    model = model_with_weights()
    prefix = tf.train.Checkpoint(model=model).write(str(tmp_path / "run/model.ckpt-1"))
    (tmp_path / "run/albert_config.json").write_text(model.config.to_json())
    checkpoint = formats.read(prefix)
    assert checkpoint.report.dropped[QUERY_VECTOR] == (
        "used in pretraining with --objective=permutation only")
    assert {*checkpoint.heads} == {"masked_lm", "sentence_order"}
    assert {*checkpoint.tensors} == {*tf1_tensors(model)} - {QUERY_VECTOR}
    report = restore_tf1(AlbertForPreTraining(model.config), prefix)
    assert report.dropped[QUERY_VECTOR] == "not used by this model" and report.complete
    assert QUERY_VECTOR in convert(
        str(tmp_path / "run"), str(tmp_path / "hf"), "hf").dropped
    other = load(str(tmp_path / "hf")).model
    features = tiny_run.features(tiny_run.examples(3))
    plain = AlbertForPreTraining(model.config)
    restore_tf1(plain, prefix)
    np.testing.assert_allclose(
        other(features)["sentence_order_logits"],
        plain(features)["sentence_order_logits"], rtol=0, atol=1e-6)


def norm(x, weights, scope):
    x = x - x.mean(-1, keepdims=True)
    return (x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-12)
            * weights[f"{scope}/gamma"] + weights[f"{scope}/beta"])


def dense(x, weights, scope):
    return x @ weights[f"{scope}/kernel"] + weights[f"{scope}/bias"]


def gelu(x):
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x ** 3)))


def log_softmax(x):
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def layer(rows, content, seen, weights, heads):
    """One layer of rows [N, H] that look at the content [S, H] that each has seen."""
    scope = "bert/encoder/transformer/group_0/inner_group_0"
    query = dense(rows, weights, f"{scope}/attention_1/self/query")
    key, value = (dense(content, weights, f"{scope}/attention_1/self/{name}")
                  for name in ("key", "value"))
    context = np.zeros_like(rows)
    width = rows.shape[-1] // heads
    for head in (slice(i * width, (i + 1) * width) for i in range(heads)):
        for row in range(len(rows)):
            scores = key[seen[row], head] @ query[row, head] / np.sqrt(width)
            context[row, head] = np.exp(log_softmax(scores)) @ value[seen[row], head]
    rows = norm(rows + dense(context, weights, f"{scope}/attention_1/output/dense"),
                weights, f"{scope}/LayerNorm")
    inner = gelu(dense(rows, weights, f"{scope}/ffn_1/intermediate/dense"))
    return norm(rows + dense(inner, weights, f"{scope}/ffn_1/intermediate/output/dense"),
                weights, f"{scope}/LayerNorm_1")


def losses_by_hand(ids, order, weights, config):
    """The cross-entropy of each predicted token, in the words of section 2.3: h is the
    content stream, g the queries."""
    words, segments, places = (
        weights[f"bert/embeddings/{name}_embeddings"].astype(np.float64)
        for name in ("word", "token_type", "position"))
    predicted = np.flatnonzero(order)
    h = words[ids] + segments[0] + places[:len(ids)]
    g = weights[QUERY_VECTOR] + segments[0] + places[predicted]
    h, g = (dense(norm(x, weights, "bert/embeddings/LayerNorm"), weights,
                  "bert/encoder/embedding_hidden_mapping_in") for x in (h, g))
    for _ in range(config.num_hidden_layers):
        g, h = (layer(g, h, [order < order[at] for at in predicted], weights,
                      config.num_attention_heads),
                layer(h, h, [order <= place for place in order], weights,
                      config.num_attention_heads))
    scope = "cls/predictions"
    hidden = norm(gelu(dense(g, weights, f"{scope}/transform/dense")), weights,
                  f"{scope}/transform/LayerNorm")
    logits = hidden @ words.T + weights[f"{scope}/output_bias"]
    return -log_softmax(logits)[np.arange(len(predicted)), ids[predicted]]


def test_loss_of_a_case_computed_by_hand():
    model = model_with_weights(num_hidden_layers=2)
    ids, orders = np.array([2, 11, 12, 13, 14, 3]), [
        [0, 0, 3, 4, 1, 0], [0, 2, 0, 0, 0, 0], [0, 4, 3, 2, 1, 0]]
    weights = tf1_tensors(model)
    expected = [losses_by_hand(ids, np.array(order), weights, model.config)
                for order in orders]
    batch = batch_of(orders, ids)
    task = dataclasses.replace(losses.MASKED_LM_ALONE, metrics=permutation.metrics)
    outputs = model(batch)
    found = task.losses(outputs, batch, task.denominators(batch))
    for row, values in zip(found["masked_lm_example_loss"].numpy(), expected):
        np.testing.assert_allclose(row[:len(values)], values, rtol=1e-5)
    mean = np.concatenate(expected).mean()
    np.testing.assert_allclose(found["total_loss"], mean, rtol=1e-5)
    metrics = task.metrics(outputs, batch, found)
    assert set(metrics) == {"permutation_loss", "permutation_accuracy"}
    values, of_values = metrics["permutation_loss"]
    np.testing.assert_allclose(np.average(values, weights=of_values), mean, rtol=1e-5)
    # With the order of sentences it is that of pretraining.
    task = dataclasses.replace(losses.PRETRAINING, metrics=permutation.metrics)
    plain = losses.pretraining_losses(outputs, batch)
    found = task.losses(outputs, batch, task.denominators(batch))
    np.testing.assert_allclose(found["total_loss"], plain["total_loss"], rtol=1e-6)
    assert set(task.metrics(outputs, batch, found)) - set(metrics) == {
        "sentence_order_loss", "sentence_order_accuracy"}
