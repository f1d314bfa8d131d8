"""Reads documents from text files in parallel, by cutting the files into spans.

Text has one sentence per line and a blank line between documents. If a file does not
end in a blank line, its last document continues in the next file. The input, which is
all files in a row, is cut anywhere. A document belongs to the span in which the blank
line before it begins (imagine one before the input). A reader of a span skips what is
before its first blank line, and reads its last document to the end, even if that is in
a later span or file. Every way to cut therefore gives the same documents.

In Parquet and Arrow files each row is a document, whose lines are those of its text
without blank ones. Such a file is read as if a blank line were before each row and after
the last. Its rows take the place of bytes, and it is cut between row groups.

Files are read in blocks of lines. A block is decoded, prepared and searched for blank
lines as a whole, and a whole document is never held in memory.
"""

import itertools
import re
from typing import BinaryIO, Callable, Iterator, NamedTuple, Sequence

import numpy as np

from albert_tf import files, row_files, text_files
from albert_tf.errors import InputError

# A line is tokenized as a whole. Each of its bytes takes about 100 bytes of memory with
# SentencePiece, and 300 with WordPiece if the line has no white space.
MAX_LINE_BYTES = 2 << 20
MAX_FILES = 1 << 20
_OFFSET_BITS = 44  # the low bits of a document id; the file's number is above them.
BLOCK_BYTES = 128 << 10
_SPANS = 256
_SMALLEST_SPAN, _LARGEST_SPAN = 1 << 20, 16 << 20
# Text is about this many times as large as when it is compressed.
_COMPRESSION = 4
# Near a byte that is not UTF-8 these bytes indicate a binary file. Without them the
# text has a different encoding.
_CONTROL = re.compile(rb"[\0-\x08\x0e-\x1a]")


class Span(NamedTuple):
    """The lines that begin from (first_file, start) on, before (end_file, end)."""

    number: int  # counts spans from 0
    first_file: int
    start: int  # byte, or row; above 0 only in a file that can be cut
    end_file: int  # the number of files if the span is the last
    end: int  # byte, or row; 0 at the beginning of a file
    num_bytes: int  # approximate length; a compressed file counts four times


class Lines(NamedTuple):
    """Consecutive prepared lines from a span's documents, without blank lines.

    Lines before the first document in `first` continue the document of the last block.
    """

    lines: list[str]
    first: list[int]  # the indices in `lines` at which documents begin
    # The ids of these documents: number of the file << 44 | the byte in its
    # (uncompressed) content at which the document's first line begins, or its row.
    ids: list[int]


