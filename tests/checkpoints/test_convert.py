"""From format to format: no bit changes, every tensor is accounted for, what has no
counterpart is refused by name.
"""

import json
import os
import shutil
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

import albert_tf
from albert_tf.checkpoints import (
    bundle, formats, tensor_files, checkpoint as neutral)
from albert_tf.checkpoints.bundle import Tensor
from albert_tf.checkpoints.formats import FORMATS, card, convert
from albert_tf.checkpoints.release import write as write_release
from albert_tf.checkpoints.restore import load
from albert_tf.config import AlbertConfig
from albert_tf.errors import InputError
from albert_tf.modeling import parameter_count
from albert_tf.tokenization.tokenizer import vocabulary_of
from tests.golden.interop import FIXTURE_FOLDERS, case, config
from tests.helpers import FIXTURES, ROOT

pytestmark = pytest.mark.usefixtures("eager")  # Tracing takes longer than an answer.
INTEROP = FIXTURES / "interop"
TINY = AlbertConfig(
    vocab_size=20, embedding_size=4, hidden_size=8, num_hidden_layers=4,
    num_attention_heads=2, intermediate_size=16, max_position_embeddings=12)
PRETRAINING = {"masked_lm": 1, "sentence_order": 2}


def checkpoint(config=TINY, heads=PRETRAINING, **fields):
    """A model of random numbers in the neutral form."""
    numbers = np.random.default_rng(1)
    tensors = {name: Tensor.of(numbers.standard_normal(shape).astype("f"))
               for name, shape in neutral.shapes_of(config, heads).items()}
    return neutral.Checkpoint("tf1", config, tensors, heads, neutral.Report("here"),
                              **fields)


def stored(folder, *args, **fields):
    """Such a model as a folder of the release, and its tensors."""
    folder.mkdir()
    made = checkpoint(*args, **fields)
    write_release(made, str(folder))
    return str(folder), {name: t.read() for name, t in made.tensors.items()}


def assert_same(path, tensors):
    found = formats.read(path).tensors
    assert set(found) == set(tensors)
    for name, array in tensors.items():
        np.testing.assert_array_equal(found[name].read(), array)


# ---- there and back --------------------------------------------------------


@pytest.mark.parametrize("name", FIXTURE_FOLDERS)
def test_no_bit_changes_there_and_back(name, tmp_path):
    path, _, _ = case(INTEROP / name)
    home = name.split("/")[0]
    before = formats.read(path, config(INTEROP / name))
    refused = set()
    # sentence-transformers' holds the encoder alone: test_sentence_transformers.py.
    for target in {*FORMATS} - {"sentence_transformers"}:
        there, back = str(tmp_path / target), str(tmp_path / f"{target}_back")
        try:
            report = convert(path, there, target, config(INTEROP / name))
        except InputError as error:
            if "head='masked_lm'" not in str(error):
                refused.add(target)
                continue
            assert "masked_lm" in before.heads and target == "keras_hub"
            report = convert(path, there, target, config(INTEROP / name),
                             encoder_only=True)
        # Whatever the source had is in one of the lists.
        assert {*report.matched.values(), *report.dropped} == {
            *before.report.matched.values(), *before.report.dropped}
        convert(there, back, home)
        kept = formats.read(back)
        for ours, tensor in kept.tensors.items():
            if ours in before.tensors:
                np.testing.assert_array_equal(tensor.read(), before.tensors[ours].read())
        dropped = set(before.tensors) - set(kept.tensors)
        assert not dropped if target in ("tf1", "hf") else all(
            ours.startswith("cls/") for ours in dropped)
        if not dropped:  # Thus it gives the outputs that golden/test_interop checks.
            one, other = ({**vars(found.config), "extra": {}, "use_pooler": True,
                           "heads": found.heads} for found in (kept, before))
            assert one == other
    assert home not in refused
    expected = {
        "model_gelu_erf": {"tf1", "keras_hub", "tf_models"},
        "model_layer_norm_eps": {"tf1", "keras_hub", "tf_models"},
        "model_embedding_eq_hidden": {"tf1", "tf_models"},  # Its projection is trained.
        "model_inner2": {"tf_models"}, "backbone_groups2_inner2": {"tf_models"},
        # Its masked-LM head has another epsilon.
        "keras_hub/masked_lm": {"tf1", "hf", "tf_models"},
        "text_classifier_3": {"tf_models"}, "question_answering": {"keras_hub", "tf_models"},
        "multiple_choice": {"keras_hub", "tf_models"},
        "token_classification": {"keras_hub", "tf_models"}}
    wanted = [value for key, value in expected.items() if name.endswith(key)]
    assert refused == (wanted[0] if wanted else
                       {"tf_models"} if "seqcls" in name else set())


