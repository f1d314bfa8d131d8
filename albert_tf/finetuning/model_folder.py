"""What the folder of a fine-tuned model keeps, so that it can be used by itself.

Beside checkpoints and config lie `task.json`, with the flags that make up the task
and its labels, and a copy of the vocabulary.
"""

import json
import os
from typing import Any, Mapping, Optional

from albert_tf import files, text_files
from albert_tf.checkpoints import vocabulary
from albert_tf.checkpoints.folders import holds_checkpoint
from albert_tf.errors import InputError
from albert_tf.tokenization import tokenizer


def keep(folder: str, settings: Mapping[str, Any], vocabulary_path: str) -> None:
    """Writes task.json, of JSON values, and a copy of the vocabulary; refuses a folder
    with a model of another task."""
    settings = check_keep(folder, settings, vocabulary_path)
    given = settings["vocabulary"]
    copy = os.path.join(folder, given["file"])
    if not (files.exists(copy) and files.sha256(copy) == given["sha256"]):
        files.copy(vocabulary_path, copy)
    text_files.write_json(
        os.path.join(folder, vocabulary.TASK_FILE), settings, ensure_ascii=False)


def check_keep(folder: str, settings: Mapping[str, Any], vocabulary_path: str
               ) -> dict[str, Any]:
    """What `keep` would write; raises InputError where it would refuse the folder."""
    settings = json.loads(json.dumps(
        {**settings, "vocabulary": {**tokenizer.vocabulary_of(vocabulary_path),
                                    **settings.get("vocabulary", {})}}))
    before = read(folder)
    # A run that came to nothing does not tie the folder.
    if holds_checkpoint(folder):
        if before is None:
            raise InputError(
                f"{folder} holds a model that was not fine-tuned there: give another "
                f"--output_dir, and --init_checkpoint={folder} to start from it.")
        check_same(folder, before, settings)
    return settings


def check_use(folder: str, settings: Mapping[str, Any], training: bool) -> None:
    """Raises InputError where a folder holds a model that does not fit a task.

    A model may be evaluated on another task that has its labels. Of a run that trains
    `keep` sees to the labels, which may come from the data.
    """
    kept = read(folder)
    key = "labels" if "labels" in settings else "task"
    if kept is not None and (
            holds_checkpoint(folder) if key == "task" else not training):
        check_same(folder, kept, json.loads(json.dumps({key: settings[key]})))


def check_same(folder: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raises InputError where what both say of the task or vocabulary differs."""
    for key in ("task", "labels"):
        if key in before and key in now and before[key] != now[key]:
            raise InputError(
                f"{folder} holds a model of another task: {key} {before[key]!r} there, "
                f"{now[key]!r} here; choose another --output_dir.")
    if "vocabulary" in now:
        vocabulary.check(before["vocabulary"], now["vocabulary"], folder)


def read(folder: str) -> Optional[dict[str, Any]]:
    """The settings of a folder, or None if it has none."""
    return vocabulary.task_settings(folder)
