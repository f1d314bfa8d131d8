"""Objectives that fine-tuned heads share: means over examples with one label each.

A loss is computed for each example. The batch's loss is their sum over the examples
that have a label, divided by the number of examples. Numerator and denominator are
computed separately (training.losses).

Shapes: B batch, K labels.
"""

import dataclasses
from typing import Callable

import tensorflow as tf

from albert_tf.training.losses import (
    Objective, Tensors, cross_entropy, example_weights, hits, integers)

# (outputs, features) → [B], and → metric → [B].
ExampleLoss = Callable[[Tensors, Tensors], tf.Tensor]
ExampleMetrics = Callable[[Tensors, Tensors], Tensors]


def labelled_weights(features: Tensors) -> tf.Tensor:
    """Returns float32 [B]: 0 for padding and for examples without a label, for which
    only a teacher gives a target; 1 for all others."""
    weights, labelled = example_weights(features), features.get("labelled")
    if labelled is None:
        return weights
    return weights * tf.cast(tf.reshape(labelled, [-1]), tf.float32)


def mean_over_examples(example_loss: ExampleLoss, accuracies: ExampleMetrics,
                       predictions: Callable[[Tensors], Tensors]) -> Objective:
    """Returns the Objective whose loss is the mean of `example_loss`.

    Args:
      example_loss: the loss of each example.
      accuracies: further metrics, 0 or 1 for each example.
      predictions: outputs → the ones that are returned (Head.predictions).
    """
    def denominators(features: Tensors):
        # Examples without labels count, too, because they have the teacher's loss,
        # which is divided by the same number.
        return {"examples": tf.reduce_sum(example_weights(features))}

    def losses(outputs: Tensors, features: Tensors, denominators: Tensors):
        values = example_loss(outputs, features) * labelled_weights(features)
        # A replica's batch may hold nothing but padding.
        total = tf.math.divide_no_nan(
            tf.reduce_sum(values), denominators["examples"])
        return {"total_loss": total, "example_loss": values}

    def metrics(outputs: Tensors, features: Tensors, losses: Tensors):
        values = {"loss": losses["example_loss"], **accuracies(outputs, features)}
        return {name: (value, labelled_weights(features))
                for name, value in values.items()}

    return Objective(denominators, losses, metrics,
                     lambda outputs, features: predictions(outputs))


def one_label(predictions: Callable[[Tensors], Tensors]) -> Objective:
    """Returns the softmax cross-entropy of `logits` [B, K] and `label_ids` int [B, 1]
    (`classifier_utils.create_model`, `race_utils.create_model` in the original
    implementation)."""
    return mean_over_examples(
        lambda outputs, features: cross_entropy(
            outputs["logits"], integers(features["label_ids"])),
        lambda outputs, features: {"accuracy": hits(
            outputs["logits"], integers(features["label_ids"]))}, predictions)


def scored_alone(objective: Objective) -> Objective:
    """Returns an objective for evaluation without losses and metrics: the predictions
    are scored as a whole, and the model's outputs differ from those of training."""
    return dataclasses.replace(
        objective, losses=lambda outputs, features, denominators: {
            "total_loss": tf.zeros([])},
        metrics=lambda outputs, features, losses: {})
