"""The files that make the folder of a fine-tuned model usable by itself, besides
checkpoints and config: `task.json`, with the labels and the flags that define the task,
and a copy of the vocabulary.
"""

import os
from typing import Any, Mapping

from albert_tf import files, text_files
from albert_tf.checkpoints import vocabulary
from albert_tf.checkpoints.folders import holds_checkpoint
from albert_tf.errors import InputError
from albert_tf.tokenization.tokenizer import vocabulary_of


def keep(folder: str, settings: Mapping[str, Any], vocabulary_path: str) -> None:
    """Writes the settings to task.json, and copies the vocabulary. Raises InputError if
    the folder has a model for a different task, or with a different vocabulary."""
    kept = {**vocabulary_of(vocabulary_path), **settings.get("vocabulary", {})}
    check(folder, settings, training=True)
    vocabulary.check_records(folder, kept)
    copy = os.path.join(folder, kept["file"])
    if not (files.exists(copy) and files.sha256(copy) == kept["sha256"]):
        files.copy(vocabulary_path, copy)
    text_files.write_json(os.path.join(folder, vocabulary.TASK_FILE), {
        **settings, "vocabulary": kept}, ensure_ascii=False)


def check(folder: str, settings: Mapping[str, Any], training: bool) -> None:
    """Raises InputError if the model in a folder does not fit a task. A model may be
    evaluated on a different task with the same labels, and a run that saved no checkpoint
    does not claim the folder."""
    before, has_model = vocabulary.task_settings(folder), holds_checkpoint(folder)
    if not before and has_model and training:
        raise InputError(
            f"{folder} has a model that was not fine-tuned there. To start from it, give "
            f"--init_checkpoint={folder} and a different --output_dir.")
    # Labels of texts and tags of words may be the same.
    head = {"head": "classification"}
    before, now = before and {**head, **before}, {**head, **settings}
    keys = ("head", "labels") if "labels" in now and not training else (
        "task", "head", "labels") if has_model else ()
    for key in keys if before else ():
        if key in before and key in now and before[key] != now[key]:
            raise InputError(
                f"{folder} has a model for a different task ({key}: {before[key]!r} "
                f"there, {now[key]!r} in this run); choose a different --output_dir.")
