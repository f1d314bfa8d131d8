"""Folders of checkpoints: finding the checkpoint that a path stands for, reading its
tensors, and writing a checkpoint completely or not at all.

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

from albert_tf import files, text_files
from albert_tf.checkpoints import bundle
from albert_tf.checkpoints.bundle import Tensor
from albert_tf.errors import InputError, reason_of

CHECKPOINT_NAME = "model.ckpt"  # "-" and the step follow
BEST_CHECKPOINT = "model.ckpt-best"
# TensorFlow's list of the checkpoints in a folder.
STATE_FILE = "checkpoint"
# The step that a run saves first. It is there only until the list is written.
FIRST_SAVE_FILE = "first_save.json"
# The null odds from which on the model in the folder leaves a question unanswered.
NULL_THRESHOLD = "null_score_diff_threshold"
NULL_THRESHOLD_FILE = "null_threshold.json"

_INDEX = re.compile(re.escape(CHECKPOINT_NAME) + r"-(\d+)\.index")
_SUFFIX = re.compile(r"\.(index|meta|data-\d{5}-of-\d{5})$")


# ---- the checkpoints of a run ------------------------------------------------


def holds_checkpoint(folder: str) -> bool:
    """Returns whether a run has saved its best or another checkpoint in a folder."""
    names = files.names_in(folder)
    return STATE_FILE in names or f"{BEST_CHECKPOINT}.index" in names or (
        any(map(_INDEX.fullmatch, names)))


def _steps(names: Iterable[str]) -> list[int]:
    """Returns the steps whose checkpoints are among these names, ascending."""
    return sorted(int(match[1]) for match in map(_INDEX.fullmatch, names) if match)


def checkpoint_of(folder: str, best: bool = True, to_train: bool = False
                  ) -> Optional[str]:
    """Returns the prefix of a run's best checkpoint if `best` and there is one, else of
    the latest that its folder lists.

    Returns None if the folder never held a checkpoint. Raises InputError if the list is
    damaged, names missing files, or is missing itself beside checkpoints: a new start
    would overwrite what can be repaired. Without the list, a best checkpoint alone is
    used, but not `to_train`.
    """
    prefix = os.path.join(folder, BEST_CHECKPOINT)
    has_best = files.exists(f"{prefix}.index")
    if best and has_best:
        return prefix
    state_file = os.path.join(folder, STATE_FILE)
    if not files.exists(state_file):
        steps = _steps(files.names_in(folder))
        first = _first_save(folder)
        if first in steps:
            return os.path.join(folder, f"{CHECKPOINT_NAME}-{first}")
        if has_best and not steps and not to_train:
            return prefix
        if steps or has_best:
            raise _without_list(folder, steps, has_best)
        return None
    latest = _listed(folder, "model_checkpoint_path")
    if not latest:
        raise InputError(
            f"{state_file} is damaged: it names no checkpoint; {earlier_hint(prefix)}"
            "move the folder away to start from the beginning.")
    if not files.exists(f"{latest[0]}.index"):
        raise InputError(
            f"{state_file} names {latest[0]}, which does not exist; restore that file, "
            f"{earlier_hint(latest[0]) or 'or '}move the folder away to start from the "
            "beginning.")
    return latest[0]


def _first_save(folder: str) -> Optional[int]:
    """Returns the step of a run's first checkpoint if the run was killed before the
    list of checkpoints was written."""
    path = os.path.join(folder, FIRST_SAVE_FILE)
    return text_files.read_object(path, "remove it").get("step") if (
        files.exists(path)) else None


def _without_list(folder: str, steps: list[int], has_best: bool) -> InputError:
    found = [f"step{'s' * (len(steps) > 1)} {', '.join(map(str, steps))}"
             ] if steps else []
    found += [BEST_CHECKPOINT] if has_best else []
    start = str(steps[-1]) if steps else os.path.join(folder, BEST_CHECKPOINT)
    return InputError(
        f"{folder} holds checkpoints ({'; '.join(found)}), but its file "
        f"'{STATE_FILE}', which names the latest, is missing. A new run would write "
        f"over them. Restore that file, give --resume_from={start} to use that "
        "checkpoint, or choose a different --output_dir.")


def all_checkpoints(folder: str) -> list[str]:
    """Returns the prefixes of the checkpoints that a folder lists and holds, oldest
    first."""
    return [path for path in _listed(folder, "all_model_checkpoint_paths")
            if files.exists(f"{path}.index")]


def _listed(folder: str, key: str) -> list[str]:
    """Returns the prefixes that TensorFlow's list in a folder gives for a key; [] if
    the list is damaged or missing."""
    path = os.path.join(folder, STATE_FILE)
    if not files.exists(path) or files.is_folder(path):
        return []
    with files.open_binary(path) as stream:
        paths = re.findall(rf'^\s*{key}: *"(.+)"\s*$'.encode(), stream.read(), re.M)
    # The list escapes letters beyond ASCII byte by byte.
    return [os.path.join(folder, path_bytes.decode("unicode_escape", "replace").encode(
        "latin-1", "replace").decode("utf-8", "replace")) for path_bytes in paths]


def earlier_hint(prefix: str) -> str:
    """Returns advice to use a different checkpoint of the folder than `prefix`, with a
    final "or "; "" if there is none."""
    folder, name = os.path.split(prefix)
    # The files are looked at, because the list of them may be damaged.
    others = (step for step in reversed(_steps(files.names_in(folder or ".")))
              if f"{CHECKPOINT_NAME}-{step}" != name
              and _is_complete(os.path.join(folder, f"{CHECKPOINT_NAME}-{step}")))
    if (step := next(others, None)) is not None:
        return (f"give --resume_from={step} to resume from the checkpoint of "
                "that step, or ")
    best = os.path.join(folder, BEST_CHECKPOINT)
    return (f"give --resume_from={best} to resume from there, or "
            if name != BEST_CHECKPOINT and _is_complete(best) else "")


def _is_complete(prefix: str) -> bool:
    """Returns whether a checkpoint's index can be read and its data files exist."""
    try:
        bundle.read(prefix)
    except (InputError, OSError):
        return False
    return True


