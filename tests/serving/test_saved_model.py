"""A SavedModel gives the numbers of the model, whatever sequences share a batch."""

import functools

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from albert_tf.modeling.encoder import Computation
from albert_tf.serving import export as model_export
from albert_tf.serving.export import export
from tests import models, tiny_run
from tests.helpers import ask_export

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
    config = tiny_run.config(
        max_position_embeddings=LONGEST, hidden_dropout_prob=0.5, **changes)
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
    """Name → (model, folder of its export), each made once."""
    @functools.lru_cache
    def made(name):
        model = make(name)
        folder = tmp_path_factory.mktemp("export") / "model"
        return model, written(model, str(folder))

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
    model, folder = served(name)
    apart = [of_model(model, features) for features in FEATURES]
    for batch_size in (1, len(FEATURES)):
        for first in range(0, len(FEATURES), batch_size):
            rows = FEATURES[first:first + batch_size]
            found = ask_export(folder, rows)
            if name == "classifier":
                np.testing.assert_allclose(found["probabilities"], tf.nn.softmax(
                    found["logits"]), atol=1e-6)
            if name == "spans that may be padding" and batch_size > 1:
                break  # As in the release, padding changes their normalization.
            for i, expected in enumerate(apart[first:first + batch_size]):
                length = len(rows[i]["input_ids"])
                served_alone = {
                    key: value for key, value in expected.items() if key in found}
                assert served_alone
                for key, value in served_alone.items():
                    if "index" in key and length < 3:
                        continue  # Where there are too few positions, any may fill up.
                    np.testing.assert_allclose(
                        found[key][i][tuple(map(slice, value.shape))], value, rtol=1e-5, atol=1e-5,
                        err_msg=f"{key} of sequence {first + i}")
    assert max(np.ptp(value) for value in apart[1].values()) > 0.1


@pytest.mark.parametrize("changes", [
    dict(num_hidden_groups=2, embedding_size=8), dict(inner_group_num=2)], ids=str)
def test_models_of_other_shapes(changes, tmp_path):
    model = make("classifier", **changes)
    found = ask_export(written(model, str(tmp_path / "model")), FEATURES)
    for features, logits in zip(FEATURES, found["logits"]):
        np.testing.assert_allclose(
            logits, of_model(model, features)["logits"], rtol=1e-5, atol=1e-5)


def test_bfloat16_is_kept_by_the_export(tmp_path):
    folders = {dtype: written(make("classifier"), str(tmp_path / dtype), dtype)
               for dtype in ("float32", "bfloat16")}
    found = {dtype: ask_export(folder, FEATURES)["logits"]
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
    model, folder = served("classifier")
    assert [weight.name for weight in model.weights] == [
        weight.name for weight in make("classifier").weights]
    before, features = model.get_weights(), FEATURES[1]
    model.set_weights([2.0 * weight for weight in before])
    # Nothing is left of what was computed for the export.
    changed = of_model(model, features)["logits"]
    model.set_weights(before)
    assert np.abs(changed - ask_export(folder, [features])["logits"][0]).max() > 0.1
    np.testing.assert_allclose(of_model(model, features)["logits"],
                               ask_export(folder, [features])["logits"][0], atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_the_signature_takes_an_empty_batch(name, served):
    """Which TensorFlow Serving may hand over."""
    exported = tf.saved_model.load(served(name)[1])
    serve = exported.signatures["serving_default"]
    batch = {key: np.array([FEATURES[1][key]], np.int32)
             for key in serve.structured_input_signature[1]}
    one, none = (serve(**{
        key: tf.constant(values[:count]) for key, values in batch.items()})
        for count in (1, 0))
    assert {key: [0, *value.shape[1:]] for key, value in one.items()} == {
        key: value.shape for key, value in none.items()}
