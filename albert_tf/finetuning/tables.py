"""Reading tables row by row: TSV, CSV, JSON lines, Parquet and Arrow. Writing those of
text."""

import csv
import io
import json
import os
import re
from typing import Iterable, Iterator, Mapping, NamedTuple, Sequence

from albert_tf import files, row_files, text_files
from albert_tf.errors import InputError
from albert_tf.finetuning.common import write_files

FORMATS = ("tsv", "csv", "jsonl", "parquet")  # parquet: Arrow, too
_SUFFIXES = {".tsv": "tsv", ".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl",
             ".json": "jsonl"}
_SPREADSHEETS = (".xlsx", ".xls", ".xlsm", ".xlsb", ".ods", ".numbers")
# A longer cell must be an unclosed quote. Python's limit, 128 KiB, is too small.
_LONGEST_CELL = 1 << 26


class Row(NamedTuple):
    """A row of a table.

    Attributes:
      where: "file, line 12", where the row begins; for Parquet "file, row 12".
      number: that line or row, from 1.
      cells: a list of texts (TSV, CSV), or field name → value (JSON lines, Parquet).
    """

    where: str
    number: int
    cells: list[str] | dict[str, object]


def format_of(path: str) -> str:
    """Returns the format of a file to read, given its name; a final .gz is ignored."""
    return "parquet" if row_files.is_row_file(path) else written_format_of(
        path, f"{', '.join(row_files.ENDS[:-1])} or {row_files.ENDS[-1]}, or in ")


def written_format_of(path: str, others: str = "") -> str:
    """Returns the format of a file to write, given its name; a final .gz is ignored.
    `others` are the ends that are possible, too, for the error."""
    name = os.fspath(path).lower().removesuffix(".gz")
    for suffix, kind in _SUFFIXES.items():
        if name.endswith(suffix):
            return kind
    raise InputError(
        f"{path}: unknown file extension; the name must end in {others}.tsv, .csv or "
        ".jsonl, each with or without .gz"
        + ("; save the spreadsheet as CSV in UTF-8." if name.endswith(_SPREADSHEETS)
           else "."))


def read_rows(path: str, file_format: str, delimiter: str | None = None,
              columns: Sequence[str] = (), optional: Sequence[str] = ()
              ) -> Iterator[Row]:
    """Yields the rows of a file, including the header; blank lines have no cells.

        for row in read_rows("train.tsv", format_of("train.tsv")):

    Quote characters are plain text in TSV, as in GLUE's files. In CSV, a cell in double
    quotes may contain delimiters, line ends and doubled quotes. Files are UTF-8, with
    or without a byte-order mark, with any kind of line end; *.gz is decompressed.
    `delimiter` replaces the tab or comma. Of Parquet only `columns` are read, and those
    in `optional` that there are.
    """
    if file_format not in FORMATS:
        raise ValueError(f"{file_format!r} is none of {FORMATS}")
    if file_format == "parquet":
        for number, cells in row_files.read_rows(path, columns, optional):
            yield Row(f"{path}, row {number}", number, cells)
        return
    lines = text_lines(path)
    if file_format == "csv":
        yield from _csv(path, lines, delimiter or ",")
        return
    for number, line in lines:
        where = f"{path}, line {number}"
        if not line.strip(" "):
            yield Row(where, number, [])
        elif file_format == "jsonl":
            yield Row(where, number, _json_object(path, number, line))
        else:
            yield Row(where, number, line.split(delimiter or "\t"))


def text_lines(path: str) -> Iterator[tuple[int, str]]:
    """Yields (line number, line). If the first line contains carriage returns, these
    alone separate lines, as on old Macs."""
    ends = None
    for number, line in text_files.read_lines(path):
        if "\0" in line:
            if text_files.is_binary(line):
                raise text_files.binary(path, number)
            raise InputError(
                f"{path}, line {number}: character {line.index(chr(0)) + 1} is NUL, "
                "which does not occur in text. The file may not be a text file, or be "
                "in UTF-16; convert it to UTF-8, for example with iconv.")
        if ends is None:
            ends, before = "\r" in line, 0
        if not ends:
            yield number, line
            continue
        parts = line.split("\r")
        yield from enumerate(parts, before + 1)
        before += len(parts)


