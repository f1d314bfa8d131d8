"""Classification and regression with a user's own data: TSV, CSV, JSON lines, Parquet.

    task = build_task({"train": DataFile("train.csv", text_a="text", label="topic")})

Input that does not fit its description is an InputError with file and line or row. Only
blank lines are left out, and counted. Parquet stands for Arrow files, too.
"""

import dataclasses
import functools
import itertools
import json
import math
import os
import re
from types import NoneType
from typing import Any, Callable, Iterable, Iterator, Mapping, Sequence

from absl import logging

from albert_tf import files, row_files, text_files
from albert_tf.checkpoints import labels as label_names
from albert_tf.errors import InputError
from albert_tf.finetuning import tables
from albert_tf.finetuning.classification.task import (
    SPLITS, UNCLEAN, ClassificationTask, Example, parse_label)
from albert_tf.finetuning.common import ExampleSet, read_shards
from albert_tf.text import inputs as text_inputs
from albert_tf.text.inputs import Input

# The titles of columns of probabilities may begin so, as in files of predictions.
_PROBABILITY_OF = "probability of "


@dataclasses.dataclass(frozen=True)
class DataFile:
    """A file and its columns.

    Attributes:
      path: the path of the file, which may end in .gz.
      text_a: the column of the text: its name in the header or in Parquet, its number
        from 0 without a header, or the field of JSON lines.
      text_b, label: the columns of a pair's second text and of the label; a tuple if
        each label has a column, which holds 1 or 0.
      header: whether the first line names the columns (not for JSON lines).
      file_format: one of tables.FORMATS; None: given by the file extension.
      guid: the column of the examples' ids, for predictions; None: they are numbered.
      delimiter: a character that replaces the tab of TSV or the comma of CSV.
      separator: what separates the labels in a column of several; None: a column holds
        one label. A field of JSON lines or Parquet may also be a list.
      probability: the column of the labels' probabilities, a JSON object label →
        probability or a list in the order of the labels; a tuple if each label has a
        column. A row needs a label or probabilities.
    """

    path: str
    text_a: str
    text_b: str | None = None
    label: str | tuple[str, ...] | None = None
    header: bool = True
    file_format: str | None = None
    delimiter: str | None = None
    guid: str | None = None
    separator: str | None = None
    probability: str | tuple[str, ...] | None = None

    def __post_init__(self):
        self.check_apart(self.text_a, self.text_b, *self.target_columns)

    def check_apart(self, *columns: Any) -> None:
        """Raises InputError if two of the columns of text, second text, labels and
        probabilities, by their names or places, are one."""
        flags = ["--text_column", "--text_b_column",
                 *["--label_column"] * len(self.label_columns),
                 *["--probability_column"] * len(self.probability_columns)]
        names = [self.text_a, self.text_b, *self.target_columns]
        seen: dict[Any, str] = {}
        for flag, name, column in zip(flags, names, columns):
            if column is None:
                continue
            if column in seen and flag == seen[column]:
                raise InputError(f"{self.path}: {flag} names the column {name} twice; "
                                 "name each column once.")
            if column in seen:
                raise InputError(
                    f"{self.path}: {flag}={name} is the column of {seen[column]}, too; "
                    "give each a column of its own.")
            seen[column] = flag

    @property
    def label_columns(self) -> tuple[str, ...]:
        return _as_tuple(self.label)

    @property
    def probability_columns(self) -> tuple[str, ...]:
        return _as_tuple(self.probability)

    @property
    def target_columns(self) -> tuple[str, ...]:
        return (*self.label_columns, *self.probability_columns)

    @property
    def labels_by_column(self) -> tuple[str, ...]:
        """The labels that have a column of probabilities each, or the columns' numbers;
        () without."""
        return tuple(column.removeprefix(_PROBABILITY_OF)
                     for column in self.probability) if isinstance(
                         self.probability, tuple) else ()

    @property
    def several_labels(self) -> bool:
        """True if a text has any number of labels."""
        return self.separator is not None or isinstance(self.label, tuple)


