"""run_tagger.py as a user starts it: a whole run, prediction alone, through Hugging
Face's format, wrong inputs."""

import json

import numpy as np
import pytest
import tensorflow as tf

import albert_tf
from albert_tf.checkpoints.formats import convert
from albert_tf.config import AlbertConfig
from albert_tf.finetuning.tagging import scoring
from tests.commands import arguments, run_commands
from tests.helpers import HAS_TENSORFLOW_TEXT, load_export

pytestmark = pytest.mark.long

SCRIPT = "run_tagger"
WORDS = [f"w{i}" for i in range(20)]
FLAGS = dict(
    train_file="{data}/train.conll", dev_file="{data}/dev.conll",
    vocab_file="{data}/vocab.txt", albert_config_file="{data}/config.json",
    max_seq_length=12, doc_stride=5, train_batch_size=8, eval_batch_size=3,
    train_step=240, save_checkpoints_steps=120, iterations_per_loop=120,
    learning_rate=0.004, num_length_buckets=2, from_scratch="true", do_train="true",
    do_eval="true")
USE = dict(FLAGS, do_train=None, do_eval=None, from_scratch=None, train_step=None,
           do_predict="true")
WRONG = {
    "no train_file": (dict(train_file=None), "--train_file"),
    "no test_file": (dict(do_predict="true"), "--test_file"),
    "scheme of the data": (dict(scheme="iobes", labels="O,Q-X"),
                           "--labels: the tag 'Q-X' is neither O nor one of B-"),
    "no labels": (dict(USE, test_file="{data}/test.conll",
                       init_checkpoint="{data}/none"), "the tags are unknown"),
}
WORKING = {
    "whole": dict(FLAGS, do_predict="true", test_file="{data}/test.conll",
                  export_dir="{data}/export", scheme="iob2",
                  export_text=HAS_TENSORFLOW_TEXT),
    "recipe": dict(FLAGS, recipe="true", train_step=3, save_checkpoints_steps=None,
                   max_seq_length=None, learning_rate=None, train_batch_size=None),
    "copy": ["copy", "{data}/whole", "{data}/alone"],
    # What a user gives who has only the folder of a model, and text.
    "alone": dict(do_predict="true", test_file="{data}/text.jsonl"),
    # Labels, vocabulary and config come from the folder.
    "hf": dict(do_predict="true", test_file="{data}/dev.conll", max_seq_length=12,
               doc_stride=5, predict_batch_size=2, init_checkpoint="{data}/as_hf"),
}


def sentence(random):
    """After w0 stands a name of one or two words, w1 to w5 or w6 to w9."""
    words = []
    for _ in range(random.integers(1, 6)):
        kind = random.integers(0, 3)
        words += [("w0", "O"), *zip(
            random.choice(WORDS[1 + 5 * kind:6 + 4 * kind], random.integers(1, 3)),
            [f"B-{'XY'[kind]}", f"I-{'XY'[kind]}"])] if kind < 2 else [
                (word, "O") for word in random.choice(WORDS[10:], 3)]
    return [(str(word), tag) for word, tag in words]


@pytest.fixture(scope="module", name="data")
def _data(tmp_path_factory):
    folder, random = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    for split, number in (("train", 200), ("dev", 15), ("test", 10)):
        (folder / f"{split}.conll").write_text("\n".join("".join(
            f"{word}\t{tag}\n" if split != "test" else f"{word}\n"
            for word, tag in sentence(random)) for _ in range(number)))
    (folder / "text.jsonl").write_text(
        json.dumps({"id": "é", "text": "w10 w0 w1 w2, w12 w0 W7."}) + "\n")
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ",", ".", *WORDS]
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    (folder / "config.json").write_text(AlbertConfig(
        vocab_size=len(vocabulary), embedding_size=16, hidden_size=32,
        num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=12, initializer_range=0.2).to_json())
    return folder


@pytest.fixture(scope="module", name="results")
def _results(data):
    """What each command gave."""
    flags = {**{name: {**FLAGS, **given} for name, (given, _) in WRONG.items()},
             **WORKING}
    with run_commands(
            SCRIPT, {name: arguments(data, name, given)
                     for name, given in flags.items()},
            light=WRONG, before={"hf": lambda: convert(
                str(data / "whole"), str(data / "as_hf"), "hf")}) as results:
        yield results


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input_is_refused_in_a_sentence(name, results, data):
    results.refused(name, WRONG[name][1].replace("{data}", str(data)))
    assert not (data / name).exists()


