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

from typing import Callable, Iterator, NamedTuple, Sequence

import numpy as np

from albert_tf import files, text_files
from albert_tf.errors import InputError, reading

# A line is tokenized as a whole. Each of its bytes takes about 100 bytes of memory with
# SentencePiece, and 300 with WordPiece if the line has no white space.
MAX_LINE_BYTES = 2 << 20
_OFFSET_BITS = 44  # the low bits of a document id; the file's number is above them
_SPANS = 256
_SMALLEST_SPAN, _LARGEST_SPAN = 4 << 20, 16 << 20
_COMPRESSION = 4  # Text is about this many times as large as when it is compressed.


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


def plan_spans(paths: Sequence[str], size: int = 0) -> list[Span]:
    """Cuts an input into spans, in a way that depends only on the sizes of its files:
    text anywhere, compressed text not at all. Small files share a span. `size` is that of
    a span in bytes, by default one of 256 of the input."""
    lengths = [files.size(path) * (_COMPRESSION if path.endswith(text_files.COMPRESSED)
                                   else 1) for path in paths]
    size = size or min(max(sum(lengths) // _SPANS, _SMALLEST_SPAN), _LARGEST_SPAN)
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


def read_span(paths: Sequence[str], span: Span,
              prepare: Callable[[list[str]], list[str]],
              block_bytes: int = 128 << 10,
              max_line_bytes: int = MAX_LINE_BYTES) -> Iterator[Lines]:
    """Yields the documents of a span of `paths`, all files of the input, in blocks; the
    first block begins with a document. `prepare` turns lines (which may end in "\\r")
    into lines for the tokenizer; a line that becomes "" is blank."""
    # `begun`: a blank line of this span has been seen. `inside`: a document has begun
    # since the last blank line.
    begun, inside = span.first_file == 0 and span.start == 0, False
    for number in range(span.first_file, len(paths)):
        # Lines of the file that begin before this byte belong to the span.
        limit = (float("inf") if number < span.end_file
                 else span.end if number == span.end_file else 0)
        start = span.start if number == span.first_file else 0
        for offset, data in _blocks(
                paths[number], start, limit, block_bytes, max_line_bytes):
            lines, starts = _lines(paths[number], offset, data, prepare)
            if not begun and starts[0] >= limit:
                return
            text, first, ids, ended = [], [], [], False
            for line, place in zip(lines, starts):
                if not line:
                    # The first blank line beyond the span ends its last document.
                    begun, inside, ended = True, False, place >= limit
                    if ended:
                        break
                elif begun:
                    if not inside:
                        inside = True
                        first.append(len(text))
                        ids.append(number << _OFFSET_BITS | place)
                    text.append(line)
            if text:
                yield Lines(text, first, ids)
            if ended:
                return


def _blocks(path: str, start: int, limit: float, block_bytes: int, max_line_bytes: int
            ) -> Iterator[tuple[int, bytes]]:
    """Yields the lines of a text file that begin at byte `start` or later in blocks, and
    the byte at which each begins; none if none is before `limit`."""
    with files.open_binary(path) as raw, reading(path):
        stream = text_files.decompressed(path, raw)
        offset, data = 0, b""
        if start:
            # The byte before `start` tells whether a line begins there.
            offset = stream.seek(start - 1)
            while not data.endswith(b"\n"):
                data = stream.readline(block_bytes)
                offset += len(data)
                if offset >= limit or not data:
                    return
        rest = b""  # the beginning of a line that is not complete yet
        while data := stream.read(block_bytes):
            newline = data.find(b"\n")
            # The limit is exact, so that it does not depend on where blocks begin.
            if len(rest) + (newline if newline >= 0 else len(data)) > max_line_bytes:
                raise InputError(
                    f"{path}, byte {offset}: a line is longer than "
                    f"{max_line_bytes >> 20} MiB, but the input must have one sentence "
                    "per line; split the text, for example with prepare_corpus.py.")
            end = data.rfind(b"\n") + 1
            if end:
                yield offset, rest + data[:end]
                offset += len(rest) + end
                rest = b""
            rest += data[end:]
        if rest:
            yield offset, rest


def _lines(path: str, offset: int, data: bytes,
           prepare: Callable[[list[str]], list[str]]) -> tuple[list[str], list[int]]:
    """Returns the prepared lines of a block, and the bytes at which they begin."""
    try:
        text = data.decode("utf-8")
        lines = (text if offset else text.removeprefix("\ufeff")).split("\n")
        if data.endswith(b"\n"):
            lines.pop()
        if "\0" in text and any(map(text_files.is_binary, lines)):
            raise UnicodeError
    except UnicodeError:
        for _ in text_files.read_lines(path):  # It names the line.
            pass
        raise
    ends = np.flatnonzero(np.frombuffer(data, np.uint8) == 10)
    return prepare(lines), [offset, *(offset + 1 + ends).tolist()]
