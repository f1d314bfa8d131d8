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
import operator
from typing import Any, Mapping, NamedTuple, Sequence

import numpy as np

from albert_tf.finetuning.metrics import diverged

# The null odds of a question without windows. They are larger than those of any model,
# so that every reasonable threshold leaves the question unanswered.
NO_WINDOW_NULL_ODDS = 1e6

# The original implementation's answer to a question without valid spans, and its score,
# without and with null odds.
NO_SPAN = {False: ("empty", 0.0), True: ("", -1e6)}

# Columns of SQuAD's table of features (SquadTask.spec) or of a model's outputs: name →
# one entry for each window. The first token of the paragraph is at position
# paragraph_len - 1 - len(tok_start_to_orig_index).
Columns = Mapping[str, Sequence]


class Spans(NamedTuple):
    """The valid spans of all windows, window by window. Within a window they are in the
    original implementation's order, which ranks equal scores."""

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
        reaches = operator.gt if answer_at_threshold else operator.ge
        return {qas_id: "" if reaches(self.null_odds[qas_id], threshold) else text
                for qas_id, text in self.texts.items()}


def rank(examples: Sequence[Any], columns: Columns, outputs: Columns, *,
         n_best_size: int, max_answer_length: int) -> Predictions:
    """Returns the n_best_size best different texts of each question.

    Each window's outputs are those of the head, for version 1.1 the log-probabilities
    [L] of a start and of an end at each position; logits would not be comparable between
    windows. L is at least paragraph_len; positions of padding are absent, or as low as
    the head's mask makes them. Spans are among the n_best_size best starts and ends,
    positions of the question included, as in the original implementation.
    max_answer_length counts tokens.

    Texts do not depend on the null odds of version 2.0. Probabilities are a softmax over
    these texts only. A question without windows gets ""; the original implementation
    treats it as one without valid spans.
    """
    spans = _merged(_valid_spans(
        examples, columns, outputs, n_best_size, max_answer_length))
    score = spans.start_log_prob + spans.end_log_prob
    example_index, odds = _numbers(columns, "example_index"), None
    if "cls_logits" in outputs:  # Those of the most answerable window count.
        lowest = np.full(len(examples), NO_WINDOW_NULL_ODDS)
        np.minimum.at(lowest, example_index,
                      np.reshape(outputs["cls_logits"], -1).astype(float))
        odds = {each.qas_id: float(value) for each, value in zip(examples, lowest)}
    # Sort by question, then by descending score, then by the order of the spans.
    order = np.lexsort((-score, example_index[spans.row]))
    bounds = np.searchsorted(example_index[spans.row][order],
                             np.arange(len(examples) + 1))
    with_windows = {*example_index.tolist()}
    found = Predictions({}, {}, odds, {})
    for index, example in enumerate(examples):
        # The best different texts, in order, each with its log-probabilities and place.
        entries: dict[str, tuple[float, float, int, int]] = {}
        for span in order[bounds[index]:bounds[index + 1]].tolist():
            if len(entries) == n_best_size:
                break
            row = spans.row[span]
            first = int(columns["tok_start_to_orig_index"][row][spans.start[span]])
            last = int(columns["tok_end_to_orig_index"][row][spans.end[span]])
            whole = example.paragraph_text[first:last + 1]
            first += len(whole) - len(whole.lstrip())
            entries.setdefault(whole.strip(), (
                float(spans.start_log_prob[span]), float(spans.end_log_prob[span]),
                first, first + len(whole.strip())))
        if not entries:
            text, log_prob = NO_SPAN[odds is not None]
            entries = {text if index in with_windows else "": (log_prob, log_prob, 0, 0)}
        scores = [start + end for start, end, *_ in entries.values()]
        weights = [math.exp(score - max(scores)) for score in scores]
        found.nbest[example.qas_id] = [
            {"text": text, "probability": weight / sum(weights),
             "start_log_prob": start, "end_log_prob": end}
            for (text, (start, end, *_)), weight in zip(entries.items(), weights)]
        found.texts[example.qas_id], (*_, first, end) = next(iter(entries.items()))
        found.best[example.qas_id] = first, end, scores[0]
    return found


def _valid_spans(examples: Sequence[Any], columns: Columns, outputs: Columns,
                 n_best_size: int, max_answer_length: int) -> Spans:
    """Returns the valid spans of all windows."""
    found = [tuple(np.zeros(0, dtype) for dtype in (int, int, int, float, float))]
    for row, length in enumerate(_numbers(columns, "paragraph_len")):
        scores = {name: np.asarray(values[row], float)
                  for name, values in outputs.items()}
        if any(np.isnan(values).any() for values in scores.values()):
            example = examples[_numbers(columns, "example_index")[row]]
            raise diverged(f"the model's output for question '{example.qas_id}'")
        sides = []  # starts [k, 1], their scores, ends [1 or k, m], theirs
        for side, shape in ("start", (-1, 1)), ("end", (1, -1)):
            if f"{side}_top_index" in scores:
                index = scores[f"{side}_top_index"].astype(int)
                log_probs = scores[f"{side}_top_log_probs"]
                shape = len(scores["start_top_index"]), -1
            else:  # The stable sort keeps the order of equal values.
                index = np.argsort(-scores[f"{side}_log_probs"], kind="stable")[
                    :n_best_size]
                log_probs = scores[f"{side}_log_probs"][index]
            sides += [index.reshape(shape), log_probs.reshape(shape)]
        starts, start_log_probs, ends, end_log_probs = sides
        pieces = len(columns["tok_start_to_orig_index"][row])
        starts, ends = (places - (length - 1 - pieces) for places in (starts, ends))
        inside = (starts >= 0) & (starts < pieces)
        inside[inside] = np.asarray(columns["token_is_max_context"][row], bool)[
            starts[inside]]
        # In the original implementation, starts are the outer loop and ends the inner
        # one, which is row-major order. Positions at -inf do not exist.
        valid = np.nonzero(inside & (ends >= starts) & (ends < pieces)
                           & (ends - starts < max_answer_length)
                           & (start_log_probs > -np.inf) & (end_log_probs > -np.inf))
        found.append((np.full(len(valid[0]), row), *(values[valid] for values in (
            np.broadcast_arrays(starts, ends, start_log_probs, end_log_probs)))))
    return Spans(*map(np.concatenate, zip(*found)))


def _merged(spans: Spans) -> Spans:
    """Returns each span once, at its first position, with the mean of its
    log-probabilities over its repetitions (result_dict in the original
    implementation)."""
    # One number per span; starts and ends are below `pieces`.
    pieces = spans.end.max(initial=0) + 1
    _, first, inverse, counts = np.unique(
        (spans.row * pieces + spans.start) * pieces + spans.end,
        return_index=True, return_inverse=True, return_counts=True)
    order = np.argsort(first)
    means = (np.bincount(inverse, values, len(first)) / counts for values in spans[3:])
    return Spans(*(column[first[order]] for column in spans[:3]),
                 *(values[order] for values in means))


def _numbers(columns: Columns, name: str) -> np.ndarray:
    """Returns the numbers [N] of a column, one for each window."""
    return np.reshape(np.asarray(columns[name], int), -1)
