"""Documents of text files, read in parallel: the files are cut into spans.

Text has a sentence a line and a blank line between documents; a document continues in
the next file where a file does not end in a blank line. The input, all files one after
the other, is cut anywhere. A document belongs to the span in which the blank line
before it begins (think of one before the input). To read a span is to skip what comes
before its first blank line, and to read its last document to the end, whatever spans
and files that reaches into. So any cutting gives the same documents.

Files are read in blocks of lines: a block is decoded, prepared and searched for
blank lines as one, and a document is never held as a whole.
"""

import re
from typing import BinaryIO, Callable, Iterator, NamedTuple, Sequence

import numpy as np

from albert_tf import files, text_files
from albert_tf.errors import InputError

# A line is tokenized as a whole, which takes some 100 bytes of memory for each of
# its own with SentencePiece, and 300 with WordPiece where it has no white space.
MAX_LINE_BYTES = 2 << 20
MAX_FILES = 1 << 20
_OFFSET_BITS = 44  # of a document id; the number of the file is above them.
BLOCK_BYTES = 128 << 10
_SPANS = 256
_SMALLEST_SPAN, _LARGEST_SPAN = 1 << 20, 16 << 20
# Text is about so many times as large as it is compressed.
_COMPRESSION = 4
# Near a byte that is not UTF-8 these are the sign of a binary file; without them the
# text has another encoding.
_CONTROL = re.compile(rb"[\0-\x08\x0e-\x1a]")


class Span(NamedTuple):
    """The lines that begin from (first_file, start) up to, not at, (end_file, end)."""

    number: int  # counts spans from 0
    first_file: int
    start: int  # byte; above 0 only in a local file that is not compressed
    end_file: int  # the number of files at the end
    end: int  # byte; 0 at the beginning of a file
    num_bytes: int  # about how long it is; a compressed file counts four times


class Lines(NamedTuple):
    """Consecutive prepared lines of a span's documents, blank ones left out.

    Those before the first of `first` continue the document of the lines before.
    """

    lines: list[str]
    first: list[int]  # where in `lines` documents begin
    # Of these documents: number of the file << 44 | the byte of its (uncompressed)
    # content at which the document's first line begins.
    ids: list[int]


