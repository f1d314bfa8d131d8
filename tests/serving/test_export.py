"""SavedModels: what serves gives the numbers of the model."""

import dataclasses
import functools
import importlib.util
import json
import sys

import numpy as np
import pytest
import tensorflow as tf

import albert_tf
from albert_tf.checkpoints import vocabulary
from albert_tf.checkpoints.restore import restore_tf1
from albert_tf.cli import flags as cli_flags
from albert_tf.errors import InputError
from albert_tf.tokenization import in_graph
from albert_tf.serving import portable
from albert_tf.serving.export import export
from tests import models, tiny_run
from tests.commands import run_commands
from tests.helpers import HAS_TENSORFLOW_TEXT, load_export
from tests.serving import tiny_models
from tests.serving.test_real_texts import as_answers, as_outputs, close


def make(num_labels):
    config = tiny_run.config(num_hidden_layers=1, max_position_embeddings=12,
                             hidden_dropout_prob=0.5)
    return models.classifier(config, num_labels, dropout_prob=0.5)


def batch(rows, length, masked=2):
    random = np.random.default_rng(length)
    ids = random.integers(5, tiny_run.VOCAB_SIZE, (rows, length)).astype(np.int32)
    mask = np.ones_like(ids)
    mask[:, length - masked:] = 0
    return {"input_ids": tf.constant(ids), "input_mask": tf.constant(mask),
            "segment_ids": tf.constant((ids % 2).astype(np.int32))}


@pytest.fixture(scope="module", name="exported")
def _exported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("export") / "below" / "model"
    model = make(3)
    export(model, model.head, f"{folder}/", ["no", "maybe", "好"])
    return folder, model


def test_labels_stand_beside_it(exported):
    folder, _ = exported
    assert (folder / "assets" / "labels.txt").read_text(encoding="utf-8") == (
        "no\nmaybe\n好\n")
    assert [path.name for path in folder.parent.iterdir()] == ["model"]


def test_an_export_is_not_read_as_a_model(exported):
    folder, model = exported
    for use in (albert_tf.load, functools.partial(restore_tf1, model)):
        with pytest.raises(InputError, match=f"{folder} is a SavedModel that export_model"):
            use(str(folder))


def test_regression_has_no_probabilities(tmp_path):
    model = make(1)
    export(model, model.head, str(tmp_path / "model"), ())
    features = batch(2, 7)
    found = tf.saved_model.load(str(tmp_path / "model")).signatures[
        "serving_default"](**features)
    assert found.keys() == {"logits"} and found["logits"].shape == (2, 1)
    np.testing.assert_allclose(found["logits"], model(features)["logits"], atol=1e-6)
    assert not (tmp_path / "model" / "assets" / "labels.txt").exists()


def test_folder_that_exists_is_kept(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "notes").write_text("the user's")
    with pytest.raises(InputError, match="--export_dir=.*model exists"):
        export((model := make(2)), model.head, str(tmp_path / "model"), ["a", "b"])
    assert [path.name for path in (tmp_path / "model").iterdir()] == ["notes"]


def test_a_label_with_a_line_end_is_not_exported(tmp_path):
    """In a file of labels it would be two, and every later one another's."""
    folder = tmp_path / "export"
    with pytest.raises(InputError, match=r"--export_dir=.*'a\\nb'"):
        export(make(3), None, str(folder), ["a\nb", "c", "d"])
    loaded = dataclasses.replace(
        albert_tf.load(tiny_models.write(tmp_path / "model", "classes")),
        labels=("a\nb", "c", "d"))
    with pytest.raises(InputError, match=r"the label 'a\\nb' has a line end"):
        portable.export(loaded, "classify", str(folder), "onnx", "float32")
    assert not folder.exists()


def test_failed_export_leaves_nothing(tmp_path, monkeypatch):
    def fail(module, folder, **kwargs):
        tf.io.gfile.makedirs(f"{folder}/variables")
        raise tf.errors.ResourceExhaustedError(None, None, "no room left\nmore")

    monkeypatch.setattr(tf.saved_model, "save", fail)
    with pytest.raises(InputError, match="/model: cannot be written: no room left"):
        export((model := make(2)), model.head, str(tmp_path / "model"), ["a", "b"])
    assert not list(tmp_path.iterdir())


# ---- text, export_model.py -------------------------------------------------


