"""Classification and regression with a user's own data: TSV, CSV, JSON lines, Parquet.

    task = build_task({"train": DataFile("train.csv", text_a="text", label="topic")})

Only blank lines are left out, and counted. Parquet stands for Arrow files, too.
"""

import contextlib
import dataclasses
import functools
import itertools
import json
import math
import os
import re
from typing import Iterable, Mapping, Sequence

from albert_tf import files, rows
from albert_tf.checkpoints import labels as label_names
from albert_tf.errors import InputError
from albert_tf.finetuning.classification import label_cells
from albert_tf.finetuning.classification.label_cells import parse_label
from albert_tf.finetuning.classification.task import (
    SPLITS, UNCLEAN, ClassificationTask, Example, Numbers, SeveralLabels)
from albert_tf.finetuning.common import ExampleSet, line_note, read_shards
from albert_tf.rows import Row

# The titles of columns of probabilities may begin so, as in files of predictions.
_PROBABILITY_OF = "probability of "


@dataclasses.dataclass(frozen=True)
class DataFile:
    """A file and its columns, by name or number (rows.rows)."""

    path: str
    text_a: str
    text_b: str | None = None  # Of a pair's second text.
    label: str | tuple[str, ...] | None = None  # A tuple: each label has one of 1 and 0.
    header: bool = True
    delimiter: str | None = None
    guid: str | None = None  # Of the ids of examples, which are numbered without it,
    guid_needed: bool = True  # unless it is needed.
    separator: str | None = None  # Of labels in a cell; None: a cell holds one label.
    # Of JSON objects label → probability, or lists in the order of the labels; a tuple:
    # each label has one. A row needs a label or probabilities.
    probability: str | tuple[str, ...] | None = None

    @property
    def texts(self) -> tuple[str, ...]:
        return self.text_a, *_as_tuple(self.text_b)

    @property
    def targets(self) -> tuple[str, ...]:
        """The columns of labels and probabilities."""
        return *_as_tuple(self.label), *_as_tuple(self.probability)

    @property
    def several_labels(self) -> bool:
        """True if a text has any number of labels."""
        return self.separator is not None or isinstance(self.label, tuple)


def _as_tuple(columns: str | tuple[str, ...] | None) -> tuple[str, ...]:
    return columns if isinstance(columns, tuple) else (columns,) if columns else ()


def build_task(data: Mapping[str, DataFile], *, labels: Sequence[str] | None = None,
               regression: bool = False, data_dir: str = "") -> ClassificationTask:
    """Builds the task "custom" for a user's own files.

    Args:
      data: split (one of classification.SPLITS) → its file.
      labels: the labels in the order of their class ids. None: those that the schema
        of the training file names (Parquet), in its order, or the labels in this file,
        sorted by value if all are whole numbers, else by code point.
      regression: whether labels are numbers to predict.
      data_dir: the folder of relative paths.
    """
    data = {split: dataclasses.replace(data[split], path=_joined(
        data_dir, data[split].path)) for split in SPLITS if split in data}
    for split, file in data.items():
        if split != "test" and not file.targets:
            raise InputError(f"{file.path}: give the column of the label "
                             "(--label_column); only the test set needs none.")
    ordered = labels is not None
    several = any(file.several_labels for file in data.values())
    soft = any(file.probability for file in data.values())
    if regression:
        if labels or several or soft:
            raise InputError("--regression predicts numbers; leave it out, or --labels, "
                             "--multi_label and --probability_column.")
        kind, labels, names = Numbers, (), ("pearson", "spearman", "mse")
    else:
        columns = next((column for file in data.values() for column in (
            file.label, file.probability) if isinstance(column, tuple)), ())
        named = _named(columns, labels)
        if ordered and named and sorted(named) != sorted(labels):
            raise InputError(
                f"--labels={','.join(labels)}: the columns of the labels are "
                f"{', '.join(columns)}; give one label for each, or leave the flag out.")
        labels = tuple(labels if ordered else named or _collected(data.get("train")))
        if len({*labels}) < max(len(labels), 2 - several):
            source = "--labels" if ordered or "train" not in data else data["train"].path
            raise InputError(
                f"{source}: the labels are: {', '.join(labels) or 'none'}; give at least "
                "two, with --multi_label one, and each once, or --regression.")
        kind = SeveralLabels if several else ClassificationTask
        names = ("micro_f1", "macro_f1", "exact_match") if several else (
            "accuracy", "macro_f1", *["f1"] * (len(labels) == 2), "matthews")
    return kind(
        name="custom", labels=labels, metric_names=names, main_metric=names[0],
        readers={split: functools.partial(
            _read_split, file=file, labels=labels, split=split, ordered=ordered)
            for split, file in data.items()},
        positive_label=labels[1] if "f1" in names else None,
        column_names=_column_names(data.values()), soft=soft,
        separator=next((file.separator for file in data.values() if file.separator), ","))


