"""Masks of many sequences at a time: the choice and the odds of masking.mask_sequence.

Exactly: masking.mask_sequence is given the random numbers that the batch draws, and has
to come to the same masks. By the odds: both draw their own, for many keys and seeds,
and samples of what they did are compared by chi square.
"""

import collections
import dataclasses
import gzip
import itertools
import json
import random

import numpy as np
import pytest
from scipy import stats

from albert_tf import keyed_random
from albert_tf.masking import batched, reference
from albert_tf.masking.options import (
    CLS as CLS_PIECE, MASK as MASK_PIECE, MaskingOptions, SEP as SEP_PIECE, SpecialIds,
    cumulative_size_odds)
from albert_tf.masking.reference import RandomSource
from albert_tf.records.spec import pretraining_spec
from albert_tf.records.tfrecord import read_records
from tests.helpers import SHARED

CLS, SEP, MASK = 1, 2, 3
STARTS, FOLLOWS = range(4, 50), range(50, 90)
VOCABULARY = ["<pad>", CLS_PIECE, SEP_PIECE, MASK_PIECE,
              *(f"s{i}" for i in STARTS), *(f"f{i}" for i in FOLLOWS)]
IS_START = {piece: not piece.startswith("f") for piece in VOCABULARY}

OPTIONS = {
    "default": MaskingOptions(),
    "one_slot": MaskingOptions(max_predictions_per_seq=1),
    "few_slots": MaskingOptions(max_predictions_per_seq=5),
    "half": MaskingOptions(masked_lm_prob=0.5, max_predictions_per_seq=100),
    "all": MaskingOptions(masked_lm_prob=1.0, max_predictions_per_seq=100),
    "none": MaskingOptions(masked_lm_prob=0),
    "words": MaskingOptions(ngram=1),
    "long_ngrams": MaskingOptions(ngram=6, masked_lm_prob=0.3),
    "favor_longer": MaskingOptions(favor_shorter_ngram=False),
    "pieces": MaskingOptions(do_whole_word_mask=False),
    "permuted": MaskingOptions(do_permutation=True),
    "much_permuted": MaskingOptions(
        do_permutation=True, masked_lm_prob=0.4, max_predictions_per_seq=100),
}


def row_of(*word_lengths, seps=(), first_follows=False):
    """Ids of [CLS], words of these lengths, [SEP]; `seps`: pieces with one before."""
    starts, follows = itertools.cycle(STARTS), itertools.cycle(FOLLOWS)
    pieces = [next(follows if i else starts) for n in word_lengths for i in range(n)]
    if first_follows:
        pieces[0] = next(follows)
    for place in sorted(seps, reverse=True):
        pieces.insert(place, SEP)
    return [CLS, *pieces, SEP]


def random_rows(count, seed=0, most_words=40):
    source = random.Random(seed)
    rows = []
    for _ in range(count):
        lengths = [source.choice([1, 1, 1, 2, 2, 3, 5])
                   for _ in range(source.randint(1, most_words))]
        seps = source.sample(range(1, sum(lengths) + 1),
                             min(sum(lengths), source.choice([0, 1, 1, 3])))
        rows.append(row_of(*lengths, seps=seps, first_follows=source.random() < 0.2))
    return rows


ODD_ROWS = [
    [CLS, SEP], [CLS, SEP, SEP], row_of(1), row_of(2), row_of(30), row_of(1, 1),
    row_of(2, seps=[1]), row_of(1, 3, seps=[2]), row_of(5, 1, 5), row_of(*[2] * 20),
    row_of(*[4] * 10), row_of(1, *[9] * 6), row_of(*[1] * 60),
    row_of(1, 2, 3, first_follows=True), row_of(3, 3, seps=[3, 3, 6])]


def in_batch(rows, width=None):
    """input_ids, starts_word and lengths of rows; zeros behind their ends."""
    lengths = np.array([len(row) for row in rows])
    ids = np.zeros((len(rows), width or max(lengths)), np.int32)
    for place, row in zip(ids, rows):
        place[:len(row)] = row
    return ids, np.isin(ids, STARTS), lengths


