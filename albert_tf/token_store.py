"""Tokenized documents on disk, in parts: each document is tokenized once.

A part holds the documents of one span (text_spans), as four files in a WorkFolder:

    part-00000.tokens     tokens (token_encoding): each document's, then a separator
    part-00000.lengths    pieces of each sentence, "<u4"
    part-00000.documents  a DOCUMENT row for each document, and one behind the last
    part-00000.marks      pieces before every 256th sentence, "<u8"

Files are written as the text is read, and read where something is needed, so that
neither a part nor a document is ever in memory as a whole, unless asked for.
"""

import collections
import contextlib
from typing import Any, Iterator, NamedTuple, Sequence

import numpy as np

from albert_tf import counter_random, text_spans
from albert_tf.errors import InputError
from albert_tf.part_files import PartFiles, part_name
from albert_tf.token_encoding import TokenEncoder
from albert_tf.work_folder import WorkFolder

# A document's id, and where it begins in its part: in sentences and in tokens. The
# row behind the last document tells where that ends.
DOCUMENT = np.dtype([("id", "<u8"), ("first_sentence", "<i8"), ("first_token", "<i8")])
_LENGTH, _MARK = np.dtype("<u4"), np.dtype("<u8")
_SENTENCES_PER_MARK = 256
# Lengths in plans, and what planning does with one document in memory, set these.
MAX_DOCUMENT_PIECES = 2**31 - 1
MAX_DOCUMENT_SENTENCES = 20_000_000


