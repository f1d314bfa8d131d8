"""Texts with any number of labels: files, scores, losses, answers."""

import numpy as np
import pytest
import tensorflow as tf
from scipy import special

from albert_tf.checkpoints.checkpoint import REGRESSION, SEVERAL_LABELS
from albert_tf.errors import InputError
from albert_tf.finetuning import metrics
from albert_tf.finetuning.classification import custom, label_cells
from albert_tf.finetuning.classification.head import Classification
from albert_tf.finetuning.common import ExampleSet

NAMES = ("late", "dear", "fine")


def several(path="", label="topics", separator=",", **more):
    return custom.OwnData(**{
        "train_file": str(path), "text_column": "text", "label_column": ",".join(label)
        if isinstance(label, tuple) else label, "multi_label": True,
        "label_separator": separator, **more})


def labels_of(data, **options):
    return [each.label for each in custom.read(data, data.train_file, **options).examples]


@pytest.mark.parametrize("name, content, label", [
    ("x.csv", 'text,topics\none,"late, dear"\ntwo,\nthree,fine\n', "topics"),
    ("x.tsv", "text\ttopics\none\tlate;dear\ntwo\t\nthree\tfine;fine\n", "topics"),
    ("x.jsonl", '{"text": "one", "topics": ["late", "dear"]}\n'
                '{"text": "two", "topics": []}\n{"text": "three", "topics": "fine"}\n',
     "topics"),
    ("x.csv", "text,late,dear,fine\none,1,1,0\ntwo,0,0,0\nthree,0,false,true\n", NAMES),
    ("x.csv", "text,late,dear,fine\none,1.0,1,0.0\ntwo,0,0.0,0\nthree,0,0,True\n", NAMES),
    ("x.jsonl", '{"text": "one", "late": 1, "dear": true, "fine": 0}\n'
                '{"text": "two", "late": 0, "dear": 0, "fine": false}\n'
                '{"text": "three", "late": 0, "dear": 0, "fine": "1"}\n', NAMES),
])
def test_a_column_of_several_labels_or_a_column_for_each(
        name, content, label, tmp_path):
    (tmp_path / name).write_text(content)
    data = several(tmp_path / name, label, ";" if name.endswith("tsv") else ",")
    expected = [("late", "dear"), (), ("fine",)]
    assert labels_of(data) == labels_of(data, labels=NAMES) == expected
    task = custom.build_task(data)
    assert task.problem_type == SEVERAL_LABELS and set(task.labels) == set(NAMES)
    assert task.labels == (NAMES if isinstance(label, tuple) else tuple(sorted(NAMES)))
    np.testing.assert_array_equal(
        custom.build_task(data, NAMES).label_ids(
            task.read(data.train_file, "train").examples), [[1, 1, 0], [0, 0, 0], [0, 0, 1]])


LISTS = [
    "['late', 'dear']", "['late' 'dear']", "['late'\n 'dear']", '["late", "dear"]',
    "('late', 'dear')", "{'late', 'dear'}", "{late,dear}", "[late, dear]",
    "array(['late', 'dear'], dtype=object)", "[np.str_('late'), np.str_('dear')]",
    "[1.0, 1.0, 0.0]", "[1. 1. 0.]", "[true,true,false]", "[True, True, False]",
    "1 1 0", "1,1,0", "1;1;0", "[np.float64(1.0), np.int64(1), np.False_]"]


@pytest.mark.parametrize("cell", LISTS)
def test_a_list_as_text(cell):
    def several(labels, ordered, separator=","):
        return label_cells.several(
            cell, "x.csv, line 2", "topics", separator, labels, ordered)

    assert several(NAMES, True) == ["late", "dear"]
    if "1" not in cell and "rue" not in cell:
        for known in (NAMES, None):
            assert several(known, False, ";") == ["late", "dear"]
        return
    # Zeros and ones need the order of the labels.
    for known, ordered in ((NAMES, False), (NAMES + ("far",), True), (None, True)):
        with pytest.raises(InputError, match="x.csv, line 2.*3 times 0 or 1.*--labels"):
            several(known, ordered)


@pytest.mark.parametrize("value, labels, expected", [
    ([1.0, 0, False], NAMES, ["late"]), ([0, 0, 0], NAMES, []), ([], NAMES, []),
    ("[]", NAMES, []), ("set()", NAMES, []), ("", NAMES, [""]),
    ("['very good']", None, ["very good"]), ("[very good]", None, ["very good"]),
    ('["it\'s", "a, b"]', None, ["it's", "a, b"]),
    ("(none)", None, ["(none)"]), ("(don't know)", None, ["(don't know)"]),
    ("(a), b (c)", None, ["(a)", " b (c)"]),
    # Names of labels, as those of a data set's classes without titles.
    ([0, 1], ("0", "1", "27"), ["0", "1"]), ([0, 1], None, ["0", "1"]),
    ("1", ("spam",), ["spam"]), ([0.0], ("spam",), [])])
