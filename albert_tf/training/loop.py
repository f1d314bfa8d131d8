"""A run: training, evaluation and prediction in a folder, the same for every task.

    start      at the latest checkpoint, or at other weights (run_folder)
    train      --iterations_per_loop steps, then a row of metrics.jsonl
    save       every --save_checkpoints_steps steps and at the end, then
    evaluate   the best checkpoint so far, a row of metrics.jsonl
    stop       at the last step; early, if evaluations do not improve; or after SIGTERM

metrics.jsonl is the record of the run: from its evaluations follow the best value and
early stopping. It gets the row of an evaluation last, so that a run that was killed
before evaluates again.
"""

import contextlib
import dataclasses
import functools
import json
import math
import os
import signal
import tempfile
import time
from typing import Any, Callable, Iterable, Mapping, Optional

import tensorflow as tf
from absl import logging

from albert_tf import files, text_files
from albert_tf.checkpoints.folders import (
    BEST_CHECKPOINT, CHECKPOINT_NAME, write_whole)
from albert_tf.config import AlbertConfig
from albert_tf.errors import DivergenceError, InputError, Stopped, reason_of
from albert_tf.jobs.progress import Progress
from albert_tf.modeling.encoder import Computation
from albert_tf.training import devices, run_folder
from albert_tf.training.batches import Batches
from albert_tf.training.evaluation import Evaluator, Task
from albert_tf.training.log import (
    CURVES_FILE, Callback, Event, MetricsLog, Scores, draw_curves, evaluations,
    tensorboard)
from albert_tf.training.losses import Predictions
from albert_tf.training.options import RunOptions, check_batch_sizes
from albert_tf.training.schedules import Phases
from albert_tf.training.steps import SMALLEST_SCALE, LossScaling, Trainer
from albert_tf.training.stops import StopSignals


