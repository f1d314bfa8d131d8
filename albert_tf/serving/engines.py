"""Answers single and short requests with the fastest engine that is installed.

    task of a model ─► exported once, in float32, and kept by its digest
    small batches   ─► OpenVINO or ONNX Runtime
    large batches, other tasks, early exit ─► TensorFlow

Exports are kept in the folder `engines` beside the model, or in the user's cache if the
model's folder cannot be written. A file's name holds the digest of the model and that of
the file's own content: it is used only for the model that it was made from, and only if
it is undamaged.
"""

import gc
import hashlib
import os
import re
import time
from typing import Any, Iterator, Mapping

import numpy as np

import albert_tf
from albert_tf import files
from albert_tf.checkpoints import formats, hub
from albert_tf.checkpoints.sentence_transformers import Dense
from albert_tf.errors import InputError, Interruption
from albert_tf.jobs import parallel
from albert_tf.jobs.progress import amount, duration
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
_MEMORY = 60  # bytes that the converter takes for each byte of the weights, at most
_DIGITS = 16  # of a digest in a file's name


def use(model: Any, name: str, path: str, task: str = "", unless: str = "",
        export: bool = True) -> str:
    """Lets an engine compute a task of a serving.predict.Model from now on; returns a
    sentence that says which engine, and why.

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
      InputError: the engine that is named cannot be used. "auto" then uses TensorFlow.
    """
    if name not in (AUTO, TENSORFLOW, *_ENGINES):
        raise InputError(f"the engine {name!r:.40} is not known; give one of "
                         f"{', '.join((AUTO, TENSORFLOW, *_ENGINES))}.")
    if model.engine is not None:
        if name != AUTO:
            raise InputError(f"{path} is an export for {model.format}, and cannot be "
                             f"computed by the engine {name}; leave it out, or give the "
                             "model that was exported.")
        return f"Engine: that of the export ({model.format})."
    if name == TENSORFLOW:
        return "Engine: TensorFlow, as asked for."
    if unless and name == AUTO:
        return f"Engine: TensorFlow, because {unless}"
    task = task or next(iter(model.tasks()))
    answering = model.head(task)
    if name != AUTO:
        engine, note = _loaded(model, name, path, task, True)
        answering.use(engine)
        return (f"Engine: {_ENGINES[name][0]} for the task {task}, as asked for; {note}.")
    if parallel.has_accelerator():
        return "Engine: TensorFlow, because this machine has an accelerator."
    reason = "neither OpenVINO nor ONNX Runtime is installed."
    for each, (title, form) in _ENGINES.items():
        try:
            portable.needed(form, portable.FORMS[form].readers)
        except InputError:
            continue
        try:
            engine, note = _loaded(model, each, path, task, export)
        except (InputError, Interruption) as error:
            reason = str(error)
            break
        answering.use(engine, _suits)
        return (f"Engine: {title} for the task {task}, up to {MOST_TOKENS} tokens with "
                "little padding, where it is faster; TensorFlow for other batches and "
                f"tasks; {note}.")
    return f"Engine: TensorFlow, because {reason}"


def _suits(batch: Mapping[str, np.ndarray]) -> bool:
    """Returns whether an engine computes a padded batch faster than TensorFlow."""
    size = batch["input_ids"].size
    return size <= MOST_TOKENS and np.sum(batch["input_mask"]) >= _LEAST_TOKENS * size


def _loaded(model: Any, name: str, path: str, task: str, export: bool
            ) -> tuple[portable.Engine, str]:
    """Returns an engine with the export of a task, and where that is kept."""
    form = _ENGINES[name][1]
    portable.needed(form, portable.FORMS[form].readers)
    own = "" if files.is_folder(path) or hub.is_hub(path) else os.path.basename(path) + "-"
    digest = digest_of(model, task)
    places = list(_places(os.fspath(path)))
    kept = re.compile(f"{re.escape(own + task)}-([0-9a-f]{{{_DIGITS}}})-"
                      rf"([0-9a-f]{{{_DIGITS}}})\.onnx")
    for place in places:
        for found in filter(None, map(kept.fullmatch, files.names_in(place))):
            file = os.path.join(place, found[0])
            try:
                if found[1] == digest and files.sha256(file).startswith(found[2]):
                    return _engine(form, file, task), f"its export is kept in {file}"
            except InputError:  # It was removed meanwhile, or is of another version.
                continue
    if not export:
        raise InputError("no export for a faster engine is kept, and making one takes "
                         f"longer than this answer; --engine={name} makes it.")
    portable.check(form, _PRECISION)
    needed, free = _MEMORY * _size(model), parallel.available_memory()
    if needed > free:
        raise InputError(f"its export would need about {amount(needed)} of memory, but "
                         f"{amount(free)} are free. --engine=tensorflow needs none.")
    begin = time.monotonic()
    content = portable.graph(model, task, form, _PRECISION)
    gc.collect()  # The converter leaves more memory than the model takes.
    sum_of_content = hashlib.sha256(content).hexdigest()[:_DIGITS]
    file = _keep(places, f"{own}{task}-{digest}-{sum_of_content}.onnx", content)
    engine = _engine(form, file, task)
    # The model has changed since these were made, or they are damaged.
    for other in filter(kept.fullmatch, files.names_in(os.path.dirname(file))):
        if other != os.path.basename(file):
            files.remove(os.path.join(os.path.dirname(file), other))
    return engine, f"exported in {duration(time.monotonic() - begin)} to {file}"


def _size(model: Any) -> int:
    """Returns the size of a model's weights in bytes."""
    return sum(weight.dtype.size * weight.shape.num_elements()
               for weight in model.model.weights)


def _engine(form: str, file: str, task: str) -> portable.Engine:
    return portable.ENGINES[form](file, task, _PRECISION)


def _places(path: str) -> Iterator[str]:
    """Yields the folders in which exports of a model may be kept."""
    if not hub.is_hub(path) and not files.is_remote(path):
        yield os.path.join(formats.folder_of_model(path), "engines")
        path = os.path.realpath(path)
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(
        os.path.expanduser("~"), ".cache")
    # Models must not remove each other's exports.
    yield os.path.join(cache, "albert_tf", "engines", hashlib.sha256(
        path.encode(errors="surrogateescape")).hexdigest()[:_DIGITS])


def _keep(places: list[str], name: str, content: bytes) -> str:
    """Writes a file into the first folder that can be written; returns its path."""
    for place in places:
        try:
            files.make_directory(place, "the export for a faster engine")
        except InputError as error:
            reason = error
            continue
        files.remove_leftovers(place)
        files.write(os.path.join(place, name), content)
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
