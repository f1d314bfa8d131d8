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
from albert_tf.tokenization.cleaning import UNDERLINE, AddedToken, ends_in_digit_comma
from albert_tf.tokenization.sequences import assemble
from albert_tf.tokenization.tokenizer import (
    FullTokenizer, PieceSpan, SentencePieceTokenizer, model_proto)

# The library's threads would disturb those of processes that are forked later.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


class HfTokenizer(FullTokenizer):
    """A FullTokenizer with a WordPiece vocabulary or a tokenizer.json."""

    def _load(self, path: str, lower: Optional[bool], strips: Optional[bool]
              ) -> Sequence[str]:
        names: Sequence[str] = ("[PAD]", "[UNK]")
        listed: list[AddedToken] = []
        self.do_lower_case, self.strip_accents = lower is not False, strips is not False
        if is_file(path):
            value, self._engine = read_json(path)
            with reading(path):
                listed = [AddedToken.of({**token})
                          for token in value.get("added_tokens") or ()]
                model = value["model"]
                self.uses_sentencepiece = model["type"] == "Unigram"
                if self.uses_sentencepiece:
                    names = ("<pad>", model["vocab"][model["unk_id"]][0])
                # It says itself how it cleans.
                self.strip_accents = self.normalized("é") in "eE"
                self.do_lower_case = self.normalized("A") == "a"
            contents = {token.content for token in listed}
            self.rules = self.rules._replace(added=tuple(
                token for token in self.rules.added if token.content not in contents))
            if strips not in (None, self.strip_accents) or (
                    lower not in (None, self.do_lower_case)):
                raise InputError(
                    f"{path}: it {'strips' if self.strip_accents else 'keeps'} accents and "
                    f"{'lower-cases' if self.do_lower_case else 'keeps the case of'} text; "
                    "leave out --strip_accents and --do_lower_case.")
        elif self.uses_sentencepiece:
            plain = SentencePieceTokenizer(
                None, lower, path, strips, self.rules._replace(added=()))
            self.strip_accents = plain.strip_accents
            names = plain.convert_ids_to_tokens([plain.pad_id, plain.unk_id])
            self._engine = _of_sentencepiece(plain)
        else:
            # As load_vocab in the original: a line is read up to its first white space, an
            # empty line is the token " ", and a repeated token uses no id.
            ids: dict[str, int] = {}
            for _, line in text_files.read_lines(path):
                ids.setdefault((line.split() or [" "])[0], len(ids))
            self._engine = tokenizers.Tokenizer(tokenizers.models.WordPiece(
                ids, unk_token="[UNK]",
                max_input_chars_per_word=self.rules.max_word_chars))
            self._engine.normalizer = normalizers.BertNormalizer(
                handle_chinese_chars=self.rules.split_chinese, lowercase=self.do_lower_case,
                strip_accents=self.strip_accents and (
                    self.do_lower_case or self.rules.strips_cased))
            self._engine.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
            self._engine.decoder = tokenizers.decoders.WordPiece()
        self._find_added(listed, {"[CLS]", "[SEP]", "[MASK]", *names}, path)
        self._engine.post_processor = tokenizers.processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
            special_tokens=[(name, self.vocab.get(name, 0)) for name in ("[CLS]", "[SEP]")])
        return names

    def _find_added(self, listed: Iterable[AddedToken], own: set[str], path: str) -> None:
        """Sets `vocab`, and lets the library find added tokens in texts, but for ALBERT's
        own: "[CLS]" in a text is ordinary text."""
        known: dict[str, AddedToken] = {}
        for token in sorted(
                (*listed, *self.rules.added,
                 *map(AddedToken, own & self._engine.get_vocab().keys())),
                key=lambda token: math.inf if token.id is None else token.id):
            known.setdefault(token.content, token)
        # Those that are not in the vocabulary get the ids behind it, in this order.
        self._engine.add_tokens([
            tokenizers.AddedToken(content, special=False, **dict(zip(
                ("single_word", "lstrip", "rstrip", "normalized"), flags)))
            for content, _, *flags, _ in known.values()
            if content not in own or self._engine.token_to_id(content) is None])
        self.vocab = dict(sorted(
            self._engine.get_vocab().items(), key=lambda item: item[1]))
        for token in known.values():
            if token.id not in (None, place := self.vocab[token.content]):
                raise InputError(
                    f"{path}: the added token {token.content!r:.40} has the id {token.id},"
                    f" but its place is {place}; correct it.")
        self._listed = [known[content]._replace(id=i)
                        for content, i in self.vocab.items() if content in known]
        self.added = tuple(token for token in self._listed if token.content not in own)

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
        return {**json.loads(self._engine.to_str()), "added_tokens": [
            {"id": token.id, **token._asdict()} for token in self._listed]}

    def tokenize_batch(self, texts: Iterable[str]) -> list[list[str]]:
        return list(map(self._tokens, self._engine.encode_batch(
            list(texts), add_special_tokens=False)))

    def encode_batch(self, texts: Iterable[str]) -> list[list[int]]:
        return [row.ids for row in self._engine.encode_batch_fast(
            list(texts), add_special_tokens=False)]

    def _tokens(self, row) -> list[str]:
        """Returns a result's tokens; for an added one it has the characters found."""
        return [piece if i == self.unk_id else self._pieces[i]
                for i, piece in zip(row.ids, row.tokens)] if self.added else row.tokens

    def tokenize_with_offsets(self, text: str) -> list[PieceSpan]:
        encoded = self._engine.encode(text, add_special_tokens=False)
        found = zip(self._tokens(encoded), encoded.ids, encoded.offsets)
        marks = {char for char in set(text) if unicodedata.category(char)[0] == "M"
                 and not self.normalized(char)}
        spans, own = [], {token.id for token in self.added}
        behind = 0  # the end of the token before
        for piece, i, (start, end) in found:
            if self.uses_sentencepiece and piece == UNDERLINE:
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
            if i in own:  # Some take the blanks beside them.
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
    with files.open_binary(path) as stream:
        return stream.read(256).lstrip()[:1] == b"{"


