"""Server: the numbers of the model, whatever sequences share a batch."""

import doctest
import functools

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from albert_tf.config import AlbertConfig
from albert_tf.errors import InputError
from albert_tf.modeling.encoder import Computation
from albert_tf.serving import export as model_export, saved_model as server_module
from albert_tf.serving.export import export
from albert_tf.serving.saved_model import Server
from tests import models, tiny_run
from tests.helpers import run_python

LONGEST = 12
MODELS = {
    "classifier": lambda config: models.classifier(
        config, 3),
    "spans": models.spans,
    "spans that may be padding": lambda config: models.spans(
        config, mask_padding=False),
    "conditional spans": lambda config: models.conditional_spans(
        config, start_n_top=3, end_n_top=2)}


def make(name, **changes):
    config = tiny_run.config(max_position_embeddings=LONGEST, **changes)
    tf_keras.utils.set_random_seed(1)
    model = MODELS[name](config)
    for weight in model.weights:  # So that scores differ, and biases count.
        weight.assign(weight + 0.5 * tf.random.stateless_normal(weight.shape, [1, 2]))
    return model


def written(model, folder, dtype="float32"):
    labels = ["no", "maybe", "好"] if model.head.name == "classification" else []
    export(model, model.head, folder, labels, dtype)
    return folder


@pytest.fixture(scope="module", name="served")
def _served(tmp_path_factory):
    """Name → (model, Server), each made once."""
    @functools.lru_cache
    def made(name):
        model = make(name)
        folder = tmp_path_factory.mktemp("export") / "model"
        return model, Server(written(model, str(folder)))

    return made


def sequence(length):
    random = np.random.default_rng(length)
    ids = random.integers(5, tiny_run.VOCAB_SIZE, length).tolist()
    return {"input_ids": ids, "input_mask": [1] * length,
            "segment_ids": [i % 2 for i in ids], "label_ids": [0],
            "p_mask": [0] * (length - 1) + [int(length > 1)]}


FEATURES = [sequence(length) for length in (5, 12, 1, 9, 2, 12, 9)]


def of_model(model, features):
    """The model's outputs for one sequence by itself."""
    found = model({name: tf.constant([values], tf.int32)
                   for name, values in features.items()})
    return {name: value[0].numpy() for name, value in found.items()}


@pytest.mark.parametrize("name", MODELS)
def test_answers_are_those_of_the_model(name, served):
    model, server = served(name)
    apart = [of_model(model, features) for features in FEATURES]
    for batch_size in (1, 3, 32):
        found = server.predict(FEATURES, batch_size)
        assert all(len(rows) == len(FEATURES) for rows in found.values())
        for i, expected in enumerate(apart):
            if name == "spans that may be padding" and batch_size > 1:
                break  # As in the release, padding changes their normalization.
            served_alone = {key: value for key, value in expected.items() if key in found}
            assert served_alone
            for key, value in served_alone.items():
                if "index" in key and len(FEATURES[i]["input_ids"]) < 3:
                    continue  # Where there are too few positions, any may fill up.
                np.testing.assert_allclose(found[key][i], value, rtol=1e-5, atol=1e-5,
                                           err_msg=f"{key} of sequence {i}")
    assert max(np.ptp(value) for value in apart[1].values()) > 0.1


def test_probabilities_and_labels(served):
    _, server = served("classifier")
    assert server.labels == ("no", "maybe", "好")
    found = server.predict(FEATURES)
    np.testing.assert_allclose(
        found["probabilities"], tf.nn.softmax(found["logits"]), atol=1e-6)
    assert served("spans")[1].labels == ()


@pytest.mark.parametrize("changes", [
    dict(num_hidden_groups=2, embedding_size=8), dict(inner_group_num=2)], ids=str)
def test_models_of_other_shapes(changes, tmp_path):
    model = make("classifier", **changes)
    found = Server(written(model, str(tmp_path / "model"))).predict(FEATURES)
    for features, logits in zip(FEATURES, found["logits"]):
        np.testing.assert_allclose(
            logits, of_model(model, features)["logits"], rtol=1e-5, atol=1e-5)


