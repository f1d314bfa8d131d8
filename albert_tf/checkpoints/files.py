"""Checkpoint files: finding them, reading tensors by name, writing them whole.

Two kinds are read: name-based checkpoints, as the TF1 release wrote them, and
object-based ones (`tf.train.Checkpoint(model=..., optimizer=..., ...)`), whose
object graph holds the full name of each variable, which here is the release's.

A checkpoint is named by its prefix, "run/model.ckpt-500"; its files are
"run/model.ckpt-500.index" and the data files "run/model.ckpt-500.data-00000-of-00001".
TensorFlow is imported late: whether there is a model can be said without it.
"""

import contextlib
import dataclasses
import os
import re
from typing import Any, Callable, Iterable, Mapping, Optional

import numpy as np

from albert_tf import files
from albert_tf.checkpoints.bundle import BEST_CHECKPOINT, STATE_FILE
from albert_tf.errors import InputError

CHECKPOINT_NAME = "model.ckpt"  # and behind it "-" and the step

# Files of a run in its folder, by name: what it writes there, over and over.
_OF_A_RUN = re.compile(
    r"checkpoint|model\.ckpt-(\d+|best)\..*|metrics\.jsonl|(curves|early_exit)\.png"
    r"|[A-Z][\w-]*\.tsv|(test_results|submit_results|predictions)\.tsv|eval_report\.txt"
    r"|dropped_questions\.txt|(albert_config|options|task|vocabulary|best_metric"
    r"|eval_results|early_exit|predict_results|(nbest_)?predictions|null_odds)\.json")

_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_INDEX = re.compile(re.escape(CHECKPOINT_NAME) + r"-(\d+)\.index")
_SUFFIX = re.compile(r"\.(index|meta|data-\d{5}-of-\d{5})$")
# Children of a Keras model that hold no weights of it: an optimizer it was
# compiled with, and Keras's own lists of layers and metrics.
_NO_WEIGHTS = ("optimizer", "keras_api")


@dataclasses.dataclass(frozen=True)
class StoredTensors:
    """Named tensors of a checkpoint, read when asked for."""

    source: str  # the checkpoint's prefix, or what else the tensors come from
    shapes: Mapping[str, tuple[int, ...]]  # by name
    read: Callable[[str], np.ndarray]  # by name; InputError if it is damaged there


# ---- finding ---------------------------------------------------------------


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
    """The best checkpoint of a folder, if `best`, else the latest that it lists.

    None if it never held one. A damaged list, or one that names missing files, is an
    error: starting anew would overwrite what can be mended.
    """
    prefix = os.path.join(folder, BEST_CHECKPOINT)
    if best and files.exists(f"{prefix}.index"):
        return prefix
    state_file = os.path.join(folder, STATE_FILE)
    if not files.exists(state_file):
        return None
    state = _state(folder)
    if state is None:
        raise InputError(
            f"{state_file}: damaged, it names no checkpoint; {earlier_hint(prefix)}"
            "move the folder away to start anew.")
    prefix = state.model_checkpoint_path
    if not files.exists(f"{prefix}.index"):
        raise InputError(
            f"{state_file} names {prefix}, which is not there; restore that file, "
            f"{earlier_hint(prefix) or 'or '}move the folder away to start anew.")
    return prefix


def all_checkpoints(folder: str) -> list[str]:
    """Checkpoints that a folder lists and holds, oldest first."""
    state = _state(folder)
    listed = state.all_model_checkpoint_paths if state else []
    return [path for path in listed if files.exists(f"{path}.index")]


def _state(folder: str):
    """TensorFlow's list of checkpoints, or None if there is none or it is damaged."""
    import tensorflow as tf

    try:
        state = tf.train.get_checkpoint_state(folder)
    except ValueError:
        return None
    return state if state is not None and state.model_checkpoint_path else None


