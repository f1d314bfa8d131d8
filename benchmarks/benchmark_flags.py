"""Flags shared by benchmarks (the released vocabulary, the results file) and a
description of the machine.
"""

import json
import os
import platform
from typing import Any, Mapping

from absl import flags

from albert_tf import files

FLAGS = flags.FLAGS

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
# Folder with real texts and tasks, beside the project.
DATA = os.path.join(ROOT, "..", "shared", "data")


def define_spm_model_flag() -> None:
    """Defines --spm_model_file."""
    flags.DEFINE_string(
        "spm_model_file", os.path.join(DATA, "spm_en", "30k-clean.model"),
        "SentencePiece model with the special tokens of the released one.")


def define_output_flag() -> None:
    """Defines --output."""
    flags.DEFINE_string("output", "", "JSON file to write the results to.")


def make_output_folder() -> None:
    """Creates the folder of --output before anything is measured."""
    if FLAGS.output:
        files.make_directory(os.path.dirname(FLAGS.output) or ".")


# Processor features that determine the speed of matrix products.
_FEATURES = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8")


def machine() -> dict[str, Any]:
    """Describes the machine: "cores" (usable by this process), "machine", "processor"."""
    cores = (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity")
             else os.cpu_count())
    return {"cores": cores, "machine": platform.machine(), "processor": processor()}


def processor() -> str:
    """Returns the processor's name and its features for matrix products."""
    if not os.path.exists("/proc/cpuinfo"):
        return platform.processor()
    with open("/proc/cpuinfo", encoding="utf-8") as stream:
        told = dict(map(str.strip, line.split(":", 1)) for line in stream if ":" in line)
    has = told.get("flags", "").split()
    return ", ".join(filter(None, [
        told.get("model name", ""), *(name for name in _FEATURES if name in has)]))


def write_output(results: Mapping[str, Any] | list) -> None:
    """Writes JSON values to --output if the flag is set."""
    if FLAGS.output:
        with files.atomic_write(FLAGS.output) as stream:
            stream.write(json.dumps(results, indent=1).encode() + b"\n")
        print(f"Wrote {FLAGS.output}.")
