"""Files of features: JSON lines, NPZ, Parquet, each made of finished parts.

A row is a dict: `id` if the input had one, arrays of float32, and where pieces are asked
for `pieces`, a list of texts, beside `piece_vectors`, an array with a row for each.

    answer.jsonl    a row is an object
    answer.npz      arrays with a row for each text; of all texts' pieces one after the
                    other, `piece_counts` says how many each has
    answer.parquet  columns; vectors are lists of fixed size
"""

import io
import json
import zipfile
from typing import Any, BinaryIO, Mapping, Sequence

import numpy as np

from albert_tf import files
from albert_tf.errors import InputError

Row = Mapping[str, Any]
_COPIED = 1 << 20


def line(row: Row) -> str:
    """A row as JSON."""
    return json.dumps({name: value.tolist() if isinstance(value, np.ndarray) else value
                       for name, value in row.items()}, ensure_ascii=False)


class JsonLines:
    """A JSON object a line."""

    end = ".jsonl"
    needs_columns = False

    def check(self) -> None:
        """Raises InputError where a package is missing."""

    def part(self, rows: Sequence[Row]) -> bytes:
        return "".join(f"{line(row)}\n" for row in rows).encode()

    def join(self, parts: Sequence[str], stream: BinaryIO) -> None:
        for path in parts:
            with files.open_binary(path) as part:
                while data := part.read(_COPIED):
                    stream.write(data)


class Npz(JsonLines):
    """NumPy's arrays by name, not compressed; np.load maps them."""

    end = ".npz"
    needs_columns = True

    def part(self, rows):
        stream = io.BytesIO()
        np.savez(stream, **columns(rows))
        return stream.getvalue()

    def join(self, parts, stream):
        shapes: dict[str, list] = {}
        for path in parts:
            for name, (shape, dtype) in _headers(path).items():
                known = shapes.setdefault(name, [0, shape[1:], dtype])
                known[0] += shape[0]
                known[2] = np.promote_types(known[2], dtype)
        with zipfile.ZipFile(stream, "w") as target:
            for name, (count, rest, dtype) in shapes.items():
                # Of no date, so that the same vectors are the same bytes.
                with target.open(zipfile.ZipInfo(f"{name}.npy"), "w",
                                 force_zip64=True) as member:
                    np.lib.format.write_array_header_1_0(member, {
                        "descr": dtype.str, "fortran_order": False,
                        "shape": (count, *rest)})
                    for path in parts:
                        with files.open_binary(path) as part:
                            member.write(np.load(part)[name].astype(dtype).tobytes())


def _headers(path: str) -> dict[str, tuple]:
    """Names of the arrays in an .npz → shape and type, without their numbers."""
    found = {}
    with files.open_binary(path) as stream, zipfile.ZipFile(stream) as archive:
        for member in archive.namelist():
            with archive.open(member) as array:
                np.lib.format.read_magic(array)
                shape, _, dtype = np.lib.format.read_array_header_1_0(array)
            found[member.removesuffix(".npy")] = shape, dtype
    return found


class Parquet(JsonLines):
    """Columns, by pyarrow."""

    end = ".parquet"
    needs_columns = True

    def check(self):
        _pyarrow()

    def part(self, rows):
        pyarrow, parquet = _pyarrow()
        made = columns(rows)
        counts = made.pop("piece_counts", None)
        offsets = None if counts is None else np.concatenate(
            [[0], np.cumsum(counts)]).astype(np.int32)
        arrays = {}
        for name, values in made.items():
            array = pyarrow.array(values.reshape(-1).tolist() if (
                values.dtype.kind == "U") else values.reshape(-1))
            for size in reversed(values.shape[1:]):
                array = pyarrow.FixedSizeListArray.from_arrays(array, size)
            if name.startswith("piece"):
                array = pyarrow.ListArray.from_arrays(offsets, array)
            arrays[name] = array
        stream = io.BytesIO()
        parquet.write_table(pyarrow.table(arrays), stream)
        return stream.getvalue()

    def join(self, parts, stream):
        _, parquet = _pyarrow()
        writer = None
        for path in parts:
            with files.open_binary(path) as part:
                table = parquet.read_table(io.BytesIO(part.read()))
            writer = writer or parquet.ParquetWriter(stream, table.schema)
            writer.write_table(table)
        if writer:
            writer.close()


def _pyarrow():
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise InputError("files of Parquet need the package pyarrow: pip install "
                         "'albert_tf[parquet]', or pip install pyarrow.") from error
    return pyarrow, pyarrow.parquet


def columns(rows: Sequence[Row]) -> dict[str, np.ndarray]:
    """Rows as arrays, pieces of all rows one after the other."""
    found: dict[str, Any] = {name: [row[name] for row in rows] for name in rows[0]}
    if "pieces" in found:
        found["piece_counts"] = np.array(list(map(len, found["pieces"])), np.int32)
        for name in ("pieces", "piece_vectors"):
            found[name] = np.concatenate(list(map(np.asarray, found[name])))
    return {name: np.asarray(values) for name, values in found.items()}


FORMATS = {made.end: made for made in (JsonLines(), Npz(), Parquet())}


def format_of(path: str) -> JsonLines:
    """By the end of an output's name."""
    for end, made in FORMATS.items():
        if path.endswith(end):
            made.check()
            return made
    raise InputError(f"--output_file={path}: its name says no format; end it in "
                     f"{', '.join(FORMATS)}.")


class Ids:
    """Checks that the ids of a column are all there and of one kind."""

    def __init__(self):
        self._first = None

    def check(self, value: Any, where: str) -> None:
        kind = {int: "whole numbers", str: "texts", type(None): "missing"}.get(
            type(value))
        if kind == "whole numbers" and not -2**63 <= value < 2**63:
            kind = None
        self._first = self._first or kind
        if not kind or kind != self._first:
            what = "missing" if value is None else f"{value!r:.40}"
            raise InputError(
                f"{where}: the id is {what}" + (
                    f", those before are {self._first}" if kind else "")
                + "; files of columns take texts alone or whole numbers of 64 bits "
                "alone: mend it, or write .jsonl.")
