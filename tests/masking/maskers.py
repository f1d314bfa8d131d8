"""Sequences for the three maskers, and what to mask."""

import itertools
import random

import numpy as np

from albert_tf import keyed_random
from albert_tf.masking import batched, options as masking_options, reference
from albert_tf.masking.options import MaskingOptions, SpecialIds

IDS = SpecialIds(cls=1, sep=2, mask=3)
STARTS, FOLLOWS = range(4, 50), range(50, 90)
VOCABULARY = ["<pad>", masking_options.CLS, masking_options.SEP, masking_options.MASK,
              *(f"s{i}" for i in STARTS), *(f"f{i}" for i in FOLLOWS)]
IS_START = {piece: not piece.startswith("f") for piece in VOCABULARY}
ID_OF = {piece: i for i, piece in enumerate(VOCABULARY)}

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
        pieces.insert(place, IDS.sep)
    return [IDS.cls, *pieces, IDS.sep]


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
    [IDS.cls, IDS.sep], [IDS.cls, IDS.sep, IDS.sep], row_of(1), row_of(2), row_of(30),
    row_of(1, 1), row_of(2, seps=[1]), row_of(1, 3, seps=[2]), row_of(5, 1, 5),
    row_of(*[2] * 20), row_of(*[4] * 10), row_of(1, *[9] * 6), row_of(*[1] * 60),
    row_of(1, 2, 3, first_follows=True), row_of(3, 3, seps=[3, 3, 6])]


def words_of(row, options):
    """Positions of each word's pieces, and token_boundary."""
    return reference.group_words(
        [VOCABULARY[i] for i in row], IS_START, options.do_whole_word_mask)


def in_batch(rows, width=None):
    """input_ids, starts_word and lengths of rows; zeros behind their ends."""
    lengths = np.array([len(row) for row in rows])
    ids = np.zeros((len(rows), width or max(lengths)), np.int32)
    for place, row in zip(ids, rows):
        place[:len(row)] = row
    return ids, np.isin(ids, STARTS), lengths


def keys_of(count, seed=0):
    return keyed_random.keys_of(seed, 4, np.arange(count))


def mask_batch(rows, options, keys=None, width=None, special_ids=IDS,
               vocab_size=len(VOCABULARY)):
    return batched.mask_batch(
        *in_batch(rows, width), keys_of(len(rows)) if keys is None else keys, options,
        special_ids, vocab_size)


def positions_of(batch, row):
    return batch.masked_lm_positions[row, :batch.num_masked[row]].tolist()


def features(rows, length=None):
    """A batch of unmasked records, as tensors."""
    import tensorflow as tf

    ids, starts, lengths = in_batch(rows, length)
    inside = np.arange(ids.shape[1]) < lengths[:, None]
    # Special pieces start words.
    boundary = (starts | (ids == IDS.cls) | (ids == IDS.sep)) & inside
    ids, inside, boundary = (
        tf.constant(values.astype(np.int32)) for values in (ids, inside, boundary))
    return {"input_ids": ids, "input_mask": inside, "token_boundary": boundary,
            "segment_ids": inside}
