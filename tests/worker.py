"""A run of tests.training.test_replicas in this process, one of several workers if
TF_CONFIG is set.

    python -m tests.worker RECORDS OUTPUT_DIR NUM_STEPS
"""

import sys

import tensorflow as tf

from tests.training.test_replicas import pretrain


def main(path, output_dir, num_steps):
    # A worker is made before any operation.
    with tf.distribute.MultiWorkerMirroredStrategy().scope():
        pretrain(path, output_dir, int(num_steps))


if __name__ == "__main__":
    main(*sys.argv[1:])
