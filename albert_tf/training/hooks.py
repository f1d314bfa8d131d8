"""Hooks of the training loop: one small object for each thing it does beside the steps.

The loop holds them in a list and calls these methods of each hook that has them, in the
list's order:

    on_step()                        after a step that the host runs; not on TPUs, where
                                     a whole loop runs on the device
    on_batch()                       after each batch of an evaluation
    on_compile(shape, passes)        before the first step of a shape and depth
    on_loop(first, metrics)          after the steps from `first` on, with mean metrics
    on_evaluation(metrics, seconds)  after an evaluation, which took `seconds`
    on_checkpoint(seconds)           after a checkpoint and its evaluation

FiniteCheck is the first hook, so that weights with NaN or infinity are never saved.
`run` is a loop.Run, `trainer` a steps.Trainer.
"""

import importlib.util
import math
import os
import signal
import statistics
import time
from typing import Any, Mapping, Optional

import orbit
import tensorflow as tf
from absl import logging

from albert_tf.checkpoints.folders import (
    BEST_CHECKPOINT, CHECKPOINT_NAME, all_checkpoints, write_whole)
from albert_tf.errors import DivergenceError, InputError, Stopped, reason_of
from albert_tf.jobs.progress import Progress
from albert_tf.training import callbacks, run_folder
from albert_tf.training.log import CURVES_FILE, MetricsLog, draw_curves
from albert_tf.training.loss_scaling import SMALLEST_SCALE

Metrics = Mapping[str, float]
_SECONDS_BETWEEN_COMPILE_LINES = 5.0


class FiniteCheck:
    """Raises DivergenceError if a loss, a gradient or a metric is not finite."""

    def __init__(self, run, trainer):
        self._run, self._trainer = run, trainer

    def on_loop(self, first, metrics):
        self.check()

    def on_evaluation(self, metrics, seconds):
        step = self._run.current_step
        for name, value in metrics.items():
            # The last step before a checkpoint may damage the weights, while its loss
            # was still finite.
            if not math.isfinite(value):
                self._diverged(
                    f"{name} is {value} in the evaluation at step {step}", step)

    def check(self) -> None:
        """Checks all steps so far; waits for the device."""
        bad = int(self._trainer.first_bad_step.numpy())
        if bad >= 0:
            self._diverged(
                f"the loss or the gradient is not finite at step {bad}"
                + (f", although the loss scale is down to {SMALLEST_SCALE:g}; float16 "
                   "may not be able to hold this model's numbers, unlike bfloat16"
                   if self._run.scaling else ""), bad)

    def _diverged(self, what: str, step: int) -> None:
        # The checkpoint of `step` itself holds the weights that failed.
        good = [path for path in all_checkpoints(self._run.options.output_dir)
                if run_folder.step_of(path) < step]
        raise DivergenceError(
            f"{what}; "
            + (f"the last good checkpoint is {good[-1]}" if good
               else "there is no checkpoint from before")
            + "; use a lower learning rate or a longer warm-up, or check the data.")


class BestCheckpoint:
    """Keeps the checkpoint of the best evaluation, and reports if training stalls.

    `evaluated` are the rows of earlier evaluations on the same set; this process saves
    in `folder`. With `starts` there is no best yet.
    """

    def __init__(self, run, evaluated: list[dict[str, Any]], folder: str, starts: bool):
        self._run, self._folder, name = run, folder, run.task.best_metric
        self._best = orbit.actions.NewBestMetric(
            name, write_metric=run.chief,
            # Then the chief removes an older file; others must not read it.
            filename=run.path(run_folder.BEST_FILE)
            if run.chief or not starts else None)
        self._values = [row[name] for row in evaluated if name in row]

    def on_evaluation(self, metrics, seconds):
        run = self._run
        self._values.append(float(metrics[run.task.best_metric]))
        if self._best.test(metrics):
            write_whole(run.checkpoint, os.path.join(self._folder, BEST_CHECKPOINT))
            logging.info("Step %d is the best so far (%s %.4f): %s.", run.current_step,
                         run.task.best_metric, self._values[-1], BEST_CHECKPOINT)
            self._best.commit(metrics)

    def stalled(self) -> bool:
        """Returns True if none of the last `early_stopping` evaluations was the
        best."""
        patience, values = self._run.options.early_stopping, self._values
        return 0 < patience < len(values) and (
            max(values[-patience:]) <= max(values[:-patience]))


