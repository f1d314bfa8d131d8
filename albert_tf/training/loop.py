"""The loop, one for every task: start, train, save, evaluate, keep the best.

Where a run starts is told in run_start.
"""

import contextlib
import functools
import io
import json
import math
import os
import tempfile
from typing import Any, Callable, Mapping, Optional

import orbit
import tensorflow as tf
from absl import logging

from albert_tf import files
from albert_tf.checkpoints.files import (
    BEST_CHECKPOINT, all_checkpoints, write_whole)
from albert_tf.config import AlbertConfig
from albert_tf.errors import InputError, Stopped
from albert_tf.modeling.encoder import Computation
from albert_tf.progress import Progress
from albert_tf.training import distribution, run_folder
from albert_tf.training.log import (
    CURVES_FILE, METRICS_FILE, MetricsLog, draw_curves, has_row, read_metrics)
from albert_tf.training.loss_scaling import LossScaling, SMALLEST_SCALE
from albert_tf.training.options import RunOptions, check_batch_sizes
from albert_tf.training.start import Start
from albert_tf.training.objectives import Predictions, Task
from albert_tf.training.steps import Evaluator, Trainer
from albert_tf.training.stop_signals import StopSignals

__all__ = ["DivergenceError", "Run", "RunOptions", "Stopped"]


class DivergenceError(InputError):
    """The loss or the gradient is no longer finite."""