def test_without_tensorflow_text_one_sentence_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_text", None)
    with pytest.raises(InputError, match="tensorflow_text is not installed.*pip install"):
        in_graph.tensorflow_text()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="--noexport_text"):
        cli_flags.check_tensorflow_text(True)


LONG = "The text of them was first, and one is it. " * 9
# Kind of model → task, flags in its task.json, and inputs longer than it reads.
TRAINED = {
    "pretrained": ("order", {}, [("It is.", LONG)]),
    "classes": ("classify", {"text_b_column": "b", "max_seq_length": 12}, [
        ("It is.", LONG), (LONG, "It")]),
    "several": ("classify", {"text_b_column": None, "max_seq_length": 9,
                             "label_threshold": 0.9}, ["It is.", LONG]),
    "number": ("classify", {"max_seq_length": 9}, [LONG]),
    "spans": ("answer", {"max_seq_length": 24, "doc_stride": 3, "max_query_length": 2,
                         "max_answer_length": 2}, [("Which one?", LONG)]),
    "spans2": ("answer", {"max_seq_length": 24, "doc_stride": 7}, [("Which one?", LONG)]),
    "choices": ("choose", {"max_seq_length": 24, "max_qa_length": 3}, [
        {"passage": LONG, "question": "Which _?", "options": ["it", "the first", "a"]}]),
    "tags": ("tag", {"max_seq_length": 10, "doc_stride": 2, "split_words": "whitespace"},
             [LONG]),
}


@pytest.fixture(scope="module", name="exports")
def _exports(tmp_path_factory):
    root = tmp_path_factory.mktemp("exports")
    commands = {}
    for kind, (task, flags, _) in TRAINED.items():
        folder = tiny_models.write(root / kind, kind, **flags)
        commands |= {f"{kind} {form}": [
            f"--model={folder}", f"--task={task}", f"--format={form}",
            f"--export_dir={root}/{kind}_{form}"] for form in ("saved_model", "tflite")}
    bare = tiny_models.write(root / "bare", "pretrained")
    (root / "bare" / tiny_models.SPM.name).unlink()
    commands |= {
        "no vocabulary": [f"--model={bare}", "--export_text", f"--export_dir={root}/none"],
        "no head": [f"--model={bare}", "--task=tag", f"--export_dir={root}/none"]}
    with run_commands("export_model", commands) as results:
        yield root, results


@pytest.mark.long
@pytest.mark.parametrize("kind", TRAINED)
def test_exports_answer_as_the_model_was_trained(kind, exports):
    """Lengths, windows, thresholds and pairs, too, and their settings are as its own."""
    root, results = exports
    task, _, inputs = TRAINED[kind]
    model = albert_tf.load(root / kind)
    wanted = as_outputs(model.predict(inputs, task=task))
    results.ok(f"{kind} tflite")
    other = albert_tf.load(root / f"{kind}_tflite")
    assert all(map(close, as_outputs(other.predict(inputs)), wanted))
    assert other.settings == {"flags": {}} | vocabulary.elsewhere(model.settings)
    if kind == "classes":
        with pytest.raises(InputError, match="'text_pair' is missing"):
            other.predict(LONG)
    if not HAS_TENSORFLOW_TEXT:
        return
    results.ok(f"{kind} saved_model")
    exported = root / f"{kind}_saved_model"
    serve = load_export(exported).signatures["serving_default"]
    for each, answer in zip(inputs, wanted):
        names = model.head(task).names
        given = each if isinstance(each, dict) else dict(zip(
            names, [each] if isinstance(each, str) else each))
        outputs = serve(**{name: tf.constant([value]) for name, value in given.items()})
        [found] = as_answers({name: json.loads(json.dumps(
            value.numpy().tolist(), default=bytes.decode))
            for name, value in outputs.items()})
        if "labels" in found:
            found["labels"] = [label for label in found["labels"] if label]
        assert close(found, answer), (found, answer)
    assert vocabulary.task_settings(str(exported / "assets")) == other.settings


@pytest.mark.long
def test_an_export_that_is_not_possible(exports):
    root, results = exports
    results.refused("no vocabulary", "--export_text: .*bare holds no vocabulary",
                    loaded=True)
    results.refused("no head", "--task=tag: .* are order, embed", loaded=True)
    assert not (root / "none").exists()
