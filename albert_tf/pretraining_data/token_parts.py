"""Tokenized documents: in memory, and on disk in parts; each is tokenized once.

A part holds the documents of one span (text_spans), as four files in a WorkFolder:

    part-00000.tokens     tokens (token_encoding): each document's, then a separator
    part-00000.lengths    pieces of each sentence, "<u4"
    part-00000.documents  a DOCUMENT row for each document, and one behind the last
    part-00000.marks      pieces before every 256th sentence, "<u8"

Files are written as the text is read, so that neither a part nor a document is ever
in memory as a whole, unless asked for. `token_store` finds tokens in them.
"""

import collections
import contextlib
from typing import Any, Iterator, NamedTuple, Sequence

import numpy as np

from albert_tf.errors import InputError
from albert_tf.pretraining_data import spans
from albert_tf.pretraining_data.encoder import TokenEncoder
from albert_tf.pretraining_data.part_files import part_name
from albert_tf.pretraining_data.work_folder import WorkFolder

# A document's id, and where it begins in its part: in sentences and in tokens. The
# row behind the last document tells where that ends.
DOCUMENT = np.dtype([("id", "<u8"), ("first_sentence", "<i8"), ("first_token", "<i8")])
LENGTH, MARK = np.dtype("<u4"), np.dtype("<u8")
SENTENCES_PER_MARK = 256
# Lengths in plans, and what planning does with one document in memory, set these.
MAX_DOCUMENT_PIECES = 2**31 - 1
MAX_DOCUMENT_SENTENCES = 20_000_000


class Documents(NamedTuple):
    """Consecutive documents in memory: T tokens, S sentences, D documents.

    Attributes:
      tokens: [T]; the tokens of each document and then one separator.
      sentence_lengths: uint32 [S]; pieces of each sentence, none of them 0.
      first_sentence: int64 [D + 1]; document d has the sentences first_sentence[d],
        ..., first_sentence[d + 1] - 1.
      first_token: int64 [D + 1]; document d has the tokens first_token[d], ...,
        first_token[d + 1] - 2, and a separator after them.
      ids: uint64 [D]; where each document begins in the input (text_spans.Lines).
    """

    tokens: np.ndarray
    sentence_lengths: np.ndarray
    first_sentence: np.ndarray
    first_token: np.ndarray
    ids: np.ndarray

    @classmethod
    def of(cls, tokens: np.ndarray, sentence_lengths: np.ndarray,
           rows: np.ndarray) -> "Documents":
        """Documents of DOCUMENT rows; places count from the first one's."""
        return cls(tokens, sentence_lengths,
                   rows["first_sentence"] - rows["first_sentence"][0],
                   rows["first_token"] - rows["first_token"][0],
                   np.ascontiguousarray(rows["id"][:-1]))


class _Piece(NamedTuple):
    """What a block of lines adds to the files of a part."""

    tokens: np.ndarray
    lengths: np.ndarray
    documents: np.ndarray
    marks: np.ndarray


