"""Stores documents as codes (encoder), on disk in parts; each is tokenized once.

A part holds the documents of one span of the text, as four files in a WorkFolder:

    part-00000.tokens     codes of each document's tokens, then a separator
    part-00000.lengths    number of tokens in each sentence, "<u4"
    part-00000.documents  a DOCUMENT row for each document, and one after the last
    part-00000.marks      number of tokens before every 256th sentence, "<u8"

Files are written while the text is read, and only the parts needed are read back.
Memory therefore never holds a whole part or document.
"""

import contextlib
import itertools
import os
from typing import Iterator, NamedTuple, Sequence

import numpy as np

from albert_tf import keyed_random
from albert_tf.errors import InputError
from albert_tf.pretraining_data import spans
from albert_tf.pretraining_data.encoder import PieceEncoder, sums_before
from albert_tf.pretraining_data.summary import CorpusCounts
from albert_tf.jobs.work_folder import WorkFolder

# A document's id, and where it begins in its part: in sentences and in codes. The row
# after the last document says where that ends.
DOCUMENT = np.dtype([("id", "<u8"), ("first_sentence", "<i8"), ("first_code", "<i8")])
LENGTH, MARK = np.dtype("<u4"), np.dtype("<u8")
SENTENCES_PER_MARK = 256
# These limits follow from the type of lengths in plans, and from the memory that
# planning needs for one document.
MAX_DOCUMENT_PIECES = 2**31 - 1
MAX_DOCUMENT_SENTENCES = 20_000_000
# Without a sentence objective instances end where a slice ends, and so depend on this.
SENTENCES_PER_SLICE = 1 << 20
_MOST_OPEN = 1024  # open files
_SEGMENTS_AT_ONCE = 4096


part_name = "part-{:05d}.{}".format  # part-00012.tokens


class Documents(NamedTuple):
    """Consecutive documents in memory: C codes, S sentences, D documents.

    Document d has the sentences first_sentence[d], ..., first_sentence[d + 1] - 1, and
    the codes first_code[d], ..., first_code[d + 1] - 2, followed by a separator.
    """

    codes: np.ndarray  # [C]; the codes of each document, followed by a separator
    sentence_lengths: np.ndarray  # uint32 [S]; tokens in each sentence, at least 1
    first_sentence: np.ndarray  # int64 [D + 1]
    first_code: np.ndarray  # int64 [D + 1]
    ids: np.ndarray  # uint64 [D]; where each begins in the input (spans.Lines)


# ---- writing -----------------------------------------------------------------


