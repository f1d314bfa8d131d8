"""What the machine has: memory, and the control groups that give a process less.

Workers: tests/pretraining_data/test_local.py.
"""

import sys
import time

import pytest

from albert_tf import parallel
from tests.helpers import run_python


@pytest.mark.parametrize("line, folder, limit, used, cache", [
    ("0::/a/b", "a", "memory.max", "memory.current", "inactive_file"),
    ("0::/outside", "", "memory.max", "memory.current", "inactive_file"),
    ("4:memory:/a/b", "memory/a", "memory.limit_in_bytes", "memory.usage_in_bytes",
     "total_inactive_file")])
def test_control_groups_limit_the_memory(tmp_path, line, folder, limit, used, cache):
    own = tmp_path / "cgroup"
    own.write_text(f"9:cpu:/x\n{line}\n")
    for group, most in ((tmp_path / folder, "1000"), (tmp_path / folder / "b", "max")):
        group.mkdir(parents=True, exist_ok=True)
        (group / limit).write_text(most + "\n")
        (group / used).write_text("600\n")
        (group / "memory.stat").write_text(f"rss 5\n{cache} 100\n")
    assert list(parallel._left_by_control_groups(str(own), str(tmp_path))) == [500]
    assert list(parallel._left_by_control_groups("/nowhere", str(tmp_path))) == []


def test_available_memory():
    assert 0 < parallel.available_memory() < sys.maxsize


ENDED = """
import sys, time
from albert_tf.errors import InputError
from albert_tf.parallel import WorkerPool
from tests.test_parallel import sleep
try:
    with WorkerPool(sleep, 2) as pool:
        for _ in pool.in_order([0, 600, 600], "sleeping"):
            raise InputError("wrong")
except InputError as error:
    print(error)
"""


def sleep(seconds):
    time.sleep(seconds)


def test_an_error_ends_workers_in_the_middle_of_their_work():
    done = run_python("-c", ENDED, timeout=120)
    assert (done.stdout, done.stderr, done.returncode) == ("wrong\n", "", 0)
