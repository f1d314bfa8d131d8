"""Loads Keras models from folders in any format, restores weights by the names of the
original implementation, and reads and writes the config beside them.
"""

import dataclasses
import os
import re
from typing import Any, Callable, Mapping, Optional, Sequence

import numpy as np
import tf_keras
from absl import logging

from albert_tf import files
from albert_tf.checkpoints import (
    bundle, formats, labels as label_names, vocabulary)
from albert_tf.checkpoints.bundle import Tensor
from albert_tf.checkpoints.checkpoint import (
    Checkpoint, Report, check_finite, head_of, some)
from albert_tf.checkpoints.folders import (
    find_checkpoint, folder_of, write_tensors)
from albert_tf.config import AlbertConfig, COMPUTING, CONFIG_FILE
from albert_tf.errors import InputError
from albert_tf.files import StrPath
from albert_tf.modeling.albert import AlbertModel
from albert_tf.modeling.models import AlbertWithHeads
from albert_tf.tokenization.tokenizer import FullTokenizer

# The optimizer's state and the step, and the group in a variable's name.
_OPTIMIZER_STATE = re.compile(r"(^global_step|/adam_[mv])$")
_GROUP = re.compile(r"^(bert/encoder/transformer/)group_\d+/")
_POOLER = "bert/pooler/"


# ---- loading ---------------------------------------------------------------


def load(path: str, config: formats.Config = None, head: str = "",
         allow_nan: bool = False, vocabulary: Optional[FullTokenizer] = None) -> Checkpoint:
    """Loads the model in a folder as serving.predict.load, whose model can also answer."""
    checkpoint = formats.read(path, config, head, vocabulary, allow_nan)
    # A model from elsewhere may have been trained with answers in padding.
    options = {"mask_padding": bool(checkpoint.settings),
               "problem_type": checkpoint.problem_type,
               **{name: value for name, value in checkpoint.flags.items()
                  if name in ("start_n_top", "end_n_top")}}
    heads = [head_of(name, width, **options)
             for name, width in checkpoint.heads.items()]
    model = (AlbertWithHeads(checkpoint.config, heads) if heads
             else AlbertModel(checkpoint.config))
    for name, variable in _variables(model).items():
        variable.assign(checkpoint.tensors[name].read())
    return dataclasses.replace(checkpoint, model=model)


def _variables(model: tf_keras.Model) -> dict[str, Any]:
    """Returns the model's variables by the original's names."""
    return {variable.name.removesuffix(":0"): variable for variable in model.weights}


def tf1_tensors(model: tf_keras.Model) -> dict[str, np.ndarray]:
    """Returns the current values of the model's weights by the original's names."""
    return {name: variable.numpy() for name, variable in _variables(model).items()}


def load_tf1_tensors(model: tf_keras.Model, tensors: Mapping[str, np.ndarray],
                     allow_partial: bool = False) -> Report:
    """Sets the model's weights from arrays by the original's names, as restore_tf1."""
    return _restore(model, "the given tensors", {
        name: Tensor.of(np.asarray(value)) for name, value in tensors.items()},
                    allow_partial)


def export_tf1(model: tf_keras.Model, path: StrPath) -> None:
    """Writes the weights as a checkpoint that TF1's Saver and restore_tf1 can read."""
    write_tensors(tf1_tensors(model), path)


# ---- restoring -------------------------------------------------------------


def restore_tf1(model: tf_keras.Model, path: StrPath, allow_partial: bool = False,
                init_from_group0: bool = False,
                may_be_new: Callable[[str], bool] = lambda name: False,
                labels: Sequence[str] = ()) -> Report:
    """Sets the model's weights from a checkpoint, matched by name.

    All names and shapes are checked and all tensors are read before any variable
    changes. Works under any tf.distribute strategy, outside of its replicas.

        report = restore_tf1(model, "albert_base/model.ckpt-best")
        print(report.summary())  # It is also logged.

    Args:
      path: as for find_checkpoint, or a folder in any format that `load` accepts.
      allow_partial: lets variables that are missing or have a different shape keep
        their values.
      init_from_group0: gives every group of layers the values of the checkpoint's group
        0. The original does the same, but loses the attention and feed-forward weights
        of group 0 itself.
      may_be_new: name → whether the variable may be missing or have a different shape,
        and then keeps its values: a task's head on a pretrained encoder.
      labels: the labels of the model's outputs. If the checkpoint has an output for
        each, its outputs are put in this order (labels.order).
    """
    path = os.fspath(path)
    if formats.is_foreign(path):
        try:
            checkpoint = formats.read(path, allow_nan=True)  # They are checked below.
        except InputError:  # Some formats do not hold the config.
            checkpoint = formats.read(path, model.config, allow_nan=True)
        for line in checkpoint.report.summary().splitlines():
            logging.info("%s", line)
        if differing := _differing(checkpoint.config, model.config, COMPUTING):
            logging.warning("%s was made with a different config: %s.", path, differing)
        source, stored, theirs = checkpoint.source, checkpoint.tensors, checkpoint.labels
    else:
        source = find_checkpoint(path)
        stored = bundle.by_names(source, model_only=True)
        # A run has its labels in task.json, a conversion in the config.
        folder = folder_of(source)
        theirs = {**vocabulary.settings_in(os.path.join(folder, CONFIG_FILE)),
                  **vocabulary.task_settings(folder)}.get("labels") or ()
    stored = label_names.ordered(labels, theirs, stored, source)
    # Hugging Face's masked language models have no pooler, which a task's head may need.
    lacks_pooler = may_be_new("output_weights") and not any(
        name.startswith(_POOLER) for name in stored)
    return _restore(
        model, source, stored, allow_partial, init_from_group0, lambda name: may_be_new(
            name) or lacks_pooler and name.startswith(_POOLER))


