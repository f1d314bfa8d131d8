"""albert_tf.finetune: rows of all kinds, the same runs as the scripts', errors."""

import json
import types

import numpy as np
import pytest
from absl import logging

import albert_tf
from albert_tf.errors import InputError
from tests import tiny_run
from tests.commands import run_commands
from tests.helpers import ROOT

pytestmark = pytest.mark.usefixtures("without_curves")

TEXTS = [(f"the film is {word}.", label) for word, label in (
    ("good", "yes"), ("bad", "no"), ("fine", "yes"), ("poor", "no"))] * 4
SMALL = dict(num_train_epochs=2, train_batch_size=8, learning_rate=0.01)


@pytest.fixture(scope="module", name="model")
def _model(tmp_path_factory):
    return tiny_run.write_pretrained(tmp_path_factory.mktemp("model"))


# ---- rows ------------------------------------------------------------------


class Frame(dict):
    """A DataFrame with a column "features", as far as it is used."""

    iloc, features = None, np.ones(2)


class Dataset(list):
    """A Dataset of the library `datasets`, likewise."""

    features = {
        "label": types.SimpleNamespace(names=["no", "yes"]),
        "ner_tags": types.SimpleNamespace(
            feature=types.SimpleNamespace(names=["O", "B-X", "I-X"]))}


COLUMNS = {"text": ["a", "b"], "label": ["yes", "no"], "other": [1, 2]}


@pytest.fixture(name="written")
def _written(model, tmp_path, monkeypatch):
    """What becomes of rows: those of the file, and --labels."""
    def written(train):
        labels = []
        monkeypatch.setattr("albert_tf.cli.finetune.run", lambda command, values, **_:
                            labels.extend(values.labels or ()))
        monkeypatch.setattr("albert_tf.from_python.finetune.load", lambda path: None)
        albert_tf.finetune(model, train, output_dir=tmp_path / "run")
        path = tmp_path / "run" / "finetune_data" / "train.jsonl"
        return [json.loads(line) for line in path.open(encoding="utf-8")], labels

    return written


@pytest.mark.parametrize("data", [
    [("a", "yes"), ("b", "no")], (["a", "yes"], ["b", "no"]),
    [{"text": "a", "label": "yes"}, {"label": "no", "text": "b", "other": 1}],
    COLUMNS, Frame(COLUMNS), zip("ab", ["yes", "no"])])
def test_rows_of_all_kinds(data, written):
    assert written(data) == (
        [{"text": "a", "label": "yes"}, {"text": "b", "label": "no"}], [])


def test_names_of_a_dataset_and_values_of_numpy(written):
    found, classes = written(Dataset([
        {"text": "a", "label": np.int64(1)}, {"text": "b", "label": 0},
        {"text": "c", "label": -1}]))
    assert [row["label"] for row in found] == ["yes", "no", None]
    assert classes == ["no", "yes"]
    found, _ = written([("a", np.float32(0.5)), ("b", float("nan")), ("d", {"x", "w"}),
                        ("e", np.array([1, 2])), ("f", np.float32("nan"))])
    assert [row["label"] for row in found] == [0.5, None, ["w", "x"], [1, 2], None]


# ---- runs ------------------------------------------------------------------


# The file that examples become is named, and each option as a flag; more is in the tests
# of the tasks.
@pytest.mark.parametrize("train, options, message", [
    ("none.csv", {}, "no file matches .*none.csv"),
    ([("a", "yes"), ("b",)], {}, "train, row 2"), (["a"], {}, "train, row 1"),
    ([{"text": "a"}], {}, "train.jsonl, line 1: there is no column 'label'"),
    (Frame(words=["a"], label=["yes"]), {}, "train.jsonl, line 1: there is no column 'text'"),
    ([("a", object())], {}, "train, row 1: a value"),
    ([("\ud800", "yes")], {}, "train, row 1: a value"),
    ({"text": ["a", "b"], "label": ["x"]}, {}, "train: the columns 'text', 'label'"),
    ({"text": "ab", "label": "no"}, {}, "train: the columns 'text'"),
    ([], {}, "train has no examples"),
    ([("good", "yes"), (None, "no")], {}, "/train.jsonl, line 2: 'text'"),
    ([("good", "yes"), ("bad", None)], {}, "/train.jsonl, line 2: there is no label"),
    ({"text": ["good", "bad"], "label": np.eye(2)}, {"multi_label": True},
     "/train.jsonl: .* only 0.0 and 1.0.*--labels"),
    ([("good", {"a", "b"})], {}, "/train.jsonl, line 1: 'label' is .*--multi_label"),
    (TEXTS, {"metric": "accuracy"}, "--metric .* only with --do_eval"),
    (TEXTS, {"max_seq_length": 17}, "--max_seq_length=17"),
    (TEXTS, {"class_weights": 5}, "--class_weights=5"),
    (TEXTS, {"dev": []}, "dev has no examples"),
    (TEXTS, {"labels": "yes,no"}, "--labels='yes,no': give a list"),
    (TEXTS, {"dtype": "float8"}, "--dtype='float8'"),
    (TEXTS, {"task": "tags"}, "task='tags' is not supported"),
    (TEXTS, {"label_threshold": 0.3}, "--label_threshold .* only with --multi_label"),
    (TEXTS, {"lerning_rate": 1e-3}, "--lerning_rate is not an option"),
    (TEXTS, {"learning_rate": "high"}, "--learning_rate='high': give a number"),
    (TEXTS, {"do_eval": False}, "--do_eval is not an option"),
    (TEXTS, {"task": "answer", "labels": ["a"]}, "--labels is not an option of task='ans"),
    ([(["a", "b"], ["O"])], {"task": "tag"}, "/train.jsonl, line 1: words and tags"),
    ([("q", "good film", {"text": ["film"], "answer_start": [1]})], {"task": "answer"},
     "/train.jsonl, line 1, question '1'")])