def _as_tuple(columns: str | tuple[str, ...] | None) -> tuple[str, ...]:
    return columns if isinstance(columns, tuple) else (
        () if columns is None else (columns,))


def build_task(data: Mapping[str, DataFile], *, labels: Sequence[str] | None = None,
               regression: bool = False, data_dir: str = "") -> ClassificationTask:
    """Builds the task "custom" for a user's own files.

    Its metrics are accuracy, macro F1 and Matthews' correlation, and for two labels also
    the F1 of the second label. For regression, they are Pearson's and Spearman's
    correlation and the squared error. If a text has any number of labels (`separator`,
    or a column for each), they are micro F1, macro F1 and the share of texts with
    exactly the right labels.

    Args:
      data: split (one of classification.SPLITS) → its file.
      labels: the labels in the order of their class ids. None: those that the schema
        of the training file names (Parquet), in its order, or the labels in this file,
        sorted by value if all are whole numbers, else by code point.
      regression: whether labels are numbers to predict.
      data_dir: the folder of relative paths.

    Raises:
      InputError: if the labels are unknown or do not fit.
    """
    data = {split: dataclasses.replace(file, path=_joined(data_dir, file.path))
            for split, file in data.items()}
    for split, file in data.items():
        if split not in SPLITS:
            raise ValueError(f"{split!r} is none of {SPLITS}")
        if split != "test" and not file.target_columns:
            raise InputError(
                f"{file.path}: give the column of the label (--label_column); only "
                "the test set does not need labels.")
    if regression and labels:
        raise InputError("--labels are the names of classes, which --regression does "
                         "not have; leave one of the two out.")
    several = any(file.several_labels for file in data.values())
    soft = any(file.probability for file in data.values())
    if regression and soft:
        raise InputError("--probability_column is for the labels of a text, which "
                         "--regression does not have; leave one of the two out.")
    if regression and several:
        raise InputError("--regression predicts one number for each text, and "
                         "--multi_label any number of labels; leave one of the two "
                         "out.")
    source = "--labels" if labels is not None or "train" not in data else (
        data["train"].path)
    if regression:
        labels, names = (), ("pearson", "spearman", "mse")
    elif several:
        labels = _checked_labels(_in_columns(data, labels) or tuple(
            labels if labels is not None else _collected(data.get("train"))), source, 1)
        names = ("micro_f1", "macro_f1", "exact_match")
    else:
        labels = _checked_labels(_in_columns(data, labels) or tuple(
            labels if labels is not None else _collected(data.get("train"))), source)
        names = ("accuracy", "macro_f1", *["f1"] * (len(labels) == 2), "matthews")
    return ClassificationTask(
        name="custom", labels=labels, metric_names=names, main_metric=names[0],
        readers={split: functools.partial(
            _read_split, file=file, labels=labels, split=split)
            for split, file in data.items()},
        positive_label=labels[1] if names[0] == "accuracy" and len(labels) == 2
        else None, of_glue=False, column_names=_column_names(data.values()),
        multi_label=several, soft=soft, separator=next(
            (file.separator for file in data.values() if file.separator), ","))


def _joined(data_dir: str, path: str) -> str:
    """Returns a path, or each in a list with commas, in a folder."""
    if files.is_remote(path):
        return path
    joined = os.path.join(data_dir, path)
    if "," not in path or files.exists(joined):
        return joined
    return ",".join(_joined(data_dir, part.strip()) for part in path.split(","))


def _in_columns(data: Mapping[str, DataFile], labels: Sequence[str] | None
                ) -> tuple[str, ...]:
    """Returns the labels that have a column each, in the order of `labels` if given; ()
    if there are none. Without a header, columns are numbers, and `labels` their
    names."""
    columns = next(filter(None, (
        file.label if isinstance(file.label, tuple) else file.labels_by_column
        for file in data.values())), ())
    if not columns:
        return ()
    if labels is None or sorted(labels) == sorted(columns):
        return tuple(labels or columns)
    numbered = all(column.isdecimal() for column in columns)
    if numbered and len(labels) == len(columns):
        return tuple(labels)
    raise InputError(
        f"--labels={','.join(labels)}: the columns of the labels are "
        f"{', '.join(columns)}; give " + (
            "one label for each." if numbered else
            "each of them once, or leave the flag out."))


