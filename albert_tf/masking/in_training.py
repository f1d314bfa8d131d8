"""Masks batches with TensorFlow, for run_pretraining.py --dynamic_masking.

n-grams are chosen as in `reference`, but with different random numbers. As in RoBERTa, an
unmasked record gets new masks each time it is read. Everything runs in the input
pipeline, on any host and under XLA: shapes are static, no Python runs, and a loop over
visits to words handles all sequences in a batch at once.

Shapes: B batch, S tokens in a sequence, P predictions, N words in the longest n-gram. A
sequence has at most S words, so arrays over words have the size S too.
"""

from typing import Mapping

import numpy as np
import tensorflow as tf

from albert_tf.masking.batched import SHOWN_THRESHOLDS, thresholds
from albert_tf.masking.options import (
    MaskingOptions, SpecialIds, cumulative_ngram_probabilities)

_NEVER = np.iinfo(np.int32).max
_LEAST = -2**31  # of a draw, which is uniform over int32


class DynamicMasking:
    """Masks n-grams of words, as the random_map of RecordBatches.

        random_map = DynamicMasking(MaskingOptions(), SpecialIds(2, 3, 4), 128, 30000)
        RecordBatches(unmasked_spec(spec), infos, None, random_map=random_map, ...)

    `options` must not have do_permutation. Random tokens are from the whole vocabulary.
    """

    draws_per_token = 4

    def __init__(self, options: MaskingOptions, special_ids: SpecialIds,
                 max_seq_length: int, vocab_size: int):
        self.num_draws = self.draws_per_token * max_seq_length
        self._options, self._special_ids = options, special_ids
        self._length, self._vocab_size = max_seq_length, vocab_size
        # The number of tokens to mask, by the length of the sequence.
        self._budgets = options.num_to_predict(
            np.arange(max_seq_length + 1)).astype(np.int32)

    def __call__(self, features: Mapping[str, tf.Tensor],
                 draws: tf.Tensor) -> dict[str, tf.Tensor]:
        """Masks `input_ids`, with `input_mask` and `token_boundary` int32 [B, S].

        `draws` are int32 [B, num_draws], uniform over all int32: for each of S words
        its rank in the order of the visits and the size of the n-gram that begins
        there, then for each of S tokens the kind of its replacement if it is masked,
        and the random token. Returns the features with those of `predictions`.
        """
        ids = features["input_ids"]
        places, sizes, fates, pieces = self.draws_of_tokens(draws)
        masked = self.visits(features, places, sizes) > 0
        return {**self.predictions(features, masked), "input_ids": tf.where(
            masked, self._replacements(ids, fates, pieces), ids)}

    def draws_of_tokens(self, draws) -> list[tf.Tensor]:
        """Splits draws [B, n · S] into n tensors [B, S]."""
        return tf.unstack(tf.reshape(
            draws, [-1, self.draws_per_token, self._length]), axis=1)

    def predictions(self, features, chosen) -> dict[str, tf.Tensor]:
        """Returns `features` without `token_boundary`, and with the chosen tokens, bool
        [B, S], in slots [B, P]: ascending positions, ids and weights, then zeros."""
        wanted = self._options.max_predictions_per_seq
        # Chosen tokens get values that count down from S to 1, the others get 0. The
        # largest values are therefore the first positions.
        values = tf.where(chosen, self._length - tf.range(self._length), 0)
        values = tf.math.top_k(values, k=min(wanted, self._length)).values
        values = tf.pad(values, [[0, 0], [0, max(wanted - self._length, 0)]])
        weights = tf.cast(values > 0, tf.int32)
        positions = weights * (self._length - values)
        ids = tf.gather(features["input_ids"], positions, batch_dims=1)
        return {
            **{name: value for name, value in features.items()
               if name != "token_boundary"},
            "masked_lm_positions": positions, "masked_lm_ids": weights * ids,
            "masked_lm_weights": tf.cast(weights, tf.float32)}

    def visits(self, features, places, sizes) -> tf.Tensor:
        """Chooses the tokens to predict as reference.choose_ngrams does; returns the
        number, from 1, of the visit that chose each token, else 0: int32 [B, S]."""
        ids = features["input_ids"]
        filled = features["input_mask"] > 0
        special = self._special_ids
        inside = filled & (ids != special.cls) & (ids != special.sep)
        rank = tf.cumsum(tf.cast(inside, tf.int32), axis=1)  # from 1
        starts = inside
        if self._options.do_whole_word_mask:
            # A token that does not start a word belongs to the word before it, even if
            # a [SEP] is between them. The very first token always starts a word.
            starts &= (features["token_boundary"] > 0) | (rank == 1)
        word = tf.cumsum(tf.cast(starts, tf.int32), axis=1)  # [B, S], from 1
        num_words = word[:, -1:]
        word = tf.maximum(word - 1, 0)
        batch, numbers = tf.shape(ids)[0], tf.range(self._length)
        rows = word + self._length * tf.range(batch)[:, tf.newaxis]
        word_lengths = tf.reshape(tf.math.unsorted_segment_sum(
            tf.cast(inside, tf.int32), rows, batch * self._length), tf.shape(ids))
        # The sort is stable, so ties go to the earlier word; unused entries come last.
        order = tf.argsort(
            tf.where(numbers < num_words, places, _NEVER), axis=1, stable=True)
        limits = thresholds(cumulative_ngram_probabilities(self._options))
        sizes = 1 + sum(tf.cast(sizes >= limit + _LEAST, tf.int32) for limit in limits)
        length = tf.reduce_sum(tf.cast(filled, tf.int32), axis=1)
        taken = _take_ngrams(
            _ngram_lengths(word_lengths, num_words, sizes, self._options.ngram),
            order, tf.gather(self._budgets, length))
        return tf.where(inside, tf.gather(taken, word, batch_dims=1), 0)

    def _replacements(self, ids, fates, pieces):
        """Returns the replacement of each token if it is masked, int32 [B, S]."""
        to_mask, to_same = (limit + _LEAST for limit in SHOWN_THRESHOLDS)
        # Scale a draw of 32 bits to the size of the vocabulary.
        any_piece = (tf.cast(pieces, tf.int64) - _LEAST) * self._vocab_size // 2**32
        return tf.where(
            fates < to_mask, self._special_ids.mask,
            tf.where(fates < to_same, ids, tf.cast(any_piece, tf.int32)))


