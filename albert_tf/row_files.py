"""Reads the rows of Parquet and Arrow files, as the library `datasets` and pandas write
them.

    for number, row in read_rows("train.parquet", ["text", "label"]):
        row["label"]     # "positive": the name that the schema has for the number

Memory holds a part of a file: of Parquet at most 1,024 rows and about 32 MB, or a longer
row; of Arrow a record batch. The package pyarrow is imported when the first file is
read.
"""

import contextlib
import json
import os
import re
from typing import Any, Callable, Iterable, Iterator, NamedTuple, Sequence

from absl import logging

from albert_tf import files, text_files
from albert_tf.errors import InputError

# How the names of such files end. The content says whether a file is Parquet, an Arrow
# file (Feather) or an Arrow stream: `datasets` calls both kinds of Arrow .arrow.
ENDS = (".parquet", ".arrow", ".arrows", ".feather")
_ROWS = 1024  # rows that become Python values at a time
_BATCH = 32 << 20  # bytes of Parquet's columns to read at a time, about, or one row
_BUFFER = 1 << 20  # bytes of a Parquet column to read at a time
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"


class Column(NamedTuple):
    """A column of a file.

    Attributes:
      is_simple: whether its values are texts, numbers or booleans.
      classes: the names of its numbers (`ClassLabel` in `datasets`), () without.
    """

    is_simple: bool
    classes: tuple[str, ...]


def is_row_file(path: str) -> bool:
    """Returns whether a path is that of a Parquet or Arrow file, by its name."""
    name = os.fspath(path).lower()
    for end in text_files.COMPRESSED:
        name = name.removesuffix(end)
    return name.endswith(ENDS)


def unit(path: str) -> str:
    """Returns the word for what has a row of a file: "line" or, for Parquet, "row"."""
    return "row" if is_row_file(path) else "line"


def pyarrow(what: str = "Parquet and Arrow files") -> Any:
    """Imports and returns pyarrow with its parts for files. Raises InputError, which
    says that `what` needs it, if it is not installed."""
    try:
        import pyarrow
        import pyarrow.ipc
        import pyarrow.parquet
    except ImportError as error:
        raise InputError(f"{what} need the package pyarrow; run pip install "
                         "'albert_tf[parquet]', or pip install pyarrow.") from error
    return pyarrow


def columns_of(path: str) -> dict[str, Column]:
    """Returns the columns of a file in their order."""
    with _opened(path) as source, _errors(path, pyarrow()):
        schema = source.schema
        features = _features(path, schema.metadata)
        return {field.name: Column(_is_simple(field.type), _classes(
            features.get(field.name))) for field in schema}


