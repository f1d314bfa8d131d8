"""run_race.py as a user starts it: whole runs, prediction alone, wrong inputs."""

import json
import pathlib
import re
import signal

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.config import AlbertConfig
from albert_tf.training import log as run_log
from tests.commands import run_commands

ROOT = pathlib.Path(__file__).parents[2]
SCRIPT = "run_race.py"
WORDS = [f"w{i}" for i in range(20)]
STEPS = 12
QUESTIONS = {"train": 40, "dev": 14, "test": 10}
FLAGS = dict(
    data_dir="{data}/race", vocab_file="{data}/vocab.txt",
    albert_config_file="{data}/config.json", max_seq_length=32, max_qa_length=12,
    train_batch_size=4, eval_batch_size=3, train_step=STEPS, warmup_step=2,
    save_checkpoints_steps=4, iterations_per_loop=4, learning_rate=0.01,
    num_length_buckets=2, from_scratch="true")
NO_TRAINING = dict(do_train="false", from_scratch="false", train_step=None)


# ---- data ------------------------------------------------------------------


def passage(random, number, level, answers=True):
    """Two questions on a text of 2 to 20 words: which word is in it?"""
    text = random.choice(WORDS, int(random.integers(2, 21)))
    absent = [word for word in WORDS if word not in text]
    labels = random.integers(0, 4, 2)
    options = []
    for label in labels:
        options.append([
            str(random.choice(text if i == label else absent or WORDS))
            + " w0" * int(random.integers(0, 3)) for i in range(4)])
    found = {"id": f"{level}{number}.txt", "article": " ".join(text),
             "questions": ["w1 _", "w2"], "options": options}
    if answers:
        found["answers"] = ["ABCD"[label] for label in labels]
    return found


def write_race(folder, answers_of_test=True):
    random = np.random.default_rng(0)
    for split, questions in QUESTIONS.items():
        for i in range(questions // 2):
            level = ("middle", "high")[i % 2]
            path = folder / split / level / f"{i}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(passage(
                random, i, level, split != "test" or answers_of_test)))


def spoil(folder, split="dev", **changes):
    """Another RACE whose `split` has one passage that is wrong."""
    write_race(folder)
    path = folder / split / "high" / "1.txt"
    content = changes.pop("content", None)
    found = {**json.loads(path.read_text()), **changes}
    path.write_text(content or json.dumps(
        {key: value for key, value in found.items() if value is not None}))


@pytest.fixture(scope="module", name="data")
def _data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_race(folder / "race")
    write_race(folder / "no_answers", answers_of_test=False)
    spoil(folder / "no_dev_answers", answers=None)
    spoil(folder / "no_train_answers", "train", answers=None)
    spoil(folder / "not_json", content='{"article": \n "w1" "w2"}')
    spoil(folder / "three_options", "train", options=[["w1"] * 3, ["w1"] * 4])
    (folder / "no_test" / "train").mkdir(parents=True)
    for end in ("index", "data-00000-of-00001"):
        (folder / f"not_read.{end}").touch()
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    (folder / "short_vocab.txt").write_text("\n".join(vocabulary[:-1]) + "\n")
    config = AlbertConfig(
        vocab_size=len(vocabulary), embedding_size=8, hidden_size=16,
        num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=32, hidden_dropout_prob=0.1,
        attention_probs_dropout_prob=0.1)
    (folder / "config.json").write_text(config.to_json())
    return folder


def arguments(data, name, **changes):
    """The tiny run's command line; None leaves a flag out."""
    values = {"output_dir": f"{{data}}/{name}", **FLAGS, **changes}
    return [f"--{flag}={value}".replace("{data}", str(data))
            for flag, value in values.items() if value is not None]


# ---- the commands, all but one in one process ------------------------------

