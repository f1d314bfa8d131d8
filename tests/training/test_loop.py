"""The loop: where a run starts, what it leaves behind, when it stops."""

import concurrent.futures
import json
import os
import pathlib
import shutil
import signal
import time

import numpy as np
import pytest
import tensorflow as tf

from albert_tf import files
from albert_tf.checkpoints.folders import read_tensors, write_whole
from albert_tf.checkpoints.restore import export_tf1, load_tf1_tensors
from albert_tf.errors import DivergenceError, InputError, Stopped
from albert_tf.records.checks import check_files
from albert_tf.training import (
    input_pipeline, log, loop, optimization, run_folder, steps)
from albert_tf.training.data import PretrainingData
from albert_tf.training.evaluation import Evaluator
from albert_tf.training.options import RunOptions, StepOptions, check_batch_sizes
from albert_tf.training.schedules import Phases
from tests import models, tiny_run
from tests.tiny_run import STATE, assert_equal_tensors, stored

STEPS = 12
CONFIG = dict(num_hidden_layers=1, hidden_dropout_prob=0.1)


# A run in graphs, killed and stopped, is in scripts/test_run_pretraining.
pytestmark = pytest.mark.usefixtures("eager", "without_curves")


@pytest.fixture(scope="module", name="data")
def _data(tmp_path_factory):
    """50 records to train on, 13 to evaluate on: an epoch ends within step 7."""
    folder = tmp_path_factory.mktemp("data")
    return tuple(
        check_files([tiny_run.write_records(folder / f"{name}.tfrecord", n, n)],
                            tiny_run.SPEC) for name, n in (("train", 50), ("dev", 13)))


def make_run(output_dir, data, train=True, rate=0.1, config=None, depth=None,
             evaluation_set=None, callbacks=(), **options):
    """A run of STEPS steps with a checkpoint every third."""
    train_infos, dev_infos = data
    config = tiny_run.config(**{**CONFIG, **(config or {})})
    options = RunOptions(output_dir=str(output_dir), **{
        **dict(num_train_steps=STEPS, train_batch_size=8, eval_batch_size=7,
               iterations_per_loop=2, save_checkpoints_steps=3,
               keep_checkpoint_max=0), **options})

    batches = input_pipeline.RecordBatches(
        tiny_run.SPEC, train_infos, dev_infos, seed=3,
        train_batch_size=options.train_batch_size,
        eval_batch_size=options.eval_batch_size)

    # Not by a global seed, with which TensorFlow forgets every compiled operation.
    model = models.AlbertForPreTraining(config)
    load_tf1_tensors(model, tiny_run.weights_of(model, 1, 0.02))
    optimizer = None
    if train:
        optimizer = optimization.create_optimizer(rate, STEPS, 0)
        optimizer.build(model.trainable_variables)
    return loop.Run(
        # The masked-LM accuracy of so short a run does not change.
        tiny_run.task(model, best_metric="sentence_order_accuracy"), config, options,
        batches, optimizer, dict(learning_rate=rate), depth,
        evaluation_set or {"dev data": "a"}, callbacks)


class Events(list):
    """Keeps what it is called with, and whether the checkpoint was there then."""

    def __call__(self, event):
        self.append(event)
        assert event.checkpoint is None or files.exists(f"{event.checkpoint}.index")

    def places(self):
        return [(event.step, event.split) for event in self]


@pytest.fixture(scope="module", name="events")
def _events(tmp_path_factory, data, eager, without_curves):
    """What callbacks get of a run."""
    events = Events()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "draw_curves", lambda log, path, *_: shutil.copy(log, path))
        make_run(tmp_path_factory.mktemp("finished"), data, callbacks=[events]).train()
    return events


@pytest.fixture(name="finished")
def _finished(events):
    return pathlib.Path(events[0].output_dir)


@pytest.fixture(name="copy")
def _copy(finished, tmp_path):
    """A copy of the finished run, to spoil."""
    return pathlib.Path(shutil.copytree(finished, tmp_path / "run"))


