"""Assembles, cuts and pads sequences `[CLS] a [SEP] b [SEP]`, and finds word starts:
one at a time in lists, and for data creation many in arrays."""

import numbers
import random as python_random
from typing import Any, Mapping, NamedTuple, Optional, Sequence, TypeVar

import numpy as np

from albert_tf.errors import InputError

T = TypeVar("T")

# The number of special tokens in a sequence with one text and with two.
NUM_SPECIAL_SINGLE = 2
NUM_SPECIAL_PAIR = 3


def check_length(max_length: Any, option: str = "--max_seq_length=") -> None:
    """Raises InputError for a maximum length that leaves no token for text."""
    if not isinstance(max_length, numbers.Integral) or max_length <= NUM_SPECIAL_PAIR:
        raise InputError(f"{option}{max_length!r:.40} leaves no room for text beside "
                         f"{NUM_SPECIAL_PAIR} special tokens; give a whole number, such as 128.")


def assemble(first: Sequence[T], second: Optional[Sequence[T]], cls: T,
             sep: T) -> tuple[list[T], list[int]]:
    """Puts special tokens around one or two texts, which are tokens or ids; returns the
    sequence and the segment of each position.

        [CLS] a1 a2 a3 [SEP] b1 b2 [SEP]
          0    0  0  0   0    1  1   1      segment_ids
    """
    tokens = [cls, *first, sep]
    segment_ids = [0] * len(tokens)
    if second is not None:
        tokens += [*second, sep]
        segment_ids += [1] * (len(second) + 1)
    return tokens, segment_ids


class SequenceBatch(NamedTuple):
    """N sequences of at most S tokens, padded."""

    input_ids: np.ndarray  # int32 [N, S]
    starts_word: np.ndarray  # bool [N, S]; True for [CLS], [SEP], False in the padding
    segment_ids: np.ndarray  # uint8 [N, S]; 0 up to the first [SEP] and in the padding
    input_mask: np.ndarray  # uint8 [N, S]; 1 for tokens, 0 in the padding
    lengths: np.ndarray  # int64 [N]; number of tokens with [CLS] and [SEP]


def assemble_batch(
        plans: np.ndarray, codes_a: np.ndarray, codes_b: np.ndarray,
        max_seq_length: int, cls_id: int, sep_id: int, pad_id: int = 0
) -> SequenceBatch:
    """Assembles and pads many instances at a time, as `assemble` and `pad_inputs` do.

    `plans` [N] have the fields length_a and length_b; a length_b of 0 means an instance
    with one segment. `codes_a` are the token codes (id * 2 + starts_word) of all first
    segments, in the order of the plans, `codes_b` those of all second segments.
    """
    length_a = plans["length_a"].astype(np.int64)
    length_b = plans["length_b"].astype(np.int64)
    lengths = length_a + np.where(
        length_b > 0, length_b + NUM_SPECIAL_PAIR, NUM_SPECIAL_SINGLE)
    position = np.arange(max_seq_length, dtype=np.int32)
    first_end = (length_a + 1).astype(np.int32)[:, None]  # position of the first [SEP]
    last = (lengths - 1).astype(np.int32)[:, None]  # position of the last [SEP]
    in_first = (position < first_end) & (position > 0)
    in_second = (position < last) & (position > first_end)
    used = position <= last
    segment_ids = (used & (position > first_end)).astype(np.uint8)
    rows = np.arange(len(plans))
    codes = np.full((len(plans), max_seq_length), 2 * pad_id, codes_a.dtype)
    codes[:, 0] = 2 * cls_id + 1
    codes[rows, length_a + 1] = codes[rows, lengths - 1] = 2 * sep_id + 1
    # Positions are filled row by row from the left, which is the order of the codes.
    codes[in_first] = codes_a
    codes[in_second] = codes_b
    return SequenceBatch(
        (codes >> 1).astype(np.int32), (codes & 1).astype(bool), segment_ids,
        used.astype(np.uint8), lengths)


def pad(values: Sequence[T], length: int, value=0) -> list[T]:
    """Appends `value` until there are `length` values."""
    return [*values, *[value] * (length - len(values))]


def pad_inputs(inputs: Mapping[str, Sequence[int]], length: int, pad_id: int = 0
               ) -> dict[str, list[int]]:
    """Returns the model's inputs (FullTokenizer.assembled), each padded."""
    return {name: pad(values, length, pad_id if name == "input_ids" else 0)
            for name, values in inputs.items()}


def truncate_longer_first(
        first: Sequence[T], second: Sequence[T], max_pieces: int
) -> tuple[list[T], list[T]]:
    """Removes tokens from the end of the longer text, of equal ones the second, until
    both fit into `max_pieces` without special tokens (_truncate_seq_pair for GLUE in the
    original implementation)."""
    # The longer text gets what the shorter one leaves. If both are longer than half,
    # each is cut to half, and an odd token goes to the first.
    half, odd = divmod(max(max_pieces, 0), 2)
    keep_first = max(half + odd, max_pieces - len(second))
    keep_second = max(half, max_pieces - len(first))
    return list(first[:keep_first]), list(second[:keep_second])


