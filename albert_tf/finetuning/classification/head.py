"""The head of classification and regression, and its answers.

Shapes: B batch, K labels, or numbers of a regression.
"""

import dataclasses
from typing import Iterable, Sequence

import numpy as np

from albert_tf.checkpoints.checkpoint import (
    LABEL_THRESHOLD, ONE_LABEL, REGRESSION, SEVERAL_LABELS)
from albert_tf.errors import InputError
from albert_tf.finetuning.answer import Answering, by_label, chosen
from albert_tf.modeling.head import Head
from albert_tf.rows import is_empty
from albert_tf.text.inputs import Field


@dataclasses.dataclass(frozen=True)
class Classification(Head):
    """A linear layer on the pooled output (`classifier_utils.create_model` in the
    original implementation, which has regression and one label for each text)."""

    dropout_prob: float = 0.1  # Of the pooled output in training.
    # One of checkpoint.PROBLEMS; "": a regression if `width` is 1, else one label.
    problem_type: str = ""

    name, task, has_labels = "classification", "classify", True

    @property
    def problem(self) -> str:
        return self.problem_type or (REGRESSION if self.width == 1 else ONE_LABEL)

    def outputs(self, layers, encoded, features, dropout, training=False):
        """Computes `logits` [B, K]."""
        pooled = dropout.dropout(encoded["pooled_output"], self.dropout_prob)
        return {"logits": layers["output_layer"](pooled)}

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

    def objective(self, weights: Sequence[float] = (), temperature: float = 1.0):
        """Returns the objective, which needs the feature `label_ids`: the number of the
        label, int [B, 1], or float [B, K]: 1 for each label of the text and 0 for the
        others, the probabilities of the labels, or the numbers of a regression.
        `weights` and `temperature` are as in finetuning.objectives."""
        from albert_tf.finetuning import objectives

        if self.problem == REGRESSION:
            return objectives.numbers(self.predictions)
        kind = (objectives.several_labels if self.problem == SEVERAL_LABELS
                else objectives.one_label)
        return kind(self.predictions, weights, temperature)

    def answering(self):
        return Classes

    def text_task(self):
        from albert_tf.finetuning.text import Texts

        return Texts


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
            self.fields = tuple(map(Field, self.names[:1 + pairs]))
        self.label_threshold = self.setting("label_threshold", LABEL_THRESHOLD)

    def request(self, given, top_k, windows=False):
        for field in self.fields:
            if not field.optional and is_empty(given[field.name]):
                raise InputError(f"'{field.name}' is empty; give a text.")
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