def _column_names(data: Iterable[DataFile]) -> dict[str, str]:
    """Returns the titles of the user's columns in files of predictions. Numbers, and
    names that mean something else there, are left out."""
    names: dict[str, str] = {}
    for column in ("guid", "text_a", "text_b", "label"):
        for file in data:
            name = getattr(file, column)
            if isinstance(name, str) and not name.isdecimal() and name not in {
                    "guid", "text_a", "text_b", "label", "prediction",
                    *names.values()} and not name.startswith("probability"):
                names.setdefault(column, name)
    return names


def _read_split(data_dir: str, *, file: DataFile, labels: tuple[str, ...],
                split: str) -> ExampleSet:
    del data_dir  # `build_task` has joined it to the path.
    found = read_shards(file.path, f"--{split}_file", lambda path, first: read(
        dataclasses.replace(file, path=path), labels=labels,
        label_needed=split != "test", split=split, first=first))
    if file.probability and not any(each.probabilities for each in found.examples):
        raise InputError(
            f"--probability_column={','.join(file.probability_columns)}: no row of "
            f"--{split}_file has probabilities there; correct the name, or leave the "
            "flag out.")
    return found


def _collected(file: DataFile | None) -> tuple[str, ...]:
    if file is None:
        raise InputError(
            "the labels are unknown without a training file or a model that names them; "
            "give --labels in the order of the model's outputs.")
    shards = [dataclasses.replace(file, path=path)
              for path in files.shards(file.path, "--train_file")]
    if names := next(filter(None, map(_named_classes, shards)), ()):
        return names
    found: set[str] = set()
    for example in itertools.chain.from_iterable(read(shard).examples for shard in shards):
        found.update(example.probabilities or ())
        if example.label is not None:
            found.update(example.label if file.several_labels else [str(example.label)])
    labels = sorted(found)
    if file.several_labels and labels and set(labels) <= _TRUTHS.keys():
        raise InputError(
            f"{file.path}: column '{file.label}' holds only {' and '.join(labels)}, but "
            "with --multi_label the names of labels. Leave --multi_label out, or name "
            "the columns of all labels, separated by commas.")
    for label in labels:
        if (number := re.sub(r"^(-?\d+)\.0+$", r"\1", label)) != label and number in labels:
            raise InputError(
                f"{file.path}: column '{file.label}' holds the label {number} also as "
                f"{label}; write both in the same way.")
    numbers = all(label.removeprefix("-").isdecimal() for label in labels)
    return tuple(sorted(
        labels, key=lambda label: (int(label), label) if numbers else label))


def _named_classes(file: DataFile) -> tuple[str, ...]:
    """Returns the labels that the schema of a Parquet file names; () for none."""
    if _kind(file) != "parquet" or not isinstance(file.label, str):
        return ()
    name = _with_names(file, not file.probability).label
    column = row_files.columns_of(file.path).get(name)
    return tuple(map(label_names.cleaned, column.classes)) if column else ()


def _kind(file: DataFile) -> str:
    return file.file_format or tables.format_of(file.path)


def _checked_labels(labels: tuple[str, ...], source: str, least: int = 2
                    ) -> tuple[str, ...]:
    repeated = sorted({label for label in labels if labels.count(label) > 1})
    if repeated:
        raise InputError(f"{source} has '{repeated[0]}' more than once; give each "
                         "label once.")
    if len(labels) < least:
        raise InputError(
            f"{source}: the labels are: {', '.join(labels) or 'none'}; " + (
                "a task needs at least one." if least == 1 else "classification needs at "
                "least two; to predict numbers, give --regression."))
    return labels


