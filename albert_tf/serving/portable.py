"""Exports one task of a model as a small file for other engines, and runs it.

    Answering.exchanged ─► graph ─► tf2onnx ─► weights of 16 or 8 bits ─► model.onnx
    Answering.outputs   ─► graph ─► TFLite's converter ─► tables once ─► model.tflite

ONNX Runtime and OpenVINO read model.onnx, whose folder has the layout and the names of
the Hugging Face hub (checkpoints.onnx_folder), so that transformers.js and optimum read
it too. TFLite (LiteRT) reads model.tflite.

The folder also holds config, labels, vocabulary and `portable.json`, which is all that
`albert_tf.load` needs to answer: texts become ids in Python, and the engine computes
scores from ids. It also reads folders of ONNX files that others made.
"""

import contextlib
import importlib
import importlib.util
import os
import threading
import time
import warnings
from logging import WARNING, disable, root
from typing import Any, Mapping, NamedTuple, Optional, Sequence

import numpy as np
import tensorflow as tf
from absl import logging

from albert_tf import files, text_files
from albert_tf.checkpoints import (
    huggingface, onnx_folder, sentence_transformers, tokenizer_files, vocabulary)
from albert_tf.checkpoints.checkpoint import (
    Checkpoint, Report, Vocabulary, check_problem, head_of)
from albert_tf.checkpoints.labels import LABELS_FILE, RENAME, check_lines
from albert_tf.config import AlbertConfig, CONFIG_FILE
from albert_tf.errors import InputError, reason_of
from albert_tf.finetuning.answer import Answering
from albert_tf.finetuning.text import ORDER_LABELS
from albert_tf.jobs import parallel
from albert_tf.jobs.progress import amount, duration
from albert_tf.modeling.encoder import Computation
from albert_tf.serving import onnx_weights
from albert_tf.tokenization import tokenizer_json


class Form(NamedTuple):
    """A format of exports: types that the weights can have, packages that write the
    file, and packages that run it. bfloat16 is computed in bfloat16 but stored as
    float16, which has more digits."""

    precisions: tuple[str, ...]
    writers: tuple[str, ...] = ()
    readers: tuple[str, ...] = ()


_CONVERTER = ("tf2onnx", "onnx")
FORMS = {
    "onnx": Form(("float32", "float16", "int8"), _CONVERTER, ("onnxruntime",)),
    "openvino": Form(("float32", "float16", "bfloat16"), _CONVERTER, ("openvino",)),
    "tflite": Form(("float32", "float16", "int8"))}
_TFLITE = "model.tflite"
_OPSET = 18
_MEMORY = 60  # bytes that tf2onnx takes for each byte of the weights, at most
# transformers' names of a model's inputs → ours.
_INPUTS = {"input_ids": "input_ids", "attention_mask": "input_mask",
           "token_type_ids": "segment_ids"}
# Heads that transformers does not have, each with one that has the same outputs.
_AS_HEAD = {"conditional_spans": "spans", "sentence_order": "classification"}
_Arrays = Mapping[str, np.ndarray]


def graph_name(form: str, precision: str) -> str:
    """Returns the name of the graph in an export's folder."""
    return _TFLITE if form == "tflite" else os.path.join(
        onnx_folder.GRAPHS, onnx_folder.NAMES[precision])


# ---- writing ---------------------------------------------------------------


