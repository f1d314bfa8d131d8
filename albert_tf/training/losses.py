"""Training objectives: what an objective is, and the one of pretraining.

An `Objective` has losses, metrics and the predictions to store. Losses are
cross-entropies (natural logarithm, float32), as weighted means over the batch. Their
denominators are computed separately: if a batch is computed in parts (gradient
accumulation), each part's sum is divided by the denominator of the whole batch, so that
losses and gradients of the parts add up to those of the batch.

The loss of pretraining is the sum of the masked-token loss and the sentence-order loss
(section 3.1 of the paper; pretraining_data.instances says why sentence order). The
objectives of fine-tuning are in the heads of the tasks.

Shapes: B batch, P predictions, V tokens, N classes.
"""

import dataclasses
import functools
from typing import Callable, Mapping, Optional

import numpy as np
import tensorflow as tf

from albert_tf.modeling.kernels import fast

Tensors = Mapping[str, tf.Tensor]
# Metric → its values and their weights; a metric is their weighted mean.
WeightedValues = dict[str, tuple[tf.Tensor, tf.Tensor]]
# Name → one array for each example, in the order of their `example_index`.
Predictions = dict[str, list[np.ndarray]]

# Added to the sum of the masked-LM weights, as in the original. It keeps the loss
# finite for a batch without predictions.
MASKED_LM_EPSILON = 1e-5


def floats(tensor: tf.Tensor) -> tf.Tensor:
    """Casts to float32."""
    return tf.cast(tensor, tf.float32)


@dataclasses.dataclass(frozen=True)
class Objective:
    """A training objective, and which outputs of the model are stored.

    Attributes:
      denominators: features → what the losses of the whole batch are divided by.
      losses: (outputs, features, denominators) → a scalar `total_loss`, whose sum over
        the parts of a batch is the batch's loss, and what `metrics` needs.
      metrics: (outputs, features, losses) → weighted values. In evaluation the features
        hold `example_weights` [B], 0 for examples that only pad a batch; without it
        every example counts 1.
      predictions: (outputs, features) → what is stored for each example, [B, ...]; the
        features hold `example_index` [B], -1 for padding. None stores nothing.
    """

    denominators: Callable[[Tensors], Tensors]
    losses: Callable[[Tensors, Tensors, Tensors], Tensors]
    metrics: Callable[[Tensors, Tensors, Tensors], WeightedValues]
    predictions: Optional[Callable[[Tensors, Tensors], Tensors]] = None


# ---- parts -----------------------------------------------------------------


def integers(tensor: tf.Tensor) -> tf.Tensor:
    """Returns one integer per example: [B] or [B, 1] → int32 [B]."""
    return tf.cast(tf.reshape(tensor, [-1]), tf.int32)


def example_weights(features: Tensors) -> tf.Tensor:
    """Returns float32 [B]: 0 for examples that only fill up a batch, else 1."""
    weights = features.get("example_weights")
    if weights is None:
        return tf.ones(tf.shape(next(iter(features.values())))[:1])
    return floats(weights)


