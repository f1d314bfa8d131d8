"""Reads rows: CSV, TSV, JSON lines, Parquet and Arrow.

    for where, row in rows("train.csv", ["text", "label"]):
        where            # "train.csv, line 2"; for Parquet "train.parquet, row 1"
        row["label"]     # "positive"
"""

import csv
import os
import unicodedata
from typing import Any, Iterable, Iterator, Sequence

from albert_tf import files, row_files, text_files
from albert_tf.errors import InputError

_KINDS = {".tsv": "tsv", ".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl",
          ".json": "jsonl", **dict.fromkeys(row_files.ENDS, "parquet")}
# A longer cell must be an unclosed quote. Python's limit, 128 KiB, is too small.
_LONGEST_CELL = 1 << 26
_NO_TEXT = ("Zs", "Zl", "Zp", "Cc", "Cf", "Mn", "Me")  # categories of characters

Row = dict[str, Any]


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
            f"each with or without .gz, or in {', '.join(row_files.ENDS)}. Save a "
            "spreadsheet as CSV in UTF-8.")
    return kind


def number_of(where: str) -> int:
    """Returns the number of the line or row in a place from `rows`."""
    return int(where.rpartition(" ")[2])


def rows(path: str, names: Sequence[str] | None = None, optional: Sequence[str] = (), *,
         kind: str = "", lines: Iterable[tuple[int, str]] | None = None,
         delimiter: str | None = None, header: bool = True, ragged: bool = False,
         keep_wrong: bool = False, blank: list[int] | None = None, advice: str = ""
         ) -> Iterator[tuple[str, Row]]:
    """Yields ("file, line 2", column → value) for each row of a file.

    Cells of CSV and TSV are texts; in TSV, quotation marks are plain text, as in GLUE's
    files. Files are UTF-8, with or without a byte-order mark, with any kind of line end.
    Values of Parquet are those of row_files.read_rows.

    Args:
      path: the file; the name tells its kind and whether it is compressed.
      names: the columns to read, by name, or by number from 0 except in JSON lines;
        None: all. A column that is missing raises InputError.
      optional: columns that are read, too, if the file has them.
      kind: overrides the kind that the name tells.
      lines: the numbered lines of the file, if it is open already (text_lines).
      delimiter: replaces the comma of CSV or the tab of TSV.
      header: whether the first line of CSV and TSV names the columns; else the names
        are numbers.
      ragged: whether lines may have other numbers of cells than the first one. Columns
        may then be missing, and further cells are in row[None], as in csv.DictReader.
      keep_wrong: whether a wrong row is yielded as an InputError instead of raised.
      blank: gets the numbers of blank lines, which are left out.
      advice: what to do if a column is missing.
    """
    kind, blank = kind or kind_of(path), [] if blank is None else blank
    if kind == "parquet":
        for number, row in row_files.read_rows(path, names, optional, advice):
            yield f"{path}, row {number}", row
        return
    lines = text_lines(path) if lines is None else lines
    for number, row in _table(
            path, lines, kind, names, optional, delimiter, header, ragged, advice
            ) if kind != "jsonl" else (
                (number, parsed(line, path, number) if line.strip() else None)
                for number, line in lines):
        where = f"{path}, line {number}"
        if row is None:
            blank.append(number)
            continue
        if isinstance(row, InputError) and not keep_wrong:
            raise row
        for name in names or () if kind == "jsonl" and isinstance(row, dict) else ():
            if name not in row:
                raise row_files.missing(where, name, row, advice)
        yield where, row


def typed(row: Any, where: str, /, **kinds: Any) -> Row:
    """Returns a row after checking the types of its values, as options=[[str]] or
    answers=([str], None): a kind is a type, [kind] for a list, or a tuple of
    alternatives, of which None allows a missing value."""
    for name, kind in kinds.items():
        value = row.get(name) if isinstance(row, dict) else None
        if not _fits(value, kind):
            raise InputError(
                f"{where}: '{name}' is {'missing' if value is None else repr(value):.40}; "
                f"it must be {_in_words(kind)}.")
    return row


