"""Loads a model and answers one request in a new process: part of inference.py.

    python -m benchmarks.first_answer saved_model FOLDER

Prints the time of the answer (seconds since the epoch), the CPU seconds of the process
until then, and its resident memory in MB. The imports that a user's program needs are part
of the time.
"""

import sys
import time

# A sentence as long as those of SST-2.
IDS = [2, *range(100, 123), 3]


def saved_model(folder):
    from albert_tf.serving import saved_model as server

    server.Server(folder).predict([{
        "input_ids": IDS, "input_mask": [1] * len(IDS), "segment_ids": [0] * len(IDS)}])


def checkpoint(folder):
    import tensorflow as tf

    from albert_tf.checkpoints import restore
    from albert_tf.finetuning.classification.head import Classification
    from albert_tf.modeling.models import AlbertForTask

    model = AlbertForTask(
        restore.read_config(folder), Classification(2))
    restore.restore_tf1(model, folder)
    tf.function(model)({
        "input_ids": tf.constant([IDS]), "input_mask": tf.ones([1, len(IDS)], tf.int32),
        "segment_ids": tf.zeros([1, len(IDS)], tf.int32)})["logits"].numpy()


def hf(folder):
    import torch
    from transformers import AlbertForSequenceClassification

    model = AlbertForSequenceClassification.from_pretrained(folder).eval()
    with torch.inference_mode():
        model(input_ids=torch.tensor([IDS])).logits.numpy()


def keras_hub(folder):
    import keras_hub
    import numpy as np

    model = keras_hub.models.AlbertTextClassifier.from_preset(
        folder, num_classes=2, preprocessor=None)
    # As its documentation says; predict() would compile a function first.
    np.array(model({
        "token_ids": np.array([IDS]), "padding_mask": np.ones([1, len(IDS)]),
        "segment_ids": np.zeros([1, len(IDS)], np.int32)}))


KINDS = {kind.__name__: kind for kind in (saved_model, checkpoint, hf, keras_hub)}


def _resident_megabytes() -> float:
    with open("/proc/self/status", encoding="utf-8") as stream:
        line, = (line for line in stream if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


if __name__ == "__main__":
    KINDS[sys.argv[1]](sys.argv[2])
    print(time.time(), time.process_time(), _resident_megabytes())
