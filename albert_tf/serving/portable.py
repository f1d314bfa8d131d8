"""Exports one task of a model as a small file for other engines, and runs it.

    Head.predictions ─► graph, each ─► tf2onnx ─► weights of 16 or 8 bits ─► model.onnx
                        weight once └► TFLite's converter ─► tables once ─► model.tflite

ONNX Runtime and OpenVINO read model.onnx, TFLite (LiteRT) reads model.tflite.

The folder also holds config, labels, vocabulary and `portable.json`, which is all that
`albert_tf.load` needs to answer: texts become ids in Python, and the engine computes
scores from ids.
"""

import abc
import contextlib
import importlib
import os
import threading
import time
import warnings
from typing import Any, Iterator, Mapping, NamedTuple, Optional, Sequence

import numpy as np
import tensorflow as tf
from absl import logging

from albert_tf import files, text_files
from albert_tf.checkpoints import tokenizer_files
from albert_tf.checkpoints.checkpoint import Report, Vocabulary, check_problem
from albert_tf.checkpoints.labels import check_lines
from albert_tf.checkpoints.vocabulary import check_settings
from albert_tf.config import AlbertConfig, CONFIG_FILE
from albert_tf.errors import InputError
from albert_tf.jobs.progress import amount, duration
from albert_tf.modeling.encoder import Computation
from albert_tf.serving import onnx_weights
from albert_tf.serving.saved_model import LABELS_FILE, RENAME


class Form(NamedTuple):
    """A format of exports.

    Attributes:
      file: name of the file that holds the graph.
      precisions: supported types of the weights. bfloat16 is computed in bfloat16 but
        stored as float16, which has more digits.
      writers, readers: packages that are needed to write the file and to run it.
    """

    file: str
    precisions: tuple[str, ...]
    writers: tuple[str, ...] = ()
    readers: tuple[str, ...] = ()


_CONVERTER = ("tf2onnx", "onnx")
FORMS = {
    "onnx": Form("model.onnx", ("float32", "float16", "int8"), _CONVERTER,
                 ("onnxruntime",)),
    "openvino": Form("model.onnx", ("float32", "float16", "bfloat16"), _CONVERTER,
                     ("openvino",)),
    "tflite": Form("model.tflite", ("float32", "float16", "int8"))}
PRECISIONS = ("float32", "float16", "bfloat16", "int8")
_SETTINGS = "portable.json"
_OPSET = 18
_Arrays = Mapping[str, np.ndarray]


# ---- writing ---------------------------------------------------------------


def export(loaded: Any, task: str, export_dir: str, form: str, precision: str) -> None:
    """Exports one task of a serving.predict.Model.

        export(albert_tf.load("runs/sst-2"), "classify", "sst-2_int8", "onnx", "int8")

    Args:
      form: one of FORMS.
      precision: one of the form's precisions. float16 is computed in float32 on most
        processors, int8 in integers, with activations quantized batch by batch.

    Raises:
      InputError: the folder exists, a package is missing, or the model is an export.
    """
    if files.exists(export_dir):
        raise InputError(f"--export_dir={export_dir} exists already; choose a new "
                         "folder.")
    if loaded.engine is not None:
        raise InputError(f"{loaded.report.source} is already an export; give the model "
                         "that was exported.")
    check(form, precision)
    begin = time.monotonic()
    check_lines(loaded.labels, f"--export_dir={export_dir}", RENAME)
    content = graph(loaded, task, form, precision)
    tokenizer = loaded.tokenizer
    with files.staged(export_dir) as (staged,):
        files.make_directory(staged, export_dir)
        files.write(os.path.join(staged, FORMS[form].file), content)
        text_files.write_json(
            os.path.join(staged, CONFIG_FILE), loaded.config.to_dict())
        if loaded.labels:
            files.write(os.path.join(staged, LABELS_FILE), "".join(
                f"{label}\n" for label in loaded.labels).encode())
        tokenizer_files.write_plain(Vocabulary(
            tokenizer.vocabulary_path, tokenizer.do_lower_case,
            not tokenizer.uses_sentencepiece, tokenizer.strip_accents,
            tokenizer.rules), staged)
        tokenizer_files.write_settings(tokenizer, staged)
        text_files.write_json(os.path.join(staged, _SETTINGS), {
            "format": form, "precision": precision, "task": task,
            "heads": dict(loaded.heads), "settings": dict(loaded.settings),
            "threshold": loaded.threshold, "problem_type": loaded.problem_type})
    logging.info("Exported the task %s to %s in %s (%s, %s).", task, export_dir,
                 duration(time.monotonic() - begin), form, amount(len(content)))


