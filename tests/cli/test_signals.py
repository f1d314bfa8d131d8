"""Ctrl-C and SIGTERM: one sentence and the status of shells, at any moment."""

import os
import re
import signal
import subprocess
import sys
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


@pytest.mark.parametrize("moment, name, number", [
    *((moment, "INT", 2) for moment in MOMENTS), ("in main", "TERM", 15)])
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


SLOW_WORKERS = """
import os, sys, threading, time
from albert_tf.cli import script
from albert_tf.jobs.parallel import WorkerPool
from slow import Slow
def main(argv):
    os.environ["SLOW"] = "1"
    with WorkerPool(Slow(), 2) as pool:
        print("starting", flush=True)
        list(pool.in_order([1, 2], "sleeping"))
if __name__ == "__main__":
    script.run(main)
"""


def test_ctrl_c_while_results_of_workers_are_used(tmp_path):
    """The generator that holds the pool is suspended, so that it does not end it."""
    (tmp_path / "slow.py").write_text(
        "import time\nclass Slow:\n    def __call__(self, item):\n"
        "        time.sleep(item)\n")
    path = tmp_path / "try.py"
    path.write_text("""
import os, signal
from albert_tf.cli import script
from albert_tf.jobs.parallel import WorkerPool
from slow import Slow
def results():
    with WorkerPool(Slow(), 2) as pool:
        yield from pool.in_order([0, 0, 600, 600, 600], "sleeping")
def main(argv):
    lazily = results()
    for _ in lazily:
        os.kill(os.getpid(), signal.SIGINT)
if __name__ == "__main__":
    import sys
    sys.modules["tensorflow"] = None  # as in scripts that end at once
    script.run(main)
""")
    done = run_python(path, timeout=100, env={
        "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"})
    assert done.returncode == 130
    assert re.fullmatch(r"try\.py: stopped by Ctrl-C\.\n", done.stderr)


def test_ctrl_c_while_workers_load_their_modules_prints_no_traceback(tmp_path):
    """From a terminal it goes to the whole group of processes."""
    (tmp_path / "slow.py").write_text(
        "import os, pathlib, time\nif 'SLOW' in os.environ:\n"
        "    pathlib.Path(os.environ['SEEN']).touch()\n    time.sleep(5)\n"
        "class Slow:\n    def __call__(self, item):\n        return item\n")
    path, seen = tmp_path / "try.py", tmp_path / "seen"
    path.write_text(SLOW_WORKERS)
    with subprocess.Popen(
            [sys.executable, path], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL,
            text=True, start_new_session=True, env={
                **os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}",
                "SEEN": str(seen)}) as run:
        while not seen.exists():
            assert run.poll() is None
            time.sleep(0.1)
        os.killpg(run.pid, signal.SIGINT)
        errors = run.communicate(timeout=60)[1]
    assert run.returncode == 130
    assert re.fullmatch(r"try\.py: stopped by Ctrl-C.*\.\n", errors)
