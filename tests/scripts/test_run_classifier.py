"""run_classifier.py as users start it: GLUE's files, own data, wrong inputs."""

import csv
import gzip
import json
import random
import re

import numpy as np
import pytest
import tensorflow as tf

import albert_tf
from albert_tf.checkpoints import vocabulary
from albert_tf.checkpoints.folders import write_tensors
from albert_tf.checkpoints.restore import export_tf1, tf1_tensors
from albert_tf.tokenization import tokenizer
from albert_tf.training import log as log_of_run
from tests import models, tiny_run
from tests.commands import arguments, run_commands
from tests.helpers import ask_export, HAS_TENSORFLOW_TEXT

pytestmark = pytest.mark.long

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "the", "film", "book",
          "was", "is", "good", "bad", "fine", "poor", "not", "very", "and", ".", "中",
          "文", "好", "坏", "书", "很", "不", "##ly", "##er", "it", "we"]
assert len(PIECES) == tiny_run.VOCAB_SIZE
LENGTH = 24
CONFIG = dict(num_hidden_layers=1, max_position_embeddings=LENGTH,
              hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)


def sentences(count, seed):
    """(text, whether it is good); short and long ones."""
    random_ = random.Random(seed)
    made = []
    for _ in range(count):
        good = random_.random() < 0.5
        word = random_.choice(["good", "fine"] if good else ["bad", "poor"])
        filler = random_.choices(["very", "and", "it", "we", "a"],
                                 k=random_.choice([0, 1, 2, 9, 12]))
        made.append((" ".join(["the", random_.choice(["film", "book"]), "was", word,
                               *filler]) + ".", good))
    return made


def table(path, *rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join("\t".join(map(str, row)) + "\n" for row in rows),
                    encoding="utf-8")


def write(folder):
    """Data, pretrained models and their vocabulary."""
    # Tasks of GLUE.
    cola, sts = folder / "glue" / "CoLA", folder / "glue" / "STS-B"
    for split, count in (("train", 30), ("dev", 13)):
        rows = sentences(count, count)
        table(cola / f"{split}.tsv", *(["x", int(good), "", text] for text, good in rows))
        table(sts / f"{split}.tsv", ["index", "sentence1", "sentence2", "score"],
              *([i, text, "it was good.", 4.5 if good else 0.5]
                for i, (text, good) in enumerate(rows)))
    table(cola / "test.tsv", ["index", "sentence"], *(
        [i, text] for i, (text, _) in enumerate(sentences(11, 5))))
    table(sts / "test.tsv", ["index", "sentence1", "sentence2"], *(
        [i, text, "it was good."] for i, (text, _) in enumerate(sentences(5, 6))))
    # Chinese reviews: CSV to train on, TSV to evaluate on, JSON lines to predict.
    own, reviews = folder / "own", [("书很好", "好评"), ("书很坏", "差评"), (
        "书不好,很坏", "差评"), ("书不坏,很好", "好评")] * 4
    table(own / "dev.tsv", ["review", "stars"], *reviews[:5])
    with open(own / "train.csv", "w", encoding="utf-8", newline="") as stream:
        csv.writer(stream).writerows([["stars", "review"], *(
            [label, text] for text, label in reviews)])
    with gzip.open(own / "new.jsonl.gz", "wt", encoding="utf-8") as stream:
        stream.writelines(json.dumps({"review": text}, ensure_ascii=False) + "\n"
                          for text, _ in reviews[:3])
    (own / "topics.jsonl").write_text("".join(json.dumps({
        "text": text, "topics": [word for word in ("good", "bad") if word in text]}) + "\n"
        for text, _ in [*sentences(20, 3), ("it was.", 0)]))
    # A pretrained model: the folder of a run, and as the TF1 release writes it.
    config = tiny_run.config(**CONFIG)
    model = models.AlbertForPreTraining(config)
    tf.train.Checkpoint(model=model).write(str(folder / "pretrained/model.ckpt-best"))
    for path in (folder / "pretrained" / "albert_config.json", folder / "config.json"):
        path.write_text(config.to_json())
    export_tf1(model, str(folder / "tf1" / "model.ckpt"))
    write_tensors({name: value for name, value in tf1_tensors(model).items()
                   if "word_embeddings" not in name},
                  str(folder / "without_words" / "model.ckpt"))
    for name, pieces in (("vocab.txt", PIECES), ("other.txt", [*PIECES[:-1], "us"])):
        (folder / name).write_text("\n".join(pieces) + "\n", encoding="utf-8")
    vocabulary.keep(str(folder / "pretrained"), {
        **tokenizer.vocabulary_of(str(folder / "vocab.txt")), "size": len(PIECES)})
    return folder


