"""run_race.py as a user starts it: a whole run, prediction alone, wrong inputs."""

import json
import re

import numpy as np
import pytest

from tests import tiny_run
from tests.commands import arguments, run_commands

pytestmark = pytest.mark.long

WORDS = [f"w{i}" for i in range(20)]
QUESTIONS = {"train": 40, "dev": 14, "test": 10}
FLAGS = dict(
    data_dir="{data}/race", vocab_file="{data}/vocab.txt",
    albert_config_file="{data}/config.json", max_seq_length=32, max_qa_length=12,
    train_batch_size=4, eval_batch_size=3, train_step=4, warmup_step=2,
    save_checkpoints_steps=2, iterations_per_loop=2, learning_rate=0.01,
    num_length_buckets=1, from_scratch="true")


def passage(random, number, level, answers=True):
    """Two questions on a text of 2 to 20 words: which word is in it?"""
    text = random.choice(WORDS, int(random.integers(2, 21)))
    absent = [word for word in WORDS if word not in text]
    labels = random.integers(0, 4, 2)
    options = [[str(random.choice(text if i == label else absent or WORDS))
                + " w0" * int(random.integers(0, 3)) for i in range(4)]
               for label in labels]
    return {"id": f"{level}{number}.txt", "article": " ".join(text),
            "questions": ["w1 _", "w2"], "options": options,
            **({"answers": ["ABCD"[label] for label in labels]} if answers else {})}


def write_race(folder, answers_of_test=True):
    random = np.random.default_rng(0)
    for split, questions in QUESTIONS.items():
        for i in range(questions // 2):
            level = ("middle", "high")[i % 2]
            path = folder / split / level / f"{i}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(passage(
                random, i, level, split != "test" or answers_of_test)))


@pytest.fixture(scope="module", name="data")
def _data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_race(folder / "race")
    write_race(folder / "no_answers", answers_of_test=False)
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    (folder / "config.json").write_text(tiny_run.config(
        vocab_size=len(vocabulary), num_hidden_layers=1, max_position_embeddings=32,
        hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1).to_json())
    return folder


# name → (flags, the flag or file that is named), of what the script itself checks.
WRONG = {
    "no data_dir": (dict(data_dir=None), "--data_dir=: there is neither"),
    "other task": (dict(task_name="cola"), "--task_name=cola"),
    # What the recipe sets before shows in the log.
    "recipe without dropout": (
        dict(recipe="true", data_dir="{data}",
             config_overrides="hidden_dropout_prob=0,attention_probs_dropout_prob=0"),
        "--data_dir={data}"),
    "prediction file": (
        dict(do_predict="true", prediction_file="{data}/mine.txt"), "{data}/mine.txt"),
}

USE = {**FLAGS, "do_train": "false", "do_eval": "false", "do_predict": "true",
       "from_scratch": None, "train_step": None}
# In this order.
WORKING = {
    "whole": dict(FLAGS, do_predict="true"),
    "copy": ["copy", "{data}/whole", "{data}/alone"],
    # What a user gives who has only the folder of a model.
    "alone": dict(data_dir="{data}/race", do_train="false", do_eval="false",
                  do_predict="true", num_length_buckets=2, predict_batch_size=1),
    "no answers": dict(
        USE, init_checkpoint="{data}/whole/model.ckpt-best", data_dir="{data}/no_answers",
        do_eval="true", prediction_file="{data}/mine.jsonl", all_probabilities="true",
        cached_dir="{data}/new/a", predict_file="{data}/new/b/features"),
    "middle": dict(FLAGS, recipe="true", learning_rate=None, train_step=1,
                   do_eval="false", warmup_step=1, middle_only="true"),
    "middle kept": dict(USE, output_dir="{data}/middle"),
    "high of middle": dict(USE, output_dir="{data}/middle", high_only="true",
                           do_eval="true", do_predict="false"),
}


@pytest.fixture(scope="module", name="results")
def _results(data):
    """What each command gave."""
    commands = {name: {**FLAGS, **given} for name, (given, _) in WRONG.items()} | WORKING
    with run_commands("run_race", {
            name: arguments(data, name, given) for name, given in commands.items()},
            light=WRONG) as results:
        yield results


