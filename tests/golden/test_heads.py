"""Heads of the tasks: weights, outputs, losses and predictions of the release."""

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.checkpoints.restore import load_tf1_tensors
from tests.golden.heads import (
    HEADS, KINDS, build, case, close, train_losses, without_dropout)


@pytest.mark.parametrize("name", HEADS + ["mnli"])
def test_variables_are_the_releases(name):
    model = KINDS[name][0](case(name).config)
    report = load_tf1_tensors(model, case(name).weights)
    assert report.complete and not report.dropped
    frozen = {variable.name for variable in model.non_trainable_variables}
    # What no gradient reaches must not decay.
    assert frozen == ({"bert/pooler/dense/kernel:0", "bert/pooler/dense/bias:0"}
                      if "spans" in name else set())


@pytest.mark.parametrize("name", ["cola", "mnli", "sts-b", "race"])
def test_label_heads_are_the_releases(name):
    """Examples of weight 0 do not count in metrics."""
    golden, features = case(name).values, case(name).features()
    model, objective = without_dropout(name)
    outputs = model(features)
    losses = objective.losses(outputs, features, objective.denominators(features))
    kept = objective.predictions(outputs, features)
    close(np.reshape(kept["logits"], golden["logits"].shape), golden["logits"])
    if name == "sts-b":
        assert kept["logits"].shape == (7, 1) and set(kept) == {"logits"}
    else:
        close(kept["probabilities"], golden["probabilities"])
    close(losses["example_loss"], golden["per_example_loss"])
    close(losses["total_loss"], golden["loss"])

    features["example_weights"] = golden["is_real_example"].astype("f")
    losses = objective.losses(outputs, features, objective.denominators(features))
    metrics = {key: np.average(value, weights=weights) for key, (value, weights)
               in objective.metrics(outputs, features, losses).items()}
    close(metrics.pop("loss"), golden["metric_eval_loss"])
    close(losses["total_loss"], golden["metric_eval_loss"])
    if name != "sts-b":
        close(metrics.pop("accuracy"), golden["metric_eval_accuracy"])
    assert not metrics


def test_span_head_is_the_releases():
    golden = case("spans").values
    features = case("spans").features()
    model, objective = build("spans", mask_padding=False)
    outputs = model(features, training=True)
    losses = objective.losses(outputs, features, objective.denominators(features))
    kept = objective.predictions(model(features), features)
    for side in ("start", "end"):
        close(outputs[f"{side}_logits"], golden[f"{side}_logits"])
        close(kept[f"{side}_log_probs"],
              tf.nn.log_softmax(golden[f"{side}_logits"]))
    close(losses["total_loss"], golden["total_loss"])
    assert not features["input_mask"].all()  # Else padding is not tested.


def test_conditional_span_head_is_the_releases():
    golden = case("conditional_spans").values
    features = case("conditional_spans").features()
    _, losses = train_losses("conditional_spans", features)
    close(losses["total_loss"], golden["total_loss"])
    model, objective = without_dropout("conditional_spans")
    kept = objective.predictions(model(features), features)
    assert set(kept) == {"start_top_index", "start_top_log_probs", "end_top_index",
                         "end_top_log_probs", "cls_logits"}
    for name, value in kept.items():
        if name.endswith("index"):
            np.testing.assert_array_equal(value, golden[f"out_{name}"])
        else:
            close(value, golden[f"out_{name}"])
