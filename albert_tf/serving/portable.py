"""Exports one task of a model as a small file for other engines.

    Answering.exchanged ─► graph ─► tf2onnx ─► weights of 16 or 8 bits ─► model.onnx
    Answering.outputs   ─► graph ─► TFLite's converter ─► tables once ─► model.tflite

The folder of model.onnx has the layout and the names of the Hugging Face hub
(checkpoints.huggingface), so that transformers.js and optimum read it too. Each folder
has `portable.json` and whatever else `albert_tf.load` needs (serving.runtimes).
"""

import os
import time
from typing import Any, Sequence

import tensorflow as tf
from absl import logging

from albert_tf import files, text_files
from albert_tf.checkpoints import (
    huggingface, sentence_transformers, tokenizer_files, vocabulary)
from albert_tf.checkpoints.checkpoint import Checkpoint
from albert_tf.checkpoints.labels import LABELS_FILE, RENAME, check_lines
from albert_tf.config import CONFIG_FILE
from albert_tf.errors import InputError, reason_of
from albert_tf.finetuning.answer import Answering
from albert_tf.finetuning.text import ORDER_LABELS
from albert_tf.jobs import parallel
from albert_tf.jobs.progress import amount, duration
from albert_tf.modeling.encoder import Computation
from albert_tf.serving.export import constants_of
from albert_tf.serving.runtimes import FORMS, INPUTS, TFLITE, graph_name, needed, quiet
from albert_tf.tokenization import hf_tokenizer

_OPSET = 18
_MEMORY = 60  # bytes that tf2onnx takes for each byte of the weights, at most
# Heads that transformers does not have, each with one that has the same outputs.
_AS_HEAD = {"conditional_spans": "spans", "sentence_order": "classification"}


def export(loaded: Any, task: str, export_dir: str, form: str, *precisions: str) -> None:
    """Exports one task of a serving.predict.Model.

        export(albert_tf.load("runs/sst-2"), "classify", "sst-2_int8", "onnx", "int8")

    `form` is one of FORMS, and `precisions` are some of its own, one graph each; the
    first is what `albert_tf.load` uses. float16 is computed in float32 on most
    processors, int8 in integers, with activations quantized batch by batch. `check`
    says whether this is possible.
    """
    check_lines(loaded.labels, f"--export_dir={export_dir}", RENAME)
    begin = time.monotonic()
    contents = graphs(loaded, task, form, *precisions)
    with files.staged(export_dir) as (staged,):
        for name, content in contents.items():
            files.write(os.path.join(staged, name), content)
        _write_model(loaded, loaded.head(task), staged, form)
        for name, value in (
                (vocabulary.TASK_FILE, vocabulary.elsewhere(loaded.settings)),
                (huggingface.SETTINGS, {
                    "format": form, "precision": precisions[0], "task": task,
                    "heads": dict(loaded.heads), "threshold": loaded.threshold,
                    "problem_type": loaded.problem_type})):
            text_files.write_json(os.path.join(staged, name), value, ensure_ascii=False)
    logging.info("Exported the task %s to %s in %s (%s, %s).", task, export_dir,
                 duration(time.monotonic() - begin), form,
                 amount(sum(map(len, contents.values()))))


def _write_model(loaded: Any, answering: Answering, folder: str, form: str) -> None:
    """Writes config, labels and vocabulary, as Hugging Face's except for TFLite."""
    tokenizer, head = loaded.tokenizer, answering.head
    if not head and loaded.sentence:
        sentence_transformers.write_modules(
            loaded.sentence, loaded.config.hidden_size, answering.max_length, folder)
    if form == "tflite":
        text_files.write_json(os.path.join(folder, CONFIG_FILE), loaded.config.to_dict())
        tokenizer_files.write_plain(tokenizer, folder)
        if loaded.labels:
            files.write(os.path.join(folder, LABELS_FILE), "".join(
                f"{label}\n" for label in loaded.labels).encode())
        return
    name = head and _AS_HEAD.get(head.name, head.name)
    labels = ORDER_LABELS if name and head.task == "order" else tuple(
        head.output_names(loaded.labels)) if name and head.has_labels else ()
    text_files.write_json(
        os.path.join(folder, huggingface.CONFIG), huggingface.config_of(Checkpoint(
            form, loaded.config, {}, {name: head.width} if head else {}, loaded.report,
            labels, getattr(head, "problem", ""), tokenizer)), ensure_ascii=False)
    tokenizer_files.write_huggingface(tokenizer, folder, answering.max_length)
    if not hf_tokenizer.is_file(tokenizer.vocabulary_path):
        # A tokenizer.json does not tell everything that our tokenizer does.
        kind, file = (("SentencePiece", "spiece.model") if tokenizer.uses_sentencepiece
                      else ("WordPiece", "vocab.txt"))
        text_files.write_json(os.path.join(folder, vocabulary.VOCABULARY_FILE), {
            "kind": kind, "file": file, "do_lower_case": tokenizer.do_lower_case,
            "strip_accents": tokenizer.strip_accents, "rules": tokenizer.rules.changed})


def graphs(loaded: Any, task: str, form: str, *precisions: str) -> dict[str, bytes]:
    """Returns name → content of the graphs of a task, one for each precision; arguments
    as for `export`."""
    shared = loaded.head(task)
    answering = type(shared)(loaded, shared.head)  # It computes differently.
    answering.computation = Computation(
        constants=constants_of(answering.bert, apart=True))
    try:
        with quiet():
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


def _onnx(answering: Answering, precisions: Sequence[str]) -> dict[str, bytes]:
    """Returns name → content of the graphs, which compute Answering.exchanged."""
    import tf2onnx

    from albert_tf.serving import onnx_weights

    needs, free = _MEMORY * sum(
        weight.dtype.size * weight.shape.num_elements()
        for weight in answering.model.weights), parallel.available_memory()
    if needs > free:
        raise InputError(
            f"the export needs up to {amount(needs)} of memory ({_MEMORY} times the size "
            f"of the weights), but {amount(free)} are free; end other programs, or use a "
            "machine with more memory.")
    head = answering.head
    sizes = dict.fromkeys(INPUTS) | {each.name: each.size for each in (
        head.reads_also if head else ()) if each.served and not each.derived}
    function = tf.function(lambda batch: answering.exchanged({
        INPUTS.get(name, name): tf.cast(batch[name], tf.int32) for name in sizes}),
        autograph=False, input_signature=[{
            name: tf.TensorSpec([None] * (head.rank - 1 if head else 1) + [size],
                                tf.int64, name) for name, size in sizes.items()}])
    model, _ = tf2onnx.convert.from_function(
        function, function.input_signature, opset=_OPSET)
    content = model.SerializeToString()
    return {graph_name("onnx", precision): onnx_weights.stored_as(
        model.FromString(content), precision).SerializeToString()
            for precision in precisions}


def _tflite(answering: Answering, precisions: Sequence[str]) -> dict[str, bytes]:
    """Returns name → content of the graph, which computes Answering.outputs."""
    function, module = answering.function.get_concrete_function(), tf.Module()
    module.weights = list(function.graph.variables)
    converter = tf.lite.TFLiteConverter.from_concrete_functions([function], module)
    if precisions[0] != "float32":
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if precisions[0] == "float16":
        converter.target_spec.supported_types = [tf.float16]
    return {TFLITE: converter.convert()}
