"""script.run: how a process ends that has TensorFlow."""

import os
import re
import subprocess
import sys

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


OUTPUT = """
from albert_tf.cli import script
import sys

class Full:
    closed = False
    def write(self, text): raise OSError(28, "No space left on device")
    def flush(self): pass
    def fileno(self): return 1

def main(argv):
    if {full}:
        sys.stdout = Full()
    for _ in range({count}):
        print("word " * 1000)

if __name__ == "__main__":
    script.run(main)
"""


@pytest.mark.parametrize("count", [1, 1000])
@pytest.mark.parametrize("end", ["| true", "| head -c 5", ">&-"])
def test_an_output_that_nobody_reads_is_no_error(end, count, tmp_path):
    (tmp_path / "try.py").write_text(OUTPUT.format(full=False, count=count))
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {sys.executable} try.py {end}"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True,
        capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_output_without_room_is_one_sentence(tmp_path):
    path = tmp_path / "try.py"
    path.write_text(OUTPUT.format(full=True, count=1))
    done = run_python(path, env={"PYTHONPATH": str(ROOT)})
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "try.py: the output cannot be written: No space left on device" in done.stderr


# ---- --help ----------------------------------------------------------------


WITH_FIRST_FLAGS = [path for path in sorted(ROOT.glob("*.py"))
                    if "first_flags" in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("path", WITH_FIRST_FLAGS, ids=lambda path: path.stem)
def test_help_describes_the_flags_needed_first_and_names_the_others(path):
    first = re.search(r"first_flags=\(([^)]*)\)", path.read_text(encoding="utf-8"))[1]
    first = "".join(re.findall(r'"([^"]*)"', first)).split()

    def shown(flag):
        text = run_python(path, flag).stdout
        head, _, rest = text.partition("urther flags")
        described = re.findall(r"^  --(?:\[no\])?(\w+):\s", head, re.M)
        assert described == first
        return text, rest

    (text, rest), (_, full) = shown("--help"), shown("--helpfull")
    named = re.findall(r"--(\w+)", rest.partition(":")[2])
    assert len(text.splitlines()) < 100
    assert len(named) > 10 and not {*named} & {*first}
    assert named == re.findall(r"^  --(?:\[no\])?(\w+):\s", full, re.M)
