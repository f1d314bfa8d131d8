"""What a model learns: objectives, and the one of pretraining.

An `Objective` holds losses, metrics and what is kept of the outputs; a `Task` is a
model with its objective. Losses are natural-log cross-entropies in float32, weighted
means on one replica. Numerators and denominators are apart: a batch computed in parts
(gradient accumulation) divides each part's sum by the denominator of the whole, so that
the parts' losses and gradients add up to those of the whole.

Pretraining adds the loss of the masked tokens and that of sentence order. BERT asked
whether the second segment follows the first at all, which a model can guess from the
topic of the two; that they may be swapped shows only in how a text hangs together
(section 3.1 and Table 5 of the paper). Objectives of fine-tuning are in the heads of
their tasks.

Shapes: B batch, P predictions, V tokens, N classes.
"""

import dataclasses
import functools
from typing import Callable, Mapping, Optional

import numpy as np
import tensorflow as tf
import tf_keras

from albert_tf.modeling.kernels import fast

Tensors = Mapping[str, tf.Tensor]
# Metric → its values and their weights; a metric is their weighted mean.
WeightedValues = dict[str, tuple[tf.Tensor, tf.Tensor]]
# Name → one array for each example, in the order of their `example_index`.
Predictions = dict[str, list[np.ndarray]]

# Added to the sum of the masked-LM weights; keeps a batch without predictions
# finite, and is part of the release's numbers.
MASKED_LM_EPSILON = 1e-5


def floats(tensor: tf.Tensor) -> tf.Tensor:
    return tf.cast(tensor, tf.float32)


@dataclasses.dataclass(frozen=True)
class Objective:
    """What a model learns, and what is kept of its outputs.

    Attributes:
      denominators: features → what the losses of the whole batch are divided by.
      losses: (outputs, features, denominators) → a scalar `total_loss`, whose sum over
        the parts of a batch is the batch's loss, and what `metrics` needs.
      metrics: (outputs, features, losses) → weighted values. In evaluation the features
        hold `example_weights` [B], 0 for examples that only pad a batch; without it
        every example counts 1.
      predictions: (outputs, features) → what is kept of each example, [B, ...]; the
        features hold `example_index` [B], -1 for padding. None keeps nothing.
    """

    denominators: Callable[[Tensors], Tensors]
    losses: Callable[[Tensors, Tensors, Tensors], Tensors]
    metrics: Callable[[Tensors, Tensors, Tensors], WeightedValues]
    predictions: Optional[Callable[[Tensors, Tensors], Tensors]] = None


@dataclasses.dataclass(frozen=True)
class Task:
    """What the loop must know of a task.

        Task(AlbertForPreTraining(config), PRETRAINING, "masked_lm_accuracy")

    Attributes:
      model: called as model(features, training=..., seed=..., computation=...), without
        AutoGraph.
      objective: what it learns.
      training_objective: what it learns in training, where evaluation asks for less.
      best_metric: the evaluation metric, higher is better, by which the best checkpoint
        is chosen.
      score: predictions of all examples, as Evaluator.predict returns them → further
        evaluation metrics.
      may_be_new: whether a variable of this name may be missing from the checkpoint
        that the weights come from: a head that is trained from new.
      on_report: called with the step and the metrics of each line of progress.
    """

    model: tf_keras.Model
    objective: Objective
    best_metric: str
    score: Optional[Callable[[Predictions], Mapping[str, float]]] = None
    may_be_new: Callable[[str], bool] = lambda name: False
    on_report: Callable[[int, Mapping[str, float]], None] = (
        lambda step, metrics: None)
    training_objective: Optional[Objective] = None


# ---- parts -----------------------------------------------------------------


def integers(tensor: tf.Tensor) -> tf.Tensor:
    """One integer per example, [B] or [B, 1] → int32 [B]."""
    return tf.cast(tf.reshape(tensor, [-1]), tf.int32)


def example_weights(features: Tensors) -> tf.Tensor:
    """float32 [B]: 0 for the examples that only pad a batch."""
    weights = features.get("example_weights")
    if weights is None:
        return tf.ones(tf.shape(next(iter(features.values())))[:1])
    return floats(weights)


