"""Probabilities as labels, and weights of labels: columns, losses, a student."""

import dataclasses
import json

import numpy as np
import pytest
import tensorflow as tf
from scipy import special

import albert_tf
from albert_tf.checkpoints.checkpoint import SEVERAL_LABELS
from albert_tf.errors import InputError
from albert_tf.finetuning import metrics
from albert_tf.finetuning.classification import custom
from albert_tf.finetuning.classification.command import class_weights
from albert_tf.finetuning.classification.head import Classification
from tests import row_tables, tiny_run
from tests.commands import run_commands

COLUMNS = dict(label="label", probability_column="probabilities")
SOFT = [("a", "yes", None), ("b", None, {"no": 0.75, "yes": 0.25}),
        ("c", "no", {"no": 0.0, "yes": 1.0})]
LOGITS = tf.constant([[2.0, -1.0, 0.5], [0.0, 1.0, -2.0]])


def task_of(path, labels=None, text="text", label=None, **columns):
    return custom.build_task(custom.OwnData(
        str(path), text_column=text, label_column=label, **columns), labels)


def read(path, labels=None, **columns):
    return task_of(path, labels, **columns).read(str(path), "train").examples


@pytest.mark.parametrize("name, content, columns", [
    ("x.jsonl", '{"text": "a", "label": "yes"}\n'
     '{"text": "b", "probabilities": {"no": 0.75, "yes": 0.25}}\n'
     '{"text": "c", "label": "no", "probabilities": {"yes": 1, "no": 0}}', COLUMNS),
    ("x.jsonl", '{"text": "a", "label": "yes"}\n{"text": "b", "probabilities": '
     '[0.75, 0.25]}\n{"text": "c", "label": "no", "probabilities": [0, 1]}',
     dict(COLUMNS, labels=("no", "yes"))),
    ("x.tsv", 'text\tlabel\tprobabilities\na\tyes\t\nb\t\t{"yes": 0.25, "no": 0.75}\n'
     "c\tno\t{\"no\": 0, \"yes\": 1}\n", COLUMNS),
    ("x.csv", "label,probability of no,yes,text\nyes,,,a\n,0.75,0.25,b\nno,0,1,c\n",
     dict(label="label", probability_column="probability of no,yes")),
    ("x.tsv", "a\tyes\t\t\nb\t\t0.75\t0.25\nc\tno\t0\t1\n", dict(
        text="0", label="1", probability_column="2,3", labels=("no", "yes"), header=False)),
])
def test_probabilities_beside_labels_or_in_their_place(tmp_path, name, content, columns):
    (tmp_path / name).write_text(content)
    assert task_of(tmp_path / name, **columns).labels == ("no", "yes")
    found = read(tmp_path / name, **columns)
    assert [(each.text_a, each.label, each.probabilities) for each in found] == SOFT


def test_columns_of_labels_and_of_probabilities_in_different_orders(tmp_path):
    (tmp_path / "x.csv").write_text("text,q,a,b,probability of a,probability of b\n"
                                    "c,0.1,0,1,0.9,0.1\n")

    def read_columns(columns):
        return read(tmp_path / "x.csv", label="a,b", multi_label=True,
                    probability_column=columns)

    for column, message in ("b", "'b' is named twice"), ("q", "holds .*: a, b"):
        with pytest.raises(InputError, match=message):
            read_columns(f"{column},probability of a")
    [found] = read_columns("probability of b,probability of a")
    assert (found.label, found.probabilities) == (("b",), {"a": 0.9, "b": 0.1})


def test_parquet_holds_them_as_objects_and_a_label_may_be_zero(tmp_path):
    path = row_tables.write(tmp_path / "x.parquet", row_tables.table(
        {"text": ["a", "b"], "label": [0, None], "probabilities": [
            {"0": 0.25, "1": 0.75}, {"1": 1.0, "0": 0.0}]}))
    found = read(path, ("0", "1"), **COLUMNS)
    assert [(each.label, each.probabilities) for each in found] == [
        ("0", {"0": 0.25, "1": 0.75}), (None, {"0": 0.0, "1": 1.0})]


@pytest.mark.parametrize("row, message", [
    *((f'"probabilities": {value}', "line 2: .*'probabilities' holds") for value in (
        '{"no": 0.5, "so": 0.5}', '{"no": 1}', "[1]", '"0.5"', '{"no": 1.5, "yes": -0.5}',
        '{"no": "x", "yes": 0}')),
    ('"probabilities": {"no": 0.5, "yes": 0.4}', "line 2: .* no, yes add up to 0.9, not"),
    ('"label": ""', "line 2: there is no label and no probability in column 'label, prob"),
    ('"label": "yes"', "--probability_column=probabilities: no row of --train_file has"),
])
def test_wrong_probabilities_are_refused(tmp_path, row, message):
    (tmp_path / "x.jsonl").write_text(
        '{"text": "a", "label": "no"}\n{"text": "b", %s}' % row)
    with pytest.raises(InputError, match=message):
        read(tmp_path / "x.jsonl", ("no", "yes"), **COLUMNS)
    (tmp_path / "x.jsonl").write_text('{"text": "a", "probabilities": [0.5, 0.5]}')
    with pytest.raises(InputError, match="line 1: .*in the order of --labels"):
        task_of(tmp_path / "x.jsonl", **COLUMNS)


