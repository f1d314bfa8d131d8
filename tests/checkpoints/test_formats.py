"""What is recognised: layouts that are made here, and the doors that take them."""

import json
import sys
import types

import numpy as np
import pytest

from albert_tf.checkpoints import bundle, formats, restore
from albert_tf.checkpoints.bundle import Tensor
from albert_tf.checkpoints.formats import convert
from albert_tf.checkpoints.release import published
from albert_tf.checkpoints.restore import load
from albert_tf.errors import InputError
from albert_tf.modeling import parameter_count
from albert_tf.modeling.albert import AlbertModel
from tests import models
from tests.checkpoints.test_convert import PRETRAINING, TINY, assert_same, checkpoint, stored


# ---- modules of TensorFlow Hub ---------------------------------------------


def hub_module(tmp_path):
    """As the release's export_to_tfhub.py lays it out."""
    folder = tmp_path / "module"
    (folder / "variables").mkdir(parents=True)
    (folder / "assets").mkdir()
    made = checkpoint()
    (folder / "saved_model.pb").write_bytes(b"")
    (folder / "assets" / "albert_config.json").write_text(TINY.to_json())
    bundle.write(str(folder / "variables" / "variables"), {
        f"module/{name}": tensor for name, tensor in made.tensors.items()})
    return str(folder), made


def test_a_module_of_tensorflow_hub(tmp_path):
    path, made = hub_module(tmp_path)
    found = formats.read(path)
    assert found.format == "tf_hub" and found.heads == PRETRAINING
    assert found.report.matched[parameter_count.WORDS] == f"module/{parameter_count.WORDS}"
    np.testing.assert_array_equal(
        found.tensors[parameter_count.WORDS].read(), made.tensors[parameter_count.WORDS].read())
    (tmp_path / "module" / "assets" / "albert_config.json").unlink()
    with pytest.raises(InputError, match="there is no albert_config.json"):
        load(path)
    assert load(path, TINY).config == TINY


# ---- albert_zh -------------------------------------------------------------


def zh_model(folder, **config):
    """albert_zh's own layout, and the tensors of the model with E = H that it is."""
    made = checkpoint(TINY.replace(embedding_size=8), {"masked_lm": 1})
    expected = {name: tensor.read() for name, tensor in made.tensors.items()}
    # Words are projected first, and all else has the width H.
    first, second = np.split(np.random.default_rng(3).standard_normal((24, 4), "f"), [20])
    second = np.concatenate([second, second + 1], axis=1)
    arrays = {**expected, "bert/embeddings/word_embeddings_2": second,
              parameter_count.WORDS: first}
    expected[parameter_count.WORDS] = first @ second
    for ours, theirs in (
            (parameter_count.BLOCK.format(0, 0), "bert/encoder/layer_shared/"),
            ("ffn_1/intermediate/output", "output"), ("ffn_1/", ""),
            ("attention_1", "attention"),
            ("shared/LayerNorm/", "shared/attention/output/LayerNorm/"),
            ("shared/LayerNorm_1", "shared/output/LayerNorm")):
        arrays = {name.replace(ours, theirs): array for name, array in arrays.items()}
    folder.mkdir()
    bundle.write(str(folder / "albert_model.ckpt"), {
        name: Tensor.of(array) for name, array in arrays.items()})
    (folder / "albert_config_tiny.json").write_text(json.dumps({
        **TINY.to_dict(), "directionality": "bidi", **config}))
    return expected


def test_albert_zh_is_a_model_with_e_of_h(tmp_path):
    expected = zh_model(tmp_path / "zh")
    found = formats.read(str(tmp_path / "zh"))
    assert (found.config.embedding_size, found.config.hidden_size) == (8, 8)
    assert_same(str(tmp_path / "zh"), expected)
    # LayerNorm before the layers is not supported.
    zh_model(tmp_path / "other", ln_type="preln")
    with pytest.raises(InputError, match="_tiny.json: config: ln_type='preln'"):
        load(str(tmp_path / "other"))


# ---- a model to start from -------------------------------------------------


@pytest.mark.parametrize("target", ["hf", "keras_hub", "tf_models"])
def test_restoring_takes_every_format(target, tmp_path, caplog):
    path, tensors = stored(tmp_path / "tf1", heads=PRETRAINING)
    convert(path, str(tmp_path / target), target, encoder_only=target == "keras_hub")
    model = models.classifier(TINY.replace(hidden_act="relu"), 3)
    report = restore.restore_tf1(model, str(tmp_path / target),
                             may_be_new=lambda name: not name.startswith("bert/"))
    assert report.new == ["output_bias", "output_weights"]
    assert "tensors matched" in caplog.text
    assert "hidden_act is gelu there and relu here" in caplog.text
    np.testing.assert_array_equal(
        model.bert.embeddings.word_embeddings, tensors[parameter_count.WORDS])


