"""Encodes lines of text as codes: token ids with a bit for tokens that start a word.

The code of a token is id * 2 + starts_word. Masking needs no more than that, so tokens
occur as strings only in this module.
"""

import itertools
from typing import NamedTuple, Sequence

import numpy as np

from albert_tf.tokenization.tokenizer import FullTokenizer, SentencePieceTokenizer
from albert_tf.tokenization.sequences import WordStarts

_LARGEST_SMALL_VOCABULARY = 1 << 15


def code_dtype(vocab_size: int) -> np.dtype:
    """Returns the type that holds the codes of a vocabulary: "<u2" or "<u4"."""
    return np.dtype("<u2" if vocab_size <= _LARGEST_SMALL_VOCABULARY else "<u4")


def sums_before(numbers: np.ndarray) -> np.ndarray:
    """Returns the sums of the first 0, 1, ..., N numbers: int64 [N + 1]."""
    sums = np.zeros(len(numbers) + 1, np.int64)
    np.cumsum(numbers, dtype=np.int64, out=sums[1:])
    return sums


class EncodedLines(NamedTuple):
    """The codes of L lines."""

    codes: np.ndarray  # [C] of code_dtype; one line's codes after the other's
    lengths: np.ndarray  # uint32 [L]; number of tokens in each line
    unknown_pieces: int  # number of unknown tokens


class PieceEncoder:
    """Encodes many lines at a time, as `tokenize` and the masking rules do.

        encoder = PieceEncoder(FullTokenizer(spm_model_file="30k-clean.model"))
        encoder.encode(encoder.prepare(["The cat sat on the mat."])).codes

    `word_start` is the rule by which SentencePiece tokens start a word; WordPiece has
    one. `separator` is the code of [SEP], which ends each document.
    """

    def __init__(self, tokenizer: FullTokenizer, word_start: str = "release"):
        self.tokenizer = tokenizer
        self.dtype = code_dtype(tokenizer.vocab_size)
        self.separator = tokenizer.sep_id * 2 + 1
        rule = word_start if tokenizer.uses_sentencepiece else "wordpiece"
        starts_word = WordStarts(rule)
        self._code_of = _Codes(tokenizer, rule)
        self._table = np.zeros(tokenizer.vocab_size, self.dtype)
        for piece, i in tokenizer.vocab.items():
            self._code_of[piece] = self._table[i] = i * 2 + starts_word[piece]
        # The codes that replace an id of the model that is not final.
        self._splits = {} if not isinstance(tokenizer, SentencePieceTokenizer) else {
            i: [self._code_of[piece] for piece in pieces]
            for i, pieces in tokenizer.split_pieces().items()}
        self._is_final = np.ones(tokenizer.vocab_size, bool)
        self._is_final[[tokenizer.unk_id, *self._splits]] = False

    def prepare(self, lines: Sequence[str]) -> list[str]:
        """Returns tokenizer.prepare(line).strip() for each line; "" is a blank line, with
        SentencePiece also one of combining characters alone."""
        return list(map(str.strip, self.tokenizer.prepare_batch(lines)))

    def encode(self, lines: list[str]) -> EncodedLines:
        """Returns the codes of prepared lines. Whether an unknown token starts a word
        depends on its text, as in masking.reference.mask_sequence."""
        if isinstance(self.tokenizer, SentencePieceTokenizer):
            codes, lengths = self._encode_sentencepiece(lines)
        else:
            codes, lengths = _flat(self._codes_of_tokens(lines), self.dtype)
        unknown = int(np.count_nonzero(codes >> 1 == self.tokenizer.unk_id))
        return EncodedLines(codes, lengths, unknown)

    def _encode_sentencepiece(
            self, lines: list[str]) -> tuple[np.ndarray, np.ndarray]:
        ids, lengths = _flat(self.tokenizer.model_ids(lines), np.dtype(np.int32))
        codes = self._table[ids]
        open_at = np.flatnonzero(~self._is_final[ids])
        if not len(open_at):
            return codes, lengths
        bounds = sums_before(lengths)
        rows = np.searchsorted(bounds, open_at, side="right") - 1
        # The codes of lines in which the text of tokens matters, by line number.
        unknown = np.unique(rows[ids[open_at] == self.tokenizer.unk_id]).tolist()
        again = dict(zip(
            unknown, self._codes_of_tokens([lines[row] for row in unknown])))
        # `counts` is the number of codes that replace each id; `others` are the codes
        # for the ids at `open_at`.
        counts = np.ones(len(ids), np.int64)
        others: list[int] = []
        last = -1
        for i, row, piece_id in zip(
                open_at.tolist(), rows.tolist(), ids[open_at].tolist()):
            if row not in again:
                new = self._splits[piece_id]
                counts[i] = len(new)
                others += new
            elif row != last:
                counts[bounds[row]:bounds[row + 1]] = 0
                counts[i] = len(again[row])
                others += again[row]
            last = row
        is_other = np.zeros(len(ids), bool)
        is_other[open_at] = True
        codes = np.repeat(codes, counts)
        codes[np.repeat(is_other, counts)] = others
        return codes, np.diff(sums_before(counts)[bounds]).astype(np.uint32)

    def _codes_of_tokens(self, lines: list[str]) -> list[list[int]]:
        """Returns the codes of each line, by the text of its tokens."""
        code_of = self._code_of
        return [[code_of[piece] for piece in pieces]
                for pieces in self.tokenizer.tokenize_batch(lines)]


class _Codes(dict):
    """A map of tokens to codes; it does not cache the unlimited unknown tokens."""

    def __init__(self, tokenizer: FullTokenizer, rule: str):
        super().__init__()
        self._tokenizer, self._rule = tokenizer, rule

    def __missing__(self, piece: str) -> int:
        starts_word = WordStarts(self._rule)[piece]
        return self._tokenizer.convert_tokens_to_ids([piece])[0] * 2 + starts_word

    def __reduce__(self):
        # The constructor's arguments come first, because dictionary items are pickled
        # separately.
        return _Codes, (self._tokenizer, self._rule), None, None, iter(self.items())


def _flat(rows: list[list[int]], dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """Returns the numbers of all rows, concatenated, and the rows' lengths (uint32)."""
    lengths = np.fromiter(map(len, rows), np.uint32, len(rows))
    return np.fromiter(itertools.chain.from_iterable(rows), dtype,
                       int(lengths.sum(dtype=np.int64))), lengths
