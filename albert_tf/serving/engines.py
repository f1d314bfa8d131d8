"""Answers single and short requests with the fastest engine that is installed.

    task of a model ─► exported once, in float32, and kept by its digest
    small batches   ─► OpenVINO or ONNX Runtime
    large batches, other tasks ─► TensorFlow

Exports are kept in the folder `engines` beside the model, or in the user's cache if the
model's folder cannot be written. A file's name holds the digest of the model and that of
the file's own content: it is used only for the model that it was made from, and only if
it is undamaged.
"""

import contextlib
import gc
import hashlib
import os
import re
import time
from typing import Any, Iterator, Mapping, Sequence

import numpy as np
from absl import logging

import albert_tf
from albert_tf import files
from albert_tf.checkpoints import formats, hub
from albert_tf.checkpoints.sentence_transformers import Dense
from albert_tf.errors import InputError
from albert_tf.jobs import parallel
from albert_tf.jobs.progress import duration
from albert_tf.serving import portable

AUTO, TENSORFLOW = "auto", "tensorflow"
# Engine → its title, and its format in portable.FORMS; the fastest one first.
_ENGINES = {"openvino": ("OpenVINO", "openvino"),
            "onnxruntime": ("ONNX Runtime", "onnx")}
# An engine computes these batches faster than TensorFlow, which needs longer for a token,
# but computes no padding (benchmarks/NOTES.md, Inference).
MOST_TOKENS = 512  # with padding
_LEAST_TOKENS = 0.9  # without it, as a share
_PRECISION = "float32"  # Others change answers by more than rounding.
_DIGITS = 16  # of a digest in a file's name


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

    Raises:
      InputError: the engine that is named cannot be used. "auto" then uses the next
        one, or TensorFlow, and the sentence, which is a warning, says why.
    """
    said, failed = _choose(model, name, path, task, unless, export)
    logging.log(logging.WARNING if failed else logging.INFO, "%s", said)
    return said


def _choose(model: Any, name: str, path: str, task: str, unless: str, export: bool
            ) -> tuple[str, bool]:
    """Returns the sentence of `use`, and whether an installed engine failed."""
    if name not in (AUTO, TENSORFLOW, *_ENGINES):
        raise InputError(f"the engine {name!r:.40} is not known; give one of "
                         f"{', '.join((AUTO, TENSORFLOW, *_ENGINES))}.")
    if model.engine is not None:
        if name != AUTO:
            raise InputError(f"{path} is an export for {model.format}, and cannot be "
                             f"computed by the engine {name}; leave it out, or give the "
                             "model that was exported.")
        return f"Engine: that of the export ({model.format}).", False
    if name == TENSORFLOW:
        return "Engine: TensorFlow, as asked for.", False
    names = [name]
    if name == AUTO:
        names = [each for each, (_, form) in _ENGINES.items()
                 if portable.is_installed(form)]
        if parallel.has_accelerator():
            unless = unless or "this machine has an accelerator."
        if not names:
            unless = unless or "neither OpenVINO nor ONNX Runtime is installed."
        if unless:
            return f"Engine: TensorFlow, because {unless}", False
    task = task or next(iter(model.tasks()))
    try:
        title, engine, note = _loaded(
            model, names, os.fspath(path), task, export or name != AUTO)
    except InputError as error:
        if name != AUTO:
            raise
        return f"Engine: TensorFlow, because {error}", not isinstance(error, _NotKept)
    if name != AUTO:
        model.head(task).use(engine)
        return f"Engine: {title} for the task {task}, as asked for; {note}.", False
    model.head(task).use(engine, _suits)
    return (f"Engine: {title} for the task {task}, up to {MOST_TOKENS} tokens with "
            "little padding, where it is faster; TensorFlow for other batches and "
            f"tasks; {note}.", title != _ENGINES[names[0]][0])


def _suits(batch: Mapping[str, np.ndarray]) -> bool:
    """Returns whether an engine computes a padded batch faster than TensorFlow."""
    size = batch["input_ids"].size
    return size <= MOST_TOKENS and np.sum(batch["input_mask"]) >= _LEAST_TOKENS * size


class _NotKept(InputError):
    """The error for an export that is not kept, and is not to be made."""


def _loaded(model: Any, names: Sequence[str], path: str, task: str, export: bool
            ) -> tuple[str, portable.Engine, str]:
    """Returns the title of the first of several engines that can compute a task, the
    engine with the task's export, and a note on both."""
    answering, failures = model.head(task), []
    for name in names:
        title, form = _ENGINES[name]
        try:
            portable.needed(form, portable.FORMS[form].readers)
        except InputError as error:
            failures.append(str(error))
            continue
        # Not caught: a second engine would need the same export.
        file, note = _exported(model, path, task, name, export)
        try:
            engine = portable.ENGINES[form](file, task, _PRECISION)
            # Some graphs can be loaded, but not run.
            engine(answering.shortest())
        except InputError as error:
            failures.append(f"{title}: {error}")
            continue
        return title, engine, "; ".join([note, *(each.rstrip(".") for each in failures)])
    raise InputError(" ".join(failures))


