"""SavedModels: what serves gives the numbers of the model."""

import dataclasses
import functools
import json

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import albert_tf
from albert_tf.checkpoints import vocabulary
from albert_tf.checkpoints.restore import restore_tf1
from albert_tf.errors import InputError
from albert_tf.modeling.encoder import Computation
from albert_tf.serving import export as model_export, portable
from albert_tf.serving.export import export
from tests import models, tiny_run
from tests.commands import run_commands
from tests.helpers import HAS_TENSORFLOW_TEXT, ask_export, load_export, run_python
from tests.serving import tiny_models


MODELS = {
    "classifier": lambda config: models.classifier(config, 3),
    "spans": models.spans,
    # Of another shape.
    "conditional spans": lambda config: models.conditional_spans(
        config.replace(num_hidden_groups=2, embedding_size=8, inner_group_num=2),
        start_n_top=3, end_n_top=2),
    "number": lambda config: models.classifier(config, 1)}


def scoring(name):
    tf_keras.utils.set_random_seed(1)
    model = MODELS[name](tiny_run.config(
        max_position_embeddings=12, hidden_dropout_prob=0.5))
    for weight in model.weights:  # So that scores differ, and biases count.
        weight.assign(weight + 0.5 * tf.random.stateless_normal(weight.shape, [1, 2]))
    return model


@pytest.fixture(scope="module", name="served")
def _served(tmp_path_factory):
    """Name → (model, folder of its export), each made once."""
    @functools.lru_cache
    def made(name):
        model = scoring(name)
        folder = tmp_path_factory.mktemp("export") / "model"
        export(model, model.head, f"{folder}/",
               ["no", "maybe", "好"] if name == "classifier" else ())
        return model, folder

    return made


def test_an_export_is_not_read_as_a_model(served):
    model, folder = served("classifier")
    assert (folder / "assets" / "labels.txt").read_text(encoding="utf-8") == (
        "no\nmaybe\n好\n")
    assert [path.name for path in folder.parent.iterdir()] == ["model"]
    for use in (albert_tf.load, functools.partial(restore_tf1, model)):
        with pytest.raises(InputError, match=f"{folder} is a SavedModel that export_model"):
            use(str(folder))


def test_a_label_with_a_line_end_is_not_exported(served, tiny, tmp_path):
    """In a file of labels it would be two, and every later one another's."""
    folder = tmp_path / "export"
    with pytest.raises(InputError, match=r"--export_dir=.*'a\\nb'"):
        export(served("classifier")[0], None, str(folder), ["a\nb", "c", "d"])
    loaded = dataclasses.replace(tiny("classes"), labels=("a\nb", "c", "d"))
    with pytest.raises(InputError, match=r"the label 'a\\nb' has a line end"):
        portable.export(loaded, "classify", str(folder), "onnx", "float32")
    assert not folder.exists()


def test_failed_export_leaves_what_was_there(served, tmp_path, monkeypatch):
    def fail(module, folder, **kwargs):
        tf.io.gfile.makedirs(f"{folder}/variables")
        raise tf.errors.ResourceExhaustedError(None, None, "no room left\nmore")

    model, _ = served("number")
    monkeypatch.setattr(tf.saved_model, "save", fail)
    with pytest.raises(InputError, match="/model: cannot be written: no room left"):
        export(model, model.head, str(tmp_path / "model"), ())
    assert not list(tmp_path.iterdir())


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
            elif name == "number":
                assert found.keys() == {"logits"}
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
    assert name == "number" or max(np.ptp(value) for value in apart[1].values()) > 0.1
    # TensorFlow Serving may hand over an empty batch.
    serve = load_export(folder).signatures["serving_default"]
    none = serve(**{key: tf.zeros([0, 12], tf.int32)
                    for key in serve.structured_input_signature[1]})
    assert {key: [0, *value.shape[1:]] for key, value in found.items()} == {
        key: value.shape for key, value in none.items()}


def test_bfloat16_is_kept_by_the_export(served, tmp_path):
    model, whole = served("number")
    half = tmp_path / "half"
    export(model, model.head, str(half), (), "bfloat16")
    found, expected = (ask_export(path, FEATURES)["logits"] for path in (half, whole))
    assert 1e-5 < np.abs(found - expected).max() < 0.25 * np.ptp(expected)
    found, expected = (sum(path.stat().st_size for path in each.glob("variables/*.data*"))
                       for each in (half, whole))
    assert found < expected


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


