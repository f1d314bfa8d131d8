"""Lines on the log that say how far work is."""

import itertools
import os
import re

import pytest

from albert_tf.jobs.progress import Progress


@pytest.fixture(name="clock")
def _clock(monkeypatch):
    """A clock that stands still until a test moves it."""

    class Clock:
        now = 1000.0

    monkeypatch.setattr("albert_tf.jobs.progress.time.monotonic", lambda: Clock.now)
    return Clock


@pytest.mark.parametrize("total, done, line", [
    (20, 20, "20 of 20 steps (100.0%), 0:00:00 left, 2 steps/s"),
    (200, 100, "100 of 200 steps (50.0%), 0:00:10 left, 10 steps/s"),
    (2e6, 0.25,
     "0.25 of 2,000,000 steps (0.0%), 925 days, 22:13:10 left (until Z), 0.025 steps/s"),
    (20, 0, "0 of 20 steps (0.0%)"),
    (None, 12345, "12,345 steps, 1,234 steps/s"),
])
def test_lines(total, done, line, clock, caplog):
    progress = Progress("reading", "steps", total)
    clock.now += 10
    progress.report(done)
    assert re.sub(r"until [^)]*", "until Z", caplog.messages[-1]) == f"reading: {line}"


def test_rate_is_that_of_the_last_lines_without_skipped_time(clock, caplog):
    progress = Progress("training", "steps", 10**6, 0, {"sequences": 32})
    for step in itertools.accumulate([10] * 20 + [50] * 10):
        clock.now += 10
        progress.report(step)
    assert ", 5 steps/s" in caplog.messages[-1]
    clock.now += 500  # an evaluation
    progress.restart(1000)
    clock.now += 10
    progress.report(1020, "masked_lm_loss 6.543")
    assert caplog.messages[-1].endswith(
        "), 2 steps/s, 64 sequences/s, masked_lm_loss 6.543")


def test_lines_come_every_few_seconds(clock, caplog, tmp_path):
    path = tmp_path / "a.txt"
    path.touch()
    os.truncate(path, 40_000_000)
    on_bytes = Progress.of_bytes("reading", [str(path)])
    clock.now += 9
    on_bytes(4_000_000)
    assert not caplog.messages
    clock.now += 1
    on_bytes(6_000_000)
    on_bytes(1)
    assert caplog.messages == ["reading: 10 of 40 MB (25.0%), 0:00:30 left, 1 MB/s"]
    on_bytes = Progress.of_bytes("reading", ["gs://bucket/a", str(path)])
    clock.now += 10
    on_bytes(2_000_000)
    assert caplog.messages[-1] == "reading: 2 MB, 0.2 MB/s"
