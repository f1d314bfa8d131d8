"""The files that make the folder of a fine-tuned model usable by itself, besides
checkpoints and config: `task.json`, with the labels and the flags that define the task,
and a copy of the vocabulary.
"""

import json
import os
from typing import Any, Mapping

from albert_tf import files, text_files
from albert_tf.checkpoints import vocabulary
from albert_tf.checkpoints.folders import holds_checkpoint
from albert_tf.errors import InputError
from albert_tf.tokenization import tokenizer


def keep(folder: str, settings: Mapping[str, Any], vocabulary_path: str) -> None:
    """Writes the settings, which are JSON values, to task.json, and copies the
    vocabulary. Raises InputError if the folder has a model for a different task."""
    settings = check_keep(folder, settings, vocabulary_path)
    stored = settings["vocabulary"]
    copy = os.path.join(folder, stored["file"])
    if not (files.exists(copy) and files.sha256(copy) == stored["sha256"]):
        files.copy(vocabulary_path, copy)
    text_files.write_json(
        os.path.join(folder, vocabulary.TASK_FILE), settings, ensure_ascii=False)


def check_keep(folder: str, settings: Mapping[str, Any], vocabulary_path: str
               ) -> dict[str, Any]:
    """Returns what `keep` would write, or raises its InputError."""
    settings = json.loads(json.dumps(
        {**settings, "vocabulary": {**tokenizer.vocabulary_of(vocabulary_path),
                                    **settings.get("vocabulary", {})}}))
    # A run that saved no checkpoint does not claim the folder.
    if holds_checkpoint(folder):
        if (before := vocabulary.task_settings(folder)) is None:
            raise InputError(
                f"{folder} has a model that was not fine-tuned there. To start from "
                f"it, give --init_checkpoint={folder} and a different --output_dir.")
        _check_same(folder, before, settings, "task", "head", "labels", "vocabulary")
    return settings


def check_use(folder: str, settings: Mapping[str, Any], training: bool) -> None:
    """Raises InputError if the model in a folder does not fit a task. A model may be
    evaluated on a different task with the same labels. In training, `keep` checks the
    labels, because they may come from the data."""
    before = vocabulary.task_settings(folder)
    if before is not None and "labels" in settings and not training:
        # Labels of texts and tags of words may be the same.
        head = {"head": "classification"}
        _check_same(folder, {**head, **before}, {
            **head, **settings, "labels": list(settings["labels"])}, "head", "labels")
    elif before is not None and "labels" not in settings and holds_checkpoint(folder):
        _check_same(folder, before, settings, "task")


def _check_same(folder: str, before: Mapping[str, Any], now: Mapping[str, Any],
                *keys: str) -> None:
    for key in (key for key in keys if key in before and key in now):
        if key == "vocabulary":
            vocabulary.check(before[key], now[key], folder)
        elif before[key] != now[key]:
            raise InputError(
                f"{folder} has a model for a different task ({key}: {before[key]!r} "
                f"there, {now[key]!r} in this run); choose a different --output_dir.")
