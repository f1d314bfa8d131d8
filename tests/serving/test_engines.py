"""--engine: which engine answers, equal to TensorFlow, and exports that are kept."""

import pathlib
import re
import shutil
from unittest import mock

import numpy as np
import pytest

import albert_tf
from albert_tf import files
from albert_tf.errors import InputError, Interruption
from albert_tf.jobs import parallel
from albert_tf.serving import engines, portable, runtimes
from tests.commands import run_commands
from tests.serving.test_portable import ASKED, assert_same, needs

pytestmark = [needs("openvino"), needs("onnx")]


@pytest.fixture(autouse=True)
def _no_accelerator(monkeypatch):
    monkeypatch.setattr(parallel, "has_accelerator", lambda: False)


@pytest.fixture(scope="module", name="kept")
def _kept(tmp_path_factory, folder_of):
    """The folder of a classifier beside which an export is kept."""
    folder = shutil.copytree(folder_of("classes"), tmp_path_factory.mktemp("kept") / "model")
    engines.use(albert_tf.load(folder), "auto", str(folder))
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


@pytest.mark.long
@pytest.mark.parametrize("kind,task,name", [
    ("spans2", "answer", "openvino"), ("pretrained", "fill-mask", "onnxruntime")])
def test_heads_answer_as_with_tensorflow(kind, task, name, folder_of, tiny):
    """tests/serving/test_portable.py has the graphs of all."""
    model, expected = albert_tf.load(folder_of(kind), engine=name), tiny(kind)
    assert model.head(task)._engine.task == task
    asked = ASKED[kind, task]
    assert_same(model.predict(asked, task=task), expected.predict(asked, task=task))
    pair = [("It is", "long")]  # Other tasks stay with TensorFlow.
    assert_same(model.predict(pair, task="embed"), expected.predict(pair, task="embed"))


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
    assert_same([model.predict(text) for text in texts], answers)
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


@pytest.mark.usefixtures("made")
def test_a_folder_that_cannot_be_written(folder, monkeypatch):
    model, engines_folder = albert_tf.load(folder), folder / "engines"
    shutil.rmtree(engines_folder)
    with monkeypatch.context() as patch:
        patch.setattr(files, "write", mock.Mock(
            side_effect=Interruption(f"{engines_folder}: No space left on device.")))
        said = engines.use(model, "auto", str(folder))
        assert re.search(f"^Engine: TensorFlow, because {engines_folder}.*No space", said)
    engines_folder.write_text("a user's file")
    said = engines.use(model, "auto", str(folder))
    assert said.startswith("Engine: TensorFlow, because the export for a faster engine")
    with pytest.raises(InputError, match=f"{engines_folder} cannot be written"):
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
    assert re.search("^Engine: TensorFlow, because the export needs up to .* 1.05 MB", said)
    monkeypatch.setattr(engines.importlib.util, "find_spec", lambda name: None)
    assert engines.use(model, "auto", str(folder)) == (
        "Engine: TensorFlow, because neither OpenVINO nor ONNX Runtime is installed.")
    with pytest.raises(InputError, match="engine='fast' is not supported, only auto, "):
        albert_tf.load(folder, engine="fast")
    monkeypatch.setattr(parallel, "has_accelerator", lambda: True)
    assert "has an accelerator" in engines.use(model, "auto", str(folder))
    assert not (folder / "engines").exists()


def failing(message):
    return mock.Mock(side_effect=RuntimeError(message))


def test_an_engine_that_fails_is_said(folder, monkeypatch, caplog):
    model = albert_tf.load(folder)
    expected = model.predict("It is.")
    for method, says in (
            ("_run", r"/classify-\S*\.onnx does not accept these inputs.*\(no plugin\)"),
            ("_load", r"/classify-\S*\.onnx: the file is damaged, .* \(no plugin\)")):
        monkeypatch.setattr(
            runtimes.FORMS["openvino"], method, failing("no plugin\nat all"))
        said = engines.use(model, "auto", str(folder))
        assert re.search(f"^Engine: TensorFlow, because {folder}.*{says}", said)
    assert model.predict("It is.") == expected
    assert [each.levelname for each in caplog.records
            if each.name == "absl"] == ["WARNING"] * 2
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
        portable.export(model, "classify", str(tmp_path / "out"), "onnx", "float32")
    assert not (tmp_path / "out").exists() and not (folder / "engines").exists()


def test_a_digest_has_no_address_of_an_object(folder_of):
    """Otherwise each start would export again."""
    for kind in ("spans2", "pretrained"):
        one, other = albert_tf.load(folder_of(kind)), albert_tf.load(folder_of(kind))
        digests = [engines.digest_of(one, task) for task in one.tasks()]
        assert digests == [engines.digest_of(other, task) for task in other.tasks()]
        assert len({*digests}) == len(digests)


@pytest.mark.long
def test_predict_says_which_engine_it_uses(folder_of, kept, tmp_path):
    bare = shutil.copytree(folder_of("classes"), tmp_path / "bare")
    portable.export(albert_tf.load(kept), "classify", str(tmp_path / "export"), "onnx",
                    "float32")
    (tmp_path / "texts.txt").write_text("It is.\nIt was.\n")
    says = {
        f"--model={bare}": "TensorFlow, because no export for a faster engine is kept, and "
                           "making one takes longer than this answer",
        f"--model={kept}": "OpenVINO for the task classify, up to ",
        f"--model={kept} --input_file={tmp_path}/texts.txt":
            "TensorFlow, because it is faster for the batches of a file.",
        f"--model={tmp_path}/export": "that of the export (onnx)."}
    with run_commands("predict", {}) as results:
        for flags, engine in says.items():
            words = [*flags.split(), *["It is."] * ("input_file" not in flags)]
            done = results.run([*words, f"--output_file={tmp_path}/{len(flags)}.jsonl"])
            assert done["status"] == 0 and f"Engine: {engine}" in done["log"]
        refused = results.run([*words, "--engine=openvino"])
        assert "is an export for onnx, and cannot be" in refused["stderr"]
    assert not (bare / "engines").exists()
