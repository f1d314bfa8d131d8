"""The names that other code relies on, used as the README shows them."""

import ast
import doctest
import importlib
import inspect
import pathlib
import re
import typing

import numpy as np
import pytest

import albert_tf
from tests.helpers import FIXTURES, ROOT, run_python, serialized

CONFIG = dict(vocab_size=4000, embedding_size=8, hidden_size=16, num_hidden_layers=2,
              num_attention_heads=2, intermediate_size=32, max_position_embeddings=16,
              hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


@pytest.fixture(scope="module")
def config():
    return albert_tf.AlbertConfig.named("base", **CONFIG)


def test_pretraining_step_by_hand(config):
    import tensorflow as tf

    from albert_tf.training import losses as pretraining, optimization

    pretrainer = albert_tf.AlbertForPreTraining(config)
    features = {name: np.array(values, np.float32 if "weights" in name else np.int32)
                for name, values in {
        "input_ids": np.arange(16).reshape(2, 8) + 5, "input_mask": np.ones([2, 8]),
        "segment_ids": np.zeros([2, 8]), "masked_lm_positions": [[1, 2], [3, 0]],
        "masked_lm_ids": [[7, 8], [9, 0]], "masked_lm_weights": [[1, 1], [1, 0]],
        "next_sentence_labels": [[0], [1]]}.items()}
    optimizer = optimization.create_optimizer(
        0.01, 10, 0, optimizer="lamb", poly_power=1.0, start_warmup_step=0)
    seen = []
    for _ in range(3):
        with tf.GradientTape() as tape:
            heads = pretrainer(features, training=True)
            losses = pretraining.pretraining_losses(heads, features)
        gradients = tape.gradient(losses["total_loss"], pretrainer.trainable_variables)
        optimizer.apply_gradients(zip(gradients, pretrainer.trainable_variables))
        seen.append(float(losses["total_loss"]))
    assert heads["mlm_logits"].shape == (2, 2, 4000)
    assert heads["sentence_order_logits"].shape == (2, 2)
    assert seen == sorted(seen, reverse=True) and seen[-1] < seen[0]
    assert losses["total_loss"] == (
        losses["masked_lm_loss"] + losses["sentence_order_loss"])


@pytest.mark.parametrize("module", ["modeling.albert", "modeling.models", "modeling.pretraining"])
def test_the_examples_of_docstrings(module):
    done = doctest.testmod(importlib.import_module(f"albert_tf.{module}"))
    assert done.attempted and not done.failed


@pytest.mark.long
def test_importing_prints_no_warning(monkeypatch):
    """Only what TensorFlow's libraries write while they are loaded."""
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL")
    result = run_python("-c", "import albert_tf; albert_tf.AlbertModel")
    assert (result.returncode, result.stdout) == (0, "")
    assert re.fullmatch(
        r"((I0000 |WARNING: All log messages before absl).*\n)*", result.stderr)


def test_paths_of_pathlib(config, tmp_path):
    from albert_tf.checkpoints import convert
    from albert_tf.finetuning.classification import custom, glue
    from albert_tf.finetuning.race import task as race
    from albert_tf.finetuning.squad import task as squad
    from albert_tf.finetuning.classification.task import classification_spec
    from albert_tf.serving import export
    from tests import models

    checkpoint, spm = albert_tf.checkpoints, FIXTURES / "spm" / "en4k.model"
    folder = tmp_path / "model"
    tokenizer = albert_tf.tokenization.FullTokenizer(spm_model_file=spm)
    words = albert_tf.tokenization.FullTokenizer(
        vocab_file=FIXTURES / "tokenization" / "wp_vocab.txt")
    assert tokenizer.uses_sentencepiece and not words.uses_sentencepiece
    model = models.classifier(config, 2)
    checkpoint.export_tf1(model, folder / "model.ckpt-best")
    checkpoint.write_config(folder, config)
    assert checkpoint.read_config(folder) == config
    assert albert_tf.AlbertConfig.from_json_file(
        folder / "albert_config.json") == config
    for path in (folder, folder / "model.ckpt-best"):
        checkpoint.restore_tf1(model, path)
        assert checkpoint.read_tensors(path)
        assert albert_tf.load(path).format == "tf1"
    convert(folder, tmp_path / "hf", "hf")
    loaded = albert_tf.load(tmp_path / "hf")
    assert loaded.format == "hf"
    assert repr(loaded) == (
        f"Model('{tmp_path}/hf/model.safetensors', format='hf', "
        "heads={'classification': 2}, labels=(LABEL_0, LABEL_1))")
    export.export(model, model.head, tmp_path / "export", ["no", "yes"])

    spec = classification_spec(2, 4000)
    with albert_tf.records.RecordWriter(tmp_path / "a.tfrecord") as writer:
        writer.write(serialized(spec, {"input_ids": [2, 3], "input_mask": [1, 1],
                                     "segment_ids": [0, 0], "label_ids": [1]}))
    assert len(list(albert_tf.records.read_records(tmp_path / "a.tfrecord"))) == 1
    (tmp_path / "a.tsv").write_text("text\tlabel\nA text.\tx\nTwo.\ty\n")
    task = custom.build_task(custom.OwnData(
        tmp_path / "a.tsv", text_column="text", label_column="label"))
    assert len(task.read(tmp_path / "a.tsv", "train").examples) == 2
    for read in (lambda: glue.TASKS["cola"].read(tmp_path, "dev"),
                 lambda: race.RaceTask().read(tmp_path, "dev"),
                 lambda: squad.SquadTask().read(tmp_path / "none.json")):
        with pytest.raises(albert_tf.InputError, match=str(tmp_path)):
            read()


LAZY = ("", "checkpoints", "serving", "tokenization")


def for_type_checkers(package):
    """The names that a package imports for type checkers → the modules."""
    module = importlib.import_module(f"albert_tf.{package}".rstrip("."))
    [block] = [node for node in ast.parse(inspect.getsource(module)).body
               if isinstance(node, ast.If)]
    return {alias.name: node.module for node in block.body for alias in node.names
            if alias.name == alias.asname}


@pytest.mark.parametrize("package", LAZY)
def test_the_names_that_load_lazily(package):
    module = importlib.import_module(f"albert_tf.{package}".rstrip("."))
    folder = pathlib.Path(module.__file__).parent
    for name, source in for_type_checkers(package).items():
        assert name in dir(module)
        # A module of the name, once imported, would take its place.
        assert source == "albert_tf" or not [*folder.glob(f"{name}.py"), *folder.glob(name)]
        assert getattr(module, name) is getattr(importlib.import_module(source), name)
    with pytest.raises(AttributeError, match="no attribute 'Albert'"):
        module.Albert  # noqa: B018


def test_type_checkers_see_the_options_of_predict():
    from albert_tf.serving.options import Ask, AskOptions

    assert AskOptions.__annotations__ == typing.get_type_hints(Ask)


RIGHT = """
path = pathlib.Path("a")
tokenizer: tokenization.FullTokenizer = tokenization.FullTokenizer(spm_model_file=path)
model = albert_tf.load(path)
answer: dict[str, Any] = model.predict("a", top_k=3)
answers: list[dict[str, Any]] = model.predict(["a"], ["b"])
albert_tf.finetune(path, [("a", "b")], output_dir=path, learning_rate=1e-3, labels=["b"])
albert_tf.checkpoints.convert(path, path, "hf")
albert_tf.AlbertConfig.from_json_file(path)
"""
WRONG = """
albert_tf.lod
tokenization.FullTokeniser
checkpoints.convertt
records.RecordWriters
model.predict("a", topk=3)
albert_tf.finetune(path, [], outputdir=path)
"""


@pytest.mark.long
def test_a_type_checker_takes_all_names_and_refuses_misspelt_ones(tmp_path):
    pytest.importorskip("mypy")
    names = [f"albert_tf.{package}{'.' * bool(package)}{name}"
             for package in LAZY for name in for_type_checkers(package)]
    head = ("import pathlib\nfrom typing import Any\nimport albert_tf\nfrom albert_tf "
            f"import {', '.join(LAZY[1:])}\n{RIGHT}")
    (tmp_path / "right.py").write_text(head + "\n".join(names))
    (tmp_path / "wrong.py").write_text(head + WRONG)
    done = run_python("-m", "mypy", "--strict", "--follow-imports=silent",
                      "--ignore-missing-imports", "--config-file=",
                      tmp_path / "right.py", tmp_path / "wrong.py")
    lines = {int(number) for number in re.findall(
        r"wrong\.py:(\d+): error", done.stdout)}
    first = head.count("\n") + 2
    assert lines == {*range(first, first + WRONG.count("\n") - 1)}, done.stdout
    assert "right.py" not in done.stdout


@pytest.mark.long
def test_examples_of_the_pages_pass_a_type_checker(tmp_path):
    pytest.importorskip("mypy")
    for page in ("README.md", "docs/PYTHON.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        for i, code in enumerate(re.findall(r"```python\n(.*?)```", text, re.S)):
            (tmp_path / f"{pathlib.Path(page).stem}_{i}.py").write_text(code)
    done = run_python("-m", "mypy", "--follow-imports=silent", "--ignore-missing-imports",
                      "--config-file=", *sorted(tmp_path.glob("*.py")))
    assert done.returncode == 0, done.stdout + done.stderr