def test_bfloat16_is_kept_by_the_export(tmp_path):
    folders = {dtype: written(make("classifier"), str(tmp_path / dtype), dtype)
               for dtype in ("float32", "bfloat16")}
    found = {dtype: np.stack(Server(folder).predict(FEATURES)["logits"])
             for dtype, folder in folders.items()}
    difference = np.abs(found["bfloat16"] - found["float32"]).max()
    assert 1e-5 < difference < 0.25 * np.ptp(found["float32"])
    sizes = {dtype: sum(path.stat().st_size for path in tmp_path.rglob(
        f"{dtype}/variables/*.data*")) for dtype in folders}
    assert sizes["bfloat16"] < sizes["float32"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gelu_can_become_part_of_a_product(dtype):
    """TensorFlow joins a product, a bias and gelu where nothing stands between them."""
    model = make("spans")
    features = {name: tf.constant(values)[tf.newaxis]
                for name, values in FEATURES[0].items()}
    computation = Computation(
        dtype, skip_padding=True, constants=model_export._constants(model, dtype))
    graph = tf.function(lambda features: model(features, computation=computation),
                        autograph=False
                        ).get_concrete_function(features).graph
    gelus = [op for op in graph.get_operations() if op.type == "Pow"]
    assert len(gelus) == model.bert.config.num_hidden_layers
    for gelu in gelus:
        bias = gelu.inputs[0].op
        assert bias.type == "BiasAdd" and bias.inputs[0].op.type == "MatMul"
        assert gelu.inputs[0].dtype == dtype


def test_export_leaves_the_model_as_it_was(served):
    model, server = served("classifier")
    assert [weight.name for weight in model.weights] == [
        weight.name for weight in make("classifier").weights]
    before, features = model.get_weights(), FEATURES[1]
    model.set_weights([2.0 * weight for weight in before])
    # Nothing is left of what was computed for the export.
    changed = of_model(model, features)["logits"]
    model.set_weights(before)
    assert np.abs(changed - server.predict([features])["logits"][0]).max() > 0.1
    np.testing.assert_allclose(of_model(model, features)["logits"],
                               server.predict([features])["logits"][0], atol=1e-5)


def test_the_example_of_the_docstring(served, tmp_path):
    folder = written(served("classifier")[0], str(tmp_path / "model"))
    done = doctest.testmod(server_module, extraglobs={"export_dir": folder})
    assert done.attempted and not done.failed


def test_no_sequences(served):
    _, server = served("classifier")
    assert server.predict([]) == {"logits": [], "probabilities": []}


@pytest.mark.parametrize("name", MODELS)
def test_the_signature_takes_an_empty_batch(name, served):
    """Which TensorFlow Serving may hand over; Server does not."""
    _, server = served(name)
    batch = {key: np.array([FEATURES[1][key]], np.int32) for key in server._inputs}
    one, none = (server._serve(**{
        key: tf.constant(values[:count]) for key, values in batch.items()})
        for count in (1, 0))
    assert {key: [0, *value.shape[1:]] for key, value in one.items()} == {
        key: value.shape for key, value in none.items()}


def test_wrong_requests(served):
    _, server = served("conditional spans")
    without = {name: value for name, value in FEATURES[0].items() if name != "p_mask"}
    with pytest.raises(InputError, match="sequence 1 has no p_mask, which the model"):
        server.predict([FEATURES[0], without])
    with pytest.raises(InputError, match="sequence 0: .*the same length.*segment_ids 3"):
        server.predict([{**FEATURES[0], "segment_ids": [0] * 3}])
    with pytest.raises(InputError, match="of 1 or more"):
        server.predict([{name: [] for name in FEATURES[0]}])


@pytest.mark.parametrize("changes, batch_size, message", [
    ({}, -1, "batch_size is -1; give a whole number"), ({}, 0, "batch_size is 0"),
    ({}, 2.5, "batch_size is 2.5"),
    ({"segment_ids": 0.5}, 32, "sequence 1: segment_ids must be whole numbers"),
    ({"segment_ids": "a"}, 32, "sequence 1: segment_ids must be whole"),
    ({"input_ids": 2**40}, 32, "sequence 1: input_ids must be whole numbers"),
    ({"input_ids": 10**6}, 32, "an id that is not in its vocabulary"),
    ({"input_ids": -5}, 32, "an id that is not in its vocabulary")])
def test_wrong_numbers(served, changes, batch_size, message):
    _, server = served("conditional spans")
    wrong = dict(FEATURES[0])
    for name, value in changes.items():
        wrong[name] = [value, *wrong[name][1:]]
    with pytest.raises(InputError, match=message):
        server.predict([FEATURES[0], wrong], batch_size)


def test_folder_without_a_model(tmp_path):
    with pytest.raises(InputError, match="holds no saved_model.pb; give a folder that"):
        Server(str(tmp_path))
    (tmp_path / "saved_model.pb").write_bytes(b"\xff\x01 not a model")
    with pytest.raises(InputError, match=f"{tmp_path} cannot be loaded "):
        Server(str(tmp_path))
    tf.saved_model.save(tf.Module(), str(tmp_path / "other"))
    with pytest.raises(InputError, match="has no signature serving_default"):
        Server(str(tmp_path / "other"))


@pytest.mark.long
def test_serving_loads_neither_keras_nor_the_model():
    # They take longer to import than a model to load.
    code = ("import sys; import albert_tf.serving.saved_model; print([name for name in "
            "('tf_keras', 'orbit', 'official', 'albert_tf.modeling.albert') "
            "if name in sys.modules])")
    done = run_python("-c", code, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("spans", [False, True])
def test_an_export_is_loaded_as_a_model(spans, tmp_path):
    """Query, key and value, which lie side by side in it, are variables again."""
    import albert_tf

    config = AlbertConfig(
        vocab_size=20, embedding_size=4, hidden_size=8, num_hidden_layers=3,
        num_hidden_groups=2, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=12)
    model = (models.spans(config) if spans
             else models.classifier(config, 3))
    for variable in model.weights:
        variable.assign(tf.random.stateless_normal(variable.shape, [1, 2]))
    path = str(tmp_path / "exported")
    export(model, model.head, path, [] if spans else ["a", "b", "c"])
    loaded = albert_tf.load(path)
    assert loaded.format == "export" and not loaded.report.dropped
    assert loaded.labels == (() if spans else ("a", "b", "c"))
    ids = np.array([[2, 5, 7, 3, 0]])
    inputs = {"input_ids": ids, "input_mask": (ids > 0).astype("i4")}
    found, expected = loaded.model(inputs), model(inputs)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, atol=1e-6, rtol=1e-6)
