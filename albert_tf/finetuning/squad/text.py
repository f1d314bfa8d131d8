"""Questions about a passage in TensorFlow's graph: splitting passages into the same
windows as finetuning.squad.task, and turning the scores of windows into an answer.

Shapes: N questions, P tokens of a passage, W windows of all questions, S positions; for
one passage, n characters, and m characters of its tokens' text, where "▁" is a blank.
"""

import dataclasses
from typing import NamedTuple, Optional

import numpy as np
import tensorflow as tf

from albert_tf.finetuning.squad.alignment import BAND_MARGIN, MIN_MATCHED_SHARE
from albert_tf.finetuning.squad.predictions import NO_WINDOW_NULL_ODDS
from albert_tf.finetuning.squad.task import check_room
from albert_tf.finetuning.text import TextTask, as_many, in_windows
from albert_tf.tokenization import in_graph
from albert_tf.tokenization.sequences import NUM_SPECIAL_PAIR

# The score if there is no valid span: version 1.1, version 2.0.
_NO_SCORE = {False: 0.0, True: -2e6}
# The steps of tracing back through the table of the longest common subsequence.
_UP, _LEFT, _MATCH = 0, 1, 2
_BLANK = ord(" ")
Ragged = tf.RaggedTensor


class _Windows(NamedTuple):
    """The windows of all questions, with T tokens of the passage in each."""

    question: tf.Tensor  # int64 [W], the number of the window's question
    first: tf.Tensor  # int32 [W], the position of its first token of the passage
    pieces: tf.Tensor  # int32 [W], the number of its tokens of the passage
    own: tf.Tensor  # bool [W, T], whether no other window has more context for a token
    starts: tf.Tensor  # int32 [W, T], the first character of each token
    ends: tf.Tensor  # int32 [W, T], the last character of each token