def _ngram_lengths(word_lengths, num_words, sizes, ngram: int) -> tf.Tensor:
    """Returns the tokens in the first 1, ..., N words of each n-gram: int32 [B, S, N],
    ascending, and too many for any budget beyond the n-gram and the sequence.
    `word_lengths` and `sizes` are [B, S], `num_words` [B, 1]."""
    length = word_lengths.shape[1]
    numbers = tf.range(length)
    ends = tf.cumsum(word_lengths, axis=1)
    begins = ends - word_lengths
    ends = tf.pad(ends, [[0, 0], [0, ngram - 1]])
    return tf.stack([
        tf.where((sizes > more) & (numbers + more < num_words),
                 ends[:, more:more + length] - begins, _NEVER)
        for more in range(ngram)], axis=2)


def _take_ngrams(lengths, order, budgets) -> tf.Tensor:
    """Visits words until each sequence's budget, [B], is used up; returns for each word
    the number of the visit that took it, from 1, else 0: int32 [B, S].

    An n-gram that exceeds the budget loses words at its end. It is skipped if it still
    does, or if it touches a taken word. `lengths` is the result of _ngram_lengths,
    `order` the words in the order of their visits, [B, S].
    """
    length, ngram = lengths.shape[1:]
    # Visits become the first dimension, so that each iteration reads one row.
    lengths = tf.transpose(tf.gather(lengths, order, batch_dims=1), [1, 0, 2])
    order = tf.transpose(order)
    num_visits = tf.reduce_max(tf.reduce_sum(
        tf.cast(lengths[:, :, 0] < _NEVER, tf.int32), axis=0))
    # n-grams at the end of a sequence extend beyond it.
    numbers = tf.range(length + ngram - 1)
    taken = tf.zeros([tf.shape(budgets)[0], length + ngram - 1], tf.int32)

    def visit(number, room, taken):
        first = order[number][:, tf.newaxis]  # [B, 1]
        fits = lengths[number] <= room[:, tf.newaxis]  # [B, N], true then false
        touched = tf.gather(taken, first + tf.range(ngram), batch_dims=1) > 0
        free = tf.logical_not(tf.reduce_any(touched & fits, axis=1, keepdims=True))
        chosen = fits & free
        room -= tf.reduce_max(tf.where(chosen, lengths[number], 0), axis=1)
        end = first + tf.reduce_sum(tf.cast(chosen, tf.int32), axis=1, keepdims=True)
        taken = tf.where((numbers >= first) & (numbers < end), number + 1, taken)
        return number + 1, room, taken

    _, _, taken = tf.while_loop(
        lambda number, room, _: (number < num_visits) & tf.reduce_any(room > 0),
        visit, (tf.constant(0), budgets, taken))
    return taken[:, :length]