def cross_entropy(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Softmax cross-entropy: [..., N], [...] → [...].

    Sparse: a one-hot matrix over all pieces costs more than the rest of the loss.
    """
    return fast.cross_entropy(floats(logits), tf.cast(labels, tf.int32))


def hits(scores: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """1.0 where the highest score is the label's: [..., N], [...] → [...]."""
    found = tf.argmax(scores, axis=-1, output_type=tf.int32)
    return floats(found == tf.cast(labels, tf.int32))


# ---- pretraining -----------------------------------------------------------


def sentence_order_labels(features: Tensors) -> tf.Tensor:
    """int32 [B], 1 = swapped; under its parsed name or its name on disk."""
    labels = features.get("sentence_order_labels")
    return integers(features["next_sentence_labels"] if labels is None else labels)


def pretraining_denominators(features: Tensors) -> dict[str, tf.Tensor]:
    """Scalars `masked_lm` and `sentence_order`; they need no forward pass."""
    return {
        "masked_lm": tf.reduce_sum(
            floats(features["masked_lm_weights"])) + MASKED_LM_EPSILON,
        "sentence_order": floats(tf.size(sentence_order_labels(features))),
    }


def pretraining_losses(
        heads: Tensors, features: Tensors, denominators: Optional[Tensors] = None,
        sentence_loss: bool = True) -> dict[str, tf.Tensor]:
    """Masked-LM and sentence-order losses (release: `get_masked_lm_output`,
    `get_sentence_order_output`).

    Args:
      heads: `mlm_logits` [B, P, V], `sentence_order_logits` [B, 2].
      features: `masked_lm_ids` int [B, P], `masked_lm_weights` float [B, P],
        `sentence_order_labels` int [B] or [B, 1].
      denominators: of the batch of which `features` is a part; by default of
        `features`.
      sentence_loss: False leaves out the loss over sentences ("None" in Table 5 of the
        paper) and all its entries.

    Returns:
      Scalars `masked_lm_loss`, Σ w·nll divided by (Σ w + 1e-5), `sentence_order_loss`,
      the mean over the batch, and their sum `total_loss`; per example
      `masked_lm_example_loss` [B, P], not weighted, and `sentence_order_example_loss`
      [B].
    """
    if denominators is None:
        denominators = pretraining_denominators(features)
    # 1. Masked tokens: slots without a prediction have the weight 0.
    masked_lm = cross_entropy(heads["mlm_logits"], features["masked_lm_ids"])
    masked_lm_loss = tf.reduce_sum(
        floats(features["masked_lm_weights"]) * masked_lm) / denominators["masked_lm"]
    losses = {
        "masked_lm_loss": masked_lm_loss, "total_loss": masked_lm_loss,
        "masked_lm_example_loss": masked_lm}
    if not sentence_loss:
        return losses
    # 2. Sentence order: both losses count alike.
    sentence_order = cross_entropy(
        heads["sentence_order_logits"], sentence_order_labels(features))
    sentence_order_loss = (
        tf.reduce_sum(sentence_order) / denominators["sentence_order"])
    return {**losses, "sentence_order_loss": sentence_order_loss,
            "total_loss": masked_lm_loss + sentence_order_loss,
            "sentence_order_example_loss": sentence_order}


def pretraining_metrics(heads: Tensors, features: Tensors,
                        losses: Tensors) -> WeightedValues:
    """Loss and accuracy of masked pieces and, where `losses` have it, of sentence
    order, of shape [B, P] or [B] (the release's `metric_fn`)."""
    examples = example_weights(features)
    predictions = floats(features["masked_lm_weights"]) * examples[:, tf.newaxis]
    metrics = {
        "masked_lm_loss": (losses["masked_lm_example_loss"], predictions),
        "masked_lm_accuracy": (
            hits(heads["mlm_logits"], features["masked_lm_ids"]), predictions)}
    if "sentence_order_example_loss" in losses:
        metrics |= {
            "sentence_order_loss": (losses["sentence_order_example_loss"], examples),
            "sentence_order_accuracy": (
                hits(heads["sentence_order_logits"], sentence_order_labels(features)),
                examples)}
    return metrics


PRETRAINING = Objective(
    pretraining_denominators, pretraining_losses, pretraining_metrics)
# "None" in Table 5 of the paper.
MASKED_LM_ALONE = dataclasses.replace(
    PRETRAINING, losses=functools.partial(pretraining_losses, sentence_loss=False))
