"""One sequence of two texts: `[CLS] a [SEP] b [SEP]`, cut to size and padded.

Every task builds its inputs here. Functions take pieces or ids alike, and
return new lists.
"""

import random as python_random
from typing import NamedTuple, Optional, Sequence, TypeVar

T = TypeVar("T")

# What [CLS] and two [SEP] take away from max_seq_length.
NUM_SPECIAL_SINGLE = 2
NUM_SPECIAL_PAIR = 3


class Assembled(NamedTuple):
    """A sequence and the segment of each position; both lists have one length."""

    tokens: list
    segment_ids: list[int]


def assemble(first: Sequence[T], second: Optional[Sequence[T]], cls: T,
             sep: T) -> Assembled:
    """Puts one or two texts between their special tokens.

        [CLS] a1 a2 a3 [SEP] b1 b2 [SEP]
          0    0  0  0   0    1  1   1      segment_ids

    Args:
      first: pieces or ids of the first text.
      second: those of the second; None for a sequence of one text.
      cls: [CLS], as a piece or as an id, like the texts.
      sep: [SEP], likewise.
    """
    tokens = [cls, *first, sep]
    segment_ids = [0] * len(tokens)
    if second is not None:
        tokens += [*second, sep]
        segment_ids += [1] * (len(second) + 1)
    return Assembled(tokens, segment_ids)


def pad(values: Sequence[T], length: int, value=0) -> list[T]:
    """Appends `value` until there are `length` values.

    Raises:
      ValueError: if there are more than that already.
    """
    if len(values) > length:
        raise ValueError(f"{len(values)} values do not fit into {length} places.")
    return [*values, *[value] * (length - len(values))]


def pad_inputs(ids: Sequence[int], segment_ids: Sequence[int],
               max_seq_length: int, pad_id: int = 0) -> dict[str, list[int]]:
    """The model's inputs, each of `max_seq_length` values.

    Returns:
      input_ids; input_mask, 1 where there is a token; segment_ids, 0 in the
      padding.

    Raises:
      ValueError: if the sequence is longer than that.
    """
    return {
        "input_ids": pad(ids, max_seq_length, pad_id),
        "input_mask": pad([1] * len(ids), max_seq_length),
        "segment_ids": pad(segment_ids, max_seq_length),
    }


def truncate_longer_first(
        first: Sequence[T], second: Sequence[T], max_tokens: int
) -> tuple[list[T], list[T]]:
    """Drops tokens off the end of the longer text until both fit.

    Of two equally long texts the second loses one. (The release's
    _truncate_seq_pair of the GLUE tasks.)

    Args:
      first: pieces or ids of the first text.
      second: those of the second.
      max_tokens: of both together, special tokens not counted.
    """
    # All but the shorter text's share is the longer one's; where neither fits
    # into half, both are cut to half and an odd token goes to the first.
    half, odd = divmod(max(max_tokens, 0), 2)
    keep_first = max(half + odd, max_tokens - len(second))
    keep_second = max(half, max_tokens - len(first))
    return list(first[:keep_first]), list(second[:keep_second])


def truncate_at_random_ends(
        first: Sequence[T], second: Sequence[T], max_tokens: int,
        random: python_random.Random) -> tuple[list[T], list[T]]:
    """Drops tokens off the longer text, off its front or its back at random.

    Of two equally long texts the second loses one. One random number is drawn
    for each token dropped. (The release's truncate_seq_pair of pretraining.)

    Args:
      first: pieces or ids of the first text.
      second: those of the second.
      max_tokens: of both together, special tokens not counted.
      random: where the ends are drawn from.
    """
    kept_first, kept_second = [0, len(first)], [0, len(second)]  # begin, end
    for _ in range(len(first) + len(second) - max_tokens):
        first_is_longer = (
            kept_first[1] - kept_first[0] > kept_second[1] - kept_second[0])
        longer = kept_first if first_is_longer else kept_second
        if random.random() < 0.5:
            longer[0] += 1
        else:
            longer[1] -= 1
    return list(first[slice(*kept_first)]), list(second[slice(*kept_second)])
