"""Files of features: JSON lines, NPZ or Parquet.

A row is a dict with `id`, if the input had one, and float32 arrays. For the pooling
"pieces" it has the list of tokens, `pieces`, and `piece_vectors`, an array with a row
for each token.

    answer.jsonl    one object per row
    answer.npz      arrays with one row per text; the tokens of all texts follow each
                    other, and `piece_counts` holds their number in each text
    answer.parquet  columns; vectors are lists of fixed size
"""

import json
from typing import Any, Iterable, Mapping, Sequence

import numpy as np

from albert_tf import files, row_files
from albert_tf.errors import InputError

Row = Mapping[str, Any]
LINES = ".jsonl"


def line(row: Row) -> str:
    """Returns a row as JSON."""
    return json.dumps({name: value.tolist() if isinstance(value, np.ndarray) else value
                       for name, value in row.items()}, ensure_ascii=False)


def write_lines(path: str, rows: Iterable[Row]) -> None:
    """Writes rows as JSON lines while they come."""
    with files.atomic_write(path) as stream:
        for row in rows:
            stream.write(f"{line(row)}\n".encode())


def write_npz(path: str, rows: Iterable[Row]) -> None:
    """Writes rows as NumPy's arrays by name, not compressed."""
    arrays = columns(list(rows))
    with files.atomic_write(path) as stream:
        np.savez(stream, **arrays)


def write_parquet(path: str, rows: Iterable[Row]) -> None:
    """Writes rows as Parquet columns."""
    pyarrow = row_files.pyarrow("Parquet files")
    arrays_by_name = columns(list(rows))
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
    with files.atomic_write(path) as stream:
        pyarrow.parquet.write_table(pyarrow.table(arrays), stream)


def columns(rows: Sequence[Row]) -> dict[str, np.ndarray]:
    """Converts rows to arrays; the tokens of all rows follow each other."""
    by_name: dict[str, Any] = {name: [row[name] for row in rows] for name in rows[0]}
    if "pieces" in by_name:
        by_name["piece_counts"] = np.array(list(map(len, by_name["pieces"])), np.int32)
        for name in ("pieces", "piece_vectors"):
            by_name[name] = np.concatenate(list(map(np.asarray, by_name[name])))
    return {name: np.asarray(values) for name, values in by_name.items()}


WRITERS = {LINES: write_lines, ".npz": write_npz, ".parquet": write_parquet}


def format_of(path: str) -> str:
    """Returns the end of an output's name, a key of WRITERS."""
    for end in WRITERS:
        if path.endswith(end):
            if end == ".parquet":
                row_files.pyarrow("Parquet files")
            return end
    raise InputError(f"--output_file={path}: the format is not known; end the name in "
                     f"one of {', '.join(WRITERS)}.")


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
