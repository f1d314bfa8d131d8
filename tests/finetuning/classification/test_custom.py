"""A user's own TSV, CSV, JSON lines and Parquet."""

import json
import pickle
import re
import sys
import types

import numpy as np
import pytest

from albert_tf.checkpoints.folders import is_of_run
from albert_tf.errors import InputError
from albert_tf.finetuning import metrics
from albert_tf.finetuning.classification import custom
from albert_tf.finetuning.common import ExampleSet, write_predictions
from albert_tf.rows import rows
from tests import row_tables
from tests.test_rows import write

OwnData = custom.OwnData


def read(tmp_path, name, content, *, text="text", label="label", labels=None,
         split="train", **more):
    return custom.read(OwnData(text_column=text, label_column=label, **more),
                       write(tmp_path, name, content), labels=labels, split=split)


def triples(found):
    return [(e.text_a, e.text_b, e.label) for e in found.examples]


def task_of(path, labels=None, split="train", text="text", label="label", **more):
    """The task of one file."""
    return custom.build_task(OwnData(**{
        f"{split}_file": path}, text_column=text, label_column=label, **more), labels)


# --- files (tests/test_rows.py has their formats)

def test_pairs_and_columns_by_number(tmp_path):
    found = read(tmp_path, "x.tsv", "no\tA man.\tA dog.\n\nyes\tOne.\tTwo.\n", text="1",
                 text_b_column="2", label="0", header=False, split="dev")
    assert triples(found) == [("A man.", "A dog.", "no"), ("One.", "Two.", "yes")]
    assert [e.guid for e in found.examples] == ["dev-1", "dev-2"]
    assert [e.where[-6:] for e in found.examples] == ["line 1", "line 3"]


def test_an_id_that_an_earlier_run_named_may_be_missing(tmp_path):
    content = "key,text\nk,a\n"
    for guid, needed, ids in (
            ("key", True, ["k"]), ("key", False, ["k"]), ("id", False, ["test-1"])):
        found = read(tmp_path, "x.csv", content, label=None, split="test", id_column=guid,
                     ids_needed=needed)
        assert [each.guid for each in found.examples] == ids
    with pytest.raises(InputError, match="no column 'id'"):
        read(tmp_path, "x.csv", content, label=None, id_column="id")


@pytest.mark.parametrize("name, content, labels, expected", [
    ("x.jsonl", "".join(f'{{"text": "t", "label": {value}}}\n'
                        for value in ("1", "true", "0.5")), None, ["1", "true", "0.5"]),
    ("x.tsv", "text\tlabel\na\t 1.5\nb\t-2e1\n", (), [1.5, -20.0]),
    # One made before labels were cleaned.
    ("x.tsv", "text\tlabel\nfine\t\u200bpos\n", ("\u200bpos", "pos"), ["\u200bpos"])])
def test_labels_are_texts_or_numbers_to_predict(tmp_path, name, content, labels, expected):
    found = read(tmp_path, name, content, labels=labels)
    assert [e.label for e in found.examples] == expected


# --- wrong inputs

HEADER = "text\tlabel\n"
LABELS = ("no", "yes")


