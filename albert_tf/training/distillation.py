"""Distillation: a model learns the outputs of another model, its teacher, for each
example (Hinton, Vinyals and Dean 2015), besides or in place of the labels.

With w the teacher's weight and T the temperature, the loss of each output is

    (1 - w) · loss of the labels + w · T² · KL(softmax(teacher / T), softmax(own / T))

For numbers, which have no softmax, the squared difference replaces the KL term; for
labels of which a text has any number, it is the mean KL term of each label's sigmoid.
The teacher's probabilities include those of the wrong classes, which labels do not
contain. T² keeps the gradients as large as those of the labels at any temperature.
If student and teacher have the same width, the student can also learn the hidden states
that the heads read: those of the last layer, pooled for a head of sequences. Their loss
is the mean squared difference (Sun et al. 2019 and Jiao et al. 2020 use more layers).

A head names the outputs that a teacher can teach and how each is compared
(`Head.targets`). `Teaching.around` combines them with an objective of labels.
TensorFlow is imported late.

Shapes: B batch, S sequence, P predictions, C choices, H hidden, N classes.
"""

import dataclasses
from typing import Any, Callable, Mapping, NamedTuple, Optional, Sequence

from absl import logging

from albert_tf import files
from albert_tf.checkpoints import labels as label_names, vocabulary as model_vocabulary
from albert_tf.checkpoints.checkpoint import Checkpoint, head_of
from albert_tf.config import AlbertConfig
from albert_tf.errors import InputError

Tensors = Mapping[str, Any]

# Scores below this belong to impossible outputs, such as answers in padding.
_IMPOSSIBLE = -1e20


# ---- losses ----------------------------------------------------------------


def divergence(own: Any, teacher: Any, temperature: float) -> Any:
    """Returns T² · KL(softmax(teacher / T), softmax(own / T)): [..., N] twice → [...].

    Outputs that are impossible for the student count as impossible for the teacher.
    """
    import tensorflow as tf

    own, teacher = tf.cast(own, tf.float32), tf.cast(teacher, tf.float32)
    teacher = tf.where(own < _IMPOSSIBLE, own, teacher)
    own, teacher = (tf.nn.log_softmax(x / temperature) for x in (own, teacher))
    return temperature ** 2 * tf.reduce_sum(tf.exp(teacher) * (teacher - own), axis=-1)


def binary_divergence(own: Any, teacher: Any, temperature: float) -> Any:
    """Returns the `divergence` of scores against a score of 0: [...] twice → [...]."""
    import tensorflow as tf

    return divergence(*(tf.stack([tf.zeros_like(x), x], axis=-1)
                        for x in (own, teacher)), temperature)


def divergence_by_label(own: Any, teacher: Any, temperature: float) -> Any:
    """Returns the mean `binary_divergence` over labels of which each is given or not:
    [B, N], [B, N] → [B]."""
    import tensorflow as tf

    return tf.reduce_mean(binary_divergence(own, teacher, temperature), axis=-1)


def squared_difference(own: Any, teacher: Any, temperature: float = 1.0) -> Any:
    """Returns the squared difference of numbers: [B, 1], [B, 1] → [B]."""
    import tensorflow as tf

    return tf.reduce_sum(tf.square(
        tf.cast(own, tf.float32) - tf.cast(teacher, tf.float32)), axis=-1)


def hidden_difference(own: Any, teacher: Any, temperature: float = 1.0) -> Any:
    """Returns the mean squared difference of hidden states: [..., H] twice → [...]."""
    import tensorflow as tf

    return tf.reduce_mean(tf.square(
        tf.cast(own, tf.float32) - tf.cast(teacher, tf.float32)), axis=-1)


