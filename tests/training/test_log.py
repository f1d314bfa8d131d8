"""The metrics log and the curves."""

import re
import sys

import pytest

from albert_tf.errors import InputError
from albert_tf.training import log as run_log
from albert_tf.training.log import MetricsLog


def write_log(folder, steps):
    log = MetricsLog(str(folder))
    for step in steps:
        log.write(step, "train", {"loss": step / 2})
    return log


def test_rows_are_written_at_once_and_read_back(tmp_path):
    log = write_log(tmp_path, [10, 20])
    log.write(20, "eval", {"loss": 3, "accuracy": 0.25})
    assert run_log.read_metrics(log.path) == log.rows == [
        {"step": 10, "split": "train", "loss": 5.0},
        {"step": 20, "split": "train", "loss": 10.0},
        {"step": 20, "split": "eval", "loss": 3.0, "accuracy": 0.25}]


@pytest.mark.parametrize("step, rows", [(20, [10, 20, 30]), (0, [30])])
def test_resuming_drops_later_rows_and_says_so(step, rows, tmp_path, caplog):
    write_log(tmp_path, [10, 20, 30, 40])
    log = MetricsLog(str(tmp_path), resume_step=step)
    log.write(30, "train", {"loss": 1.0})
    assert [row["step"] for row in run_log.read_metrics(log.path)] == rows
    assert f"{5 - len(rows)} rows of later steps are dropped" in caplog.text


def test_last_line_cut_short_is_left_out_with_a_warning(tmp_path, caplog):
    log = write_log(tmp_path, [10, 20])
    with open(log.path, "a", encoding="utf-8") as stream:
        stream.write('{"step": 30, "split": "tr')
    assert [row["step"] for row in run_log.read_metrics(log.path)] == [10, 20]
    assert "metrics.jsonl, line 3 is incomplete and left out" in caplog.text
    MetricsLog(str(tmp_path), resume_step=20).write(30, "train", {})
    assert [row["step"] for row in run_log.read_metrics(log.path)] == [10, 20, 30]


@pytest.mark.parametrize("line", [
    "{cut", "7", '{"step": 3}', "[" * 100_000, '{"step": 3, "x": ' + 5000 * "9" + "}",
    '{"step": [], "split": "train"}', '{"step": 3, "split": "eval", "loss": {}}'])
def test_other_lines_that_are_no_rows_stop(line, tmp_path):
    log = write_log(tmp_path, [10])
    with open(log.path, "a", encoding="utf-8") as stream:
        stream.write(line + '\n{"step": 30, "split": "train"}\n')
    with pytest.raises(
            InputError, match="metrics.jsonl, line 2: .*JSON.*; move the file"):
        run_log.read_metrics(log.path)


def test_without_matplotlib_there_are_no_curves(tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    log = write_log(tmp_path, [10])
    for _ in range(2):
        run_log.draw_curves(log.path, str(tmp_path / "curves.png"))
    assert not (tmp_path / "curves.png").exists()
    assert caplog.text.count("the package matplotlib is not installed") == 1


def test_curves_are_an_image_of_all_metrics(tmp_path, monkeypatch):
    from matplotlib import axes, image

    titles = []
    monkeypatch.setattr(
        axes.Axes, "set_title", lambda axis, title: titles.append(title))
    log = MetricsLog(str(tmp_path))
    for step in (10, 20):
        log.write(step, "train", {"masked_lm_loss": 3 - step / 20, "rate": 0.1})
        log.write(
            step, "eval", {"masked_lm_loss": 3.0, "masked_lm_accuracy": step / 40})
    path = tmp_path / "curves.png"
    run_log.draw_curves(log.path, str(path))
    assert titles == ["masked lm loss", "rate", "masked lm accuracy"]
    pixels = image.imread(path)
    assert pixels.shape[0] > 200 and pixels.shape[1] > 1000 and pixels.std() > 0.05
    assert not re.search("incomplete", " ".join(p.name for p in tmp_path.iterdir()))
