"""Splits text into tokens and ids with SentencePiece or WordPiece, as the original
implementation does."""

import functools
import importlib
import numbers
import os
from typing import Any, Iterable, NamedTuple, Optional, Sequence

import numpy as np
import sentencepiece
from absl import logging

from albert_tf import files
from albert_tf.files import StrPath
from albert_tf.errors import InputError, reading
from albert_tf.tokenization import sequences
from albert_tf.tokenization.cleaning import (
    ORIGINAL, UNDERLINE, AddedToken, PreparedText, Rules, ends_in_digit_comma,
    preprocess_text, preprocess_with_sources)


class PieceSpan(NamedTuple):
    """A token, its id, and the characters text[start:end] that it came from."""

    piece: str
    id: int
    start: int
    end: int


class FullTokenizer:
    """A tokenizer that uses SentencePiece or WordPiece.

        tokenizer = FullTokenizer(spm_model_file="30k-clean.model")
        tokenizer.tokenize(tokenizer.prepare("Hello, World!"))
        # ['▁hello', ',', '▁world', '!']
        tokenizer.encode("Hello, World!")
        # [10975, 15, 126, 187]
        tokenizer(["One text.", "Another one."], max_length=128)["input_ids"].shape
        # (2, 6)

    The result is a `SentencePieceTokenizer` or, for a WordPiece vocabulary, Hugging
    Face's tokenizer.json and added tokens, an `HfTokenizer`. It can be sent to other
    processes. cls_id, sep_id, mask_id, pad_id and unk_id are the special tokens' ids.
    """

    vocab: dict[str, int]  # token → id; do not change it
    vocabulary_path: str
    uses_sentencepiece: bool  # whether "▁" marks the start of a word
    do_lower_case: bool
    strip_accents: bool
    added: tuple[AddedToken, ...] = ()  # found in a text before it is cleaned
    word_start: Optional[str] = None  # that of data creation, if the vocabulary says it

    def __new__(cls, vocab_file=None, do_lower_case=None, spm_model_file=None,
                strip_accents=None, rules=None):
        if cls is FullTokenizer:
            others = importlib.import_module("albert_tf.tokenization.hf_tokenizer")
            cls = others.HfTokenizer if (
                not spm_model_file or rules and rules.added
                or others.is_file(os.fspath(spm_model_file))) else SentencePieceTokenizer
        return super().__new__(cls)

    def __init__(self, vocab_file: Optional[StrPath] = None,
                 do_lower_case: Optional[bool] = None,
                 spm_model_file: Optional[StrPath] = None,
                 strip_accents: Optional[bool] = None, rules: Optional[Rules] = None):
        """Loads a SentencePiece model, a WordPiece vocabulary or a tokenizer.json.

        Args:
          vocab_file: WordPiece vocabulary file, one token per line, or a tokenizer.json;
            not read if spm_model_file is given.
          do_lower_case: whether to lower-case text: in `prepare` with SentencePiece, in
            `tokenize` with WordPiece. None: as a tokenizer.json says, otherwise True.
          spm_model_file: SentencePiece model file, or a tokenizer.json.
          strip_accents: whether to remove accents and other combining marks ("schön"
            becomes "schon"); with WordPiece only if do_lower_case. None: True, except for
            a vocabulary that keeps them.
          rules: rules of cleaning that differ from the original implementation's; a
            tokenizer.json has its own, but for further added tokens.
        """
        given = spm_model_file or vocab_file
        if not given:
            raise InputError(
                "There is no vocabulary; give --spm_model_file (SentencePiece) or "
                "--vocab_file (WordPiece).")
        path = self.vocabulary_path = os.fspath(given)
        self.rules = rules or ORIGINAL
        self.uses_sentencepiece = bool(spm_model_file)
        names = ["[CLS]", "[SEP]", "[MASK]",
                 *self._load(path, do_lower_case, strip_accents)]
        self._pieces = list(self.vocab)
        if missing := [name for name in names if name not in self.vocab]:
            raise InputError(
                f"{path}: the vocabulary has no {', '.join(missing)}, which ALBERT "
                "needs; add them, or train one with train_sentencepiece.py.")
        self.cls_id, self.sep_id, self.mask_id, self.pad_id, self.unk_id = (
            self.vocab[name] for name in names)

    def _load(self, path: str, lower: Optional[bool], strips: Optional[bool]
              ) -> Sequence[str]:
        """Sets vocab, do_lower_case and strip_accents; returns the padding and the
        unknown token."""
        raise NotImplementedError

    @property
    def keeps(self) -> dict[str, Any]:
        """The settings to store beside a vocabulary; {} for those of the original
        implementation."""
        values = {"strip_accents": self.strip_accents, "rules": self.rules.changed}
        return {name: value for name, value in values.items() if value not in (True, {})}

    def check_keeps_accents(self) -> None:
        """Raises InputError if accents are kept, but no token has one."""
        if self.uses_sentencepiece and not self.strip_accents and all(
                preprocess_text(piece, False, False) == piece for piece in self.vocab):
            raise InputError(
                f"{self.vocabulary_path}: the vocabulary was trained on text without "
                "accents, so letters with accents would be unknown tokens; give "
                "--strip_accents=true, or leave it out.")

    @property
    def vocab_size(self) -> int:
        """The number of tokens in the vocabulary, with special tokens."""
        return len(self.vocab)

    def prepare(self, text: str) -> str:
        """Cleans a text for `tokenize`, which does it itself with WordPiece. A result is
        not cleaned again."""
        return text

    def prepare_batch(self, texts: Iterable[str]) -> list[str]:
        """Returns [prepare(text).strip() for text in texts], but faster."""
        return list(map(str.strip, texts))

    def tokenize(self, text: str) -> list[str]:
        """Splits text into tokens; with SentencePiece the text must be prepared."""
        return self.tokenize_batch([text])[0]

    def tokenize_batch(self, texts: Iterable[str]) -> list[list[str]]:
        """Returns [tokenize(text) for text in texts], but faster."""
        raise NotImplementedError

    def encode(self, text: str) -> list[int]:
        """Returns the ids of tokenize(prepare(text))."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Iterable[str]) -> list[list[int]]:
        """Returns [encode(text) for text in texts], but faster."""
        raise NotImplementedError

    def prepared_ids(self, texts: list[str]) -> list[list[int]]:
        """Returns the ids of prepared texts. With SentencePiece, the text of an unknown
        token may be "9," or "[CLS]", so a row with one may differ from `encode`."""
        return self.encode_batch(texts)

    def __call__(self, texts: str | Sequence[str],
                 text_pairs: None | str | Sequence[str] = None, max_length: int = 512
                 ) -> dict[str, Any]:
        """Returns a batch for a model, padded to its longest sequence: int32 arrays
        [B, S] input_ids, input_mask, segment_ids.

        Texts are cleaned and cut as in training; in a pair the longer text is cut.
        `max_length` includes special tokens.
        """
        sequences.check_length(max_length, "max_length=")
        texts = [texts] if isinstance(texts, str) else texts
        pairs: Sequence[Optional[str]] = [text_pairs] if isinstance(text_pairs, str) else (
            [None] * len(texts) if text_pairs is None else text_pairs)
        rows = [self.fitted(text, pair, max_length)[0][0]
                for text, pair in zip(texts, pairs, strict=True)]
        longest = max(len(row["input_ids"]) for row in rows)
        rows = [sequences.pad_inputs(row, longest, self.pad_id) for row in rows]
        return {name: np.array([row[name] for row in rows], np.int32) for name in rows[0]}

    def fitted(self, text: str, text_pair: Optional[str], max_length: int,
               windows: bool = False) -> tuple[list[dict[str, list[int]]], int]:
        """Returns input_ids, input_mask, segment_ids of each sequence of a text or pair
        (sequences.fitted), not padded, and the number of tokens that are in none of them
        (convert_single_example in the original implementation). A second text without
        tokens is left out, even after the cut."""
        first, second = self.encode(text), self.encode(text_pair) if text_pair else []
        parts, cut = sequences.fitted(first, second, max_length, windows)
        return [self.assembled(first, second or None) for first, second in parts], cut

    def assembled(self, first: Sequence[int], second: Optional[Sequence[int]] = None
                  ) -> dict[str, list[int]]:
        """Returns input_ids, input_mask, segment_ids of a sequence of one text's tokens
        or two (sequences.assemble), not padded."""
        ids, segments = sequences.assemble(first, second, self.cls_id, self.sep_id)
        return {"input_ids": ids, "input_mask": [1] * len(ids), "segment_ids": segments}

    def decode(self, ids: Sequence[Any], skip_special: bool = True) -> str | list[str]:
        """Returns the text for a row of ids, or for each row in a batch.

        Cleaning cannot be undone. [CLS], [SEP] and padding are left out unless
        `skip_special` is False.
        """
        ids = ids.tolist() if hasattr(ids, "tolist") else list(ids)
        if ids and isinstance(ids[0], (list, tuple)):
            return [self.decode(row, skip_special) for row in ids]  # type: ignore[misc]
        special = {self.cls_id, self.sep_id, self.pad_id} if skip_special else set()
        pieces = [piece for piece, i in zip(self.convert_ids_to_tokens(ids), ids)
                  if i not in special]
        if self.uses_sentencepiece:
            return "".join(pieces).replace(UNDERLINE, " ").strip()
        return " ".join(pieces).replace(" ##", "")

    def tokenize_with_offsets(self, text: str) -> list[PieceSpan]:
        """Returns tokenize(prepare(text)), each token with its position in `text`.

        text[start:end] is what the token was made from, with accents that are separate
        characters. If one character gives several tokens, each has its position. White
        space belongs to no token: "▁" alone has start == end, just before the next
        character that is not white space.
        """
        raise NotImplementedError

    def convert_tokens_to_ids(self, tokens: Iterable[str]) -> list[int]:
        """Returns the ids of tokens; unk_id for one that is not in the vocabulary, as
        SentencePiece's tokens keep unknown text."""
        return [self.vocab.get(piece, self.unk_id) for piece in tokens]

    def convert_ids_to_tokens(self, ids: Iterable[int]) -> list[str]:
        """Returns the tokens for ids; raises InputError for an unknown id."""
        ids, size = list(ids), len(self._pieces)
        for i in ids:
            if not isinstance(i, numbers.Integral) or not 0 <= i < size:
                raise InputError(f"There is no token with id {i!r:.40}; this vocabulary "
                                 f"has the whole numbers from 0 to {size - 1}.")
        return [self._pieces[i] for i in ids]


