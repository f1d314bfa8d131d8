"""Reads and writes TensorFlow's checkpoint files with NumPy alone.

A checkpoint (TensorFlow calls it a tensor bundle) consists of "PREFIX.index", a sorted
table of name → type, shape and position, and of data files that hold the numbers one
after the other. The table is a LevelDB table: blocks of entries whose keys leave out
the prefix shared with the previous key, then a block that lists the blocks, and a
footer that points to it.

Each tensor is read when it is asked for, and written before the next is read, so that
only one is held in memory.
"""

import contextlib
import dataclasses
import functools
import io
import math
import os
import struct
from typing import BinaryIO, Callable, Iterable, Iterator, Mapping

import google_crc32c
import numpy as np

from albert_tf import files
from albert_tf.errors import InputError

OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"

_MAGIC = 0xDB4775248B80FB57
_FOOTER = 48
_RESTART_INTERVAL = 16
_DATA_FILE = "{}.data-{:05d}-of-{:05d}"
# TensorFlow's DataType → NumPy's type; NumPy has no bfloat16.
_STRING, _BFLOAT16 = 7, 14
_TYPES = {1: "<f4", 2: "<f8", 3: "<i4", 4: "u1", 5: "<i2", 6: "i1", 9: "<i8", 10: "?",
          17: "<u2", 19: "<f2", 22: "<u4", 23: "<u8"}
_NUMBERS = {np.dtype(name).name: number for number, name in _TYPES.items()} | {
    "bfloat16": _BFLOAT16}
# Children of a Keras model that hold none of its weights: the optimizer that it was
# compiled with, and Keras's own lists of layers and metrics.
_NO_WEIGHTS = ("optimizer", "keras_api")


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A tensor whose numbers are read only when `read` is called."""

    shape: tuple[int, ...]
    read: Callable[[], np.ndarray]
    dtype: str = "float32"

    @classmethod
    def of(cls, array: np.ndarray) -> "Tensor":
        return cls(array.shape, lambda: array, array.dtype.name)


def widened(raw: np.ndarray) -> np.ndarray:
    """Returns bfloat16 numbers, given as uint16, as float32, without rounding."""
    return (raw.astype("<u4") << 16).view("<f4")


# ---- protocol buffers ------------------------------------------------------


def varint(number: int) -> bytes:
    parts = bytearray()
    while number > 127:
        parts.append(number & 127 | 128)
        number >>= 7
    return bytes([*parts, number])


def _read_varint(data: bytes, place: int) -> tuple[int, int]:
    """Returns the number at a position, and the position after it."""
    number = shift = 0
    while True:
        byte = data[place]
        number |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return number, place
        if shift > 63:
            raise IndexError("a number of more than 64 bits")


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yields the number and the value (int or bytes) of each protocol buffer field."""
    place = 0
    while place < len(message):
        key, place = _read_varint(message, place)
        kind = key & 7
        if kind == 0:
            value, place = _read_varint(message, place)
        else:
            if kind == 2:
                size, place = _read_varint(message, place)
            else:
                size = {1: 8, 5: 4}[kind]
            value = message[place:place + size]
            if len(value) < size:
                raise IndexError("a field that is cut short")
            place += size
        yield key >> 3, value


def field(number: int, value: int | bytes) -> bytes:
    """Encodes a protocol buffer field: a number, or bytes with their length."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


# ---- reading ---------------------------------------------------------------


def masked(crc: int) -> int:
    """Returns a CRC-32C in the masked form in which TensorFlow stores it."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _damaged(path: str, what: str) -> InputError:
    return InputError(f"{path}: {what}; the file is damaged or cut short. Copy or "
                      "download it again.")


def read(prefix: str) -> dict[str, Tensor]:
    """Returns the tensors of a checkpoint by their keys. Raises InputError if the index
    is damaged, or a data file is missing or too short.

        read("albert_base/model.ckpt-best")["bert/pooler/dense/bias"].read()
    """
    with _index(prefix) as entries:
        header = dict(fields(entries.pop(b"")))
        shards, size_of = header.get(1, 1), functools.cache(_size_of_data_file)
        return {key.decode(): _tensor(prefix, shards, key.decode(), value, size_of)
                # Keys that begin with a zero byte are slices of tensors.
                for key, value in entries.items() if key[:1] != b"\0"}


@contextlib.contextmanager
def _index(prefix: str) -> Iterator[dict[bytes, bytes]]:
    """Yields the entries of an index; errors in the block are those of its content."""
    path = f"{prefix}.index"
    with files.open_binary(path) as stream:
        content = stream.read()
    try:
        yield dict(_table(content))
    except InputError:
        raise
    except (IndexError, KeyError, TypeError, ValueError, struct.error) as error:
        raise _damaged(path, "this is not the index of a checkpoint") from error


def num_shards(prefix: str) -> int:
    """Returns the number of data files that an index names."""
    with _index(prefix) as entries:
        return dict(fields(entries[b""])).get(1, 1)