# name → (flags, pattern of the sentence). Found before TensorFlow is loaded:
EARLY = {
    "nothing to do": (
        dict(do_train="false", do_eval="false"), "nothing to do: give --do_train, "),
    "no data_dir": (dict(data_dir=None), "--data_dir=FOLDER is needed"),
    "wrong data_dir": (
        dict(data_dir="{data}"),
        "--data_dir={data}: there is neither a folder {data}/train nor "
        r"{data}/RACE/train; give the folder RACE .*\(--nodo_train\)"),
    "no test": (
        dict(data_dir="{data}/no_test", do_predict="true", do_eval="false",
             do_train="false", init_checkpoint="{data}/not_read"),
        r"neither a folder {data}/no_test/test nor .*\(--nodo_predict\)"),
    "other task": (dict(task_name="cola"), "--task_name=cola: this script knows race"),
    "both levels alone": (
        dict(high_only="true", middle_only="true"),
        "--high_only and --middle_only exclude each other"),
    "not JSON": (
        dict(data_dir="{data}/not_json"), "dev/high/1.txt, line 2: not JSON"),
    "three options": (
        dict(data_dir="{data}/three_options"),
        "train/high/1.txt, question 1: there are 3 options; it needs 4 texts"),
    "training set without answers": (
        dict(data_dir="{data}/no_train_answers"),
        "train/high/1.txt: there are no answers, so .* but not trained on"),
    "evaluation set without answers": (
        dict(data_dir="{data}/no_dev_answers"),
        "dev/high/1.txt: there are no answers, so .* but not scored"),
    "no start": (
        dict(from_scratch="false"),
        "there is no model to start from: .*--from_scratch"),
    "no model to predict with": (
        {**NO_TRAINING, "do_eval": "false", "do_predict": "true"},
        r"there is no model to start from: .* or train first \(--do_train\)"),
    "no vocabulary": (dict(vocab_file=None), "--spm_model_file"),
    "other vocabulary": (
        dict(vocab_file="{data}/short_vocab.txt"),
        "short_vocab.txt has 24 pieces, but the config's vocab_size is 25"),
    "positions": (
        dict(max_seq_length=64), "--max_seq_length 64 is over the config's max_pos"),
    "no room for questions": (dict(max_qa_length=0), "--max_qa_length=0: .*positive"),
    "a file that is no file of features": (
        dict(train_file="{data}/race/train/high/1.txt"),
        "--train_file={data}/race/train/high/1.txt was not written by this script"),
    "one file for two sets": (
        dict(train_file="{data}/x", eval_file="{data}/x"),
        "--eval_file={data}/x is the file of another set"),
    "folder of features": (
        dict(cached_dir="{data}/config.json/below"),
        "--cached_dir: the folder {data}/config.json/below cannot be written"),
    "learning rate": (dict(learning_rate=-1), "--learning_rate is -1.0; give a number"),
    "no output_dir": (dict(output_dir=None), "--output_dir=FOLDER is needed"),
    "misspelt flag": (
        dict(max_qa_lenght=1), "Unknown command line flag 'max_qa_lenght'. Did you"),
}

# Found when the devices and the model are made:
LATE = {
    "batch in parts": (
        dict(gradient_accumulation_steps=3),
        "train_batch_size 4 must be a positive mul"),
}

_PREDICT = {**NO_TRAINING, "do_eval": "false", "do_predict": "true"}
_FROM_UNBROKEN = {**_PREDICT, "init_checkpoint": "{data}/unbroken/model.ckpt-best"}
_RECIPE = dict(recipe="true", learning_rate=None, train_step=1, do_eval="false",
               warmup_step=1, num_length_buckets=1)
# In this order.
WORKING = {
    "unbroken": dict(do_predict="true"),
    "stop": dict(output_dir="{data}/stopped"),  # At its first checkpoint.
    "stopped": dict(),
    "predict alone": dict(
        output_dir="{data}/stopped", data_dir="{data}/race", do_train="false",
        do_eval="false", do_predict="true", **dict.fromkeys(
            set(FLAGS) - {"data_dir", "eval_batch_size"})),
    "large batches": dict(
        _FROM_UNBROKEN, predict_batch_size=7, cached_dir="{data}/new/a",
        predict_file="{data}/new/b/features"),
    "one length": dict(_FROM_UNBROKEN, num_length_buckets=1, predict_batch_size=1),
    "evaluate alone": dict(_FROM_UNBROKEN, do_eval="true", eval_batch_size=5,
                           do_predict="false"),
    "no answers": dict(_FROM_UNBROKEN, data_dir="{data}/no_answers"),
    "middle": dict(_RECIPE, middle_only="true"),
    "middle kept": dict(
        _PREDICT, output_dir="{data}/middle", data_dir="{data}/race"),
    "high of middle": dict(
        _PREDICT, output_dir="{data}/middle", high_only="true", do_eval="true",
        do_predict="false"),
    "without dropout": dict(
        _RECIPE,
        config_overrides="hidden_dropout_prob=0,attention_probs_dropout_prob=0"),
}


