"""One worker, or one process with two replicas, on records in their own order.

    python -m tests.worker RECORDS OUTPUT_DIR

Several workers if TF_CONFIG is set, each with one replica; else two virtual CPUs.
"""

import os
import sys

import tensorflow as tf

from albert_tf.checkpoints.tf1 import load_tf1_tensors
from albert_tf.modeling import models
from albert_tf.records.checks import check_files
from albert_tf.training import input_pipeline, loop
from albert_tf.training.options import RunOptions, StepOptions
from tests import tiny_run


def main(path, output_dir):
    if "TF_CONFIG" in os.environ:
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
    else:
        tf.config.set_logical_device_configuration(
            tf.config.list_physical_devices("CPU")[0],
            [tf.config.LogicalDeviceConfiguration()] * 2)
        strategy = tiny_run.strategy(2)
    infos = check_files([path], tiny_run.SPEC)

    with strategy.scope():
        model = models.AlbertForPreTraining(tiny_run.config())
        load_tf1_tensors(model, tiny_run.weights(tiny_run.config()))
        optimizer = tiny_run.optimizer(model)
        loop.Run(
            tiny_run.task(model), tiny_run.config(),
            RunOptions(output_dir, num_train_steps=10, train_batch_size=8,
                       iterations_per_loop=1, step=StepOptions(clip_norm=100.0)),
            input_pipeline.RecordBatches(
                tiny_run.SPEC, infos, None, train_batch_size=8, eval_batch_size=8,
                seed=1, shuffle_buffer=0),
            optimizer).train()


if __name__ == "__main__":
    main(*sys.argv[1:])
