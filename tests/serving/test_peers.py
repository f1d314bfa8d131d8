"""Exports in the hub's layout, asked by transformers.js and optimum: equal to `predict`.

    python -m tests.peers && python -m pytest -m peers -rP tests/serving/test_peers.py
"""

import dataclasses
import json

import numpy as np
import pytest

import albert_tf
from albert_tf.checkpoints.conversion import convert
from albert_tf.serving import portable
from tests import peers
from tests.serving import tiny_models

pytestmark = pytest.mark.peers
PASSAGE = "The first text of them was made in 1999, and it is long."
QUESTIONS = [("What was made?", PASSAGE), ("Who?", "It is the first of two texts")]
TEXTS = ["It is.", PASSAGE, "Größe, ½ and ``two''"]
WORDS = ["The first text was made", "It is long"]
CASES = {  # name → (kind of model, task, inputs)
    "classes": ("classes", "classify", TEXTS),
    "pairs": ("classes", "classify", [("Größe", "one"), ("It is", PASSAGE)]),
    "several": ("several", "classify", TEXTS),
    "tags": ("tags", "tag", WORDS),
    "masks": ("pretrained", "fill-mask", ["The [MASK] of it.", "A [MASK]"]),
    "vectors": ("pretrained", "embed", TEXTS),
    "order": ("pretrained", "order", [("It is", "long"), ("One", PASSAGE)]),
    "spans": ("spans", "answer", QUESTIONS),
    "spans2": ("spans2", "answer", QUESTIONS),
    "choices": ("choices", "choose", [("It", "Is it?", "one", "two", "three")])}
ONLY_OPTIMUM = ("pairs", "order", "choices")


@pytest.fixture(scope="module", name="exported")
def _exported(tmp_path_factory):
    """Name → (model, folder of its export)."""
    root, exports = tmp_path_factory.mktemp("peers"), {}
    for name, (kind, task, _) in CASES.items():
        if not (root / kind).exists():
            tiny_models.write(root / kind, kind)
        model = albert_tf.load(root / kind)
        folder = root / f"{kind}-{task}"
        if not folder.exists():
            portable.export(model, task, str(folder), "onnx", "float32", "int8")
        exports[name] = model, str(folder)
    return exports


@pytest.fixture(scope="module", name="asked")
def _asked(exported, tmp_path_factory):
    """Returns a function: peer → name → its answers; "int8" are those of classes."""
    place, cache = tmp_path_factory.mktemp("answers"), {}

    def ask(peer):
        if peer in cache:
            return cache[peer]
        is_js = peer == "transformers_js"
        names = [name for name in CASES if not (is_js and name in ONLY_OPTIMUM)]
        jobs = [{"folder": exported[name][1], "kind": CASES[name][1],
                 "texts": CASES[name][2], "dtype": "fp32"} for name in names]
        jobs.append({**jobs[0], "dtype": "q8", "file": "model_quantized.onnx"})
        jobs.append({"folder": exported["spans2"][1], "kind": "answer", "dtype": "fp32",
                     "texts": QUESTIONS, "may_be_impossible": True})
        (place / "jobs.json").write_text(json.dumps(jobs))
        peers.run(peer, place / "jobs.json", place / "answers.json")
        cache[peer] = dict(zip([*names, "int8", "impossible"],
                               json.loads((place / "answers.json").read_text())))
        return cache[peer]

    return ask


def pieces_of_words(model, text):
    """The positions of the first pieces of words, after [CLS]."""
    pieces = model.tokenizer.tokenize(model.tokenizer.prepare(text))
    return [i + 1 for i, piece in enumerate(pieces) if piece.startswith("▁")]


