"""Reads texts for prediction from files or the standard input.

Each line is a text, or several with a tab between them, or a JSON object with the
inputs by name and optionally an `id`. The columns of Parquet and Arrow files have these
names.
"""

import json
import sys
from typing import Any, Iterator, Mapping, NamedTuple, Sequence

from albert_tf import row_files, text_files
from albert_tf.errors import InputError

STANDARD_INPUT = "-"
# The inputs of all tasks.
_NAMES = ("text", "text_pair", "question", "passage", "options")


class Input(NamedTuple):
    """An input for `predict`.

    Attributes:
      given: the input for `predict`, or the InputError of a line that is not valid,
        which `named` raises.
      kept: fields to copy to the answer, such as `id`.
      where: its file and line, or row, for errors.
      line: the number of this line or row, from 1.
    """

    given: Any
    kept: dict[str, Any]
    where: str
    line: int

    def with_id(self, value: Any) -> "Input":
        """Returns the input with an id, which must be JSON: no NaN, as Python reads, and
        no date, as Parquet has."""
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError):
            return self._replace(given=InputError(
                f"the id is {value!r:.40}, which is not JSON; give a text or a number."))
        return self._replace(kept={"id": value})


def read(path: str) -> Iterator[Input]:
    """Yields the inputs in a file, or in STANDARD_INPUT."""
    if row_files.is_row_file(path):
        yield from _of_rows(path)
        return
    typed = path == STANDARD_INPUT
    plain = path
    for end in text_files.COMPRESSED:
        plain = plain.removesuffix(end)
    is_json = plain.endswith((".jsonl", ".ndjson", ".json"))
    for number, line in _typed() if typed else text_files.read_lines(path):
        where = f"{'the standard input' if typed else path}, line {number}"
        if not is_json and not (typed and line.startswith("{")):
            texts = line.split("\t")
            yield Input(tuple(texts) if texts[1:] else line, {}, where, number)
        elif line.strip():
            yield _of_json(line, path, number, where)


def _of_json(line: str, path: str, number: int, where: str) -> Input:
    """Returns the input of a line of JSON."""
    try:
        value = text_files.parse_json(
            line, path, "each line must hold one JSON object", number)
        if not isinstance(value, dict):
            raise InputError("not a JSON object; give one object per line.")
    except InputError as error:
        value = InputError(str(error).removeprefix(f"{path}, line {number}: "))
    each = Input(value, {}, where, number)
    has_id = isinstance(value, dict) and "id" in value
    return each.with_id(value.pop("id")) if has_id else each


def _of_rows(path: str) -> Iterator[Input]:
    """Yields the inputs in a Parquet or Arrow file; other columns are not read."""
    columns = list(row_files.columns_of(path))
    names = [name for name in _NAMES if name in columns]
    if not names:
        raise InputError(
            f"{path}: there is no column {', '.join(_NAMES[:-1])} or {_NAMES[-1]}; the "
            f"file has {', '.join(map(repr, columns))}. Name the columns of the texts "
            "with --text_column and --text_b_column.")
    for number, row in row_files.read_rows(path, names, ["id"]):
        guid = row.pop("id", None)
        each = Input({name: value for name, value in row.items() if value is not None},
                     {}, f"{path}, row {number}", number)
        yield each if guid is None else each.with_id(guid)


def _typed() -> Iterator[tuple[int, str]]:
    """Yields the numbered lines of the standard input."""
    for number, line in enumerate(sys.stdin.buffer, 1):
        try:
            yield number, line.decode().rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise text_files.not_utf8("The standard input", number, error.start + 1,
                                      error.reason) from error


def named(given: Any, names: Sequence[str], optional: Sequence[str] = ()
          ) -> Mapping[str, Any]:
    """Returns an input as an object with a task's inputs by name, of which those in
    `optional` may be missing."""
    if isinstance(given, InputError):
        raise given
    words = (given,) if isinstance(given, str) else given
    takes = f"the model takes {' and '.join(names)}"
    if isinstance(words, (tuple, list)):
        # The options are all texts after passage and question.
        if "options" in names and len(words) >= len(names):
            words = [*words[:len(names) - 1], words[len(names) - 1:]]
        if len(words) > len(names):
            raise InputError(
                f"there are {len(words)} texts, but {takes}. In a line, a tab separates "
                "texts; if it is part of a text, replace it by a blank.")
        given = dict(zip(names, words))
    if not isinstance(given, Mapping):
        raise InputError(
            f"the input is {given!r:.40}; give a text or an object, as {takes}.")
    for name in (*given, *names):
        if name not in names:
            raise InputError(f"there is no input '{name}'; {takes}.")
        value = given.get(name)
        texts = value if name == "options" else [value, ""]
        if not (value is None and name in optional or isinstance(texts, (list, tuple))
                and texts[1:] and all(isinstance(text, str) for text in texts)):
            wanted = "a list of two or more texts" if name == "options" else "a text"
            found = "missing" if value is None else f"{value!r:.40}, not {wanted}"
            raise InputError(
                f"'{name}' is {found}; {takes}. In a line, a tab separates them.")
    return given
