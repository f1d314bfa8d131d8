"""Masks many sequences at a time with NumPy, for data creation.

n-grams are chosen as in `reference`, but with random numbers from `keyed_random`: the
masks of a sequence depend only on its key, its tokens and the options. Each choice
depends on earlier ones, so step v handles the v-th visit of all sequences.
"""

from typing import NamedTuple, Optional, Sequence

import numpy as np

from albert_tf import keyed_random
from albert_tf.masking.options import (
    MaskingOptions, REST_SHOWN_AS_ITSELF, SHOWN_AS_MASK, SpecialIds,
    cumulative_ngram_probabilities)

# The use of each number from a row's key. The first round chooses the tokens to mask,
# the second, with do_permutation, those to permute. "+ v", "+ w", "+ p" stand for one
# number for each visit, word and masked token from the left.
_ROUNDS = (0, 1 << 40)  # where the numbers of each round begin; within a round:
_VISITS = 0  # + v: the word visited and the size of its n-gram
_ORDER = 1 << 32  # + w: the position of the row's w-th word among remaining words
_SIZES = 2 << 32  # + w: the size of the n-gram at that word
_REPLACEMENTS = 2 << 40  # + p: the replacement of the p-th masked token
_PERMUTATION = 3 << 40  # + p: the order of the permuted tokens

# The number of visits that are prepared at once; masks depend on it, because it decides
# when a row continues with its remaining words.
_BLOCK = 8
_HALF = np.uint64(32)
_LOW_HALF = np.uint64(2**32 - 1)
# The low bits of a number to sort by hold the index that is sorted, so that no two are
# equal and every sorting algorithm gives the same order.
_ORDINAL = np.uint64(2**20 - 1)
_LAST = np.uint64(2**64 - 1)


def thresholds(cumulative: Sequence[float]) -> list[int]:
    """Returns the limits between the outcomes of a random integer of 32 bits."""
    return [round(probability * 2**32) for probability in cumulative[:-1]]


# What is shown: [MASK], the token itself, or a random token.
SHOWN_THRESHOLDS = thresholds(
    [SHOWN_AS_MASK, SHOWN_AS_MASK + (1 - SHOWN_AS_MASK) * REST_SHOWN_AS_ITSELF, 1])


class MaskedBatch(NamedTuple):
    """N sequences of up to S tokens after masking, with P prediction slots."""

    input_ids: np.ndarray  # the tokens after replacement, int32 [N, S]
    token_boundary: np.ndarray  # 1: [CLS], [SEP], the start of a word; uint8 [N, S]
    masked_lm_positions: np.ndarray  # ascending, then zeros; int32 [N, P]
    masked_lm_ids: np.ndarray  # the original tokens, then zeros; int32 [N, P]
    num_masked: np.ndarray  # number of slots used, int64 [N]
    shown: np.ndarray  # counts of [MASK], unchanged and random tokens; int64 [3]
    ngram_words: np.ndarray  # masked n-grams of 0, 1, ... words; int64 [ngram + 1]


