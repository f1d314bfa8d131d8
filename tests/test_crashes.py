"""What hangs or crashes is named with its stacks, and nothing is left out for it.

    python -m pytest tests/test_crashes.py -m long
"""

import subprocess
import sys

import pytest

from tests.helpers import ROOT

FILES = {
    "pytest.ini": "[pytest]\nhang_seconds = 2\n",
    # xdist runs a file that has one test only together with another.
    "test_0.py": "def test_one(): pass",
    "test_1.py": "def test_segfaults(): import ctypes; ctypes.string_at(0)",
    "test_2.py": "def test_before(): pass\n"
                 "def test_hangs(): import time; time.sleep(1000)\n"
                 "def test_after(): pass",
    "test_3.py": "def test_killed(): import os; os.kill(os.getpid(), 9)",
    "test_4.py": "def test_last(): pass",
}


@pytest.mark.long
@pytest.mark.parametrize("processes", [1, 2])
def test_all_others_are_run(processes, tmp_path):
    for name, content in FILES.items():
        (tmp_path / name).write_text(content)
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.crashes", "-p",
         "no:cacheprovider", "-c", tmp_path / "pytest.ini", tmp_path, f"-n{processes}",
         "--dist=loadfile", "--no-loadscope-reorder", "--max-worker-restart=3"],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    found = ended.stdout
    assert ended.returncode == 1 and "3 failed, 4 passed" in found, found + ended.stderr
    assert "status -11." in found and "in test_segfaults" in found
    assert "Timeout (0:00:02)!" in found and "in test_hangs" in found
    assert "status -9.\nIt left no stacks." in found


@pytest.mark.long
def test_without_other_processes_it_ends_with_the_stacks(tmp_path):
    for name in ("pytest.ini", "test_2.py"):
        (tmp_path / name).write_text(FILES[name])
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.crashes", "-p",
         "no:cacheprovider", "-c", tmp_path / "pytest.ini", tmp_path],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 1
    assert "Timeout (0:00:02)!" in ended.stderr and "in test_hangs" in ended.stderr
