"""Runs the exports of `portable`, and ONNX folders that others made: a graph computes
scores from ids, an Answering does the rest.

A folder of export_model.py has `portable.json`, which says what the graph does. Of others
the graph's outputs and the architecture in config.json tell it.
"""

import contextlib
import importlib
import os
import threading
import warnings
from logging import WARNING, disable, root
from typing import Any, Mapping, Optional, Sequence

import numpy as np
import tensorflow as tf

from albert_tf import files, text_files
from albert_tf.checkpoints import (
    huggingface, sentence_transformers, tokenizer_files, vocabulary)
from albert_tf.checkpoints.checkpoint import HEADS, Report, head_of
from albert_tf.checkpoints.labels import LABELS_FILE, outputs_of
from albert_tf.config import AlbertConfig, CONFIG_FILE
from albert_tf.errors import InputError, reading, reason_of
from albert_tf.tokenization.tokenizer import FullTokenizer

TFLITE = "model.tflite"
# transformers' names of a model's inputs → ours.
INPUTS = {"input_ids": "input_ids", "attention_mask": "input_mask",
          "token_type_ids": "segment_ids"}


def graph_name(form: str, precision: str) -> str:
    """Returns the name of the graph in an export's folder."""
    return TFLITE if form == "tflite" else os.path.join(
        huggingface.GRAPHS, huggingface.GRAPH_NAMES[precision])


def read(path: str, given: Optional[FullTokenizer] = None) -> dict[str, Any]:
    """Returns the values of a serving.predict.Model that uses the engine. Raises
    InputError if the export is damaged, or a package is missing."""
    folder, graphs = huggingface.find_export(path) or (path, [])
    own = os.path.join(folder, huggingface.SETTINGS)
    is_own = files.exists(own)
    stored = text_files.read_object(own) if is_own else {
        "format": "onnx", "precision": "", "task": "embed", "heads": {}, "threshold": 0}
    with reading(own):
        form, precision, task, heads = (
            stored[name] for name in ("format", "precision", "task", "heads"))
        threshold, engine_of = float(stored["threshold"]), FORMS[form]
        graph = os.path.join(folder, graph_name(form, precision)) if (
            is_own and path not in graphs) else huggingface.chosen_graph(folder, graphs)
    needed(form, engine_of.readers)
    where = os.path.join(folder, CONFIG_FILE if form == "tflite" else huggingface.CONFIG)
    values, config = text_files.read_object(where), AlbertConfig.from_json_file(where)
    engine = engine_of(graph, task, precision)
    if not is_own:
        engine.most_segment = config.type_vocab_size - 1
        heads = huggingface.heads_of_outputs(values, engine.outputs, engine.path)
        for head, width in heads.items():
            engine.task = head_of(head, width).task
    settings, sentence, tokenizer = {}, None, None
    if (is_own or not heads) and files.exists(
            os.path.join(folder, sentence_transformers.MODULES)):
        sentence, settings, tokenizer = sentence_transformers.described(folder, config)
    answering = {head: width for head, width in heads.items()
                 if head_of(head, width).task == engine.task}
    labels: Sequence[Any] = ()
    listed = os.path.join(folder, LABELS_FILE)
    if form == "tflite" and files.exists(listed):  # config.json has those of others.
        labels = [line for _, line in text_files.read_lines(listed)]
    elif not is_own or "id2label" in values:
        labels = huggingface.labels_of(values, answering, where)
    tokenizer = tokenizer_files.find(folder, given or tokenizer)
    if tokenizer:
        tokenizer_files.check(tokenizer, config.vocab_size)
    return {
        "tensors": {}, "report": Report(folder), "format": form, "config": config,
        "heads": heads, "engine": engine, "sentence": sentence, "threshold": threshold,
        "settings": vocabulary.task_settings(folder) or settings, "tokenizer": tokenizer,
        **outputs_of({**(stored if is_own else values), "labels": labels}, answering,
                     where)}


