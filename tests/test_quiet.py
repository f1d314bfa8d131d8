"""Log lines of TensorFlow's C++ code are dropped, and nothing else.

    python -m pytest tests/test_quiet.py
"""

import os

import pytest

from albert_tf import quiet
from tests.helpers import ROOT, run_python

# In place of TensorFlow: a package that writes to the standard error, as C++ does.
LIBRARY = """
import os
from albert_tf import quiet
os.write(2, b"Could not find cuda drivers\\n")
os.write(quiet.stderr(), b"stopped by Ctrl-C\\n")
if os.environ.get("ABORTS"):
    os.abort()
if os.environ.get("BROKEN"):
    raise ImportError("a library is missing")
"""
IMPORT = ("import sys\nimport albert_tf\nimport tensorflow\n"
          "print('after', tensorflow.__name__, tensorflow.__spec__.loader.exec_module.__name__,"
          " file=sys.stderr)\n")


@pytest.fixture(name="load")
def _load(tmp_path, monkeypatch):
    (tmp_path / "tensorflow").mkdir()
    (tmp_path / "tensorflow" / "__init__.py").write_text(LIBRARY)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{ROOT}")

    def load(level=None, code=IMPORT):
        monkeypatch.delenv(quiet.LEVEL, raising=False)
        if level is not None:
            monkeypatch.setenv(quiet.LEVEL, level)
        return run_python("-c", code)

    return load


@pytest.mark.parametrize("level, noise", [(None, ""), ("3", ""), *(
    (level, "Could not find cuda drivers\n") for level in "012")])
def test_lines_are_shown_if_the_environment_asks_for_them(load, level, noise):
    done = load(level)
    assert (done.returncode, done.stderr) == (
        0, f"{noise}stopped by Ctrl-C\nafter tensorflow exec_module\n")


def test_a_search_for_the_package_changes_nothing(load):
    done = load(code="import albert_tf, importlib.util\n"
                     "assert importlib.util.find_spec('tensorflow')\n" + IMPORT)
    assert done.stderr == "stopped by Ctrl-C\nafter tensorflow exec_module\n"


def test_errors_of_loading_are_shown(load, monkeypatch):
    monkeypatch.setenv("BROKEN", "1")
    done = load()
    assert done.returncode == 1 and "ImportError: a library is missing" in done.stderr
    assert "cuda" not in done.stderr


def test_the_place_of_an_abort_is_shown(load, monkeypatch):
    monkeypatch.setenv("ABORTS", "1")
    done = load()
    assert done.returncode < 0 and "Fatal Python error: Aborted" in done.stderr
    assert "tensorflow" in done.stderr and "cuda" not in done.stderr


def test_workers_are_quiet_too(load):
    """They get the environment of the process that starts them."""
    done = load(code="import albert_tf, subprocess, sys\n"
                     f"subprocess.run([sys.executable, '-c', {IMPORT!r}], check=True)\n")
    assert done.stderr == "stopped by Ctrl-C\nafter tensorflow exec_module\n"


@pytest.mark.long
def test_lines_of_xla_are_dropped(monkeypatch):
    monkeypatch.delenv(quiet.LEVEL, raising=False)
    done = run_python(
        "-c", "import albert_tf\nimport tensorflow as tf\n"
        "tf.function(lambda x: x + 1, jit_compile=True, autograph=False)(tf.ones([2]))\n")
    assert (done.returncode, done.stderr) == (0, "")
