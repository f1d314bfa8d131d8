"""The head of classification and regression, its exits, and its answers.

Shapes: B batch, L layers, H hidden, K labels, or numbers of a regression.
"""

import dataclasses
from typing import Iterable, Optional, Sequence

import numpy as np

from albert_tf.checkpoints.checkpoint import (
    LABEL_THRESHOLD, ONE_LABEL, REGRESSION, SEVERAL_LABELS)
from albert_tf.errors import InputError
from albert_tf.finetuning.answer import Answering, by_label, chosen
from albert_tf.modeling.heads import INPUTS, Head, dense_shapes, output_shapes

# An input of models with exits: a sequence exits if a label's probability is above it.
EXIT_INPUT = "exit_threshold"


@dataclasses.dataclass(frozen=True)
class Classification(Head):
    """A linear layer on the pooled output (`classifier_utils.create_model` in the
    original implementation, which has regression and one label for each text).

    Attributes:
      dropout_prob: the dropout rate of the pooled output in training.
      exit_weight: the weight of the exits' loss in the encoder's gradient, relative to
        the last layer's; None for a model without exits (modeling.early_exit).
      problem_type: one of checkpoint.PROBLEMS; "": a regression if `width` is 1, else
        one label.
    """

    dropout_prob: float = 0.1
    exit_weight: Optional[float] = None
    problem_type: str = ""

    name, title = "classification", "classification head"
    task = "classify"

    @property
    def problem(self) -> str:
        """The meaning of the outputs, one of checkpoint.PROBLEMS."""
        return self.problem_type or (REGRESSION if self.width == 1 else ONE_LABEL)

    @property
    def reads_layers(self):
        return self.exit_weight is not None

    def shapes(self, config):
        exits = {} if self.exit_weight is None else EarlyExit(self.width).shapes(config)
        return {**super().shapes(config), **exits}

    def layers(self, config):
        layers = super().layers(config)
        if self.exit_weight is None:
            return layers
        return {**layers, **EarlyExit(self.width, self.exit_weight).layers(config)}

    def outputs(self, layers, encoded, features, dropout, training=False):
        """Computes `logits` [B, K] and, with exits, `exit_logits` [B, L - 1, K]."""
        pooled = dropout.dropout(encoded["pooled_output"], self.dropout_prob)
        outputs = {"logits": layers["output_layer"](pooled)}
        if self.exit_weight is not None:
            outputs["exit_logits"] = layers["exit_head"].of_passes(
                encoded["encoder_outputs"], dropout, self.dropout_prob)
        return outputs

    def predictions(self, outputs):
        import tensorflow as tf

        logits = tf.cast(outputs["logits"], tf.float32)
        if self.problem == REGRESSION:
            return {"logits": logits}
        return {"logits": logits, "probabilities": (
            tf.sigmoid(logits) if self.problem == SEVERAL_LABELS
            else tf.nn.softmax(logits))}

    def output_names(self, labels):
        return labels or [str(i) for i in range(self.width)] * (self.width > 1)

    def objective(self, weights: Sequence[float] = ()):
        """Returns the objective, which needs the feature `label_ids`: the number of the
        label, int [B, 1], or float [B, K]: 1 for each label of the text and 0 for the
        others, or the numbers of a regression. `weights` [K] are those of the labels in
        the loss (classification.weights)."""
        from albert_tf.finetuning import objectives

        kind = {REGRESSION: objectives.numbers, ONE_LABEL: objectives.one_label,
                SEVERAL_LABELS: objectives.several_labels}[self.problem]
        objective = kind(self.predictions, *[weights] * (len(weights) > 0))
        return objective if self.exit_weight is None else with_exits(objective)

    def targets(self, features):
        from albert_tf.training import distillation

        distance = {REGRESSION: distillation.squared_difference,
                    ONE_LABEL: distillation.divergence,
                    SEVERAL_LABELS: distillation.divergence_by_label}[self.problem]
        targets = distillation.targets_of(
            features, {"logits": (1.0, distance)}, "pooled_output")
        if self.exit_weight is not None:
            # The target of every exit is the output of the teacher's last layer.
            target = targets["logits"]
            targets["exit_logits"] = target._replace(
                of="logits", distance=lambda exits, teacher, temperature: over_passes(
                    lambda logits: target.distance(logits, teacher, temperature), exits))
        return targets

    def answering(self):
        return Classes

    def text_task(self):
        from albert_tf.finetuning.text import Texts

        return Texts


