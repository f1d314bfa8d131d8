"""SentencePiece as in the original implementation, with offsets into the text."""

from typing import Iterable, Optional, Sequence

import sentencepiece
from absl import logging

from albert_tf import files
from albert_tf.errors import InputError, reading
from albert_tf.tokenization.cleaning import (
    UNDERLINE, PreparedText, preprocess_batch, preprocess_text, preprocess_with_sources)
from albert_tf.tokenization.hf_tokenizer import ends_in_digit_comma, model_proto
from albert_tf.tokenization.tokenizer import FullTokenizer, PieceSpan, check_encodable


class UnknownOffsets(InputError):
    """A model's tokens do not tell which characters of the text they stand for."""


class SentencePieceTokenizer(FullTokenizer):
    """A FullTokenizer with a SentencePiece model.

    The original implementation splits a token that ends in a digit and a comma, such as
    "▁1999,". It encodes the part before the comma again, which puts a "▁" before it, even
    if the token had none: the token "9," inside a longer number becomes "▁9" and ",".
    """

    _told = False  # whether a text that was not prepared was reported

    def _load(self, path: str, lower: Optional[bool], strips: Optional[bool]
              ) -> Sequence[str]:
        self._processor = load(path)
        model = self._processor.serialized_model_proto()
        keeps, self.word_start = keeps_accents(model), _marks(model).get("word_start")
        if strips and keeps:
            raise InputError(
                f"{path}: the vocabulary was trained on text with accents; give "
                "--strip_accents=false, or leave it out.")
        self.do_lower_case = lower is not False
        self.strip_accents = not keeps if strips is None else strips
        pieces = self._processor.id_to_piece([*range(len(self._processor))])
        self.vocab = {piece: i for i, piece in enumerate(pieces)}
        unk_id, pad_id = self._processor.unk_id(), self._processor.pad_id()
        # If a row has one of these ids, its final ids may differ. An unknown token can
        # end in a digit and a comma too, or be "[CLS]".
        self._unsafe_ids = frozenset(i for piece, i in self.vocab.items()
                                     if ends_in_digit_comma(piece)) | {unk_id}
        # A model trained without padding lacks this token; its name is then "<pad>".
        return pieces[pad_id] if pad_id >= 0 else "<pad>", pieces[unk_id]

    def prepare(self, text: str) -> str:
        return PreparedText(preprocess_text(
            text, self.do_lower_case, strip_accents=self.strip_accents,
            rules=self.rules))

    def prepare_batch(self, texts: Iterable[str]) -> list[str]:
        return preprocess_batch(
            list(texts), self.do_lower_case, self.strip_accents, self.rules)

    def tokenize(self, text: str) -> list[str]:
        if not (self._told or isinstance(text, PreparedText)) and text != (
                prepared := self.prepare(text)):
            self._told = True
            logging.warning(
                "The text %r was not prepared as for the vocabulary (%r), so its "
                "tokens may differ. Pass tokenizer.prepare(text), or call encode.",
                text[:40], prepared[:40])
        return self._split_digit_commas(self._encode(text, str))

    def tokenize_batch(self, texts: Iterable[str]) -> list[list[str]]:
        return list(map(self._split_digit_commas, self._encode(list(texts), str)))

    def encode(self, text: str) -> list[int]:
        return self.convert_tokens_to_ids(self.tokenize(
            text if isinstance(text, PreparedText) else self.prepare(text)))

    def encode_batch(self, texts: Iterable[str]) -> list[list[int]]:
        texts = [text if isinstance(text, PreparedText) else self.prepare(text)
                 for text in texts]
        return [row if self._unsafe_ids.isdisjoint(row) else self.encode(text)
                for text, row in zip(texts, self._encode(texts, int))]

    def model_ids(self, texts: list[str]) -> list[list[int]]:
        return self._encode(texts, int)

    def split_pieces(self) -> dict[int, list[str]]:
        return {i: self._split_digit_commas([piece]) for piece, i in self.vocab.items()
                if i in self._unsafe_ids and i != self.unk_id}

    def is_bytes(self, token_id: int) -> bool:
        """Returns whether a token is a byte of a character that has no token."""
        return self._processor.is_byte(token_id)

    def drops(self, char: str) -> bool:
        """Returns whether the model makes at most blanks of a prepared character."""
        return not _without_space(self._processor.normalize(char))

    def tokenize_with_offsets(self, text: str) -> list[PieceSpan]:
        prepared, sources = preprocess_with_sources(
            text, self.do_lower_case, self.strip_accents, self.rules)
        pieces = self.tokenize(PreparedText(prepared))
        normalized, firsts = self._processor.normalize(prepared, with_offsets=True)
        if _without_space(normalized) != _without_space("".join(pieces)):
            raise UnknownOffsets(
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

    def _encode(self, text, out_type):
        try:
            return self._processor.encode(text, out_type=out_type, num_threads=1)
        except (RuntimeError, TypeError, UnicodeError):
            check_encodable([text] if isinstance(text, str) else text)
            raise


def _marks(model: bytes) -> dict[str, str]:
    """Returns the settings with which `marked` marked a model."""
    if b"strip_accents=" not in model and b"word_start=" not in model:
        return {}  # without reading the message
    marks = model_proto().FromString(model).trainer_spec.input_format
    return dict(mark.split("=") for mark in marks.split(",") if mark.count("=") == 1)


def keeps_accents(model: bytes) -> bool:
    """Returns whether a model is marked as trained on text with accents."""
    return _marks(model).get("strip_accents") == "false"


def marked(model: bytes, strip_accents: bool, word_start: Optional[str]) -> bytes:
    """Marks a model in the trainer's input_format, which has no other use."""
    marks = [] if strip_accents else ["strip_accents=false"]
    marks += [f"word_start={word_start}"] if word_start else []
    if not marks:
        return model
    proto = model_proto().FromString(model)
    proto.trainer_spec.input_format = ",".join(marks)
    return proto.SerializeToString()


def load(model_file: str) -> sentencepiece.SentencePieceProcessor:
    """Loads the model in a .model file; no tokenizer.json can replace it."""
    with files.open_binary(model_file) as stream, reading(model_file, binary=True):
        return sentencepiece.SentencePieceProcessor(model_proto=stream.read() or b"empty")


def _without_space(text: str) -> str:
    return text.replace(UNDERLINE, "").replace(" ", "")
