"""Exports for ONNX Runtime, OpenVINO and TFLite: equal to the Python path, small, asked alike."""

import contextlib
import dataclasses
import importlib.util
import json
import logging
import os
import pathlib
import shutil

import numpy as np
import pytest
import tensorflow as tf

import albert_tf
from albert_tf.checkpoints import huggingface
from albert_tf.checkpoints.checkpoint import HEADS
from albert_tf.checkpoints.formats import convert
from albert_tf.config import AlbertConfig
from albert_tf.errors import InputError
from albert_tf.finetuning.classification.head import Classes, Classification
from albert_tf.modeling.head import Input
from albert_tf.modeling.models import AlbertForTask
from albert_tf.serving import portable, predict, runtimes
from tests.helpers import FIXTURES
from tests.serving import tiny_models


def needs(form):
    packages = (*runtimes.FORMS[form].writers, *runtimes.FORMS[form].readers)
    return pytest.mark.skipif(not all(map(importlib.util.find_spec, packages)),
                              reason=f"needs the extra {form}")


needs_onnx = needs("onnx")
FORMS = [pytest.param(form, marks=needs(form)) for form in runtimes.FORMS]
PASSAGE = "The first text of them was made in 1999,  and it is long. "
ASKED = {
    ("classes", "classify"): ["It is.", PASSAGE * 9, ("Größe", "one")],
    ("several", "classify"): ["It is.", PASSAGE * 9, ("Größe", "one")],
    ("number", "classify"): ["It is.", PASSAGE],
    ("spans", "answer"): [("What was made?", PASSAGE * 9), ("Who?", "It")],
    ("spans2", "answer"): [("What was made?", PASSAGE * 9), ("Who?", "It")],
    ("tags", "tag"): ["The first text was made", PASSAGE * 3],
    ("choices", "choose"): [(PASSAGE * 5, "What _ ?", "one", "two"),
                            ("It", "Is it?", "one", "two", "three")],
    ("pretrained", "order"): [("It is", "long"), (PASSAGE, PASSAGE)],
    ("pretrained", "embed"): ["plain", PASSAGE],
    ("pretrained", "fill-mask"): ["The [MASK] of[MASK].", "A [MASK]"],
}


LIKE_OTHERS = {("number", "classify"), ("pretrained", "order")}


@pytest.fixture(scope="module", name="exported")
def _exported(tiny, tmp_path_factory):
    root = tmp_path_factory.mktemp("exports")

    def export(kind, task, form, precision="float32"):
        folder = root / "-".join((kind, task, form, precision))
        if not folder.exists():
            portable.export(tiny(kind), task, str(folder), form, precision)
        return str(folder)

    return export


def numbers(value):
    """All numbers of an answer, and its other values."""
    if isinstance(value, dict):
        value = [value[name] for name in sorted(value)]
    if isinstance(value, list):
        parts = [numbers(each) for each in value]
        return [n for part in parts for n in part[0]], [
            other for part in parts for other in part[1]]
    return ([value], []) if isinstance(value, float) else ([], [value])


def assert_same(found, expected, atol=1e-5):
    """Of answers, or of one."""
    if isinstance(found, dict):
        found, expected = [found], [expected]
    for one, other in zip(map(numbers, found), map(numbers, expected), strict=True):
        np.testing.assert_allclose(one[0], other[0], atol=atol)
        assert one[1] == other[1]


def scores(head, rows, length):
    """What a head gives for a batch of random ids with padding."""
    random = np.random.default_rng(7)
    batch = {name: random.integers(0, 2, [rows, length], np.int32)
             for name in head.inputs}
    batch["input_ids"] = random.integers(0, 4000, [rows, length], np.int32)
    batch["input_mask"] = (np.arange(length) < random.integers(
        1, length + 1, [rows, 1])).astype(np.int32)
    if "masked_lm_positions" in batch:
        batch["masked_lm_positions"] = np.zeros([rows, 2], np.int32)
    if "p_mask" in batch:  # As in training: only the first token and the passage.
        lengths = batch["input_mask"].sum(axis=1, keepdims=True)
        place = np.arange(length)
        batch["p_mask"] = 1 - ((place == 0) | (batch["segment_ids"] == 1) & (
            place < lengths - 1)).astype(np.int32)
    return batch["input_mask"], head.compute(batch)


