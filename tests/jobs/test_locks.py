"""locks: one run in a folder, whoever ends first, on a disk and in an object store."""

import errno
import json
import os
import subprocess
import sys
import time
import types
from fcntl import LOCK_EX, LOCK_NB, flock

import pytest

from albert_tf.jobs import locks
from albert_tf.errors import InputError
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


class Msvcrt(types.ModuleType):
    """In place of Windows' module: locks a file that another stream may not lock."""

    LK_NBLCK = 2

    def locking(self, number, mode, count):
        # The content must stay readable, since a lock there keeps readers out.
        assert (mode, count) == (2, 1) and os.lseek(number, 0, os.SEEK_CUR) > 4096
        try:
            flock(number, LOCK_EX | LOCK_NB)
        except BlockingIOError as error:
            raise PermissionError(errno.EACCES, "Permission denied") from error


def test_on_windows(tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "fcntl", None)
    monkeypatch.setitem(sys.modules, "msvcrt", Msvcrt("msvcrt"))
    remove, open_ones = os.remove, []

    def only_closed(path):
        assert all(stream.closed for stream in open_ones)
        remove(path)

    opened = locks._opened
    monkeypatch.setattr(locks, "_opened", lambda *arguments: open_ones.append(
        opened(*arguments)) or open_ones[-1])
    for _ in range(2):  # The second run finds nothing of the first.
        with locks.hold(str(tmp_path), "--output_dir"):
            with pytest.raises(InputError, match=(
                    rf"another run is using this folder \(process {os.getpid()} on ")):
                with locks.hold(str(tmp_path), "--output_dir"):
                    pass
            open_ones.pop()  # That of the refused run is closed by its end.
            monkeypatch.setattr(os, "remove", only_closed)
        assert not list(tmp_path.iterdir())


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
    with locks._remote(str(path), f"--output_dir={tmp_path}", 0.01, 0.02):
        assert json.loads(path.read_text())["process"] == os.getpid()
        while "another run has taken this folder over" not in caplog.text:
            # Again and again, as the other run renews it: this run may have looked
            # right before, and be about to write its own.
            path.write_text('{"id": "other"}')
            time.sleep(0.005)
    assert path.read_text() == '{"id": "other"}'
    path.unlink()
    with locks._remote(str(path), f"--output_dir={tmp_path}", 0.01, 0.02):
        pass
    assert not path.exists()
