"""Reads documents from text files in parallel, by cutting the files into spans.

Text has one sentence per line and a blank line between documents. If a file does not
end in a blank line, its last document continues in the next file. The input, which is
all files in a row, is cut anywhere. A document belongs to the span in which the blank
line before it begins (imagine one before the input). A reader of a span skips what is
before its first blank line, and reads its last document to the end, even if that is in
a later span or file. Every way to cut therefore gives the same documents.

Files are read in blocks of lines. A block is decoded, prepared and searched for blank
lines as a whole, and a whole document is never held in memory.
"""

import re
from typing import BinaryIO, Callable, Iterator, NamedTuple, Sequence

import numpy as np

from albert_tf import files, text_files
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
    start: int  # byte; above 0 only in a file that can be cut
    end_file: int  # the number of files if the span is the last
    end: int  # byte; 0 at the beginning of a file
    num_bytes: int  # approximate length; a compressed file counts four times


class Lines(NamedTuple):
    """Consecutive prepared lines from a span's documents, without blank lines.

    Lines before the first document in `first` continue the document of the last block.
    """

    lines: list[str]
    first: list[int]  # the indices in `lines` at which documents begin
    # The ids of these documents: number of the file << 44 | the byte in its
    # (uncompressed) content at which the document's first line begins.
    ids: list[int]


def span_bytes(total: int) -> int:
    """Returns the size of spans for an input of `total` bytes."""
    return min(max(total // _SPANS, _SMALLEST_SPAN), _LARGEST_SPAN)


def plan_spans(paths: Sequence[str], size: int = 0) -> list[Span]:
    """Cuts an input into spans, in a way that depends only on the sizes of its files.

    Text is cut anywhere, but compressed text is not cut. Small files share a span.
    `size` is the size of a span in bytes, by default span_bytes of the input.
    """
    if len(paths) > MAX_FILES:
        raise InputError(
            f"--input_file matches {len(paths):,} files, but at most {MAX_FILES:,} are "
            "supported; join some of them.")
    lengths = [length_of(path) for path in paths]
    size = size or span_bytes(sum(lengths))
    # `borders` are the file and byte at which each span ends, and its size.
    borders, held = [], 0
    for number, (path, length) in enumerate(zip(paths, lengths)):
        start = 0
        if held >= size:
            borders.append((number, start, held))
            held = 0
        while not path.endswith(text_files.COMPRESSED) and held + length > size:
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


def length_of(path: str) -> int:
    """Returns the size of a file in bytes, or about that of its uncompressed text."""
    size = files.size(path)
    if size >> _OFFSET_BITS:
        raise InputError(
            f"{path}: larger than {1 << _OFFSET_BITS - 40} TiB; split the file.")
    return size * _COMPRESSION if path.endswith(text_files.COMPRESSED) else size


def read_span(paths: Sequence[str], span: Span,
              prepare: Callable[[list[str]], list[str]],
              block_bytes: int = BLOCK_BYTES,
              max_line_bytes: int = MAX_LINE_BYTES) -> Iterator[Lines]:
    """Yields the documents of a span in blocks; the first block begins with a document.

        for span in plan_spans(paths):
            for block in read_span(paths, span, encoder.prepare):
                print(block.lines, block.first, block.ids)

    `paths` are all files of the input. `prepare` turns lines (which may end in "\\r")
    into lines for the tokenizer; a line that becomes "" is blank.
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
        for lines, starts in _text_blocks(
                paths[number], start, limit, prepare, block_bytes, max_line_bytes):
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
