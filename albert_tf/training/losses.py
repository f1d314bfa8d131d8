"""Objectives: the losses, metrics and kept outputs of every kind of task.

An `Objective` describes each kind; a `Task` is a model with its objective. Losses are
natural-log cross-entropies in float32, weighted means on one replica. Numerators and
denominators are apart: a batch computed in parts (gradient accumulation) divides each
part's sum by the denominator of the whole, so that the parts' losses and gradients add
up to those of the whole.

Pretraining adds the loss of masked pieces and that of sentence order. BERT asked
whether the second segment follows the first at all, which a model can guess from the
topic of the two; that they may be swapped shows only in how a text hangs together
(section 3.1 and Table 5 of the paper).

Shapes: B batch, S sequence, P predictions, V pieces, C choices, K labels.
"""

import dataclasses
import functools
from typing import Callable, Mapping, NamedTuple, Optional

import numpy as np
import tensorflow as tf
import tf_keras

from albert_tf.modeling.kernels import fast

Tensors = Mapping[str, tf.Tensor]
# Metric → its values and their weights; a metric is their weighted mean.
WeightedValues = dict[str, tuple[tf.Tensor, tf.Tensor]]
# Name → one array for each example, in the order of their `example_index`.
Predictions = dict[str, list[np.ndarray]]

# Scores below that are those of what cannot be, such as answers in padding.
_IMPOSSIBLE = -1e20

# Added to the sum of the masked-LM weights; keeps a batch without predictions
# finite, and is part of the release's numbers.
MASKED_LM_EPSILON = 1e-5


def _floats(tensor: tf.Tensor) -> tf.Tensor:
    return tf.cast(tensor, tf.float32)


def divergence(own: tf.Tensor, teacher: tf.Tensor, temperature: float) -> tf.Tensor:
    """T² · KL(softmax(teacher / T), softmax(own / T)): [..., N], [..., N] → [...]. What
    is impossible here is so for the teacher."""
    own, teacher = _floats(own), _floats(teacher)
    teacher = tf.where(own < _IMPOSSIBLE, own, teacher)
    own, teacher = (tf.nn.log_softmax(x / temperature) for x in (own, teacher))
    return temperature ** 2 * tf.reduce_sum(tf.exp(teacher) * (teacher - own), axis=-1)


def _squared_difference(own: tf.Tensor, teacher: tf.Tensor,
                        temperature: float) -> tf.Tensor:
    """[B, 1], [B, 1] → [B]."""
    del temperature
    return tf.reduce_sum(tf.square(_floats(own) - _floats(teacher)), axis=-1)


def _binary_divergence(own: tf.Tensor, teacher: tf.Tensor,
                       temperature: float) -> tf.Tensor:
    """As `divergence`, of scores against 0: [B], [B] → [B]."""
    return divergence(*(tf.stack([tf.zeros_like(x), x], axis=-1)
                        for x in (own, teacher)), temperature)


def _apart(own: tf.Tensor, teacher: tf.Tensor) -> tf.Tensor:
    """Mean squared difference of hidden states: [..., H], [..., H] → [...]."""
    return tf.reduce_mean(tf.square(_floats(own) - _floats(teacher)), axis=-1)


class Taught(NamedTuple):
    """How a teacher's output is learned (training.distillation).

    Attributes:
      weights: of the values of `distance`; 0 leaves one out.
      denominator: the name of what their sum is divided by.
      share: of this output in the loss.
      distance: (own, teacher's, temperature) → one value for each that is learned.
      of: the teacher's output, "" for the one of the same name.
      hidden: whether it is a hidden state that the heads read, which can be learned of
        a teacher of the same width.
    """

    weights: tf.Tensor
    denominator: str
    share: float = 1.0
    distance: Callable[[tf.Tensor, tf.Tensor, float], tf.Tensor] = divergence
    of: str = ""
    hidden: bool = False


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
    taught: Callable[[Tensors], Mapping[str, Taught]] = lambda features: {}


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



def _integers(tensor: tf.Tensor) -> tf.Tensor:
    """One integer per example, [B] or [B, 1] → int32 [B]."""
    return tf.cast(tf.reshape(tensor, [-1]), tf.int32)


def _weights(features: Tensors) -> tf.Tensor:
    """float32 [B]: 0 for the examples that only pad a batch."""
    weights = features.get("example_weights")
    if weights is None:
        return tf.ones(tf.shape(next(iter(features.values())))[:1])
    return _floats(weights)


def _labelled(features: Tensors) -> tf.Tensor:
    """float32 [B]: 0 for examples without a label, which only a teacher says something
    of."""
    labelled = features.get("labelled")
    return _weights(features) if labelled is None else (
        _weights(features) * _floats(tf.reshape(labelled, [-1])))