def read(file: DataFile, *, labels: Sequence[str] | None = None,
         label_needed: bool = True, split: str = "train", first: int = 0) -> ExampleSet:
    """Reads a file.

    Args:
      file: the file and its columns.
      labels: the allowed labels; () for numbers; None allows any text.
      label_needed: whether the label's column and all labels must be present.
      split: the prefix of the examples' guids: the first is "train-1".
      first: the number of examples in files before this one.

    Raises:
      InputError: with file and line, if the file does not fit its description.
    """
    if file.delimiter is not None and len(file.delimiter) != 1:
        raise InputError(f"--delimiter={file.delimiter!r} is not a single character.")
    blank: list[int] = []
    unclean: list[int] = []
    empty: list[tuple[int, _EmptyText]] = []

    examples: list[Example] = []
    rows, values_of = _rows(file, label_needed and not file.probability)
    for row in rows:
        if row.cells == []:
            blank.append(row.number)
            continue
        try:
            values = values_of(row)
        except _EmptyText as error:
            empty.append((row.number, error))
            continue
        if values is None:
            continue
        text_a, text_b, given, guid, cells = values
        probabilities = _probabilities(cells, file, labels, row.where)
        needed = label_needed
        if probabilities is not None and not any(_as_tuple(given)):
            given, needed = None, False
        parts = _parts(given, file)
        if parts is not None and not all(map(label_names.is_clean, parts)):
            unclean.append(row.number)
        label = (_by_column(given, file, labels, row.where, needed)
                 if isinstance(given, tuple) else
                 _label_of(parts, file, labels, row.where, needed))
        examples.append(Example(
            f"{split}-{first + len(examples) + 1}" if guid is None else guid,
            text_a, text_b, label, row.where, probabilities))
    if len(empty) == 1:
        raise empty[0][1]
    for note in tables.line_note(file.path, [number for number, _ in empty],
                                 "have an empty text"):
        raise InputError(f"{note.removesuffix('.')}; fill them in, or remove the "
                         f"{row_files.unit(file.path)}s.")
    if not examples:
        raise InputError(f"{file.path}: there is no example in this file; check the "
                         "path and the format.")
    return ExampleSet(examples, (file.path,), (
        *tables.line_note(file.path, blank, "blank and left out"),
        *tables.line_note(file.path, unclean, UNCLEAN)))


def _rows(file: DataFile, label_needed: bool = True) -> tuple[
        Iterator[tables.Row], Callable[[tables.Row], "_Values | None"]]:
    """Returns the rows of a file, and the function that returns the values of one."""
    kind = _kind(file)
    if kind != "parquet":
        return tables.read_rows(file.path, kind, file.delimiter), (
            functools.partial(_fields, file=file, label_needed=label_needed)
            if kind == "jsonl" else _Cells(file, label_needed))
    named = _with_names(file, label_needed)
    columns = [name for name in (named.text_a, named.text_b, named.guid) if name]
    return tables.read_rows(
        file.path, kind, columns=list(dict.fromkeys(columns)),
        optional=[name for name in named.target_columns if name not in columns]), (
            functools.partial(_fields, file=named, label_needed=label_needed))


def _with_names(file: DataFile, label_needed: bool = True) -> DataFile:
    """Returns a Parquet file with the names of its columns instead of their numbers. A
    label's column may be missing unless it is needed, and one of probabilities."""
    there = list(row_files.columns_of(file.path))

    def name(column: str | None, needed: bool = True) -> str | None:
        try:
            return column and there[tables.column_index(file.path, column, there)]
        except InputError:
            if needed:
                raise
            return column

    def targets(columns: Any, needed: bool) -> Any:
        return (tuple(name(column, needed) for column in columns)
                if isinstance(columns, tuple) else name(columns, needed))

    return dataclasses.replace(
        file, text_a=name(file.text_a), text_b=name(file.text_b), guid=name(file.guid),
        label=targets(file.label, label_needed),
        probability=targets(file.probability, False))


def _parts(given: Any, file: DataFile) -> list[str] | None:
    """Returns the labels in a cell or field, as they are written; None if there is no
    such field."""
    if given is None or isinstance(given, tuple):
        return None
    if isinstance(given, list):
        return given
    return given.split(file.separator) if file.separator else [given]


