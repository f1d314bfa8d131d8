"""The parts of a text signature around the model, in TensorFlow's graph: strings → the
same sequences as in training, and outputs → answers.

Shapes: N examples of a request, S positions of the longest sequence.
"""

import dataclasses
import functools
from typing import Any, ClassVar, Mapping, NamedTuple, Optional, Sequence

import tensorflow as tf

from albert_tf.checkpoints.checkpoint import LABEL_THRESHOLD, SEVERAL_LABELS
from albert_tf.tokenization import in_graph
from albert_tf.tokenization.sequences import (
    NUM_SPECIAL_PAIR, NUM_SPECIAL_SINGLE, check_length)
from albert_tf.tokenization.tokenizer import FullTokenizer

Tensors = Mapping[str, tf.Tensor]
ORDER_LABELS = ("in order", "swapped")


@dataclasses.dataclass(frozen=True)
class TextTask:
    """A task whose examples are strings."""

    tokenizer: FullTokenizer  # That of training.
    max_seq_length: int  # Of a sequence, with special tokens.
    task: Any = None  # The FineTuningTask whose options it has, except of Texts.

    # The signature's string inputs: name → its number of axes.
    inputs: ClassVar[Mapping[str, int]] = {"text": 1}

    def __post_init__(self):
        check_length(self.max_seq_length)

    @functools.cached_property
    def ops(self) -> in_graph.TokenizerOps:
        return in_graph.operations(self.tokenizer)

    def prepared(self, inputs: Tensors) -> tuple[dict[str, tf.Tensor], Any]:
        """Computes the model's inputs from strings, and what else `answers` needs."""
        raise NotImplementedError

    def tokenized(self, inputs: Tensors) -> dict[str, tf.Tensor]:
        """Returns the outputs of the signature `tokenize`."""
        return self.prepared(inputs)[0]

    def answers(self, inputs: Tensors, context: Any, outputs: Tensors) -> Tensors:
        """Computes the signature's outputs from the model's outputs."""
        return outputs

    def ids(self, texts: tf.Tensor) -> tf.RaggedTensor:
        return self.ops.ids(self.ops.prepare(texts))

    def packed(self, first: tf.RaggedTensor, second: Optional[tf.RaggedTensor] = None,
               optional: bool = True) -> dict[str, tf.Tensor]:
        """Returns the inputs as sequences.assemble builds them, padded to the longest.
        With `optional`, empty second texts get no [SEP]."""
        rows = tf.cast(first.nrows(), tf.int32)
        cls, sep = (tf.fill([rows, 1], each) for each in (
            self.tokenizer.cls_id, self.tokenizer.sep_id))
        parts = [cls, first, sep]
        if second is not None:
            parts += [second, sep if not optional else tf.RaggedTensor.from_tensor(
                sep, tf.cast(second.row_lengths() > 0, tf.int64))]
        tokens = tf.concat(parts, axis=1)
        lengths = tokens.row_lengths()
        # Without texts, the length is 1, so that the model can compute an empty batch.
        longest = tf.reduce_max(tf.pad(lengths, [[0, 1]], constant_values=1))
        mask = tf.sequence_mask(lengths, longest, tf.int32)
        behind = tf.range(longest) >= first.row_lengths()[:, tf.newaxis] + 2
        return {"input_ids": tokens.to_tensor(
                    self.tokenizer.pad_id, shape=tf.stack([-1, longest])),
                "input_mask": mask,
                "segment_ids": mask * tf.cast(behind, tf.int32)}