@dataclasses.dataclass(frozen=True)
class EarlyExit(Head):
    """The exits of a classifier, which a checkpoint has besides the head, under
    "exit/..." (modeling.early_exit)."""

    exit_weight: float = 1.0

    name, scope = "early_exit", "exit"

    @property
    def reads_layers(self):
        return True

    def shapes(self, config):
        size = config.hidden_size
        return {**dense_shapes("exit/pooler/dense", size, size),
                **output_shapes(self.scope, self.width, size)}

    def layers(self, config):
        from albert_tf.modeling.early_exit import ExitHead

        return {"exit_head": ExitHead(config, self.width, self.exit_weight)}

    def outputs(self, layers, encoded, features, dropout, training=False):
        return {"exit_logits": layers["exit_head"].of_passes(encoded["encoder_outputs"])}


def over_passes(loss, exits):
    """Returns the weighted sum of a loss, logits [B, K] → [B], over the exits
    [B, L - 1, K].

    The weights are proportional to the number of the pass and sum to 1. Early passes
    get smaller weights, because equal weights hurt the later ones (PABEE, ELBERT).
    """
    passes = exits.shape[1]
    return sum(2.0 * (i + 1) / (passes * (passes + 1)) * loss(exits[:, i])
               for i in range(passes))


def with_exits(own):
    """Returns an objective that applies an objective of `logits` to `exit_logits`
    [B, L - 1, K], too. The loss of the last pass is the same as without exits."""
    import tensorflow as tf

    from albert_tf.training.losses import Objective, example_weights

    def losses(outputs, features, denominators):
        values = own.losses(outputs, features, denominators)
        exits = over_passes(lambda logits: own.losses(
            {"logits": logits}, features, denominators)["example_loss"],
                            outputs["exit_logits"])
        return {**values, "exit_loss": exits, "total_loss": values["total_loss"]
                + tf.math.divide_no_nan(tf.reduce_sum(exits * example_weights(features)),
                                        denominators["examples"])}

    def metrics(outputs, features, values):
        return {**own.metrics(outputs, features, values),
                "exit_loss": (values["exit_loss"], example_weights(features))}

    return Objective(own.denominators, losses, metrics, lambda outputs, features: {
        **own.predictions(outputs, features),
        "exit_logits": tf.cast(outputs["exit_logits"], tf.float32)})


# ---- answers ---------------------------------------------------------------


class Classes(Answering):
    """Answers with the label of a text or pair, with its labels, or with numbers. It
    takes what the model was trained on, if its folder tells: a text, or a pair. The
    logits of windows are averaged."""

    averages = True

    def __init__(self, model, head):
        from albert_tf.finetuning.classification import glue

        super().__init__(model, head)
        pairs = glue.takes_pairs(model.settings)
        if pairs is not None:
            self.names, self.optional = self.names[:1 + pairs], ()
        self.label_threshold = self.setting("label_threshold", LABEL_THRESHOLD)

    def request(self, given, top_k, windows=False):
        for name in self.names:
            if name not in self.optional and not given[name].strip():
                raise InputError(f"'{name}' is empty; give a text.")
        return super().request(given, top_k, windows)

    def mean(self, outputs):
        logits = np.mean([row["logits"] for row in outputs], axis=0)
        return {name: np.array(value)[0] for name, value in self.head.predictions(
            {"logits": logits[np.newaxis]}).items()}

    def answer(self, outputs):
        if self.head.problem == REGRESSION:
            numbers = [float(value) for value in outputs["logits"]]
            return {"score": numbers[0]} if len(numbers) == 1 else {"scores": numbers}
        if self.head.problem == ONE_LABEL:
            return chosen(outputs["probabilities"], self.labels)
        probabilities = outputs["probabilities"]
        return {"labels": self.given(probabilities, self.label_threshold),
                "probabilities": by_label(probabilities, self.labels)}

    def given(self, probabilities: Iterable[float], threshold: float) -> list[str]:
        """Returns the labels whose probability is at least the threshold."""
        names = self.head.output_names(self.labels) or ["0"]
        return [name for name, value in zip(names, probabilities) if value >= threshold]


class ExitClasses(Classes):
    """Answers as Classes does, but stops at the first exit whose label is probable
    enough."""

    inputs = (*INPUTS, EXIT_INPUT)
    types = {EXIT_INPUT: np.float32}
    averages = False

    def outputs(self, features):
        from albert_tf.modeling import early_exit

        features = dict(features)
        threshold = features.pop(EXIT_INPUT)[:, 0]
        return early_exit.answers(self.model, features, threshold, self.computation)

    def answer(self, outputs):
        return {**super().answer(outputs), "passes": int(outputs["passes"])}