def span_bytes(total: int) -> int:
    """Returns the size of spans for an input of `total` bytes."""
    return min(max(total // _SPANS, _SMALLEST_SPAN), _LARGEST_SPAN)


def plan_spans(paths: Sequence[str], size: int = 0, column: str = "text"
               ) -> list[Span]:
    """Cuts an input into spans, in a way that depends only on the sizes of its files.

    Text is cut anywhere, but compressed text is not cut, and Parquet is between row
    groups. Small files share a span. `size` is the size of a span in bytes,
    by default span_bytes of the input. `column` has the text of Parquet and Arrow files.
    """
    if len(paths) > MAX_FILES:
        raise InputError(
            f"--input_file matches {len(paths):,} files, but at most {MAX_FILES:,} are "
            "supported; join some of them.")
    parts = [parts_of(path, column) for path in paths]
    size = size or span_bytes(sum(length for each in parts for _, length in each))
    # `borders` are the file and byte, or row, at which each span ends, and its size.
    borders, held = [], 0
    for number, path in enumerate(paths):
        for start, length in parts[number]:
            if held >= size:
                borders.append((number, start, held))
                held = 0
            if not (path.endswith(text_files.COMPRESSED) or row_files.is_row_file(path)):
                while held + length > size:
                    start += size - held
                    length -= size - held
                    borders.append((number, start, size))
                    held = 0
            held += length
    if paths:
        borders.append((len(paths), 0, held))
    begins = [(0, 0), *(border[:2] for border in borders)]
    return [Span(number, *begin, *border)
            for number, (begin, border) in enumerate(zip(begins, borders))]


def parts_of(path: str, column: str) -> list[tuple[int, int]]:
    """Returns where each part of a file that can be read for itself begins, and its
    size in bytes."""
    if row_files.is_row_file(path):
        return row_files.parts_of(path, column)
    size = files.size(path)
    if size >> _OFFSET_BITS:
        raise InputError(
            f"{path}: larger than {1 << _OFFSET_BITS - 40} TiB; split the file.")
    return [(0, size * _COMPRESSION if path.endswith(text_files.COMPRESSED) else size)]


def read_span(paths: Sequence[str], span: Span,
              prepare: Callable[[list[str]], list[str]],
              block_bytes: int = BLOCK_BYTES,
              max_line_bytes: int = MAX_LINE_BYTES,
              column: str = "text") -> Iterator[Lines]:
    """Yields the documents of a span in blocks; the first block begins with a document.

        for span in plan_spans(paths):
            for block in read_span(paths, span, encoder.prepare):
                print(block.lines, block.first, block.ids)

    `paths` are all files of the input and `column` is that of row files, as for
    plan_spans. `prepare` turns lines (which
    may end in "\\r") into lines for the tokenizer; a line that becomes "" is blank.
    """
    # `begun`: a blank line of this span has been seen. `inside`: a document has begun
    # since the last blank line.
    begun = span.first_file == 0 and span.start == 0
    inside = False
    for number in range(span.first_file, len(paths)):
        # Lines of the file that begin before this byte belong to the span.
        limit = (float("inf") if number < span.end_file
                 else span.end if number == span.end_file else 0)
        start = span.start if number == span.first_file else 0
        if row_files.is_row_file(paths[number]):
            blocks = _row_blocks(
                paths[number], column, start, limit, prepare, block_bytes, max_line_bytes)
        else:
            blocks = _text_blocks(
                paths[number], start, limit, prepare, block_bytes, max_line_bytes)
        for lines, starts in blocks:
            if not begun and starts[0] >= limit:
                return
            blanks = [i for i, line in enumerate(lines) if not line]
            # The first blank line beyond the span ends its last document.
            last = next((i for i in blanks if starts[i] >= limit), None)
            if last is not None:
                blanks = [i for i in blanks if i < last]
            first = 0
            if not begun and blanks:
                begun, first = True, blanks[0] + 1
            if begun:
                documents, inside = _between(
                    lines, blanks, first, len(lines) if last is None else last,
                    starts, number << _OFFSET_BITS, inside)
                if documents.lines:
                    yield documents
            if last is not None:
                return


def _between(lines: list[str], blanks: list[int], at: int, end: int,
             starts: np.ndarray, file_bits: int,
             inside: bool) -> tuple[Lines, bool]:
    """Returns the lines at ... end - 1 of a block without blank lines, and whether a
    document continues after them. If `inside`, one continues from before them."""
    rest: list[str] = []
    first: list[int] = []
    ids: list[int] = []
    for blank in (*blanks, end):
        if blank < at:
            continue
        if blank > at:
            if not inside:
                first.append(len(rest))
                ids.append(file_bits | int(starts[at]))
            rest += lines[at:blank]
        inside = blank == end > at  # The end of the block is not a blank line.
        at = blank + 1
    return Lines(rest, first, ids), inside


def _text_blocks(path: str, start: int, limit: float,
                 prepare: Callable[[list[str]], list[str]], block_bytes: int,
                 max_line_bytes: int) -> Iterator[tuple[list[str], np.ndarray]]:
    """Yields the prepared lines of a text file, and the bytes at which they begin."""
    for offset, data in _blocks(path, start, limit, block_bytes, max_line_bytes):
        ends = np.flatnonzero(np.frombuffer(data, np.uint8) == 10)
        yield prepare(_decoded(path, offset, data)), offset + np.concatenate(
            [[0], ends + 1])


def _row_blocks(path: str, column: str, start: int, limit: float,
                prepare: Callable[[list[str]], list[str]], block_bytes: int,
                max_line_bytes: int) -> Iterator[tuple[list[str], np.ndarray]]:
    """Yields the prepared lines of rows from `start` on, before `limit`, with a blank
    line before each row and after the last, and the rows to which they belong."""
    row, size, before = start, 0, -1
    raw: list[str] = []
    rows: list[int] = []
    texts = () if start >= limit else itertools.islice(
        row_files.read_texts(path, column, after=start),
        None if limit == float("inf") else int(limit) - start)
    for row, text in texts:
        for line in text.split("\n"):
            num_bytes = len(line.encode("utf-8", "surrogatepass"))
            if num_bytes > max_line_bytes:
                raise InputError(
                    f"{path}, row {row}: has a line {_too_long(max_line_bytes)}")
            raw.append(line)
            rows.append(row - 1)
            size += num_bytes
            if size >= block_bytes:
                yield from _with_blanks(prepare(raw), rows, before)
                raw, rows, size, before = [], [], 0, row - 1
    yield from _with_blanks([*prepare(raw), ""], [*rows, row], before)


def _with_blanks(lines: list[str], rows: list[int], before: int
                 ) -> Iterator[tuple[list[str], np.ndarray]]:
    """Yields lines with one blank line, before each row, and their rows. `before` is the
    row of the line before them. Yields nothing if all are left out."""
    kept: list[tuple[str, int]] = []
    for line, row in zip(lines, rows):
        if row != before:
            kept.append(("", row))
        if line:
            kept.append((line, row))
        before = row
    if kept:
        yield [line for line, _ in kept], np.array([row for _, row in kept], np.int64)


def _blocks(path: str, start: int, limit: float, block_bytes: int,
            max_line_bytes: int) -> Iterator[tuple[int, bytes]]:
    """Yields blocks of complete lines, and the byte at which each begins, for the lines
    of a file that begin at byte `start` or later; none if none is before `limit`."""
    with files.open_binary(path) as raw:
        stream = text_files.decompressed(path, raw)
        offset = 0
        if start:
            # The byte before `start` tells whether a line begins there.
            offset = start - 1
            stream.seek(offset)
            newline = -1
            while newline < 0:
                data = _read(path, stream, offset, block_bytes)
                newline = data.find(b"\n")
                offset += newline + 1 if newline >= 0 else len(data)
                if offset >= limit or not data:
                    return
            stream.seek(offset)
        parts: list[bytes] = []  # the beginning of a line that is not complete yet
        length = 0
        while True:
            data = _read(path, stream, offset + length, block_bytes)
            newline = data.find(b"\n")
            # The limit is exact, so that it does not depend on where blocks begin.
            if length + (newline if newline >= 0 else len(data)) > max_line_bytes:
                raise InputError(
                    f"{path}, line {_line_number(path, offset)}: "
                    + _too_long(max_line_bytes))
            end = data.rfind(b"\n") + 1
            if end:
                content = b"".join((*parts, data[:end]))
                yield offset, content
                offset += len(content)
                parts, length = [], 0
            if end < len(data):
                parts.append(data[end:])
                length += len(data) - end
            if not data:
                if parts:
                    yield offset, b"".join(parts)
                return


def _too_long(max_line_bytes: int) -> str:
    """Returns what is wrong with a line of more bytes, and what to do."""
    return (f"longer than {max_line_bytes >> 20} MiB, but the input must have one "
            "sentence per line; split the text into sentences, for example with "
            "prepare_corpus.py.")


def _read(path: str, stream: BinaryIO, offset: int, size: int) -> bytes:
    try:
        return stream.read(size)
    except text_files.READ_ERRORS as error:
        raise text_files.damaged(path, _line_number(path, offset) - 1, error) from error


def _decoded(path: str, offset: int, data: bytes) -> list[str]:
    """Returns the lines of a block without the "\\n" at their ends."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _not_text(path, offset, error) from error
    if not offset:
        text = text.removeprefix("\ufeff")
    lines = text.split("\n")
    if data.endswith(b"\n"):
        lines.pop()
    if "\0" in text:
        for index, line in enumerate(lines):
            if text_files.is_binary(line):
                raise text_files.binary(path, _line_number(path, offset) + index)
    return lines


def _not_text(path: str, offset: int, error: UnicodeDecodeError) -> InputError:
    data = error.object
    start = data.rfind(b"\n", 0, error.start) + 1
    number = _line_number(path, offset + start)
    if _CONTROL.search(data, max(0, error.start - 2048), error.start + 2048):
        return text_files.binary(path, number)
    return text_files.not_utf8(path, number, error.start - start + 1, error.reason)


def document_place(paths: Sequence[str], document_id: int) -> str:
    """Returns where a document begins, as in "corpus.txt, line 12".

    This reads a text file up to that line.
    """
    path = paths[document_id >> _OFFSET_BITS]
    offset = document_id & (1 << _OFFSET_BITS) - 1
    if row_files.is_row_file(path):
        return f"{path}, row {offset + 1}"
    return f"{path}, line {_line_number(path, offset)}"


def _line_number(path: str, offset: int) -> int:
    """Returns the number of the line that holds byte `offset`, from 1."""
    number = 1
    with files.open_binary(path) as raw:
        stream = text_files.decompressed(path, raw)
        while offset > 0:
            try:
                data = stream.read(min(offset, BLOCK_BYTES))
            except text_files.READ_ERRORS:
                return number
            if not data:
                return number
            number += data.count(b"\n")
            offset -= len(data)
    return number