class MetricsFiles:
    """Writes rows of metrics, the results of evaluations and the curves. Only the chief
    has a `log` and writes rows and curves."""

    def __init__(self, run, log: Optional[MetricsLog]):
        self._run, self._log = run, log

    def on_loop(self, first, metrics):
        if self._log:
            self._log.write(self._run.current_step, "train", metrics)

    def on_evaluation(self, metrics, seconds):
        run = self._run
        run.last_evaluation = run.current_step, dict(metrics)
        run.write_results(metrics)
        # The row is written last: without it, a run that was killed evaluates again.
        if self._log:
            self._log.write(run.current_step, "eval", metrics)
            self.draw()

    def draw(self) -> None:
        if self._log and self._log.rows:
            draw_curves(self._log.path, self._run.path(CURVES_FILE))


class Callbacks:
    """Calls TensorBoard and the run's callbacks with events; only the chief does.

    If one raises an exception, also by sys.exit(), the run stops as after SIGTERM: it
    saves a checkpoint of the last whole step, and no metrics are lost. The others still
    get the event.
    """

    def __init__(self, run):
        self._run = run
        self._functions = [*run.callbacks] if run.chief else []
        self._failure: Optional[tuple[str, int, BaseException]] = None
        if run.chief and importlib.util.find_spec("tensorboard"):
            self._functions.insert(0, callbacks.TensorBoard(run.path("tensorboard")))
        elif run.chief:
            logging.warning("No files for TensorBoard are written, because the package "
                            "tensorboard is not installed; metrics.jsonl has the values.")

    def on_loop(self, first, metrics):
        self._call("train", metrics)

    def on_evaluation(self, metrics, seconds):
        speed = self._run.evaluator.num_steps / max(seconds, 1e-9)
        self._call("eval", {**metrics, "steps_per_second": speed})

    def on_checkpoint(self, seconds):
        if not self._run.evaluates:
            self._call("eval", {})

    def _call(self, split: str, metrics: Metrics) -> None:
        run, step = self._run, self._run.current_step
        for function in self._functions:
            event = callbacks.Event(
                step, split, {name: float(value) for name, value in metrics.items()},
                run.path(f"{CHECKPOINT_NAME}-{step}") if split == "eval" else None,
                run.options.output_dir)
            try:
                function(event)
            except BaseException as error:
                self._failure = self._failure or (
                    callbacks.name_of(function), step, error)
                run.signals.stop()

    def raise_failure(self) -> None:
        """Raises InputError if a function failed, or what ended the program (SystemExit,
        KeyboardInterrupt); call it when the run is saved."""
        if self._failure:
            name, step, error = self._failure
            run = self._run
            if not isinstance(error, Exception):
                logging.info("Stopped by the callback %s at step %d.", name, step)
                raise error
            raise InputError(
                f"the callback {name} failed at step {step} ({type(error).__name__}: "
                f"{reason_of(error).rstrip('.')}). {run.options.output_dir} has a "
                f"checkpoint of step {run.current_step}; correct the function or leave "
                "it out, and start the run again to continue from there.") from error


class StopCheck:
    """Raises Stopped after a signal. If any of several workers received one, all of
    them stop at the same place."""

    def __init__(self, run, trainer, finite: FiniteCheck):
        self._run, self._trainer, self._finite = run, trainer, finite

    def on_step(self, *_):
        number, votes = self._run.signals.received, self._trainer.stop_votes
        if votes is not None:
            if number is not None:
                votes.cast()
            number = (number or signal.SIGTERM) if votes.any() else None
        if number is not None:
            # Stopping saves a checkpoint, so the weights are checked first.
            self._finite.check()
            raise Stopped(number)

    on_loop = on_checkpoint = on_step

    def on_batch(self):
        if self._trainer.stop_votes is not None:
            self._trainer.stop_votes.exchange()
        self.on_step()


