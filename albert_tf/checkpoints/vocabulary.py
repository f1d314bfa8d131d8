"""The vocabulary that a model was made with, as recorded beside its checkpoints.

With a different vocabulary a model gives meaningless numbers, but no error. Runs
therefore compare the SHA-256 of the given vocabulary with the recorded one.
"""

import os
from typing import Any, Mapping, Optional, Sequence

import numpy as np

from albert_tf import files, text_files
from albert_tf.checkpoints.checkpoint import LABEL_THRESHOLD
from albert_tf.checkpoints.folders import folder_of, holds_checkpoint
from albert_tf.errors import InputError

# In a pretrained model's folder: file, sha256 and size of its vocabulary.
VOCABULARY_FILE = "vocabulary.json"
# In a fine-tuned model's folder: its settings, with `vocabulary` (file and sha256).
TASK_FILE = "task.json"
# Flags in TASK_FILE that answers depend on: sizes, and words.
_SIZES = ("max_seq_length", "doc_stride", "max_query_length", "n_best_size",
          "max_answer_length", "max_qa_length", "start_n_top", "end_n_top")
_WORDS = ("scheme", "split_words")
_ADVICE = "restore the file, or remove it and give all flags"


def keep(folder: str, vocabulary: Mapping[str, Any], path: Optional[str] = None) -> None:
    """Writes the vocabulary.json of a pretrained model, and a copy of the vocabulary's
    file at `path`."""
    if path:
        copy = copy_of(folder, vocabulary, path)
        if not files.exists(copy):
            files.copy(path, copy)
    text_files.write_json(os.path.join(folder, VOCABULARY_FILE), vocabulary)


def copy_of(folder: str, vocabulary: Mapping[str, Any], path: str) -> str:
    """Returns where `keep` copies a vocabulary file to. Raises InputError if a
    different file is there."""
    copy = os.path.join(folder, vocabulary["file"])
    if files.exists(copy) and (
            files.is_folder(copy) or files.sha256(copy) != files.sha256(path)):
        raise InputError(
            f"{copy} is not the vocabulary {path} of the records, and would be replaced "
            "by it; move that file, or choose a different --output_dir.")
    return copy


def file_of(vocabulary: Mapping[str, Any], places: Sequence[str]) -> Optional[str]:
    """Returns the first of several paths that holds a vocabulary's file, or None."""
    return next((path for path in places if path and files.exists(path)
                 and not files.is_folder(path)
                 and files.sha256(path) == vocabulary["sha256"]), None)


def kept_beside(checkpoint: str) -> Optional[dict[str, str]]:
    """Returns the vocabulary recorded in a model's folder, given the folder or a
    checkpoint in it; None if it is unknown."""
    folder = folder_of(checkpoint)
    task = task_settings(folder)
    return task["vocabulary"] if task else settings_in(
        os.path.join(folder, VOCABULARY_FILE))


def task_settings(folder: str) -> Optional[dict[str, Any]]:
    """Returns the settings of a fine-tuned model, or None if the folder has none."""
    path = os.path.join(folder, TASK_FILE)
    task = settings_in(path)
    if task is not None and "class_name" in task:
        return None  # It is keras-hub's file of the same name.
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
    """Raises InputError if settings that answers depend on are not valid; `path` is the
    file that holds them."""
    flags = task.get("flags", {})
    if not isinstance(flags, dict):
        raise InputError(f"{path}: flags is not a JSON object; {_ADVICE}.")
    for name in _SIZES:
        value = flags.get(name, 1)
        if not (type(value) is int and 0 < value < 2 ** 31):
            raise InputError(f"{path}: {name} is {value!r}, not a whole number of 1 or "
                             f"more; {_ADVICE}.")
    threshold = flags.get("label_threshold", LABEL_THRESHOLD)
    if not (type(threshold) in (int, float) and 0 <= threshold <= 1):
        raise InputError(f"{path}: label_threshold is {threshold!r}, not a probability "
                         f"from 0 to 1; {_ADVICE}.")
    for name, values in (("labels", task.get("labels") or []), *(
            (name, [flags[name]]) for name in _WORDS if flags.get(name) is not None)):
        wrong = [each for each in values if not isinstance(each, str)] if isinstance(
            values, list) else [values]
        if wrong:
            raise InputError(f"{path}: {name} holds {wrong[0]!r}, which is not text; "
                             f"{_ADVICE}.")