@pytest.mark.long
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind,task", [
    pytest.param(*key, marks=pytest.mark.slow) if key in LIKE_OTHERS else key
    for key in ASKED])
def test_equal_to_the_python_path(kind, task, form, tiny, exported):
    asked = albert_tf.load(exported(kind, task, form))
    assert list(asked.tasks()) == [task]
    assert_same(asked.predict(ASKED[kind, task]),
                tiny(kind).predict(ASKED[kind, task], task=task))
    heads = asked.head(task), tiny(kind).head(task)
    for rows, length in ((1, 1), (1, 7), (5, 33), (2, 64), (4, 3)):
        (mask, one), (_, other) = (scores(head, rows, length) for head in heads)
        assert one.keys() == other.keys()
        if "start_top_index" in one:  # Of starts in padding all ends say nothing.
            possible = np.repeat(other["start_top_log_probs"] > -1e29, 5, axis=1)
            for found in (one, other):
                found["end_top_log_probs"] = found["end_top_log_probs"] * possible
        for name, values in one.items():
            expected = other[name]
            if values.shape[1:] == mask.shape[1:]:  # Of positions; padding says nothing.
                values, expected = values * mask, expected * mask
            if "index" not in name:  # Those of impossible positions are any.
                np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-5)


@dataclasses.dataclass(frozen=True)
class Placed(Classification):
    """A head as another task may define it: with an input and labels of its own."""

    name, task, scope = "placed", "place", "placed"
    reads_also = (Input("place", size=2),)

    def outputs(self, layers, encoded, features, dropout, training=False):
        logits = super().outputs(layers, encoded, features, dropout)["logits"]
        return {"logits": logits + 0.1 * tf.cast(features["place"][:, 1:], "float32") * [
            1., 0., -1.]}

    def answering(self):
        return Placing


class Placing(Classes):
    def request(self, given, top_k):
        asked = super().request(given, top_k)
        return dataclasses.replace(asked, sequences=[
            {**row, "place": [0, len(given["text"])]} for row in asked.sequences])


@pytest.mark.long
@needs_onnx
def test_a_head_of_another_task(tmp_path, monkeypatch):
    monkeypatch.setitem(HEADS, Placed.name, (__name__, "placed/output_weights"))
    monkeypatch.setitem(tiny_models.KINDS, "placed", lambda config: AlbertForTask(
        config, Placed(3)))
    monkeypatch.setitem(tiny_models._LABELS, "placed", ["bad", "good", "好"])
    model = albert_tf.load(tiny_models.write(tmp_path / "model", "placed"))
    portable.export(model, "place", str(tmp_path / "onnx"), "onnx", "float32")
    texts = ["It is.", PASSAGE, "It"]
    assert_same(albert_tf.load(tmp_path / "onnx").predict(texts), model.predict(texts))


@pytest.mark.parametrize("kind,task,form", [
    ("pretrained", "order", ""), pytest.param("classes", "classify", "onnx", marks=needs_onnx),
    pytest.param("classes", "classify", "tflite", marks=(needs("tflite"), pytest.mark.long))])