def export(loaded: Any, task: str, export_dir: str, form: str, *precisions: str
           ) -> None:
    """Exports one task of a serving.predict.Model.

        export(albert_tf.load("runs/sst-2"), "classify", "sst-2_int8", "onnx", "int8")

    Args:
      form: one of FORMS.
      precisions: some of the form's precisions, one graph each; the first is what
        `albert_tf.load` uses. float16 is computed in float32 on most processors, int8
        in integers, with activations quantized batch by batch.

    Raises:
      InputError: the folder exists, a package is missing, or the model is an export.
    """
    if files.exists(export_dir):
        raise InputError(f"--export_dir={export_dir} exists already; choose a new "
                         "folder.")
    if loaded.engine is not None:
        raise InputError(f"{loaded.report.source} is already an export; give the model "
                         "that was exported.")
    check(form, *precisions)
    begin = time.monotonic()
    check_lines(loaded.labels, f"--export_dir={export_dir}", RENAME)
    answering, contents = loaded.head(task), graphs(loaded, task, form, *precisions)
    with files.staged(export_dir) as (staged,):
        files.make_directory(staged, export_dir)
        if form != "tflite":
            files.make_directory(os.path.join(staged, onnx_folder.GRAPHS), export_dir)
        for name, content in contents.items():
            files.write(os.path.join(staged, name), content)
        _write_model(loaded, answering, staged, form)
        if not answering.head and loaded.sentence:
            sentence_transformers.write_modules(
                loaded.sentence, loaded.config.hidden_size, answering.max_length, staged)
        if loaded.labels and form == "tflite":  # Else config.json has them.
            files.write(os.path.join(staged, LABELS_FILE), "".join(
                f"{label}\n" for label in loaded.labels).encode())
        text_files.write_json(os.path.join(staged, vocabulary.TASK_FILE),
                              vocabulary.elsewhere(loaded.settings), ensure_ascii=False)
        text_files.write_json(os.path.join(staged, onnx_folder.SETTINGS), {
            "format": form, "precision": precisions[0], "task": task,
            "heads": dict(loaded.heads), "threshold": loaded.threshold,
            "problem_type": loaded.problem_type})
    logging.info("Exported the task %s to %s in %s (%s, %s).", task, export_dir,
                 duration(time.monotonic() - begin), form,
                 amount(sum(map(len, contents.values()))))


def _write_model(loaded: Any, answering: Answering, folder: str, form: str) -> None:
    """Writes the config and the vocabulary, as Hugging Face's except for TFLite."""
    tokenizer = loaded.tokenizer
    found = Vocabulary(
        tokenizer.vocabulary_path, tokenizer.do_lower_case,
        not tokenizer.uses_sentencepiece, tokenizer.strip_accents, tokenizer.rules)
    if form == "tflite":
        text_files.write_json(os.path.join(folder, CONFIG_FILE), loaded.config.to_dict())
        tokenizer_files.write_plain(found, folder)
        tokenizer_files.write_settings(tokenizer, folder)
        return
    head, heads, labels, problem = answering.head, {}, (), ""
    if head:
        name = _AS_HEAD.get(head.name, head.name)
        heads = {name: head.width}
        if name in ("classification", "token_classification"):
            labels = ORDER_LABELS if head.task == "order" else tuple(
                head.output_names(loaded.labels))
        problem = getattr(head, "problem", "")
    text_files.write_json(
        os.path.join(folder, huggingface.CONFIG), huggingface.config_of(Checkpoint(
            form, loaded.config, {}, heads, loaded.report, labels, problem, found)),
        ensure_ascii=False)
    tokenizer_files.write_huggingface(
        found, folder, answering.max_length, always_json=True)
    if tokenizer_json.is_file(found.path):
        return
    # A tokenizer.json does not tell everything that our tokenizer does.
    text_files.write_json(os.path.join(folder, vocabulary.VOCABULARY_FILE), {
        "kind": "WordPiece" if found.word_piece else "SentencePiece",
        "file": "vocab.txt" if found.word_piece else "spiece.model",
        "do_lower_case": tokenizer.do_lower_case,
        "strip_accents": tokenizer.strip_accents, "rules": tokenizer.rules.changed})


def graphs(loaded: Any, task: str, form: str, *precisions: str) -> dict[str, bytes]:
    """Returns name → content of the graphs of a task, one for each precision; arguments
    as for `export`."""
    shared = loaded.head(task)
    answering = type(shared)(loaded, shared.head)  # It computes differently.
    answering.computation = Computation(constants=_constants(answering.bert))
    try:
        with _quiet():
            return (_tflite if form == "tflite" else _onnx)(answering, precisions)
    except InputError:
        raise
    except Exception as error:  # Each converter has its own errors.
        raise InputError(
            f"the task {task} cannot be exported for {form} ({reason_of(error)}); "
            "install the versions that requirements.txt names.") from error


