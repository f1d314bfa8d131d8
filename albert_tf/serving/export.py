"""Fine-tuned models as SavedModels, for `Server`, TensorFlow Serving and others.

What of the weights is the same for every request (kernels in the type of the
products, query, key and value side by side) is computed here, once.

Where the text's way to ids is given (`text_tasks`), the signature `serving_default`
takes strings, `tokenize` gives what becomes of them, and `ids` takes that; without it
`serving_default` takes ids. Of a classifier with exits `early_exit` and `early_exit_ids`
take a threshold besides.
"""

import json
import os
import tempfile
from typing import Callable, Mapping, Optional, Sequence

import tensorflow as tf
import tf_keras
from absl import logging

from albert_tf import files
from albert_tf.checkpoints.load import Loaded
from albert_tf.checkpoints.sentence_transformers import Sentence
from albert_tf.config import CONFIG_FILE
from albert_tf.errors import InputError
from albert_tf.modeling import models
from albert_tf.modeling.albert import AlbertModel
from albert_tf.modeling.encoder import Computation
from albert_tf.serving import early_exit
from albert_tf.features import vectors
from albert_tf.serving.saved_model import (
    EXIT_IDS_SIGNATURE, EXIT_INPUT, EXIT_SIGNATURE, IDS_SIGNATURE, LABELS_FILE,
    SIGNATURE, TOKENIZE_SIGNATURE)
from albert_tf.finetuning.text import TextTask

THRESHOLD_FILE = "null_score_diff_threshold.txt"
_INPUTS = ("input_ids", "input_mask", "segment_ids")
Outputs = Mapping[str, tf.Tensor]


def export_classifier(model: tf_keras.Model, export_dir: str, labels: Sequence[str],
                      dtype: str = "float32", head: str = "",
                      text: Optional[TextTask] = None) -> None:
    """Writes an AlbertForSequenceClassification.

    Inputs of the signature that takes ids are `input_ids`, `input_mask`,
    `segment_ids`, int32 [B, S] for any B and S, outputs `logits` [B, K] and, for
    classes, `probabilities` [B, K]; the labels stand in the asset `labels.txt`, a line
    each, in the order of K.

        export_classifier(model, "exported/sst-2", ["0", "1"])

    Args:
      export_dir: the SavedModel's folder; must not exist.
      labels: of the classes; none for regression.
      dtype: of the layers' products and activations (Computation).
      head: what the labels are of, for whoever reads the weights: classification by
        default.
      text: how strings become ids, if the export is to take strings.
    """
    def outputs(features, computation):
        found = {"logits": model(features, computation=computation)["logits"]}
        if labels:
            found["probabilities"] = tf.nn.softmax(found["logits"])
        return found

    def exits(features, computation, exit_threshold):
        return early_exit.answers(
            model, model.output_layer, features, exit_threshold, computation)

    # A number has no probability.
    _export(model, outputs, _INPUTS, export_dir, dtype, {LABELS_FILE: labels}, text,
            head, exits=exits if labels and getattr(model, "exit_head", None) else None)


def export_tagger(model: tf_keras.Model, export_dir: str, labels: Sequence[str],
                  dtype: str = "float32", text: Optional[TextTask] = None) -> None:
    """As export_classifier, for an AlbertForTokenClassification: `logits` and
    `probabilities` [B, S, K], of every piece. A word's are those of its first piece."""
    export_classifier(model, export_dir, labels, dtype, "token_classification", text)


def export_choices(model: tf_keras.Model, export_dir: str, labels: Sequence[str],
                   dtype: str = "float32", text: Optional[TextTask] = None) -> None:
    """As export_classifier, for an AlbertForMultipleChoice of C choices: inputs are
    [B, C, S], outputs [B, C]; `labels` are the choices' names."""
    def outputs(features, computation):
        logits = model(features, computation=computation)["logits"]
        return {"logits": logits, "probabilities": tf.nn.softmax(logits)}

    _export(model, outputs, _INPUTS, export_dir, dtype, {LABELS_FILE: labels}, text,
            head="multiple_choice", rank=3)


