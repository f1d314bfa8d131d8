"""Folders of runs and of checkpoints: which checkpoint a path stands for, reading and
writing one completely, and the names of all files that a run writes, and replaces.

A checkpoint is named by its prefix, "run/model.ckpt-500", before ".index" and
".data-00000-of-00001". TensorFlow is imported late.
"""

import contextlib
import functools
import importlib
import os
import pkgutil
import re
from typing import Any, Callable, Iterable, Mapping, Optional

import numpy as np

import albert_tf
from albert_tf import files, text_files
from albert_tf.checkpoints import bundle
from albert_tf.checkpoints.bundle import Tensor
from albert_tf.errors import InputError, Interruption, reason_of
from albert_tf.files import StrPath

CHECKPOINT_NAME = "model.ckpt"  # "-" and the step follow
BEST_CHECKPOINT = "model.ckpt-best"
# TensorFlow's list of the checkpoints in a folder.
STATE_FILE = "checkpoint"
# The null odds from which on the model in the folder leaves a question unanswered.
NULL_THRESHOLD = "null_score_diff_threshold"
NULL_THRESHOLD_FILE = "null_threshold.json"

# The ways out, for a path without a model and a run whose checkpoint cannot be used.
ADVICE = "check the path, or give hf://OWNER/NAME for a model of the Hugging Face hub"
EARLIER = ("give --resume_from=STEP to resume from an earlier checkpoint, or choose a "
           "different --output_dir")

RUN_FILE = "albert_tf-run.json"  # Marks the folder of a run.
# Patterns of names. The files that hold a model are also written by conversions.
_MODEL = (r"checkpoint", r"model\.ckpt-(\d+|best)\..*", r"albert_config\.json")
_RUN = (
    re.escape(RUN_FILE), r"(options|task|vocabulary|best_metric|eval_results"
    r"|evaluation_set|seeds)\.json", r"metrics\.jsonl", r"curves\.png", r"run\.lock")
# The folder of rows that were given from Python.
PYTHON_DATA = "finetune_data"
_FOLDERS = (r"tensorboard", r"eval_predictions", PYTHON_DATA, r"seed-\d+(-retry-\d+)?")

_INDEX = re.compile(re.escape(CHECKPOINT_NAME) + r"-\d+\.index")
_SUFFIX = re.compile(r"\.(index|meta|data-\d{5}-of-\d{5})$")


# ---- the checkpoints of a run ------------------------------------------------


def holds_checkpoint(folder: str) -> bool:
    """Returns whether a run has saved its best or another checkpoint in a folder."""
    names = files.names_in(folder)
    return STATE_FILE in names or f"{BEST_CHECKPOINT}.index" in names or (
        any(map(_INDEX.fullmatch, names)))


def checkpoint_of(folder: str, best: bool = True, to_train: bool = False
                  ) -> Optional[str]:
    """Returns the prefix of a run's best checkpoint if `best` and there is one, else of
    the latest that its folder lists, else of the only one, but the best not `to_train`;
    None if the folder never held a checkpoint. If the list names none that exists, a new
    start would overwrite what can be repaired."""
    names, best_prefix = files.names_in(folder), os.path.join(folder, BEST_CHECKPOINT)
    has_best = f"{BEST_CHECKPOINT}.index" in names
    if best and has_best:
        return best_prefix
    latest = _latest(folder)
    if f"{latest}.index" in names:
        return os.path.join(folder, latest)
    if STATE_FILE not in names:
        indices = [*filter(_INDEX.fullmatch, names)]
        if len(indices) == 1:  # A run was killed before it listed its first checkpoint.
            return os.path.join(folder, indices[0].removesuffix(".index"))
        if not indices and not (has_best and to_train):
            return best_prefix if has_best else None
    raise InputError(
        f"{os.path.join(folder, STATE_FILE)} does not name a checkpoint that exists"
        f"{f' (it names {latest})' if latest else ''}. Without it, a new run would "
        f"write over the checkpoints in the folder. Restore the file, {EARLIER}.")