def _exported(model: Any, path: str, task: str, name: str, export: bool
              ) -> tuple[str, str]:
    """Returns the path of the export of a task, and how it came there."""
    own = "" if files.is_folder(path) or hub.is_hub(path) else os.path.basename(path) + "-"
    places = list(_places(path))
    kept = re.compile(f"{re.escape(own + task)}-([0-9a-f]{{{_DIGITS}}})-"
                      rf"([0-9a-f]{{{_DIGITS}}})\.onnx")
    exports = [(os.path.join(place, found[0]), found) for place in places
               for found in filter(None, map(kept.fullmatch, files.names_in(place)))]
    digest = digest_of(model, task) if exports or export else ""
    for file, found in exports:
        if found[1] == digest:
            try:
                if files.sha256(file).startswith(found[2]):
                    return file, f"its export is kept in {file}"
                logging.warning("%s is damaged, and is not used.", file)
            except InputError as error:  # A different process may have removed it.
                logging.warning("%s", error)
    if not export:
        raise _NotKept("no export for a faster engine is kept, and making one takes "
                       f"longer than this answer; --engine={name} makes it.")
    form = _ENGINES[name][1]
    portable.check(form, _PRECISION)
    begin = time.monotonic()
    content = portable.graph(model, task, form, _PRECISION)
    gc.collect()  # The converter leaves more memory than the model takes.
    sum_of_content = hashlib.sha256(content).hexdigest()[:_DIGITS]
    file = _keep(places, f"{own}{task}-{digest}-{sum_of_content}.onnx", content)
    # The model has changed since these were made, or they are damaged.
    for other, _ in exports:
        if os.path.dirname(other) == os.path.dirname(file) and other != file:
            with contextlib.suppress(OSError):  # It is a different user's.
                files.remove(other)
    return file, f"exported in {duration(time.monotonic() - begin)} to {file}"


def _places(path: str) -> Iterator[str]:
    """Yields the folders in which exports of a model may be kept."""
    if not hub.is_hub(path) and not files.is_remote(path):
        yield os.path.join(formats.folder_of_model(path), "engines")
        path = os.path.realpath(path)
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(
        os.path.expanduser("~"), ".cache")
    if os.path.isabs(cache):  # In a container, the user may have no home.
        # Models must not remove each other's exports.
        yield os.path.join(cache, "albert_tf", "engines", hashlib.sha256(
            path.encode(errors="surrogateescape")).hexdigest()[:_DIGITS])


def _keep(places: list[str], name: str, content: bytes) -> str:
    """Writes a file into the first folder that can be written; returns its path."""
    reason = InputError("there is no folder for the export; set XDG_CACHE_HOME to one.")
    for place in places:
        try:
            files.make_directory(place, "the export for a faster engine")
            files.write(os.path.join(place, name), content)
        except InputError as error:
            reason = error
        else:
            return os.path.join(place, name)
    raise reason


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
