"""Files of features: JSON lines, NPZ or Parquet, each joined from finished parts.

A row is a dict with `id`, if the input had one, and float32 arrays. For the pooling
"pieces" it has the list of tokens, `pieces`, and `piece_vectors`, an array with a row
for each token.

    answer.jsonl    one object per row
    answer.npz      arrays with one row per text; the tokens of all texts follow each
                    other, and `piece_counts` holds their number in each text
    answer.parquet  columns; vectors are lists of fixed size
"""

import io
import json
import zipfile
from typing import Any, BinaryIO, Mapping, Sequence

import numpy as np

from albert_tf import files, row_files
from albert_tf.errors import InputError

Row = Mapping[str, Any]
_COPIED = 1 << 20


def line(row: Row) -> str:
    """Returns a row as JSON."""
    return json.dumps({name: value.tolist() if isinstance(value, np.ndarray) else value
                       for name, value in row.items()}, ensure_ascii=False)


class JsonLines:
    """JSON lines: one object per line."""

    end = ".jsonl"
    needs_columns = False

    def check(self) -> None:
        """Raises InputError if a package is missing."""

    def part(self, rows: Sequence[Row]) -> bytes:
        """Returns a part of the output that holds `rows`."""
        return "".join(f"{line(row)}\n" for row in rows).encode()

    def join(self, parts: Sequence[str], stream: BinaryIO) -> None:
        """Writes the parts in the files `parts` to the output."""
        for path in parts:
            with files.open_binary(path) as part:
                while data := part.read(_COPIED):
                    stream.write(data)


class Npz(JsonLines):
    """NumPy's arrays by name, not compressed."""

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
                # Without a date, so that the same vectors result in the same bytes.
                with target.open(zipfile.ZipInfo(f"{name}.npy"), "w",
                                 force_zip64=True) as member:
                    np.lib.format.write_array_header_1_0(member, {
                        "descr": dtype.str, "fortran_order": False,
                        "shape": (count, *rest)})
                    for path in parts:
                        with files.open_binary(path) as part:
                            member.write(np.load(part)[name].astype(dtype).tobytes())


def _headers(path: str) -> dict[str, tuple]:
    """Returns the shape and type of each array in an .npz, without reading its data."""
    headers = {}
    with files.open_binary(path) as stream, zipfile.ZipFile(stream) as archive:
        for member in archive.namelist():
            with archive.open(member) as array:
                np.lib.format.read_magic(array)
                shape, _, dtype = np.lib.format.read_array_header_1_0(array)
            headers[member.removesuffix(".npy")] = shape, dtype
    return headers


class Parquet(JsonLines):
    """Parquet columns, written by pyarrow."""

    end = ".parquet"
    needs_columns = True

    def check(self):
        row_files.pyarrow("Parquet files")

    def part(self, rows):
        pyarrow = row_files.pyarrow("Parquet files")
        arrays_by_name = columns(rows)
        counts = arrays_by_name.pop("piece_counts", None)
        offsets = None if counts is None else np.concatenate(
            [[0], np.cumsum(counts)]).astype(np.int32)
        arrays = {}
        for name, values in arrays_by_name.items():
            array = pyarrow.array(values.reshape(-1).tolist() if (
                values.dtype.kind == "U") else values.reshape(-1))
            for size in reversed(values.shape[1:]):
                array = pyarrow.FixedSizeListArray.from_arrays(array, size)
            if name.startswith("piece"):
                array = pyarrow.ListArray.from_arrays(offsets, array)
            arrays[name] = array
        stream = io.BytesIO()
        pyarrow.parquet.write_table(pyarrow.table(arrays), stream)
        return stream.getvalue()

    def join(self, parts, stream):
        parquet = row_files.pyarrow("Parquet files").parquet
        writer = None
        for path in parts:
            with files.open_binary(path) as part:
                table = parquet.read_table(io.BytesIO(part.read()))
            writer = writer or parquet.ParquetWriter(stream, table.schema)
            writer.write_table(table)
        if writer:
            writer.close()


def columns(rows: Sequence[Row]) -> dict[str, np.ndarray]:
    """Converts rows to arrays; the tokens of all rows follow each other."""
    by_name: dict[str, Any] = {name: [row[name] for row in rows] for name in rows[0]}
    if "pieces" in by_name:
        by_name["piece_counts"] = np.array(list(map(len, by_name["pieces"])), np.int32)
        for name in ("pieces", "piece_vectors"):
            by_name[name] = np.concatenate(list(map(np.asarray, by_name[name])))
    return {name: np.asarray(values) for name, values in by_name.items()}


FORMATS = {kind.end: kind for kind in (JsonLines(), Npz(), Parquet())}


def format_of(path: str) -> JsonLines:
    """Returns the format for the end of an output's name."""
    for end, kind in FORMATS.items():
        if path.endswith(end):
            kind.check()
            return kind
    raise InputError(f"--output_file={path}: the format is not known; end the name in "
                     f"one of {', '.join(FORMATS)}.")


class Ids:
    """Checks that all ids of a column exist and have the same type."""

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
                    f", but earlier ids are {self._first}" if kind else "")
                + "; in .npz and .parquet files all ids must be texts, or all whole "
                "numbers of 64 bits. Fix the id, or write a .jsonl file.")