def _cross_entropy(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Softmax cross-entropy: [..., N], [...] → [...].

    Sparse: a one-hot matrix over all pieces costs more than the rest of the loss.
    """
    return fast.cross_entropy(_floats(logits), tf.cast(labels, tf.int32))


def _hits(scores: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """1.0 where the highest score is the label's: [..., N], [...] → [...]."""
    found = tf.argmax(scores, axis=-1, output_type=tf.int32)
    return _floats(found == tf.cast(labels, tf.int32))


# ---- pretraining -----------------------------------------------------------


def sentence_order_labels(features: Tensors) -> tf.Tensor:
    """int32 [B], 1 = swapped; under its parsed name or its name on disk."""
    labels = features.get("sentence_order_labels")
    return _integers(features["next_sentence_labels"] if labels is None else labels)


def pretraining_denominators(features: Tensors) -> dict[str, tf.Tensor]:
    """Scalars `masked_lm` and `sentence_order`; they need no forward pass."""
    return {
        "masked_lm": tf.reduce_sum(
            _floats(features["masked_lm_weights"])) + MASKED_LM_EPSILON,
        "sentence_order": _floats(tf.size(sentence_order_labels(features))),
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
    masked_lm = _cross_entropy(heads["mlm_logits"], features["masked_lm_ids"])
    masked_lm_loss = tf.reduce_sum(
        _floats(features["masked_lm_weights"]) * masked_lm) / denominators["masked_lm"]
    losses = {
        "masked_lm_loss": masked_lm_loss, "total_loss": masked_lm_loss,
        "masked_lm_example_loss": masked_lm}
    if not sentence_loss:
        return losses
    sentence_order = _cross_entropy(
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
    examples = _weights(features)
    predictions = _floats(features["masked_lm_weights"]) * examples[:, tf.newaxis]
    metrics = {
        "masked_lm_loss": (losses["masked_lm_example_loss"], predictions),
        "masked_lm_accuracy": (
            _hits(heads["mlm_logits"], features["masked_lm_ids"]), predictions)}
    if "sentence_order_example_loss" in losses:
        metrics |= {
            "sentence_order_loss": (losses["sentence_order_example_loss"], examples),
            "sentence_order_accuracy": (
                _hits(heads["sentence_order_logits"], sentence_order_labels(features)),
                examples)}
    return metrics


def _taught_pieces(features: Tensors) -> dict[str, Taught]:
    weights = _floats(features["masked_lm_weights"]) * _weights(features)[:, tf.newaxis]

    def of_masked(own, teacher, temperature):
        """Student's at the masked positions, teacher's of all: → [B, P]."""
        del temperature
        return _apart(own, tf.gather(
            teacher, features["masked_lm_positions"], batch_dims=1))

    return {"mlm_logits": Taught(weights, "masked_lm"), "sequence_output": Taught(
        weights, "masked_lm", distance=of_masked, hidden=True)}


PRETRAINING = Objective(
    pretraining_denominators, pretraining_losses, pretraining_metrics,
    taught=lambda features: {**_taught_pieces(features), "sentence_order_logits": (
        Taught(_weights(features), "sentence_order"))})
# "None" in Table 5 of the paper.
MASKED_LM_ALONE = dataclasses.replace(
    PRETRAINING, taught=_taught_pieces,
    losses=functools.partial(pretraining_losses, sentence_loss=False))


# ---- fine-tuning: means over examples --------------------------------------


def _denominators(features: Tensors) -> dict[str, tf.Tensor]:
    return {"examples": tf.reduce_sum(_weights(features))}


def _keep(*names: str):
    """Predictions that are outputs as they stand."""
    return lambda outputs, features: {name: outputs[name] for name in names}


def _taught_hidden(features: Tensors, name: str, weights: tf.Tensor,
                   denominator: str) -> dict[str, Taught]:
    """`sequence_output` [B, S, H], a mean over what is no padding, or `pooled_output`,
    [B, H] or of choices [B, C, H]."""
    def distance(own, teacher, temperature):
        del temperature
        found = _apart(own, teacher)
        found = tf.reshape(found, [tf.shape(found)[0], -1])
        mask = _floats(features["input_mask"]) if name == "sequence_output" else (
            tf.ones_like(found))
        return tf.reduce_sum(found * mask, axis=1) / tf.reduce_sum(mask, axis=1)

    return {name: Taught(weights, denominator, distance=distance, hidden=True)}


def _objective(example_loss, accuracies, predictions, taught,
               training_output: str = "", hidden: str = "pooled_output") -> Objective:
    """An Objective whose loss is the mean of `example_loss`, (outputs, features) → [B],
    with accuracies, (outputs, features) → metric → [B] of 0 and 1; `taught` are the
    outputs that can be, name → share and distance; `hidden` is what the head reads.
    Where the model gives `training_output` in training only, there is no loss and no
    metric without it.
    """
    def losses(outputs: Tensors, features: Tensors, denominators: Tensors):
        if training_output and training_output not in outputs:
            return {"total_loss": tf.zeros([])}
        values = example_loss(outputs, features) * _labelled(features)
        # A replica's batch may hold nothing but padding.
        total = tf.math.divide_no_nan(
            tf.reduce_sum(values), denominators["examples"])
        return {"total_loss": total, "example_loss": values}

    def metrics(outputs: Tensors, features: Tensors, losses: Tensors):
        if "example_loss" not in losses:
            return {}
        values = {"loss": losses["example_loss"], **accuracies(outputs, features)}
        return {name: (value, _labelled(features)) for name, value in values.items()}

    def of_teacher(features: Tensors):
        weights = _weights(features)
        return {**{name: Taught(weights, "examples", *how)
                   for name, how in taught.items()},
                **_taught_hidden(features, hidden, weights, "examples")}

    return Objective(_denominators, losses, metrics, predictions, of_teacher)


# ---- one label per example -------------------------------------------------


def _label_loss(outputs: Tensors, features: Tensors) -> tf.Tensor:
    return _cross_entropy(outputs["logits"], _integers(features["label_ids"]))


def _label_accuracy(outputs: Tensors, features: Tensors) -> dict[str, tf.Tensor]:
    return {"accuracy": _hits(outputs["logits"], _integers(features["label_ids"]))}


def _label_predictions(outputs: Tensors, features: Tensors) -> dict[str, tf.Tensor]:
    del features
    logits = _floats(outputs["logits"])
    return {"logits": logits, "probabilities": tf.nn.softmax(logits)}


def _squared_error(outputs: Tensors, features: Tensors) -> tf.Tensor:
    labels = _floats(tf.reshape(features["label_ids"], [-1]))
    return tf.square(_floats(tf.squeeze(outputs["logits"], axis=-1)) - labels)


# ---- exits before the last pass --------------------------------------------


def with_exits(own: Objective) -> Objective:
    """An objective of `logits` that `exit_logits` [B, L - 1, K] (modeling.early_exit)
    learn, too.

    The exits' losses are weighted by their pass, Σ = 1: the first passes have seen
    little, and were they to count as much as the later ones, these would suffer (PABEE,
    ELBERT). The last pass' own loss is what it is without exits.
    """
    def of_passes(loss, exits):
        """The weighted sum of `loss` of the logits [B, K] of each exit."""
        passes = exits.shape[1]
        return sum(2.0 * (i + 1) / (passes * (passes + 1)) * loss(exits[:, i])
                   for i in range(passes))

    def losses(outputs: Tensors, features: Tensors, denominators: Tensors):
        found = own.losses(outputs, features, denominators)
        exits = of_passes(lambda logits: own.losses(
            {"logits": logits}, features, denominators)["example_loss"],
                          outputs["exit_logits"])
        return {**found, "exit_loss": exits, "total_loss": found["total_loss"]
                + tf.math.divide_no_nan(tf.reduce_sum(exits * _weights(features)),
                                        denominators["examples"])}

    def metrics(outputs: Tensors, features: Tensors, losses: Tensors):
        return {**own.metrics(outputs, features, losses),
                "exit_loss": (losses["exit_loss"], _weights(features))}

    def taught(features: Tensors):
        last = own.taught(features)["logits"]
        return {**own.taught(features), "exit_logits": last._replace(
            of="logits", distance=lambda exits, teacher, temperature: of_passes(
                lambda logits: last.distance(logits, teacher, temperature), exits))}

    return Objective(
        own.denominators, losses, metrics, lambda outputs, features: {
            **own.predictions(outputs, features),
            "exit_logits": _floats(outputs["exit_logits"])}, taught)


# ---- a label per word ------------------------------------------------------


def _tag_weights(features: Tensors) -> tf.Tensor:
    """float32 [B, S]: 1 for the pieces that have a label."""
    return _floats(features["label_ids"] > 0) * _weights(features)[:, tf.newaxis]


def _tag_labels(features: Tensors) -> tf.Tensor:
    return tf.maximum(features["label_ids"] - 1, 0)


def _tag_losses(outputs: Tensors, features: Tensors, denominators: Tensors):
    values = _cross_entropy(outputs["logits"], _tag_labels(features))
    total = tf.math.divide_no_nan(
        tf.reduce_sum(values * _tag_weights(features)), denominators["words"])
    return {"total_loss": total, "word_loss": values}


def _tag_metrics(outputs: Tensors, features: Tensors, losses: Tensors):
    weights = _tag_weights(features)
    return {"loss": (losses["word_loss"], weights), "accuracy": (
        _hits(outputs["logits"], _tag_labels(features)), weights)}


def _taught_tags(features: Tensors) -> dict[str, Taught]:
    weights = _tag_weights(features)
    return {"logits": Taught(weights, "words"), "sequence_output": Taught(
        weights, "words", hidden=True,
        distance=lambda own, teacher, temperature: _apart(own, teacher))}


def _tag_predictions(outputs: Tensors, features: Tensors) -> dict[str, tf.Tensor]:
    del features
    logits = _floats(outputs["logits"])
    return {"tags": tf.argmax(logits, axis=-1, output_type=tf.int32),
            "probabilities": tf.reduce_max(tf.nn.softmax(logits), axis=-1)}


# ---- spans -----------------------------------------------------------------


def _span_loss(outputs: Tensors, features: Tensors) -> tf.Tensor:
    """Mean of the cross-entropies of start and end, over all S positions; whether
    padding takes part is the model's mask_padding."""
    start, end = (
        _cross_entropy(outputs[f"{side}_logits"],
                       _integers(features[f"{side}_positions"]))
        for side in ("start", "end"))
    return (start + end) / 2.0


def _conditional_span_loss(outputs: Tensors, features: Tensors) -> tf.Tensor:
    """Mean of start and end, and half of the answerability cross-entropy."""

    def negative_log_prob(side):
        log_probs = _floats(outputs[f"{side}_log_probs"])
        true = tf.one_hot(_integers(features[f"{side}_positions"]),
                          tf.shape(log_probs)[1])
        return -tf.reduce_sum(true * log_probs, axis=-1)

    answerability = tf.nn.sigmoid_cross_entropy_with_logits(
        labels=_floats(_integers(features["is_impossible"])),
        logits=_floats(outputs["cls_logits"]))
    return ((negative_log_prob("start") + negative_log_prob("end")) / 2.0
            + 0.5 * answerability)


def _span_accuracies(kind: str):
    """Shares of right starts and ends; `kind` of outputs, "logits" or "log_probs"."""
    def accuracies(outputs: Tensors, features: Tensors) -> dict[str, tf.Tensor]:
        return {f"{side}_accuracy": _hits(outputs[f"{side}_{kind}"],
                                          _integers(features[f"{side}_positions"]))
                for side in ("start", "end")}

    return accuracies


def _conditional_span_accuracies(outputs: Tensors, features: Tensors):
    impossible = _integers(features["is_impossible"])
    found = tf.cast(outputs["cls_logits"] > 0, tf.int32)
    return {**_span_accuracies("log_probs")(outputs, features),
            "answerability_accuracy": _floats(found == impossible)}


# ---- the objectives --------------------------------------------------------

# Features `label_ids` int [B, 1]; outputs `logits` [B, K]. Release:
# `classifier_utils.create_model`.
CLASSIFICATION = _objective(
    _label_loss, _label_accuracy, _label_predictions, {"logits": ()})

# Features `label_ids` float [B, 1]; outputs `logits` [B, 1].
REGRESSION = _objective(
    _squared_error, lambda outputs, features: {}, _keep("logits"),
    {"logits": (1.0, _squared_difference)})

# Features `label_ids` int [B, 1]; outputs `logits` [B, C]. Release:
# `race_utils.create_model`.
CHOICE = _objective(
    _label_loss, _label_accuracy, _label_predictions, {"logits": ()})

# Features `label_ids` int [B, S], a label and 1, 0 for pieces without; outputs `logits`
# [B, S, K]. The loss is the mean over words; no counterpart in the release.
TAGGING = Objective(lambda features: {"words": tf.reduce_sum(_tag_weights(features))},
                    _tag_losses, _tag_metrics, _tag_predictions, _taught_tags)

# Losses and metrics of spans need the model's outputs of training, predictions those
# of prediction. Evaluation asks for both and finds no loss: version 2.0 follows its own
# starts there, and the windows of a set to predict have no positions of answers.
# Questions are scored by their texts instead.

# Features `start_positions`, `end_positions` int [B, 1]; outputs of AlbertForSpans.
# Release: `squad_utils.v1_model_fn_builder`.
SPANS = _objective(
    _span_loss, _span_accuracies("logits"), _keep("start_log_probs", "end_log_probs"),
    {"start_logits": (0.5,), "end_logits": (0.5,)}, training_output="start_logits",
    hidden="sequence_output")

# Features as for SPANS, and `is_impossible` int [B, 1]; outputs of
# AlbertForConditionalSpans. Release: `squad_utils.v2_model_fn_builder`.
CONDITIONAL_SPANS = _objective(
    _conditional_span_loss, _conditional_span_accuracies,
    _keep("start_top_log_probs", "start_top_index", "end_top_log_probs",
          "end_top_index", "cls_logits"),
    {"start_log_probs": (0.5,), "end_log_probs": (0.5,),
     "cls_logits": (0.5, _binary_divergence)}, training_output="start_log_probs",
    hidden="sequence_output")