def cross_entropy(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Softmax cross-entropy: [..., N], [...] → [...].

    Labels stay indices: a one-hot matrix over the vocabulary would cost more than the
    rest of the loss.
    """
    return fast.cross_entropy(floats(logits), tf.cast(labels, tf.int32))


def hits(scores: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Returns 1.0 where the label has the highest score: [..., N], [...] → [...]."""
    labels = tf.cast(labels, tf.int32)
    # Rows, as a product leaves them: a TPU would copy [B, P, V] to another layout first.
    rows = tf.reshape(scores, [-1, tf.shape(scores)[-1]])
    predictions = tf.argmax(rows, axis=-1, output_type=tf.int32)
    return floats(tf.reshape(predictions, tf.shape(labels)) == labels)


# ---- pretraining -----------------------------------------------------------


def sentence_order_labels(features: Tensors) -> tf.Tensor:
    """Returns the labels int32 [B], 0 for segments in order, else 1."""
    # In the records they have BERT's name, in parsed features ours.
    labels = features.get("sentence_order_labels")
    return integers(features["next_sentence_labels"] if labels is None else labels)


def pretraining_denominators(features: Tensors) -> dict[str, tf.Tensor]:
    """Returns scalars `masked_lm`, the number of masked tokens + 1e-5, and
    `sentence_order`, the number of examples; they need no forward pass."""
    return {
        "masked_lm": tf.reduce_sum(
            floats(features["masked_lm_weights"])) + MASKED_LM_EPSILON,
        "sentence_order": floats(tf.size(sentence_order_labels(features))),
    }


def pretraining_losses(
        heads: Tensors, features: Tensors, denominators: Optional[Tensors] = None,
        sentence_loss: bool = True) -> dict[str, tf.Tensor]:
    """Computes the masked-LM and sentence-order losses (original:
    `get_masked_lm_output`, `get_sentence_order_output`).

    Args:
      heads: `mlm_logits` [B, P, V], `sentence_order_logits` [B, 2].
      features: `masked_lm_ids` int [B, P], `masked_lm_weights` float [B, P],
        `sentence_order_labels` int [B] or [B, 1].
      denominators: those of the whole batch, if `features` is a part of one; by default
        those of `features`.
      sentence_loss: False leaves out the sentence-order loss and all its entries
        ("None" in Table 5 of the paper).

    Returns:
      Scalars `masked_lm_loss`, which is Σ weight · cross-entropy / (Σ weight + 1e-5),
      `sentence_order_loss`, the mean over the batch, and their sum `total_loss`; per
      example `masked_lm_example_loss` [B, P], without weights, and
      `sentence_order_example_loss` [B].
    """
    if denominators is None:
        denominators = pretraining_denominators(features)
    # 1. Masked tokens. Slots that a sequence does not use have weight 0.
    masked_lm = cross_entropy(heads["mlm_logits"], features["masked_lm_ids"])
    masked_lm_loss = tf.reduce_sum(
        floats(features["masked_lm_weights"]) * masked_lm) / denominators["masked_lm"]
    losses = {"masked_lm_loss": masked_lm_loss, "masked_lm_example_loss": masked_lm}
    if not sentence_loss:
        return {**losses, "total_loss": masked_lm_loss}
    # 2. Sentence order: were the two segments swapped?
    sentence_order = cross_entropy(
        heads["sentence_order_logits"], sentence_order_labels(features))
    sentence_order_loss = (
        tf.reduce_sum(sentence_order) / denominators["sentence_order"])
    # 3. The objective of ALBERT is their sum, without weights.
    total_loss = masked_lm_loss + sentence_order_loss
    return {**losses, "sentence_order_loss": sentence_order_loss,
            "sentence_order_example_loss": sentence_order, "total_loss": total_loss}


def pretraining_metrics(heads: Tensors, features: Tensors,
                        losses: Tensors) -> WeightedValues:
    """Returns loss and accuracy of masked tokens [B, P] and, if `losses` has it, of
    sentence order [B] (original: `metric_fn`)."""
    # An example that only fills up a batch has weight 0, and so have its masked tokens.
    weights = example_weights(features)
    token_weights = floats(features["masked_lm_weights"]) * weights[:, tf.newaxis]
    metrics = {
        "masked_lm_loss": (losses["masked_lm_example_loss"], token_weights),
        "masked_lm_accuracy": (
            hits(heads["mlm_logits"], features["masked_lm_ids"]), token_weights)}
    if "sentence_order_example_loss" in losses:
        metrics |= {
            "sentence_order_loss": (losses["sentence_order_example_loss"], weights),
            "sentence_order_accuracy": (
                hits(heads["sentence_order_logits"], sentence_order_labels(features)),
                weights)}
    return metrics


PRETRAINING = Objective(
    pretraining_denominators, pretraining_losses, pretraining_metrics)
# Without a sentence loss, "None" in Table 5 of the paper.
MASKED_LM_ALONE = dataclasses.replace(
    PRETRAINING, losses=functools.partial(pretraining_losses, sentence_loss=False))