@pytest.mark.parametrize("width, labels, problem", [
    (1, ("a",), "multi_label_classification"), (2, ("x", "y"), "regression"),
    (1, (), "regression"), (2, ("x", "y"), "single_label_classification"),
    (4, (), "")])
def test_what_outputs_are_goes_along(width, labels, problem, tmp_path):
    path, _ = stored(tmp_path / "tf1", heads={"classification": width}, labels=labels,
                     problem_type=problem)
    for number, target in enumerate(("hf", "tf1", "hf", "keras_hub")):
        convert(path, path := str(tmp_path / f"{target}{number}"), target)
        found = formats.read(path)
        assert found.labels == labels or not labels
        assert (found.problem_type, found.heads) == (problem, {"classification": width})
    values = json.loads((tmp_path / "hf2" / "config.json").read_text())
    assert values.get("problem_type", "") == problem and len(values["id2label"]) == width
    task = json.loads((tmp_path / "keras_hub3" / "task.json").read_text())
    assert task["config"]["activation"] == (
        "sigmoid" if problem == "multi_label_classification" else "linear")


LONG = "It was founded in 1999 and lost its first game by a goal . " * 6
PERSON = ("O", "B-PER", "I-PER")
KEPT = {  # Task → heads, labels, its settings, inputs.
    "labels": ({"classification": 3}, ("a", "b", "c"), {
        "task": "custom", "problem_type": "multi_label_classification", "flags": {
            "label_threshold": 0.2, "text_b_column": None}}, ["a b", LONG]),
    "pairs": ({"classification": 2}, ("no", "yes"), {
        "task": "rte", "flags": {}}, [("a b", LONG), (LONG, "b a")]),
    "numbers": ({"classification": 1}, (), {
        "task": "sts-b", "problem_type": "regression", "flags": {}}, [("a", LONG)]),
    "tags": ({"token_classification": 3}, PERSON, {
        "task": "custom", "head": "token_classification", "flags": {
            "doc_stride": 4, "scheme": "none", "split_words": "characters"}}, [LONG]),
    "answers": ({"spans": 2}, (), {"task": "squad", "flags": {
        "doc_stride": 5, "max_query_length": 6, "n_best_size": 3,
        "max_answer_length": 4}}, [("When was the first game of it ?", LONG)]),
    "choices": ({"multiple_choice": 1}, (), {"task": "race", "flags": {
        "max_qa_length": 7}}, [{"passage": LONG, "question": "When was the first game ?",
                                "options": ["in 1999", LONG, "b", "c"]}]),
    "vectors": ({}, (), {"task": "custom", "flags": {}}, ["a b", LONG])}


@pytest.mark.parametrize("task", [
    pytest.param(task, marks=pytest.mark.long if task in ("numbers", "vectors") else ())
    for task in KEPT])