class Engine:
    """A graph of one `task`, loaded once and used for many requests. Threads may share
    one. The subclasses are the formats of exports.

    Attributes:
      precisions: types that the weights can have. bfloat16 is computed in bfloat16 but
        stored as float16, which has more digits.
      writers, readers: the packages that write the file, and those that run it.
      exchanges: whether the graph has transformers' names and returns what
        Answering.exchanged does, instead of Answering.outputs.
      outputs: the names of the graph's outputs → their shapes, with text for an axis of
        any size; for ONNX Runtime only, else ().
      most_segment: the highest segment id that the graph takes.
    """

    precisions: tuple[str, ...]
    writers: tuple[str, ...] = ("tf2onnx", "onnx")
    readers: tuple[str, ...] = ()
    exchanges, most_segment = True, 1
    outputs: Mapping[str, Sequence[Any]] = {}

    def __init__(self, path: str, task: str, precision: str):
        self.task, self.path, self._precision = task, path, precision
        files.check_local(path)
        with reading(path), quiet():
            os.stat(path)
            self._load(path)

    def __call__(self, batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the outputs for a padded batch."""
        given = self._given(batch)
        try:
            return self._run(given)
        except Exception as error:  # Each engine has its own errors.
            raise InputError(
                f"{self.path} does not accept these inputs; check for an id that is "
                f"not in the vocabulary ({reason_of(error)}).") from error

    def _set(self, inputs: Mapping[str, tuple[int, type]]) -> None:
        """Takes the ranks and types of the inputs of an ONNX graph, by name."""
        self._inputs = inputs
        known = {*INPUTS}.union(*(head_of(name).inputs for name in HEADS))
        if not {"input_ids", "attention_mask"} <= {*inputs} <= known:
            raise ValueError(f"its inputs are {', '.join(sorted(inputs))}, but an "
                             f"ALBERT has {', '.join(INPUTS)}, or the first two")

    def _given(self, batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the inputs of an ONNX graph for a batch."""
        batch = {**batch, "segment_ids": np.minimum(
            batch["segment_ids"], self.most_segment)}
        if "token_type_ids" not in self._inputs and batch["segment_ids"].any():
            raise InputError(f"{self.path} has no input token_type_ids, and cannot "
                             "compute pairs of texts; export the model with it.")
        # With three axes, each option is a question of its own.
        return {name: np.expand_dims(
            batch[INPUTS.get(name, name)].astype(kind), (1,) * (rank - 2))
                for name, (rank, kind) in self._inputs.items()}


class _Onnx(Engine):
    precisions, readers = ("float32", "float16", "int8"), ("onnxruntime",)

    def _load(self, path):
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(
            path, options, providers=["CPUExecutionProvider"])
        self._set({
            each.name: (len(each.shape), np.int32 if "int32" in each.type else np.int64)
            for each in self._session.get_inputs()})
        self.outputs = {each.name: each.shape for each in self._session.get_outputs()}

    def _run(self, given):
        values = self._session.run(list(self.outputs), given)
        # A graph from elsewhere may compute in float16.
        return {name: value.astype(np.float32) if value.dtype == np.float16 else value
                for name, value in zip(self.outputs, values)}


class _OpenVino(Engine):
    precisions, readers = ("float32", "float16", "bfloat16"), ("openvino",)

    def _load(self, path):
        import openvino

        # By default OpenVINO computes in bfloat16 if the processor supports it.
        self._model = openvino.Core().compile_model(path, "CPU", {
            "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT":
                "bf16" if self._precision == "bfloat16" else "f32"})
        self._set({each.any_name: (len(each.partial_shape), np.int64)
                   for each in self._model.inputs})
        self.outputs = {each.any_name: () for each in self._model.outputs}
        self._local = threading.local()  # A request object holds only one batch.

    def _run(self, given):
        if not hasattr(self._local, "request"):
            self._local.request = self._model.create_infer_request()
        outputs = self._local.request.infer(given)
        return {name: np.array(outputs[name]) for name in self.outputs}


class _TfLite(Engine):
    precisions, writers, exchanges = ("float32", "float16", "int8"), (), False

    def _load(self, path):
        self._interpreter = tf.lite.Interpreter(path, num_threads=os.cpu_count())
        self._signature = self._interpreter.get_signature_runner()
        self._inputs = list(self._signature.get_input_details())
        self.outputs = dict.fromkeys(self._signature.get_output_details(), ())
        self._lock = threading.Lock()  # An interpreter holds only one batch.

    def _given(self, batch):
        return {name: batch[name] for name in self._inputs}

    def _run(self, given):
        with self._lock:
            return {name: np.array(value)
                    for name, value in self._signature(**given).items()}


FORMS: dict[str, type[Engine]] = {"onnx": _Onnx, "openvino": _OpenVino, "tflite": _TfLite}


def needed(form: str, packages: Sequence[str]) -> None:
    """Raises InputError if a package that a format needs is missing or broken."""
    for name in packages:
        try:
            with quiet():
                importlib.import_module(name)
        except Exception as error:  # A broken package may raise anything.
            raise InputError(
                f"the package {name}, which {form} needs, cannot be imported "
                f"({reason_of(error)}); run pip install 'albert_tf[{form}]'.") from error


@contextlib.contextmanager
def quiet():
    """Silences the messages of converters and engines about their own work."""
    level, handlers = root.manager.disable, root.handlers[:]
    disable(WARNING)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        disable(level)
        # OpenVINO takes away absl's handler, with the format of the scripts' lines.
        root.handlers[:] = handlers