def go_back_to(folder, step):
    """As if the run had been killed after the checkpoint of `step`."""
    for path in folder.glob("model.ckpt-[0-9]*"):
        if int(path.name.split("-")[1].split(".")[0]) > step:
            path.unlink()
    steps_left = range(3, step + 1, 3)
    tf.compat.v1.train.update_checkpoint_state(
        str(folder), f"model.ckpt-{step}", [f"model.ckpt-{left}" for left in steps_left],
        all_model_checkpoint_timestamps=[*map(float, steps_left)])


def rows_of(folder, split):
    return [row for row in log.read_metrics(str(folder / "metrics.jsonl"))
            if row["split"] == split]


def without_speed(rows):
    return [{k: v for k, v in row.items() if k not in ("steps_per_second", "set")}
            for row in rows]


def checkpoints(folder):
    return sorted(int(p.name[len("model.ckpt-"):-len(".index")])
                  for p in folder.glob("model.ckpt-[0-9]*.index"))


def test_rows_fall_on_round_steps_and_checkpoints(finished):
    train, evaluation = rows_of(finished, "train"), rows_of(finished, "eval")
    assert [row["step"] for row in train] == [2, 3, 4, 6, 8, 9, 10, 12]
    assert [row["step"] for row in evaluation] == [3, 6, 9, 12]
    for row in train:
        assert {"masked_lm_loss", "sentence_order_accuracy", "gradient_norm"} < row.keys()
        assert row["steps_per_second"] > 0
    # The mean of the rates of the steps before it, of which the first has number 0.
    assert train[0]["learning_rate"] == pytest.approx(0.1 * (1 - 0.5 / 12))
    assert train[1]["learning_rate"] == pytest.approx(0.1 * (1 - 2 / 12))


def test_files_of_a_run(finished):
    assert checkpoints(finished) == [3, 6, 9, 12]
    assert (finished / "curves.png").exists()
    options = json.loads((finished / "options.json").read_text())
    assert options["train_batch_size"] == 8 and options["learning_rate"] == 0.1
    assert options["random_seed"] == 12345 and options["num_replicas"] == 1
    results = json.loads((finished / "eval_results.json").read_text())
    last = rows_of(finished, "eval")[-1]
    assert results == {k: v for k, v in last.items() if k not in ("split", "set")}
    # The best checkpoint holds the weights of the best step.
    evaluation = rows_of(finished, "eval")
    accuracies = [row["sentence_order_accuracy"] for row in evaluation]
    best = evaluation[int(np.argmax(accuracies))]["step"]
    assert_equal_tensors(read_tensors(str(finished / "model.ckpt-best")),
                         read_tensors(str(finished / f"model.ckpt-{best}")))
    assert len(set(accuracies)) > 1


def test_a_run_killed_before_its_first_list_is_resumed(
        data, tmp_path, monkeypatch, caplog):
    def run():
        make_run(tmp_path, (data[0], None), num_train_steps=2,
                 save_checkpoints_steps=1).train()

    with monkeypatch.context() as patch, pytest.raises(TypeError):
        patch.setattr(tf.train.CheckpointManager, "_record_state", None)
        run()
    assert checkpoints(tmp_path) == [1] and not (tmp_path / "checkpoint").exists()
    run()
    assert "Resuming at step 1 from" in caplog.text
    assert checkpoints(tmp_path) == [1, 2]


def test_a_different_evaluation_set_starts_a_new_best(copy, data, caplog):
    go_back_to(copy, 9)
    make_run(copy, data, evaluation_set={"dev data": "b"}).train()
    assert "different set (dev data changed)" in caplog.text
    assert [row["set"]["dev data"] for row in rows_of(copy, "eval")] == [*"aaab"]
    assert_equal_tensors(*(read_tensors(str(copy / f"model.ckpt-{name}"))
                           for name in ("best", "12")))


def test_evaluation_records_are_told_apart(data, tmp_path):
    def identity(infos, eval_batch_size=4, max_eval_steps=0):
        return PretrainingData(0, None, None, (), infos, None, "order", None).evaluation_set(
            eval_batch_size, max_eval_steps)

    def same_name(folder, seed):
        (tmp_path / folder).mkdir()
        return check_files([tiny_run.write_records(
            tmp_path / folder / "dev.tfrecord", 13, seed)], tiny_run.SPEC)

    assert identity(data[1]) == identity(same_name("moved", 13))
    assert identity(data[1]) == identity(data[1], max_eval_steps=4)
    assert identity(data[1], max_eval_steps=2)["number of sequences"] == 8
    for other in (identity(data[0]), identity(same_name("other", 14)),
                  identity(data[1], max_eval_steps=2), identity(None)):
        assert other != identity(data[1])