class SentencePieceTokenizer(FullTokenizer):
    """A FullTokenizer with a SentencePiece model, the `processor`.

    The original implementation splits a token that ends in a digit and a comma, such as
    "▁1999,". It encodes the part before the comma again, which puts a "▁" before it, even
    if the token had none: the token "9," inside a longer number becomes "▁9" and ",".
    """

    _told = False  # whether a text that was not prepared was reported

    def _load(self, path: str, lower: Optional[bool], strips: Optional[bool]
              ) -> Sequence[str]:
        self.processor = load(path)
        marks = marks_of(self.processor.serialized_model_proto())
        keeps, self.word_start = "strip_accents" in marks, marks.get("word_start")
        if strips and keeps:
            raise InputError(f"{path}: the vocabulary was trained on text with accents; "
                             "give --strip_accents=false, or leave it out.")
        self.do_lower_case = lower is not False
        self.strip_accents = not keeps if strips is None else strips
        pieces = self.processor.id_to_piece([*range(len(self.processor))])
        self.vocab = {piece: i for i, piece in enumerate(pieces)}
        pad_id = self.processor.pad_id()
        # A model trained without padding lacks this token; its name is then "<pad>".
        return pieces[pad_id] if pad_id >= 0 else "<pad>", pieces[self.processor.unk_id()]

    def prepare(self, text: str) -> str:
        return text if isinstance(text, PreparedText) else PreparedText(preprocess_text(
            text, self.do_lower_case, strip_accents=self.strip_accents, rules=self.rules))

    def prepare_batch(self, texts: Iterable[str]) -> list[str]:
        # Together, with line feeds between them, across which nothing acts.
        lines = [" ".join(text.split()) for text in texts]
        return list(map(str.strip, preprocess_text(
            "\n".join(lines), self.do_lower_case, False, self.strip_accents, self.rules
            ).split("\n")[:len(lines)]))

    def tokenize(self, text: str) -> list[str]:
        if not self._told and text != (prepared := self.prepare(text)):
            self._told = True
            logging.warning(
                "The text %r was not prepared as for the vocabulary (%r), so its "
                "tokens may differ. Pass tokenizer.prepare(text), or call encode.",
                text[:40], prepared[:40])
        return super().tokenize(text)

    def tokenize_batch(self, texts: Iterable[str]) -> list[list[str]]:
        return list(map(self._split_digit_commas, self._encode(list(texts), str)))

    def encode_batch(self, texts: Iterable[str]) -> list[list[int]]:
        texts = list(map(self.prepare, texts))
        return [self.convert_tokens_to_ids(self.tokenize(text)) if self.unk_id in row
                else row for text, row in zip(texts, self.prepared_ids(texts))]

    def prepared_ids(self, texts: list[str]) -> list[list[int]]:
        splits = self.splits
        return [row if splits.keys().isdisjoint(row) else
                [part for i in row for part in splits.get(i, (i,))]
                for row in self._encode(texts, int)]

    @functools.cached_property
    def splits(self) -> dict[int, list[int]]:
        """Id → ids of the parts, for each token that ends in a digit and a comma."""
        return {i: self.convert_tokens_to_ids(self._split_digit_commas([piece]))
                for piece, i in self.vocab.items() if ends_in_digit_comma(piece)}

    def drops(self, char: str) -> bool:
        """Returns whether the model makes at most blanks of a prepared character."""
        return not _without_space(self.processor.normalize(char))

    def tokenize_with_offsets(self, text: str) -> list[PieceSpan]:
        prepared, sources = preprocess_with_sources(
            text, self.do_lower_case, self.strip_accents, self.rules)
        pieces = self.tokenize(PreparedText(prepared))
        normalized, firsts = self.processor.normalize(prepared, with_offsets=True)
        if _without_space(normalized) != _without_space("".join(pieces)):
            raise InputError(
                f"The tokens of {prepared[:60]!r} are not its normalized text, so their "
                "places are unknown; use a model without byte fallback.")
        # A normalized character comes from all up to the source of the next, without
        # what the model drops behind it.
        bounds = sorted({*firsts, len(prepared)})
        following = dict(zip(bounds, bounds[1:]))
        chars = []
        for char, first in zip(normalized, firsts):
            if _without_space(char):
                last = following[first] - 1
                while last > first and self.drops(prepared[last]):
                    last -= 1
                chars.append((sources[first][0], sources[last][1]))
        # Where a "▁" behind the last character is.
        chars.append((chars[-1][1],) * 2 if chars else (0, 0))
        spans, first = [], 0
        for piece, i in zip(pieces, self.convert_tokens_to_ids(pieces)):
            last = first + len(_without_space(piece))
            start = chars[first][0]
            spans.append(PieceSpan(
                piece, i, start, chars[last - 1][1] if last > first else start))
            first = last
        return spans

    def _split_digit_commas(self, pieces: list[str]) -> list[str]:
        if not any(map(ends_in_digit_comma, pieces)):
            return pieces
        return [part for piece in pieces for part in (
            [*self._encode(piece[:-1].replace(UNDERLINE, ""), str), ","]
            if ends_in_digit_comma(piece) else [piece])]

    def _encode(self, texts, out_type):
        return self.processor.encode(texts, out_type=out_type, num_threads=1)


