"""The vocabulary that a model was made with, as its folder says beside the checkpoints.

A model with another vocabulary gives numbers without meaning, and no error: so runs
compare the SHA-256 of what they are given with what the folder says.
"""

import os
from typing import Any, Mapping, Optional, Sequence

import numpy as np

from albert_tf import files, text_files
from albert_tf.checkpoints.folders import folder_of, holds_checkpoint
from albert_tf.errors import InputError

# Of a pretrained model: file, sha256 and size of its vocabulary.
VOCABULARY_FILE = "vocabulary.json"
# Of a fine-tuned model: its settings, `vocabulary` (file and sha256) among them.
TASK_FILE = "task.json"
# Flags in it that say how a model answers: sizes, and one of several words.
_SIZES = ("max_seq_length", "doc_stride", "max_query_length", "n_best_size",
          "max_answer_length", "max_qa_length", "start_n_top", "end_n_top")
_WORDS = ("scheme", "split_words")
_ADVICE = "restore the file, or remove it and give all flags"


def keep(folder: str, vocabulary: Mapping[str, Any]) -> None:
    """Writes the vocabulary.json of a pretrained model."""
    text_files.write_json(os.path.join(folder, VOCABULARY_FILE), vocabulary)


def kept_beside(checkpoint: str) -> Optional[dict[str, str]]:
    """The vocabulary of a model, by its folder or a checkpoint in it; None: unknown."""
    folder = folder_of(checkpoint)
    task = task_settings(folder)
    return task["vocabulary"] if task else settings_in(
        os.path.join(folder, VOCABULARY_FILE))


def task_settings(folder: str) -> Optional[dict[str, Any]]:
    """The settings of a fine-tuned model, or None if the folder has none."""
    path = os.path.join(folder, TASK_FILE)
    task = settings_in(path)
    if task is not None and "class_name" in task:
        return None  # keras-hub has a file of the same name.
    if task is not None and not (
            isinstance(task.get("flags", {}), dict)
            and task.get("vocabulary_flag", "vocab_file") in (
                "vocab_file", "spm_model_file")
            and isinstance(task.get("vocabulary"), dict)
            and isinstance(task["vocabulary"].get("file"), str)):
        raise InputError(
            f"{path}: does not say which flags and vocabulary the model was made with, "
            f"as the {TASK_FILE} of a fine-tuned model does; {_ADVICE}.")
    check_settings(task or {}, path)
    return task


def check_settings(task: Mapping[str, Any], path: str) -> None:
    """Raises InputError where settings that answers depend on cannot be meant; `path`
    is the file that holds them."""
    given = task.get("flags", {})
    if not isinstance(given, dict):
        raise InputError(f"{path}: flags is no JSON object; {_ADVICE}.")
    for name in _SIZES:
        value = given.get(name, 1)
        if not (type(value) is int and 0 < value < 2 ** 31):
            raise InputError(f"{path}: {name} is {value!r}, not a number of 1 or more; "
                             f"{_ADVICE}.")
    for name, values in (("labels", task.get("labels") or []), *(
            (name, [given[name]]) for name in _WORDS if given.get(name) is not None)):
        wrong = [each for each in values if not isinstance(each, str)] if isinstance(
            values, list) else [values]
        if wrong:
            raise InputError(f"{path}: {name} holds {wrong[0]!r}, which is no text; "
                             f"{_ADVICE}.")


def settings_in(path: str) -> Optional[dict[str, Any]]:
    """The object that a JSON file of the folder holds, or None if it is not there."""
    return text_files.read_object(path, _ADVICE) if files.exists(path) else None


def check(kept: Mapping[str, str], given: Mapping[str, str], where: str) -> None:
    """Raises InputError where two vocabularies differ in content, or in whether text
    keeps its accents."""
    if kept.get("sha256") and kept["sha256"] != given["sha256"]:
        raise InputError(
            f"{given['file']} is not the vocabulary of the model in {where}, which "
            f"was made with another ({kept.get('file', 'unnamed')}); give that one.")
    strips = kept.get("strip_accents", True)
    if given.get("strip_accents", True) != strips:
        raise InputError(
            f"the model in {where} was made of text {'without' if strips else 'with'} "
            f"accents; give --strip_accents={str(strips).lower()}, and data made so.")


def check_records(folder: str, vocabulary: Mapping[str, Any]) -> None:
    """Raises InputError where the model in `folder` has another one than records."""
    kept = kept_beside(folder) if holds_checkpoint(folder) else None
    if kept and kept.get("sha256") not in (None, vocabulary["sha256"]):
        raise InputError(
            f"the records were made with another vocabulary ({vocabulary['file']}) "
            f"than the model in {folder} ({kept.get('file', 'unnamed')}); choose "
            "another --output_dir, or make the records with the model's.")
    if kept:
        check({"strip_accents": kept.get("strip_accents", True)}, vocabulary, folder)


# The variables with a row for each piece.
_ROWS = ("bert/embeddings/word_embeddings", "cls/predictions/output_bias")


def with_new_pieces(tensors: Mapping[str, np.ndarray], vocab_size: int,
                    parts: Sequence[Sequence[int]]) -> dict[str, np.ndarray]:
    """A model's tensors for a vocabulary that was extended at its end.

    The row of a new piece is the mean of those of the old pieces that its text was cut
    into (`parts`: their ids for each new piece): the model begins where it would read
    them without their order. The optimizer's state has no such rows and is left out.
    """
    def extended(name, rows):
        if len(rows) != vocab_size:
            raise InputError(
                f"the checkpoint's {name} has {len(rows)} rows, but the config's "
                f"vocab_size is {vocab_size}; give the config of that model.")
        means = [rows[list(ids)].mean(axis=0, keepdims=True) for ids in parts]
        return np.concatenate([rows, *means]).astype(rows.dtype)

    if _ROWS[0] not in tensors:
        raise InputError(f"the checkpoint holds no {_ROWS[0]}: it is none of ALBERT.")
    return {name: extended(name, tensor) if name in _ROWS else tensor
            for name, tensor in tensors.items()
            if not name.endswith(("/adam_m", "/adam_v")) and name != "global_step"}