def test_recipe_follows_the_size_of_the_data(results, data):
    log = results.ok("recipe")["log"]
    assert "The recipe sets --learning_rate=0.0005, --max_seq_length=12, " in log
    assert "--train_batch_size=16, --warmup_step=62." in log
    assert "is evaluated every 1 steps (--save_checkpoints_steps=1)" in log


@pytest.fixture(scope="module", name="whole")
def _whole(results):
    return results.ok("whole")


def predictions(folder):
    return [json.loads(line) for line in (
        folder / "predictions.jsonl").read_text().splitlines()]


def test_a_run_learns_scores_and_writes_what_conlleval_reads(whole, data):
    folder = data / "whole"
    sentences, given = ([[row.split() for row in text.splitlines()] for text in (
        path.read_text().strip().split("\n\n"))] for path in (
            folder / "eval_predictions" / "predictions.conll", data / "dev.conll"))
    assert [[row[:2] for row in rows] for rows in sentences] == given
    counts = scoring.score(
        [[row[1] for row in rows] for rows in sentences],
        [[row[2] for row in rows] for rows in sentences], "iob2")
    found = json.loads((folder / "eval_results.json").read_text())
    wanted = dict(counts.metrics())
    assert {name: found[name] for name in wanted} == pytest.approx(wanted)
    assert found["f1"] > 0.5, whole["log"]
    assert "precision  recall      f1  support" in whole["log"]
    assert counts.report() in whole["files"]["eval_report.txt"]
    # A set without tags is predicted, and not scored.
    words = [line for line in (data / "test.conll").read_text().splitlines() if line]
    assert [word for row in predictions(folder) for word in row["words"]] == words
    assert "The test set has no labels" in whole["log"]
    assert "predict_results.json" not in whole["files"]


def test_the_folder_of_a_model_is_enough_for_text(whole, results, data):
    """And its export answers as it does."""
    results.ok("alone")
    [row] = predictions(data / "alone")
    assert row["id"] == "é" and row["words"] == [
        "w10", "w0", "w1", "w2", ",", "w12", "w0", "W7", "."]
    # And in Python, in windows too.
    found = albert_tf.load(str(data / "alone")).predict(row["text"])
    assert (found["words"], found["tags"]) == (row["words"], row["tags"])
    for entity, other in zip(found["entities"], row["entities"], strict=True):
        assert entity == {**other, "score": pytest.approx(other["score"], abs=1e-5)}
    assert list(found) == ["words", "tags", "entities"]
    for entity in row["entities"]:
        assert row["text"][entity["start"]:entity["end"]] == entity["text"]
        assert 0 < entity["score"] <= 1
    assert row["entities"]
    assert (data / "export" / "assets" / "labels.txt").read_text().split() == [
        "O", "B-X", "B-Y", "I-X", "I-Y"]
    if HAS_TENSORFLOW_TEXT:
        served = load_export(data / "export").signatures["serving_default"](
            text=tf.constant([row["text"]]))
        assert [tag.decode() for tag in served["tags"].numpy()[0]] == row["tags"]
        assert served["entity_start"].numpy()[0].tolist() == [
            entity["start"] for entity in row["entities"]]


def test_hugging_faces_format_answers_alike(whole, results, data):
    """In whatever batches; what has tags is scored."""
    results.ok("hf")
    for row, other in zip(predictions(data / "hf"), predictions(
            data / "whole" / "eval_predictions"), strict=True):
        assert row["tags"] == other["tags"]
        for one, two in zip(row["entities"], other["entities"], strict=True):
            assert one == {**two, "score": pytest.approx(two["score"], abs=1e-5)}
    found = json.loads(results["hf"]["files"]["predict_results.json"])
    assert found["f1"] == pytest.approx(
        json.loads(whole["files"]["eval_results.json"])["f1"])
    values = json.loads((data / "as_hf" / "config.json").read_text())
    assert values["architectures"] == ["AlbertForTokenClassification"]
    assert [*values["id2label"].values()] == ["O", "B-X", "B-Y", "I-X", "I-Y"]
