"""Distillation: a model learns what another one, its teacher, says of each example
(Hinton, Vinyals and Dean 2015), besides or in place of the labels.

With w the teacher's weight and T the temperature, the loss of each output is

    (1 - w) · loss of the labels + w · T² · KL(softmax(teacher / T), softmax(own / T))

and for numbers, which have no softmax, the squared difference in the latter's place.
What a teacher thinks of the wrong classes tells more than a label does; T² keeps its
gradients as large as those of the labels at any temperature. Where the widths agree,
what the heads read can be learned too: the last hidden states, pooled for a head of
sequences, by the mean of their squared difference (as Sun et al. 2019 and Jiao et al.
2020 do with more layers).

A head names the outputs that a teacher can teach and how each is compared
(`Head.targets`); `Teaching.around` makes an objective of another one and these.
TensorFlow is imported late.

Shapes: B batch, S sequence, P predictions, C choices, H hidden, N classes.
"""

import dataclasses
import re
from typing import Any, Callable, Mapping, NamedTuple, Optional, Sequence

from absl import logging

from albert_tf import files
from albert_tf.checkpoints import vocabulary as model_vocabulary
from albert_tf.checkpoints.checkpoint import Checkpoint, head_of
from albert_tf.config import AlbertConfig
from albert_tf.errors import InputError

Tensors = Mapping[str, Any]

# Scores below that are those of what cannot be, such as answers in padding.
_IMPOSSIBLE = -1e20


# ---- what is learned from a teacher ----------------------------------------


def divergence(own: Any, teacher: Any, temperature: float) -> Any:
    """T² · KL(softmax(teacher / T), softmax(own / T)): [..., N], [..., N] → [...].

    What is impossible for the student counts as impossible for the teacher.
    """
    import tensorflow as tf

    own, teacher = tf.cast(own, tf.float32), tf.cast(teacher, tf.float32)
    teacher = tf.where(own < _IMPOSSIBLE, own, teacher)
    own, teacher = (tf.nn.log_softmax(x / temperature) for x in (own, teacher))
    return temperature ** 2 * tf.reduce_sum(tf.exp(teacher) * (teacher - own), axis=-1)


def binary_divergence(own: Any, teacher: Any, temperature: float) -> Any:
    """As `divergence`, of scores against 0: [B], [B] → [B]."""
    import tensorflow as tf

    return divergence(*(tf.stack([tf.zeros_like(x), x], axis=-1)
                        for x in (own, teacher)), temperature)


def squared_difference(own: Any, teacher: Any, temperature: float = 1.0) -> Any:
    """For numbers, which have no softmax: [B, 1], [B, 1] → [B]."""
    import tensorflow as tf

    return tf.reduce_sum(tf.square(
        tf.cast(own, tf.float32) - tf.cast(teacher, tf.float32)), axis=-1)


def hidden_difference(own: Any, teacher: Any, temperature: float = 1.0) -> Any:
    """Mean squared difference of hidden states: [..., H], [..., H] → [...]."""
    import tensorflow as tf

    return tf.reduce_mean(tf.square(
        tf.cast(own, tf.float32) - tf.cast(teacher, tf.float32)), axis=-1)


class Target(NamedTuple):
    """How a student learns one of its outputs from a teacher's.

    Attributes:
      weights: of the values of `distance`; 0 leaves one out.
      denominator: the name of what their sum is divided by (Objective.denominators).
      share: of this output in the loss.
      distance: (student's, teacher's, temperature) → one value for each learned one.
      of: the teacher's output, "" for the one of the same name.
      hidden: whether it is a hidden state that the head reads, which only a teacher of
        the same width can teach.
    """

    weights: Any
    denominator: str
    share: float = 1.0
    distance: Callable[[Any, Any, float], Any] = divergence
    of: str = ""
    hidden: bool = False


