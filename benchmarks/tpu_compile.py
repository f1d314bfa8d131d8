r"""Compiles whole pretraining steps with the TPU's own compiler, on a machine without TPU.

    pip install -r benchmarks/requirements-tpu.txt
    python -m benchmarks.tpu_compile --output=benchmarks/results/tpu_compile.json

A step is forward pass, backward pass, clipping and LAMB of one replica, that is of one
core, on random tokens with dropout 0.1 and 15 % predictions (contestants.py); keras-hub
has AdamW and no sentence loss. The table shows

  memory     arguments, temporary buffers and program; "no" if a core has less
  seconds    the compiler's estimate in cycles over the chip's clock
  peak       the operations of the step's products at the data sheet's speed, over seconds
  sequences  a second and chip
  random     the time to write the random numbers, for which the compiler has no estimate,
             at the speed of the chip's memory; not part of the seconds
  compiling  seconds on this machine, and megabytes of the program
  and the largest kinds of operations, in percent of the cycles.

These are the compiler's estimates: no TPU computed anything. Each setting runs in its own
process; those that the output file already has are skipped, and those of a peer that is
not installed are left out. The exit status is 1 if a setting does not compile.
"""

import json
import os
import subprocess
import sys
import time

from absl import flags, logging

from albert_tf import text_files
from albert_tf.cli import script
from albert_tf.config import AlbertConfig
from albert_tf.errors import InputError
from benchmarks import benchmark_flags, contestants, tpu_compiler
from benchmarks.peers import NotInstalled

FLAGS = flags.FLAGS

# contestant:model:shape:chip, then "recompute", "passes=N" or "predictions=N".
SETTINGS = [
    "ours:base:32x512:v3", "keras-hub:base:32x512:v3", "tf-models:base:32x512:v3",
    "ours:base:32x512:v3:recompute", "ours:base:8x512:v3", "ours:base:128x128:v3",
    "ours:large:8x512:v3", "ours:large:8x512:v3:recompute", "ours:xlarge:8x512:v3",
    "ours:xxlarge:8x512:v3", "ours:xxlarge:8x512:v3:recompute",
    "ours:xxlarge:16x512:v3:recompute",
    "ours:bert-base:32x512:v3", "ours:bert-large:8x512:v3",
    "ours:base:32x512:v4", "ours:base:32x512:v5e", "ours:base:128x128:v5e",
    "ours:base:32x512:v5p", "ours:base:32x512:v6e",
    # What --recipe=fast computes, with 40 % predictions.
    "ours:base:32x512:v3:passes=3:predictions=205",
    "ours:base:32x512:v3:predictions=205"]
CONTESTANTS = ("ours", "tf-models", "keras-hub")

flags.DEFINE_list("settings", SETTINGS,
                  "Steps to compile: contestant:model:shape:chip[:recompute]"
                  "[:passes=N][:predictions=N].")
flags.DEFINE_enum("dtype", "bfloat16", ["float32", "bfloat16"],
                  "Number type of the layers.")
flags.DEFINE_string("one_setting", "", "Internal: used by the benchmark itself.")
benchmark_flags.define_output_flag()


def parsed(setting: str) -> dict:
    """Parses a setting into its parts."""
    name, model, shape, chip, *more = (*setting.split(":"), "", "", "")
    options = dict(option.partition("=")[::2] for option in filter(None, more))
    if name not in CONTESTANTS or chip not in tpu_compiler.CHIPS or (
            options.keys() - {"recompute", "passes", "predictions"}):
        raise InputError(
            f"--settings: '{setting}' is not contestant:model:shape:chip, with a "
            f"contestant of {', '.join(CONTESTANTS)} and a chip of "
            f"{', '.join(tpu_compiler.CHIPS)}; ours may have :recompute, :passes=N and "
            ":predictions=N after it.")
    size, length = contestants.parsed_shape(shape)
    return {"contestant": name, "model": model, "size": size, "length": length,
            "chip": chip, "recompute": "recompute" in options,
            "passes": int(options.get("passes", 0)) or None,
            "predictions": int(options.get("predictions", 0))}