# tests/test_rows.py has files that are no tables.
@pytest.mark.parametrize("name, content, options, message", [
    ("x.tsv", "txt\tlabel\na\tyes\n", {}, "'text'.*--noheader"),
    ("x.tsv", "a\tyes\n", dict(header=False), "'text'.*numbers from 0"),
    ("x.csv", "a;yes\n", dict(header=False, text="0", label="1"), "give --delimiter"),
    ("x.tsv", HEADER + "a\tyes\n \tyes\n", {}, "line 3: .*'text'"),
    ("x.tsv", HEADER + "a\t\n", {}, "line 2: .*'label'"),
    ("x.jsonl", '{"text": "a"}', {}, "line 1: .*'label'"),
    ("x.jsonl", '{"text": 5, "label": "x"}', {}, "line 1: 'text' is 5"),
    *(("x.jsonl", f'{{"text": "a", "label": {label}}}', {}, "line 1: .*'label'") for label in (
        "null", '["x"]', "NaN")),
    ("x.tsv", HEADER + "a\tyes\nb\tmay\n", dict(labels=LABELS),
     "line 3: .*'may'.*--notest_labels"),
    ("x.tsv", HEADER + "a\tpo\u200ds\n", dict(labels=LABELS), r"'po\\u200ds'"),
    ("x.tsv", HEADER + "a\thigh\n", dict(labels=()), "'high'.*--notest_labels"),
    ("x.tsv", HEADER + "a\t1_5\n", dict(labels=()), "'1_5'"),  # Python reads 15.
    ("x.tsv", HEADER + "a\tyes\n", dict(text_b_column="text"), "'text' is named twice"),
    ("x.tsv", "text\tlabel\nfine\t\u200b\n", {}, "line 2: .*label"),
    ("x.csv", 'text,label\nfine,"a\nb"\n', {}, r"'a\\nb'"),
])
def test_a_wrong_file_is_refused(tmp_path, name, content, options, message):
    with pytest.raises(InputError, match=message):
        read(tmp_path, name, content, **options)


# --- the task

def build(tmp_path, train, labels=None, regression=False, **others):
    """The task of some splits; each content begins with HEADER unless it has a text."""
    return custom.build_task(OwnData(**{f"{split}_file": write(
        tmp_path, f"{split}.tsv", content if content.startswith("text") else
        HEADER + content) for split, content in {
            "train": train, **others}.items() if content}, text_column="text",
        label_column="label", regression=regression), labels)


TRAIN = "a\tno\nb\tyes\nc\tmaybe\n"


def test_labels_are_those_of_the_training_file_sorted(tmp_path):
    assert build(tmp_path, TRAIN).labels == ("maybe", "no", "yes")
    numbers = "".join(f"t\t{n}\n" for n in (10, 9, 2, -1, 9))
    assert build(tmp_path, numbers).labels == ("-1", "2", "9", "10")


@pytest.mark.parametrize("dev, message", [
    ("a\tno\nb\tnever\n", "the label 'never' is not"),
    ("a\tno\nb\t\n", "there is no label")])
def test_a_label_of_the_dev_set_must_be_one_of_the_training_set(tmp_path, dev, message):
    task = build(tmp_path, TRAIN, dev=dev)
    with pytest.raises(InputError, match=f"dev.tsv, line 3: {message}"):
        task.read(str(tmp_path / "dev.tsv"), "dev")


@pytest.mark.parametrize("name, content, columns, label", [
    ("x.tsv", "text\na\n", {}, None), ("x.tsv", "text\tlabel\na\t \n", {}, None),
    ("x.tsv", "text\tlabel\na\tyes\n", {}, "yes"), ("x.jsonl", '{"text": "a"}', {}, None),
    ("x.tsv", "a\n", dict(text="0", label="1", header=False), None)])
def test_a_test_set_needs_no_label(tmp_path, name, content, columns, label):
    path = write(tmp_path, name, content)
    task = task_of(path, ("no", "yes"), "test", **columns)
    assert triples(task.read(path, "test")) == [("a", None, label)]


@pytest.mark.parametrize("train, options, message", [
    (TRAIN, {"labels": ["no", "yes", "no"]}, "--labels: .*no, yes, no; give"),
    (TRAIN, {"labels": ["no"]}, "--labels: .*no; give"),
    (TRAIN, {"labels": ["no", "yes"], "regression": True}, "--regression"),
    ("a\tno\n", {}, "train.tsv: .*no;"),
    ("a\t1\nb\t1.0\n", {}, "'label' .* 1 .*1.0"),
    (None, {"test": "text\na\n"}, "--labels"),
])
def test_labels_that_cannot_be_are_refused(tmp_path, train, options, message):
    with pytest.raises(InputError, match=message):
        build(tmp_path, train, **options)


