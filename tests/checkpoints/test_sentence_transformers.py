"""Folders of sentence-transformers, read and written; test_peers.py asks the library.

The folder tests/fixtures/sentence_transformers is what sentence-transformers 6.2 wrote
beside the model of tests/serving/tiny_models.py (read_sentence_transformers.py --save
in tests/peers), with the vectors that it made of some texts.
"""

import json
import os
import shutil

import numpy as np
import pytest

import albert_tf
from albert_tf.checkpoints import formats, sentence_transformers
from albert_tf.checkpoints.formats import convert
from albert_tf.errors import InputError
from tests.helpers import FIXTURES
from tests.serving import tiny_models

THEIRS = FIXTURES / "sentence_transformers"
NAME = sentence_transformers.NAME


@pytest.fixture(scope="module", name="tf1")
def _tf1(tmp_path_factory):
    return tiny_models.write(tmp_path_factory.mktemp("model") / "tf1", "pretrained")


@pytest.fixture(scope="module", name="whole")
def _whole(tf1, tmp_path_factory):
    """Their folder, with the model."""
    folder = tmp_path_factory.mktemp("theirs") / "folder"
    encoder = tiny_models.write(folder.parent / "tf1", "encoder")
    convert(encoder, str(folder), "hf")
    shutil.copytree(THEIRS, folder, dirs_exist_ok=True)
    return folder


@pytest.fixture(name="theirs")
def _theirs(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "theirs")


def vectors(folder, texts):
    return [answer["embedding"] for answer in albert_tf.load(folder).predict(texts)]


def test_a_folder_of_theirs_gives_their_vectors(theirs):
    kept = json.loads((THEIRS / "vectors.json").read_text("utf-8"))
    loaded = albert_tf.load(theirs)
    assert (loaded.format, list(loaded.tasks())) == (NAME, ["embed"])
    assert loaded.head("embed").max_length == 20
    found = [answer["embedding"] for answer in loaded.predict(kept["texts"])]
    np.testing.assert_allclose(found, kept["vectors"], atol=1e-5)


def test_a_folder_of_older_versions(theirs, tmp_path):
    """The model in 0_Transformer, pooling by flags, the length beside it."""
    old = tmp_path / "old"
    shutil.copytree(theirs, old / "0_Transformer", ignore=shutil.ignore_patterns(
        "?_*", "modules.json", "tokenizer_config.json"))
    write(old / "0_Transformer/sentence_albert_config.json", {"max_seq_length": 9})
    write(old / "modules.json", [
        {"idx": 0, "name": "0", "path": "0_Transformer",
         "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling",
         "type": "sentence_transformers.models.Pooling"}])
    write(old / "1_Pooling/config.json", {
        "word_embedding_dimension": 16, "pooling_mode_cls_token": False,
        "pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True})
    loaded = albert_tf.load(old)
    hidden = loaded.model(loaded.tokenizer("The first text of them is long.",
                                           max_length=9))["sequence_output"][0].numpy()
    np.testing.assert_allclose(
        vectors(old, ["The first text of them is long."])[0],
        [*hidden.max(axis=0), *hidden.mean(axis=0)], atol=1e-5)


@pytest.mark.parametrize("pooling, expected", [
    ("", lambda out: out["sequence_output"][0].numpy().mean(axis=0)),
    ("pooled", lambda out: out["pooled_output"][0].numpy()),
    ("lasttoken,cls", lambda out: np.concatenate(
        [out["sequence_output"][0, i].numpy() for i in (-1, 0)])),
])
def test_any_model_becomes_such_a_folder(pooling, expected, tf1, tmp_path, eager):
    folder = tmp_path / "ours"
    report = convert(tf1, str(folder), NAME, pooling=pooling, max_seq_length=12)
    assert "uses only the encoder" in report.summary()
    text = "The first text of them was made in it, and it is long."
    before = albert_tf.load(tf1)
    np.testing.assert_allclose(vectors(folder, [text])[0], expected(
        before.model(before.tokenizer(text, max_length=12))), atol=1e-5)
    # No bit changes, there and back.
    again = tmp_path / "again"
    convert(str(folder), str(again), NAME)
    for name in ("model.safetensors", "modules.json", "1_Pooling/config.json",
                 "sentence_bert_config.json", "tokenizer.json"):
        assert (folder / name).read_bytes() == (again / name).read_bytes()
    assert vectors(again, [text]) == vectors(folder, [text])
    tensors = formats.read(tf1).tensors
    for name, tensor in formats.read(str(folder)).tensors.items():
        np.testing.assert_array_equal(tensor.read(), tensors[name].read())


def test_what_another_format_leaves_out_is_said(theirs, tmp_path):
    report = convert(str(theirs), str(tmp_path / "hf"), "hf")
    assert "Dense, Normalize) is not written" in report.summary()
    assert formats.is_foreign(str(theirs))


@pytest.mark.long
def test_an_export_gives_the_same(theirs, tmp_path):
    import tensorflow as tf

    from albert_tf.serving import export

    loaded = albert_tf.load(theirs)
    export.export(loaded.model, None, str(tmp_path / "export"),
                          sentence=loaded.sentence)
    serve = tf.saved_model.load(str(tmp_path / "export")).signatures["serving_default"]
    batch = {name: tf.constant(values)
             for name, values in loaded.tokenizer(["It is.", "x"]).items()}
    np.testing.assert_allclose(serve(**batch)["embedding"],
                               vectors(theirs, ["It is.", "x"]), atol=1e-5)


def test_a_tokenizer_that_cuts_otherwise_is_said(theirs, caplog):
    path = theirs / "tokenizer.json"
    value = json.loads(path.read_text("utf-8"))
    assert not formats.read(str(theirs)).report.notes
    token = {**value["added_tokens"][0], "id": 5, "content": "(", "special": False}
    value["added_tokens"].append(token)
    path.write_text(json.dumps(value))
    [note] = formats.read(str(theirs)).report.notes
    assert "cuts ( out of the text first" in note and note in caplog.text


# ---- wrong inputs ----------------------------------------------------------


def write(path, value):
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value))


