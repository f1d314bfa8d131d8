"""Folders of checkpoints: the checkpoint that a path stands for, its tensors, and
writing one so that it is never there in part.

A checkpoint is named by its prefix, "run/model.ckpt-500"; its files are
"run/model.ckpt-500.index" and the data files "run/model.ckpt-500.data-00000-of-00001".
TensorFlow is imported late, and only where its own errors are explained.
"""

import contextlib
import os
import re
from typing import Any, Callable, Iterable, Mapping, Optional

import numpy as np
from absl import logging

from albert_tf import files
from albert_tf.checkpoints import bundle
from albert_tf.checkpoints.bundle import Tensor
from albert_tf.errors import InputError

CHECKPOINT_NAME = "model.ckpt"  # and behind it "-" and the step
BEST_CHECKPOINT = "model.ckpt-best"
# TensorFlow's list of the checkpoints in a folder.
STATE_FILE = "checkpoint"

# Files of a run in its folder, by name: what it writes there, over and over.
_OF_A_RUN = re.compile(
    r"checkpoint|model\.ckpt-(\d+|best)\..*|metrics\.jsonl|(curves|early_exit)\.png"
    r"|[A-Z][\w-]*\.tsv|(test_results|submit_results|predictions)\.tsv|eval_report\.txt"
    r"|dropped_questions\.txt|(albert_config|options|task|vocabulary|best_metric"
    r"|eval_results|early_exit|predict_results|(nbest_)?predictions|null_odds)\.json")

_INDEX = re.compile(re.escape(CHECKPOINT_NAME) + r"-(\d+)\.index")
_SUFFIX = re.compile(r"\.(index|meta|data-\d{5}-of-\d{5})$")


# ---- the files of a run ----------------------------------------------------


def files_of_run(folder: str) -> list[str]:
    """What lies in a run's folder, and the run writes over."""
    return [os.path.join(folder, name) for name in files.names_in(folder)
            if is_of_run(name)]


def is_of_run(name: str) -> bool:
    """Whether a run writes a file of this name into its folder."""
    return bool(_OF_A_RUN.fullmatch(name))


def holds_checkpoint(folder: str) -> bool:
    """Whether a run has saved in a folder: its best checkpoint or others."""
    return any(files.exists(os.path.join(folder, name))
               for name in (f"{BEST_CHECKPOINT}.index", STATE_FILE))


def checkpoint_of(folder: str, best: bool = True) -> Optional[str]:
    """The best checkpoint of a run's folder, if `best`, else the latest that it lists.

    None if it never held one. A damaged list, or one that names missing files, is an
    error: starting from the beginning would overwrite what can be repaired.
    """
    prefix = os.path.join(folder, BEST_CHECKPOINT)
    if best and files.exists(f"{prefix}.index"):
        return prefix
    state_file = os.path.join(folder, STATE_FILE)
    if not files.exists(state_file):
        return None
    latest = _listed(folder, "model_checkpoint_path")
    if not latest:
        raise InputError(
            f"{state_file}: damaged, it names no checkpoint; {earlier_hint(prefix)}"
            "move the folder away to start anew.")
    if not files.exists(f"{latest[0]}.index"):
        raise InputError(
            f"{state_file} names {latest[0]}, which is not there; restore that file, "
            f"{earlier_hint(latest[0]) or 'or '}move the folder away to start anew.")
    return latest[0]


def all_checkpoints(folder: str) -> list[str]:
    """Checkpoints that a folder lists and holds, oldest first."""
    return [path for path in _listed(folder, "all_model_checkpoint_paths")
            if files.exists(f"{path}.index")]


def _listed(folder: str, key: str) -> list[str]:
    """The prefixes that TensorFlow's list in a folder gives for a key, [] if it is
    damaged or not there."""
    path = os.path.join(folder, STATE_FILE)
    if not files.exists(path) or files.is_folder(path):
        return []
    with files.open_binary(path) as stream:
        found = re.findall(rf'^\s*{key}: *"(.+)"\s*$'.encode(), stream.read(), re.M)
    # Letters beyond ASCII are escaped there, byte by byte.
    return [os.path.join(folder, each.decode("unicode_escape", "replace").encode(
        "latin-1", "replace").decode("utf-8", "replace")) for each in found]


