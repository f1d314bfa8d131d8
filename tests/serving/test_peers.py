"""Exports in the hub's layout, asked by transformers.js: equal to `predict`.

    python -m tests.peers && python -m pytest -m peers -rP tests/serving/test_peers.py
"""

import dataclasses
import json

import numpy as np
import pytest

import albert_tf
from albert_tf.serving import portable
from tests import peers
from tests.serving import tiny_models

pytestmark = pytest.mark.peers
PASSAGE = "The first text of them was made in 1999, and it is long."
QUESTIONS = [("What was made?", PASSAGE), ("Who?", "It is the first of two texts")]
TEXTS = ["It is.", PASSAGE, "Größe, ½ and ``two''"]
CASES = {  # name → (kind of model, task, inputs)
    "classes": ("classes", "classify", TEXTS),
    "several": ("several", "classify", TEXTS),
    "tags": ("tags", "tag", ["The first text was made", "It is long"]),
    "masks": ("pretrained", "fill-mask", ["The [MASK] of it.", "A [MASK]"]),
    "vectors": ("pretrained", "embed", TEXTS),
    "spans": ("spans", "answer", QUESTIONS),
    "spans2": ("spans2", "answer", QUESTIONS),
    "int8": ("classes", "classify", TEXTS[:1])}


@pytest.fixture(scope="module", name="asked")
def _asked(tmp_path_factory):
    """Name → (model, the answers of transformers.js)."""
    root, models, jobs = tmp_path_factory.mktemp("peers"), {}, []
    for name, (kind, task, texts) in CASES.items():
        model = albert_tf.load(tiny_models.write(root / name / kind, kind))
        folder = root / name / "exported"
        portable.export(model, task, str(folder), "onnx", "float32", "int8")
        if name == "int8":
            model = albert_tf.load(folder / "onnx" / "model_quantized.onnx")
        if task == "answer":  # A question may be left without an answer by its threshold.
            model = dataclasses.replace(model, threshold=1e9)
        models[name] = model
        jobs.append({"folder": str(folder), "kind": task, "texts": texts,
                     "dtype": "q8" if name == "int8" else "fp32"})
    (root / "jobs.json").write_text(json.dumps(jobs))
    peers.run("transformers_js", root / "jobs.json", root / "answers.json")
    answers = json.loads((root / "answers.json").read_text())
    return {name: (models[name], found) for name, found in zip(CASES, answers)}


def close(found, expected):
    """Compares numbers by label within 1e-5; returns the difference."""
    assert found.keys() == expected.keys()
    found, expected = ([each[name] for name in expected] for each in (found, expected))
    np.testing.assert_allclose(found, expected, atol=1e-5)
    return np.abs(np.subtract(found, expected)).max()


@pytest.mark.parametrize("name", CASES)
def test_answers_are_those_of_predict(name, asked):
    (model, answers), (_, task, inputs), largest = asked[name], CASES[name], 0.0
    tokenizer = model.tokenizer
    expected = model.predict(inputs, task=task, top_k=3)
    for text, one, other in zip(inputs, answers, expected, strict=True):
        if task == "classify":
            largest = max(largest, close({each["label"]: each["score"] for each in one},
                                         other["probabilities"]))
        elif task == "tag":
            tags = {each["index"]: each["entity"] for each in one}
            # The positions of the first pieces of words, after [CLS].
            assert [tags[i] for i, piece in enumerate(tokenizer.tokenize(
                tokenizer.prepare(text)), 1) if piece.startswith("▁")] == other["tags"]
        elif task == "fill-mask":
            [likeliest] = other["masks"]
            pieces = tokenizer.convert_ids_to_tokens([each["token"] for each in one])
            largest = max(largest, close(
                dict(zip(pieces, (each["score"] for each in one))),
                {each["piece"]: each["probability"] for each in likeliest}))
        elif task == "embed":
            np.testing.assert_allclose(one, other["mean"], atol=1e-5)
        else:  # It has the tokens' text only.
            assert one["answer"].replace(" ", "") == "".join(tokenizer.tokenize(
                tokenizer.prepare(other["answer"]))).replace("▁", "")
    print(f"transformers_js, {name}: {len(inputs)} inputs, largest difference {largest:.1e}")