def keys_of(count, seed=0):
    return keyed_random.keys_of(seed, 4, np.arange(count))


def mask(rows, options, keys=None, width=None, vocab_size=len(VOCABULARY),
         mask_id=MASK):
    return batched.mask_batch(
        *in_batch(rows, width), keys_of(len(rows)) if keys is None else keys, options,
        SpecialIds(CLS, SEP, mask_id), vocab_size)


def mask_alone(row, options, source, vocabulary=VOCABULARY):
    return reference.mask_sequence(
        [VOCABULARY[i] for i in row], IS_START, vocabulary, options, source)


def positions_of(batch, row):
    return batch.masked_lm_positions[row, :batch.num_masked[row]].tolist()


# The same random numbers: the same masks.


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
        return int(keyed_random.word(self._key, index))

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
        return MASK if kind < 0.8 else piece if kind < 0.9 else (
            low * len(VOCABULARY) >> 32)


@pytest.mark.parametrize("name", OPTIONS)
def test_same_numbers_give_the_masks_of_mask_sequence(name):
    options, rows = OPTIONS[name], ODD_ROWS + random_rows(40)
    keys = keys_of(len(rows))
    batch = mask(rows, options, keys)
    ngrams = collections.Counter()
    for i, row in enumerate(rows):
        words, boundary = reference.group_words(
            [VOCABULARY[p] for p in row], IS_START, options.do_whole_word_mask)
        source = Replay(keys[i], len(words), options.num_to_predict(len(row)))
        alone = mask_alone(row, options, source)
        assert positions_of(batch, i) == alone.positions
        assert [VOCABULARY[p] for p in batch.masked_lm_ids[
            i, :batch.num_masked[i]]] == alone.labels
        assert batch.token_boundary[i, :len(row)].tolist() == boundary
        expected = [VOCABULARY.index(piece) for piece in alone.pieces]
        masked = sorted(set(alone.positions) - set(source.permuted))
        for slot, position in enumerate(masked):
            expected[position] = source.shown(row[position], slot)
        assert batch.input_ids[i, :len(row)].tolist() == expected
        ngrams.update(alone.ngrams)
    assert batch.ngram_words.tolist() == [ngrams[n] for n in range(options.ngram + 1)]


# Numbers of their own: the same odds.


def assert_same_odds(first, second):
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
    if len(table) > 1:
        p_value = stats.chi2_contingency(np.array(table)).pvalue
        assert p_value > 1e-4, (p_value, table)


def runs(positions):
    """Lengths of the runs of neighbouring positions."""
    groups = itertools.groupby(enumerate(positions), lambda pair: pair[1] - pair[0])
    return [len(list(group)) for _, group in groups]


def ngrams_of_batch(rows, options, keys):
    """Pieces of the n-grams chosen in a batch."""
    ids, starts, lengths = in_batch(rows)
    words = batched._Words.of(
        (ids != CLS) & (ids != SEP) & (ids != 0), starts, options.do_whole_word_mask)
    choice = batched._NgramChoice(
        words, options.num_to_predict(lengths), keys, options, 0)
    choice.run()
    return [int(words.first_piece[first + size] - words.first_piece[first])
            for step in choice._taken for first, _, size in zip(*step)]


def ngrams_alone(row, options, source):
    """Pieces of the n-grams chosen by reference.choose_ngrams in one row."""
    words, _ = reference.group_words(
        [VOCABULARY[p] for p in row], IS_START, options.do_whole_word_mask)
    length_from = {word[0]: i for i, word in enumerate(words)}
    order = list(range(len(words)))
    source.python.shuffle(order)
    positions, sizes = reference.choose_ngrams(
        words, order, options.num_to_predict(len(row)), set(),
        cumulative_size_odds(options), source)
    found, begin = [], 0
    for size in sizes:
        first = length_from[positions[begin]]
        found.append(sum(map(len, words[first:first + size])))
        begin += found[-1]
    return found


