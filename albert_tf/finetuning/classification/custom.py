"""Classification and regression with a user's own data: TSV, CSV, JSON lines, Parquet.

    task = build_task(OwnData("train.csv", text_column="text", label_column="topic"))

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
from typing import Any, Optional, Sequence

from albert_tf import files, rows
from albert_tf.checkpoints import labels as label_names
from albert_tf.checkpoints.checkpoint import LABEL_THRESHOLD
from albert_tf.errors import InputError
from albert_tf.finetuning.classification import label_cells
from albert_tf.finetuning.classification.label_cells import parse_label
from albert_tf.finetuning.classification.task import (
    ClassificationTask, Example, Numbers, SeveralLabels)
from albert_tf.finetuning.common import ExampleSet, read_shards
from albert_tf.options import option
from albert_tf.rows import Row

# The titles of columns of probabilities may begin so, as in files of predictions.
_PROBABILITY_OF = "probability of "


def _file(use: str, help: str, **needs: str) -> Any:
    return option(None, f"Custom task: file to {use}{help}", **needs)


@dataclasses.dataclass(frozen=True)
class OwnData:
    """The options of the user's own data: files, and columns by name or number
    (rows.rows)."""

    # The labels are those of --train_file, even without training.
    train_file: Optional[str] = _file(
        "train on", ": TSV, CSV, JSON lines, Parquet or Arrow; text may be .gz. Several "
        "paths or globs, separated by commas, are one set.")
    dev_file: Optional[str] = _file(
        "evaluate on", ", as for --train_file.", needs="do_eval")
    test_file: Optional[str] = _file(
        "predict", ", as for --train_file.", needs="do_predict")
    text_column: str = option(
        "0", "Custom task: column of the text: its name or, in Parquet and with "
        "--noheader, its number from 0.", kept=True)
    text_b_column: Optional[str] = option(
        None, "Custom task: column of the second text.", kept=True)
    id_column: Optional[str] = option(
        None, "Custom task: column of the examples' ids, for the predictions.", kept=True)
    label_column: Optional[str] = option(
        None, "Custom task: column of the label.", kept=True)
    probability_column: Optional[str] = option(
        None, "Custom task: column of --train_file with the labels' probabilities, which "
        "are learned in place of the label: a JSON object of label: probability, or a "
        "list in the order of --labels; or, separated by commas, a column for each label, "
        "titled with the label or 'probability of' and the label.",
        only_with="train_file")
    temperature: float = option(
        1.0, "With --probability_column: the probabilities, as scores, and the model's "
        "scores are divided by it in the loss.", least=0.01, most=100,
        only_with="probability_column")
    test_labels: bool = option(
        True, "Custom task: read the labels of --test_file, and repeat them in the "
        "predictions.", needs="do_predict")
    header: bool = option(
        True, "Custom task: the first line names the columns.", kept=True)
    regression: bool = option(
        False, "Custom task: labels are numbers to predict.", kept=True)
    multi_label: bool = option(
        False, "Custom task: a text has any number of the labels. --label_column names "
        "one column, of labels that --label_separator separates, lists, or as many zeros "
        "and ones as --labels; or, separated by commas, a column of 1 and 0 for each.",
        kept=True)
    label_separator: str = option(
        ",", "With --multi_label: what separates the labels in a column.", kept=True,
        only_with="multi_label")
    label_threshold: float = option(
        LABEL_THRESHOLD, "With --multi_label: the probability from which on a label is "
        "given.", most=1, kept=True, only_with="multi_label")
    delimiter: Optional[str] = option(
        None, "Custom task: column separator; default: tab in TSV files, comma in CSV "
        "files.", kept=True)
    # Whether files without the column of ids are refused; else examples are numbered.
    ids_needed: bool = True

    @property
    def texts(self) -> Sequence[str]:
        return [self.text_column, *_columns(self.text_b_column)]

    def label_columns(self, split: str) -> Sequence[str]:
        """Returns the column of the label, or the columns of 1 and 0 for each label."""
        columns = self.label_column if split != "test" or self.test_labels else None
        return columns.split(",") if columns and self.multi_label else _columns(columns)

    def probability_columns(self, split: str) -> Sequence[str]:
        """Returns the column of JSON objects label → probability, or of lists in the
        order of the labels, or those of one label each. A row needs a label or these."""
        columns = self.probability_column if split == "train" else None
        return columns.split(",") if columns else []

    def targets(self, split: str) -> Sequence[str]:
        return [*self.label_columns(split), *self.probability_columns(split)]


def _columns(name: str | None) -> list[str]:
    return [name] if name else []


def build_task(data: OwnData, labels: Sequence[str] | None = None) -> ClassificationTask:
    """Builds the task "custom" for a user's own files, for whose paths `read` is called.

    `labels` are in the order of their class ids. None: those that the schema of the
    training file names (Parquet), in its order, or the labels in this file, sorted by
    value if all are whole numbers, else by code point.
    """
    for split, path in (("train", data.train_file), ("dev", data.dev_file)):
        if path and not data.targets(split):
            raise InputError(f"{path}: give the column of the label (--label_column); "
                             "only the test set needs none.")
    ordered, several = labels is not None, data.multi_label
    soft = bool(data.probability_column)
    if data.regression:
        if labels or several or soft:
            raise InputError("--regression predicts numbers; leave it out, or --labels, "
                             "--multi_label and --probability_column.")
        kind, labels, names = Numbers, (), ("pearson", "spearman", "mse")
    else:
        columns = next((each for each in (
            data.label_columns("train"), data.probability_columns("train"))
            if len(each) > 1), ())
        named = _named(columns, labels)
        if ordered and named and sorted(named) != sorted(labels):
            raise InputError(
                f"--labels={','.join(labels)}: the columns of the labels are "
                f"{', '.join(columns)}; give one label for each, or leave the flag out.")
        labels = tuple(labels if ordered else named or _collected(data))
        if len({*labels}) < max(len(labels), 2 - several):
            raise InputError(
                f"{not ordered and data.train_file or '--labels'}: the labels are: "
                f"{', '.join(labels) or 'none'}; give at least two, with --multi_label "
                "one, and each once, or --regression.")
        kind = SeveralLabels if several else ClassificationTask
        names = ("micro_f1", "macro_f1", "exact_match") if several else (
            "accuracy", "macro_f1", *["f1"] * (len(labels) == 2), "matthews")
    return kind(
        name="custom", labels=labels, metric_names=names, main_metric=names[0],
        reader=functools.partial(_read_split, data=data, labels=labels, ordered=ordered),
        pairs=data.text_b_column is not None, column_names=_column_names(data),
        reading={name: getattr(data, name) for name in (
            "text_column", "text_b_column", "label_column", "header", "delimiter",
            *["label_separator"] * several, *["probability_column"] * soft)},
        soft=soft, temperature=data.temperature, label_threshold=data.label_threshold,
        separator=data.label_separator)


def joined(data_dir: str, path: str) -> str:
    """Returns a path, or each in a list with commas, in a folder."""
    whole = path if files.is_remote(path) else os.path.join(data_dir, path)
    if "," not in path or whole == path or files.exists(whole):
        return whole
    return ",".join(joined(data_dir, part.strip()) for part in path.split(","))


def _named(columns: Sequence[str], labels: Sequence[str] | None) -> Sequence[str]:
    """Returns the labels that have these columns. Without a header, columns are numbers,
    and `labels` their names in their order."""
    if labels and len(labels) == len(columns) and {*labels} != {*columns} and all(
            map(str.isdecimal, columns)):
        return labels
    return [column.removeprefix(_PROBABILITY_OF) for column in columns]


def _column_names(data: OwnData) -> dict[str, str]:
    """Returns the titles of the user's columns in files of predictions. Numbers, and
    names that mean something else there, are left out."""
    labels, names = data.label_columns("train"), dict[str, str]()
    columns = {"guid": data.id_column, "text_a": data.text_column,
               "text_b": data.text_b_column,
               "label": labels[0] if len(labels) == 1 else None}
    for column, name in columns.items():
        if name and not (name.isdecimal() or name.startswith("probability") or name in (
                *columns, "prediction", *names.values())):
            names[column] = name
    return names


def _collected(data: OwnData) -> Sequence[str]:
    """Returns the labels in the training files."""
    if not data.train_file:
        raise InputError("the labels are not known; give --labels in the order of the "
                         "model's outputs.")
    shards, column = files.expand_patterns(data.train_file, "--train_file"), (
        data.label_column or "")
    for path in (path for path in shards if rows.kind_of(path) == "parquet"):
        # The schema may name the labels.
        classes = rows.columns_of(path)
        classes = {**dict(zip(map(str, range(len(classes))), classes.values())), **classes}
        if names := classes.get(column):
            return list(map(label_names.cleaned, names))
    labels: set[str] = set()
    for path in shards:
        for example in read(data, path).examples:
            given = example.label or ()
            labels.update((given,) if isinstance(given, str) else given)
            labels.update(example.probabilities or ())
    where = f"{data.train_file}: column '{column}' holds"
    if data.multi_label and labels and None not in map(label_cells.truth, labels):
        raise InputError(
            f"{where} only {' and '.join(sorted(labels))}: leave --multi_label out, name "
            "the columns of all labels, or give --labels in the order of zeros and ones in "
            "one column.")
    for label in labels:
        if (number := re.sub(r"\.0+$", "", label)) in labels - {label}:
            raise InputError(f"{where} the label {number} also as {label}; write both in "
                             "the same way.")
    numbers = all(label.removeprefix("-").isdecimal() for label in labels)
    return sorted(labels, key=lambda label: (int(label), label) if numbers else label)


def _read_split(where: str, split: str, *, data: OwnData, **options: Any) -> ExampleSet:
    found = read_shards(where, f"--{split}_file", lambda path, first: read(
        data, path, split=split, first=first, **options))
    columns = data.probability_columns(split)
    if columns and not any(each.probabilities for each in found.examples):
        raise InputError(f"--probability_column={','.join(columns)}: no row of "
                         f"--{split}_file has probabilities; correct the name.")
    return found


def read(data: OwnData, path: str, *, labels: Sequence[str] | None = None,
         split: str = "train", first: int = 0, ordered: bool = True) -> ExampleSet:
    """Reads a file; "test" needs no labels. `labels` are those allowed, () for numbers;
    None allows any text; `ordered` says whether zeros and ones may be in their order. Ids
    begin with `split` and count from `first` + 1, as in "train-1"."""
    examples: list[Example] = []
    of_label, of_probabilities = data.label_columns(split), data.probability_columns(split)
    targets, guids = data.targets(split), _columns(data.id_column)
    for name in (named := [*data.texts, *targets]):
        if named.count(name) > 1:
            raise InputError(f"{path}: '{name}' is named twice; each text, label and "
                             "probability needs a column of its own.")
    needed = targets if split != "test" and not of_probabilities else ()
    for where, row in rows.rows(
            path, [*data.texts, *(guids if data.ids_needed else ()), *needed],
            (*targets, *guids), delimiter=data.delimiter, header=data.header,
            advice="if the first line is not a header, add --noheader" if data.header
            else "without a header, columns are numbers from 0"):
        texts = [rows.text(row, where, name) for name in data.texts]
        probabilities, label = _probabilities(
            row, where, of_probabilities, labels, data.multi_label), None
        if probabilities is None or any(
                row.get(name) not in (None, "", []) for name in of_label):
            label = _label(row, where, of_label, data, labels, ordered)
        if label is None and probabilities is None and split != "test":
            raise InputError(
                f"{where}: there is no label{' and no probability' * bool(of_probabilities)}"
                f" in column '{', '.join(targets)}'; fill it in, or remove the row.")
        guid = next((label_cells.as_text(row.get(name), where, name) for name in guids),
                    None)
        examples.append(Example(
            f"{split}-{first + len(examples) + 1}" if guid is None else guid,
            *texts, *[None] * (2 - len(texts)), label, where, probabilities))
    return ExampleSet(examples, (path,))


def _label(row: Row, where: str, columns: Sequence[str], data: OwnData,
           labels: Sequence[str] | None, ordered: bool
           ) -> str | tuple[str, ...] | float | None:
    """Returns the label, or the labels, of a row; None if it has none."""
    cells = [row.get(column) for column in columns]
    if all(cell is None for cell in cells):
        return None
    if len(columns) > 1:
        given = list(map(label_cells.truth, cells))
        for column, cell, truth in zip(columns, cells, given):
            if truth is None:
                raise InputError(
                    f"{where}: column '{column}' holds {cell or ''!r:.40}, which does not "
                    "say whether the text has this label; write 1 or 0.")
        return tuple(itertools.compress(_named(columns, labels), given))
    place = cells[0], where, columns[0]
    parts = label_cells.several(*place, data.label_separator, labels, ordered) if (
        data.multi_label) else label_cells.one(*place)
    parsed = [parse_label(part, labels, where) for part in parts
              if label_names.cleaned(part)]
    if data.multi_label:
        return tuple(dict.fromkeys(map(str, parsed)))
    return parsed[0] if parsed else None


def _probabilities(row: Row, where: str, columns: Sequence[str],
                   labels: Sequence[str] | None, several: bool
                   ) -> dict[str, float] | None:
    """Returns label → probability of a row; None if it has none."""
    cells = [row.get(name) for name in columns]
    if all(cell is None or cell == "" for cell in cells):
        return None
    given = cells[0]
    if len(columns) > 1:
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
    if not several and abs(total - 1) > 1e-3:
        raise InputError(
            f"{where}: the probabilities of {', '.join(result)} add up to {total:.4g}, "
            "not to 1; correct them, or give --multi_label.")
    return result
