"""Benchmarks start, and take the flags that their commands are told with."""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).parent.parent
BENCHMARKS = ROOT / "benchmarks"

# Each command in a fork of its own, since benchmarks define flags of the same names.
# Imports all have in common are made before.
PARSE = """
import importlib, os, sys
import numpy
from absl import flags
from albert_tf.cli import flags as command_line

for command in sys.stdin.read().splitlines():
    name, *words = command.split()
    child = os.fork()
    if not child:
        try:
            module = importlib.import_module(f"benchmarks.{name}")
            if hasattr(module, "FLAGS"):
                flags.FLAGS([name, *words])
        except BaseException as error:
            print(f"{command}: {type(error).__name__}: {error}", flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""


def commands():
    """Flags and words behind `python -m benchmarks.` in docstrings and READMEs; each
    benchmark's name by itself too, unless it needs a flag."""
    texts = [path.read_text(encoding="utf-8") for path in (
        *sorted(BENCHMARKS.glob("*.py")), BENCHMARKS / "README.md", ROOT / "README.md")]
    found = {}
    for text in texts:
        for match in re.findall(
                r"python -m benchmarks\.(\w+(?: (?:[^\n`\\]|\\\n)*)?)", text):
            command = re.sub(r"\\\n(    )?", "", match).split("#")[0]
            found[" ".join(command.split())] = None
    told = {command.split()[0] for command in found}
    return [*found, *(path.stem for path in sorted(BENCHMARKS.glob("*.py"))
                      if path.stem not in told)]


def test_commands_are_understood():
    told = commands()
    assert len(told) > 15 and any("--work_dir=" in command and "--output=" in command
                                  for command in told)
    done = subprocess.run([sys.executable, "-c", PARSE], input="\n".join(told),
                          capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert not done.stdout, done.stdout
