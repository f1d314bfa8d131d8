"""Reads and writes TFRecord files without TensorFlow.

A file is a sequence of frames, one per record:

    length   uint64 little-endian      |  header, 12 bytes
    crc      of the 8 length bytes     |
    data     `length` bytes
    crc      of the data

Checksums are CRC-32C in TensorFlow's masked form. Messages number records from 1.
"""

import contextlib
import dataclasses
import functools
import itertools
import os
from typing import BinaryIO, Iterator

import google_crc32c

from albert_tf import files
from albert_tf.errors import InputError

_HEADER, _CRC = 12, 4  # bytes
OFFSETS_EVERY = 1024  # records from one known offset in a file to the next


def masked_crc(data: bytes) -> bytes:
    crc = google_crc32c.value(data)
    return (((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(_CRC, "little")


def frame(data: bytes) -> bytes:
    """Returns a record as it is stored in a file: header, data, checksum."""
    length = len(data).to_bytes(8, "little")
    return b"".join((length, masked_crc(length), data, masked_crc(data)))


class RecordWriter(contextlib.ExitStack):
    """A writer of a TFRecord file, which has a temporary name until it is complete.

        with RecordWriter(path) as writer:
            writer.write(record)
    """

    def __init__(self, path: str):
        super().__init__()
        self._stream = self.enter_context(files.atomic_write(path))

    def write(self, data: bytes) -> None:
        """Appends one record."""
        self._stream.write(frame(data))


@functools.lru_cache  # There are few different headers.
def _data_length(header: bytes) -> int:
    """Returns the length in a header, or -1 if its checksum is wrong."""
    length, crc = header[:8], header[8:]
    return int.from_bytes(length, "little") if crc == masked_crc(length) else -1


def _frames(path: files.StrPath, stream: BinaryIO) -> Iterator[tuple[int, int]]:
    """Yields of each record the byte at which it begins, and the length of its data,
    which the caller must read with the checksum; verifies the headers."""
    begin, size = 0, files.size(os.fspath(path))
    for number in itertools.count(1):
        header, length = stream.read(_HEADER), 0
        if len(header) == _HEADER and (length := _data_length(header)) < 0:
            raise _wrong(path, number, "damaged, compressed or not a TFRecord file (the "
                         "checksum of its header is wrong)")
        end = begin + _HEADER + length + _CRC
        if end > size:
            raise _wrong(path, number, "cut off at the end of the file")
        yield begin, length
        if end == size:
            return
        begin = end


def _wrong(path: files.StrPath, number: int, what: str) -> InputError:
    return InputError(f"{path}, record {number}: {what}; give a file written by "
                      "create_pretraining_data.py, or copy or create it again.")


def read_records(path: files.StrPath) -> Iterator[bytes]:
    """Yields the records in a TFRecord file; verifies both checksums of each."""
    with files.open_binary(path) as stream:
        for number, (_, length) in enumerate(_frames(path, stream), 1):
            data = stream.read(length)
            if stream.read(_CRC) != masked_crc(data):
                raise _wrong(path, number, "damaged (the checksum of its content is "
                             "wrong)")
            yield data


@dataclasses.dataclass(frozen=True)
class FileInfo:
    """A TFRecord file, and the bytes at which each OFFSETS_EVERY-th record begins."""

    path: str
    num_records: int
    num_bytes: int
    offsets: tuple[int, ...] = (0,)

    def near(self, record: int) -> tuple[int, int]:
        """Returns how many bytes, and then how many records, are before a record, which
        is numbered from 0 here."""
        known = min(record // OFFSETS_EVERY, len(self.offsets) - 1)
        return self.offsets[known], record - known * OFFSETS_EVERY


def scan(path: str) -> FileInfo:
    """Counts the records in a file from their headers, whose checksums are verified."""
    offsets = []
    with files.open_binary(path) as stream:
        for number, (begin, length) in enumerate(_frames(path, stream)):
            if number % OFFSETS_EVERY == 0:
                offsets.append(begin)
            stream.read(length + _CRC)
        return FileInfo(path, number + 1, stream.tell(), tuple(offsets))