def test_wrong_inputs_are_refused_before_the_training(
        train, options, message, model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=message):
        albert_tf.finetune(model, train, output_dir="run", **options)
    assert not list(tmp_path.glob("run/model.ckpt*"))


@pytest.fixture(scope="module", name="trained")
def _trained(model, tmp_path_factory, eager):
    folder = tmp_path_factory.mktemp("trained") / "run"
    albert_tf.finetune(model, TEXTS, TEXTS[:3], output_dir=folder, **SMALL)
    return folder


@pytest.mark.parametrize("changes, message", [
    ({"train": TEXTS[::-1]}, "^train has other rows than the run"),
    ({"num_train_epochs": 3}, "different num_train_steps.*resume=True"),
    ({"train": "other.csv"}, "different train_data.*resume=True")])
def test_a_run_on_other_rows_is_not_continued(
        changes, message, model, trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other.csv").write_text("text,label\n" + "".join(
        f"{text},{label}\n" for text, label in TEXTS).replace("poor", "dull"))
    before = {file: file.read_bytes() for file in trained.rglob("*") if file.is_file()}
    with pytest.raises(InputError, match=message):
        albert_tf.finetune(**{
            "model": model, "train": TEXTS, "dev": TEXTS[:3], **SMALL, **changes},
            output_dir=trained)
    assert before == {file: file.read_bytes() for file in before}
    assert len(before) == sum(file.is_file() for file in trained.rglob("*"))


def test_the_same_call_and_a_change_that_is_wanted_continue(model, trained):
    same = albert_tf.finetune(model, TEXTS, TEXTS[:3], output_dir=trained, **SMALL)
    assert same.predict("a") == albert_tf.load(trained).predict("a")
    albert_tf.finetune(model, TEXTS, TEXTS[:3], output_dir=trained, resume=True,
                       **SMALL | {"num_train_epochs": 3})
    assert (trained / "model.ckpt-6.index").exists()


def test_files_of_others_stay(model, tmp_path):
    with pytest.raises(InputError, match="is the folder of --init_checkpoint, whose"):
        albert_tf.finetune(model, TEXTS, output_dir=f"{model}/.")
    (tmp_path / "finetune_data").mkdir()
    (tmp_path / "finetune_data" / "train.jsonl").write_text("mine")
    with pytest.raises(InputError, match="holds finetune_data, which a run would replace"):
        albert_tf.finetune(model, TEXTS, output_dir=str(tmp_path))
    assert (tmp_path / "finetune_data" / "train.jsonl").read_text() == "mine"


WORDS = [text.removesuffix(".").split() for text, _ in TEXTS]
TAGGED = [{"tokens": words, "ner_tags": [0, 1 + (words[-1] in ("good", "fine")), 0, 2]}
          for words in WORDS]
ASKED = [("the film?", text, {"text": [text.split()[-1]], "answer_start": [12]})
         for text, _ in TEXTS]


# Task → script, examples, further arguments, the flags they stand for, and an input. In
# AdamW's first steps rounding is magnified by the learning rate.
SLOW = {"learning_rate": 0.001}
RUNS = {
    "classify": (
        "run_classifier", TEXTS, {"metric": "macro_f1", "class_weights": "balanced",
                                   **SLOW}, {
            "task_name": "custom", "text_column": "text", "label_column": "label",
            "max_seq_length": 8, "metric": "macro_f1", "class_weights": "balanced",
            **SLOW},
        ("the film is good.",)),
    "tag": ("run_tagger", Dataset(TAGGED), {"doc_stride": 2, "max_seq_length": 8, **SLOW}, {
        "doc_stride": 2, "max_seq_length": 8, **SLOW, "labels": "O,B-X,I-X"},
            ("the film is good",)),
    "answer": ("run_squad", ASKED, {"max_query_length": 4, "max_seq_length": 16, **SLOW}, {
        "max_query_length": 4, "max_seq_length": 16, **SLOW, "warmup_proportion": 0.1},
               ("the film?", "the film is good.")),
}


