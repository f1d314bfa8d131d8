"""Weights of classes: what they are, and what the loss makes of them."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.errors import InputError
from albert_tf.finetuning import metrics
from albert_tf.finetuning.classification import custom
from albert_tf.finetuning.classification.command import class_weights
from albert_tf.finetuning.classification.head import Classification

LABELS = ("no", "yes", "maybe")
IDS = np.array([0] * 6 + [1] * 2 + [2])


def weights(given, labels, ids):
    return dataclasses.replace(custom.build_task({}, labels=labels),
                               class_weights=given).weights(ids)


def test_balanced_weights_are_those_of_scikit_learn():
    from sklearn.utils.class_weight import compute_class_weight

    found = weights("balanced", LABELS, IDS)
    np.testing.assert_allclose(found, compute_class_weight(
        "balanced", classes=np.arange(3), y=IDS), rtol=1e-6)
    np.testing.assert_allclose(found[IDS].mean(), 1, rtol=1e-6)
    # Nobody has the last label.
    np.testing.assert_allclose(weights("balanced", (*LABELS, "never"), IDS)[IDS]
                               .mean(), 1, rtol=1e-6)


def test_weights_that_are_given_keep_their_ratio():
    found = weights({"yes": 4.0}, LABELS, IDS)
    np.testing.assert_allclose(found / found[0], [1, 4, 1])
    np.testing.assert_allclose(found[IDS].mean(), 1, rtol=1e-6)
    several = np.array([[1, 0], [1, 0], [1, 1], [0, 0]])
    np.testing.assert_allclose(weights("balanced", "ab", several), [1 / 3, 3])
    np.testing.assert_allclose(weights({"b": 2}, "ab", several), [1, 2])


@pytest.mark.parametrize("words, message", [
    (["yes"], "'yes'"), (["yes=x"], "'yes=x'"), (["yes=1", "yes=2"], "'yes=2'"),
    (["perhaps=2"], "'perhaps'"), (["yes=0"], "'yes=0'"), (["yes=inf"], "'yes=inf'")])
def test_wrong_weights_are_refused(words, message):
    with pytest.raises(InputError, match=f"--class_weights.*{message}"):
        weights(class_weights(words), LABELS, IDS)


def test_words_of_the_flag():
    assert class_weights(["balanced"]) == "balanced" and class_weights([]) == {}
    assert class_weights(["a=b=2", " no =1"]) == {"a=b": 2.0, "no": 1.0}
    with pytest.raises(InputError, match="this task predicts numbers, or"):
        dataclasses.replace(custom.build_task({}, regression=True),
                            class_weights="balanced")


def test_the_loss_is_weighted_and_that_of_evaluation_is_not():
    head = Classification(3)
    logits = np.random.default_rng(1).normal(size=(9, 3)).astype(np.float32)
    outputs = {"logits": tf.constant(logits)}
    features = {"input_ids": tf.zeros([9, 2]), "label_ids": tf.constant(IDS[:, None])}
    losses = -(logits - np.log(np.exp(logits).sum(-1, keepdims=True)))[np.arange(9), IDS]

    def total(objective):
        return float(objective.losses(
            outputs, features, objective.denominators(features))["total_loss"])

    factors = weights({"yes": 5.0}, LABELS, IDS)
    assert total(head.objective()) == pytest.approx(losses.mean(), rel=1e-5)
    assert total(head.objective(factors)) == pytest.approx(
        (losses * factors[IDS]).mean(), rel=1e-5)


def test_labels_that_a_text_has_are_weighted():
    head = Classification(2, problem_type="multi_label_classification")
    objective = head.objective(np.array([1, 3], np.float32))
    features = {"input_ids": tf.zeros([1, 2]), "label_ids": tf.constant([[0.0, 1.0]])}
    loss = objective.losses({"logits": tf.zeros([1, 2])}, features,
                            objective.denominators(features))["total_loss"]
    assert float(loss) == pytest.approx(np.log(2) * (1 + 3) / 2)


def test_chance_is_that_of_the_weighted_loss(tmp_path):
    """The lowest loss of a model that gives every text the same probabilities."""
    balanced = weights("balanced", LABELS, IDS)
    assert metrics.entropy(IDS, balanced) == pytest.approx(np.log(3))
    several = np.array([[1, 0], [1, 0], [1, 1], [0, 0]])
    shares = np.linspace(0.001, 0.999, 999)
    lowest = [min(-(3 * w * np.log(shares) + np.log(1 - shares)) / 4) for w in (1 / 3,)]
    assert metrics.entropy_by_label(several[:, :1], [1 / 3]) == pytest.approx(lowest[0])
    path = tmp_path / "x.csv"
    path.write_text("text,label\n" + "".join(f"t,{LABELS[i]}\n" for i in IDS))
    task = custom.build_task({"train": custom.DataFile(str(path), "text", label="label")})
    data = task.read("", "train")
    assert task.chance_loss(data, None) == pytest.approx(metrics.entropy(IDS))
    task = dataclasses.replace(task, class_weights="balanced")
    assert task.chance_loss(data, None) == pytest.approx(np.log(3))