def chosen_checkpoint(folder: str, resume_from: str) -> str:
    """Returns the prefix of a run's checkpoint, given its step or its path."""
    return find_checkpoint(os.path.join(folder, f"{CHECKPOINT_NAME}-{resume_from}")
                           if resume_from.isdecimal() else resume_from)


# ---- finding ---------------------------------------------------------------


def folder_of(path: str) -> str:
    """Returns the folder of a checkpoint, given its prefix, a file or the folder."""
    if _SUFFIX.search(path) or files.exists(f"{path}.index"):
        return os.path.dirname(path)
    return path


def find(path: str, names: Optional[Iterable[str]] = None) -> Optional[str]:
    """Returns the prefix of the checkpoint that a path stands for, or None. The path
    may be a prefix, one of its files, or a folder of checkpoints or of a SavedModel.

    From a folder it takes the best checkpoint, else the latest listed, else the only
    one. `names` are the names in the folder, if the caller has them.
    """
    path = os.fspath(path)
    prefix = _SUFFIX.sub("", path)
    if files.exists(f"{prefix}.index"):
        return prefix
    names = files.names_in(path) if names is None else names
    exported = os.path.join(path, "variables", "variables")
    if "saved_model.pb" in names and files.exists(f"{exported}.index"):
        return exported
    prefixes = [
        name.removesuffix(".index") for name in names if name.endswith(".index")]
    latest = (_listed(path, "model_checkpoint_path") if STATE_FILE in names else [])
    # The folder may have been moved since the list was written.
    for name in (BEST_CHECKPOINT, *map(os.path.basename, latest),
                 *(prefixes if len(prefixes) == 1 else ())):
        if name in prefixes:
            if latest and name not in (BEST_CHECKPOINT, os.path.basename(latest[0])):
                logging.warning(
                    "%s: its file '%s' names %s, which does not exist; using %s, the "
                    "only checkpoint in the folder.", path, STATE_FILE,
                    os.path.basename(latest[0]), name)
            return os.path.join(path, name)
    if prefixes:
        raise InputError(
            f"{path}: the folder holds several checkpoints, but neither "
            f"{BEST_CHECKPOINT} nor a file '{STATE_FILE}' that names the latest; give "
            "the path of one of them: "
            f"{', '.join(prefixes[:3])}{', ...' if len(prefixes) > 3 else ''}.")
    return None


