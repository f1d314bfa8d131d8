r"""Checks a training step on a GPU or TPU against the CPU, and measures its speed.

    python -m benchmarks.accelerator --output=accelerator.json
    python -m benchmarks.accelerator --tpu=local --output=accelerator.json

First, one step of a small model is compared with the same step on the CPU (step_check):
plain, in bfloat16, in float16, compiled by XLA, and on two replicas.

Then whole pretraining steps with LAMB are timed. The results are sequences and tokens per
second, and the share that the step's matrix products would take at the device's own peak:
the speed of its fastest large product of the same type, measured in the same run. A batch
that does not fit into memory is halved until it does.

Without an accelerator everything runs on the CPU, with small batches. The exit status is
1 if a comparison is out of bounds. This code was written on machines without accelerators;
please attach the JSON file to an issue.
"""

import os
import subprocess
import sys
import tempfile
import time

import numpy as np
from absl import flags, logging

from albert_tf import text_files
from albert_tf.cli import script
from albert_tf.config import AlbertConfig
from albert_tf.errors import InputError
from benchmarks import benchmark_flags, contestants, step_check

FLAGS = flags.FLAGS

benchmark_flags.define_output_flag()
flags.DEFINE_string("tpu", "", "Name or address of a TPU, or local. Default: use the GPU.")
flags.DEFINE_list("models", ["base", "large", "xlarge"], "Model sizes to time.")
flags.DEFINE_list("lengths", ["128", "512"], "Sequence lengths to time.")
flags.DEFINE_list("dtypes", [], "Number types to time. Default: all three on a GPU, "
                  "float32 and bfloat16 elsewhere.")
flags.DEFINE_integer("pieces", 0, "Tokens in the first batch that is tried. Default: "
                     "65,536, and 1,024 on a CPU.", lower_bound=0)
flags.DEFINE_integer("rounds", 10, "Number of timed steps.", lower_bound=1)
flags.DEFINE_bool("jit_compile", True, "Compile timed steps with XLA (never on a CPU).")
flags.DEFINE_string("compare_into", "", "Internal: used by the benchmark itself.")

_PRODUCT = 8192  # Rows of the product that measures the peak; a quarter on a CPU.


# ---- speed -----------------------------------------------------------------


def peak_flops(strategy, dtype: str, rows: int) -> float:
    """Returns operations per second of a large matrix product on every replica: the best
    of five."""
    import tensorflow as tf

    @tf.function
    def products(count):
        def product():
            matrix = tf.cast(tf.random.stateless_normal([rows, rows], [1, 2]), dtype)
            for _ in tf.range(count):
                matrix = tf.matmul(matrix, matrix) * tf.cast(1e-2, dtype)
            return tf.cast(matrix[0, 0], tf.float32)

        return strategy.reduce("SUM", strategy.run(product), axis=None)

    def seconds(count):
        begin = time.perf_counter()
        products(tf.constant(count)).numpy()
        return time.perf_counter() - begin

    seconds(1)
    # Take the difference of two counts, to exclude start-up and creating the matrix.
    best = min(seconds(6) for _ in range(3)) - min(seconds(1) for _ in range(3))
    return 5 * 2.0 * rows ** 3 * strategy.num_replicas_in_sync / best