def graph(loaded: Any, task: str, form: str, precision: str) -> bytes:
    """Returns the content of the file for an engine; arguments as for `export`."""
    shared = loaded.head(task)
    # A new object, because it computes differently from the model's own.
    answering = type(shared)(loaded, shared.head)
    answering.computation = Computation(constants=_constants(answering.bert))
    return {"model.onnx": _onnx, "model.tflite": _tflite}[FORMS[form].file](
        answering, precision)


def check(form: str, precision: str) -> None:
    """Raises InputError if a format does not support a precision, or a package that
    writes it is missing."""
    if precision not in FORMS[form].precisions:
        others = [name for name, other in FORMS.items()
                  if precision in other.precisions]
        raise InputError(f"--precision={precision} is for --format="
                         f"{' and '.join(others)}; for {form} give one of "
                         f"{', '.join(FORMS[form].precisions)}.")
    needed(form, FORMS[form].writers)


def _constants(bert) -> dict[str, Any]:
    """Returns Computation.constants in which every layer uses the same tensors, even
    the last layer, which computes only the first position's query."""
    constants = {}
    for block in bert.encoder.blocks:
        weights, = block.layer_weights(tf.float32, 1)
        if hasattr(weights, "query_apart"):
            weights = weights.query_apart()
        constants[block.scope] = tf.nest.map_structure(
            lambda weight: tf.Variable(weight, trainable=False), weights)
    return constants


def _onnx(answering, precision: str) -> bytes:
    import tf2onnx

    with _quiet():
        model, _ = tf2onnx.convert.from_function(
            answering.function, answering.function.input_signature, opset=_OPSET)
    return onnx_weights.stored_as(model, precision).SerializeToString()


def _tflite(answering, precision: str) -> bytes:
    function = answering.function.get_concrete_function()
    module = tf.Module()
    module.weights = list(function.graph.variables)
    with _quiet():
        converter = tf.lite.TFLiteConverter.from_concrete_functions([function], module)
        if precision != "float32":
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
        if precision == "float16":
            converter.target_spec.supported_types = [tf.float16]
        content = converter.convert()
    return tables_once(content) if precision == "int8" else content


def tables_once(content: bytes) -> bytes:
    """Returns the graph with the word embeddings stored once, for lookup and masked LM.

    The converter stores them twice: with one scale for the lookup, which supports
    nothing else, and with a scale for each row as weights of the masked-LM head. The
    head may use one scale, too.
    """
    # Part of TensorFlow's package; the names are those of TFLite's schema.
    from tensorflow.lite.python.schema_py_generated import BuiltinOperator
    from tensorflow.lite.tools import flatbuffer_utils

    model = flatbuffer_utils.read_model_from_bytearray(bytearray(content))
    for graph in model.subgraphs:
        tables = {tuple(table.shape): (lookup.inputs[0], table) for lookup, table in
                  _readers(model, graph, BuiltinOperator.GATHER, 0)}
        for product, weights in _readers(
                model, graph, BuiltinOperator.FULLY_CONNECTED, 1):
            index, table = tables.get(tuple(weights.shape), (None, weights))
            # The two tables are equal up to rounding.
            if table is not weights and np.allclose(
                    _numbers(model, table), _numbers(model, weights), rtol=0,
                    atol=table.quantization.scale[0]):
                product.inputs[1] = index
                model.buffers[weights.buffer].data = None
    return bytes(flatbuffer_utils.convert_object_to_bytearray(model))


def _readers(model: Any, graph: Any, kind: int, number: int
             ) -> Iterator[tuple[Any, Any]]:
    """Yields the operators of a kind whose input `number` is stored in 8 bits, with
    that input's tensor."""
    for operator in graph.operators:
        code = model.operatorCodes[operator.opcodeIndex]
        if max(code.builtinCode, code.deprecatedBuiltinCode) == kind:
            tensor = graph.tensors[operator.inputs[number]]
            stored = model.buffers[tensor.buffer].data
            if stored is not None and len(stored) == np.prod(tensor.shape):
                yield operator, tensor


def _numbers(model: Any, tensor: Any) -> np.ndarray:
    """Returns a tensor's numbers [rows, columns], with one scale or one per row."""
    stored = np.asarray(model.buffers[tensor.buffer].data, np.uint8).view(np.int8)
    return stored.reshape(tensor.shape) * np.asarray(
        tensor.quantization.scale, np.float32)[:, np.newaxis]


@contextlib.contextmanager
def _quiet():
    """Silences the converters' messages about their own work."""
    import logging

    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


# ---- reading ---------------------------------------------------------------


def recognise(path: str) -> bool:
    """Returns whether a path is a folder that `export` wrote, or the graph in it."""
    folder = _folder(path)
    # A store that cannot be reached is said of the model, not of a file in it.
    return files.exists(folder) and files.exists(os.path.join(folder, _SETTINGS))


def _folder(path: str) -> str:
    path = os.fspath(path)
    return os.path.dirname(path) or "." if path.endswith((".onnx", ".tflite")) else path