def test_answers_are_those_of_the_run_s_folder(task, tmp_path):
    heads, labels, settings, inputs = KEPT[task]
    config = TINY.replace(vocab_size=4000, num_hidden_layers=2, use_pooler=(
        task in ("labels", "pairs", "numbers", "choices", "vectors")),
        max_position_embeddings=64)
    path, _ = stored(tmp_path / "run", config, heads, labels=labels,
                     problem_type=settings.get("problem_type", ""))
    (tmp_path / "run" / SPM.name).write_bytes(SPM.read_bytes())
    (tmp_path / "run" / "task.json").write_text(json.dumps({
        "vocabulary_flag": "spm_model_file", **settings, "labels": list(labels),
        "vocabulary": vocabulary_of(str(SPM)),
        "flags": {"max_seq_length": 24, "do_lower_case": True, **settings["flags"]}}))
    if task == "answers":
        (tmp_path / "run" / "null_threshold.json").write_text(
            '{"null_score_diff_threshold": -2.5}')
    run = albert_tf.load(path)
    expected = run.predict(inputs)
    # What is made of what was made of it has them, too.
    for format in ("hf", "keras_hub", "tf1"):
        if format == "keras_hub" and task in ("tags", "answers", "choices"):
            continue
        convert(path, path := str(tmp_path / format), format)
        found = albert_tf.load(path)
        assert found.predict(inputs) == expected, format
        assert found.labels == labels and found.threshold == run.threshold
    values = json.loads((tmp_path / "hf" / "tokenizer_config.json").read_text())
    assert values["model_max_length"] == 24
    if task == "tags":
        values = json.loads((tmp_path / "hf" / "config.json").read_text())
        assert values["id2label"]["2"] == "I-PER" and values["label2id"]["I-PER"] == 2
        assert values["architectures"] == ["AlbertForTokenClassification"]
    if task in ("labels", "vectors"):
        values = json.loads((tmp_path / "keras_hub" / "preprocessor.json").read_text())
        assert values["config"]["sequence_length"] == 24


def test_keys_of_a_config_that_nobody_knows_are_kept(hf):
    own = {"task_specific_params": {"a": [1, 2]}, "classifier_dropout_prob": 0.25}
    configured(**own, _name_or_path="somebody/albert")(hf)
    convert(hf, hf.parent / "back", "tf1")
    convert(hf.parent / "back", hf.parent / "again", "hf")
    values = json.loads((hf.parent / "again" / "config.json").read_text())
    assert {name: values[name] for name in own} == own and "_name_or_path" not in values


def test_layers_that_share_nothing_become_groups(tmp_path):
    path, tensors = stored(tmp_path / "tf1", TINY.replace(parameter_sharing="none"))
    convert(path, str(tmp_path / "hf"), "hf")
    # A file of a model stands for its folder.
    found = formats.read(str(tmp_path / "hf" / "model.safetensors"))
    assert found.format == "hf" and found.config.num_hidden_groups == 4
    assert_same(str(tmp_path / "hf"), tensors)
    assert len({path.stat().st_mode for path in (tmp_path / "hf").iterdir()}) == 1


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
def test_half_precision_rounds_once(dtype, tmp_path):
    path, tensors = stored(tmp_path / "tf1")
    convert(path, str(tmp_path / "hf"), "hf", dtype=np.dtype(dtype).name)
    assert_same(str(tmp_path / "hf"), {
        name: array.astype(dtype).astype("f") for name, array in tensors.items()})


def test_the_optimizer_goes_along_on_request(tmp_path):
    slots = {f"{parameter_count.WORDS}/adam_m": Tensor.of(np.full([20, 4], 3.0, "f"))}
    path = tmp_path / "tf1"
    path.mkdir()
    write_release(checkpoint(slots=slots, step=7), str(path), optimizer_state=True)
    convert(str(path), str(tmp_path / "with"), "tf1", optimizer_state=True)
    convert(str(path), str(tmp_path / "without"), "tf1")
    with_state = bundle.read(str(tmp_path / "with" / "model.ckpt-best"))
    assert with_state["global_step"].read() == 7
    assert with_state[f"{parameter_count.WORDS}/adam_m"].read()[0, 0] == 3
    assert with_state[f"{parameter_count.POOLER}/bias/adam_v"].read()[0] == 0
    assert set(bundle.read(str(tmp_path / "without" / "model.ckpt-best"))) == set(
        neutral.shapes_of(TINY, PRETRAINING))