def answers(folder, name="predictions.json"):
    return json.loads((folder / name).read_text())


def table(folder, name="predictions.tsv"):
    header, *rows = [line.split("\t") for line in
                     (folder / name).read_text().splitlines()]
    return [dict(zip(header, row)) for row in rows]


@pytest.mark.parametrize("split, results_file, folder", [
    ("dev", "eval_results.json", "whole/eval_predictions"),
    ("test", "predict_results.json", "whole")])
def test_predictions_are_written_and_scored(split, results_file, folder, results, data):
    results.ok("whole")
    found, given = answers(data / "whole", results_file), answers(data / folder)
    right = {passage["id"]: passage["answers"]
             for path in sorted((data / "race" / split).glob("*/*.txt"))
             for passage in [json.loads(path.read_text())]}
    assert given.keys() == right.keys()
    assert len(table(data / folder)) == QUESTIONS[split]
    for level in ("", "middle", "high"):
        hits = [one == other for name in right if name.startswith(level)
                for one, other in zip(given[name], right[name], strict=True)]
        name = f"{level}_accuracy".lstrip("_")
        assert found[name] == pytest.approx(np.mean(hits)), name


def test_predictions_depend_on_no_batch_and_no_padding(results, data):
    """And need no more than the folder and the data."""
    found = re.search("test: 10 sequences .* padded to (.*) tokens", results.ok("alone")["log"])
    assert len(found[1].split(", ")) == 2
    assert "Reusing the features of 10 records" in results.ok("alone")["log"]
    alone, whole = data / "alone", data / "whole"
    assert answers(alone) == answers(whole)
    for row, expected in zip(table(alone), table(whole), strict=True):
        # Written to four places.
        assert float(row.pop("probability")) == pytest.approx(
            float(expected.pop("probability")), abs=1.01e-4)
        assert row == expected
    assert answers(alone, "predict_results.json") == answers(whole, "predict_results.json")


def test_test_set_without_answers_is_predicted_and_not_scored(results, data):
    results.ok("no answers")
    folder = data / "no answers"
    assert answers(folder) == answers(data / "whole")
    assert not (folder / "predictions.tsv").exists()
    rows = [*map(json.loads, (data / "mine.jsonl").read_text().splitlines())]
    for row, known in zip(rows, table(data / "whole"), strict=True):
        assert row["id"] == known["id"] and "answer" not in row and row["passage"]
        chances = {letter: row[f"probability of {letter}"] for letter in "ABCD"}
        assert max(chances, key=chances.get) == row["prediction"]
        assert chances[row["prediction"]] == pytest.approx(row["probability"], abs=1e-4)
    assert not (folder / "predict_results.json").exists()
    # Features lie where the flags say.
    for pattern in "new/a/dev-*.npz", "new/b/features-*.npz", "whole/test-*.npz":
        assert len(list(data.glob(pattern))) == 1


def test_one_level_alone_is_trained_and_kept_with_the_model(results, data):
    folder = data / "middle"
    assert "train: 20 questions about 10 passages" in results.ok("middle")["log"]
    assert {row["level"] for row in table(folder)} == {"middle"}
    assert answers(folder, "predict_results.json")["questions"] == 6
    # The other level all the same, where it is asked for.
    assert {row["level"] for row in table(folder / "eval_predictions")} == {"high"}
    found = answers(folder, "eval_results.json")
    assert "high_accuracy" in found and "middle_accuracy" not in found


def test_recipe_is_the_papers_and_without_dropout_that_of_version_2(results, data):
    log = results.ok("middle")["log"]
    options = answers(data / "middle", "options.json")
    assert options["learning_rate"] == 2e-5 and options["train_batch_size"] == 4
    assert answers(data / "middle", "albert_config.json")["hidden_dropout_prob"] == 0.1
    assert "of the recipe race (source" in log
    assert "of the recipe race-v2 (source" in results["recipe without dropout"]["log"]


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input_gives_one_sentence(name, results, data):
    results.refused(name, WRONG[name][1].replace("{data}", str(data)))
