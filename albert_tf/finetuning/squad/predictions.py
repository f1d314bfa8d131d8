"""SQuAD: from log-probabilities per window to answers per question.

A long paragraph is cut into overlapping windows, and the spans of each window have
scores. This module ranks the spans of all windows of a question together, and turns
them into text of the paragraph.

    window 0   [CLS] question [SEP] p0 p1 p2 p3 p4 p5 [SEP]
    window 1   [CLS] question [SEP]          p3 p4 p5 p6 p7 p8 [SEP]
    max context                     0  0  0  0  0  1  1  1  1   (by window)

A span counts only in the window that has the most context for its first token.

Source: squad_utils of the original implementation (2019), accumulate_predictions_v1 /
_v2 and write_predictions_v1 / _v2. Answers, numbers and ties are the same as there.
"""

import math
from typing import Any, NamedTuple, Sequence

import numpy as np

from albert_tf.finetuning.metrics import diverged

# The null odds of a question without windows. They are larger than those of any model,
# so that every reasonable threshold leaves the question unanswered.
NO_WINDOW_NULL_ODDS = 1e6

# The original implementation's answer to a question without valid spans, and its score:
# version 1.1, version 2.0.
NO_SPAN_V1 = ("empty", 0.0)
NO_SPAN_V2 = ("", -1e6)


class Windows(NamedTuple):
    """Columns of SQuAD's FeatureTable, with one row per window.

    `paragraph_len` is the length of the whole sequence, including both [SEP]. The first
    token of the paragraph is therefore at position
    paragraph_len - 1 - len(tok_start_to_orig_index).
    """

    unique_ids: Sequence[int]                        # [N] or [N, 1]
    example_index: Sequence[int]                     # [N] or [N, 1]
    paragraph_len: Sequence[int]                     # [N] or [N, 1]
    # For each token of the paragraph in the window: the offsets of its first and last
    # character, and whether this window has the most context for it.
    tok_start_to_orig_index: Sequence[np.ndarray]    # N of [pieces]
    tok_end_to_orig_index: Sequence[np.ndarray]      # N of [pieces]
    token_is_max_context: Sequence[np.ndarray]       # N of [pieces]


class TopSpans(NamedTuple):
    """The outputs of version 2.0's head, with k = start_n_top and m = end_n_top.

    The m ends of start i have the indices i * m to i * m + m - 1.
    """

    start_top_log_probs: np.ndarray  # [N, k]
    start_top_index: np.ndarray      # [N, k]
    end_top_log_probs: np.ndarray    # [N, k * m] or [N, k, m]
    end_top_index: np.ndarray        # [N, k * m] or [N, k, m]
    cls_logits: np.ndarray           # [N] larger: less probable to be answerable


class Spans(NamedTuple):
    """The valid spans of all windows, window by window. Within a window they are in the
    original implementation's order, which ranks equal scores. The head of version 2.0
    may return a span twice."""

    row: np.ndarray             # [S] window
    start: np.ndarray           # [S] token of the window's paragraph part, from 0
    end: np.ndarray             # [S] last token, inclusive
    start_log_prob: np.ndarray  # [S] float64
    end_log_prob: np.ndarray    # [S] float64


class Predictions(NamedTuple):
    """Answers by question id, in the order of the examples."""

    texts: dict[str, str]                   # the best answer, no threshold applied
    nbest: dict[str, list[dict[str, Any]]]  # text, probability, *_log_prob
    null_odds: dict[str, float] | None      # version 2.0; larger: no answer
    without_windows: list[str]              # ids without features, answered with ""
    # The best answer's first character, the position after its last character, and the
    # sum of its log-probabilities. Both positions are 0 without an answer.
    best: dict[str, tuple[int, int, float]] = {}

    def texts_at(self, threshold: float | None,
                 answer_at_threshold: bool = False) -> dict[str, str]:
        """Returns the answers, "" if the null odds reach the threshold; None applies no
        threshold.

        The original implementation does not answer a question whose odds equal the
        threshold, although the search for the best threshold counts it as answered.
        With `answer_at_threshold`, it is answered.
        """
        if threshold is None or self.null_odds is None:
            return dict(self.texts)
        return {qas_id: text if (self.null_odds[qas_id] < threshold or (
                    answer_at_threshold and self.null_odds[qas_id] == threshold))
                else "" for qas_id, text in self.texts.items()}