WRONG = {  # name → (kind of model, flags, what is named)
    "no vocabulary": ("bare", "--export_text", "--export_text: .*bare holds no vocabulary"),
    "no vocabulary in another form": ("bare", "--format=tflite", "bare .*vocabulary"),
    "no head": ("bare", "--task=tag", "--task=tag: .* are order, embed"),
    "task without text": ("pretrained", "--task=fill-mask", "--task=fill-mask"),
    "precision of another": ("classes", "--format=openvino --precision=int8",
                             "--precision=int8.*openvino"),
    "length": ("classes", "--max_seq_length=65", "--max_seq_length=65"),
    "pairs": ("classes", "--format=tflite --pairs", "--pairs"),
    "several": ("classes", "--format=tflite --precision=int8,float32",
                "--precision=int8,float32"),
    "unknown": ("classes", "--format=onnx --precision=int4", "--precision=int4")}


@pytest.fixture(scope="module", name="exports")
def _exports(tmp_path_factory):
    root = tmp_path_factory.mktemp("exports")
    commands = {}
    for kind, (task, flags, _) in TRAINED.items():
        folder = tiny_models.write(root / kind, kind, **flags)
        commands |= {f"{kind} {form}": [
            f"--model={folder}", f"--task={task}", f"--format={form}",
            f"--export_dir={root}/{kind}_{form}"] for form in ("saved_model", "tflite")}
    tiny_models.write(root / "bare", "pretrained")
    (root / "bare" / tiny_models.SPM.name).unlink()
    commands |= {
        name: [f"--model={root}/{kind}", *flags.split(), f"--export_dir={root}/none"]
        for name, (kind, flags, _) in WRONG.items()}
    with run_commands("export_model", commands) as results:
        yield root, results


def close(one, other):
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(
            close(value, other[name]) for name, value in one.items())
    if isinstance(one, list):
        return len(one) == len(other) and all(map(close, one, other))
    return abs(one - other) <= 1e-5 * max(1, abs(one)) if isinstance(
        one, float) else one == other


def as_answers(outputs):
    """The signature's outputs as predict has them, without padding."""
    for values in zip(*outputs.values()):
        row = dict(zip(outputs, values))
        if "tags" in row:
            count = len([word for word in row["words"] if word])
            row["words"], row["tags"] = row["words"][:count], row["tags"][:count]
            entities = {name.removeprefix("entity_"): row.pop(name)
                        for name in outputs if name.startswith("entity_")}
            row["entities"] = [dict(zip(entities, entity)) for entity in zip(
                *entities.values()) if entity[[*entities].index("end")]]
        yield row


def as_outputs(answers):
    """Answers of predict as the signature has them: probabilities as a list."""
    return [{name: [*value.values()] if name == "probabilities" and isinstance(
        value, dict) else value for name, value in answer.items()} for answer in answers]


def outputs_of(signature, columns):
    """The signature's outputs for columns of inputs, as lists."""
    found = signature(**{name: tf.constant(values) for name, values in columns.items()})
    return decoded({name: value.numpy() for name, value in found.items()})


def decoded(outputs):
    return json.loads(json.dumps({name: value.tolist() for name, value in outputs.items()},
                                 default=bytes.decode))


# In a plain process: the command in docs/EXPORT.md.
CLI = ("import tensorflow_text; "
       "from tensorflow.python.tools.saved_model_cli import main; main()")


@pytest.mark.long
@pytest.mark.parametrize("kind", TRAINED)
def test_exports_answer_as_the_model_was_trained(kind, exports, tmp_path):
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
        given = each if isinstance(each, dict) else dict(zip(
            model.head(task).names, [each] if isinstance(each, str) else each))
        [found] = as_answers(outputs_of(
            serve, {name: [value] for name, value in given.items()}))
        if "labels" in found:
            found["labels"] = [label for label in found["labels"] if label]
        assert close(found, answer), (found, answer)
    if kind == "tags":
        run_python("-c", CLI, "run", f"--dir={exported}", "--tag_set=serve", "--signature_def="
                   "serving_default", f"--outdir={tmp_path}", f"--input_exprs=text={inputs}",
                   check=True)
        [found] = as_answers(decoded({path.stem: np.load(path, allow_pickle=True)
                                      for path in sorted(tmp_path.glob("*.npy"))}))
        assert close(dict(sorted(found.items())), dict(sorted(wanted[0].items())))
    assert vocabulary.task_settings(str(exported / "assets")) == other.settings


@pytest.mark.long
def test_an_export_that_is_not_possible(exports):
    root, results = exports
    for name, (_, _, says) in WRONG.items():
        results.refused(name, says, loaded=True)
    assert not (root / "none").exists()
