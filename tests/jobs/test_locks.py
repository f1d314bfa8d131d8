"""locks: one run in a folder, whoever ends first."""

import os
import subprocess
import sys

import pytest

from albert_tf.jobs import locks
from albert_tf.errors import InputError
from tests.helpers import ROOT

# Holds the lock of a folder until it is killed.
HOLDER = """
import sys
from albert_tf.jobs import locks
with locks.hold(sys.argv[1], "--output_dir"):
    print("held", flush=True)
    sys.stdin.readline()
"""


def test_the_second_run_is_refused_with_the_first_one_s_name(tmp_path):
    with pytest.raises(KeyError), locks.hold(str(tmp_path), "--output_dir"):
        with pytest.raises(InputError, match=(
                rf"--output_dir={tmp_path}: another run is using this folder "
                rf"\(process {os.getpid()} on .*, since 20.*\); wait for it")):
            with locks.hold(str(tmp_path), "--output_dir"):
                pass
        raise KeyError  # An error gives the lock back.
    with locks.hold(str(tmp_path), "--output_dir"):
        pass


def test_a_killed_run_leaves_no_lock(tmp_path):
    first = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], cwd=ROOT, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert first.stdout.readline() == "held\n"
    with pytest.raises(InputError, match=f"process {first.pid} on"):
        with locks.hold(str(tmp_path), "--output_dir"):
            pass
    first.kill()
    first.wait()
    with locks.hold(str(tmp_path), "--output_dir"):
        pass


def test_a_file_of_the_name_that_is_no_lock_stays(tmp_path):
    path = tmp_path / locks.LOCK_FILE
    path.write_text("mine")
    with pytest.raises(InputError, match="run.lock is not the lock of a run"):
        with locks.hold(str(tmp_path), "--output_dir"):
            pass
    assert path.read_text() == "mine"


@pytest.mark.parametrize("folder, system", [("memory://bucket/run", True), ("", None)])
def test_stores_and_windows_have_no_lock(folder, system, tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "fcntl", system and locks.fcntl)
    with locks.hold(folder or str(tmp_path)), locks.hold(folder or str(tmp_path)):
        assert not list(tmp_path.iterdir())
