"""Masked language modelling: which n-grams of words to hide, and behind what.

ALBERT, section 4.1: n-grams of up to three words, P(n) in proportion to 1/n.
The random source comes as an argument and is called in the order in which the
release's create_masked_lm_predictions calls its own, so that the same
generators give the same masks.
"""

import bisect
import dataclasses
import functools
import random as python_random
from typing import Mapping, NamedTuple, Sequence

import numpy as np

from albert_tf.errors import InputError

CLS, SEP, MASK = "[CLS]", "[SEP]", "[MASK]"

_LATIN = frozenset("abcdefghijklmnopqrstuvwxyz")
# Without ' < = >: a piece that holds one of these always starts a word, whereas
# one of several others, such as "**", does not.
_PUNCTUATION = frozenset('!"#$%&()*+,-./:;?@[\\]^_`{|}~')


@dataclasses.dataclass
class RandomSource:
    """The two generators that instances are drawn from.

    Attributes:
      python: everything but the n-gram sizes.
      numpy: the n-gram sizes.
    """

    python: python_random.Random
    numpy: np.random.RandomState

    @classmethod
    def from_seed(cls, seed: int) -> "RandomSource":
        """Both generators from one seed (the release left NumPy's unseeded)."""
        return cls(python_random.Random(seed),
                   np.random.RandomState(seed % 2**32))


@dataclasses.dataclass(frozen=True)
class MaskingOptions:
    """What to mask; fields are the flags of the release, with its defaults.

    Attributes:
      max_predictions_per_seq: most pieces masked in one sequence.
      masked_lm_prob: share of a sequence's pieces to mask, special pieces
        counted; 0 masks nothing.
      ngram: longest n-gram, in words.
      favor_shorter_ngram: P(n) in proportion to 1/n; False turns the same
        probabilities round.
      do_whole_word_mask: mask words whole; False takes each piece as a word.
      do_permutation: further n-grams change places among themselves, and are
        to be predicted too.

    Raises:
      InputError: if a value is out of its range.
    """

    max_predictions_per_seq: int = 20
    masked_lm_prob: float = 0.15
    ngram: int = 3
    favor_shorter_ngram: bool = True
    do_whole_word_mask: bool = True
    do_permutation: bool = False

    def __post_init__(self):
        for name in ("max_predictions_per_seq", "ngram"):
            if getattr(self, name) < 1:
                raise InputError(
                    f"--{name}={getattr(self, name)}: give a number of 1 or more.")
        if not 0 <= self.masked_lm_prob <= 1:
            raise InputError(
                f"--masked_lm_prob={self.masked_lm_prob}: give a probability "
                "between 0 and 1.")

    @property
    def num_prediction_slots(self) -> int:
        """Prediction slots of a record: twice as many with do_permutation."""
        return self.max_predictions_per_seq * (2 if self.do_permutation else 1)

    def num_to_predict(self, length: int) -> int:
        """Pieces to mask in a sequence of `length` pieces, special ones counted.

        Python's round, which takes halves to the even number, is part of it.
        """
        if self.masked_lm_prob == 0:
            return 0
        wanted = max(1, int(round(length * self.masked_lm_prob)))
        return min(self.max_predictions_per_seq, wanted)


def starts_word_release(piece: str) -> bool:
    """Whether a SentencePiece piece starts a word, by the release's rule.

    True for one that begins with "▁" or "<", for a punctuation mark, and for
    one with any character besides Latin letters and punctuation; so every piece
    of a non-Latin script, and every number, starts a word. (The release's
    _is_start_piece_sp.)
    """
    if piece.startswith(("▁", "<")) or piece in _PUNCTUATION:
        return True
    return not all(c.lower() in _LATIN or c.lower() in _PUNCTUATION for c in piece)


def starts_word_sentencepiece(piece: str) -> bool:
    """Whether a piece begins with "▁", SentencePiece's own mark of a word."""
    return piece.startswith("▁")


def starts_word_wordpiece(piece: str) -> bool:
    """Whether a WordPiece piece starts a word (the release's _is_start_piece_bert)."""
    return not piece.startswith("##")


_RULES = {
    "release": starts_word_release,
    "sentencepiece": starts_word_sentencepiece,
    "wordpiece": starts_word_wordpiece,
}


class WordStarts(dict):
    """piece → whether it starts a word; each piece is looked at once.

    Args:
      rule: "release", "sentencepiece" or "wordpiece".
    """

    def __init__(self, rule: str):
        super().__init__()
        self._rule = _RULES[rule]

    def __missing__(self, piece: str) -> bool:
        self[piece] = starts = self._rule(piece)
        return starts


class MaskedSequence(NamedTuple):
    """A sequence after masking.

    Attributes:
      tokens: pieces, [length].
      token_boundary: 1 where a word starts, [length].
      positions: masked and permuted positions, ascending.
      labels: the pieces that stood there.
      ngrams: number of words of each masked n-gram.
    """

    tokens: list[str]
    token_boundary: list[int]
    positions: list[int]
    labels: list[str]
    ngrams: list[int]


