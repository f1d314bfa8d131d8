"""A test that hangs, or ends its process, is named with what it was doing, and the other
tests go on: hooks of pytest and pytest-xdist, for conftest.py.

    python -m pytest -p tests.crashes -n 2 --dist loadfile
"""

import faulthandler
import os
import subprocess
import tempfile

import pytest

_STACKS = pytest.StashKey()


def pytest_addoption(parser):
    parser.addini("hang_seconds", "a test that takes longer ends its process with the "
                  "stack of every thread", type="string", default="0")


def _stacks_path(workerinput):
    return os.path.join(
        tempfile.gettempdir(),
        f"stacks_{workerinput['testrunuid']}_{workerinput['workerid']}")


@pytest.hookimpl(trylast=True)  # after pytest's own, which writes to standard error
def pytest_configure(config):
    """A worker's stacks go to a file, which the process that reports can read."""
    works = hasattr(config, "workerinput")
    # Standard error as it is now: tests' is captured.
    config.stash[_STACKS] = open(
        _stacks_path(config.workerinput) if works else os.dup(2), "wb")
    faulthandler.enable(config.stash[_STACKS])


def pytest_unconfigure(config):
    faulthandler.disable()
    config.stash[_STACKS].close()
    if hasattr(config, "workerinput"):
        os.remove(_stacks_path(config.workerinput))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    seconds = float(item.config.getini("hang_seconds"))
    if seconds:
        faulthandler.dump_traceback_later(
            seconds, exit=True, file=item.config.stash[_STACKS])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(optionalhook=True)
def pytest_handlecrashitem(report):
    """Says with the failure how the process ended, and where its threads were."""
    try:
        # By a signal, if it is negative: -9 where the machine had no memory left.
        ended = f"status {report.node.gateway._io.popen.wait(10)}"
    except (AttributeError, subprocess.TimeoutExpired) as error:
        ended = f"an unknown status ({error})"
    path = _stacks_path(report.node.workerinput)
    with open(path, encoding="utf-8", errors="replace") as file:
        stacks = file.read() or "It left no stacks."
    os.remove(path)
    report.longrepr += f"\nThe process ended with {ended}.\n{stacks}"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """xdist 3.8 gives the files that a process had finished before it crashed out once
    more, and waits without end for what they report."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):

        def schedule(self):
            super().schedule()
            # A process runs a test when it knows the next: a file may have but one.
            super().schedule()

        def remove_node(self, node):
            left = {file: tests for file, tests in self.assigned_work.pop(node).items()
                    if not all(tests.values())}
            crashed = next((test for tests in left.values()
                            for test, done in tests.items() if not done), None)
            if crashed:
                left[self._split_scope(crashed)][crashed] = True  # not once more
                self.workqueue.update(
                    (file, tests) for file, tests in left.items()
                    if not all(tests.values()))
                for other in self.nodes:
                    self._reschedule(other)
            return crashed

    return Scheduling(config, log)