def fitted(first: Sequence[T], second: Sequence[T], max_length: int,
           windows: bool = False) -> tuple[list[tuple[list, list]], int]:
    """Fits one text, or two if `second` has tokens, into sequences of `max_length`
    tokens with special ones; returns the tokens of both texts in each sequence, and the
    number of tokens that are in none.

    By default there is one sequence: what is longer is cut, as in training. With
    `windows`, the text, or that of a pair of which more would be cut, is read in
    windows as long as its part in that sequence, each of which overlaps the one before
    by half.

        >>> fitted("abcdef", "", 6, windows=True)
        ([(['a', 'b', 'c', 'd'], []), (['c', 'd', 'e', 'f'], [])], 0)
    """
    kept = truncate_longer_first(first, second, max_length - (
        NUM_SPECIAL_PAIR if second else NUM_SPECIAL_SINGLE))
    texts = first, second
    cut = [len(text) - len(part) for text, part in zip(texts, kept)]
    if not windows or not any(cut):
        return [kept], sum(cut)
    longer = max((0, 1), key=lambda i: (bool(kept[i]), cut[i]))
    size = len(kept[longer])
    parts = [list(texts[longer][begin:end]) for begin, end, _ in windows_of(
        len(texts[longer]), size, size - size // 2)]
    return [(kept[0], part) if longer else (part, kept[1]) for part in parts], (
        cut[1 - longer])


def truncate_at_random_ends(
        first: Sequence[T], second: Sequence[T], max_pieces: int,
        random: python_random.Random) -> tuple[list[T], list[T]]:
    """Removes tokens from the front or the back of the longer text, of equal ones the
    second, and draws a random number for each (truncate_seq_pair for pretraining in the
    original: "to add more randomness and avoid biases"; `pretraining_data.plans` does
    this for many pairs)."""
    begin, end = [0, 0], [len(first), len(second)]
    for _ in range(len(first) + len(second) - max_pieces):
        longer = 0 if end[0] - begin[0] > end[1] - begin[1] else 1
        if random.random() < 0.5:
            begin[longer] += 1
        else:
            end[longer] -= 1
    return list(first[begin[0]:end[0]]), list(second[begin[1]:end[1]])


def windows_of(num_pieces: int, size: int, stride: int
               ) -> list[tuple[int, int, list[int]]]:
    """Returns begin and end of windows of `size` tokens, of which the last may be shorter,
    and for each token 1 if no other window shows more context, the first of several, else
    0: the smaller of the numbers of tokens to the left and right, plus a hundredth of the
    window's length (the original's _check_is_max_context)."""
    step = min(size, stride)
    spans = [(begin, min(begin + size, num_pieces))
             for begin in range(0, max(num_pieces - size, 0) + step, step)]
    highest, best = np.full(num_pieces, -np.inf), np.zeros(num_pieces, int)
    for number, (begin, end) in enumerate(spans):
        piece = np.arange(begin, end)
        score = np.minimum(piece - begin, end - 1 - piece) + 0.01 * (end - begin)
        better = score > highest[begin:end]
        best[begin:end][better] = number
        highest[begin:end][better] = score[better]
    return [(begin, end, (best[begin:end] == number).astype(int).tolist())
            for number, (begin, end) in enumerate(spans)]


# ---- words -----------------------------------------------------------------

# This lacks ' < = >, so a token that contains one of them always starts a word, whereas
# a token with several other marks, such as "**", does not.
_PUNCTUATION = frozenset('!"#$%&()*+,-./:;?@[\\]^_`{|}~')
_LATIN_OR_PUNCTUATION = _PUNCTUATION | {*"abcdefghijklmnopqrstuvwxyz"}


class WordStarts(dict):
    """A map of tokens to whether they start a word, by a rule.

        >>> starts = WordStarts("wordpiece")
        >>> starts["un"], starts["##aff"]
        (True, False)

    "sentencepiece": if it begins with "▁". "wordpiece": if it does not begin with "##"
    (_is_start_piece_bert in the original implementation). "release": if it begins with
    "▁" or "<", is a punctuation mark, or has any other character than Latin letters and
    punctuation (_is_start_piece_sp): so does every token in another script, and every
    number.
    """

    def __init__(self, rule: str):
        super().__init__()
        self._rule = rule

    def __missing__(self, piece: str) -> bool:
        starts = self[piece] = (
            not piece.startswith("##") if self._rule == "wordpiece" else
            piece.startswith("▁") or self._rule == "release" and (
                piece.startswith("<") or piece in _PUNCTUATION
                or not _LATIN_OR_PUNCTUATION.issuperset(piece.lower())))
        return starts