def check(form: str, *precisions: str) -> None:
    """Raises InputError if a format does not support a precision, or a package that
    writes it is missing."""
    known = FORMS[form].precisions
    if not precisions or {*precisions} - {*known} or (
            form == "tflite" and len(precisions) > 1):
        raise InputError(f"--precision={','.join(precisions)}: for {form} give one "
                         f"{'or more ' * (form != 'tflite')}of {', '.join(known)}.")
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


def _onnx(answering: Answering, precisions: Sequence[str]) -> dict[str, bytes]:
    """Returns name → content of the graphs, which compute Answering.exchanged."""
    import tf2onnx

    needs, free = _MEMORY * sum(
        weight.dtype.size * weight.shape.num_elements()
        for weight in answering.model.weights), parallel.available_memory()
    if needs > free:
        raise InputError(
            f"the export needs up to {amount(needs)} of memory ({_MEMORY} times the size "
            f"of the weights), but {amount(free)} are free; end other programs, or use a "
            "machine with more memory.")
    head = answering.head
    unknown = [each.name for each in (head.reads_also if head else ())
               if each.served and not each.derived]
    if unknown:
        raise InputError(f"the {head.title} reads {', '.join(unknown)}, which graphs "
                         "in this format do not take; export a SavedModel.")
    rank = head.rank if head else 2
    function = tf.function(lambda batch: answering.exchanged({
        ours: tf.cast(batch[theirs], tf.int32) for theirs, ours in _INPUTS.items()}),
        autograph=False, input_signature=[{
            name: tf.TensorSpec([None] * rank, tf.int64, name) for name in _INPUTS}])
    model, _ = tf2onnx.convert.from_function(
        function, function.input_signature, opset=_OPSET)
    content = model.SerializeToString()
    return {graph_name("onnx", precision): onnx_weights.stored_as(
        model.FromString(content), precision).SerializeToString()
            for precision in precisions}


def _tflite(answering: Answering, precisions: Sequence[str]) -> dict[str, bytes]:
    """Returns name → content of the graph, which computes Answering.outputs."""
    precision, = precisions
    function = answering.function.get_concrete_function()
    module = tf.Module()
    module.weights = list(function.graph.variables)
    converter = tf.lite.TFLiteConverter.from_concrete_functions([function], module)
    if precision != "float32":
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if precision == "float16":
        converter.target_spec.supported_types = [tf.float16]
    return {_TFLITE: converter.convert()}


@contextlib.contextmanager
def _quiet():
    """Silences the converters' messages about their own work."""
    level = root.manager.disable
    disable(WARNING)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        disable(level)


# ---- reading ---------------------------------------------------------------


def recognise(path: str) -> bool:
    """Returns whether a path is a folder that `export` wrote, or one of ONNX files in
    the layout of the hub, or a graph in it."""
    return onnx_folder.find(path) is not None


def read(path: str, given: Optional[Vocabulary] = None) -> dict[str, Any]:
    """Returns the values of a serving.predict.Model that uses the engine. Raises
    InputError if the export is damaged, or a package is missing."""
    folder, graph = onnx_folder.find(path) or (path, "")
    values = (_own if files.exists(os.path.join(folder, onnx_folder.SETTINGS))
              else _foreign)(folder, graph)
    found = values.pop("vocabulary", None)
    given = given or found or tokenizer_files.find(folder)
    values["settings"] = vocabulary.task_settings(folder) or values.get("settings", {})
    return {"model": None, "report": Report(folder), **values,
            "tokenizer": given and tokenizer_files.check(
                given, values["config"].vocab_size)}


def _own(folder: str, graph: str) -> dict[str, Any]:
    """Returns what `read` returns, for a folder that `export` wrote."""
    where = os.path.join(folder, onnx_folder.SETTINGS)
    settings = text_files.read_object(where)
    try:
        form, precision, task = (
            settings[name] for name in ("format", "precision", "task"))
        make, threshold = ENGINES[form], float(settings["threshold"])
        graph = graph or os.path.join(folder, graph_name(form, precision))
        heads = settings["heads"]
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{where} is not as export_model.py writes it; export the "
                         "model again.") from error
    needed(form, FORMS[form].readers)
    config = AlbertConfig.from_json_file(os.path.join(
        folder, CONFIG_FILE if form == "tflite" else huggingface.CONFIG))
    return {
        "format": form, "config": config, "heads": heads,
        "sentence": sentence_transformers.described(folder, config)[0] if files.exists(
            os.path.join(folder, sentence_transformers.MODULES)) else None,
        "labels": _labels(folder, {name: width for name, width in heads.items()
                                   if head_of(name, width).task == task}),
        "threshold": threshold,
        "problem_type": check_problem(settings.get("problem_type"), where),
        "engine": make(graph, task, precision)}


