"""Sequences `[CLS] a [SEP] b [SEP]`: put together, cut to size, padded; and which of
their tokens start a word.

One at a time for fine-tuning and for --reproduce_release, in lists of pieces or ids;
many at a time for data creation, in arrays.
"""

import random as python_random
from typing import NamedTuple, Optional, Sequence, TypeVar

import numpy as np

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
    """Puts one text or two, pieces or ids alike, between their special pieces.

        [CLS] a1 a2 a3 [SEP] b1 b2 [SEP]
          0    0  0  0   0    1  1   1      segment_ids
    """
    tokens = [cls, *first, sep]
    segment_ids = [0] * len(tokens)
    if second is not None:
        tokens += [*second, sep]
        segment_ids += [1] * (len(second) + 1)
    return Assembled(tokens, segment_ids)


class SequenceBatch(NamedTuple):
    """N sequences of at most S pieces, padded."""

    input_ids: np.ndarray  # int32 [N, S]
    starts_word: np.ndarray  # bool [N, S]; True for [CLS], [SEP], False in the padding
    segment_ids: np.ndarray  # uint8 [N, S]; 0 up to the first [SEP] and in the padding
    input_mask: np.ndarray  # uint8 [N, S]; 1 where there is a piece
    lengths: np.ndarray  # int64 [N]; pieces with [CLS] and [SEP]


def assemble_batch(
        plans: np.ndarray, codes_a: np.ndarray, codes_b: np.ndarray,
        max_seq_length: int, cls_id: int, sep_id: int, pad_id: int = 0
) -> SequenceBatch:
    """`assemble` and `pad_inputs` for many instances at a time.

        [CLS] a1 a2 [SEP] b1 [SEP] [PAD]     or     [CLS] a1 a2 [SEP] [PAD] [PAD]
          0   0  0    0   1    1     0                0   0  0    0     0     0

    `plans` [N] have the fields length_a and length_b; a length_b of 0 stands for an
    instance of one segment. `codes_a` are those of the pieces (id * 2 + starts_word) of
    all first segments, in the order of the plans, `codes_b` of all second ones.
    """
    length_a = plans["length_a"].astype(np.int64)
    length_b = plans["length_b"].astype(np.int64)
    for name, length, codes in (("first", length_a, codes_a),
                                ("second", length_b, codes_b)):
        if length.sum() != len(codes):
            raise ValueError(f"{len(codes)} pieces are given for {name} segments of "
                             f"{length.sum()}.")
    lengths = length_a + np.where(
        length_b > 0, length_b + NUM_SPECIAL_PAIR, NUM_SPECIAL_SINGLE)
    if lengths.max(initial=0) > max_seq_length:
        raise ValueError(f"instance {lengths.argmax()} of the batch has "
                         f"{lengths.max()} pieces; at most {max_seq_length} fit.")
    position = np.arange(max_seq_length, dtype=np.int32)
    first_end = (length_a + 1).astype(np.int32)[:, None]  # where the first [SEP] is
    in_first = (position <= first_end) & (position > 0)
    used = position < lengths.astype(np.int32)[:, None]
    in_second = used & (position > first_end)
    segment_ids = in_second.astype(np.uint8)
    # The last [SEP] is no position of the text; the first may be the last.
    rows = np.arange(len(plans))
    in_first[rows, length_a + 1] = False
    in_second[rows, lengths - 1] = False
    codes = np.full((len(plans), max_seq_length), 2 * pad_id, codes_a.dtype)
    codes[:, 0] = 2 * cls_id + 1
    codes[rows, length_a + 1] = codes[rows, lengths - 1] = 2 * sep_id + 1
    # Positions are filled row by row, from the left: the order of the pieces.
    codes[in_first] = codes_a
    codes[in_second] = codes_b
    return SequenceBatch(
        (codes >> 1).astype(np.int32), (codes & 1).astype(bool), segment_ids,
        used.astype(np.uint8), lengths)


def pad(values: Sequence[T], length: int, value=0) -> list[T]:
    """Appends `value` until there are `length` values."""
    if len(values) > length:
        raise ValueError(f"{len(values)} values do not fit into {length} places.")
    return [*values, *[value] * (length - len(values))]


def pad_inputs(ids: Sequence[int], segment_ids: Sequence[int],
               max_seq_length: int, pad_id: int = 0) -> dict[str, list[int]]:
    """The model's inputs, each of `max_seq_length` values: 0 in the padding, but for
    input_ids; input_mask is 1 where there is a piece."""
    return {
        "input_ids": pad(ids, max_seq_length, pad_id),
        "input_mask": pad([1] * len(ids), max_seq_length),
        "segment_ids": pad(segment_ids, max_seq_length),
    }