def test_a_task_starts_with_a_new_pooler_where_there_is_none(tmp_path):
    path, _ = stored(tmp_path / "tf1", TINY.replace(use_pooler=False), {"masked_lm": 1})
    convert(path, str(tmp_path / "hf"), "hf")
    model = models.classifier(TINY, 3)
    report = restore.restore_tf1(model, str(tmp_path / "hf"),
                             may_be_new=lambda name: not name.startswith("bert/"))
    assert report.new == ["bert/pooler/dense/bias", "bert/pooler/dense/kernel",
                          "output_bias", "output_weights"]
    with pytest.raises(InputError, match="bert/pooler/dense"):
        restore.restore_tf1(AlbertModel(TINY), str(tmp_path / "hf"))


# ---- hubs ------------------------------------------------------------------


def test_a_handle_of_kaggle(monkeypatch):
    monkeypatch.setitem(sys.modules, "kagglehub", types.SimpleNamespace(
        model_download=lambda handle: f"there/{handle}"))
    for name in ("kaggle://", "https://www.kaggle.com/models/"):
        assert formats.located(f"{name}me/tiny/tf2/base") == "there/me/tiny/tf2/base"


def no_connection(*args, **options):
    raise RuntimeError("no connection\nand more")


@pytest.mark.parametrize("path, named", [
    ("https://tfhub.dev/google/albert_base/3", "kaggle://HANDLE"),
    ("kaggle://google/albert/tensorFlow1/base", "pip install kagglehub"),
    ("hf://me/it", r"^hf://me/it: .*\(no connection\).*network")])
def test_names_that_cannot_be_fetched(path, named, monkeypatch):
    monkeypatch.setitem(sys.modules, "kagglehub", None)
    monkeypatch.setitem(sys.modules, "huggingface_hub", types.SimpleNamespace(
        list_repo_files=no_connection))
    with pytest.raises(InputError, match=named):
        formats.read(path)


def test_a_preset_in_bfloat16(tmp_path):
    import h5py

    path, tensors = stored(tmp_path / "tf1", heads={})
    convert(path, str(tmp_path / "kh"), "keras_hub")
    with h5py.File(tmp_path / "kh" / "model.weights.h5", "a") as file:
        bits = file["layers/dense_1/vars/1"][:].view("<u4") >> 16
        del file["layers/dense_1/vars/1"]
        # As Keras writes it.
        made = file.create_dataset(
            "layers/dense_1/vars/1", data=bits.astype("<u2").view("V2"))
        made.attrs["dtype"] = "bfloat16"
    found = formats.read(str(tmp_path / "kh")).tensors[f"{parameter_count.POOLER}/bias"].read()
    np.testing.assert_array_equal(found, (bits << 16).view("<f4"))
    np.testing.assert_allclose(found, tensors[f"{parameter_count.POOLER}/bias"], rtol=1e-2)


def test_a_published_config_has_the_heads_that_shapes_tell():
    """tf-models' kernels have an axis of attention heads; the release's have not."""
    sizes = dict(vocab_size=30, embedding_size=128, hidden_size=768,
                 intermediate_size=3072, max_position_embeddings=512, type_vocab_size=2)
    assert published("x", sizes).num_attention_heads == 12
    assert published("x", {**sizes, "num_attention_heads": 6}).num_attention_heads == 6
    with pytest.raises(InputError, match="--albert_config_file"):
        published("x", {**sizes, "hidden_size": 700})


@pytest.mark.parametrize("names,graphs", [
    (["config.json", "onnx/model_quantized.onnx", "onnx/model.onnx"], ["onnx/model.onnx*"]),
    (["config.json", "onnx/model_q4.onnx"], ["onnx/model_q4.onnx*"]),
    (["config.json", "onnx/model.onnx", "2_Dense/model.safetensors"], ["onnx/model.onnx*"]),
    (["onnx/model.onnx", "0_Transformer/model.safetensors"], []),
    (["config.json", "onnx/model.onnx", "model.safetensors"], [])])
def test_of_a_repository_without_weights_one_graph_is_fetched(monkeypatch, names, graphs):
    asked = []
    monkeypatch.setitem(sys.modules, "huggingface_hub", types.SimpleNamespace(
        list_repo_files=lambda name, revision: names,
        snapshot_download=lambda name, revision, allow_patterns: asked.extend(
            allow_patterns) or "there"))
    assert formats.located("hf://me/it") == "there"
    assert [pattern for pattern in asked if "onnx" in pattern] == graphs