@pytest.mark.long
@pytest.mark.parametrize("task", RUNS)
def test_it_is_the_run_of_the_script(task, model, tmp_path):
    """The weights are the same, and the script evaluates what was begun here."""
    script, examples, options, flags, given = RUNS[task]
    events = []
    dev = type(examples)(examples[:3])
    found = albert_tf.finetune(model, examples, dev, task=task,
                               output_dir=str(tmp_path / "run"),
                               callbacks=[events.append], **SMALL | options)
    assert [event.step for event in events if event.split == "eval"] == [1, 2, 3, 4]
    assert next(iter(found.tasks())) == task
    assert found.labels == {"classify": ("no", "yes"), "tag": ("O", "B-X", "I-X"),
                            "answer": ()}[task]
    [answer] = found.predict([given if given[1:] else given[0]])
    assert {"classify": "label", "tag": "tags", "answer": "answer"}[task] in answer
    data = tmp_path / "run" / "finetune_data"
    sets = [f"--train_file={data}/train.jsonl", "--{}_file={}/dev.jsonl".format(
        "predict" if task == "answer" else "dev", data)]
    words = [f"--{name}={value}" for name, value in {
        **SMALL, "init_checkpoint": model, "eval_batch_size": 32, **flags}.items()]
    with run_commands(script, {
            "same": [*words, *sets, f"--output_dir={tmp_path}/script", "--do_train",
                     "--do_eval"],
            "more": [sets[1], f"--output_dir={tmp_path}/run", "--do_eval"]}) as results:
        results.ok("same")
        for name in ("task.json", "options.json"):
            kept, expected = (json.loads((tmp_path / folder / name).read_text())
                              for folder in ("run", "script"))
            for each in (kept, expected):
                for changed in ("output_dir", "save_checkpoints_steps"):
                    each.pop(changed, None)
            assert kept == expected, name
        assert "different set" not in results.ok("more")["log"]
    # The loss of a span does not depend on its bias, whose gradient is rounding alone.
    state = tiny_run.STATE + "(?!model/output_layer/output_bias)" * (task == "answer")
    tiny_run.assert_equal_tensors(*(tiny_run.stored(
        tmp_path / name, "model.ckpt-4", state) for name in ("run", "script")),
        rtol=1e-4, atol=1e-7)  # Processes may add in another order.


@pytest.mark.long
def test_pairs_numbers_and_several_labels(model, tmp_path):
    pairs = albert_tf.finetune(
        model, [("the film.", text, label) for text, label in TEXTS], text_pair="other",
        output_dir=str(tmp_path / "pairs"), **SMALL)
    assert pairs.predict("the film.", "is good.")["label"] in ("no", "yes")
    numbers = albert_tf.finetune(
        model, [(text, float(label == "yes")) for text, label in TEXTS], TEXTS and [
            ("good", 1.0), ("bad", 0.0)], regression=True,
        output_dir=str(tmp_path / "numbers"), **SMALL)
    assert isinstance(numbers.predict("good")["score"], float)
    several = albert_tf.finetune(
        model, {"text": ["good bad", "good", "fine"],
                "label": np.array([[1, 1], [1, 0], [0, 0]])},
        multi_label=True, labels=["a", "b"], label_threshold=0.0,
        output_dir=str(tmp_path / "several"),
        **SMALL | {"train_batch_size": 2})
    assert several.predict("good")["labels"] == ["a", "b"]


# ---- the notebook ----------------------------------------------------------


@pytest.mark.long
def test_the_notebook_runs(model, tmp_path, monkeypatch, capsys):
    """Its cells one after the other, with a tiny model."""
    notebook = json.loads((ROOT / "docs" / "finetuning.ipynb").read_text("utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] or cell["execution_count"] for cell in cells)
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    verbosity = logging.get_verbosity()
    try:
        for cell in cells:
            exec("".join(cell["source"]).replace("hf://albert/albert-base-v2", model), names)
    finally:
        logging.set_verbosity(verbosity)
    assert names["again"].labels == ("delivery", "quality")
    printed = capsys.readouterr().out
    assert "Rows are the labels, columns the predictions" in printed
    assert (tmp_path / "runs/notebook/eval_report.png").exists()