def _fits(value: Any, kind: Any) -> bool:
    if isinstance(kind, tuple):
        return any(_fits(value, each) for each in kind)
    if isinstance(kind, list):
        return type(value) is list and all(_fits(each, kind[0]) for each in value)
    if kind is str:
        return type(value) is str and "\0" not in value
    return value is None if kind is None else type(value) is kind


def _in_words(kind: Any) -> str:
    if isinstance(kind, tuple):
        return _in_words(kind[0])
    if isinstance(kind, list):
        return f"a list, of which each element is {_in_words(kind[0])}"
    return {str: "a text", int: "a whole number", bool: "true or false",
            dict: "an object", list: "a list"}[kind]


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


def text_lines(path: str, once: bool = False) -> Iterator[tuple[int, str]]:
    """Yields (line number, line). If the first line contains carriage returns, these
    alone separate lines, as on old Macs. `once` as in text_files.read_lines."""
    ends = None
    for number, line in text_files.read_lines(path, once=once):
        if "\0" in line:
            raise text_files.binary(files.shown(path), number, "it holds NUL characters")
        if ends is None:
            ends, before = "\r" in line, 0
        if not ends:
            yield number, line
            continue
        parts = line.split("\r")
        yield from enumerate(parts, before + 1)
        before += len(parts)


def parsed(line: str, path: str, number: int) -> Row | InputError:
    """Returns the object in a line of JSON, or the error if there is none."""
    try:
        value = text_files.parse_json(line, path, (
            "the file looks like one array over many lines, but "
            if line.lstrip().startswith("[") else "")
            + "each line must hold one JSON object", number)
    except InputError as error:
        return error
    return value if isinstance(value, dict) else InputError(
        f"{path}, line {number}: not a JSON object; give one object per line.")


def _table(path: str, lines: Iterable[tuple[int, str]], kind: str,
           names: Sequence[str] | None, optional: Sequence[str], delimiter: str | None,
           header: bool, ragged: bool, advice: str
           ) -> Iterator[tuple[int, Row | InputError | None]]:
    """Yields line numbers, and rows, or None for a blank line."""
    if delimiter is not None and len(delimiter) != 1:
        raise InputError(f"--delimiter={delimiter!r} is not a single character.")
    places = None
    for number, cells in _csv(path, lines, delimiter or ",") if kind == "csv" else (
            (number, line.split(delimiter or "\t")) for number, line in lines):
        if len(cells) < 2 and not "".join(cells).strip(" "):
            yield number, None
            continue
        if places is None:
            width = len(cells)
            titles = cells if header else list(map(str, range(width)))
            places = row_files.places_of(path, names, optional, titles, (
                "if another character separates the cells, give --delimiter"
                if width == 1 else advice))
            if header:
                continue
        if len(cells) != width and not ragged:
            yield number, InputError(
                f"{path}, line {number}: the row has {len(cells)} columns, but the first "
                f"line has {width}. If a text contains the delimiter, remove it, or use "
                "CSV with the text in quotes.")
            continue
        row = {name: cells[place] for name, place in places.items()
               if place < len(cells)}
        yield number, {**row, None: cells[width:]} if len(cells) > width else row


def _csv(path: str, lines: Iterable[tuple[int, str]], delimiter: str
         ) -> Iterator[tuple[int, list[str]]]:
    """Yields the number of a row's first line, and its cells."""
    csv.field_size_limit(_LONGEST_CELL)
    # Blanks before a cell, and so before its quote, are no part of it.
    reader, number = csv.reader(
        (f"{line}\n" for _, line in lines), delimiter=delimiter, strict=True,
        skipinitialspace=delimiter != " "), 1
    try:
        for cells in reader:
            yield number, cells
            number = reader.line_num + 1
    except csv.Error as error:
        raise InputError(
            f"{path}, line {number}: not valid CSV ({error}); close each quote that opens "
            "a cell, and double each one inside a cell. If another character separates "
            "the cells, give --delimiter.") from error
