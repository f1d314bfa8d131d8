"""Reads TensorFlow's checkpoint files with NumPy alone, and writes them by TensorFlow.

"PREFIX.index" is a LevelDB table of name → type, shape and position in a data file:
blocks of entries whose keys leave out the prefix shared with the previous key, then a
block that lists the blocks, and a footer that points to it.
"""

import dataclasses
import functools
import struct
from typing import Callable, Iterable, Iterator, Mapping

import google_crc32c
import ml_dtypes
import numpy as np

from albert_tf import files
from albert_tf.errors import InputError, reading

OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"

_MAGIC = 0xDB4775248B80FB57
_FOOTER = 48
# TensorFlow's DataType → NumPy's type.
_STRING = np.dtype(object)
_TYPES = {number: np.dtype(name) for number, name in {
    1: "<f4", 2: "<f8", 3: "<i4", 4: "u1", 5: "<i2", 6: "i1", 7: "O", 9: "<i8", 10: "?",
    14: ml_dtypes.bfloat16, 17: "<u2", 19: "<f2", 22: "<u4", 23: "<u8"}.items()}
# Children of a Keras model that hold none of its weights.
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

    def then(self, change: Callable[[np.ndarray], np.ndarray], *shape: int) -> "Tensor":
        """Returns the tensor with its numbers, and its shape, changed when it is read."""
        return Tensor(shape or self.shape, lambda: change(self.read()), self.dtype)


def in_file(path: str, shape: Iterable[int], read: Callable[[], np.ndarray],
            dtype: str) -> Tensor:
    """Returns a tensor that `read` reads from a file, bfloat16 numbers as float32."""
    def read_tensor() -> np.ndarray:
        with reading(path):
            array = read()
            return array.astype(np.float32) if array.dtype == ml_dtypes.bfloat16 else (
                array)

    return Tensor(tuple(shape), read_tensor, dtype)


# ---- protocol buffers ------------------------------------------------------


def _varints(data: bytes, place: int, count: int) -> tuple[list[int], int]:
    """Returns the `count` numbers from a position on, and the position after them."""
    numbers = [0] * count
    for i in range(count):
        shift = 0
        while data[place] > 127:
            numbers[i] |= (data[place] & 127) << shift
            shift, place = shift + 7, place + 1
        numbers[i] |= data[place] << shift
        place += 1
    return numbers, place


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yields the number and the value (int or bytes) of each protocol buffer field."""
    place = 0
    while place < len(message):
        (key,), place = _varints(message, place, 1)
        kind = key & 7
        if kind in (0, 2):
            (value,), place = _varints(message, place, 1)
        if kind:
            size = value if kind == 2 else {1: 8, 5: 4}[kind]
            value, place = message[place:place + size], place + size
            if place > len(message):
                raise IndexError("a field that is cut short")
        yield key >> 3, value


# ---- reading ---------------------------------------------------------------


def read(prefix: str) -> dict[str, Tensor]:
    """Returns the tensors of a checkpoint by their keys.

        read("albert_base/model.ckpt-best")["bert/pooler/dense/bias"].read()
    """
    path = f"{prefix}.index"
    with files.open_binary(path) as stream:
        content = stream.read()
    with reading(path):
        entries = dict(_table(content))
        shards = dict(fields(entries.pop(b""))).get(1, 1)
        size_of = functools.cache(files.size)
        return {key.decode(): _tensor(prefix, shards, key.decode(), value, size_of)
                # Keys that begin with a zero byte are slices of tensors.
                for key, value in entries.items() if key[:1] != b"\0"}


def _table(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yields the keys and values of a LevelDB table."""
    footer = content[-_FOOTER:]
    if len(footer) < _FOOTER or struct.unpack("<Q", footer[-8:])[0] != _MAGIC:
        raise ValueError("this is not the index of a checkpoint")
    # Offset and size of the block of statistics, which is empty, and of the list.
    _, _, *index = _varints(footer, 0, 4)[0]
    for _, where in _block(content, *index):
        yield from _block(content, *_varints(where, 0, 2)[0])


