"""Tags of words, and their entities, in TensorFlow's graph: splitting text into the
same words and windows as finetuning.tagging.task, and finding the entities in the tags.

    text      Angela Merkel speaks.
    words     Angela   Merkel   speaks   .        split as --split_words says
    tags      B-PER    I-PER    O        O        of each word's first token
    entities  PER, characters 0 to 13

Shapes: N texts, V words of all texts, W windows, S positions, K tags.
"""

import dataclasses
import functools
from typing import NamedTuple, Sequence

import tensorflow as tf

from albert_tf.finetuning.tagging import scoring
from albert_tf.tokenization import in_graph
from albert_tf.finetuning import text as text_tasks
from albert_tf.tokenization import cleaning
from albert_tf.tokenization.sequences import NUM_SPECIAL_SINGLE

Ragged = tf.RaggedTensor


class _Words(NamedTuple):
    """The words of the texts."""

    chars: Ragged  # int32 [N, (characters)], the texts
    spans: Ragged  # int64 [N, (words), 2], the begin and end of each word in its text
    strings: tf.Tensor  # [V], the words


class _Places(NamedTuple):
    """The texts' words, and the window and position of each word's first token."""

    words: _Words
    window: tf.Tensor  # int64 [V]
    position: tf.Tensor  # int64 [V]


