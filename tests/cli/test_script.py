"""script.run: how a process ends that has TensorFlow."""

import pytest

from tests.helpers import ROOT, run_python

# What TensorFlow's iterators do when they are dropped at the end.
SCRIPT = """
from albert_tf.cli import script
import atexit, os, sys, types

class Waits:
    def __del__(self, write=os.write):  # Python 3.13 takes modules apart before.
        write(1, b"dropped\\n")

sys.modules["tensorflow"] = types.ModuleType("tensorflow")
waits = Waits()
atexit.register(print, "tidied up")

def main(argv):
    print("worked")
    {end}

if __name__ == "__main__":
    script.run(main)
"""


@pytest.mark.parametrize("end, status, at_once", [
    ("pass", 0, True), ("sys.exit(3)", 3, True),
    ("from albert_tf.errors import InputError; raise InputError('mend it')", 1, True),
    ("sys.exit('no')", 1, True), ("1 / 0", 1, False)])
def test_it_ends_without_waiting_for_what_is_dropped(end, status, at_once, tmp_path):
    path = tmp_path / "try.py"
    path.write_text(SCRIPT.format(end=end))

    def run(**environment):
        return run_python(path, env={"PYTHONPATH": str(ROOT), **environment})

    done, worker = run(), run(TF_CONFIG="{}")
    assert done.returncode == worker.returncode == status
    assert done.stdout == "worked\ntidied up\n" + "dropped\n" * (not at_once)
    assert worker.stdout == "worked\ntidied up\ndropped\n"
    assert ("mend it" in done.stderr) == ("mend" in end)
    assert done.stderr == worker.stderr
