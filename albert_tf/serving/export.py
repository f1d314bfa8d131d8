"""Exports models as SavedModels, for TensorFlow Serving and programs with TensorFlow.

If the export takes text (finetuning.text), its signature `serving_default` takes
strings, `tokenize` returns the ids that they become, and `ids` takes ids. Otherwise
`serving_default` takes ids.
"""

import dataclasses
import json
import os
import tempfile
import time
from typing import Any, Callable, Mapping, Optional, Sequence

import tensorflow as tf
import tf_keras
from absl import logging

from albert_tf import files
from albert_tf.checkpoints import tokenizer_files, vocabulary
from albert_tf.checkpoints.labels import LABELS_FILE, RENAME, check_lines
from albert_tf.checkpoints.sentence_transformers import Sentence
from albert_tf.config import CONFIG_FILE
from albert_tf.features import vectors
from albert_tf.finetuning.text import ORDER_LABELS, Texts, TextTask
from albert_tf.jobs.progress import duration
from albert_tf.modeling.encoder import Computation
from albert_tf.modeling.head import INPUTS, Head
from albert_tf.modeling.kernels.layer_runs import in_copies

SIGNATURE = "serving_default"
# Signatures of an export that takes text: one takes ids, one converts text to ids.
IDS_SIGNATURE, TOKENIZE_SIGNATURE = "ids", "tokenize"
THRESHOLD_FILE = "null_score_diff_threshold.txt"
Outputs = Mapping[str, tf.Tensor]


def export(model: tf_keras.Model, head: Optional[Head], export_dir: str,
           labels: Sequence[str] = (), dtype: str = "float32",
           text: Optional[TextTask] = None, threshold: Optional[float] = None,
           sentence: Optional[Sentence] = None, settings: Mapping[str, Any] = {}) -> None:
    """Writes a SavedModel that computes the outputs of one of a model's heads.

    The inputs of the signature that takes ids are the head's, int32 [B, S] for any B
    and S (for multiple choice [B, C, S]). The outputs are `Head.served`; without a head
    they are hidden states: `mean` [B, H] over the tokens of each sequence, and `pooled`
    [B, H] if there is a pooler, or the `embedding` that `sentence` defines.

        export(model, model.heads["classification"], "exported/sst-2", ["0", "1"])

    Args:
      model: an AlbertWithHeads, or an AlbertModel if there is no head.
      labels, threshold, settings: for the assets `labels.txt` (in the order of the
        outputs), `null_score_diff_threshold.txt` and `task.json`.
      dtype: type of the layers' products and activations (Computation).
      text: how strings become ids, if the export takes strings.
      sentence: how token vectors are pooled, for sentence-transformers.
    """
    check_lines(labels, f"--export_dir={export_dir}", RENAME)
    begin = time.monotonic()
    computation = Computation(
        dtype, skip_padding=True, constants=constants_of(model, dtype))

    def outputs(features):
        if head is not None:
            return dict(head.served(
                model.call(features, computation=computation, head=head)))
        found = getattr(model, "bert", model)(features, computation=computation)
        return vectors.of(found["sequence_output"], found.get("pooled_output"),
                          features["input_mask"], sentence)

    rank, inputs = (head.rank, head.inputs) if head else (2, INPUTS)

    # The names of the specs become the names of the signature's inputs.
    serve = tf.function(outputs, autograph=False, input_signature=[{
        name: tf.TensorSpec([None] * rank, tf.int32, name=name) for name in inputs}])
    module = tf.Module()
    functions = {SIGNATURE if text is None else IDS_SIGNATURE: serve}
    if text is not None:
        module.ops = text.ops
        functions |= _text_functions(text, outputs)
    module.functions = functions
    # Stores variables instead of the model: Keras would store a function for each
    # layer, which takes many times as long to write and to load. Only variables that
    # the functions read are stored; a kernel with a copy for serving is not.
    module.weights = list(serve.get_concrete_function().graph.variables)
    contents = {CONFIG_FILE: json.dumps(model.config.to_dict(), indent=1).encode()}
    if settings:
        contents[vocabulary.TASK_FILE] = json.dumps(
            vocabulary.elsewhere(settings), indent=1).encode()
    if labels:
        contents[LABELS_FILE] = "".join(f"{label}\n" for label in labels).encode()
    if threshold is not None:
        contents[THRESHOLD_FILE] = f"{float(threshold)!r}\n".encode()
    with files.staged(export_dir) as (staged,), tempfile.TemporaryDirectory() as at:
        for name, content in contents.items():
            files.write(os.path.join(at, name), content)
        if text:
            tokenizer_files.write_plain(text.tokenizer, at)
        module.files = [tf.saved_model.Asset(os.path.join(at, name))
                        for name in sorted(files.names_in(at))]
        # A served model is not trained; custom gradients would be traced, stored
        # and loaded for nothing.
        tf.saved_model.save(
            module, staged, signatures=functions,
            options=tf.saved_model.SaveOptions(experimental_custom_gradients=False))
    logging.info("Exported to %s in %s. The signature %s takes %s.", export_dir,
                 duration(time.monotonic() - begin), SIGNATURE,
                 f"strings: {' and '.join(text.inputs)}" if text else "ids")


def text_of(head: Optional[Head], tokenizer: Any, max_seq_length: int, **options: Any
            ) -> Optional[TextTask]:
    """Returns how an export with a head takes text (Head.text_task), or None without a
    tokenizer. Only `options` that are fields of the result and not None are used."""
    if head is None or head.name == "sentence_order":
        kind, options = Texts, {**options, "labels": ORDER_LABELS}
    else:
        kind = head.text_task()
        options["problem_type"] = getattr(head, "problem_type", None)
    if not tokenizer or not kind:
        return None
    return kind(tokenizer, max_seq_length, **{
        field.name: options[field.name] for field in dataclasses.fields(kind)
        if options.get(field.name) is not None})


def _text_functions(text: TextTask, outputs: Callable[[Outputs], Outputs]
                    ) -> dict[str, tf.types.experimental.GenericFunction]:
    """Returns the signatures that take strings; `outputs` takes features."""
    strings = {name: tf.TensorSpec([None] * axes, tf.string, name=name)
               for name, axes in text.inputs.items()}

    @tf.function(autograph=False, input_signature=[strings])
    def tokenize(inputs):
        with tf.device("CPU:0"):
            return text.tokenized(inputs)

    @tf.function(autograph=False, input_signature=[strings])
    def answer(texts):
        with tf.device("CPU:0"):
            features, context = text.prepared(texts)
        results = outputs(features)
        with tf.device("CPU:0"):
            return text.answers(texts, context, results)

    return {SIGNATURE: answer, TOKENIZE_SIGNATURE: tokenize}


def constants_of(model: tf_keras.Model, dtype: str = "float32", apart: bool = False
                 ) -> dict[str, Any]:
    """Returns Computation.constants for a model that is or has an AlbertModel: what is
    the same for every request. With `apart`, every layer uses the same tensors, even the
    last one, which computes only the first position's query."""
    constants = {}
    for block in getattr(model, "bert", model).encoder.blocks:
        weights, = in_copies(block.layer_weights(), tf.as_dtype(dtype), 1)
        if apart and hasattr(block, "query"):
            weights = weights.query_apart()
        constants[block.scope] = tf.nest.map_structure(
            lambda weight: tf.Variable(weight, trainable=False), weights)
    return constants
