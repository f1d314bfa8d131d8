"""Fine-tuning in the loop: several lengths, replicas, stops, early ends, the best."""

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.checkpoints.folders import write_tensors
from albert_tf.checkpoints.restore import load_tf1_tensors, tf1_tensors
from albert_tf.errors import InputError, Stopped
from albert_tf.finetuning.features import FeatureTable
from albert_tf.finetuning.length_batching import (
    BatchPlan, FeatureBatches, Padded, choose_lengths)
from albert_tf.training import log, steps
from albert_tf.training.loop import Run
from albert_tf.training.options import RunOptions
from tests import models, tiny_run
from tests.finetuning.test_task import SPEC, make_rows

LENGTH = 24  # the longest
STEPS = 10


# In graphs, batches of several lengths are in training/test_steps and scripts/.
pytestmark = pytest.mark.usefixtures("eager", "without_curves")


@pytest.fixture(name="graphs")
def _graphs(eager):
    """Replicas compute in graphs alone."""
    tf.config.run_functions_eagerly(False)
    yield
    tf.config.run_functions_eagerly(True)


# An epoch ends within step 5, and the lengths of 5 batches are sorted together.
TRAIN = FeatureTable.from_values(SPEC, make_rows(43, 1, LENGTH))
DEV_ROWS = make_rows(13, 2, LENGTH)
DEV = FeatureTable.from_values(SPEC, DEV_ROWS)
# A set of one batch and one length.
FEW = FeatureTable.from_values(SPEC, DEV_ROWS[:4])
CONFIG = tiny_run.config(
    num_hidden_layers=1, max_position_embeddings=LENGTH, hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0)


def padded(table, num_lengths=2):
    return table and Padded(table, choose_lengths(table.lengths, LENGTH, num_lengths))


def make(folder, score=None, best_metric="accuracy", train=TRAIN, evaluation=DEV,
         lengths=2, evaluation_set=None, batches=None, **options):
    model = models.classifier(CONFIG, 3, 0.0)
    # Larger weights than a model's first, so that inputs count.
    load_tf1_tensors(model, tiny_run.weights_of(model, 3, 0.2))
    task = steps.Task(model, models.CLASSIFICATION, best_metric, score,
                      may_be_new=lambda name: not name.startswith("bert/"))
    options = RunOptions(str(folder), **{
        **dict(num_train_steps=STEPS, train_batch_size=8, eval_batch_size=4,
               iterations_per_loop=5, save_checkpoints_steps=4, keep_checkpoint_max=0),
        **options})
    batches = batches or FeatureBatches(
        padded(train, lengths), padded(evaluation, lengths), train_batch_size=8,
        eval_batch_size=options.eval_batch_size, num_steps=options.num_train_steps, seed=5)
    optimizer = tiny_run.optimizer(model, steps=STEPS, warmup=2, name="adamw")
    return Run(task, CONFIG, options, batches, optimizer if train else None,
               evaluation_set=evaluation_set)


