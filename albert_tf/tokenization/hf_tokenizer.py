"""WordPiece, and what Hugging Face's tokenizer.json says, by the tokenizers library.

A vocab.txt is tokenized as in the original implementation, except that characters of
private use are dropped and that a capital sigma at the end of a word becomes "σ".
"""

import json
import math
import os
import re
import unicodedata
from typing import Any, Iterable, Optional, Sequence

from albert_tf import text_files
from albert_tf.errors import InputError
from albert_tf.tokenization import tokenizer_json
from albert_tf.tokenization.cleaning import AddedToken, Rules
from albert_tf.tokenization.tokenizer import (
    FullTokenizer, PieceSpan, check_encodable)


def tokenizers():
    """Imports and returns the tokenizers library."""
    # The library's threads would disturb those of processes that are forked later.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import tokenizers as package

    return package


def load_vocab(vocab_file: str) -> dict[str, int]:
    """Reads a vocabulary with one token per line (load_vocab in the original).

    A line is read up to its first white space, an empty line is the token " ", and a
    repeated token is skipped without using an id.
    """
    vocab: dict[str, int] = {}
    for _, line in text_files.read_lines(vocab_file):
        words = line.split()
        vocab.setdefault(words[0] if words else " ", len(vocab))
    return vocab


class HfTokenizer(FullTokenizer):
    """A FullTokenizer with a WordPiece vocabulary or a tokenizer.json."""

    def _load(self, path: str, lower: Optional[bool], strips: Optional[bool]
              ) -> Sequence[str]:
        self.is_json = tokenizer_json.is_file(path)
        names: Sequence[str] = ("[PAD]", "[UNK]")
        self.do_lower_case, self.strip_accents = lower is not False, strips is not False
        if self.is_json:
            value, self.vocab = tokenizer_json.read(path)
            model = value["model"]
            if self.uses_sentencepiece != (model["type"] == "Unigram"):
                raise InputError(f"{path}: holds a {model['type']} model; give it as " + (
                    "--vocab_file." if self.uses_sentencepiece else "--spm_model_file."))
        elif self.uses_sentencepiece:
            rules = self.rules._replace(added=())
            plain = FullTokenizer(None, lower, path, strips, rules)
            self.vocab, self.strip_accents = plain.vocab, plain.strip_accents
            names = plain.convert_ids_to_tokens([plain.pad_id, plain.unk_id])
            value = tokenizer_json.from_sentencepiece(
                path, self.do_lower_case, self.strip_accents, rules)
        else:
            self.vocab = load_vocab(path)
            value = tokenizer_json.from_word_pieces(
                self.vocab, self.do_lower_case, self.strip_accents, self.rules)
        try:
            self._engine = tokenizers().Tokenizer.from_str(json.dumps({
                **value, "added_tokens": [], "truncation": None, "padding": None}))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # Errors in Rust are no subclass of Exception.
            raise InputError(f"{path}: {error}; copy or download it again.") from error
        if self.is_json:
            self._check_steps(path, lower, strips)
            if self.uses_sentencepiece:
                names = ("<pad>", [*self.vocab][model["unk_id"]])
        self._find_added(map(AddedToken.of, value["added_tokens"]), names, path)
        return names

    def _check_steps(self, path: str, lower: Optional[bool], strips: Optional[bool]
                     ) -> None:
        """Sets do_lower_case and strip_accents to what the steps of a tokenizer.json do;
        lower-casing can be added."""
        self.strip_accents = self.normalized("é") in "eE"
        if strips not in (None, self.strip_accents):
            raise InputError(f"{path}: it {'strips' if strips is False else 'keeps'} "
                             "accents, which no option changes.")
        self.do_lower_case = self.normalized("A") == "a"
        if lower and not self.do_lower_case:
            normalizers = tokenizers().normalizers
            self._engine.normalizer = normalizers.Sequence([
                normalizers.Lowercase(), *filter(None, [self._engine.normalizer])])
            self.do_lower_case = True
        elif lower is False and self.do_lower_case:
            raise InputError(f"{path}: it lower-cases text; leave out --do_lower_case.")

    def _find_added(self, listed: Iterable[AddedToken], names: Sequence[str], path: str
                    ) -> None:
        """Lets the library find added tokens in texts, but for ALBERT's own: "[CLS]" in
        a text is ordinary text. `vocab` gets those that are behind it."""
        placed: list[AddedToken] = []
        known: dict[str, AddedToken] = {}
        for token in (*listed, *self.rules.added):
            first = known.setdefault(token.content, token)
            if first.id is None:
                known[token.content] = first._replace(id=token.id)
        for token in sorted(known.values(), key=lambda token: self.vocab.get(
                token.content, math.inf if token.id is None else token.id)):
            place = self.vocab.setdefault(token.content, len(self.vocab))
            if token.id not in (None, place):
                raise InputError(
                    f"{path}: the added token {token.content!r:.40} has the id {token.id},"
                    f" but its place in the vocabulary, or behind it, is {place}; correct "
                    "it.")
            placed.append(token._replace(id=place))
        self._listed = [{"id": token.id, **token._asdict()} for token in placed]
        self.added = tuple(token for token in placed if token.content not in (
            "[CLS]", "[SEP]", "[MASK]", *names))
        self._contents = {token.id: token.content for token in self.added}
        self._engine.add_tokens([
            tokenizers().AddedToken(content, special=False, **dict(zip(
                ("single_word", "lstrip", "rstrip", "normalized"), flags)))
            for content, _, *flags, _ in self.added])

    def normalized(self, text: str) -> str:
        """Returns a text after cleaning, before it is split into words."""
        normalizer = self._engine.normalizer
        return normalizer.normalize_str(text) if normalizer else text

    def words(self, text: str) -> list[str]:
        """Returns the words of a text after cleaning."""
        return [word for word, _ in
                self._engine.pre_tokenizer.pre_tokenize_str(self.normalized(text))]

    def to_json(self) -> dict[str, Any]:
        """Returns the content of a tokenizer.json that tokenizes in the same way."""
        return {**json.loads(self._engine.to_str()), "added_tokens": self._listed}

    def tokenize_batch(self, texts: Iterable[str]) -> list[list[str]]:
        return list(map(self._tokens, self._encoded(texts)))

    def encode_batch(self, texts: Iterable[str]) -> list[list[int]]:
        return [row.ids for row in self._encoded(texts, ids_only=True)]

    def _tokens(self, row) -> list[str]:
        """Returns a result's tokens; for an added one it has the characters found."""
        return [self._contents.get(i, piece) for i, piece in zip(row.ids, row.tokens)
                ] if self._contents else row.tokens

    def _encoded(self, texts: Iterable[str], ids_only: bool = False) -> list[Any]:
        """Returns the library's result for each text; with `ids_only` it is faster."""
        texts, engine = list(texts), self._engine
        try:
            return (engine.encode_batch_fast if ids_only else engine.encode_batch)(
                texts, add_special_tokens=False)
        except (TypeError, UnicodeError):
            check_encodable(texts)
            raise

    def tokenize_with_offsets(self, text: str) -> list[PieceSpan]:
        encoded, = self._encoded([text])
        pieces = self._tokens(encoded)
        marks = set() if text.isascii() else {
            char for char in set(text)
            if unicodedata.category(char)[0] == "M" and not self.normalized(char)}
        if not (marks or self.uses_sentencepiece or self.added):
            starts, ends = zip(*encoded.offsets) if encoded.ids else ((), ())
            return list(map(PieceSpan, pieces, encoded.ids, starts, ends))
        spans = []
        behind = 0  # the end of the token before
        for piece, i, (start, end) in zip(pieces, encoded.ids, encoded.offsets):
            if piece == tokenizer_json.UNDERLINE:
                solid = re.compile(r"\S").search(text, behind)
                start = end = solid.start() if solid else behind
            elif self.uses_sentencepiece:
                # The library gives a token the blank before it, and of characters that
                # were replaced together the last one.
                while start < end and text[start].isspace():
                    start += 1
                while start > behind and not text[start - 1].isspace() and (
                        self.normalized(text[start - 1])):
                    start -= 1
            if i in self._contents:  # Some take the blanks beside them.
                found = text[start:end]
                start, end = (end - len(found.lstrip()), start + len(found.rstrip()))
            while text[end:end + 1] in marks:
                end += 1
            behind = max(behind, end)
            spans.append(PieceSpan(piece, i, start, end))
        return spans


def from_json(path: str, added: Iterable[AddedToken] = ()) -> HfTokenizer:
    """Returns the tokenizer in a tokenizer.json, whichever model it has, with further
    added tokens."""
    kind = tokenizer_json.read(path)[0]["model"]["type"]
    words, rules = kind == "WordPiece", Rules(added=tuple(added))
    return HfTokenizer(path if words else None, None, None if words else path, None, rules)