def changed(name, **values):
    def change(folder):
        path = folder / name
        write(path, {**(json.loads(path.read_text()) if path.exists() else {}),
                     **values})
    return change


def module(number, **values):
    def change(folder):
        path = folder / "modules.json"
        listed = json.loads(path.read_text())
        listed[number].update(values)
        write(path, listed)
    return change


@pytest.mark.parametrize("change, pattern", [
    (module(3, type="sentence_transformers.models.LSTM"), "modules.json.*LSTM"),
    (module(1, type="x.Dense"), "lists Transformer, Dense, Dense, Normalize; supp"),
    (lambda folder: write(folder / "modules.json", {"a": 1}), "modules.json"),
    (module(1, path="../1_Pooling"), "modules.json.*its path"),
    (changed("1_Pooling/config.json", pooling_mode="median"), "pooling='median'"),
    (changed("1_Pooling/config.json", embedding_dimension=7), "embedding_dimension=7"),
    (changed("2_Dense/config.json", activation_function="x.Mish"), "2_Dense.*'Mish'"),
    (changed("2_Dense/config.json", module_input_name="token_embeddings"),
     "2_Dense.*module_input_name='token_embeddings'"),
    (changed("1_Pooling/config.json", pooling_mode="mean"), "vectors of 16 numbers"),
    (changed("tokenizer_config.json", model_max_length="x"), "not supported between"),
    (changed("config_sentence_transformers.json", default_prompt_name="q",
             prompts={"q": "query: "}), "default prompt 'q' is not supported"),
])
def test_what_cannot_be_read_is_refused_in_a_sentence(change, pattern, theirs):
    change(theirs)
    with pytest.raises(InputError, match=pattern) as error:
        formats.read(str(theirs))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("options, pattern", [
    ({"pooling": "median"}, "pooling='median'.*lasttoken"),
    ({"max_seq_length": 65}, "max_seq_length=65: give 4 to 64"),
    ({"format": "hf", "pooling": "mean"}, "--pooling is not for --format=hf"),
])
def test_what_cannot_be_written_is_refused(options, pattern, tf1, tmp_path):
    with pytest.raises(InputError, match=pattern):
        convert(tf1, str(tmp_path / "new"), **{"format": NAME, **options})
    assert not os.listdir(tmp_path)
