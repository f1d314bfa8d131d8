"""Tags of words, and their entities, in TensorFlow's graph: splitting text into the
same words and windows as finetuning.tagging.task, and finding the entities in the tags.

    text      Angela Merkel speaks.
    words     Angela   Merkel   speaks   .        split as --split_words says
    tags      B-PER    I-PER    O        O        of each word's first token
    entities  PER, characters 0 to 13

Shapes: N texts, V words of all texts, W windows, S positions, K tags.
"""

import functools
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from albert_tf.finetuning.tagging import scoring
from albert_tf.finetuning import text as text_tasks
from albert_tf.tokenization import cleaning, in_graph
from albert_tf.tokenization.sequences import NUM_SPECIAL_SINGLE

Ragged = tf.RaggedTensor


class _Words(NamedTuple):
    """The words of the texts, and the window and position of each one's first token."""

    spans: Ragged  # int64 [N, (words), 2], the begin and end of each word in its text
    strings: tf.Tensor  # [V], the words
    place: tf.Tensor  # int64 [V, 2]


class Tags(text_tasks.TextTask):
    """The text task of tagging (tagging.task.TaggingTask)."""

    def prepared(self, inputs):
        spans, strings = self._words(inputs["text"])
        ids = self.ids(strings)
        unknown = tf.fill([ids.nrows(), 1], self.tokenizer.unk_id)
        # Words that become empty after cleaning are replaced by [UNK].
        ids = tf.concat([ids, Ragged.from_tensor(
            unknown, tf.cast(tf.equal(ids.row_lengths(), 0), tf.int64))], 1)
        pieces = spans.with_values(ids).merge_dims(1, 2)
        windows = text_tasks.in_windows(
            pieces, tf.fill([pieces.nrows()], tf.constant(
                self.max_seq_length - NUM_SPECIAL_SINGLE, tf.int64)), self.task.doc_stride)
        # For each token, the number of the word that begins there, from 1, else 0.
        word_at = tf.scatter_nd(
            ids.row_starts()[:, tf.newaxis], tf.range(1, ids.nrows() + 1),
            [tf.size(ids.values, tf.int64)])
        here = windows.places.with_values(tf.where(windows.own.values, tf.gather(
            word_at, windows.places.values), 0))
        # Windows in which no word has its tag are left out.
        has_word = tf.reduce_max(here, axis=1) > 0
        here = tf.ragged.boolean_mask(here, has_word).to_tensor()
        features = self.packed(tf.ragged.boolean_mask(windows.of(pieces), has_word))
        at = tf.where(here > 0)
        place = tf.scatter_nd(tf.gather_nd(here, at)[:, tf.newaxis] - 1, at + [[0, 1]],
                              tf.stack([ids.nrows(), 2]))
        return features, _Words(spans, strings, place)

    def tokenized(self, inputs):
        """Returns the features, for each position the number of the word in its text
        whose tag it has, from 0, or -1, and the number of each window's text."""
        features, words = self.prepared(inputs)
        rows = words.spans.value_rowids()
        number = tf.range(tf.size(rows, tf.int64)) - tf.gather(
            words.spans.row_starts(), rows)
        shape = tf.shape(features["input_ids"], tf.int64)
        return {**features, "word": tf.cast(
                    tf.scatter_nd(words.place, number + 1, shape) - 1, tf.int32),
                "text": tf.math.unsorted_segment_max(rows, words.place[:, 0], shape[0])}

    def answers(self, inputs, context, outputs):
        scores = tf.gather_nd(outputs["probabilities"], context.place)  # [V, K]
        tags = tf.argmax(scores, axis=-1)
        result = {"words": context.strings,
                  "tags": tf.gather(tf.constant(list(self.task.labels)), tags)}
        result = {name: context.spans.with_values(values).to_tensor()
                  for name, values in result.items()}
        return result if self.task.scheme == "none" else result | self._entities(
            inputs["text"], context.spans, tags,
            tf.cast(tf.reduce_max(scores, axis=-1), tf.float64))

    def _words(self, texts) -> tuple[Ragged, tf.Tensor]:
        """Splits texts into words, as cleaning.split_words."""
        chars = tf.strings.unicode_decode(texts, "UTF-8")
        rows, place = chars.value_rowids(), tf.range(tf.size(chars.values, tf.int64))
        place -= tf.gather(chars.row_starts(), rows)
        space = in_graph.is_space()(chars.values) > 0
        alone = _stands_alone(self.task.reading.split_words)(chars.values) > 0
        begins = ~space & (alone | tf.equal(place, 0) | tf.concat(
            [[True], space | alone], 0)[:-1])
        letters = Ragged.from_row_starts(
            chars.values[~space], tf.where(begins[~space])[:, 0])
        start = place[begins]
        return Ragged.from_value_rowids(
            tf.stack([start, start + letters.row_lengths()], 1), rows[begins],
            chars.nrows(), validate=False), tf.strings.unicode_encode(letters, "UTF-8")

    def _entities(self, texts, spans, tags, scores):
        """Computes scoring.entities: each begins before a word and ends before a later
        one, or before an additional word outside entities that follows each text."""
        labels = self.task.labels
        size = tf.constant(len(labels), tf.int64)
        # Labels that belong to no scheme are outside entities.
        parsed = [tag if tag[0] else scoring.EDGE for tag in map(
            scoring.parse, [*labels, scoring.OUTSIDE])]
        divided = np.array([[scoring.divided(before, here) for here in parsed]
                            for before in parsed])
        inside = np.array([prefix != scoring.OUTSIDE for prefix, _ in parsed])
        begins, ends = divided & inside, divided & inside[:, np.newaxis]
        tags = tf.concat([spans.with_values(tags), tf.fill([spans.nrows(), 1], size)], 1)
        pair = tf.stack([tf.concat([[size], tags.values], 0)[:-1], tags.values], 1)
        start, end = (tf.where(tf.gather_nd(rule, pair))[:, 0] for rule in (begins, ends))
        kind = tf.gather(tf.constant([kind for _, kind in parsed]),
                         tf.gather(tags.values, start))
        # Convert to the numbers of words without the additional ones.
        text = tf.gather(tags.value_rowids(), start)
        start, end = start - text, end - text
        sums = tf.concat([tf.zeros([1], tf.float64), tf.cumsum(scores)], 0)
        score = (tf.gather(sums, end) - tf.gather(sums, start)) / tf.cast(
            end - start, tf.float64)
        first = tf.cast(tf.gather(spans.values[:, 0], start), tf.int32)
        last = tf.cast(tf.gather(spans.values[:, 1], end - 1), tf.int32)
        strings = tf.strings.substr(tf.gather(tf.strings.unicode_transcode(
            texts, "UTF-8", "UTF-8"), text), first, last - first, unit="UTF8_CHAR")
        return {f"entity_{name}": Ragged.from_value_rowids(
            values, text, spans.nrows(), validate=False).to_tensor()
                for name, values in (
                    ("type", kind), ("start", first), ("end", last), ("text", strings),
                    ("score", tf.cast(score, tf.float32)))}


@functools.lru_cache(maxsize=None)
def _stands_alone(split: str) -> in_graph.Table:
    """Returns a table of the code points that are words by themselves."""
    return in_graph.of_characters(lambda char: cleaning.stands_alone(char, split))
