"""The record of a run: metrics.jsonl, the scores that are read from it, curves, and what
callbacks are told."""

import json
import os
from typing import Any, Callable, Iterable, Mapping, NamedTuple, Optional

from absl import logging

from albert_tf import files, pictures, text_files
from albert_tf.errors import InputError

METRICS_FILE = "metrics.jsonl"
CURVES_FILE = "curves.png"

Row = dict[str, Any]
_NO_METRICS = ("step", "split", "set")  # the other entries of a row


class MetricsLog:
    """The metrics of a run, one JSON object per line of `<output_dir>/metrics.jsonl`.

        MetricsLog("runs/base", resume_step=5000).write(6000, "train", {"loss": 2.1})

    Every row has `step` and `split` ("train" or "eval"), those of evaluations also
    `set`, what was evaluated; the rest are metrics. Rows after `resume_step` are
    dropped: a resumed run writes them again. 0 starts an empty log.
    """

    def __init__(self, output_dir: str, resume_step: int = 0):
        self.path = os.path.join(output_dir, METRICS_FILE)
        rows = read_metrics(self.path) if files.exists(self.path) else []
        self.rows = [row for row in rows if 0 < row["step"] <= resume_step]
        if len(rows) > len(self.rows):
            logging.info("%s: %d rows of later steps are dropped and will be written "
                         "again.", self.path, len(rows) - len(self.rows))
        files.write(self.path, "".join(
            f"{json.dumps(row)}\n" for row in self.rows).encode())

    def write(self, step: int, split: str, metrics: Mapping[str, Any],
              **more: Any) -> None:
        """Appends a row; `more` are entries that are not metrics."""
        row = {"step": int(step), "split": split, **more,
               **{name: float(value) for name, value in metrics.items()}}
        self.rows.append(row)
        with files.open_binary(self.path, "ab") as stream:
            stream.write(f"{json.dumps(row)}\n".encode())


def read_metrics(path: str) -> list[Row]:
    """Returns the rows of a metrics log; leaves out a last line that was cut short."""
    rows: list[Row] = []
    lines = [(n, line) for n, line in text_files.read_lines(path) if line.strip()]
    for number, line in lines:
        try:
            row = json.loads(line)
            rows.append({**row, "step": int(row["step"]), "split": str(row["split"]), **{
                name: float(row[name]) for name in row if name not in _NO_METRICS}})
        except (ValueError, TypeError, LookupError, RecursionError) as error:
            if number < lines[-1][0]:
                raise InputError(
                    f"{path}, line {number}: not a JSON object of numbers with a step and "
                    "a split; move the file away to start a new log.") from error
            logging.warning("%s, line %d is incomplete and left out.", path, number)
    return rows


# ---- scores ----------------------------------------------------------------


class Scores:
    """The values of a metric in a run's evaluations since their set last changed, in
    order: which one is the best, and whether they still improve.

        scores = Scores(rows, "accuracy", {"dev data": "5e1f"})  # evaluations(...)
        scores.add(0.75)                                         # True: the best so far
    """

    def __init__(self, rows: Iterable[Row], metric: str, of_set: Mapping[str, Any]):
        self._values: list[float] = []
        for row in rows:
            if row.get("set", of_set) != of_set:
                self._values = []
            elif metric in row:
                self._values.append(row[metric])

    def add(self, value: float) -> bool:
        """Adds a value; returns True if it is better than all before it."""
        is_best = all(value > other for other in self._values)
        self._values.append(value)
        return is_best

    def stalled(self, patience: int) -> bool:
        """Returns True if none of the last `patience` values was the best; 0 never
        stalls."""
        values = self._values
        return 0 < patience < len(values) and (
            max(values[-patience:]) <= max(values[:-patience]))


def evaluations(output_dir: str) -> list[Row]:
    """Returns the rows of a run's evaluations."""
    path = os.path.join(output_dir, METRICS_FILE)
    return [row for row in (read_metrics(path) if files.exists(path) else ())
            if row["split"] == "eval"]


# ---- curves ----------------------------------------------------------------


def draw_curves(metrics_path: str, image_path: str) -> None:
    """Draws every metric over the steps into a PNG, training and evaluation in one
    panel."""
    rows = read_metrics(metrics_path)
    names = list(dict.fromkeys(
        name for row in rows for name in row if name not in _NO_METRICS))
    columns = min(3, len(names))
    lines = -(-len(names) // 3)
    figure = names and pictures.figure(5 * columns, 3.2 * lines)
    if not figure:
        return
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


# ---- callbacks -------------------------------------------------------------


class Event(NamedTuple):
    """What a callback of a run is called with.

        def log(event):
            print(event.step, event.split, event.metrics, event.checkpoint)

        run = Run(task, config, options, batches, optimizer, callbacks=[log])

    `split` is "train" after --iterations_per_loop steps, whose means are the metrics;
    "eval" after a checkpoint was saved and evaluated ({} without an evaluation set). The
    metrics have the names of metrics.jsonl, and evaluations "steps_per_second", too. A
    checkpoint stays until --keep_checkpoint_max newer ones are saved.
    """

    step: int  # number of steps done
    split: str
    metrics: dict[str, float]
    checkpoint: Optional[str]  # its path, for "eval"
    output_dir: str  # of the run; runs of several seeds have different ones


Callback = Callable[[Event], Any]


def tensorboard(folder: str, step: Any) -> Callback:
    """Returns a callback that writes metrics for TensorBoard, those of each split into a
    folder of its own; `step` is the variable of the number of steps done."""
    import orbit
    import tensorflow as tf

    summaries = orbit.utils.SummaryManager(folder, tf.summary.scalar, step)

    def tensorboard_files(event: Event) -> None:
        summaries.write_summaries({event.split: event.metrics})
        summaries.flush()

    return tensorboard_files
