"""A user's own data: TSV, CSV or JSON lines, to classify or to give a number.

    task = build_task({"train": DataFile("train.csv", text_a="text", label="topic")})

Input that cannot be read as it was asked for is refused with file and line; only blank
lines are left out, and counted.
"""

import dataclasses
import functools
import json
import math
import os
from typing import Iterable, Iterator, Mapping, Sequence

from albert_tf import files
from albert_tf.errors import InputError
from albert_tf.finetuning import tables
from albert_tf.finetuning.classification.task import (
    SPLITS, ClassificationTask, Example, parse_label)
from albert_tf.finetuning.common import ExampleSet


@dataclasses.dataclass(frozen=True)
class DataFile:
    """A file and its columns.

    Attributes:
      path: may end in .gz.
      text_a: the column of the text: its name in the header, its number from 0 where
        there is no header; for JSON lines the field.
      text_b, label: of a pair's second text, and of the label.
      header: whether the first line names the columns (not for JSON lines).
      file_format: one of tables.FORMATS; None goes by the name.
      guid: the column of the example's own name, for files of predictions; None numbers
        the examples.
      delimiter: one character, other than the tab of TSV or the comma of CSV.
    """

    path: str
    text_a: str
    text_b: str | None = None
    label: str | None = None
    header: bool = True
    file_format: str | None = None
    delimiter: str | None = None
    guid: str | None = None


def build_task(data: Mapping[str, DataFile], *, labels: Sequence[str] | None = None,
               regression: bool = False, data_dir: str = "") -> ClassificationTask:
    """A task of a user's own files, "custom".

    Metrics are accuracy and macro F1, for two labels also the F1 of the second and
    Matthews' correlation; Pearson, Spearman and squared error for regression.

    Args:
      data: split (of classification.SPLITS) → its file.
      labels: in the order of their class ids; None collects those of the training file,
        sorted: by value if all are whole numbers, otherwise by code point.
      regression: whether labels are numbers to predict.
      data_dir: the folder that relative paths start from.
    """
    data = {split: file if files.is_remote(file.path) else dataclasses.replace(
        file, path=os.path.join(data_dir, file.path)) for split, file in data.items()}
    for split, file in data.items():
        if split not in SPLITS:
            raise ValueError(f"{split!r} is none of {SPLITS}")
        if split != "test" and file.label is None:
            raise InputError(
                f"{file.path}: name the column of the label (--label_column); only "
                "a set that is predicted can do without.")
    if regression and labels:
        raise InputError("--labels are for classes: leave them out with regression.")
    if regression:
        labels, names = (), ("pearson", "spearman", "mse")
    else:
        labels = _checked_labels(tuple(
            labels if labels is not None else _collected(data.get("train"))))
        names = ("accuracy", "macro_f1") + ("f1", "matthews") * (len(labels) == 2)
    return ClassificationTask(
        name="custom", labels=labels, metric_names=names, main_metric=names[0],
        readers={split: functools.partial(
            _read_split, file=file, labels=labels, split=split)
            for split, file in data.items()},
        positive_label=labels[1] if len(labels) == 2 else None, of_glue=False,
        guid_name=_guid_name(data.values()))


def _guid_name(data: Iterable[DataFile]) -> str:
    """What heads the examples' names beside the columns of predictions."""
    names = {file.guid for file in data} - {
        None, "text_a", "text_b", "prediction", "probability", "label"}
    return next((name for name in names if not name.isdecimal()), "guid")


def _read_split(data_dir: str, *, file: DataFile, labels: tuple[str, ...],
                split: str) -> ExampleSet:
    del data_dir  # The paths are whole.
    return read(file, labels=labels, label_needed=split != "test", split=split)


def _collected(file: DataFile | None) -> tuple[str, ...]:
    if file is None:
        raise InputError(
            "the labels are unknown without a training file: give --labels, in the "
            "order in which the model was trained.")
    labels = {str(example.label) for example in read(file).examples}
    numbers = all(label.removeprefix("-").isdecimal() for label in labels)
    return tuple(sorted(
        labels, key=lambda label: (int(label), label) if numbers else label))


def _checked_labels(labels: tuple[str, ...]) -> tuple[str, ...]:
    repeated = sorted({label for label in labels if labels.count(label) > 1})
    if repeated:
        raise InputError(f"--labels has '{repeated[0]}' more than once.")
    if len(labels) < 2:
        raise InputError(
            f"there are {len(labels)} labels ({', '.join(labels) or 'none'}), but "
            "classes need two at least; for numbers to predict give --regression.")
    return labels


