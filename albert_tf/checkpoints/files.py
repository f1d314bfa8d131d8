"""Checkpoint files: finding them, reading tensors by name, writing them whole.

Two kinds are read: name-based checkpoints, as the TF1 release wrote them, and
object-based ones (`tf.train.Checkpoint(model=..., optimizer=..., ...)`), whose
object graph holds the full name of each variable, which here is the release's.
"""

import contextlib
import dataclasses
import os
import re
from typing import Callable, Iterator, Mapping

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import trackable_object_graph_pb2

from albert_tf import files
from albert_tf.errors import InputError

BEST_CHECKPOINT = "model.ckpt-best"

_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_SUFFIX = re.compile(r"\.(index|meta|data-\d{5}-of-\d{5})$")
# Children of a Keras model that hold no weights of it: an optimizer it was
# compiled with, and Keras's own lists of layers and metrics.
_NO_WEIGHTS = ("optimizer", "keras_api")


@dataclasses.dataclass(frozen=True)
class StoredTensors:
    """Named tensors of a checkpoint, read when asked for.

    Attributes:
      source: the checkpoint's prefix, or what else the tensors come from.
      shapes: shape of each tensor, by name.
      read: name → array; raises InputError if the file is damaged there.
    """

    source: str
    shapes: Mapping[str, tuple[int, ...]]
    read: Callable[[str], np.ndarray]


# ---- finding ---------------------------------------------------------------


def find_checkpoint(path: str) -> str:
    """The prefix of a checkpoint that a user's path stands for.

    Args:
      path: a prefix ("run/model.ckpt-500"), one of its files
        ("run/model.ckpt-500.index"), or a folder, which stands for its
        `model.ckpt-best`, else for the latest that its file `checkpoint` lists.

    Raises:
      InputError: if there is no checkpoint, or one of its files is missing.
    """
    if tf.io.gfile.isdir(path):
        return _check_files(_find_in_folder(path))
    prefix = _SUFFIX.sub("", path)
    if not files.exists(prefix + ".index"):
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


def _find_in_folder(folder: str) -> str:
    best = os.path.join(folder, BEST_CHECKPOINT)
    if files.exists(best + ".index"):
        return best
    state = tf.train.get_checkpoint_state(folder)
    if state is not None and state.model_checkpoint_path:
        latest = state.model_checkpoint_path
        if not files.exists(latest + ".index"):
            raise InputError(
                f"{folder}: its file 'checkpoint' names {latest} as the latest, "
                "which is not there; give the path of another checkpoint.")
        return latest
    there = sorted(name[:-len(".index")] for name in tf.io.gfile.listdir(folder)
                   if name.endswith(".index"))
    hint = (f"give one by its path, such as {os.path.join(folder, there[0])}"
            if there else "give the folder or the prefix of one")
    raise InputError(
        f"{folder}: the folder holds neither {BEST_CHECKPOINT} nor a file "
        f"'checkpoint' that names the latest; {hint}.")


def _data_files(prefix: str) -> list[str]:
    """Names of the data files beside a prefix, in its folder."""
    folder, name = os.path.split(prefix)
    pattern = re.compile(re.escape(name) + r"\.data-\d{5}-of-\d{5}")
    if not tf.io.gfile.isdir(folder or "."):
        return []
    return sorted(n for n in tf.io.gfile.listdir(folder or ".") if pattern.fullmatch(n))


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
    """The tensors of a checkpoint under the release's names.

    Of an object-based checkpoint only the variables of its `model` are there
    (of all of it, if it has no such child).

    Args:
      path: what find_checkpoint takes.

    Raises:
      InputError: if there is no such checkpoint, or it is damaged.
    """
    prefix = find_checkpoint(path)
    with _damage_named(prefix):
        reader = tf.train.load_checkpoint(prefix)
        shapes = reader.get_variable_to_shape_map()
        keys = {name: name for name in shapes}
        if _OBJECT_GRAPH in shapes:
            graph = trackable_object_graph_pb2.TrackableObjectGraph.FromString(
                reader.get_tensor(_OBJECT_GRAPH))
            keys = _names_in_graph(graph, prefix)

    def read(name: str) -> np.ndarray:
        with _damage_named(prefix, name):
            return reader.get_tensor(keys[name])

    return StoredTensors(
        prefix, {name: tuple(shapes[key]) for name, key in keys.items()}, read)


def read_tensors(path: str) -> dict[str, np.ndarray]:
    """All tensors of a checkpoint by name; arguments and errors as open_checkpoint."""
    stored = open_checkpoint(path)
    return {name: stored.read(name) for name in sorted(stored.shapes)}


def _names_in_graph(graph, prefix: str) -> dict[str, str]:
    """Full name → key in the file, of the variables of the model."""
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
def _damage_named(prefix: str, name: str = ""):
    """Turns TensorFlow's errors of reading into one sentence."""
    try:
        yield
    except InputError:
        raise
    # The reader raises any of these where a file is damaged.
    except (tf.errors.OpError, ValueError, RuntimeError, IndexError) as error:
        what = f"the tensor {name} " if name else ""
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"{prefix}: {what}cannot be read, the checkpoint is damaged or of another "
            f"kind ({reason}); copy or download it again.") from error


# ---- writing ---------------------------------------------------------------


def write_whole(checkpoint: tf.train.Checkpoint, prefix: str) -> None:
    """Writes a checkpoint so that it is never there in part.

    It is written under a temporary name; then an older one of this name is
    removed, the data files get their names, and last the index, without which
    nothing counts as a checkpoint.

    Args:
      checkpoint: what to write.
      prefix: path and name, such as "run/model.ckpt-best".

    Raises:
      InputError: if the folder cannot be written.
    """
    _write_then_rename(prefix, checkpoint.write)


def write_tensors(tensors: Mapping[str, np.ndarray], prefix: str) -> None:
    """Writes a name-based checkpoint, as TF1 does, as whole as write_whole.

    Raises:
      InputError: if the folder cannot be written.
    """
    names = sorted(tensors)

    def write(temporary):
        tf.raw_ops.SaveV2(
            prefix=temporary, tensor_names=names, shape_and_slices=[""] * len(names),
            tensors=[tf.constant(tensors[name]) for name in names])

    _write_then_rename(prefix, write)


def _write_then_rename(prefix: str, write: Callable[[str], object]) -> None:
    folder, name = os.path.split(prefix)
    files.make_directory(folder or ".", prefix)
    temporary = f"{prefix}_temp{os.getpid()}"
    try:
        write(temporary)
        # Between removing the old index and naming the new one there is no
        # checkpoint here; never an index with another's data.
        files.remove(prefix + ".index")
        for old in _data_files(prefix):
            files.remove(os.path.join(folder, old))
        for new in _data_files(temporary):
            suffix = new[len(os.path.basename(temporary)):]
            files.rename(os.path.join(folder, new), prefix + suffix)
        files.rename(temporary + ".index", prefix + ".index")
    except (tf.errors.OpError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(
            f"{prefix}: the checkpoint cannot be written: {reason}.") from error
    finally:
        for path in _leftovers(temporary):
            files.remove(path)


def _leftovers(temporary: str) -> Iterator[str]:
    folder = os.path.dirname(temporary)
    for name in _data_files(temporary):
        yield os.path.join(folder, name)
    yield temporary + ".index"
