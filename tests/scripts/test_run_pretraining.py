"""run_pretraining.py as a user starts it: wrong inputs, kills, masks drawn while it
trains, several workers."""

import json
import random
import re
import signal
import time

import numpy as np
import pytest
import tensorflow as tf

from albert_tf import records
from albert_tf.checkpoints.restore import export_tf1
from albert_tf.masking.options import SpecialIds
from albert_tf.training import log as run_log
from tests import models, tiny_run
from tests.commands import arguments, finish, run_commands, start_cluster, start_program
from tests.tiny_run import STATE, assert_equal_tensors, stored
from tests.helpers import serialized

pytestmark = pytest.mark.long

SCRIPT = "run_pretraining.py"
STEPS = 60
FLAGS = dict(
    input_file="{data}/train.tfrecord", albert_config_file="{data}/config.json",
    max_seq_length=tiny_run.LENGTH, max_predictions_per_seq=tiny_run.PREDICTIONS,
    train_batch_size=8, eval_batch_size=4, num_train_steps=STEPS, num_warmup_steps=5,
    save_checkpoints_steps=20, iterations_per_loop=10, learning_rate=0.02)
# For records that are masked while training.
IDS = SpecialIds(cls=2, sep=3, mask=4)
NO_IDS = dict.fromkeys(("cls_id", "sep_id", "mask_id"))
DYNAMIC = dict(
    max_predictions_per_seq=2, dynamic_masking="true", masked_lm_prob=0.3, cls_id=2,
    sep_id=3, mask_id=4, input_file="{data}/unmasked.tfrecord",
    eval_input_file="{data}/unmasked_dev.tfrecord")
PERMUTATION = {**DYNAMIC, "dynamic_masking": None, "objective": "permutation"}


def write(path, rows, instances=None, /, **vocabulary):
    """Records, with a summary where it says something of their vocabulary."""
    path.parent.mkdir(exist_ok=True)
    with records.RecordWriter(str(path)) as writer:
        for row in rows:
            writer.write(serialized(tiny_run.SPEC, row))
    if vocabulary:
        (path.parent / f"summary-{path.name}.json").write_text(json.dumps({
            "settings": {"output_files": [path.name], "instances": instances or {}},
            "vocabulary": {"file": "a.txt", "sha256": "12", "size": 30, **vocabulary}}))


def rows_with_words(count, seed, masked=0):
    random = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        row = tiny_run.example(random, masked)
        row["input_ids"][[0, row["input_mask"].sum() - 1]] = IDS.cls, IDS.sep
        row["token_boundary"] = np.maximum(
            random.integers(0, 2, tiny_run.LENGTH), row["input_ids"] < 4)
        rows.append(row)
    return rows


