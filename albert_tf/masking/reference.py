"""N-gram masking of one sequence at a time, with the same masks as the original.

`create_pretraining_data.py --reproduce_release` uses this module, and the two other
maskers, `batched` and `in_training`, are tested against it. The caller passes the random
generators. They are called in the same order as in the original's
create_masked_lm_predictions, so that equal generators give equal masks, bit for bit.
"""

import bisect
import dataclasses
import functools
import random as python_random
from typing import Mapping, NamedTuple, Sequence

import numpy as np

from albert_tf.masking.options import (
    CLS, MASK, MaskingOptions, REST_SHOWN_AS_ITSELF, SEP, SHOWN_AS_MASK,
    cumulative_ngram_probabilities)


@dataclasses.dataclass
class RandomSource:
    """The two random generators that the original uses to create instances."""

    python: python_random.Random
    numpy: np.random.RandomState  # only for the lengths of n-grams

    @classmethod
    def from_seed(cls, seed: int) -> "RandomSource":
        """Seeds both generators (the original does not seed NumPy's)."""
        return cls(python_random.Random(seed), np.random.RandomState(seed % 2**32))


class MaskedSequence(NamedTuple):
    """A sequence after masking."""

    pieces: list[str]  # the tokens that the model sees
    token_boundary: list[int]  # 1 for [CLS], [SEP] and where a word starts
    positions: list[int]  # masked and permuted positions, ascending
    labels: list[str]  # the tokens to predict there
    ngrams: list[int]  # number of words of each masked n-gram


def group_words(tokens: Sequence[str], starts_word: Mapping[str, bool],
                whole_words: bool) -> tuple[list[list[int]], list[int]]:
    """Groups the positions of a sequence into words. Also returns for each position 1
    if a word starts there or if it holds [CLS] or [SEP], else 0. A token that does not
    start a word belongs to the word before it, even if a [SEP] is between them, as in
    the original."""
    words, boundary = [], []
    for position, token in enumerate(tokens):
        # [CLS] and [SEP] are never masked, so they are in no word.
        if token == CLS or token == SEP:
            boundary.append(1)
            continue
        is_start = starts_word[token]
        boundary.append(int(is_start))
        if whole_words and words and not is_start:
            words[-1].append(position)
        else:
            words.append([position])
    return words, boundary


def choose_ngrams(
        words: Sequence[list[int]], order: Sequence[int], budget: int,
        used_positions: set[int], cumulative: Sequence[float], random: RandomSource
) -> tuple[list[int], list[int]]:
    """Chooses n-grams, visiting words in `order`, until `budget` tokens are chosen.
    Returns their positions, in the order of choice, and the number of words of each.

    `words` are the positions of each word's tokens; `used_positions`, to which the
    chosen ones are added, are not chosen. A length is drawn for each word visited, by
    the `cumulative` probabilities. An n-gram that exceeds the budget loses words at its
    end. If its first word is still too long, or if one of its tokens is already used, it
    is skipped.
    """
    positions, sizes = [], []
    draw = random.numpy.random_sample
    for start in order:
        room = budget - len(positions)
        if room <= 0:
            break
        # Draw how many words to mask, by P(n). Near the end of the sequence there may
        # be fewer.
        size = bisect.bisect_right(cumulative, draw()) + 1
        ngram = words[start:start + size]
        length = sum(map(len, ngram))
        # Shorten an n-gram that does not fit, or skip it: the next word may be shorter.
        while length > room and len(ngram) > 1:
            length -= len(ngram.pop())
        if length > room:
            continue
        # N-grams must not overlap, so skip one that touches an earlier one.
        ngram_positions = [position for word in ngram for position in word]
        if not used_positions.isdisjoint(ngram_positions):
            continue
        used_positions.update(ngram_positions)
        positions += ngram_positions
        sizes.append(len(ngram))
    return positions, sizes


@functools.lru_cache(maxsize=None)
def _budget(options: MaskingOptions, length: int) -> int:
    """Returns num_to_predict as an int."""
    return int(options.num_to_predict(length))


def mask_sequence(
        tokens: Sequence[str], starts_word: Mapping[str, bool],
        vocabulary: Sequence[str], options: MaskingOptions,
        random: RandomSource) -> MaskedSequence:
    """Masks n-grams of a sequence (the original's create_masked_lm_predictions).

        from albert_tf.tokenization.sequences import WordStarts
        mask_sequence("[CLS] ▁a ▁b [SEP] ▁c [SEP]".split(), WordStarts("release"),
                      tokenizer.convert_ids_to_tokens(range(tokenizer.vocab_size)),
                      MaskingOptions(), RandomSource.from_seed(1))

    Random tokens are drawn from the whole vocabulary, control symbols included, as in
    the original. The generators of `random` advance with each call.
    """
    # 1. Group tokens into words, and compute how many tokens to mask.
    words, boundary = group_words(tokens, starts_word, options.do_whole_word_mask)
    output = list(tokens)
    budget = _budget(options, len(tokens))
    if budget == 0:
        return MaskedSequence(output, boundary, [], [], [])
    # 2. Choose n-grams at random words, until the budget is used up.
    cumulative = cumulative_ngram_probabilities(options)
    order, used_positions = list(range(len(words))), set()
    random.python.shuffle(order)
    positions, sizes = choose_ngrams(
        words, order, budget, used_positions, cumulative, random)
    # 3. Replace each chosen token: mostly by [MASK], else by itself or a random token.
    for position in positions:
        if random.python.random() < SHOWN_AS_MASK:
            output[position] = MASK
        elif random.python.random() >= REST_SHOWN_AS_ITSELF:
            output[position] = vocabulary[random.python.randint(0, len(vocabulary) - 1)]
    # 4. The original shuffles again even if it permutes nothing. So do we, to draw the
    #    same random numbers from here on.
    random.python.shuffle(order)
    if options.do_permutation:
        # Further n-grams exchange their tokens, and are predicted as well.
        targets, _ = choose_ngrams(
            words, order, budget, used_positions, cumulative, random)
        targets.sort()
        sources = list(targets)
        random.python.shuffle(sources)
        for position, source in zip(targets, sources):
            output[position] = tokens[source]
        positions += targets
    positions.sort()
    return MaskedSequence(
        output, boundary, positions, [tokens[p] for p in positions], sizes)