class Run:
    """A run of a task in its output_dir, under the current strategy.

    To be constructed and used within the strategy's scope.

    Args:
      task: model, losses and metrics.
      config: the model's shape, kept beside the checkpoints.
      options: how the run goes.
      batches: for training and for evaluation.
      optimizer: a built optimizer; None where nothing is trained.
      task_options: what else the result depends on, such as input files and the
        learning rate; kept beside `options` in output_dir.

    Raises:
      InputError: if the batch sizes do not divide or output_dir cannot be written.
    """

    def __init__(self, task: Task, config: AlbertConfig, options: RunOptions,
                 batches: distribution.Batches, optimizer=None,
                 task_options: Optional[Mapping[str, Any]] = None):
        self.task = task
        self.config = config
        self.options = options
        self.batches = batches
        self.optimizer = optimizer
        self.strategy = tf.distribute.get_strategy()
        self.chief = distribution.is_chief(self.strategy)
        self._evaluates = batches.num_evaluation_shapes > 0
        replicas = self.strategy.num_replicas_in_sync
        check_batch_sizes(options, replicas, train=optimizer is not None,
                          evaluate=self._evaluates)
        files.make_directory(options.output_dir, "output_dir")
        # XLA wants all sizes known.
        compiled = options.step.jit_compile or isinstance(
            self.strategy, tf.distribute.TPUStrategy)
        self.computation = Computation(
            options.step.dtype, options.step.recompute, skip_padding=not compiled)
        self._all_options = {
            **options.kept(), "num_replicas": replicas, **(task_options or {})}
        self.step = optimizer.iterations if optimizer is not None else tf.Variable(
            0, dtype=tf.int64, trainable=False, name="global_step")
        self.checkpoint = tf.train.Checkpoint(model=task.model, step=self.step)
        self.scaling = None
        if optimizer is not None:
            self.checkpoint.optimizer = optimizer
            if options.step.dtype == "float16":
                self.scaling = self.checkpoint.loss_scaling = LossScaling()
        self.signals = StopSignals()
        # Step and metrics of the evaluation that `evaluator.predictions` are of.
        self._last_evaluation: tuple[int, dict[str, float]] = (-1, {})
        self._start = Start(
            task, config, options, self.checkpoint, self.step, self.chief)

    @property
    def current_step(self) -> int:
        """Steps done."""
        return int(self.step.numpy())

    # ---- evaluate and predict ----------------------------------------------

    def load(self, best: bool = True) -> None:
        """Loads weights to evaluate or predict with; see Start.to_use."""
        self._start.to_use(best)

    @functools.cached_property
    def evaluator(self) -> Evaluator:
        """Evaluates the batches' evaluation set; without one it only predicts."""
        return Evaluator(self.task, self.batches.evaluation(), self.computation)

    def evaluate(self, best: bool = False) -> dict[str, float]:
        """Evaluates the latest or best checkpoint of output_dir, or init_checkpoint.

        Returns:
          The metrics; they are also written to `eval_results.json`.
        """
        self.load(best)
        step, metrics = self._last_evaluation
        if step != self.current_step:
            with self._explained():
                metrics = self.evaluator.evaluate()
        self._write_results(metrics)
        return metrics

    def predict(self, batches: distribution.Batches) -> Predictions:
        """The task's predictions, by the weights as they stand (see `load`).

        Args:
          batches: of the examples, as an evaluation set; labels do not matter.

        Returns:
          Name → one array for each example, in their order.
        """
        with self._explained():
            return self.evaluator.predict(batches.evaluation())

    def _write_results(self, metrics: Mapping[str, float]) -> None:
        logging.info("Evaluation at step %d: %s", self.current_step, ", ".join(
            f"{name} {value:.6g}" for name, value in metrics.items()))
        if self.chief:
            path = os.path.join(self.options.output_dir, run_folder.RESULTS_FILE)
            with files.atomic_write(path) as stream:
                stream.write(json.dumps(
                    {"step": self.current_step, **metrics}, indent=2).encode() + b"\n")

    # ---- train -------------------------------------------------------------

    def train(self, on_start: Callable[[], None] = lambda: None,
              ) -> Optional[dict[str, float]]:
        """Trains to num_train_steps, with a checkpoint and an evaluation each
        save_checkpoints_steps.

        Args:
          on_start: called by the chief, once the weights are loaded.

        Returns:
          The metrics of the last evaluation, or None.

        Raises:
          DivergenceError: if the loss is no longer finite.
          Stopped: after SIGTERM or SIGINT, with a checkpoint of the last step.
          InputError: if there is nothing to start from, or no room to write.
        """
        self._start.to_train()
        if self.chief:
            on_start()
        first = self.current_step
        with tempfile.TemporaryDirectory() as scratch:
            return self._train(first, scratch)

    def _train(self, first: int, scratch: str) -> Optional[dict[str, float]]:
        options = self.options
        # Every process of a cluster must come to the same answer, hence before
        # the chief opens the log.
        evaluation_due = self._evaluation_due()
        if self.chief:
            run_folder.remove_unfinished(options.output_dir)
            run_folder.keep_options(
                options.output_dir, self._all_options, resumed=first > 0)
            if not first:
                files.remove(os.path.join(options.output_dir, run_folder.BEST_FILE))
        self._best_metric_values = self._earlier_values(first)
        log = MetricsLog(options.output_dir, first) if self.chief else None
        if first >= options.num_train_steps and not evaluation_due:
            logging.info("Step %d of %d is reached: nothing to train.",
                         first, options.num_train_steps)
            return None
        self._progress = Progress("training", "steps", options.num_train_steps, first,
                                  {"sequences": options.train_batch_size})
        trainer = Trainer(
            self.task, self.optimizer, self.batches.train(first), options.step,
            self._on_step, self.batches.shape_of_step, self.scaling,
            self.computation)
        self._trainer = trainer
        evaluator = self.evaluator if self._evaluates else None
        # Every process must take part in saving; only the chief's files count.
        self._folder = options.output_dir if self.chief else scratch
        self._manager = tf.train.CheckpointManager(
            self.checkpoint, self._folder,
            max_to_keep=options.keep_checkpoint_max or None,
            checkpoint_name=run_folder.CHECKPOINT_NAME)
        controller = orbit.Controller(
            strategy=self.strategy, global_step=self.step, trainer=trainer,
            evaluator=evaluator, steps_per_loop=self._steps_per_loop,
            train_actions=[lambda output: self._after_loop(log, output)],
            eval_actions=self._evaluation_actions(log, first),
            summary_dir=self._summary_folder("train"),
            eval_summary_dir=self._summary_folder("eval"))

        # orbit also prints what it logs; our lines say the same and more.
        quiet = contextlib.redirect_stdout(io.StringIO())
        with self._explained(), quiet, self.signals:
            try:
                return self._interleave(controller, evaluator, evaluation_due)
            except Stopped as stop:
                self._save()
                logging.info(
                    "Stopped by signal %d at step %d; the same command goes on there.",
                    stop.signal_number, self.current_step)
                raise
            finally:
                if self.chief and log.rows:
                    draw_curves(log.path, os.path.join(options.output_dir, CURVES_FILE))

    def _earlier_values(self, step: int) -> list[float]:
        """The best metric in the evaluations up to the step of this start."""
        path = os.path.join(self.options.output_dir, METRICS_FILE)
        rows = read_metrics(path) if step and files.exists(path) else []
        return [row[self.task.best_metric] for row in rows
                if row["split"] == "eval" and row["step"] <= step
                and self.task.best_metric in row]

    def _evaluation_due(self) -> bool:
        """Whether the run was stopped between a checkpoint and its evaluation."""
        step, options = self.current_step, self.options
        if not self._evaluates or not step or (
                step % options.save_checkpoints_steps
                and step < options.num_train_steps):
            return False
        return not has_row(os.path.join(options.output_dir, METRICS_FILE), step, "eval")

    def _save(self) -> None:
        try:
            self._manager.save(checkpoint_number=self.current_step)
        except (tf.errors.OpError, OSError) as error:
            raise InputError(
                f"{self.options.output_dir}: the checkpoint of step "
                f"{self.current_step} cannot be written "
                f"({str(error).strip().splitlines()[0]}); make room there, and the "
                "same command goes on at the checkpoint before.") from error
        logging.info("Checkpoint of step %d saved in %s.",
                     self.current_step, self.options.output_dir)

    def _interleave(self, controller, evaluator, evaluation_due):
        """Trains from checkpoint to checkpoint; the last evaluation's metrics."""
        options = self.options
        metrics = None
        if evaluation_due:
            metrics = controller.evaluate(steps=evaluator.num_steps)
        while self.current_step < options.num_train_steps:
            if self._stalled():
                logging.info(
                    "Stopped early at step %d: %d evaluations in a row did not "
                    "better %s.", self.current_step, options.early_stopping,
                    self.task.best_metric)
                break
            # Checkpoints fall on multiples, wherever the run started.
            interval = options.save_checkpoints_steps
            target = min((self.current_step // interval + 1) * interval,
                         options.num_train_steps)
            controller.train(steps=target, checkpoint_at_completion=False)
            self._report(self._trainer.current_metrics())
            self._save()
            if evaluator is not None:
                metrics = controller.evaluate(steps=evaluator.num_steps)
            self._progress.restart(self.current_step)
        return metrics

    def _stalled(self) -> bool:
        """Whether the last `early_stopping` evaluations did not better the best."""
        patience, values = self.options.early_stopping, self._best_metric_values
        return 0 < patience < len(values) and (
            max(values[-patience:]) <= max(values[:-patience]))

    def _steps_per_loop(self, step: int) -> int:
        """Steps to the next multiple, so that rows fall on round steps."""
        loop = self.options.iterations_per_loop
        return loop - int(step) % loop

    def _on_step(self) -> None:
        """After each step on the host."""
        if self.signals.received is not None:
            # Before anything is saved.
            self._check_finite()
            raise Stopped(self.signals.received)
        if not self._progress.restarted:
            # The first step takes long to be traced.
            self._progress.restart(self.current_step)
        if self._progress.due():
            self._check_finite()
            self._report(self._trainer.current_metrics())

    def _report(self, metrics: Mapping[str, float]) -> None:
        self._progress.report(self.current_step, ", ".join(
            f"{name} {value:.4g}" for name, value in metrics.items()
            if "loss" in name or name == "skipped_steps"))

    def _after_loop(self, log: Optional[MetricsLog], output: Mapping[str, Any]) -> None:
        # Before anything is saved or written.
        self._check_finite()
        if log:
            log.write(self.current_step, "train", output)
        if self._trainer.runs_on_device:
            self._report(output)
        if self.signals.received is not None:
            raise Stopped(self.signals.received)

    def _check_finite(self) -> None:
        bad = int(self._trainer.first_bad_step.numpy())
        if bad < 0:
            return
        what = f"the loss or the gradient is not finite at step {bad}"
        if self.scaling:
            what += (f", though the loss scale is down to {SMALLEST_SCALE:g}; float16 "
                     "may not hold this model's numbers, as bfloat16 would")
        # The checkpoint of step `bad` itself holds the weights that failed.
        self._diverged(what, bad)

    def _diverged(self, what: str, step: int) -> None:
        good = [path for path in all_checkpoints(self.options.output_dir)
                if run_folder.step_of(path) < step]
        raise DivergenceError(
            f"{what}; "
            + (f"the last good checkpoint is {good[-1]}" if good
               else "there is no checkpoint from before")
            + "; use a lower learning rate or a longer warm-up, or check the data.")

    def _evaluation_actions(self, log: Optional[MetricsLog], first: int) -> list:
        options = self.options
        best_file = os.path.join(options.output_dir, run_folder.BEST_FILE)
        best = orbit.actions.NewBestMetric(
            self.task.best_metric, write_metric=self.chief,
            # At the start the chief removes an older file; others must not see it.
            filename=best_file if self.chief or first else None)

        def keep_best(output):
            write_whole(self.checkpoint, os.path.join(self._folder, BEST_CHECKPOINT))
            logging.info("Step %d is the best so far (%s %.4f): %s.", self.current_step,
                         self.task.best_metric, float(output[self.task.best_metric]),
                         BEST_CHECKPOINT)

        def record(output):
            self._last_evaluation = self.current_step, dict(output)
            self._best_metric_values.append(float(output[self.task.best_metric]))
            self._write_results(output)
            if log:
                log.write(self.current_step, "eval", output)
                draw_curves(log.path, os.path.join(options.output_dir, CURVES_FILE))

        def check(output):
            # The last step before a checkpoint may ruin weights and not yet a loss.
            for name, value in output.items():
                if not math.isfinite(value):
                    self._diverged(f"{name} is {value} in the evaluation at step "
                                   f"{self.current_step}", self.current_step)

        # The row comes last: without it a run that was killed evaluates again.
        return [check, orbit.actions.ConditionalAction(
            condition=best.test, action=[keep_best, best.commit]), record]

    def _summary_folder(self, split: str) -> Optional[str]:
        if not self.chief:
            return None
        return os.path.join(self.options.output_dir, "tensorboard", split)

    @contextlib.contextmanager
    def _explained(self):
        """Turns an error of reading into the sentence that names the record."""
        try:
            yield
        except tf.errors.ResourceExhaustedError as error:
            raise InputError(
                f"out of memory at step {self.current_step}: give a larger "
                "gradient_accumulation_steps, a smaller batch or a shorter "
                f"max_seq_length ({str(error).splitlines()[0][:200]}).") from error
        except (tf.errors.OpError, UnicodeDecodeError) as error:
            # TensorFlow raises UnicodeDecodeError where its message quotes a record.
            explained = (distribution.explain_error(error, self.options.output_dir)
                         or self.batches.explain_error(error))
            if explained is None:
                raise
            raise explained from error
