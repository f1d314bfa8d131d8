"""--engine: which engine answers, equal to TensorFlow, and exports that are kept.

    python -m pytest tests/serving/test_engines.py
"""

import pathlib
import re
import shutil

import numpy as np
import pytest

import albert_tf
from albert_tf import files
from albert_tf.errors import InputError, Interruption
from albert_tf.jobs import parallel
from albert_tf.serving import engines, portable, runtimes
from tests.commands import run_commands
from tests.serving import tiny_models
from tests.serving.test_portable import ASKED, PASSAGE, needs, numbers

pytestmark = [needs("openvino"), needs("onnx")]


@pytest.fixture(autouse=True)
def _no_accelerator(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(parallel, "has_accelerator", lambda: False)


@pytest.fixture(scope="module", name="kept")
def _kept(tmp_path_factory):
    """The folder of a classifier beside which an export is kept."""
    folder = tiny_models.write(tmp_path_factory.mktemp("kept") / "model", "classes")
    engines.use(albert_tf.load(folder), "auto", folder)
    return folder


@pytest.fixture(name="folder")
def _folder(kept, tmp_path):
    return pathlib.Path(shutil.copytree(kept, tmp_path / "model"))


@pytest.fixture(name="made")
def _made(folder, monkeypatch):
    """Gives the kept graph again, as exporting takes seconds; a list, as long as asked."""
    name, = exports(folder)
    content, made = (folder / "engines" / name).read_bytes(), []
    monkeypatch.setattr(
        portable, "graphs", lambda *args: made.append(1) or {"": content})
    return made


def exports(folder):
    return sorted(path.name for path in (folder / "engines").iterdir())


def assert_equal(found, expected):
    for one, other in zip(map(numbers, found), map(numbers, expected), strict=True):
        np.testing.assert_allclose(one[0], other[0], atol=1e-5)
        assert one[1] == other[1]


@pytest.mark.long
@pytest.mark.parametrize("kind,task,name", [
    ("spans2", "answer", "openvino"), ("pretrained", "fill-mask", "onnxruntime")])
def test_heads_answer_as_with_tensorflow(kind, task, name, tmp_path):
    """tests/serving/test_portable.py has the graphs of all."""
    folder = tiny_models.write(tmp_path / kind, kind)
    model, expected = albert_tf.load(folder), albert_tf.load(folder)
    engines.use(model, name, folder, task)
    assert model.head(task)._engine.task == task
    asked = ASKED[kind, task]
    assert_equal(model.predict(asked, task=task), expected.predict(asked, task=task))
    pair = [("It is", "long")]  # Other tasks stay with TensorFlow.
    assert_equal(model.predict(pair, task="embed"), expected.predict(pair, task="embed"))


@pytest.mark.long
def test_windows(tmp_path):
    folder = tiny_models.write(tmp_path / "classes", "classes", max_seq_length=16)
    model, expected = albert_tf.load(folder, engine="openvino"), albert_tf.load(folder)
    for windows in (False, True):
        assert_equal(model.predict([PASSAGE * 4, "It"], windows=windows),
                     expected.predict([PASSAGE * 4, "It"], windows=windows))


def test_small_batches_are_the_engines_and_large_ones_tensorflows(folder, monkeypatch):
    monkeypatch.setattr(engines, "MOST_TOKENS", 40)
    model = albert_tf.load(folder)
    said = engines.use(model, "auto", str(folder))
    assert said.startswith("Engine: OpenVINO for the task classify, up to 40 tokens with ")
    answering, computed = model.head("classify"), []
    run = answering._engine._run
    monkeypatch.setattr(answering._engine, "_run", lambda batch: (
        computed.append(batch["input_ids"].shape), run(batch))[1])
    texts = ["It is.", *["It is one of them."] * 9]
    answers = model.predict(texts)
    assert answers == model.predict(texts) and not computed
    assert_equal([model.predict(text) for text in texts], answers)
    assert len(computed) == 10 and all(rows * length <= 40 for rows, length in computed)
    mask = np.ones([2, 10], np.int32)
    for padding, suits in ((0, True), (2, True), (3, False)):
        mask[1, 10 - padding:] = 0
        assert engines._suits({"input_ids": mask, "input_mask": mask}) == suits


def test_an_export_is_made_once_and_for_one_model(folder, made):
    loaded = albert_tf.load(folder)

    def use(name="auto", **options):
        return engines.use(loaded, name, str(folder), **options)

    name, = exports(folder)
    file = folder / "engines" / name
    assert f"its export is kept in {file}." in use() and f"in {file}." in use("onnxruntime")
    (folder / "engines" / "classify-notes.txt").write_text("a user's")
    # Other weights, such as those of a longer training.
    weight = loaded.model.weights[0]
    weight.assign_add(weight * 0 + 1)
    assert "no export for a faster engine is kept" in use(export=False)
    assert not made
    assert "exported in " in use()
    new, notes = exports(folder)
    assert new != name and new[:9] == name[:9] == "classify-"
    assert notes == "classify-notes.txt" and len(made) == 1


def fails_to_write(path, content):
    raise Interruption(f"{path}: cannot be written: No space left on device.")


@pytest.mark.usefixtures("made")
def test_a_folder_that_cannot_be_written(folder, monkeypatch):
    model, engines_folder = albert_tf.load(folder), folder / "engines"
    shutil.rmtree(engines_folder)
    with monkeypatch.context() as patch:
        patch.setattr(files, "write", fails_to_write)
        said = engines.use(model, "auto", str(folder))
        assert re.search(f"^Engine: TensorFlow, because {engines_folder}.*No space", said)
    engines_folder.write_text("a user's file")
    cache = folder.parent / "cache" / "albert_tf" / "engines"
    assert re.search(f"exported in .* to {cache}/classify-", engines.use(
        model, "auto", str(folder)))
    assert f"kept in {cache}" in engines.use(model, "openvino", str(folder))
    shutil.rmtree(cache.parent)
    cache.parent.write_text("another file")
    said = engines.use(model, "auto", str(folder))
    assert said.startswith("Engine: TensorFlow, because the export for a faster engine")
    with pytest.raises(InputError, match=str(cache)):
        engines.use(model, "openvino", str(folder))
    assert engines_folder.read_text() == "a user's file"


def test_what_stays_with_tensorflow(folder, tmp_path, monkeypatch):
    shutil.rmtree(folder / "engines")
    model = albert_tf.load(folder)
    for said, options in (
            ("as asked for.", {"name": "tensorflow"}),
            ("it is faster.", {"name": "auto", "unless": "it is faster."}),
            ("no export for a faster engine is kept", {"name": "auto", "export": False})):
        assert engines.use(model, path=str(folder), **options).startswith(
            f"Engine: TensorFlow, {'because ' * ('auto' in options.values())}{said}")
    monkeypatch.setattr(parallel, "available_memory", lambda: 1 << 20)
    said = engines.use(model, "auto", str(folder))
    assert said.startswith("Engine: TensorFlow, because the export needs up to ")
    monkeypatch.setattr(runtimes, "is_installed", lambda form: False)
    assert engines.use(model, "auto", str(folder)) == (
        "Engine: TensorFlow, because neither OpenVINO nor ONNX Runtime is installed.")
    with pytest.raises(InputError, match="engine 'fast' is not known; give one of auto"):
        albert_tf.load(folder, engine="fast")
    monkeypatch.setattr(parallel, "has_accelerator", lambda: True)
    assert "has an accelerator" in engines.use(model, "auto", str(folder))
    assert not (folder / "engines").exists()


def failing(message):
    def fail(*args, **options):
        raise RuntimeError(message)

    return fail


@pytest.mark.parametrize("method,says", [
    ("_load", r"/classify-\S*\.onnx: the file is damaged, .* \(no plugin\)"),
    ("_run", r"/classify-\S*\.onnx does not accept these inputs.*\(no plugin\)")])
def test_an_engine_that_fails_is_said(method, says, folder, monkeypatch, caplog):
    monkeypatch.setattr(runtimes.ENGINES["openvino"], method, failing("no plugin\nat all"))
    model = albert_tf.load(folder)
    said = engines.use(model, "auto", str(folder))
    assert re.search(f"^Engine: TensorFlow, because {folder}.*{says}", said)
    assert model.predict("It is.") == albert_tf.load(folder).predict("It is.")
    assert [each.levelname for each in caplog.records if each.name == "absl"] == ["WARNING"]
    with pytest.raises(InputError, match=says):
        engines.use(model, "openvino", str(folder))


def test_a_broken_package_is_not_said_to_be_missing(folder, monkeypatch):
    load = runtimes.importlib.import_module

    def broken(name):
        if name == "openvino":
            raise ImportError("libopenvino.so: no such file")
        return load(name)

    monkeypatch.setattr(runtimes.importlib, "import_module", broken)
    model = albert_tf.load(folder)
    says = r"the package openvino, .*, cannot be imported \(libopenvino.so: no such file\)"
    assert re.search(f"^Engine: TensorFlow, because {says}", engines.use(
        model, "auto", str(folder)))
    with pytest.raises(InputError, match=says):
        engines.use(model, "openvino", str(folder))


def test_an_export_that_fails_is_said(folder, tmp_path, monkeypatch):
    import tf2onnx

    shutil.rmtree(folder / "engines")
    model = albert_tf.load(folder)
    monkeypatch.setattr(tf2onnx.convert, "from_function", failing("opset\n..."))
    says = "the task classify cannot be exported for {} (opset); install the versions"
    assert f"Engine: TensorFlow, because {says.format('openvino')}" in engines.use(
        model, "auto", str(folder))
    with pytest.raises(InputError, match=re.escape(says.format("onnx"))):
        albert_tf.load(folder, engine="onnxruntime")
    with pytest.raises(InputError, match=re.escape(says.format("onnx"))):
        portable.export(model, "classify", str(tmp_path / "out"), "onnx", "float32")
    # Before the converter starts.
    monkeypatch.setattr(parallel, "available_memory", lambda: 1 << 20)
    with pytest.raises(InputError, match="^the export needs up to .* but 1.05 MB are free"):
        portable.export(model, "classify", str(tmp_path / "out"), "onnx", "float32")
    assert not (tmp_path / "out").exists() and not (folder / "engines").exists()


def test_a_digest_has_no_address_of_an_object(folder, tmp_path):
    """Otherwise each start would export again."""
    for path in (folder, *(tiny_models.write(tmp_path / kind, kind) for kind in (
            "spans2", "choices", "tags", "pretrained"))):
        one, other = albert_tf.load(path), albert_tf.load(path)
        digests = [engines.digest_of(one, task) for task in one.tasks()]
        assert digests == [engines.digest_of(other, task) for task in other.tasks()]
        assert len({*digests}) == len(digests)


@pytest.fixture(scope="module", name="commands")
def _commands(tmp_path_factory, kept):
    root = tmp_path_factory.mktemp("commands")
    shutil.copytree(kept, root / "kept")
    for name in ("classes", "asked"):
        tiny_models.write(root / name, "classes")
    portable.export(albert_tf.load(kept), "classify", str(root / "export"), "onnx",
                    "float32")
    (root / "texts.txt").write_text("It is.\nIt was.\n")
    file = [f"--input_file={root}/texts.txt", f"--output_file={root}/answers.jsonl"]
    with run_commands("predict", {
        "one": [f"--model={root}/classes", "It is."],
        "one, asked for": [f"--model={root}/asked", "--engine=openvino", "It is."],
        "one, kept": [f"--model={root}/kept", "It is."],
        "file": [f"--model={root}/kept", *file],
        "export": [f"--model={root}/export", "It is."],
        "engine of an export": [f"--model={root}/export", "--engine=openvino", "It is."],
    }) as results:
        yield results, root


@pytest.mark.long
def test_predict_says_which_engine_it_uses(commands):
    results, root = commands
    for name, says in {
            "one": "Engine: TensorFlow, because no export for a faster engine is kept, and "
                   "making one takes longer than this answer; --engine=openvino makes it.",
            "one, asked for": "Engine: OpenVINO for the task classify, as asked for; "
                              "exported in",
            "one, kept": "Engine: OpenVINO for the task classify, up to ",
            "file": "Engine: TensorFlow, because it is faster for the batches of a file.",
            "export": "Engine: that of the export (onnx)."}.items():
        assert says in results.ok(name)["log"]
    assert not (root / "classes" / "engines").exists()
    results.refused("engine of an export", "is an export for onnx, and cannot be", loaded=True)
