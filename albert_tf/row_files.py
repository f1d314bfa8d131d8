"""Reads the rows of Parquet and Arrow files, as the library `datasets` and pandas write
them.

Memory holds a part of a file: of Parquet at most 1,024 rows and about 32 MB, or a longer
row; of Arrow a record batch. The package pyarrow is imported when the first file is
read.
"""

import contextlib
import itertools
import json
import os
from typing import Any, Callable, Iterable, Iterator, Sequence

from albert_tf import files
from albert_tf.errors import InputError, reading

# How the names of such files end. The content says whether a file is Parquet, an Arrow
# file (Feather) or an Arrow stream: `datasets` calls both kinds of Arrow .arrow.
ENDS = (".parquet", ".arrow", ".arrows", ".feather")
_ROWS = 1024  # rows that become Python values at a time
_BATCH = 32 << 20  # bytes of Parquet to read at a time, about, or one row
_BUFFER = 1 << 20  # bytes of a Parquet column to read at a time


def is_row_file(path: str) -> bool:
    """Returns whether the name of a file is that of a Parquet or Arrow file."""
    return os.fspath(path).lower().endswith(ENDS)


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


def columns_of(path: str) -> dict[str, tuple[str, ...]]:
    """Returns the columns of a Parquet or Arrow file in their order: name → the names of
    its numbers (`ClassLabel` in `datasets`), () without."""
    with _opened(path) as (schema, _):
        return _columns(schema)


def _columns(schema: Any) -> dict[str, tuple[str, ...]]:
    # What `datasets` writes into a schema.
    about = json.loads((schema.metadata or {}).get(b"huggingface", "{}"))
    features = about.get("info", {}).get("features", {})
    return {name: _classes(features.get(name)) for name in schema.names}


def _classes(feature: Any) -> tuple[str, ...]:
    """Returns the names of classes that a feature of `datasets`, or its list's, has."""
    if isinstance(feature, dict) and feature.get("_type") == "ClassLabel":
        return tuple(map(str, feature["names"]))
    return _classes(feature[0] if isinstance(feature, list) else feature.get("feature")
                    ) if feature and not isinstance(feature, str) else ()


def read_rows(path: str, names: Sequence[str] | None, optional: Sequence[str] = (),
              advice: str = "") -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields (number from 1, column name → value) for each row of a file. Numbers that the
    schema names become these names, and -1, which means "no label", becomes None, as
    nulls are. The other arguments are those of rows.rows."""
    numbers = itertools.count(1)
    with _opened(path) as (schema, batches):
        classes = _columns(schema)
        titles = {name: schema.names[place] for name, place in places_of(
            path, names, optional, schema.names, advice).items()}
        for batch in batches(list(titles.values())):
            # pyarrow ends the process at lengths and offsets that are damaged.
            batch.validate(full=True)
            for start in range(0, batch.num_rows, _ROWS):
                values = (_named(path, name, batch.column(name).slice(start, _ROWS)
                                 .to_pylist(), classes[name]) for name in titles.values())
                for row in zip(*values):
                    yield next(numbers), dict(zip(titles, row))


def _named(path: str, name: str, value: Any, classes: Sequence[str]) -> Any:
    """Returns a value, or those in a list, with names in place of numbers."""
    if classes and isinstance(value, list):
        return [_named(path, name, each, classes) for each in value]
    if not classes or type(value) is not int:
        return value
    if not -1 <= value < len(classes):
        raise InputError(f"{path}: column '{name}' holds {value}, but the file's schema "
                         f"names only 0 to {len(classes) - 1}.")
    return None if value < 0 else classes[value]


def places_of(path: str, names: Sequence[str] | None, optional: Sequence[str],
              titles: Sequence[str], advice: str) -> dict[str, int]:
    """Returns the place of each column, whose name is a title or, if there is no such
    title, its number from 0."""
    titles = [title.strip() for title in titles]
    names = titles if names is None else names
    places: dict[str, int] = {}
    for name in dict.fromkeys((*names, *optional)):
        if titles.count(name) > 1:
            raise InputError(f"{path}: {titles.count(name)} columns are named "
                             f"'{name}'; rename all but one.")
        place = titles.index(name) if name in titles else (
            int(name) if name.isdecimal() else len(titles))
        if place < len(titles):
            for other in (other for other in places if places[other] == place):
                raise InputError(f"{path}: '{other}' and '{name}' are the same column; "
                                 "name each column once.")
            places[name] = place
        elif name in names:
            raise missing(path, name, titles, advice)
    return places


def missing(where: str, name: str, titles: Iterable[str], advice: str) -> InputError:
    """Returns the error for a column that a file or row does not have."""
    # Without a header, titles may be whole texts, which are too long to show.
    listed = ", ".join(f"{title!r:.42}" for title in titles)
    return InputError(f"{where}: there is no column '{name}'; the columns are "
                      f"{listed or 'missing'}{advice and '; '}{advice}.")


@contextlib.contextmanager
def _opened(path: str) -> Iterator[tuple[Any, Callable[[list[str]], Iterable[Any]]]]:
    """Opens a file: its schema, and a function of columns that yields batches of rows.
    What pyarrow cannot read until it is closed is an InputError."""
    package, path = pyarrow(), os.fspath(path)
    # A damaged file may ask for more memory than there is, and hold times that Python
    # does not have.
    with files.open_binary(path) as stream, reading(path, binary=True):
        begin = stream.read(6)
        stream.seek(0)
        if begin.startswith(b"PAR"):
            file = package.parquet.ParquetFile(stream, buffer_size=_BUFFER, pre_buffer=False)
            size = sum(file.metadata.row_group(group).total_byte_size
                       for group in range(file.metadata.num_row_groups))
            rows = min(_ROWS, _BATCH * file.metadata.num_rows // max(size, 1))
            yield file.schema_arrow, lambda names: file.iter_batches(
                max(1, rows), columns=names)
            return
        if begin == b"ARROW1":
            reader = package.ipc.open_file(stream)
            parts = map(reader.get_batch, range(reader.num_record_batches))
        else:
            parts = reader = package.ipc.open_stream(stream)
        yield reader.schema, lambda names: (part.select(names) for part in parts)