def test_metrics_fit_the_number_of_labels(tmp_path):
    assert build(tmp_path, TRAIN).metric_names == ("accuracy", "macro_f1", "matthews")
    two = build(tmp_path, "a\tgood\nb\tbad\n")
    assert two.metric_names == ("accuracy", "macro_f1", "f1", "matthews")
    # F1 is that of the second label, "good": one of two found.
    scores = two.score(ExampleSet([custom.Example("", "", label=label) for label in (
        "bad", "bad", "good", "good")]), {"probabilities": np.eye(2)[[0, 0, 0, 1]]}, None)
    assert np.isclose(scores["f1"], 2 / 3)
    assert np.isclose(scores["macro_f1"], (2 / 3 + 4 / 5) / 2)
    number = build(tmp_path, "a\t1\nb\t2.5\n", regression=True)
    assert number.problem_type == "regression" and number.labels == ()


@pytest.mark.parametrize("regression, wrong, able", [
    (False, "f1", "accuracy, macro_f1, matthews"),
    (True, "mse", "pearson, spearman")])  # The lowest error would be the best.
def test_the_best_checkpoint_is_chosen_by_any_metric_of_the_task(
        tmp_path, regression, wrong, able):
    task = build(tmp_path, "a\t1\nb\t2.5\nc\t3\n", regression=regression)
    other, default = able.split(", ")[1::-1]
    assert task.chosen_by(other).main_metric == other and task.chosen_by(default) is task
    with pytest.raises(InputError, match=f"--metric={wrong}: .*{able};"):
        task.chosen_by(wrong)


def test_confusions_are_shown_and_drawn(tmp_path, monkeypatch):
    names = ["no", "$yes$", "a label whose name is too long to show"]
    given = np.array([0, 0, 1, 2, 2]), np.array([0, 1, 1, 1, 2])
    assert metrics.by_class(*given, names).splitlines()[-4:] == [
        "                          no  $yes$  a label whose name is t…",
        "                      no   1      1                         0",
        "                   $yes$   0      1                         0",
        "a label whose name is t…   0      1                         1"]
    many = np.arange(200), np.arange(200)
    assert "Rows are" not in metrics.by_class(*many, ["n"] * 200)
    for number, (ids, labels) in enumerate(((given, names), (many, ["n"] * 200))):
        path = tmp_path / f"{number}.png"
        metrics.draw_confusions(str(path), "title", *ids, labels)
        assert path.read_bytes().startswith(b"\x89PNG")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)  # It is not installed.
    metrics.draw_confusions(str(tmp_path / "none.png"), "title", *given, names)
    assert not (tmp_path / "none.png").exists()


def test_numbers_that_are_all_equal_are_no_set_to_evaluate_on(tmp_path):
    path = write(tmp_path, "dev.csv", "text,label\na,3\nb,3.0\n")
    task = task_of(path, split="dev", regression=True)
    with pytest.raises(InputError, match="all 2 examples is 3.0, so that pearson"):
        task.read(path, "dev")


def predict(folder, task, outputs, data, name="", all_probabilities=False):
    """Writes predictions for a test set or file; the rows of their file."""
    path, key = folder / (name or "predictions.tsv"), (
        "probabilities" if task.labels else "logits")
    data = task.read(data, "test") if isinstance(data, str) else data
    task.write("test", data, {key: np.array(outputs, "f")}, None, 7, types.SimpleNamespace(
                   run=types.SimpleNamespace(output_dir=str(folder)),
                   prediction_file=name and str(path), all_probabilities=all_probabilities))
    return [row for _, row in rows(str(path))]


@pytest.mark.parametrize("name", ["out.csv", "out.jsonl", "out.tsv"])
def test_predictions_keep_names_and_texts(tmp_path, name):
    text = 'Two\n"lines",  blanks'
    path = write(tmp_path, "in.jsonl", "".join(json.dumps({"key": key, "t": t}) + "\n"
                                               for key, t in (("a7", text), (12, "plain"))))
    task = task_of(path, ["x", "y"], "test", "t", None, id_column="key")
    found = predict(tmp_path, task, [[0.25, 0.75], [0.9, 0.1]], path, name, True)
    assert {path.name for path in tmp_path.iterdir()} == {
        "in.jsonl", "test_results.tsv", name}
    assert [(row["key"], row["prediction"]) for row in found] == [("a7", "y"), ("12", "x")]
    assert found[0]["t"] == (" ".join(text.split()) if name == "out.tsv" else text)
    assert float(found[0]["probability of y"]) == 0.75 and "probability of x" in found[0]


