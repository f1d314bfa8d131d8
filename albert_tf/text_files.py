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
from typing import Any, BinaryIO, Callable, Iterator, Optional

from albert_tf import files
from albert_tf.errors import InputError, reading

try:
    from compression import zstd
except ImportError:  # before Python 3.14
    from backports import zstd

_READERS = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open, ".zst": zstd.open}
COMPRESSED = tuple(_READERS)


def decompressed(path: str, stream: BinaryIO) -> BinaryIO:
    """Returns the decompressed content of an open file if its name ends in COMPRESSED,
    otherwise `stream` itself, which stays open when the result is closed."""
    reader = _READERS.get(os.path.splitext(path)[1])
    # Without a buffer of C code, lines are read at half the speed.
    return io.BufferedReader(reader(stream), 1 << 17) if reader else stream


def read_lines(path: str, on_bytes: Optional[Callable[[int], None]] = None,
               once: bool = False, cleaned: bool = True) -> Iterator[tuple[int, str]]:
    """Yields the lines of a UTF-8 text file with their numbers from 1.

    The file is decompressed if its name ends in COMPRESSED. A byte-order mark at the
    start is dropped. `on_bytes` is called with the number of bytes on disk that were
    read since the last call. `once` also takes the standard input, pipes and devices
    (files.is_stream). Unless the text is `cleaned` later, it must not have NUL
    characters, and its lines must not end in carriage returns alone.
    """
    reported = 0
    with reading(files.shown(path)), files.open_binary(path, once=once) as stream:
        for number, raw in enumerate(decompressed(path, stream), 1):
            try:
                line, wrong = raw.decode("utf-8"), ""
                if "\0" in line and (not cleaned or is_binary(line)):
                    wrong = "it holds NUL characters"
                elif number == 1 and not cleaned and "\r" in line.rstrip("\r\n"):
                    wrong = "carriage returns alone end its lines (tr converts them)"
            except UnicodeDecodeError as error:
                wrong = f"byte {error.start + 1} is not UTF-8 ({error.reason})"
            if wrong:
                raise InputError(
                    f"{files.shown(path)}, line {number}: {wrong}; give text in UTF-8: "
                    "save a spreadsheet as .csv, convert UTF-16 with iconv, and end the "
                    f"name of a compressed file in {', '.join(COMPRESSED)}.")
            if number == 1:
                line = line.removeprefix("\ufeff")
            yield number, line.rstrip("\r\n")
            if on_bytes and number % 256 == 0:
                before, reported = reported, stream.tell()
                on_bytes(reported - before)
        if on_bytes:
            on_bytes(stream.tell() - reported)


def parse_json(text: str, where: str, advice: str = "") -> Any:
    """Parses JSON text, in which half a surrogate pair becomes NUL, as it is no character
    either. Raises InputError, with `advice` on what to do, if it is not JSON."""
    try:
        value = json.loads(text)
        # An escape that is part of a pair is none in the JSON that dumps writes.
        valid, found = re.subn("[\ud800-\udfff]", r"\\u0000", json.dumps(
            value, ensure_ascii=False) if "\\u" in text else "")
        return json.loads(valid) if found else value
    except (RecursionError, ValueError) as error:
        reason = str(error)
        if isinstance(error, json.JSONDecodeError):
            reason = f"{error.msg}, character {error.colno}"
            where += f", line {error.lineno}" * (error.lineno > 1)
        raise InputError(f"{where}: not JSON ({reason}){advice and '; '}{advice}."
                         ) from error


def read_object(path: str, advice: str = "") -> dict[str, Any]:
    """Reads the JSON object in a file; `advice` is for errors (parse_json)."""
    value = parse_json("\n".join(line for _, line in read_lines(path)), path, advice)
    if not isinstance(value, dict):
        raise InputError(f"{path}: not a JSON object{advice and '; '}{advice}.")
    return value


def is_binary(line: str) -> bool:
    """Returns whether more than a quarter of the characters in a line are NUL, as in
    UTF-16 without a byte-order mark, which is valid UTF-8."""
    return "\0" in line and line.count("\0") > max(15, len(line) / 4)


def write_json(path: str, value: Any, **options: Any) -> None:
    """Writes a value as indented JSON, atomically; `options` are for json.dumps."""
    files.write(path, json.dumps(value, indent=2, **options).encode() + b"\n")