def test_callbacks_get_metrics_and_checkpoints(events, finished):
    assert events.places()[:6] == [(2, "train"), (3, "train"), (3, "eval"), (4, "train"),
                                   (6, "train"), (6, "eval")]
    for split in ("train", "eval"):
        of_split = [event for event in events if event.split == split]
        assert {event.checkpoint for event in of_split} == ({None} if split == "train" else {
            str(finished / f"model.ckpt-{step}") for step in (3, 6, 9, 12)})
        assert without_speed([{"step": event.step, "split": split, **event.metrics}
                              for event in of_split]) == without_speed(
                                  rows_of(finished, split))
        # What TensorBoard's files hold.
        written = {}
        for path in sorted(finished.glob(f"tensorboard/{split}/*")):
            for event in tf.compat.v1.train.summary_iterator(str(path)):
                for value in event.summary.value:
                    written.setdefault(event.step, {})[value.tag] = float(
                        tf.make_ndarray(value.tensor))
        assert written == {event.step: pytest.approx(event.metrics, rel=1e-6)
                           for event in of_split}


def test_a_run_without_evaluation(data, tmp_path, caplog):
    """Callbacks get its checkpoints; the log has its start and its end."""
    events = Events()
    assert make_run(tmp_path, (data[0], None), callbacks=[events], num_train_steps=2,
                    save_checkpoints_steps=1).train() is None
    assert [(event.step, event.checkpoint) for event in events if not event.metrics] == [
        (step, str(tmp_path / f"model.ckpt-{step}")) for step in (1, 2)]
    assert not (tmp_path / "tensorboard" / "eval").exists()
    assert not (tmp_path / "model.ckpt-best.index").exists()
    assert f"Starting at step 0 from random weights: {tmp_path} holds no" in caplog.text
    assert any(line.startswith("training: 2 of 2 ") for line in caplog.messages)


@pytest.mark.parametrize("place, saved, error", [
    ((2, "train"), [2], ConnectionError("no route")),  # Between two checkpoints.
    ((3, "eval"), [3], SystemExit("enough"))])  # At the end; a callback may end a run.
def test_a_failing_callback_ends_the_run_after_saving(
        place, saved, error, finished, data, tmp_path):
    def log_elsewhere(event):
        event.metrics.clear()  # Which concerns nobody else.
        if (event.step, event.split) == place:
            raise error

    events = Events()
    with pytest.raises((InputError, SystemExit), match="^enough$|log_elsewhere .* step "
                       f"{place[0]} .*no route.*{tmp_path}") as caught:
        make_run(tmp_path, data, callbacks=[log_elsewhere, events],
                 num_train_steps=3).train()
    assert error in (caught.value, caught.value.__cause__)
    assert events.places()[-1] == place and all(event.metrics for event in events)
    assert checkpoints(tmp_path) == saved
    make_run(tmp_path, data, num_train_steps=3).train()
    assert_equal_tensors(*(stored(each, "model.ckpt-3", STATE)
                           for each in (tmp_path, finished)))
    assert rows_of(tmp_path, "eval") == rows_of(finished, "eval")[:1]


def test_resumed_run_ends_as_the_unbroken_one(finished, copy, data, caplog):
    go_back_to(copy, 6)
    leftovers = [
        "model.ckpt-9_temp/part-00000-of-00001.index", "checkpoint.tmp12ab",
        "metrics.jsonl.incomplete", "train.tf_record.incomplete-0a1b2c3d"]
    for name in leftovers:
        (copy / name).parent.mkdir(exist_ok=True)
        (copy / name).write_text("cut off")
    (copy / "notes_temp.txt").write_text("the user's")
    with open(copy / "metrics.jsonl", "a", encoding="utf-8") as stream:
        stream.write('{"step": 12, "spl')

    make_run(copy, data, keep_checkpoint_max=2).train()

    assert f"Resuming at step 6 from {copy}/model.ckpt-6." in caplog.text
    assert_equal_tensors(
        stored(copy, "model.ckpt-12"), stored(finished, "model.ckpt-12"))
    for split in ("train", "eval"):
        assert (without_speed(rows_of(copy, split))
                == without_speed(rows_of(finished, split)))
    assert checkpoints(copy) == [9, 12]
    assert not any((copy / name).exists() for name in leftovers)
    assert (copy / "notes_temp.txt").exists()
    for warning in "different set", "result will match neither":
        assert warning not in caplog.text


