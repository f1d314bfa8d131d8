"""Questions about a passage in TensorFlow's graph: splitting passages into the same
windows as finetuning.squad.task, and turning the scores of windows into an answer.

Shapes: N questions, W windows of all questions, S positions.
"""

import dataclasses
from typing import NamedTuple, Optional

import numpy as np
import tensorflow as tf

from albert_tf.finetuning.squad.predictions import NO_SPAN, NO_WINDOW_NULL_ODDS
from albert_tf.finetuning.text import TextTask, as_many, in_windows
from albert_tf.tokenization.sequences import NUM_SPECIAL_PAIR

# The characters that str.strip removes.
_SPACES = r"[\s\v\x1c-\x1f\x85\pZ]+"


class _Windows(NamedTuple):
    """The windows of all questions, [W, S] by position."""

    question: tf.Tensor  # int64 [W], the number of the window's question
    passage: tf.Tensor  # bool, whether a token is of the passage
    own: tf.Tensor  # bool, whether no other window has more context for it
    starts: tf.Tensor  # int32, the first character of each token
    ends: tf.Tensor  # int32, the last character of each token


@dataclasses.dataclass(frozen=True)
class Spans(TextTask):
    """The text task of questions about passages (squad.task.SquadTask). Questions whose
    null odds reach the threshold, None for version 1.1, have no answer."""

    threshold: Optional[float] = None

    inputs = {"question": 1, "passage": 1}

    def prepared(self, inputs):
        texts = as_many(inputs)
        question = self.ids(texts["question"])[:, :self.task.max_query_length]
        ids, starts, ends = self.ops.located(texts["passage"])
        # "▁" alone at the beginning has the first character, as in Python.
        ends = tf.maximum(ends, 0)
        windows = in_windows(
            ids, self.max_seq_length - NUM_SPECIAL_PAIR - question.row_lengths(),
            self.task.doc_stride)
        question = tf.gather(question, windows.text)
        features = self.packed(question, windows.of(ids), optional=False)
        position = tf.range(tf.shape(features["input_ids"], tf.int64)[1])
        behind = position - question.row_lengths()[:, tf.newaxis] - 2
        passage = (behind >= 0) & (behind < windows.places.row_lengths()[:, tf.newaxis])
        features["p_mask"] = tf.cast(~(passage | tf.equal(position, 0)), tf.int32)
        own, starts, ends = (tf.scatter_nd(
            tf.where(passage), each.values, tf.shape(passage, tf.int64))
            for each in (windows.own, windows.of(starts), windows.of(ends)))
        return features, _Windows(windows.text, passage, own, starts, ends)

    def tokenized(self, inputs):
        features, windows = self.prepared(inputs)
        return {**features, "question": windows.question}

    def answers(self, inputs, context, outputs):
        # The starts and ends of each window's spans, [W, k, 1] and [W, 1 or k, m].
        if self.threshold is None:
            (start_scores, starts), (end_scores, ends) = (tf.math.top_k(tf.pad(
                outputs[f"{side}_log_probs"], [[0, 0], [0, self.task.n_best_size]],
                constant_values=-np.inf), self.task.n_best_size) for side in ("start", "end"))
            ends, end_scores = ends[:, tf.newaxis], end_scores[:, tf.newaxis]
        else:
            start_scores, starts, ends, end_scores = (outputs[name] for name in (
                "start_top_log_probs", "start_top_index", "end_top_index",
                "end_top_log_probs"))
            shape = [-1, starts.shape[1], ends.shape[1] // starts.shape[1]]
            ends, end_scores = tf.reshape(ends, shape), tf.reshape(end_scores, shape)
        starts = starts[..., tf.newaxis]

        def at(table, positions):
            """Returns the values at positions of a table, 0 beyond its end."""
            return tf.gather(tf.pad(table, [[0, 0], [0, 1]]), tf.minimum(
                positions, tf.shape(table)[1]), batch_dims=1)

        valid = (at(context.own, starts) & at(context.passage, ends)
                 & (ends >= starts) & (ends - starts < self.task.max_answer_length))
        scores = tf.where(valid, tf.cast(start_scores[..., tf.newaxis], tf.float64)
                          + tf.cast(end_scores, tf.float64), -np.inf)
        # All spans of each question, [N, spans], and none. As in the original
        # implementation, the first of equal spans wins: windows, then starts, then ends.
        shape = tf.shape(scores)
        rows = tf.shape(inputs["passage"], tf.int64)[0]
        question = tf.repeat(context.question, shape[1] * shape[2])
        scores, first, last = (tf.pad(tf.RaggedTensor.from_value_rowids(
            tf.reshape(tf.broadcast_to(values, shape), [-1]), question, rows
        ).to_tensor(default), [[0, 0], [0, 1]], constant_values=default)
            for values, default in (
                (scores, tf.constant(-np.inf, tf.float64)),
                (at(context.starts, starts), 0), (at(context.ends, ends), 0)))
        best = tf.argmax(scores, axis=1)
        score, first, last = (tf.gather(values, best, batch_dims=1)
                              for values in (scores, first, last))
        has_answer = score > -np.inf
        answers = {"score": tf.cast(tf.where(has_answer, score, 2 * NO_SPAN[
            self.threshold is not None][1]), tf.float32)}
        if self.threshold is not None:
            answers["null_odds"] = tf.minimum(tf.math.unsorted_segment_min(
                outputs["cls_logits"], context.question, rows), NO_WINDOW_NULL_ODDS)
            has_answer &= tf.cast(answers["null_odds"], tf.float64) < self.threshold
        # Invalid characters have the places that the tokenizer gives them.
        whole = tf.strings.substr(
            tf.strings.unicode_transcode(inputs["passage"], "UTF-8", "UTF-8"),
            tf.where(has_answer, first, 0), tf.where(has_answer, last + 1 - first, 0),
            unit="UTF8_CHAR")
        rest = tf.strings.regex_replace(whole, f"^{_SPACES}", "")
        answer = tf.strings.regex_replace(rest, f"{_SPACES}$", "")
        length, without, size = (tf.strings.length(text, unit="UTF8_CHAR")
                                 for text in (whole, rest, answer))
        start = tf.where(has_answer, first + length - without, 0)
        return {"answer": answer, "start": start, "end": start + size, **answers}
