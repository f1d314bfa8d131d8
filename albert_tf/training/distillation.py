"""Distillation: a model learns what another one, its teacher, says of each example
(Hinton, Vinyals and Dean 2015), besides or in place of the labels.

With w the teacher's weight and T the temperature, the loss of each output is

    (1 - w) · loss of the labels + w · T² · KL(softmax(teacher / T), softmax(own / T))

and for numbers, which have no softmax, the squared difference in the latter's place.
What a teacher thinks of the wrong classes tells more than a label does; T² keeps its
gradients as large as those of the labels at any temperature.

An objective around another: outputs that can be taught are named by the objective
(`Objective.taught`). TensorFlow is imported late.
"""

import dataclasses
import re
from typing import Any, Mapping, Sequence

from absl import logging

from albert_tf.checkpoints.neutral import Checkpoint
from albert_tf.errors import InputError

_HEAD = {"classification": "a classification head",
         "multiple_choice": "a head of multiple choice",
         "token_classification": "a head of token classification",
         "spans": "a head of spans, SQuAD's of version 1.1",
         "conditional_spans": "the head of SQuAD 2.0"}


@dataclasses.dataclass(frozen=True)
class Teaching:
    """A teacher, and how much of it is learned.

        objective = Teaching(formats.read("large"), 0.5, 2.0).around(CLASSIFICATION)

    Attributes:
      checkpoint: the teacher; of the student's vocabulary and task, of any shape.
      weight: its share of the loss, over 0 to 1; with 1 labels do not count.
      temperature: over 0; the higher, the more the unlikely classes count.
    """

    checkpoint: Checkpoint
    weight: float = 0.5
    temperature: float = 2.0

    def check(self, head: str, width: int, labels: Sequence[str],
              pieces: Mapping[str, int], longest: int) -> None:
        """Raises InputError where this teacher cannot teach such a student.

        Args:
          head: of the task, as checkpoints.neutral names it, and its width.
          labels: of the classes, in the order of the outputs.
          pieces: the student's vocabulary, piece → id.
          longest: sequence, in pieces.
        """
        found = self.checkpoint
        given = f"--teacher={found.source}"
        if head not in found.heads:
            have = ", ".join(found.heads) or "none"
            raise InputError(f"{given} has not {_HEAD[head]} (heads: {have}); give a "
                             "model that was fine-tuned on this task.")
        if found.heads[head] != width:
            raise InputError(
                f"{given} has {found.heads[head]} outputs, this task {width}; give a "
                "model that was fine-tuned on this task.")
        self._check_labels(given, list(labels))
        self._check_vocabulary(given, pieces)
        if longest > found.config.max_position_embeddings:
            raise InputError(
                f"{given} knows {found.config.max_position_embeddings} positions, and "
                f"--max_seq_length is {longest}; give a lower one.")

    def _check_labels(self, given: str, labels: list[str]) -> None:
        own = [label for label in self.checkpoint.labels
               if not re.fullmatch(r"LABEL_\d+", label)]  # names that say nothing
        if not own or own == labels:
            return
        if sorted(own) == sorted(labels):
            raise InputError(
                f"{given} has the labels in another order, {', '.join(own)}, this task "
                f"has {', '.join(labels)}; give a model with the same order.")
        logging.warning("%s: its labels %s are taken for %s.", given, ", ".join(own),
                        ", ".join(labels))

    def _check_vocabulary(self, given: str, pieces: Mapping[str, int]) -> None:
        from albert_tf.checkpoints import tokenizer_files

        found = self.checkpoint
        if found.config.vocab_size != len(pieces):
            raise InputError(
                f"{given} has a vocabulary of {found.config.vocab_size} pieces, the "
                f"student one of {len(pieces)}; both must have the same.")
        if found.vocabulary is None:
            logging.info("%s has no vocabulary; it is taken for the student's.", given)
            return
        theirs = tokenizer_files.tokenizer_of(found.vocabulary).vocab
        if dict(theirs) != dict(pieces):
            piece = min((piece for piece in {*theirs, *pieces}
                         if theirs.get(piece) != pieces.get(piece)), key=lambda piece:
                        min(of.get(piece, len(of)) for of in (theirs, pieces)))
            raise InputError(
                f"{given} has another vocabulary than the student: '{piece}' is piece "
                f"{theirs.get(piece, 'none')} there and {pieces.get(piece, 'none')} "
                "here; give a teacher with the student's vocabulary.")

    def around(self, own: Any, dtype: str = "float32") -> Any:
        """The training.objectives.Objective that learns from labels and teacher; in the
        strategy's scope. Evaluation needs the one within alone."""
        import tensorflow as tf

        from albert_tf.modeling.encoder import Computation

        model, how = self._model(), Computation(dtype)

        def losses(outputs, features, denominators):
            found = dict(own.losses(outputs, features, denominators))
            said = model(features, training=True, seed=tf.zeros([3], tf.int32),
                         computation=how)
            total = (1.0 - self.weight) * found["total_loss"]
            for name, taught in own.taught(features).items():
                examples = taught.distance(
                    outputs[name], tf.stop_gradient(said[name]), self.temperature)
                total += self.weight * taught.share * tf.math.divide_no_nan(
                    tf.reduce_sum(examples * taught.weights),
                    denominators[taught.denominator])
                found[f"teacher_{name}"] = examples
            return {**found, "total_loss": total}

        def metrics(outputs, features, found):
            return {**own.metrics(outputs, features, found), **{
                f"teacher_loss_{name}": (found[f"teacher_{name}"], taught.weights)
                for name, taught in own.taught(features).items()}}

        return dataclasses.replace(own, losses=losses, metrics=metrics)

    def _model(self):
        """The teacher, which drops nothing and is not trained."""
        from albert_tf.checkpoints import load

        found = self.checkpoint
        # Called as in training, where models of spans give what is learned.
        model = load.build(dataclasses.replace(
            found, config=found.config.replace(
                hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0),
            facts={**found.facts, "model": {
                **found.facts.get("model", {}), "dropout_prob": 0.0}}))
        model.trainable = False
        return model
