"""Rows from Python, written to a file that a task's reader takes.

    [("A fine film.", "good")]  ─►  {"text": "A fine film.", "label": "good"}

They become a file, so that they are read, checked, compared with those of a run that is
resumed, and named in errors as a user's files are.
"""

import contextlib
import json
import os
import re
from typing import Any, Iterable, Iterator, Mapping, NamedTuple

from albert_tf import files
from albert_tf.errors import InputError


class Columns(NamedTuple):
    """The columns of a task's rows."""

    names: tuple[str, ...]  # those of a tuple, in its order
    labels: tuple[str, ...] = ()  # those whose numbers may have names
    optional: tuple[str, ...] = ()  # those that a row may lack, also besides `names`
    id: str = ""  # that of ids, which are texts; default: the number of the row
    advice: str = ""  # how to name them


def classes_of(data: Any, columns: Columns) -> tuple[str, ...]:
    """Returns the names of the labels, if the data name them; else ()."""
    features = getattr(data, "features", None)
    if not isinstance(features, Mapping):
        return ()
    feature = next((features[name] for name in columns.labels if name in features), None)
    # A list of labels has the names in its elements.
    return tuple(getattr(getattr(feature, "feature", feature), "names", None) or ())


@contextlib.contextmanager
def named(names: Mapping[str, str]) -> Iterator[None]:
    """Gives files and flags in errors the names of the arguments that they stand for:
    "train, row 3" in place of a path and "line 3"."""
    try:
        yield
    except InputError as error:
        text = str(error)
        for there, name in names.items():
            if there in text:
                text = re.sub(rf"{re.escape(there)}, line (\d+)", rf"{name}, row \1", text)
                text = text.replace(there, name).replace("the line", "the row")
        raise type(error)(text) from error


def write(split: str, data: Any, columns: Columns, path: str, fixed: bool = False
          ) -> None:
    """Writes the rows as JSON lines. With `fixed`, those that are there must be the
    same."""
    classes, number = classes_of(data, columns), 0
    # The workers of a cluster write the same file.
    with files.staged(path, end=f"{files.INCOMPLETE}-{os.urandom(4).hex()}") as (staged,):
        with files.open_binary(staged, "wb") as stream:
            for number, row in enumerate(_rows(split, data, columns), 1):
                where = f"{split}, row {number}"
                values = {str(name): plain(row[name])
                          for name in _known(where, row.keys(), columns)}
                values |= {name: _with_name(values[name], classes)
                           for name in map(str, columns.labels) if name in values}
                if columns.id:
                    values[columns.id] = str(row.get(columns.id, number))
                try:
                    line = json.dumps(values, ensure_ascii=False).encode()
                except (TypeError, UnicodeEncodeError) as error:
                    raise InputError(f"{where}: a value is no text, number or list of "
                                     f"them ({error}).") from error
                stream.write(line + b"\n")
        if not number:
            raise InputError(f"{split} has no examples; give some"
                             + ", or leave it out" * (split == "dev") + ".")
        if fixed and files.exists(path) and files.sha256(staged) != files.sha256(path):
            raise InputError(
                f"{split} has other rows than the run in --output_dir, which would only "
                "be continued; choose a different --output_dir, or give resume=True.")


def _rows(split: str, data: Any, columns: Columns) -> Iterator[Mapping[Any, Any]]:
    if isinstance(data, Mapping) or hasattr(data, "iloc"):  # columns, or a DataFrame
        cells = {name: data[name] for name in _known(split, data.keys(), columns)}
        for name, values in cells.items():
            if isinstance(values, str) or not isinstance(values, Iterable):
                raise InputError(
                    f"{split}: the column {name!r} is {values!r:.40}, not a list of "
                    "values; a single example is a list of one dict.")
        cells = {name: list(values) for name, values in cells.items()}
        if len({*map(len, cells.values())}) > 1:
            raise InputError(
                f"{split}: the columns {', '.join(map(repr, cells))} have different "
                "lengths; give a value of each for every row.")
        data = (dict(zip(cells, row)) for row in zip(*cells.values()))
    if isinstance(data, (bytes, type)) or not isinstance(data, Iterable):
        raise InputError(f"{split} is a {type(data).__name__}; give a list of tuples or "
                         "dicts, a DataFrame, a Dataset or a file.")
    for number, row in enumerate(data, 1):
        if isinstance(row, (tuple, list)) and len(row) == len(columns.names):
            row = dict(zip(columns.names, row))
        if not isinstance(row, Mapping):
            raise InputError(
                f"{split}, row {number} is {row!r:.60}; each example must be a tuple "
                f"({', '.join(map(str, columns.names))}), or a dict with these keys.")
        yield row


def _known(where: str, there: Iterable[Any], columns: Columns) -> list[Any]:
    """Returns the columns that are read. Raises InputError if one is missing."""
    there = list(there)
    for name in columns.names:
        if name not in there and name not in columns.optional:
            raise InputError(
                f"{where}: there is no column '{name}'; the columns are "
                f"{', '.join(map(repr, there))}.{columns.advice}")
    return [name for name in dict.fromkeys((*columns.names, *columns.optional))
            if name in there]


def _with_name(label: Any, classes: tuple[str, ...]) -> Any:
    """Returns the names of a label that is a number in the data's list of names."""
    if isinstance(label, list):
        return [_with_name(each, classes) for each in label]
    if not classes or not isinstance(label, int) or isinstance(label, bool):
        return label
    return classes[label] if 0 <= label < len(classes) else None


def plain(value: Any) -> Any:
    """Returns a value of NumPy or pandas as one of Python; what stands for a missing one,
    such as NaN, as None."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, (tuple, list, set, frozenset)):
        return [plain(each) for each in (
            sorted(value, key=str) if isinstance(value, (set, frozenset)) else value)]
    try:
        return value if value == value else None
    except TypeError:  # pandas.NA, which is neither true nor false
        return None