def model_proto():
    """Imports and returns SentencePiece's message class ModelProto, which is generated
    for one version of protobuf and may not run with the version of TensorFlow."""
    try:
        from sentencepiece import sentencepiece_model_pb2
    except Exception as error:  # protobuf raises VersionError, older versions TypeError
        raise InputError(
            f"The installed sentencepiece does not run with this protobuf ({error}); "
            "install sentencepiece==0.2.0, which runs with all versions.") from error
    return sentencepiece_model_pb2.ModelProto


def load(model_file: str) -> sentencepiece.SentencePieceProcessor:
    """Loads the model in a .model file; no tokenizer.json can replace it."""
    with files.open_binary(model_file) as stream, reading(model_file):
        return sentencepiece.SentencePieceProcessor(model_proto=stream.read() or b"empty")


def marked(model: bytes, strip_accents: bool, word_start: str = "release") -> bytes:
    """Marks a model in the trainer's input_format, which has no other use."""
    marks = ["strip_accents=false"] * (not strip_accents)
    marks += [f"word_start={word_start}"] * (word_start != "release")
    if not marks:
        return model
    proto = model_proto().FromString(model)
    proto.trainer_spec.input_format = ",".join(marks)
    return proto.SerializeToString()


def marks_of(model: bytes) -> dict[str, str]:
    """Returns the settings with which `marked` marked a model."""
    if b"strip_accents=" not in model and b"word_start=" not in model:
        return {}  # without reading the message
    marks = model_proto().FromString(model).trainer_spec.input_format
    return dict(mark.split("=") for mark in marks.split(",") if mark.count("=") == 1)


def _without_space(text: str) -> str:
    return text.replace(UNDERLINE, "").replace(" ", "")


def vocabulary_of(path: str) -> dict[str, str]:
    """Returns the name and the SHA-256 of a vocabulary file."""
    return {"file": os.path.basename(path), "sha256": files.sha256(path)}