def read(path: str, vocabulary: Optional[Vocabulary] = None) -> dict[str, Any]:
    """Returns the values of a serving.predict.Model that uses the engine. Raises
    InputError if the export is damaged, or a package is missing."""
    folder = _folder(path)
    where = os.path.join(folder, _SETTINGS)
    settings = text_files.read_object(where)
    form = settings.get("format")
    types = {"task": str, "precision": str, "heads": dict, "settings": dict,
             "threshold": (int, float)}
    if form not in FORMS or not all(
            isinstance(settings.get(name), kind) for name, kind in types.items()):
        raise InputError(f"{where} is not as export_model.py writes it; export the "
                         "model again.")
    check_settings(settings["settings"], where)
    config = AlbertConfig.from_json_file(os.path.join(folder, CONFIG_FILE))
    vocabulary = vocabulary or tokenizer_files.find(folder)
    labels = os.path.join(folder, LABELS_FILE)
    needed(form, FORMS[form].readers)
    return {
        "format": form, "config": config, "model": None,
        "tokenizer": vocabulary and tokenizer_files.check(
            vocabulary, config.vocab_size),
        "labels": tuple(line for _, line in text_files.read_lines(labels)) if (
            files.exists(labels)) else (),
        "report": Report(folder), "heads": settings["heads"],
        "settings": settings["settings"], "threshold": float(settings["threshold"]),
        "problem_type": check_problem(settings.get("problem_type"), where),
        "engine": ENGINES[form](os.path.join(folder, FORMS[form].file),
                                 settings["task"], settings["precision"])}


class Engine(abc.ABC):
    """A graph, loaded once and used for many requests. Threads may share one.

    Attributes:
      task: the task of the graph.
    """

    def __init__(self, path: str, task: str, precision: str):
        self.task, self._path, self._precision = task, path, precision
        if not files.exists(path):
            raise InputError(f"{path} does not exist; export the model again.")
        try:
            with _quiet():
                self._load(path)
        except Exception as error:  # Each engine has its own errors.
            raise InputError(f"{path} cannot be loaded ({_first_line(error)}); export "
                             "the model again.") from error

    def __call__(self, batch: _Arrays) -> dict[str, np.ndarray]:
        """Returns the outputs for a padded batch."""
        try:
            return self._run(batch)
        except Exception as error:
            raise InputError(
                f"{self._path} does not accept these inputs; check for an id that is "
                f"not in the vocabulary ({_first_line(error)}).") from error

    @abc.abstractmethod
    def _load(self, path: str) -> None:
        ...

    @abc.abstractmethod
    def _run(self, batch: _Arrays) -> dict[str, np.ndarray]:
        ...


class _Onnx(Engine):
    def _load(self, path):
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(
            path, options, providers=["CPUExecutionProvider"])
        self._inputs = [each.name for each in self._session.get_inputs()]
        self._outputs = [each.name for each in self._session.get_outputs()]

    def _run(self, batch):
        values = self._session.run(
            self._outputs, {name: batch[name] for name in self._inputs})
        return dict(zip(self._outputs, values))


class _OpenVino(Engine):
    def _load(self, path):
        import openvino

        # By default OpenVINO computes in bfloat16 if the processor supports it.
        self._model = openvino.Core().compile_model(path, "CPU", {
            "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT":
                "bf16" if self._precision == "bfloat16" else "f32"})
        self._inputs = [each.any_name for each in self._model.inputs]
        self._outputs = [each.any_name for each in self._model.outputs]
        self._local = threading.local()  # A request object holds only one batch.

    def _run(self, batch):
        if not hasattr(self._local, "request"):
            self._local.request = self._model.create_infer_request()
        outputs = self._local.request.infer(
            {name: batch[name] for name in self._inputs})
        return {name: np.array(outputs[name]) for name in self._outputs}


class _TfLite(Engine):
    def _load(self, path):
        self._interpreter = tf.lite.Interpreter(path, num_threads=os.cpu_count())
        self._signature = self._interpreter.get_signature_runner()
        self._inputs = list(self._signature.get_input_details())
        self._lock = threading.Lock()  # An interpreter holds only one batch.

    def _run(self, batch):
        with self._lock:
            outputs = self._signature(**{name: batch[name] for name in self._inputs})
            return {name: np.array(value) for name, value in outputs.items()}


ENGINES = {"onnx": _Onnx, "openvino": _OpenVino, "tflite": _TfLite}


def needed(form: str, packages: Sequence[str]) -> None:
    """Raises InputError if a package that a format needs is missing."""
    for name in packages:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise InputError(f"the package {name}, which {form} needs, is not "
                             f"installed; run pip install 'albert_tf[{form}]'."
                             ) from error


def _first_line(error: Exception) -> str:
    return f"{str(error).splitlines()[0] if str(error) else type(error).__name__}"
