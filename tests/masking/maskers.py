"""The three maskers behind one call, sequences for them, and what to mask."""

import collections
import itertools
import random
from typing import NamedTuple

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


def runs(positions):
    """Lengths of the runs of neighbouring positions."""
    groups = itertools.groupby(enumerate(positions), lambda pair: pair[1] - pair[0])
    return [len(list(group)) for _, group in groups]


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


class Masked(NamedTuple):
    """A sequence after masking, whichever masker did it."""

    shown: list[int]
    positions: list[int]
    labels: list[int]


def _reference(rows, options, seed, mask_id, vocab_size):
    vocabulary = [masking_options.MASK if i == mask_id else piece
                  for i, piece in enumerate(VOCABULARY[:vocab_size])]
    source = reference.RandomSource.from_seed(seed)
    ids = {**ID_OF, masking_options.MASK: mask_id}
    ngrams, masked = collections.Counter(), []
    for row in rows:
        given = [VOCABULARY[i] for i in row]
        made = reference.mask_sequence(given, IS_START, vocabulary, options, source)
        assert given == [VOCABULARY[i] for i in row]
        assert made.token_boundary == words_of(row, options)[1]
        ngrams.update(made.ngrams)
        masked.append(Masked([ids[piece] for piece in made.pieces], made.positions,
                             [ids[piece] for piece in made.labels]))
    return masked, ngrams


def _batched(rows, options, seed, mask_id, vocab_size):
    made = mask_batch(rows, options, keys_of(len(rows), seed), None,
                      IDS._replace(mask=mask_id), vocab_size)
    slots = (len(rows), options.num_prediction_slots)
    assert made.masked_lm_positions.shape == made.masked_lm_ids.shape == slots
    assert {made.input_ids.dtype, made.masked_lm_positions.dtype,
            made.masked_lm_ids.dtype} == {np.dtype(np.int32)}
    empty = np.arange(slots[1]) >= made.num_masked[:, None]
    assert not made.masked_lm_positions[empty].any()
    assert not made.masked_lm_ids[empty].any()
    # Behind the end of a row all stays as it is.
    for row, shown, boundary in zip(rows, made.input_ids, made.token_boundary):
        assert not shown[len(row):].any() and not boundary[len(row):].any()
        assert boundary[:len(row)].tolist() == words_of(row, options)[1]
    masked = [Masked(made.input_ids[i, :len(row)].tolist(), positions_of(made, i),
                     made.masked_lm_ids[i, :made.num_masked[i]].tolist())
              for i, row in enumerate(rows)]
    shown = [0 if row.shown[at] == mask_id else 1 if row.shown[at] == label else 2
             for row in masked for at, label in zip(row.positions, row.labels)]
    assert made.shown.tolist() == np.bincount(shown, minlength=3).tolist()
    return masked, dict(enumerate(made.ngram_words.tolist()))


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


def masked_rows(rows, found):
    """Masked sequences from what DynamicMasking made of them."""
    found = {name: values.numpy() for name, values in found.items()}
    masked = []
    for i, row in enumerate(rows):
        count = int(found["masked_lm_weights"][i].sum())
        for name in ("positions", "ids", "weights"):
            assert not found[f"masked_lm_{name}"][i, count:].any()
        masked.append(Masked(
            found["input_ids"][i, :len(row)].tolist(),
            found["masked_lm_positions"][i, :count].tolist(),
            found["masked_lm_ids"][i, :count].tolist()))
    return masked


def _in_training(rows, options, seed, mask_id, vocab_size):
    import tensorflow as tf

    from albert_tf.masking.in_training import DynamicMasking

    batch = features(rows)
    mask = DynamicMasking(options, IDS._replace(mask=mask_id),
                          batch["input_ids"].shape[1], vocab_size)
    draws = np.random.default_rng(seed).integers(
        -2**31, 2**31, (len(rows), mask.num_draws)).astype(np.int32)
    found = mask(batch, tf.constant(draws))
    slots = (len(rows), options.max_predictions_per_seq)
    assert "token_boundary" not in found
    for name, values in found.items():
        weights = name == "masked_lm_weights"
        assert values.dtype == (tf.float32 if weights else tf.int32)
        assert not name.startswith("masked_lm") or values.shape == slots
    assert not found["input_ids"].numpy()[batch["input_mask"].numpy() == 0].any()
    return masked_rows(rows, found), None


def mask(masker, rows, options, seed=0, mask_id=IDS.mask, vocab_size=len(VOCABULARY)):
    """Masked sequences, and how many n-grams of each number of words, if known."""
    made = {"reference": _reference, "batched": _batched, "in_training": _in_training}
    return made[masker](rows, options, seed, mask_id, vocab_size)


# (masker, name of options), whatever the masker can do.
CASES = [(masker, name) for masker in ("reference", "batched", "in_training")
         for name in OPTIONS
         if masker != "in_training" or not OPTIONS[name].do_permutation]
