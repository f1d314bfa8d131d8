"""run_squad.py as a user starts it: both versions, prediction alone, wrong inputs."""

import csv
import json
import re

import pytest

import albert_tf
from tests import tiny_run
from tests.commands import arguments, run_commands

pytestmark = pytest.mark.long

SCRIPT = "run_squad"
NAMES = ["mira", "tolo", "zeno", "ruda"]
WORDS = ("the a in of to . , ? who what is was old new house lake boat sold built near "
         "small big by man it for and then they went home again").split()
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, *NAMES]
CONFIG = tiny_run.config(
    vocab_size=len(VOCABULARY), embedding_size=8, hidden_size=16,
    num_hidden_layers=1, max_position_embeddings=64, hidden_dropout_prob=0.1)
FLAGS = dict(
    vocab_file="{data}/vocab.txt", albert_config_file="{data}/config.json",
    train_file="{data}/train.json", predict_file="{data}/predict.json",
    max_seq_length=32, doc_stride=6, max_query_length=8, train_batch_size=16,
    num_train_steps=60, save_checkpoints_steps=30, learning_rate=0.02,
    num_length_buckets=1, from_scratch="true")
ALL = dict(do_train="true", do_eval="true", do_predict="true")


def article(numbers, *, version_2=False, answers=1, labelled=True):
    """An article with a question to each paragraph: who built the house? Every fourth
    paragraph does not tell."""
    paragraphs = []
    for number in numbers:
        name = NAMES[number % 3] if number % 4 else "man"
        if name == "man" and not version_2:
            continue
        text = f"{WORDS[13 + number % 5]} house by the lake was built by {name}"
        text += " . " + " ".join(WORDS[12 + number % 7:]) if number % 2 else " ."
        question = {"id": f"q{number}", "question": "Who built the house?"}
        if labelled:
            question["answers"] = [] if name == "man" else [
                {"text": name, "answer_start": text.index(name)}] * answers
        if labelled and version_2:
            question["is_impossible"] = name == "man"
        paragraphs.append({"context": text, "qas": [question]})
    return {"title": "Lakes", "paragraphs": paragraphs}


# One whose text no piece stands for.
DROPPED = {"paragraphs": [{"context": "\u0301 ", "qas": [{
    "id": "dropped", "question": "What?",
    "answers": [{"text": "\u0301", "answer_start": 0}]}]}]}


def write(path, *articles):
    path.write_text(json.dumps({"data": articles}))


@pytest.fixture(scope="module", name="data")
def _data(tmp_path_factory):
    """Good files and bad ones."""
    folder = tmp_path_factory.mktemp("squad")
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    (folder / "config.json").write_text(CONFIG.to_json())
    for version_2, end in ((False, ""), (True, "-v2")):
        write(folder / f"train{end}.json", DROPPED,
              article(range(60), version_2=version_2),
              article(range(60, 64), version_2=version_2, answers=2))
        write(folder / f"predict{end}.json",
              article(range(20), version_2=version_2, answers=3), DROPPED,
              article(range(20, 24), version_2=version_2))
    write(folder / "questions.json", article([3, 4, 5], version_2=True, labelled=False))
    write(folder / "partly.json", article([1, 2]), article([3], labelled=False))
    # Without an answer, the best threshold is the lowest odds.
    write(folder / "impossible.json", article(range(0, 20, 4), version_2=True))
    # Folders with a model and nothing else, as soon as it is trained.
    for version, copy in (("v1", "v1 questions"), ("v2", "v2 alone"), ("v2", "v2 other")):
        (folder / copy).mkdir()
        for name in ("task.json", "albert_config.json", "vocab.txt", "checkpoint",
                     "model.ckpt-best.index", "model.ckpt-best.data-00000-of-00001",
                     "albert_tf-run.json", *["null_threshold.json"] * (copy == "v2 other")):
            (folder / copy / name).symlink_to(folder / version / name)
    return folder