def earlier_hint(prefix: str) -> str:
    """How to use another checkpoint of the folder than `prefix`, if there is one, and
    an "or" for what follows."""
    folder, name = os.path.split(prefix)
    # By the files: the list of them may be what is damaged.
    others = [int(found[1]) for each in files.names_in(folder or ".")
              if (found := _INDEX.fullmatch(each)) and found[0] != f"{name}.index"]
    if others:
        return (f"give --resume_from={max(others)} to go on from the checkpoint of "
                "that step, or ")
    best = os.path.join(folder, BEST_CHECKPOINT)
    return (f"give --resume_from={best} to go on from there, or "
            if name != BEST_CHECKPOINT and files.exists(f"{best}.index") else "")


def chosen_checkpoint(folder: str, resume_from: str) -> str:
    """The prefix of a run's checkpoint, by its step or its path."""
    return find_checkpoint(os.path.join(folder, f"{CHECKPOINT_NAME}-{resume_from}")
                           if resume_from.isdecimal() else resume_from)


# ---- finding ---------------------------------------------------------------


def folder_of(path: str) -> str:
    """The folder of a checkpoint, which is named by its prefix, a file or a folder."""
    if _SUFFIX.search(path) or files.exists(f"{path}.index"):
        return os.path.dirname(path)
    return path


def find(path: str, names: Optional[Iterable[str]] = None) -> Optional[str]:
    """The prefix of the checkpoint that a path stands for, or None: a prefix, one of
    its files, a folder of checkpoints, or a SavedModel's folder.

    Of a folder's checkpoints it is the best, else the latest that it lists, else the
    only one. `names` are those in the folder, if they are known.
    """
    path = os.fspath(path)
    prefix = _SUFFIX.sub("", path)
    if files.exists(f"{prefix}.index"):
        return prefix
    names = files.names_in(path) if names is None else names
    exported = os.path.join(path, "variables", "variables")
    if "saved_model.pb" in names and files.exists(f"{exported}.index"):
        return exported
    found = [name.removesuffix(".index") for name in names if name.endswith(".index")]
    latest = (_listed(path, "model_checkpoint_path") if STATE_FILE in names else [])
    # The list may have been written at another place.
    for name in (BEST_CHECKPOINT, *map(os.path.basename, latest),
                 *(found if len(found) == 1 else ())):
        if name in found:
            if latest and name not in (BEST_CHECKPOINT, os.path.basename(latest[0])):
                logging.warning(
                    "%s: its file '%s' names %s, which is not there; %s, the only "
                    "checkpoint in it, is used.", path, STATE_FILE,
                    os.path.basename(latest[0]), name)
            return os.path.join(path, name)
    if found:
        raise InputError(
            f"{path}: holds several checkpoints, and neither {BEST_CHECKPOINT} nor a "
            f"file '{STATE_FILE}' that names the latest; give one by its path: "
            f"{', '.join(found[:3])}{', ...' if len(found) > 3 else ''}.")
    return None


def find_checkpoint(path: str) -> str:
    """As `find`, of a checkpoint that is there: raises InputError where there is none,
    its index is damaged or a data file is missing."""
    path = os.fspath(path)
    is_folder = files.is_folder(path)
    found = find(path) or (checkpoint_of(path) if is_folder else None)
    if found:
        bundle.read(found)
        return found
    if is_folder:
        raise InputError(
            f"{path}: the folder holds no checkpoint: neither {BEST_CHECKPOINT} nor a "
            f"file '{STATE_FILE}' that names the latest; give another.")
    prefix = _SUFFIX.sub("", path)
    if prefix != path or _data_files(prefix):
        raise InputError(
            f"{path}: the file {os.path.basename(prefix)}.index is missing beside it; "
            "a checkpoint is that file and its data files.")
    if files.exists(path):
        raise InputError(
            f"{path}: not a checkpoint; give its prefix (the path without .index), or "
            "a folder of checkpoints.")
    raise InputError(
        f"{path}: there is no checkpoint: neither a folder nor the file {path}.index "
        "is there.")


