"""The training loop, the same for every task, in the order in which a run does it:

    start      at the latest checkpoint, or at other weights (run_folder)
    train      --iterations_per_loop steps, then a row of metrics.jsonl
    save       every --save_checkpoints_steps steps and at the end, then
    evaluate   the best checkpoint so far, a row of metrics.jsonl
    stop       at the last step; early, if evaluations do not improve; or after SIGTERM

metrics.jsonl is the record of the run: from its evaluations follow the best value and
early stopping. It gets the row of an evaluation last, so that a run that was killed
before evaluates again.
"""

import math
import os
import signal
import tempfile
import time
from typing import Any, Callable, Iterable, Mapping, Optional

import tensorflow as tf
from absl import logging

from albert_tf.checkpoints.folders import (
    BEST_CHECKPOINT, CHECKPOINT_NAME, all_checkpoints, write_whole)
from albert_tf.config import AlbertConfig
from albert_tf.errors import DivergenceError, InputError, Stopped, reason_of
from albert_tf.jobs.progress import Progress
from albert_tf.training import run_folder
from albert_tf.training.batches import Batches
from albert_tf.training.callbacks import Callback, Callbacks
from albert_tf.training.evaluation import Evaluated, Task
from albert_tf.training.log import (
    CURVES_FILE, MetricsLog, Scores, draw_curves, evaluations)
from albert_tf.training.loss_scaling import SMALLEST_SCALE, LossScaling
from albert_tf.training.options import RunOptions
from albert_tf.training.schedules import Phases
from albert_tf.training.steps import Trainer
from albert_tf.training.stops import StopSignals