@pytest.mark.parametrize("name", [name for name in OPTIONS if name != "none"])
def test_same_odds_of_counts_spans_runs_and_places(name):
    options = OPTIONS[name]
    repeats = 120
    kinds = random_rows(6, seed=5) + [row_of(*[1, 3] * 12), row_of(*[1] * 50)]
    rows = kinds * repeats
    keys = keys_of(len(rows), seed=1)
    source = RandomSource.from_seed(2)
    batch = mask(rows, options, keys)
    seen, expected = collections.defaultdict(list), collections.defaultdict(list)

    def add(sample, kind, positions):
        sample["masked_count"].append((kind, len(positions)))
        sample["contiguous_run_pieces"] += runs(positions)
        sample["place"] += [(kind, position) for position in positions]

    for i, row in enumerate(rows):
        add(seen, i % len(kinds), positions_of(batch, i))
        alone = mask_alone(row, options, source)
        add(expected, i % len(kinds), alone.positions)
        expected["span_words"] += alone.ngrams
        expected["span_pieces"] += ngrams_alone(row, options, source)
    seen["span_words"] = np.repeat(
        np.arange(options.ngram + 1), batch.ngram_words).tolist()
    seen["span_pieces"] = ngrams_of_batch(rows, options, keys)
    for statistic in expected:
        assert_same_odds(seen[statistic], expected[statistic])


@pytest.mark.parametrize("row", [
    row_of(1, 2, 1, 3, 1, 1, seps=[4]), row_of(2, 1, 2, 2, 1, 2, 1)])
@pytest.mark.parametrize("options", [
    MaskingOptions(masked_lm_prob=0.3),
    MaskingOptions(masked_lm_prob=0.4, favor_shorter_ngram=False, ngram=4),
    MaskingOptions(masked_lm_prob=0.2, do_permutation=True)])
def test_same_odds_of_everything_at_once_in_a_short_row(row, options):
    # All outcomes as wholes: what is predicted, and what stands there after masking.
    # [MASK] is the only random piece, lest there be too many outcomes.
    repeats = 6000
    batch = mask([row] * repeats, options, keys_of(repeats, seed=3), mask_id=0,
                 vocab_size=1)
    source = RandomSource.from_seed(4)
    expected = []
    for _ in range(repeats):
        alone = mask_alone(row, options, source, vocabulary=[MASK_PIECE])
        expected.append((tuple(alone.positions), tuple(
            0 if piece == MASK_PIECE else VOCABULARY.index(piece)
            for piece in alone.pieces)))
    seen = [(tuple(positions_of(batch, i)), tuple(batch.input_ids[i].tolist()))
            for i in range(repeats)]
    assert_same_odds(seen, expected)


def test_same_odds_of_what_is_shown():
    options = dataclasses.replace(OPTIONS["half"], ngram=2)
    row = row_of(*[1, 2] * 15)
    batch = mask([row] * 1500, options, keys_of(1500, seed=6), vocab_size=8)
    source = RandomSource.from_seed(7)
    seen, expected = [], []
    for i in range(1500):
        seen += [(p == row[at], p) if p < 8 else "same" for at in positions_of(batch, i)
                 for p in [int(batch.input_ids[i, at])]]
        alone = mask_alone(row, options, source, VOCABULARY[:8])
        expected += [(p == row[at], p) if p < 8 else "same" for at in alone.positions
                     for p in [VOCABULARY.index(alone.pieces[at])]]
    # Every piece comes as a random one: padding, [CLS] and [SEP] too.
    assert {p for _, p in set(seen) - {"same"}} == set(range(8))
    assert_same_odds(seen, expected)


def shares(sample):
    counts = collections.Counter({int(k): n for k, n in sample.items() if n})
    return {value: n / counts.total() for value, n in counts.items()}


def assert_close_shares(seen, expected):
    seen, expected = shares(seen), shares(expected)
    for value in seen.keys() | expected.keys():
        assert seen.get(value, 0) == pytest.approx(expected.get(value, 0), abs=0.015)


@pytest.mark.shared
@pytest.mark.parametrize("name", [
    "default", "do_permutation", "ngram1", "favor_longer", "no_whole_word",
    "wordpiece"])
