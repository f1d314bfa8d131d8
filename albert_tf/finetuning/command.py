"""A task as its script and `albert_tf.finetune` run it: options → task."""

import abc
import contextlib
from typing import Any, Mapping, Optional, Sequence

from albert_tf.checkpoints import formats, labels as label_names
from albert_tf.checkpoints.checkpoint import Checkpoint
from albert_tf.config import AlbertConfig
from albert_tf.errors import InputError
from albert_tf.finetuning.task import FineTuningTask, Settings
from albert_tf.options import option


def features_option(split: str) -> Any:
    """Returns the field of the option with a split's file of features."""
    return option(None, f"Path of the features of the {split} set, to which a digest and "
                  f".npz are added; default: {split} in --cached_dir, else in "
                  "--output_dir.")


class Command(abc.ABC):
    """The part of a task's script that other tasks' scripts do not have (cli.finetune).
    `values` are those of the options, as `values.max_seq_length`; whether one was given
    is `values["max_seq_length"].present`."""

    options: Sequence[type] = ()  # The dataclasses of the task's options.
    # Options of all tasks → their defaults here, and what their help says besides.
    defaults: Mapping[str, Any] = {}
    helps: Mapping[str, str] = {}
    first = ""  # The flags of the task that --help describes first.
    without = ""  # The options of Settings that it has not.
    in_epochs = False  # Whether the length of a run is given in epochs by default.
    # Whether the recipe depends on the data, and a run has a number of evaluations.
    own_data = False
    head = ""  # The name of the head, if its labels can be chosen.
    # Split → the option with its data, and the one with its file of features. The first
    # is to train on, the second to evaluate on, and the last to predict.
    data_options: Mapping[str, str]
    feature_options: Mapping[str, str] = {}

    def __init__(self, values: Any):
        self.values = values

    @abc.abstractmethod
    def task(self) -> FineTuningTask:
        """Returns the task, after the options are checked."""

    def recipe(self, task: Any, config: AlbertConfig) -> str:
        """Returns the name of the task's recipe for a model, unless it is own_data."""
        return task.name

    def kept(self, task: Any) -> dict[str, Any]:
        """Returns the entries of task.json besides the options."""
        return {"task": task.name, **(
            {"labels": list(task.labels)} if hasattr(task, "labels") else {})}

    def chosen(self, task: Any) -> dict[str, Any]:
        """Returns the options that were left open, and what the task chose."""
        return {}

    def text(self, task: Any, settings: Settings, step: int) -> dict[str, Any]:
        """Returns the arguments of serving.export.text_of for the trained model that
        are not fields of its task."""
        return {}

    def initial_model(self) -> Optional[Checkpoint]:
        """Returns the initial checkpoint if it has this head, else None."""
        init = self.values.init_checkpoint
        with contextlib.suppress(InputError):  # It is reported when the model is loaded.
            if init and self.head in (model := formats.read(formats.located(init))).heads:
                return model
        return None

    def initial_labels(self) -> Sequence[str]:
        """Returns the names of the labels of `initial_model`, () if it has none."""
        model = self.initial_model()
        return model.labels if model and label_names.named(model.labels) else ()