# name → (flags, the flag or file that is named); {data} stands for the folder. Of what
# the script itself checks; what a file or a window may be is for tests/finetuning.
WRONG = {
    "nothing to do": (dict(), "nothing to do: give .* --do_predict or --export_dir"),
    "prediction file of the run": (
        dict(do_predict="true", prediction_file="{data}/v2/options.json",
             output_dir="{data}/v2"), "options.json"),
    "the folder of the start": (
        dict(do_train="true", init_checkpoint="{data}/v1", from_scratch=None,
             output_dir="{data}/v1/"), "--init_checkpoint"),
    "no evaluation file": (
        dict(do_train="true", do_eval="true", predict_file=None), "--predict_file"),
    "no step": (
        dict(do_train="true", num_train_steps=None, num_train_epochs=0.1),
        "--num_train_epochs=0.1"),
}

# What a user gives who has only the folder of a model.
ALONE = {**dict.fromkeys(FLAGS), "predict_file": "{data}/predict.json",
         "do_predict": "true", "num_length_buckets": 2}
V2_ALONE = {**ALONE, "predict_file": "{data}/predict-v2.json"}

# Commands that work, in this order.
WORKING = {
    "v1": ALL,
    "v1 questions": dict(ALONE, cached_dir="{data}/features", prediction_file="{data}/mine.jsonl",
                         predict_file="{data}/partly.json"),
    "v2": dict(
        ALL, version_2_with_negative="true", train_file="{data}/train-v2.json",
        predict_file="{data}/predict-v2.json", start_n_top=3, end_n_top=2,
        recipe="true", train_batch_size=None, num_train_steps=None,
        num_train_epochs=44.5),
    "v2 alone": dict(V2_ALONE, predict_batch_size=5),
    "v2 other": dict(V2_ALONE, predict_file="{data}/impossible.json"),
    "v2 other evaluated": dict(
        V2_ALONE, predict_file="{data}/impossible.json", do_predict=None,
        do_eval="true", output_dir="{data}/v2 other"),
    "v2 questions": dict(
        V2_ALONE, predict_file="{data}/questions.json", output_dir="{data}/v2"),
}


@pytest.fixture(scope="module", name="results")
def _results(data):
    """What each command gave, with the text files in its folder right after it."""
    commands = {name: arguments(data, name, {**FLAGS, **flags}) for name, flags in {
        **{name: flags for name, (flags, _) in WRONG.items()}, **WORKING}.items()}
    with run_commands(SCRIPT, commands, light=WRONG) as results:
        yield results


def files_after(results, name):
    return {file: json.loads(text) if file.endswith(".json") else text
            for file, text in results.ok(name)["files"].items()}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input_gives_one_sentence(name, results, data):
    results.refused(name, WRONG[name][1].replace("{data}", str(data)))


@pytest.mark.parametrize("name, metric, least", [
    ("v1", "f1", 90), ("v2", "best_f1", 75)])
def test_what_can_be_learnt_is_learnt_and_measured(name, metric, least, results, data):
    assert files_after(results, name)["eval_results.json"][metric] > least
    rows = map(json.loads, (data / name / "metrics.jsonl").read_text().splitlines())
    evaluated = [row for row in rows if row["split"] == "eval"]
    assert [row["step"] for row in evaluated] == [30, 60]
    assert metric in evaluated[-1] and "loss" not in evaluated[-1]


@pytest.mark.parametrize("name", ["v1", "v2"])
def test_predictions_are_written_for_every_question(name, results, data):
    found, log = files_after(results, name), results[name]["log"]
    end = "-v2" if name == "v2" else ""
    articles = json.loads((data / f"predict{end}.json").read_text())["data"]
    questions = [question for one in articles for part in one["paragraphs"]
                 for question in part["qas"]]
    ids = [question["id"] for question in questions]
    for file in ("predictions.json", "nbest_predictions.json"):
        assert list(found[file]) == ids
    assert ("null_odds.json" in found) == (name == "v2")
    rows = list(csv.reader(found["predictions.tsv"].splitlines(), delimiter="\t"))
    assert [row[0] for row in rows[1:]] == ids
    right = [found["predictions.json"][question["id"]] in (
        [answer["text"] for answer in question["answers"]] or [""])
        for question in questions]
    exact = found["eval_results.json"]["exact_match" if name == "v1" else "exact"]
    # The dropped question's answer is an accent, which counts as a word.
    assert exact == pytest.approx(100 * sum(right) / len(right))
    assert found["predictions.json"]["dropped"] == ""
    assert re.search(rf"train{end}.json: 1 of \d+ questions are left out.*: dropped\.",
                     log)
    assert re.search(rf"predict{end}.json: 1 of \d+ questions are answered with \"\""
                     r".*: dropped\.", log)