def export_spans(model: tf_keras.Model, export_dir: str, dtype: str = "float32",
                 threshold: Optional[float] = None,
                 text: Optional[TextTask] = None) -> None:
    """As export_classifier, for questions about a text: an AlbertForSpans or an
    AlbertForConditionalSpans, whose signature takes `p_mask` too. Outputs are the
    model's. `threshold`, the null odds from which on a question is left unanswered,
    stands in the asset `null_score_diff_threshold.txt`."""
    def outputs(features, computation):
        return dict(model(features, computation=computation))

    inputs = (*_INPUTS, "p_mask") if hasattr(model, "start_n_top") else _INPUTS
    _export(model, outputs, inputs, export_dir, dtype, {
        THRESHOLD_FILE: [] if threshold is None else [repr(float(threshold))]}, text)


def export_vectors(model: tf_keras.Model, export_dir: str, dtype: str = "float32",
                   text: Optional[TextTask] = None,
                   sentence: Optional[Sentence] = None) -> None:
    """As export_classifier, for an AlbertModel: outputs are `mean` [B, H], over the
    pieces of each sequence, and `pooled` [B, H] if there is a pooler; with `sentence`,
    of a folder of sentence-transformers, `embedding` instead."""
    def outputs(features, computation):
        return vectors.of(
            model(features, padding_is_read=False, computation=computation),
            features["input_mask"], sentence)

    _export(model, outputs, _INPUTS, export_dir, dtype, {}, text)


def export_order(model: tf_keras.Model, export_dir: str, dtype: str = "float32",
                 text: Optional[TextTask] = None) -> None:
    """As export_classifier, for an AlbertWithHeads that tells whether two passages
    stand in their order."""
    def outputs(features, computation):
        logits = model(features, computation=computation)["sentence_order_logits"]
        return {"logits": logits, "probabilities": tf.nn.softmax(logits)}

    _export(model, outputs, _INPUTS, export_dir, dtype, {}, text)


def model_of(loaded: Loaded, head: str) -> tf_keras.Model:
    """The model with one of its heads, or "" for none, that can be exported."""
    config, count = loaded.config, loaded.heads.get(head, 0)
    if head == "conditional_spans":
        return loaded.model
    exits = 1.0 if "early_exit" in loaded.heads else None
    model = {
        "classification": lambda: models.AlbertForSequenceClassification(
            config, count, exit_weight=exits),
        "token_classification": lambda: models.AlbertForTokenClassification(
            config, count),
        "multiple_choice": lambda: models.AlbertForMultipleChoice(config),
        "spans": lambda: models.AlbertForSpans(config),
        "": lambda: AlbertModel(config),
    }.get(head, lambda: models.AlbertWithHeads(config, {head: count}))()
    weights = {weight.name: weight for weight in loaded.model.weights}
    for weight in model.weights:
        weight.assign(weights[weight.name])
    return model


