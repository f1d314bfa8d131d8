"""The release's masker: one sequence at a time, the same masks bit for bit.

Used by create_pretraining_data.py --reproduce_release, and the standard that the other
two are tested against: `batched` draws for many sequences in NumPy, `in_training` in
TensorFlow. The random source comes as an argument and is called in the order in which
the release's create_masked_lm_predictions calls its own, so that the same generators
give the same masks.
"""

import bisect
import dataclasses
import functools
import random as python_random
from typing import Mapping, NamedTuple, Sequence

import numpy as np

from albert_tf.masking.options import (
    CLS, MASK, MaskingOptions, REST_SHOWN_AS_ITSELF, SEP, SHOWN_AS_MASK,
    cumulative_size_odds)


@dataclasses.dataclass
class RandomSource:
    """The two generators that the release draws instances from."""

    python: python_random.Random
    numpy: np.random.RandomState  # the sizes of n-grams alone

    @classmethod
    def from_seed(cls, seed: int) -> "RandomSource":
        """Both generators from one seed (the release left NumPy's unseeded)."""
        return cls(python_random.Random(seed), np.random.RandomState(seed % 2**32))


class MaskedSequence(NamedTuple):
    """A sequence after masking."""

    pieces: list[str]  # as shown
    token_boundary: list[int]  # 1 for [CLS], [SEP] and where a word starts
    positions: list[int]  # masked and permuted positions, ascending
    labels: list[str]  # the pieces that stood there
    ngrams: list[int]  # number of words of each masked n-gram


def group_words(pieces: Sequence[str], starts_word: Mapping[str, bool],
                whole_words: bool) -> tuple[list[list[int]], list[int]]:
    """Words of a sequence, each the positions of its pieces without [CLS] and [SEP];
    and for each position 1 for [CLS], [SEP] and word starts, else 0.

    A piece that starts no word belongs to the word before it, also where a [SEP] lies
    between them, as in the release.
    """
    words, boundary = [], []
    for position, piece in enumerate(pieces):
        if piece == CLS or piece == SEP:
            boundary.append(1)
            continue
        starts = starts_word[piece]
        boundary.append(int(starts))
        if whole_words and words and not starts:
            words[-1].append(position)
        else:
            words.append([position])
    return words, boundary


def choose_ngrams(
        words: Sequence[list[int]], order: Sequence[int], budget: int, taken: set[int],
        size_odds: Sequence[float], random: RandomSource
) -> tuple[list[int], list[int]]:
    """Takes n-grams in the given order until the budget of pieces is spent; returns the
    positions chosen, in the order of choice, and each n-gram's words.

    A size is drawn for each word visited, also for one that is taken already. An n-gram
    that exceeds the budget loses words at its end; one that still does, or touches a
    taken piece, is passed over.

    Args:
      words: positions of each word's pieces.
      order: the words at which n-grams begin, in the order of the visit.
      budget: most positions to choose.
      taken: positions not to choose; those chosen are added.
      size_odds: of options.cumulative_size_odds.
      random: `numpy` is drawn from.
    """
    chosen, sizes = [], []
    draw = random.numpy.random_sample
    for first in order:
        room = budget - len(chosen)
        if room <= 0:
            break
        # How many words: by the odds of n-gram sizes, 1/n unless options say otherwise.
        size = bisect.bisect_right(size_odds, draw()) + 1
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


@functools.lru_cache(maxsize=None)
def _budget(options: MaskingOptions, length: int) -> int:
    return int(options.num_to_predict(length))


def mask_sequence(
        pieces: Sequence[str], starts_word: Mapping[str, bool],
        vocabulary: Sequence[str], options: MaskingOptions,
        random: RandomSource) -> MaskedSequence:
    """Masks n-grams of a sequence (the release's create_masked_lm_predictions).

        from albert_tf.tokenization.sequences import WordStarts
        mask_sequence("[CLS] ▁a ▁b [SEP] ▁c [SEP]".split(), WordStarts("release"),
                      tokenizer.convert_ids_to_tokens(range(tokenizer.vocab_size)),
                      MaskingOptions(), RandomSource.from_seed(1))

    Random pieces are drawn from the whole vocabulary, control symbols included, as in
    the release. The generators of `random` continue from where they stand.
    """
    # 1. Tokens into words, and how many tokens are to be predicted.
    words, boundary = group_words(pieces, starts_word, options.do_whole_word_mask)
    output = list(pieces)
    budget = _budget(options, len(pieces))
    if budget == 0:
        return MaskedSequence(output, boundary, [], [], [])
    # 2. N-grams at random words, until the budget is spent.
    size_odds = cumulative_size_odds(options)
    order, taken = list(range(len(words))), set()
    random.python.shuffle(order)
    positions, sizes = choose_ngrams(words, order, budget, taken, size_odds, random)
    # 3. What stands in their place: mostly [MASK], else the token or a random one.
    for position in positions:
        output[position] = _replacement(pieces[position], vocabulary, random.python)
    # The release shuffles a second time also where nothing is permuted.
    random.python.shuffle(order)
    if options.do_permutation:
        permuted, _ = choose_ngrams(words, order, budget, taken, size_odds, random)
        permuted.sort()
        sources = list(permuted)
        random.python.shuffle(sources)
        for position, source in zip(permuted, sources):
            output[position] = pieces[source]
        positions += permuted
    positions.sort()
    return MaskedSequence(
        output, boundary, positions, [pieces[p] for p in positions], sizes)


def _replacement(piece: str, vocabulary: Sequence[str],
                 random: python_random.Random) -> str:
    if random.random() < SHOWN_AS_MASK:
        return MASK
    if random.random() < REST_SHOWN_AS_ITSELF:
        return piece
    return vocabulary[random.randint(0, len(vocabulary) - 1)]
