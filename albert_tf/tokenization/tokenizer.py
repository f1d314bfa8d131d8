"""Text → pieces → ids, by SentencePiece or WordPiece, as in the TF1 release."""

import abc
import os
from typing import Iterable, NamedTuple, Optional

from albert_tf import files
from albert_tf.errors import InputError
from albert_tf.tokenization.cleaning import Located, PreparedText
from albert_tf.tokenization.sentencepiece_tokenizer import SentencePieceMixin
from albert_tf.tokenization.wordpiece_tokenizer import WordPieceMixin


class PieceSpan(NamedTuple):
    """A piece, its id, and the characters text[start:end] that it came from."""

    piece: str
    id: int
    start: int
    end: int


class FullTokenizer(abc.ABC):
    """Pieces and ids of text, by SentencePiece or WordPiece.

        tokenizer = FullTokenizer(spm_model_file="30k-clean.model")
        tokenizer.tokenize(tokenizer.prepare("Hello, World!"))
        # ['▁hello', ',', '▁world', '!']
        tokenizer.encode("Hello, World!")
        # [10975, 15, 126, 187]

    As pathlib.Path it makes the class that suits, `SentencePieceTokenizer` or
    `WordPieceTokenizer`. It can be pickled and sent to other processes. Besides its
    arguments it has `vocab` (piece → id, not to be changed), `vocabulary_path`, whether
    it `uses_sentencepiece`, and the ids of the special pieces: cls_id, sep_id, mask_id,
    pad_id, unk_id.
    """

    uses_sentencepiece: bool
    _advice: str  # where the vocabulary lacks special pieces

    def __new__(cls, vocab_file: Optional[str] = None, do_lower_case: bool = True,
                spm_model_file: Optional[str] = None,
                strip_digit_comma_prefix: bool = False):
        if cls is FullTokenizer:
            cls = SentencePieceTokenizer if spm_model_file else WordPieceTokenizer
        return super().__new__(cls)

    def __init__(self, vocab_file: Optional[str] = None, do_lower_case: bool = True,
                 spm_model_file: Optional[str] = None,
                 strip_digit_comma_prefix: bool = False):
        """Loads a SentencePiece model or a WordPiece vocabulary.

        Args:
          vocab_file: WordPiece vocabulary, one piece a line; not read where
            spm_model_file is given.
          do_lower_case: whether to lower-case: by `prepare` with SentencePiece, within
            `tokenize` with WordPiece.
          spm_model_file: SentencePiece model.
          strip_digit_comma_prefix: SentencePiece only. A piece such as "9," is split
            into "9" and ","; the release turns a "9," inside a word into "▁9" and ",",
            though it means to leave out the "▁". True leaves it out. A published model
            expects False.
        """
        self.do_lower_case = do_lower_case
        self.strip_digit_comma_prefix = strip_digit_comma_prefix
        path = self.vocabulary_path = spm_model_file or vocab_file
        if not path:
            raise InputError(
                "There is no vocabulary: give --spm_model_file (SentencePiece) or "
                "--vocab_file (WordPiece).")
        self.vocab, pad_piece, unk_piece = self._load(path)
        self._pieces = list(self.vocab)
        names = ["[CLS]", "[SEP]", "[MASK]", pad_piece, unk_piece]
        missing = [name for name in names if name not in self.vocab]
        if missing:
            raise InputError(
                f"{path}: the vocabulary has no {', '.join(missing)}, which ALBERT "
                f"needs; {self._advice}.")
        self.cls_id, self.sep_id, self.mask_id, self.pad_id, self.unk_id = (
            self.vocab[name] for name in names)

    @abc.abstractmethod
    def _load(self, path: str) -> tuple[dict[str, int], str, str]:
        """The vocabulary, and its pieces for padding and for unknown text."""

    @property
    def vocab_size(self) -> int:
        """Number of pieces, special pieces included."""
        return len(self.vocab)

    def prepare(self, text: str) -> str:
        """The release's work on a text before `tokenize`: preprocess_text for
        SentencePiece, nothing for WordPiece, whose cleaning is part of tokenizing."""
        return text

    def prepare_batch(self, texts: Iterable[str]) -> list[str]:
        """[prepare(text) for text in texts], faster."""
        return [self.prepare(text) for text in texts]

    @abc.abstractmethod
    def tokenize(self, text: str) -> list[str]:
        """Splits text into pieces; with SentencePiece the text must be prepared."""

    def tokenize_batch(self, texts: Iterable[str],
                       num_threads: int = 1) -> list[list[str]]:
        """[tokenize(text) for text in texts], faster; texts are prepared. SentencePiece
        takes `num_threads` threads, -1 for one for each CPU."""
        return [self.tokenize(text) for text in texts]

    def encode(self, text: str) -> list[int]:
        """Ids of a text: of tokenize(prepare(text)), or of tokenize(text) where
        `prepare` made the text."""
        return self.convert_tokens_to_ids(self.tokenize(self._prepared(text)))

    def _prepared(self, text: str) -> str:
        return text if isinstance(text, PreparedText) else self.prepare(text)

    def encode_batch(self, texts: Iterable[str],
                     num_threads: int = 1) -> list[list[int]]:
        """[encode(text) for text in texts], faster; for num_threads see
        tokenize_batch."""
        return [self.encode(text) for text in texts]

    def tokenize_with_offsets(self, text: str) -> list[PieceSpan]:
        """tokenize(prepare(text)), each piece with its place in `text`.

        text[start:end] is what the piece came from: in the text as given, before white
        space is collapsed, accents dropped and letters lower-cased. An accent written
        as a character of its own belongs to its letter. Where one character gives
        several pieces, each has that character's place. White space is in no piece's
        place: "▁" alone has start == end, just before the next character that is not
        white space.
        """
        located = self._locate(text)
        ids = self.convert_tokens_to_ids(piece for piece, _, _ in located)
        return [PieceSpan(piece, i, start, end)
                for (piece, start, end), i in zip(located, ids)]

    @abc.abstractmethod
    def _locate(self, text: str) -> list[Located]:
        """The pieces of tokenize(prepare(text)) with their places in `text`."""

    @abc.abstractmethod
    def convert_tokens_to_ids(self, tokens: Iterable[str]) -> list[int]:
        """Ids of pieces. A piece that is not in the vocabulary is unk_id for
        SentencePiece, which keeps unknown text in its pieces, and an InputError for
        WordPiece."""

    def convert_ids_to_tokens(self, ids: Iterable[int]) -> list[str]:
        """Pieces of ids."""
        ids = list(ids)
        for i in ids:
            if not 0 <= i < len(self._pieces):
                raise InputError(
                    f"There is no piece of id {i}: the vocabulary has ids 0 to "
                    f"{len(self._pieces) - 1}; check that these ids were made with "
                    "this vocabulary.")
        return [self._pieces[i] for i in ids]


class SentencePieceTokenizer(SentencePieceMixin, FullTokenizer):
    """A FullTokenizer with a SentencePiece model."""


class WordPieceTokenizer(WordPieceMixin, FullTokenizer):
    """A FullTokenizer with a WordPiece vocabulary."""


def vocabulary_of(path: str) -> dict[str, str]:
    """Name and SHA-256 of a vocabulary file."""
    return {"file": os.path.basename(path), "sha256": files.sha256(path)}
