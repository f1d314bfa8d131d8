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
import itertools
import struct
from typing import Iterator

import google_crc32c

from albert_tf import files
from albert_tf.errors import InputError

_HEADER, _LENGTH, _CRC = struct.Struct("<QI"), struct.Struct("<Q"), struct.Struct("<I")
_LONG = 1 << 20  # A record with more bytes is compared with its file's size.
_CUT_OFF = "cut off at the end of the file"
_OFFSETS_EVERY = 1024  # records from one known offset in a file to the next


def _masked_crc(data: bytes) -> int:
    crc = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def frame(data: bytes) -> bytes:
    """Returns a record as it is stored in a file: header, data, checksum."""
    length = _LENGTH.pack(len(data))
    return b"".join((length, _CRC.pack(_masked_crc(length)),
                     data, _CRC.pack(_masked_crc(data))))


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


def _wrong(path: str, number: int, what: str) -> InputError:
    return InputError(f"{path}, record {number}: {what}; give a file written by "
                      "create_pretraining_data.py, or copy or create it again.")


def _data_length(path: str, number: int, header: bytes) -> int:
    """Returns the length that a header states, whose checksum is verified."""
    length, crc = _HEADER.unpack(header)
    if crc != _masked_crc(header[:8]):
        raise _wrong(path, number, "damaged, compressed or not a TFRecord file (the "
                     "checksum of its header is wrong)")
    return length


def read_records(path: files.StrPath) -> Iterator[bytes]:
    """Yields the records in a TFRecord file; verifies both checksums of each."""
    with files.open_binary(path) as stream:
        for number in itertools.count(1):
            header = stream.read(_HEADER.size)
            if not header and number > 1:
                return
            if len(header) < _HEADER.size:
                raise _wrong(path, number, _CUT_OFF)
            length = _data_length(path, number, header)
            # Reading allocates memory first, so a damaged length must not be requested.
            if length > _LONG and length > files.size(path):
                raise _wrong(path, number, _CUT_OFF)
            data, crc = stream.read(length), stream.read(_CRC.size)
            if len(data) + len(crc) < length + _CRC.size:
                raise _wrong(path, number, _CUT_OFF)
            if _CRC.unpack(crc)[0] != _masked_crc(data):
                raise _wrong(path, number, "damaged (the checksum of its content is "
                             "wrong)")
            yield data


@dataclasses.dataclass(frozen=True)
class FileInfo:
    """A TFRecord file, and the bytes at which every `offsets_every`-th record begins."""

    path: str
    num_records: int
    num_bytes: int
    offsets: tuple[int, ...] = (0,)
    offsets_every: int = _OFFSETS_EVERY

    def near(self, record: int) -> tuple[int, int]:
        """Returns how many bytes, and then how many records, are before a record, which
        is numbered from 0 here."""
        known = min(record // self.offsets_every, len(self.offsets) - 1)
        return self.offsets[known], record - known * self.offsets_every


def scan(path: str, chunk_size: int = 4 << 20,
         offsets_every: int = _OFFSETS_EVERY) -> FileInfo:
    """Counts the records in a file from their headers, whose checksums are verified."""
    # Header → size of its frame. There are few different headers, each verified once.
    frame_sizes = {}
    num_records = num_bytes = 0
    offsets = []
    # `rest` are bytes carried over, `at` is where a header starts in the buffer.
    rest, at = b"", 0
    with files.open_binary(path) as stream:
        while chunk := stream.read(chunk_size):
            num_bytes += len(chunk)
            buffer = rest + chunk if rest else chunk
            last = len(buffer) - _HEADER.size
            while at <= last:
                if num_records % offsets_every == 0:
                    offsets.append(num_bytes - len(buffer) + at)
                num_records += 1
                header = buffer[at:at + _HEADER.size]
                if header not in frame_sizes:
                    length = _data_length(path, num_records, header)
                    frame_sizes[header] = _HEADER.size + length + _CRC.size
                at += frame_sizes[header]
            rest = buffer[at:]
            at = max(0, at - len(buffer))
    if at or rest or not num_records:
        raise _wrong(path, num_records + (not at), _CUT_OFF)
    return FileInfo(path, num_records, num_bytes, tuple(offsets), offsets_every)