def test_conversion_loads_no_tensorflow_but_to_write_its_checkpoints(tmp_path):
    done = subprocess.run([sys.executable, "-c", (
        "import sys\nfrom albert_tf.checkpoints.formats import convert\n"
        f"for name in ('hf', 'keras_hub', 'sentence_transformers'):\n"
        f"    convert({str(INTEROP / 'hf' / 'model_inner2')!r}, "
        f"{str(tmp_path)!r} + '/' + name, name, encoder_only=True)\n"
        "assert 'tensorflow' not in sys.modules and 'torch' not in sys.modules")],
        cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len([*tmp_path.iterdir()]) == 3


# ---- what has no counterpart -----------------------------------------------


@pytest.mark.parametrize("changes, heads, target, words", [
    ({}, {"conditional_spans": 1}, "hf", "conditional_spans"),
    ({"hidden_act": "relu"}, {}, "keras_hub", "hidden_act='relu'"),
    ({"num_hidden_layers": 6, "num_hidden_groups": 4}, {}, "keras_hub",
     "num_hidden_groups=4.*=6"),
    ({"hidden_act": "gelu_erf"}, {}, "tf1", "hidden_act='gelu_erf'"),
    ({"layer_norm_eps": 1e-5}, {}, "tf1", "layer_norm_eps=1e-05"),
    ({"parameter_sharing": "ffn"}, {}, "hf", "parameter_sharing='ffn'"),
    ({"num_hidden_groups": 2}, {}, "tf_models", "num_hidden_groups=2"),
    ({"num_hidden_layers": 18, "num_hidden_groups": 14}, {}, "hf",
     "num_hidden_groups=14.*=18"),
    ({}, {"spans": 2}, "keras_hub", "spans"),
    ({"masked_lm_layer_norm_eps": 1e-5}, {"masked_lm": 1, "classification": 2},
     "keras_hub", "head='masked_lm'"),
    ({}, {"classification": 2}, "tf_models", "classification")])
def test_refused_by_name(changes, heads, target, words, tmp_path):
    path, _ = stored(tmp_path / "source", TINY.replace(**changes), heads)
    with pytest.raises(InputError, match=f"{path}.*{words}"):
        convert(path, str(tmp_path / "output"), target)
    assert [item.name for item in tmp_path.iterdir()] == ["source"]
    if heads:
        report = convert(path, str(tmp_path / "output"), target, encoder_only=True)
        assert len(report.dropped) == sum(
            len(neutral.head_of(*head).shapes(TINY)) for head in heads.items())


# ---- wrong inputs ----------------------------------------------------------


@pytest.fixture(name="hf")
def _hf(tmp_path):
    path, _ = stored(tmp_path / "tf1")
    convert(path, str(tmp_path / "hf"), "hf")
    return tmp_path / "hf"


def configured(**changes):
    def change(folder):
        file = folder / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))

    return change


def tensors_of(change):
    """The file of weights after `change` of its tensors by name."""
    def write(folder):
        tensors = safetensors.numpy.load_file(folder / "model.safetensors")
        change(tensors)
        safetensors.numpy.save_file(tensors, folder / "model.safetensors")

    return write


def indexed(shard):
    def write(folder):
        (folder / "model.safetensors").unlink()
        (folder / "model.safetensors.index.json").write_text(
            json.dumps({"weight_map": {"albert.pooler.bias": shard}}))

    return write