def test_one_segment_is_that_of_both_texts(kind, task, form, folder_of, tmp_path):
    """The answers are those of a model with two segments that are the same."""
    one = albert_tf.load(tiny_models.write(
        tmp_path / "one", kind, config=tiny_models.TINY.replace(type_vocab_size=1)))
    two = albert_tf.load(folder_of(kind))
    weights = {weight.name: weight for weight in one.model.weights}
    for weight in two.model.weights:
        weight.assign(np.broadcast_to(weights[weight.name], weight.shape))
    if form:
        portable.export(one, task, str(tmp_path / form), form, "float32")
        one = albert_tf.load(tmp_path / form)
    pairs = [each if isinstance(each, tuple) else (each, "It is")
             for each in ASKED[kind, task]]
    assert_same(*(model.predict(pairs, task=task) for model in (one, two)))


def test_transformers_gives_a_model_of_one_segment_no_segment_ids(tmp_path):
    folder = tiny_models.write(tmp_path / "1", "classes",
                               config=tiny_models.TINY.replace(type_vocab_size=1))
    convert(folder, f"{folder}_hf", "hf")
    settings = json.loads((tmp_path / "1_hf" / "tokenizer_config.json").read_text())
    assert "token_type_ids" not in settings["model_input_names"]


@needs_onnx
def test_the_layout_and_the_names_of_the_hub(tiny, tmp_path):
    folder = tmp_path / "out"
    portable.export(tiny("classes"), "classify", str(folder), "onnx", "int8", "float32")
    assert sorted(path.name for path in folder.iterdir()) == [
        "config.json", "onnx", "portable.json", "spiece.model",
        "task.json", "tokenizer.json", "tokenizer_config.json", "vocabulary.json"]
    assert sorted(path.name for path in (folder / "onnx").iterdir()) == [
        "model.onnx", "model_quantized.onnx"]
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["AlbertForSequenceClassification"]
    assert config["id2label"] == {"0": "bad", "1": "good", "2": "好"}
    assert config["problem_type"] == "single_label_classification"
    import onnx

    graph = onnx.load(folder / "onnx" / "model.onnx").graph
    inputs = {each.name: each.type.tensor_type for each in graph.input}
    assert sorted(inputs) == ["attention_mask", "input_ids", "token_type_ids"]
    assert {each.elem_type for each in inputs.values()} == {onnx.TensorProto.INT64}
    assert [size.dim_param for size in inputs["input_ids"].shape.dim] == [
        "batch_size", "sequence_length"]
    assert [each.name for each in graph.output] == ["logits"]
    # The first precision is the folder's, and the path of a graph names another.
    def probabilities(asked):
        return [*asked.predict(PASSAGE)["probabilities"].values()]

    exact = probabilities(tiny("classes"))
    files = folder, folder / "onnx/model_quantized.onnx", folder / "onnx/model.onnx"
    small, same, whole = (np.abs(np.subtract(
        probabilities(albert_tf.load(path)), exact)).max() for path in files)
    assert whole < 1e-6 < small == same < 0.02
    # Labels stand once, where transformers and its users look for them.
    config["id2label"]["2"] = "best"
    (folder / "config.json").write_text(json.dumps(config))
    assert albert_tf.load(folder).labels == ("bad", "good", "best")


@needs_onnx
@pytest.mark.long
def test_no_answer_is_a_row_that_pads_a_graph_of_others(tiny, tmp_path, caplog):
    bare = tiny_models.write(tmp_path / "bare", "pretrained", config=(
        tiny_models.TINY.replace(vocab_size=4032)))
    (tmp_path / "bare" / tiny_models.SPM.name).unlink()
    padded = dataclasses.replace(albert_tf.load(bare), tokenizer=tiny("pretrained").tokenizer)
    folder = tmp_path / "theirs"
    portable.export(padded, "fill-mask", str(folder), "onnx", "float32")
    (folder / "portable.json").unlink()
    [scores] = albert_tf.load(folder).predict("A [MASK]", top_k=9999)["masks"]
    assert len(scores) == 4000 and "32 of the 4032 word embeddings" in caplog.text