def _restore(model, source, stored, allow_partial, init_from_group0=False,
             may_be_new=lambda name: False):
    variables, report = _variables(model), Report(source)
    sources = {name: _GROUP.sub(r"\1group_0/", name) if init_from_group0 else name
               for name in variables}
    for name, theirs in sorted(sources.items()):
        shape = tuple(variables[name].shape)
        found = stored[theirs].shape if theirs in stored else None
        if found == shape:
            report.matched[name] = theirs
        elif may_be_new(name):
            report.new.append(name)
            if found is not None:
                report.dropped[theirs] = (
                    f"{list(found)} does not fit {list(shape)}: another task's")
        elif found is None:
            report.missing.append(name)
        else:
            report.mismatched[name] = (f"{name} is {list(found)} in the checkpoint, "
                                       f"{list(shape)} in the model")
    scopes = {name.split("/")[0] for name in variables if not may_be_new(name)}
    for name in sorted({*stored} - {*sources.values()}):
        # Other groups are left out on purpose; heads that the model lacks are harmless.
        is_harmless = (name.split("/")[0] not in scopes or _OPTIMIZER_STATE.search(name)
                       or init_from_group0 and _GROUP.match(name))
        report.dropped[name] = "not used by this model"
        if not is_harmless:
            report.dropped[name] = "extra within the model's own names"
            report.unexpected.append(name)
    if not report.matched:
        raise InputError(
            f"{source}: none of its {len(stored)} tensors has the name and shape of a "
            "variable of the model; give an ALBERT checkpoint with this config.")
    if not (report.complete or allow_partial):
        raise InputError(f"{source} does not fit the model: " + "; ".join(
            f"{what}: {len(names)} ({some(names)})" for what, names in (
                ("variables with a different shape", report.mismatched.values()),
                ("variables of the model that it lacks", report.missing),
                ("tensors that the model does not have", report.unexpected)) if names)
            + "; give the checkpoint's config, every group of layers the values of group "
            "0 (--init_from_group0), or accept the differences (--allow_partial_init, "
            "allow_partial=True).")
    # All is checked and read before any variable changes.
    values = {name: check_finite(source, name, "give a different checkpoint",
                                 stored[name].read())
              for name in {*report.matched.values()}}
    for name, theirs in report.matched.items():
        variable = variables[name]
        variable.assign(values[theirs].astype(variable.dtype.as_numpy_dtype))
    for line in report.summary(3).splitlines():
        logging.info("%s", line)
    return report


# ---- the config beside a checkpoint ----------------------------------------


def write_config(output_dir: StrPath, config: AlbertConfig) -> None:
    """Writes `albert_config.json` into a folder unless the same config is there."""
    path = os.path.join(output_dir, CONFIG_FILE)
    if not files.exists(path):
        files.write(path, config.to_json().encode())
    elif differing := _differing(read_config(output_dir), config):
        raise InputError(
            f"{path}: the folder belongs to a model with a different config: "
            f"{differing}; choose a new folder or the same config.")


def read_config(output_dir: StrPath) -> AlbertConfig:
    """Reads the `albert_config.json` of a folder of checkpoints."""
    return AlbertConfig.from_json_file(os.path.join(output_dir, CONFIG_FILE))


def _differing(there: AlbertConfig, here: AlbertConfig,
               names: Optional[Sequence[str]] = None) -> str:
    """Returns which values of two configs differ, of all keys or of some."""
    old, new = ({"parameter_sharing": config.parameter_sharing, **config.to_dict()}
                for config in (there, here))
    return ", ".join(
        f"{key} is {old.get(key, 'not given')} there and {new.get(key, 'not given')} here"
        for key in names or sorted({*old, *new}) if old.get(key) != new.get(key))