@dataclasses.dataclass(frozen=True)
class Spans(TextTask):
    """The text task of questions about passages; its options are those of
    finetuning.squad.task.SquadTask.

    Attributes:
      threshold: questions whose null odds reach it have no answer; None for version
        1.1.
    """

    doc_stride: int = 128
    max_query_length: int = 64
    n_best_size: int = 20
    max_answer_length: int = 30
    threshold: Optional[float] = None

    def __post_init__(self):
        check_room(self.max_seq_length, self.max_query_length)

    @property
    def inputs(self):
        return {"question": 1, "passage": 1}

    def prepared(self, inputs):
        texts = as_many(inputs)
        question = self.ids(texts["question"])[:, :self.max_query_length]
        ids, starts, ends = located(self.ops, texts["passage"])
        windows = in_windows(
            ids, self.max_seq_length - NUM_SPECIAL_PAIR - question.row_lengths(),
            self.doc_stride)
        question = tf.gather(question, windows.text)
        features = self.packed(question, windows.of(ids), optional=False)
        first, pieces = question.row_lengths() + 2, windows.places.row_lengths()
        position = tf.range(tf.shape(features["input_ids"], tf.int64)[1])
        behind = position - first[:, tf.newaxis]
        of_passage = (behind >= 0) & (behind < pieces[:, tf.newaxis])
        features["p_mask"] = tf.cast(~(of_passage | tf.equal(position, 0)), tf.int32)
        return features, _Windows(
            windows.text, tf.cast(first, tf.int32), tf.cast(pieces, tf.int32),
            windows.own.to_tensor(False), windows.of(starts).to_tensor(0),
            windows.of(ends).to_tensor(0))

    def tokenized(self, inputs):
        features, windows = self.prepared(inputs)
        return {**features, "question": windows.question}

    def answers(self, inputs, context, outputs):
        rows = tf.shape(inputs["passage"])[0]
        score, start, end = self._best_of_windows(context, outputs)
        question = tf.cast(context.question, tf.int32)
        # Choose the best window of each question; the first one among equal windows.
        best = tf.math.unsorted_segment_max(score, question, rows)
        is_best = tf.equal(score, tf.gather(best, question)) & (
            score > tf.constant(-np.inf, score.dtype))
        window = tf.math.unsorted_segment_min(
            tf.where(is_best, tf.range(tf.size(question)), tf.size(question)), question,
            rows)
        has_answer = window < tf.size(question)
        window = tf.where(has_answer, window, 0)

        def of_best(table, piece):
            """Returns the values [N] of the best windows' tokens in a table [W, T],
            which may be empty."""
            table = tf.pad(table, [[0, 1], [0, 1]])
            return tf.where(has_answer, tf.gather_nd(table, tf.stack(
                [window, tf.gather(tf.pad(piece, [[0, 1]]), window)], 1)), 0)

        first, last = of_best(context.starts, start), of_best(context.ends, end)
        answers = {"score": tf.where(has_answer, best, _NO_SCORE[
            self.threshold is not None])}
        if self.threshold is not None:
            odds = tf.minimum(tf.math.unsorted_segment_min(
                outputs["cls_logits"], question, rows), NO_WINDOW_NULL_ODDS)
            has_answer &= tf.cast(odds, tf.float64) < self.threshold
            answers["null_odds"] = odds
        answers["score"] = tf.cast(answers["score"], tf.float32)
        return {**_cut(inputs["passage"], first,
                       tf.where(has_answer, last + 1 - first, 0), has_answer),
                **answers}

    def _best_of_windows(self, context, outputs):
        """Returns the best valid span of each window: its score, float64, -inf without
        one, and its first and last token, all [W]."""
        if self.threshold is None:
            least = self.n_best_size
            tops = [tf.math.top_k(tf.pad(
                outputs[f"{name}_log_probs"], [[0, 0], [0, least]],
                constant_values=-np.inf), least) for name in ("start", "end")]
            (starts_score, starts), (ends_score, ends) = tops
            ends, ends_score = (part[:, tf.newaxis] for part in (ends, ends_score))
        else:
            starts = outputs["start_top_index"]
            starts_score = outputs["start_top_log_probs"]
            shape = [-1, starts.shape[1],
                     outputs["end_top_index"].shape[1] // starts.shape[1]]
            ends, ends_score = (tf.reshape(outputs[f"end_top_{name}"], shape)
                                for name in ("index", "log_probs"))
        first, pieces = (part[:, tf.newaxis, tf.newaxis]
                         for part in (context.first, context.pieces))
        starts = starts[..., tf.newaxis] - first  # [W, k, 1]
        ends = ends - first  # [W, 1 or k, m]
        is_best = tf.pad(context.own, [[0, 0], [0, 1]])
        inside = (starts >= 0) & (starts < pieces)
        inside &= tf.gather(is_best, tf.where(inside, starts, 0), batch_dims=1)
        score = (tf.cast(starts_score[..., tf.newaxis], tf.float64)
                 + tf.cast(ends_score, tf.float64))
        lowest = tf.constant(-np.inf, tf.float64)
        score = tf.where(
            inside & (ends >= starts) & (ends < pieces)
            & (ends - starts < self.max_answer_length), score, lowest)
        shape, flat = tf.shape(score), [tf.shape(score)[0], -1]
        # Starts are the outer loop of the original implementation, which breaks ties.
        size = shape[1] * shape[2]
        flat = [shape[0], size]
        at = tf.argmax(tf.reshape(score, flat), axis=1, output_type=tf.int32)

        def chosen(values):
            return tf.gather(tf.reshape(tf.broadcast_to(values, shape), flat), at,
                             batch_dims=1)

        return chosen(score), chosen(starts), chosen(ends)


def _cut(passages, first, counts, found):
    """Returns `counts` characters from `first` on as the answer, without white space at
    its ends, and the positions where it begins and ends."""
    chars = tf.strings.unicode_decode(passages, "UTF-8")
    chars = in_graph.rows_from(chars, first, counts)
    space = tf.cast(in_graph.is_space()(chars.values), tf.bool)
    place = tf.range(tf.size(space, tf.int64)) - tf.gather(
        chars.row_starts(), chars.value_rowids())
    none, lengths = tf.int64.max, chars.row_lengths()
    begin = tf.minimum(tf.math.unsorted_segment_min(
        tf.where(space, none, place), chars.value_rowids(), chars.nrows()), lengths)
    end = tf.maximum(tf.math.unsorted_segment_max(
        tf.where(space, tf.constant(-1, tf.int64), place), chars.value_rowids(),
        chars.nrows()) + 1, begin)
    answer = tf.strings.unicode_encode(
        in_graph.rows_from(chars, tf.cast(begin, tf.int32),
                           tf.cast(end - begin, tf.int32)), "UTF-8")
    start = tf.where(found, first + tf.cast(begin, tf.int32), 0)
    return {"answer": answer, "start": start,
            "end": start + tf.cast(end - begin, tf.int32)}


# ---- the characters of a passage's tokens (squad.alignment) -----------------


def located(ops: in_graph.TokenizerOps, passages: tf.Tensor
            ) -> tuple[Ragged, Ragged, Ragged]:
    """Returns the id, first and last character of each token, int32 [N, (P)]. A passage
    without tokens, or whose tokens' characters are not known, has none."""
    if isinstance(ops, in_graph.WordPieceOps):
        return ops.located(passages)
    ids, strings = ops.tokens(ops.prepare(passages))
    text = tf.strings.unicode_decode(tf.strings.regex_replace(tf.strings.reduce_join(
        strings, axis=-1), in_graph.UNDERLINE, " "), "UTF-8")
    lengths = strings.with_values(tf.strings.length(strings.values, "UTF8_CHAR"))
    chars = tf.strings.unicode_decode(passages, "UTF-8")
    chars = chars.with_values(ops.comparable(chars.values))

    def align(row):
        return _places(row[0], row[1], row[2])

    row = tf.RaggedTensorSpec([None], tf.int32, 0)
    matched, starts, ends = tf.map_fn(
        align, (chars, text, lengths), fn_output_signature=(
            tf.TensorSpec([], tf.bool), row, row))
    rows = ids.value_rowids()
    mask = tf.gather(matched, rows)
    # A passage without a match has the exact characters of its tokens.
    exact = ops.located(tf.where(matched, "", passages))
    return tuple(tf.concat([Ragged.from_value_rowids(
        part.values[mask], rows[mask], ids.nrows(), validate=False), other], axis=1)
                 for part, other in zip((ids, starts, ends), exact))


def _places(chars, text, lengths):
    """Returns whether the text is matched, and the first and last character of its
    tokens, [P]."""
    is_matched, matches = _match(chars, text)
    size = tf.size(chars)
    matched = tf.where(matches >= 0)[:, 0]
    char_of = tf.tensor_scatter_nd_update(
        tf.fill([tf.size(text)], -1), tf.gather(matches, matched)[:, tf.newaxis],
        tf.cast(matched, tf.int32))
    is_match = char_of >= 0
    known = char_of[is_match]
    number = tf.cumsum(tf.cast(is_match, tf.int32))
    # Unmatched characters start after the match before them and end before the next.
    before = tf.gather(tf.concat([[-1], known], 0), number)
    after = tf.gather(tf.concat([known, [size]], 0), number)
    starts = tf.where(is_match, char_of, tf.minimum(before + 1, size - 1))
    ends = tf.where(is_match, char_of, tf.maximum(after - 1, 0))
    behind = tf.cumsum(lengths)
    return is_matched, tf.gather(starts, behind - lengths), tf.gather(ends, behind - 1)


def _match(chars, text):
    """Computes alignment.match_characters: whether enough characters are matched, and
    their positions [n] in the text, or -1. `chars` are code points, -2 for characters
    that match none."""
    size, length = tf.size(chars), tf.size(text)
    band = tf.abs(size - length) + BAND_MARGIN
    enough = MIN_MATCHED_SHARE * tf.cast(size, tf.float64)
    ordered = tf.sort(text)
    at = tf.minimum(tf.searchsorted(ordered, chars), tf.maximum(length - 1, 0))
    occurring = tf.cond(
        length > 0, lambda: tf.equal(tf.gather(ordered, at), chars),
        lambda: tf.zeros([size], tf.bool))
    absent = size - tf.math.count_nonzero(occurring, dtype=tf.int32)
    certain, greedy = _match_greedily(chars, text, occurring)
    certain &= ~((absent > band) | (length - size + absent >= band) | (
        tf.cast(size - absent, tf.float64) <= enough))

    def by_table():
        def wider():
            matched, matches = _match_by_table(chars, text, 2 * band)
            return tf.cast(matched, tf.float64) >= enough, matches

        matched, matches = _match_by_table(chars, text, band)
        return tf.cond(tf.cast(matched, tf.float64) > enough,
                       lambda: (tf.constant(True), matches), wider)

    return tf.cond(
        (size > 0) & (length > 0),
        lambda: tf.cond(certain, lambda: (tf.constant(True), greedy), by_table),
        lambda: (tf.constant(False), tf.fill([size], -1)))


def _match_greedily(chars, text, occurring):
    """Computes alignment.match_greedily for a text with the same characters except for
    blanks: each blank must directly follow the match before it. Returns whether this is
    the case, and the positions [n]."""
    is_blank = tf.equal(chars, _BLANK) & occurring
    solid = occurring & ~is_blank
    places = tf.cast(tf.where(tf.not_equal(text, _BLANK))[:, 0], tf.int32)
    letters = chars[solid]
    least = tf.minimum(tf.size(places), tf.size(letters))
    same = tf.equal(tf.size(places), tf.size(letters)) & tf.reduce_all(
        tf.equal(tf.gather(text, places[:least]), letters[:least]))
    number = tf.cumsum(tf.cast(solid, tf.int32))
    known = tf.concat([[-1], places], 0)
    last = tf.gather(known, tf.minimum(number, tf.size(places)))
    # Count the blanks since the last character that is not one.
    blanks = tf.cumsum(tf.cast(is_blank, tf.int32))
    at_solid = tf.concat([[0], blanks[solid]], 0)
    place = tf.where(is_blank, last + blanks - tf.gather(at_solid, number), last)
    there = tf.gather(tf.concat([text, [-1]], 0), tf.minimum(
        tf.maximum(place, 0), tf.size(text)))
    fits = tf.reduce_all(~is_blank | tf.equal(there, _BLANK))
    return same & fits, tf.where(occurring, place, -1)


def _match_by_table(chars, text, band):
    """Computes alignment.match_by_table: the number of matched characters, and their
    positions."""
    size, length, width = tf.size(chars), tf.size(text), 2 * band
    padded = tf.concat([tf.fill([band], -1), text, tf.fill(
        [tf.maximum(size + band - length, 0)], -1)], 0)

    def row(i, above, table):
        """Computes row i; `above` [width + 1] is the row before, with a 0 outside its
        band."""
        same = tf.equal(padded[i:i + width], chars[i])
        diagonal = tf.where(same, above[:-1] + 1, 0)
        # As `above` ascends, the best match up to each position is the last one.
        last = tf.gather(tf.concat([[-1], tf.cast(tf.where(same)[:, 0], tf.int32)], 0),
                         tf.cumsum(tf.cast(same, tf.int32)))
        matched = tf.where(last >= 0, tf.gather(above, tf.maximum(last, 0)) + 1, 0)
        up = above[1:]
        best = tf.maximum(tf.concat([up[:-1], above[-2:-1]], 0), matched)
        left = tf.concat([[0], best[:-1]], 0)
        step = tf.where(diagonal > tf.maximum(up, left), _MATCH,
                        tf.where(left > up, _LEFT, _UP))
        return i + 1, tf.concat([best, [0]], 0), table.write(i, tf.cast(step, tf.int8))

    _, above, table = tf.while_loop(
        lambda i, *_: i < size, row,
        (tf.constant(0), tf.zeros([width + 1], tf.int32), tf.TensorArray(
            tf.int8, size, element_shape=[None])))
    table = table.stack()
    first = length - size + band

    def trace(i, k, matches):
        step = table[i, k]
        is_match = tf.equal(step, _MATCH)
        matches = tf.tensor_scatter_nd_update(
            matches, [[i]], [tf.where(is_match, i - band + k, -1)])
        is_left = tf.equal(step, _LEFT)
        return (tf.where(is_left, i, i - 1),
                tf.where(is_left, k - 1, tf.where(is_match, k, k + 1)), matches)

    _, _, matches = tf.while_loop(
        lambda i, k, _: (i >= 0) & (k >= 0) & (k < width) & (i - band + k >= 0), trace,
        (size - 1, first, tf.fill([size], -1)))
    return above[first], matches
