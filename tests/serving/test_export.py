"""SavedModels: what serves gives the numbers of the model."""

import dataclasses
import functools
import json
import sys

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import albert_tf
from albert_tf.checkpoints import vocabulary
from albert_tf.checkpoints.restore import restore_tf1
from albert_tf.errors import InputError
from albert_tf.tokenization import in_graph
from albert_tf.modeling.encoder import Computation
from albert_tf.serving import export as model_export, portable
from albert_tf.serving.export import export
from tests import models, tiny_run
from tests.commands import run_commands
from tests.helpers import HAS_TENSORFLOW_TEXT, ask_export, load_export
from tests.serving import tiny_models
from tests.serving.test_real_texts import as_answers, as_outputs, close


def make(num_labels):
    config = tiny_run.config(num_hidden_layers=1, max_position_embeddings=12,
                             hidden_dropout_prob=0.5)
    return models.classifier(config, num_labels, dropout_prob=0.5)


def test_an_export_is_not_read_as_a_model(tmp_path):
    folder, model = tmp_path / "below" / "model", make(3)
    export(model, model.head, f"{folder}/", ["no", "maybe", "好"])
    assert (folder / "assets" / "labels.txt").read_text(encoding="utf-8") == (
        "no\nmaybe\n好\n")
    assert [path.name for path in folder.parent.iterdir()] == ["model"]
    for use in (albert_tf.load, functools.partial(restore_tf1, model)):
        with pytest.raises(InputError, match=f"{folder} is a SavedModel that export_model"):
            use(str(folder))


def test_regression_has_no_probabilities(tmp_path):
    model = make(1)
    export(model, model.head, str(tmp_path / "model"), ())
    found = ask_export(str(tmp_path / "model"), FEATURES[:1])
    assert found.keys() == {"logits"} and found["logits"].shape == (1, 1)
    np.testing.assert_allclose(
        found["logits"][0], of_model(model, FEATURES[0])["logits"], atol=1e-6)
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


# ---- numbers, whatever sequences share a batch -----------------------------


LONGEST = 12
MODELS = {
    "classifier": lambda config: models.classifier(
        config, 3),
    "spans": models.spans,
    "spans that may be padding": lambda config: models.spans(
        config, mask_padding=False),
    "conditional spans": lambda config: models.conditional_spans(
        config, start_n_top=3, end_n_top=2)}


def scoring(name, **changes):
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
        model = scoring(name)
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


def test_a_model_of_another_shape(tmp_path):
    model = scoring("classifier", num_hidden_groups=2, embedding_size=8,
                    inner_group_num=2)
    found = ask_export(written(model, str(tmp_path / "model")), FEATURES)
    for features, logits in zip(FEATURES, found["logits"]):
        np.testing.assert_allclose(
            logits, of_model(model, features)["logits"], rtol=1e-5, atol=1e-5)


def test_bfloat16_is_kept_by_the_export(tmp_path):
    folders = {dtype: written(scoring("classifier"), str(tmp_path / dtype), dtype)
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
    model = scoring("spans")
    features = {name: tf.constant(values)[tf.newaxis]
                for name, values in FEATURES[0].items()}
    computation = Computation(
        dtype, skip_padding=True, constants=model_export.constants_of(model, dtype))
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


# ---- text, export_model.py -------------------------------------------------


def test_without_tensorflow_text_one_sentence_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_text", None)
    with pytest.raises(InputError, match="tensorflow_text is not installed.*pip install"):
        in_graph.tensorflow_text()


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