@dataclasses.dataclass(frozen=True)
class Tags(text_tasks.TextTask):
    """The text task of tagging; its options are those of
    finetuning.tagging.task.TaggingTask.

    Attributes:
      scheme: how tags mark entities, one of scoring.SCHEMES; "": detected from the
        labels.
      split: how a text is split into words; one of cleaning.WORD_SPLITS.
    """

    labels: Sequence[str] = ()
    scheme: str = ""
    split: str = "punctuation"
    doc_stride: int = 64

    def __post_init__(self):
        super().__post_init__()
        object.__setattr__(
            self, "scheme", self.scheme or scoring.scheme_of_labels(self.labels))

    def prepared(self, inputs):
        words = self._words(inputs["text"])
        ids = self.ids(words.strings)
        unknown = tf.fill([ids.nrows(), 1], self.tokenizer.unk_id)
        # Words that become empty after cleaning are replaced by [UNK].
        ids = tf.concat([ids, Ragged.from_tensor(
            unknown, tf.cast(tf.equal(ids.row_lengths(), 0), tf.int64))], 1)
        pieces = words.spans.with_values(ids).merge_dims(1, 2)
        windows = text_tasks.in_windows(
            pieces, tf.fill([pieces.nrows()], tf.constant(
                self.max_seq_length - NUM_SPECIAL_SINGLE, tf.int64)), self.doc_stride)
        # For each token, the number of the word that begins there, from 1, else 0.
        word_at = tf.scatter_nd(
            ids.row_starts()[:, tf.newaxis], tf.range(1, ids.nrows() + 1),
            [tf.size(ids.values, tf.int64)])
        here = tf.where(windows.own.values, tf.gather(
            word_at, windows.places.values), 0)
        # Windows in which no word has its tag are left out.
        has_word = tf.math.unsorted_segment_max(
            here, windows.places.value_rowids(), windows.places.nrows()) > 0
        here = tf.ragged.boolean_mask(windows.places.with_values(here), has_word)
        features = self.packed(tf.ragged.boolean_mask(windows.of(pieces), has_word))
        firsts = tf.where(here.values > 0)[:, 0]
        window = tf.gather(here.value_rowids(), firsts)
        at = tf.stack([window, firsts - tf.gather(here.row_starts(), window) + 1], 1)
        at = tf.scatter_nd(tf.gather(here.values, firsts)[:, tf.newaxis] - 1, at,
                           tf.stack([ids.nrows(), 2]))
        return features, _Places(words, at[:, 0], at[:, 1])

    def tokenized(self, inputs):
        """Returns the features, for each position the number of the word in its text
        whose tag it has, from 0, or -1, and the number of each window's text."""
        features, places = self.prepared(inputs)
        rows = places.words.spans.value_rowids()
        number = tf.range(tf.size(rows, tf.int64)) - tf.gather(
            places.words.spans.row_starts(), rows)
        shape = tf.shape(features["input_ids"], tf.int64)
        at = tf.stack([places.window, places.position], 1)
        return {**features,
                "word": tf.cast(tf.scatter_nd(at, number + 1, shape) - 1, tf.int32),
                "text": tf.math.unsorted_segment_max(rows, places.window, shape[0])}

    def answers(self, inputs, context, outputs):
        words = context.words
        scores = tf.gather_nd(outputs["probabilities"], tf.stack(
            [context.window, context.position], 1))  # [V, K]
        tags = tf.argmax(scores, axis=-1)
        labels = tf.constant(list(self.labels))

        def of_texts(values):
            return words.spans.with_values(values).to_tensor()

        result = {"words": of_texts(words.strings),
                  "tags": of_texts(tf.gather(labels, tags))}
        if self.scheme == "none":
            return result
        return result | self._entities(
            words, tags, tf.cast(tf.reduce_max(scores, axis=-1), tf.float64))

    def _words(self, texts) -> _Words:
        """Splits texts into words, as cleaning.split_words."""
        chars = tf.strings.unicode_decode(texts, "UTF-8")
        rows, place = chars.value_rowids(), tf.range(tf.size(chars.values, tf.int64))
        space = in_graph.is_space()(chars.values) > 0
        alone = _stands_alone(self.split)(chars.values) > 0
        apart = space | alone
        begins = ~space & (alone | tf.concat([[True], apart], 0)[:-1] | tf.equal(
            place, tf.gather(chars.row_starts(), rows)))
        solid = tf.where(~space)[:, 0]
        letters = Ragged.from_row_starts(
            tf.gather(chars.values, solid), tf.where(tf.gather(begins, solid))[:, 0])
        start = tf.where(begins)[:, 0]
        text = tf.gather(rows, start)
        start -= tf.gather(chars.row_starts(), text)
        return _Words(
            chars, Ragged.from_value_rowids(
                tf.stack([start, start + letters.row_lengths()], 1), text,
                chars.nrows(), validate=False),
            tf.strings.unicode_encode(letters, "UTF-8"))

    def _entities(self, words, tags, scores):
        """Computes scoring.entities: one entity for each word before which one ends.
        An additional word outside entities follows each text."""
        size = len(self.labels)
        parsed = [*map(scoring.parse, self.labels), scoring.EDGE]
        begins, ends = (tf.constant([[rule(before, here) for here in parsed]
                                     for before in parsed])
                        for rule in (scoring.begins, scoring.ends))
        tags = tf.concat([words.spans.with_values(tags), tf.fill(
            [words.spans.nrows(), 1], tf.constant(size, tf.int64))], 1).values
        pair = tf.stack([tf.concat([[size], tags], 0)[:-1], tags], 1)
        begin = tf.where(tf.gather_nd(begins, pair))[:, 0]
        end = tf.where(tf.gather_nd(ends, pair))[:, 0]
        # An entity begins at the last possible word since the previous end.
        number = tf.searchsorted(begin, end, side="left") - 1
        start = tf.gather(tf.concat([begin, [-1]], 0), tf.where(
            number < 0, tf.size(begin), number))
        is_one = start >= tf.concat([[0], end], 0)[:-1]
        start, end = start[is_one], end[is_one]
        kind = tf.gather(tf.constant([kind for _, kind in parsed]), tf.gather(
            tags, end - 1))
        # Convert to the numbers of words without the additional ones.
        text = tf.gather(tf.repeat(
            tf.range(words.spans.nrows()), words.spans.row_lengths() + 1), start)
        start, end = start - text, end - text
        sums = tf.concat([tf.zeros([1], tf.float64), tf.cumsum(scores)], 0)
        score = (tf.gather(sums, end) - tf.gather(sums, start)) / tf.cast(
            end - start, tf.float64)
        first = tf.gather(words.spans.values[:, 0], start)
        last = tf.gather(words.spans.values[:, 1], end - 1)
        chars = tf.gather(words.chars, text)
        strings = tf.strings.unicode_encode(
            in_graph.rows_from(chars, first, last - first), "UTF-8")

        def of_texts(values):
            return Ragged.from_value_rowids(
                values, text, words.spans.nrows(), validate=False).to_tensor()

        return {"entity_type": of_texts(kind),
                "entity_start": of_texts(tf.cast(first, tf.int32)),
                "entity_end": of_texts(tf.cast(last, tf.int32)),
                "entity_text": of_texts(strings),
                "entity_score": of_texts(tf.cast(score, tf.float32))}


@functools.lru_cache(maxsize=None)
def _stands_alone(split: str) -> in_graph.Table:
    """Returns a table of the code points that are words by themselves."""
    return in_graph.of_characters(lambda char: cleaning.stands_alone(char, split))