def read(file: DataFile, *, labels: Sequence[str] | None = None,
         label_needed: bool = True, split: str = "train") -> ExampleSet:
    """Reads a file.

    Args:
      labels: those allowed; () for numbers, None takes any text.
      label_needed: False: the label's column, or a label, may be missing.
      split: begins the examples' guids: "train-1" is the first.
    """
    kind = file.file_format or tables.format_of(file.path)
    if file.delimiter is not None and len(file.delimiter) != 1:
        raise InputError(f"--delimiter={file.delimiter!r} is not a single character.")
    blank: list[int] = []

    def rows() -> Iterator[tables.Row]:
        for row in tables.read_rows(file.path, kind, file.delimiter):
            if row.cells == []:
                blank.append(row.number)
            else:
                yield row

    examples: list[Example] = []
    for row, text_a, text_b, label, guid in (
            _fields if kind == "jsonl" else _cells)(rows(), file, label_needed):
        for text, column in ((text_a, file.text_a), (text_b, file.text_b)):
            if column is not None and not text.strip():
                raise InputError(f"{row.where}: the text of column '{column}' is "
                                 "empty; leave the line out or fill it in.")
        if label is None or not label.strip():
            if label_needed and file.label is not None:
                raise InputError(
                    f"{row.where}: there is no label in column '{file.label}'.")
            label = None
        else:
            label = (label.strip() if labels is None
                     else parse_label(label, labels, row.where))
        examples.append(Example(
            f"{split}-{len(examples) + 1}" if guid is None else guid, text_a, text_b,
            label, row.where))
    if not examples:
        raise InputError(f"{file.path}: there is no example in this file.")
    return ExampleSet(examples, (file.path,), tables.line_note(
        file.path, blank, "blank and left out"))


# A row with its text, second text, label and name.
_Values = tuple[tables.Row, str, str | None, str | None, str | None]


def _cells(rows: Iterable[tables.Row], file: DataFile, label_needed: bool
           ) -> Iterator[_Values]:
    """What stands in the columns of a TSV or CSV file."""
    places, width = None, 0
    for row in rows:
        if places is None:
            width = len(row.cells)
            places = [None if name is None else _place(
                file, name, row, optional=name == file.label and not label_needed)
                for name in (file.text_a, file.text_b, file.label, file.guid)]
            if file.header:
                continue
        if len(row.cells) != width:
            raise InputError(
                f"{row.where}: has {len(row.cells)} columns where the first line has "
                f"{width}; a delimiter inside a text must go, or the file be CSV with "
                "that text in quotes.")
        yield row, *(None if place is None else row.cells[place] for place in places)


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
                "where the first line is no header, add --noheader") + ".") from error
    if not name.isdecimal():
        raise InputError(
            f"{file.path}: without a header a column is a number from 0, not '{name}'; "
            "if the first line names the columns, say so.")
    if int(name) < len(first.cells):
        return int(name)
    if optional:
        return None
    other = tables.other_delimiter(first.cells)
    raise InputError(
        f"{first.where}: there is no column {name}, only 0 to {len(first.cells) - 1}"
        f"{other and '; ' + tables.delimiter_advice(other)}.")


def _fields(rows: Iterable[tables.Row], file: DataFile, label_needed: bool
            ) -> Iterator[_Values]:
    """What stands in the fields of a JSON lines file."""
    for row in rows:
        yield row, *(None if name is None else _field(row, name, what, needed)
                     for name, what, needed in (
                         (file.text_a, "text", True), (file.text_b, "text", True),
                         (file.label, "label", label_needed),
                         (file.guid, "label", True)))


def _field(row: tables.Row, name: str, what: str, needed: bool) -> str | None:
    """A field that holds a text, or a label: also a number or truth value, or none."""
    if needed and name not in row.cells:
        raise InputError(f"{row.where}: there is no field '{name}', only "
                         f"{', '.join(map(repr, row.cells)) or 'none'}.")
    value = row.cells.get(name)
    if isinstance(value, (list, dict)) or what == "text" and not isinstance(value, str):
        raise InputError(f"{row.where}: the field '{name}' holds "
                         f"{json.dumps(value)[:40]}, not a {what}.")
    if value is None or what == "label" and isinstance(value, str):
        return value
    if not isinstance(value, str):
        if isinstance(value, float) and not math.isfinite(value):
            raise InputError(f"{row.where}: the field '{name}' holds {value}, which is "
                             "no label; fill it in, or leave the line out.")
        return json.dumps(value)  # 1, 0.5, true
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(
            f"{row.where}: character {error.start + 1} of the field '{name}' is half "
            "a surrogate pair, not a character.") from error
    return value