def _labels(folder: str, heads: Mapping[str, int]) -> tuple[str, ...]:
    """Returns the labels in a folder that `export` wrote, for the head of its graph."""
    path, config = (os.path.join(folder, name) for name in (
        LABELS_FILE, huggingface.CONFIG))
    if files.exists(path):
        return tuple(line for _, line in text_files.read_lines(path))
    values = text_files.read_object(config) if files.exists(config) else {}
    return huggingface.labels_of(values, heads, config) if "id2label" in values else ()


def _foreign(folder: str, graph: str) -> dict[str, Any]:
    """Returns what `read` returns, for a folder of the hub. The graph's outputs and the
    architecture in the config tell which head it has."""
    where = os.path.join(folder, huggingface.CONFIG)
    values = text_files.read_object(where)
    config = AlbertConfig.from_json_file(where)
    needed("onnx", FORMS["onnx"].readers)
    engine = _Onnx(graph or onnx_folder.graph_of(folder), "embed", "")
    engine.most_segment = config.type_vocab_size - 1
    heads = huggingface.heads_of_outputs(values, engine.outputs, engine.path)
    more: dict[str, Any] = {}
    for name, width in heads.items():
        engine.task = head_of(name, width).task
    if not heads and files.exists(os.path.join(folder, sentence_transformers.MODULES)):
        sentence, flags, found = sentence_transformers.described(folder, config)
        more = {"sentence": sentence, "settings": {"flags": flags},
                "vocabulary": found}
    return {"format": "onnx", "config": config, "heads": heads,
            "labels": huggingface.labels_of(values, heads, where),
            "problem_type": check_problem(values.get("problem_type"), where)
            if "classification" in heads else "", "engine": engine, **more}


class Engine:
    """A graph, loaded once and used for many requests. Threads may share one.

    Attributes:
      task: the task of the graph.
      path: the graph's file.
      exchanges: whether the graph has transformers' names and returns what
        Answering.exchanged does, instead of Answering.outputs.
      outputs: the names of the graph's outputs → their shapes, with text for an axis of
        any size; for ONNX Runtime only, else ().
      most_segment: the highest segment id that the graph takes.
    """

    exchanges, most_segment = True, 1
    outputs: Mapping[str, Sequence[Any]] = {}

    def __init__(self, path: str, task: str, precision: str):
        self.task, self.path, self._precision = task, path, precision
        files.check_local(path)
        if not files.exists(path):
            raise InputError(f"{path} does not exist; export the model again.")
        try:
            with _quiet():
                self._load(path)
        except Exception as error:  # Each engine has its own errors.
            raise InputError(f"{path} cannot be loaded ({reason_of(error)}); export "
                             "the model again.") from error

    def __call__(self, batch: _Arrays) -> dict[str, np.ndarray]:
        """Returns the outputs for a padded batch."""
        try:
            return self._run(batch)
        except InputError:
            raise
        except Exception as error:
            raise InputError(
                f"{self.path} does not accept these inputs; check for an id that is "
                f"not in the vocabulary ({reason_of(error)}).") from error

    def _load(self, path: str) -> None:
        raise NotImplementedError

    def _run(self, batch: _Arrays) -> dict[str, np.ndarray]:
        raise NotImplementedError

    def _set(self, ranks: Mapping[str, int], types: Mapping[str, Any]) -> None:
        """Takes the ranks and types of the inputs of an ONNX graph, by name."""
        self._ranks, self._types = ranks, types
        if not {"input_ids", "attention_mask"} <= {*ranks} <= {*_INPUTS}:
            raise ValueError(f"its inputs are {', '.join(sorted(ranks))}, but an "
                             f"ALBERT has {', '.join(_INPUTS)}, or the first two")

    def _given(self, batch: _Arrays) -> dict[str, np.ndarray]:
        """Returns the inputs of an ONNX graph for a batch."""
        batch = {**batch, "segment_ids": np.minimum(
            batch["segment_ids"], self.most_segment)}
        if "token_type_ids" not in self._ranks and batch["segment_ids"].any():
            raise InputError(f"{self.path} has no input token_type_ids, and cannot "
                             "compute pairs of texts; export the model with it.")
        given = {name: batch[_INPUTS[name]].astype(self._types[name])
                 for name in self._ranks}
        # Each option is a question of its own.
        return {name: value[:, np.newaxis] if self._ranks[name] == 3 else value
                for name, value in given.items()}


