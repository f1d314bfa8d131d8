"""The head of multiple choice, and its answers.

Shapes: B batch, C choices, H hidden.
"""

import dataclasses

import numpy as np

from albert_tf.finetuning.answer import Answering, Request, chosen
from albert_tf.finetuning.race import task as race
from albert_tf.modeling.head import Head
from albert_tf.text.inputs import Field


@dataclasses.dataclass(frozen=True)
class MultipleChoice(Head):
    """One score for each choice of an example, which is a sequence of passage, question
    and option (`race_utils.create_model` in the original implementation)."""

    dropout_prob: float = 0.1  # Of the pooled output in training.

    name, task, rank, fixed_width = "multiple_choice", "choose", 3, True

    def outputs(self, layers, encoded, features, dropout, training=False):
        """Computes the `logits` of all sequences, [B·C]; the model's are [B, C]."""
        pooled = dropout.dropout(encoded["pooled_output"], self.dropout_prob)
        return {"logits": layers["output_layer"](pooled)[:, 0]}

    def predictions(self, outputs):
        import tensorflow as tf

        logits = tf.cast(outputs["logits"], tf.float32)
        if logits.shape.rank == 1:
            return {"logits": logits}  # The options of a question may be anywhere.
        return {"logits": logits, "probabilities": tf.nn.softmax(logits)}

    def output_names(self, labels):
        return labels or race.LETTERS

    def objective(self):
        """Returns the objective, which needs the feature `label_ids`, int [B, 1], the
        number of the right choice."""
        from albert_tf.finetuning import objectives

        return objectives.one_label(self.predictions)

    def answering(self):
        return Choices

    def text_task(self):
        from albert_tf.finetuning.race.text import Choices

        return Choices


class Choices(Answering):
    """Answers a question about a passage with one of several options, as in RACE."""

    fields = (Field("passage"), Field("question"), Field("options", several=True))

    def __init__(self, model, head):
        super().__init__(model, head)
        self.task = race.RaceTask(
            max_seq_length=self.max_length, max_qa_length=self.setting(
                "max_qa_length", race.RaceTask.max_qa_length))

    @property
    def limit(self):
        return (f"{super().limit}, or the {self.task.max_qa_length} of question and "
                "option")

    def of_exchanged(self, exchanged, batch):
        return {"logits": exchanged["logits"].reshape(-1)}

    def request(self, given, top_k):
        options = given["options"]
        example = race.RaceExample(
            "", 0, "", given["passage"], given["question"], tuple(options), None, "")
        features, cut = self.task.fitted(example, self.tokenizer)
        rows = [{name: features[name][i] for name in self.inputs}
                for i in range(len(options))]
        labels = [race.LETTERS[i:i + 1] or str(i + 1) for i in range(len(options))]

        def answer(outputs):
            scores = np.array([row["logits"] for row in outputs], np.float32)
            scores = np.exp(scores - scores.max())
            return chosen(scores / scores.sum(), labels)

        return Request(rows, answer, self, cut)
