"""Classification and regression with a user's own data: TSV, CSV, JSON lines, Parquet.

    task = build_task({"train": DataFile("train.csv", text_a="text", label="topic")})

Input that does not fit its description is an InputError with file and line or row. Only
blank lines are left out, and counted. Parquet stands for Arrow files, too.
"""

import collections
import contextlib
import dataclasses
import functools
import itertools
import json
import math
import os
import re
from typing import Iterable, Mapping, Sequence

from absl import logging

from albert_tf import files, row_files, rows
from albert_tf.checkpoints import labels as label_names
from albert_tf.errors import InputError
from albert_tf.finetuning import tables
from albert_tf.finetuning.classification import label_cells
from albert_tf.finetuning.classification.label_cells import as_text, parse_label, truth
from albert_tf.finetuning.classification.task import (
    SPLITS, UNCLEAN, ClassificationTask, Example)
from albert_tf.finetuning.common import ExampleSet, read_shards
from albert_tf.rows import Row

# The titles of columns of probabilities may begin so, as in files of predictions.
_PROBABILITY_OF = "probability of "
# What may separate labels.
_SEPARATORS = frozenset(";|/,\t、，；")


@dataclasses.dataclass(frozen=True)
class DataFile:
    """A file and its columns, by name or number (rows.rows).

    Attributes:
      text_a, text_b: the columns of the text and of a pair's second text.
      label: the column of the label; a tuple if each label has a column of 1 and 0.
      guid: the column of the examples' ids, for predictions; None: they are numbered,
        as they are without the column unless it is `guid_needed`.
      separator: what separates the labels in a column of several (label_cells); None: a
        column holds one label.
      probability: the column of the labels' probabilities, a JSON object label →
        probability or a list in the order of the labels; a tuple if each label has a
        column. A row needs a label or probabilities.
    """

    path: str
    text_a: str
    text_b: str | None = None
    label: str | tuple[str, ...] | None = None
    header: bool = True
    delimiter: str | None = None
    guid: str | None = None
    guid_needed: bool = True
    separator: str | None = None
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
    return columns if isinstance(columns, tuple) else (
        () if columns is None else (columns,))