@dataclasses.dataclass(frozen=True)
class Texts(TextTask):
    """The text task of a classifier, or of vectors: one text or, with `pairs`, two, of
    which the second may be "". The longer of two texts is cut first."""

    # () for a regression, whose answer is `score`, or `scores` if it has several numbers.
    labels: Sequence[str] = ()
    pairs: bool = False
    problem_type: str = ""  # What the model's outputs are, as for the head.
    label_threshold: float = LABEL_THRESHOLD  # If a text has any number of labels.

    @property
    def inputs(self):
        return {"text": 1, "text_pair": 1} if self.pairs else {"text": 1}

    def prepared(self, inputs):
        if not self.pairs:
            return self.packed(self.ids(inputs["text"])[
                :, :self.max_seq_length - NUM_SPECIAL_SINGLE]), None
        texts = as_many(inputs)
        first, second = self.ids(texts["text"]), self.ids(texts["text_pair"])
        room = self.max_seq_length - NUM_SPECIAL_PAIR
        lengths = first.row_lengths(), second.row_lengths()
        # The same cuts as in sequences.truncate_longer_first.
        least = room - room // 2, room // 2
        limits = [tf.maximum(tf.constant(size, tf.int64), room - other)
                  for size, other in zip(least, reversed(lengths))]
        alone = tf.constant(self.max_seq_length - NUM_SPECIAL_SINGLE, tf.int64)
        return self.packed(
            first_of(first, tf.where(lengths[1] > 0, limits[0], alone)),
            first_of(second, limits[1])), None

    def answers(self, inputs, context, outputs):
        if "logits" not in outputs:
            return outputs  # The vectors of the texts.
        if "probabilities" not in outputs:
            numbers = outputs["logits"]
            return {"score": numbers[:, 0]} if numbers.shape[1] == 1 else {
                "scores": numbers}
        if self.problem_type != SEVERAL_LABELS:
            return chosen(outputs["probabilities"], self.labels)
        return {"labels": tf.where(
                    outputs["probabilities"] >= self.label_threshold,
                    tf.constant(list(self.labels)), ""),
                "probabilities": outputs["probabilities"]}


class Windows(NamedTuple):
    """W windows of texts that are longer than a sequence, the same as in training."""

    text: tf.Tensor  # The number of each window's text, int64 [W], ascending.
    # The positions of a window's tokens among those of all texts, int64 [W, (tokens)].
    places: tf.RaggedTensor
    # Whether no other window has more context for a token, bool [W, (tokens)].
    own: tf.RaggedTensor

    def of(self, ragged: tf.RaggedTensor) -> tf.RaggedTensor:
        """Returns each window's part of a tensor with one value per token."""
        return self.places.with_values(tf.gather(ragged.values, self.places.values))


def in_windows(pieces: tf.RaggedTensor, room: tf.Tensor, stride: int) -> Windows:
    """Computes sequences.windows_of for texts [N, (tokens)], whose windows have `room`
    [N] for tokens. A text without tokens has no window."""
    total, step = pieces.row_lengths(), tf.minimum(room, stride)
    counts = tf.where(total > 0, 1 + tf.maximum(
        -((room - total) // step), 0), tf.zeros_like(total))
    text = tf.repeat(tf.range(pieces.nrows()), counts)
    number = tf.range(tf.size(text, tf.int64)) - tf.gather(
        tf.cumsum(counts, exclusive=True), text)
    begin = number * tf.gather(step, text)
    end = tf.minimum(begin + tf.gather(room, text), tf.gather(total, text))
    row = tf.gather(pieces.row_starts(), text)
    places = tf.ragged.range(row + begin, row + end)
    # Score the context of each token in each window; the first of equal windows wins.
    windows, piece = places.value_rowids(), places.values
    begin, end, number = (tf.gather(part, windows) for part in (
        row + begin, row + end, number))
    score = (tf.cast(tf.minimum(piece - begin, end - 1 - piece), tf.float64)
             + 0.01 * tf.cast(end - begin, tf.float64))
    size = tf.size(pieces.values, tf.int64)
    is_best = tf.equal(score, tf.gather(
        tf.math.unsorted_segment_max(score, piece, size), piece))
    first = tf.math.unsorted_segment_min(
        tf.where(is_best, number, tf.int64.max), piece, size)
    return Windows(text, places, places.with_values(
        is_best & tf.equal(number, tf.gather(first, piece))))


def first_of(ragged: tf.RaggedTensor, counts: tf.Tensor) -> tf.RaggedTensor:
    """Returns at most `counts` [N] values of each row, from its start."""
    places = tf.ragged.range(ragged.row_lengths())
    return tf.ragged.boolean_mask(ragged, places.with_values(
        places.values < tf.gather(counts, ragged.value_rowids())))


def chosen(probabilities: tf.Tensor, labels: Sequence[str]) -> Tensors:
    """Returns the most probable label, its probability, and all probabilities."""
    return {"label": tf.gather(tf.constant(list(labels)),
                               tf.argmax(probabilities, axis=-1)),
            "probability": tf.reduce_max(probabilities, axis=-1),
            "probabilities": probabilities}


def as_many(inputs: Tensors) -> Tensors:
    """Returns the inputs with a check that all have the same number of strings."""
    first, *others = inputs
    with tf.control_dependencies([tf.debugging.assert_equal(
            tf.shape(inputs[name])[0], tf.shape(inputs[first])[0],
            f"{first} and {name} must have the same number of strings, one per example.")
            for name in others]):
        return {name: tf.identity(texts) for name, texts in inputs.items()}
