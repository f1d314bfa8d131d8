"""What a signature that takes text does around the model: strings → the sequences that
training makes of them, outputs → answers.

Shapes: N examples of a request, S positions of the longest sequence.
"""

import dataclasses
import functools
from typing import Any, Mapping, NamedTuple, Optional, Sequence

import tensorflow as tf

from albert_tf.errors import InputError
from albert_tf.tokenization import in_graph
from albert_tf.tokenization.sequences import NUM_SPECIAL_PAIR, NUM_SPECIAL_SINGLE
from albert_tf.tokenization.tokenizer import FullTokenizer

Tensors = Mapping[str, tf.Tensor]
ORDER_LABELS = ("in order", "swapped")


@dataclasses.dataclass(frozen=True)
class TextTask:
    """A task whose examples are strings.

    Attributes:
      tokenizer: as in training.
      max_seq_length: pieces of a sequence, special ones included.
    """

    tokenizer: FullTokenizer
    max_seq_length: int

    def __post_init__(self):
        if self.max_seq_length <= NUM_SPECIAL_PAIR:
            raise InputError(
                f"--max_seq_length={self.max_seq_length} leaves no room for text: [CLS] "
                f"and two [SEP] take {NUM_SPECIAL_PAIR}.")

    @property
    def inputs(self) -> Mapping[str, int]:
        """The signature's inputs, strings, and how many axes each has."""
        return {"text": 1}

    @functools.cached_property
    def ops(self) -> in_graph.TokenizerOps:
        return in_graph.operations(self.tokenizer)

    def features(self, inputs: Tensors) -> dict[str, tf.Tensor]:
        """Strings → the inputs of the model."""
        return self.packed(self.ids(inputs["text"])[
            :, :self.max_seq_length - NUM_SPECIAL_SINGLE])

    def prepared(self, inputs: Tensors) -> tuple[dict[str, tf.Tensor], Any]:
        """`features`, and whatever else `answers` needs of the texts."""
        return self.features(inputs), None

    def tokenized(self, inputs: Tensors) -> dict[str, tf.Tensor]:
        """What of it the signature `tokenize` shows."""
        return self.prepared(inputs)[0]

    def answers(self, inputs: Tensors, context: Any, outputs: Tensors) -> Tensors:
        """What the signature gives, of what the model gives."""
        return outputs

    def ids(self, texts: tf.Tensor) -> tf.RaggedTensor:
        return self.ops.ids(self.ops.prepare(texts))

    def packed(self, first: tf.RaggedTensor, second: Optional[tf.RaggedTensor] = None,
               optional: bool = True) -> dict[str, tf.Tensor]:
        """sequences.assemble, padded to the longest: input_ids, input_mask,
        segment_ids. An empty second text has no [SEP] where it is `optional`."""
        rows = tf.cast(first.nrows(), tf.int32)
        special = {name: tf.fill([rows, 1], getattr(self.tokenizer, f"{name}_id"))
                   for name in ("cls", "sep")}
        parts = [special["cls"], first, special["sep"]]
        if second is not None:
            parts.append(second)
            parts.append(special["sep"] if not optional else tf.RaggedTensor.from_tensor(
                special["sep"], tf.cast(second.row_lengths() > 0, tf.int64)))
        tokens = tf.concat(parts, axis=1)
        lengths = tokens.row_lengths()
        # Of no texts, too, there are sequences to compute nothing of.
        longest = tf.reduce_max(tf.pad(lengths, [[0, 1]], constant_values=1))
        mask = tf.sequence_mask(lengths, longest, tf.int32)
        behind = tf.range(longest) >= first.row_lengths()[:, tf.newaxis] + 2
        return {"input_ids": tokens.to_tensor(
                    self.tokenizer.pad_id, shape=tf.stack([-1, longest])),
                "input_mask": mask,
                "segment_ids": mask * tf.cast(behind, tf.int32)}