def _csv(path: str, lines: Iterable[tuple[int, str]], delimiter: str
         ) -> Iterator[Row]:
    csv.field_size_limit(_LONGEST_CELL)
    last = ""

    def texts() -> Iterator[str]:
        nonlocal last
        for _, line in lines:
            last = line
            yield line + "\n"

    reader = csv.reader(texts(), delimiter=delimiter, strict=True)
    while True:
        number = reader.line_num + 1
        where = f"{path}, line {number}"
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            other = re.search(r'"([;\t|,])"', last)
            raise InputError(f"{where}: not valid CSV ({error}); " + (
                delimiter_advice(other[1]) if other and other[1] != delimiter else
                "close each quote that opens a cell, and double each one inside a cell"
                ) + ".") from error
        blank = len(cells) < 2 and not "".join(cells).strip(" ")
        yield Row(where, number, [] if blank else cells)


def delimiter_advice(delimiter: str) -> str:
    """Returns advice on a file whose cells seem to have a different delimiter."""
    name = {"\t": "$'\\t'"}.get(delimiter, f"'{delimiter}'")
    return f"its cells seem to be separated by {delimiter!r}: add --delimiter={name}"


def other_delimiter(line: list[str]) -> str:
    """Returns the delimiter that a line of one cell seems to have, "" for none."""
    counts = {mark: line[0].count(mark) for mark in ";\t|,"} if len(line) == 1 else {}
    return max(counts, key=counts.get) if any(counts.values()) else ""


def _json_object(path: str, number: int, line: str) -> dict[str, object]:
    value = text_files.parse_json(line, path, (
        "the file looks like one array over many lines, but "
        if line.lstrip().startswith("[") else "")
        + "each line must be one JSON object", number)
    if not isinstance(value, dict):
        raise InputError(f"{path}, line {number}: the line is a JSON "
                         f"{type(value).__name__}, but each line must be one JSON "
                         "object.")
    return value


def write_predictions(output_dir: str, contents: Mapping[str, str],
                      rows: Sequence[Sequence[str | int]], prediction_file: str = ""
                      ) -> list[str]:
    """Writes files of a folder, and a readable table of the predictions.

    Args:
      output_dir: the folder.
      contents: file name → content.
      rows: the table, whose first row names the columns.
      prediction_file: the table's path, .tsv, .csv or .jsonl; .csv and .jsonl keep the
        texts unchanged. Default: predictions.tsv in the folder.

    Returns:
      The paths of the files.
    """
    if not prediction_file:
        return write_files(output_dir, {**contents, "predictions.tsv": written(
            rows, "tsv").decode()})
    files.write(prediction_file, written(rows, written_format_of(prediction_file)))
    return [*write_files(output_dir, contents), prediction_file]


def written(rows: Sequence[Sequence[str | int]], file_format: str) -> bytes:
    """Returns a file's content. The first row names the columns; in TSV, white space
    within a cell is written as one blank."""
    stream = io.StringIO()
    if file_format == "csv":
        csv.writer(stream, lineterminator="\n").writerows(rows)
    else:
        for row in rows[file_format == "jsonl":]:
            stream.write((json.dumps({
                name: float(cell) if name.startswith("probability") else cell
                for name, cell in zip(rows[0], row)}, ensure_ascii=False)
                          if file_format == "jsonl" else
                          "\t".join(" ".join(str(cell).split()) for cell in row)) + "\n")
    return stream.getvalue().encode()


def line_note(path: str, numbers: list[int], what: str) -> tuple[str, ...]:
    """Returns one sentence on the lines that are `what`, or () if there are none."""
    if not numbers:
        return ()
    listed = ", ".join(map(str, numbers[:10])) + (", ..." * (len(numbers) > 10))
    line = row_files.unit(path)
    return (f"{path}: {len(numbers)} {line}(s) {what} ({line} {listed}).",)


def column_index(path: str, name: str, header: list[str]) -> int:
    """Returns the index of the column `name`, which is its title in the header or, if
    there is no such title, its number from 0. `path` is for the error message."""
    names = [title.strip() for title in header]
    if names.count(name) > 1:
        raise InputError(
            f"{path}: {names.count(name)} columns are named '{name}'; rename all but "
            "one, or give the column's number from 0.")
    if name in names:
        return names.index(name)
    if name.isdecimal() and int(name) < len(names):
        return int(name)
    raise InputError(
        f"{path}: there is no column '{name}'; the "
        f"{'file' if row_files.is_row_file(path) else 'header'} has "
        # Without a header, these may be whole texts, which are too long to show.
        + ", ".join(repr(each if len(each) <= 40 else f"{each[:40]}...")
                    for each in names) + ".")