@functools.lru_cache
def _cumulative_sizes(ngram: int, favor_shorter: bool) -> tuple[float, ...]:
    """P(size <= n) for n = 1 ... ngram, rounded as NumPy's choice rounds it."""
    weights = 1.0 / np.arange(1, ngram + 1)
    weights /= weights.sum(keepdims=True)
    if not favor_shorter:
        weights = weights[::-1]
    cumulative = (weights / weights.sum(keepdims=True)).cumsum()
    return tuple((cumulative / cumulative[-1]).tolist())


def group_words(tokens: Sequence[str], starts_word: Mapping[str, bool],
                whole_words: bool) -> tuple[list[list[int]], list[int]]:
    """Words of a sequence and where they start.

    A piece that starts no word belongs to the word before it, also where a
    [SEP] lies between them, as in the release.

    Returns:
      words: the positions of each word's pieces, [CLS] and [SEP] left out.
      token_boundary: 1 for [CLS], [SEP] and word starts, [length].
    """
    words, boundary = [], []
    for position, token in enumerate(tokens):
        if token == CLS or token == SEP:
            boundary.append(1)
            continue
        starts = starts_word[token]
        boundary.append(int(starts))
        if whole_words and words and not starts:
            words[-1].append(position)
        else:
            words.append([position])
    return words, boundary


def _choose_ngrams(
        words: Sequence[list[int]], order: Sequence[int], budget: int,
        taken: set[int], cumulative: Sequence[float],
        random: RandomSource) -> tuple[list[int], list[int]]:
    """Takes n-grams in the given order until the budget of pieces is spent.

    A size is drawn for each word visited, also for one that is taken already.
    An n-gram that exceeds the budget loses words at its end; one that still
    does, or touches a taken piece, is passed over.

    Args:
      words: positions of each word's pieces.
      order: the words at which n-grams begin, in the order of the visit.
      budget: most positions to choose.
      taken: positions not to choose; those chosen are added.
      cumulative: from _cumulative_sizes.
      random: `numpy` is drawn from.

    Returns:
      The positions chosen, in the order of choice, and each n-gram's words.
    """
    chosen, sizes = [], []
    draw = random.numpy.random_sample
    for first in order:
        room = budget - len(chosen)
        if room <= 0:
            break
        size = bisect.bisect_right(cumulative, draw()) + 1
        ngram = words[first:first + size]
        length = sum(map(len, ngram))
        # At the end of the sequence an n-gram is shorter than its drawn size.
        while length > room and len(ngram) > 1:
            length -= len(ngram.pop())
        if length > room:
            continue
        positions = [position for word in ngram for position in word]
        if not taken.isdisjoint(positions):
            continue
        taken.update(positions)
        chosen += positions
        sizes.append(len(ngram))
    return chosen, sizes


def mask_sequence(
        tokens: Sequence[str], starts_word: Mapping[str, bool],
        vocabulary: Sequence[str], options: MaskingOptions,
        random: RandomSource) -> MaskedSequence:
    """Masks n-grams of a sequence (the release's create_masked_lm_predictions).

    Of the pieces chosen 80 % become [MASK], 10 % a random piece, 10 % stay;
    that is decided for each piece, not for each n-gram.

    Args:
      tokens: pieces, with [CLS] and [SEP].
      starts_word: piece → whether it starts a word.
      vocabulary: what random pieces are drawn from: the whole vocabulary,
        control symbols included, as in the release.
      options: what to mask.
      random: its generators go on from where they stand.
    """
    words, boundary = group_words(tokens, starts_word, options.do_whole_word_mask)
    output = list(tokens)
    budget = options.num_to_predict(len(tokens))
    if budget == 0:
        return MaskedSequence(output, boundary, [], [], [])
    cumulative = _cumulative_sizes(options.ngram, options.favor_shorter_ngram)
    order, taken = list(range(len(words))), set()
    random.python.shuffle(order)
    positions, sizes = _choose_ngrams(
        words, order, budget, taken, cumulative, random)
    for position in positions:
        output[position] = _replacement(tokens[position], vocabulary, random.python)
    # The release shuffles a second time also where nothing is permuted.
    random.python.shuffle(order)
    if options.do_permutation:
        permuted, _ = _choose_ngrams(words, order, budget, taken, cumulative, random)
        permuted.sort()
        sources = list(permuted)
        random.python.shuffle(sources)
        for position, source in zip(permuted, sources):
            output[position] = tokens[source]
        positions += permuted
    positions.sort()
    return MaskedSequence(
        output, boundary, positions, [tokens[p] for p in positions], sizes)


def _replacement(token: str, vocabulary: Sequence[str],
                 random: python_random.Random) -> str:
    if random.random() < 0.8:
        return MASK
    if random.random() < 0.5:
        return token
    return vocabulary[random.randint(0, len(vocabulary) - 1)]


class SpecialIds(NamedTuple):
    """Ids of [CLS], [SEP] and [MASK]."""

    cls: int
    sep: int
    mask: int