def test_odds_of_the_release_on_its_own_sequences(name, tmp_path):
    """The release's statistics on a corpus of 200 documents walked ten times.

    Here the sequences of its two walks are masked ten times each.
    """
    folder = SHARED / "golden" / "pretraining_data" / name
    golden = json.loads((folder / "stats_dupe10.json").read_text())
    fields = {field.name for field in dataclasses.fields(MaskingOptions)}
    options = MaskingOptions(**{
        flag: value for flag, value in golden["flags"].items() if flag in fields})
    path = tmp_path / "records"
    path.write_bytes(gzip.decompress((folder / f"{name}.tfrecord.gz").read_bytes()))
    spec = pretraining_spec(128, options.num_prediction_slots)
    records = [spec.parse_numpy(record) for record in read_records(str(path))]
    columns = {field: np.array([record[field] for record in records] * 10)
               for field in records[0]}
    ids, boundary = columns["input_ids"].copy(), columns["token_boundary"]
    row, slot = np.nonzero(columns["masked_lm_weights"])
    place = row, columns["masked_lm_positions"][row, slot]
    ids[place] = columns["masked_lm_ids"][row, slot]  # as they were before masking
    batch = batched.mask_batch(
        ids, boundary.astype(bool), columns["input_mask"].sum(axis=1),
        keys_of(len(ids)), options, SpecialIds(2, 3, 4),
        vocab_size=2247 if name == "wordpiece" else 4000)
    np.testing.assert_array_equal(batch.token_boundary, boundary)
    # At times no piece left fits into the last room of a budget.
    given = columns["masked_lm_weights"].sum(axis=1)
    assert np.mean(batch.num_masked != given) < 0.002
    assert_close_shares(
        dict(enumerate(batch.ngram_words.tolist())), golden["stats"]["span_words"])
    assert_close_shares(
        collections.Counter(n for i in range(len(ids))
                            for n in runs(positions_of(batch, i))),
        golden["stats"]["contiguous_run_pieces"])
    assert_close_shares(
        dict(enumerate(batch.shown.tolist())),
        {i: golden["stats"]["replacement"][what] for i, what in enumerate(
            ("mask", "same", "other"))})


# What always holds.


@pytest.mark.parametrize("name", OPTIONS)
def test_masks_keep_their_promises(name):
    options, rows = OPTIONS[name], ODD_ROWS + random_rows(60, seed=8)
    ids, _, lengths = in_batch(rows)
    batch = mask(rows, options)
    slots = options.num_prediction_slots
    assert batch.input_ids.shape == ids.shape
    assert batch.masked_lm_positions.shape == (len(rows), slots)
    assert batch.masked_lm_ids.shape == (len(rows), slots)
    assert {batch.input_ids.dtype, batch.masked_lm_positions.dtype,
            batch.masked_lm_ids.dtype} == {np.dtype(np.int32)}
    assert batch.token_boundary.dtype == np.uint8
    shown = collections.Counter()
    for i, row in enumerate(rows):
        positions = positions_of(batch, i)
        budget = options.num_to_predict(len(row))
        assert len(positions) <= budget * (2 if options.do_permutation else 1) <= slots
        assert positions == sorted(set(positions))
        assert not batch.masked_lm_positions[i, len(positions):].any()
        assert not batch.masked_lm_ids[i, len(positions):].any()
        assert batch.masked_lm_ids[i, :len(positions)].tolist() == [
            row[p] for p in positions]
        assert not {row[p] for p in positions} & {CLS, SEP}
        assert not batch.token_boundary[i, len(row):].any()
        words, _ = reference.group_words(
            [VOCABULARY[p] for p in row], IS_START, options.do_whole_word_mask)
        touched = [word for word in words if set(positions).intersection(word)]
        assert positions == [p for word in touched for p in word]
        changed = np.flatnonzero(batch.input_ids[i] != ids[i]).tolist()
        assert set(changed) <= set(positions)
        shown.update(
            "mask" if p == MASK else "same" if p == row[at] else "other"
            for at in positions for p in [batch.input_ids[i, at]])
    assert batch.shown.tolist() == [shown[name] for name in ("mask", "same", "other")]
    if name == "none":
        np.testing.assert_array_equal(batch.input_ids, ids)
        assert not batch.num_masked.any() and not batch.ngram_words.any()


