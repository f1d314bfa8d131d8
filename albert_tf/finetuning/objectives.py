"""Objectives that fine-tuned heads share: means over the examples, or their words.

A loss is computed for each example. The batch's loss is their sum, divided by the number
of examples. Numerator and denominator are computed separately (training.losses).

Shapes: B batch, K labels.
"""

import dataclasses
from typing import Callable, Sequence

import tensorflow as tf

from albert_tf.training.losses import (
    Objective, Tensors, cross_entropy, example_weights, hits, integers)


def mean_over_examples(example_loss: Callable[[Tensors, Tensors], tf.Tensor],
                       accuracies: Callable[[Tensors, Tensors], Tensors],
                       predictions: Callable[[Tensors], Tensors],
                       weights: Callable[[Tensors], tf.Tensor] = example_weights
                       ) -> Objective:
    """Returns the Objective whose loss is the mean of `example_loss`: (outputs, features)
    → [B]; `accuracies` are further metrics, → name → [B], 0 or 1 for each example. With
    `weights`, features → [B, S], 0 or 1, the mean is over the words of weight 1."""
    def denominators(features):
        return {"examples": tf.reduce_sum(weights(features))}

    def losses(outputs, features, denominators):
        values = example_loss(outputs, features) * weights(features)
        # A replica's batch may hold nothing but padding.
        total = tf.math.divide_no_nan(tf.reduce_sum(values), denominators["examples"])
        return {"total_loss": total, "example_loss": values}

    def metrics(outputs, features, losses):
        values = {"loss": losses["example_loss"], **accuracies(outputs, features)}
        return {name: (value, weights(features)) for name, value in values.items()}

    return Objective(denominators, losses, metrics,
                     lambda outputs, features: predictions(outputs))


def _at_temperature(targets: tf.Tensor, logits: tf.Tensor, temperature: float
                    ) -> tf.Tensor:
    """Returns the cross-entropy [...] of probabilities and logits [..., K], both at the
    temperature T: p^(1/T), normalized, and logits / T, times T², which keeps the gradients
    as large (Hinton, Vinyals and Dean 2015). A probability of 1 stays at T = 1."""
    plain = tf.nn.softmax_cross_entropy_with_logits(targets, logits)
    if temperature == 1:
        return plain
    powers = targets ** (1 / temperature)
    soft = tf.nn.softmax_cross_entropy_with_logits(
        powers / tf.reduce_sum(powers, axis=-1, keepdims=True), logits / temperature)
    return tf.where(tf.reduce_max(targets, axis=-1) < 1, temperature ** 2 * soft, plain)


def one_label(predictions: Callable[[Tensors], Tensors],
              weights: Sequence[float] = (), temperature: float = 1.0) -> Objective:
    """Returns the softmax cross-entropy of `logits` [B, K] and `label_ids` int [B, 1]
    (`classifier_utils.create_model`, `race_utils.create_model` in the original
    implementation), times the weight of the label, if there are `weights` [K]
    (classification.task). `label_ids` may also be float [B, K], the probability of
    each label; these have no weights, but the `temperature` of their loss."""
    def loss(outputs, features):
        labels = tf.convert_to_tensor(features["label_ids"])
        if labels.dtype.is_floating:
            return _at_temperature(
                labels, tf.cast(outputs["logits"], tf.float32), temperature)
        values = cross_entropy(outputs["logits"], labels := integers(labels))
        return values * tf.gather(tf.constant(weights), labels) if len(weights) else values

    def metrics(outputs, features):
        labels = tf.convert_to_tensor(features["label_ids"])
        return {"accuracy": hits(outputs["logits"], tf.argmax(
            labels, axis=-1) if labels.dtype.is_floating else integers(labels))}

    return mean_over_examples(loss, metrics, predictions)


def several_labels(predictions: Callable[[Tensors], Tensors],
                   weights: Sequence[float] = (), temperature: float = 1.0) -> Objective:
    """Returns the sigmoid cross-entropy of `logits` [B, K] and `label_ids` float [B, K],
    1 for each label of an example and 0 for the others, or the probability of each; the
    mean over the labels (`BCEWithLogitsLoss` in transformers). `weights` [K] multiply the
    terms of the labels that an example has; `temperature` is as in `one_label`."""
    def loss(outputs, features):
        labels = tf.cast(features["label_ids"], tf.float32)
        logits = tf.cast(outputs["logits"], tf.float32)
        if temperature != 1:  # A label is there or not: two classes, as the sigmoid has.
            values = _at_temperature(
                tf.stack([labels, 1 - labels], axis=-1),
                tf.stack([logits, tf.zeros_like(logits)], axis=-1), temperature)
        else:
            values = tf.nn.weighted_cross_entropy_with_logits(
                labels, logits, tf.constant(weights)) if len(weights) else (
                    tf.nn.sigmoid_cross_entropy_with_logits(labels, logits))
        return tf.reduce_mean(values, axis=-1)

    def metrics(outputs, features):
        right = tf.equal(outputs["logits"] > 0, features["label_ids"] > 0.5)
        return {"label_accuracy": tf.reduce_mean(tf.cast(right, tf.float32), axis=-1)}

    return mean_over_examples(loss, metrics, predictions)


def numbers(predictions: Callable[[Tensors], Tensors]) -> Objective:
    """Returns the squared error of `logits` [B, K] and `label_ids` float [B, K], the
    mean over the K numbers of an example (K is 1 in the original implementation)."""
    def squared_error(outputs, features):
        logits = tf.cast(outputs["logits"], tf.float32)
        wanted = tf.cast(tf.reshape(features["label_ids"], tf.shape(logits)), tf.float32)
        return tf.reduce_mean(tf.square(logits - wanted), axis=-1)

    return mean_over_examples(squared_error, lambda outputs, features: {}, predictions)


def scored_alone(objective: Objective) -> Objective:
    """Returns an objective for evaluation without losses and metrics: the predictions
    are scored as a whole, and the model's outputs differ from those of training."""
    return dataclasses.replace(
        objective, losses=lambda outputs, features, denominators: {
            "total_loss": tf.zeros([])},
        metrics=lambda outputs, features, losses: {})