def read_json(path: str) -> tuple[dict[str, Any], tokenizers.Tokenizer]:
    """Returns the content of a tokenizer.json, whose model is Unigram or WordPiece, and
    its tokenizer without added tokens. Refuses what would give other sequences than
    [CLS] A [SEP] B [SEP]."""
    value = text_files.read_object(path)
    with reading(path):
        model, step = value["model"], value.get("post_processor")
        engine = tokenizers.Tokenizer.from_str(json.dumps({
            **value, "added_tokens": [], "truncation": None, "padding": None}))
        kind, a = model["type"], engine.encode("a", add_special_tokens=False).tokens
        made = (engine.encode("a"), None), (engine.encode("a", "a"), a)
        wrong = {
            f"the model {kind}": kind not in ("Unigram", "WordPiece"),
            "a vocab with ids that are not 0, 1, 2, ...":
                sorted(engine.get_vocab().values()) != [*range(len(model["vocab"]))],
            **{f"{name}={model.get(name)!r:.40}":
               kind == "WordPiece" and model.get(name, wanted) != wanted for name, wanted in (
                   ("unk_token", "[UNK]"), ("continuing_subword_prefix", "##"))},
            f"a post_processor ({step and step['type']}) that does not make [CLS] A [SEP] "
            "B [SEP]": step and any(
                (row.tokens, row.type_ids) != assemble(a, second, "[CLS]", "[SEP]")
                for row, second in made)}
    for what in filter(wrong.get, wrong):
        raise InputError(
            f"{path}: {what} is not supported; give the tokenizer in another form "
            "(spiece.model or vocab.txt) or a different model.")
    return value, engine


@functools.cache
def _class_of(test) -> str:
    """Returns a regular expression's class of all characters that pass a test."""
    return "[" + "".join(f"\\x{{{code:X}}}" for code in range(sys.maxunicode + 1)
                         if test(chr(code))) + "]"


def _of_sentencepiece(like: SentencePieceTokenizer) -> tokenizers.Tokenizer:
    """Returns a tokenizer like another one, as far as the format permits.

    The digit-comma rule is imitated by scores so low that those tokens are never chosen.
    The model's own symbols, such as "(", are not "added tokens", which would be cut out
    of the text before it is split into words.
    """
    def replaced(pattern: str, by: str = "") -> normalizers.Normalizer:
        return normalizers.Replace(tokenizers.Regex(pattern), by)

    model = model_proto().FromString(like.processor.serialized_model_proto())
    ends = replaced("^ | $")
    steps: list[normalizers.Normalizer] = [
        normalizers.Replace(quote, '"') for quote in ("``", "''") if like.rules.quotes]
    if not like.rules.changed:
        steps += [replaced(f"{_class_of(str.isspace)}+", " "), ends]
    if like.strip_accents:
        steps += [normalizers.NFKD(), normalizers.StripAccents() if like.rules.all_marks
                  else replaced(_class_of(unicodedata.combining))]
    if like.do_lower_case:
        steps.append(normalizers.Lowercase())
    if table := model.normalizer_spec.precompiled_charsmap:
        steps.append(normalizers.Precompiled(table))
    steps += [replaced(" {2,}", " "), normalizers.Strip() if like.rules.changed else ends]
    result = tokenizers.Tokenizer(tokenizers.models.Unigram(
        [(piece.piece, piece.score - 100.0 * ends_in_digit_comma(piece.piece))
         for piece in model.pieces], model.trainer_spec.unk_id,
        model.trainer_spec.byte_fallback))
    result.normalizer = normalizers.Sequence(steps)
    result.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(UNDERLINE)
    result.decoder = tokenizers.decoders.Metaspace(UNDERLINE)
    return result
