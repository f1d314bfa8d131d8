"""Losses, training metrics and kept outputs of the fine-tuned tasks.

Each task has an Objective, whose functions stand in a training_steps.Task. Losses
are means over examples, in float32. A batch computed in parts divides by the
number of examples of the whole, so that the parts' losses add up.
Shapes: B batch, S sequence, C choices, K labels.
"""

import dataclasses
from typing import Callable, Mapping

import tensorflow as tf

Tensors = Mapping[str, tf.Tensor]
WeightedValues = dict[str, tuple[tf.Tensor, tf.Tensor]]


@dataclasses.dataclass(frozen=True)
class Objective:
    """What a task trains on and what it keeps for each example.

    Attributes:
      denominators: features → `examples`, scalar: the weight of the batch.
      losses: (outputs, features, denominators) → scalar `total_loss`, and
        `example_loss` [B], not weighted. (Spans have none in evaluation.)
      metrics: (outputs, features, losses) → name → (values [B], weights [B]).
      predictions: (outputs, features) → name → [B, ...].

    All take optional features `example_weights` float [B], 0 for examples that
    only pad a batch; without it every example counts 1.
    """

    denominators: Callable[[Tensors], dict[str, tf.Tensor]]
    losses: Callable[[Tensors, Tensors, Tensors], dict[str, tf.Tensor]]
    metrics: Callable[[Tensors, Tensors, Tensors], WeightedValues]
    predictions: Callable[[Tensors, Tensors], dict[str, tf.Tensor]]


# ---- parts -----------------------------------------------------------------


def _weights(features: Tensors) -> tf.Tensor:
    weights = features.get("example_weights")
    if weights is None:
        return tf.ones(tf.shape(features["input_ids"])[:1])
    return tf.cast(weights, tf.float32)


def _integers(features: Tensors, name: str) -> tf.Tensor:
    """A feature of one integer per example, [B] or [B, 1] → int32 [B]."""
    return tf.cast(tf.reshape(features[name], [-1]), tf.int32)


def _floats(tensor: tf.Tensor) -> tf.Tensor:
    return tf.cast(tensor, tf.float32)


