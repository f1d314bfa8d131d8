"""Alignment of the tokens of a SQuAD paragraph with the characters of its text.

SentencePiece gets a cleaned text, and may add blanks to it, so that its pieces must be
matched to the paragraph's characters. The original implementation uses the longest
common subsequence (LCS), restricted to a band around the diagonal, and breaks ties in a
certain way. The matched characters decide where answers begin and end; this module
therefore makes the same match. If it fails, the original drops the paragraph, and with
it most text whose characters are not single letters after cleaning, such as Korean.
Here such a paragraph gets the exact offsets of its tokens, and so does every paragraph
with WordPiece, which the original does not support for SQuAD.

    paragraph   T h e   c a f é          8 characters
    pieces     ▁the     ▁ca   fe
    their text " the"   " ca" "fe"       the blank before "the" matches nothing
    starts      0       3     6          first character of each piece
    ends        2       5     7          last character of each piece
"""

import collections
import functools
import unicodedata
from typing import NamedTuple, Optional, Sequence

import numpy as np

from albert_tf.errors import InputError
from albert_tf.tokenization.cleaning import UNDERLINE, preprocess_text
from albert_tf.tokenization.tokenizer import FullTokenizer

# With a smaller share of matched characters, the original implementation drops a
# paragraph; here its tokens have their exact characters.
MIN_MATCHED_SHARE = 0.8
# The width of the band on either side is the difference of the lengths plus this.
BAND_MARGIN = 5

# A table of more cells, as for 40,000 characters of which 800 are dropped, is not computed.
_MOST_CELLS = 2**27

# The steps of tracing back through the LCS table.
_UP, _LEFT, _MATCH = 0, 1, 2


class ParagraphAlignment(NamedTuple):
    """A paragraph's tokens and their characters."""

    piece_ids: list[int]
    starts: list[int]  # The first character of each token,
    ends: list[int]  # and the last, inclusive.
    # For each character of the paragraph, the first token of an answer that starts there,
    # and the last token of one that ends there.
    piece_of_start: list[int]
    piece_of_end: list[int]


# The questions of a paragraph are adjacent, so that it is aligned once for all.
@functools.lru_cache(maxsize=4)
def align_paragraph(text: str, tokenizer: FullTokenizer) -> Optional[ParagraphAlignment]:
    """Splits a paragraph into tokens and finds their characters.

    If SentencePiece's pieces match less than MIN_MATCHED_SHARE of the characters, each
    token has its exact characters. Returns None for a paragraph without tokens, or if
    the characters are not known (a model with byte fallback). The caller must not
    change the result.
    """
    if tokenizer.uses_sentencepiece and (found := _align_by_lcs(text, tokenizer)):
        return found
    try:
        spans = tokenizer.tokenize_with_offsets(text)
    except InputError:
        return None
    if all(span.start == span.end for span in spans):
        return None
    first = np.array([span.start for span in spans])
    end = np.array([span.end for span in spans])
    chars = np.arange(len(text))
    # An answer begins with the first token that ends after its first character, and
    # ends with the last token that begins no later than its last character.
    starting = np.minimum(np.searchsorted(end, chars, side="right"), len(spans) - 1)
    ending = np.maximum(np.searchsorted(first, chars, side="right") - 1, 0)
    return ParagraphAlignment(
        [span.id for span in spans], first.tolist(), (end - 1).tolist(),
        starting.tolist(), ending.tolist())


def _align_by_lcs(text: str, tokenizer: FullTokenizer) -> Optional[ParagraphAlignment]:
    """Aligns SentencePiece's pieces (convert_examples_to_features in the original
    implementation)."""
    pieces = tokenizer.tokenize(tokenizer.prepare(text))
    if not pieces:
        return None
    piece_text = "".join(pieces).replace(UNDERLINE, " ")
    matches = match_characters(comparable_characters(
        text, tokenizer.do_lower_case, tokenizer.strip_accents), piece_text)
    if matches is None:
        return None
    lengths = np.array([len(piece) for piece in pieces])
    behind = np.cumsum(lengths)
    char_of = np.full(len(piece_text), -1)  # The character of the paragraph, or -1.
    char_of[matches[matches >= 0]] = np.flatnonzero(matches >= 0)
    starts, ends = filled(char_of, len(text))
    first, last = filled(matches)
    piece_of = np.repeat(np.arange(len(pieces)), lengths)
    return ParagraphAlignment(
        tokenizer.convert_tokens_to_ids(pieces), starts[behind - lengths].tolist(),
        ends[behind - 1].tolist(), piece_of[first].tolist(), piece_of[last].tolist())


# --- Unmatched positions ---------------------------------------------------------

