"""Serializes the records of many instances at once, for data creation.

The protobuf library needs a Python object for each value in a record. Here the values
of a batch stay in arrays until they are bytes. A serialized record is:

    Example   0A n  Features
    Features  0A n  entry     for each feature, in the order of the names
    entry     0A n  name      12 n  Feature
    Feature   12 n  FloatList, or 1A n  Int64List
    list      0A n  its values, packed: float32, or varints

Lengths n are varints: seven bits per byte, the lowest first, with the eighth bit set in
all bytes but the last.
"""

import math
from typing import Any, Mapping

import numpy as np

from albert_tf.records.spec import Feature, FeatureSpec

_LIST_TAGS = {"float32": b"\x12", "int64": b"\x1a"}
# Rows of varints encoded at a time, whose arrays stay in the processor's cache.
_ROWS_AT_A_TIME = 128


def serialize(spec: FeatureSpec, batch: Mapping[str, Any]) -> list[bytes]:
    """Returns N serialized tf.train.Examples, with the bytes of the protobuf library
    except where a name is a prefix of another one: here the prefix comes first.

    `batch` maps each name on disk to an array [N, number of values], [N, *shape of the
    feature], or [N] for a single value, of the same length in all N records.
    """
    columns: list[list[bytes]] = []
    fixed: list[np.ndarray] = []  # neighbouring features with one size in all records
    total: Any = 0  # bytes of each record, [N]
    for feature in sorted(spec.features, key=lambda f: f.name.encode()):
        lengths, data = _payload(feature, np.asarray(batch[feature.name]))
        headers = {n: _header(feature, n) for n in set(lengths.tolist())}
        column = [headers[n] for n in lengths.tolist()]
        total = total + lengths + np.fromiter(map(len, column), np.int64, len(column))
        if len(headers) == 1:
            header = np.frombuffer(column[0], np.uint8)
            fixed.append(np.broadcast_to(header, (len(lengths), len(header))))
            fixed.append(data.reshape(len(lengths), -1))
            continue
        columns += [*_joined(fixed), column, _slices(data, lengths)]
        fixed = []
    columns += _joined(fixed)
    starts = {n: b"\n" + _varint(n) for n in set(total.tolist())}
    return list(map(b"".join, zip([starts[n] for n in total.tolist()], *columns)))


def _header(feature: Feature, num_bytes: int) -> bytes:
    """Returns what is before this many bytes of a feature's values."""
    name = feature.name.encode()
    header = b"\n" + _varint(num_bytes) if num_bytes else b""
    for tag in (_LIST_TAGS[feature.dtype], b"\x12"):
        header = tag + _varint(len(header) + num_bytes) + header
    header = b"\n" + _varint(len(name)) + name + header
    return b"\n" + _varint(len(header) + num_bytes) + header


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    return bytes([*encoded, value])


def _joined(fixed: list[np.ndarray]) -> list[list[bytes]]:
    """Joins blocks [N, bytes] side by side into one column of N strings, if there are
    any."""
    if not fixed:
        return []
    block = np.concatenate(fixed, axis=1)
    return [_slices(block, np.full(len(block), block.shape[1]))]


def _slices(data: np.ndarray, lengths: np.ndarray) -> list[bytes]:
    whole, ends = data.tobytes(), np.cumsum(lengths)
    return [whole[begin:end]
            for begin, end in zip((ends - lengths).tolist(), ends.tolist())]


def _payload(feature: Feature, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Packs the values of a feature, [N, ...] of any numeric type: the number of bytes in
    each record, [N], and the bytes of all records."""
    values = values.reshape(len(values), math.prod(values.shape[1:]))
    if not feature.fits(values.shape[1]):
        raise ValueError(f"{feature.name} has {values.shape[1]} values.")
    if feature.dtype == "float32":
        # Convert to float64 first, because the protobuf library takes Python's floats.
        with np.errstate(over="ignore"):
            values = values.astype(np.float64).astype("<f4", order="C")
        return np.full(len(values), 4 * values.shape[1]), values.view(np.uint8)
    # A negative value is encoded as value + 2^64.
    highest = int(values.max(initial=0))
    if values.min(initial=0) < 0:
        values, highest = values.astype(np.int64).view(np.uint64), 2**64 - 1
    if highest < 128:
        return np.full(len(values), values.shape[1]), values.astype(np.uint8, order="C")
    narrow = values.astype(np.min_scalar_type(highest), copy=False)
    num_bytes = -(-highest.bit_length() // 7)
    lengths, data = zip(*(_varints(narrow[first:first + _ROWS_AT_A_TIME], num_bytes)
                          for first in range(0, len(narrow), _ROWS_AT_A_TIME)))
    return np.concatenate(lengths), np.concatenate(data)


def _varints(values: np.ndarray, num_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    """Encodes unsigned values [n, k] as varints of at most `num_bytes` bytes: the number
    of bytes in each row, [n], and the bytes."""
    encoded = np.empty((*values.shape, num_bytes), np.uint8)
    used = np.empty(encoded.shape, bool)
    used[..., 0] = True
    for byte in range(num_bytes):
        low = values.astype(np.uint8)
        if byte + 1 < num_bytes:
            more = np.greater(values, 127)
            used[..., byte + 1] = more
            # Bit 7 of `low` is set only if more bytes follow.
            low |= more.view(np.uint8) << 7
            values = values >> 7
        encoded[..., byte] = low
    used = used.reshape(len(values), -1)
    # `compress` is faster than indexing with booleans, which copies run by run.
    return used.sum(axis=1), encoded.reshape(-1).compress(used.reshape(-1))
