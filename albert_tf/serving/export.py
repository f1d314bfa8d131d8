"""SavedModels of fine-tuned models, for `serving`, TensorFlow Serving and the like.

What of the weights is the same for every request (kernels in the type of the
products, query, key and value side by side) is computed here, once.
"""

import contextlib
import os
from typing import Callable, Iterator, Mapping, Sequence

import tensorflow as tf
import tf_keras
from absl import logging

from albert_tf import files
from albert_tf.errors import InputError
from albert_tf.modeling import albert
from albert_tf.serving.server import LABELS_FILE, SIGNATURE

_INPUTS = ("input_ids", "input_mask", "segment_ids")
Outputs = Mapping[str, tf.Tensor]


def export_classifier(model: tf_keras.Model, export_dir: str,
                      labels: Sequence[str]) -> None:
    """Writes a SavedModel with the signature `serving_default`.

    Inputs `input_ids`, `input_mask`, `segment_ids`, int32 [B, S] for any B and S.
    Outputs `logits` [B, K] and, for classes, `probabilities` [B, K]; the labels
    stand in the asset `labels.txt`, a line each, in the order of K.

    Args:
      model: an AlbertForSequenceClassification.
      export_dir: the SavedModel's folder; must not exist.
      labels: of the classes; none for regression.

    Raises:
      InputError: if the folder exists, or cannot be written.
    """
    def outputs(features):
        found = {"logits": model(features, training=False)["logits"]}
        if labels:
            found["probabilities"] = tf.nn.softmax(found["logits"])
        return found

    _export(model, outputs, _INPUTS, export_dir, labels)


def export_spans(model: tf_keras.Model, export_dir: str) -> None:
    """As export_classifier, for questions about a text.

    Args:
      model: an AlbertForSpans or AlbertForConditionalSpans; the latter's signature
        takes `p_mask` too. The outputs are the model's.
      export_dir: the SavedModel's folder; must not exist.

    Raises:
      InputError: if the folder exists, or cannot be written.
    """
    inputs = (*_INPUTS, "p_mask") if hasattr(model, "start_n_top") else _INPUTS
    _export(model, lambda features: model(features, training=False), inputs,
            export_dir, ())


def _export(model: tf_keras.Model, outputs: Callable[[Outputs], Outputs],
            inputs: Sequence[str], export_dir: str, labels: Sequence[str]) -> None:
    if files.exists(export_dir):
        raise InputError(f"--export_dir={export_dir} is there already; choose another.")
    parent = os.path.dirname(export_dir.rstrip("/")) or "."
    files.make_directory(parent, "--export_dir")
    staged = f"{export_dir.rstrip('/')}.incomplete-{os.getpid()}"

    # The names of the specs become those of the signature's inputs.
    @tf.function(input_signature=[{
        name: tf.TensorSpec([None, None], tf.int32, name=name) for name in inputs}])
    def serve(features):
        return dict(outputs(features))

    module = tf.Module()
    try:
        with _ready_to_serve(model) as constants:
            # Variables and not the model: Keras would store a function for each
            # layer, which takes many times as long to write and to load.
            module.weights = _used(serve, model, constants)
            module.serve = serve
            # Nobody trains what serves, and gradients by hand would be traced, stored
            # and loaded.
            tf.saved_model.save(
                module, staged, signatures={SIGNATURE: serve},
                options=tf.saved_model.SaveOptions(experimental_custom_gradients=False))
        if labels:
            path = os.path.join(staged, "assets", LABELS_FILE)
            with files.atomic_write(path) as stream:
                stream.write("".join(f"{label}\n" for label in labels).encode())
        files.rename(staged, export_dir)
    except tf.errors.OpError as error:
        raise InputError(f"--export_dir={export_dir}: cannot be written: "
                         f"{error.message.splitlines()[0]}.") from error
    finally:
        if tf.io.gfile.exists(staged):
            tf.io.gfile.rmtree(staged)
    logging.info("Exported to %s.", export_dir)


def _used(serve, model, constants) -> list[tf.Variable]:
    """Those that the function reads; kernels that have a copy to serve with do not
    go into the file."""
    read = {id(tensor) for tensor in serve.get_concrete_function().graph.variables}
    return [variable for variable in (*model.weights, *constants)
            if id(variable) in read]


@contextlib.contextmanager
def _ready_to_serve(model: tf_keras.Model) -> Iterator[list[tf.Variable]]:
    """Within it a model is traced as prediction with fixed weights wants it.

    What the layers need of their variables is computed at once, and not with each
    batch: kernels in the type of the products, query, key and value side by side.
    And no rows of padding are computed.

    Args:
      model: one that has AlbertModels in it, or is one.

    Yields:
      The variables of what was computed.
    """
    parts = [part for part in (model, *model.submodules)
             if isinstance(part, albert.AlbertModel)]
    before = [part.skip_padding for part in parts]
    made = []
    try:
        for part in parts:
            part.skip_padding, encoder = True, part.encoder
            found = {}
            for block in (*encoder.attention.values(), *encoder.ffn.values()):
                weights, = block.layer_weights(tf.as_dtype(part.activation_dtype), 1)
                found[block.scope] = type(weights)(
                    *(tf.Variable(weight, trainable=False) for weight in weights))
                made.extend(found[block.scope])
            # A function, since Keras would make a dictionary's variables the model's.
            encoder.constants = found.__getitem__
        yield made
    finally:
        for part, skip_padding in zip(parts, before):
            part.skip_padding, part.encoder.constants = skip_padding, None
