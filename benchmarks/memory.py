r"""Measures the peak memory of a whole pretraining step, with and without recomputation.

    python -m benchmarks.memory --output=benchmarks/results/memory.json

A step is forward pass, backward pass, clipping and the optimizer, as in
benchmarks/training.py, on a batch of random tokens with dropout 0.1. Each setting runs in
its own process, which reports

  before  resident memory with model, optimizer and libraries, before the first step
  peak    the maximum resident memory (VmHWM), nothing subtracted
  cores   core-seconds of the last step, divided by the number of cores

transformers 5.23 has no gradient checkpointing for ALBERT; `hf` uses
torch.utils.checkpoint around each layer instead. A process that reaches --limit is ended,
and its row says so. This needs Linux. Settings that the output file already has are skipped.
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
from benchmarks import benchmark_flags
from benchmarks.contestants import MAKERS, parsed_shape
from benchmarks.peers import NotInstalled

FLAGS = flags.FLAGS

SETTINGS = [
    f"{name}:{model}:{shape}:{dtype}{recompute}"
    for model, shape, dtypes in (
        ("base", "8x128", ("float32",)), ("base", "4x512", ("float32", "bfloat16")),
        ("large", "4x512", ("float32",)), ("xxlarge", "1x512", ("float32", "bfloat16")),
        ("xlarge", "8x512", ("float32", "bfloat16")), ("base", "32x512", ("float32",)))
    for dtype in dtypes
    for name in ("ours", "hf")
    for recompute in ("", ":recompute")]

flags.DEFINE_list(
    "settings", SETTINGS,
    "Settings to measure: contestant:model:shape:type[:recompute][:parts=2].")
flags.DEFINE_integer("steps", 2, "Steps of each setting.", lower_bound=1)
flags.DEFINE_float("limit", 21.0, "Memory in GB at which a process is ended.",
                   lower_bound=0.1)
benchmark_flags.define_output_flag()
flags.DEFINE_string("one_setting", "", "Internal: used by the benchmark itself.")


def measure(setting: str) -> dict:
    """Measures memory and seconds of one setting in this process."""
    name, model, shape, dtype, *more = setting.split(":")
    options = dict(option.partition("=")[::2] for option in more)
    known = {}
    if "recompute" in options:
        known["recompute"] = True
    if "parts" in options:
        known["gradient_accumulation_steps"] = int(options["parts"])
    config = AlbertConfig.named(model).replace(
        hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
    step = MAKERS[name](config, *parsed_shape(shape), dtype, **known)
    row = {"model": model, "shape": shape, "dtype": dtype, "options": known,
           "before": resident()[0], "cores": []}
    for _ in range(FLAGS.steps):
        start = time.process_time()
        step()
        row["cores"].append((time.process_time() - start) / os.cpu_count())
    return {**row, "peak": resident()[1]}


def resident(process: int = 0) -> tuple[float, float]:
    """Returns the GB that a process holds, and its maximum."""
    found = {}
    with open(f"/proc/{process or 'self'}/status", encoding="utf-8") as stream:
        for line in stream:
            key, _, value = line.partition(":")
            if key in ("VmRSS", "VmHWM"):
                found[key] = int(value.split()[0]) * 1024 / 1e9
    return found.get("VmRSS", 0.0), found.get("VmHWM", 0.0)


def watched(setting: str) -> dict:
    """Measures a setting in its own process, which is ended at the limit."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.memory", f"--one_setting={setting}",
         f"--steps={FLAGS.steps}"], stdout=subprocess.PIPE, text=True)
    try:
        while process.poll() is None:
            if resident(process.pid)[0] > FLAGS.limit:
                return {"more_than": FLAGS.limit}
            time.sleep(0.1)
    finally:
        process.kill()
        process.wait()
    output = process.stdout.read()
    if process.returncode:
        raise SystemExit(f"{setting} ended with {process.returncode}.")
    return json.loads(output.splitlines()[-1])


def print_results(rows: dict[str, dict]) -> None:
    print("| setting | before | peak | cores, s per step |\n| --- | --- | --- | --- |")
    for setting, row in rows.items():
        print(f"| {setting} | " + (
            f"– | over {row['more_than']:.0f} GB | – |" if "more_than" in row else
            f"{row['before']:.2f} GB | {row['peak']:.2f} GB | {row['cores'][-1]:.1f} |"))


def main(_):
    if FLAGS.one_setting:
        try:
            print(json.dumps(measure(FLAGS.one_setting)))
        except NotInstalled as error:
            print(json.dumps({"left_out": str(error)}))
        return
    results = {}
    if FLAGS.output and os.path.exists(FLAGS.output):
        results = text_files.read_object(FLAGS.output)["results"]
    for setting in FLAGS.settings:
        if setting in results:
            continue
        row = watched(setting)
        if "left_out" in row:
            logging.warning("Leaving out %s: %s.", setting, row["left_out"])
            continue
        results[setting] = row
        logging.info("%s: %s", setting, row)
        benchmark_flags.write_output({"cores": os.cpu_count(), "results": results})
    print_results(results)


if __name__ == "__main__":
    script.run(main)