def mask_batch(
        input_ids: np.ndarray, starts_word: np.ndarray, lengths: np.ndarray,
        keys: np.ndarray, options: MaskingOptions, special_ids: SpecialIds,
        vocab_size: int) -> MaskedBatch:
    """Masks n-grams in each sequence, with the odds of reference.mask_sequence.

    `input_ids` are integers [N, S], S below 2^20, of which `lengths` [N] count, special
    tokens included; [CLS] and [SEP] are never masked. `starts_word`, bool [N, S], is
    ignored for special tokens and padding. Equal sequences with equal `keys`, uint64
    [N], get equal masks. Random tokens are drawn from 0 ... vocab_size - 1.
    """
    shape = input_ids.shape
    lengths, keys = np.asarray(lengths), np.asarray(keys, np.uint64)
    inside = np.arange(shape[1]) < lengths[:, None]
    ordinary = (input_ids != special_ids.cls) & (input_ids != special_ids.sep) & inside
    words = _Words.of(ordinary, starts_word, options.do_whole_word_mask)
    budget = options.num_to_predict(lengths)

    ids = input_ids.astype(np.int32).reshape(-1)
    shown = ids.copy()
    masking = _NgramChoice(words, budget, keys, options, _ROUNDS[0])
    masked = predicted = _Positions.of(masking.pieces(), shape)
    shown[masked.flat] = _replacements(
        ids[masked.flat], masked, keys, special_ids.mask, vocab_size)
    if options.do_permutation:
        permuted = _Positions.of(_NgramChoice(
            words, budget, keys, options, _ROUNDS[1], masking).pieces(), shape)
        # Shuffle the tokens within each row.
        place = np.arange(permuted.counts.max(initial=0))
        real = place < permuted.counts[:, None]
        order, _ = _shuffled_columns(
            keyed_random.words(keys[:, None], _PERMUTATION + place), real)
        begins = np.cumsum(permuted.counts) - permuted.counts
        shown[permuted.flat] = ids[permuted.flat[begins[permuted.row] + order[real]]]
        predicted = _Positions.of(np.concatenate([masked.flat, permuted.flat]), shape)

    labels, seen = ids[predicted.flat], shown[predicted.flat]
    is_mask, is_same = seen == special_ids.mask, seen == labels
    shown_counts = [int(np.count_nonzero(each)) for each in (
        is_mask, is_same & ~is_mask, ~(is_same | is_mask))]
    slots = (shape[0], options.num_prediction_slots)
    return MaskedBatch(
        shown.reshape(shape),
        ((starts_word | ~ordinary) & inside).view(np.uint8),
        predicted.in_slots(predicted.column, slots), predicted.in_slots(labels, slots),
        predicted.counts, np.array(shown_counts),
        np.bincount(masking.sizes(), minlength=options.ngram + 1))


class _Words(NamedTuple):
    """The words in a batch, row after row."""

    pieces: np.ndarray  # positions of ordinary tokens in the flattened batch, int64 [T]
    first_piece: np.ndarray  # token (of T) at which each word begins, and T [W + 1]
    of_row: np.ndarray  # word at which each row begins, and W [N + 1]

    @classmethod
    def of(cls, ordinary: np.ndarray, starts_word: np.ndarray,
           whole_words: bool) -> "_Words":
        """Groups tokens into words as reference.group_words does, leaving none out."""
        count, width = ordinary.shape
        pieces = np.flatnonzero(ordinary)
        row_ends = np.searchsorted(pieces, np.arange(count + 1) * width)
        if not whole_words:
            return cls(pieces, np.arange(len(pieces) + 1), row_ends)
        starts = starts_word.reshape(-1)[pieces]
        starts[row_ends[:-1][np.diff(row_ends) > 0]] = True
        first_piece = np.flatnonzero(np.append(starts, True))
        return cls(pieces, first_piece, np.searchsorted(first_piece, row_ends))