def _joined(data_dir: str, path: str) -> str:
    """Returns a path, or each in a list with commas, in a folder."""
    joined = path if files.is_remote(path) else os.path.join(data_dir, path)
    if "," not in path or joined == path or files.exists(joined):
        return joined
    return ",".join(_joined(data_dir, part.strip()) for part in path.split(","))


def _named(columns: Sequence[str], labels: Sequence[str] | None) -> Sequence[str]:
    """Returns the labels that have these columns. Without a header, columns are numbers,
    and `labels` their names in their order."""
    if labels and len(labels) == len(columns) and {*labels} != {*columns} and all(
            map(str.isdecimal, columns)):
        return labels
    return [column.removeprefix(_PROBABILITY_OF) for column in columns]


def _column_names(data: Iterable[DataFile]) -> dict[str, str]:
    """Returns the titles of the user's columns in files of predictions. Numbers, and
    names that mean something else there, are left out."""
    ours = ("guid", "text_a", "text_b", "label")
    names: dict[str, str] = {}
    for column, file in itertools.product(ours, data):
        name = getattr(file, column)
        if isinstance(name, str) and not (name.isdecimal() or name in (
                *ours, "prediction", *names.values()) or name.startswith("probability")):
            names.setdefault(column, name)
    return names


def _collected(file: DataFile | None) -> Sequence[str]:
    """Returns the labels in a training file."""
    if file is None:
        raise InputError("the labels are not known; give --labels in the order of the "
                         "model's outputs.")
    shards = files.expand_patterns(file.path, "--train_file")
    for path in filter(rows.is_row_file, shards):
        # The schema may name the labels.
        classes = rows.columns_of(path)
        classes = {**dict(zip(map(str, range(len(classes))), classes.values())), **classes}
        if names := [label_names.cleaned(name) for column in _as_tuple(file.label)
                     for name in classes.get(column, ())]:
            return names
    labels: set[str] = set()
    for path in shards:
        for example in read(dataclasses.replace(file, path=path)).examples:
            given = example.label or ()
            labels.update((given,) if isinstance(given, str) else given)
            labels.update(example.probabilities or ())
    if file.several_labels and labels and None not in map(label_cells.truth, labels):
        raise InputError(
            f"{file.path}: column '{file.label}' holds only "
            f"{' and '.join(sorted(labels))}: leave --multi_label out, name the columns of "
            "all labels, or give --labels in the order of zeros and ones in one column.")
    for label in labels:
        if (number := re.sub(r"\.0+$", "", label)) in labels - {label}:
            raise InputError(f"{file.path}: column '{file.label}' holds the label {number} "
                             f"also as {label}; write both in the same way.")
    numbers = all(label.removeprefix("-").isdecimal() for label in labels)
    return sorted(labels, key=lambda label: (int(label), label) if numbers else label)


def _read_split(data_dir: str, *, file: DataFile, labels: tuple[str, ...],
                split: str, ordered: bool) -> ExampleSet:
    # `build_task` has joined data_dir to the path.
    data = read_shards(file.path, f"--{split}_file", lambda path, first: read(
        dataclasses.replace(file, path=path), labels=labels, split=split, first=first,
        ordered=ordered))
    if file.probability and not any(each.probabilities for each in data.examples):
        raise InputError(f"--probability_column={','.join(_as_tuple(file.probability))}: "
                         f"no row of --{split}_file has probabilities; correct the name.")
    return data


