"""The GLUE tasks: their files, columns and scores.

    TASKS["sst-2"].read("glue", "dev").examples

Files are read as in the original implementation (classifier_utils), by the names of
their columns. Where it ignores something or would crash, there is a message instead: a
missing file or column, an unknown label, QQP's broken lines.
"""

import functools
import os
from typing import Any, Mapping, NamedTuple, Sequence

from albert_tf import files, rows
from albert_tf.errors import InputError
from albert_tf.finetuning.classification.label_cells import parse_label
from albert_tf.finetuning.classification.task import (
    ClassificationTask, Example, Numbers)
from albert_tf.finetuning.common import ExampleSet, line_note


class _Columns(NamedTuple):
    """The columns of a file: names, or numbers without a `header`. Without `guid`, an
    example's id consists of split and line, as in "dev-7". With `drop_short`, lines with
    too few columns are left out, with a note."""

    text_a: str
    text_b: str | None = None
    label: str | None = None
    guid: str | None = "index"
    header: bool = True
    drop_short: bool = False


# Each split's file names and their columns; the first one that exists is read.
_Files = Mapping[str, Mapping[str, _Columns]]


def _read(data_dir: str, split: str, *, task: str, folders: Sequence[str],
          files_of: _Files, labels: tuple[str, ...]) -> ExampleSet:
    """Reads the first of a split's files that exists in a folder or in data_dir."""
    if split not in files_of:
        raise InputError(f"--task_name={task} has no {split} set; train with "
                         "--task_name=mnli.")
    paths = {os.path.join(data_dir, folder, name): columns
             for name, columns in files_of[split].items() for folder in (*folders, "")}
    path = next(filter(files.exists, paths), None)
    if path is None:
        raise InputError(
            f"--task_name={task}: there is neither {' nor '.join(paths)}; give the "
            "folder of the GLUE download as --data_dir.")
    columns, examples = paths[path], []
    short = []  # Numbers of lines.
    names = list(filter(None, columns[:4]))
    for where, row in rows.rows(path, names, kind="tsv", header=columns.header,
                                ragged=True):
        number = rows.number_of(where)
        if not row.keys() >= {*names}:
            if not columns.drop_short:
                raise InputError(f"{where}: the line has too few columns; check the "
                                 "download.")
            short.append(number)
            continue
        text_a, text_b, label, guid = (name and row[name] for name in columns[:4])
        examples.append(Example(
            # The original implementation counts lines from 0.
            f"{split}-{number - 1}" if guid is None else guid.strip(), text_a, text_b,
            None if label is None else parse_label(label, labels, where), where))
    return ExampleSet(examples, (path,), line_note(
        path, short, "left out because they have too few columns"))


def _task(name: str, folders: str, labels: tuple[str, ...], submission: str,
          files_of: _Files, *metrics: str, positive: str | None = None,
          **more: Any) -> ClassificationTask:
    """Returns a task whose files are in one of the folders; its scores are the accuracy
    if no metrics are named, and the first of these chooses the best checkpoint."""
    metrics = metrics or ("accuracy",)
    return (ClassificationTask if labels else Numbers)(
        name=name, labels=labels, metric_names=metrics, main_metric=metrics[0],
        reader=functools.partial(_read, task=name, folders=folders.split(),
                                 files_of=files_of, labels=labels),
        positive_label=positive, submission_file=submission,
        pairs=all(columns.text_b for alternatives in files_of.values()
                  for columns in alternatives.values()), **more)


def _files(labelled: _Columns, unlabelled: _Columns, end: str = "") -> _Files:
    return {"train": {"train.tsv": labelled}, "dev": {f"dev{end}.tsv": labelled},
            "test": {f"test{end}.tsv": unlabelled}}


_BINARY = ("0", "1")
_ENTAILMENT = ("entailment", "not_entailment")
_NLI = ("contradiction", "entailment", "neutral")
_SENTENCES = _Columns("sentence1", "sentence2")
_LABELLED_SENTENCES = _Columns("sentence1", "sentence2", "label")
_QUESTION = _Columns("question", "sentence")
_GOLD = _SENTENCES._replace(label="gold_label")
_F1 = ("accuracy", "f1", "accuracy_f1_mean")

TASKS: dict[str, ClassificationTask] = {task.name: task for task in (
    _task("cola", "CoLA", _BINARY, "CoLA.tsv", _files(
        _Columns("3", label="1", guid=None, header=False), _Columns("sentence")),
          "matthews", "accuracy"),
    _task("mnli", "MNLI", _NLI, "MNLI-m.tsv", _files(_GOLD, _SENTENCES, "_matched")),
    _task("mismnli", "MNLI", _NLI, "MNLI-mm.tsv",
          _files(_GOLD, _SENTENCES, "_mismatched")),
    _task("mrpc", "MRPC", _BINARY, "MRPC.tsv", _files(
        _Columns("#1 String", "#2 String", "Quality", guid=None),
        _Columns("#1 String", "#2 String")), *_F1, positive="1"),
    _task("rte", "RTE", _ENTAILMENT, "RTE.tsv", _files(_LABELLED_SENTENCES, _SENTENCES)),
    _task("sst-2", "SST-2", _BINARY, "SST-2.tsv", _files(
        _Columns("sentence", label="label", guid=None), _Columns("sentence"))),
    _task("sts-b", "STS-B", (), "STS-B.tsv", _files(
        _SENTENCES._replace(label="score"), _SENTENCES),
          "pearson", "spearman", "pearson_spearman_mean", "mse",
          submission_range=(0.0, 5.0)),
    # Some questions contain line ends, which break their lines in the download.
    _task("qqp", "QQP", _BINARY, "QQP.tsv", _files(
        _Columns("question1", "question2", "is_duplicate", guid="id", drop_short=True),
        _Columns("question1", "question2", guid="id")), *_F1, positive="1"),
    _task("qnli", "QNLI", _ENTAILMENT, "QNLI.tsv", _files(
        _QUESTION._replace(label="label"), _QUESTION)),
    _task("wnli", "WNLI", _BINARY, "WNLI.tsv", _files(_LABELLED_SENTENCES, _SENTENCES)),
    # The diagnostic set has only one file, which usually has no labels.
    _task("ax", "diagnostic AX", _NLI, "AX.tsv", {
        "dev": {"diagnostic-full.tsv": _Columns(
            "Premise", "Hypothesis", "Label", guid=None),
                "diagnostic.tsv": _LABELLED_SENTENCES},
        "test": {"diagnostic.tsv": _SENTENCES}}, "matthews", "accuracy"),
)}


def takes_pairs(settings: Mapping[str, Any]) -> bool | None:
    """Returns whether a model answers for two texts, given the contents of its
    task.json; None if they do not tell."""
    flags = settings.get("flags", {})
    if settings.get("task") in TASKS:
        return TASKS[settings["task"]].pairs
    return flags["text_b_column"] is not None if "text_b_column" in flags else None
