"""Reads rows: CSV, TSV, JSON lines, and Parquet and Arrow, as `datasets` and pandas write
them.

    for where, row in rows("train.csv", ["text", "label"]):
        where            # "train.csv, line 2"; for Parquet "train.parquet, row 1"
        row["label"]     # "positive"

Memory holds a part of a file: of Parquet at most 256 rows, of Arrow a record batch. The
package pyarrow is imported when the first such file is read.
"""

import contextlib
import csv
import json
import os
import re
import unicodedata
from typing import Any, Callable, Iterable, Iterator, Sequence

from albert_tf import files, text_files
from albert_tf.errors import InputError, reading

# How the names of Parquet and Arrow files end. The content says whether a file is
# Parquet, an Arrow file (Feather) or an Arrow stream: `datasets` calls both .arrow.
_ROW_FILES = (".parquet", ".arrow", ".arrows", ".feather")
_KINDS = {".tsv": "tsv", ".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl",
          ".json": "jsonl", **dict.fromkeys(_ROW_FILES, "parquet")}
# A longer cell must be an unclosed quote. Python's limit, 128 KiB, is too small.
_LONGEST_CELL = 1 << 26
OBJECT = r'\s*\{\s*("|\}?\s*$)'  # how a line that is a JSON object begins
_NO_TEXT = ("Zs", "Zl", "Zp", "Cc", "Cf", "Mn", "Me")  # categories of characters
_ROWS = 256  # rows that become Python values at a time
_BUFFER = 1 << 20  # bytes of a Parquet column to read at a time
_WORDS = {str: "a text", int: "a whole number", bool: "true or false", dict: "an object",
          list: "a list"}

Row = dict[str, Any]
Lines = Iterable[tuple[int, str]]


def kind_of(path: str, default: str = "") -> str:
    """Returns the kind of a file by its name: "tsv", "csv", "jsonl", or "parquet" for
    Parquet and Arrow; an end in text_files.COMPRESSED is ignored. Without a `default`,
    other names raise InputError."""
    name, end = os.path.splitext(os.fspath(path).lower())
    if end in text_files.COMPRESSED:
        end = os.path.splitext(name)[1]
    if not (kind := _KINDS.get(end, default)):
        raise InputError(
            f"{path}: unknown file extension; the name must end in .tsv, .csv or .jsonl, "
            f"each with or without .gz, or in {', '.join(_ROW_FILES)}. Save a "
            "spreadsheet as CSV in UTF-8.")
    return kind


def check_sentences(paths: Iterable[str]) -> None:
    """Raises InputError for a file in --input_file that does not have one sentence per
    line: JSON or rows, by its name, or lines that carriage returns alone end."""
    for path in paths:
        with files.open_binary(path) as stream, reading(path):
            start = text_files.decompressed(path, stream).read(1 << 16)
        if kind_of(path, "text") in ("jsonl", "parquet") or (
                b"\r" in start.rstrip() and b"\n" not in start):
            raise InputError(f"--input_file: {path} is not text with one sentence per "
                             "line; prepare_corpus.py reads it and writes such text.")


def number_of(where: str) -> int:
    """Returns the number of the line or row in a place from `rows`."""
    return int(where.rpartition(" ")[2])


def rows(path: str, names: Sequence[str] | None = None, optional: Sequence[str] = (), *,
         kind: str = "", lines: Lines | None = None, delimiter: str | None = None,
         header: bool = True, ragged: bool = False, keep_wrong: bool = False,
         advice: str = "") -> Iterator[tuple[str, Row]]:
    """Yields ("file, line 2", column → value) for each row of a file, without blank lines.

    Cells of CSV and TSV are texts; in TSV, quotation marks are plain text, as in GLUE's
    files. Files are UTF-8, with or without a byte-order mark. In Parquet, numbers that
    the schema names become these names, and -1, which means "no label", becomes None, as
    nulls are.

    Args:
      path: the file; the name tells its kind and whether it is compressed.
      names: the columns to read, by name, or by number from 0 except in JSON lines;
        None: all. A column that is missing raises InputError.
      optional: columns that are read, too, if the file has them.
      kind: overrides the kind that the name tells. In "text", each line is a JSON object,
        or a tuple of texts with tabs between them, in place of a row.
      lines: the numbered lines of the file, if it is open already.
      delimiter: replaces the comma of CSV or the tab of TSV.
      header: whether the first line of CSV and TSV names the columns; else the names
        are numbers.
      ragged: whether lines may have other numbers of cells than the first one. Columns
        may then be missing.
      keep_wrong: whether a wrong row is yielded as an InputError instead of raised.
      advice: what to do if a column is missing.
    """
    kind, what = kind or kind_of(path), "line"
    if kind == "parquet":
        what, found = "row", enumerate(_parquet(path, names, optional, advice), 1)
    else:
        lines = text_files.read_lines(path, cleaned=False) if lines is None else lines
        found = _objects(path, lines, kind, names or (), advice) if (
            kind in ("jsonl", "text")) else _table(
                path, lines, kind, names, optional, delimiter, header, ragged, advice)
    for number, row in found:
        if isinstance(row, InputError) and not keep_wrong:
            raise row
        yield f"{path}, {what} {number}", row


