"""Classification as run_classifier.py trains it: a GLUE task, or the user's own data."""

import dataclasses
from typing import Optional, Sequence

from absl import logging

from albert_tf.checkpoints.checkpoint import LABEL_THRESHOLD
from albert_tf.checkpoints.folders import holds_checkpoint
from albert_tf.errors import InputError
from albert_tf.finetuning.classification import custom, glue
from albert_tf.finetuning.classification.label_cells import number
from albert_tf.finetuning.classification.task import (
    BALANCED, SPLITS, ClassificationTask)
from albert_tf.finetuning.command import Command
from albert_tf.options import option, options_of

_MOST_WEIGHT = 1e6


@dataclasses.dataclass(frozen=True)
class ClassificationOptions:
    """The options of all classification tasks."""

    task_name: Optional[str] = option(
        None, f"The task: one of {', '.join(glue.TASKS)}, or custom for your own data.",
        kept=True)
    data_dir: str = option(
        "", "Folder of the data: the GLUE download, the task's folder in it, or the "
        "folder of the files of a custom task.")
    labels: Optional[list[str]] = option(
        None, "The labels in the order of the model's outputs; default: those of the task, "
        "of the training file (sorted, or in the order of its Parquet schema), or of the "
        "model that is used.", kept=True)
    class_weights: Optional[list[str]] = option(
        None, "Weights of the labels in the training loss: balanced, so that all labels "
        "count the same, or label=weight, no=1,yes=4.5, where others have 1.",
        needs="do_train")
    threshold_to_export: Optional[float] = option(
        None, "Export only if the main metric reaches this value. Default: always "
        "export.", least=-1e38, needs="export_dir", only_with="do_eval")


def _file(use: str, help: str, **needs: str):
    return option(None, f"Custom task: file to {use}{help}", **needs)


@dataclasses.dataclass(frozen=True)
class OwnDataOptions:
    """The options of the user's own data."""

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


class ClassificationCommand(Command):
    """One text or two: classes, any number of labels, or numbers."""

    options = (ClassificationOptions, OwnDataOptions)
    defaults = dict(save_checkpoints_steps=1000)
    helps = dict(save_checkpoints_steps=(
        " With --do_eval, a tenth of the steps by default for your own data."))
    first = ("task_name data_dir train_file dev_file test_file text_column label_column")
    head = "classification"
    data_options = dict.fromkeys(SPLITS, "data_dir")

    @property
    def own_data(self):
        return (self.values.task_name or "").lower() == "custom"

    def task(self):
        values = self.values
        task = self._own_task() if self.own_data else self._glue_task()
        reading = ["text_column", "text_b_column", "label_column", "header", "delimiter",
                   *["label_separator"] * values.multi_label,
                   *["probability_column"] * task.soft]
        # A model whose outputs are of another kind gives wrong answers.
        model = None if holds_checkpoint(values.output_dir) else self.initial_model()
        if model and model.problem_type not in ("", task.problem_type):
            what = (f"--init_checkpoint={values.init_checkpoint} is a model for "
                    f"{model.problem_type}, and this task is {task.problem_type}")
            if not values.do_train:
                raise InputError(f"{what}; give --multi_label, --regression or neither, "
                                 "as the model was trained.")
            logging.warning("%s: training changes the meaning of its outputs.", what)
        return dataclasses.replace(
            task, pairs=task.pairs or values.text_b_column is not None,
            reading={name: values[name].value for name in reading},
            label_threshold=values.label_threshold, temperature=values.temperature,
            class_weights=class_weights(values.class_weights or ()) or "")

    def _glue_task(self) -> ClassificationTask:
        values, name = self.values, (self.values.task_name or "").lower()
        if name not in glue.TASKS:
            raise InputError(f"--task_name={name}: give one of {', '.join(glue.TASKS)} "
                             "or custom.")
        task, labels = glue.TASKS[name], values.labels
        for each in options_of(OwnDataOptions):
            if values[each.name].present:
                raise InputError(f"--{each.name} is for --task_name=custom, not {name}; "
                                 "leave it out.")
        if labels and sorted(labels) == sorted(task.labels):
            return dataclasses.replace(task, labels=tuple(labels))
        if values["labels"].present:
            raise InputError(f"--labels={','.join(labels)}: the labels of {name} are "
                             f"{', '.join(task.labels) or 'numbers'}; give each once.")
        return task

    def _own_task(self) -> ClassificationTask:
        values = self.values
        self.check_files()
        if not values.label_separator:
            raise InputError("--label_separator is empty; give what separates the labels "
                             "in a column.")
        labels, separator = values.label_column, None
        if values.multi_label:
            labels = _columns(labels)
            separator = None if isinstance(labels, tuple) else values.label_separator
        data = {split: custom.DataFile(
            path, values.text_column, values.text_b_column,
            None if split == "test" and not values.test_labels else labels,
            values.header, delimiter=values.delimiter, guid=values.id_column,
            guid_needed=values["id_column"].present, separator=separator,
            probability=_columns(values.probability_column) if split == "train" else None)
            for split in SPLITS if (path := values[f"{split}_file"].value)}
        known = () if values.labels or values.train_file or values.regression else (
            self.initial_labels())
        return custom.build_task(
            data, labels=values.labels or known or None, regression=values.regression,
            data_dir=values.data_dir)

    def kept(self, task):
        return {**super().kept(task), "problem_type": task.problem_type}

    def chosen(self, task):
        # Saved with the model even if they are from the data.
        return {"labels": list(task.labels) or self.values.labels} if (
            self.own_data) else {}

    def recipe(self, config):
        return self.values.task_name.lower()

    def recorded(self, task):
        soft = ("probability_column", "temperature") if task.soft else ()
        return {**{name: self.values[name].value for name in soft},
                **({"class_weights": task.class_weights} if task.class_weights else {})}


def class_weights(words: Sequence[str]) -> str | dict[str, float]:
    """Returns the weights that a flag gives: BALANCED, or label → weight.

        class_weights(["no=1", "yes=4.5"])  # {"no": 1.0, "yes": 4.5}
    """
    if list(words) == [BALANCED]:
        return BALANCED
    weights: dict[str, float] = {}
    for word in words:
        label, _, weight = word.rpartition("=")
        if label.strip() in weights or not 0 < number(weight) <= _MOST_WEIGHT:
            raise InputError(
                f"--class_weights: '{word}': give {BALANCED}, or once for each label "
                f"label=weight, a number above 0, up to {_MOST_WEIGHT:g}.")
        weights[label.strip()] = number(weight)
    return weights


def _columns(names: Optional[str]) -> Optional[str | tuple[str, ...]]:
    """Returns the column that a flag names, or each of several, separated by commas."""
    return tuple(names.split(",")) if names and "," in names else names
