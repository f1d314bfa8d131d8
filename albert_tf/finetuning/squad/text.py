"""Questions about a passage in TensorFlow's graph: splitting passages into the same
windows as finetuning.squad.task, and turning the scores of windows into an answer.

Shapes: N questions, P tokens of a passage, W windows of all questions, S positions.
"""

import dataclasses
from typing import NamedTuple, Optional

import numpy as np
import tensorflow as tf

from albert_tf.finetuning.squad.predictions import NO_WINDOW_NULL_ODDS
from albert_tf.finetuning.squad.task import check_room
from albert_tf.finetuning.text import TextTask, as_many, in_windows
from albert_tf.tokenization import in_graph
from albert_tf.tokenization.sequences import NUM_SPECIAL_PAIR

# The score if there is no valid span: version 1.1, version 2.0.
_NO_SCORE = {False: 0.0, True: -2e6}


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
    """The text task of questions about passages; its options are those of SquadTask.
    Questions whose null odds reach the threshold, None for version 1.1, have no answer.
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
        ids, starts, ends = self.ops.located(texts["passage"])
        # "▁" alone at the beginning has the first character, as in Python.
        ends = tf.maximum(ends, 0)
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
        # Starts are the outer loop of the original implementation, which breaks ties.
        shape = tf.shape(score)
        flat = [shape[0], shape[1] * shape[2]]
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
