"""SQuAD: from log-probabilities to answers.

fixtures/squad/predictions*: 17 of the questions of golden/squad with their
windows, two sets of results and the release's answers (chosen for ties, empty
texts, spans found twice, accents, questions without windows or valid spans).
"""

import gzip
import json
import types

import numpy as np
import pytest

from albert_tf.errors import InputError
from albert_tf.finetuning.squad.task import QuestionSet, SquadTask
from tests.helpers import FIXTURES

COLUMNS = ("example_index", "paragraph_len")
LISTS = ("tok_start_to_orig_index", "tok_end_to_orig_index", "token_is_max_context")
# The outputs of version 2.0's head.
TOPS = ("start_top_log_probs", "start_top_index", "end_top_log_probs", "end_top_index",
        "cls_logits")


def read_subset(version):
    """(examples, columns of windows, outputs of the head, the release's runs)"""
    arrays = dict(np.load(FIXTURES / "squad" / f"predictions_{version}.npz"))
    with gzip.open(FIXTURES / "squad" / "predictions_expected.json.gz") as stream:
        expected = json.load(stream)[version]
    cuts = np.cumsum(arrays["pieces"])[:-1]
    windows = {**{name: arrays[name] for name in COLUMNS},
               **{name: np.split(arrays[name], cuts) for name in LISTS}}
    examples = [types.SimpleNamespace(**e) for e in expected["examples"]]
    outputs = {f"{side}_log_probs": arrays[f"{side}_log_prob_0"]
               for side in ("start", "end")} if version == "v1" else {
        name: arrays[f"{name}_0"] for name in TOPS}
    return examples, windows, outputs, expected["runs"]


@pytest.mark.parametrize("name", ["one", "nbest3_len5"])
@pytest.mark.parametrize("version", ["v1", "v2"])
def test_answers_equal_the_releases(version, name):
    examples, windows, outputs, runs = read_subset(version)
    run = runs[name]
    found = SquadTask(version == "v2", n_best_size=run["n_best_size"],
                      max_answer_length=run["max_answer_length"]
                      ).rank(examples, outputs, windows)
    assert list(found.nbest) == list(run["nbest"])
    if version == "v1":
        # The one difference: the release answers "empty" without windows too.
        assert found.texts["q132"] == found.nbest["q132"][0]["text"] == ""
        assert run["predictions"].pop("q132") == run["nbest"].pop("q132")[0]["text"]
        assert found.texts == {"q132": "", **run["predictions"]}
    else:
        assert found.null_odds == pytest.approx(run["null_odds"], abs=1e-9, rel=0)
        for threshold, texts in run["thresholds"].items():
            given = None if threshold == "None" else float(threshold)
            assert found.texts_at(given) == texts
    for qas_id, expected in run["nbest"].items():
        entries = found.nbest[qas_id]
        assert [e["text"] for e in entries] == [e["text"] for e in expected]
        for key in ("probability", "start_log_prob", "end_log_prob"):
            np.testing.assert_allclose([e[key] for e in entries],
                                       [e[key] for e in expected], rtol=0, atol=1e-9)


# A paragraph by hand: each window is [CLS] q [SEP] pieces [SEP].

PARAGRAPH = "red green blue cyan pink"
PIECES = [(0, 2), (4, 8), (10, 13), (15, 18), (20, 23)]


def paragraph_windows(*parts):
    """Windows of one example; a part is (first piece, last piece + 1, own pieces)."""
    return dict(
        # As a table of features has them: a column of single numbers.
        example_index=np.zeros((len(parts), 1), int),
        paragraph_len=np.array([[4 + end - start] for start, end, _ in parts]),
        tok_start_to_orig_index=[np.array([p[0] for p in PIECES[start:end]])
                                 for start, end, _ in parts],
        tok_end_to_orig_index=[np.array([p[1] for p in PIECES[start:end]])
                               for start, end, _ in parts],
        token_is_max_context=[np.array([int(i in own) for i in range(start, end)])
                              for start, end, own in parts])


EXAMPLES = [types.SimpleNamespace(qas_id="q", question_text="Which?",
                                  paragraph_text=PARAGRAPH)]