def test_a_test_set_is_scored_where_it_has_labels(tmp_path):
    path = write(tmp_path, "test.jsonl", '{"t": "a", "l": "x"}\n{"t": "b", "l": null}\n'
                 '{"t": "c", "l": "y"}\n{"t": "d", "l": "y"}\n')
    task = task_of(path, ["x", "y"], "test", "t", "l")
    outputs = [[0.75, 0.25], [0.1, 0.9], [0.8, 0.2], [0.3, 0.7]]
    predict(tmp_path, task, outputs, path)
    results = json.loads((tmp_path / "predict_results.json").read_text())
    assert (results["step"], results["examples"]) == (7, 3)
    assert [results[name] for name in ("accuracy", "accuracy_low", "accuracy_high")] == (
        pytest.approx([2 / 3, 0.2077, 0.9385], abs=1e-4))
    assert set(task.metric_names) < set(results)
    report = (tmp_path / "predict_report.txt").read_text()
    assert "custom: 3 examples" in report
    assert "accuracy  0.6667  (95 %: 0.2077 to 0.9385)" in report
    assert all(map(is_of_run, ("predict_results.json", "predict_report.txt")))
    # Those of a different set do not stay.
    data = task.read(path, "test")
    predict(tmp_path, task, outputs, data._replace(
        examples=[each._replace(label=None) for each in data.examples]))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "predictions.tsv", "test.jsonl", "test_results.tsv"]


def test_scores_of_a_test_set_that_cannot_be_computed_are_no_json(tmp_path):
    """The labels of the test set are all the same, so that nothing correlates."""
    path = write(tmp_path, "test.csv", "t,l\na,1.5\nb,1.5\n")
    predict(tmp_path, task_of(path, None, "test", "t", "l", regression=True),
            [[1.0], [2.0]], path)
    text = (tmp_path / "predict_results.json").read_text()
    assert "NaN" not in text and json.loads(text)["examples"] == 2
    assert re.search(r"pearson +nan", (tmp_path / "predict_report.txt").read_text())


@pytest.mark.parametrize("columns, header", [
    (dict(text="review", label="stars", id_column="key"), "key review stars"),
    (dict(text="0", text_b_column="title", label="label"), "guid text_a title label"),
    # These names mean something else in the predictions, or are there twice.
    (dict(text="label", label="prediction", id_column="probability of rain"),
     "guid text_a label"),
    (dict(text="review", label="stars", id_column="review"), "review text_a stars")])
def test_predictions_have_the_names_of_the_columns(tmp_path, columns, header):
    path = write(tmp_path, "in.csv", "review,title,stars,label,prediction,key,"
                 "probability of rain\nx,x,x,x,x,x,x\n")
    task = task_of(path, ["x", "y"], "test", **columns)
    [row] = predict(tmp_path, task, [[0.75, 0.25]], path, "out.jsonl")
    *first, label = header.split()
    assert [*row] == [*first, "prediction", "probability", label]


# --- characters of labels

def test_invisible_characters_make_no_classes(tmp_path, caplog):
    """As of two files with a byte-order mark, joined."""
    path = write(tmp_path, "x.tsv", "label\ttext\npos \tfine\n\u00adneg\tpoor\n\ufeffpos\t"
                 "good\nneg\tbad\n")
    task = task_of(path)
    assert task.labels == ("neg", "pos")
    with caplog.at_level("INFO"):
        found = task.read(path, "train")
    assert [e.label for e in found.examples] == ["pos", "neg", "pos", "neg"]
    assert caplog.messages == ["train: 4 examples with labels: neg 2, pos 2."]


# --- Parquet and Arrow (tests/test_rows.py has the files themselves)

REVIEWS = {"text": ["fine", "not so", "fair"], "label": [1, 0, 1]}
STARS = row_tables.class_label("bad", "good", "none")