@pytest.fixture(scope="module", name="data")
def _data(tmp_path_factory):
    """Good files and bad ones."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "config.json").write_text(tiny_run.config(
        num_hidden_layers=1, hidden_dropout_prob=0.1,
        attention_probs_dropout_prob=0.1).to_json())
    rows = tiny_run.examples(50, 1)
    write(folder / "train.tfrecord", rows)
    write(folder / "dev.tfrecord", tiny_run.examples(13, 2))
    tiny_run.write_short_records(folder / "short.tfrecord", 30, 3)
    write(folder / "named" / "train.tfrecord", rows[:9], sha256="12")
    write(folder / "renamed" / "train.tfrecord", rows[:9], sha256="34")
    rows[40]["input_ids"][1] = tiny_run.VOCAB_SIZE
    write(folder / "later_id.tfrecord", rows)
    write(folder / "unmasked.tfrecord", rows_with_words(30, 1))
    write(folder / "unmasked_dev.tfrecord", rows_with_words(9, 2))
    write(folder / "masked.tfrecord", rows_with_words(9, 3, masked=2))
    write(folder / "records_order" / "masked.tfrecord", rows_with_words(9, 3, masked=2),
          {"sentence_objective": "order"}, special_ids=IDS._asdict())
    write(folder / "records_none" / "train.tfrecord", rows_with_words(9, 4),
          {"sentence_objective": "none"}, special_ids=IDS._asdict())
    export_tf1(models.AlbertForPreTraining(tiny_run.config(intermediate_size=20)),
               str(folder / "other_shape" / "model.ckpt"))
    return folder


def metrics(folder, splits=("train", "eval")):
    return [row for row in run_log.read_metrics(str(folder / "metrics.jsonl"))
            if row["split"] in splits]


def assert_same_end(folder, other, step=STEPS):
    for name in (f"model.ckpt-{step}", "model.ckpt-best"):
        found, expected = (stored(each, name, STATE) for each in (folder, other))
        assert any("adam_v" in key for key in expected)
        assert_equal_tensors(found, expected)
    assert metrics(folder, ["eval"]) == metrics(other, ["eval"])
    rows = [(row["step"], row["split"]) for row in metrics(folder)]
    assert len(set(rows)) == len(rows)


def stop(process, folder, number, delay):
    """Sends a signal, 0 for none, some seconds after the folder's next checkpoint."""
    def state():
        path = folder / "checkpoint"
        return path.read_bytes() if path.exists() else b""

    before, deadline = state(), time.monotonic() + 600  # A busy machine is slow.
    while state() in (b"", before):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(delay)
    process.send_signal(number)


def test_killed_and_stopped_run_ends_as_the_unbroken_one(results, data):
    """SIGKILL, then SIGTERM, each at a random moment, with ends of epochs between."""
    results.ok("unbroken")
    options = json.loads((data / "unbroken" / "options.json").read_text())
    assert options["input_files"] == {str(data / "train.tfrecord"): 50}
    assert options["optimizer"] == "lamb" and options["num_warmup_steps"] == 5
    log = results.ok("stopped", 128 + signal.SIGTERM)["log"]
    assert re.search("Resuming at step (20|40) from", log)
    step = int(re.search("Stopped by signal 15 at step (\\d+)", log)[1])
    assert f"Checkpoint of step {step} saved" in log
    log = results.ok("resumed")["log"]
    assert f"Resuming at step {step} from" in log
    assert_same_end(data / "broken", data / "unbroken")
    assert not [p.name for p in (data / "broken").iterdir()
                if "temp" in p.name or "incomplete" in p.name or "tmp" in p.name]


def test_a_run_in_a_store_is_that_on_the_disk(results):
    found, expected = (re.findall("Evaluation at step [0-9]+: .*", results.ok(name)["log"])
                       for name in ("in a store", "unbroken"))
    assert found == expected and len(found) == 3
    assert "Resuming at step 60 from ram://pretraining/run/model.ckpt-60" in (
        results.ok("in a store, resumed")["log"])


def test_evaluation_says_what_it_leaves_out(results):
    log = results["some of the evaluation"]["log"]
    assert "--max_eval_steps leaves 46 of 50 records out of each evaluation" in log
    assert "the metrics say nothing about unseen text" in log


# name → (flags, the flag or file that is named), {data} stands for the folder. What is
# wrong with files, configs and devices, the tests of their checks have more of.
# Found before TensorFlow is loaded:
EARLY = {
    "positions": (dict(max_seq_length=9), "--max_seq_length 9 .* max_position_embeddings 8"),
    "no model": (dict(albert_config_file=None), "--albert_config_file=FILE or --model=NAME"),
    "no output_dir": (dict(output_dir=None), "--output_dir"),
    "nothing to do": (dict(do_train="false"), "nothing to do: give --do_train or"),
    "memory of a batch": (dict(train_batch_size=2 * 10**9), "--train_batch_size=2000000000"),
}

# Found in records, when the devices and the model are made, or while training:
LATE = {
    "recipe and masks": (
        dict(recipe="roberta", input_file="{data}/masked.tfrecord"), "masked.tfrecord"),
    "checkpoint of another shape": (
        dict(init_checkpoint="{data}/other_shape/model.ckpt"), "--allow_partial_init"),
    "id in a later record": (
        dict(input_file="{data}/later_id.tfrecord"), "later_id.tfrecord, record 41"),
}