def time_step(strategy, config, size: int, length: int, dtype: str,
              jit_compile: bool) -> tuple[int, list[float]]:
    """Returns the batch size that fits and the seconds of each timed step."""
    import tensorflow as tf

    while True:
        try:
            with strategy.scope():
                step = contestants.ours(
                    config, size, length, dtype, jit_compile=jit_compile)
                for _ in range(2):
                    step()
                seconds = []
                for _ in range(FLAGS.rounds):
                    begin = time.perf_counter()
                    step()
                    seconds.append(time.perf_counter() - begin)
            return size, seconds
        except tf.errors.ResourceExhaustedError:
            if size == 1:
                raise InputError(
                    f"one sequence of {length} tokens does not fit into the "
                    f"device's memory in {dtype}; give fewer --models.") from None
            logging.info("A batch of %d does not fit; trying %d.", size, size // 2)
            size //= 2


def speed(strategy, dtypes: list[str], on_cpu: bool) -> list[dict]:
    """Returns a row for each model, length and type."""
    peaks = {dtype: peak_flops(strategy, dtype, _PRODUCT // (4 if on_cpu else 1))
             for dtype in dtypes}
    pieces = FLAGS.pieces or (1024 if on_cpu else 65536)
    rows = []
    for model in FLAGS.models:
        for length in map(int, FLAGS.lengths):
            config = AlbertConfig.named(model)
            for dtype in dtypes:
                size, seconds = time_step(
                    strategy, config, max(1, pieces // length), length, dtype,
                    FLAGS.jit_compile and not on_cpu)
                median = float(np.median(seconds))
                row = {"model": model, "length": length, "dtype": dtype, "batch": size,
                       "seconds": seconds, "sequences_per_second": size / median,
                       "tokens_per_second": size * length / median,
                       "share_of_peak": contestants.step_flops(
                           config, size, length) / median / peaks[dtype]}
                rows.append(row)
                logging.info(
                    "%s, %d sequences of %d, %s: %.3f s (%.3f to %.3f), %.1f sequences "
                    "and %.0f tokens per second, %.0f %% of the peak of %.3g teraflops",
                    model, size, length, dtype, median, min(seconds), max(seconds),
                    row["sequences_per_second"], row["tokens_per_second"],
                    100 * row["share_of_peak"], peaks[dtype] / 1e12)
    return rows


def main(argv):
    del argv
    import tensorflow as tf

    from albert_tf.training import devices as distribution

    unknown = set(FLAGS.dtypes) - set(step_check.BOUNDS)
    if unknown:
        raise InputError(f"--dtypes: {unknown.pop()} is not one of "
                         f"{', '.join(step_check.BOUNDS)}.")
    benchmark_flags.make_output_folder()
    gpus = [] if FLAGS.tpu else tf.config.list_physical_devices("GPU")
    on_cpu = not gpus and not FLAGS.tpu
    if FLAGS.compare_into:
        rows = step_check.compare(*_devices_to_compare(gpus))
        text_files.write_json(FLAGS.compare_into, {"steps": rows})
        return
    if on_cpu:
        logging.info("Found no accelerator; running on the CPU with small batches.")
    results = {**benchmark_flags.machine(), "tensorflow": tf.__version__, "devices": [
        tf.config.experimental.get_device_details(gpu).get("device_name", gpu.name)
        for gpu in gpus] or ["TPU" if FLAGS.tpu else "CPU"]}
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "steps.json")
        # A separate process, because it splits a GPU into two replicas and must release
        # a TPU before the timing.
        subprocess.run([sys.executable, "-m", "benchmarks.accelerator", *sys.argv[1:],
                        f"--compare_into={path}"], check=True)
        results |= text_files.read_object(path)
    benchmark_flags.write_output(results)  # Before the timing, which may run out of memory.
    if FLAGS.tpu:
        strategy = distribution.make_strategy(distribution.DeviceOptions(FLAGS.tpu))
    else:
        strategy = tf.distribute.OneDeviceStrategy("GPU:0" if gpus else "CPU:0")
    dtypes = FLAGS.dtypes or ["float32", "bfloat16"] + ["float16"] * bool(gpus)
    results["speed"] = speed(strategy, dtypes, on_cpu)
    benchmark_flags.write_output(results)
    if not all(row["right"] for row in results["steps"]):
        sys.exit(1)


def _devices_to_compare(gpus):
    """Returns the arguments of `compare`."""
    import tensorflow as tf

    from albert_tf.training import devices as distribution

    if FLAGS.tpu:
        tpu = distribution.make_strategy(distribution.DeviceOptions(FLAGS.tpu))
        return ["TPU"], lambda devices: tpu, True
    kind = "GPU" if gpus else "CPU"
    if len(gpus) < 2:
        limit = {"memory_limit": 4096} if gpus else {}  # MB
        tf.config.set_logical_device_configuration(
            tf.config.list_physical_devices(kind)[0],
            [tf.config.LogicalDeviceConfiguration(**limit)] * 2)

    def make_strategy(devices):
        return (tf.distribute.OneDeviceStrategy(*devices) if len(devices) == 1
                else tf.distribute.MirroredStrategy(devices))

    return [f"{kind}:{i}" for i in range(2)], make_strategy, False


if __name__ == "__main__":
    script.run(main)
