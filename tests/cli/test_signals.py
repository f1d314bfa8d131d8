"""Ctrl-C and SIGTERM: one sentence and the status of shells, at any moment."""

import re
import time

import pytest

from tests.helpers import ROOT, run_python

KILL = "import os, signal; os.kill(os.getpid(), signal.SIG{})"
SCRIPT = """
import sys
from albert_tf.cli import script
{before}
def main(argv):
    try:
        {main}
    finally:
        print("tidied up")
if __name__ == "__main__":
    script.run(main)
"""
MOMENTS = {  # what runs before main and in it; whether main tidies up
    "in main": ("", "{kill}", True),
    "made another exception": (
        "", "try:\n            {kill}\n        except BaseException as error:\n"
        "            raise RuntimeError('library') from error", True),
    "swallowed": ("", "try:\n            {kill}\n        except BaseException:\n"
                  "            pass", True),
    "while TensorFlow loads": ("", "import loads", False),
    "before main": ("script.take_signals()\n{kill}", "pass", False),
}


@pytest.mark.parametrize("name, number", [("INT", 2), ("TERM", 15)])
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_signal_ends_a_script_in_a_sentence(moment, name, number, tmp_path):
    kill = KILL.format(name)
    before, main, tidies = MOMENTS[moment]
    (tmp_path / "loads.py").write_text(
        f"try:\n    {kill}\nexcept BaseException:\n    pass\nprint('loaded')\n")
    path = tmp_path / "try.py"
    path.write_text(SCRIPT.format(before=before.format(kill=kill),
                                  main=main.format(kill=kill)))
    done = run_python(path, env={"PYTHONPATH": str(ROOT)})
    assert done.returncode == 128 + number
    assert re.fullmatch(r"try\.py: stopped by (Ctrl-C|SIGTERM).*\.\n", done.stderr)
    assert done.stdout == "tidied up\n" * tidies


def test_second_signal_ends_a_script_that_computes_in_c(tmp_path):
    """There Python runs no handler: the main thread sleeps and takes no signals."""
    path = tmp_path / "try.py"
    path.write_text(SCRIPT.format(before="""
import ctypes, os, signal, threading, time
def twice():
    for seconds in (0.2, 2.2):
        time.sleep(seconds)
        os.kill(os.getpid(), signal.SIGINT)
""", main="""threading.Thread(target=twice, daemon=True).start()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        ctypes.CDLL(None).sleep(60)"""))
    begin = time.monotonic()
    done = run_python(path, env={"PYTHONPATH": str(ROOT)})
    assert time.monotonic() - begin < 50 and done.returncode == 130
    assert re.fullmatch(r"try\.py: stopped by Ctrl-C.*\.\n", done.stderr)


def test_every_script_takes_signals_before_it_loads_anything():
    for path in ROOT.glob("*.py"):
        lines = path.read_text(encoding="utf-8").splitlines()
        imports = [line for line in lines if re.match("(from|import) [a-z_]+[ .]", line)
                   and " import " in line or line.startswith("import ")]
        assert imports[0].startswith("from albert_tf.cli import script  #"), path
    done = run_python("-X", "importtime", "-c", "from albert_tf.cli import script",
                      check=True)
    assert not {"absl", "numpy", "tensorflow"} & {
        line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