def _hits(scores: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """1.0 where the highest score is the label's: [B, N], [B] → [B]."""
    return _floats(tf.argmax(scores, axis=-1, output_type=tf.int32) == labels)


def _denominators(features: Tensors) -> dict[str, tf.Tensor]:
    return {"examples": tf.reduce_sum(_weights(features))}


def _keep(*names: str):
    """Predictions that are outputs as they stand."""
    def predictions(outputs: Tensors, features: Tensors) -> dict[str, tf.Tensor]:
        del features
        return {name: outputs[name] for name in names}

    return predictions


def _objective(example_loss, accuracies, predictions,
               training_output: str = "") -> Objective:
    """An Objective whose loss is the mean of a loss per example.

    Args:
      example_loss: (outputs, features) → [B].
      accuracies: (outputs, features) → metric → [B] of 0 and 1.
      predictions: as in Objective.
      training_output: an output that the model gives in training only, and that
        its loss needs. Without it there is no loss, and there are no metrics.
    """
    def losses(outputs: Tensors, features: Tensors, denominators: Tensors):
        if training_output and training_output not in outputs:
            return {"total_loss": tf.zeros([])}
        values = example_loss(outputs, features)
        # A replica's batch may hold nothing but padding.
        total = tf.math.divide_no_nan(
            tf.reduce_sum(values * _weights(features)), denominators["examples"])
        return {"total_loss": total, "example_loss": values}

    def metrics(outputs: Tensors, features: Tensors, losses: Tensors):
        if "example_loss" not in losses:
            return {}
        values = {"loss": losses["example_loss"], **accuracies(outputs, features)}
        return {name: (value, _weights(features)) for name, value in values.items()}

    return Objective(_denominators, losses, metrics, predictions)


# ---- one label per example -------------------------------------------------


def _label_loss(outputs: Tensors, features: Tensors) -> tf.Tensor:
    """Softmax cross-entropy over labels or choices, natural log."""
    return tf.nn.sparse_softmax_cross_entropy_with_logits(
        labels=_integers(features, "label_ids"), logits=_floats(outputs["logits"]))


def _label_accuracy(outputs: Tensors, features: Tensors) -> dict[str, tf.Tensor]:
    return {"accuracy": _hits(outputs["logits"], _integers(features, "label_ids"))}


def _label_predictions(outputs: Tensors, features: Tensors) -> dict[str, tf.Tensor]:
    del features
    logits = _floats(outputs["logits"])
    return {"logits": logits, "probabilities": tf.nn.softmax(logits)}


def _squared_error(outputs: Tensors, features: Tensors) -> tf.Tensor:
    labels = _floats(tf.reshape(features["label_ids"], [-1]))
    return tf.square(_floats(tf.squeeze(outputs["logits"], axis=-1)) - labels)


# ---- spans -----------------------------------------------------------------


def _span_loss(outputs: Tensors, features: Tensors) -> tf.Tensor:
    """Mean of the cross-entropies of start and end, over all S positions.

    Whether padding takes part is the model's mask_padding.
    """
    start, end = (
        tf.nn.sparse_softmax_cross_entropy_with_logits(
            labels=_integers(features, f"{side}_positions"),
            logits=_floats(outputs[f"{side}_logits"])) for side in ("start", "end"))
    return (start + end) / 2.0


def _conditional_span_loss(outputs: Tensors, features: Tensors) -> tf.Tensor:
    """Mean of start and end, and half of the answerability cross-entropy."""

    def negative_log_prob(side):
        log_probs = _floats(outputs[f"{side}_log_probs"])
        true = tf.one_hot(_integers(features, f"{side}_positions"),
                          tf.shape(log_probs)[1])
        return -tf.reduce_sum(true * log_probs, axis=-1)

    answerability = tf.nn.sigmoid_cross_entropy_with_logits(
        labels=_floats(_integers(features, "is_impossible")),
        logits=_floats(outputs["cls_logits"]))
    return ((negative_log_prob("start") + negative_log_prob("end")) / 2.0
            + 0.5 * answerability)


def _span_accuracies(kind: str):
    """Shares of right starts and ends; `kind` of outputs, "logits" or "log_probs"."""
    def accuracies(outputs: Tensors, features: Tensors) -> dict[str, tf.Tensor]:
        return {f"{side}_accuracy": _hits(outputs[f"{side}_{kind}"],
                                          _integers(features, f"{side}_positions"))
                for side in ("start", "end")}

    return accuracies


def _conditional_span_accuracies(outputs: Tensors, features: Tensors):
    impossible = _integers(features, "is_impossible")
    found = tf.cast(outputs["cls_logits"] > 0, tf.int32)
    return {**_span_accuracies("log_probs")(outputs, features),
            "answerability_accuracy": _floats(found == impossible)}


# ---- objectives ------------------------------------------------------------

# Features `label_ids` int [B, 1]; outputs `logits` [B, K]. Release:
# `classifier_utils.create_model`.
CLASSIFICATION = _objective(_label_loss, _label_accuracy, _label_predictions)

# Features `label_ids` float [B, 1]; outputs `logits` [B, 1].
REGRESSION = _objective(
    _squared_error, lambda outputs, features: {}, _keep("logits"))

# Features `label_ids` int [B, 1]; outputs `logits` [B, C]. Release:
# `race_utils.create_model`.
CHOICE = _objective(_label_loss, _label_accuracy, _label_predictions)

# Losses and metrics of spans need the model's outputs of training, predictions those
# of prediction. The loop asks for both in evaluation too, where there is no loss to
# tell: version 2.0 follows its own starts there, and the windows of a set to predict
# have no positions of answers. Questions are scored by their texts instead.

# Features `start_positions`, `end_positions` int [B, 1]; outputs of AlbertForSpans.
# Release: `squad_utils.v1_model_fn_builder`.
SPANS = _objective(
    _span_loss, _span_accuracies("logits"), _keep("start_log_probs", "end_log_probs"),
    training_output="start_logits")

# Features as for SPANS, and `is_impossible` int [B, 1]; outputs of
# AlbertForConditionalSpans. Release: `squad_utils.v2_model_fn_builder`.
CONDITIONAL_SPANS = _objective(
    _conditional_span_loss, _conditional_span_accuracies,
    _keep("start_top_log_probs", "start_top_index", "end_top_log_probs",
          "end_top_index", "cls_logits"), training_output="start_log_probs")
