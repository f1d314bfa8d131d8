"""run_pretraining.py --dynamic_masking, and the sentence objective of its records.

    python -m pytest tests/scripts/test_dynamic_masking.py
"""

import json
import re
import signal

import numpy as np
import pytest

from albert_tf.masking.options import SpecialIds
from albert_tf.records.tfrecord import RecordWriter
from tests import tiny_run
from tests.commands import run_commands
from tests.scripts import test_run_pretraining as runs

IDS = SpecialIds(cls=2, sep=3, mask=4)
FLAGS = dict(
    max_seq_length=tiny_run.LENGTH, max_predictions_per_seq=2, dynamic_masking="true",
    masked_lm_prob=0.3, train_batch_size=8, eval_batch_size=4, num_warmup_steps=2,
    save_checkpoints_steps=10, learning_rate=0.02, num_train_steps=60,
    cls_id=2, sep_id=3, mask_id=4, albert_config_file="{data}/config.json",
    input_file="{data}/unmasked.tfrecord", eval_input_file="{data}/dev.tfrecord")
NO_IDS = dict.fromkeys(("cls_id", "sep_id", "mask_id"))
STATIC = dict.fromkeys(("dynamic_masking", "masked_lm_prob", *NO_IDS))

# name → (flags, pattern of the sentence); all are found before TensorFlow is loaded.
WRONG = {
    "evaluation is masked": (dict(eval_input_file="{data}/masked.tfrecord"),
                             "masked.tfrecord: the records are masked already"),
    "no ids": (NO_IDS, "--dynamic_masking needs --cls_id, --sep_id, --mask_id, because "
               "no summary beside .*dev.tfrecord tells"),
    "no dynamic masking": (
        {**STATIC, "ngram": 2, "input_file": "{data}/masked.tfrecord"},
        "--ngram says how masks are made while training; give --dynamic_masking too"),
    "nothing to mask": (dict(masked_lm_prob=0), "--masked_lm_prob=0 masks nothing"),
    "ngram": (dict(ngram=0), "--ngram=0: give a number of 1 or more"),
    "length": (dict(max_seq_length=7), "have 8 values where max_seq_length says 7"),
    "objective": (
        dict(sentence_objective="order", input_file="{data}/next/train.tfrecord"),
        "train.tfrecord was made with the sentence objective next, as .*/next/summary-"
        "train.tfrecord.json says, but --sentence_objective=order is given"),
}
# A command that works.
NONE = dict(NO_IDS, input_file="{data}/none/train.tfrecord", eval_input_file=None,
            do_eval="true", num_train_steps=4, save_checkpoints_steps=2)
OTHER_OBJECTIVE = dict(output_dir="{data}/none")


def tiny_rows(count, seed, masked=0):
    random = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        row = tiny_run.example(random, masked)
        size = row["input_mask"].sum()
        row["input_ids"][[0, size - 1]] = IDS.cls, IDS.sep
        row["token_boundary"] = np.maximum(
            random.integers(0, 2, tiny_run.LENGTH), row["input_ids"] < 4)
        rows.append(row)
    return rows


def write(path, rows):
    with RecordWriter(str(path)) as writer:
        for row in rows:
            writer.write(tiny_run.SPEC.serialize(row))


@pytest.fixture(scope="module", name="data")
def _data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write(folder / "unmasked.tfrecord", tiny_rows(30, 1))
    write(folder / "dev.tfrecord", tiny_rows(9, 2))
    write(folder / "masked.tfrecord", tiny_rows(9, 3, masked=2))
    (folder / "config.json").write_text(tiny_run.config(
        num_hidden_layers=1, hidden_dropout_prob=0.1).to_json())
    for name, instances in (("none", {"sentence_objective": "none"}),
                            ("next", {"random_next_sentence": True})):
        (folder / name).mkdir()
        write(folder / name / "train.tfrecord", tiny_rows(9, 4))
        (folder / name / "summary-train.tfrecord.json").write_text(json.dumps({
            "settings": {"output_files": ["train.tfrecord"], "instances": instances},
            "vocabulary": {"size": tiny_run.VOCAB_SIZE, "sha256": "1", "file": "v",
                           "special_ids": IDS._asdict()}}))
    return folder


def arguments(data, **changes):
    flags = {**FLAGS, **changes}
    return [f"--{flag}={value}".replace("{data}", str(data))
            for flag, value in flags.items() if value is not None]


@pytest.fixture(scope="module", name="results")
def _results(data):
    """What each command gave."""
    named = {**{name: changes for name, (changes, _) in WRONG.items()},
             "none": NONE, "other objective": OTHER_OBJECTIVE}
    commands = {
        name: arguments(data, **{"output_dir": f"{{data}}/{name}", **changes})
        for name, changes in named.items()}
    with run_commands("run_pretraining", commands, light=WRONG) as results:
        yield results


def rows(folder, split):
    with open(folder / "metrics.jsonl") as lines:
        return [row for row in map(json.loads, lines) if row["split"] == split]


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input_gives_one_sentence(name, results):
    results.refused(name, WRONG[name][1])


@pytest.mark.slow
def test_a_killed_run_ends_with_the_weights_of_an_unbroken_one(data):
    """SIGKILL at a random moment, twice."""
    moments = np.random.default_rng()
    for name in ("unbroken", "killed"):
        (data / name).mkdir()
        args = arguments(data, output_dir=data / name, num_train_steps=60)
        for _ in range(2 * (name == "killed")):
            process = runs.start(args)
            runs.stop(process, data / name, signal.SIGKILL, moments.uniform(0, 0.3))
            process.communicate()
        output = runs.finish(runs.start(args))
    assert "Resuming at step" in output
    runs.assert_same_end(data / "killed", data / "unbroken")


def test_without_the_sentence_loss_its_layers_stay_as_they_are(results, data):
    results.ok("none")
    for split in ("train", "eval"):
        names = rows(data / "none", split)[-1].keys()
        assert "masked_lm_loss" in names
        assert not [name for name in names if "sentence_order" in name]
    early, late = (runs.stored(data / "none", f"model.ckpt-{n}") for n in (2, 4))
    frozen = {key for key in late if "pooler" in key or "seq_rel" in key}
    assert len(frozen) == 4 and not any("adam" in key for key in frozen)
    for key in late.keys() - {"save_counter/.ATTRIBUTES/VARIABLE_VALUE"}:
        same = np.array_equal(early[key], late[key])
        assert same == (key in frozen), key
    other = json.loads((data / "none" / "options.json").read_text())
    assert other["sentence_objective"] == "none"
    assert other["masked_lm_prob"] == 0.3 and other["special_ids"]["mask"] == 4
    kept = json.loads((data / "none" / "vocabulary.json").read_text())
    assert kept["special_ids"] == IDS._asdict()
    # Nor can a run take them up again half-way.
    assert results["other objective"]["status"] == 1
    assert re.search(
        "the run in .*/none started with --sentence_objective=none, now it is order; "
        "choose another", results["other objective"]["stderr"])
    log = results["none"]["log"]
    assert "Masks are drawn anew each time: 2 pieces of a sequence of 8" in log