class Target(NamedTuple):
    """How a student learns one of its outputs from a teacher.

    Attributes:
      weights: weights of the values of `distance`; 0 leaves a value out.
      denominator: name of the denominator of their sum (Objective.denominators).
      share: share of this output in the loss.
      distance: (student's output, teacher's output, temperature) → values to minimize.
      of: name of the teacher's output; "" for the same name.
      hidden: True for a hidden state that the head reads, which only a teacher of the
        same width can teach.
    """

    weights: Any
    denominator: str
    share: float = 1.0
    distance: Callable[[Any, Any, float], Any] = divergence
    of: str = ""
    hidden: bool = False


def targets_of(features: Tensors, outputs: Mapping[str, tuple], hidden: str
               ) -> dict[str, Target]:
    """Returns the targets of a head whose loss is a mean over examples.

    Args:
      outputs: name of an output → its share and distance, by default 1 and
        `divergence`. hidden: name of the hidden states that the head reads:
        `sequence_output` [B, S, H], averaged over the tokens without padding, or
        `pooled_output`, [B, H] or, for multiple choice, [B, C, H].
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

    return {**{name: Target(weights, "examples", *how)
               for name, how in outputs.items()},
            hidden: Target(weights, "examples", distance=distance, hidden=True)}


def pretraining_targets(features: Tensors, sentence_loss: bool = True
                        ) -> dict[str, Target]:
    """Returns the targets of a pretrained teacher: the masked tokens and, with
    `sentence_loss`, the order of the segments."""
    import tensorflow as tf

    from albert_tf.training.losses import example_weights

    examples = example_weights(features)
    weights = (tf.cast(features["masked_lm_weights"], tf.float32)
               * examples[:, tf.newaxis])

    def at_masked(own, teacher, temperature):
        """Compares the student's hidden states, which are those at the masked
        positions, with the teacher's at these positions: → [B, P]."""
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
    """A teacher and the weights of its losses.

        objective = Teaching(formats.read("large"), 0.5, 2.0).around(CLASSIFICATION)

    Attributes:
      checkpoint: the teacher, with the student's vocabulary and task and any shape.
      weight: share of the teacher in the loss, 0 to 1; with 1 labels have no effect.
      temperature: a number above 0; the higher, the more the unlikely classes count.
      hidden_weight: weight of the difference of hidden states, which is added to the
        loss.
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
        """The settings that change the result of training."""
        return {"teacher_weight": self.weight, "temperature": self.temperature,
                **({"teacher_hidden_weight": self.hidden_weight}
                   if self.hidden_weight else {})}

    def check(self, heads: Mapping[str, int], student: AlbertConfig, longest: int,
              problem_type: str = "") -> None:
        """Raises InputError if this teacher cannot teach the student.

        Args:
          heads: heads of the task, as checkpoints name them, and their widths.
          longest: length of the longest sequence, in tokens.
          problem_type: what the outputs of a classifier are, as in the Checkpoint.
        """
        teacher, flag = self.checkpoint, self._given
        for head, width in heads.items():
            if head not in teacher.heads:
                have = ", ".join(teacher.heads) or "none"
                raise InputError(
                    f"{flag} has no {head_of(head, width).title} (found: {have}); give "
                    "a model that was trained on this task.")
            if teacher.heads[head] != width:
                raise InputError(
                    f"{flag} has {teacher.heads[head]} outputs, this task {width}; "
                    "give a model that was trained on this task.")
        if problem_type and teacher.problem_type not in ("", problem_type):
            raise InputError(
                f"{flag} has outputs for {teacher.problem_type}, this task for "
                f"{problem_type}; give a model that was trained on this task.")
        if teacher.config.vocab_size != student.vocab_size:
            raise InputError(
                f"{flag} has a vocabulary of {teacher.config.vocab_size} tokens, the "
                f"student one of {student.vocab_size}; give a teacher with the "
                "student's vocabulary.")
        if longest > teacher.config.max_position_embeddings:
            raise InputError(
                f"{flag} has {teacher.config.max_position_embeddings} positions, but "
                f"--max_seq_length is {longest}; use a shorter length.")
        if self.hidden_weight and teacher.config.hidden_size != student.hidden_size:
            raise InputError(
                f"--teacher_hidden_weight: {flag} has hidden_size "
                f"{teacher.config.hidden_size}, the student has {student.hidden_size}; "
                "leave the flag out, or give a teacher with the student's hidden_size.")

    def with_labels(self, labels: Sequence[str]) -> "Teaching":
        """Returns this teacher with its outputs in the order of `labels`."""
        known = self.checkpoint
        return dataclasses.replace(self, checkpoint=dataclasses.replace(
            known, labels=tuple(labels), tensors=label_names.ordered(
                labels, known.labels, known.tensors, known.source)))

    def check_pieces(self, pieces: Mapping[str, int]) -> None:
        """Raises InputError if the student's vocabulary, token → id, is different."""
        from albert_tf.checkpoints import tokenizer_files

        vocabulary = self.checkpoint.vocabulary
        if vocabulary is None:
            logging.info("%s has no vocabulary; it is assumed to be the student's.",
                         self._given)
            return
        known = tokenizer_files.tokenizer_of(vocabulary).vocab
        if dict(known) != dict(pieces):
            token = min((token for token in {*known, *pieces}
                         if known.get(token) != pieces.get(token)), key=lambda token:
                        min(of.get(token, len(of)) for of in (known, pieces)))
            raise InputError(
                f"{self._given} has a different vocabulary than the student: the id of "
                f"'{token}' is {known.get(token, 'none')} for the teacher and "
                f"{pieces.get(token, 'none')} for the student; give a teacher with the "
                "student's vocabulary.")

    def check_records(self, vocabulary: Optional[Mapping[str, Any]]) -> None:
        """Raises InputError if the records were created with a different vocabulary, as
        far as it is known."""
        source, own = self.checkpoint.source, self.checkpoint.vocabulary
        checksum = (model_vocabulary.kept_beside(source) or {}).get("sha256") or (
            own and files.sha256(own.path))
        if not (checksum and vocabulary):
            logging.info("The vocabulary of %s or of the records is not known; they "
                         "are assumed to be the same.", self._given)
        elif checksum != vocabulary["sha256"]:
            raise InputError(
                f"{self._given} has a different vocabulary than the records, which "
                f"were created with {vocabulary['file']}; give a teacher with that "
                "vocabulary.")

    def around(self, own: Any, targets: Callable[[Tensors], Mapping[str, Target]],
               dtype: str = "float32") -> Any:
        """Returns the training.losses.Objective of labels and teacher. Call it in the
        strategy's scope. Evaluation needs only the objective `own`.

        Args:
          own: the Objective of the labels.
          targets: features → the outputs that the teacher teaches (Head.targets).
          dtype: type of the teacher's matrix products and activations.
        """
        import tensorflow as tf

        from albert_tf.modeling.encoder import Computation

        model, computation = self._model(), Computation(dtype)

        # A hidden state without weight is left out, because the widths may differ.
        def weighted(features):
            for name, target in targets(features).items():
                weight = self.hidden_weight if target.hidden else (
                    self.weight * target.share)
                if weight or not target.hidden:
                    yield name, target, weight

        def losses(outputs, features, denominators):
            values = dict(own.losses(outputs, features, denominators))
            teacher_outputs = model(
                features, training=True, seed=tf.zeros([3], tf.int32),
                computation=computation)
            total = (1.0 - self.weight) * values["total_loss"]
            for name, target, weight in weighted(features):
                distances = target.distance(
                    outputs[name], tf.stop_gradient(teacher_outputs[target.of or name]),
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
        """Builds the teacher, without dropout and not trainable."""
        from albert_tf.checkpoints import load

        teacher = self.checkpoint
        # It is called as in training, where span models return the outputs to learn.
        # Therefore dropout must be 0 in its config.
        model = load.build(dataclasses.replace(
            teacher, config=teacher.config.replace(
                hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0),
            facts={**teacher.facts, "model": {
                **teacher.facts.get("model", {}), "dropout_prob": 0.0}}))
        model.trainable = False
        return model
