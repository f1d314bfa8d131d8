r"""Measures the input pipeline with --dynamic_masking against the training step.

    python -m benchmarks.dynamic_masking \
        --output=benchmarks/results/dynamic_masking.json

The text becomes records of length 128 and of length 512, each with and without masks. The
input pipeline of run_pretraining.py (reading, shuffling, parsing and, with
--dynamic_masking, drawing masks) is measured in CPU seconds over all threads. The time of
few batches is subtracted from that of many, to exclude the start. The results are the
rate of one core, the rate of a host with 96 cores (as of a TPU) by calculation, and the
ratio to the training step on the same cores. The step is ALBERT-base on the CPU: forward
and backward pass, clipping, LAMB.
"""

import importlib.metadata
import os
import tempfile
import time

import numpy as np
from absl import flags

from albert_tf.cli import script
from albert_tf.config import AlbertConfig
from albert_tf.masking.options import MaskingOptions, SpecialIds
from albert_tf.records.checks import check_files, unmasked_spec
from albert_tf.records.spec import pretraining_spec
from benchmarks import benchmark_flags, contestants, runs
from benchmarks.benchmark_flags import DATA

FLAGS = flags.FLAGS

flags.DEFINE_string("input_file", os.path.join(DATA, "wiki_en", "dev.txt"),
                    "Text: one sentence per line, blank lines between documents.")
benchmark_flags.define_spm_model_flag()
flags.DEFINE_integer("num_batches", 400, "Number of measured batches of 8 sequences of 512 "
                     "tokens; other batches have as many tokens in total.", lower_bound=8)
flags.DEFINE_integer("num_repeats", 3, "Number of measurements.", lower_bound=1)
flags.DEFINE_integer("num_steps", 3, "Number of measured training steps; may be 0.",
                     lower_bound=0)
benchmark_flags.define_output_flag()

# Sequence length → maximum number of masked tokens, 0.15 of the length.
PREDICTIONS = {128: 20, 512: 77}
# Sequence length → (sequences of a training step here, batch of a TPU core).
BATCH_SIZES = {128: (8, 128), 512: (4, 32)}
SPECIAL_IDS = SpecialIds(cls=2, sep=3, mask=4)
HOST_CORES = 96
TARGET = 20  # Required ratio to the step.


def make_records(folder: str, length: int, masked: bool) -> str:
    """Runs create_pretraining_data.py and returns the path of the records."""
    return runs.records(
        os.path.join(folder, f"{length}-{'masked' if masked else 'unmasked'}"),
        input_file=FLAGS.input_file, spm_model_file=FLAGS.spm_model_file,
        max_seq_length=length, dupe_factor=2,
        max_predictions_per_seq=PREDICTIONS[length],
        masked_lm_prob=0.15 if masked else 0)


def pipeline(path: str, length: int, masked: bool, batch_size: int, config):
    """Returns the batches of run_pretraining.py."""
    from albert_tf.masking import in_training
    from albert_tf.training import input_pipeline

    spec = pretraining_spec(
        length, PREDICTIONS[length], config.vocab_size, config.type_vocab_size)
    if masked:
        infos, random_map = check_files([path], spec), None
    else:
        spec = unmasked_spec(spec)
        infos = check_files([path], spec)
        random_map = in_training.DynamicMasking(
            MaskingOptions(PREDICTIONS[length]), SPECIAL_IDS, length,
            config.vocab_size)
    return input_pipeline.training_dataset(
        infos, spec, batch_size, 1, random_map=random_map)


def cpu_seconds(dataset, count: int) -> float:
    """Returns the CPU seconds of all threads until the given number of batches exists."""
    begin = time.process_time()
    for _ in dataset.take(count):
        pass
    return time.process_time() - begin


def per_core(dataset, batch_size: int, count: int) -> dict:
    """Returns the sequences per second of one core."""
    few = count // 8
    cpu_seconds(dataset, few)
    rates = sorted(
        batch_size * (count - few) / (
            cpu_seconds(dataset, count) - cpu_seconds(dataset, few))
        for _ in range(FLAGS.num_repeats))
    return {"median": float(np.median(rates)), "lowest": rates[0], "highest": rates[-1]}


def step_rate(dataset, batch_size: int, config) -> float:
    """Returns sequences per second and core of ALBERT's training step on the CPU."""
    import tensorflow as tf

    from albert_tf.modeling.encoder import Computation
    from albert_tf.modeling.pretraining import AlbertForPreTraining

    # Create the batches first, so that they are not part of the measurement.
    batches = list(dataset.take(FLAGS.num_steps + 1))
    cached = tf.data.Dataset.from_tensor_slices(
        {name: tf.stack([batch[name] for batch in batches]) for name in batches[0]})
    trainer = contestants.trainer(AlbertForPreTraining(config), cached, Computation())
    trainer.train(tf.constant(1))
    begin = time.process_time()
    trainer.train(tf.constant(FLAGS.num_steps))
    return FLAGS.num_steps * batch_size / (time.process_time() - begin)


def measure(folder: str, length: int, config) -> dict:
    """Returns all rates at one length, in sequences per second and core."""
    paths = {masked: make_records(folder, length, masked) for masked in (True, False)}
    result: dict = {"batches": {}}
    for batch_size in BATCH_SIZES[length]:
        count = max(FLAGS.num_batches * 8 * 512 // (batch_size * length), 8)
        result["batches"][batch_size] = {
            name: per_core(pipeline(paths[masked], length, masked, batch_size, config),
                           batch_size, count)
            for name, masked in (("static", True), ("dynamic", False))}
    if FLAGS.num_steps:
        batch_size = BATCH_SIZES[length][0]
        result["step"] = step_rate(
            pipeline(paths[False], length, False, batch_size, config),
            batch_size, config)
    return result


def print_table(results: dict) -> None:
    print("\nSequences per second and core\n"
          f"  {'length':>6} {'batch':>6} {'masked before':>14}"
          f" {'masked now':>11} {'a host of ' + str(HOST_CORES):>13} {'step':>8}"
          f" {'times the step':>15}")
    for length, result in results.items():
        for batch_size, found in result["batches"].items():
            dynamic = found["dynamic"]["median"]
            line = (f"  {length:6} {batch_size:6} {found['static']['median']:14.0f}"
                    f" {dynamic:11.0f} {dynamic * HOST_CORES:13.0f}")
            if "step" in result:
                line += f" {result['step']:8.2f} {dynamic / result['step']:15.0f}"
            print(line)
    print(f"The pipeline should reach {TARGET} times the step.")


def main(argv):
    del argv
    config = AlbertConfig.named("base")
    benchmark_flags.make_output_folder()
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        results = {length: measure(folder, length, config) for length in PREDICTIONS}
    print_table(results)
    benchmark_flags.write_output({
        "unit": "sequences per CPU second", "sequences": results,
        "minutes": (time.monotonic() - begin) / 60, **benchmark_flags.machine(),
        "tensorflow": importlib.metadata.version("tensorflow")})


if __name__ == "__main__":
    script.run(main)