@needs_onnx
@pytest.mark.parametrize("kind,task,head", [
    ("classes", "classify", "classification"),
    *(pytest.param(*each, marks=pytest.mark.long) for each in (
        ("tags", "tag", "token_classification"), ("spans", "answer", "spans"),
        ("pretrained", "fill-mask", "masked_lm"), ("pretrained", "embed", "")))])
def test_the_same_file_without_our_settings_is_read(
        kind, task, head, tiny, exported, tmp_path):
    folder = tmp_path / "theirs"
    shutil.copytree(exported(kind, task, "onnx"), folder)
    for name in ("portable.json", "vocabulary.json"):
        (folder / name).unlink(missing_ok=True)
    asked = albert_tf.load(folder)
    assert list(asked.heads) == [head] * bool(head)
    inputs = ASKED[kind, task][:1]
    assert_same(asked.predict(inputs), tiny(kind).predict(inputs, task=task))
    # Weights go first, unless the graph is named.
    (folder / "model.safetensors").write_bytes(b"")
    assert huggingface.find_export(str(folder)) is None
    assert huggingface.find_export(str(folder / "onnx" / "model.onnx"))


@needs_onnx
def test_graphs_that_others_made_otherwise(exported, tiny, tmp_path):
    import onnx
    from onnx import numpy_helper

    folder, text = tmp_path / "theirs", "It is."
    shutil.copytree(exported("classes", "classify", "onnx"), folder)
    (folder / "portable.json").unlink()
    file = folder / "onnx" / "model.onnx"
    content = file.read_bytes()
    expected = tiny("classes").predict(text)

    def without(name):
        """Saves the graph with zeros in place of an input."""
        graph = onnx.load_from_string(content)
        [each] = [each for each in graph.graph.input if each.name == name]
        graph.graph.input.remove(each)
        graph.graph.initializer.append(
            numpy_helper.from_array(np.zeros([1, 1], np.int64), name))
        onnx.save(graph, file)

    # Weights in a file of their own, as those of graphs above 2 GB.
    onnx.save(onnx.load_from_string(content), file, save_as_external_data=True,
              location="model.onnx_data", size_threshold=256)
    assert_same(albert_tf.load(folder).predict(text), expected)
    assert {*map(os.path.basename, huggingface.files_of_export(str(folder)))} == {
        "config.json", "spiece.model", "task.json", "tokenizer.json",
        "tokenizer_config.json", "vocabulary.json", "model.onnx", "model.onnx_data"}
    (folder / "onnx" / "model.onnx_data").unlink()
    with pytest.raises(InputError, match="onnx_data"):
        albert_tf.load(folder)
    without("attention_mask")
    with pytest.raises(InputError, match="model.onnx: .*attention_mask"):
        albert_tf.load(folder)
    without("token_type_ids")
    asked = albert_tf.load(folder)
    with pytest.raises(InputError, match="model.onnx .*token_type_ids"):
        asked.predict([("It", "is")])
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "type_vocab_size": 1}))
    [pair] = albert_tf.load(folder).predict([("It", "is")])
    assert pair["label"] in ("bad", "good", "好")
    graph = onnx.load_from_string(content)
    graph.graph.output[0].name = graph.graph.node[-1].output[0] = "scores"
    onnx.save(graph, file)
    with pytest.raises(InputError, match="scores"):
        albert_tf.load(folder)
    file.rename(folder / "onnx" / "b.onnx")
    (folder / "onnx" / "c.onnx").write_bytes(b"of another kind")
    with pytest.raises(InputError, match="onnx/b.onnx, .*onnx/c"):
        albert_tf.load(folder)
    # Only 8 bits; then no vocabulary.
    (folder / "onnx" / "model_quantized.onnx").write_bytes(content)
    assert_same(albert_tf.load(folder).predict(text), expected)
    for name in ("tokenizer.json", "spiece.model"):
        (folder / name).unlink()
    with pytest.raises(InputError, match="holds no vocabulary; copy it there"):
        albert_tf.load(folder).predict(text)


