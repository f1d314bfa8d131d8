r"""Measures the time of a whole pretraining step: ours, without fused parts, and peers'.

    python -m benchmarks.training --output=benchmarks/results/training.json

A step is forward pass, backward pass, clipping by the global norm and the optimizer, on a
batch of random tokens. The contestants take turns, one step of each per round:

  limit      the step's matrix products alone, with the kernels that ours uses; in the
             last layer only what the heads read
  ours       the step of run_pretraining.py, with its training metrics
  plain      the same with plain element-wise parts (kernels.plain.PLAIN)
  tf-models  tf-models-official's AlbertEncoder and our heads, loss and optimizer
  hf         transformers' AlbertForPreTraining in PyTorch, with its fused AdamW,
             which does less than LAMB
  compiled   the same through torch.compile
  keras-hub  its AlbertMaskedLM on Keras 3 with TensorFlow, AdamW, masked-LM loss only

The last four need benchmarks/requirements.txt; missing packages are reported and left out.
Each shape and type runs in its own process. Times are medians over rounds, with ranges;
the share of the limit is the median over rounds. The results also give the core-seconds
divided by the number of cores, which are more reliable on a machine with other work.
"""

import collections
import functools
import json
import os
import resource
import time

import numpy as np
from absl import flags, logging

from albert_tf.cli import flags as cli_flags, script
from albert_tf.cli.define import define
from albert_tf.errors import InputError
from benchmarks import benchmark_flags, runs
from benchmarks.contestants import (
    MAKERS, RECOMPUTING, parsed_shape, step_flops, step_products)
from benchmarks.peers import installed

FLAGS = flags.FLAGS

CONTESTANTS = ("limit", "ours", "plain", "tf-models", "hf")
DTYPES = ("float32", "bfloat16")

define(cli_flags.ModelOptions)
flags.DEFINE_list("shapes", ["8x128", "4x512"], "Batches, as sequences x length.")
flags.DEFINE_list("dtypes", list(DTYPES), "Number types of products and activations.")
flags.DEFINE_list("contestants", list(CONTESTANTS),
                  "Contestants to measure; compiled and keras-hub are "
                  "also available.")
flags.DEFINE_float("dropout", None, "Dropout of all contestants. Default: the config's.",
                   lower_bound=0.0, upper_bound=1.0)
flags.DEFINE_integer("rounds", 7, "Number of measured steps of each contestant.",
                     lower_bound=1)
flags.DEFINE_bool("recompute", False, "Gradient checkpointing, in ours and hf.")
benchmark_flags.define_output_flag()
flags.DEFINE_string("one_setting", "", "Internal: used by the benchmark itself.")
WARM_UP = 2


# ---- the limit -------------------------------------------------------------


def limit(config, size, length, dtype):
    """Returns a function that computes all products of a step, one after the other."""
    import tensorflow as tf

    products = step_products(config, size, length)

    def operands(batch, *shape):
        return tf.cast(tf.random.normal([batch, *shape] if batch else shape), dtype)

    tensors = []
    for index, (_, batch, rows, inner, columns) in enumerate(products):
        last = index == len(products) - 1
        made = [operands(batch, rows, inner), operands(batch, inner, columns),
                operands(batch, rows, columns)]
        tensors.append([tf.cast(t, tf.float32) for t in made] if last else made)

    @tf.function
    def layer(chosen):
        sums = []
        for index in chosen:
            left, right, out = tensors[index]
            for a, b, options in (
                    (left, right, {}), (out, right, {"transpose_b": True}),
                    (left, out, {"transpose_a": True})):
                with tf.control_dependencies(sums[-1:]):
                    # Reading one number keeps the product from being optimized away.
                    sums.append(tf.matmul(a, b, **options)[..., 0, 0])
        return [tf.cast(s, tf.float32) for s in sums]

    by_count = collections.defaultdict(list)
    for index, (count, *_) in enumerate(products):
        by_count[count].append(index)

    def run():
        for count, chosen in by_count.items():
            for _ in range(count):
                layer(tuple(chosen))

    return run


# ---- one setting -----------------------------------------------------------


def _step(name, *setting):
    if name == "limit":
        return limit(*setting)
    options = {"recompute": FLAGS.recompute} if name in RECOMPUTING else {}
    return MAKERS[name](*setting, **options)


def measure(config, shape: str, dtype: str):
    """Returns the seconds of each step by contestant: wall-clock and core time."""
    steps = installed({
        name: functools.partial(_step, name, config, *parsed_shape(shape), dtype)
        for name in FLAGS.contestants})
    for step in steps.values():
        for _ in range(WARM_UP):
            step()
    times, cores = ({name: [] for name in steps} for _ in range(2))
    for _ in range(FLAGS.rounds):
        for name, step in steps.items():
            start, core_start = time.perf_counter(), time.process_time()
            step()
            times[name].append(time.perf_counter() - start)
            cores[name].append((time.process_time() - core_start) / os.cpu_count())
    return times, cores


def summary(config, shape: str, dtype: str, times, cores) -> dict:
    """Returns medians, ranges and shares of the limit of one setting."""
    found = {"shape": shape, "dtype": dtype, "seconds": {}, "times": times,
             "core_times": cores,
             "gigaflop": step_flops(config, *parsed_shape(shape)) / 1e9,
             "peak_gigabytes":
                 resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20}
    for name, values in times.items():
        row = {"median": float(np.median(values)), "least": min(values),
               "most": max(values), "cores": float(np.median(cores[name]))}
        if "limit" in times:
            row["share_of_limit"] = float(np.median(
                np.array(times["limit"]) / np.array(values)))
        if "ours" in times:
            row["times_ours"] = float(np.median(
                np.array(values) / np.array(times["ours"])))
        found["seconds"][name] = row
        logging.info(
            "%s %s %-9s %.3f s (%.3f to %.3f), cores %.3f%s%s", shape, dtype, name,
            row["median"], row["least"], row["most"], row["cores"],
            f"; {row['share_of_limit']:.0%} of the limit" if "limit" in times else "",
            f"; {row['times_ours']:.2f} x ours" if "ours" in times else "")
    return found


def _config():
    config = cli_flags.model_config(FLAGS)
    if FLAGS.dropout is not None:
        config = config.replace(hidden_dropout_prob=FLAGS.dropout,
                                attention_probs_dropout_prob=FLAGS.dropout)
    return config


def main(argv):
    if not (FLAGS.model or FLAGS.albert_config_file):
        FLAGS.model = "base"
    config = _config()
    unknown = set(FLAGS.contestants) - {"limit", *MAKERS}
    if unknown:
        raise InputError(f"--contestants: {unknown.pop()} is unknown.")
    if FLAGS.one_setting:
        shape, dtype = FLAGS.one_setting.split(":")
        print(json.dumps(summary(
            config, shape, dtype, *measure(config, shape, dtype))))
        return
    results = []
    for shape in FLAGS.shapes:
        for dtype in FLAGS.dtypes:
            results.append(runs.in_own_process(
                "benchmarks.training", f"--one_setting={shape}:{dtype}"))
            # Write after each setting, since the next may take long.
            benchmark_flags.write_output({
                **benchmark_flags.machine(), "config": config.to_dict(),
                "rounds": FLAGS.rounds, "results": results})


if __name__ == "__main__":
    script.run(main)
