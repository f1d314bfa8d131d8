"""Tagging as run_tagger.py trains it."""

import dataclasses
from typing import Optional

from albert_tf.finetuning.command import Command
from albert_tf.finetuning.tagging import scoring
from albert_tf.finetuning.tagging.readers import Reading
from albert_tf.finetuning.tagging.task import TaggingTask, build_task
from albert_tf.options import given, option


def _sentences(use: str):
    return option(None, f"File of sentences to {use}; may be .gz. Several paths or globs, "
                  "separated by commas, are one set.")


@dataclasses.dataclass(frozen=True)
class TaggingOptions:
    """The files of a run, and what may be left to them."""

    train_file: Optional[str] = _sentences("train on")
    dev_file: Optional[str] = _sentences("evaluate on")
    test_file: Optional[str] = _sentences("predict")
    test_tags: Optional[bool] = option(
        None, "--test_file has tags, and predictions are scored against them; default: "
        "true if the file has a column or field for tags.")
    scheme: str = option(
        "auto", "How tags mark entities; none: they mark none (e.g. parts of speech), "
        "and each tag is scored by itself; auto: detected from the tags of "
        "--train_file.", choices=["auto", *scoring.SCHEMES], kept=True)
    labels: Optional[list[str]] = option(
        None, "The tags in the order of their ids; default: the tags that the schema of "
        "--train_file names (Parquet), or those in it, O first, the others sorted. They "
        "also name tags that are numbers.", kept=True)


class TaggingCommand(Command):
    """Tags of words: names, parts of speech."""

    options = (TaggingTask, TaggingOptions, Reading)
    defaults = dict(max_seq_length=128, save_checkpoints_steps=1000)
    helps = dict(
        save_checkpoints_steps=" With --do_eval, a tenth of the steps by default.")
    first = "train_file dev_file test_file"
    without = "prediction_file all_probabilities"
    own_data = True
    head = "token_classification"
    data_options = {split: f"{split}_file" for split in ("train", "dev", "test")}

    def task(self):
        values = self.values
        return build_task(
            values.do_train and values.train_file or "", labels=values.labels,
            known_labels=() if values.labels else self.initial_labels(),
            scheme=values.scheme, reading=given(Reading, values),
            max_seq_length=values.max_seq_length, doc_stride=values.doc_stride,
            label_all_tokens=values.label_all_tokens, test_tags=values.test_tags)

    def kept(self, task):
        return {**super().kept(task), "head": self.head}

    def chosen(self, task):
        return {"labels": list(task.labels), "scheme": task.scheme,
                "split_words": task.reading.split_words}

    def text(self, task, settings, step):
        return dict(split=task.reading.split_words)
