"""SQuAD as run_squad.py trains it."""

import dataclasses
from typing import Optional

from albert_tf.errors import InputError
from albert_tf.finetuning.command import Command, features_option
from albert_tf.finetuning.squad.task import SquadTask
from albert_tf.options import given, option


@dataclasses.dataclass(frozen=True)
class SquadFiles:
    """The files of a run."""

    train_file: Optional[str] = option(
        None, "JSON file in SQuAD's format to train on, or JSON lines, Parquet or Arrow "
        "with a row for each question. Several paths or globs, separated by commas, are "
        "one set.")
    predict_file: Optional[str] = option(
        None, "File in SQuAD's format, like --train_file, to predict and evaluate on.")
    train_feature_file: Optional[str] = features_option("train")
    predict_feature_file: Optional[str] = features_option("predict")
    predict_feature_left_file: Optional[str] = option(
        None, "Ignored; kept for command lines of the original implementation. "
        "--predict_feature_file holds everything.")


class SquadCommand(Command):
    """Questions about a text."""

    options = (SquadTask, SquadFiles)
    defaults = dict(max_seq_length=384, save_checkpoints_steps=1000)
    helps = dict(do_eval=" Uses --predict_file, which must have answers.")
    first = "train_file predict_file version_2_with_negative doc_stride"
    without = "all_probabilities"
    in_epochs = True
    data_options = {"train": "train_file", "predict": "predict_file"}
    feature_options = {split: f"{split}_feature_file" for split in data_options}

    def task(self):
        values = self.values
        if values.do_train and not values.train_file:
            raise InputError("give --train_file, the questions to train on.")
        if (values.do_eval or values.do_predict) and not values.predict_file:
            raise InputError("give --predict_file, the questions to "
                             f"{'predict' if values.do_predict else 'evaluate on'}.")
        return given(SquadTask, values, max_seq_length=values.max_seq_length,
                     must_score=values.do_eval)

    def recipe(self, config):
        return ("squad-2.0" if self.values.version_2_with_negative else "squad-1.1")

    def text(self, task, settings, step):
        return dict(threshold=task.known_threshold(settings.run.output_dir, step))