def targets_of(features: Tensors, outputs: Mapping[str, tuple], hidden: str
               ) -> dict[str, Target]:
    """The targets of a head whose loss is a mean over examples.

    Args:
      outputs: what a teacher teaches → its share and distance, by default all and
        `divergence`.
      hidden: what the head reads, too: `sequence_output` [B, S, H], a mean over the
        tokens that are no padding, or `pooled_output`, [B, H] or of choices [B, C, H].
    """
    import tensorflow as tf

    from albert_tf.training.losses import example_weights

    weights = example_weights(features)

    def distance(own, teacher, temperature):
        values = hidden_difference(own, teacher)
        values = tf.reshape(values, [tf.shape(values)[0], -1])
        mask = (tf.cast(features["input_mask"], tf.float32)
                if hidden == "sequence_output" else tf.ones_like(values))
        return tf.reduce_sum(values * mask, axis=1) / tf.reduce_sum(mask, axis=1)

    return {**{name: Target(weights, "examples", *how) for name, how in outputs.items()},
            hidden: Target(weights, "examples", distance=distance, hidden=True)}


def pretraining_targets(features: Tensors, sentence_loss: bool = True
                        ) -> dict[str, Target]:
    """Returns what a pretrained teacher teaches: the masked tokens and, with
    `sentence_loss`, the order of the segments."""
    import tensorflow as tf

    from albert_tf.training.losses import example_weights

    examples = example_weights(features)
    weights = tf.cast(features["masked_lm_weights"], tf.float32) * examples[:, tf.newaxis]

    def at_masked(own, teacher, temperature):
        """The student's hidden states at the masked positions, the teacher's at all:
        → [B, P]."""
        return hidden_difference(own, tf.gather(
            teacher, features["masked_lm_positions"], batch_dims=1))

    targets = {"mlm_logits": Target(weights, "masked_lm"), "sequence_output": Target(
        weights, "masked_lm", distance=at_masked, hidden=True)}
    if sentence_loss:
        targets["sentence_order_logits"] = Target(examples, "sentence_order")
    return targets


# ---- the teacher -----------------------------------------------------------

