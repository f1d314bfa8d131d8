"""What the folder of a fine-tuned model keeps, so that it can be used by itself.

Beside checkpoints and config lie `task.json`, with the flags that make up the task
and its labels, and a copy of the vocabulary.
"""

import json
import os
from typing import Any, Mapping, Optional

from albert_tf import files
from albert_tf.checkpoints.files import folder_of, holds_checkpoint
from albert_tf.errors import InputError
from albert_tf.tokenization import tokenizer

TASK_FILE = "task.json"

# Written by run_pretraining.py, and part of task.json.
VOCABULARY_FILE = "vocabulary.json"


def keep(folder: str, settings: Mapping[str, Any], vocabulary_path: str) -> None:
    """Writes task.json and a copy of the vocabulary.

    Args:
      folder: output_dir.
      settings: JSON values.
      vocabulary_path: SentencePiece model or WordPiece vocabulary.

    Raises:
      InputError: if the folder was made for another task: names what differs.
    """
    vocabulary = tokenizer.vocabulary_of(vocabulary_path)
    settings = json.loads(json.dumps({**settings, "vocabulary": vocabulary}))
    before = read(folder)
    # A run that came to nothing does not tie the folder.
    if before is not None and holds_checkpoint(folder):
        check_same(folder, before, settings)
    copy = os.path.join(folder, vocabulary["file"])
    if not (files.exists(copy) and tokenizer.vocabulary_of(copy) == vocabulary):
        files.copy(vocabulary_path, copy)
    with files.atomic_write(os.path.join(folder, TASK_FILE)) as stream:
        text = json.dumps(settings, indent=2, ensure_ascii=False)
        stream.write(text.encode() + b"\n")


def check_use(folder: str, settings: Mapping[str, Any]) -> None:
    """Raises InputError where a folder holds a model that does not fit a task.

    A model may be evaluated on another task that has its labels.
    """
    kept = read(folder) if holds_checkpoint(folder) else None
    if kept is not None:
        key = "labels" if "labels" in settings else "task"
        check_same(folder, kept, json.loads(json.dumps({key: settings[key]})))


def check_same(folder: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raises InputError where what both tell of the task or vocabulary differs."""
    for key in ("task", "labels"):
        if key in before and key in now and before[key] != now[key]:
            raise InputError(
                f"{folder} holds a model of another task: {key} {before[key]!r} there, "
                f"{now[key]!r} here; choose another --output_dir.")
    if "vocabulary" in now:
        check_vocabulary(before["vocabulary"], now["vocabulary"], folder)


def check_vocabulary(kept: Mapping[str, str], given: Mapping[str, str],
                     where: str) -> None:
    """Raises InputError where two vocabularies differ in content."""
    if kept.get("sha256") and kept["sha256"] != given["sha256"]:
        raise InputError(
            f"{given['file']} is not the vocabulary of the model in {where}, which "
            f"was made with another ({kept.get('file', 'unnamed')}); give that one.")


def check_records(folder: str, vocabulary: Mapping[str, Any]) -> None:
    """Raises InputError where a pretrained model has another vocabulary than records.

    Args:
      folder: output_dir of pretraining.
      vocabulary: of the records to go on with.
    """
    kept = pretraining_vocabulary(folder) if holds_checkpoint(folder) else None
    if kept and kept.get("sha256") not in (None, vocabulary["sha256"]):
        raise InputError(
            f"the records were made with another vocabulary ({vocabulary['file']}) "
            f"than the model in {folder} ({kept.get('file', 'unnamed')}); choose "
            "another --output_dir, or make the records with the model's.")


def keep_vocabulary(folder: str, vocabulary: Mapping[str, Any]) -> None:
    """Writes the vocabulary.json of a pretrained model: file, sha256 and size."""
    with files.atomic_write(os.path.join(folder, VOCABULARY_FILE)) as stream:
        stream.write(json.dumps(vocabulary, indent=2).encode() + b"\n")


def read(folder: str) -> Optional[dict[str, Any]]:
    """The settings of a folder, or None if it has none.

    Raises:
      InputError: if the file is damaged.
    """
    return _read_json(os.path.join(folder, TASK_FILE))


def pretraining_vocabulary(checkpoint: str) -> Optional[dict[str, str]]:
    """The vocabulary that the model of a checkpoint was made with, where it is known.

    Args:
      checkpoint: a folder, or a checkpoint in it.
    """
    folder = folder_of(checkpoint)
    task = _read_json(os.path.join(folder, TASK_FILE))
    return task["vocabulary"] if task else _read_json(
        os.path.join(folder, VOCABULARY_FILE))


def _read_json(path: str) -> Optional[dict[str, Any]]:
    if not files.exists(path):
        return None
    found = files.read_json(
        path, "restore the file, or remove it and give all flags")
    if not isinstance(found, dict):
        raise InputError(f"{path}: not a JSON object; restore the file, or remove it "
                         "and give all flags.")
    return found
