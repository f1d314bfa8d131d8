"""RACE as run_race.py trains it."""

import dataclasses
from typing import Optional

from albert_tf.errors import InputError
from albert_tf.finetuning.command import Command, features_option
from albert_tf.finetuning.race.task import RaceTask
from albert_tf.options import given, option
from albert_tf.tokenization.sequences import NUM_SPECIAL_PAIR


@dataclasses.dataclass(frozen=True)
class RaceFiles:
    """The files of a run."""

    task_name: str = option(
        "race", "Must be race; kept for command lines of the original implementation.",
        kept=True)
    data_dir: str = option(
        "", "The folder RACE as downloaded, or the folder that contains it, or a folder "
        "of Parquet or Arrow files with a row for each question (train*.parquet, "
        "validation*.parquet, test*.parquet).")
    train_file: Optional[str] = features_option("train")
    eval_file: Optional[str] = features_option("dev")
    predict_file: Optional[str] = features_option("test")


class RaceCommand(Command):
    """Reading comprehension with four choices."""

    options = (RaceTask, RaceFiles)
    defaults = dict(do_train=True, do_eval=True, learning_rate=1e-5, train_step=12000,
                    warmup_step=1000, save_checkpoints_steps=100)
    helps = dict(recipe=(
        " For a model whose config has no dropout, the recipe is that of version 2 of "
        "the released models: no dropout, learning rate 1e-5. (The config of xxlarge "
        "version 1 has no dropout either, but the paper trains it with dropout: add "
        "--albert_dropout_prob=0.1.)"))
    first = "data_dir max_qa_length"
    data_options = dict.fromkeys(("train", "dev", "test"), "data_dir")
    feature_options = {"train": "train_file", "dev": "eval_file", "test": "predict_file"}

    def keeps(self, name):
        # The levels exclude each other: a given one overrides both kept ones.
        levels = ("high_only", "middle_only")
        return name not in levels or not any(
            self.values[level].present for level in levels)

    def task(self):
        values = self.values
        if values.task_name.lower() != "race":
            raise InputError(f"--task_name={values.task_name}: this script knows race "
                             "alone; run_classifier.py has other tasks.")
        room = values.max_seq_length - NUM_SPECIAL_PAIR
        if values["max_qa_length"].present and values.max_qa_length >= room > 1:
            raise InputError(
                f"--max_qa_length={values.max_qa_length} leaves no room for the passage "
                f"in --max_seq_length={values.max_seq_length}; give less than {room}, or "
                "a larger --max_seq_length.")
        return given(RaceTask, values, max_seq_length=values.max_seq_length)

    def recipe(self, task, config):
        # The released models of version 2 have no dropout in their config.
        return "race" if config.hidden_dropout_prob or (
            config.attention_probs_dropout_prob) else "race-v2"
