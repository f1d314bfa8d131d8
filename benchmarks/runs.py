"""Runs the project's scripts in processes of their own, each step once: from text to
records, a model and scores.
"""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from typing import Any, Collection, Sequence

from albert_tf import files, text_files
from albert_tf.checkpoints.folders import checkpoint_of
from albert_tf.config import AlbertConfig
from albert_tf.errors import InputError
from albert_tf.training import log
from benchmarks.benchmark_flags import ROOT

_COST = "cost.json"


def chosen_runs(words: Sequence[str], what: str, names: Collection[str]
                ) -> list[tuple[str, int]]:
    """Parses --runs into (name, seed); `what` describes the names in the error."""
    chosen = []
    for word in words:
        name, _, seed = word.partition(":")
        if name not in names or not seed.isdigit():
            raise InputError(f"--runs: '{word}' is not of the form {what}:SEED, {what} "
                             f"one of {', '.join(names)}.")
        chosen.append((name, int(seed)))
    return chosen


def run_script(script: str, **flag_values: Any) -> None:
    """Runs one of the project's scripts, or a module such as benchmarks.training. Flags
    with value None are left out."""
    command = [sys.executable, *(
        [os.path.join(ROOT, script)] if script.endswith(".py") else ["-m", script])]
    command += [f"--{name}={value}" for name, value in flag_values.items()
                if value is not None]
    print(" ".join(command), flush=True)
    if subprocess.run(command, check=False).returncode:
        raise InputError(f"{script} failed; its last lines above say why.")


def in_own_process(module: str, setting: str) -> Any:
    """Runs a benchmark again for one setting, a flag that is internal, in a process of
    its own; returns the JSON value of its last line."""
    done = subprocess.run([sys.executable, "-m", module, *sys.argv[1:], setting],
                          stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise InputError(f"{setting}: the process ended with status {done.returncode}"
                         + ", probably because memory ran out: give fewer --contestants "
                         "or smaller --shapes." * (done.returncode == -signal.SIGKILL))
    return json.loads(done.stdout.splitlines()[-1])


def run_counted(script: str, output_dir: str, **flag_values: Any) -> None:
    """Runs a script with an --output_dir and stores its cost there, in core-seconds and
    seconds. A run that was interrupted has no cost, since its earlier time is unknown."""
    begun = os.path.exists(output_dir) and bool(os.listdir(output_dir))
    clock, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    run_script(script, output_dir=output_dir, **flag_values)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if not begun:
        text_files.write_json(os.path.join(output_dir, _COST), {
            "core_seconds": round(after.ru_utime + after.ru_stime
                                  - before.ru_utime - before.ru_stime, 1),
            "seconds": round(time.monotonic() - clock, 1)})


def cost(output_dir: str) -> dict[str, float]:
    """Returns the cost stored by run_counted; empty for an interrupted run."""
    path = os.path.join(output_dir, _COST)
    return text_files.read_object(path) if os.path.exists(path) else {}


# ---- steps that are skipped if done ---------------------------------------


def vocabulary(folder: str, text: str, vocab_size: int,
               input_sentence_size: int = 100_000) -> str:
    """Trains a SentencePiece model on a text unless it exists; returns its path."""
    prefix = os.path.join(folder, "spm")
    if not os.path.exists(f"{prefix}.model"):
        run_script("train_sentencepiece.py", input_file=text, output_prefix=prefix,
                   vocab_size=vocab_size, input_sentence_size=input_sentence_size)
    return f"{prefix}.model"


def records(path: str, **flag_values: Any) -> str:
    """Creates records unless they exist; returns their path."""
    if not os.path.exists(path):
        run_script("create_pretraining_data.py", output_file=path, **flag_values)
    return path


def pretrain(output_dir: str, config: AlbertConfig, num_train_steps: int,
             **flag_values: Any) -> None:
    """Runs or resumes run_pretraining.py."""
    done = checkpoint_of(output_dir, best=False)
    if done and int(done.rpartition("-")[2]) >= num_train_steps:
        return
    files.write(f"{output_dir}.config.json", config.to_json().encode())
    run_counted("run_pretraining.py", output_dir, num_train_steps=num_train_steps,
                albert_config_file=f"{output_dir}.config.json", **flag_values)


def rows_of(output_dir: str, split: str = "eval") -> list[dict[str, Any]]:
    """Returns the log of a run's evaluations, or of its training."""
    path = os.path.join(output_dir, log.METRICS_FILE)
    return [row for row in (log.read_metrics(path) if os.path.exists(path) else ())
            if row["split"] == split]


def scores(script: str, output_dir: str, **flag_values: Any) -> dict[str, float]:
    """Returns the scores of a model that a script fine-tunes or evaluates."""
    found = os.path.join(output_dir, "eval_results.json")
    if not os.path.exists(found):
        run_counted(script, output_dir, **flag_values)
    return text_files.read_object(found)
