"""WordPiece: BERT's splitting into words, then greedy longest match, with offsets.

The results for words are cached, because most words in a text are repeated.
"""

import functools
import os
import re
from typing import Iterable

from albert_tf import text_files
from albert_tf.errors import InputError
from albert_tf.tokenization import tokenizer_json
from albert_tf.tokenization.cleaning import (
    CHINESE_RANGES, ORIGINAL, Located, Rules, SourcedChar, decompose, drop_marks,
    is_punctuation, lower_case, source)

_CACHED_WORDS = 200_000
_CACHED_CHARS = 200  # in a word

_CHINESE = "".join(f"{chr(first)}-{chr(last)}" for first, last in CHINESE_RANGES)
# Class Zs, tab, line feed, carriage return, and the separators U+2028, U+2029, at which
# the original implementation splits cleaned text into words. Other white space has
# class Cc, which cleaning removes without splitting there.
_SPACE = " \t\n\r\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
# Without cleaning these white-space characters of class Cc separate words, too.
_CONTROL_SPACE = "\x0b\x0c\x85"


@functools.lru_cache(maxsize=None)
def chunk_pattern(rules: Rules) -> re.Pattern:
    """Returns the pattern of a Chinese character that is a separate word, or of a run of
    other characters without space."""
    space = _SPACE if rules.clean else _SPACE + _CONTROL_SPACE
    return re.compile(f"[{_CHINESE}]|[^{space}{_CHINESE}]+" if rules.split_chinese
                      else f"[^{space}]+")


def load_vocab(vocab_file: str) -> dict[str, int]:
    """Reads a vocabulary with one token per line (load_vocab in the original).

    A line is read up to its first white space, an empty line is the token " ", and a
    repeated token is skipped without using an id. Hugging Face's tokenizer.json is read
    too. Raises InputError if the vocabulary is empty.
    """
    if os.fspath(vocab_file).endswith(".json"):
        return tokenizer_json.word_pieces(vocab_file)
    vocab: dict[str, int] = {}
    for _, line in text_files.read_lines(vocab_file):
        words = line.split()
        vocab.setdefault(words[0] if words else " ", len(vocab))
    if not vocab:
        raise InputError(
            f"{vocab_file}: the vocabulary is empty; give a file with one token per "
            "line.")
    return vocab


def basic_tokenize(text: str, lower: bool = True,
                   strip_accents: bool = True, rules: Rules = ORIGINAL) -> list[str]:
    """Splits text into words and punctuation (BasicTokenizer in the original)."""
    return ["".join([char for char, _, _ in word])
            for chunk in chunk_pattern(rules).findall(text)
            for word in _split_chunk(chunk, lower, strip_accents, rules)]


def _split_chunk(chunk: str, lower: bool, strip_accents: bool, rules: Rules
                 ) -> list[list[SourcedChar]]:
    """Splits characters without space into words of characters with sources. Accents
    are stripped only if `lower`, unless `rules` say more."""
    chars = [c for c in source(chunk) if not rules.is_dropped(c[0])]
    if lower:
        chars = lower_case(chars, rules)
    if strip_accents and (lower or rules.strips_cased):
        chars = drop_marks(decompose(chars, "NFD"), rules.is_mark)
    words: list[list[SourcedChar]] = []
    continues = False
    for char in chars:
        punctuation = is_punctuation(char[0])
        if continues and not punctuation:
            words[-1].append(char)
        else:
            words.append([char])
        continues = not punctuation
    return words


class WordPieceMixin:
    """The WordPiece part of FullTokenizer."""

    uses_sentencepiece = False
    _advice = "add them, or give a SentencePiece model as --spm_model_file"
    _unk_piece = "[UNK]"
    vocab: dict[str, int]
    do_lower_case: bool
    strip_accents: bool
    rules: Rules

    def _load(self, path: str) -> tuple[dict[str, int], str, str]:
        vocab = load_vocab(path)
        self._longest = max(map(len, vocab))
        self._cache: dict[str, tuple[Located, ...]] = {}
        return vocab, "[PAD]", self._unk_piece

    def __getstate__(self):
        # Workers that receive a pickled tokenizer fill their own caches.
        return {**self.__dict__, "_cache": {}}

    @property
    def _chunk(self) -> re.Pattern:
        return chunk_pattern(self.rules)

    def tokenize(self, text: str) -> list[str]:
        return [piece for chunk in self._chunk.findall(text)
                for piece, _, _ in self._pieces_of_chunk(chunk)]

    def _locate(self, text: str) -> list[Located]:
        return [(piece, match.start() + start, match.start() + end)
                for match in self._chunk.finditer(text)
                for piece, start, end in self._pieces_of_chunk(match.group())]

    def convert_tokens_to_ids(self, tokens: Iterable[str]) -> list[int]:
        try:
            return [self.vocab[piece] for piece in tokens]
        except KeyError as error:
            raise InputError(
                f"The token {error} is not in the vocabulary of {len(self.vocab)} "
                f"tokens; use tokens from tokenize() or {self._unk_piece}.") from None

    def _joined(self, pieces: list[str]) -> str:
        return " ".join(pieces).replace(" ##", "")

    def _pieces_of_chunk(self, chunk: str) -> tuple[Located, ...]:
        pieces = self._cache.get(chunk)
        if pieces is None:
            pieces = tuple(located for word in _split_chunk(
                               chunk, self.do_lower_case, self.strip_accents, self.rules)
                           for located in self._match(word))
            if len(self._cache) >= _CACHED_WORDS:
                self._cache.clear()
            if len(chunk) <= _CACHED_CHARS:  # Many long chunks would fill the memory.
                self._cache[chunk] = pieces
        return pieces

    def _match(self, word: list[SourcedChar]) -> list[Located]:
        """Matches the longest tokens from the left; [UNK] if any part has no match."""
        unknown = [(self._unk_piece, word[0][1], word[-1][2])]
        if len(word) > self.rules.max_word_chars:
            return unknown
        text = "".join([char for char, _, _ in word])
        pieces: list[Located] = []
        first = 0
        while first < len(text):
            prefix = "##" if first else ""
            for last in range(min(len(text), first + self._longest), first, -1):
                if prefix + text[first:last] in self.vocab:
                    break
            else:
                return unknown
            pieces.append(
                (prefix + text[first:last], word[first][1], word[last - 1][2]))
            first = last
        return pieces