def read_rows(path: str, names: Sequence[str], optional: Sequence[str] = (),
              on_bytes: Callable[[int], None] = lambda count: None,
              advice: str = "") -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields (number from 1, column name → value) for each row of a file.

    Numbers that the schema names become these names, and -1, which means "no label",
    becomes None, as nulls are.

    Args:
      path: the file.
      names: the columns to read.
      optional: columns that are read, too, if the file has them.
      on_bytes: is called with the number of bytes on disk that were read since the last
        call, or nearly this.
      advice: what to do if a column is missing.

    Raises:
      InputError: if a column is missing or the file is damaged.
    """
    number = done = 0
    columns = columns_of(path)
    with _opened(path) as source:
        _check_columns(path, columns, names, advice)
        chosen = [*names, *(name for name in optional if name in columns)]
        for name in chosen:
            if (count := source.schema.names.count(name)) > 1:
                raise InputError(f"{path}: {count} columns are named '{name}'; rename "
                                 "all but one.")
        for batch, share in _reading(
                path, source.batches(chosen), lambda: number):
            arrays = {name: _checked(path, name, batch.column(name), number)
                      for name in chosen}
            for start in range(0, batch.num_rows, _ROWS):
                values = [_values(path, name, array.slice(start, _ROWS), number,
                                  columns[name].classes)
                          for name, array in arrays.items()]
                for row in zip(*values):
                    number += 1
                    yield number, dict(zip(chosen, row))
            before, done = done, int(share * source.size)
            on_bytes(done - before)
        on_bytes(source.size - done)
        if not source.has_end:
            logging.warning("%s: the stream has no end mark after row %d; check "
                            "that it is complete.", path, number)


def read_texts(path: str, column: str, flag: str = "--text_column",
               on_bytes: Callable[[int], None] = lambda count: None,
               ) -> Iterator[tuple[int, str]]:
    """Yields (number from 1, text) for each row, as read_rows does. Raises InputError if
    a value is not a text; `flag` is the one that chooses the column."""
    for number, row in read_rows(
            path, [column], (), on_bytes, f"choose one with {flag}"):
        text = row[column]
        if not isinstance(text, str):
            raise InputError(
                f"{path}, row {number}: the column '{column}' holds "
                f"{json.dumps(text, default=repr)[:40]}, not a text; choose a "
                f"different one with {flag}, or remove the row.")
        yield number, text


def _check_columns(path: str, columns: Iterable[str], names: Iterable[str],
                   advice: str) -> None:
    """Raises InputError if one of the names is not among the columns."""
    for name in names:
        if name not in columns:
            raise InputError(
                f"{path}: there is no column '{name}'; the file has "
                + ", ".join(map(repr, columns)) + f"{advice and '; '}{advice}.")


# ---- files -----------------------------------------------------------------


class _Source:
    """An open file.

    Attributes:
      schema: its columns.
      size: its bytes.
      has_end: whether its end is there; an error otherwise, unless it is a stream.
    """

    def __init__(self, package: Any, stream: Any):
        self._package, self._stream = package, stream
        begin = stream.read(8)
        self.size = stream.seek(0, os.SEEK_END)
        stream.seek(max(0, self.size - 8))
        end = stream.read(8)
        stream.seek(0)
        self._kind = ("parquet" if begin.startswith(b"PAR") else
                      "file" if begin.startswith(b"ARROW1") else "stream")
        self.has_end = self._kind != "stream" or end == _END_OF_STREAM
        self._parquet = package.parquet.ParquetFile(
            stream, buffer_size=_BUFFER, pre_buffer=False
            ) if self._kind == "parquet" else None
        self.schema = self._parquet.schema_arrow if self._parquet else (
            self._arrow().schema)

    def _arrow(self, fields: Sequence[int] = ()) -> Any:
        """Opens Arrow with the columns of these numbers, () for all."""
        self._stream.seek(0)
        ipc = self._package.ipc
        return (ipc.open_file if self._kind == "file" else ipc.open_stream)(
            self._stream, options=ipc.IpcReadOptions(included_fields=list(fields)))

    def _bytes_of(self, columns: Sequence[str]) -> int:
        """Returns the bytes of columns of a Parquet file."""
        metadata = self._parquet.metadata
        groups = map(metadata.row_group, range(metadata.num_row_groups))
        return sum(
            group.column(j).total_uncompressed_size for group in groups
            for j in range(group.num_columns)
            if group.column(j).path_in_schema.partition(".")[0] in columns)

    def batches(self, names: Sequence[str]) -> Iterator[tuple[Any, float]]:
        """Yields (rows, the share of the file that is read)."""
        if self._parquet:
            done, total = 0, self._parquet.metadata.num_rows
            for batch in self._parquet.iter_batches(
                    max(1, min(_ROWS, _BATCH * total // max(self._bytes_of(names), 1))),
                    columns=list(names)):
                done += batch.num_rows
                yield batch, done / total
            return
        reader = self._arrow([self.schema.names.index(name) for name in names])
        if self._kind == "file":
            for i in range(reader.num_record_batches):
                yield reader.get_batch(i), (i + 1) / reader.num_record_batches
        else:
            for batch in reader:
                yield batch, self._stream.tell() / self.size


@contextlib.contextmanager
def _opened(path: str) -> Iterator[_Source]:
    package = pyarrow()
    path = os.fspath(path)
    if path.endswith(text_files.COMPRESSED):
        raise InputError(f"{path}: a compressed Parquet or Arrow file cannot be read; "
                         "decompress it, and give that file.")
    with files.open_binary(path) as stream:
        with _errors(path, package):
            source = _Source(package, stream)
        yield source


@contextlib.contextmanager
def _errors(path: str, package: Any, after: int = 0) -> Iterator[None]:
    """Raises InputError for errors of a file of which `after` rows can be read."""
    try:
        yield
    except InputError:
        raise
    # A damaged file may ask for more memory than there is.
    except (package.ArrowException, OSError, EOFError, ValueError,
            MemoryError) as error:
        reason = str(error).strip().partition("\n")[0].rstrip(".") or "too large"
        raise InputError(
            f"{path}: cannot be read as Parquet or Arrow ({reason}); the file may be "
            "damaged, cut short or of another kind, so copy or create it again."
            if not after else
            f"{path}, after row {after}: cannot be read further ({reason}); the file "
            "is damaged or cut short, so copy or create it again.") from error


def _reading(path: str, batches: Iterator[tuple[Any, float]], row: Callable[[], int]
             ) -> Iterator[tuple[Any, float]]:
    """Yields batches, and raises InputError where one cannot be read."""
    package = pyarrow()
    while True:
        with _errors(path, package, row()):
            batch, share = next(batches, (None, 1.0))
            if batch is not None:
                # A damaged file could claim more rows than its columns have.
                batch.validate()
        if batch is None:
            return
        yield batch, share


# ---- values ----------------------------------------------------------------


def _checked(path: str, name: str, array: Any, before: int) -> Any:
    """Returns a column of a batch after the row `before`. Raises InputError if it is
    damaged: its lengths and offsets could lead out of its memory."""
    try:
        array.validate(full=True)
    except ValueError as error:
        types = pyarrow().types
        bad = re.search(r"UTF8 sequence at string index (\d+)", str(error))
        if bad and (types.is_string(array.type) or types.is_large_string(array.type)):
            raise InputError(
                f"{path}, row {before + int(bad[1]) + 1}: column '{name}' is not UTF-8; "
                "write the text in UTF-8.") from error
        raise InputError(
            f"{path}, after row {before}: column '{name}' is damaged ({error}); copy or "
            "create the file again.") from error
    return array


def _values(path: str, name: str, array: Any, before: int, classes: Sequence[str]
            ) -> list[Any]:
    """Returns the values of a column after the row `before`."""
    try:
        values = array.to_pylist()
    except (ValueError, OverflowError) as error:  # Times that Python does not have.
        raise InputError(
            f"{path}, after row {before}: column '{name}' has a value of the type "
            f"{array.type} that cannot be read ({error}); save it as text or "
            "number.") from error
    if not classes:
        return values

    def named(value: Any, row: int) -> Any:
        if isinstance(value, list):
            return [named(each, row) for each in value]
        if type(value) is not int:
            return value
        if not -1 <= value < len(classes):
            raise InputError(
                f"{path}, row {row}: column '{name}' holds {value}, but the file's "
                f"schema names only 0 to {len(classes) - 1} "
                f"({', '.join(classes[:10])}{', ...' * (len(classes) > 10)}).")
        return None if value < 0 else classes[value]

    return [named(value, before + i) for i, value in enumerate(values, 1)]


def _features(path: str, metadata: Any) -> dict[str, Any]:
    """Returns what `datasets` writes of the columns into a schema."""
    text = (metadata or {}).get(b"huggingface")
    if text is None:
        return {}
    value = text_files.parse_json(
        text.decode(errors="replace"), path, "its schema's key huggingface is damaged; "
        "write the file again", cleaned=True)
    for key in ("info", "features"):
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def _classes(feature: Any) -> tuple[str, ...]:
    """Returns the names of classes that a feature, or those in its list, have."""
    while True:
        if isinstance(feature, list) and len(feature) == 1:
            feature = feature[0]
        elif isinstance(feature, dict) and "feature" in feature:
            feature = feature["feature"]
        else:
            break
    names = feature.get("names") if isinstance(feature, dict) and feature.get(
        "_type") == "ClassLabel" else None
    return tuple(map(str, names)) if isinstance(names, list) else ()


def _is_simple(kind: Any) -> bool:
    types = pyarrow().types
    if types.is_dictionary(kind):
        kind = kind.value_type
    return any(is_kind(kind) for is_kind in (
        types.is_integer, types.is_floating, types.is_boolean, types.is_string,
        types.is_large_string))
