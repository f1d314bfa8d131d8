"""Answers single and short requests with the fastest engine that is installed.

    task of a model ─► exported once, in float32, and kept by its digest
    small batches   ─► OpenVINO or ONNX Runtime
    large batches, other tasks ─► TensorFlow

An export is kept in the folder `engines` beside the model. Its name holds the digest of
the model: it is used only for the model that it was made from.
"""

import gc
import hashlib
import importlib.util
import os
import re
import time
from typing import Any, Mapping

import numpy as np
from absl import logging

import albert_tf
from albert_tf import files
from albert_tf.checkpoints import formats
from albert_tf.checkpoints.folders import folder_of
from albert_tf.checkpoints.sentence_transformers import Dense
from albert_tf.config import refuse
from albert_tf.errors import InputError
from albert_tf.jobs import parallel
from albert_tf.jobs.progress import duration
from albert_tf.serving import portable, runtimes

AUTO, TENSORFLOW = "auto", "tensorflow"
# Engine, and its package → its title, and its format in runtimes.FORMS; the fastest one
# first.
_ENGINES = {"openvino": ("OpenVINO", "openvino"), "onnxruntime": ("ONNX Runtime", "onnx")}
# An engine computes these batches faster than TensorFlow, which needs longer for a token,
# but computes no padding (benchmarks/NOTES.md, Inference).
MOST_TOKENS = 512  # with padding
_LEAST_TOKENS = 0.9  # without it, as a share
_PRECISION = "float32"  # Others change answers by more than rounding.


def use(model: Any, name: str, path: str, task: str = "", unless: str = "",
        export: bool = True) -> str:
    """Lets an engine compute a task of a serving.predict.Model from now on; logs and
    returns a sentence that says which engine, and why.

    Args:
      name: "auto": the fastest engine that is installed, for batches of at most
        MOST_TOKENS tokens with little padding. "openvino" or "onnxruntime": this engine,
        for all batches. "tensorflow": none.
      path: the path that the model was loaded from.
      task: default: that of the model's head.
      unless: a reason for which "auto" uses TensorFlow, as the end of a sentence.
      export: whether "auto" makes an export, which takes seconds, if none is kept.

    Raises InputError if the engine that is named cannot be used. "auto" then uses
    TensorFlow, and the sentence, which is a warning, says why.
    """
    refuse({"engine": name}, path, "give one of these",
           engine=(AUTO, TENSORFLOW, *_ENGINES))
    if model.engine is not None:
        if name != AUTO:
            raise InputError(f"{path} is an export for {model.format}, and cannot be "
                             f"computed by the engine {name}; leave it out, or give the "
                             "model that was exported.")
        return _say(f"that of the export ({model.format}).")
    if name == TENSORFLOW:
        return _say("TensorFlow, as asked for.")
    task, is_auto = task or next(iter(model.tasks())), name == AUTO
    if is_auto:
        name = next(filter(importlib.util.find_spec, _ENGINES), "")
        unless = unless or (
            "this machine has an accelerator." if parallel.has_accelerator() else
            "neither OpenVINO nor ONNX Runtime is installed." if not name else "")
        if unless:
            return _say(f"TensorFlow, because {unless}")
    title, form = _ENGINES[name]
    folder = os.path.join(folder_of(formats.located(path)), "engines")
    file = os.path.join(folder, f"{task}-{digest_of(model, task)}.onnx")
    is_kept = files.exists(file)
    if is_auto and not is_kept and not export:
        return _say("TensorFlow, because no export for a faster engine is kept, and "
                    f"making one takes longer than this answer; --engine={name} makes "
                    "it.")
    try:
        runtimes.needed(form, runtimes.FORMS[form].readers)
        begin = time.monotonic()
        if not is_kept:
            _export(model, task, form, file)
        note = f"its export is kept in {file}" if is_kept else (
            f"exported in {duration(time.monotonic() - begin)} to {file}")
        engine = runtimes.FORMS[form](file, task, _PRECISION)
        engine(model.head(task).shortest())  # Some graphs can be loaded, but not run.
    except InputError as error:
        if not is_auto:
            raise
        return _say(f"TensorFlow, because {error}", logging.WARNING)
    model.head(task).use(engine, _suits if is_auto else None)
    return _say(f"{title} for the task {task}, " + (
        f"up to {MOST_TOKENS} tokens with little padding, where it is faster; TensorFlow "
        "for other batches and tasks" if is_auto else "as asked for") + f"; {note}.")


def _say(sentence: str, level: int = logging.INFO) -> str:
    logging.log(level, "Engine: %s", sentence)
    return f"Engine: {sentence}"


def _suits(batch: Mapping[str, np.ndarray]) -> bool:
    """Returns whether an engine computes a padded batch faster than TensorFlow."""
    size = batch["input_ids"].size
    return size <= MOST_TOKENS and np.sum(batch["input_mask"]) >= _LEAST_TOKENS * size


def _export(model: Any, task: str, form: str, file: str) -> None:
    """Exports a task of a model to a file, in place of those of what the model was."""
    files.check_local(file)
    files.check_folder(folder := os.path.dirname(file), "the export for a faster engine")
    portable.check(form, _PRECISION)
    [content] = portable.graphs(model, task, form, _PRECISION).values()
    gc.collect()  # The converter leaves more memory than the model takes.
    files.write(file, content)
    for other in files.names_in(folder):
        if re.fullmatch(rf"{task}-[0-9a-f]+\.onnx", other) and (
                other != os.path.basename(file)):
            files.remove(os.path.join(folder, other))


def digest_of(model: Any, task: str) -> str:
    """Returns a digest of everything that the export of a task depends on: weights,
    config, head and the version of this project."""
    digest = hashlib.sha256(repr((
        albert_tf.__version__, task, model.head(task).head, model.problem_type,
        sorted(model.config.to_dict().items()), str(model.sentence))).encode())
    values = [(weight.name, weight.numpy()) for weight in model.model.weights]
    for layer in model.sentence.layers if model.sentence else ():
        if isinstance(layer, Dense):
            values += [(layer.activation, each.read())
                       for each in (layer.kernel, layer.bias) if each is not None]
    for name, value in values:
        digest.update(f"{name} {value.shape} {value.dtype}".encode())
        digest.update(np.ascontiguousarray(value).data)
    return digest.hexdigest()[:16]
