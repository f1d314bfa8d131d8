"""Runs of the project's scripts, in processes of their own."""

import json
import os
import resource
import subprocess
import sys
import time
from typing import Any

from albert_tf import files
from albert_tf.errors import InputError

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
_COST = "cost.json"


def run_script(script: str, **flag_values: Any) -> None:
    """Runs one of the project's scripts; flags of None are left out."""
    command = [sys.executable, os.path.join(ROOT, script)]
    command += [f"--{name}={value}" for name, value in flag_values.items()
                if value is not None]
    print(" ".join(command), flush=True)
    if subprocess.run(command, check=False).returncode:
        raise InputError(f"{script} failed; its last lines say why.")


def run_counted(script: str, output_dir: str, **flag_values: Any) -> None:
    """run_script with an --output_dir, which keeps what it cost: seconds of all cores
    and of the clock. A run that was broken off has no such numbers afterwards, as what
    it took before is not known."""
    begun = os.path.exists(output_dir) and bool(os.listdir(output_dir))
    clock, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    run_script(script, output_dir=output_dir, **flag_values)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if not begun:
        files.write_json(os.path.join(output_dir, _COST), {
            "core_seconds": round(after.ru_utime + after.ru_stime
                                  - before.ru_utime - before.ru_stime, 1),
            "seconds": round(time.monotonic() - clock, 1)})


def cost(output_dir: str) -> dict[str, float]:
    """What run_counted kept; empty for a run that was broken off."""
    path = os.path.join(output_dir, _COST)
    if not os.path.exists(path):
        return {}
    with open(path, encoding="utf-8") as stream:
        return json.load(stream)