def log_probs(*pieces, question=-9.0, length=None):
    """[CLS] q [SEP] pieces [SEP], -inf up to `length`."""
    row = [question] * 3 + list(pieces) + [question]
    return np.array(row + [-np.inf] * ((length or len(row)) - len(row)), np.float32)


def ranked(windows, starts, ends, examples=EXAMPLES, **options):
    return SquadTask(**options).rank(
        examples, {"start_log_probs": starts, "end_log_probs": ends},
        windows)


def best_of(windows, starts, ends, **options):
    return [entry["text"] for entry
            in ranked(windows, starts, ends, **options).nbest["q"]]


def test_a_span_counts_in_the_window_that_holds_most_of_its_start_s_context():
    windows = paragraph_windows((0, 3, {0, 1}), (1, 5, {2, 3, 4}))
    starts = [log_probs(-5, -5, 0), log_probs(0, -5, -5, -1)]
    ends = [log_probs(-5, -5, 0), log_probs(0, -5, -5, -1)]
    # "blue" in window 0 and "green" in window 1 would be better.
    assert best_of(windows, starts, ends)[0] == "pink"


def test_equal_scores_keep_the_order_of_the_windows_and_positions():
    windows = paragraph_windows((0, 5, range(5)))
    same = [log_probs(-1, -1, -1, -1, -1)]
    assert best_of(windows, same, same)[:6] == [
        "red", "red green", "red green blue", "red green blue cyan", PARAGRAPH, "green"]
    # Among equal starts and ends, the first n_best_size are tried.
    assert best_of(windows, same, same, n_best_size=2) == ["red", "red green"]


def test_positions_of_the_question_are_tried_and_fall_out():
    windows = paragraph_windows((0, 2, {0, 1}))
    starts = [log_probs(-3, -4, question=-1)]
    assert best_of(windows, starts, starts, n_best_size=6) == [
        "red", "red green", "green"]
    assert best_of(windows, [log_probs(-3, -np.inf)], starts) == ["red", "red green"]
    # The question takes all of two places, so no span is left.
    assert best_of(windows, starts, starts, n_best_size=2) == ["empty"]


@pytest.mark.parametrize("padding", [-np.inf, -1e30])
def test_padding_does_not_change_the_answers(padding):
    generator = np.random.default_rng(3)
    examples, windows, _, _ = read_subset("v1")
    rows = [np.log(generator.dirichlet(np.ones(n)), dtype=np.float32)
            for n in windows["paragraph_len"] for _ in "se"]

    def predictions(length):
        padded = rows if length is None else [
            np.concatenate([row, np.full(length - len(row), padding, np.float32)])
            for row in rows]
        return ranked(windows, padded[::2], padded[1::2], examples, n_best_size=100)

    bare = predictions(None)
    assert bare == predictions(64) == predictions(384)
    assert len(bare.nbest["q001"]) == 100


def test_values_that_are_not_numbers_are_told_with_their_question():
    windows = paragraph_windows((0, 2, {0, 1}))
    with pytest.raises(InputError, match="question 'q' is not a number.*learning_rate"):
        best_of(windows, [log_probs(-1, np.nan)], [log_probs(-1, -2)])
    with pytest.raises(InputError, match="question 'q' is not a number"):
        SquadTask(True).rank(EXAMPLES, dict(zip(TOPS, np.array(
            [[[-1.0]], [[3]], [[-1.0]], [[3]], [[np.nan]]]))), windows)


def test_outputs_are_ranked_and_scored_once():
    examples, windows, outputs, runs = read_subset("v1")
    given, task = QuestionSet(examples, answered=False), SquadTask()
    first = task.answers(given, outputs, windows)
    assert first.texts == runs["one"]["predictions"] | {"q132": ""}
    assert task.answers(given, outputs, windows) is first
    # Other outputs, or a task with other settings, are ranked anew.
    second = task.answers(given, dict(outputs), windows)
    assert second == first and second is not first
    third = SquadTask(n_best_size=3).answers(given, outputs, windows)
    assert len(third.predictions.nbest["q001"]) == 3