def close(found, expected):
    """Compares numbers, or numbers by label, within 1e-5; returns the difference."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        found, expected = ([each[name] for name in expected] for each in (found, expected))
    np.testing.assert_allclose(found, expected, atol=1e-5)
    return np.abs(np.subtract(found, expected)).max()


def check(peer, name, model, inputs, found):
    """Compares a peer's answers with those of `predict`."""
    task, largest = CASES[name][1], 0.0
    if task == "answer":  # A question may be left without an answer by its threshold.
        model = dataclasses.replace(model, threshold=1e9)
    expected = model.predict(inputs, task=task, top_k=3)
    assert len(found) == len(expected)
    for text, one, other in zip(inputs, found, expected):
        if task in ("classify", "order"):
            largest = max(largest, close({each["label"]: each["score"] for each in one},
                                         other["probabilities"]))
        elif task == "tag":
            tags = {each["index"]: each["entity"] for each in one}
            assert [tags[i] for i in pieces_of_words(model, text)] == other["tags"]
        elif task == "fill-mask":
            [likeliest] = other["masks"]
            assert model.tokenizer.convert_ids_to_tokens(
                [each["token"] for each in one]) == [each["piece"] for each in likeliest]
            difference = close([each["score"] for each in one],
                               [each["probability"] for each in likeliest])
            assert difference < 1e-6
            largest = max(largest, difference)
        elif task == "embed":
            largest = max(largest, close(one, other["mean"]))
        elif task == "choose":
            largest = max(largest, close(one, [*other["probabilities"].values()]))
        elif "start" in one:
            start = one["start"] + one["answer"].startswith(" ")
            assert (start, one["end"]) == (other["start"], other["end"])
        else:  # transformers.js has the tokens' text only.
            tokenizer = model.tokenizer
            assert one["answer"].replace(" ", "") == "".join(tokenizer.tokenize(
                tokenizer.prepare(other["answer"]))).replace("▁", "")
    print(f"{peer}, {name}: {len(found)} inputs, largest difference {largest:.1e}")


@pytest.mark.parametrize("peer", ["transformers_js", "optimum"])
@pytest.mark.parametrize("name", CASES)
def test_answers_are_those_of_predict(peer, name, exported, asked):
    if peer == "transformers_js" and name in ONLY_OPTIMUM:
        pytest.skip("transformers.js has no pipeline for it")
    check(peer, name, exported[name][0], CASES[name][2], asked(peer)[name])


@pytest.mark.parametrize("peer", ["transformers_js", "optimum"])
def test_answers_of_8_bits_are_those_of_the_same_file(peer, exported, asked):
    model = albert_tf.load(f"{exported['classes'][1]}/onnx/model_quantized.onnx")
    check(peer, "classes", model, [TEXTS[0]], asked(peer)["int8"][:1])


def test_optimum_leaves_the_same_questions_without_an_answer(exported, asked):
    for found, answer in zip(asked("optimum")["impossible"],
                             exported["spans2"][0].predict(QUESTIONS)):
        assert (found["answer"] == "") == (answer["answer"] == "")


@pytest.mark.parametrize("kind,task,name", [
    ("classes", "classify", "ORTModelForSequenceClassification"),
    ("tags", "tag", "ORTModelForTokenClassification"),
    ("spans", "answer", "ORTModelForQuestionAnswering"),
    ("choices", "choose", "ORTModelForMultipleChoice"),
    ("pretrained", "fill-mask", "ORTModelForMaskedLM"),
    ("encoder", "embed", "ORTModelForFeatureExtraction")])
def test_what_optimum_exports_is_read(kind, task, name, tmp_path):
    folder = tiny_models.write(tmp_path / kind, kind)
    convert(folder, str(tmp_path / "hf"), "hf")
    peers.run("optimum", "--export", name, tmp_path / "hf", tmp_path / "theirs")
    theirs, ours = albert_tf.load(tmp_path / "theirs"), albert_tf.load(tmp_path / "hf")
    inputs = next(texts for _, each, texts in CASES.values() if each == task)
    assert list(theirs.tasks()) == [task]
    for one, other in zip(theirs.predict(inputs), ours.predict(inputs, task=task)):
        assert one.keys() <= other.keys()
        for key, value in one.items():
            if key in ("mean", "pooled", "probabilities"):
                close(value, other[key])
            elif key in ("label", "answer", "start", "end", "tags"):
                assert value == other[key]
