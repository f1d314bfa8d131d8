"""run_pretraining.py as a user starts it: wrong inputs, kills, masks drawn while it
trains, several workers.

    python -m pytest tests/scripts/test_run_pretraining.py
"""

import json
import random
import re
import signal
import time

import numpy as np
import pytest
import tensorflow as tf

from albert_tf import records
from albert_tf.checkpoints import tokenizer_files
from albert_tf.checkpoints.restore import export_tf1
from albert_tf.masking.options import SpecialIds
from albert_tf.tokenization.tokenizer import vocabulary_of
from albert_tf.training import log as run_log
from tests import models, tiny_run
from tests.commands import finish, run_commands, start_cluster, start_program
from tests.tiny_run import STATE, assert_equal_tensors, stored
from tests.helpers import serialized

pytestmark = pytest.mark.long

SCRIPT = "run_pretraining.py"
STEPS = 60
FLAGS = dict(
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


def arguments(data, **changes):
    """The tiny run's command line; None leaves a flag out."""
    values = {**FLAGS, "input_file": "{data}/train.tfrecord",
              "albert_config_file": "{data}/config.json", **changes}
    return [f"--{name}={value}".replace("{data}", str(data))
            for name, value in values.items() if value is not None]


def write(path, rows):
    path.parent.mkdir(exist_ok=True)
    with records.RecordWriter(str(path)) as writer:
        for row in rows:
            writer.write(serialized(tiny_run.SPEC, row))


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


def write_with_summary(path, rows, instances=None, /, **vocabulary):
    write(path, rows)
    (path.parent / f"summary-{path.name}.json").write_text(json.dumps({
        "settings": {"output_files": [path.name], "instances": instances or {}},
        "vocabulary": {"file": "a.txt", "sha256": "12", "size": 30, **vocabulary}}))


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
    good = (folder / "train.tfrecord").read_bytes()
    (folder / "truncated.tfrecord").write_bytes(good[:-100])
    rows[40]["input_ids"][1] = tiny_run.VOCAB_SIZE
    write(folder / "later_id.tfrecord", rows)
    rows = tiny_run.examples(9, 1)
    write_with_summary(folder / "named" / "train.tfrecord", rows)
    write_with_summary(folder / "renamed" / "train.tfrecord", rows, sha256="34")
    words = folder / "words.txt"
    words.write_text("".join(f"{piece}\n" for piece in (
        "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxy")))
    write_with_summary(
        folder / "described" / "train.tfrecord", rows, kind="WordPiece",
        do_lower_case=False, path=str(words), **vocabulary_of(str(words)))
    write(folder / "unmasked.tfrecord", rows_with_words(30, 1))
    write(folder / "unmasked_dev.tfrecord", rows_with_words(9, 2))
    write(folder / "masked.tfrecord", rows_with_words(9, 3, masked=2))
    write_with_summary(
        folder / "records_order" / "masked.tfrecord", rows_with_words(9, 3, masked=2),
        {"sentence_objective": "order"}, special_ids=IDS._asdict())
    write_with_summary(
        folder / "records_none" / "train.tfrecord", rows_with_words(9, 4),
        {"sentence_objective": "none"}, special_ids=IDS._asdict())
    export_tf1(models.AlbertForPreTraining(tiny_run.config(intermediate_size=20)),
               str(folder / "other_shape" / "model.ckpt"))
    return folder


# ---- a run, its evaluation, and the same run killed ------------------------


def metrics(folder):
    return run_log.read_metrics(str(folder / "metrics.jsonl"))


def evaluations(folder):
    return [row for row in metrics(folder) if row["split"] == "eval"]


def assert_same_end(folder, other, step=STEPS):
    for name in (f"model.ckpt-{step}", "model.ckpt-best"):
        found, expected = (stored(each, name, STATE) for each in (folder, other))
        assert any("adam_v" in key for key in expected)
        assert_equal_tensors(found, expected)
    assert evaluations(folder) == evaluations(other)
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


# ---- wrong inputs ----------------------------------------------------------

# name → (flags, the flag or file that is named), {data} stands for the folder. What is
# wrong with files, configs and devices, the tests of their checks have more of.
# Found before TensorFlow is loaded:
EARLY = {
    "no match": (dict(input_file="{data}/nothing-*"), r"'{data}/nothing-\*'"),
    "positions": (dict(max_seq_length=9), "--max_seq_length 9 .* max_position_embeddings 8"),
    "no model": (dict(albert_config_file=None), "--albert_config_file=FILE or --model=NAME"),
    "truncated": (
        dict(input_file="{data}/train.tfrecord,{data}/truncated.tfrecord"),
        "truncated.tfrecord, record 50"),
    "no output_dir": (dict(output_dir=None), "--output_dir"),
    "nothing to do": (dict(do_train="false"), "nothing to do: give --do_train or"),
    "memory of a batch": (dict(train_batch_size=2 * 10**9), "--train_batch_size=2000000000"),
    "recipe and masks": (
        dict(recipe="roberta", input_file="{data}/masked.tfrecord"), "masked.tfrecord"),
    "no ids": ({**DYNAMIC, **NO_IDS}, "--cls_id, --sep_id and --mask_id"),
    "nothing masked": ({**DYNAMIC, "masked_lm_prob": 0}, "--masked_lm_prob=0"),
    "no rate": (dict(learning_rate="nan"), "--learning_rate=nan"),
}

# Found when the devices and the model are made, or while training:
LATE = {
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
    "with its vocabulary": dict(
        input_file="{data}/described/train.tfrecord", num_train_steps=1),
    "with a given vocabulary": dict(
        num_train_steps=1, vocab_file="{data}/words.txt"),
    "other objective": dict(DYNAMIC, output_dir="{data}/pieces alone"),
    # In turn: trained in orders, evaluated, and gone on with masks, which is refused.
    "orders": dict(PERMUTATION, masked_lm_prob=None, num_train_steps=4,
                   save_checkpoints_steps=2, dynamic_masking="true"),
    "orders evaluated": dict(
        PERMUTATION, masked_lm_prob=None, output_dir="{data}/orders", do_train="false",
        do_eval="true", input_file=None),
    "masks after orders": dict(DYNAMIC, output_dir="{data}/orders", num_train_steps=4),
    "orders after masks": dict(PERMUTATION, output_dir="{data}/unbroken",
                               do_train="false", do_eval="true"),
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
        commands[name] = arguments(
            data, **{"output_dir": f"{{data}}/{name}", **flags})
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


def test_partial_start_is_reported_and_old_flags_are_understood(results, data):
    log = results.ok("partial init")["log"]
    assert "different shape, keep their values: bert/encoder/" in log
    for name in ("master=grpc://a:1", "num_tpu_cores=8", "use_einsum=True",
                 "albert_hub_module_handle=https://hub/albert"):
        assert f"--{name} has no effect: " in log
    assert "--num_keep_checkpoint is now called --keep_checkpoint_max" in log
    options = json.loads((data / "partial init" / "options.json").read_text())
    assert options["keep_checkpoint_max"] == 2


@pytest.mark.parametrize("name, lower", [("with its vocabulary", False),
                                         ("with a given vocabulary", True)])
def test_the_model_s_folder_holds_its_vocabulary(name, lower, results, data):
    assert "is not found" not in results.ok(name)["log"]
    found = tokenizer_files.find(str(data / name))
    assert found.path == str(data / name / "words.txt")
    assert (found.word_piece, found.do_lower_case) == (True, lower)
    assert re.search(r"The vocabulary of the records is not found.*Give it as --spm_m",
                     results.ok("unbroken")["log"])


def test_vocabulary_of_the_records_is_kept_with_the_model(results, data):
    kept = {"file": "a.txt", "sha256": "12", "size": 30}
    results.ok("partial init")
    path = data / "partial init" / "vocabulary.json"
    assert json.loads(path.read_text()) == kept
    # Where no summary says, nothing is claimed.
    results.ok("unbroken")
    assert not (data / "unbroken" / "vocabulary.json").exists()
    result = results["records of another vocabulary"]
    assert result["status"] == 1
    assert result["stderr"].startswith(
        f"{SCRIPT}: a.txt is not the vocabulary of the model in {data}/partial init, ")


def test_a_recipe(results):
    result = results.ok("schedules")
    assert ("The recipe sets --decay_share=0.3, --depth_schedule=1:0.5,1:0.25,2:0.25."
            in result["log"])
    options = json.loads(result["files"]["options.json"])
    assert options["depth_schedule"] == "1:0.5,1:0.25,2:0.25"


def test_a_run_resumes_with_records_of_another_length(results, data):
    results.ok("short records")
    log = results.ok("longer records")["log"]
    assert "Resuming at step 2 from" in log
    assert "max_seq_length was 5 when this run started and is 8 now" in log
    assert metrics(data / "short records")[-1]["step"] == 4


def test_start_that_fails_leaves_nothing(results, data):
    assert results["truncated"]["status"] == 1
    assert not (data / "truncated").exists()


# ---- masks drawn while training, the sentence objective of the records -------


@pytest.mark.slow
def test_killed_run_of_masks_of_its_own_ends_as_the_unbroken_one(data, tmp_path):
    """SIGKILL at a random moment behind a checkpoint, twice. Depth grows meanwhile."""
    for name, kills in (("unbroken", 0), ("killed", 2)):
        folder = tmp_path / name
        args = arguments(
            data, output_dir=folder, config_overrides="num_hidden_layers=3",
            depth_schedule="1:0.4,2:0.3,3:0.3", **DYNAMIC)
        for _ in range(kills):
            process = start_program([SCRIPT, *args])
            stop(process, folder, signal.SIGKILL, random.uniform(0, 0.3))
            process.communicate()
        output = finish(start_program([SCRIPT, *args]))
    assert "Resuming at step" in output
    assert_same_end(tmp_path / "killed", tmp_path / "unbroken")


def test_evaluation_keeps_the_masks_that_its_records_have(results, data):
    """However training is masked, and whatever their sentences' labels mean."""
    rows = []
    for name in ("masks of the evaluation", "masks of both"):
        results.ok(name)
        rows += [row for row in metrics(data / name) if row["split"] == "eval"]
    assert rows[0] == rows[1] and rows[0]["masked_lm_loss"] > 1


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
    # Nor can a run take them up again half-way.
    assert results["other objective"]["status"] == 1
    assert re.search(
        "the run in .*/pieces alone was started with --sentence_objective=none, but "
        "--sentence_objective is now order. Choose a new", results["other objective"]["stderr"])
    log = results["pieces alone"]["log"]
    assert "New masks are drawn each time: 2 tokens of a sequence of 8" in log


# ---- orders in place of masks ------------------------------------------------


def test_a_model_learns_and_is_evaluated_in_orders(results, data):
    log = results.ok("orders")["log"]
    assert "New orders are drawn each time: 1 tokens of a sequence of 8" in log
    assert "--dynamic_masking has no effect with --objective=permutation" in log
    rows = evaluations(data / "orders")
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


def test_a_run_keeps_its_objective(results):
    for name, pattern in (
            ("masks after orders", "the run in .*/orders was started with "
             "--objective=permutation, but --objective is now masked. Choose a new"),
            ("orders after masks", "the run in .*/unbroken was started with "
             "--objective=masked, but --objective is now permutation. Choose a new")):
        assert results[name]["status"] == 1
        assert re.search(pattern, results[name]["stderr"]), results[name]["stderr"]


# ---- several workers -------------------------------------------------------


def start_workers(args, other_args=None):
    """Two workers; the second with other arguments where they are given."""
    return start_cluster([SCRIPT, *args], [SCRIPT, *(other_args or args)])


def worker_arguments(data, folder, **changes):
    return arguments(
        data, eval_input_file="{data}/dev.tfrecord", output_dir=folder,
        eval_batch_size=6, distribution_strategy="multi_worker_mirrored", **changes)


@pytest.mark.slow
def test_two_workers_killed_and_resumed(data, tmp_path):
    """The kill falls between a checkpoint and its evaluation, for all they know."""
    for worker in start_workers(worker_arguments(data, tmp_path / "unbroken")):
        finish(worker)

    killed = tmp_path / "killed"
    workers = start_workers(worker_arguments(data, killed))
    stop(workers[0], killed, 0, random.uniform(0, 1))
    workers[1].kill()
    assert "another worker has ended or cannot be reached (" in finish(
        workers[0], 128 + signal.SIGTERM)
    workers[1].communicate()
    latest = tf.train.latest_checkpoint(str(killed))
    rows = [row for row in metrics(killed)
            if (row["split"], row["step"]) != ("eval", int(latest.split("-")[-1]))]
    (killed / "metrics.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in rows))

    for worker in start_workers(worker_arguments(data, killed)):
        finish(worker)
    assert_same_end(killed, tmp_path / "unbroken")


@pytest.mark.slow
def test_a_signal_to_one_worker_saves_once_and_stops_all(data, tmp_path):
    """A pre-emption; then the chief dies, and the other says so."""
    def args():
        return worker_arguments(data, tmp_path, num_train_steps=10**6,
                                save_checkpoints_steps=1000, iterations_per_loop=100)

    workers = start_workers(args())
    stop(workers[1], tmp_path, signal.SIGTERM, 0.1)
    outputs = [finish(worker, 128 + signal.SIGTERM) for worker in workers]
    steps = {re.search("Stopped by signal 15 at step (\\d+)", output)[1]
             for output in outputs}
    [step] = steps
    assert tf.train.latest_checkpoint(str(tmp_path)).endswith(f"model.ckpt-{step}")

    workers = start_workers(args())
    stop(workers[0], tmp_path, signal.SIGKILL, 0.1)
    workers[0].communicate()
    output = finish(workers[1], 128 + signal.SIGTERM)
    assert f"Resuming at step {step} from" in output
    assert "another worker has ended or cannot be reached (" in output


@pytest.mark.slow
def test_only_the_chief_writes_and_workers_start_together(data, tmp_path):
    def args(index, *more):
        return [*worker_arguments(data, tmp_path / str(index), num_train_steps=10), *more]

    for worker in start_workers(args(0), args(1)):
        finish(worker)
    assert (tmp_path / "0" / "model.ckpt-10.index").exists()
    assert not list((tmp_path / "1").iterdir())
    # The second does not see the checkpoint of the first.
    for worker in start_workers(args(0), args(1)):
        assert "the workers start at different steps ([10, 0])" in finish(worker, 1)
    more = "--num_train_steps=20"
    for worker in start_workers(args(0, more), args(
            0, more, f"--eval_input_file={data}/train.tfrecord")):
        assert "the workers evaluate on different sets" in finish(worker, 1)
