"""Reads and writes text and JSON files in UTF-8, with line numbers, also compressed.

A file that is damaged, binary, not UTF-8 or not JSON raises InputError.
"""

import bz2
import gzip
import io
import json
import lzma
import os
import re
import zlib
from typing import Any, BinaryIO, Callable, Iterator

from albert_tf import files
from albert_tf.errors import InputError

COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
# Errors that reading raises if a file is damaged, cut short or on a failing disk.
READ_ERRORS = (OSError, EOFError, zlib.error, lzma.LZMAError)
# Compressed bytes to decompress at a time. zstd turns 4 bytes into at most 128 KiB, so
# a malicious file gives at most 32 MiB at once.
_ZSTD_STEP = 1024
# Code points that are not in any text, and their escapes in JSON.
_NO_CHARACTER = re.compile("[\0\ud800-\udfff]")
_NO_CHARACTER_ESCAPED = re.compile(r"\\u(?:0000|[dD][89a-fA-F])")


# How files begin that are not text → what they are, and what to do.
_NAME_IT = "add {} to its name, or decompress it"
_ZIP = ("a ZIP archive (as .xlsx, .docx and .npz are, too)",
        "unpack it, or save its content as text (a spreadsheet as .csv)")
_AS_TEXT = "save its content as text (as .csv or .jsonl), and give that file"
_TABLE = ("save its content as text (prepare_corpus.py does, for a corpus), or where "
          "tables are read end its name in {}")
_UTF_16 = ("text in UTF-16", "convert it: iconv -f UTF-16 -t UTF-8")
_KINDS = {
    b"\x1f\x8b": ("a file compressed with gzip", _NAME_IT.format(".gz")),
    b"BZh": ("a file compressed with bzip2", _NAME_IT.format(".bz2")),
    b"\xfd7zXZ": ("a file compressed with xz", _NAME_IT.format(".xz")),
    b"\x28\xb5\x2f\xfd": ("a file compressed with zstd", _NAME_IT.format(".zst")),
    b"PK\3\4": _ZIP, b"PK\5\6": _ZIP,
    b"7z\xbc\xaf": ("a 7z archive", "unpack it"),
    b"%PDF": ("a PDF", "save its text with another program, such as pdftotext"),
    b"PAR1": ("a Parquet file", _TABLE.format(".parquet")),
    b"ARROW1": ("an Arrow file", _TABLE.format(".arrow")),
    b"\xff\xff\xff\xff": ("an Arrow stream", _TABLE.format(".arrow")),
    b"SQLite format 3": ("an SQLite database", _AS_TEXT),
    b"\xd0\xcf\x11\xe0": ("a file of an old Office program", _AS_TEXT),
    b"\x89HDF": ("an HDF5 file", _AS_TEXT), b"\x93NUMPY": ("a NumPy file", _AS_TEXT),
    b"\x89PNG": ("a picture", "give a text file"),
    b"\xff\xd8\xff": ("a picture", "give a text file"),
    b"\xff\xfe": _UTF_16, b"\xfe\xff": _UTF_16}


def decompressed(path: str, stream: BinaryIO) -> BinaryIO:
    """Returns the decompressed content of an open file if its name ends in COMPRESSED,
    otherwise `stream` itself.

    `stream` stays open when the result is closed. Reading raises one of READ_ERRORS if
    the file is damaged.
    """
    path = os.fspath(path)
    if path.endswith(".gz"):
        return gzip.GzipFile(fileobj=stream)
    if path.endswith(".bz2"):
        return bz2.BZ2File(stream)
    if path.endswith(".xz"):
        return lzma.LZMAFile(stream)
    if path.endswith(".zst"):
        return io.BufferedReader(_ZstdReader(path, stream), 1 << 17)
    return stream


class _ZstdReader(io.RawIOBase):
    """A reader that decompresses Zstandard frames. It raises an error if the last one
    is cut short, unlike the package's own stream readers."""

    def __init__(self, path: str, stream: BinaryIO):
        super().__init__()
        try:
            import zstandard
        except ImportError as error:
            raise InputError(
                f"{path}: reading .zst files needs the package zstandard; install "
                "it, or decompress the file.") from error
        self._package, self._stream = zstandard, stream
        self._frame = None  # the decompressor of the open frame
        self._held = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        while not self._held:
            data = self._stream.read(_ZSTD_STEP)
            if not data:
                if self._frame is not None:
                    raise EOFError("the last Zstandard frame has no end")
                return 0
            self._held = memoryview(self._decompress(data))
        size = min(len(buffer), len(self._held))
        buffer[:size] = self._held[:size]
        self._held = self._held[size:]
        return size

    def _decompress(self, data: bytes) -> bytes:
        parts = []
        while data:
            if self._frame is None:
                self._frame = self._package.ZstdDecompressor().decompressobj()
            try:
                parts.append(self._frame.decompress(data))
            except self._package.ZstdError as error:
                raise OSError(str(error)) from error
            data = b""
            if self._frame.eof:
                data, self._frame = self._frame.unused_data, None
        return b"".join(parts)