@pytest.fixture(scope="module", name="results")
def _results(data):
    """What each command gave."""
    flags = {**{name: case[0] for name, case in {**EARLY, **LATE}.items()}, **WORKING}
    commands = {name: arguments(data, name, **flags[name]) for name in flags}
    # Here rather than in a process of its own, which would load TensorFlow.
    commands["stop"][:0] = ["stop", data / "stopped" / "checkpoint", 0]
    with run_commands(SCRIPT[:-3], commands, light=EARLY) as results:
        yield results


@pytest.fixture(scope="module", name="worked")
def _worked(results):
    """Every command that works has run."""
    for name in WORKING:
        results.ok(name, 128 + signal.SIGTERM if name == "stop" else 0)
    return results


def evaluations(folder):
    return [row for row in run_log.read_metrics(str(folder / "metrics.jsonl"))
            if row["split"] == "eval"]


def answers(folder, name="predictions.json"):
    return json.loads((folder / name).read_text())


def table(folder, name="predictions.tsv"):
    header, *rows = [line.split("\t") for line in
                     (folder / name).read_text().splitlines()]
    return [dict(zip(header, row)) for row in rows]


def assert_same_predictions(folder, other):
    assert answers(folder) == answers(other)
    for row, expected in zip(table(folder), table(other), strict=True):
        # Written to four places.
        assert float(row.pop("probability")) == pytest.approx(
            float(expected.pop("probability")), abs=1.01e-4)
        assert row == expected


def right_answers(data, split):
    return {found["id"]: found["answers"]
            for path in sorted((data / "race" / split).glob("*/*.txt"))
            for found in [json.loads(path.read_text())]}


def share(given, right, level=""):
    hits = [a == b for name in right if name.startswith(level)
            for a, b in zip(given[name], right[name], strict=True)]
    return sum(hits) / len(hits)


# ---- a whole run -----------------------------------------------------------


def test_every_checkpoint_is_evaluated_and_the_best_is_told(worked, data):
    assert "train: 40 questions on 20 passages" in worked["unbroken"]["log"]
    folder = data / "unbroken"
    rows = evaluations(folder)
    assert [row["step"] for row in rows] == [4, 8, 12]
    assert {"loss", "accuracy", "middle_accuracy", "high_accuracy"} <= rows[0].keys()
    best = json.loads((folder / "eval_results.json").read_text())
    assert best["accuracy"] == max(row["accuracy"] for row in rows)


def test_predictions_are_written_and_scored(worked, data):
    del worked
    folder = data / "unbroken"
    for split, results_file, predictions in (
            ("dev", "eval_results.json", folder / "eval_predictions"),
            ("test", "predict_results.json", folder)):
        found = json.loads((folder / results_file).read_text())
        given, right = answers(predictions), right_answers(data, split)
        assert given.keys() == right.keys()
        assert len(table(predictions)) == QUESTIONS[split]
        for level in ("", "middle", "high"):
            name = f"{level}_accuracy".lstrip("_")
            assert found[name] == pytest.approx(share(given, right, level)), name


