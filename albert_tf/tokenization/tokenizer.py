"""Text → pieces → ids, by SentencePiece or WordPiece, as in the TF1 release."""

import abc
import numbers
import operator
import os
from typing import Any, Iterable, NamedTuple, Optional, Sequence

from albert_tf import files
from albert_tf.errors import InputError
from albert_tf.tokenization import sequences
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
        tokenizer(["One text.", "Another one."], max_length=128)["input_ids"].shape
        # (2, 6)

    As pathlib.Path it makes the class that suits, `SentencePieceTokenizer` or
    `WordPieceTokenizer`. It can be pickled and sent to other processes. Besides its
    arguments it has `vocab` (piece → id, not to be changed), `vocabulary_path`, whether
    it `uses_sentencepiece`, and the ids of the special pieces: cls_id, sep_id, mask_id,
    pad_id, unk_id.
    """

    uses_sentencepiece: bool
    _strips = True  # what the vocabulary says of accents
    _advice: str  # where the vocabulary lacks special pieces

    def __new__(cls, vocab_file: Optional[str] = None, do_lower_case: bool = True,
                spm_model_file: Optional[str] = None,
                strip_digit_comma_prefix: bool = False,
                strip_accents: Optional[bool] = None):
        if cls is FullTokenizer:
            cls = SentencePieceTokenizer if spm_model_file else WordPieceTokenizer
        return super().__new__(cls)

    def __init__(self, vocab_file: Optional[str] = None, do_lower_case: bool = True,
                 spm_model_file: Optional[str] = None,
                 strip_digit_comma_prefix: bool = False,
                 strip_accents: Optional[bool] = None):
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
          strip_accents: whether accents and other combining marks go, as in the release
            ("schön" becomes "schon"); with WordPiece only of text that is lower-cased.
            None: as the vocabulary says, which is yes but for SentencePiece models that
            were trained otherwise.
        """
        self.do_lower_case = do_lower_case
        self.strip_digit_comma_prefix = strip_digit_comma_prefix
        if not (spm_model_file or vocab_file):
            raise InputError(
                "There is no vocabulary: give --spm_model_file (SentencePiece) or "
                "--vocab_file (WordPiece).")
        path = self.vocabulary_path = os.fspath(spm_model_file or vocab_file)
        self.vocab, pad_piece, unk_piece = self._load(path)
        self.strip_accents = self._strips if strip_accents is None else strip_accents
        if self.uses_sentencepiece and self.strip_accents != self._strips:
            raise InputError(
                f"{path}: the vocabulary was made of text "
                f"{'without' if self._strips else 'with'} accents; give "
                f"--strip_accents={str(self._strips).lower()}, or leave it out.")
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
    def keeps(self) -> dict[str, bool]:
        """What is remembered of accents beside a vocabulary; {} as in the release."""
        return {} if self.strip_accents else {"strip_accents": False}

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

    def __call__(self, texts: str | Sequence[str],
                 text_pairs: None | str | Sequence[str] = None, max_length: int = 512
                 ) -> dict[str, Any]:
        """A batch for a model, padded to its longest sequence: int32 arrays [B, S]
        input_ids, input_mask, segment_ids.

        Texts are cleaned, and cut as in training: of a pair from the longer one.
        `max_length` counts the special pieces too.
        """
        import numpy as np

        texts = _texts(texts, "texts")
        pairs = [None] * len(texts) if text_pairs is None else _texts(
            text_pairs, "text_pairs")
        if len(pairs) != len(texts):
            raise InputError(f"there are {len(texts)} texts, but {len(pairs)} "
                             "text_pairs; each text needs its own.")
        rows = [self.features(text, pair, max_length, "max_length=")
                for text, pair in zip(texts, pairs)]
        longest = max(len(row["input_ids"]) for row in rows)
        padded = [sequences.pad_inputs(row["input_ids"], row["segment_ids"], longest,
                                       self.pad_id) for row in rows]
        return {name: np.array([row[name] for row in padded], np.int32)
                for name in padded[0]}

    def features(self, text: str, text_pair: Optional[str], max_length: int,
                 option: str = "--max_seq_length=") -> dict[str, list[int]]:
        """One text or pair as a model's input, not padded (the release's
        convert_single_example): input_ids, input_mask, segment_ids. A pair is cut from
        its longer text, of equally long ones from the second; a second text of no
        pieces is none, even after the cut."""
        if not (isinstance(max_length, numbers.Integral)
                and max_length > sequences.NUM_SPECIAL_PAIR):
            raise InputError(
                f"{option}{max_length} leaves no room for text: [CLS] and "
                f"two [SEP] take {sequences.NUM_SPECIAL_PAIR}.")
        first = self.encode(self.prepare(text))
        second = self.encode(self.prepare(text_pair)) if text_pair else None
        if second:
            first, second = sequences.truncate_longer_first(
                first, second, max_length - sequences.NUM_SPECIAL_PAIR)
        else:
            first = first[:max_length - sequences.NUM_SPECIAL_SINGLE]
        ids, segments = sequences.assemble(
            first, second or None, self.cls_id, self.sep_id)
        return {"input_ids": ids, "input_mask": [1] * len(ids), "segment_ids": segments}

    def decode(self, ids: Sequence[Any], skip_special: bool = True) -> str | list[str]:
        """The text of a row of ids, or of each row of a batch: as far as cleaning kept
        it; without [CLS], [SEP] and padding, unless `skip_special` is False."""
        rows = ids.tolist() if hasattr(ids, "tolist") else list(ids)
        if rows and isinstance(rows[0], (list, tuple)):
            return [self.decode(row, skip_special) for row in rows]
        special = {self.cls_id, self.sep_id, self.pad_id} if skip_special else set()
        pieces = self.convert_ids_to_tokens(rows)
        return self._joined([piece for piece, i in zip(pieces, rows)
                             if i not in special])

    @abc.abstractmethod
    def _joined(self, pieces: list[str]) -> str:
        """The text that pieces spell."""

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
        try:
            ids = [operator.index(i) for i in ids]
        except TypeError:
            raise InputError(f"ids must be whole numbers, not {list(ids)!r:.60}."
                             ) from None
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


def _texts(given: Any, name: str) -> list[str]:
    """A text, or texts, as a list of them; InputError where one is none."""
    found = [given] if isinstance(given, str) else given
    if isinstance(found, bytes) or not hasattr(found, "__iter__"):
        raise InputError(f"{name} is {given!r:.40}; give a text or a list of texts.")
    found = list(found)
    if not found:
        raise InputError(f"{name} is empty; give one text at least.")
    for i, text in enumerate(found):
        if not isinstance(text, str):
            raise InputError(f"{name}[{i}] is {text!r:.40}, not a text.")
    return found


def vocabulary_of(path: str) -> dict[str, str]:
    """Name and SHA-256 of a vocabulary file."""
    return {"file": os.path.basename(path), "sha256": files.sha256(path)}