def _latest(folder: str) -> str:
    """Returns the name of the latest checkpoint in a folder's list, "" if it is damaged or
    missing. The folder may have been moved since the list was written."""
    path = os.path.join(folder, STATE_FILE)
    if not files.exists(path) or files.is_folder(path):
        return ""
    with files.open_binary(path) as stream:
        found = re.search(
            rb'^\s*model_checkpoint_path: *"(?:.*/)?(.+)"\s*$', stream.read(), re.M)
    return found[1].decode("utf-8", "replace") if found else ""


def chosen_checkpoint(folder: str, resume_from: str) -> str:
    """Returns the prefix of a run's checkpoint, given its step or its path."""
    files.check_in_tensorflow(resume_from, "--resume_from")
    return find_checkpoint(os.path.join(folder, f"{CHECKPOINT_NAME}-{resume_from}")
                           if resume_from.isdecimal() else resume_from)


# ---- finding ---------------------------------------------------------------


def folder_of(path: str) -> str:
    """Returns the folder of a model, given it, a file in it or a checkpoint's prefix."""
    return os.path.dirname(path) or "." if _SUFFIX.search(path) or files.exists(
        f"{path}.index") else whole(path)


def whole(path: str) -> str:
    """Returns the folder if a path is one of several files that make up a model."""
    is_part = path.endswith((".safetensors", ".bin", ".h5", ".json", ".pb"))
    return os.path.dirname(path) or "." if is_part and files.exists(path) else path


def find(path: str) -> Optional[str]:
    """Returns the prefix of the checkpoint that a path stands for, or None: a prefix, one
    of its files, a folder of checkpoints (its best, latest or only one) or SavedModel."""
    prefix = _SUFFIX.sub("", path)
    if files.exists(f"{prefix}.index"):
        return prefix
    names = files.names_in(path)
    exported = os.path.join(path, "variables", "variables")
    if "saved_model.pb" in names and files.exists(f"{exported}.index"):
        return exported
    prefixes = [
        name.removesuffix(".index") for name in names if name.endswith(".index")]
    for name in (BEST_CHECKPOINT, _latest(path), *(prefixes if len(prefixes) == 1 else ())):
        if name in prefixes:
            return os.path.join(path, name)
    if prefixes:
        raise InputError(
            f"{path}: the folder holds several checkpoints, but neither "
            f"{BEST_CHECKPOINT} nor a file '{STATE_FILE}' that names the latest; give "
            f"the path of one of them: {', '.join(prefixes[:3])}.")
    return None


def find_checkpoint(path: StrPath) -> str:
    """Returns the prefix as `find` does. Raises InputError if none can be read."""
    path = os.fspath(path)
    if prefix := find(path):
        bundle.read(prefix)
        return prefix
    raise InputError(
        f"{path}: there is no checkpoint: neither {_SUFFIX.sub('', path)}.index nor a "
        f"folder with {BEST_CHECKPOINT} or what its file '{STATE_FILE}' names; {ADVICE}.")


def _files_of(prefix: str) -> list[str]:
    """Returns the paths of a checkpoint's data files, and last of its index."""
    folder, name = os.path.split(prefix)
    pattern = re.compile(re.escape(name) + r"\.(data-\d{5}-of-\d{5}|index)")
    return [os.path.join(folder, name) for name in sorted(
        filter(pattern.fullmatch, files.names_in(folder or ".")))]


# ---- reading ---------------------------------------------------------------


def read_tensors(path: StrPath) -> dict[str, np.ndarray]:
    """Returns all tensors of a checkpoint, or of its object `model`, by their names."""
    tensors = bundle.by_names(find_checkpoint(path), model_only=True)
    # Copied, so that they can be written to.
    return {name: np.array(tensors[name].read()) for name in sorted(tensors)}


