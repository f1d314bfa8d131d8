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
and its row says so. This needs Linux. A picture is drawn beside the results. Settings that
the output file already has are skipped.
"""

import json
import os
import subprocess
import sys
import time

from absl import flags, logging

from albert_tf import pictures, text_files
from albert_tf.cli import script
from albert_tf.config import AlbertConfig
from albert_tf.errors import InputError
from benchmarks import benchmark_flags
from benchmarks.contestants import MAKERS, RECOMPUTING, parsed_shape
from benchmarks.peers import NotInstalled

FLAGS = flags.FLAGS

# contestant:model:shape:type, then "recompute" and other training options.
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
    "Settings to measure: contestant:model:shape:type[:recompute][:parts=2][:jit].")
flags.DEFINE_integer("steps", 2, "Steps of each setting.", lower_bound=1)
flags.DEFINE_float("limit", 21.0, "Memory in GB at which a process is ended.",
                   lower_bound=0.1)
benchmark_flags.define_output_flag()
flags.DEFINE_string("one_setting", "", "Internal: used by the benchmark itself.")


def parsed(setting: str) -> dict:
    """Parses a setting into its parts."""
    name, model, shape, dtype, *more = (*setting.split(":"), "", "", "")
    options = {}
    for option in filter(None, more):
        key, _, value = option.partition("=")
        if key == "recompute" and name in RECOMPUTING:
            options["recompute"] = True
        elif key == "parts" and value.isdigit() and name == "ours":
            options["gradient_accumulation_steps"] = int(value)
        elif key == "jit" and name == "ours":
            options["jit_compile"] = True
        else:
            raise InputError(f"--settings: '{setting}': option {option} is unknown.")
    if name not in MAKERS:
        raise InputError(f"--settings: '{setting}': contestant {name} is unknown.")
    parsed_shape(shape)
    return {"contestant": name, "model": model, "shape": shape, "dtype": dtype,
            "options": options}


def resident(process: int = 0) -> tuple[float, float]:
    """Returns the GB that a process holds, and its maximum."""
    found = {}
    with open(f"/proc/{process or 'self'}/status", encoding="utf-8") as stream:
        for line in stream:
            key, _, value = line.partition(":")
            if key in ("VmRSS", "VmHWM"):
                found[key] = int(value.split()[0]) * 1024 / 1e9
    return found.get("VmRSS", 0.0), found.get("VmHWM", 0.0)


def measure(setting: str) -> dict:
    """Measures memory and seconds of one setting in this process."""
    row = parsed(setting)
    config = AlbertConfig.named(row["model"]).replace(
        hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
    step = MAKERS[row["contestant"]](
        config, *parsed_shape(row["shape"]), row["dtype"],
        **row["options"])
    row["before"] = resident()[0]
    row["peaks"], row["seconds"], row["cores"] = [], [], []
    for _ in range(FLAGS.steps):
        start, core_start = time.perf_counter(), time.process_time()
        step()
        row["seconds"].append(time.perf_counter() - start)
        row["cores"].append((time.process_time() - core_start) / os.cpu_count())
        row["peaks"].append(resident()[1])
    row["peak"] = row["peaks"][-1]
    return row


def watched(setting: str) -> dict:
    """Measures a setting in its own process, which is ended at the limit."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.memory", f"--one_setting={setting}",
         f"--steps={FLAGS.steps}"], stdout=subprocess.PIPE, text=True)
    try:
        while process.poll() is None:
            if resident(process.pid)[0] > FLAGS.limit:
                return {**parsed(setting), "more_than": FLAGS.limit}
            time.sleep(0.1)
    finally:
        process.kill()
        process.wait()
    output = process.stdout.read()
    if process.returncode:
        raise SystemExit(f"{setting} ended with {process.returncode}.")
    return json.loads(output.splitlines()[-1])


def label(row: dict) -> str:
    options = dict(row["options"])
    words = [row["contestant"]]
    if options.pop("recompute", False):
        words.append("recomputing")
    if "gradient_accumulation_steps" in options:
        words.append(f"in {options['gradient_accumulation_steps']} parts")
    if options.get("jit_compile"):
        words.append("compiled")
    return ", ".join(words)


def print_results(rows: list[dict]) -> None:
    print("| model | batch | type | | before | peak | cores, s per step |\n"
          "| --- | --- | --- | --- | --- | --- | --- |")
    for row in rows:
        if "more_than" in row:
            figures = f"– | over {row['more_than']:.0f} GB | –"
        else:
            figures = (f"{row['before']:.2f} GB | {row['peak']:.2f} GB "
                       f"| {row['cores'][-1]:.1f}")
        print(f"| {row['model']} | {row['shape']} | {row['dtype']} | {label(row)} "
              f"| {figures} |")


def draw(rows: list[dict], path: str) -> None:
    """Draws a bar for each setting, grouped by model, batch and type."""
    colors = {"ours": "#9bb7d4", "ours, recomputing": "#4472a8", "hf": "#e8b98d",
              "hf, recomputing": "#d1803a"}
    figure = pictures.figure(9, 1 + 0.3 * len(rows))
    axes = figure.subplots()
    names, places, place = [], [], 0.0
    for index, row in enumerate(rows):
        group = (row["model"], row["shape"], row["dtype"])
        if index and group != tuple(rows[index - 1][k]
                                    for k in ("model", "shape", "dtype")):
            place += 0.6
        value = row.get("peak", row.get("more_than"))
        axes.barh(place, value, 0.85, color=colors.get(label(row), "#888888"),
                  hatch="//" if "more_than" in row else None)
        text = f"over {value:.0f}" if "more_than" in row else f"{value:.2f}"
        axes.annotate(text, (value, place), (3, 0), textcoords="offset points",
                      va="center", fontsize=8)
        names.append(f"{' '.join(group)}  {label(row)}")
        places.append(place)
        place += 1
    axes.set_yticks(places, names, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("peak resident memory of a pretraining step, GB")
    axes.set_xlim(0, 1.1 * max(row.get("peak", row.get("more_than")) for row in rows))
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    pictures.save(figure, path)


def main(_):
    if FLAGS.one_setting:
        try:
            print(json.dumps(measure(FLAGS.one_setting)))
        except NotInstalled as error:
            print(json.dumps({"left_out": str(error)}))
        return
    for setting in FLAGS.settings:
        parsed(setting)
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
        if FLAGS.output:
            draw(list(results.values()), f"{os.path.splitext(FLAGS.output)[0]}.png")
    print_results(list(results.values()))


if __name__ == "__main__":
    script.run(main)