@dataclasses.dataclass(frozen=True)
class Teaching:
    """A teacher, and how much of it is learned.

        objective = Teaching(formats.read("large"), 0.5, 2.0).around(CLASSIFICATION)

    Attributes:
      checkpoint: the teacher; of the student's vocabulary and task, of any shape.
      weight: its share of the loss, 0 to 1; with 1 labels do not count.
      temperature: over 0; the higher, the more the unlikely classes count.
      hidden_weight: of the difference of hidden states, which is added to the loss.
    """

    checkpoint: Checkpoint
    weight: float = 0.5
    temperature: float = 2.0
    hidden_weight: float = 0.0

    @property
    def _given(self) -> str:
        return f"--teacher={self.checkpoint.source}"

    @property
    def settings(self) -> dict[str, float]:
        """What of it the result of a training depends on."""
        return {"teacher_weight": self.weight, "temperature": self.temperature,
                **({"teacher_hidden_weight": self.hidden_weight}
                   if self.hidden_weight else {})}

    def check(self, heads: Mapping[str, int], student: AlbertConfig, longest: int,
              labels: Sequence[str] = ()) -> None:
        """Raises InputError where this teacher cannot teach such a student.

        Args:
          heads: of the task, as checkpoints name them, and their widths.
          longest: sequence, in pieces.
          labels: of the classes, in the order of the outputs.
        """
        found, given = self.checkpoint, self._given
        for head, width in heads.items():
            if head not in found.heads:
                have = ", ".join(found.heads) or "none"
                raise InputError(
                    f"{given} has no {head_of(head, width).title} (found: {have}); give "
                    "a model that was trained on this task.")
            if found.heads[head] != width:
                raise InputError(
                    f"{given} has {found.heads[head]} outputs, this task {width}; give "
                    "a model that was trained on this task.")
        self._check_labels(given, list(labels))
        if found.config.vocab_size != student.vocab_size:
            raise InputError(
                f"{given} has a vocabulary of {found.config.vocab_size} pieces, the "
                f"student one of {student.vocab_size}; both must have the same.")
        if longest > found.config.max_position_embeddings:
            raise InputError(
                f"{given} knows {found.config.max_position_embeddings} positions, and "
                f"--max_seq_length is {longest}; give a lower one.")
        if self.hidden_weight and found.config.hidden_size != student.hidden_size:
            raise InputError(
                f"--teacher_hidden_weight: {given} has hidden states of "
                f"{found.config.hidden_size} numbers, the student of "
                f"{student.hidden_size}; leave it out, or give a teacher of the same "
                "hidden_size.")

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

    def check_pieces(self, pieces: Mapping[str, int]) -> None:
        """Raises InputError where the student's vocabulary, piece → id, is another."""
        from albert_tf.checkpoints import tokenizer_files

        found = self.checkpoint.vocabulary
        if found is None:
            logging.info("%s has no vocabulary; it is taken for the student's.",
                         self._given)
            return
        theirs = tokenizer_files.tokenizer_of(found).vocab
        if dict(theirs) != dict(pieces):
            piece = min((piece for piece in {*theirs, *pieces}
                         if theirs.get(piece) != pieces.get(piece)), key=lambda piece:
                        min(of.get(piece, len(of)) for of in (theirs, pieces)))
            raise InputError(
                f"{self._given} has another vocabulary than the student: '{piece}' is "
                f"piece {theirs.get(piece, 'none')} there and "
                f"{pieces.get(piece, 'none')} here; give a teacher with the student's "
                "vocabulary.")

    def check_records(self, vocabulary: Optional[Mapping[str, Any]]) -> None:
        """Raises InputError where records were made with another vocabulary, as far as
        the folders tell."""
        source, found = self.checkpoint.source, self.checkpoint.vocabulary
        kept = (model_vocabulary.kept_beside(source) or {}).get("sha256") or (
            found and files.sha256(found.path))
        if not (kept and vocabulary):
            logging.info("%s or the records do not tell their vocabulary; it is taken "
                         "for the same.", self._given)
        elif kept != vocabulary["sha256"]:
            raise InputError(
                f"{self._given} has another vocabulary than the records, which were "
                f"made with {vocabulary['file']}; give a teacher of that one.")

    def around(self, own: Any, targets: Callable[[Tensors], Mapping[str, Target]],
               dtype: str = "float32") -> Any:
        """The training.losses.Objective that learns from labels and teacher; in the
        strategy's scope. Evaluation needs the one within alone.

        Args:
          own: the Objective of the labels.
          targets: features → what is learned from the teacher (Head.targets).
          dtype: of the teacher's products and activations.
        """
        import tensorflow as tf

        from albert_tf.modeling.encoder import Computation

        model, computation = self._model(), Computation(dtype)

        def weighted(features):
            for name, target in targets(features).items():
                weight = self.hidden_weight if target.hidden else (
                    self.weight * target.share)
                if weight or not target.hidden:
                    yield name, target, weight

        def losses(outputs, features, denominators):
            values = dict(own.losses(outputs, features, denominators))
            taught = model(features, training=True, seed=tf.zeros([3], tf.int32),
                           computation=computation)
            total = (1.0 - self.weight) * values["total_loss"]
            for name, target, weight in weighted(features):
                distances = target.distance(
                    outputs[name], tf.stop_gradient(taught[target.of or name]),
                    self.temperature)
                total += weight * tf.math.divide_no_nan(
                    tf.reduce_sum(distances * target.weights),
                    denominators[target.denominator])
                values[f"teacher_{name}"] = distances
            return {**values, "total_loss": total}

        def metrics(outputs, features, values):
            return {**own.metrics(outputs, features, values), **{
                f"teacher_loss_{name}": (values[f"teacher_{name}"], target.weights)
                for name, target, _ in weighted(features)}}

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