def earlier_hint(prefix: str) -> str:
    """How to use another checkpoint of the folder than `prefix`, if there is one, and
    an "or" for what follows."""
    folder, name = os.path.split(prefix)
    # By the files: the list of them may be what is damaged.
    others = [int(found[1]) for each in files.names_in(folder or ".")
              if (found := _INDEX.fullmatch(each)) and found[0] != f"{name}.index"]
    if others:
        return (f"give --resume_from={max(others)} to go on from the checkpoint of that "
                "step, or ")
    best = os.path.join(folder, BEST_CHECKPOINT)
    return (f"give --resume_from={best} to go on from there, or "
            if name != BEST_CHECKPOINT and files.exists(f"{best}.index") else "")


def chosen_checkpoint(folder: str, resume_from: str) -> str:
    """The prefix of a run's checkpoint, by its step or its path."""
    return find_checkpoint(os.path.join(folder, f"{CHECKPOINT_NAME}-{resume_from}")
                           if resume_from.isdecimal() else resume_from)


def folder_of(path: str) -> str:
    """The folder of a checkpoint, which is named by its prefix, a file or a folder."""
    if _SUFFIX.search(path) or files.exists(f"{path}.index"):
        return os.path.dirname(path)
    return path


def find_checkpoint(path: str) -> str:
    """The prefix of the checkpoint that a user's path stands for: a prefix, one of the
    checkpoint's files, or a folder (see checkpoint_of)."""
    path = os.fspath(path)
    if files.is_folder(path):
        found = checkpoint_of(path)
        if found is None:
            others = [os.path.join(path, name.removesuffix(".index"))
                      for name in files.names_in(path) if name.endswith(".index")]
            raise InputError(
                f"{path}: the folder holds no checkpoint: neither {BEST_CHECKPOINT} "
                f"nor a file '{STATE_FILE}' that names the latest; give "
                f"{f'one by its path, such as {others[0]}' if others else 'another'}.")
        return _check_files(found)
    prefix = _SUFFIX.sub("", path)
    if not files.exists(f"{prefix}.index"):
        if prefix != path or _data_files(prefix):
            raise InputError(
                f"{path}: the file {os.path.basename(prefix)}.index is missing "
                "beside it; a checkpoint is that file and its data files.")
        if files.exists(path):
            raise InputError(
                f"{path}: not a checkpoint; give its prefix (the path without "
                ".index), or a folder of checkpoints.")
        raise InputError(
            f"{path}: there is no checkpoint: neither a folder nor the file "
            f"{path}.index is there.")
    return _check_files(prefix)


def _data_files(prefix: str) -> list[str]:
    """Names of the data files beside a prefix, in its folder."""
    folder, name = os.path.split(prefix)
    pattern = re.compile(re.escape(name) + r"\.data-\d{5}-of-\d{5}")
    return sorted(filter(pattern.fullmatch, files.names_in(folder or ".")))


def _check_files(prefix: str) -> str:
    """`prefix`, if all its data files are there."""
    found = _data_files(prefix)
    shards = int(found[0].rsplit("-", 1)[1]) if found else 1
    if len(found) < shards or not found:
        name = os.path.basename(prefix)
        raise InputError(
            f"{prefix}: {len(found)} of the {shards} data files "
            f"({name}.data-*-of-{shards:05d}) are there; copy the missing ones "
            f"beside {name}.index.")
    return prefix


# ---- reading ---------------------------------------------------------------


def open_checkpoint(path: str) -> StoredTensors:
    """The tensors of a checkpoint (see find_checkpoint) by the release's names.

    Of an object-based checkpoint only the variables of its `model` are there (of all of
    it, if it has no such child).

        stored = open_checkpoint("albert_base/model.ckpt-best")
        stored.read("bert/embeddings/word_embeddings").shape
    """
    import tensorflow as tf

    prefix = find_checkpoint(path)
    with damage_explained(prefix):
        reader = tf.train.load_checkpoint(prefix)
        shapes = reader.get_variable_to_shape_map()
        keys = {name: name for name in shapes}
        if _OBJECT_GRAPH in shapes:
            keys = _names_in_graph(reader.get_tensor(_OBJECT_GRAPH), prefix)

    def read(name: str) -> np.ndarray:
        with damage_explained(prefix, f"the tensor {name} "):
            return reader.get_tensor(keys[name])

    return StoredTensors(
        prefix, {name: tuple(shapes[key]) for name, key in keys.items()}, read)