class _Onnx(Engine):
    def _load(self, path):
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(
            path, options, providers=["CPUExecutionProvider"])
        inputs = self._session.get_inputs()
        for each in inputs:
            if any(isinstance(size, int) for size in (each.shape[0], each.shape[-1])):
                raise ValueError(f"its input {each.name} has the fixed shape {each.shape}, "
                                 "but batches have any number of texts and tokens")
        self._set({each.name: len(each.shape) for each in inputs}, {
            each.name: np.int32 if "int32" in each.type else np.int64 for each in inputs})
        self.outputs = {each.name: each.shape for each in self._session.get_outputs()}

    def _run(self, batch):
        values = self._session.run(list(self.outputs), self._given(batch))
        # A graph from elsewhere may compute in float16.
        return {name: value.astype(np.float32) if value.dtype == np.float16 else value
                for name, value in zip(self.outputs, values)}


class _OpenVino(Engine):
    def _load(self, path):
        import openvino

        # By default OpenVINO computes in bfloat16 if the processor supports it.
        self._model = openvino.Core().compile_model(path, "CPU", {
            "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT":
                "bf16" if self._precision == "bfloat16" else "f32"})
        self._set({each.any_name: len(each.partial_shape) for each in self._model.inputs},
                  dict.fromkeys(_INPUTS, np.int64))
        self.outputs = {each.any_name: () for each in self._model.outputs}
        self._local = threading.local()  # A request object holds only one batch.

    def _run(self, batch):
        if not hasattr(self._local, "request"):
            self._local.request = self._model.create_infer_request()
        outputs = self._local.request.infer(self._given(batch))
        return {name: np.array(outputs[name]) for name in self.outputs}


class _TfLite(Engine):
    exchanges = False

    def _load(self, path):
        self._interpreter = tf.lite.Interpreter(path, num_threads=os.cpu_count())
        self._signature = self._interpreter.get_signature_runner()
        self._inputs = list(self._signature.get_input_details())
        self.outputs = dict.fromkeys(self._signature.get_output_details(), ())
        self._lock = threading.Lock()  # An interpreter holds only one batch.

    def _run(self, batch):
        with self._lock:
            outputs = self._signature(**{name: batch[name] for name in self._inputs})
            return {name: np.array(value) for name, value in outputs.items()}


ENGINES = {"onnx": _Onnx, "openvino": _OpenVino, "tflite": _TfLite}


def is_installed(form: str) -> bool:
    """Returns whether the packages that run a format are installed."""
    return all(map(importlib.util.find_spec, FORMS[form].readers))


def needed(form: str, packages: Sequence[str]) -> None:
    """Raises InputError if a package that a format needs is missing or broken."""
    for name in packages:
        handlers = root.handlers[:]
        try:
            importlib.import_module(name)
        except Exception as error:  # A broken package may raise anything.
            is_missing = isinstance(error, ModuleNotFoundError) and error.name == name
            raise InputError(
                f"the package {name}, which {form} needs, " + (
                    "is not installed" if is_missing else
                    f"cannot be imported ({reason_of(error)})")
                + f"; run pip install 'albert_tf[{form}]'.") from error
        finally:
            # OpenVINO takes away absl's handler, with the format of the scripts' lines.
            root.handlers[:] = handlers
