"""WordPiece, and Hugging Face's tokenizer.json, by the tokenizers library.

A vocab.txt is tokenized as in the original implementation, except that characters of
private use are dropped and that a capital sigma at the end of a word becomes "σ".
"""

import functools
import json
import math
import os
import re
import sys
import unicodedata
from typing import Any, Iterable, Optional, Sequence

import tokenizers
from tokenizers import normalizers

from albert_tf import files, text_files
from albert_tf.errors import InputError, reading
from albert_tf.tokenization.cleaning import (
    UNDERLINE, AddedToken, Rules, encodable, ends_in_digit_comma)
from albert_tf.tokenization.tokenizer import FullTokenizer, PieceSpan, model_proto

# The library's threads would disturb those of processes that are forked later.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


class HfTokenizer(FullTokenizer):
    """A FullTokenizer with a WordPiece vocabulary or a tokenizer.json."""

    def _load(self, path: str, lower: Optional[bool], strips: Optional[bool]
              ) -> Sequence[str]:
        self.is_json = is_file(path)
        names: Sequence[str] = ("[PAD]", "[UNK]")
        self.do_lower_case, self.strip_accents = lower is not False, strips is not False
        if self.is_json:
            value, self.vocab = read_json(path)
            listed = list(map(AddedToken.of, value["added_tokens"]))
            with reading(path, binary=True):
                self._engine = tokenizers.Tokenizer.from_str(json.dumps({
                    **value, "added_tokens": [], "truncation": None, "padding": None}))
            self.uses_sentencepiece = value["model"]["type"] == "Unigram"
            if self.uses_sentencepiece:
                names = ("<pad>", dict(enumerate(self.vocab)).get(
                    value["model"].get("unk_id"), "unk_id"))
            with reading(path, binary=True):  # It says itself how it cleans.
                self.strip_accents = self.normalized("é") in "eE"
                self.do_lower_case = self.normalized("A") == "a"
            if strips not in (None, self.strip_accents) or (
                    lower is False and self.do_lower_case):
                raise InputError(
                    f"{path}: it {'strips' if self.strip_accents else 'keeps'} accents and "
                    f"{'lower-cases' if self.do_lower_case else 'keeps the case of'} text; "
                    "leave out --strip_accents and --do_lower_case.")
            if lower and not self.do_lower_case:
                self._engine.normalizer = normalizers.Sequence([
                    normalizers.Lowercase(), *filter(None, [self._engine.normalizer])])
                self.do_lower_case = True
        elif self.uses_sentencepiece:
            rules = self.rules._replace(added=())
            plain = FullTokenizer(None, lower, path, strips, rules)
            self.vocab, self.strip_accents = plain.vocab, plain.strip_accents
            names = plain.convert_ids_to_tokens([plain.pad_id, plain.unk_id])
            self._engine = _of_sentencepiece(
                path, self.do_lower_case, self.strip_accents, rules)
        else:
            # As load_vocab in the original: a line is read up to its first white space, an
            # empty line is the token " ", and a repeated token uses no id.
            self.vocab = {}
            for _, line in text_files.read_lines(path):
                self.vocab.setdefault((line.split() or [" "])[0], len(self.vocab))
            self._engine = _of_word_pieces(
                self.vocab, self.do_lower_case, self.strip_accents, self.rules)
        if not self.is_json:
            self._engine.post_processor = tokenizers.processors.TemplateProcessing(
                single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
                special_tokens=[(name, self.vocab.get(name, 0))
                                for name in ("[CLS]", "[SEP]")])
            listed = [AddedToken(name) for name in (*names, "[CLS]", "[SEP]", "[MASK]")
                      if name in self.vocab]
        self._find_added(listed, names, path)
        return names

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
                    f" but its place is {place}; correct it.")
            placed.append(token._replace(id=place))
        self._listed = [{"id": token.id, **token._asdict()} for token in placed]
        self.added = tuple(token for token in placed if token.content not in (
            "[CLS]", "[SEP]", "[MASK]", *names))
        self._contents = {token.id: token.content for token in self.added}
        self._engine.add_tokens([
            tokenizers.AddedToken(content, special=False, **dict(zip(
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
        with encodable(texts):
            return (engine.encode_batch_fast if ids_only else engine.encode_batch)(
                texts, add_special_tokens=False)

    def tokenize_with_offsets(self, text: str) -> list[PieceSpan]:
        encoded, = self._encoded([text])
        found = zip(self._tokens(encoded), encoded.ids, encoded.offsets)
        marks = set() if text.isascii() else {
            char for char in set(text)
            if unicodedata.category(char)[0] == "M" and not self.normalized(char)}
        if not (marks or self.uses_sentencepiece or self.added):
            return [PieceSpan(piece, i, start, end) for piece, i, (start, end) in found]
        spans = []
        behind = 0  # the end of the token before
        for piece, i, (start, end) in found:
            if piece == UNDERLINE:
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
                part = text[start:end]
                start, end = end - len(part.lstrip()), start + len(part.rstrip())
            while text[end:end + 1] in marks:
                end += 1
            behind = max(behind, end)
            spans.append(PieceSpan(piece, i, start, end))
        return spans


# ---- tokenizer.json --------------------------------------------------------


def is_file(path: str) -> bool:
    """Returns whether a vocabulary file is a tokenizer.json, whatever its name; no other
    begins with "{"."""
    if not files.exists(path) or files.is_folder(path):
        return False
    with files.open_binary(path) as stream:
        return stream.read(256).lstrip()[:1] == b"{"


def read_json(path: str) -> tuple[dict[str, Any], dict[str, int]]:
    """Returns the content of a tokenizer.json, whose model is Unigram or WordPiece, and
    the ids of its tokens, without the AddedTokens behind them. Refuses what would give
    other sequences than [CLS] A [SEP] B [SEP]."""
    value = text_files.read_object(path)
    with reading(path, binary=True):
        model = value["model"]
        kind, vocab = model["type"], model["vocab"]
        ids = {piece: i for i, (piece, _) in enumerate(vocab)} if kind == "Unigram" else (
            dict(sorted(vocab.items(), key=lambda item: item[1])))
        value["added_tokens"] = [AddedToken.of({**token})._asdict()
                                 for token in value.get("added_tokens") or ()]
        step = value.get("post_processor") or {"type": "BertProcessing"}
        wrong = {
            f"the model {kind}": kind not in ("Unigram", "WordPiece"),
            "a vocab with ids that are not 0, 1, 2, ...":
                list(ids.values()) != list(range(len(vocab))),
            **{f"{name}={model.get(name)!r:.40}":
               kind == "WordPiece" and model.get(name, wanted) != wanted for name, wanted in (
                   ("unk_token", "[UNK]"), ("continuing_subword_prefix", "##"))},
            f"a post_processor ({step['type']}) that does not make [CLS] A [SEP] B [SEP]":
                step["type"] != "BertProcessing" and (
                    step.get("single"), step.get("pair")) != (_SINGLE, _PAIR)}
    for what in filter(wrong.get, wrong):
        raise InputError(
            f"{path}: {what} is not supported; give the tokenizer in another form "
            "(spiece.model or vocab.txt) or a different model.")
    return value, ids


# [CLS] A [SEP] and [CLS] A [SEP] B [SEP].
_PAIR = [{kind: {"id": name, "type_id": segment}} for kind, name, segment in (
    ("SpecialToken", "[CLS]", 0), ("Sequence", "A", 0), ("SpecialToken", "[SEP]", 0),
    ("Sequence", "B", 1), ("SpecialToken", "[SEP]", 1))]
_SINGLE = _PAIR[:3]


@functools.cache
def _class_of(test) -> str:
    """Returns a regular expression's class of all characters that pass a test."""
    return "[" + "".join(f"\\x{{{code:X}}}" for code in range(sys.maxunicode + 1)
                         if test(chr(code))) + "]"


def _of_sentencepiece(model_file: str, do_lower_case: bool, strip_accents: bool,
                      rules: Rules) -> tokenizers.Tokenizer:
    """Returns a tokenizer like FullTokenizer's for a SentencePiece model, as far as the
    format permits.

    The digit-comma rule is imitated by scores so low that those tokens are never chosen.
    The model's own symbols, such as "(", are not "added tokens", which would be cut out
    of the text before it is split into words.
    """
    with files.open_binary(model_file) as stream:
        model = model_proto().FromString(stream.read())

    def replaced(pattern: str, by: str = "") -> normalizers.Normalizer:
        return normalizers.Replace(tokenizers.Regex(pattern), by)

    ends = replaced("^ | $")
    steps: list[normalizers.Normalizer] = [
        normalizers.Replace(quote, '"') for quote in ("``", "''") if rules.quotes]
    if not rules.changed:
        steps += [replaced(f"{_class_of(str.isspace)}+", " "), ends]
    if strip_accents:
        steps += [normalizers.NFKD(), normalizers.StripAccents() if rules.all_marks else
                  replaced(_class_of(unicodedata.combining))]
    if do_lower_case:
        steps.append(normalizers.Lowercase())
    if table := model.normalizer_spec.precompiled_charsmap:
        steps.append(normalizers.Precompiled(table))
    steps += [replaced(" {2,}", " "), normalizers.Strip() if rules.changed else ends]
    result = tokenizers.Tokenizer(tokenizers.models.Unigram(
        [(piece.piece, piece.score - 100.0 * ends_in_digit_comma(piece.piece))
         for piece in model.pieces], model.trainer_spec.unk_id,
        model.trainer_spec.byte_fallback))
    result.normalizer = normalizers.Sequence(steps)
    result.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(UNDERLINE)
    result.decoder = tokenizers.decoders.Metaspace(UNDERLINE)
    return result


def _of_word_pieces(ids: dict[str, int], do_lower_case: bool, strip_accents: bool,
                    rules: Rules) -> tokenizers.Tokenizer:
    """Returns a tokenizer for a WordPiece vocabulary."""
    result = tokenizers.Tokenizer(tokenizers.models.WordPiece(
        ids, unk_token="[UNK]", max_input_chars_per_word=rules.max_word_chars))
    result.normalizer = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=rules.split_chinese,
        strip_accents=strip_accents and (do_lower_case or rules.strips_cased),
        lowercase=do_lower_case)
    result.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    result.decoder = tokenizers.decoders.WordPiece()
    return result