def span_bytes(total: int) -> int:
    """Size of the spans of an input of `total` bytes."""
    return min(max(total // _SPANS, _SMALLEST_SPAN), _LARGEST_SPAN)


def plan_spans(paths: Sequence[str], size: int = 0) -> list[Span]:
    """Cuts an input into spans, in a way that depends on the sizes of its files only.

    Local files are cut anywhere, compressed and remote ones nowhere. Small files
    share a span. `size` is in bytes, by default span_bytes of the input.
    """
    if len(paths) > MAX_FILES:
        raise InputError(
            f"The input has {len(paths):,} files; the most is {MAX_FILES:,}: join "
            "some.")
    sizes = []
    for path in paths:
        sizes.append(files.size(path))
        if sizes[-1] >> _OFFSET_BITS:
            raise InputError(
                f"{path}: larger than {1 << _OFFSET_BITS - 40} TiB; cut the file up.")
        if path.endswith(text_files.COMPRESSED):
            sizes[-1] *= _COMPRESSION
    size = size or span_bytes(sum(sizes))
    borders, held = [], 0  # file and byte at which spans end, and their bytes
    for number, (path, length) in enumerate(zip(paths, sizes)):
        start = 0
        if not (path.endswith(text_files.COMPRESSED) or files.is_remote(path)):
            while held + length - start > size:
                start += size - held
                borders.append((number, start, size))
                held = 0
        held += length - start
        if held >= size and number + 1 < len(paths):
            borders.append((number + 1, 0, held))
            held = 0
    if paths:
        borders.append((len(paths), 0, held))
    begins = [(0, 0), *(border[:2] for border in borders)]
    return [Span(number, *begin, *border)
            for number, (begin, border) in enumerate(zip(begins, borders))]


def read_span(paths: Sequence[str], span: Span,
              prepare: Callable[[list[str]], list[str]],
              block_bytes: int = BLOCK_BYTES,
              max_line_bytes: int = MAX_LINE_BYTES) -> Iterator[Lines]:
    """Documents that belong to a span, in blocks; the first block begins with one.

        for span in plan_spans(paths):
            for block in read_span(paths, span, encoder.prepare):
                print(block.lines, block.first, block.ids)

    `paths` are all files of the input, those that plan_spans got. `prepare` makes of
    lines (which may end in "\\r") lines for the tokenizer; one that becomes "" is
    blank.
    """
    # Whether a blank line of this span has been seen, and whether a document has
    # begun since the last one.
    begun = span.first_file == 0 and span.start == 0
    inside = False
    for number in range(span.first_file, len(paths)):
        # Lines of the file that begin before this byte belong to the span.
        limit = (float("inf") if number < span.end_file
                 else span.end if number == span.end_file else 0)
        start = span.start if number == span.first_file else 0
        for block in _blocks(
                paths[number], start, limit, block_bytes, max_line_bytes):
            if not begun and block.offset >= limit:
                return
            lines = prepare(_decoded(paths[number], block))
            # Where they begin in the file.
            ends = np.flatnonzero(np.frombuffer(block.data, np.uint8) == 10)
            starts = block.offset + np.concatenate([[0], ends + 1])
            blanks = [i for i, line in enumerate(lines) if not line]
            # The first blank line beyond the span ends its last document.
            last = next((i for i in blanks if starts[i] >= limit), None)
            if last is not None:
                blanks = [i for i in blanks if i < last]
            first = 0
            if not begun and blanks:
                begun, first = True, blanks[0] + 1
            if begun:
                found, inside = _between(
                    lines, blanks, first, len(lines) if last is None else last,
                    starts, number << _OFFSET_BITS, inside)
                if found.lines:
                    yield found
            if last is not None:
                return


def _between(lines: list[str], blanks: list[int], at: int, end: int,
             starts: np.ndarray, file_bits: int,
             inside: bool) -> tuple[Lines, bool]:
    """Lines at ... end - 1 of a block without its blank lines, and whether a document
    continues behind them, as it does before them if `inside`."""
    kept: list[str] = []
    first: list[int] = []
    ids: list[int] = []
    for blank in (*blanks, end):
        if blank < at:
            continue
        if blank > at:
            if not inside:
                first.append(len(kept))
                ids.append(file_bits | int(starts[at]))
            kept += lines[at:blank]
        inside = blank == end > at  # The end of the block is no blank line.
        at = blank + 1
    return Lines(kept, first, ids), inside


class _Block(NamedTuple):
    """Whole lines of a file, and the byte at which they begin."""

    offset: int
    data: bytes


def _blocks(path: str, start: int, limit: float, block_bytes: int,
            max_line_bytes: int) -> Iterator[_Block]:
    """Blocks of the lines of a file that begin at byte `start` or later; none if there
    is no such line before byte `limit`."""
    with files.open_binary(path) as raw:
        stream = text_files.decompressed(path, raw)
        offset = 0
        if start:
            # The byte before says whether a line begins at `start`.
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
        held: list[bytes] = []  # A line's beginning, in parts.
        length = 0
        while True:
            data = _read(path, stream, offset + length, block_bytes)
            newline = data.find(b"\n")
            # Exact, so that it does not depend on where blocks begin.
            if length + (newline if newline >= 0 else len(data)) > max_line_bytes:
                raise InputError(
                    f"{path}, line {_line_number(path, offset)}: longer than "
                    f"{max_line_bytes >> 20} MiB; the input has a sentence a line: "
                    "split the text into sentences, for example with "
                    "prepare_corpus.py.")
            end = data.rfind(b"\n") + 1
            if end:
                whole = b"".join((*held, data[:end]))
                yield _Block(offset, whole)
                offset += len(whole)
                held, length = [], 0
            if end < len(data):
                held.append(data[end:])
                length += len(data) - end
            if not data:
                if held:
                    yield _Block(offset, b"".join(held))
                return


def _read(path: str, stream: BinaryIO, offset: int, size: int) -> bytes:
    try:
        return stream.read(size)
    except text_files.READ_ERRORS as error:
        raise text_files.damaged(path, _line_number(path, offset) - 1, error) from error


def _decoded(path: str, block: _Block) -> list[str]:
    """The lines of a block without their ends, which are "\\n"."""
    data = block.data
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _not_text(path, block, error) from error
    if not block.offset:
        text = text.removeprefix("\ufeff")
    lines = text.split("\n")
    if data.endswith(b"\n"):
        lines.pop()
    if "\0" in text:
        for index, line in enumerate(lines):
            if text_files.is_binary(line):
                raise text_files.binary(path, _line_number(path, block.offset) + index)
    return lines


def _not_text(path: str, block: _Block, error: UnicodeDecodeError) -> InputError:
    data = block.data
    start = data.rfind(b"\n", 0, error.start) + 1
    number = _line_number(path, block.offset + start)
    if _CONTROL.search(data, max(0, error.start - 2048), error.start + 2048):
        return text_files.binary(path, number)
    return text_files.not_utf8(path, number, error.start - start + 1, error.reason)


def document_place(paths: Sequence[str], document_id: int) -> str:
    """Where a document begins: "corpus.txt, line 12". Reads the file up to there."""
    path = paths[document_id >> _OFFSET_BITS]
    offset = document_id & (1 << _OFFSET_BITS) - 1
    return f"{path}, line {_line_number(path, offset)}"


def _line_number(path: str, offset: int) -> int:
    """Number of the line that holds byte `offset`, from 1."""
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