def _block(content: bytes, offset: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    data = content[offset:offset + size]
    kind, crc = struct.unpack_from("<BI", content, offset + size)
    if _masked_crc(content[offset:offset + size + 1]) != crc or kind:
        raise ValueError("a block has a wrong checksum, or is compressed")
    restarts, = struct.unpack_from("<I", data, size - 4)
    place, key = 0, b""
    while place < size - 4 - 4 * restarts:
        (shared, unshared, length), place = _varints(data, place, 3)
        end = place + unshared + length
        key = key[:shared] + data[place:place + unshared]
        yield key, data[place + unshared:end]
        place = end


def _masked_crc(data: bytes) -> int:
    """Returns the CRC-32C in the masked form in which TensorFlow stores it."""
    crc = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _tensor(prefix: str, shards: int, name: str, entry: bytes,
            size_of: Callable[[str], int]) -> Tensor:
    """Returns the tensor that an entry of the index (a BundleEntryProto) describes."""
    values = dict(fields(entry))
    # A TensorShapeProto, whose field 2 is dim, whose field 1 is size.
    shape = tuple(dict(fields(dim)).get(1, 0)
                  for key, dim in fields(values.get(2, b"")) if key == 2)
    kind, offset, size = _TYPES.get(values.get(1)), values.get(4, 0), values.get(5, 0)
    path = f"{prefix}.data-{values.get(3, 0):05d}-of-{shards:05d}"
    if offset + size > size_of(path):  # Noticed now, not after hours.
        files.open_binary(path).close()  # What is no data at all is named first.
        raise ValueError(f"{path} ends before the tensor {name} does")

    def read_array() -> np.ndarray:
        with files.open_binary(path) as stream:
            stream.seek(offset)
            raw = stream.read(size)
        if kind is None:
            raise ValueError(f"the type of the tensor {name} is not supported")
        if kind == _STRING:
            # The length, its checksum, and the text. The tensor's checksum covers the
            # same, with the length in 32 bits.
            (length,), place = _varints(raw, 0, 1)
            raw = struct.pack("<I", length & 0xFFFFFFFF) + raw[place:]
        if _masked_crc(raw) != int.from_bytes(values.get(6, b""), "little"):
            raise ValueError(f"the tensor {name} has a wrong checksum")
        return np.array(raw[8:], object) if kind == _STRING else np.frombuffer(
            raw, kind).reshape(shape)

    return in_file(path, shape, read_array, kind.name if kind else "unknown")


# ---- objects ---------------------------------------------------------------


def by_names(prefix: str, model_only: bool = False) -> dict[str, Tensor]:
    """Returns the tensors of a checkpoint, name-based or object-based, by the full names
    of their variables; with `model_only` those of the object `model`, if there is one."""
    tensors = read(prefix)
    if OBJECT_GRAPH not in tensors:
        return tensors
    content = tensors[OBJECT_GRAPH].read().item()
    with reading(f"{prefix}.index"):
        nodes = [[*fields(node)] for number, node in fields(content) if number == 1]
        # An object's children, name → number.
        children = [{child[2].decode(): child.get(1, 0) for child in (
            dict(fields(value)) for kind, value in node if kind == 1)} for node in nodes]
        numbers = [children[0].get("model", 0)] if model_only else range(len(nodes))
        for number in numbers:  # The list grows by the objects below each.
            for name, child in children[number].items() if model_only else ():
                if name not in _NO_WEIGHTS and child not in numbers:
                    numbers.append(child)
        found: dict[str, Tensor] = {}
        for variable in (dict(fields(value)) for number in numbers
                         for kind, value in nodes[number] if kind == 2):
            key = variable[3].decode()
            name = variable.get(2, b"").decode() or key
            if model_only and name in found:
                raise InputError(
                    f"{prefix}: two variables of the model are named '{name}' and "
                    "cannot be distinguished; give a checkpoint of an ALBERT model.")
            # Outside of the model a name may occur twice; then the key replaces it.
            found[key if name in found else name] = tensors[key]
    return found


# ---- writing ---------------------------------------------------------------


def write(prefix: str, tensors: Mapping[str, Tensor]) -> None:
    """Writes a name-based checkpoint by TensorFlow into a folder not yet in use."""
    import tensorflow as tf

    names = sorted(tensors)
    with tf.device("CPU"):
        tf.raw_ops.SaveV2(
            prefix=prefix, tensor_names=names, shape_and_slices=[""] * len(names),
            tensors=[tf.constant(tensors[name].read()) for name in names])