def _label_of(parts: Sequence[str] | None, file: DataFile, labels: Sequence[str] | None,
              where: str, needed: bool) -> str | tuple[str, ...] | float | None:
    """Returns the label, or the labels, of a row; None if it has none."""
    found = [_plain(part, where) if labels is None
             else _parsed(part, labels, where, needed)
             for part in parts or () if label_names.cleaned(part)]
    if parts is not None and file.several_labels:
        return tuple(dict.fromkeys(map(str, found)))
    if not found and needed and file.target_columns:
        raise _no_label(file, where)
    return found[0] if found else None


def _no_label(file: DataFile, where: str) -> InputError:
    columns = ", ".join(file.target_columns)
    return InputError(
        f"{where}: there is no label{' and no probability' * bool(file.probability)} in "
        f"column '{columns}'; fill it in, or remove the {row_files.unit(file.path)}.")


_TRUTHS = {"1": True, "true": True, "0": False, "false": False}


def _by_column(cells: tuple[str | None, ...], file: DataFile,
               labels: Sequence[str] | None, where: str, needed: bool
               ) -> tuple[str, ...] | None:
    """Returns the labels whose column holds 1, or None if all are missing, which only a
    file to predict may have."""
    columns = file.label_columns
    # Without a header, the labels have other names than their columns, in their order.
    names = columns if labels is None or {*labels} == {*columns} else labels
    if all(cell is None for cell in cells):
        if needed:
            raise _no_label(file, where)
        return None
    for column, cell in zip(columns, cells):
        if (cell or "").strip().lower() not in _TRUTHS:
            raise InputError(
                f"{where}: column '{column}' holds {(cell or '')[:40]!r}, which does "
                "not say whether the text has this label; write 1 or 0.")
    return tuple(name for name, cell in zip(names, cells)
                 if _TRUTHS[str(cell).strip().lower()])


def _probabilities(cells: Sequence[Any], file: DataFile, labels: Sequence[str] | None,
                   where: str) -> dict[str, float] | None:
    """Returns label → probability of a row; None if it has none. `cells` are those of
    the columns of probabilities."""
    if all(cell is None or cell == "" for cell in cells):
        return None
    if isinstance(file.probability, tuple):
        names: Sequence[str] = file.labels_by_column
        if labels and {*names} != {*labels} and all(map(str.isdecimal, names)):
            names = labels  # Without a header, the columns are in their order.
        given = dict(zip(names, cells))
    else:
        given = _parsed_json(cells[0])
    if isinstance(given, list) and labels and len(given) == len(labels):
        given = dict(zip(labels, given))
    if not isinstance(given, dict):
        raise InputError(
            f"{where}: column '{file.probability}' holds {str(cells[0])[:40]!r}, not a "
            "JSON object of label: probability" + (
                ", and the order of a list is that of --labels; give these."
                if isinstance(given, list) and labels is None else
                f", or a list of {len(labels)} numbers." if labels else "."))
    found = {}
    for name, value in given.items():
        label = _plain(name, where) if labels is None else parse_label(
            name, labels, where)
        try:
            found[label] = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError):
            found[label] = math.nan
        if not 0 <= found[label] <= 1:
            raise InputError(f"{where}: the probability of '{label}' is {value!r:.40}, "
                             "which is not a number from 0 to 1.")
    missing = [label for label in labels or () if label not in found]
    if missing:
        raise InputError(f"{where}: there is no probability of '{missing[0]}'; give one "
                         f"of each label: {', '.join(labels or ())}.")
    total = math.fsum(found.values())
    if not file.several_labels and abs(total - 1) > 1e-3:
        raise InputError(
            f"{where}: the probabilities of {', '.join(found)} add up to {total:.4g}, "
            "not to 1; correct them, or give --multi_label if a text has any number of "
            "labels.")
    return found


def _parsed_json(cell: Any) -> Any:
    try:
        return json.loads(cell) if isinstance(cell, str) else cell
    except (ValueError, RecursionError):
        return cell


def _plain(label: str, where: str) -> str:
    label = label_names.cleaned(label)
    label_names.check_lines([label], where, "remove it")
    return label