# Commands that work, in the same process:
BROKEN = dict(eval_input_file="{data}/dev.tfrecord", output_dir="{data}/broken")
WORKING = {
    "partial init": dict(
        master="grpc://a:1", num_tpu_cores=8, use_einsum="true", num_keep_checkpoint=2,
        albert_hub_module_handle="https://hub/albert",
        init_checkpoint="{data}/other_shape/model.ckpt", allow_partial_init="true",
        num_train_steps=1, input_file="{data}/named/train.tfrecord"),
    "records of another vocabulary": dict(
        input_file="{data}/renamed/train.tfrecord", output_dir="{data}/partial init"),
    "unbroken": dict(eval_input_file="{data}/dev.tfrecord"),
    # After a process of its own, which was killed.
    "stopped": BROKEN,
    "resumed": BROKEN,
    # A file system of TensorFlow's that is not the disk.
    "in a store": dict(eval_input_file="{data}/dev.tfrecord",
                       output_dir="ram://pretraining/run"),
    "in a store, resumed": dict(num_train_steps=61, output_dir="ram://pretraining/run"),
    "some of the evaluation": dict(
        do_eval="true", do_train="false", output_dir="{data}/unbroken",
        max_eval_steps=1),
    "pieces alone": dict(
        DYNAMIC, **NO_IDS, do_eval="true", num_train_steps=4, save_checkpoints_steps=2,
        input_file="{data}/records_none/train.tfrecord", eval_input_file=None),
    # Two trainings that change nothing: the same weights, evaluated by the same masks.
    "masks of the evaluation": dict(
        {**DYNAMIC, **NO_IDS, "max_predictions_per_seq": 3}, sentence_objective="none",
        input_file="{data}/records_none/train.tfrecord",
        eval_input_file="{data}/records_order/masked.tfrecord",
        learning_rate=1e-30, num_train_steps=1, save_checkpoints_steps=1),
    "masks of both": dict(
        sentence_objective="none", input_file="{data}/masked.tfrecord",
        eval_input_file="{data}/records_order/masked.tfrecord",
        learning_rate=1e-30, num_train_steps=1, save_checkpoints_steps=1),
    "schedules": dict(
        recipe="fast", num_train_steps=4, save_checkpoints_steps=2,
        config_overrides="num_hidden_layers=2", gradient_accumulation_steps=4),
    "short records": dict(
        input_file="{data}/short.tfrecord", max_seq_length=5, max_predictions_per_seq=2,
        num_train_steps=2, save_checkpoints_steps=2),
    "longer records": dict(output_dir="{data}/short records", num_train_steps=4),
    "other objective": dict(DYNAMIC, output_dir="{data}/pieces alone"),
    # In turn: trained in orders, evaluated, and gone on with masks, which is refused.
    "orders": dict(PERMUTATION, masked_lm_prob=None, num_train_steps=4,
                   save_checkpoints_steps=2, dynamic_masking="true"),
    "orders evaluated": dict(
        PERMUTATION, masked_lm_prob=None, output_dir="{data}/orders", do_train="false",
        do_eval="true", input_file=None),
    "masks after orders": dict(DYNAMIC, output_dir="{data}/orders", num_train_steps=4),
}


@pytest.fixture(scope="module", name="results")
def _results(data):
    """What each command gave."""
    seed = random.randrange(10**6)
    print("seed of the moments:", seed)
    moments = random.Random(seed)
    commands = {}
    for name in (*WORKING, *EARLY, *LATE):
        flags = WORKING.get(name) or {**EARLY, **LATE}[name][0]
        commands[name] = arguments(data, name, {**FLAGS, **flags})
    # A run within a process that has loaded TensorFlow is fast.
    commands["stopped"], kill = [
        "stop", data / "broken" / "checkpoint", moments.uniform(0, 0.05),
        *commands["stopped"]], commands["stopped"]

    def killed():
        process = start_program([SCRIPT, *kill])
        stop(process, data / "broken", signal.SIGKILL, moments.uniform(0, 0.5))
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        # What a kill amid the writing of a checkpoint leaves.
        (data / "broken" / "model.ckpt-best_temp1_temp").mkdir()

    with run_commands(SCRIPT[:-3], commands, EARLY, {"stopped": killed}) as results:
        yield results