class ProgressLines:
    """Logs a line every few seconds: the current step, the losses, the remaining time.

    Tracing, checkpoints and evaluations do not count for the speed. The remaining time
    includes later checkpoints, evaluations and deeper steps.
    """

    def __init__(self, run, trainer, finite: FiniteCheck):
        self._run, self._trainer, self._finite = run, trainer, finite
        self._progress = Progress(
            "training", "steps", run.options.num_train_steps, run.current_step,
            {"sequences": run.options.train_batch_size})
        self._progress.seconds_beside = self.seconds_beside
        self._shapes_seen: set[int] = set()
        self._compiles, self._next_compile_line = False, 0.0
        self.checkpoint_seconds: list[float] = []  # each with its evaluation
        self.evaluation_seconds: list[float] = []

    def on_step(self):
        step = self._run.current_step
        if self._has_compiled():
            self._progress.restart(step)
        if self._progress.due():
            self._finite.check()
            # Reading the means is an exchange of all workers, but they log such lines
            # at different steps.
            alone = not isinstance(
                self._run.strategy, tf.distribute.MultiWorkerMirroredStrategy)
            self.report(self._trainer.current_metrics() if alone else {})

    def on_loop(self, first, metrics):
        if self._trainer.runs_on_device:
            if self._has_compiled():
                self._progress.restart(self._run.current_step)
            else:
                self.report(metrics)

    def on_compile(self, shape, passes):
        self._shapes_seen.add(shape)
        self._compiles, now = True, time.monotonic()
        # Small models compile many graphs in a few seconds.
        if now >= self._next_compile_line:
            self._next_compile_line = now + _SECONDS_BETWEEN_COMPILE_LINES
            count = self._run.batches.num_shapes
            logging.info(
                "Compiling the training step%s%s.",
                f" for length {len(self._shapes_seen)} of {count}" if count > 1 else "",
                f" with {passes} passes" if passes else "")

    def on_evaluation(self, metrics, seconds):
        self.evaluation_seconds.append(seconds)

    def on_checkpoint(self, seconds):
        self.checkpoint_seconds.append(seconds)
        self._progress.restart(self._run.current_step)

    def report(self, metrics: Metrics) -> None:
        """Logs a line now, and calls the task's on_report."""
        self._run.task.on_report(self._run.current_step, metrics)
        self._progress.report(self._run.current_step, ", ".join(
            f"{name} {value:.4g}" for name, value in metrics.items()
            if "loss" in name or name == "skipped_steps"))

    def _has_compiled(self) -> bool:
        """Returns True if a graph was compiled since the last call. Such steps are slow
        and must not count for the speed."""
        compiled, self._compiles = self._compiles, False
        return compiled

    def seconds_beside(self, of_step: float) -> float:
        """Estimates the seconds that remain beside steps like the current one, which
        takes `of_step` seconds: checkpoints and evaluations, if there was one already,
        deeper steps, and predictions after training."""
        run, options = self._run, self._run.options
        step, end = run.current_step, options.num_train_steps
        checkpoints = -(-end // options.save_checkpoints_steps) - (
            (step - 1) // options.save_checkpoints_steps)
        seconds = checkpoints * _typical(self.checkpoint_seconds)
        if run.depth:
            seconds += (end - step) * of_step * (
                run.depth.mean(step, end) / run.depth.at(step - 1) - 1)
        # The forward pass takes about a third of a step.
        of_sequence = of_step / 3 / options.train_batch_size
        if self.evaluation_seconds:
            of_sequence = _typical(self.evaluation_seconds) / (
                run.evaluator.num_steps * options.eval_batch_size)
        return seconds + run.sequences_after * of_sequence


def _typical(seconds: list[float]) -> float:
    """Returns the mean of the last few; the first was slow, because it was traced."""
    return statistics.fmean(seconds[1:][-5:] or seconds or [0.0])