class _Tokenizing:
    """The state of tokenizing one span: what has gone before."""

    def __init__(self, paths: Sequence[str], encoder: TokenEncoder):
        self.counts = collections.Counter(
            documents=0, sentences=0, pieces=0, unknown_pieces=0,
            lines_without_pieces=0, single_sentence_documents=0)
        self._paths = paths
        self._encoder = encoder
        # The document that goes on, by now.
        self._id = self._sentences = self._pieces = 0
        # Where it begins.
        self._first_sentence = self._first_token = 0

    def add(self, block: spans.Lines) -> _Piece:
        """Encodes lines, and closes the documents that end before one of them."""
        encoded = self._encoder.encode(block.lines)
        lengths = encoded.lengths
        self.counts["unknown_pieces"] += encoded.unknown_pieces
        pieces_before = sums_before(lengths)
        sentences_before = sums_before(lengths != 0)
        bounds = np.array([0, *block.first, len(lengths)])
        pieces = np.diff(pieces_before[bounds])
        sentences = np.diff(sentences_before[bounds])
        # The first section goes on with the open document, the last stays open.
        pieces[0] += self._pieces
        sentences[0] += self._sentences
        ids = np.array([self._id, *block.ids], np.uint64)
        self._check_size(ids, pieces, sentences)
        rows, kept = self._close(ids[:-1], sentences[:-1], pieces[:-1])
        self._id = int(ids[-1])
        self._sentences, self._pieces = int(sentences[-1]), int(pieces[-1])
        places = pieces_before[bounds[1:-1][kept]]
        lengths = lengths[lengths != 0]
        marks = self._marks(lengths)
        self.counts["sentences"] += len(lengths)
        self.counts["pieces"] += int(pieces_before[-1])
        self.counts["lines_without_pieces"] += len(block.lines) - len(lengths)
        return _Piece(np.insert(encoded.tokens, places, self._encoder.separator),
                      lengths.astype(LENGTH), rows, marks)

    def end(self) -> _Piece:
        """Closes the last document and adds the row behind it."""
        rows, kept = self._close(
            np.array([self._id], np.uint64), np.array([self._sentences]),
            np.array([self._pieces]))
        last = np.array([(0, self._first_sentence, self._first_token)], DOCUMENT)
        separator = np.full(len(kept), self._encoder.separator, self._encoder.dtype)
        return _Piece(separator, np.zeros(0, LENGTH), np.concatenate([rows, last]),
                      np.zeros(0, MARK))

    def _close(self, ids: np.ndarray, sentences: np.ndarray,
               pieces: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rows of documents that have ended, and which of them have a sentence."""
        kept = np.flatnonzero(sentences)
        rows = np.zeros(len(kept), DOCUMENT)
        rows["id"] = ids[kept]
        first = self._first_sentence + sums_before(sentences[kept])
        rows["first_sentence"], self._first_sentence = first[:-1], int(first[-1])
        first = self._first_token + sums_before(pieces[kept] + 1)
        rows["first_token"], self._first_token = first[:-1], int(first[-1])
        self.counts["documents"] += len(kept)
        self.counts["single_sentence_documents"] += int(
            np.count_nonzero(sentences == 1))
        return rows, kept

    def _marks(self, lengths: np.ndarray) -> np.ndarray:
        first = -self.counts["sentences"] % SENTENCES_PER_MARK
        before = self.counts["pieces"] + sums_before(lengths)[:-1]
        return before[first::SENTENCES_PER_MARK].astype(MARK)

    def _check_size(self, ids, pieces, sentences) -> None:
        for limit, unit, sizes in (
                (MAX_DOCUMENT_PIECES, "pieces", pieces),
                (MAX_DOCUMENT_SENTENCES, "sentences", sentences)):
            if sizes.max() > limit:
                place = spans.document_place(
                    self._paths, int(ids[np.argmax(sizes)]))
                raise InputError(
                    f"{place}: the document that begins here has more than {limit:,} "
                    f"{unit}; put a blank line between documents.")


def sums_before(numbers: np.ndarray) -> np.ndarray:
    """Sums of the first 0, 1, ..., N numbers: int64 [N + 1]."""
    sums = np.zeros(len(numbers) + 1, np.int64)
    np.cumsum(numbers, dtype=np.int64, out=sums[1:])
    return sums


def _pieces_of_span(paths: Sequence[str], span: spans.Span,
                    encoder: TokenEncoder, state: _Tokenizing) -> Iterator[_Piece]:
    for block in spans.read_span(paths, span, encoder.prepare):
        yield state.add(block)
    yield state.end()


def documents_of_span(
        paths: Sequence[str], span: spans.Span,
        encoder: TokenEncoder) -> tuple[Documents, dict[str, int]]:
    """The documents of a span in memory, and counts, as write_part gives them.

    Raises:
      InputError: as write_part.
    """
    state = _Tokenizing(paths, encoder)
    pieces = list(_pieces_of_span(paths, span, encoder, state))
    tokens, lengths, rows, _ = map(np.concatenate, zip(*pieces))
    return Documents.of(tokens, lengths, rows), dict(state.counts)


def write_part(
        folder: WorkFolder, paths: Sequence[str], span: spans.Span,
        encoder: TokenEncoder) -> tuple[dict[str, Any], dict[str, list[int]]]:
    """Tokenizes a span's documents into the files of part `span.number`.

    Memory does not grow with the span or its documents, but for one line.

    Args:
      folder: where the files go; they appear when they are whole.
      paths: all files of the input.
      span: the span.
      encoder: gives the tokens.

    Returns:
      {"counts": the attributes of pretraining_summary.CorpusCounts}, and the sums of
      the files for WorkFolder.finish.

    Raises:
      InputError: if the input is wrong (text_spans.read_span), a document has more
        than MAX_DOCUMENT_PIECES or MAX_DOCUMENT_SENTENCES, or a file cannot be
        written, as on a full disk.
    """
    state = _Tokenizing(paths, encoder)
    names = [part_name(span.number, kind)
             for kind in ("tokens", "lengths", "documents", "marks")]
    with contextlib.ExitStack() as stack:
        streams = [stack.enter_context(folder.write(name)) for name in names]
        for piece in _pieces_of_span(paths, span, encoder, state):
            for stream, array in zip(streams, piece):
                stream.write(array.tobytes())
    return ({"counts": dict(state.counts)},
            {name: stream.sum for name, stream in zip(names, streams)})


