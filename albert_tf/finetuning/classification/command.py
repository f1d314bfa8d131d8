"""Classification as run_classifier.py trains it: a GLUE task, or the user's own data."""

import dataclasses
from typing import Optional, Sequence

from absl import logging

from albert_tf.checkpoints.folders import holds_checkpoint
from albert_tf.errors import InputError
from albert_tf.finetuning.classification import glue
from albert_tf.finetuning.classification.custom import OwnData, build_task, joined
from albert_tf.finetuning.classification.label_cells import number
from albert_tf.finetuning.classification.task import (
    BALANCED, SPLITS, ClassificationTask)
from albert_tf.finetuning.command import Command
from albert_tf.options import given, option, options_of

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


class ClassificationCommand(Command):
    """One text or two: classes, any number of labels, or numbers."""

    options = (ClassificationOptions, OwnData)
    defaults = dict(save_checkpoints_steps=1000)
    helps = dict(save_checkpoints_steps=(
        " With --do_eval, a tenth of the steps by default for your own data."))
    first = ("task_name data_dir train_file dev_file test_file text_column label_column")
    head = "classification"

    @property
    def own_data(self):
        return (self.values.task_name or "").lower() == "custom"

    @property
    def data_options(self):
        return {split: f"{split}_file" if self.own_data else "data_dir"
                for split in SPLITS}

    def task(self):
        values = self.values
        task = self._own_task() if self.own_data else self._glue_task()
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
            task, class_weights=class_weights(values.class_weights or ()) or "",
            max_seq_length=values.max_seq_length)

    def _glue_task(self) -> ClassificationTask:
        values, name = self.values, (self.values.task_name or "").lower()
        if name not in glue.TASKS:
            raise InputError(f"--task_name={name}: give one of {', '.join(glue.TASKS)} "
                             "or custom.")
        task, labels = glue.TASKS[name], values.labels
        for each in options_of(OwnData):
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
        if not values.label_separator:
            raise InputError("--label_separator is empty; give what separates the labels "
                             "in a column.")
        for split in SPLITS:
            if path := values[f"{split}_file"].value:
                values[f"{split}_file"].value = joined(values.data_dir, path)
        known = () if values.labels or values.train_file or values.regression else (
            self.initial_labels())
        return build_task(
            given(OwnData, values, ids_needed=values["id_column"].present),
            values.labels or known or None)

    def kept(self, task):
        return {**super().kept(task), "problem_type": task.problem_type}

    def chosen(self, task):
        # Saved with the model even if they are from the data.
        return {"labels": list(task.labels) or None} if self.own_data else {}


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