@pytest.fixture(scope="module", name="trained")
def _trained(tmp_path_factory, eager, without_curves):
    """A run over two lengths without dropout: its folder, weights and model."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    run = make(folder)
    run.train()
    return folder, tf1_tensors(run.task.model)


# ---- several lengths -------------------------------------------------------


@pytest.mark.long
def test_weights_are_those_of_batches_padded_to_one_length(trained, tmp_path):
    plan = BatchPlan(TRAIN.lengths, padded(TRAIN).lengths, 8, 5)
    assert {plan.step(step)[0] for step in range(STEPS)} == {0, 1}

    def batch(step):
        rows = plan.step(step)[1]
        return {name: np.stack([
            np.pad(TRAIN.columns[name][row], (0, pad - len(TRAIN.columns[name][row])))
            for row in rows for pad in [1 if name == "label_ids" else LENGTH]
        ]).astype(np.int32) for name in TRAIN.columns}

    rows = [batch(step) for step in range(STEPS)]
    run = make(tmp_path, evaluation=None, batches=tiny_run.FixedBatches(
        tf.data.Dataset.from_tensor_slices(
            {name: np.stack([each[name] for each in rows]) for name in rows[0]}), 8))
    run.train()
    for name, value in tf1_tensors(run.task.model).items():
        # The gradient of the key's bias is 0 but for rounding errors.
        np.testing.assert_allclose(
            value, trained[1][name], err_msg=name, rtol=0,
            atol=0.2 if "key/bias" in name else 2e-5)


# ---- evaluation and prediction ---------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("replicas, batch_size, lengths", [
    (1, 5, 3), (1, 16, 1), (2, 6, 1)])
def test_every_example_is_evaluated_once_and_in_order(
        replicas, batch_size, lengths, trained, request):
    if replicas > 1:
        request.getfixturevalue("graphs")
    with tiny_run.strategy(replicas).scope():
        run = make(
            trained[0], train=None, lengths=lengths, eval_batch_size=batch_size)
        metrics = run.evaluate(best=True)
        predictions = run.evaluator.predictions
        # In batches of 5, or of 6 on two replicas.
        predicted = run.predict(FeatureBatches(
            evaluation=padded(DEV, lengths), eval_batch_size=4 + replicas))
        model = run.task.model
    expected = np.stack([model({
        name: tf.constant([row[name]], tf.int32)
        for name in ("input_ids", "input_mask", "segment_ids")})["logits"][0].numpy()
        for row in DEV_ROWS])
    assert expected.std(axis=0).min() > 1e-3
    for found in (predictions, predicted):
        np.testing.assert_allclose(found["logits"], expected, atol=1e-5)
    labels = np.array([row["label_ids"][0] for row in DEV_ROWS])
    log_probs = tf.nn.log_softmax(expected).numpy()[np.arange(13), labels]
    assert metrics["loss"] == pytest.approx(-log_probs.mean(), rel=1e-4)
    assert metrics["accuracy"] == pytest.approx(
        (expected.argmax(axis=-1) == labels).mean())


# ---- early stopping and the best -------------------------------------------


def scores(*values):
    """A score that gives these values one after the other."""
    left = iter(values)
    return lambda predictions: {"score": next(left)}


def evaluated(folder):
    return [(row["step"], row["score"]) for row in log.evaluations(str(folder))]


EARLY = dict(best_metric="score", early_stopping=2, save_checkpoints_steps=1,
             evaluation=FEW)


@pytest.mark.long
def test_training_ends_after_evaluations_without_a_better_one(tmp_path, caplog):
    # A best that comes again is not better.
    run = make(tmp_path, score=scores(1.0, 3.0, 2.0, 3.0), **EARLY)
    run.train()
    assert evaluated(tmp_path) == [(1, 1.0), (2, 3.0), (3, 2.0), (4, 3.0)]
    assert run.current_step == 4
    assert ("Stopped early at step 4: 2 evaluations in a row did not improve score."
            in caplog.text)
    run.load()
    assert run.current_step == 2
    best = tf1_tensors(run.task.model)

    # The same command finds nothing more to do, and what it kept is still there.
    again = make(tmp_path, score=scores(3.0), **EARLY)
    again.train()
    assert evaluated(tmp_path)[-1] == (4, 3.0) and again.current_step == 4
    metrics = again.evaluate(best=True)
    assert again.current_step == 2 and metrics["score"] == 3.0
    for name, value in best.items():
        np.testing.assert_array_equal(tf1_tensors(again.task.model)[name], value)


@pytest.mark.parametrize("every, data, before, after, best", [
    (2, "a", [3.0, 2.0], [2.5], 2),
    # The scores of a new set are lower throughout, and it stops by them alone.
    (1, "b", [9.0, 8.0], [1.0, 2.0, 1.5, 1.0], 4)])
def test_evaluations_of_the_same_set_before_a_stop_count_for_early_stopping(
        tmp_path, every, data, before, after, best):
    early = dict(EARLY, save_checkpoints_steps=every)
    first = make(tmp_path, scores(*before), evaluation_set={"dev data": "a"}, **early)
    first.signals = tiny_run.SignalAt(first, 2 * every + 1)
    with pytest.raises(Stopped):
        first.train()
    second = make(tmp_path, scores(*after), evaluation_set={"dev data": data}, **early)
    second.train()
    assert [score for _, score in evaluated(tmp_path)] == before + after
    second.load()
    assert second.current_step == best


# ---- the start -------------------------------------------------------------


def test_no_model_to_start_from(tmp_path):
    with pytest.raises(InputError, match="--init_checkpoint .* --from_scratch"):
        make(tmp_path, from_scratch=False).train()
    assert not list(tmp_path.glob("model.ckpt*"))
    assert not (tmp_path / "albert_config.json").exists()


def test_head_must_be_there_where_nothing_is_trained(trained, tmp_path):
    """A pretrained encoder alone predicts nothing."""
    encoder = {name: value for name, value in trained[1].items()
               if name.startswith("bert/")}
    write_tensors(encoder, str(tmp_path / "encoder" / "model.ckpt"))
    start = dict(init_checkpoint=str(tmp_path / "encoder" / "model.ckpt"))
    with pytest.raises(InputError, match=r"model that it lacks: 2 \(output_bias"):
        make(tmp_path / "run", train=None, **start).evaluate(best=True)
    trainer = make(tmp_path / "run", from_scratch=False, num_train_steps=1, **start)
    trainer.train()
    assert trainer.current_step == 1