@pytest.mark.long
def test_depth_that_grows(data, tmp_path):
    """Evaluation is of all passes, whoever loads the checkpoint."""
    how = dict(config=dict(num_hidden_layers=2), num_train_steps=6)
    make_run(tmp_path / "run", data, depth=Phases((1, 2), (3, 6)), **how).train()
    metrics = make_run(tmp_path / "run", data, train=False, **how).evaluate()
    last = rows_of(tmp_path / "run", "eval")[-1]
    assert metrics == pytest.approx({name: last[name] for name in metrics})


def test_evaluation_that_a_kill_prevented_is_made_up_for(finished, copy, data):
    rows = log.read_metrics(str(copy / "metrics.jsonl"))
    (copy / "metrics.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in rows[:-1]))
    make_run(copy, data).train()
    assert without_speed(rows_of(copy, "eval"))[-1] == pytest.approx(
        without_speed(rows)[-1])
    assert checkpoints(copy) == checkpoints(finished)


@pytest.mark.parametrize("name", ["a", "b"])
def test_finished_run_has_nothing_to_do(name, copy, data, caplog):
    """On a different evaluation set either; the best stays that of its own."""
    before = {path: path.read_bytes() for path in copy.glob("*.*") if path.is_file()}
    make_run(copy, data, evaluation_set={"dev data": name}).train()
    assert "Step 12 of 12 is reached: nothing to train." in caplog.text
    assert all(path.read_bytes() == content for path, content in before.items())


def test_changed_options_are_named(copy, data, caplog):
    make_run(copy, data, rate=0.2, train_batch_size=16, eval_batch_size=2).train()
    warnings = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert [w.partition(" when")[0] for w in warnings if "when this run started" in w] == [
        "train_batch_size was 8", "learning_rate was 0.1"]
    assert json.loads((copy / "options.json").read_text())["train_batch_size"] == 8


@pytest.mark.parametrize("kept, expected", [
    (4, 4), (32, 32), *((value, 16) for value in (3, 0, -4, "4", True, 2.0))])
def test_streams_of_a_run_stay_as_they_were(tmp_path, kept, expected):
    (tmp_path / "options.json").write_text(json.dumps({"streams": kept}))
    # Options alone, without a checkpoint, are those of a run that never saved.
    assert run_folder.streams(str(tmp_path), 10**6, 32) == 16
    (tmp_path / "model.ckpt-best.index").touch()
    assert run_folder.streams(str(tmp_path), 10**6, 32) == expected
    assert run_folder.changed_options(str(tmp_path), {"streams": expected}) == (
        {} if kept == expected else {"streams": (kept, expected)})


HALF = dict(step=StepOptions(dtype="float16"))


@pytest.mark.long
def test_float16_goes_on_with_its_scale_and_from_other_types(
        data, tmp_path, monkeypatch, caplog):
    def half(name="half", **options):
        run = make_run(tmp_path / name, (data[0], None), **options)
        run.train()
        return run

    monkeypatch.setattr(steps, "GROWTH_STEPS", 4)
    half(**HALF)
    shutil.copytree(tmp_path / "half", tmp_path / "resumed")
    go_back_to(tmp_path / "resumed", 6)
    half("resumed", **HALF)
    expected = stored(tmp_path / "half", "model.ckpt-12")
    found = {name.split("/")[1]: value for name, value in expected.items()
             if name.startswith("loss_scaling/")}
    assert found == {"scale": 8 * steps.INITIAL_SCALE, "good_steps": 0,
                     "skipped_steps": 0}
    assert_equal_tensors(stored(tmp_path / "resumed", "model.ckpt-12"), expected)
    rows, resumed = (rows_of(tmp_path / name, "train") for name in ("half", "resumed"))
    assert without_speed(resumed) == without_speed(rows)
    assert [row["loss_scale"] / steps.INITIAL_SCALE
            for row in rows] == [1, 1, 2, 2, 4, 4, 4, 8]
    # Without, and again with it.
    go_back_to(tmp_path / "half", 9)
    half()
    assert 'dtype was "float16" when this run started and is null' in caplog.text
    assert "loss_scaling" not in "".join(stored(tmp_path / "half", "model.ckpt-12"))
    run = half(num_train_steps=13, **HALF)
    assert "model.ckpt-12 holds no loss_scaling, which therefore starts" in caplog.text
    assert run.scaling.values() == {
        "loss_scale": steps.INITIAL_SCALE, "skipped_steps": 0}
    assert run.scaling.good_steps.numpy() == 1


def test_weights_to_evaluate(copy, tmp_path, finished, data, caplog):
    """The folder's own, else those of init_checkpoint at step 0; they need a fitting
    model, and a failure does not tie the folder to its config."""
    new, init = tmp_path / "new", dict(init_checkpoint=str(finished / "model.ckpt-3"))
    metrics = make_run(
        copy, data, train=False, **init, eval_batch_size=5, train_batch_size=7).evaluate()
    last = rows_of(copy, "eval")[-1]
    assert metrics == pytest.approx({name: last[name] for name in metrics}, rel=1e-5)
    assert f"Using {copy}/model.ckpt-12, step 12." in caplog.text
    with pytest.raises(InputError, match="no model to use: .* no checkpoint"):
        make_run(new, data, train=False).evaluate()
    with pytest.raises(InputError, match="a different shape"):
        make_run(new, data, train=False, config=dict(hidden_size=4), **init).evaluate()
    run = make_run(new, data, train=False, **init)
    metrics = run.evaluate()
    assert run.current_step == 0
    assert f"Starting at step 0 from the weights of {finished}/model.ckpt-3." in caplog.text
    assert metrics["masked_lm_loss"] == pytest.approx(
        rows_of(finished, "eval")[0]["masked_lm_loss"], rel=1e-6)


def spoil_data(prefix, data=None):
    path = prefix.with_name(f"{prefix.name}.data-00000-of-00001")
    content = bytearray(path.read_bytes())
    for at in range(0, len(content), 50):
        content[at] ^= 255
    path.write_bytes(content)


def spoil_moments(prefix, data):
    """Saves the run's state anew with a number that is none."""
    run = make_run(prefix.parent, data)
    run.checkpoint.restore(str(prefix))
    moment = run.optimizer.slots["bert/pooler/dense/kernel/adam_v"]
    moment.assign(np.full(moment.shape, np.inf))
    write_whole(run.checkpoint, str(prefix))


@pytest.mark.long
@pytest.mark.parametrize("spoil, message, other", [
    (spoil_data, "damaged", "9"),
    (spoil_moments, "pooler/dense/kernel/adam_v holds NaN", "{copy}/model.ckpt-best")])
def test_bad_checkpoint_and_the_way_out(spoil, message, other, copy, finished, data):
    spoil(copy / "model.ckpt-12", data)
    with pytest.raises(InputError, match=f"model.ckpt-12: .*{message}.*--resume_from=STEP"):
        make_run(copy, data, num_train_steps=15).train()
    # What the message says to do.
    make_run(copy, data, resume_from=other.format(copy=copy)).train()
    assert_equal_tensors(*(
        stored(folder, "model.ckpt-12", STATE) for folder in (copy, finished)))
    with pytest.raises(InputError, match="model.ckpt-5: there is no checkpoint"):
        make_run(copy, data, resume_from="5").train()


def test_bad_best_checkpoint_and_the_ways_out(copy, data):
    spoil_data(copy / "model.ckpt-best")
    run = make_run(copy, data, train=False)
    with pytest.raises(InputError, match=(
            f"^{copy}/model.ckpt-best: cannot be restored.*--resume_from=STEP ")):
        run.evaluate(best=True)
    make_run(copy, data, train=False, resume_from="12").evaluate(best=True)
    for path in copy.glob("model.ckpt-best.*"):
        path.unlink()
    run.evaluate(best=True)
    assert run.current_step == 12


def test_another_model_than_that_of_the_run_is_refused(copy, data):
    with pytest.raises(InputError, match="num_attention_heads is 2 there and 4 here") as caught:
        make_run(copy, data, train=False, config=dict(num_attention_heads=4)).evaluate()
    assert "--resume_from" not in str(caught.value)
    (copy / "albert_config.json").unlink()  # It would be compared first.
    with pytest.raises(InputError, match="model.ckpt-12: .*a different shape"):
        make_run(copy, data, train=False, config=dict(hidden_size=4)).evaluate()


def test_what_no_run_saved_is_not_resumed_at(copy, data, broken):
    with pytest.raises(InputError, match="model.ckpt: this checkpoint holds no step"):
        make_run(copy, data, resume_from=broken).train()


@pytest.mark.parametrize("name, content, message", [
    ("model.ckpt-12.index", "cut", "model.ckpt-12"),
    ("model.ckpt-12.data-00000-of-00001", "cut", "model.ckpt-12"),
    ("model.ckpt-12.index", None, "model.ckpt-12.*--resume_from=STEP"),
    ("checkpoint", None, "checkpoint.*--resume_from=STEP"),
    *(("checkpoint", content, "checkpoint .*--resume_from=STEP") for content in ("", "\0" * 4)),
    ("options.json", "{", "options.json"),
    ("metrics.jsonl", '{"step": 3}\n' * 2, "metrics.jsonl, line 1")])
def test_damaged_folder(name, content, message, copy, data):
    if content is None:
        (copy / name).unlink()
    else:
        (copy / name).write_bytes((copy / name).read_bytes()[:100] if content == "cut"
                                  else content.encode())
    before = {path: path.read_bytes() for path in copy.glob("model.ckpt-*")}
    with pytest.raises(InputError, match=message):
        make_run(copy, data).train()
    assert before == {path: path.read_bytes() for path in copy.glob("model.ckpt-*")}


def test_a_run_whose_list_of_checkpoints_is_lost_goes_on_where_the_user_says(copy, data):
    (copy / "checkpoint").unlink()
    run = make_run(copy, data, resume_from="6", num_train_steps=7)
    run.train()
    assert run.current_step == 7 and (copy / "checkpoint").exists()
    run.evaluate()
    assert run.current_step == 7  # not that from which it went on


@pytest.mark.parametrize("size, eval_size, replicas, parts, message", [
    (8, 3, 2, 1, "--eval_batch_size 3"), (0, 8, 1, 1, "--train_batch_size 0"),
    (96, 8, 4, 5, "multiple of 20, .*--train_batch_size=100.$"),
    (6, 8, 4, 1, "--train_batch_size=8.$")])
def test_batch_sizes(size, eval_size, replicas, parts, message):
    options = RunOptions("out", 1, size, eval_batch_size=eval_size, step=StepOptions(
        gradient_accumulation_steps=parts))
    with pytest.raises(InputError, match=message):
        check_batch_sizes(options, replicas)


@pytest.fixture(name="broken")
def _broken(tmp_path):
    """A checkpoint with weights whose sum is no number."""
    model = models.AlbertForPreTraining(tiny_run.config(**CONFIG))
    rows = model.bert.embeddings.word_embeddings
    rows.assign(tf.fill(rows.shape, 3e38))
    export_tf1(model, str(tmp_path / "broken" / "model.ckpt"))
    return str(tmp_path / "broken" / "model.ckpt")


def test_absurd_rate_stops_with_the_last_good_checkpoint(copy, data):
    go_back_to(copy, 6)
    run = make_run(copy, data, rate=1e30, save_checkpoints_steps=1)
    with pytest.raises(DivergenceError) as caught:
        run.train()
    # The loss of step 6 is well, but that step ruins the weights.
    assert str(caught.value).startswith(
        "masked_lm_loss is nan in the evaluation at step 7; the last good checkpoint "
        f"is {copy}/model.ckpt-6; ")
    assert checkpoints(copy) == [3, 6, 7]
    assert rows_of(copy, "eval")[-1]["step"] == 6


def test_broken_weights_are_not_saved_on_a_signal_either(tmp_path, data, broken):
    run = make_run(tmp_path / "run", (data[0], None), init_checkpoint=broken)
    run.signals.received = 15
    with pytest.raises(DivergenceError, match="step 0; the last good .* none"):
        run.train()
    assert not list((tmp_path / "run").glob("model.ckpt*"))


def test_float16_says_when_no_scale_helps(tmp_path, data, broken, monkeypatch):
    """Not at the first step that is not finite, but when the scale is at its least."""
    monkeypatch.setattr(steps, "INITIAL_SCALE", 4.0)
    run = make_run(
        tmp_path / "run", (data[0], None), **HALF, init_checkpoint=broken)
    with pytest.raises(DivergenceError, match="step 2, .*loss scale .* 1; "):
        run.train()


def test_a_run_in_another_thread_leaves_signals_alone(tmp_path, data):
    """As joblib, Optuna and web servers start it."""
    before = signal.getsignal(signal.SIGINT)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        run = make_run(tmp_path, (data[0], None), num_train_steps=2)
        pool.submit(run.train).result()
    assert checkpoints(tmp_path) == [2]
    assert signal.getsignal(signal.SIGINT) is before


def test_a_signal_between_two_parts_gives_the_step_up(
        tmp_path, data, monkeypatch, caplog, request):
    """Python's own handler runs only when the step has ended."""
    tf.config.run_functions_eagerly(False)
    request.addfinalizer(lambda: tf.config.run_functions_eagerly(True))
    options = dict(step=StepOptions(gradient_accumulation_steps=4))
    compute, parts = steps.Trainer._part_gradients, []
    before = signal.getsignal(signal.SIGTERM)

    def notice(step):
        parts.append(int(step))
        if parts.count(2) == 1 and step == 2:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.5)
        return step

    def noticed(self, *args):
        with tf.control_dependencies([tf.numpy_function(
                notice, [tf.identity(self.optimizer.iterations)], tf.int64)]):
            return compute(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(steps.Trainer, "_part_gradients", noticed)
        with pytest.raises(Stopped):
            make_run(tmp_path / "stopped", (data[0], None), **options).train()
    assert parts == [0] * 4 + [1] * 4 + [2]
    assert signal.getsignal(signal.SIGTERM) is before
    assert "Stopping as soon as the step allows it; a second signal" in caplog.text
    assert checkpoints(tmp_path / "stopped") == [2]
    make_run(tmp_path / "whole", (data[0], None), num_train_steps=2, **options).train()
    assert_equal_tensors(*(stored(tmp_path / name, "model.ckpt-2", STATE)
                           for name in ("stopped", "whole")))


@pytest.mark.parametrize("early", [True, False])
def test_signal_in_an_evaluation_stops_between_two_batches(
        tmp_path, data, monkeypatch, early):
    run, batches = make_run(tmp_path, data, num_train_steps=1), []
    evaluate = Evaluator.evaluate

    def evaluated(self, on_batch):
        def after_batch():
            batches.append(1)
            if early or len(batches) == self.num_steps:
                run.signals.received = 15
            on_batch()

        return evaluate(self, after_batch)

    monkeypatch.setattr(Evaluator, "evaluate", evaluated)
    with pytest.raises(Stopped):
        run.train()
    assert len(batches) == (1 if early else run.evaluator.num_steps)
    assert (tmp_path / "model.ckpt-1.index").exists()
    assert not (tmp_path / "model.ckpt-best.index").exists()
    assert not (tmp_path / "eval_results.json").exists()


@pytest.mark.long
def test_checkpoint_that_was_just_evaluated_is_not_evaluated_again(copy, data):
    go_back_to(copy, 9)
    run = make_run(copy, data)
    metrics, evaluator = run.train(), run.evaluator
    run.load(best=True)
    best_step = run.current_step
    run.evaluator = None
    run.last_evaluation = best_step, metrics
    assert run.evaluate(best=True) == metrics
    assert json.loads((copy / "eval_results.json").read_text())["step"] == best_step
    run.evaluator, run.last_evaluation = evaluator, (best_step + 1, {})
    assert run.evaluate(best=True)["sentence_order_accuracy"] == max(
        row["sentence_order_accuracy"] for row in rows_of(copy, "eval"))
