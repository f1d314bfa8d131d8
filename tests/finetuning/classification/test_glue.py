"""GLUE: reading, features, scores and files of predictions."""

import dataclasses
import gzip
import json

import numpy as np
import pytest

from albert_tf.errors import InputError
from albert_tf.finetuning import metrics
from albert_tf.finetuning.classification import task as classification, glue
from albert_tf.finetuning.common import ExampleSet
from albert_tf.tokenization import sequences
from tests.helpers import FIXTURES, SHARED, tokenizer

CLASSIFIER = FIXTURES / "classifier"


def load(name):
    with gzip.open(CLASSIFIER / name) as stream:
        return json.load(stream)


GOLDEN = load("features.json.gz")
# The tasks of the release; others may be added.
GLUE = sorted({key.split("/")[0] for key in GOLDEN})


@pytest.fixture(scope="session", name="glue_dir")
def _glue_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("glue")
    for name, content in load("data.json.gz").items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content, encoding="utf-8")
    return folder


def write(folder, name, *lines):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("\n".join(lines).encode())
    return str(folder)


def read(task, data_dir, split):
    return glue.TASKS[task].read(str(data_dir), split)


# --- reading and features

@pytest.mark.parametrize("key", GOLDEN)
def test_examples_and_features_are_the_releases(glue_dir, key):
    name, split, kind, length = key.split("/")
    length = int(length)
    task = dataclasses.replace(glue.TASKS[name], max_seq_length=length)
    examples = task.read(str(glue_dir), split).examples
    assert len(examples) == len(GOLDEN[key])
    for example, expected in zip(examples, GOLDEN[key]):
        assert example.guid == expected["guid"]
        assert [text and tokenizer(kind).prepare(text) for text in (
            example.text_a, example.text_b)] == [expected["text_a"], expected["text_b"]]
        assert example.label == (None if split == "test" else expected["label"])
        [features] = task.featurize(example, tokenizer=tokenizer(kind))
        padded = sequences.pad_inputs({name: features[name] for name in (
            "input_ids", "input_mask", "segment_ids")}, length)
        assert features["input_mask"] == [1] * len(features["input_ids"])
        assert padded == {field: expected[field] for field in padded}
        assert features["label_ids"] == [expected["label_id"]]
        assert isinstance(features["label_ids"][0], int if task.labels else float)


@pytest.mark.parametrize("case", json.loads(
    (CLASSIFIER / "truncate_pair.json").read_text()))
def test_pairs_are_cut_as_in_the_release(case):
    first, second = sequences.truncate_longer_first(
        range(case["len_a"]), range(case["len_b"]), case["max_length"])
    assert (len(first), len(second)) == (case["out_a"], case["out_b"])


def test_a_second_text_of_no_pieces_is_no_second_text():
    made = tokenizer("spm")
    for second, length, count in (" ", 8, 6), ("cut away, as one piece has room", 4, 1):
        [features] = dataclasses.replace(
            glue.TASKS["sts-b"], max_seq_length=length).featurize(
                classification.Example("1", "The ferry leaves at nine.", second),
                tokenizer=made)
        cls, *pieces, sep = features["input_ids"]
        assert (cls, sep, len(pieces)) == (made.cls_id, made.sep_id, count)
        assert sep not in pieces and set(features["segment_ids"]) == {0}


def test_quotes_are_text_and_line_ends_and_byte_order_mark_are_not(tmp_path):
    write(tmp_path, "MRPC/dev.tsv",
          "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r",
          '1\t1\t2\t"Open\tquotes "" here\r', "", '0 \t3\t4\ta\tb\tmore\r')
    first, second = read("mrpc", tmp_path, "dev").examples
    assert (first.text_a, first.text_b) == ('"Open', 'quotes "" here')
    assert (second.text_b, second.label, second.guid) == ("b", "0", "dev-3")
    assert second.where.endswith("dev.tsv, line 4")


def test_broken_lines_of_qqp_are_counted(glue_dir):
    found = read("qqp", glue_dir, "train")
    assert len(found.examples) == 10
    [note] = found.notes
    assert "train.tsv: 2 line(s) left out because they have too few columns" in note
    assert "(line 5, 9)" in note


def test_the_diagnostic_set_has_labels_only_in_its_full_file(tmp_path, glue_dir):
    with pytest.raises(InputError, match="no column 'label'.*'sentence2'"):
        read("ax", glue_dir, "dev")
    write(tmp_path, "diagnostic/diagnostic-full.tsv",
          "Logic\tDomain\tPremise\tHypothesis\tLabel", "\t\ta\tb\tneutral")
    [example] = read("ax", tmp_path, "dev").examples
    assert (example.text_a, example.text_b, example.label) == ("a", "b", "neutral")


# --- wrong inputs

def test_a_missing_file_is_told_with_the_places_looked_at(glue_dir, tmp_path):
    with pytest.raises(InputError, match="--task_name=mnli"):
        read("ax", glue_dir, "train")
    with pytest.raises(InputError, match="MNLI/dev_matched.tsv nor.*--data_dir"):
        read("mnli", tmp_path, "dev")


@pytest.mark.parametrize("task, lines, message", [
    ("sst-2", ["text\tlabel", "good\t1"], "'sentence'; .*'text', 'label'"),
    ("sst-2", ["sentence\tlabel", "good\t1", "bad\tnegative"], "line 3: .*'negative'"),
    ("sst-2", ["sentence\tlabel", "good\t1", "bad"], "line 3"),
    ("sst-2", ["sentence\tsentence\tlabel", "good\tbad\t1"], "'sentence'"),
    ("sst-2", ["sentence\tlabel"], "dev set"), ("sst-2", [""], "dev set"),
    *(("sts-b", ["index\tsentence1\tsentence2\tscore", f"0\ta\tb\t{value}"],
       f"line 2: .*'{value}'") for value in ("high", "nan", ""))])