@pytest.mark.long
@needs_onnx
def test_vectors_of_sentence_transformers(tmp_path):
    theirs = tmp_path / "theirs"
    convert(tiny_models.write(tmp_path / "tf1", "encoder"), str(theirs), "hf")
    shutil.copytree(FIXTURES / "sentence_transformers", theirs, dirs_exist_ok=True)
    model, texts = albert_tf.load(theirs), ["It is.", PASSAGE * 9]
    expected = [model.predict(texts), model.predict(texts, windows=True)]
    folder = tmp_path / "export"
    portable.export(model, "embed", str(folder), "onnx", "float32")
    # As SentenceTransformer(folder, backend="onnx") reads it.
    for name in ("modules.json", "1_Pooling/config.json", "2_Dense/config.json",
                 "2_Dense/model.safetensors", "sentence_bert_config.json"):
        assert (folder / name).exists(), name
    assert json.loads((folder / "sentence_bert_config.json").read_text()) == {
        "max_seq_length": 20, "do_lower_case": False}
    for name in ("", "portable.json", "vocabulary.json"):
        (folder / name).unlink() if name else None
        asked = albert_tf.load(folder)
        for options, answers in zip(({}, {"windows": True}), expected, strict=True):
            assert_same(asked.predict(texts, **options), answers)
    file = str(folder / "onnx" / "model.onnx")
    if importlib.util.find_spec("openvino"):
        model.head("embed").use(runtimes.FORMS["openvino"](file, "embed", "float32"))
        assert_same(model.predict(texts, windows=True), expected[1])
    (folder / "modules.json").unlink()
    asked = albert_tf.load(folder)
    assert_same(asked.predict("It is."), expected[0][0])
    with pytest.raises(InputError, match="embed cannot average the answers of windows"):
        asked.predict(texts, windows=True)


def test_start_and_end_logits_of_squad_2_find_the_same_answer(tiny):
    head = tiny("spans2").head("answer")
    request = head.request({"question": "What was made?", "passage": PASSAGE}, 1)
    batch = head.padded(request.sequences)
    sequence, outputs = request.sequences[0], [
        {name: value[0] for name, value in head.compute(batch).items()}]
    for threshold in (-9.0, 9.0):
        head.threshold = threshold
        found = {name: value.numpy()[0] for name, value in head.exchanged({
            name: batch[name] for name in ("input_ids", "input_mask", "segment_ids")
            }).items()}
        sums = found["start_logits"][:, np.newaxis] + found["end_logits"]
        null, sums[0], sums[:, 0] = sums[0, 0], -1e30, -1e30
        sums[np.tril_indices_from(sums, -1)] = -1e30  # of ends before the start
        start, end = np.unravel_index(sums.argmax(), sums.shape)
        assert (null > sums.max()) == (
            request.answer(outputs)["answer"] == "") == (threshold < 0)
    first = sequence["paragraph_len"][0] - 1 - len(sequence["tok_start_to_orig_index"])
    best = request.answer(outputs)
    assert best["start"] == sequence["tok_start_to_orig_index"][start - first]
    assert best["end"] == sequence["tok_end_to_orig_index"][end - first] + 1
    np.testing.assert_allclose(sums.max(), best["score"], rtol=1e-4)
    head.threshold = 0.0


@pytest.mark.long
@needs_onnx
def test_masks_of_many_rows_are_scored_in_parts(tiny, exported, monkeypatch):
    asked = albert_tf.load(exported("pretrained", "fill-mask", "onnx"))
    rows = []
    run = type(asked.engine)._run
    monkeypatch.setattr(type(asked.engine), "_run", lambda self, batch: (
        rows.append(len(batch["input_ids"])), run(self, batch))[1])
    monkeypatch.setattr(predict, "_SCORES", 2 * 8 * 4000)
    texts = [f"The [MASK] {word}." for word in ("one", "two", "it")]
    assert len(tiny("pretrained").head("fill-mask").request(
        {"text": texts[0]}, 1).sequences[0]["input_ids"]) <= 8
    assert_same(asked.predict(texts), tiny("pretrained").predict(texts), 1e-6)
    assert len(rows) > 1 and sum(rows) == 3


