"""Lines of text → tokens: ids with a bit that says whether a piece starts a word.

A token is id * 2 + starts_word. Masking needs no more of a piece than that, so
that pieces as strings occur nowhere after this module.
"""

import itertools
from typing import NamedTuple, Sequence

import numpy as np

from albert_tf.errors import InputError
from albert_tf.tokenization.tokenizer import FullTokenizer
from albert_tf.tokenization.word_starts import WordStarts

_LARGEST_SMALL_VOCABULARY = 1 << 15


def token_dtype(vocab_size: int) -> np.dtype:
    """The type that holds id * 2 + 1 of a vocabulary: "<u2" or "<u4"."""
    return np.dtype("<u2" if vocab_size <= _LARGEST_SMALL_VOCABULARY else "<u4")


class EncodedLines(NamedTuple):
    """Tokens of some lines.

    Attributes:
      tokens: those of all lines, one line after the other: [T] of token_dtype.
      lengths: tokens of each line: uint32 [L].
      unknown_pieces: how many of the tokens are the unknown piece.
    """

    tokens: np.ndarray
    lengths: np.ndarray
    unknown_pieces: int


class TokenEncoder:
    """Encodes lines as `tokenize` and the masking rules do, many at a time.

    An encoder can be pickled and sent to other processes.

    Attributes:
      tokenizer: the tokenizer whose pieces these are.
      dtype: of tokens.
      separator: the token of [SEP], a word start; it ends each document in a
        token store.
    """

    def __init__(self, tokenizer: FullTokenizer, word_start: str = "release"):
        """Looks at each piece of the vocabulary once.

        Args:
          tokenizer: gives the pieces.
          word_start: which SentencePiece pieces start a word, "release" or
            "sentencepiece" (word_starts); WordPiece has one rule.

        Raises:
          InputError: if the rule is another, or not one for this vocabulary.
        """
        if word_start not in ("release", "sentencepiece"):
            raise InputError(
                f"--word_start={word_start}: give release or sentencepiece.")
        if word_start == "sentencepiece" and not tokenizer.uses_sentencepiece:
            raise InputError(
                "--word_start=sentencepiece needs --spm_model_file: a WordPiece "
                "vocabulary marks words in its own way.")
        self.tokenizer = tokenizer
        self.dtype = token_dtype(tokenizer.vocab_size)
        self.separator = tokenizer.sep_id * 2 + 1
        self._token_of = _Tokens(
            tokenizer, word_start if tokenizer.uses_sentencepiece else "wordpiece")
        self._table = np.zeros(tokenizer.vocab_size, self.dtype)
        for piece, i in tokenizer.vocab.items():
            self._table[i] = self._token_of[piece]
        # What a row of the model's ids is replaced with where it is not final.
        self._splits = {} if not tokenizer.uses_sentencepiece else {
            i: [self._token_of[piece] for piece in pieces]
            for i, pieces in tokenizer.split_pieces().items()}
        self._is_final = np.ones(tokenizer.vocab_size, bool)
        self._is_final[[tokenizer.unk_id, *self._splits]] = False

    def prepare(self, lines: Sequence[str]) -> list[str]:
        """Lines as `encode` takes them; a blank line becomes "".

        That is tokenizer.prepare(line).strip(): with SentencePiece a line of
        nothing but combining characters is blank too.
        """
        return list(map(str.strip, self.tokenizer.prepare_batch(lines)))

    def encode(self, lines: list[str]) -> EncodedLines:
        """Tokens of prepared lines.

        An unknown piece starts a word by the rule for its text, as in
        reference.mask_sequence, although its id is that of all unknown pieces.
        """
        if self.tokenizer.uses_sentencepiece:
            tokens, lengths = self._encode_sentencepiece(lines)
        else:
            token_of = self._token_of
            tokens, lengths = _flat(
                [[token_of[piece] for piece in pieces]
                 for pieces in self.tokenizer.tokenize_batch(lines)], self.dtype)
        unknown = np.count_nonzero(tokens >> 1 == self.tokenizer.unk_id)
        return EncodedLines(tokens, lengths, unknown)

    def _encode_sentencepiece(
            self, lines: list[str]) -> tuple[np.ndarray, np.ndarray]:
        ids, lengths = _flat(self.tokenizer.model_ids(lines), np.dtype(np.int32))
        tokens = self._table[ids]
        places = np.flatnonzero(~self._is_final[ids])
        if not len(places):
            return tokens, lengths
        bounds = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        rows = np.searchsorted(bounds, places, side="right") - 1
        again = self._encode_as_strings(
            lines, np.unique(rows[ids[places] == self.tokenizer.unk_id]).tolist())
        # How many tokens come in place of each, and those that come for `places`.
        counts = np.ones(len(ids), np.int64)
        others: list[int] = []
        last = -1
        for place, row, piece_id in zip(
                places.tolist(), rows.tolist(), ids[places].tolist()):
            if row not in again:
                new = self._splits[piece_id]
                counts[place] = len(new)
                others += new
            elif row != last:
                counts[bounds[row]:bounds[row + 1]] = 0
                counts[place] = len(again[row])
                others += again[row]
            last = row
        is_other = np.zeros(len(ids), bool)
        is_other[places] = True
        tokens = np.repeat(tokens, counts)
        tokens[np.repeat(is_other, counts)] = others
        sums = np.concatenate([[0], np.cumsum(counts)])
        return tokens, np.diff(sums[bounds]).astype(np.uint32)

    def _encode_as_strings(
            self, lines: list[str], rows: list[int]) -> dict[int, list[int]]:
        """Tokens of the lines of these numbers, where the text of pieces matters."""
        token_of = self._token_of
        return {row: [token_of[piece] for piece in pieces]
                for row, pieces in zip(rows, self.tokenizer.tokenize_batch(
                    [lines[row] for row in rows]))}


class _Tokens(dict):
    """piece → token; only pieces of the vocabulary are remembered.

    Text has any number of unknown pieces.
    """

    def __init__(self, tokenizer: FullTokenizer, rule: str):
        super().__init__()
        self._tokenizer, self._rule = tokenizer, rule

    def __missing__(self, piece: str) -> int:
        starts = WordStarts(self._rule)[piece]
        token = self._tokenizer.convert_tokens_to_ids([piece])[0] * 2 + starts
        if piece in self._tokenizer.vocab:
            self[piece] = token
        return token

    def __reduce__(self):
        # As arguments and items: a dictionary's items are pickled by themselves.
        return _Tokens, (self._tokenizer, self._rule), None, None, iter(self.items())


def _flat(rows: list[list[int]], dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """The numbers of all rows, and how many each has (uint32)."""
    lengths = np.fromiter(map(len, rows), np.uint32, len(rows))
    return np.fromiter(itertools.chain.from_iterable(rows), dtype,
                       int(lengths.sum(dtype=np.int64))), lengths