@contextlib.contextmanager
def damage_explained(prefix: str):
    """Turns TensorFlow's errors when restoring a run into an InputError."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # The reader may raise any if a file is damaged.
        raise InputError(
            f"{prefix}: cannot be restored: its files are damaged or incomplete, or it "
            "lacks variables of this model or its optimizer, or has them in a different "
            "shape. Copy it again, leave out the flags that change the model, such as "
            f"--config_overrides, {EARLIER}.") from error


# ---- writing ---------------------------------------------------------------


def write_tensors(tensors: Mapping[str, np.ndarray], prefix: StrPath) -> None:
    """Writes a name-based checkpoint of TensorFlow 1."""
    _write_then_rename(prefix, lambda temporary: bundle.write(temporary, {
        name: Tensor.of(np.asarray(value)) for name, value in tensors.items()}))


def write_whole(checkpoint: Any, prefix: StrPath) -> None:
    """Writes a tf.train.Checkpoint."""
    _write_then_rename(prefix, checkpoint.write)


def copy_whole(source: str, prefix: str) -> None:
    """Copies the files of a checkpoint."""
    def copy(temporary):
        for path in _files_of(source):
            files.copy(path, temporary + path.removeprefix(source))

    _write_then_rename(prefix, copy)


def _write_then_rename(prefix: StrPath, write: Callable[[str], object]) -> None:
    """Writes the files under temporary names, then renames them, last the index: after a
    kill between two renames, the checksums in the old one do not fit."""
    import tensorflow as tf

    prefix = os.fspath(prefix)
    files.make_directory(os.path.dirname(prefix) or ".")
    temporary, older = f"{prefix}_temp{os.getpid()}", _files_of(prefix)
    try:
        write(temporary)
        written = {path: prefix + path.removeprefix(temporary)
                   for path in _files_of(temporary)}
        for path, target in written.items():
            files.rename(path, target)
    except (OSError, tf.errors.OpError) as error:
        raise Interruption(f"{prefix}: the checkpoint cannot be written: "
                           f"{reason_of(error)}.") from error
    finally:
        for path in _files_of(temporary):
            files.remove(path)
    for path in {*older} - {*written.values()}:
        files.remove(path)


# ---- the files of a run -------------------------------------------------------


@functools.cache
def tasks() -> dict[str, tuple[str, ...]]:
    """Returns the folder of each task in finetuning → what its runs write besides."""
    package = importlib.import_module("albert_tf.finetuning")
    return {each.name: importlib.import_module(f"{package.__name__}.{each.name}").FILES
            for each in pkgutil.iter_modules(package.__path__) if each.ispkg}


def is_of_run(name: str, of: Optional[Iterable[str]] = None) -> bool:
    """Returns whether pretraining, or one of these tasks (default: any), writes it."""
    more = [pattern for task in (tasks() if of is None else of)
            for pattern in tasks()[task]]
    return bool(re.fullmatch("|".join((*_MODEL, *_RUN, *more)), name))


def files_of_run(folder: str) -> list[str]:
    """Returns the paths of the files in a run's folder that the run overwrites."""
    return [path for place in (folder, os.path.join(folder, "eval_predictions"))
            for name in files.names_in(place) if is_of_run(name)
            and not files.is_folder(path := os.path.join(place, name))]


def check_run_folder(folder: str, task: str = "") -> None:
    """Raises InputError if a run would replace a file that no run of ours wrote;
    `task` is a key of `tasks`, or "" for pretraining."""
    files.check_in_tensorflow(folder, "--output_dir")
    names = files.names_in(folder)
    owned = re.compile("|".join((*_RUN, *_FOLDERS, *tasks().get(task, ()))))
    if RUN_FILE not in names and (found := [*filter(owned.fullmatch, names)]):
        raise InputError(
            f"--output_dir={folder} holds {found[0]}, which a run would replace, but is "
            "not the folder of a run. Move that file away, or choose a different one.")


def claim_run_folder(folder: str, task: str = "") -> None:
    """Marks an existing folder as that of a run, after check_run_folder."""
    check_run_folder(folder, task)
    path = os.path.join(folder, RUN_FILE)
    if not files.exists(path):
        text_files.write_json(path, {"written_by": "albert_tf",
                                     "version": albert_tf.__version__})