class _NgramChoice:
    """A choice of n-grams in every row, as in reference.choose_ngrams but in batches.

    A row's words are visited in a random order. Most rows have used up their budget
    after a small part of them. Words are therefore first drawn with replacement, and
    skipped if they were visited before, which is a random order too. After about as many
    visits as its budget, a row that still has room continues with the words not visited,
    sorted by other random numbers.

    `_free` holds for each word the longest n-gram that may begin there, in words: 0 once
    it was visited or taken, less than `ngram` if a taken word follows. `ngram` unused
    entries before, between and after the rows keep a write around an n-gram in its row.
    """

    def __init__(self, words: _Words, budget: np.ndarray, keys: np.ndarray,
                 options: MaskingOptions, first_number: int,
                 other: Optional["_NgramChoice"] = None):
        ngram = options.ngram
        self._words, self._keys, self._first_number = words, keys, first_number
        self._thresholds = thresholds(cumulative_ngram_probabilities(options))
        count = len(budget)
        self._num_words = np.diff(words.of_row)
        self._budget = np.where(self._num_words > 0, budget, 0)
        self._room = self._budget.copy()
        self._gap = np.arange(1, count + 1) * ngram
        self._free = np.full(
            words.of_row[-1] + (count + 1) * ngram, ngram, np.min_scalar_type(ngram))
        # _left[n, i]: the longest n-gram that may begin at the word _around[i] words
        # after the start of a taken n-gram of n words.
        self._around = np.arange(1 - ngram, ngram)
        size = np.arange(ngram + 1)[:, None]
        self._left = np.where(
            self._around < 0, -self._around,
            np.where(self._around < size, 0, ngram)).astype(self._free.dtype)
        self._taken = []  # (first words, places in _free, sizes) of each step
        if other:  # Its words are excluded.
            for _, places, sizes in other._taken:
                self._take(places, sizes)
        self._choose()

    def _choose(self) -> None:
        """Chooses until each row has used up its budget or visited all its words."""
        for visit in range(0, self._budget.max(initial=0), _BLOCK):
            rows = np.flatnonzero((self._room > 0) & (self._budget > visit))
            if not len(rows):
                break
            numbers = self._numbers(rows, _VISITS + visit + np.arange(_BLOCK))
            num_words = self._num_words[rows].astype(np.uint64)[:, None]
            ordinals = ((numbers >> _HALF) * num_words >> _HALF).astype(np.int64)
            self._visit(rows, ordinals, self._sizes_of(numbers))
        rows = np.flatnonzero(self._room)
        if len(rows):
            self._visit_the_rest(rows)

    def _visit_the_rest(self, rows: np.ndarray) -> None:
        """Visits the words of these rows that may still be chosen, in sorted order."""
        words = self._words
        num_words = self._num_words[rows][:, None]
        ordinals = np.arange(num_words.max())
        real = ordinals < num_words
        index = np.where(real, words.of_row[rows][:, None] + ordinals, 0)
        lengths = words.first_piece[index + 1] - words.first_piece[index]
        eligible = (real & (self._free[index + self._gap[rows][:, None]] > 0)
                    & (lengths <= self._room[rows][:, None]))
        order, counts = _shuffled_columns(
            self._numbers(rows, _ORDER + ordinals), eligible)
        sizes = np.take_along_axis(
            self._sizes_of(self._numbers(rows, _SIZES + ordinals)), order, axis=1)
        # A row that has fewer such words than others visits its first word instead,
        # with an n-gram of no words, so that nothing is chosen.
        sizes[np.arange(order.shape[1]) >= counts[:, None]] = 0
        for visit in range(0, order.shape[1], _BLOCK):
            unfinished = np.flatnonzero((self._room[rows] > 0) & (counts > visit))
            if not len(unfinished):
                break
            block = np.s_[unfinished, visit:visit + _BLOCK]
            self._visit(rows[unfinished], order[block], sizes[block])

    def _numbers(self, rows: np.ndarray, index: np.ndarray) -> np.ndarray:
        return keyed_random.words(self._keys[rows, None], self._first_number + index)

    def _sizes_of(self, numbers: np.ndarray) -> np.ndarray:
        """Returns n-gram sizes from the low halves of random numbers."""
        low = numbers & _LOW_HALF
        sizes = np.ones(numbers.shape, np.int64)
        for threshold in self._thresholds:
            sizes += low >= np.uint64(threshold)
        return sizes

    def _visit(self, rows: np.ndarray, ordinals: np.ndarray, sizes: np.ndarray) -> None:
        """Visits words in the rows [A]. `ordinals` are the words in the order of the
        visits, `sizes` the sizes drawn for their n-grams, both [A, V]."""
        first_piece, of_row = self._words.first_piece, self._words.of_row
        first = ordinals.T + of_row[rows]
        # At the end of the sequence an n-gram is shorter than its drawn size.
        sizes = np.minimum(sizes.T, of_row[rows + 1] - first)
        lengths = first_piece[first + sizes] - first_piece[first]
        places = first + self._gap[rows]
        room = self._room[rows]
        for step in zip(first, places, sizes, lengths):
            self._step(room, *step)
        self._room[rows] = room

    def _step(self, room, first, places, sizes, lengths) -> None:
        """Makes one visit in each of A rows; all arguments are [A]; updates `room`."""
        long = (lengths > room).nonzero()[0]
        while len(long):
            sizes[long] -= 1
            lengths[long] = (self._words.first_piece[first[long] + sizes[long]]
                             - self._words.first_piece[first[long]])
            long = long[lengths[long] > room[long]]
        free = self._free[places]
        self._free[places] = 0
        chosen = ((sizes <= free) & (sizes > 0)).nonzero()[0]
        places, sizes = places[chosen], sizes[chosen]
        room[chosen] -= lengths[chosen]
        self._take(places, sizes)
        self._taken.append((first[chosen], places, sizes))

    def _take(self, places: np.ndarray, sizes: np.ndarray) -> None:
        around = places[:, None] + self._around
        self._free[around] = np.minimum(self._free[around], self._left[sizes])

    def sizes(self) -> np.ndarray:
        """Returns the number of words in each chosen n-gram, int64."""
        return np.concatenate([np.zeros(0, np.int64), *(s for _, _, s in self._taken)])

    def pieces(self) -> np.ndarray:
        """Returns the positions of the chosen tokens in the flattened batch, int64, in
        no particular order."""
        first = np.concatenate(
            [np.zeros(0, np.int64), *(first for first, _, _ in self._taken)])
        begin = self._words.first_piece[first]
        return self._words.pieces[
            _ranges(begin, self._words.first_piece[first + self.sizes()] - begin)]


