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
from albert_tf.checkpoints.run_files import PYTHON_DATA
from albert_tf.errors import InputError


class Columns(NamedTuple):
    """The columns of a task's rows.

    Attributes:
      names: those of a tuple, in its order.
      labels: those whose numbers may have names.
      optional: those that a row may lack, also besides `names`.
      id: that of the examples' ids, which are texts; default: the number of the row.
      advice: how to name them.
    """

    names: tuple[str, ...]
    labels: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    id: str = ""
    advice: str = ""


class Rows:
    """The examples of a split and the file that they are written to.

    Attributes:
      path: the path of the file: the user's, or that of the rows.
      classes: the names of the labels, if the data name them; else ().

    With `fixed`, the rows of an earlier call must be the same.
    """

    def __init__(self, split: str, data: Any, columns: Columns, output_dir: str,
                 fixed: bool = False):
        self._fixed, self._split, self._data, self._columns = (
            fixed, split, data, columns)
        self._is_file = isinstance(data, (str, os.PathLike))
        self.path = files.expanded(data) if self._is_file else os.path.join(
            output_dir, PYTHON_DATA, f"{split}.jsonl")
        features = getattr(data, "features", None)
        feature = next((features[name] for name in columns.labels if name in features),
                       None) if isinstance(features, Mapping) else None
        # A list of labels has the names in its elements.
        named = getattr(feature, "feature", feature)
        self.classes = tuple(getattr(named, "names", None) or ())

    @contextlib.contextmanager
    def named(self) -> Iterator[None]:
        """Names the rows in errors as the caller knows them: "train, row 3"."""
        try:
            yield
        except InputError as error:
            text = str(error)
            if self._is_file or self.path not in text:
                raise
            text = re.sub(rf"{re.escape(self.path)}, line (\d+)",
                          rf"{self._split}, row \1", text)
            text = text.replace(self.path, self._split).replace("the line", "the row")
            raise type(error)(text) from error

    def write(self) -> None:
        """Writes the rows as JSON lines; a user's file stays as it is."""
        if self._is_file:
            return
        labels, number = self._columns.labels, 0
        # The workers of a cluster write the same file.
        with files.staged(self.path, end=f"{files.INCOMPLETE}-{os.urandom(4).hex()}") as (
                staged,), files.open_binary(staged, "wb") as stream:
            for number, row in enumerate(self._rows(), 1):
                values = {str(name): plain(value) for name, value in row.items()}
                values |= {name: self._named(values[name])
                           for name in map(str, labels) if name in values}
                if self._columns.id:
                    values[self._columns.id] = str(row.get(self._columns.id, number))
                try:
                    line = json.dumps(values, ensure_ascii=False).encode()
                except (TypeError, UnicodeEncodeError) as error:
                    raise InputError(f"{self._split}, row {number}: a value is no text, "
                                     f"number or list of them ({error}).") from error
                stream.write(line + b"\n")
            if not number:
                raise InputError(f"{self._split} has no examples; give some"
                                 + ", or leave it out" * (self._split == "dev") + ".")
            if self._fixed and files.exists(self.path):
                stream.close()
                if files.sha256(staged) != files.sha256(self.path):
                    raise InputError(
                        f"{self._split} has other rows than the run in --output_dir, "
                        "which would only be continued; choose a different --output_dir, "
                        "or give resume=True.")

    def _rows(self) -> Iterator[Mapping[str, Any]]:
        data, names = self._data, self._columns.names
        # A DataFrame, or a dict of columns. A Dataset yields its rows.
        if isinstance(data, Mapping) or hasattr(data, "iloc"):
            known = self._known(data.keys())
            for name in known:
                if isinstance(data[name], str) or not isinstance(data[name], Iterable):
                    raise InputError(
                        f"{self._split}: the column {name!r} is {data[name]!r:.40}, not "
                        "a list of values; a single example is a list of one dict.")
            columns = [list(data[name]) for name in known]
            if len({*map(len, columns)}) > 1:
                raise InputError(
                    f"{self._split}: the columns {', '.join(map(repr, known))} have "
                    "different lengths; give a value of each for every row.")
            yield from (dict(zip(known, row)) for row in zip(*columns))
            return
        if isinstance(data, (bytes, type)) or not isinstance(data, Iterable):
            raise InputError(f"{self._split} is a {type(data).__name__}; give a list of "
                             "tuples or dicts, a DataFrame, a Dataset or a file.")
        for number, row in enumerate(data, 1):
            if isinstance(row, Mapping):
                yield {name: row[name]
                       for name in self._known(row.keys(), f", row {number}")}
            elif isinstance(row, (tuple, list)) and len(row) == len(names):
                yield dict(zip(names, row))
            else:
                raise InputError(
                    f"{self._split}, row {number} is {row!r:.60}; each example must be a "
                    f"tuple ({', '.join(map(str, names))}), or a dict with these keys.")

    def _known(self, there: Iterable[Any], where: str = "") -> list[str]:
        """Returns the columns that are read. Raises InputError if one is missing."""
        there, columns = list(there), self._columns
        for name in columns.names:
            if name not in there and name not in columns.optional:
                raise InputError(
                    f"{self._split}{where}: there is no column '{name}'; the columns are "
                    f"{', '.join(map(repr, there[:20]))}{', ...' * (len(there) > 20)}."
                    f"{columns.advice}")
        return [name for name in dict.fromkeys((*columns.names, *columns.optional))
                if name in there]

    def _named(self, label: Any) -> Any:
        """Returns the names of a label that is a number in the data's list of names."""
        if isinstance(label, list):
            return [self._named(each) for each in label]
        if not self.classes or not isinstance(label, int) or isinstance(label, bool):
            return label
        return self.classes[label] if 0 <= label < len(self.classes) else None


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