def loss_of(head, label_ids, **options):
    """The losses [B], and the gradient of the batch's loss by the logits."""
    features = {"input_ids": tf.ones([2, 4], tf.int32), "label_ids": tf.constant(label_ids)}
    objective = head.objective(**options)
    with tf.GradientTape() as tape:
        tape.watch(LOGITS)
        losses = objective.losses({"logits": LOGITS}, features, {"examples": 2.0})
    assert set(objective.metrics({"logits": LOGITS}, features, losses)) >= {"loss"}
    return losses["example_loss"], tape.gradient(losses["total_loss"], LOGITS)


@pytest.mark.parametrize("temperature", [1, 2])
def test_the_losses_by_hand(temperature):
    scores, logits = np.float32([[1, -2, 0.5], [3, 0, 1]]), LOGITS.numpy()
    one, several = Classification(3), Classification(3, problem_type=SEVERAL_LABELS)
    for head, chances in (one, special.softmax), (several, special.expit):
        axis = {"axis": -1} if head is one else {}
        target, own = (chances(x / temperature, **axis) for x in (scores, logits))
        expected = (target * np.log(own)).sum(-1) if head is one else (
            target * np.log(own) + (1 - target) * np.log(1 - own)).mean(-1)
        found = loss_of(head, chances(scores, **axis), temperature=float(temperature))
        np.testing.assert_allclose(found[0], -temperature ** 2 * expected, rtol=1e-5)
    # That of labels, as numbers or as certain probabilities, has none.
    certain = [[0.0, 0.0, 1.0], [0.0, 1.0, 0.0]]
    for head, labels in (one, [[2], [1]]), (one, certain), (several, certain):
        for mine, theirs in zip(loss_of(head, labels, temperature=float(temperature)),
                                loss_of(head, certain)):
            np.testing.assert_allclose(mine, theirs, rtol=1e-6)


@pytest.fixture(scope="module", name="model")
def _model(tmp_path_factory):
    return tiny_run.write_pretrained(tmp_path_factory.mktemp("model"))


@pytest.mark.long
@pytest.mark.parametrize("several", [False, True])
def test_certain_probabilities_train_as_labels_do(model, tmp_path, several):
    hard = [{"text": f"{word} {i}", "label": [label] if several else label}
            for i in range(8) for word, label in (("good", "yes"), ("bad", "no"))]
    soft = [{"text": row["text"], "p": {
        each: float(each in row["label"]) for each in ("no", "yes")}} for row in hard]
    for name, examples in ("hard", hard), ("mixed", hard[:8] + soft[8:]):
        albert_tf.finetune(
            model, examples, output_dir=str(tmp_path / name), multi_label=several,
            num_train_epochs=1, train_batch_size=8, learning_rate=0.001,
            probabilities="p" if name == "mixed" else None)
    tiny_run.assert_equal_tensors(*(tiny_run.stored(
        tmp_path / name, "model.ckpt-2") for name in ("hard", "mixed")),
        rtol=1e-5, atol=1e-7)


@pytest.mark.long
def test_a_student_trains_on_the_answers_of_predict(model, tmp_path):
    albert_tf.finetune(model, [("good", "yes"), ("bad", "no")] * 8, text="review",
                       num_train_epochs=1, train_batch_size=8,
                       output_dir=str(tmp_path / "teacher"))
    (tmp_path / "in.csv").write_text("review\ngood 1\nbad 2\n1 2\ngood bad\n")
    with run_commands("predict", {"answers": [
            f"--model={tmp_path}/teacher", f"--input_file={tmp_path}/in.csv",
            f"--output_file={tmp_path}/soft.jsonl", "--copy_texts"]}) as results:
        results.ok("answers")
    answers = [json.loads(line) for line in open(tmp_path / "soft.jsonl")]
    assert [each["review"] for each in answers] == ["good 1", "bad 2", "1 2", "good bad"]
    (tmp_path / "labelled.csv").write_text("review,stars\nbad bad,no\ngood good,yes\n")
    with run_commands("run_classifier", {"student": [
            "--task_name=custom", f"--init_checkpoint={model}", "--do_train", "--do_eval",
            f"--train_file={tmp_path}/labelled.csv,{tmp_path}/soft.jsonl",
            f"--dev_file={tmp_path}/labelled.csv", "--text_column=review",
            "--label_column=stars", "--probability_column=probabilities",
            "--train_batch_size=6", "--train_step=2", "--max_seq_length=8",
            f"--output_dir={tmp_path}/student"]}) as results:
        log = results.ok("student")["log"]
    assert "train: 4 of 6 examples have probabilities of the labels." in log
    options = json.loads((tmp_path / "student" / "options.json").read_text())
    assert options["probability_column"] == "probabilities"


