"""Exits while serving: each sequence stops by itself, whatever is beside it.

    python -m pytest tests/serving/test_early_exit.py
"""

import asyncio
import dataclasses

import numpy as np
import pytest
import tensorflow as tf

import albert_tf
from albert_tf.errors import InputError
from albert_tf.modeling.encoder import Computation
from albert_tf.modeling import early_exit
from albert_tf.serving import export, saved_model
from tests import models
from tests.commands import run_commands
from tests.helpers import HAS_TENSORFLOW_TEXT
from tests.serving import tiny_models

CONFIG = dataclasses.replace(
    tiny_models.TINY, num_hidden_layers=4, initializer_range=0.2)
TEXTS = ["it", "The text of them. " * 9, "What was made of it?", "a the text",
         "One and the first of the other ones.", "them"] * 2


@pytest.fixture(scope="module", name="folder")
def _folder(tmp_path_factory):
    return tiny_models.write(
        tmp_path_factory.mktemp("models") / "exits", "exits", config=CONFIG)


@pytest.fixture(scope="module", name="loaded")
def _loaded(folder):
    return albert_tf.load(folder)


def stops(outputs, threshold):
    """After which pass each sequence of a model's outputs is to stop."""
    surest = np.max(tf.nn.softmax(outputs["exit_logits"]), axis=-1) > threshold
    return np.pad(surest, [(0, 0), (0, 1)], constant_values=True).argmax(axis=1) + 1


def mixed(outputs):
    """A threshold at which sequences stop after as many passes as may be, between two
    probabilities: at one of them rounding would decide."""
    values = np.unique(np.max(
        tf.nn.softmax(outputs["exit_logits"]), axis=-1).ravel().round(4))
    return float(max((values[1:] + values[:-1]) / 2, key=lambda threshold: len(
        set(stops(outputs, threshold)))))


def middle(loaded):
    return mixed(loaded.model(loaded.tokenizer(TEXTS, max_length=64)))


# ---- the loop --------------------------------------------------------------


@pytest.mark.parametrize("changes, skip_padding", [
    ({}, False), ({}, True), ({"num_hidden_groups": 2, "inner_group_num": 2}, True),
    ({"parameter_sharing": "ffn"}, False)])
def test_each_answer_is_that_of_the_pass_after_which_it_was_sure(changes, skip_padding):
    tf.random.set_seed(3)
    model = models.classifier(
        dataclasses.replace(CONFIG, **changes), 3, exit_weight=1.0)
    ids = np.random.default_rng(2).integers(5, 4000, (8, 12)).astype(np.int32)
    mask = (np.arange(12) < np.arange(3, 11)[:, np.newaxis]).astype(np.int32)
    batch = {"input_ids": tf.constant(ids * mask), "input_mask": tf.constant(mask),
             "segment_ids": tf.zeros_like(ids)}
    whole = model(batch)
    logits = np.concatenate(
        [whole["exit_logits"], whole["logits"][:, np.newaxis]], axis=1)
    threshold = mixed(whole)
    passes = stops(whole, threshold)
    assert len(set(passes)) > 1, passes

    @tf.function(autograph=False, reduce_retracing=True, input_signature=[
        {name: tf.TensorSpec([None, None], tf.int32) for name in batch},
        tf.TensorSpec(None, tf.float32)])
    def answers(features, threshold):
        return early_exit.answers(model, features, threshold,
                                  Computation(skip_padding=skip_padding))

    found = answers(batch, tf.constant(threshold))
    np.testing.assert_array_equal(found["passes"], passes)
    np.testing.assert_allclose(
        found["logits"], logits[np.arange(8), passes - 1], atol=1e-5)
    # One by one, and with a threshold each.
    for i in range(8):
        alone = answers({name: value[i:i + 1] for name, value in batch.items()},
                        tf.constant(threshold))
        assert alone["passes"].numpy() == [passes[i]]
        np.testing.assert_allclose(alone["logits"][0], found["logits"][i], atol=1e-5)
    own = answers(batch, tf.constant([1.0, 0.0] * 4))
    np.testing.assert_array_equal(own["passes"], [4, 1] * 4)
    exit_head = model.head_layers["classification"]["exit_head"]
    exit_head.output_layer.output_bias.assign([999.0, 0.0, 0.0])
    for threshold, after in ((0.99, 1), (1.0, 4)):  # Of a probability of 1 exactly.
        np.testing.assert_array_equal(
            answers(batch, tf.constant(threshold))["passes"], [after] * 8)
    nothing = answers({name: value[:0] for name, value in batch.items()},
                      tf.constant(threshold))
    assert nothing["logits"].shape == (0, 3) and nothing["passes"].shape == (0,)


# ---- predict ---------------------------------------------------------------


def test_predict_gives_the_passes_and_at_one_the_ordinary_answer(loaded):
    threshold = middle(loaded)
    found = loaded.predict(TEXTS, exit_threshold=threshold, batch_size=5)
    assert len({answer["passes"] for answer in found}) > 2
    for text, answer in zip(TEXTS, found):
        alone = loaded.predict(text, exit_threshold=threshold)
        assert (alone["label"], alone["passes"]) == (answer["label"], answer["passes"])
        assert alone["probabilities"] == pytest.approx(answer["probabilities"], abs=1e-5)
    ordinary = loaded.predict(TEXTS)
    assert all("passes" not in answer for answer in ordinary)
    for answer, all_passes in zip(ordinary, loaded.predict(TEXTS, exit_threshold=1.0)):
        assert all_passes["passes"] == 4
        assert all_passes["probabilities"] == pytest.approx(
            answer["probabilities"], abs=1e-6)


