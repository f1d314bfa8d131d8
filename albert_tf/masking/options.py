"""What the three maskers share: options, special pieces, budget and odds.

ALBERT hides n-grams of whole words (section 4.1, after SpanBERT by Joshi et al.):
a single missing piece can often be guessed from the rest of its word or of a fixed
expression, "White House [MASK]"; a whole n-gram has to come from the context. With
P(n) in proportion to 1/n short n-grams are the most frequent, and each length hides
the same number of words on average, n · P(n).
"""

import dataclasses
import functools
from typing import NamedTuple, Sequence

import numpy as np

from albert_tf.errors import InputError

CLS, SEP, MASK = "[CLS]", "[SEP]", "[MASK]"

# A masked piece is shown as [MASK] in 80 % of cases, as itself in 10 %, as any piece
# of the vocabulary in 10 % (BERT, section 3.1: fine-tuning never sees [MASK], so
# pretraining must not rely on it). That is decided for each piece, not each n-gram.
SHOWN_AS_MASK = 0.8
REST_SHOWN_AS_ITSELF = 0.5  # of what is not shown as [MASK]


class SpecialIds(NamedTuple):
    """Ids of [CLS], [SEP] and [MASK]."""

    cls: int
    sep: int
    mask: int


@dataclasses.dataclass(frozen=True)
class MaskingOptions:
    """What to mask; fields are the flags of the release, with its defaults.

        >>> MaskingOptions(ngram=1).num_to_predict(np.array([64, 128]))
        array([10, 19])

    Attributes:
      max_predictions_per_seq: most pieces masked in one sequence.
      masked_lm_prob: share of a sequence's pieces to mask, special ones counted.
      ngram: longest n-gram, in words.
      favor_shorter_ngram: P(n) in proportion to 1/n; False reverses the odds.
      do_whole_word_mask: mask words whole; False takes each piece as a word.
      do_permutation: further n-grams change places among themselves, and are to be
        predicted too.
    """

    max_predictions_per_seq: int = 20
    masked_lm_prob: float = 0.15
    ngram: int = 3
    favor_shorter_ngram: bool = True
    do_whole_word_mask: bool = True
    do_permutation: bool = False

    def __post_init__(self):
        for name, most in (("max_predictions_per_seq", 2**31 - 1), ("ngram", 4096)):
            if not 1 <= getattr(self, name) <= most:
                raise InputError(f"--{name}={getattr(self, name)}: give a number of 1 "
                                 f"or more, at most {most}.")
        if not 0 <= self.masked_lm_prob <= 1:
            raise InputError(f"--masked_lm_prob={self.masked_lm_prob}: give a "
                             "probability between 0 and 1.")

    @property
    def num_prediction_slots(self) -> int:
        """Prediction slots of a record: twice as many with do_permutation."""
        return self.max_predictions_per_seq * (2 if self.do_permutation else 1)

    def num_to_predict(self, lengths: int | np.ndarray) -> np.ndarray:
        """The budget: pieces to mask in sequences of so many pieces, special ones
        counted, int64; halves are rounded to even, as by Python's round."""
        wanted = np.rint(np.asarray(lengths) * self.masked_lm_prob).astype(np.int64)
        return np.clip(wanted, int(self.masked_lm_prob > 0),
                       self.max_predictions_per_seq)


@functools.lru_cache
def cumulative_size_odds(options: MaskingOptions) -> tuple[float, ...]:
    """P(n-gram of at most n words), n = 1, ..., rounded as NumPy's choice does it."""
    weights = 1.0 / np.arange(1, options.ngram + 1)
    weights /= weights.sum(keepdims=True)
    if not options.favor_shorter_ngram:
        weights = weights[::-1]
    cumulative = (weights / weights.sum(keepdims=True)).cumsum()
    return tuple((cumulative / cumulative[-1]).tolist())


def thresholds(cumulative: Sequence[float]) -> list[int]:
    """Where draws, uniform over 0..2^32-1, cross over to the next of the outcomes."""
    return [round(odds * 2**32) for odds in cumulative[:-1]]


def size_thresholds(options: MaskingOptions) -> list[int]:
    """An n-gram has 1 + (how many of these are <= a draw of 32 bits) words."""
    return thresholds(cumulative_size_odds(options))


# Below the first a draw of 32 bits shows [MASK], below the second the piece itself.
SHOWN_THRESHOLDS = thresholds(
    [SHOWN_AS_MASK, SHOWN_AS_MASK + (1 - SHOWN_AS_MASK) * REST_SHOWN_AS_ITSELF, 1])