@pytest.mark.parametrize("name", [*EARLY, *LATE])
def test_wrong_input_gives_one_sentence(name, results, data):
    pattern = {**EARLY, **LATE}[name][1].replace("{data}", str(data))
    results.refused(name, pattern, loaded=name in LATE)
    assert name in LATE or not (data / name).exists()


def test_partial_start_is_reported_and_old_flags_are_understood(results, data):
    log = results.ok("partial init")["log"]
    assert "different shape, keep their values: bert/encoder/" in log
    for name in ("master", "num_tpu_cores", "use_einsum", "albert_hub_module_handle"):
        assert f"--{name}: " in log
    assert "--num_keep_checkpoint: Same as --keep_checkpoint_max" in log
    options = json.loads((data / "partial init" / "options.json").read_text())
    assert options["keep_checkpoint_max"] == 2


def test_vocabulary_of_the_records_is_kept_with_the_model(results, data):
    kept = {"file": "a.txt", "sha256": "12", "size": 30}
    results.ok("partial init")
    path = data / "partial init" / "vocabulary.json"
    assert json.loads(path.read_text()) == kept
    # Where no summary says, nothing is claimed.
    results.ok("unbroken")
    assert not (data / "unbroken" / "vocabulary.json").exists()
    results.refused("records of another vocabulary", "a.txt is not the vocabulary of the "
                    f"model in {data}/partial init, ", loaded=True)


def test_a_recipe(results):
    result = results.ok("schedules")
    assert ("The recipe sets --decay_share=0.3, --depth_schedule=1:0.5,1:0.25,2:0.25"
            in result["log"])
    options = json.loads(result["files"]["options.json"])
    assert options["depth_schedule"] == "1:0.5,1:0.25,2:0.25"


def test_a_run_resumes_with_records_of_another_length(results, data):
    results.ok("short records")
    log = results.ok("longer records")["log"]
    assert "Resuming at step 2 from" in log
    assert "max_seq_length was 5 when this run started and is 8 now" in log
    assert metrics(data / "short records")[-1]["step"] == 4


def test_evaluation_keeps_the_masks_that_its_records_have(results, data):
    """However training is masked, and whatever their sentences' labels mean."""
    for name in ("masks of the evaluation", "masks of both"):
        results.ok(name)
    [row], other = (metrics(data / name, ["eval"]) for name in (
        "masks of the evaluation", "masks of both"))
    assert [row] == other and row["masked_lm_loss"] > 1


def test_without_the_sentence_loss_its_layers_stay_as_they_are(results, data):
    results.ok("pieces alone")
    rows = {row["split"]: row for row in metrics(data / "pieces alone")}
    for names in (rows["train"].keys(), rows["eval"].keys()):
        assert "masked_lm_loss" in names
        assert not [name for name in names if "sentence_order" in name]
    early, late = (
        stored(data / "pieces alone", f"model.ckpt-{n}", STATE) for n in (2, 4))
    frozen = {key for key in late if "pooler" in key or "seq_rel" in key}
    assert len(frozen) == 4 and not any("adam" in key for key in frozen)
    for key in late:
        same = np.array_equal(early[key], late[key])
        assert same == (key in frozen), key
    other = json.loads((data / "pieces alone" / "options.json").read_text())
    assert other["sentence_objective"] == "none"
    assert other["masked_lm_prob"] == 0.3 and other["special_ids"]["mask"] == 4
    kept = json.loads((data / "pieces alone" / "vocabulary.json").read_text())
    assert kept["special_ids"] == IDS._asdict()