def settings_in(path: str) -> Optional[dict[str, Any]]:
    """Returns the object in a JSON file, or None if the file does not exist."""
    return text_files.read_object(path, _ADVICE) if files.exists(path) else None


def check(kept: Mapping[str, str], given: Mapping[str, str], where: str) -> None:
    """Raises InputError if two vocabularies differ in content, or in how text is
    cleaned."""
    if kept.get("sha256") and kept["sha256"] != given["sha256"]:
        if given["file"] == os.path.join(where, kept.get("file", "")):
            raise InputError(
                f"{given['file']} has a different content than the vocabulary that the "
                f"model in {where} was made with; restore the file.")
        raise InputError(
            f"{given['file']} is not the vocabulary of the model in {where}, which was "
            f"made with {kept.get('file', 'a vocabulary without a name')}; give that "
            "one.")
    strips = kept.get("strip_accents", True)
    if given.get("strip_accents", True) != strips:
        raise InputError(
            f"the model in {where} was trained on text "
            f"{'without' if strips else 'with'} accents; give --strip_accents="
            f"{str(strips).lower()}, and data made with the same setting.")
    if given.get("rules", {}) != kept.get("rules", {}):
        raise InputError(
            f"{given['file']} cleans text differently than the tokenizer of the model in "
            f"{where} ({given.get('rules') or 'as the original implementation'} instead "
            f"of {kept.get('rules') or 'as the original implementation'}); give the "
            "tokenizer that the model was made with.")


def check_records(folder: str, vocabulary: Mapping[str, Any]) -> None:
    """Raises InputError if the model in `folder` has a different vocabulary than the
    records."""
    recorded = kept_beside(folder) if holds_checkpoint(folder) else None
    if recorded and recorded.get("sha256") not in (None, vocabulary["sha256"]):
        raise InputError(
            f"the records were made with a different vocabulary ({vocabulary['file']}) "
            f"than the model in {folder} ({recorded.get('file', 'unnamed')}); choose a "
            "different --output_dir, or create the records with the model's.")
    if recorded:
        check({name: recorded[name] for name in ("strip_accents", "rules")
               if name in recorded}, vocabulary, folder)


# The variables with a row for each token.
_ROWS = ("bert/embeddings/word_embeddings", "cls/predictions/output_bias")


def with_new_pieces(tensors: Mapping[str, np.ndarray], vocab_size: int,
                    parts: Sequence[Sequence[int]]) -> dict[str, np.ndarray]:
    """Returns a model's tensors for a vocabulary that was extended at its end.

    The row of a new token is the mean of the rows of the old tokens that its text was
    split into (`parts`: their ids for each new token). The model therefore starts as if
    it read the old tokens without their order. The optimizer's state is left out.
    """
    def extended(name, rows):
        if len(rows) != vocab_size:
            raise InputError(
                f"the checkpoint's {name} has {len(rows)} rows, but the config's "
                f"vocab_size is {vocab_size}; give the config of that model.")
        means = [rows[list(ids)].mean(axis=0, keepdims=True) for ids in parts]
        return np.concatenate([rows, *means]).astype(rows.dtype)

    if _ROWS[0] not in tensors:
        raise InputError(f"the checkpoint holds no {_ROWS[0]}; give one of an ALBERT.")
    return {name: extended(name, tensor) if name in _ROWS else tensor
            for name, tensor in tensors.items()
            if not name.endswith(("/adam_m", "/adam_v")) and name != "global_step"}