def index_with_shards(prefix: str, count: int) -> bytes:
    """Returns the index of a checkpoint, changed so that its data files are called
    "...-of-COUNT"; `count` is at least their number."""
    stream = io.BytesIO()
    with _index(prefix) as entries:
        # Of a number that occurs twice in a message, the last one counts.
        entries[b""] += field(1, count)
        _write_table(stream, sorted(entries.items()))
    return stream.getvalue()


def _table(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yields the keys and values of a LevelDB table."""
    footer = content[-_FOOTER:]
    if len(footer) < _FOOTER or struct.unpack("<Q", footer[-8:])[0] != _MAGIC:
        raise ValueError("no footer")
    _, place = _handle(footer, 0)  # The block of statistics, which is empty.
    index, _ = _handle(footer, place)
    for _, where in _block(content, *index):
        yield from _block(content, *_handle(where, 0)[0])


def _handle(data: bytes, place: int) -> tuple[tuple[int, int], int]:
    offset, place = _read_varint(data, place)
    size, place = _read_varint(data, place)
    return (offset, size), place


def _block(content: bytes, offset: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    data = content[offset:offset + size]
    kind, crc = struct.unpack_from("<BI", content, offset + size)
    if masked(google_crc32c.value(content[offset:offset + size + 1])) != crc or kind:
        raise ValueError("a block with a wrong checksum, or compressed")
    restarts, = struct.unpack_from("<I", data, size - 4)
    end, place, key = size - 4 - 4 * restarts, 0, b""
    while place < end:
        shared, place = _read_varint(data, place)
        unshared, place = _read_varint(data, place)
        length, place = _read_varint(data, place)
        key = key[:shared] + data[place:place + unshared]
        place += unshared
        yield key, data[place:place + length]
        place += length


def _size_of_data_file(path: str) -> int:
    if not files.exists(path):
        raise InputError(f"{path}: this data file is missing; copy it into the folder "
                         "of the .index file.")
    return files.size(path)


def _tensor(prefix: str, shards: int, name: str, entry: bytes,
            size_of: Callable[[str], int]) -> Tensor:
    """Returns the tensor that an entry of the index describes."""
    shape, values = (), {}
    for number, value in fields(entry):
        if number == 2:  # TensorShapeProto, whose field 2 is dim, whose field 1 is size
            shape = tuple(dict(fields(dim)).get(1, 0)
                          for key, dim in fields(value) if key == 2)
        else:
            values[number] = value
    kind, size = values.get(1, 0), values.get(5, 0)
    path = _DATA_FILE.format(prefix, values.get(3, 0), shards)
    dtype = {_STRING: "string", _BFLOAT16: "bfloat16"}.get(kind) or (
        np.dtype(_TYPES[kind]).name if kind in _TYPES else "unknown")
    offset = values.get(4, 0)
    if offset + size > size_of(path):
        raise _damaged(path, f"the file ends before the tensor {name} does")
    crc = int.from_bytes(values.get(6, b""), "little")

    def read_array() -> np.ndarray:
        if 7 in values:  # Stored in slices, as parameter servers do.
            import tensorflow as tf

            return tf.train.load_checkpoint(prefix).get_tensor(name)
        with files.open_binary(path) as stream:
            stream.seek(offset)
            raw = stream.read(size)
        text, checked = _first_string(raw) if kind == _STRING else (b"", raw)
        # Only the first of several strings is read: their checksum cannot be checked.
        if math.prod(shape) == 1 or kind != _STRING:
            if masked(google_crc32c.value(checked)) != crc:
                raise _damaged(path, f"the tensor {name} has a wrong checksum")
        if kind == _STRING:
            return np.array(text, object)
        if kind == _BFLOAT16:
            return widened(np.frombuffer(raw, "<u2")).reshape(shape)
        if kind not in _TYPES:
            raise InputError(f"{path}: the tensor {name} has a type that is not "
                             "supported; convert it to float32.")
        return np.frombuffer(raw, _TYPES[kind]).reshape(shape)

    return Tensor(shape, read_array, dtype)


def _first_string(raw: bytes) -> tuple[bytes, bytes]:
    """Returns the string that a tensor's bytes hold (length, checksum of the length,
    string), and the bytes that the tensor's checksum covers: the same with the length
    in 32 bits."""
    try:
        length, place = _read_varint(raw, 0)
    except IndexError:  # The length is damaged; the checksum will not match.
        return b"", b""
    return (raw[place + 4:place + 4 + length],
            struct.pack("<I", length & 0xFFFFFFFF) + raw[place:])


# ---- objects ---------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Node:
    """An object in a checkpoint that tf.train.Checkpoint wrote."""

    children: Mapping[str, int]  # name → number of the node
    variables: Mapping[str, str]  # full name → key of the tensor


def by_names(prefix: str, model_only: bool = False) -> dict[str, Tensor]:
    """Returns the tensors of a checkpoint by the full names of their variables, for
    name-based checkpoints of TensorFlow 1 and for object-based ones.

    With `model_only`, returns only the tensors of the object `model`, or all if the
    checkpoint has no such child.
    """
    tensors = read(prefix)
    if OBJECT_GRAPH not in tensors:
        return tensors
    nodes = _object_graph(tensors[OBJECT_GRAPH].read().item())
    tensors_by_name: dict[str, Tensor] = {}
    for node in _of_model(nodes) if model_only else nodes:
        for name, key in node.variables.items():
            if key not in tensors:
                raise _damaged(f"{prefix}.index",
                               f"the tensor {key} is listed but missing")
            if model_only and name in tensors_by_name:
                raise InputError(
                    f"{prefix}: two variables of the model are named '{name}' and "
                    "cannot be distinguished; give a checkpoint of an ALBERT model.")
            # Outside of the model a name may occur twice; then the key replaces it.
            tensors_by_name[key if name in tensors_by_name else name] = tensors[key]
    return tensors_by_name


def _object_graph(content: bytes) -> list[Node]:
    """Returns the objects of a serialized TrackableObjectGraph, the root first."""
    nodes = []
    for number, node in fields(content):
        if number != 1:
            continue
        children, variables = {}, {}
        for kind, value in fields(node):
            if kind == 1:
                child = dict(fields(value))
                children[child[2].decode()] = child.get(1, 0)
            elif kind == 2:
                attribute = dict(fields(value))
                key = attribute[3].decode()
                variables[attribute.get(2, b"").decode() or key] = key
        nodes.append(Node(children, variables))
    return nodes


def _of_model(nodes: list[Node]) -> Iterator[Node]:
    """Yields the object `model`, or else the root, and all objects below it."""
    waiting = [nodes[0].children.get("model", 0)]
    seen = {*waiting}
    while waiting:
        node = nodes[waiting.pop()]
        yield node
        children = {child for name, child in node.children.items()
                    if name not in _NO_WEIGHTS} - seen
        seen |= children
        waiting += children


# ---- writing ---------------------------------------------------------------


def write(prefix: str, tensors: Mapping[str, Tensor], graph: bytes = b"") -> None:
    """Writes a checkpoint that TensorFlow can read; with `graph`, a serialized
    TrackableObjectGraph, an object-based one.

    The files are written under their final names: the folder must not be in use yet.
    """
    entries = {b"": field(1, 1) + field(3, field(1, 1))}
    with files.open_binary(_DATA_FILE.format(prefix, 0, 1), "wb") as stream:
        for name in sorted({*tensors, *([OBJECT_GRAPH] if graph else [])}):
            if name == OBJECT_GRAPH:
                length = struct.pack("<I", len(graph))
                raw = varint(len(graph)) + struct.pack(
                    "<I", masked(google_crc32c.value(length))) + graph
                crc = google_crc32c.value(length + raw[-len(graph) - 4:])
                entries[name.encode()] = _entry(
                    _STRING, (), stream.tell(), len(raw), masked(crc))
            else:
                array = tensors[name].read()
                raw = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
                entries[name.encode()] = _entry(
                    _NUMBERS[array.dtype.name], tensors[name].shape, stream.tell(),
                    len(raw), masked(google_crc32c.value(raw)))
            stream.write(raw)
    with files.open_binary(f"{prefix}.index", "wb") as stream:
        _write_table(stream, sorted(entries.items()))


def _entry(kind: int, shape: Iterable[int], offset: int, size: int, crc: int) -> bytes:
    dims = b"".join(field(2, field(1, dim)) for dim in shape)
    return (field(1, kind) + field(2, dims) + field(4, offset) + field(5, size)
            + varint(6 << 3 | 5) + struct.pack("<I", crc))


def _write_table(stream: BinaryIO, entries: list[tuple[bytes, bytes]]) -> None:
    def write_block(entries) -> bytes:
        """Writes a block and returns its handle: offset and size."""
        data, restarts, last = bytearray(), [], b""
        for i, (key, value) in enumerate(entries):
            shared = 0
            if i % _RESTART_INTERVAL == 0:
                restarts.append(len(data))
            else:
                shared = len(os.path.commonprefix([last, key]))
            data += (varint(shared) + varint(len(key) - shared) + varint(len(value))
                     + key[shared:] + value)
            last = key
        restarts = restarts or [0]
        data += struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))
        handle = varint(stream.tell()) + varint(len(data))
        data.append(0)
        stream.write(data + struct.pack("<I", masked(google_crc32c.value(bytes(data)))))
        return handle

    first = write_block(entries)
    footer = write_block([])
    footer += write_block([(entries[-1][0], first)])
    stream.write(footer.ljust(_FOOTER - 8, b"\0") + struct.pack("<Q", _MAGIC))