def test_budgets_are_those_of_single_sequences():
    lengths = np.arange(2, 600)
    for probability in (0.15, 0.1, 0.25, 0.5, 1.0, 0.0):
        options = MaskingOptions(max_predictions_per_seq=77, masked_lm_prob=probability)
        assert options.num_to_predict(lengths).tolist() == [
            options.num_to_predict(int(length)) for length in lengths]


@pytest.mark.parametrize("name", ["default", "half", "much_permuted", "long_ngrams"])
def test_a_row_does_not_depend_on_its_batch_or_padding(name):
    options, rows = OPTIONS[name], ODD_ROWS + random_rows(50, seed=9)
    keys = keys_of(len(rows))
    whole = mask(rows, options, keys)
    order = np.random.RandomState(0).permutation(len(rows))
    turned = mask([rows[i] for i in order], options, keys[order], width=301)
    assert not turned.input_ids[:, whole.input_ids.shape[1]:].any()
    for new, old in enumerate(order):
        alone = mask([rows[old]], options, keys[old:old + 1])
        length = len(rows[old])
        for other, place in ((turned, new), (alone, 0)):
            for field in ("input_ids", "token_boundary"):
                np.testing.assert_array_equal(
                    getattr(other, field)[place, :length],
                    getattr(whole, field)[old, :length])
            for field in ("masked_lm_positions", "masked_lm_ids", "num_masked"):
                np.testing.assert_array_equal(
                    getattr(other, field)[place], getattr(whole, field)[old])


def test_input_is_left_as_it_is_whatever_its_type():
    rows = random_rows(10)
    ids, starts, lengths = in_batch(rows)
    expected = mask(rows, OPTIONS["permuted"])
    # Behind the end of a row anything may stand.
    starts |= np.arange(ids.shape[1]) >= lengths[:, None]
    for kind in (np.uint16, np.int64, np.uint32):
        given, given_starts = ids.astype(kind), starts.copy()
        batch = batched.mask_batch(
            given, given_starts, lengths.astype(np.int32), keys_of(10),
            OPTIONS["permuted"], SpecialIds(CLS, SEP, MASK),
            vocab_size=len(VOCABULARY))
        np.testing.assert_array_equal(given, ids)
        np.testing.assert_array_equal(given_starts, starts)
        for name, array in expected._asdict().items():
            np.testing.assert_array_equal(getattr(batch, name), array)


def test_no_sequences():
    batch = batched.mask_batch(
        np.zeros((0, 8), np.int32), np.zeros((0, 8), bool), np.zeros(0, int),
        np.zeros(0, np.uint64), OPTIONS["permuted"], SpecialIds(CLS, SEP, MASK),
        vocab_size=9)
    assert batch.input_ids.shape == (0, 8) and batch.masked_lm_ids.shape == (0, 40)
    assert not batch.shown.any() and not batch.ngram_words.any()


def test_masks_stay_what_they_are():
    """Data made earlier with the same seed must come out again, on any machine."""
    batch = mask([row_of(*[1, 2, 1, 1, 3] * 2)] * 2, OPTIONS["much_permuted"])
    assert positions_of(batch, 0) == [2, 3, 4, 5, 9, 10, 11, 12, 13, 14, 15, 16]
    assert positions_of(batch, 1) == [2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 15, 16]
    assert batch.input_ids.tolist() == [
        [1, 4, 3, 3, 6, 55, 8, 51, 52, 9, 3, 3, 3, 3, 13, 54, 7, 2],
        [1, 4, 27, 50, 55, 3, 3, 3, 3, 14, 54, 53, 10, 12, 6, 11, 13, 2]]
    # The last of 13 pieces has to be the one at 43, found late by most rows.
    batch = mask([row_of(*[2] * 21, 1, *[2] * 21)] * 2, OPTIONS["default"])
    assert [positions_of(batch, i) for i in range(2)] == [
        [11, 12, 13, 14, 15, 16, 17, 18, 43, 62, 63, 64, 65],
        [15, 16, 27, 28, 29, 30, 33, 34, 35, 36, 43, 46, 47]]
