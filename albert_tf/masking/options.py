"""Shared by the three maskers: options, special tokens, how much is masked, and the
probabilities.

ALBERT masks n-grams of whole words (section 4.1 of the paper, after SpanBERT by Joshi
et al.). A single masked token can often be guessed from the rest of its word or of a
fixed expression, as in "the White [MASK]"; a whole n-gram has to be predicted from the
context. P(n) is proportional to 1/n, so that every length would contribute the same number
of masked words, n · P(n), if none were shortened to what is left to mask.
"""

import dataclasses
import functools
from typing import NamedTuple

import numpy as np

from albert_tf.errors import InputError
from albert_tf.options import check, option

CLS, SEP, MASK = "[CLS]", "[SEP]", "[MASK]"

# A masked token is replaced by [MASK] in 80 % of cases, left as it is in 10 %, and
# replaced by a random token in 10 % (BERT, section 3.1: fine-tuning never sees [MASK],
# so pretraining must not rely on it). This is decided for each token, not each n-gram.
SHOWN_AS_MASK = 0.8
REST_SHOWN_AS_ITSELF = 0.5  # of the tokens that are not replaced by [MASK]


class SpecialIds(NamedTuple):
    """Ids of [CLS], [SEP] and [MASK]."""

    cls: int
    sep: int
    mask: int


@dataclasses.dataclass(frozen=True)
class MaskingOptions:
    """How to mask a sequence; the fields are the original's flags, with its defaults.

        >>> MaskingOptions(ngram=1).num_to_predict(np.array([64, 128]))
        array([10, 19])
    """

    max_predictions_per_seq: int = option(
        20, "Maximum number of masked tokens in a sequence.", least=1,
        needs="masked_lm_prob")
    masked_lm_prob: float = option(
        0.15, "Fraction of a sequence's tokens to mask; [CLS] and [SEP] count. 0 writes "
        "unmasked records with token_boundary, which are masked during training.", most=1)
    ngram: int = option(
        3, "Maximum number of words in an n-gram that is masked together.", least=1,
        most=4096, needs="masked_lm_prob")
    favor_shorter_ngram: bool = option(
        True, "Draw n-gram sizes with probability proportional to 1/n, so that short "
        "n-grams are more frequent. If false, long ones are.", needs="masked_lm_prob")
    do_whole_word_mask: bool = option(
        True, "Mask whole words. If false, each token counts as a word.")
    do_permutation: bool = option(
        False, "Also permute the tokens of further n-grams among themselves, and predict "
        "what stood there. This doubles the prediction slots of a record: pretrain with "
        "twice this --max_predictions_per_seq.")

    def __post_init__(self):
        check(self)
        if self.do_permutation and not self.masked_lm_prob:
            raise InputError(
                "--do_permutation permutes as many tokens as are masked, but "
                "--masked_lm_prob=0 masks none; leave one of the two out.")

    @property
    def num_prediction_slots(self) -> int:
        """Number of predictions that fit into a record; doubled with do_permutation."""
        return self.max_predictions_per_seq * (2 if self.do_permutation else 1)

    def num_to_predict(self, lengths: int | np.ndarray) -> np.ndarray:
        """Returns how many tokens to mask in sequences of these lengths, in which [CLS]
        and [SEP] count: int64. Halves are rounded to even, as by Python's round."""
        counts = np.rint(np.asarray(lengths) * self.masked_lm_prob).astype(np.int64)
        # Short sequences get one masked token at least, long ones not too many.
        return np.clip(counts, int(self.masked_lm_prob > 0),
                       self.max_predictions_per_seq)


@functools.lru_cache
def cumulative_ngram_probabilities(options: MaskingOptions) -> tuple[float, ...]:
    """Returns P(an n-gram has at most n words) for n = 1, 2, ..."""
    weights = 1.0 / np.arange(1, options.ngram + 1)
    weights /= weights.sum(keepdims=True)
    if not options.favor_shorter_ngram:
        weights = weights[::-1]
    # The original divides once more, and NumPy's `choice`, which it calls, a third
    # time: we do the same, so that even the last bit is equal.
    cumulative = (weights / weights.sum(keepdims=True)).cumsum()
    return tuple((cumulative / cumulative[-1]).tolist())