# ---- weights -----------------------------------------------------------------

LABELS = ("no", "yes", "maybe")
IDS = np.array([0] * 6 + [1] * 2 + [2])


def weights(given, labels, ids):
    return dataclasses.replace(custom.build_task(custom.OwnData(), labels),
                               class_weights=given).weights(ids)


def test_balanced_weights_are_those_of_scikit_learn():
    from sklearn.utils.class_weight import compute_class_weight

    found = weights("balanced", LABELS, IDS)
    np.testing.assert_allclose(found, compute_class_weight(
        "balanced", classes=np.arange(3), y=IDS), rtol=1e-6)
    np.testing.assert_allclose(found[IDS].mean(), 1, rtol=1e-6)
    # Nobody has the last label.
    np.testing.assert_allclose(weights("balanced", (*LABELS, "never"), IDS)[IDS]
                               .mean(), 1, rtol=1e-6)


def test_weights_that_are_given_keep_their_ratio():
    found = weights({"yes": 4.0}, LABELS, IDS)
    np.testing.assert_allclose(found / found[0], [1, 4, 1])
    np.testing.assert_allclose(found[IDS].mean(), 1, rtol=1e-6)
    several = np.array([[1, 0], [1, 0], [1, 1], [0, 0]])
    np.testing.assert_allclose(weights("balanced", "ab", several), [1 / 3, 3])
    np.testing.assert_allclose(weights({"b": 2}, "ab", several), [1, 2])


@pytest.mark.parametrize("words, message", [
    (["yes"], "'yes'"), (["yes=x"], "'yes=x'"), (["yes=1", "yes=2"], "'yes=2'"),
    (["perhaps=2"], "'perhaps'"), (["yes=0"], "'yes=0'"), (["yes=inf"], "'yes=inf'")])
def test_wrong_weights_are_refused(words, message):
    with pytest.raises(InputError, match=f"--class_weights.*{message}"):
        weights(class_weights(words), LABELS, IDS)


def test_words_of_the_flag():
    assert class_weights(["balanced"]) == "balanced" and class_weights([]) == {}
    assert class_weights(["a=b=2", " no =1"]) == {"a=b": 2.0, "no": 1.0}
    with pytest.raises(InputError, match="this task predicts numbers, or"):
        dataclasses.replace(custom.build_task(custom.OwnData(regression=True)),
                            class_weights="balanced")


def test_the_loss_is_weighted_and_that_of_evaluation_is_not():
    factors, ids = weights({"yes": 5.0}, LABELS, IDS), [2, 1]
    plain, weighted = (loss_of(Classification(3), np.transpose([ids]), **options)[0]
                       for options in ({}, {"weights": factors}))
    np.testing.assert_allclose(weighted, plain * factors[ids], rtol=1e-5)
    # Those of several labels weight what a text has.
    head, given = Classification(3, problem_type=SEVERAL_LABELS), LOGITS.numpy()
    labels, factors = np.float32([[0, 1, 1], [1, 0, 0]]), np.float32([1, 3, 2])
    np.testing.assert_allclose(loss_of(head, labels, weights=factors)[0], (
        factors * labels * np.log1p(np.exp(-given))
        + (1 - labels) * np.log1p(np.exp(given))).mean(-1), rtol=1e-5)


def test_chance_is_that_of_the_weighted_loss(tmp_path):
    """The lowest loss of a model that gives every text the same probabilities."""
    balanced = weights("balanced", LABELS, IDS)
    assert metrics.entropy(IDS, balanced) == pytest.approx(np.log(3))
    several = np.array([[1, 0], [1, 0], [1, 1], [0, 0]])
    shares = np.linspace(0.001, 0.999, 999)
    lowest = [min(-(3 * w * np.log(shares) + np.log(1 - shares)) / 4) for w in (1 / 3,)]
    assert metrics.entropy_by_label(several[:, :1], [1 / 3]) == pytest.approx(lowest[0])
    path = tmp_path / "x.csv"
    path.write_text("text,label\n" + "".join(f"t,{LABELS[i]}\n" for i in IDS))
    task = task_of(path, label="label")
    data = task.read(str(path), "train")
    assert task.chance_loss(data, None) == pytest.approx(metrics.entropy(IDS))
    task = dataclasses.replace(task, class_weights="balanced")
    assert task.chance_loss(data, None) == pytest.approx(np.log(3))
