"""SavedModels: what serves gives the numbers of the model."""

import dataclasses
import functools
import importlib.util
import sys

import numpy as np
import pytest
import tensorflow as tf

import albert_tf
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


@pytest.mark.long
@pytest.mark.skipif(not HAS_TENSORFLOW_TEXT, reason="needs tensorflow_text")
def test_the_command_exports_what_a_model_can_do(tmp_path):
    folders = {kind: tiny_models.write(tmp_path / kind, kind)
               for kind in ("pretrained", "choices")}
    bare = tiny_models.write(tmp_path / "bare", "pretrained")
    (tmp_path / "bare" / tiny_models.SPM.name).unlink()
    commands = {
        "order": [f"--model={folders['pretrained']}", "--task=order",
                  f"--export_dir={tmp_path}/order"],
        "choices": [f"--model={folders['choices']}", f"--export_dir={tmp_path}/chosen"],
        "no vocabulary": [f"--model={bare}", "--export_text",
                          f"--export_dir={tmp_path}/none"],
        "no head": [f"--model={bare}", "--task=tag", f"--export_dir={tmp_path}/none"]}
    given = {"order": [{"text": "It is.", "text_pair": "The text of them."}],
             "choices": [{"passage": "The text of them. " * 9, "question": "Which _?",
                          "options": ["it", "the first", "a"]}]}
    with run_commands("export_model", commands) as results:
        for name, folder in (("order", "order"), ("choices", "chosen")):
            results.ok(name)
            kind = "pretrained" if name == "order" else name
            [wanted] = albert_tf.load(folders[kind]).predict(given[name])
            found = load_export(tmp_path / folder).signatures["serving_default"](**{
                key: tf.constant([value]) for key, value in given[name][0].items()})
            assert found["label"].numpy()[0].decode() == wanted["label"]
            np.testing.assert_allclose(
                found["probabilities"][0], [*wanted["probabilities"].values()],
                atol=1e-5)
        results.refused("no vocabulary", "--export_text: .*bare holds no vocabulary",
                        loaded=True)
        results.refused("no head", "--task=tag: .* are order, embed", loaded=True)
    assert not (tmp_path / "none").exists()
