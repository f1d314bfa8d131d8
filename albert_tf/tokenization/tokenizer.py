"""Text → pieces → ids, by SentencePiece or WordPiece, as in the TF1 release."""

import os
from typing import Iterable, NamedTuple

from albert_tf import files
from albert_tf.errors import InputError
from albert_tf.tokenization.cleaning import preprocess_text
from albert_tf.tokenization.sentencepiece_tokenizer import SentencePieceTokenizer
from albert_tf.tokenization.wordpiece_tokenizer import (
    WordPieceTokenizer, basic_tokenize, load_vocab)

__all__ = [
    "FullTokenizer", "PieceSpan", "basic_tokenize", "load_vocab", "preprocess_text"]


class PieceSpan(NamedTuple):
    """A piece, its id, and the characters text[start:end] that it came from."""

    piece: str
    id: int
    start: int
    end: int


class FullTokenizer:
    """Pieces and ids of text.

    A tokenizer can be pickled and sent to other processes.

    Attributes:
      vocab: piece -> id; not to be changed.
      do_lower_case: whether text is lower-cased.
      strip_digit_comma_prefix: as given.
      uses_sentencepiece: SentencePiece, or else WordPiece.
      vocabulary_path: the file it was loaded from.
      cls_id, sep_id, mask_id, pad_id, unk_id: ids of the special pieces.
    """

    def __init__(self, vocab_file: str | None = None, do_lower_case: bool = True,
                 spm_model_file: str | None = None,
                 strip_digit_comma_prefix: bool = False):
        """Loads a SentencePiece model or a WordPiece vocabulary.

        Args:
          vocab_file: WordPiece vocabulary, one piece a line; passed over where
            spm_model_file is given.
          do_lower_case: whether to lower-case: by `prepare` with SentencePiece,
            within `tokenize` with WordPiece.
          spm_model_file: SentencePiece model.
          strip_digit_comma_prefix: SentencePiece only. A piece such as "9," is
            split into "9" and ","; the release turns a "9," inside a word into
            "▁9" and ",", though it means to leave out the "▁". True leaves it
            out. A published model expects False.

        Raises:
          InputError: if neither file is given, or the one used cannot be read, is
            of another kind or lacks a special piece.
        """
        self.do_lower_case = do_lower_case
        self.strip_digit_comma_prefix = strip_digit_comma_prefix
        self.uses_sentencepiece = bool(spm_model_file)
        if spm_model_file:
            self._tokenizer = SentencePieceTokenizer(
                spm_model_file, do_lower_case, strip_digit_comma_prefix)
        elif vocab_file:
            self._tokenizer = WordPieceTokenizer(vocab_file, do_lower_case)
        else:
            raise InputError(
                "There is no vocabulary: give --spm_model_file (SentencePiece) or "
                "--vocab_file (WordPiece).")
        self.vocab = self._tokenizer.vocab
        self._pieces = list(self.vocab)
        self.vocabulary_path = spm_model_file or vocab_file
        self._set_special_ids(self.vocabulary_path)

    def _set_special_ids(self, path: str) -> None:
        names = ["[CLS]", "[SEP]", "[MASK]",
                 self._tokenizer.pad_piece, self._tokenizer.unk_piece]
        missing = [name for name in names if name not in self.vocab]
        if missing:
            advice = ("train one with train_sentencepiece.py"
                      if self.uses_sentencepiece else
                      "add them, or give a SentencePiece model as --spm_model_file")
            raise InputError(
                f"{path}: the vocabulary has no {', '.join(missing)}, which ALBERT "
                f"needs; {advice}.")
        self.cls_id, self.sep_id, self.mask_id, self.pad_id, self.unk_id = (
            self.vocab[name] for name in names)

    @property
    def vocab_size(self) -> int:
        """Number of pieces, special pieces included."""
        return len(self.vocab)

    def prepare(self, text: str) -> str:
        """What the release does to a text before `tokenize` in this mode.

        preprocess_text for SentencePiece; nothing for WordPiece, whose cleaning is
        part of tokenizing.
        """
        return self._tokenizer.prepare(text)

    def prepare_batch(self, texts: Iterable[str]) -> list[str]:
        """[prepare(text) for text in texts], faster."""
        return self._tokenizer.prepare_batch(list(texts))

    def tokenize(self, text: str) -> list[str]:
        """Splits text into pieces; with SentencePiece the text must be prepared."""
        return self._tokenizer.tokenize(text)

    def tokenize_batch(self, texts: Iterable[str],
                       num_threads: int = 1) -> list[list[str]]:
        """[tokenize(text) for text in texts], faster.

        Args:
          texts: prepared texts.
          num_threads: threads of SentencePiece; -1 takes one for each CPU.
        """
        return self._tokenizer.tokenize_batch(list(texts), num_threads)

    def encode(self, text: str) -> list[int]:
        """Ids of tokenize(text)."""
        return self.convert_tokens_to_ids(self.tokenize(text))

    def encode_batch(self, texts: Iterable[str],
                     num_threads: int = 1) -> list[list[int]]:
        """[encode(text) for text in texts], faster; see tokenize_batch."""
        return self._tokenizer.encode_batch(list(texts), num_threads)

    def model_ids(self, texts: list[str]) -> list[list[int]]:
        """SentencePiece only: the model's ids of texts before pieces are split.

        They equal encode_batch(texts) except where a row holds unk_id, whose text
        may need splitting, or an id in split_pieces().
        """
        return self._tokenizer.model_ids(texts)

    def split_pieces(self) -> dict[int, list[str]]:
        """SentencePiece only: ids such as that of "9," → the pieces in their place."""
        return self._tokenizer.split_pieces()

    def tokenize_with_offsets(self, text: str) -> list[PieceSpan]:
        """tokenize(prepare(text)), each piece with its place in `text`.

        text[start:end] is what the piece came from: in the text as given, before
        white space is collapsed, accents dropped and letters lower-cased. An
        accent written as a character of its own belongs to its letter. Where one
        character gives several pieces, each has that character's place. White
        space is in no piece's place: "▁" alone has start == end, just before the
        next character that is not white space.

        Raises:
          InputError: if a SentencePiece model's pieces do not spell out its
            normalized text (byte fallback).
        """
        located = self._tokenizer.locate(text)
        ids = self._tokenizer.ids([piece for piece, _, _ in located])
        return [PieceSpan(piece, i, start, end)
                for (piece, start, end), i in zip(located, ids)]

    def convert_tokens_to_ids(self, tokens: Iterable[str]) -> list[int]:
        """Ids of pieces.

        SentencePiece gives unk_id for a piece that is not in the vocabulary, as it
        keeps unknown text in its pieces.

        Raises:
          InputError: WordPiece only, if a piece is not in the vocabulary.
        """
        return self._tokenizer.ids(tokens)

    def convert_ids_to_tokens(self, ids: Iterable[int]) -> list[str]:
        """Pieces of ids.

        Raises:
          InputError: if an id is negative, or not below vocab_size.
        """
        ids = list(ids)
        for i in ids:
            if not 0 <= i < len(self._pieces):
                raise InputError(
                    f"There is no piece of id {i}: the vocabulary has ids 0 to "
                    f"{len(self._pieces) - 1}; check that these ids were made with "
                    "this vocabulary.")
        return [self._pieces[i] for i in ids]


def vocabulary_of(path: str) -> dict[str, str]:
    """Name and SHA-256 of a vocabulary file."""
    return {"file": os.path.basename(path), "sha256": files.sha256(path)}