@pytest.fixture(scope="module", name="data")
def _data(tmp_path_factory):
    return write(tmp_path_factory.mktemp("data"))


TRAIN = dict(
    train_batch_size=8, eval_batch_size=4, predict_batch_size=3, max_seq_length=LENGTH,
    learning_rate=0.01, train_step=6, save_checkpoints_steps=3, num_workers=1,
    num_length_buckets=2, do_train="true")
COLA = dict(TRAIN, task_name="CoLA", data_dir="{data}/glue",
            vocab_file="{data}/vocab.txt", init_checkpoint="{data}/pretrained",
            output_dir="{data}/new")
OWN = dict(TRAIN, task_name="custom", data_dir="{data}/own", train_file="train.csv",
           text_column="review", label_column="stars", vocab_file="{data}/vocab.txt",
           albert_config_file="{data}/config.json", from_scratch="true",
           output_dir="{data}/new")
# Texts with any number of labels.
TOPICS = dict(OWN, train_file="topics.jsonl", dev_file="topics.jsonl", do_eval="true",
              text_column="text", label_column="topics", output_dir="{data}/topics")
# A trained model is used with no more than this.
USE = dict(do_predict="true", num_workers=1)
USE_OWN = dict(USE, data_dir="{data}/own", test_file="new.jsonl.gz")
START = dict(USE_OWN, task_name="custom", text_column="review", max_seq_length=12,
             init_checkpoint="{data}/reviews")

# name → (flags, the flag or file that is named), of what this script checks; each check
# has more in the tests of its module. Before TensorFlow is loaded:
EARLY = {
    "unknown task": (dict(COLA, task_name="cloa"), "--task_name=cloa"),
    "no output_dir": (dict(COLA, output_dir=None), "--output_dir"),
    "vocabulary of other content": (dict(COLA, vocab_file="{data}/other.txt"), "other.txt"),
    "no vocabulary": (dict(COLA, vocab_file=None), "There is no vocabulary; give --spm"),
    "no model": (dict(COLA, init_checkpoint=None), "--init_checkpoint"),
    "no config": (dict(COLA, init_checkpoint=None, from_scratch=True),
                  "--albert_config_file"),
    "own data for another task": (dict(COLA, train_file="train.csv"), "--train_file"),
    "one label of a model of several": (
        dict(TOPICS, do_train=None, train_file=None, from_scratch=None,
             init_checkpoint="{data}/topics", output_dir="{data}/topics_used"),
        "--init_checkpoint={data}/topics"),
}

# Found when the devices and the model are made:
LATE = {
    "export_dir that will be there": (
        dict(COLA, do_eval=True, output_dir="{data}/made/run", export_dir="{data}/made"),
        "--export_dir: {data}/made"),
    "no encoder": (
        dict(COLA, init_checkpoint="{data}/without_words/model.ckpt",
             albert_config_file="{data}/config.json"), "without_words/model.ckpt")}

# Commands that work, in this order; a list copies a folder.
WORKING = {
    "cola": dict(COLA, output_dir="{data}/cola", do_eval="true", do_predict="true"),
    "copy": ["copy", "{data}/cola", "{data}/used"],
    "used": dict(USE, data_dir="{data}/glue", do_eval="true", num_length_buckets=2),
    "sts-b": dict(
        COLA, output_dir="{data}/sts-b", task_name="sts-b", do_eval="true",
        do_predict="true", init_checkpoint="{data}/tf1/model.ckpt", train_step=3,
        num_length_buckets=1, albert_config_file="{data}/config.json", recipe="true",
        learning_rate=None),
    "own": dict(OWN, output_dir="{data}/reviews", train_step=3, num_length_buckets=1,
                dev_file="dev.tsv", do_eval="true", max_seq_length=12,
                export_dir="{data}/poor", threshold_to_export=1.1),
    "own, recipe": dict(
        OWN, output_dir="{data}/by_recipe", dev_file="dev.tsv", do_eval="true",
        recipe="true", train_step=None, num_train_epochs=12, train_batch_size=None,
        learning_rate=None, max_seq_length=None, save_checkpoints_steps=None,
        num_length_buckets=1, metric="macro_f1", class_weights="balanced"),
    "own, recipe, used": dict(
        USE, output_dir="{data}/by_recipe", data_dir="{data}/own", dev_file="dev.tsv",
        do_eval="true", do_predict=None, num_length_buckets=1),
    "own, used": dict(
        USE_OWN, output_dir="{data}/reviews", num_length_buckets=1,
        export_dir="{data}/exported", export_text=HAS_TENSORFLOW_TEXT),
    # The same model to start from, with its labels in a different order, and not given.
    "own, reordered": dict(START, output_dir="{data}/reordered", labels="差评,好评",
                           export_dir="{data}/reordered_export", export_text=False),
    "own, unnamed labels": dict(START, output_dir="{data}/unnamed"),
    "topics": dict(TOPICS, multi_label="true", test_file="topics.jsonl", do_predict="true",
                   max_seq_length=12, train_step=3, num_length_buckets=1),
}


