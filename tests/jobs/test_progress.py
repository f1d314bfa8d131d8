"""Lines on the log that say how far work is."""

import itertools
import os
import re

import pytest

from albert_tf.jobs.progress import Progress, duration


@pytest.fixture(name="clock")
def _clock(monkeypatch):
    """A clock that stands still until a test moves it."""

    class Clock:
        now = 1000.0

    monkeypatch.setattr("albert_tf.jobs.progress.time.monotonic", lambda: Clock.now)
    return Clock


def training(total=1000, done=0, batch_size=1):
    return Progress("training", "steps", total, done, {"sequences": batch_size})


@pytest.mark.parametrize("seconds, text", [
    (0.4, "0 s"), (59, "59 s"), (60, "1 min 0 s"), (250, "4 min 10 s"),
    (7380, "2 h 3 min"), (183600, "2 d 3 h")])
def test_duration(seconds, text):
    assert duration(seconds) == text


def test_line_has_rates_and_the_end(clock, caplog):
    progress = training(done=100, batch_size=32)
    clock.now += 10
    progress.report(150, "masked_lm_loss 6.543")
    assert re.fullmatch(
        r"training: 150 of 1,000 .*2 min 50 s .*until 20\d\d-\d\d-\d\d \d\d:\d\d\), "
        "5 steps/s, 160 sequences/s, masked_lm_loss 6.543", caplog.messages[-1])


@pytest.mark.parametrize("total, done, line", [
    (20, 20, "20 of 20 steps (100.0%), 0 s left, 2 steps/s"),
    (200, 100, "100 of 200 steps (50.0%), 10 s left, 10 steps/s"),
    (2e6, 0.25,
     "0.25 of 2,000,000 steps (0.0%), 925 d 22 h left (until Z), 0.025 steps/s"),
    (20, 0, "0 of 20 steps (0.0%)"),
    (None, 12345, "12,345 steps, 1,234 steps/s"),
])
def test_lines(total, done, line, clock, caplog):
    progress = Progress("reading", "steps", total)
    clock.now += 10
    progress.report(done)
    assert re.sub(r"until [^)]*", "until Z", caplog.messages[-1]) == f"reading: {line}"


def test_rate_is_that_of_the_last_lines(clock, caplog):
    progress = training(10**6)
    for step in itertools.accumulate([10] * 20 + [50] * 10):
        clock.now += 10
        progress.report(step)
    assert ", 5 steps/s" in caplog.messages[-1]


def test_skipped_time_does_not_count(clock, caplog):
    progress = training(done=100)
    clock.now += 50  # tracing, with the first step
    for done, skipped in ((101, 500), (121, 0)):
        progress.restart(done)
        clock.now += 10
        progress.report(done + 20)
        assert ", 2 steps/s" in caplog.messages[-1]
        clock.now += skipped  # an evaluation


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
    assert caplog.messages == ["reading: 10 of 40 MB (25.0%), 30 s left, 1 MB/s"]
    on_bytes = Progress.of_bytes("reading", ["gs://bucket/a", str(path)])
    clock.now += 10
    on_bytes(2_000_000)
    assert caplog.messages[-1] == "reading: 2 MB, 0.2 MB/s"