@pytest.mark.parametrize("spoil, named", [
    (configured(hidden_size=16), r"\[16, 4"),
    (configured(num_hidden_groups=2), "is missing"),
    (configured(hidden_act="swish"), "'swish'.*gelu_new"),
    *((lambda folder, name=name: (folder / name).unlink(), named) for name, named in (
        ("config.json", "config.json"), ("model.safetensors", "no model.*config.json"))),
    (tensors_of(lambda found: found.update({"predictions.decoder.weight": 1 + found[
        "albert.embeddings.word_embeddings.weight"]})), "predictions.decoder.weight"),
    (tensors_of(lambda found: found.pop("albert.pooler.weight")), "pooler.weight is"),
    (tensors_of(lambda found: found.update({
        "albert.pooler.bias": found["albert.pooler.bias"].astype("float64")})),
     "albert.pooler.bias has the type"),
    (lambda folder: (folder / "vocab.txt").write_text(
        "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "one"])),
     "vocab.txt has 6 tokens.*20"),
    (indexed("gone.safetensors"), "hf/gone.safetensors: .*No such file"),
    (indexed(3), "index.json: "),
    (lambda folder: (folder / "model.safetensors").write_bytes(b""),
     "model.safetensors: ")])
def test_what_is_wrong_is_named(spoil, named, hf):
    spoil(hf)
    with pytest.raises(InputError, match=named) as error:
        load(str(hf))
    assert "\n" not in str(error.value)


def test_nan_is_named_and_refused_unless_allowed(tmp_path):
    path, made = tmp_path / "tf1", checkpoint()
    made.tensors[f"{parameter_count.POOLER}/bias"].read()[3] = np.nan
    path.mkdir()
    write_release(made, str(path))
    with pytest.raises(InputError, match="pooler/dense/bias holds.*--allow_nan"):
        convert(path, tmp_path / "output", "hf")
    assert [item.name for item in tmp_path.iterdir()] == ["tf1"]
    with pytest.raises(InputError, match="pooler/dense/bias"):
        load(path)
    convert(path, tmp_path / "output", "hf", allow_nan=True)
    assert np.isnan(load(str(tmp_path / "output"), allow_nan=True).model.get_layer(
        "bert").pooler.bias.numpy()[3])


@pytest.mark.parametrize("format, name, content, named", [
    ("keras_hub", "task.weights.h5", None, "task.weights.h5: "),
    ("keras_hub", "model.weights.h5", b"", "model.weights.h5: "),
    ("keras_hub", "config.json", {"config": {"num_layers": "4"}},
     "kh/config.json: config: num_hidden_layers"),
    ("keras_hub", "task.json", {"config": 1}, "task.json"),
    ("keras_hub", "config.json", {"albert_tf": {"labels": ["a"]}}, "labels are .*3 out"),
    ("keras_hub", "config.json", {"albert_tf": {"flags": {"max_seq_length": "a"}}},
     "max_seq_length"),
    *(("tf1", "albert_config.json", {"labels": labels}, "labels are .*3 outputs")
      for labels in ("abc", ["a", None, "c"], 3))])
def test_what_is_wrong_in_other_formats_is_named(format, name, content, named, tmp_path):
    path, _ = stored(tmp_path / "tf1", heads={"classification": 3})
    convert(path, str(tmp_path / "kh"), "keras_hub")
    file = tmp_path / ("kh" if format == "keras_hub" else "tf1") / name
    if isinstance(content, dict):
        values = json.loads(file.read_text())
        if isinstance(content.get("config"), dict):
            content = {"config": {**values["config"], **content["config"]}}
        content = json.dumps({**values, **content}).encode()
    file.unlink()
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(InputError, match=named):
        load(str(file.parent))


def test_a_preset_has_the_state_that_keras_hub_saves(tmp_path):
    """It warns if the two numbers of the optimizer are missing."""
    source = INTEROP / "keras_hub" / "text_classifier_3"
    convert(str(source), str(tmp_path / "kh"), "keras_hub")
    wanted, found = (tensor_files.read_h5(os.path.join(folder, "task.weights.h5"))
                     for folder in (source, tmp_path / "kh"))
    state = {name for name in wanted if name.startswith("optimizer/")}
    assert len(state) == 2 and {name for name in found if "optimizer" in name} == state
    for name in state:
        number, other = wanted[name].read(), found[name].read()
        assert number == other and number.dtype == other.dtype


def test_paths_without_a_model_and_an_output_that_exists(tmp_path):
    path, _ = stored(tmp_path / "tf1")
    with pytest.raises(InputError, match="tf1 exists"):
        convert(path, path, "hf")
    for name in ("config.json", "tf_model.h5"):
        (tmp_path / name).write_text("{}")
    for path, named in ((tmp_path, "tf_model.h5.*saved_model.pb"), ("nothing", "nothing")):
        with pytest.raises(InputError, match=named):
            load(path)


@pytest.mark.parametrize("format, name", [
    ("hf", "model.safetensors"), ("hf", "spiece.model"), ("hf", "tokenizer.json"),
    ("keras_hub", "model.weights.h5"), ("tf1", "model.ckpt-best.data-00000-of-00001")])
def test_pointers_of_git_lfs_are_named(format, name, with_tokenizer, tmp_path):
    convert(with_tokenizer, str(tmp_path / "a"), format)
    (tmp_path / "a" / name).write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    with pytest.raises(InputError, match=f"{name} is a pointer of Git LFS.*git lfs pull"):
        load(str(tmp_path / "a"))


# ---- tokenizers and cards --------------------------------------------------

SPM = FIXTURES / "spm" / "en4k.model"


@pytest.fixture(name="with_tokenizer", scope="module")
def _with_tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "tf1"
    path, _ = stored(folder, TINY.replace(vocab_size=4000), {})
    (folder / SPM.name).write_bytes(SPM.read_bytes())
    return path


TEXTS = ["It was founded in 1999, (see p. 9,5).", "Café naïve – £5", "a `` b ''", ""]


@pytest.mark.parametrize("target", FORMATS)
def test_the_tokenizer_goes_along(target, with_tokenizer, tmp_path):
    path = str(tmp_path / target)
    convert(with_tokenizer, path, target)
    expected = load(with_tokenizer).tokenizer.encode_batch(TEXTS)
    assert load(path).tokenizer.encode_batch(TEXTS) == expected
    if target == "hf":
        assert (tmp_path / "hf" / "spiece.model").read_bytes() == SPM.read_bytes()
        values = json.loads((tmp_path / "hf" / "tokenizer_config.json").read_text())
        assert "token_type_ids" in values["model_input_names"]
        (tmp_path / "hf" / "spiece.model").unlink()
        again = load(path).tokenizer
        assert again.vocabulary_path.endswith("tokenizer.json")
        assert again.encode_batch(TEXTS) == expected
    text = (tmp_path / target / "README.md").read_text()
    assert text.startswith("---\nlibrary_name: ") and "\n---\n\n# " in text
    assert ("Clean text first" in text) == (target == "keras_hub")


def test_padded_embeddings_lose_their_padding(tmp_path, caplog):
    heads = {"masked_lm": 1}
    padded, tensors = stored(tmp_path / "tf1", TINY.replace(vocab_size=4032), heads)
    (tmp_path / "tf1" / SPM.name).write_bytes(SPM.read_bytes())  # 4,000 tokens
    convert(padded, str(tmp_path / "hf"), "hf")
    loaded = albert_tf.load(str(tmp_path / "hf"))
    assert loaded.config.vocab_size == 4000 and "32 of the 4032 word embed" in caplog.text
    names = neutral.shapes_of(loaded.config, heads)
    assert_same(str(tmp_path / "hf"), {
        name: tensors[name][:4000] if tensors[name].shape[:1] == (4032,) else
        tensors[name] for name in names})
    [masked] = loaded.predict("a [MASK] b", top_k=9999)["masks"]
    assert len(masked) == 4000
    # 31 rows are no multiple, and 128 are a block.
    for number, size in enumerate((4031, 4128)):
        path, _ = stored(tmp_path / str(number), TINY.replace(vocab_size=size), {})
        (tmp_path / str(number) / SPM.name).write_bytes(SPM.read_bytes())
        with pytest.raises(InputError, match="4000 tokens, but there are"):
            formats.read(path)


@pytest.mark.parametrize("before", ["module.", "_orig_mod.", "module._orig_mod.model."])
@pytest.mark.parametrize("heads", [PRETRAINING, {}])
def test_what_a_wrapper_puts_before_all_names_is_removed(before, heads, tmp_path):
    path, tensors = stored(tmp_path / "tf1", heads=heads)
    convert(path, str(tmp_path / "hf"), "hf")
    file = str(tmp_path / "hf" / "model.safetensors")
    tensor_files.write_safetensors(file, {
        before + name: Tensor.of(tensor.read())
        for name, tensor in tensor_files.read_safetensors(file).items()}, "float32")
    assert_same(str(tmp_path / "hf"), tensors)
    tensor_files.write_safetensors(file, {"module.a": Tensor.of(np.ones(3))}, "float32")
    with pytest.raises(InputError, match="word_embeddings.weight is missing"):
        formats.read(str(tmp_path / "hf"))


def test_outputs_without_names_get_labels(tmp_path):
    path, _ = stored(tmp_path / "tf1", heads={"classification": 2})
    convert(path, str(tmp_path / "hf"), "hf")
    for source in (path, str(tmp_path / "hf")):
        convert(source, str(tmp_path / "named"), "hf", labels=["no", "yes"])
        assert formats.read(str(tmp_path / "named")).labels == ("no", "yes")
        shutil.rmtree(tmp_path / "named")
    configured(id2label={"0": "a", "1": None})(tmp_path / "hf")
    with pytest.raises(InputError, match="config.json: the labels are"):
        formats.read(str(tmp_path / "hf"))


def test_the_card_has_what_the_run_knows(tmp_path):
    path, _ = stored(tmp_path / "run", TINY.replace(vocab_size=4000), {"classification": 2})
    (tmp_path / "run" / SPM.name).write_bytes(SPM.read_bytes())
    (tmp_path / "run" / "task.json").write_text(json.dumps({
        "task": "sst-2", "labels": ["n\no", "yes"], "vocabulary_flag": "spm_model_file",
        "vocabulary": {"file": SPM.name}, "flags": {}}))
    score, task = '"value": 0.8765', '_tag: "text-classification"'
    for format, step, words in (
            ("hf", 0, (task, "Labels: n o, yes", score, '"name": "hf", "results"')),
            ("keras_hub", 9, (task,)),
            ("sentence_transformers", 0, ('_tag: "sentence-similarity"',))):
        (tmp_path / "run" / "eval_results.json").write_text(json.dumps(
            {"step": step, "accuracy": 0.87654, "loss": 0.4, "f1": 1e-05,
             "null_score_diff_threshold": -3.1}))
        convert(path, tmp_path / format, format)
        text = (tmp_path / format / "README.md").read_text()
        assert all(word in text for word in words)
        # The scores are those of a head at a step, and go where these go.
        assert (score in text) == (score in words)
        assert "e-05" not in text and "threshold" not in text


def test_the_card_carries_over_what_the_source_s_says(with_tokenizer, tmp_path):
    source = tmp_path / "source"
    convert(with_tokenizer, str(source), "hf")
    (source / "README.md").write_text(
        "---\r\nlanguage:\r\n- en\r\n- de\r\nlicense: apache-2.0\r\n"
        "widget:\r\n- text: no\r\n---\r\nlicense: not this\r\n")
    made = formats.read(str(source))
    for name, more in (("hf://me/it@main", 'base_model: "me/it"\n'), (str(source), "")):
        assert card(made, "hf", "x", name).startswith(
            "---\nlanguage:\n- en\n- de\nlicense: apache-2.0\n"
            'library_name: "transformers"\npipeline_tag: "feature-extraction"\n'
            f'tags:\n  - "albert"\n{more}---\n\n# x\n')