def _parsed(label: str, labels: Sequence[str], where: str, needed: bool
            ) -> str | float:
    """Parses a label; the advice for a file that may be without is to leave it out."""
    try:
        return parse_label(label, labels, where)
    except InputError as error:
        if needed:
            raise
        raise InputError(f"{str(error).removesuffix('.')}, or give --notest_labels for "
                         "a file without true labels.") from error


def inputs(path: str, text_column: str | None = None, text_b_column: str | None = None,
           id_column: str | None = None, header: bool | None = None,
           delimiter: str | None = None) -> Iterator[Input]:
    """Yields the inputs of a file for a trained model: the columns of a .csv, .tsv or
    Parquet file, else as text.inputs.read; a line of JSON may have the columns as
    fields, and Parquet without `text_column` is read by that function, too.

        for item in inputs("reviews.csv", text_column="review"):

    Blank lines of a table are left out, and counted in a warning.
    """
    plain = os.fspath(path).lower()
    for end in text_files.COMPRESSED:
        plain = plain.removesuffix(end)
    is_parquet = row_files.is_row_file(path)
    if not plain.endswith((".csv", ".tsv")) and (text_column is None or not is_parquet):
        for each in text_inputs.read(path):
            if isinstance(each.given, dict) and text_column in each.given:
                texts = [each.given[text_column],
                         each.given.get(text_b_column or "text_pair")]
                guid = each.given.get(id_column)
                each = each._replace(
                    given=texts[0] if texts[1] is None else tuple(texts))
                if guid is not None:
                    each = each.with_id(guid)
            yield each
        return
    if text_column is None:
        raise InputError(
            f"{path} is a table, but its columns are not known: give --text_column, the "
            "name of the column of the texts (with --noheader its number from 0), and "
            "--text_b_column for second texts. If each line is a text, call the file "
            ".txt.")
    file = DataFile(path, text_column, text_b_column, guid=id_column,
                    delimiter=delimiter, header=header is not False,
                    file_format="parquet" if is_parquet else plain[-3:])
    file, blank = _with_names(file) if is_parquet else file, []
    rows, values_of = _rows(file)
    for row in rows:
        if row.cells == []:
            blank.append(row.number)
            continue
        guid = None
        try:
            values = values_of(row)
            if values is None:
                continue
            text_a, text_b, _, guid, _ = values
            given = text_a if text_b is None else (text_a, text_b)
        except InputError as error:
            if not is_parquet and values_of.places is None:  # The file lacks a column.
                raise
            given = InputError(str(error).removeprefix(f"{row.where}: "))
        each = Input(given, {}, row.where, row.number)
        if is_parquet:
            guid = row.cells.get(file.guid)
        yield each if guid is None else each.with_id(guid)
    for note in tables.line_note(path, blank, "blank and left out"):
        logging.warning("%s", note)


# A row's text, second text, label, id and the cells of probabilities. The label is a
# tuple if each label has a column, and may be a list if a text has any number.
_Values = tuple[str, str | None, Any, str | None, Sequence[Any]]


@dataclasses.dataclass
class _Cells:
    """Returns the values of a row of a TSV or CSV file; None for the header.

    Attributes:
      places: the indices of the columns, once the first row is known.
      width: the number of columns.
    """

    file: DataFile
    label_needed: bool = True
    places: list[int | None] | None = None
    width: int = 0

    def __call__(self, row: tables.Row) -> _Values | None:
        file = self.file
        if self.places is None:
            self.width = len(row.cells)
            self.places = [None if name is None else _place(
                file, name, row,
                optional=name in file.target_columns and not self.label_needed)
                for name in (
                    file.text_a, file.text_b, file.guid, *file.target_columns)]
            text_a, text_b, _, *labels = self.places
            file.check_apart(text_a, text_b, *labels)
            if file.header:
                return None
        if len(row.cells) != self.width:
            raise InputError(
                f"{row.where}: the row has {len(row.cells)} columns, but the first "
                f"line has {self.width}. If a text contains the delimiter, remove it, "
                "or use CSV with the text in quotes.")
        text_a, text_b, guid, *cells = (
            None if place is None else row.cells[place] for place in self.places)
        count = len(file.label_columns)
        return _with_text(row, file, text_a, text_b, _label(cells[:count], file), guid,
                          cells[count:])