def test_stopped_run_goes_on_to_the_end_of_the_unbroken_one(worked, data):
    step = int(re.search(
        r"Stopped by signal 15 at step (\d+)", worked["stop"]["log"])[1])
    assert 4 <= step < STEPS
    log = worked["stopped"]["log"]
    assert f"Resuming at step {step} from" in log
    assert log.count("Reusing the features of") == 2

    def values(name):
        reader = tf.train.load_checkpoint(str(data / name / f"model.ckpt-{STEPS}"))
        # The number of saves, which a stop adds to, is no part of the state.
        return {key: reader.get_tensor(key)
                for key in reader.get_variable_to_shape_map()
                if key.startswith(("model", "optimizer", "step"))}

    found, expected = values("stopped"), values("unbroken")
    assert found.keys() == expected.keys() and len(found) > 40
    for key, value in expected.items():
        np.testing.assert_allclose(found[key], value, rtol=1e-5, atol=1e-7, err_msg=key)
    assert ([row["accuracy"] for row in evaluations(data / "stopped")]
            == [row["accuracy"] for row in evaluations(data / "unbroken")])


# ---- prediction ------------------------------------------------------------


def test_prediction_alone_needs_the_folder_and_the_data(worked, data):
    del worked
    assert_same_predictions(data / "stopped", data / "unbroken")
    assert (answers(data / "stopped", "predict_results.json")
            == answers(data / "unbroken", "predict_results.json"))


@pytest.mark.parametrize("name", ["large batches", "one length"])
def test_predictions_depend_on_no_batch_and_no_padding(name, worked, data):
    del worked
    assert_same_predictions(data / name, data / "unbroken")


def test_the_lengths_are_what_the_log_says(worked):
    def lengths(name):
        found = re.search("test: 10 sequences .* padded to (.*) pieces",
                          worked[name]["log"])
        return [int(length) for length in found[1].split(", ")]

    assert lengths("one length") == [32]
    assert len(lengths("large batches")) == 2


def test_features_lie_where_the_flags_say(worked, data):
    del worked
    assert (data / "new" / "b" / "features").is_file()
    assert (data / "one length" / "test.tf_record").is_file()


def test_evaluation_alone_gives_the_numbers_of_the_best_checkpoint(worked, data):
    del worked
    found, expected = (answers(data / name, "eval_results.json")
                       for name in ("evaluate alone", "unbroken"))
    assert {**found, "step": 0} == pytest.approx({**expected, "step": 0}, rel=1e-5)
    assert_same_predictions(data / "evaluate alone" / "eval_predictions",
                            data / "unbroken" / "eval_predictions")


def test_test_set_without_answers_is_predicted_and_not_scored(worked, data):
    folder = data / "no answers"
    assert "has no answers, so it is not scored" in worked["no answers"]["log"]
    assert answers(folder) == answers(data / "unbroken")
    assert "answer" not in table(folder)[0]
    assert not (folder / "predict_results.json").exists()


# ---- levels and recipes ----------------------------------------------------


def test_one_level_alone_is_trained_and_kept_with_the_model(worked, data):
    folder = data / "middle"
    assert "train: 20 questions on 10 passages" in worked["middle"]["log"]
    assert {row["level"] for row in table(folder)} == {"middle"}
    assert answers(folder, "predict_results.json")["questions"] == 6
    # The other level all the same, where it is asked for.
    assert {row["level"] for row in table(folder / "eval_predictions")} == {"high"}
    found = answers(folder, "eval_results.json")
    assert "high_accuracy" in found and "middle_accuracy" not in found


def test_recipe_is_the_papers_and_without_dropout_that_of_version_2(worked, data):
    for name, rate, dropout in (("middle", 2e-5, 0.1), ("without dropout", 1e-5, 0.0)):
        folder = data / name
        assert answers(folder, "options.json")["learning_rate"] == rate
        assert answers(folder, "options.json")["train_batch_size"] == 4
        assert answers(folder, "albert_config.json")["hidden_dropout_prob"] == dropout
    del worked


# ---- wrong inputs ----------------------------------------------------------


@pytest.mark.parametrize("name", [*EARLY, *LATE])
def test_wrong_input_gives_one_sentence(name, results, data):
    pattern = {**EARLY, **LATE}[name][1].replace("{data}", str(data))
    results.refused(name, pattern, loaded=name in LATE)


def test_a_file_of_something_else_is_not_written_over(results, data):
    results.run_all()
    assert answers(data / "race" / "train" / "high", "1.txt")["id"] == "high1.txt"