@pytest.fixture(scope="module", name="results")
def _results(data):
    """What each command gave; wrong ones come last, as some use a model."""
    commands = WORKING | {name: flags for name, (flags, _) in {**EARLY, **LATE}.items()}
    with run_commands("run_classifier", {
            name: arguments(data, name, flags) for name, flags in commands.items()},
            light=EARLY) as results:
        yield results


@pytest.mark.parametrize("name", [*EARLY, *LATE])
def test_wrong_input_gives_one_sentence(name, results, data):
    pattern = {**EARLY, **LATE}[name][1].replace("{data}", str(data))
    results.refused(name, pattern, loaded=name in LATE)


def test_wrong_input_writes_nothing_that_misleads(results, data):
    """Features and the task may be there; no checkpoint, nor what ties the folder."""
    results.run_all()
    found = {path.name for path in (data / "new").rglob("*")} - {"tensorboard"}
    assert not [name for name in found if "ckpt" in name or "unfinished" in name
                or "incomplete" in name or name == "albert_config.json"], found


def cells(path):
    """The rows of a file that tabs divide, with its header."""
    return [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]


def values(folder, name="eval_results"):
    return json.loads((folder / f"{name}.json").read_text())


def test_training_evaluation_and_prediction_in_one_command(results, data):
    log, folder = results.ok("cola")["log"], data / "cola"
    assert "new, start from random values: output_bias, output_weights" in log
    assert "different shape" not in re.sub("0 with a different shape", "", log)
    assert re.search(r"train: 30 sequences of \S+ tokens on average; batches are "
                     r"padded to \d+, 24 tokens", log), log
    header, *rows = cells(folder / "predictions.tsv")
    assert header == ["guid", "text_a", "prediction", "probability"]
    assert [row[1] for row in rows] == [text for text, _ in sentences(11, 5)]
    assert len(cells(folder / "CoLA.tsv")) == 12
    metrics = values(folder)
    assert {"step", "matthews", "accuracy", "loss"} <= metrics.keys()
    # The report and the predictions are of the same weights as the metrics.
    hits = np.mean([row[2] == row[4] for row in cells(
        folder / "eval_predictions" / "predictions.tsv")[1:]])
    assert metrics["accuracy"] == pytest.approx(hits)
    assert f"accuracy  {hits:.4f}" in (folder / "eval_report.txt").read_text()
    assert metrics["matthews"] == pytest.approx(
        max(row["matthews"] for row in log_of_run.evaluations(str(folder))))


def test_model_is_used_alone_with_the_numbers_of_the_full_run(results, data):
    assert "Reusing the features of 13 records" in results.ok("used")["log"]
    used, cola = data / "used", data / "cola"
    assert values(used) == pytest.approx(values(cola), rel=1e-5)
    for name in ("predictions.tsv", "submit_results.tsv",
                 "eval_predictions/predictions.tsv"):
        assert cells(used / name) == cells(cola / name), name


def test_regression_from_a_tf1_checkpoint(results, data):
    log, folder = results.ok("sts-b")["log"], data / "sts-b"
    assert "tf1/model.ckpt" in log and "0 missing, 0 with a different shape" in log
    assert {"pearson", "spearman", "mse"} <= values(folder).keys()
    header, *rows = cells(folder / "predictions.tsv")
    assert header == ["guid", "text_a", "text_b", "prediction"] and len(rows) == 5
    assert all(0 <= float(row[1]) <= 5 for row in cells(folder / "STS-B.tsv")[1:])


def test_recipe_sets_what_is_not_given(results, data):
    results.ok("sts-b")
    options = values(data / "sts-b", "options")
    assert options["learning_rate"] == 2e-5 and options["warmup_step"] == 214
    assert options["train_batch_size"] == 8 and options["num_train_steps"] == 3
    assert options["max_seq_length"] == LENGTH
    assert values(data / "sts-b", "albert_config")["hidden_dropout_prob"] == 0.0