def _label(cells: Sequence[Any], file: DataFile) -> Any:
    return tuple(cells) if isinstance(file.label, tuple) else (
        cells[0] if cells else None)


class _EmptyText(InputError):
    """A row whose text is empty."""


def _with_text(row: tables.Row, file: DataFile, *values: Any) -> _Values:
    """Returns the values of a row, whose texts must not be empty."""
    for text, column in zip(values, (file.text_a, file.text_b)):
        if column is not None and not text.strip():
            raise _EmptyText(f"{row.where}: the text of column '{column}' is "
                             "empty; fill it in, or remove the "
                             f"{row_files.unit(file.path)}.")
    return values


def _place(file: DataFile, name: str, first: tables.Row, optional: bool) -> int | None:
    if file.header:
        try:
            return tables.column_index(file.path, name, first.cells)
        except InputError as error:
            if optional:
                return None
            other = tables.other_delimiter(first.cells)
            raise InputError(f"{str(error).removesuffix('.')}; " + (
                tables.delimiter_advice(other) if other else
                "if the first line is not a header, add --noheader") + ".") from error
    if not name.isdecimal():
        raise InputError(
            f"{file.path}: without a header, a column is a number from 0, not "
            f"'{name}'; if the first line names the columns, leave --noheader out.")
    if int(name) < len(first.cells):
        return int(name)
    if optional:
        return None
    other = tables.other_delimiter(first.cells)
    raise InputError(
        f"{first.where}: there is no column {name}, only 0 to {len(first.cells) - 1}"
        f"{other and '; ' + tables.delimiter_advice(other)}.")


def _fields(row: tables.Row, file: DataFile, label_needed: bool) -> _Values:
    """Returns the values of the fields of a row of JSON lines or Parquet."""
    noun = "column" if _kind(file) == "parquet" else "field"
    text_a, text_b, guid, *labels = (
        None if name is None else _field(row, name, what, needed, noun)
        for name, what, needed in (
            (file.text_a, "text", True), (file.text_b, "text", True),
            (file.guid, "label", True), *(
                (name, "label" if file.separator is None else "labels", label_needed)
                for name in file.label_columns)))
    return _with_text(row, file, text_a, text_b, _label(labels, file), guid, [
        row.cells.get(name) for name in file.probability_columns])


def _field(row: tables.Row, name: str, what: str, needed: bool, noun: str = "field"
           ) -> Any:
    """Returns the value of a field as text. A label may also be a number or boolean, or
    null, which is None; labels may be a list of them."""
    if needed and name not in row.cells:
        raise InputError(f"{row.where}: there is no field '{name}'; the fields are "
                         f"{', '.join(map(repr, row.cells)) or 'none'}.")
    value = row.cells.get(name)
    if what == "labels" and isinstance(value, list):
        return [_field(row._replace(cells={name: part}), name, "label", True, noun)
                or "" for part in value]
    if not isinstance(value, (str, int, float, NoneType)) or (
            what == "text" and not isinstance(value, str)):
        raise InputError(f"{row.where}: the {noun} '{name}' holds "
                         f"{json.dumps(value, default=repr)[:40]}, not a {what}.")
    if value is None or what != "text" and isinstance(value, str):
        return value
    if not isinstance(value, str):
        if isinstance(value, float) and not math.isfinite(value):
            raise InputError(f"{row.where}: the {noun} '{name}' holds {value}, which "
                             "is not a label; fill it in, or remove the "
                             f"{row_files.unit(row.where.rpartition(', ')[0])}.")
        return json.dumps(value)  # 1, 0.5, true
    if "\0" in value:
        raise InputError(f"{row.where}: character {value.index(chr(0)) + 1} of the "
                         f"{noun} '{name}' is NUL, which does not occur in text; "
                         "remove it.")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(
            f"{row.where}: character {error.start + 1} of the field '{name}' is half "
            "of a surrogate pair; remove it.") from error
    return value