def find_checkpoint(path: str) -> str:
    """Returns the prefix as `find` does. Raises InputError if there is no checkpoint,
    its index is damaged or a data file is missing."""
    path = os.fspath(path)
    is_folder = files.is_folder(path)
    checkpoint = find(path)
    if checkpoint:
        bundle.read(checkpoint)
        return checkpoint
    latest = _listed(path, "model_checkpoint_path") if is_folder else []
    if latest:
        raise InputError(
            f"{os.path.join(path, STATE_FILE)} names {latest[0]}, which does not "
            "exist; restore that file, or give a different folder.")
    if is_folder:
        raise InputError(
            f"{path}: the folder holds no checkpoint: neither {BEST_CHECKPOINT} nor a "
            f"file '{STATE_FILE}' that names the latest; give a different folder.")
    prefix = _SUFFIX.sub("", path)
    if prefix != path or _data_files(prefix):
        raise InputError(
            f"{path}: the file {os.path.basename(prefix)}.index is missing beside it; "
            "copy both, as a checkpoint consists of that file and its data files.")
    if files.exists(path):
        raise InputError(
            f"{path} is not a checkpoint; give a checkpoint's prefix (its path without "
            ".index), or a folder of checkpoints.")
    raise InputError(
        f"{path}: there is no checkpoint: neither a folder nor the file {path}.index "
        f"exists; {path_advice(path)}.")


def path_advice(path: str) -> str:
    """Returns what to do about the path of a model that does not exist, which may be a
    name on the Hugging Face hub."""
    if not re.fullmatch(r"\w[\w.-]*(/[\w.-]+)?", path):
        return "check the path"
    name = (path if "/" in path else
            f"albert/{path}" if path.startswith("albert") else "OWNER/NAME")
    return f"check the path, or give hf://{name} for a model of the Hugging Face hub"


def _data_files(prefix: str) -> list[str]:
    """Returns the names of a prefix's data files, without the folder."""
    folder, name = os.path.split(prefix)
    pattern = re.compile(re.escape(name) + r"\.data-\d{5}-of-\d{5}")
    return sorted(filter(pattern.fullmatch, files.names_in(folder or ".")))


# ---- reading ---------------------------------------------------------------


def read_tensors(path: str) -> dict[str, np.ndarray]:
    """Returns all tensors of a checkpoint by the names that the original implementation
    gives them; `path` as for find_checkpoint.

    From an object-based checkpoint, returns only the variables of its `model`, or all
    if it has no such child.
    """
    tensors = bundle.by_names(find_checkpoint(path), model_only=True)
    # Copied, so that they can be written to.
    return {name: np.array(tensors[name].read()) for name in sorted(tensors)}


@contextlib.contextmanager
def damage_explained(prefix: str, advice: Callable[[], str]):
    """Turns TensorFlow's errors when restoring a run into an InputError."""
    import tensorflow as tf

    try:
        yield
    except InputError:
        raise
    # The reader raises any of these if a file is damaged.
    except (tf.errors.OpError, AssertionError, ValueError, RuntimeError,
            IndexError) as error:
        differs = ("leave out the flags that change the model, such as "
                   "--config_overrides, or choose a different --output_dir")
        todo = None
        if isinstance(error, AssertionError):
            reason = "it lacks variables that this model or its optimizer has"
            todo = differs
        elif isinstance(error, ValueError) and "shape" in str(error):
            reason = "a variable in it has a different shape than in this model"
            todo = differs
        elif isinstance(error, tf.errors.PermissionDeniedError):
            reason = "there is no permission to read its files"
        else:  # TensorFlow's own message is for its developers.
            reason = "its files are damaged, cut short or incomplete"
        raise InputError(
            f"{prefix}: cannot be restored ({reason}); {todo or advice()}.") from error


