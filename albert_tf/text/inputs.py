"""Reads texts for prediction from files, pipes or the standard input.

Each line is a text, or several with a tab between them, or a JSON object with the
inputs by name and optionally an `id`. The columns of Parquet and Arrow files have these
names. Of CSV, TSV and Parquet the columns of the texts can be named. Where no name says
what a file holds, as in a pipe, its first line does.
"""

import itertools
import math
import re
from typing import Any, Iterator, Mapping, NamedTuple, Sequence

from albert_tf import files, rows, text_files
from albert_tf.errors import InputError


class Field(NamedTuple):
    """A part of a task's input: a text, which may be `optional`, or `several` texts."""

    name: str
    several: bool = False
    optional: bool = False


TEXTS = (Field("text"), Field("text_pair", optional=True))


class Input(NamedTuple):
    """An input for `predict`, or the InputError of a line that is not valid, which
    `named` raises; and fields to copy to the answer, such as `id`."""

    given: Any
    kept: dict[str, Any]
    where: str  # file and line, or row, for errors
    line: int  # the number of this line or row, from 1


def read(path: str, text_column: str | None = None, text_b_column: str | None = None,
         id_column: str | None = None, header: bool | None = None,
         delimiter: str | None = None, id_needed: bool = True, column_needed: bool = True,
         inputs: Sequence[str] = ("text", "text_pair")) -> Iterator[Input]:
    """Yields the inputs in a file, or in what files.is_stream.

        for item in read("reviews.csv", text_column="review"):

    The columns of the texts are those of a .csv, .tsv or Parquet file; a line of JSON
    may have them as fields. Where none are named, Parquet has `inputs` as columns. A
    table may lack an id that is not needed. Blank lines of a table are left out.
    `column_needed` says that the user named the column, so that a stream, too, must have
    it: else its lines may be texts.
    """
    kind, names, found = rows.kind_of(path, "text"), None, None
    if kind != "parquet":
        column_needed &= files.is_stream(path)
        found = text_files.read_lines(path, once=True, cleaned=False)
        path = files.shown(path)
    if kind == "text":
        kind, found = _told(found, text_column, delimiter, column_needed)
    columns = [name for name in (text_column, text_b_column) if name]
    if is_named := bool(text_column) and kind in ("csv", "tsv", "parquet"):
        names = [*columns, *filter(None, [id_needed and id_column])]
    elif kind in ("csv", "tsv"):
        raise InputError(
            f"{path} is a table, but its columns are not known: give --text_column (with "
            "--noheader its number from 0), and --text_b_column for second texts. If each "
            "line is a text, call the file .txt.")
    elif kind == "parquet":
        titles = rows.columns_of(path)
        names = [name for name in (*inputs, "id") if name in titles]
        names = names if {*names} - {"id"} else [*inputs[:1]]
    for where, row in rows.rows(
            path, names, [id_column] if id_column and names else [], kind=kind,
            lines=found, header=header is not False, delimiter=delimiter, keep_wrong=True,
            advice="name the columns of the texts with --text_column and --text_b_column"):
        given, guid, kept = row, None, {}
        if isinstance(row, dict):
            guid = row.get(id_column, None if is_named else row.pop("id", None))
            pair = row.get(text_b_column or "text_pair")
            if is_named:
                try:
                    given = tuple(rows.text(row, where, name) for name in columns)
                except InputError as error:
                    given = error
            elif text_column in row:
                given = (row[text_column], *[pair] * (pair is not None))
            elif kind == "parquet":
                given = {name: value for name, value in row.items() if value is not None}
        if guid is not None:  # JSON has neither NaN nor dates, as Parquet has.
            is_json = isinstance(guid, (str, int)) or (
                isinstance(guid, float) and math.isfinite(guid))
            kept = {"id": guid if is_json else str(guid)}
        if isinstance(given, InputError):
            given = InputError(str(given).removeprefix(f"{where}: "))
        elif isinstance(given, tuple) and len(given) == 1:
            given, = given
        yield Input(given, kept, where, rows.number_of(where))


def _told(lines: Iterator[tuple[int, str]], column: str | None, delimiter: str | None,
          column_needed: bool) -> tuple[str, Iterator[tuple[int, str]]]:
    """Returns the kind that the first line with text tells: a JSON object, or titles of
    which one is the column, if that is not known already; and all lines."""
    begin, first = [], ""
    for number, first in lines:
        begin.append((number, first))
        if first.strip():
            break
    delimiter = delimiter or ("\t" if "\t" in first else ",")
    is_table = column is not None and (column_needed or column in [
        title.strip(' "') for title in first.split(delimiter)])
    return "jsonl" if re.match(rows.OBJECT, first) else "text" if not is_table else (
        "tsv" if delimiter == "\t" else "csv"), itertools.chain(begin, lines)


def named(given: Any, fields: Sequence[Field]) -> Mapping[str, Any]:
    """Returns an input as an object with a task's fields by name."""
    if isinstance(given, InputError):
        raise given
    names = [field.name for field in fields]
    takes = f"the model takes {' and '.join(names)}"
    words = (given,) if isinstance(given, str) else given
    if isinstance(words, (tuple, list)):
        # Several texts are all that are left.
        if fields[-1].several and len(words) >= len(names):
            words = [*words[:len(names) - 1], words[len(names) - 1:]]
        if len(words) > len(names):
            raise InputError(
                f"there are {len(words)} texts, but {takes}. In a line, a tab separates "
                "texts; if it is part of a text, replace it by a blank.")
        given = dict(zip(names, words))
    if not isinstance(given, Mapping):
        raise InputError(
            f"the input is {given!r:.40}; give a text or an object, as {takes}.")
    for name in given:
        if name not in names:
            raise InputError(f"there is no input '{name}'; {takes}.")
    for name, several, optional in fields:
        value = given.get(name)
        texts = value if several else [value, ""]
        if not (value is None and optional or isinstance(texts, (list, tuple)) and texts[1:]
                and all(isinstance(text, str) and "\0" not in text for text in texts)):
            wanted = "a list of two or more texts" if several else "a text"
            found = "missing" if value is None else f"{value!r:.40}, not {wanted}"
            raise InputError(f"'{name}' is {found}{rows.nul_note(value)}; {takes}. In a "
                             "line, a tab separates them.")
    return given