def measure(setting: str) -> dict:
    """Compiles one setting in this process; returns its row of the table."""
    row = parsed(setting)
    config = AlbertConfig.named(row["model"]).replace(
        hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
    size, length, chip = row["size"], row["length"], tpu_compiler.CHIPS[row["chip"]]
    start = time.perf_counter()
    if row["contestant"] == "keras-hub":
        program = tpu_compiler.keras_hub_program(config, size, length, FLAGS.dtype, chip)
    else:
        make = (contestants.our_trainer if row["contestant"] == "ours"
                else contestants.tf_models_trainer)
        options = {"recompute": True} if row["recompute"] else {}
        trainer = make(config, size, length, FLAGS.dtype, **options)
        program = tpu_compiler.trainer_program(
            trainer, contestants.random_batch(config, size, length, row["predictions"]),
            chip, passes=row["passes"])
        if row["passes"]:
            config = config.replace(num_hidden_layers=row["passes"])
    compile_seconds = time.perf_counter() - start
    seconds = program.cycles / chip.clock
    ideal = contestants.step_flops(
        config, size, length, row["predictions"]) / chip.flops
    return {**row, "dtype": FLAGS.dtype, "cycles": program.cycles, "seconds": seconds,
            "share_of_peak": ideal / seconds,
            "sequences_per_second_and_chip": size * chip.cores / seconds,
            "random_seconds": program.random_bytes / chip.bandwidth,
            "memory": program.memory, "fits": program.memory <= chip.memory,
            "program": program.code, "compile_seconds": compile_seconds,
            "groups": program.groups}


def label(row: dict) -> str:
    return ", ".join(filter(None, [
        row["contestant"], "recomputing" * row["recompute"],
        f"{row['passes']} passes" if row["passes"] else "",
        f"{row['predictions']} predictions" if row["predictions"] else ""]))


def print_results(rows: list[dict]) -> None:
    print("| chip | model | batch | | memory, GB | seconds | peak | sequences | random "
          "| compiling | kinds of operations |\n" + "| --- " * 11 + "|")
    for row in rows:
        groups = ", ".join(
            f"{name} {100 * cycles / row['cycles']:.0f}" for name, cycles in sorted(
                row["groups"].items(), key=lambda item: -item[1]))
        print(f"| {row['chip']} | {row['model']} | {row['size']} x {row['length']} "
              f"| {label(row)} "
              f"| {row['memory'] / 1e9:.1f}{'' if row['fits'] else ', no'} "
              f"| {row['seconds']:.3f} | {100 * row['share_of_peak']:.0f} % "
              f"| {row['sequences_per_second_and_chip']:.0f} "
              f"| {1e3 * row['random_seconds']:.0f} ms "
              f"| {row['compile_seconds']:.0f} s, "
              f"{row['program'] / 1e6:.0f} MB | {groups} |")


def own_process(setting: str) -> dict:
    process = subprocess.run(
        [sys.executable, "-m", "benchmarks.tpu_compile", f"--one_setting={setting}",
         f"--dtype={FLAGS.dtype}"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    lines = [line for line in process.stdout.splitlines() if line.startswith('{"')]
    if not lines:
        errors = [line for line in process.stderr.splitlines() if "rror" in line]
        return {**parsed(setting), "failed": (
            errors or process.stderr.splitlines() or ["it ended"])[-1]}
    return json.loads(lines[-1])


def main(_):
    for setting in FLAGS.settings:
        parsed(setting)
    try:
        tpu_compiler.prepare()
    except NotInstalled as error:
        raise InputError(f"{error}; pip install -r benchmarks/requirements-tpu.txt "
                         "into this environment.") from None
    if FLAGS.one_setting:
        try:
            row = measure(FLAGS.one_setting)
        except NotInstalled as error:
            row = {"left_out": str(error)}
        print(json.dumps(row), flush=True)
        os._exit(0)  # libtpu ends in an error when Python has ended.
    benchmark_flags.make_output_folder()
    results = {}
    if FLAGS.output and os.path.exists(FLAGS.output):
        results = text_files.read_object(FLAGS.output).get("results", {})
    failed = []
    for number, setting in enumerate(FLAGS.settings, start=1):
        if setting in results:
            continue
        logging.info("Compiling %s (%d of %d).", setting, number, len(FLAGS.settings))
        row = own_process(setting)
        if "left_out" in row or "failed" in row:
            logging.warning("Leaving out %s: %s.", setting,
                            row.get("left_out", row.get("failed")))
            failed += [setting] if "failed" in row else []
            continue
        results[setting] = row
        benchmark_flags.write_output({**benchmark_flags.machine(), "results": results})
    print_results([results[s] for s in FLAGS.settings if s in results])
    if failed:
        raise InputError(f"{len(failed)} of {len(FLAGS.settings)} settings did not compile: "
                         + ", ".join(failed))


if __name__ == "__main__":
    script.run(main)