class Run:
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
    with a `training.log.Event` after each loop of steps and each checkpoint; if
    one fails, the run saves its last whole step and raises InputError.
    """

    def __init__(self, task: Task, config: AlbertConfig, options: RunOptions,
                 batches: Batches, optimizer=None,
                 task_options: Optional[Mapping[str, Any]] = None,
                 depth: Optional[Phases] = None,
                 evaluation_set: Optional[Mapping[str, Any]] = None,
                 callbacks: Iterable[Callback] = ()):
        self.task, self.config, self.options = task, config, options
        self.batches, self.optimizer, self.depth = batches, optimizer, depth
        # As metrics.jsonl will hold it.
        self.evaluation_set = json.loads(json.dumps(evaluation_set or {}))
        self.strategy = tf.distribute.get_strategy()
        self.chief = devices.is_chief(self.strategy)
        self.evaluates = batches.num_evaluation_shapes > 0
        # 1. Report invalid options before anything is written.
        step, replicas = options.step, self.strategy.num_replicas_in_sync
        check_batch_sizes(options, replicas, train=optimizer is not None,
                          evaluate=self.evaluates)
        logging.info("Running on %s in %s, %s%s.", devices.hardware(), step.dtype,
                     type(self.strategy).__name__, "" if optimizer is None else (
                         f"; steps of {options.train_batch_size} sequences in "
                         f"{replicas * step.gradient_accumulation_steps} parts"))
        files.make_directory(options.output_dir)
        # The options for options.json.
        self._all_options = {
            **options.kept(), "num_replicas": replicas, **(task_options or {})}
        # 2. XLA needs static shapes, therefore it cannot leave padding out.
        compiled = step.jit_compile or isinstance(
            self.strategy, tf.distribute.TPUStrategy)
        self.computation = Computation(
            step.dtype, step.recompute, skip_padding=not compiled)
        # 3. Checkpoints hold the model, the step and, in training, the optimizer.
        self.step = optimizer.iterations if optimizer is not None else tf.Variable(
            0, dtype=tf.int64, trainable=False, name="global_step")
        self.checkpoint = tf.train.Checkpoint(model=task.model, step=self.step)
        self.scaling = None
        if optimizer is not None:
            self.checkpoint.optimizer = optimizer
            if step.dtype == "float16":
                self.scaling = self.checkpoint.loss_scaling = LossScaling()
        self.signals = StopSignals()
        # Step and metrics of the evaluation that computed `evaluator.predictions`.
        self.last_evaluation: tuple[int, dict[str, float]] = (-1, {})
        self._callbacks = list(callbacks)
        # Only the chief has one, while it trains.
        self._log: Optional[MetricsLog] = None

    @property
    def current_step(self) -> int:
        """The number of steps done."""
        return int(self.step.numpy())

    @property
    def finished(self) -> bool:
        """True if all training steps are done."""
        return self.current_step >= self.options.num_train_steps

    # ---- evaluate and predict ----------------------------------------------

    @functools.cached_property
    def evaluator(self) -> Evaluator:
        """The evaluator of the evaluation set; without such a set it only predicts."""
        return Evaluator(self.task, self.batches.evaluation(), self.computation)

    def load(self, best: bool = True) -> None:
        """Loads weights to evaluate or predict with; see run_folder.load."""
        run_folder.load(self, best)

    def evaluate(self, best: bool = False) -> dict[str, float]:
        """Evaluates the latest or best checkpoint in output_dir, or init_checkpoint.

        Returns the metrics and writes them to `eval_results.json`.
        """
        self.load(best)
        # The process that trained may have evaluated this checkpoint already.
        step, metrics = self.last_evaluation
        if step != self.current_step:
            with self._explained():
                metrics = self.evaluator.evaluate()
        self._write_results(metrics)
        return metrics

    def predict(self, batches: Batches) -> Predictions:
        """Returns the predictions of the current weights; labels have no effect."""
        with self._explained():
            return self.evaluator.predict(batches.evaluation())

    def _write_results(self, metrics: Mapping[str, float]) -> None:
        logging.info("Evaluation at step %d: %s", self.current_step, ", ".join(
            f"{name} {value:.6g}" for name, value in metrics.items()))
        if self.chief:
            text_files.write_json(
                os.path.join(self.options.output_dir, run_folder.RESULTS_FILE),
                {"step": self.current_step, **metrics})

    @contextlib.contextmanager
    def _explained(self):
        """Replaces an error of TensorFlow, such as of reading a record, by an
        InputError that names the cause."""
        try:
            yield
        except tf.errors.ResourceExhaustedError as error:
            raise InputError(
                f"out of memory at step {self.current_step}: use a larger "
                "--gradient_accumulation_steps, a smaller batch or a shorter "
                f"--max_seq_length ({reason_of(error)[:200]}).") from error
        except (tf.errors.OpError, UnicodeDecodeError) as error:
            # UnicodeDecodeError is raised if TensorFlow's message quotes a record.
            explained = (devices.explain_error(error, self.options.output_dir)
                         or self.batches.explain_error(error))
            if explained is None:
                raise
            raise explained from error

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
        run_folder.load(self, to_train=True)
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
        # 4. Remove the leftovers of a killed run, and store or compare the options.
        if self.chief:
            run_folder.remove_unfinished(output_dir)
            run_folder.keep_options(output_dir, self._all_options, resumed=first > 0)
            self._log = MetricsLog(output_dir, first)
        if self.finished and not due:
            logging.info("Step %d of %d is reached: nothing to train.", first,
                         options.num_train_steps)
            return None
        before = rows[-1].get("set") if rows and self.evaluates else None
        if before not in (None, self.evaluation_set):
            logging.warning(
                "The evaluations of this run were on a different set (%s changed). "
                "Their scores do not count any more: the next evaluation replaces %s.",
                ", ".join(run_folder.different(before, self.evaluation_set)),
                BEST_CHECKPOINT)
        self._scores = Scores(rows, self.task.best_metric, self.evaluation_set)
        # 5. The trainer runs the steps, with a graph for each shape and depth. A checkpoint
        #    to resume from is none to evaluate afterwards.
        self.options = dataclasses.replace(options, resume_from="")
        self.trainer = Trainer(
            self.task, self.optimizer, self.batches.train(first), options.step,
            on_step=self._after_step, kind_of_step=lambda step: (
                self.batches.shape_of_step(step), self.depth and self.depth.at(step)),
            scaling=self.scaling, computation=self.computation)
        self.signals.on_signal = lambda: self.trainer.stop.assign(True)
        self._listeners = [
            tensorboard(os.path.join(output_dir, "tensorboard"), self.step),
            *self._callbacks] * self.chief
        self._saved = first
        # The first callback that failed, the step, and its error.
        self._failure: Optional[tuple[Callback, int, BaseException]] = None
        self._progress = Progress("training", "steps", options.num_train_steps, first,
                                  {"sequences": options.train_batch_size})
        # 6. Train. Every process must take part in saving, but only the chief's files
        #    are kept; the manager removes old ones.
        with tempfile.TemporaryDirectory() as scratch, self._explained(), self.signals:
            self._manager = tf.train.CheckpointManager(
                self.checkpoint, output_dir if self.chief else scratch,
                max_to_keep=options.keep_checkpoint_max or None,
                checkpoint_name=CHECKPOINT_NAME)
            return self._go(due)

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
                #    no matter where the run started, with a row of metrics.jsonl at
                #    each multiple of iterations_per_loop.
                target = min(options.num_train_steps, _next_multiple(
                    self.current_step, options.save_checkpoints_steps))
                while (step := self.current_step) < target:
                    end = min(_next_multiple(step, options.iterations_per_loop), target)
                    means = self.trainer.train(tf.constant(end - step))
                    self._check_finite()
                    if self._log:
                        self._log.write(end, "train", means)
                    self._tell("train", means)
                    self._stop_after_signal()
                self._report(self.trainer.current_metrics())
                # 4. Save, then evaluate, so that a failed evaluation loses no step.
                self._save()
                if self.evaluates:
                    metrics = self._evaluate()
                else:
                    self._tell("eval", {})
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
            if self._failure:
                function, step, error = self._failure
                if not isinstance(error, Exception):  # SystemExit or KeyboardInterrupt
                    raise error from None
                name = getattr(function, "__name__", type(function).__name__)
                raise InputError(
                    f"the callback {name} failed at step {step} "
                    f"({type(error).__name__}: {reason_of(error).rstrip('.')}). "
                    f"{options.output_dir} has a checkpoint of step {self._saved}; "
                    "correct the function or leave it out, and start the run again to "
                    "continue from there.") from error
            logging.info(
                "Stopped by signal %d at step %d; run the same command to continue.",
                stop.signal_number, self.current_step)
            raise
        finally:
            self._draw()

    # ---- train: steps

    def _after_step(self, compiled: bool) -> None:
        """Stops or logs a line, if it is time. A step that was just `compiled` does not
        count for the speed."""
        self._stop_after_signal()
        if compiled:
            self._progress.restart(self.current_step)
        if self._progress.due():
            self._check_finite()
            # Reading the means is an exchange of all workers, but they log such lines
            # at different steps.
            alone = self.trainer.vote is None
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
        good = [path for path in self._manager.checkpoints
                if run_folder.step_of(path) < step]
        raise DivergenceError(
            f"{what}; the last good checkpoint is {good[-1] if good else 'none'}; use a "
            "lower learning rate or a longer warm-up, or check the data.")

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
        self._write_results(metrics)
        if self._log:
            self._log.write(step, "eval", metrics, set=self.evaluation_set)
            self._draw()
        self._tell("eval", {
            **metrics, "steps_per_second": self.evaluator.num_steps / seconds})
        return metrics

    def _draw(self) -> None:
        if self._log and self._log.rows:
            draw_curves(self._log.path, os.path.join(self.options.output_dir, CURVES_FILE))

    # ---- train: callbacks

    def _tell(self, split: str, metrics: Mapping[str, float]) -> None:
        """Calls the callbacks. If one raises an exception, also by sys.exit(), the run
        stops as after SIGTERM; the others still get the event."""
        step, folder = self.current_step, self.options.output_dir
        event = Event(
            step, split, {name: float(value) for name, value in metrics.items()},
            os.path.join(folder, f"{CHECKPOINT_NAME}-{step}") if split == "eval" else None,
            folder)
        for function in self._listeners:
            try:
                function(event._replace(metrics=dict(event.metrics)))
            except BaseException as error:
                self._failure = self._failure or (function, step, error)
                self.signals.received = self.signals.received or signal.SIGTERM


def _next_multiple(step: int, interval: int) -> int:
    """Returns the next step after `step` that is a multiple of `interval`."""
    return (step // interval + 1) * interval
