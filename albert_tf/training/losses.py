"""Losses: weighted means of per-example cross-entropies, on one replica.

Shapes: B batch, P predictions, V pieces.
"""

from typing import Mapping, Optional

import tensorflow as tf

# Added to the sum of the masked-LM weights; keeps a batch without predictions
# finite, and is part of the release's numbers.
MASKED_LM_EPSILON = 1e-5


def sentence_order_labels(features: Mapping[str, tf.Tensor]) -> tf.Tensor:
    """int32 [B], 1 = swapped; under its parsed name or its name on disk."""
    labels = features.get("sentence_order_labels")
    if labels is None:
        labels = features["next_sentence_labels"]
    return tf.cast(tf.reshape(labels, [-1]), tf.int32)


def pretraining_denominators(features: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """What the two losses of a batch are divided by; they need no forward pass.

    A batch computed in parts (gradient accumulation) divides each part's sums by
    the denominators of the whole, and so gets the loss and gradients of the
    whole.

    Returns:
      A dict of float scalars: `masked_lm` and `sentence_order`.
    """
    weights = tf.cast(features["masked_lm_weights"], tf.float32)
    labels = sentence_order_labels(features)
    return {
        "masked_lm": tf.reduce_sum(weights) + MASKED_LM_EPSILON,
        "sentence_order": tf.cast(tf.size(labels), tf.float32),
    }


def pretraining_losses(
    heads: Mapping[str, tf.Tensor],
    features: Mapping[str, tf.Tensor],
    denominators: Optional[Mapping[str, tf.Tensor]] = None,
    sentence_loss: bool = True,
) -> dict[str, tf.Tensor]:
    """Masked-LM and sentence-order losses.

    Release: `get_masked_lm_output`, `get_sentence_order_output`.

    Args:
      heads: `mlm_logits` [B, P, V], `sentence_order_logits` [B, 2].
      features: `masked_lm_ids` int [B, P], `masked_lm_weights` float [B, P],
        `sentence_order_labels` int [B] or [B, 1].
      denominators: of the batch of which `features` is a part; by default
        those of `features`.
      sentence_loss: False leaves out the loss over sentences ("None" in Table 5 of
        the paper).

    Returns:
      A dict of natural-log losses: scalars `masked_lm_loss`, Σ w·nll divided by
      (Σ w + 1e-5), `sentence_order_loss`, the mean over the batch, and their sum
      `total_loss`; per example `masked_lm_example_loss` [B, P] (not weighted)
      and `sentence_order_example_loss` [B]. Without the sentence loss nothing of it
      is there.
    """
    if denominators is None:
        denominators = pretraining_denominators(features)
    # Sparse cross-entropy: a one-hot matrix over all pieces costs more than the
    # rest of the loss.
    masked_lm = tf.nn.sparse_softmax_cross_entropy_with_logits(
        labels=tf.cast(features["masked_lm_ids"], tf.int32),
        logits=tf.cast(heads["mlm_logits"], tf.float32))
    weights = tf.cast(features["masked_lm_weights"], tf.float32)
    masked_lm_loss = tf.reduce_sum(weights * masked_lm) / denominators["masked_lm"]
    losses = {
        "masked_lm_loss": masked_lm_loss, "total_loss": masked_lm_loss,
        "masked_lm_example_loss": masked_lm}
    if not sentence_loss:
        return losses
    sentence_order = tf.nn.sparse_softmax_cross_entropy_with_logits(
        labels=sentence_order_labels(features),
        logits=tf.cast(heads["sentence_order_logits"], tf.float32))
    sentence_order_loss = (
        tf.reduce_sum(sentence_order) / denominators["sentence_order"])
    return {
        **losses,
        "sentence_order_loss": sentence_order_loss,
        "total_loss": masked_lm_loss + sentence_order_loss,
        "sentence_order_example_loss": sentence_order,
    }


def pretraining_metrics(
    heads: Mapping[str, tf.Tensor],
    features: Mapping[str, tf.Tensor],
    losses: Mapping[str, tf.Tensor],
) -> dict[str, tuple[tf.Tensor, tf.Tensor]]:
    """The release's evaluation metrics as values with weights (`metric_fn`).

    Args:
      heads: `mlm_logits` [B, P, V], `sentence_order_logits` [B, 2].
      features: as for pretraining_losses; optionally `example_weights` float
        [B], 0 for examples that only pad the batch.
      losses: what pretraining_losses returned.

    Returns:
      Metric → (values, weights) of one shape, [B, P] or [B]: `masked_lm_loss`,
      `masked_lm_accuracy`, and, where `losses` have them, `sentence_order_loss`,
      `sentence_order_accuracy`.
    """
    labels = sentence_order_labels(features)
    examples = features.get("example_weights")
    examples = tf.ones(tf.shape(labels)) if examples is None else examples
    predictions = (tf.cast(features["masked_lm_weights"], tf.float32)
                   * examples[:, tf.newaxis])

    def hits(logits, ids):
        found = tf.argmax(logits, axis=-1, output_type=tf.int32)
        return tf.cast(found == tf.cast(ids, tf.int32), tf.float32)

    metrics = {
        "masked_lm_loss": (losses["masked_lm_example_loss"], predictions),
        "masked_lm_accuracy": (
            hits(heads["mlm_logits"], features["masked_lm_ids"]), predictions)}
    if "sentence_order_example_loss" not in losses:
        return metrics
    return {
        **metrics,
        "sentence_order_loss": (losses["sentence_order_example_loss"], examples),
        "sentence_order_accuracy": (
            hits(heads["sentence_order_logits"], labels), examples),
    }