def filled(index: np.ndarray, size: Optional[int] = None
           ) -> tuple[np.ndarray, np.ndarray]:
    """Replaces each -1 (no match) of an ascending `index`, of which at least one entry is
    none (_convert_index in the original implementation).

    The results tell, for each position, where something that starts, and that ends there
    does so on the other side: a start becomes the position after the match before it, or
    0 if there is none; an end that before the next match or, after all matches, the
    other side's last position. `size` is the length of the other side, whose positions
    they stay below; with None, it ends with the last match.
    """
    most = max(index.max(), (size or 0) - 1)
    before = np.maximum.accumulate(index)
    behind = np.where(index < 0, most + 1, index)
    after = np.minimum.accumulate(behind[::-1])[::-1]
    return (np.where(index < 0, np.minimum(before + 1, most), index),
            np.where(index < 0, np.maximum(after - 1, 0), index))


# --- The longest common subsequence ----------------------------------------------

def comparable_characters(text: str, lower: bool, strip_accents: bool = True
                          ) -> list[str]:
    """Returns each character of a text after preprocess_text, which may be "" or several
    characters. If accents are kept, it is composed as by SentencePiece."""
    if text.isascii():
        return list(text.lower() if lower else text)
    prepared = {char: preprocess_text(
        char if strip_accents else unicodedata.normalize("NFKC", char), lower, False,
        strip_accents) for char in set(text)}
    return [prepared[char] for char in text]


def match_characters(chars: Sequence[str], text: str) -> Optional[np.ndarray]:
    """Matches characters to a text, which is not empty, as in the original
    implementation.

    Each of `chars` is a string, which matches a character of `text` if they are equal.
    Returns int [len(chars)], the ascending positions in `text`, -1 without a match; or
    None if too few characters match, or the table would be too large.
    """
    if not chars:
        return None
    band = abs(len(chars) - len(text)) + BAND_MARGIN
    matches = match_greedily(chars, text, band)
    if matches is not None:
        return matches
    enough = MIN_MATCHED_SHARE * len(chars)
    # The table grows with the square of a text that loses many of its characters, as by
    # accents that are separate ones.
    common = collections.Counter(chars) & collections.Counter(text)
    if common.total() < enough or 4 * band * len(chars) > _MOST_CELLS:
        return None
    for wider in (band, 2 * band):
        matched, matches = match_by_table(chars, text, wider)
        if matched > enough:
            return matches
    # The original accepts a match with exactly this share, but only after both tries.
    return matches if matched == enough else None


def match_greedily(chars: Sequence[str], text: str, band: int) -> Optional[np.ndarray]:
    """Computes the result of match_by_table in one pass; None if it may differ.

    If all characters that occur in `text` can be found in it in order, that is the
    longest match. Among several such matches, the table's rule for ties chooses the one
    with the first possible position for each character. This match is within the band
    if few characters do not occur in `text`.
    """
    occurring = {*text}
    matches: list[int] = []
    place = -1
    for char in chars:
        if char not in occurring:
            matches.append(-1)
            continue
        place = text.find(char, place + 1)
        if place < 0:
            return None
        matches.append(place)
    absent = matches.count(-1)
    if (absent > band or len(text) - len(chars) + absent >= band
            or len(chars) - absent <= MIN_MATCHED_SHARE * len(chars)):
        return None
    return np.array(matches)


def match_by_table(chars: Sequence[str], text: str, band: int) -> tuple[int, np.ndarray]:
    """Computes the longest common subsequence within a band by dynamic programming.
    Returns the number of matched characters, and their positions as match_characters.

    Row i is chars[i]; column k is the position j = i - band + k of `text`. Positions
    outside the band count as 0. Among equal steps, up comes first, then left.

             k=0  1  2  3   (band 2)
        i=0   .  .  j0 j1
        i=1   .  j0 j1 j2
        i=2   j0 j1 j2 j3
    """
    size, width = len(chars), 2 * band
    codes = np.array([ord(c) if len(c) == 1 else -2 for c in chars], np.int32)
    padded = np.full(band + max(len(text), size + band), -1, np.int32)
    padded[band:band + len(text)] = np.frombuffer(
        text.encode("utf-32-le", "surrogatepass"), np.int32)
    steps = np.empty((size, width), np.int8)
    above = np.zeros(width + 1, np.int32)  # The row above, with a 0 outside its band.
    left = np.zeros(width, np.int32)
    for i in range(size):
        same = padded[i:i + width] == codes[i]
        diagonal = (above[:-1] + 1) * same
        row = np.maximum.accumulate(np.maximum(above[1:], diagonal))
        left[1:] = row[:-1]
        steps[i] = left > above[1:]
        steps[i][diagonal > np.maximum(above[1:], left)] = _MATCH
        above[:-1] = row

    matches = np.full(size, -1)
    i, k = size - 1, len(text) - size + band
    matched = int(above[k])
    while i >= 0 and 0 <= k < width and i - band + k >= 0:
        step = steps[i, k]
        if step == _MATCH:
            matches[i] = i - band + k
            i -= 1
        elif step == _LEFT:
            k -= 1
        else:
            i, k = i - 1, k + 1
    return matched, matches
