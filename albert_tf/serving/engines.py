"""Answers single and short requests with the fastest engine that is installed.

    task of a model ─► exported once, in float32, and kept by its digest
    small batches   ─► OpenVINO or ONNX Runtime
    large batches, other tasks ─► TensorFlow

An export is kept in the folder `engines` beside the model, or in the user's cache if that
folder cannot be written. Its name holds the digest of the model: it is used only for the
model that it was made from.
"""

import gc
import hashlib
import os
import re
import time
from typing import Any, Mapping

import numpy as np
from absl import logging

import albert_tf
from albert_tf import files
from albert_tf.checkpoints import formats
from albert_tf.checkpoints.sentence_transformers import Dense
from albert_tf.errors import InputError
from albert_tf.jobs import parallel
from albert_tf.jobs.progress import duration
from albert_tf.serving import portable, runtimes

AUTO, TENSORFLOW = "auto", "tensorflow"
# Engine → its title, and its format in runtimes.FORMS; the fastest one first.
_ENGINES = {"openvino": ("OpenVINO", "openvino"),
            "onnxruntime": ("ONNX Runtime", "onnx")}
# An engine computes these batches faster than TensorFlow, which needs longer for a token,
# but computes no padding (benchmarks/NOTES.md, Inference).
MOST_TOKENS = 512  # with padding
_LEAST_TOKENS = 0.9  # without it, as a share
_PRECISION = "float32"  # Others change answers by more than rounding.
_DIGITS = 16  # of the digest in a file's name


def use(model: Any, name: str, path: str, task: str = "", unless: str = "",
        export: bool = True) -> str:
    """Lets an engine compute a task of a serving.predict.Model from now on; logs and
    returns a sentence that says which engine, and why.

        model = albert_tf.load("runs/sst-2")
        engines.use(model, "auto", "runs/sst-2")

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
    if name not in (AUTO, TENSORFLOW, *_ENGINES):
        raise InputError(f"the engine {name!r:.40} is not known; give one of "
                         f"{', '.join((AUTO, TENSORFLOW, *_ENGINES))}.")
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
        name = next((each for each, (_, form) in _ENGINES.items()
                     if runtimes.is_installed(form)), "")
        unless = unless or (
            "this machine has an accelerator." if parallel.has_accelerator() else
            "neither OpenVINO nor ONNX Runtime is installed." if not name else "")
        if unless:
            return _say(f"TensorFlow, because {unless}")
    title, form = _ENGINES[name]
    places = _places(model, path, task)
    file = next(filter(files.exists, places), "")
    if not file and is_auto and not export:
        return _say("TensorFlow, because no export for a faster engine is kept, and "
                    f"making one takes longer than this answer; --engine={name} makes "
                    "it.")
    try:
        runtimes.needed(form, runtimes.FORMS[form].readers)
        note = f"its export is kept in {file}"
        if not file:
            begin, file = time.monotonic(), _exported(model, places, task, form)
            note = f"exported in {duration(time.monotonic() - begin)} to {file}"
        engine = runtimes.ENGINES[form](file, task, _PRECISION)
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


def _places(model: Any, path: str, task: str) -> list[str]:
    """Returns the paths where the export of a task may be kept."""
    path = formats.located(path)
    of_file = "" if files.is_folder(path) else f"{os.path.basename(path)}-"
    cache = os.path.expanduser(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    return [os.path.join(folder, "engines", f"{of_file}{task}-{digest_of(model, task)}.onnx")
            for folder in (formats.folder_of_model(path),
                           os.path.join(cache, "albert_tf"))]


def _exported(model: Any, places: list[str], task: str, form: str) -> str:
    """Exports a task to the first of two places that can be written; returns it."""
    beside, file = places
    folder, cache = map(os.path.dirname, places)
    if files.is_remote(folder) or not files.is_writable(folder):
        files.check_folder(cache, "the export for a faster engine")
    else:
        file = beside
    portable.check(form, _PRECISION)
    [content] = portable.graphs(model, task, form, _PRECISION).values()
    gc.collect()  # The converter leaves more memory than the model takes.
    files.write(file, content)
    # The model has changed since these were made.
    digest = re.compile(re.escape(os.path.basename(file)[:-_DIGITS - 5])
                        + rf"[0-9a-f]{{{_DIGITS}}}\.onnx")
    for other in files.names_in(folder) if file == beside else ():
        if digest.fullmatch(other) and other != os.path.basename(file):
            files.remove(os.path.join(folder, other))
    return file


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
    return digest.hexdigest()[:_DIGITS]
