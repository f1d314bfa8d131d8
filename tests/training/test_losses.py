import numpy as np
import pytest
import tensorflow as tf

from albert_tf.checkpoints.restore import load_tf1_tensors
from albert_tf.modeling.kernels import fast
from albert_tf.training import losses as objectives
from tests import models
from tests.golden.model import ALL_CASES, FIXTURE_CASES, fixture_case, shared_case


def check_case(case):
    model = models.AlbertForPreTraining(case.config)
    load_tf1_tensors(model, case.weights)
    with tf.GradientTape() as tape:
        heads = model(case.batch, training=True)
        values = objectives.pretraining_losses(heads, case.batch)
    gradients = tape.gradient(values["total_loss"], model.trainable_variables)
    dense = [tf.convert_to_tensor(gradient) for gradient in gradients]
    golden = case.loss

    def close(ours, theirs, tolerance=1e-5):
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)

    for name in ("masked_lm_loss", "sentence_order_loss", "total_loss"):
        close(values[name], golden[name])
    close(tf.reshape(values["masked_lm_example_loss"], [-1]),
          golden["masked_lm_example_loss"])
    close(values["sentence_order_example_loss"], golden["sentence_order_example_loss"])
    log_probs = tf.nn.log_softmax(heads["mlm_logits"])
    log_probs = tf.reshape(log_probs, [-1, case.config.vocab_size]).numpy()
    close(log_probs[:, case.columns], golden["masked_lm_log_probs"])
    close(tf.nn.log_softmax(heads["sentence_order_logits"]),
          golden["sentence_order_log_probs"])

    # As it comes from the gather, with rows that occur twice apart, and summed.
    close(tf.linalg.global_norm(gradients), golden["global_norm_as_original"])
    close(tf.linalg.global_norm(dense), golden["global_norm_dense"])
    assert not np.isclose(
        golden["global_norm_as_original"], golden["global_norm_dense"])
    assert {v.name[:-2] for v in model.trainable_variables} == set(case.grads)
    for variable, gradient in zip(model.trainable_variables, dense):
        name = variable.name[:-2]
        np.testing.assert_allclose(
            case.gradient_rows(name, gradient.numpy()), case.grads[name],
            rtol=0, atol=2e-6, err_msg=name)


@pytest.mark.parametrize("name, are_fast", [
    *((name, False) for name in FIXTURE_CASES), ("shared", True), ("tanh", True),
    *(pytest.param(name, True, marks=pytest.mark.long) for name in FIXTURE_CASES[1:-1])])
def test_losses_and_gradients_are_the_releases(name, are_fast, monkeypatch):
    if are_fast:
        monkeypatch.setattr(fast, "parts_for", lambda hidden: fast.FAST)
    check_case(fixture_case(name))


@pytest.mark.long
@pytest.mark.shared
@pytest.mark.parametrize("name", ALL_CASES)
def test_losses_and_gradients_are_the_releases_whole(name):
    check_case(shared_case(name))


random = np.random.default_rng(0)
BATCH = {
    "input_ids": random.integers(0, 20, [4, 6]),
    "masked_lm_positions": random.integers(0, 6, [4, 3]),
    "masked_lm_ids": random.integers(0, 20, [4, 3]),
    # Parts with different numbers of predictions.
    "masked_lm_weights": np.array([[1, 1, 1], [1, 1, 0], [1, 0, 0], [0, 0, 0]], "f"),
    "sentence_order_labels": np.array([0, 1, 1, 0])}
HEADS = {"mlm_logits": random.standard_normal([4, 3, 20]).astype("f"),
         "sentence_order_logits": random.standard_normal([4, 2]).astype("f")}


def test_a_batch_without_predictions_has_loss_zero():
    batch = {**BATCH, "masked_lm_weights": np.zeros([4, 3], "f")}
    values = objectives.pretraining_losses(HEADS, batch)
    assert float(values["masked_lm_loss"]) == 0.0
    assert np.isfinite(float(values["total_loss"]))


def test_labels_under_both_names_and_shapes():
    batch = dict(BATCH)
    labels = batch.pop("sentence_order_labels")
    for name in ("sentence_order_labels", "next_sentence_labels"):
        for value in (labels, labels[:, None]):
            found = objectives.sentence_order_labels({**batch, name: value})
            np.testing.assert_array_equal(found, labels)
            assert objectives.pretraining_losses(HEADS, {**batch, name: value})[
                "sentence_order_example_loss"].shape == [4]


def test_without_the_sentence_loss_the_rest_is_as_it_was():
    whole = objectives.pretraining_losses(HEADS, BATCH)
    alone = objectives.pretraining_losses(HEADS, BATCH, sentence_loss=False)
    assert alone["total_loss"] is alone["masked_lm_loss"]
    assert float(alone["total_loss"]) == float(whole["masked_lm_loss"])
    metrics = objectives.pretraining_metrics(HEADS, BATCH, alone)
    assert set(metrics) == {"masked_lm_loss", "masked_lm_accuracy"}