def test_a_wrong_file_is_refused(tmp_path, task, lines, message):
    with pytest.raises(InputError, match=message):
        read(task, write(tmp_path, "dev.tsv", *lines), "dev")


# --- scores

def test_every_task_has_metrics():
    for task in glue.TASKS.values():
        assert {*task.metric_names} <= {*metrics.METRICS, "accuracy_f1_mean",
                                        "pearson_spearman_mean"}


def scores_of(task, outputs, labels):
    """The metrics of outputs that decide."""
    return task.score(ExampleSet([classification.Example("", "", label=label)
                                  for label in labels]), {task.output: outputs}, None)


def test_two_metrics_are_also_reported_as_their_mean():
    scores = scores_of(glue.TASKS["mrpc"], np.eye(2)[[1, 1, 0, 0]], "1000")
    assert scores["accuracy"] == 0.75 and np.isclose(scores["f1"], 2 / 3)
    assert np.isclose(scores["accuracy_f1_mean"], (0.75 + 2 / 3) / 2)
    values = np.array([1.0, 4.0, 9.0])
    scores = scores_of(glue.TASKS["sts-b"], values, np.sqrt(values))
    assert list(scores) == list(glue.TASKS["sts-b"].metric_names)
    assert np.isclose(scores["spearman"], 1) and scores["mse"] > 1
    assert np.isclose(scores["pearson_spearman_mean"], (1 + scores["pearson"]) / 2)


def test_labels_become_class_ids_or_numbers(glue_dir):
    task = glue.TASKS["rte"]
    labels = task.label_ids(read("rte", glue_dir, "dev").examples)
    assert labels.tolist() == [0, 1] * 5 and labels.dtype == np.int64
    scores = glue.TASKS["sts-b"].label_ids(read("sts-b", glue_dir, "dev").examples)
    assert scores.dtype == np.float32 and scores[0] == 5
    with pytest.raises(InputError, match="test.tsv, line 2: there is no label"):
        task.label_ids(read("rte", glue_dir, "test").examples)


# --- files of predictions

def predict(tmp_path, name, examples, outputs):
    key = "probabilities" if glue.TASKS[name].labels else "logits"
    paths = glue.TASKS[name].write_predictions(
        str(tmp_path), ExampleSet(examples), {key: outputs}, None)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(
        path.rpartition("/")[2] for path in paths)
    return {path.name: [line.split("\t") for line in
                        path.read_text(encoding="utf-8").splitlines()]
            for path in tmp_path.iterdir()}


def test_files_of_predicted_classes(tmp_path, glue_dir):
    examples = read("qnli", glue_dir, "test").examples
    outputs = np.array(
        [[.75, .25], [.5, .5], [.125, .875], [.1, .9]], np.float32)
    written = predict(tmp_path, "qnli", examples, outputs)
    chosen = ["entailment", "entailment", "not_entailment", "not_entailment"]
    assert written["test_results.tsv"] == [
        ["0.75", "0.25"], ["0.5", "0.5"], ["0.125", "0.875"], ["0.1", "0.9"]]
    assert written["submit_results.tsv"] == written["QNLI.tsv"] == [
        ["index", "prediction"], *([str(i), c] for i, c in enumerate(chosen))]
    assert written["predictions.tsv"][:2] == [
        ["guid", "text_a", "text_b", "prediction", "probability"],
        ["0", "The ferry leaves at nine.", "The boat departs at 9.", "entailment",
         "0.7500"]]


def test_scores_outside_the_boards_range_are_clipped_for_the_board_alone(
        tmp_path, glue_dir):
    examples = read("sts-b", glue_dir, "test").examples
    outputs = np.array([[5.25], [-0.1], [2.0002], [4]], np.float32)
    written = predict(tmp_path, "sts-b", examples, outputs)
    assert [row[1] for row in written["STS-B.tsv"]] == [
        "prediction", "5.000", "0.000", "2.000", "4.000"]
    assert [row[1] for row in written["submit_results.tsv"]] == [
        "prediction", "5.25", "-0.1", "2.0002", "4.0"]
    assert written["test_results.tsv"] == [["5.25"], ["-0.1"], ["2.0002"], ["4.0"]]
    assert "probability" not in written["predictions.tsv"][0]


def test_outputs_of_a_diverged_model_are_refused(tmp_path):
    examples = [classification.Example(str(i), "x") for i in range(2)]
    with pytest.raises(InputError, match="example 1 is not a number.*diverged"):
        predict(tmp_path, "sst-2", examples, np.array([[.5, .5], [np.nan, .5]]))
    assert not list(tmp_path.iterdir())


# --- real data

@pytest.mark.shared
@pytest.mark.parametrize("name, counts", [
    ("cola", (8551, 1043, 1063)), ("mrpc", (3667, 408, 1725)),
    ("rte", (2490, 277, 3000)), ("sst-2", (67349, 872, 1821)),
    ("sts-b", (5749, 1500, 1379)), ("wnli", (635, 71, 146))])
def test_real_data_is_read_whole(name, counts):
    for split, count in zip(classification.SPLITS, counts):
        found = read(name, SHARED / "data" / "glue", split)
        assert len(found.examples) == count and not found.notes
        assert all(e.text_a.strip() for e in found.examples)
        if split != "test":
            assert len(set(glue.TASKS[name].label_ids(found.examples))) == (
                    len(glue.TASKS[name].labels) or len(
                        {e.label for e in found.examples}))
