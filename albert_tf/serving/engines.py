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

    Raises InputError if the engine that is named cannot be used. "auto" then uses the
    next one, or TensorFlow, and the sentence, which is a warning, says why.
    """
    if name not in (AUTO, TENSORFLOW, *_ENGINES):
        raise InputError(f"the engine {name!r:.40} is not known; give one of "
                         f"{', '.join((AUTO, TENSORFLOW, *_ENGINES))}.")
    if model.engine is not None and name != AUTO:
        raise InputError(f"{path} is an export for {model.format}, and cannot be "
                         f"computed by the engine {name}; leave it out, or give the "
                         "model that was exported.")
    names, failures = [name], list[str]()
    if name == AUTO:
        names = [each for each, (_, form) in _ENGINES.items()
                 if runtimes.is_installed(form)]
        if parallel.has_accelerator():
            unless = unless or "this machine has an accelerator."
        elif not names:
            unless = unless or "neither OpenVINO nor ONNX Runtime is installed."
    if model.engine is not None:
        said = f"that of the export ({model.format})."
    elif name == TENSORFLOW:
        said = "TensorFlow, as asked for."
    elif name == AUTO and unless:
        said = f"TensorFlow, because {unless}"
    else:
        task = task or next(iter(model.tasks()))
        try:
            title, engine, note = _loaded(
                model, names, path, task, export or name != AUTO, failures)
        except InputError as error:
            if name != AUTO:
                raise
            failures += [str(error)] * export
            said = f"TensorFlow, because {error}"
        else:
            model.head(task).use(engine, _suits if name == AUTO else None)
            said = f"{title} for the task {task}, " + (
                f"up to {MOST_TOKENS} tokens with little padding, where it is faster; "
                "TensorFlow for other batches and tasks" if name == AUTO
                else "as asked for") + f"; {note}."
    logging.log(logging.WARNING if failures else logging.INFO, "Engine: %s", said)
    return f"Engine: {said}"


def _suits(batch: Mapping[str, np.ndarray]) -> bool:
    """Returns whether an engine computes a padded batch faster than TensorFlow."""
    size = batch["input_ids"].size
    return size <= MOST_TOKENS and np.sum(batch["input_mask"]) >= _LEAST_TOKENS * size


def _loaded(model: Any, names: list[str], path: str, task: str, export: bool,
            failures: list[str]) -> tuple[str, runtimes.Engine, str]:
    """Returns the title of the first of several engines that can compute a task, the
    engine with the task's export, and a note on both; adds why others failed."""
    file = note = ""
    for name in names:
        title, form = _ENGINES[name]
        try:
            runtimes.needed(form, runtimes.FORMS[form].readers)
        except InputError as error:
            failures.append(str(error))
            continue
        if not file:  # Not caught: a second engine would need the same export.
            file, note = _exported(model, path, task, name, export)
        try:
            engine = runtimes.ENGINES[form](file, task, _PRECISION)
            # Some graphs can be loaded, but not run.
            engine(model.head(task).shortest())
        except InputError as error:
            failures.append(f"{title}: {error}")
            continue
        return title, engine, "; ".join(
            [note, *(each.rstrip(".") for each in failures)])
    raise InputError(" ".join(failures))


def _exported(model: Any, path: str, task: str, name: str, export: bool
              ) -> tuple[str, str]:
    """Returns the path of the export of a task, and how it came there."""
    path = formats.located(path)
    begin = time.monotonic()
    of_file = "" if files.is_folder(path) else f"{os.path.basename(path)}-"
    prefix = f"{of_file}{task}-"
    beside = os.path.join(formats.folder_of_model(path), "engines")
    cache = os.path.join(os.path.expanduser(
        os.environ.get("XDG_CACHE_HOME") or "~/.cache"), "albert_tf", "engines")
    title = f"{prefix}{digest_of(model, task)}.onnx"
    for file in (os.path.join(beside, title), os.path.join(cache, title)):
        if files.exists(file):
            return file, f"its export is kept in {file}"
    if not export:
        raise InputError("no export for a faster engine is kept, and making one takes "
                         f"longer than this answer; --engine={name} makes it.")
    folder = beside
    if files.is_remote(beside) or not files.is_writable(beside):
        folder = cache
        files.check_folder(cache, "the export for a faster engine")
    file = os.path.join(folder, title)
    form = _ENGINES[name][1]
    portable.check(form, _PRECISION)
    [content] = portable.graphs(model, task, form, _PRECISION).values()
    gc.collect()  # The converter leaves more memory than the model takes.
    files.write(file, content)
    # The model has changed since these were made.
    for other in files.names_in(folder) if folder == beside else ():
        if other != os.path.basename(file) and re.fullmatch(
                rf"{re.escape(prefix)}[0-9a-f]{{{_DIGITS}}}\.onnx", other):
            files.remove(os.path.join(folder, other))
    return file, f"exported in {duration(time.monotonic() - begin)} to {file}"


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