def read_tensors(path: str) -> dict[str, np.ndarray]:
    """All tensors of a checkpoint by name; `path` as for find_checkpoint."""
    stored = open_checkpoint(path)
    return {name: stored.read(name) for name in sorted(stored.shapes)}


def _names_in_graph(object_graph: bytes, prefix: str) -> dict[str, str]:
    """Full name → key in the file, of the variables of the model."""
    from tensorflow.core.protobuf import trackable_object_graph_pb2

    graph = trackable_object_graph_pb2.TrackableObjectGraph.FromString(object_graph)
    children = {child.local_name: child.node_id for child in graph.nodes[0].children}
    waiting = [children.get("model", 0)]
    seen = set(waiting)
    keys: dict[str, str] = {}
    while waiting:
        node = graph.nodes[waiting.pop()]
        for attribute in node.attributes:
            name = attribute.full_name or attribute.checkpoint_key
            if name in keys:
                raise InputError(
                    f"{prefix}: two variables of the model are named '{name}', so "
                    "they cannot be told apart; this is no checkpoint of an ALBERT "
                    "model.")
            keys[name] = attribute.checkpoint_key
        for child in node.children:
            if child.node_id not in seen and child.local_name not in _NO_WEIGHTS:
                seen.add(child.node_id)
                waiting.append(child.node_id)
    return keys


@contextlib.contextmanager
def damage_explained(prefix: str, what: str = "",
                     advice: Callable[[], str] = lambda: "copy or download it again"):
    """Turns TensorFlow's errors of reading a checkpoint into one sentence."""
    import tensorflow as tf

    try:
        yield
    except InputError:
        raise
    # The reader raises any of these where a file is damaged.
    except (tf.errors.OpError, AssertionError, ValueError, RuntimeError,
            IndexError) as error:
        raise InputError(f"{prefix}: {what}cannot be restored ({_reason(error)}); "
                         f"{advice()}.") from error


def _reason(error: Exception) -> str:
    """Why a checkpoint cannot be read; TensorFlow's words are for its makers."""
    import tensorflow as tf

    if isinstance(error, AssertionError):
        return "it lacks variables that this model or its optimizer has"
    if isinstance(error, ValueError) and "shape" in str(error):
        return "a variable in it has another shape than in this model"
    if isinstance(error, tf.errors.PermissionDeniedError):
        return "its files may not be read"
    return "its files are damaged, cut short or not all there"


def check_finite(source: str, values: Iterable[tuple[str, Any]],
                 advice: str = "give another checkpoint") -> None:
    """Refuses (name, tensor) pairs of a checkpoint with a number that is none."""
    for name, value in values:
        value = np.asarray(value)
        if value.dtype.kind == "f" and not np.isfinite(value.sum()) and not np.isfinite(
                value).all():
            raise InputError(
                f"{source}: {name} holds numbers that are NaN or infinite, so nothing "
                f"can be learnt or predicted with it; {advice}.")


# ---- writing ---------------------------------------------------------------


def write_whole(checkpoint: Any, prefix: str) -> None:
    """Writes a tf.train.Checkpoint so that it is never there in part.

    It is written under a temporary name; then an older one of this name is removed, the
    data files get their names, and last the index, which makes it a checkpoint.
    """
    _write_then_rename(prefix, checkpoint.write)


def write_tensors(tensors: Mapping[str, np.ndarray], prefix: str) -> None:
    """Writes a name-based checkpoint, as TF1 does, as whole as write_whole."""
    import tensorflow as tf

    names = sorted(tensors)
    _write_then_rename(prefix, lambda temporary: tf.raw_ops.SaveV2(
        prefix=temporary, tensor_names=names, shape_and_slices=[""] * len(names),
        tensors=[tf.constant(tensors[name]) for name in names]))


def _write_then_rename(prefix: str, write: Callable[[str], object]) -> None:
    import tensorflow as tf

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
    except (tf.errors.OpError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(
            f"{prefix}: the checkpoint cannot be written: {reason}.") from error
    finally:
        for name in _data_files(temporary):
            files.remove(os.path.join(folder, name))
        files.remove(f"{temporary}.index")
