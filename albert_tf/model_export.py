"""SavedModels of fine-tuned models, for TensorFlow Serving and the like."""

import os
from typing import Sequence

import tensorflow as tf
import tf_keras
from absl import logging

from albert_tf import files
from albert_tf.errors import InputError

LABELS_FILE = "labels.txt"


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
    if files.exists(export_dir):
        raise InputError(f"--export_dir={export_dir} is there already; choose another.")
    parent = os.path.dirname(export_dir.rstrip("/")) or "."
    files.make_directory(parent, "--export_dir")
    staged = f"{export_dir.rstrip('/')}.incomplete-{os.getpid()}"

    # The names of the specs become those of the signature's inputs.
    @tf.function(input_signature=[{
        name: tf.TensorSpec([None, None], tf.int32, name=name)
        for name in ("input_ids", "input_mask", "segment_ids")}])
    def serve(features):
        logits = model(features, training=False)["logits"]
        outputs = {"logits": logits}
        if labels:
            outputs["probabilities"] = tf.nn.softmax(logits)
        return outputs

    module = tf.Module()
    # Its variables and not the model: Keras would store a function for each layer,
    # which takes many times as long to write and to load.
    module.weights, module.serve = list(model.weights), serve
    try:
        tf.saved_model.save(module, staged, signatures={"serving_default": serve})
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
