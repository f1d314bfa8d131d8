"""A script of a few lines, run in a process of its own."""

import textwrap

import pytest

from tests.helpers import ROOT, run_python

PROGRAM = """
from albert_tf.cli import script
import os, signal, sys
{before}
def main(argv):
{main}

if __name__ == "__main__":
    script.run(main, takes_words=len(sys.argv) > 1)
"""


@pytest.fixture(name="write")
def _write(tmp_path):
    """Writes a script with this `main`, and what stands before it, and a module slow.py."""
    def write(main, before="", slow=""):
        (tmp_path / "slow.py").write_text(slow)
        path = tmp_path / "try.py"
        path.write_text(PROGRAM.format(main=textwrap.indent(main, "    "), before=before))
        return path

    return write


@pytest.fixture(name="program")
def _program(write):
    """Runs a script, as `write` writes it."""
    def run(*parts, words=(), env=(), **options):
        return run_python(write(*parts), *words, **options,
                          env={"PYTHONPATH": str(ROOT), **dict(env)})

    return run
