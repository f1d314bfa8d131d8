"""locks: one run in a folder, whoever ends first, on a disk and in an object store."""

import json
import os
import subprocess
import sys
import time

import pytest

from albert_tf.jobs import locks
from albert_tf.errors import InputError
from tests import cloud_storage
from tests.helpers import ROOT

# Holds the lock of a folder until it is killed, or says why it cannot.
HOLDER = """
import sys
from albert_tf import errors
from albert_tf.jobs import locks
try:
    with locks.hold(sys.argv[1], "--output_dir", beat=0.3, patience=2):
        print("held", flush=True)
        sys.stdin.readline()
except errors.InputError as error:
    print(error, flush=True)
"""


def holder(folder, environment=()):
    return subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)], cwd=ROOT, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env={**os.environ, **dict(environment)})


def test_the_second_run_is_refused_with_the_first_one_s_name(tmp_path):
    with locks.hold(str(tmp_path), "--output_dir"):
        with pytest.raises(InputError, match=(
                rf"--output_dir={tmp_path}: another run is using this folder "
                rf"\(process {os.getpid()} on .*, since 20.*\); wait for it")):
            with locks.hold(str(tmp_path), "--output_dir"):
                pass
    with locks.hold(str(tmp_path), "--output_dir"):
        pass


def test_an_error_gives_the_lock_back(tmp_path):
    with pytest.raises(KeyError):
        with locks.hold(str(tmp_path), "--output_dir"):
            raise KeyError
    with locks.hold(str(tmp_path), "--output_dir"):
        pass


def test_a_killed_run_leaves_no_lock(tmp_path):
    first = holder(tmp_path)
    assert first.stdout.readline() == "held\n"
    with pytest.raises(InputError, match=f"process {first.pid} on"):
        with locks.hold(str(tmp_path), "--output_dir"):
            pass
    first.kill()
    first.wait()
    with locks.hold(str(tmp_path), "--output_dir"):
        pass


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / locks.LOCK_FILE).mkdir()
    with pytest.raises(InputError, match="run.lock cannot be written"):
        with locks.hold(str(tmp_path), "--output_dir"):
            pass


def test_a_file_of_the_name_that_is_no_lock_stays(tmp_path):
    path = tmp_path / locks.LOCK_FILE
    path.write_text("mine")
    with pytest.raises(InputError, match="run.lock is not the lock of a run"):
        with locks.hold(str(tmp_path), "--output_dir"):
            pass
    assert path.read_text() == "mine"


def test_a_lock_that_another_run_took_over_is_left_to_it(tmp_path, caplog):
    path = tmp_path / locks.LOCK_FILE
    with locks._remote(str(path), str(tmp_path), "--output_dir", 0.01, 0.02):
        assert json.loads(path.read_text())["process"] == os.getpid()
        while "another run has taken this folder over" not in caplog.text:
            # Again and again, as the other run renews it: this run may have looked
            # right before, and be about to write its own.
            path.write_text('{"id": "other"}')
            time.sleep(0.005)
    assert path.read_text() == '{"id": "other"}'
    path.unlink()
    with locks._remote(str(path), str(tmp_path), "--output_dir", 0.01, 0.02):
        pass
    assert not path.exists()


@pytest.mark.slow
def test_in_an_object_store(tmp_path):
    with cloud_storage.serve(tmp_path) as storage:
        folder = f"gs://{cloud_storage.BUCKET}/run"
        first = holder(folder, storage.environment)
        assert first.stdout.readline() == "held\n"
        second = holder(folder, storage.environment)
        assert "another run is using this folder (process " in (
            second.stdout.readline())
        second.communicate()
        first.kill()
        first.wait()
        third = holder(folder, storage.environment)
        assert third.stdout.readline() == "held\n"
        third.communicate("end\n")
        assert "run/run.lock" not in storage.objects