@pytest.mark.parametrize("name, kept, given", [
    ("other objective", "--sentence_objective=none", "--sentence_objective is now order"),
    ("masks after orders", "--objective=permutation", "--objective is now masked")])
def test_a_run_keeps_its_objective(name, kept, given, results):
    results.refused(name, f"started with {kept}, but {given}. Choose a new", loaded=True)


def test_a_model_learns_and_is_evaluated_in_orders(results, data):
    log = results.ok("orders")["log"]
    assert "--dynamic_masking has no effect without --objective=masked" in log
    rows = metrics(data / "orders", ["eval"])
    assert [row["step"] for row in rows] == [2, 4]
    assert {"permutation_loss", "permutation_accuracy", "sentence_order_loss"} < (
        rows[0].keys())
    assert not [name for row in metrics(data / "orders") for name in row
                if "masked_lm" in name]
    options = json.loads((data / "orders" / "options.json").read_text())
    assert options["objective"] == "permutation" and "dynamic_masking" not in options
    assert options["masked_lm_prob"] == pytest.approx(1 / 6)
    # The same orders in each evaluation.
    results.ok("orders evaluated")
    found = json.loads((data / "orders" / "eval_results.json").read_text())
    assert found["permutation_loss"] == pytest.approx(rows[1]["permutation_loss"])


@pytest.fixture(name="start_workers")
def _start_workers(data):
    """Starts two workers that write to `folder`; the second with `other` arguments."""
    def start(folder, other=(), **changes):
        words = [SCRIPT, *arguments(data, "", dict(
            FLAGS, eval_input_file="{data}/dev.tfrecord", output_dir=folder,
            eval_batch_size=6, distribution_strategy="multi_worker_mirrored", **changes))]
        return start_cluster(words, [*words, *other])

    return start


@pytest.mark.slow
def test_two_workers_stopped_killed_and_resumed(start_workers, tmp_path):
    """A signal to one saves once and stops both. Then one dies between a checkpoint and
    its evaluation, for all it knows, and the other says so."""
    for worker in start_workers(tmp_path / "unbroken"):
        finish(worker)

    broken = tmp_path / "broken"
    workers = start_workers(broken)
    stop(workers[1], broken, signal.SIGTERM, 0.1)
    [step] = {re.search("Stopped by signal 15 at step (\\d+)", finish(
        worker, 128 + signal.SIGTERM))[1] for worker in workers}
    assert tf.train.latest_checkpoint(str(broken)).endswith(f"model.ckpt-{step}")

    workers = start_workers(broken)
    stop(workers[0], broken, 0, random.uniform(0, 0.3))
    workers[1].kill()
    output = finish(workers[0], 128 + signal.SIGTERM)
    assert f"Resuming at step {step} from" in output
    assert "another worker has ended or cannot be reached (" in output
    workers[1].communicate()
    latest = int(tf.train.latest_checkpoint(str(broken)).split("-")[-1])
    (broken / "metrics.jsonl").write_text("".join(
        json.dumps(row) + "\n" for row in metrics(broken)
        if (row["split"], row["step"]) != ("eval", latest)))
    for worker in start_workers(broken):
        finish(worker)
    assert_same_end(broken, tmp_path / "unbroken")


@pytest.mark.slow
def test_only_the_chief_writes_and_workers_start_together(start_workers, data, tmp_path):
    folder, elsewhere = tmp_path / "0", [f"--output_dir={tmp_path}/1"]
    for worker in start_workers(folder, elsewhere, num_train_steps=10):
        finish(worker)
    assert (folder / "model.ckpt-10.index").exists()
    assert not list((tmp_path / "1").iterdir())
    # The second does not see the checkpoint of the first.
    for worker in start_workers(folder, elsewhere, num_train_steps=10):
        assert "the workers start at different steps ([10, 0])" in finish(worker, 1)
    for worker in start_workers(
            folder, [f"--eval_input_file={data}/train.tfrecord"], num_train_steps=20):
        assert "the workers evaluate on different sets" in finish(worker, 1)