def test_recipe_for_own_data_follows_their_size(results, data):
    log, folder = results.ok("own, recipe")["log"], data / "by_recipe"
    assert "The recipe sets --learning_rate=0.0005, --max_seq_length=8, " in log
    assert "--train_batch_size=16." in log and "(source: the size of the data, 16" in log
    options = values(folder, "options")
    assert options["num_train_steps"] == 12 and options["warmup_step"] == 1
    assert options["class_weights"] == "balanced"
    assert "Weights of the labels in the training loss: '好评' 1, '差评' 1." in log
    # Evaluated about ten times; the best is by another metric.
    rows = log_of_run.evaluations(str(folder))
    assert [row["step"] for row in rows] == [2, 4, 6, 8, 10, 12]
    assert values(folder)["macro_f1"] == pytest.approx(
        max(row["macro_f1"] for row in rows))
    # It is the model's, so that a later evaluation is of the same kind.
    assert "different set" not in results.ok("own, recipe, used")["log"]
    assert {row["set"]["metric"] for row in rows} == {"macro_f1"}
    assert "Rows are the labels, columns the predictions" in (
        folder / "eval_report.txt").read_text()
    assert (folder / "eval_report.png").exists()


def test_own_data_in_three_formats(results, data):
    folder = data / "reviews"
    assert "Not exported: accuracy is" in results.ok("own")["log"]
    assert not (data / "poor").exists()
    kept = values(folder, "task")
    # Sorted by code point.
    assert kept["labels"] == ["好评", "差评"] == sorted(kept["labels"])
    assert {"accuracy", "macro_f1", "f1", "matthews"} <= values(folder).keys()
    assert "unknown" not in results.ok("own")["log"]
    header, *rows = cells(folder / "predictions.tsv")
    assert header == ["guid", "review", "prediction", "probability"]
    assert [row[1] for row in rows] == ["书很好", "书很坏", "书不好,很坏"]
    assert {row[2] for row in rows} <= {"好评", "差评"}


def test_labels_in_another_order_are_matched_by_name(results, data):
    log = results.ok("own, reordered")["log"]
    assert ("reviews/model.ckpt-best has its labels in the order 好评, 差评. Its "
            "outputs are reordered to 差评, 好评.") in log
    # It is said once, before any long work.
    assert log.count("outputs are reordered") == 1
    expected = (data / "reviews" / "predictions.tsv").read_text()
    for name in ("reordered", "unnamed", "reviews"):
        assert (data / name / "predictions.tsv").read_text() == expected
    assert "reordered to" not in results.ok("own, unnamed labels")["log"]
    np.testing.assert_allclose(*(np.loadtxt(data / name / "test_results.tsv")[:, ::step]
                                 for name, step in (("reordered", -1), ("reviews", 1))),
                               atol=1e-6)
    # The export gives the reordered model's outputs and labels.
    export = data / "reordered_export"
    assert (export / "assets" / "labels.txt").read_text() == "差评\n好评\n"
    ids = [2, 23, 24, 21, 3]
    row = {"input_ids": ids, "input_mask": [1] * 5, "segment_ids": [0] * 5}
    expected = tf.nn.softmax(albert_tf.load(str(data / "reviews")).model(
        {name: [value] for name, value in row.items()})["logits"])
    for folder, step in ((export, -1), (data / "exported", 1)):
        found = ask_export(folder, [row])["probabilities"][:, ::step]
        np.testing.assert_allclose(found, expected, atol=1e-6)


def test_texts_with_any_number_of_labels(results, data):
    results.ok("topics")
    folder = data / "topics"
    kept = values(folder, "task")
    assert kept["labels"] == ["bad", "good"]
    assert kept["problem_type"] == "multi_label_classification"
    assert {"micro_f1", "macro_f1", "exact_match", "label_accuracy"} <= values(
        folder).keys()
    header, *rows = cells(folder / "predictions.tsv")
    assert header == ["guid", "text", "prediction", "topics"] and rows[-1][3] == ""
    found = np.loadtxt(folder / "test_results.tsv")
    for row, of_row in zip(rows, found):
        assert row[2] == ",".join(
            name for name, value in zip(("bad", "good"), of_row) if value >= 0.5)
    # The test file is the dev file, and is scored, too.
    tested = values(folder, "predict_results")
    assert tested["examples"] == len(rows) and tested["micro_f1"] == pytest.approx(
        values(folder)["micro_f1"])
    # Not all of the report: rounding decides between nearly equal probabilities.
    assert (folder / "predict_report.txt").read_text().startswith("custom: 21 examples")
    # And in Python.
    texts = [row[1] for row in rows]
    answers = albert_tf.load(str(folder)).predict(texts, probability_list=True)
    np.testing.assert_allclose(
        [answer["probabilities"] for answer in answers], found, atol=1e-5)
    assert [",".join(answer["labels"]) for answer in answers] == [row[2] for row in rows]