def _ranges(begin: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Returns begin[i], ..., begin[i] + lengths[i] - 1 for each i, concatenated."""
    before = np.cumsum(lengths) - lengths
    return np.arange(lengths.sum()) + np.repeat(begin - before, lengths)


class _Positions(NamedTuple):
    """Some positions in a batch, sorted by row and from the left."""

    flat: np.ndarray  # positions in the flattened batch, ascending, int64 [M]
    row: np.ndarray  # [M]
    column: np.ndarray  # [M]
    slot: np.ndarray  # index of the position within its row [M]
    counts: np.ndarray  # number of positions in each row [N]

    @classmethod
    def of(cls, flat: np.ndarray, shape: tuple[int, int]) -> "_Positions":
        """Sorts distinct positions in a batch of this shape."""
        chosen = np.zeros(shape[0] * shape[1], bool)
        chosen[flat] = True
        flat = np.flatnonzero(chosen)
        row, column = np.divmod(flat, shape[1])
        counts = np.bincount(row, minlength=shape[0])
        slot = _ranges(np.zeros_like(counts), counts)
        return cls(flat, row, column, slot, counts)

    def in_slots(self, values: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
        """Returns values [M] by row and slot, then zeros: int32 of this shape."""
        table = np.zeros(shape, np.int32)
        table[self.row, self.slot] = values
        return table


def _replacements(ids: np.ndarray, masked: _Positions, keys: np.ndarray, mask_id: int,
                  vocab_size: int) -> np.ndarray:
    """Returns the tokens that replace masked tokens, int32 [M]."""
    numbers = keyed_random.words(keys[masked.row], _REPLACEMENTS + masked.slot)
    kind = numbers >> _HALF
    to_mask, to_same = map(np.uint64, SHOWN_THRESHOLDS)
    drawn = (numbers & _LOW_HALF) * np.uint64(vocab_size) >> _HALF
    shown = np.where(kind < to_same, ids, drawn.astype(np.int32))
    shown[kind < to_mask] = mask_id
    return shown


def _shuffled_columns(
        numbers: np.ndarray, eligible: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sorts the eligible columns of each row by random numbers [R, C]; returns them,
    filled up with zeros, int64 [R, most of a row], and their numbers, int64 [R]."""
    counts = eligible.sum(axis=1)
    columns = np.arange(numbers.shape[1], dtype=np.uint64)
    # _LAST is larger than others, whose low bits are never all ones.
    ranked = np.where(eligible, numbers & ~_ORDINAL | columns, _LAST)
    ranked = np.sort(ranked, axis=1)[:, :counts.max(initial=0)]
    real = np.arange(ranked.shape[1]) < counts[:, None]
    return np.where(real, ranked & _ORDINAL, np.uint64(0)).astype(np.int64), counts