def read(file: DataFile, *, labels: Sequence[str] | None = None, split: str = "train",
         first: int = 0, ordered: bool = True) -> ExampleSet:
    """Reads a file; "test" needs no labels. `labels` are those allowed, () for numbers;
    None allows any text; `ordered` says whether zeros and ones may be in their order. Ids
    begin with `split` and count from `first` + 1, as in "train-1"."""
    unclean: list[int] = []
    examples: list[Example] = []
    for name in (named := [*file.texts, *file.targets]):
        if named.count(name) > 1:
            raise InputError(f"{file.path}: '{name}' is named twice; each text, label "
                             "and probability needs a column of its own.")
    label_needed = split != "test"
    needed = file.targets if label_needed and not file.probability else ()
    guids = _as_tuple(file.guid)
    for where, row in rows.rows(
            file.path, [*file.texts, *(guids if file.guid_needed else ()), *needed],
            (*file.targets, *guids), delimiter=file.delimiter, header=file.header,
            advice="if the first line is not a header, add --noheader" if file.header
            else "without a header, columns are numbers from 0"):
        texts = [rows.text(row, where, name) for name in file.texts]
        probabilities, label = _probabilities(row, where, file, labels), None
        if probabilities is None or any(
                row.get(name) not in (None, "", []) for name in _as_tuple(file.label)):
            label = _label(row, where, file, labels, ordered, unclean)
        if label is None and label_needed and probabilities is None and file.targets:
            raise InputError(
                f"{where}: there is no label{' and no probability' * bool(file.probability)}"
                f" in column '{', '.join(file.targets)}'; fill it in, or remove the row.")
        guid = file.guid and label_cells.as_text(row.get(file.guid), where, file.guid)
        examples.append(Example(
            f"{split}-{first + len(examples) + 1}" if guid is None else guid,
            *texts, *[None] * (2 - len(texts)), label, where, probabilities))
    return ExampleSet(examples, (file.path,), line_note(file.path, unclean, UNCLEAN))


def _label(row: Row, where: str, file: DataFile, labels: Sequence[str] | None,
           ordered: bool, unclean: list[int]) -> str | tuple[str, ...] | float | None:
    """Returns the label, or the labels, of a row; None if it has none."""
    columns = file.label
    if columns is None:
        return None
    if isinstance(columns, tuple):
        given = {column: label_cells.truth(row.get(column)) for column in columns}
        if all(row.get(column) is None for column in columns):
            return None
        for column in (column for column in columns if given[column] is None):
            raise InputError(
                f"{where}: column '{column}' holds {row.get(column) or ''!r:.40}, which "
                "does not say whether the text has this label; write 1 or 0.")
        return tuple(itertools.compress(_named(columns, labels), given.values()))
    parts = (label_cells.one(row.get(columns), where, columns) if file.separator is None
             else label_cells.several(
                 row.get(columns), where, columns, file.separator, labels, ordered))
    if parts is None:
        return None
    if not all(map(label_names.is_clean, parts)):
        unclean.append(rows.number_of(where))
    parsed = [parse_label(part, labels, where) for part in parts
              if label_names.cleaned(part)]
    if file.several_labels:
        return tuple(dict.fromkeys(map(str, parsed)))
    return parsed[0] if parsed else None


def _probabilities(row: Row, where: str, file: DataFile, labels: Sequence[str] | None
                   ) -> dict[str, float] | None:
    """Returns label → probability of a row; None if it has none."""
    columns = _as_tuple(file.probability)
    cells = [row.get(name) for name in columns]
    if all(cell is None or cell == "" for cell in cells):
        return None
    given = cells[0]
    if isinstance(file.probability, tuple):
        given = dict(zip(_named(columns, labels), cells))
    elif isinstance(given, str):
        with contextlib.suppress(ValueError, RecursionError):
            given = json.loads(given)
    if isinstance(given, list) and labels and len(given) == len(labels):
        given = dict(zip(labels, given))
    result = {str(parse_label(name, None, where)): label_cells.number(value)
              for name, value in given.items()} if isinstance(given, dict) else {}
    if not result or labels and {*result} != {*labels} or not all(
            0 <= value <= 1 for value in result.values()):
        raise InputError(
            f"{where}: '{', '.join(columns)}' holds {str(given)[:60]!r}; it must be a "
            "JSON object label: probability, or a list in the order of --labels, with a "
            f"number from 0 to 1 for each label{': ' * bool(labels)}"
            f"{', '.join(labels or ())}.")
    total = math.fsum(result.values())
    if not file.several_labels and abs(total - 1) > 1e-3:
        raise InputError(
            f"{where}: the probabilities of {', '.join(result)} add up to {total:.4g}, "
            "not to 1; correct them, or give --multi_label.")
    return result