@pytest.mark.long
@needs("openvino")
@pytest.mark.parametrize("kind,task", [
    ("classes", "classify"), ("spans2", "answer"), ("pretrained", "fill-mask")])
def test_lengths_that_bfloat16_has_no_number_for(kind, task, tmp_path):
    whole = albert_tf.load(tiny_models.write(
        tmp_path / kind, kind, config=dataclasses.replace(
            tiny_models.TINY, max_position_embeddings=512)))
    portable.export(whole, task, str(tmp_path / "export"), "openvino", "bfloat16")
    heads = [each.head(task) for each in (albert_tf.load(tmp_path / "export"), whole)]
    for rows, length in ((1, 257), (2, 301)):
        shapes = [{name: value.shape for name, value in scores(
            head, rows, length)[1].items()} for head in heads]
        assert shapes[0] == shapes[1]


@pytest.mark.long
@pytest.mark.parametrize("form,precision,bound", [
    pytest.param(form, precision, bound, marks=needs(form))
    for precision, bound in (("float16", 2e-3), ("bfloat16", 0.02), ("int8", 0.06))
    for form in runtimes.FORMS if precision in runtimes.FORMS[form].precisions])
def test_fewer_bits_are_near_and_smaller(form, precision, bound, tiny, exported):
    small, large = (exported("classes", "classify", form, kind)
                    for kind in (precision, "float32"))
    expected, found = (
        [answer["probabilities"] for answer in loaded.predict(
            ASKED["classes", "classify"], probability_list=True)]
        for loaded in (tiny("classes"), albert_tf.load(small)))
    assert 0 < np.abs(np.subtract(found, expected)).max() < bound
    sizes = [os.path.getsize(os.path.join(folder, runtimes.graph_name(form, kind)))
             for folder, kind in ((small, precision), (large, "float32"))]
    # The matrices are 36,000 numbers, of two or one byte in place of four; scales, and
    # nodes that use them, take some of it back.
    saved = 36_000 * (3 if precision == "int8" else 2)
    assert sizes[1] - sizes[0] > saved * 0.6
    if (form, precision) == ("onnx", "int8"):  # LayerNorm is one node, not twelve.
        import onnx

        graph = onnx.load(os.path.join(small, runtimes.graph_name(form, precision))).graph
        assert [node.op_type for node in graph.node].count("LayerNormalization") == 5


@pytest.mark.long
@needs_onnx
def test_a_model_is_the_same_file_whatever_was_converted_before(
        tiny, exported, tmp_path, caplog):
    caplog.set_level("INFO")
    first = exported("classes", "classify", "onnx")
    exported("number", "classify", "onnx")
    portable.export(tiny("classes"), "classify", str(tmp_path / "again"), "onnx",
                    "float32")
    assert (tmp_path / "again/onnx/model.onnx").read_bytes() == (
        pathlib.Path(first) / "onnx/model.onnx").read_bytes()
    assert f"Exported the task classify to {tmp_path / 'again'} in " in caplog.text


@pytest.mark.long
def test_tflite_stores_shared_weights_once(tmp_path):
    """More passes through the shared layer add nodes, and no weights."""
    sizes = []
    for layers in (2, 4):
        config = AlbertConfig(**{**tiny_models.TINY.to_dict(), "hidden_size": 128,
                                 "intermediate_size": 256, "num_hidden_layers": layers})
        made = tiny_models.write(tmp_path / str(layers), "classes", config=config)
        [graph] = portable.graphs(
            albert_tf.load(made), "classify", "tflite", "float32").values()
        sizes.append(len(graph))
    layer = 4 * (128 * 128 * 4 + 128 * 256 * 2)  # bytes of its weights
    assert sizes[1] - sizes[0] < layer / 4