def rows_of(tmp_path, columns=REVIEWS, name="x.parquet", **features):
    return row_tables.write(tmp_path / name, row_tables.table(columns, **features))


def test_the_schema_names_the_labels_in_its_order(tmp_path):
    train, dev = (rows_of(tmp_path, name=name, label=STARS) for name in (
        "train.parquet", "dev.arrow"))
    task = task_of(train, dev_file=dev)
    assert task.labels == ("bad", "good", "none")
    assert [e.label for e in task.read(dev, "dev").examples] == ["good", "bad", "good"]
    # Labels without a number are sorted, as those of other tables.
    texts = rows_of(tmp_path, {"text": ["a", "b"], "label": ["so", "no"]}, "t.parquet")
    assert task_of(texts).labels == ("no", "so")


def test_one_of_several_files_may_name_the_labels(tmp_path):
    """Numbers of a file that names none are then no labels of their own."""
    named = rows_of(tmp_path, name="named.parquet", label=STARS)
    texts = rows_of(tmp_path, {"text": ["a"], "label": ["none"]}, "texts.parquet")
    numbers = rows_of(tmp_path, {"text": ["a"], "label": [2]}, "numbers.parquet")

    def read(first):
        path = f"{first},{named}"
        task = task_of(path)
        return task.labels, [e.label for e in task.read(path, "train").examples]

    assert read(texts) == (("bad", "good", "none"), ["none", "good", "bad", "good"])
    with pytest.raises(InputError, match="numbers.parquet, row 1: the label '2' is not one"):
        read(numbers)
    twice = rows_of(tmp_path, name="twice.parquet", label=row_tables.class_label("a", "a"))
    with pytest.raises(InputError, match="twice.parquet: .*a, a; give"):
        task_of(twice)


def test_labels_of_parquet_may_be_missing_or_several(tmp_path):
    path = rows_of(tmp_path, {"text": ["fine"], "label": [-1]}, label=STARS)
    [example] = task_of(path, ["bad", "good"], "test").read(path, "test").examples
    assert example.label is None
    with pytest.raises(InputError, match="x.parquet, row 1: .*'label'"):
        task_of(path, ["bad", "good"]).read(path, "train")
    path = rows_of(tmp_path, {"text": ["a", "b"], "topics": [[0, 1], []]},
                   topics={"feature": STARS, "_type": "List"})
    task = task_of(path, label="topics", multi_label=True)
    assert task.labels == ("bad", "good", "none")
    assert [e.label for e in task.read(path, "train").examples] == [("bad", "good"), ()]


def test_predictions_are_not_written_as_parquet(tmp_path):
    for name in ("x.parquet", "x.csv.zst", "x.xlsx"):
        with pytest.raises(InputError, match=f"{name}: .* .tsv, .csv or .jsonl"):
            write_predictions(str(tmp_path), {}, [["a"]], str(tmp_path / name))


# --- several files

@pytest.mark.parametrize("pattern, order", [
    ("x-*.csv", "0123"), ("x-3.csv,x-[01].csv", "301"), ("x-*.csv,more.jsonl", "0123m")])
def test_several_files_are_one_set(pattern, order, tmp_path, caplog):
    caplog.set_level("INFO")
    for number in (2, 0, 3, 1):
        write(tmp_path, f"x-{number}.csv", f"text,label\nfine {number},{number}\n"
              f"also {number},{number}\n")
    write(tmp_path, "more.jsonl", '{"text": "fine m", "label": "m\\u200b"}\n')
    task = task_of(where := custom.joined(str(tmp_path), pattern))
    assert task.labels == tuple(sorted(order))
    data = task.read(where, "train")
    assert pickle.loads(pickle.dumps(task)).read(where, "train") == data
    assert "".join(dict.fromkeys(e.text_a[-1] for e in data.examples)) == order
    assert [e.guid for e in data.examples] == [
        f"train-{i + 1}" for i in range(len(data.examples))]
    assert len(data.paths) == len(order) == len(task.sources("train", data))
    assert (f"--train_file: {len(data.examples)} examples from {len(order)} files: "
            f"{data.paths[0]} (2), ") in caplog.text