# ---- writing ---------------------------------------------------------------


def write_tensors(tensors: Mapping[str, np.ndarray], prefix: str) -> None:
    """Writes a name-based checkpoint of TensorFlow 1, completely or not at all."""
    _write_then_rename(prefix, lambda temporary: bundle.write(temporary, {
        name: Tensor.of(np.asarray(value)) for name, value in tensors.items()}))


def write_whole(checkpoint: Any, prefix: str) -> None:
    """Writes a tf.train.Checkpoint completely or not at all; see `replace`."""
    _write_then_rename(prefix, checkpoint.write)


def copy_whole(source: str, prefix: str) -> None:
    """Copies the files of a checkpoint, completely or not at all; see `replace`."""
    def copy(temporary):
        for name in (*_data_files(source), f"{os.path.basename(source)}.index"):
            path = os.path.join(os.path.dirname(source), name)
            files.copy(path, temporary + path[len(source):])

    _write_then_rename(prefix, copy)


def _write_then_rename(prefix: str, write: Callable[[str], object]) -> None:
    prefix = os.fspath(prefix)
    folder = os.path.dirname(prefix)
    files.make_directory(folder or ".", prefix)
    temporary = f"{prefix}_temp{os.getpid()}"
    try:
        write(temporary)
        replace(temporary, prefix)
    except _errors_of_writing() as error:
        raise InputError(f"{prefix}: the checkpoint cannot be written: "
                         f"{reason_of(error)}.") from error
    finally:
        for name in _data_files(temporary):
            files.remove(os.path.join(folder, name))
        files.remove(f"{temporary}.index")


def replace(temporary: str, prefix: str) -> None:
    """Renames the files of a checkpoint to `prefix`. An older checkpoint there is
    replaced so that, even if this process is killed, one complete checkpoint of that
    name is there at any moment.

    Only the index can be replaced in one operation, so it must not name data files of
    the old checkpoint. Their names end in their number, "-of-00001". If both
    checkpoints have the same number, the new data files are first called
    "-of-00002", with an index that says so, and get their own names at the end.
    """
    count = bundle.num_shards(temporary)
    names = [each.removeprefix(os.path.basename(temporary))
             for each in _data_files(temporary)]
    if _num_shards(prefix) == count:
        wider = [f"{name[:-5]}{count + 1:05d}" for name in names]
        for name, other in zip(names, wider):
            files.rename(temporary + name, prefix + other)
        files.write(f"{prefix}.index", bundle.index_with_shards(temporary, count + 1))
        for name, other in zip(names, wider):
            files.link(prefix + other, prefix + name)
    else:
        for name in names:
            files.rename(temporary + name, prefix + name)
    files.rename(f"{temporary}.index", f"{prefix}.index")
    for name in _data_files(prefix):
        if not name.endswith(f"-of-{count:05d}"):
            files.remove(os.path.join(os.path.dirname(prefix), name))


def _num_shards(prefix: str) -> int:
    """Returns the number of data files of a checkpoint; 0 if it is damaged or not
    there."""
    try:
        return bundle.num_shards(prefix) if files.exists(f"{prefix}.index") else 0
    except InputError:
        return 0


def _errors_of_writing() -> tuple[type[Exception], ...]:
    """Returns the errors that writing can raise. Called only once there is an error, as
    TensorFlow takes seconds to load."""
    import tensorflow as tf

    return OSError, tf.errors.OpError
