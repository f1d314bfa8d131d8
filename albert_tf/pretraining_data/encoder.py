"""Encodes lines of text as codes: token ids with a bit for tokens that start a word.

The code of a token is id * 2 + starts_word. Masking needs no more than that, so tokens
occur as strings only in this module.
"""

import itertools
from typing import NamedTuple

import numpy as np

from albert_tf.tokenization.tokenizer import FullTokenizer
from albert_tf.tokenization.sequences import WordStarts


def code_dtype(vocab_size: int) -> np.dtype:
    """Returns the type that holds the codes of a vocabulary: "<u2" or "<u4"."""
    return np.dtype("<u2" if vocab_size <= 1 << 15 else "<u4")


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

        tokenizer = FullTokenizer(spm_model_file="30k-clean.model")
        lines = tokenizer.prepare_batch(["The cat sat on the mat."])
        PieceEncoder(tokenizer).encode(lines).codes

    `word_start` is the rule by which SentencePiece tokens start a word; WordPiece has
    one. `separator` is the code of [SEP], which ends each document.
    """

    def __init__(self, tokenizer: FullTokenizer, word_start: str = "release"):
        self.tokenizer = tokenizer
        self.dtype = code_dtype(tokenizer.vocab_size)
        self.separator = tokenizer.sep_id * 2 + 1
        self._rule = word_start if tokenizer.uses_sentencepiece else "wordpiece"
        starts_word = WordStarts(self._rule)
        # The code of each id, and of an unknown token that starts no word, or does.
        self._code_of = np.array([
            *(i * 2 + starts_word[piece] for piece, i in tokenizer.vocab.items()),
            tokenizer.unk_id * 2, tokenizer.unk_id * 2 + 1], self.dtype)

    def encode(self, lines: list[str]) -> EncodedLines:
        """Returns the codes of prepared lines. Whether an unknown token starts a word
        depends on its text, as in masking.reference.mask_sequence."""
        tokenizer, starts_word = self.tokenizer, WordStarts(self._rule)
        rows = tokenizer.prepared_ids(lines)
        unknown = [number for number, row in enumerate(rows)
                   if tokenizer.unk_id in row] if tokenizer.uses_sentencepiece else []
        for number, pieces in zip(unknown, tokenizer.tokenize_batch(
                [lines[number] for number in unknown])):
            rows[number] = [
                tokenizer.vocab.get(piece, tokenizer.vocab_size + starts_word[piece])
                for piece in pieces]
        lengths = np.fromiter(map(len, rows), np.uint32, len(rows))
        codes = self._code_of[np.fromiter(
            itertools.chain.from_iterable(rows), np.int32, int(lengths.sum(dtype=np.int64)))]
        return EncodedLines(
            codes, lengths, int(np.count_nonzero(codes >> 1 == tokenizer.unk_id)))
