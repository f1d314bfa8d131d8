"""What the machine has: memory, and the control groups that give a process less; what
may happen to workers (see also finetuning/test_featurizing, pretraining_data/test_local).
"""

import multiprocessing.connection
import os
import select
import signal
import sys
import time

import pytest

from albert_tf.errors import Interruption
from albert_tf.jobs import parallel
from tests.helpers import run_python


@pytest.mark.parametrize("path, folder", [("a/b", "a"), ("outside", "")])
def test_control_groups_limit_the_memory(tmp_path, path, folder):
    own = tmp_path / "cgroup"
    own.write_text(f"9:cpu:/x\n0::/{path}\n")
    for group, most in ((tmp_path / folder, "1000"), (tmp_path / folder / "b", "max")):
        group.mkdir(parents=True, exist_ok=True)
        (group / "memory.max").write_text(most + "\n")
        (group / "memory.current").write_text("600\n")
        (group / "memory.stat").write_text("rss 5\ninactive_file 100\n")
    assert parallel.available_memory(str(own), str(tmp_path)) == 500
    assert 500 < parallel.available_memory("/nowhere", "/nowhere") < sys.maxsize


ENDED = """
import sys, time
from albert_tf.errors import InputError
from albert_tf.jobs.parallel import WorkerPool
from tests.jobs.test_parallel import sleep
try:
    with WorkerPool(sleep, 2) as pool:
        for _ in pool.in_order([0, 600, 600], "sleeping"):
            raise InputError("wrong")
except InputError as error:
    print(error)
"""


def sleep(seconds):
    time.sleep(seconds)


def killed_in_long_messages(item):
    def send(pipe, message):
        short = len(message) <= select.PIPE_BUF
        os.write(pipe.fileno(), message if short else message[:2])
        if not short:
            os.kill(os.getpid(), signal.SIGKILL)

    multiprocessing.connection.Connection._send = send
    return bytes(100_000)


def test_the_rest_of_half_a_result_is_not_waited_for():
    with pytest.raises(Interruption, match="sending: a worker process was killed"):
        with parallel.WorkerPool(killed_in_long_messages, 2) as pool:
            list(pool.in_order(range(2), "sending"))


class Unloadable(Exception):
    def __init__(self, name="it", *, reason="by itself"):
        super().__init__(f"{name}: {reason}")

    def __reduce__(self):
        return Unloadable, ("it", "too many")


def fail(error):
    raise Unloadable if error is None else error


@pytest.mark.parametrize("error, found", [
    (KeyError("it"), KeyError), (SystemExit("it"), SystemExit), (None, RuntimeError)])
def test_errors_of_workers(error, found):
    with pytest.raises(found, match="it") as caught, parallel.WorkerPool(
            fail, 2) as pool:
        list(pool.in_order([error], "failing"))
    assert error is None or "in fail" in str(caught.value.__cause__)


def test_an_error_ends_workers_in_the_middle_of_their_work():
    done = run_python("-c", ENDED, timeout=120)
    assert (done.stdout, done.stderr, done.returncode) == ("wrong\n", "", 0)