def test_lists_and_names_of_labels(value, labels, expected):
    assert label_cells.several(value, "", "topics", ",", labels, True) == expected


@pytest.mark.parametrize("cell, labels, pattern", [
    ("['late', 'de", NAMES, "not a list"), ("['late' ... 'dear']", NAMES, "not a list"),
    ('"late", "dear"', NAMES, "not a list"), ("{'late': 1}", NAMES, "not a list"),
    ("[['late'], ['dear']]", NAMES, "not a list"), ("['late', None]", NAMES, "not a list"),
    (["late", None], NAMES, "not a list"), ({"late": 1}, NAMES, "must be a text"),
    ("[1, 0]", ("0", "1"), "2 times 0 or 1")])
def test_what_is_no_list_is_refused_with_its_line(cell, labels, pattern):
    with pytest.raises(InputError, match=f"x.csv, line 9: 'topics' .*{pattern}"):
        label_cells.several(cell, "x.csv, line 9", "topics", ",", labels, True)


def test_lists_for_one_label_are_refused(tmp_path):
    path = tmp_path / "x.csv"
    for cell in ("\"['late', 'dear']\"", '"[0, 1]"', "['late']"):
        path.write_text(f"text,topics\na,{cell}\n")
        with pytest.raises(InputError, match="line 2.*a list; give --multi_label"):
            labels_of(several(path, multi_label=False))


def test_without_a_header_labels_name_the_columns(tmp_path):
    (tmp_path / "x.tsv").write_text("one\t1\t0\ntwo\t0\t1\n")
    data = several(tmp_path / "x.tsv", ("1", "2"), text_column="0", header=False)
    assert labels_of(data, labels=("dear", "late")) == [("dear",), ("late",)]


@pytest.mark.parametrize("content, label, options, pattern", [
    ("text,a,b\none,1,2\n", ("a", "b"), {}, "line 2: .*'b' holds '2'"),
    ("text,a,b\none,1,\n", ("a", "b"), {}, "line 2: .*'b' holds ''"),
    ("text,a,b\none,1,1\n", ("a", "c"), {}, "'c'"),
    ("text,a\none,1\ntwo,0\n", "a", {}, "'a' .*--multi_label"),
    ("text,a,b\none,1,1\n", ("a", "b"), {"labels": ("a", "d")}, "--labels=a,d: .*a, b"),
    ('text,topics\none,"late,new"\n', "topics", {"labels": NAMES}, "line 2: .*'new'"),
    ("text,topics\none,late\n", "topics", {"regression": True}, "--regression"),
    ('{"text": "one", "a": null, "b": null}\n', ("a", "b"), {}, "line 1: .*'a, b'"),
    ("text,topics\none,\n", "topics", {}, "labels are: none"),
    ("text,a\none,1\n", ("a", "a"), {}, "x.csv: .*a, a; give"),
])
def test_wrong_labels_are_refused(content, label, options, pattern, tmp_path):
    path = tmp_path / ("x.jsonl" if content[0] == "{" else "x.csv")
    path.write_text(content)
    with pytest.raises(InputError, match=pattern):
        custom.build_task(several(path, label, regression="regression" in options),
                          options.get("labels")).read(str(path), "train")


def test_a_set_to_predict_needs_no_columns_of_labels(tmp_path):
    (tmp_path / "x.csv").write_text("text\none\n")
    for label in ("topics", NAMES):
        assert labels_of(several(tmp_path / "x.csv", label), split="test") == [None]


# ---- scores ----------------------------------------------------------------

GIVEN = np.array([[1, 0, 0], [0, 1, 1], [0, 0, 0], [1, 0, 0]])


def test_the_best_threshold_is_that_of_all_thresholds():
    random = np.random.default_rng(2)
    for _ in range(20):
        values = random.integers(0, 9, [6, 3]) / 10
        labels = random.integers(0, 2, [6, 3])
        labels[0, 0] = 1
        threshold, score = metrics.best_threshold(values, labels)
        of_all = [metrics.compute("micro_f1", values >= at, labels)
                  for at in np.arange(-0.05, 1, 0.1)]
        assert score == pytest.approx(max(of_all))
        assert metrics.compute("micro_f1", values >= threshold, labels) == (
            pytest.approx(score))