class Run(Evaluated):
    """A run of a task in its output_dir; create and use it in the strategy's scope.

        with strategy.scope():
            task = Task(AlbertForPreTraining(config), PRETRAINING, "masked_lm_accuracy")
            optimizer = create_optimizer(0.00176, 125000, 3125)
            optimizer.build(task.model.trainable_variables)
            run = Run(task, config, RunOptions("runs/base", 125000, 4096), batches,
                      optimizer)
            run.train()

    `config`, `options` and `task_options` are stored beside the checkpoints;
    `task_options` holds other options that change the result, such as input files and
    the learning rate. `optimizer` is built, or None without training. `depth` is the
    number of layers of each training step; evaluation always uses all layers.
    `evaluation_set` holds, as JSON values, on what evaluations are scored: name →
    digest or setting. Scores on different sets are not compared. `callbacks` are called
    with a `training.callbacks.Event` after each loop of steps and each checkpoint; if
    one fails, the run saves its last whole step and raises InputError.
    """

    def __init__(self, task: Task, config: AlbertConfig, options: RunOptions,
                 batches: Batches, optimizer=None,
                 task_options: Optional[Mapping[str, Any]] = None,
                 depth: Optional[Phases] = None,
                 evaluation_set: Optional[Mapping[str, Any]] = None,
                 callbacks: Iterable[Callback] = ()):
        self._functions = list(callbacks)
        super().__init__(task, config, options, batches, optimizer, evaluation_set)
        self.depth = depth
        # The options for options.json.
        self._all_options = {
            **options.kept(), "num_replicas": self.strategy.num_replicas_in_sync,
            **(task_options or {})}
        # Checkpoints hold the model, the step and, in training, the optimizer.
        self.checkpoint = tf.train.Checkpoint(model=task.model, step=self.step)
        self.scaling = None
        if optimizer is not None:
            self.checkpoint.optimizer = optimizer
            if options.step.dtype == "float16":
                self.scaling = self.checkpoint.loss_scaling = LossScaling()
        self.signals = StopSignals()
        # Only the chief has them, while it trains.
        self._log: Optional[MetricsLog] = None
        self._callbacks: Optional[Callbacks] = None

    @property
    def finished(self) -> bool:
        """True if all training steps are done."""
        return self.current_step >= self.options.num_train_steps

    # ---- train -------------------------------------------------------------

    def train(self, on_start: Callable[[], None] = lambda: None,
              ) -> Optional[dict[str, float]]:
        """Trains to num_train_steps; returns the last evaluation's metrics, if any.

        The chief calls `on_start` after the weights are loaded. SIGTERM and SIGINT
        raise Stopped, after a checkpoint of the last whole step: on TPUs after
        --iterations_per_loop steps, with --jit_compile after a step, otherwise also
        between two parts of a step, whose gradients are then dropped, and between two
        batches of an evaluation, which several workers end first.
        """
        options, output_dir = self.options, self.options.output_dir
        # 1. Load the weights and their step. A failure here changes no files.
        run_folder.load_to_train(self)
        first = self.current_step
        # 2. Let the chief write the task's own files.
        if self.chief:
            on_start()
        # 3. Read the evaluations so far. Every process of a cluster must read the same
        #    ones, therefore this happens before the chief opens the log.
        rows = [row for row in (evaluations(output_dir) if first else ())
                if row["step"] <= first]
        # A kill may have come between a checkpoint and its evaluation.
        due = bool(self.evaluates and first and (
            not first % options.save_checkpoints_steps or self.finished)
            and all(row["step"] != first for row in rows))
        nothing_to_do = self.finished and not due
        # 4. Remove the leftovers of a killed run, and store or compare the options.
        if self.chief:
            run_folder.remove_unfinished(output_dir)
            run_folder.keep_options(output_dir, self._all_options, resumed=first > 0)
            self._log = MetricsLog(output_dir, first)
        if nothing_to_do:
            logging.info("Step %d of %d is reached: nothing to train.", first,
                         options.num_train_steps)
            return None
        if self.evaluates and (changes := self.changes_of_set(rows)):
            logging.warning(
                "The evaluations of this run were on a different set (%s changed). "
                "Their scores do not count any more: the next evaluation replaces %s, "
                "and early stopping counts from there.", ", ".join(changes),
                BEST_CHECKPOINT)
        self._scores = Scores(rows, self.task.best_metric, self.evaluation_set)
        # 5. Train. Every process must take part in saving, but only the chief's files
        #    are kept.
        with tempfile.TemporaryDirectory() as scratch:
            self._prepare(output_dir if self.chief else scratch)
            with self.explained(), self.signals:
                return self._go(due)

    def _prepare(self, folder: str) -> None:
        """Creates what exists only while the run trains; it saves in `folder`."""
        options, self._saved = self.options, self.current_step
        # The trainer runs the steps, with a graph for each shape and depth.
        self.trainer = Trainer(
            self.task, self.optimizer, self.batches.train(self.current_step),
            options.step, on_step=self._after_step, on_compile=self._before_compiling,
            kind_of_step=lambda step: (
                self.batches.shape_of_step(step), self.depth and self.depth.at(step)),
            scaling=self.scaling, computation=self.computation)
        self.signals.on_signal = lambda: self.trainer.stop.assign(True)
        if not self.trainer.stops:
            self.signals.when = (
                "after this loop of steps" if self.trainer.runs_on_device
                else "after this step, which XLA computes as a whole")
        # The manager saves checkpoints and removes old ones.
        self._manager = tf.train.CheckpointManager(
            self.checkpoint, folder, max_to_keep=options.keep_checkpoint_max or None,
            checkpoint_name=CHECKPOINT_NAME)
        if self.chief:
            self._callbacks = Callbacks(self._functions, options.output_dir)
        self._compiles = False
        self._progress = Progress(
            "training", "steps", options.num_train_steps, self.current_step,
            {"sequences": options.train_batch_size})

    def _go(self, evaluation_due: bool) -> Optional[dict[str, float]]:
        """Trains from checkpoint to checkpoint; returns the last evaluation's
        metrics."""
        options = self.options
        try:
            # 1. Catch up on the evaluation that an earlier run did not finish.
            metrics = self._evaluate() if evaluation_due else None
            while not self.finished:
                # 2. Stop early if the evaluations do not improve any more.
                if self._scores.stalled(options.early_stopping):
                    logging.info(
                        "Stopped early at step %d: %d evaluations in a row did not "
                        "improve %s.", self.current_step, options.early_stopping,
                        self.task.best_metric)
                    break
                # 3. Train to the next multiple of save_checkpoints_steps or to the end,
                #    no matter where the run started.
                self._train_to(min(options.num_train_steps, _next_multiple(
                    self.current_step, options.save_checkpoints_steps)))
                # 4. Save, then evaluate, so that a failed evaluation loses no step.
                self._save()
                if self.evaluates:
                    metrics = self._evaluate()
                else:
                    self._call("eval", {})
                self._stop_after_signal()
                self._progress.restart(self.current_step)
            # A signal may have come after the last batch of the evaluation.
            if self.signals.received is not None:
                raise Stopped(self.signals.received)
            return metrics
        except Stopped as stop:
            # A signal came between two steps, during a step or during an evaluation, or
            # a callback failed. Keep everything up to the last whole step.
            if self.current_step > self._saved:
                self._save()
            if self._callbacks:
                self._callbacks.raise_failure(self.current_step)
            logging.info(
                "Stopped by signal %d at step %d; run the same command to continue.",
                stop.signal_number, self.current_step)
            raise
        finally:
            self._draw()

    # ---- train: steps

    def _train_to(self, target: int) -> None:
        """Trains in loops that end at multiples of iterations_per_loop and at
        `target`."""
        while (step := self.current_step) < target:
            end = min(_next_multiple(step, self.options.iterations_per_loop), target)
            metrics = self.trainer.train(tf.constant(end - step))
            self._check_finite()
            if self._log:
                self._log.write(end, "train", metrics)
            self._call("train", metrics)
            self._stop_after_signal()
            if self.trainer.runs_on_device and not self._compiled() and end < target:
                self._report(metrics)
        self._report(self.trainer.current_metrics())

    def _before_compiling(self, shape: int, layers: Optional[int]) -> None:
        self._compiles, count = True, self.batches.num_shapes
        logging.info("Compiling the training step%s%s.",
                     f" for length {shape + 1} of {count}" if count > 1 else "",
                     f" with {layers} layers" if layers else "")

    def _compiled(self) -> bool:
        """Returns True if a step was compiled since the last call; such steps are slow,
        and do not count for the speed."""
        compiled, self._compiles = self._compiles, False
        if compiled:
            self._progress.restart(self.current_step)
        return compiled

    def _after_step(self) -> None:
        """Stops or logs a line, if it is time; after each step that the host starts."""
        self._stop_after_signal()
        self._compiled()
        if self._progress.due():
            self._check_finite()
            # Reading the means is an exchange of all workers, but they log such lines
            # at different steps.
            alone = not isinstance(
                self.strategy, tf.distribute.MultiWorkerMirroredStrategy)
            self._report(self.trainer.current_metrics() if alone else {})

    def _report(self, metrics: Mapping[str, float]) -> None:
        """Logs a line of progress, and calls the task's on_report."""
        self.task.on_report(self.current_step, metrics)
        self._progress.report(self.current_step, ", ".join(
            f"{name} {value:.4g}" for name, value in metrics.items()
            if "loss" in name or name == "skipped_steps"))

    def _check_finite(self) -> None:
        """Raises DivergenceError if the loss or the gradient of a step so far is not
        finite, so that such weights are never saved; waits for the device."""
        bad = int(self.trainer.first_bad_step.numpy())
        if bad >= 0:
            self._diverged(
                f"the loss or the gradient is not finite at step {bad}"
                + (f", although the loss scale is down to {SMALLEST_SCALE:g}; float16 "
                   "may not be able to hold this model's numbers, unlike bfloat16"
                   if self.scaling else ""), bad)

    def _diverged(self, what: str, step: int) -> None:
        # The checkpoint of `step` itself holds the weights that failed.
        good = [path for path in all_checkpoints(self.options.output_dir)
                if run_folder.step_of(path) < step]
        raise DivergenceError(
            f"{what}; "
            + (f"the last good checkpoint is {good[-1]}" if good
               else "there is no checkpoint from before")
            + "; use a lower learning rate or a longer warm-up, or check the data.")

    def _stop_after_signal(self) -> None:
        """Raises Stopped after a signal. If any of several workers received one, all of
        them stop after the same step."""
        number, trainer = self.signals.received, self.trainer
        if trainer.vote is not None:
            if number is not None:
                trainer.vote.assign(1.0)
            number = (number or signal.SIGTERM) if trainer.mean_vote.numpy() > 0 else None
        if number is not None:
            # Stopping saves a checkpoint, so the weights are checked first.
            self._check_finite()
            raise Stopped(number)

    # ---- train: checkpoints

    def _save(self) -> None:
        """Saves a checkpoint of the current step."""
        step, output_dir = self.current_step, self.options.output_dir
        try:
            with run_folder.saving(self._manager.directory, step):
                self._manager.save(checkpoint_number=step)
        except (tf.errors.OpError, OSError) as error:
            raise InputError(
                f"{output_dir}: the checkpoint of step {step} cannot be written "
                f"({reason_of(error)}); free some space there, and "
                "run the same command to continue from the previous checkpoint."
            ) from error
        self._saved = step
        logging.info("Checkpoint of step %d saved in %s.", step, output_dir)

    def _evaluate(self) -> dict[str, float]:
        """Evaluates the weights of the checkpoint just saved."""
        begin, step, best = time.monotonic(), self.current_step, self.task.best_metric
        metrics = self.evaluator.evaluate(self._stop_after_signal)
        seconds = max(time.monotonic() - begin, 1e-9)
        for name, value in metrics.items():
            # The last step before a checkpoint may damage the weights, while its loss
            # was still finite.
            if not math.isfinite(value):
                self._diverged(
                    f"{name} is {value} in the evaluation at step {step}", step)
        if self._scores.add(float(metrics[best])):
            write_whole(self.checkpoint,
                        os.path.join(self._manager.directory, BEST_CHECKPOINT))
            logging.info("Step %d is the best so far (%s %.4f): %s.", step, best,
                         metrics[best], BEST_CHECKPOINT)
        self.last_evaluation = step, dict(metrics)
        self.write_results(metrics)
        if self._log:
            self._log.write(step, "eval", metrics, set=self.evaluation_set)
            self._draw()
        self._call("eval", {
            **metrics, "steps_per_second": self.evaluator.num_steps / seconds})
        return metrics

    def _call(self, split: str, metrics: Mapping[str, float]) -> None:
        step = self.current_step
        if self._callbacks and not self._callbacks.call(
                step, split, metrics,
                self.path(f"{CHECKPOINT_NAME}-{step}") if split == "eval" else None):
            self.signals.stop()

    def _draw(self) -> None:
        if self._log and self._log.rows:
            draw_curves(self._log.path, self.path(CURVES_FILE))



def _next_multiple(step: int, interval: int) -> int:
    """Returns the next step after `step` that is a multiple of `interval`."""
    return (step // interval + 1) * interval