def spans_v1(examples: Sequence[Any], windows: Windows,
             start_log_probs: Sequence[np.ndarray],
             end_log_probs: Sequence[np.ndarray], *, n_best_size: int,
             max_answer_length: int) -> Spans:
    """Returns the spans among the n_best_size best starts and ends of each window.

    Positions of the question are among the candidates, as in the original
    implementation, and are removed afterwards.

    Each window has the log-probabilities [L] of a start and of an end at each position
    of the sequence; logits would not be comparable between windows. L is at least
    paragraph_len; positions of padding are absent, or as low as the head's mask makes
    them. max_answer_length counts tokens.
    """
    lengths = _column(windows.paragraph_len)
    spans = []
    for row, (starts, ends) in enumerate(zip(start_log_probs, end_log_probs)):
        starts, ends = np.asarray(starts, float), np.asarray(ends, float)
        _check_numbers(examples, windows, row, starts, ends)
        # The stable sort keeps the order of equal values.
        start_index, end_index = (np.argsort(-values, kind="stable")[:n_best_size]
                                  for values in (starts, ends))
        spans.append(_valid_spans(
            windows, row, lengths[row], start_index[:, None], end_index[None, :],
            starts[start_index][:, None], ends[end_index][None, :],
            max_answer_length))
    return _join(spans)


def spans_v2(examples: Sequence[Any], windows: Windows, results: TopSpans, *,
             start_n_top: int, end_n_top: int, max_answer_length: int) -> Spans:
    """Returns the spans among the head's choice: end_n_top ends for each start."""
    rows, lengths = len(windows.unique_ids), _column(windows.paragraph_len)
    # Log-probabilities and positions: of starts [N, k, 1], of ends [N, k, m].
    start_log_probs, starts, end_log_probs, ends = (
        np.reshape(np.asarray(values, dtype), (rows, start_n_top, number))
        for values, dtype, number in zip(
            results, (float, int, float, int), (1, 1, end_n_top, end_n_top)))
    spans = []
    for row in range(rows):
        _check_numbers(examples, windows, row, start_log_probs[row],
                       end_log_probs[row], results.cls_logits[row])
        spans.append(_valid_spans(
            windows, row, lengths[row], starts[row], ends[row],
            start_log_probs[row], end_log_probs[row], max_answer_length))
    return _join(spans)


def merge_repeated(spans: Spans) -> Spans:
    """Returns each span once, at its first position, with the mean of its
    log-probabilities over its repetitions (result_dict in the original
    implementation)."""
    # One number per span; starts and ends are below `pieces`.
    pieces = spans.end.max(initial=0) + 1
    keys = (spans.row * pieces + spans.start) * pieces + spans.end
    _, first, inverse, counts = np.unique(
        keys, return_index=True, return_inverse=True, return_counts=True)
    means = [np.bincount(inverse, weights=values, minlength=len(first)) / counts
             for values in spans[3:]]
    order = np.argsort(first)
    return Spans(*(column[first[order]] for column in spans[:3]),
                 *(values[order] for values in means))


def null_odds(examples: Sequence[Any], windows: Windows,
              cls_logits: np.ndarray) -> dict[str, float]:
    """Returns, by question, the lowest cls_logits of its windows, which is that of the
    most answerable one."""
    lowest = np.full(len(examples), NO_WINDOW_NULL_ODDS)
    np.minimum.at(lowest, _column(windows.example_index),
                  np.reshape(cls_logits, -1).astype(float))
    return {example.qas_id: float(value) for example, value in zip(examples, lowest)}