def test_what_cannot_exit_is_refused_in_one_sentence(loaded, tmp_path):
    for wrong in (1.5, -0.1, float("nan"), True, "0.9"):
        with pytest.raises(InputError, match=r"^exit_threshold is .*; give a "
                                             "probability from 0 to 1"):
            loaded.predict("it", exit_threshold=wrong)
    with pytest.raises(InputError, match="^exit_threshold is for classify, not for embed"):
        loaded.predict("it", task="embed", exit_threshold=0.9)
    without = albert_tf.load(tiny_models.write(tmp_path / "classes", "classes"))
    with pytest.raises(InputError, match="^exit_threshold: the model has no exit head; "
                                         "leave it out, or train with --early_exit"):
        without.predict("it", exit_threshold=0.9)
    with pytest.raises(InputError, match="^exit_threshold: an export for .* always "):
        dataclasses.replace(loaded, engine=lambda batch: batch).predict(
            "it", exit_threshold=0.9)
    number = dataclasses.replace(loaded, heads={"classification": 1, "early_exit": 1})
    with pytest.raises(InputError, match="^exit_threshold: .* predicts a number"):
        number.predict("it", exit_threshold=0.9)


# ---- exports ---------------------------------------------------------------


@pytest.fixture(scope="module", name="exported")
def _exported(folder, tmp_path_factory):
    """By the command, as a user does it."""
    at = tmp_path_factory.mktemp("export") / "model"
    with run_commands("export_model", {"export": [
            f"--model={folder}", f"--export_dir={at}", "--max_seq_length=64",
            f"--export_text={HAS_TENSORFLOW_TEXT}"]}) as results:
        results.ok("export")
    return saved_model.Server(str(at))


@pytest.mark.long
def test_export_answers_as_predict_does(loaded, exported):
    threshold = middle(loaded)
    wanted = loaded.predict(TEXTS, exit_threshold=threshold)
    rows = [loaded.tokenizer.features(text, None, 64) for text in TEXTS]
    found = exported.predict(rows, batch_size=5, exit_threshold=threshold)
    assert list(found["passes"]) == [answer["passes"] for answer in wanted]
    np.testing.assert_allclose(found["probabilities"], [
        [*answer["probabilities"].values()] for answer in wanted], atol=1e-5)
    ordinary, all_passes = (exported.predict(rows, **more) for more in (
        {}, {"exit_threshold": 1.0}))
    assert "passes" not in ordinary and set(all_passes["passes"]) == {4}
    np.testing.assert_allclose(
        ordinary["logits"], all_passes["logits"], atol=1e-6)
    if HAS_TENSORFLOW_TEXT:
        answers = exported._loaded.signatures["early_exit"](
            text=tf.constant(TEXTS), exit_threshold=tf.constant(threshold))
        np.testing.assert_array_equal(answers["passes"], found["passes"])
        assert [label.decode() for label in answers["label"].numpy()] == [
            answer["label"] for answer in wanted]
    # The export is a model like another.
    again = albert_tf.load(exported._export_dir)
    assert again.heads == {"classification": 3, "early_exit": 3}
    assert again.predict(TEXTS[:2], exit_threshold=threshold) == [
        {**answer, "probability": pytest.approx(answer["probability"], abs=1e-5),
         "probabilities": pytest.approx(answer["probabilities"], abs=1e-5)}
        for answer in wanted[:2]]


@pytest.mark.long
def test_the_graph_refuses_what_is_no_probability(exported):
    row = {"input_ids": [2, 7, 3], "input_mask": [1, 1, 1], "segment_ids": [0, 0, 0]}
    with pytest.raises(InputError, match="exit_threshold is 1.5; give a probability"):
        exported.predict([row], exit_threshold=1.5)
    with pytest.raises(tf.errors.InvalidArgumentError, match="exit_threshold must be a "
                                                             "probability from 0 to 1"):
        exported._exits(**{name: tf.constant([value]) for name, value in row.items()},
                        exit_threshold=tf.constant(float("nan")))


def test_export_without_exits_has_the_signatures_it_had(tmp_path):
    model = models.classifier(tiny_models.TINY, 2)
    export.export(model, model.head, str(tmp_path / "plain"), ["a", "b"])
    assert list(saved_model._load(str(tmp_path / "plain")).signatures) == ["serving_default"]
    with pytest.raises(InputError, match="plain has no exits; export a model that was"):
        saved_model.Server(str(tmp_path / "plain")).predict(
            [{"input_ids": [2]}], exit_threshold=0.9)


# ---- over HTTP -------------------------------------------------------------


def test_server_has_a_threshold_and_a_request_another(loaded):
    pytest.importorskip("aiohttp")
    from tests.serving.test_http import ask, running

    threshold = middle(loaded)
    wanted = [answer["passes"] for answer in loaded.predict(
        TEXTS[:4], exit_threshold=threshold)]

    async def check():
        async with running(loaded, exit_threshold=threshold) as (_, session):
            async def passes(query="", **more):
                status, found = await ask(
                    session, {"instances": TEXTS[:4], **more},
                    f"/v1/models/tiny:predict{query}")
                return (status, found.get("error") or [
                    answer.get("passes") for answer in found["predictions"]])

            assert await passes() == (200, wanted)
            assert await passes("?exit_threshold=1.0") == (200, [4] * 4)
            assert await passes(signature_name="embed") == (200, [None] * 4)
            for wrong in ("2", "x", "nan"):
                status, error = await passes(f"?exit_threshold={wrong}")
                assert status == 400 and "give a probability from 0 to 1" in error

    asyncio.run(check())