@dataclasses.dataclass(frozen=True)
class Texts(TextTask):
    """One text or, with `pairs`, two, of which the second may be "": what a classifier
    takes. Of two the longer is cut first.

    `labels` are those of the classes; () for a regression, whose answer is `score`.
    """

    labels: Sequence[str] = ()
    pairs: bool = False

    @property
    def inputs(self):
        return {"text": 1, "text_pair": 1} if self.pairs else {"text": 1}

    def features(self, inputs):
        if not self.pairs:
            return super().features(inputs)
        texts = as_many(inputs)
        first, second = self.ids(texts["text"]), self.ids(texts["text_pair"])
        room = self.max_seq_length - NUM_SPECIAL_PAIR
        lengths = first.row_lengths(), second.row_lengths()
        # As sequences.truncate_longer_first.
        least = room - room // 2, room // 2
        kept = [tf.maximum(tf.constant(size, tf.int64), room - other)
                for size, other in zip(least, reversed(lengths))]
        alone = tf.constant(self.max_seq_length - NUM_SPECIAL_SINGLE, tf.int64)
        return self.packed(
            first_of(first, tf.where(lengths[1] > 0, kept[0], alone)),
            first_of(second, kept[1]))

    def answers(self, inputs, context, outputs):
        if not self.labels:
            return {"score": outputs["logits"][:, 0]}
        return chosen(outputs["probabilities"], self.labels)


@dataclasses.dataclass(frozen=True)
class Vectors(Texts):
    """Vectors of a text or a pair; the model's outputs are the answers."""

    def answers(self, inputs, context, outputs):
        return outputs


class Windows(NamedTuple):
    """W windows of texts that are longer than a sequence, as training reads them."""

    text: tf.Tensor  # int64 [W], the text of each, rising
    places: tf.RaggedTensor  # int64 [W, (pieces)] in the pieces of all texts
    own: tf.RaggedTensor  # bool [W, (pieces)]: no other window shows more around it

    def of(self, ragged: tf.RaggedTensor) -> tf.RaggedTensor:
        """What each window holds of values of the pieces."""
        return self.places.with_values(tf.gather(ragged.values, self.places.values))


def in_windows(pieces: tf.RaggedTensor, room: tf.Tensor, stride: int) -> Windows:
    """sequences.window_spans and max_context of texts [N, (pieces)], with `room` [N]
    for pieces in each window of a text; a text of none has no window."""
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
    # The context of each piece in each window; the first of equal ones counts.
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
    """At most `counts` [N] values of each row, from its start."""
    place = tf.range(tf.size(ragged.values, tf.int64)) - tf.gather(
        ragged.row_starts(), ragged.value_rowids())
    return _kept(ragged, place < tf.gather(counts, ragged.value_rowids()))


def last_of(ragged: tf.RaggedTensor, count: int) -> tf.RaggedTensor:
    """At most `count` values of each row, from its end."""
    left = tf.gather(ragged.row_limits(), ragged.value_rowids()) - tf.range(
        tf.size(ragged.values, tf.int64))
    return _kept(ragged, left <= count)


def _kept(ragged, kept):
    return tf.RaggedTensor.from_value_rowids(
        ragged.values[kept], ragged.value_rowids()[kept], ragged.nrows(),
        validate=False)


def chosen(probabilities: tf.Tensor, labels: Sequence[str]) -> Tensors:
    """The likeliest of labels."""
    return {"label": tf.gather(tf.constant(list(labels)),
                               tf.argmax(probabilities, axis=-1)),
            "probability": tf.reduce_max(probabilities, axis=-1),
            "probabilities": probabilities}


def as_many(inputs: Tensors) -> Tensors:
    """The inputs, checked to hold as many strings each."""
    first, *others = inputs
    checks = [tf.debugging.assert_equal(
        tf.shape(inputs[name])[0], tf.shape(inputs[first])[0],
        f"{first} and {name} must hold as many strings, one for each example.")
              for name in others]
    with tf.control_dependencies(checks):
        return {name: tf.identity(texts) for name, texts in inputs.items()}