def _data_files(prefix: str) -> list[str]:
    """Names of the data files beside a prefix, in its folder."""
    folder, name = os.path.split(prefix)
    pattern = re.compile(re.escape(name) + r"\.data-\d{5}-of-\d{5}")
    return sorted(filter(pattern.fullmatch, files.names_in(folder or ".")))


# ---- reading ---------------------------------------------------------------


def read_tensors(path: str) -> dict[str, np.ndarray]:
    """All tensors of a checkpoint by the names that the original implementation gives
    them; `path` as for find_checkpoint.

    Of a checkpoint of objects, only the variables of its `model` (of all of it, if it
    has no such child).
    """
    tensors = bundle.by_names(find_checkpoint(path), model_only=True)
    # Copied, so that they can be written to.
    return {name: np.array(tensors[name].read()) for name in sorted(tensors)}


@contextlib.contextmanager
def damage_explained(prefix: str, advice: Callable[[], str]):
    """Turns TensorFlow's errors of restoring a run into one sentence."""
    import tensorflow as tf

    try:
        yield
    except InputError:
        raise
    # The reader raises any of these where a file is damaged.
    except (tf.errors.OpError, AssertionError, ValueError, RuntimeError,
            IndexError) as error:
        if isinstance(error, AssertionError):
            reason = "it lacks variables that this model or its optimizer has"
        elif isinstance(error, ValueError) and "shape" in str(error):
            reason = "a variable in it has another shape than in this model"
        elif isinstance(error, tf.errors.PermissionDeniedError):
            reason = "its files may not be read"
        else:  # TensorFlow's words are for its makers.
            reason = "its files are damaged, cut short or not all there"
        raise InputError(
            f"{prefix}: cannot be restored ({reason}); {advice()}.") from error


# ---- writing ---------------------------------------------------------------


def write_tensors(tensors: Mapping[str, np.ndarray], prefix: str) -> None:
    """Writes a checkpoint by names, as TensorFlow 1 does, as whole as write_whole."""
    _write_then_rename(prefix, lambda temporary: bundle.write(temporary, {
        name: Tensor.of(np.asarray(value)) for name, value in tensors.items()}))


def write_whole(checkpoint: Any, prefix: str) -> None:
    """Writes a tf.train.Checkpoint so that it is never there in part.

    It is written under a temporary name; then an older one of this name is removed, the
    data files get their names, and last the index, which makes it a checkpoint.
    """
    _write_then_rename(prefix, checkpoint.write)


def _write_then_rename(prefix: str, write: Callable[[str], object]) -> None:
    prefix = os.fspath(prefix)
    folder = os.path.dirname(prefix)
    files.make_directory(folder or ".", prefix)
    temporary = f"{prefix}_temp{os.getpid()}"
    try:
        write(temporary)
        # Between removing the old index and naming the new one there is no
        # checkpoint here; never an index with another's data.
        files.remove(f"{prefix}.index")
        for name in _data_files(prefix):
            files.remove(os.path.join(folder, name))
        written = [os.path.join(folder, name) for name in _data_files(temporary)]
        for path in (*written, f"{temporary}.index"):
            files.rename(path, prefix + path[len(temporary):])
    except _errors_of_writing() as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(
            f"{prefix}: the checkpoint cannot be written: {reason}.") from error
    finally:
        for name in _data_files(temporary):
            files.remove(os.path.join(folder, name))
        files.remove(f"{temporary}.index")


def _errors_of_writing() -> tuple[type[Exception], ...]:
    """Asked for only once there is an error, as TensorFlow takes seconds to load."""
    import tensorflow as tf

    return OSError, tf.errors.OpError