# ---- values ----------------------------------------------------------------


def typed(row: Any, where: str, /, **kinds: Any) -> Row:
    """Returns a row after checking the types of its values, as options=[[str]] or
    answers=([str], None): a kind is a type, [kind] for a list, or a tuple of
    alternatives, of which None allows a missing value."""
    for name, kind in kinds.items():
        value = row.get(name) if isinstance(row, dict) else None
        if not _fits(value, kind):
            raise InputError(
                f"{where}: '{name}' is {'missing' if value is None else repr(value):.40}; "
                f"it must be {_in_words(kind)}{nul_note(value)}.")
    return row


def nul_note(value: Any) -> str:
    """Returns why a value with NUL is no text (text_files.parse_json); "" without."""
    return "; NUL and half of a surrogate pair are no characters" * (
        r"\x00" in repr(value))


def _fits(value: Any, kind: Any) -> bool:
    if isinstance(kind, tuple):
        return any(_fits(value, each) for each in kind)
    if isinstance(kind, list):
        return type(value) is list and all(_fits(each, kind[0]) for each in value)
    return value is None if kind is None else type(value) is kind and not (
        kind is str and "\0" in value)


def _in_words(kind: Any) -> str:
    if isinstance(kind, list):
        return f"a list, of which each element is {_in_words(kind[0])}"
    return _in_words(kind[0]) if isinstance(kind, tuple) else _WORDS[kind]


def text(row: Row, where: str, column: str) -> str:
    """Returns the text in a column, which must not be empty."""
    value = typed(row, where, **{column: str})[column]
    if is_empty(value):
        raise InputError(f"{where}: the text of column '{column}' is empty; fill it in, "
                         f"or remove the {where.rpartition(', ')[2].split()[0]}.")
    return value


def is_empty(value: str) -> bool:
    """Returns whether cleaning leaves nothing of a text: it has only blanks, control and
    format characters, such as U+200B, and marks."""
    return all(unicodedata.category(char) in _NO_TEXT for char in value)


# ---- lines -----------------------------------------------------------------


def _objects(path: str, lines: Lines, kind: str, names: Sequence[str], advice: str
             ) -> Iterator[tuple[int, Row | tuple | InputError]]:
    for number, line in lines:
        where, row = f"{path}, line {number}", None
        if kind == "text" and not re.match(OBJECT, line):
            row = tuple(line.split("\t"))
        elif not line.strip():
            continue
        else:
            try:
                row = text_files.parse_json(line, where, (
                    "the file looks like one array over many lines, but "
                    if line.lstrip().startswith("[") else "")
                    + "each line must hold one JSON object")
                if not isinstance(row, dict):
                    row = InputError(f"{where}: not a JSON object; give one object per line.")
            except InputError as error:
                row = error
        for name in names if isinstance(row, dict) else ():
            if name not in row:
                raise _missing(where, name, row, advice)
        yield number, row


def _table(path: str, lines: Lines, kind: str, names: Sequence[str] | None,
           optional: Sequence[str], delimiter: str | None, header: bool, ragged: bool,
           advice: str) -> Iterator[tuple[int, Row | InputError]]:
    places = None
    for number, cells in _csv(path, lines, delimiter or ",") if kind == "csv" else (
            (number, line.split(delimiter or "\t")) for number, line in lines):
        if len(cells) < 2 and not "".join(cells).strip(" "):
            continue
        if places is None:
            width = len(cells)
            places = _places(
                path, names, optional, cells if header else list(map(str, range(width))),
                advice if width > 1 else
                "if another character separates the cells, give --delimiter")
            if header:
                continue
        if len(cells) != width and not ragged:
            yield number, InputError(
                f"{path}, line {number}: the row has {len(cells)} columns, but the first "
                f"line has {width}. If a text contains the delimiter, remove it, or use "
                "CSV with the text in quotes.")
        else:
            yield number, {name: cells[place] for name, place in places.items()
                           if place < len(cells)}