def truncate_longer_first(
        first: Sequence[T], second: Sequence[T], max_pieces: int
) -> tuple[list[T], list[T]]:
    """Drops pieces off the end of the longer text until both fit, special ones aside;
    of two equally long texts off the second (the release's _truncate_seq_pair of the
    GLUE tasks)."""
    # All but the shorter text's share is the longer one's; where neither fits
    # into half, both are cut to half and an odd piece goes to the first.
    half, odd = divmod(max(max_pieces, 0), 2)
    keep_first = max(half + odd, max_pieces - len(second))
    keep_second = max(half, max_pieces - len(first))
    return list(first[:keep_first]), list(second[:keep_second])


def truncate_at_random_ends(
        first: Sequence[T], second: Sequence[T], max_pieces: int,
        random: python_random.Random) -> tuple[list[T], list[T]]:
    """Drops pieces off the longer text, off its front or its back at random.

    Of two equally long texts the second loses one. One random number is drawn for each
    piece dropped. (The release's truncate_seq_pair of pretraining: "to add more
    randomness and avoid biases". `pretraining_data.plans` has it for many pairs.)
    """
    kept_first, kept_second = [0, len(first)], [0, len(second)]  # begin, end
    for _ in range(len(first) + len(second) - max_pieces):
        first_is_longer = (
            kept_first[1] - kept_first[0] > kept_second[1] - kept_second[0])
        longer = kept_first if first_is_longer else kept_second
        if random.random() < 0.5:
            longer[0] += 1
        else:
            longer[1] -= 1
    return list(first[slice(*kept_first)]), list(second[slice(*kept_second)])


# ---- windows ---------------------------------------------------------------


def window_spans(
        num_pieces: int, window: int, stride: int) -> list[tuple[int, int]]:
    """(begin, end) of windows of `window` pieces; the last one may be shorter."""
    spans = [(0, min(window, num_pieces))]
    while spans[-1][1] < num_pieces:
        begin = spans[-1][0] + min(window, stride)
        spans.append((begin, min(begin + window, num_pieces)))
    return spans


def max_context(spans: list[tuple[int, int]]) -> list[list[int]]:
    """Per window and piece, whether no other window shows more context around it.

    Context is the lesser number of pieces to the left and right, plus a hundredth of
    the window's length; of equal windows the first counts (the release's
    _check_is_max_context).
    """
    highest = np.full(spans[-1][1], -np.inf)
    best = np.zeros(spans[-1][1], int)
    for window, (begin, end) in enumerate(spans):
        piece = np.arange(begin, end)
        score = np.minimum(piece - begin, end - 1 - piece) + 0.01 * (end - begin)
        better = score > highest[begin:end]
        best[begin:end][better] = window
        highest[begin:end][better] = score[better]
    return [(best[first:last] == window).astype(int).tolist()
            for window, (first, last) in enumerate(spans)]


# ---- words -----------------------------------------------------------------

# Whole words are masked. SentencePiece marks a space before a token with "▁", WordPiece
# marks a token that continues a word with "##"; the original implementation has a rule
# of its own for SentencePiece.

_LATIN = frozenset("abcdefghijklmnopqrstuvwxyz")
# Without ' < = >: a piece that holds one of these always starts a word, whereas
# one of several others, such as "**", does not.
_PUNCTUATION = frozenset('!"#$%&()*+,-./:;?@[\\]^_`{|}~')


def _release(piece: str) -> bool:
    """The release's _is_start_piece_sp: true for a piece that begins with "▁" or "<",
    is a punctuation mark, or holds any character besides Latin letters and punctuation;
    so every piece of a non-Latin script, and every number, starts a word."""
    if piece.startswith(("▁", "<")) or piece in _PUNCTUATION:
        return True
    return not all(c.lower() in _LATIN or c.lower() in _PUNCTUATION for c in piece)


_RULES = {
    "release": _release,
    "sentencepiece": lambda piece: piece.startswith("▁"),
    # The release's _is_start_piece_bert.
    "wordpiece": lambda piece: not piece.startswith("##"),
}


class WordStarts(dict):
    """piece → whether it starts a word by a rule, "release", "sentencepiece" or
    "wordpiece"; each piece is looked at once.

        >>> starts = WordStarts("wordpiece")
        >>> starts["un"], starts["##aff"]
        (True, False)
    """

    def __init__(self, rule: str):
        super().__init__()
        self._rule = rule

    def __missing__(self, piece: str) -> bool:
        self[piece] = starts = _RULES[self._rule](piece)
        return starts
