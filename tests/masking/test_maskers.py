"""The three maskers: promises that each keeps, and one distribution of masks.

    python -m pytest tests/masking/test_maskers.py
"""

import collections

import numpy as np
import pytest
from scipy import stats

from albert_tf.errors import InputError
from albert_tf.masking.options import MaskingOptions, cumulative_ngram_probabilities
from tests.masking.maskers import (
    CASES, IDS, ODD_ROWS, OPTIONS, mask, random_rows, row_of, words_of)

MASKERS = ("reference", "batched", "in_training")
OTHERS = MASKERS[1:]


# What always holds.


@pytest.mark.parametrize("masker, name", CASES)
def test_masks_keep_their_promises(masker, name):
    options, rows = OPTIONS[name], ODD_ROWS + random_rows(60, seed=8)
    masked, ngrams = mask(masker, rows, options)
    numbers = set()
    for row, (shown, positions, labels) in zip(rows, masked):
        budget = options.num_to_predict(len(row)) * (1 + options.do_permutation)
        assert len(positions) <= budget <= options.num_prediction_slots
        assert positions == sorted(set(positions))
        assert labels == [row[p] for p in positions]
        assert not {IDS.cls, IDS.sep}.intersection(labels)
        assert all(a == b or p in positions for p, (a, b) in enumerate(zip(row, shown)))
        words, _ = words_of(row, options)
        touched = [word for word in words if set(positions).intersection(word)]
        assert positions == [p for word in touched for p in word]
        numbers.add(len(positions))
    if ngrams is not None:
        assert all(0 < n <= options.ngram for n, count in ngrams.items() if count)
    assert numbers == {0} if name == "none" else len(numbers) > 1


@pytest.mark.parametrize("masker", MASKERS)
def test_what_no_budget_has_room_for_stays(masker):
    rows = [[IDS.cls, IDS.sep, IDS.sep], row_of(30), row_of(60, seps=[30])]
    masked, _ = mask(masker, rows, OPTIONS["default"])
    assert masked == [(row, [], []) for row in rows]


@pytest.mark.parametrize("probability", [0.15, 0.1, 0.25, 0.5, 1.0, 0.01, 0.0])
def test_budgets_are_rounded_as_by_python(probability):
    options = MaskingOptions(max_predictions_per_seq=77, masked_lm_prob=probability)
    expected = [min(77, max(1, round(length * probability))) if probability else 0
                for length in range(600)]
    assert options.num_to_predict(np.arange(600)).tolist() == expected
    assert [int(options.num_to_predict(length)) for length in range(600)] == expected


@pytest.mark.parametrize("values, named", [
    (dict(max_predictions_per_seq=0), "--max_predictions_per_seq=0"),
    (dict(ngram=0), "--ngram=0"), (dict(masked_lm_prob=-0.1), "--masked_lm_prob=-0.1"),
    (dict(masked_lm_prob=1.5), "--masked_lm_prob=1.5")])
def test_values_out_of_range(values, named):
    with pytest.raises(InputError, match=named):
        MaskingOptions(**values)


# The odds: those of the paper, and of the reference.


@pytest.mark.parametrize("masker", MASKERS)
def test_shares_of_what_is_shown_and_of_ngram_sizes(masker):
    row = row_of(*[1] * 400, seps=[200])
    masked, ngrams = mask(masker, [row] * 200, MaskingOptions(60), vocab_size=4)
    shown = collections.Counter(
        "mask" if shown == IDS.mask else "same" if shown == row[at] else "any"
        for each in masked for at in each.positions for shown in [each.shown[at]])
    # One random piece of these four is [MASK] itself.
    for name, share in (("mask", 0.825), ("same", 0.1), ("any", 0.075)):
        assert shown[name] / shown.total() == pytest.approx(share, abs=0.015)
    for favor, expected in ((True, [6 / 11, 9 / 11, 1]), (False, [2 / 11, 5 / 11, 1])):
        assert cumulative_ngram_probabilities(MaskingOptions(
            favor_shorter_ngram=favor)) == pytest.approx(expected)
    if ngrams is not None:
        # 6/11, 3/11, 2/11, less what collides with earlier n-grams.
        assert ngrams[1] / sum(ngrams.values()) == pytest.approx(0.58, abs=0.03)
        assert ngrams[2] > 1.3 * ngrams[3] > 0


def p_value(first, second):
    """Chi square of two samples, rare outcomes put together."""
    first, second = collections.Counter(first), collections.Counter(second)
    table, rare = [], np.zeros(2)
    for outcome in first.keys() | second.keys():
        pair = np.array([first[outcome], second[outcome]], float)
        if pair.sum() < 20:
            rare += pair
        else:
            table.append(pair)
    if rare.sum() >= 20:
        table.append(rare)
    return stats.chi2_contingency(np.array(table)).pvalue if len(table) > 1 else 1


@pytest.mark.parametrize("row", [
    row_of(1, 2, 1, 3, 1, 1, seps=[4]), row_of(2, 1, 2, 2, 1, 2, 1)])
@pytest.mark.parametrize("masker, options", [
    (masker, options) for masker in OTHERS for options in (
        MaskingOptions(masked_lm_prob=0.3),
        MaskingOptions(masked_lm_prob=0.4, favor_shorter_ngram=False, ngram=4),
        MaskingOptions(masked_lm_prob=0.2, do_permutation=True))
    if masker == "batched" or not options.do_permutation])
def test_everything_at_once_in_a_short_row(masker, row, options):
    # All outcomes as wholes: what is predicted, and what stands there after masking.
    # [MASK] is the only random piece, lest there be too many outcomes.
    samples = []
    for each, seed in (("reference", 4), (masker, 3)):
        masked, _ = mask(each, [row] * 6000, options, seed, mask_id=0, vocab_size=1)
        samples.append([(tuple(made.positions), tuple(made.shown)) for made in masked])
    assert p_value(*samples) > 1e-4