@needs_onnx
@pytest.mark.parametrize("kind,task,precision,width", [
    ("classes", "classify", "float32", 4), *(
        pytest.param("pretrained", "fill-mask", *each, marks=pytest.mark.long)
        for each in (("float32", 4), ("float16", 2), ("int8", 1)))])
def test_no_number_is_stored_twice(kind, task, precision, width, exported, tiny):
    """Layers share theirs, and the embeddings are also the masked-LM head's."""
    import onnx

    stored = onnx.load(os.path.join(exported(kind, task, "onnx", precision), (
        runtimes.graph_name("onnx", precision)))).graph.initializer
    if task == "classify":
        numbers_of_model = sum(weight.numpy().size for weight in [
            *tiny(kind).model.bert.weights, *tiny(kind).model.head_layers[
                "classification"]["output_layer"].weights])
        assert sum(len(each.raw_data) for each in stored) < 4 * numbers_of_model + 1000
    else:
        assert [len(each.raw_data) for each in stored if 4000 in each.dims
                and min(each.dims) == 8] == [4000 * 8 * width]


@pytest.mark.parametrize("form", [  # OpenVINO reads the graphs of ONNX.
    pytest.param("onnx", marks=needs_onnx), "tflite"])
def test_the_folder_can_move_and_says_what_is_wrong(form, exported, tmp_path):
    folder = tmp_path / "moved"
    shutil.copytree(exported("classes", "classify", form), folder)
    asked = albert_tf.load(folder / runtimes.graph_name(form, "float32"))
    assert asked.labels == ("bad", "good", "好")
    assert f", format='{form}', heads={{'classification': 3}}, labels=(bad" in repr(asked)
    with pytest.raises(InputError, match="no head for the task 'embed'"):
        asked.predict("It", task="embed")
    with pytest.raises(InputError, match="holds no model in a supported format"):
        albert_tf.checkpoints.formats.read(str(folder))
    (folder / runtimes.graph_name(form, "float32")).write_bytes(b"nothing")
    with pytest.raises(InputError, match="the file is damaged"):
        albert_tf.load(folder)
    (folder / runtimes.graph_name(form, "float32")).unlink()
    with pytest.raises(InputError, match="No such file"):
        albert_tf.load(folder)
    (folder / "portable.json").write_text(json.dumps({"format": "other"}))
    with pytest.raises(InputError, match="portable.json: the file is damaged"):
        albert_tf.load(folder)


def test_a_missing_package_is_named(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(f"No module named '{name}'", name=name)

    monkeypatch.setattr(runtimes.importlib, "import_module", missing)
    with pytest.raises(InputError, match=r"'tf2onnx'.*albert_tf\[onnx\]"):
        portable.check("onnx", "float32")
    with pytest.raises(InputError, match=r"'openvino'.*albert_tf\[openvino\]"):
        runtimes.needed("openvino", runtimes.FORMS["openvino"].readers)


@pytest.mark.parametrize("fails", (False, True))
def test_a_package_does_not_change_who_writes_the_log(fails, tmp_path, monkeypatch):
    """openvino removes absl's handler when it is imported."""
    name = f"removes_handlers_{fails}"
    (tmp_path / f"{name}.py").write_text(
        "import logging\nlogging.root.handlers.clear()\n" + "1 / 0\n" * fails)
    monkeypatch.syspath_prepend(tmp_path)
    handler = logging.NullHandler()
    monkeypatch.setattr(logging.root, "handlers", [handler])
    with pytest.raises(InputError, match=f"{name}, which onnx needs, cannot be imported"
                       ) if fails else contextlib.nullcontext():
        runtimes.needed("onnx", [name])
    assert logging.root.handlers == [handler]
