"""The log of a run: metrics as JSON lines, curves as PNG."""

import json
import os
from typing import Any, Mapping

from absl import logging

from albert_tf import files, pictures, text_files
from albert_tf.errors import InputError

METRICS_FILE = "metrics.jsonl"
CURVES_FILE = "curves.png"


class MetricsLog:
    """The metrics of a run, one JSON object per line of `<output_dir>/metrics.jsonl`.

        log = MetricsLog("runs/base", resume_step=5000)
        log.write(6000, "train", {"masked_lm_loss": 2.1})

    Every row has `step` and `split` ("train" or "eval"); the rest are metrics. Rows
    after `resume_step` are dropped, because a run that was killed resumes at its last
    checkpoint and writes them again. 0 starts an empty log.
    """

    def __init__(self, output_dir: str, resume_step: int = 0):
        self.path = os.path.join(output_dir, METRICS_FILE)
        self.rows = []
        rows = read_metrics(self.path) if files.exists(self.path) else []
        if resume_step:
            self.rows = [r for r in rows if r["step"] <= resume_step]
        if len(rows) > len(self.rows):
            logging.info("%s: %d rows of later steps are dropped and will be written "
                         "again.", self.path, len(rows) - len(self.rows))
        with files.atomic_write(self.path) as stream:
            for row in self.rows:
                stream.write(_line(row))

    def write(self, step: int, split: str, metrics: Mapping[str, Any]) -> None:
        """Appends a row."""
        row = {"step": int(step), "split": split,
               **{name: float(value) for name, value in metrics.items()}}
        self.rows.append(row)
        with files.open_binary(self.path, "ab") as stream:
            stream.write(_line(row))


def _line(row: Mapping[str, Any]) -> bytes:
    return (json.dumps(row) + "\n").encode()


def read_metrics(path: str) -> list[dict[str, Any]]:
    """Returns the rows of a metrics log; leaves out a last line that was cut short."""
    lines = [(n, line) for n, line in text_files.read_lines(path) if line.strip()]
    rows = []
    for position, (number, line) in enumerate(lines):
        try:
            rows.append(_parsed(line, path, number))
        except InputError:
            if position < len(lines) - 1:
                raise
            logging.warning("%s, line %d is incomplete and left out.", path, number)
    return rows


def _parsed(line: str, path: str, number: int) -> dict[str, Any]:
    """Returns the row in a line; raises InputError if it is not a row of metrics."""
    advice = "move the file away to start a new log"
    row = text_files.parse_json(line, path, advice, number)
    if not (isinstance(row, dict) and type(row.get("step")) is int
            and isinstance(row.get("split"), str)
            and all(type(value) in (int, float) for name, value in row.items()
                    if name != "split")):
        raise InputError(f"{path}, line {number}: not a JSON object of numbers with a "
                         f"step and a split; {advice}.")
    return row


def draw_curves(metrics_path: str, image_path: str) -> None:
    """Draws every metric over the steps into a PNG, training and evaluation in one
    panel."""
    rows = read_metrics(metrics_path)
    names = list(dict.fromkeys(
        name for row in rows for name in row if name not in ("step", "split")))
    if not names or not pictures.possible():
        return
    columns = min(3, len(names))
    lines = -(-len(names) // columns)
    figure = pictures.figure(5 * columns, 3.2 * lines)
    axes = figure.subplots(lines, columns, squeeze=False)
    for axis, name in zip(axes.flat, names):
        for split, style in (("train", "-"), ("eval", "o-")):
            points = [(r["step"], r[name]) for r in rows
                      if r["split"] == split and name in r]
            if points:
                axis.plot(*zip(*points), style, label=split, markersize=3)
        axis.set_title(name.replace("_", " "))
        axis.set_xlabel("step")
        axis.legend(fontsize=8)
        axis.grid(alpha=0.3)
    for axis in list(axes.flat)[len(names):]:
        axis.axis("off")
    pictures.save(figure, image_path)