def read_lines(path: str, on_bytes: Callable[[int], None] = lambda count: None,
               keep_ends: bool = False) -> Iterator[tuple[int, str]]:
    """Yields the lines of a UTF-8 text file with their numbers from 1.

        for number, line in read_lines("wiki.txt.gz"):

    The file is decompressed if its name ends in COMPRESSED. A byte-order mark at the
    start is dropped. `on_bytes` is called with the number of bytes on disk that were
    read since the last call. `keep_ends` keeps the "\\n" or "\\r\\n" of lines. Raises
    InputError if the file is damaged, binary or not UTF-8.
    """
    number, reported = 0, 0
    with files.open_binary(path) as stream:
        try:
            for number, raw in enumerate(decompressed(path, stream), 1):
                line = raw.decode("utf-8")
                if number == 1:
                    line = line.removeprefix("\ufeff")
                if is_binary(line):
                    raise binary(path, number)
                yield number, line if keep_ends else line.rstrip("\r\n")
                if number % 256 == 0:
                    before, reported = reported, stream.tell()
                    on_bytes(reported - before)
        except UnicodeDecodeError as error:
            raise not_utf8(path, number, error.start + 1, error.reason) from error
        except READ_ERRORS as error:
            raise damaged(path, number, error) from error
        on_bytes(stream.tell() - reported)


def parse_json(text: str, path: str, advice: str = "", line: int = 0,
               cleaned: bool = False, strict: bool = False, unique: bool = False
               ) -> Any:
    """Parses the JSON text in a file, or in its line with this number from 1.

    Raises InputError, with `advice` on what to do, if it is not JSON, or if it has an
    escape for NUL or half a surrogate pair. Such escapes are allowed if the text is
    `cleaned` later. If `strict`, NaN, infinite numbers and keys that an object has twice
    are refused, too; Python's own parser accepts them. If `unique`, such keys are.
    """
    where = f"{path}, line {line}" if line else path

    def checked(pairs):
        value = dict(pairs)
        if len(value) < len(pairs):
            name = next(name for i, (name, _) in enumerate(pairs) if name in dict(
                pairs[:i]))
            raise InputError(f"{where}: an object has the key {name!r:.40} twice; "
                             "remove one of them.")
        return value

    def no_number(name):
        raise InputError(f"{where}: not JSON ({name} is no number there).")

    try:
        value = json.loads(text, object_pairs_hook=checked if strict or unique else None,
                           parse_constant=no_number if strict else None)
    except InputError:
        raise
    except json.JSONDecodeError as error:
        wrong = (f"{error.msg}, character {error.colno}" if text.strip()
                 else "it is empty")
        raise InputError(f"{path}, line {line or error.lineno}: not JSON ({wrong})"
                         f"{advice and '; '}{advice}.") from error
    except (RecursionError, ValueError) as error:
        wrong = ("lists or objects are nested thousands deep"
                 if isinstance(error, RecursionError)
                 else "a number has thousands of digits")  # Python reads up to 4,300.
        raise InputError(f"{where}: not JSON that Python can read ({wrong})"
                         f"{advice and '; '}{advice}.") from error
    if not cleaned and _NO_CHARACTER_ESCAPED.search(text):
        wrong = next(filter(None, map(_NO_CHARACTER.search, _strings(value))), None)
        if wrong:
            raise InputError(
                f"{where}: a text in it holds \\u{ord(wrong[0]):04x}, which is not a "
                "character (NUL, or half of a surrogate pair); remove it.")
    return value


def _strings(value: Any) -> Iterator[str]:
    """Yields all strings in a JSON value, including keys."""
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            waiting += [*value, *value.values()]
        elif isinstance(value, list):
            waiting += value


def read_json(path: str, advice: str = "") -> Any:
    """Reads the value in a JSON file; `advice` is for errors (parse_json)."""
    files.check_size(path)
    return parse_json("\n".join(line for _, line in read_lines(path)), path, advice)


def read_object(path: str, advice: str = "") -> dict[str, Any]:
    """Reads the JSON object in a file; `advice` is for errors (parse_json)."""
    value = read_json(path, advice)
    if not isinstance(value, dict):
        raise InputError(f"{path}: not a JSON object{advice and '; '}{advice}.")
    return value


def is_binary(line: str) -> bool:
    """Returns whether more than a quarter of the characters in a line are NUL.

    In UTF-16 without a byte-order mark every second byte often is, and it is valid
    UTF-8.
    """
    return "\0" in line and line.count("\0") > max(15, len(line) / 4)


def _known_kind(path: str) -> InputError | None:
    """Returns the error for a file that is known not to be text by how it begins."""
    try:
        with files.open_binary(path) as stream:
            begin = decompressed(path, stream).read(16)
    except (InputError, *READ_ERRORS):
        return None
    for magic, (what, advice) in _KINDS.items():
        if begin.startswith(magic):
            return InputError(f"{path} is {what}, not text in UTF-8; {advice}.")
    return None


def binary(path: str, line: int) -> InputError:
    """Returns the error for a file that is not text."""
    return _known_kind(path) or InputError(
        f"{path}, line {line}: looks binary, because it holds control characters; give "
        "UTF-8 text. Names of compressed files must end in "
        f"{', '.join(COMPRESSED)}; convert UTF-16 with iconv.")


def not_utf8(path: str, line: int, byte: int, reason: str) -> InputError:
    """Returns the error for a file that is not UTF-8; line and byte count from 1."""
    return _known_kind(path) or InputError(
        f"{path}, line {line}: byte {byte} is not UTF-8 ({reason}); convert the "
        "file to UTF-8, for example with iconv.")


def damaged(path: str, line: int, error: Exception) -> InputError:
    """Returns the error for a file of which only `line` lines can be read."""
    return InputError(
        f"{path}, after line {line}: cannot be read further ({error}); the file is "
        "damaged or cut short, so copy or create it again.")


def write_json(path: str, value: Any, **options: Any) -> None:
    """Writes a value as indented JSON, atomically; `options` are for json.dumps."""
    files.write(path, json.dumps(value, indent=2, **options).encode() + b"\n")