def task_of(tmp_path):
    (tmp_path / "x.csv").write_text(
        'text,topics\na,"late,dear"\nb,dear\nc,\nd,late\n')
    data = several(tmp_path / "x.csv", dev_file="x")
    task = custom.build_task(data, NAMES)
    return task, task.read(data.train_file, "dev")


def test_predictions_and_report(tmp_path):
    task, data = task_of(tmp_path)
    outputs = {"probabilities": np.where(GIVEN, 0.5, 0.2).astype(np.float32)}
    assert task.score(data, outputs, None) == pytest.approx({
        "micro_f1": 6 / 8, "macro_f1": 5 / 9, "exact_match": 0.5})
    report = task.results(data, outputs, None)[1]
    assert "macro_f1     0.5556" in report and "samples avg" in report
    assert "Of all thresholds, 0.35 has the highest micro_f1" in report
    assert task.failure(data, outputs, None) == ""
    assert task.failure(data, {"probabilities": np.zeros([4, 3], "f")}, None) == (
        "all 4 predictions are 'none of the labels'")
    task.write_predictions(str(tmp_path), data, outputs, None, all_probabilities=True)
    lines = [line.split("\t") for line in (
        tmp_path / "predictions.tsv").read_text().splitlines()]
    assert lines[0] == ["guid", "text", "prediction", "probability of late",
                        "probability of dear", "probability of fine", "topics"]
    assert [(row[2], row[-1]) for row in lines[1:]] == [
        ("late", "late,dear"), ("dear,fine", "dear"), ("", ""), ("late", "late")]
    # What is known without reading: two of four texts have `late`, two `dear`, none `fine`.
    assert task.chance_loss(data, None) == pytest.approx(2 * np.log(2) / 3)


def test_an_average_and_its_report_are_of_the_same_classes():
    """A development set without one of the classes, which is not predicted either."""
    task = custom.build_task(custom.OwnData(), ("a", "b", "c"))
    data = ExampleSet([custom.Example("1", "x", None, label) for label in "ab"])
    outputs = {"probabilities": np.eye(3, dtype=np.float32)[:2]}
    assert task.score(data, outputs, None)["macro_f1"] == 1
    report = task.results(data, outputs, None)[1]
    assert [line.split()[-2] for line in report.splitlines() if "macro avg" in line] == [
        "1.0000"]
    assert "\n\nNeither in the data nor predicted: c.\n\n" in report
    assert report.endswith("predictions:\n\n   a  b\na  1  0\nb  0  1\n")


def test_a_single_label_is_given_or_not():
    task = custom.build_task(several(), ("late",))
    data = ExampleSet([custom.Example(str(i), "x", None, ("late",) * known)
                       for i, known in enumerate((1, 1, 0, 0))])
    outputs = {"probabilities": np.array([[0.9], [0.1], [0.8], [0.2]], np.float32)}
    assert task.score(data, outputs, None) == {
        "micro_f1": 0.5, "macro_f1": 0.5, "exact_match": 0.5}
    [line] = [line for line in task.results(data, outputs, None)[1].splitlines()
              if line.split()[:1] == ["late"]]
    assert line.split() == ["late", "0.5000", "0.5000", "0.5000", "2"]


# ---- losses ----------------------------------------------------------------

LOGITS = np.array([[2.0, -1.0, 0.5], [0.0, 3.0, -2.0]], np.float32)
TARGETS = np.array([[1, 0, 0], [1, 1, 0]], np.float32)


def test_losses_and_predictions():
    """tests/finetuning/classification/test_soft_labels.py has the losses of labels."""
    features = {"label_ids": tf.constant(TARGETS), "input_ids": tf.zeros([2, 4], tf.int32)}
    outputs, several = {"logits": tf.constant(LOGITS)}, Classification(
        3, problem_type=SEVERAL_LABELS)
    np.testing.assert_allclose(
        several.predictions(outputs)["probabilities"], special.expit(LOGITS), rtol=1e-6)
    losses = several.objective().losses(outputs, features, {"examples": 2.0})
    # Wrong: the third label of the first text, and the first of the second.
    np.testing.assert_allclose(several.objective().metrics(
        outputs, features, losses)["label_accuracy"][0], [2 / 3, 2 / 3])
    numbers = Classification(3, problem_type=REGRESSION)
    assert set(numbers.predictions(outputs)) == {"logits"}
    assert numbers.objective().losses(outputs, features, {"examples": 2.0})[
        "total_loss"].numpy() == pytest.approx(np.mean((LOGITS - TARGETS) ** 2), rel=1e-5)