# Without a sentence objective instances depend on it: they end where a slice ends.
SENTENCES_PER_SLICE = 1 << 20


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

    def add(self, block: text_spans.Lines) -> _Piece:
        """Encodes lines, and closes the documents that end before one of them."""
        encoded = self._encoder.encode(block.lines)
        lengths = encoded.lengths
        self.counts["unknown_pieces"] += encoded.unknown_pieces
        pieces_before = _before(lengths)
        sentences_before = _before(lengths != 0)
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
                      lengths.astype(_LENGTH), rows, marks)

    def end(self) -> _Piece:
        """Closes the last document and adds the row behind it."""
        rows, kept = self._close(
            np.array([self._id], np.uint64), np.array([self._sentences]),
            np.array([self._pieces]))
        last = np.array([(0, self._first_sentence, self._first_token)], DOCUMENT)
        separator = np.full(len(kept), self._encoder.separator, self._encoder.dtype)
        return _Piece(separator, np.zeros(0, _LENGTH), np.concatenate([rows, last]),
                      np.zeros(0, _MARK))

    def _close(self, ids: np.ndarray, sentences: np.ndarray,
               pieces: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rows of documents that have ended, and which of them have a sentence."""
        kept = np.flatnonzero(sentences)
        rows = np.zeros(len(kept), DOCUMENT)
        rows["id"] = ids[kept]
        first = self._first_sentence + _before(sentences[kept])
        rows["first_sentence"], self._first_sentence = first[:-1], int(first[-1])
        first = self._first_token + _before(pieces[kept] + 1)
        rows["first_token"], self._first_token = first[:-1], int(first[-1])
        self.counts["documents"] += len(kept)
        self.counts["single_sentence_documents"] += int(
            np.count_nonzero(sentences == 1))
        return rows, kept

    def _marks(self, lengths: np.ndarray) -> np.ndarray:
        first = -self.counts["sentences"] % _SENTENCES_PER_MARK
        before = self.counts["pieces"] + _before(lengths)[:-1]
        return before[first::_SENTENCES_PER_MARK].astype(_MARK)

    def _check_size(self, ids, pieces, sentences) -> None:
        for limit, unit, sizes in (
                (MAX_DOCUMENT_PIECES, "pieces", pieces),
                (MAX_DOCUMENT_SENTENCES, "sentences", sentences)):
            if sizes.max() > limit:
                place = text_spans.document_place(
                    self._paths, int(ids[np.argmax(sizes)]))
                raise InputError(
                    f"{place}: the document that begins here has more than {limit:,} "
                    f"{unit}; put a blank line between documents.")


def _before(numbers: np.ndarray) -> np.ndarray:
    """Sums of the first 0, 1, ..., N numbers: int64 [N + 1]."""
    sums = np.zeros(len(numbers) + 1, np.int64)
    np.cumsum(numbers, dtype=np.int64, out=sums[1:])
    return sums


def _pieces_of_span(paths: Sequence[str], span: text_spans.Span,
                    encoder: TokenEncoder, state: _Tokenizing) -> Iterator[_Piece]:
    for block in text_spans.read_span(paths, span, encoder.prepare):
        yield state.add(block)
    yield state.end()


def documents_of_span(
        paths: Sequence[str], span: text_spans.Span,
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
        folder: WorkFolder, paths: Sequence[str], span: text_spans.Span,
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


def slice_borders(first_sentence: np.ndarray,
                  num_sentences: int = SENTENCES_PER_SLICE) -> list[int]:
    """Where slices of a span's documents begin, and their number: 0, ..., D.

    Args:
      first_sentence: of each document and behind the last, int64 [D + 1].
      num_sentences: a slice takes documents until it has so many, at least one.
    """
    borders, last = [0], len(first_sentence) - 1
    while borders[-1] < last:
        reached = np.searchsorted(
            first_sentence, first_sentence[borders[-1]] + num_sentences)
        borders.append(int(min(reached, last)))
    return borders


def random_place(sentence_lengths: np.ndarray, place: int,
                 target: int) -> tuple[int, int]:
    """Text from a random place of a document.

    Args:
      sentence_lengths: pieces of the document's sentences.
      place: a random number (counter_random.word), uint64.
      target: pieces wanted.

    Returns:
      Pieces of the document before the text, and pieces of the text: from a sentence
      at random on as many as reach `target`, at least one, at most all to the end.
    """
    before = _before(sentence_lengths)
    start = counter_random.below(
        np.array([place], np.uint64), len(sentence_lengths))
    end = _ends(before, start, np.array([target]), np.array([len(sentence_lengths)]))
    return int(before[start[0]]), int(before[end[0]] - before[start[0]])


def _ends(before: np.ndarray, start: np.ndarray, target: np.ndarray,
          limit: np.ndarray) -> np.ndarray:
    """Where texts end that begin with sentences `start`: int64 [K].

    Args:
      before: pieces before each sentence.
      start: int64 [K].
      target: pieces wanted, int64 [K].
      limit: where the documents end, int64 [K].
    """
    ends = np.searchsorted(before, before[start] + target)
    return np.clip(ends, start + 1, limit)


class TokenStore:
    """The parts in a folder, all of them written; documents are numbered through.

    Attributes:
      num_parts: how many parts there are.
      num_documents: documents of all parts.
      first_document: int64 [num_parts]; the number of each part's first document.
      dtype: of tokens; None if there is no document.
    """

    def __init__(self, folder: WorkFolder):
        """Looks at the sizes of the files.

        Raises:
          InputError: if a file of a part is missing.
        """
        self._files = PartFiles(folder)
        self.num_parts = self._files.num_parts("documents")
        sizes = [self._num_documents(number) for number in range(self.num_parts)]
        first = _before(np.array(sizes, np.int64))
        self.first_document, self.num_documents = first[:-1], int(first[-1])
        self.dtype = None
        if self.num_documents:
            number = int(np.flatnonzero(sizes)[0])
            num_tokens = int(self._rows(number, sizes[number], 1)["first_token"][0])
            self.dtype = np.dtype(
                f"<u{self._files.size(number, 'tokens') // num_tokens}")

    def close(self) -> None:
        """Closes files; they are opened again when they are needed."""
        self._files.close()

    def part(self, number: int) -> Documents:
        """The documents of a part.

        All but the tokens is read into memory, about 4 bytes a sentence and 40 a
        document. Tokens are mapped: what is not looked at takes no memory.
        """
        return self._documents(
            number, self._rows(number, 0, self._num_documents(number) + 1))

    def slices(self, number: int, num_sentences: int = SENTENCES_PER_SLICE
               ) -> Iterator[tuple[int, int, Documents]]:
        """The documents of a part in slices, for parts of any size.

        Args:
          number: the part.
          num_sentences: a slice takes documents until it has so many sentences, as
            slice_borders says.

        Yields:
          The number in the part of the slice's first document, the place in the
          part's tokens of its first token, and the slice.
        """
        total = self._num_documents(number)
        first = 0
        while first < total:
            # A document has a sentence or more.
            rows = self._rows(number, first, min(num_sentences, total - first) + 1)
            reached = np.searchsorted(
                rows["first_sentence"], rows["first_sentence"][0] + num_sentences)
            rows = rows[:min(reached, len(rows) - 1) + 1]
            yield first, int(rows["first_token"][0]), self._documents(number, rows)
            first += len(rows) - 1

    def read(self, parts: np.ndarray, starts: np.ndarray,
             lengths: np.ndarray) -> np.ndarray:
        """Tokens from anywhere.

        Args:
          parts: number of a part, [K].
          starts: place of the first token in the part's tokens, [K].
          lengths: how many tokens, [K].

        Returns:
          The tokens of all K places, in the order given, one after the other.
        """
        if not len(parts):
            return np.zeros(0, self.dtype or np.uint16)
        return self._files.read("tokens", self.dtype, parts, starts, lengths)

    def second_segment(
            self, documents: np.ndarray, places: np.ndarray,
            targets: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Text from a random place of each of K documents, as random_place.

        Args:
          documents: numbers of documents in the store, int64 [K].
          places: random numbers, uint64 [K].
          targets: pieces wanted, int64 [K].

        Returns:
          Where it lies: part, uint32 [K], and first token in the part, uint64 [K];
          and how many pieces it has, int64 [K].
        """
        found = [self._second_segment(documents[i:i + 4096], places[i:i + 4096],
                                      targets[i:i + 4096])
                 for i in range(0, max(1, len(documents)), 4096)]
        part, start, length = map(np.concatenate, zip(*found))
        return part.astype(np.uint32), start.astype(np.uint64), length

    def _second_segment(self, documents, places, targets):
        if not len(documents):
            return (np.zeros(0, np.int64),) * 3
        part = np.searchsorted(self.first_document, documents, side="right") - 1
        own = documents - self.first_document[part]
        rows = self._files.read(
            "documents", DOCUMENT, part, own, np.full(len(part), 2))
        first, limit = rows["first_sentence"][::2], rows["first_sentence"][1::2]
        start = first + counter_random.below(places, limit - first)
        # From the last mark on, or from the document's beginning if that is later.
        marked = start - start % _SENTENCES_PER_MARK
        near = np.maximum(first, marked)
        position = rows["first_token"][::2].copy()
        far = np.flatnonzero(marked > first)
        if len(far):
            marks = self._files.read(
                "marks", _MARK, part[far], marked[far] // _SENTENCES_PER_MARK,
                np.ones(len(far), np.int64))
            # Behind each document before this one there is a separator.
            position[far] = marks.astype(np.int64) + own[far]
        # A sentence has a piece or more.
        last = np.minimum(limit, start + np.maximum(targets, 1))
        before = _before(self._files.read(
            "lengths", _LENGTH, part, near, last - near))
        shift = _before(last - near)[:-1] - near
        ends = _ends(before, start + shift, targets, last + shift)
        return (part, position + before[start + shift] - before[near + shift],
                before[ends] - before[start + shift])

    def _documents(self, number: int, rows: np.ndarray) -> Documents:
        first, last = rows[0], rows[-1]
        sentence, token = int(first["first_sentence"]), int(first["first_token"])
        lengths = self._files.array(
            number, "lengths", _LENGTH, sentence,
            int(last["first_sentence"]) - sentence)
        tokens = self._files.mapped(
            number, "tokens", self.dtype or np.dtype(np.uint16), token,
            int(last["first_token"]) - token)
        return Documents.of(tokens, lengths, rows)

    def _num_documents(self, number: int) -> int:
        return self._files.size(number, "documents") // DOCUMENT.itemsize - 1

    def _rows(self, number: int, first: int, count: int) -> np.ndarray:
        return self._files.array(number, "documents", DOCUMENT, first, count)