def _csv(path: str, lines: Lines, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yields the number of a row's first line, and its cells."""
    csv.field_size_limit(_LONGEST_CELL)
    number = 1
    try:
        # Blanks before a cell, and so before its quote, are no part of it.
        reader = csv.reader(
            (f"{line}\n" for _, line in lines), delimiter=delimiter, strict=True,
            skipinitialspace=delimiter != " ")
        for cells in reader:
            yield number, cells
            number = reader.line_num + 1
    except (csv.Error, TypeError) as error:  # TypeError: the delimiter is no character.
        raise InputError(
            f"{path}, line {number}: not valid CSV ({error}); close each quote that opens "
            "a cell, and double each one inside a cell. If another character separates "
            "the cells, give --delimiter.") from error


def _places(path: str, names: Sequence[str] | None, optional: Sequence[str],
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
            raise _missing(path, name, titles, advice)
    return places


def _missing(where: str, name: str, titles: Iterable[str], advice: str) -> InputError:
    # Without a header, titles may be whole texts, which are too long to show.
    listed = ", ".join(f"{title!r:.42}" for title in titles)
    return InputError(f"{where}: there is no column '{name}'; the columns are "
                      f"{listed or 'missing'}{advice and '; '}{advice}.")


# ---- Parquet and Arrow -----------------------------------------------------


def columns_of(path: str) -> dict[str, tuple[str, ...]]:
    """Returns the columns of a Parquet or Arrow file in their order: name → the names of
    its numbers (`ClassLabel` in `datasets`), () without."""
    with _opened(path) as (schema, _):
        return _columns(schema)


def _columns(schema: Any) -> dict[str, tuple[str, ...]]:
    def classes(feature: Any) -> tuple[str, ...]:  # of a feature, or its list's
        match feature:
            case {"_type": "ClassLabel", "names": names}:
                return tuple(map(str, names))
            case {"feature": inner} | [inner]:
                return classes(inner)
        return ()

    # What `datasets` writes into a schema.
    about = json.loads((schema.metadata or {}).get(b"huggingface", "{}"))
    features = about.get("info", {}).get("features", {})
    return {name: classes(features.get(name)) for name in schema.names}


def _parquet(path: str, names: Sequence[str] | None, optional: Sequence[str], advice: str
             ) -> Iterator[Row]:
    with _opened(path) as (schema, batches):
        classes = _columns(schema)
        titles = {name: schema.names[place] for name, place in _places(
            path, names, optional, schema.names, advice).items()}
        for batch in batches(list(titles.values())):
            # pyarrow ends the process at lengths and offsets that are damaged.
            batch.select(list(titles.values())).validate(full=True)
            for start in range(0, batch.num_rows, _ROWS):
                columns = (named(batch.column(name).slice(start, _ROWS).to_pylist(),
                                 classes[name]) for name in titles.values())
                yield from (dict(zip(titles, values)) for values in zip(*columns))


def named(value: Any, classes: Sequence[str]) -> Any:
    """Returns a number's name, or those of a list's; None for -1, and other values as
    they are."""
    if classes and isinstance(value, list):
        return [named(each, classes) for each in value]
    if not classes or not isinstance(value, int):
        return value
    return classes[value] if value >= 0 else None


@contextlib.contextmanager
def _opened(path: str) -> Iterator[tuple[Any, Callable[[list[str]], Iterable[Any]]]]:
    """Opens a file: its schema, and a function of columns that yields batches of rows
    with these, or all. What pyarrow cannot read until it is closed is an InputError:
    lengths that ask for more memory than there is, or times that Python does not have."""
    import pyarrow.ipc
    import pyarrow.parquet

    path = os.fspath(path)
    with files.open_binary(path) as stream, reading(path):
        begin = stream.peek(6)
        if begin.startswith(b"PAR"):
            file = pyarrow.parquet.ParquetFile(stream, buffer_size=_BUFFER, pre_buffer=False)
            yield file.schema_arrow, lambda names: file.iter_batches(_ROWS, columns=names)
        elif begin.startswith(b"ARROW1"):
            reader = pyarrow.ipc.open_file(stream)
            yield reader.schema, lambda names: map(
                reader.get_batch, range(reader.num_record_batches))
        else:
            reader = pyarrow.ipc.open_stream(stream)
            yield reader.schema, lambda names: reader