def _export(model: tf_keras.Model, outputs: Callable[..., Outputs],
            inputs: Sequence[str], export_dir: str, dtype: str,
            assets: Mapping[str, Sequence[str]], text: Optional[TextTask] = None,
            head: str = "", rank: int = 2,
            exits: Optional[Callable[..., Outputs]] = None) -> None:
    if files.exists(export_dir):
        raise InputError(f"--export_dir={export_dir} is there already; choose another.")
    constants = _constants(model, dtype)
    computation = Computation(dtype, skip_padding=True, constants=constants)

    module = tf.Module()
    specs = {name: tf.TensorSpec([None] * rank, tf.int32, name=name) for name in inputs}
    functions, read = {}, set()

    def add(outputs, signature, of_ids, **more):
        """Signatures of a function that takes `more` besides; the names of the specs
        become those of the signature's inputs."""
        def of(features, given):
            return outputs(features, computation, **{name: given[name] for name in more})

        @tf.function(autograph=False, input_signature=[{**specs, **more}])
        def serve(given):
            return of({name: given[name] for name in specs}, given)

        functions[signature if text is None else of_ids] = serve
        if text is not None:
            functions[signature] = _answer_function(text, of, more)
        read.update(map(id, serve.get_concrete_function().graph.variables))

    add(outputs, SIGNATURE, IDS_SIGNATURE)
    if exits:
        add(exits, EXIT_SIGNATURE, EXIT_IDS_SIGNATURE, **{
            EXIT_INPUT: tf.TensorSpec([], tf.float32, name=EXIT_INPUT)})
    if text is not None:
        module.ops = text.ops
        functions[TOKENIZE_SIGNATURE] = _tokenize_function(text)
    module.functions = functions
    # Variables and not the model: Keras would store a function for each layer, which
    # takes many times as long to write and to load. Only those that the function
    # reads: a kernel that has a copy to serve with does not go into the file.
    copies = [copy for weights in constants.values() for copy in weights]
    module.weights = [variable for variable in (*model.weights, *copies)
                      if id(variable) in read]
    contents = {CONFIG_FILE: json.dumps(
        {**model.config.to_dict(), **({"head": head} if head else {})},
        indent=1).encode()} | {
        name: "".join(f"{line}\n" for line in lines).encode()
        for name, lines in assets.items() if lines} | (text.ops.assets if text else {})
    try:
        with files.staged(export_dir) as (staged,), tempfile.TemporaryDirectory() as at:
            for name, content in contents.items():
                files.write(os.path.join(at, name), content)
            module.files = [tf.saved_model.Asset(os.path.join(at, name))
                            for name in contents]
            # A served model is not trained; gradients by hand would be traced, stored
            # and loaded.
            tf.saved_model.save(
                module, staged, signatures=functions,
                options=tf.saved_model.SaveOptions(experimental_custom_gradients=False))
    except tf.errors.OpError as error:
        raise InputError(f"--export_dir={export_dir}: cannot be written: "
                         f"{error.message.splitlines()[0]}.") from error
    logging.info("Exported to %s: its signature %s takes %s.", export_dir, SIGNATURE,
                 " and ".join(text.inputs) + ", strings" if text else
                 "ids, as there is no vocabulary")


def _strings(text: TextTask) -> dict[str, tf.TensorSpec]:
    return {name: tf.TensorSpec([None] * axes, tf.string, name=name)
            for name, axes in text.inputs.items()}


def _tokenize_function(text: TextTask) -> tf.types.experimental.GenericFunction:
    """strings → the model's inputs."""
    @tf.function(autograph=False, input_signature=[_strings(text)])
    def tokenize(inputs):
        with tf.device("CPU:0"):
            return text.tokenized(inputs)

    return tokenize


def _answer_function(text: TextTask, outputs: Callable[[Outputs, Outputs], Outputs],
                     more: Mapping[str, tf.TensorSpec]
                     ) -> tf.types.experimental.GenericFunction:
    """strings and `more` → answers; `outputs` takes features and inputs."""
    @tf.function(autograph=False, input_signature=[{**_strings(text), **more}])
    def answer(inputs):
        texts = {name: inputs[name] for name in text.inputs}
        with tf.device("CPU:0"):
            features, context = text.prepared(texts)
        found = outputs(features, inputs)
        with tf.device("CPU:0"):
            return {**text.answers(texts, context, found),
                    **{name: found[name] for name in ("passes",) if name in found}}

    return answer


def _constants(model: tf_keras.Model, dtype: str) -> dict[str, tuple]:
    """Computation.constants of a model with an AlbertModel `bert`."""
    found = {}
    for block in getattr(model, "bert", model).encoder.blocks:
        weights, = block.layer_weights(tf.as_dtype(dtype), 1)
        found[block.scope] = type(weights)(
            *(tf.Variable(weight, trainable=False,
                          name=f"{block.scope}/constants/{name}")
              for name, weight in weights._asdict().items()))
    return found