def rank_spans(examples: Sequence[Any], windows: Windows, spans: Spans,
               n_best_size: int, odds: dict[str, float] | None = None) -> Predictions:
    """Returns the n_best_size best different texts of each question.

    They do not depend on the null odds (`odds`, of version 2.0). Probabilities are a
    softmax over these texts only. A question without windows gets "", and is listed;
    the original implementation treats it as one without valid spans.
    """
    spans = merge_repeated(spans)
    score = spans.start_log_prob + spans.end_log_prob
    example_index = _column(windows.example_index)
    # Sort by question, then by descending score, then by the order of the spans.
    order = np.lexsort((-score, example_index[spans.row]))
    bounds = np.searchsorted(example_index[spans.row][order],
                             np.arange(len(examples) + 1))
    with_windows = set(example_index.tolist())
    texts, nbest, without_windows, best = {}, {}, [], {}
    for index, example in enumerate(examples):
        entries = _best_texts(example.paragraph_text, windows, spans,
                              order[bounds[index]:bounds[index + 1]], n_best_size)
        if not entries:
            text, log_prob = NO_SPAN_V1 if odds is None else NO_SPAN_V2
            if index not in with_windows:
                without_windows.append(example.qas_id)
                text = ""
            entries = [(text, log_prob, log_prob, 0)]
        scores = [start + end for _, start, end, _ in entries]
        weights = [math.exp(score - max(scores)) for score in scores]
        nbest[example.qas_id] = [
            {"text": text, "probability": weight / sum(weights),
             "start_log_prob": start, "end_log_prob": end}
            for (text, start, end, _), weight in zip(entries, weights)]
        texts[example.qas_id], *_, first = entries[0]
        best[example.qas_id] = first, first + len(
            entries[0][0]) * int(bounds[index] < bounds[index + 1]), scores[0]
    return Predictions(texts, nbest, odds, without_windows, best)


def _best_texts(paragraph: str, windows: Windows, spans: Spans, order: np.ndarray,
                n_best_size: int) -> list[tuple[str, float, float, int]]:
    """Returns the best different texts, the log-probabilities of their starts and ends,
    and their first characters."""
    entries: dict[str, tuple[str, float, float, int]] = {}
    for span in order.tolist():
        if len(entries) == n_best_size:
            break
        row = spans.row[span]
        first = windows.tok_start_to_orig_index[row][spans.start[span]]
        last = windows.tok_end_to_orig_index[row][spans.end[span]]
        whole = paragraph[int(first):int(last) + 1]
        text = whole.strip()
        entries.setdefault(text, (text, float(spans.start_log_prob[span]),
                                  float(spans.end_log_prob[span]),
                                  int(first) + len(whole) - len(whole.lstrip())))
    return list(entries.values())


def _valid_spans(windows: Windows, row: int, length: int, starts: np.ndarray,
                 ends: np.ndarray, start_log_probs: np.ndarray,
                 end_log_probs: np.ndarray,
                 max_answer_length: int) -> tuple[np.ndarray, ...]:
    """Returns the columns of `Spans` for one window of `length` positions. Shapes:
    starts and start_log_probs [k, 1], ends and end_log_probs [1 or k, m]."""
    is_best = np.asarray(windows.token_is_max_context[row], bool)  # [pieces]
    pieces = len(windows.tok_start_to_orig_index[row])
    offset = length - 1 - pieces
    starts, ends = starts - offset, ends - offset
    inside = (starts >= 0) & (starts < pieces)
    inside[inside] = is_best[starts[inside]]
    # In the original implementation, starts are the outer loop and ends the inner one,
    # which is row-major order. Positions at -inf do not exist.
    valid = np.nonzero(inside & (ends >= starts) & (ends < pieces)
                       & (ends - starts < max_answer_length)
                       & (start_log_probs > -np.inf) & (end_log_probs > -np.inf))
    shape = np.broadcast_shapes(starts.shape, ends.shape)
    return np.full(len(valid[0]), row), *(
        np.broadcast_to(values, shape)[valid]
        for values in (starts, ends, start_log_probs, end_log_probs))


def _join(found: list[tuple[np.ndarray, ...]]) -> Spans:
    none = [np.zeros(0, dtype) for dtype in (int, int, int, float, float)]
    return Spans(*(np.concatenate(columns) for columns in zip(none, *found)))


def _column(values: Sequence[int]) -> np.ndarray:
    """Returns [N], given [N], [N, 1] or N arrays of length 1, as in feature tables."""
    return np.reshape(np.asarray(values, int), -1)


def _check_numbers(examples: Sequence[Any], windows: Windows, row: int,
                   *columns: np.ndarray) -> None:
    if any(np.isnan(values).any() for values in columns):
        qas_id = examples[_column(windows.example_index)[row]].qas_id
        raise diverged(f"the model's output for question '{qas_id}'")
