"""The batched masker: exactly the choice of the reference, of the same numbers.

reference.mask_sequence is given the random numbers that the batch draws, and has to
come to the same masks.
"""

import collections

import numpy as np
import pytest

from albert_tf import keyed_random
from albert_tf.masking import batched, reference
from tests.masking.maskers import (
    ID_OF, IDS, IS_START, ODD_ROWS, OPTIONS, VOCABULARY, keys_of, mask_batch,
    positions_of, random_rows, row_of, words_of)


class Replay:
    """The numbers that the batch draws for a row, in the guise of a RandomSource."""

    def __init__(self, key, num_words, budget):
        self.python = self.numpy = self
        self._key = key
        self._permutations, self._uniforms, self.permuted = [], [], []
        for begin in batched._ROUNDS:
            order, uniforms = self._visits(begin, num_words, budget)
            self._permutations.append(order)
            self._uniforms.append(uniforms)

    def _number(self, index):
        return int(keyed_random.words(self._key, index))

    def _visits(self, begin, num_words, budget):
        sizes = {}  # word → number for its n-gram's size, in the order of the visits
        block = batched._BLOCK
        for visit in range(-(-budget // block) * block if num_words else 0):
            number = self._number(begin + batched._VISITS + visit)
            sizes.setdefault((number >> 32) * num_words >> 32, number % 2**32)
        rest = sorted(
            set(range(num_words)) - set(sizes),
            key=lambda w: self._number(begin + batched._ORDER + w) >> 20)
        for word in rest:
            sizes[word] = self._number(begin + batched._SIZES + word) % 2**32
        return list(sizes), [number / 2**32 for number in sizes.values()]

    def shuffle(self, values):
        if self._permutations:
            values[:] = self._permutations.pop(0)
            self._sizes = iter(self._uniforms.pop(0))
            return
        self.permuted = list(values)
        values.sort(key=lambda p: self._number(
            batched._PERMUTATION + self.permuted.index(p)) >> 20)

    def random_sample(self):
        return next(self._sizes)

    def random(self):
        return 0.0  # [MASK] everywhere: what is shown instead is compared by itself

    def shown(self, piece, slot):
        number = self._number(batched._REPLACEMENTS + slot)
        kind, low = number / 2**64, number % 2**32
        return IDS.mask if kind < 0.8 else piece if kind < 0.9 else (
            low * len(VOCABULARY) >> 32)


@pytest.mark.parametrize("name", OPTIONS)
def test_same_numbers_give_the_masks_of_mask_sequence(name):
    options, rows = OPTIONS[name], ODD_ROWS + random_rows(40)
    keys = keys_of(len(rows))
    batch = mask_batch(rows, options, keys)
    ngrams = collections.Counter()
    for i, row in enumerate(rows):
        words, boundary = words_of(row, options)
        source = Replay(keys[i], len(words), options.num_to_predict(len(row)))
        alone = reference.mask_sequence(
            [VOCABULARY[i] for i in row], IS_START, VOCABULARY, options, source)
        assert positions_of(batch, i) == alone.positions
        assert [VOCABULARY[p] for p in batch.masked_lm_ids[
            i, :batch.num_masked[i]]] == alone.labels
        assert batch.token_boundary[i, :len(row)].tolist() == boundary
        expected = [ID_OF[piece] for piece in alone.pieces]
        masked = sorted(set(alone.positions) - set(source.permuted))
        for slot, position in enumerate(masked):
            expected[position] = source.shown(row[position], slot)
        assert batch.input_ids[i, :len(row)].tolist() == expected
        ngrams.update(alone.ngrams)
    assert batch.ngram_words.tolist() == [ngrams[n] for n in range(options.ngram + 1)]
    # What is shown is counted, and behind ends there are zeros.
    inside = np.arange(options.num_prediction_slots) < batch.num_masked[:, None]
    labels = batch.masked_lm_ids[inside]
    shown = np.take_along_axis(batch.input_ids, batch.masked_lm_positions, 1)[inside]
    assert batch.shown.tolist() == [
        (shown == IDS.mask).sum(), ((shown == labels) & (labels != IDS.mask)).sum(),
        ((shown != labels) & (shown != IDS.mask)).sum()]
    ends = np.arange(batch.input_ids.shape[1]) >= np.array(list(map(len, rows)))[:, None]
    for values, empty in ((batch.masked_lm_positions, ~inside), (
            batch.masked_lm_ids, ~inside), (batch.input_ids, ends)):
        assert values.dtype == np.int32 and not values[empty].any()
    assert not batch.token_boundary[ends].any()


@pytest.mark.parametrize("name", ["default", "half", "much_permuted", "long_ngrams"])
def test_a_row_does_not_depend_on_its_batch_or_padding(name):
    options, rows = OPTIONS[name], ODD_ROWS + random_rows(50, seed=9)
    keys = keys_of(len(rows))
    whole = mask_batch(rows, options, keys)
    order = np.random.RandomState(0).permutation(len(rows))
    turned = mask_batch([rows[i] for i in order], options, keys[order], width=301)
    assert not turned.input_ids[:, whole.input_ids.shape[1]:].any()
    for new, old in enumerate(order):
        alone = mask_batch([rows[old]], options, keys[old:old + 1])
        length = len(rows[old])
        for other, place in ((turned, new), (alone, 0)):
            for field in ("input_ids", "token_boundary"):
                np.testing.assert_array_equal(
                    getattr(other, field)[place, :length],
                    getattr(whole, field)[old, :length])
            for field in ("masked_lm_positions", "masked_lm_ids", "num_masked"):
                np.testing.assert_array_equal(
                    getattr(other, field)[place], getattr(whole, field)[old])


def test_masks_stay_what_they_are():
    """Data made earlier with the same seed must come out again, on any machine."""
    batch = mask_batch([row_of(*[1, 2, 1, 1, 3] * 2)] * 2, OPTIONS["much_permuted"])
    assert positions_of(batch, 0) == [2, 3, 4, 5, 9, 10, 11, 12, 13, 14, 15, 16]
    assert positions_of(batch, 1) == [2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 15, 16]
    assert batch.input_ids.tolist() == [
        [1, 4, 3, 3, 6, 55, 8, 51, 52, 9, 3, 3, 3, 3, 13, 54, 7, 2],
        [1, 4, 27, 50, 55, 3, 3, 3, 3, 14, 54, 53, 10, 12, 6, 11, 13, 2]]
    # The last of 13 pieces has to be the one at 43, found late by most rows.
    batch = mask_batch([row_of(*[2] * 21, 1, *[2] * 21)] * 2, OPTIONS["default"])
    assert [positions_of(batch, i) for i in range(2)] == [
        [11, 12, 13, 14, 15, 16, 17, 18, 43, 62, 63, 64, 65],
        [15, 16, 27, 28, 29, 30, 33, 34, 35, 36, 43, 46, 47]]