# ---- the task --------------------------------------------------------------


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
            raise InputError(
                f"{file.path}: give the column of the label (--label_column); only "
                "the test set does not need labels.")
    ordered = labels is not None
    several = any(file.several_labels for file in data.values())
    soft = any(file.probability for file in data.values())
    for flag, is_wrong in (("--labels", labels), ("--probability_column", soft),
                           ("--multi_label", several)):
        if regression and is_wrong:
            raise InputError(f"{flag} is for labels, but --regression predicts a "
                             "number for each text; leave one of the two out.")
    if regression:
        labels, names = (), ("pearson", "spearman", "mse")
    else:
        source = "--labels" if labels is not None or "train" not in data else (
            data["train"].path)
        labels = _in_columns(data, labels) or (
            tuple(labels) if labels is not None else _collected(data.get("train")))
        for label in labels:
            if labels.count(label) > 1:
                raise InputError(f"{source} has '{label}' more than once; give each "
                                 "label once.")
        if len(labels) < (1 if several else 2):
            raise InputError(
                f"{source}: the labels are: {', '.join(labels) or 'none'}; "
                "classification needs at least two, with --multi_label one; to predict "
                "numbers, give --regression.")
        names = ("micro_f1", "macro_f1", "exact_match") if several else (
            "accuracy", "macro_f1", *["f1"] * (len(labels) == 2), "matthews")
    return ClassificationTask(
        name="custom", labels=labels, metric_names=names, main_metric=names[0],
        readers={split: functools.partial(
            _read_split, file=file, labels=labels, split=split, ordered=ordered)
            for split, file in data.items()},
        positive_label=labels[1] if "f1" in names else None, of_glue=False,
        column_names=_column_names(data.values()), multi_label=several, soft=soft,
        separator=next((file.separator for file in data.values() if file.separator), ","))


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
    if there are none."""
    columns = next((column for file in data.values() for column in (
        file.label, file.probability) if isinstance(column, tuple)), ())
    names = _named(columns, labels)
    if not names or labels is None or sorted(names) == sorted(labels):
        return tuple(labels or names) if names else ()
    raise InputError(
        f"--labels={','.join(labels)}: the columns of the labels are "
        f"{', '.join(columns)}; give one label for each, or leave the flag out.")


def _named(columns: Sequence[str], labels: Sequence[str] | None) -> tuple[str, ...]:
    """Returns the labels that have these columns. Without a header, columns are numbers,
    and `labels` their names in their order."""
    is_numbered = labels and len(labels) == len(columns) and all(
        map(str.isdecimal, columns))
    return tuple(labels or ()) if is_numbered and {*labels} != {*columns} else tuple(
        column.removeprefix(_PROBABILITY_OF) for column in columns)


def _column_names(data: Iterable[DataFile]) -> dict[str, str]:
    """Returns the titles of the user's columns in files of predictions. Numbers, and
    names that mean something else there, are left out."""
    ours = ("guid", "text_a", "text_b", "label")
    names: dict[str, str] = {}
    for column, file in itertools.product(ours, data):
        name = getattr(file, column)
        if isinstance(name, str) and not name.isdecimal() and name not in (
                *ours, "prediction", *names.values()) and (
                not name.startswith("probability")):
            names.setdefault(column, name)
    return names


def _read_split(data_dir: str, *, file: DataFile, labels: tuple[str, ...],
                split: str, ordered: bool) -> ExampleSet:
    del data_dir  # `build_task` has joined it to the path.
    data = read_shards(file.path, f"--{split}_file", lambda path, first: read(
        dataclasses.replace(file, path=path), labels=labels,
        label_needed=split != "test", split=split, first=first, ordered=ordered))
    if file.probability and not any(each.probabilities for each in data.examples):
        raise InputError(
            f"--probability_column={','.join(_as_tuple(file.probability))}: no row of "
            f"--{split}_file has probabilities there; correct the name, or leave the "
            "flag out.")
    return data


def _collected(file: DataFile | None) -> tuple[str, ...]:
    """Returns the labels in a training file."""
    if file is None:
        raise InputError(
            "the labels are unknown without a training file or a model that names them; "
            "give --labels in the order of the model's outputs.")
    shards = [dataclasses.replace(file, path=path)
              for path in files.shards(file.path, "--train_file")]
    if names := next(filter(None, map(_named_classes, shards)), ()):
        return names
    labels: set[str] = set()
    counts: collections.Counter[str] = collections.Counter()
    for example in itertools.chain(*(read(shard).examples for shard in shards)):
        labels.update(example.probabilities or ())
        if example.label is not None:
            labels.update(example.label if file.several_labels else [example.label])
        if file.separator and example.label:
            counts.update({"all", *_SEPARATORS.intersection("".join(example.label))})
    for other in counts.keys() - {"all", file.separator}:
        if 2 * counts[other] > counts["all"]:
            logging.warning(
                "%s: most labels in column '%s' hold %r, but %r separates labels; give "
                "--label_separator='%s' if that is what separates them.", file.path,
                file.label, other, file.separator, other)
    if file.several_labels and labels and None not in map(truth, labels):
        raise InputError(
            f"{file.path}: column '{file.label}' holds only "
            f"{' and '.join(sorted(labels))}, but with --multi_label the names of labels. "
            "Leave --multi_label out, name the columns of all labels, separated by "
            "commas, or give --labels in the order of zeros and ones in one column.")
    for label in labels:
        number = re.sub(r"^(-?\d+)\.0+$", r"\1", label)
        if number != label and number in labels:
            raise InputError(
                f"{file.path}: column '{file.label}' holds the label {number} also as "
                f"{label}; write both in the same way.")
    numbers = all(label.removeprefix("-").isdecimal() for label in labels)
    return tuple(sorted(
        labels, key=lambda label: (int(label), label) if numbers else label))


def _named_classes(file: DataFile) -> tuple[str, ...]:
    """Returns the labels that the schema of a Parquet file names; () for none."""
    if not row_files.is_row_file(file.path) or not isinstance(file.label, str):
        return ()
    columns = row_files.columns_of(file.path)
    places = row_files.places_of(file.path, (), [file.label], list(columns), "")
    return tuple(label_names.cleaned(name) for place in places.values()
                 for name in [*columns.values()][place])


# ---- reading ---------------------------------------------------------------


def read(file: DataFile, *, labels: Sequence[str] | None = None,
         label_needed: bool = True, split: str = "train", first: int = 0,
         ordered: bool = True) -> ExampleSet:
    """Reads a file. `labels` are those allowed, () for numbers; None allows any text;
    `ordered` says whether zeros and ones may be in their order. Ids begin with `split`
    and count from `first` + 1, as in "train-1"."""
    blank: list[int] = []
    unclean: list[int] = []
    examples: list[Example] = []
    for name in (named := [*file.texts, *file.targets]):
        if named.count(name) > 1:
            raise InputError(f"{file.path}: '{name}' is named twice; --text_column, "
                             "--text_b_column, --label_column and --probability_column "
                             "each need a column of their own.")
    needed = file.targets if label_needed and not file.probability else ()
    guids = _as_tuple(file.guid)
    for where, row in rows.rows(
            file.path, [*file.texts, *(guids if file.guid_needed else ()), *needed],
            (*file.targets, *guids), delimiter=file.delimiter, header=file.header,
            blank=blank,
            advice="if the first line is not a header, add --noheader" if file.header
            else "without a header, columns are numbers from 0"):
        texts = [rows.text(row, where, name) for name in file.texts]
        probabilities = _probabilities(row, where, file, labels)
        label = None
        if probabilities is None or any(
                row.get(name) not in (None, "", []) for name in _as_tuple(file.label)):
            if isinstance(file.label, tuple):
                label = _by_column(row, where, file.label, labels)
            else:
                label = _label(row, where, file, labels, label_needed, ordered, unclean)
        if label is None and label_needed and probabilities is None and file.targets:
            what = "label" if file.probability is None else "label and no probability"
            raise InputError(
                f"{where}: there is no {what} in column '{', '.join(file.targets)}'; fill "
                "it in, or remove the row.")
        guid = file.guid and as_text(row.get(file.guid), where, file.guid)
        examples.append(Example(
            f"{split}-{first + len(examples) + 1}" if guid is None else guid,
            *texts, *[None] * (2 - len(texts)), label, where, probabilities))
    if not examples:
        raise InputError(f"{file.path}: there is no example in this file; check the "
                         "path and the format.")
    return ExampleSet(examples, (file.path,), (
        *tables.line_note(file.path, blank, "blank and left out"),
        *tables.line_note(file.path, unclean, UNCLEAN)))


def _label(row: Row, where: str, file: DataFile, labels: Sequence[str] | None,
           needed: bool, ordered: bool, unclean: list[int]
           ) -> str | tuple[str, ...] | float | None:
    """Returns the label, or the labels, of a row; None if it has none."""
    if not isinstance(file.label, str):
        return None
    value, parts = row.get(file.label), None
    try:
        if file.separator is None:
            text = label_cells.one(value, where, file.label)
            parts = None if text is None else [text]
        else:
            parts = label_cells.several(
                value, where, file.label, file.separator, labels, ordered)
        if parts is None:
            return None
        if not all(map(label_names.is_clean, parts)):
            unclean.append(rows.number_of(where))
        parts = [part for part in parts if label_names.cleaned(part)]
        parsed = [*map(label_names.cleaned, parts)] if labels is None else [
            parse_label(part, labels, where) for part in parts]
        if labels is None:
            label_names.check_lines(parsed, where, "remove it")
    except InputError as error:
        if needed:
            raise
        raise InputError(f"{str(error).removesuffix('.')}, or give --notest_labels for "
                         "a file without true labels.") from error
    if file.several_labels:
        return tuple(dict.fromkeys(map(str, parsed)))
    return parsed[0] if parsed else None


def _by_column(row: Row, where: str, columns: tuple[str, ...],
               labels: Sequence[str] | None) -> tuple[str, ...] | None:
    """Returns the labels whose column holds 1, or None if all are missing, which only a
    file to predict may have."""
    cells = [as_text(row.get(column), where, column) for column in columns]
    if all(cell is None for cell in cells):
        return None
    for column, cell in zip(columns, cells):
        if truth(cell) is None:
            raise InputError(
                f"{where}: column '{column}' holds {cell or ''!r:.40}, which does not "
                "say whether the text has this label; write 1 or 0.")
    return tuple(name for name, cell in zip(_named(columns, labels), cells)
                 if truth(cell))


def _probabilities(row: Row, where: str, file: DataFile, labels: Sequence[str] | None
                   ) -> dict[str, float] | None:
    """Returns label → probability of a row; None if it has none."""
    cells = [row.get(name) for name in _as_tuple(file.probability)]
    if all(cell is None or cell == "" for cell in cells):
        return None
    given = cells[0]
    if isinstance(file.probability, tuple):
        given = dict(zip(_named(file.probability, labels), cells))
    elif isinstance(given, str):
        with contextlib.suppress(ValueError, RecursionError):
            given = json.loads(given)
    if isinstance(given, list) and labels and len(given) == len(labels):
        given = dict(zip(labels, given))
    if not isinstance(given, dict) or labels and {*map(label_names.cleaned, given)} != {
            *labels}:
        raise InputError(
            f"{where}: '{', '.join(_as_tuple(file.probability))}' holds "
            f"{str(given)[:60]!r}; it must be a JSON object label: probability, or a "
            "list in the order of --labels, with a number for each label"
            f"{labels and ': ' or ''}{', '.join(labels or ())}.")
    result = {}
    for name, value in given.items():
        label_names.check_lines([label := label_names.cleaned(name)], where, "remove it")
        try:
            result[label] = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError):
            result[label] = math.nan
        if not 0 <= result[label] <= 1:
            raise InputError(f"{where}: the probability of '{label}' is {value!r:.40}, "
                             "which is not a number from 0 to 1.")
    total = math.fsum(result.values())
    if not file.several_labels and abs(total - 1) > 1e-3:
        raise InputError(
            f"{where}: the probabilities of {', '.join(result)} add up to {total:.4g}, "
            "not to 1; correct them, or give --multi_label if a text has any number of "
            "labels.")
    return result