class _Tokenizing:
    """The state of tokenizing one span: its counts and the document that is open."""

    def __init__(self, paths: Sequence[str], encoder: PieceEncoder,
                 max_pieces: int, max_sentences: int):
        self.counts = CorpusCounts()
        self._paths = paths
        self._encoder = encoder
        self._limits = (("pieces", max_pieces), ("sentences", max_sentences))
        # The open document: its size so far, and where it begins.
        self._id = self._sentences = self._pieces = 0
        self._first_sentence = self._first_code = 0

    def add(self, block: spans.Lines) -> tuple[np.ndarray, ...]:
        """Encodes a block, and closes the documents that end in it; returns what the
        block adds to each file of the part."""
        encoded = self._encoder.encode(block.lines)
        lengths = encoded.lengths
        pieces_before = sums_before(lengths)
        bounds = np.array([0, *block.first, len(lengths)])
        pieces = np.diff(pieces_before[bounds])
        sentences = np.diff(sums_before(lengths != 0)[bounds])
        # The first section continues the open document, the last stays open.
        pieces[0] += self._pieces
        sentences[0] += self._sentences
        ids = np.array([self._id, *block.ids], np.uint64)
        for (unit, limit), sizes in zip(self._limits, (pieces, sentences)):
            if sizes.max() > limit:
                begin = spans.document_place(self._paths, int(ids[np.argmax(sizes)]))
                raise InputError(
                    f"{begin}: the document that begins here has more than {limit:,} "
                    f"{unit}; put a blank line between documents, or split it.")
        rows, closed = self._close(ids[:-1], sentences[:-1], pieces[:-1])
        self._id = int(ids[-1])
        self._sentences, self._pieces = int(sentences[-1]), int(pieces[-1])
        codes = np.insert(encoded.codes, pieces_before[bounds[1:-1][closed]],
                          self._encoder.separator)
        lengths = lengths[lengths != 0]
        first = -self.counts.sentences % SENTENCES_PER_MARK
        marks = self.counts.pieces + sums_before(lengths)[:-1]
        self.counts.unknown_pieces += encoded.unknown_pieces
        self.counts.sentences += len(lengths)
        self.counts.pieces += int(pieces_before[-1])
        self.counts.lines_without_pieces += len(block.lines) - len(lengths)
        return (codes, lengths.astype(LENGTH), rows,
                marks[first::SENTENCES_PER_MARK].astype(MARK))

    def end(self) -> tuple[np.ndarray, ...]:
        """Closes the last document and adds the row after it; returns as `add` does."""
        rows, closed = self._close(
            np.array([self._id], np.uint64), np.array([self._sentences]),
            np.array([self._pieces]))
        last = np.array([(0, self._first_sentence, self._first_code)], DOCUMENT)
        separator = np.full(len(closed), self._encoder.separator, self._encoder.dtype)
        return (separator, np.zeros(0, LENGTH), np.concatenate([rows, last]),
                np.zeros(0, MARK))

    def _close(self, ids: np.ndarray, sentences: np.ndarray,
               pieces: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns rows for ended documents that have a sentence, and their indices."""
        closed = np.flatnonzero(sentences)
        rows = np.zeros(len(closed), DOCUMENT)
        rows["id"] = ids[closed]
        first = self._first_sentence + sums_before(sentences[closed])
        rows["first_sentence"], self._first_sentence = first[:-1], int(first[-1])
        first = self._first_code + sums_before(pieces[closed] + 1)
        rows["first_code"], self._first_code = first[:-1], int(first[-1])
        self.counts.documents += len(closed)
        self.counts.single_sentence_documents += int(
            np.count_nonzero(sentences == 1))
        return rows, closed


def write_part(
        folder: WorkFolder, paths: Sequence[str], span: spans.Span,
        encoder: PieceEncoder, *, block_bytes: int = spans.BLOCK_BYTES,
        max_pieces: int = MAX_DOCUMENT_PIECES,
        max_sentences: int = MAX_DOCUMENT_SENTENCES
        ) -> tuple[dict[str, int], dict[str, list[int]]]:
    """Tokenizes a span's documents into the files of part `span.number`.

    Memory does not grow with the span or its documents, only with the longest line.
    `block_bytes` of text are tokenized at a time. `paths` are all files of the input.
    Returns the fields of summary.CorpusCounts, and the sums of the files for
    WorkFolder.finish. Raises InputError if a document is too long.
    """
    state = _Tokenizing(paths, encoder, max_pieces, max_sentences)
    blocks = spans.read_span(paths, span, encoder.prepare, block_bytes)
    with contextlib.ExitStack() as stack:
        streams = {name: stack.enter_context(folder.write(name)) for name in (
            part_name(span.number, kind)
            for kind in ("tokens", "lengths", "documents", "marks"))}
        for block in itertools.chain(blocks, [None]):
            arrays = state.end() if block is None else state.add(block)
            for stream, array in zip(streams.values(), arrays):
                stream.write(array.tobytes())
    return vars(state.counts), {name: stream.sum for name, stream in streams.items()}


# ---- reading -----------------------------------------------------------------


def random_starts(
        documents: Documents, numbers: np.ndarray, drawn: np.ndarray,
        targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Chooses text from a random sentence on in each of K documents in memory.

    A text has enough sentences to reach the target (in tokens, int64 [K]), at least
    one, and ends at the end of the document at the latest. `numbers`, int64 [K], are
    the indices of the documents; `drawn`, uint64 [K], are random (keyed_random.word).
    Returns the first code of each text and its number of tokens, int64 [K].
    """
    first = documents.first_sentence[numbers]
    limit = documents.first_sentence[numbers + 1]
    start = first + keyed_random.below(drawn, limit - first)
    before = sums_before(documents.sentence_lengths)
    ends = _ends(before, start, targets, limit)
    return (documents.first_code[numbers] + before[start] - before[first],
            before[ends] - before[start])


def _ends(before: np.ndarray, start: np.ndarray, target: np.ndarray,
          limit: np.ndarray) -> np.ndarray:
    """Returns where the texts end that begin with sentences `start`: int64 [K].

    `before` is the number of tokens before each sentence, `limit` the end of documents.
    """
    ends = np.searchsorted(before, before[start] + target)
    return np.clip(ends, start + 1, limit)


class TokenStore:
    """The parts in a folder, which must all be written; documents have running numbers.

        store = TokenStore(folder)
        for first, first_code, documents in store.slices(0):
            print(len(documents.ids), documents.codes[:10])

    A store can be pickled. At most `most_open` files are open at a time, by default at
    most half of those that the process may open.

    Attributes:
      num_parts, num_documents: the total numbers.
      first_document: int64 [num_parts], the number of each part's first document.
      dtype: the type of codes; None if there is no document.
    """

    def __init__(self, folder: WorkFolder, most_open: int = 0):
        self._folder = folder
        # Open files by name, the least recently used first.
        self._open: dict[str, int] = {}
        import resource  # Windows has no such module.

        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most_open = most_open or (
            _MOST_OPEN if soft < 0 else max(16, min(_MOST_OPEN, soft // 2)))
        self.num_parts = next(
            number for number in itertools.count()
            if not os.path.exists(folder.file(part_name(number, "documents"))))
        sizes = [self._size(number, "documents") // DOCUMENT.itemsize - 1
                 for number in range(self.num_parts)]
        first = sums_before(np.array(sizes, np.int64))
        self.first_document, self.num_documents = first[:-1], int(first[-1])
        self.dtype = None
        if self.num_documents:
            number = int(np.flatnonzero(sizes)[0])
            (last,) = self._array(number, "documents", DOCUMENT, sizes[number], 1)
            num_bytes = self._size(number, "tokens")
            self.dtype = np.dtype(f"<u{num_bytes // int(last['first_code'])}")

    def close(self) -> None:
        """Closes all files; they are opened again when they are needed."""
        while self._open:
            os.close(self._open.popitem()[1])

    def __del__(self):
        self.close()

    def __getstate__(self):
        return {**self.__dict__, "_open": {}}

    def slices(self, number: int, num_sentences: int = SENTENCES_PER_SLICE
               ) -> Iterator[tuple[int, int, Documents]]:
        """Yields the documents of a part in slices, for parts of any size.

        A slice takes documents until it has `num_sentences`. Its codes are mapped from
        the file, so unused codes take no memory. Yields the number of the first
        document in the part, the position of the first code in the part, and the slice.
        """
        total = self._size(number, "documents") // DOCUMENT.itemsize - 1
        first = 0
        while first < total:
            # A document has at least one sentence.
            rows = self._array(number, "documents", DOCUMENT, first,
                               min(num_sentences, total - first) + 1)
            reached = np.searchsorted(
                rows["first_sentence"], rows["first_sentence"][0] + num_sentences)
            rows = rows[:min(reached, len(rows) - 1) + 1]
            first_sentence = rows["first_sentence"] - rows["first_sentence"][0]
            first_code = rows["first_code"] - rows["first_code"][0]
            lengths = self._array(number, "lengths", LENGTH,
                                  int(rows["first_sentence"][0]), first_sentence[-1])
            begin = int(rows["first_code"][0])
            end = int(rows["first_code"][-1]) * self.dtype.itemsize
            if self._size(number, "tokens") < end:
                raise self._too_short(number, "tokens")
            codes = np.memmap(
                self._folder.file(part_name(number, "tokens")), self.dtype, "r",
                begin * self.dtype.itemsize, (int(first_code[-1]),))
            yield first, begin, Documents(
                codes, lengths, first_sentence, first_code,
                np.ascontiguousarray(rows["id"][:-1]))
            first += len(rows) - 1

    def read(self, parts: np.ndarray, starts: np.ndarray,
             lengths: np.ndarray) -> np.ndarray:
        """Returns the codes of K texts, concatenated: `lengths` codes from part `parts`
        from position `starts` on, each [K]."""
        if not len(parts):
            return np.zeros(0, self.dtype or np.uint16)
        return self._read("tokens", self.dtype, parts, starts, lengths)

    def second_segments(
            self, documents: np.ndarray, drawn: np.ndarray,
            targets: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Chooses texts as random_starts does, from K documents given by their numbers.

        Returns the part, uint32 [K], the first code in it, uint64 [K], and the number
        of tokens, int64 [K], of each text.
        """
        parts = [(np.zeros(0, np.int64),) * 3]
        for i in range(0, len(documents), _SEGMENTS_AT_ONCE):
            some = np.s_[i:i + _SEGMENTS_AT_ONCE]
            parts.append(self._second_segments(
                documents[some], drawn[some], targets[some]))
        part, start, length = map(np.concatenate, zip(*parts))
        return part.astype(np.uint32), start.astype(np.uint64), length

    def _second_segments(self, documents, drawn, targets):
        part = np.searchsorted(self.first_document, documents, side="right") - 1
        number = documents - self.first_document[part]
        rows = self._read("documents", DOCUMENT, part, number, np.full(len(part), 2))
        first, limit = rows["first_sentence"][::2], rows["first_sentence"][1::2]
        start = first + keyed_random.below(drawn, limit - first)
        # Count from the last mark, or from the document's beginning if that is later.
        marked = start - start % SENTENCES_PER_MARK
        near = np.maximum(first, marked)
        position = rows["first_code"][::2].copy()
        far = np.flatnonzero(marked > first)
        if len(far):
            marks = self._read("marks", MARK, part[far],
                               marked[far] // SENTENCES_PER_MARK,
                               np.ones(len(far), np.int64))
            # Each document before this one has a separator after it.
            position[far] = marks.astype(np.int64) + number[far]
        # A sentence has at least one token.
        last = np.minimum(limit, start + np.maximum(targets, 1))
        before = sums_before(self._read("lengths", LENGTH, part, near, last - near))
        shift = sums_before(last - near)[:-1] - near
        ends = _ends(before, start + shift, targets, last + shift)
        return (part, position + before[start + shift] - before[near + shift],
                before[ends] - before[start + shift])

    # In the methods that read files, positions count items of a dtype, not bytes.

    def _size(self, number: int, kind: str) -> int:
        return os.fstat(self._descriptor(number, kind)).st_size

    def _array(self, number: int, kind: str, dtype: np.dtype, first: int,
               count: int) -> np.ndarray:
        return self._read(kind, dtype, *map(np.atleast_1d, (number, first, count)))

    def _read(self, kind: str, dtype: np.dtype, parts: np.ndarray, starts: np.ndarray,
              counts: np.ndarray) -> np.ndarray:
        """Returns `counts` items from parts' files from `starts` on, all [K],
        concatenated."""
        order = np.argsort(parts, kind="stable")  # This looks up each file once.
        sizes = counts.astype(np.int64) * dtype.itemsize
        offsets = starts.astype(np.int64) * dtype.itemsize
        chunks = [b""] * len(order)
        pread, number, descriptor = os.pread, -1, -1
        for i, part, size, offset in zip(
                order.tolist(), parts[order].tolist(),
                sizes[order].tolist(), offsets[order].tolist()):
            if part != number:
                number, descriptor = part, self._descriptor(part, kind)
            chunks[i] = pread(descriptor, size, offset)
        content = b"".join(chunks)
        if len(content) != int(sizes.sum()):
            short = next(i for i, data in enumerate(chunks) if len(data) != sizes[i])
            raise self._too_short(int(parts[short]), kind)
        return np.frombuffer(content, dtype)

    def _descriptor(self, number: int, kind: str) -> int:
        name = part_name(number, kind)
        descriptor = self._open.pop(name, None)
        if descriptor is None:
            if len(self._open) >= self._most_open:
                os.close(self._open.pop(next(iter(self._open))))
            try:
                descriptor = os.open(self._folder.file(name), os.O_RDONLY)
            except OSError as error:
                raise InputError(
                    f"{self._folder.file(name)}: cannot be read: {error.strerror}. It "
                    "belongs to an unfinished run; remove its folder and start again."
                ) from error
        self._open[name] = descriptor
        return descriptor

    def _too_short(self, number: int, kind: str) -> InputError:
        return InputError(
            f"{self._folder.file(part_name(number, kind))}: shorter than when it was "
            "written; remove its folder and start again.")
