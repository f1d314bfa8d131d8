"""The vocabulary that a model was made with, as recorded beside its checkpoints. With a
different one, which its SHA-256 tells, a model gives meaningless numbers, but no error.
"""

import os
from typing import Any, Mapping, Optional, Sequence

from albert_tf import files, text_files
from albert_tf.checkpoints.folders import folder_of, holds_checkpoint
from albert_tf.config import refuse
from albert_tf.errors import InputError, reading

# In a pretrained model's folder: file, sha256 and size of its vocabulary.
VOCABULARY_FILE = "vocabulary.json"
# In a fine-tuned model's folder: its settings, with `vocabulary` (file and sha256). In
# what was made from it, by a conversion or an export: the same, with or without it.
TASK_FILE = "task.json"
# Flags in TASK_FILE that answers depend on, numbers of tokens or answers.
_COUNTS = ("max_seq_length", "doc_stride", "max_query_length", "n_best_size",
           "max_answer_length", "max_qa_length", "start_n_top", "end_n_top")


def keep(folder: str, vocabulary: Mapping[str, Any], path: Optional[str] = None) -> None:
    """Writes a pretrained model's vocabulary.json, and a copy of the file at `path`."""
    if path and not files.exists(copy := copy_of(folder, vocabulary, path)):
        files.copy(path, copy)
    text_files.write_json(os.path.join(folder, VOCABULARY_FILE), vocabulary)


def copy_of(folder: str, vocabulary: Mapping[str, Any], path: str) -> str:
    """Returns where `keep` copies a file to, unless a different one is there."""
    copy = os.path.join(folder, vocabulary["file"])
    if files.exists(copy) and files.sha256(copy) != files.sha256(path):
        raise InputError(
            f"{copy} is not the vocabulary {path} of the records, and would be replaced "
            "by it; move that file, or choose a different --output_dir.")
    return copy


def file_of(vocabulary: Mapping[str, Any], places: Sequence[str]) -> Optional[str]:
    """Returns the first of several paths that holds a vocabulary's file, or None."""
    return next((path for path in places if path and files.exists(path)
                 and not files.is_folder(path)
                 and files.sha256(path) == vocabulary["sha256"]), None)


def kept_beside(checkpoint: str) -> dict[str, Any]:
    """Returns the vocabulary recorded beside a checkpoint or in a folder, or {}."""
    folder = folder_of(checkpoint)
    task = task_settings(folder)
    if "vocabulary" not in task:
        return settings_in(os.path.join(folder, VOCABULARY_FILE))
    return {"kind": "WordPiece" if task.get("vocabulary_flag") == "vocab_file" else "",
            "do_lower_case": task.get("flags", {}).get("do_lower_case", True),
            **task["vocabulary"]}


def task_settings(folder: str) -> dict[str, Any]:
    """Returns the settings of a fine-tuned model or what was made of it, or {}."""
    task = settings_in(path := os.path.join(folder, TASK_FILE))
    if "class_name" in task:  # keras-hub's file of the same name.
        return {}
    check_settings(task, path)
    return task


def elsewhere(task: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings for a conversion, which has vocabulary and labels elsewhere."""
    return {name: value for name, value in task.items() if name not in (
        "vocabulary", "vocabulary_flag", "labels", "problem_type")}


def check_settings(task: Mapping[str, Any], path: str) -> None:
    """Raises InputError if settings in the file `path` cannot be used."""
    with reading(path):
        for name, value in {**task.get("flags", {})}.items():
            if (name in _COUNTS and not (type(value) is int and 0 < value < 2**31)) or (
                    name == "label_threshold" and not 0 <= value <= 1):
                raise ValueError(f"{name} is {value!r}")
        labels = task.get("labels") or []
        texts = *labels, task.get("vocabulary", {"file": ""})["file"]
        if type(labels) is not list or not all(isinstance(text, str) for text in texts):
            raise ValueError("labels, or the file of the vocabulary, are no texts")
    refuse(task, path, vocabulary_flag=("vocab_file", "spm_model_file"))


def settings_in(path: str) -> dict[str, Any]:
    """Returns the object in a JSON file, or {} if the file does not exist."""
    return text_files.read_object(path) if files.exists(path) else {}


def check_file(kept: Mapping[str, Any], path: str, where: str, sha256: str = "") -> None:
    """Raises InputError if the file at `path` is not the recorded vocabulary."""
    if (known := kept.get("sha256")) and known != (sha256 or files.sha256(path)):
        raise InputError(
            f"{path} is not the vocabulary of the model in {where}, which was made with "
            f"{kept.get('file', 'a vocabulary without a name')}; give that one (if the "
            "file was changed, restore it), or choose a different folder.")


def check(kept: Mapping[str, Any], given: Mapping[str, Any], where: str) -> None:
    """Raises InputError if two vocabularies or their cleaning of text differ."""
    check_file(kept, given["file"], where, given["sha256"])
    theirs, ours = ({"strip_accents": each.get("strip_accents", True),
                     **each.get("rules", {})} for each in (kept, given))
    if ours != theirs:
        raise InputError(
            f"{given['file']} cleans text differently ({ours}) than the tokenizer of the "
            f"model in {where} ({theirs}); give that tokenizer, --strip_accents="
            f"{str(theirs['strip_accents']).lower()}, and data made with the same.")


def check_records(folder: str, vocabulary: Mapping[str, Any]) -> None:
    """Raises InputError if the model in `folder` has a different vocabulary."""
    if holds_checkpoint(folder) and (recorded := kept_beside(folder)):
        check(recorded, vocabulary, folder)
