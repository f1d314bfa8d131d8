"""The head of classification and regression, its exits, and the answers it gives.

Shapes: B batch, L passes, H hidden, K labels.
"""

import dataclasses
from typing import Optional

import numpy as np

from albert_tf.finetuning.answer import Answering, chosen
from albert_tf.modeling.heads import INPUTS, Head, dense_shapes, output_shapes

# An input of models with exits: the probability above which a label is sure.
EXIT_INPUT = "exit_threshold"


@dataclasses.dataclass(frozen=True)
class Classification(Head):
    """One linear layer on the pooled output (`classifier_utils.create_model`).

    For regression `width` is 1.

    Attributes:
      dropout_prob: of the pooled output, in training.
      exit_weight: what the loss of exits before the last pass counts in what the encoder
        learns; None has no exits (modeling.early_exit).
    """

    dropout_prob: float = 0.1
    exit_weight: Optional[float] = None

    name, title = "classification", "classification head"
    task = "classify"

    def shapes(self, config):
        exits = {} if self.exit_weight is None else EarlyExit(self.width).shapes(config)
        return {**super().shapes(config), **exits}

    def layers(self, config):
        layers = super().layers(config)
        if self.exit_weight is None:
            return layers
        return {**layers, **EarlyExit(self.width, self.exit_weight).layers(config)}

    def outputs(self, layers, encoded, features, dropout, training=False):
        """`logits` [B, K], with exits also `exit_logits` [B, L - 1, K]."""
        pooled = dropout.dropout(encoded["pooled_output"], self.dropout_prob)
        outputs = {"logits": layers["output_layer"](pooled)}
        if self.exit_weight is not None:
            outputs["exit_logits"] = layers["exit_head"].of_passes(
                encoded["encoder_outputs"], dropout, self.dropout_prob)
        return outputs

    def predictions(self, outputs):
        import tensorflow as tf

        logits = tf.cast(outputs["logits"], tf.float32)
        return {"logits": logits, "probabilities": tf.nn.softmax(logits)}

    def served(self, outputs):
        # A number has no probability.
        return self.predictions(outputs) if self.width > 1 else {
            "logits": outputs["logits"]}

    def output_names(self, labels):
        return labels or [str(i) for i in range(self.width)] * (self.width > 1)

    def objective(self):
        """Features `label_ids` [B, 1]: int of classes, float of numbers."""
        from albert_tf.finetuning import objectives

        objective = (self._regression() if self.width == 1
                     else objectives.one_label(self.predictions))
        return objective if self.exit_weight is None else with_exits(objective)

    def _regression(self):
        import tensorflow as tf

        from albert_tf.finetuning import objectives

        def squared_error(outputs, features):
            labels = tf.cast(tf.reshape(features["label_ids"], [-1]), tf.float32)
            logits = tf.squeeze(outputs["logits"], axis=-1)
            return tf.square(tf.cast(logits, tf.float32) - labels)

        return objectives.mean_over_examples(
            squared_error, lambda outputs, features: {},
            lambda outputs: {"logits": outputs["logits"]})

    def targets(self, features):
        from albert_tf.training import distillation

        distance = (distillation.squared_difference if self.width == 1
                    else distillation.divergence)
        targets = distillation.targets_of(
            features, {"logits": (1.0, distance)}, "pooled_output")
        if self.exit_weight is not None:
            # Every exit learns what the teacher says after its last pass.
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
    """The exits of a classifier as a checkpoint holds them, beside its head: "exit/..."
    (modeling.early_exit)."""

    exit_weight: float = 1.0

    name, scope = "early_exit", "exit"

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
    """The weighted sum of a loss, logits [B, K] → [B], over the exits [B, L - 1, K].

    An exit is weighted by the number of its pass, Σ = 1: early passes get smaller
    weights, because weighting all equally hurts the later ones (PABEE, ELBERT).
    """
    passes = exits.shape[1]
    return sum(2.0 * (i + 1) / (passes * (passes + 1)) * loss(exits[:, i])
               for i in range(passes))


def with_exits(own):
    """An objective of `logits` that `exit_logits` [B, L - 1, K] learn, too; the last
    pass' own loss is what it is without exits."""
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
    """One label of several for a text or a pair, or a number."""

    def answer(self, outputs):
        if len(outputs["logits"]) == 1:
            return {"score": float(outputs["logits"][0])}
        return chosen(outputs["probabilities"], self.labels)


class ExitClasses(Classes):
    """As Classes, of a sequence each after as many passes as it needs to be sure."""

    inputs = (*INPUTS, EXIT_INPUT)
    types = {EXIT_INPUT: np.float32}

    def outputs(self, features):
        from albert_tf.modeling import early_exit

        features = dict(features)
        threshold = features.pop(EXIT_INPUT)[:, 0]
        return early_exit.answers(self.model, features, threshold, self.computation)

    def answer(self, outputs):
        return {**super().answer(outputs), "passes": int(outputs["passes"])}