def test_prediction_alone_equals_that_after_training(results):
    """Whatever the batches and their lengths."""
    assert "padded to 32 tokens" in results["v2"]["log"]
    assert "padded to 24, 32 tokens" in results["v2 alone"]["log"]
    expected, found = (files_after(results, each) for each in ("v2", "v2 alone"))
    assert "eval_results.json" not in found
    assert found["predictions.json"] == expected["predictions.json"]
    assert found["null_odds.json"] == pytest.approx(expected["null_odds.json"], rel=1e-4)
    results = expected["eval_results.json"]
    assert found["predict_results.json"] == pytest.approx(results, rel=1e-4)
    for key, entries in expected["nbest_predictions.json"].items():
        assert [entry["probability"] for entry in found["nbest_predictions.json"][key]] == (
            pytest.approx([entry["probability"] for entry in entries], abs=1e-4))


def test_questions_of_which_some_have_no_answer_are_predicted_without_metrics(
        results, data):
    found = files_after(results, "v1 questions")
    assert list(found["predictions.json"]) == ["q1", "q2", "q3"]
    assert re.search("No metrics will be computed: .*partly.json, article 2, .*'q3' has",
                     results["v1 questions"]["log"])
    assert list((data / "features").iterdir())
    rows = [*map(json.loads, (data / "mine.jsonl").read_text().splitlines())]
    assert {row["id"]: row["prediction"] for row in rows} == found["predictions.json"]
    for row in rows:
        assert row["passage"][row["start"]:row["end"]] == row["prediction"]


def test_without_answers_the_threshold_found_before_is_applied(results):
    found = files_after(results, "v2 questions")
    threshold = files_after(results, "v2")["eval_results.json"][
        "null_score_diff_threshold"]
    assert "null odds of" in results["v2 questions"]["log"]
    assert set(found["predictions.json"]) == {"q3", "q4", "q5"}
    for key, odds in found["null_odds.json"].items():
        assert (found["predictions.json"][key] == "") == (odds >= threshold)
    assert found["predictions.tsv"].splitlines()[1].endswith("\t\t")


def test_other_answered_questions_leave_the_threshold_of_the_model(results, data):
    threshold = files_after(results, "v2")["eval_results.json"][
        "null_score_diff_threshold"]
    for name, file in (("v2 other", "predict_results.json"),
                       ("v2 other evaluated", "eval_results.json")):
        found = files_after(results, name)
        assert found[file]["null_score_diff_threshold"] > threshold + 1
        assert found["null_threshold.json"]["null_score_diff_threshold"] == threshold
    assert "eval_results.json" not in files_after(results, "v2 other")
    assert re.search(
        r"The model keeps the threshold of null odds .* found on .*predict-v2.json; "
        ".*impossible.json has", results["v2 other evaluated"]["log"])
    assert albert_tf.load(str(data / "v2 other")).threshold == threshold


def test_a_recipe_gives_the_papers_settings_that_flags_override(results):
    found = files_after(results, "v2")
    options = found["options.json"]
    assert options["train_batch_size"] == 48 and options["learning_rate"] == 0.02
    assert found["albert_config.json"]["hidden_dropout_prob"] == 0.0
    config = files_after(results, "v1")["albert_config.json"]
    assert config["hidden_dropout_prob"] == 0.1
    # Epochs were given: the paper's steps and warm-up do not fit them. They are of
    # questions, 65 / 48 · 44.5, of which one has no features.
    assert options["num_train_steps"] == 60 and options["num_warmup_steps"] == 6
