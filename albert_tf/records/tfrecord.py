"""Reads and writes TFRecord files and tf.train.Example without TensorFlow.

A file is a sequence of frames, one per record:

    length   uint64 little-endian      |  header, 12 bytes
    crc      of the 8 length bytes     |
    data     `length` bytes
    crc      of the data

Checksums are CRC-32C in TensorFlow's masked form. Messages number records from 1.
"""

import contextlib
import dataclasses
import struct
from typing import BinaryIO, Iterator

import google_crc32c
from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory

from albert_tf import files
from albert_tf.errors import InputError

_HEADER = struct.Struct("<QI")
_LENGTH = struct.Struct("<Q")
_CRC = struct.Struct("<I")
_LONG = 1 << 20  # A record with more bytes is compared with its file's size.
_OFFSETS_EVERY = 1024  # records from one known offset in a file to the next


def _masked_crc(data: bytes) -> int:
    crc = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def frame(data: bytes) -> bytes:
    """Returns a record as it is stored in a file: header, data, checksum."""
    length = _LENGTH.pack(len(data))
    return b"".join((length, _CRC.pack(_masked_crc(length)),
                     data, _CRC.pack(_masked_crc(data))))


class RecordWriter:
    """A writer of a TFRecord file, which has a temporary name until it is complete.

        with RecordWriter(path) as writer:
            writer.write(spec.serialize(values))

    If the block raises, no new file is left at `path`, and an older one stays.
    """

    def __init__(self, path: str):
        self.path = path
        self.num_records = 0
        self._stack = contextlib.ExitStack()
        self._stream: BinaryIO | None = None

    def __enter__(self) -> "RecordWriter":
        self._stream = self._stack.enter_context(files.atomic_write(self.path))
        return self

    def __exit__(self, *exception_info):
        self._stream = None
        return self._stack.__exit__(*exception_info)

    def write(self, data: bytes) -> None:
        """Appends one record."""
        if self._stream is None:
            raise ValueError(f"{self.path}: the writer is not open.")
        self._stream.write(frame(data))
        self.num_records += 1


def _data_length(path: str, number: int, header: bytes) -> int:
    """Checks a 12-byte header and returns the length it states."""
    length, crc = _HEADER.unpack(header)
    if crc == _masked_crc(header[:8]):
        return length
    if number == 1:
        hint = ("it is compressed, unpack it with gunzip"
                if header[:2] == b"\x1f\x8b" else
                "give a file written by create_pretraining_data.py, or copy it again")
        raise InputError(
            f"{path}, record 1: not a TFRecord file, or damaged at its start; {hint}.")
    raise InputError(
        f"{path}, record {number}: damaged (the checksum of its header is wrong); "
        "copy or create the file again.")


def _cut_off(path: str, number: int, missing: int) -> InputError:
    hint = ", or not a TFRecord file" if number == 1 else ""
    return InputError(
        f"{path}, record {number}: cut off{hint}; at least {missing} bytes are missing "
        "at the end of the file; copy or create the file again.")


def _empty(path: str) -> InputError:
    return InputError(f"{path}: the file is empty and holds no record; create it again "
                      "or leave it out.")


def read_records(path: str) -> Iterator[bytes]:
    """Yields the records in a TFRecord file; verifies both checksums of each.

    Raises InputError if the file is damaged, cut off or empty.
    """
    with files.open_binary(path) as stream:
        number = 1
        while header := stream.read(_HEADER.size):
            if len(header) < _HEADER.size:
                raise _cut_off(path, number, _HEADER.size - len(header))
            length = _data_length(path, number, header)
            # Reading allocates memory first, so a damaged length must not be requested.
            if length > _LONG and length > (size := files.size(path)):
                raise _cut_off(path, number, length - size)
            data, crc = stream.read(length), stream.read(_CRC.size)
            if len(data) + len(crc) < length + _CRC.size:
                raise _cut_off(path, number, length + _CRC.size - len(data) - len(crc))
            if _CRC.unpack(crc)[0] != _masked_crc(data):
                raise InputError(
                    f"{path}, record {number}: damaged (the checksum of its content "
                    "is wrong); copy or create the file again.")
            yield data
            number += 1
    if number == 1:
        raise _empty(path)


@dataclasses.dataclass(frozen=True)
class FileInfo:
    """A TFRecord file: its path, number of records and size in bytes, and the bytes at
    which every `offsets_every`-th record begins."""

    path: str
    num_records: int
    num_bytes: int
    offsets: tuple[int, ...] = (0,)
    offsets_every: int = _OFFSETS_EVERY

    def near(self, record: int) -> tuple[int, int]:
        """Returns how many bytes, and then how many records, are before a record.

        Records are numbered from 0 here.
        """
        known = min(record // self.offsets_every, len(self.offsets) - 1)
        return self.offsets[known], record - known * self.offsets_every


def scan(path: str, chunk_size: int = 4 << 20,
         offsets_every: int = _OFFSETS_EVERY) -> FileInfo:
    """Reads a file's headers to count records; raises InputError for a damaged file.

    Header checksums are verified, contents are not. Reads `chunk_size` bytes at a time.
    """
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
    if rest:
        raise _cut_off(path, num_records + 1, _HEADER.size - len(rest))
    if at:
        raise _cut_off(path, num_records, at)
    if not num_records:
        raise _empty(path)
    return FileInfo(path, num_records, num_bytes, tuple(offsets), offsets_every)


def _example_class() -> type[message.Message]:
    """Returns the class tf.train.Example from a separate descriptor pool, because
    TensorFlow registers the same names in the default pool when it is imported."""
    field = descriptor_pb2.FieldDescriptorProto
    proto = descriptor_pb2.FileDescriptorProto(
        name="albert_tf/example.proto", package="tensorflow", syntax="proto3")

    def add(parent, name, kind, label=field.LABEL_OPTIONAL, oneof=None):
        """Adds a field with a scalar type, or with the message type of this name."""
        added = parent.field.add(name=name, number=len(parent.field) + 1, label=label,
                                oneof_index=oneof)
        if isinstance(kind, str):
            added.type, added.type_name = field.TYPE_MESSAGE, f".tensorflow.{kind}"
        else:
            added.type = kind

    for name, kind in (("BytesList", field.TYPE_BYTES), ("FloatList", field.TYPE_FLOAT),
                       ("Int64List", field.TYPE_INT64)):
        add(proto.message_type.add(name=name), "value", kind, field.LABEL_REPEATED)
    feature = proto.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for name in ("bytes", "float", "int64"):
        add(feature, f"{name}_list", f"{name.capitalize()}List", oneof=0)
    features = proto.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    add(entry, "key", field.TYPE_STRING)
    add(entry, "value", "Feature")
    add(features, "feature", "Features.FeatureEntry", field.LABEL_REPEATED)
    add(proto.message_type.add(name="Example"), "features", "Features")
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(proto.SerializeToString())
    return message_factory.GetMessageClass(
        pool.FindMessageTypeByName("tensorflow.Example"))


# The message tf.train.Example: the features of one record by name.
Example: type[message.Message] = _example_class()
