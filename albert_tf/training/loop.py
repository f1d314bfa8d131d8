"""The loop, one for every task: start, train, save, evaluate, keep the best.

`start` decides where a run starts, `run_folder` knows what lies in its folder.
"""

import contextlib
import functools
import math
import os
import signal
import statistics
import tempfile
import time
from typing import Any, Callable, Mapping, Optional

import orbit
import tensorflow as tf
from absl import logging

from albert_tf import files, text_files
from albert_tf.checkpoints.files import (
    BEST_CHECKPOINT, CHECKPOINT_NAME, all_checkpoints, write_whole)
from albert_tf.config import AlbertConfig
from albert_tf.errors import DivergenceError, InputError, Stopped
from albert_tf.modeling.encoder import Computation
from albert_tf.jobs.progress import Progress
from albert_tf.training import devices, run_folder
from albert_tf.training.clock import Clock
from albert_tf.training.log import (
    CURVES_FILE, METRICS_FILE, MetricsLog, draw_curves, read_metrics)
from albert_tf.training.loss_scaling import LossScaling, SMALLEST_SCALE
from albert_tf.training.losses import Predictions, Task
from albert_tf.training.options import RunOptions, check_batch_sizes
from albert_tf.training.phases import Schedule, mean_product
from albert_tf.training.start import load_to_train, load_to_use
from albert_tf.training.steps import Evaluator, Trainer


class StopSignals:
    """Within its `with` block, in the main thread, SIGTERM and SIGINT are noted in
    `received` instead of ending the program: a run ends between two steps.

        with StopSignals() as signals:
            while signals.received is None: ...
    """

    received: Optional[int] = None

    def __enter__(self) -> "StopSignals":
        self._old_handlers = {number: signal.signal(number, self._note)
                              for number in (signal.SIGTERM, signal.SIGINT)}
        return self

    def _note(self, number, frame):
        self.received = number

    def __exit__(self, *exception_info):
        for number, handler in self._old_handlers.items():
            signal.signal(number, handler)


class Run:
    """A run of a task in its output_dir; made and used within the strategy's scope.

        with strategy.scope():
            task = Task(AlbertForPreTraining(config), PRETRAINING, "masked_lm_accuracy")
            optimizer = create_optimizer(0.00176, 125000, 3125)
            optimizer.build(task.model.trainable_variables)
            run = Run(task, config, RunOptions("runs/base", 125000, 4096), batches,
                      optimizer)
            run.train()

    `config` is kept beside the checkpoints; so are `options` with `task_options`, what
    else the result depends on, such as input files and the learning rate. `optimizer`
    is built, or None where nothing is trained. With `depth` training steps take its
    passes; evaluation always takes all. With `clock` it ends when the time is over, not
    at num_train_steps.
    """

    def __init__(self, task: Task, config: AlbertConfig, options: RunOptions,
                 batches: devices.Batches, optimizer=None,
                 task_options: Optional[Mapping[str, Any]] = None,
                 depth: Optional[Schedule] = None, clock: Optional[Clock] = None):
        self.task, self.config, self.options = task, config, options
        self.batches, self.optimizer = batches, optimizer
        self.depth = clock.followed_by(depth) if clock else depth
        self.clock = clock
        # The operations of a step are in proportion to the product of these.
        self.work = [schedule for schedule in (self.depth, batches.pieces)
                     if schedule]
        self.strategy = tf.distribute.get_strategy()
        self.chief = devices.is_chief(self.strategy)
        self.evaluates = batches.num_evaluation_shapes > 0
        replicas = self.strategy.num_replicas_in_sync
        check_batch_sizes(options, replicas, train=optimizer is not None,
                          evaluate=self.evaluates)
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
            if clock:
                self.checkpoint.clock = clock.state
        self.signals = StopSignals()
        # What is evaluated or predicted once all is trained, for the time left.
        self.sequences_after = 0
        # Step and metrics of the evaluation that `evaluator.predictions` are of.
        self.last_evaluation: tuple[int, dict[str, float]] = (-1, {})

    @property
    def current_step(self) -> int:
        """Steps done."""
        return int(self.step.numpy())

    @property
    def finished(self) -> bool:
        """Whether training is at its end."""
        return self.clock.over if self.clock else (
            self.current_step >= self.options.num_train_steps)

    def path(self, name: str) -> str:
        """A file of output_dir."""
        return os.path.join(self.options.output_dir, name)

    # ---- train -------------------------------------------------------------

    def train(self, on_start: Callable[[], None] = lambda: None,
              ) -> Optional[dict[str, float]]:
        """Trains to num_train_steps; returns the last evaluation's metrics, if any.

        The chief calls `on_start` once the weights are loaded. SIGTERM and SIGINT raise
        Stopped, after a checkpoint of the last step.
        """
        # 1. Weights, and the step that they are of. What fails here leaves no trace.
        load_to_train(self)
        # 2. The task's own files, where nothing but the chief writes.
        if self.chief:
            on_start()
        # 3. What was evaluated before. Every process of a cluster must come to the
        #    same answer, hence before the chief opens the log.
        evaluated = self._earlier_evaluations()
        due = self._evaluation_due(evaluated)
        # 4. The folder: leftovers of a kill go, the options are kept or compared.
        first = self.current_step
        log = None
        if first:
            run_folder.check_best(self.options.output_dir)
        if self.chief:
            run_folder.remove_unfinished(self.options.output_dir)
            run_folder.keep_options(
                self.options.output_dir, self._all_options, resumed=first > 0)
            if not first:
                files.remove(self.path(run_folder.BEST_FILE))
            log = MetricsLog(self.options.output_dir, first)
        if self.finished and not due:
            if self.clock:
                self.clock.say(first)
            else:
                logging.info("Step %d of %d is reached: nothing to train.",
                             first, self.options.num_train_steps)
            return None
        # 5. Steps, with what they need. Every process must take part in saving; only
        #    the chief's files count.
        with tempfile.TemporaryDirectory() as scratch:
            folder = self.options.output_dir if self.chief else scratch
            training = _Training(self, evaluated, log, folder)
            with self.explained(), self.signals:
                return training.go(due)

    def _earlier_evaluations(self) -> list[dict[str, Any]]:
        """The log's rows of evaluations up to the step of this start."""
        step, path = self.current_step, self.path(METRICS_FILE)
        rows = read_metrics(path) if step and files.exists(path) else ()
        return [row for row in rows if row["split"] == "eval" and row["step"] <= step]

    def _evaluation_due(self, evaluated: list[dict[str, Any]]) -> bool:
        """Whether the run was stopped between a checkpoint and its evaluation."""
        step, options = self.current_step, self.options
        return bool(
            self.evaluates and step
            and (not step % options.save_checkpoints_steps
                 or self.finished)
            and all(row["step"] != step for row in evaluated))

    # ---- evaluate and predict ----------------------------------------------

    def load(self, best: bool = True) -> None:
        """Loads weights to evaluate or predict with; see start.load_to_use."""
        load_to_use(self, best)

    @functools.cached_property
    def evaluator(self) -> Evaluator:
        """Evaluates the batches' evaluation set; without one it only predicts."""
        return Evaluator(self.task, self.batches.evaluation(), self.computation)

    def evaluate(self, best: bool = False) -> dict[str, float]:
        """Evaluates the latest or best checkpoint of output_dir, or init_checkpoint;
        the metrics are also written to `eval_results.json`."""
        self.load(best)
        step, metrics = self.last_evaluation
        if step != self.current_step:
            with self.explained():
                metrics = self.evaluator.evaluate()
        self.write_results(metrics)
        return metrics

    def predict(self, batches: devices.Batches) -> Predictions:
        """Predictions by the weights as they stand; labels do not matter."""
        with self.explained():
            return self.evaluator.predict(batches.evaluation())

    def write_results(self, metrics: Mapping[str, float]) -> None:
        """Logs the metrics of an evaluation and writes them to output_dir."""
        logging.info("Evaluation at step %d: %s", self.current_step, ", ".join(
            f"{name} {value:.6g}" for name, value in metrics.items()))
        if self.chief:
            text_files.write_json(self.path(run_folder.RESULTS_FILE),
                                  {"step": self.current_step, **metrics})

    @contextlib.contextmanager
    def explained(self):
        """Turns an error of reading into the sentence that names the record."""
        try:
            yield
        except tf.errors.ResourceExhaustedError as error:
            raise InputError(
                f"out of memory at step {self.current_step}: give a larger "
                "gradient_accumulation_steps, a smaller batch or a shorter "
                f"max_seq_length ({str(error).splitlines()[0][:200]}).") from error
        except (tf.errors.OpError, UnicodeDecodeError) as error:
            # The latter where TensorFlow's message quotes a record.
            explained = (devices.explain_error(error, self.options.output_dir)
                         or self.batches.explain_error(error))
            if explained is None:
                raise
            raise explained from error


class _Training:
    """What a run needs while it trains, made at once when its weights are loaded.

    `evaluated` are rows of earlier evaluations; this process saves in `folder`.
    """

    def __init__(self, run: Run, evaluated: list[dict[str, Any]],
                 log: Optional[MetricsLog], folder: str):
        options, first, name = run.options, run.current_step, run.task.best_metric
        self.run, self.log, self.folder = run, log, folder
        self.progress = Progress(
            "training", "steps", None if run.clock else options.num_train_steps, first,
            {"sequences": options.train_batch_size})
        self.progress.seconds_beside = self._seconds_beside
        self.kinds_seen: set[tuple[int, Optional[int]]] = set()
        self.checkpoint_seconds: list[float] = []  # of each, with its evaluation
        self.evaluation_seconds: list[float] = []
        self.seconds_of_tracing = 0.0
        self.workers = devices.num_processes(run.strategy)
        self.trainer = Trainer(
            run.task, run.optimizer, run.batches.train(first), options.step,
            self._on_step, run.batches.shape_of_step,
            run.depth.at if run.depth else lambda step: None,
            lambda shape: run.batches.parts(
                shape, options.step.gradient_accumulation_steps,
                run.strategy.num_replicas_in_sync),
            run.scaling, run.computation)
        self.evaluator = run.evaluator if run.evaluates else None
        self.manager = tf.train.CheckpointManager(
            run.checkpoint, folder, max_to_keep=options.keep_checkpoint_max or None,
            checkpoint_name=CHECKPOINT_NAME)
        self.best = orbit.actions.NewBestMetric(
            name, write_metric=run.chief,
            # At the start the chief removes an older file; others must not see it.
            filename=run.path(run_folder.BEST_FILE) if run.chief or first else None)
        self.values = [row[name] for row in evaluated if name in row]
        self.train_summaries, self.eval_summaries = (
            orbit.utils.SummaryManager(
                run.path(f"tensorboard/{split}") if run.chief else None,
                tf.summary.scalar, run.step) for split in ("train", "eval"))

    def go(self, evaluation_due: bool) -> Optional[dict[str, float]]:
        """Trains from checkpoint to checkpoint; the last evaluation's metrics."""
        run, options = self.run, self.run.options
        try:
            metrics = self._evaluate() if evaluation_due else None
            if run.clock:
                run.clock.skip()
            while not run.finished:
                if self._stalled():
                    logging.info(
                        "Stopped early at step %d: %d evaluations in a row did not "
                        "better %s.", run.current_step, options.early_stopping,
                        run.task.best_metric)
                    break
                # Checkpoints fall on multiples, wherever the run started.
                target = _next_multiple(run.current_step, options.save_checkpoints_steps)
                self._train_to(
                    target if run.clock else min(target, options.num_train_steps))
                begin = time.monotonic()
                self._save()
                if self.evaluator is not None:
                    metrics = self._evaluate()
                self.checkpoint_seconds.append(time.monotonic() - begin)
                self.progress.restart(run.current_step)
                if run.clock:
                    run.clock.skip()
            if run.clock:
                run.clock.say(run.current_step)
            return metrics
        except Stopped as stop:
            self._save()
            logging.info(
                "Stopped by signal %d at step %d; the same command continues there.",
                stop.signal_number, run.current_step)
            raise
        finally:
            self._draw()

    def _seconds_beside(self, of_step: float) -> float:
        """What checkpoints and evaluations to come take, as far as one was made, and
        what follows on training."""
        options = self.run.options
        left = -(-options.num_train_steps // options.save_checkpoints_steps) - (
            (self.run.current_step - 1) // options.save_checkpoints_steps)
        seconds = left * _typical(self.checkpoint_seconds)
        step, end = self.run.current_step, options.num_train_steps
        seconds += (end - step) * of_step * (
            mean_product(self.run.work, step, end)
            / mean_product(self.run.work, step - 1, step) - 1)
        # A third of a step is its forward pass.
        of_sequence = of_step / 3 / options.train_batch_size
        if self.evaluation_seconds:
            of_sequence = _typical(self.evaluation_seconds) / (
                self.evaluator.num_steps * options.eval_batch_size)
        return seconds + self.run.sequences_after * of_sequence

    def _stalled(self) -> bool:
        """Whether the last `early_stopping` evaluations brought no new best."""
        patience, values = self.run.options.early_stopping, self.values
        return 0 < patience < len(values) and (
            max(values[-patience:]) <= max(values[:-patience]))

    # ---- steps -------------------------------------------------------------

    def _train_to(self, target: int) -> None:
        """Trains with a row of metrics on each round step, and at `target`."""
        run = self.run
        while (step := run.current_step) < target and not (
                run.clock and run.clock.over):
            end = min(_next_multiple(step, run.options.iterations_per_loop), target)
            if run.clock and self.trainer.runs_on_device:
                end = min(end, step + run.clock.steps_at_once)
            metrics = self.trainer.train(tf.constant(end - step))
            # Before anything is saved or written.
            self._check_finite()
            if self.log:
                self.log.write(run.current_step, "train", metrics)
            if self.trainer.runs_on_device:
                if self._traced(step, end):
                    self._restart_progress()
                else:
                    self._report(metrics)
                self._follow_clock(end - step)
            self._stop_if_asked()
            self.train_summaries.write_summaries(metrics)
            self.train_summaries.flush()
        self._report(self.trainer.current_metrics())

    def _on_step(self) -> bool:
        """After each step on the host; whether the time is over."""
        run = self.run
        self._stop_if_asked()
        traced = self._traced(run.current_step - 1)
        if traced:
            self._restart_progress()
        self._follow_clock(0 if traced else 1)
        if self.progress.due():
            self._check_finite()
            # Workers reach such a line at different steps, and reading the means is an
            # exchange, in which all of them must take part.
            alone = not isinstance(
                run.strategy, tf.distribute.MultiWorkerMirroredStrategy)
            self._report(self.trainer.current_metrics() if alone else {})
        return bool(run.clock and run.clock.over)

    def _follow_clock(self, steps: int) -> None:
        """Sets the clock's place for the next step; of several workers, to what the
        chief's was before the step just made. `steps` are those since it was set last,
        0 if they took longer than others will."""
        run, clock, agreed = self.run, self.run.clock, self.trainer.agreed
        if not clock:
            return
        if not steps:
            self.seconds_of_tracing = clock.skip()
        step = run.current_step + (agreed is not None)
        moment = clock.moment(
            self._reserve(), steps, not step % run.options.save_checkpoints_steps)
        if agreed is None:
            clock.go_to(moment)
            return
        if run.chief:
            # The mean over all workers is exactly this.
            self.trainer.told.assign(
                [self.trainer.told.numpy()[0], float(moment * self.workers)])
        clock.go_to(max(clock.place_on_host, round(float(agreed.numpy()[1]))))

    def _reserve(self) -> float:
        """Seconds that a checkpoint with its evaluation will take, the end, and the first
        steps of depths to come."""
        waiting = set(getattr(self.run.depth, "values", ())) - {
            passes for _, passes in self.kinds_seen}
        if len(self.checkpoint_seconds) > 1:
            found = max(self.checkpoint_seconds[1:][-5:])
        elif self.checkpoint_seconds:
            found = self.checkpoint_seconds[0]
        else:
            # An evaluation is the forward pass of a step, less than half of its work.
            of_sequence = self.run.clock.of_step / self.run.options.train_batch_size
            found = 2.0 + self.seconds_of_tracing / 2 + (
                of_sequence * self.evaluator.num_steps
                * self.run.options.eval_batch_size if self.evaluator else 0)
        return 1.2 * found + 1.0 + len(waiting) * self.seconds_of_tracing

    def _stop_if_asked(self) -> None:
        """Raises Stopped if a signal came; of several workers, all after the same step,
        for a signal that any of them got."""
        number, told = self.run.signals.received, self.trainer.told
        if told is not None:
            if number is not None:
                told.assign([1.0, told.numpy()[1]])
            number = (number or signal.SIGTERM) if (
                self.trainer.agreed.numpy()[0] > 0) else None
        if number is not None:
            # Before anything is saved.
            self._check_finite()
            raise Stopped(number)

    def _restart_progress(self) -> None:
        shape, _ = self.trainer.kind_of_step(self.run.current_step - 1)
        self.progress.restart(self.run.current_step,
                              sequences=self.run.batches.batch_size(shape))

    def _traced(self, first: int, end: Optional[int] = None) -> bool:
        """Whether steps were the first ones of their kind, which take long: they say
        nothing of the time that others will take."""
        found = set(map(self.trainer.kind_of_step,
                        range(first, first + 1 if end is None else end)))
        new = found - self.kinds_seen
        self.kinds_seen |= new
        return bool(new)

    def _report(self, metrics: Mapping[str, float]) -> None:
        self.run.task.on_report(self.run.current_step, metrics)
        self.progress.report(self.run.current_step, ", ".join([
            *([f"{self.run.clock.used / self.run.clock.budget:.1%} of the time"]
              if self.run.clock else []),
            *(f"{name} {value:.4g}" for name, value in metrics.items()
              if "loss" in name or name == "skipped_steps")]))

    def _check_finite(self) -> None:
        bad = int(self.trainer.first_bad_step.numpy())
        if bad >= 0:
            self._diverged(
                f"the loss or the gradient is not finite at step {bad}"
                + (f", though the loss scale is down to {SMALLEST_SCALE:g}; float16 "
                   "may not hold this model's numbers, as bfloat16 would"
                   if self.run.scaling else ""), bad)

    def _diverged(self, what: str, step: int) -> None:
        # The checkpoint of `step` itself holds the weights that failed.
        good = [path for path in all_checkpoints(self.run.options.output_dir)
                if run_folder.step_of(path) < step]
        raise DivergenceError(
            f"{what}; "
            + (f"the last good checkpoint is {good[-1]}" if good
               else "there is no checkpoint from before")
            + "; use a lower learning rate or a longer warm-up, or check the data.")

    def _save(self) -> None:
        step, output_dir = self.run.current_step, self.run.options.output_dir
        if self.run.clock:
            self.run.clock.before_saving()
        try:
            self.manager.save(checkpoint_number=step)
        except (tf.errors.OpError, OSError) as error:
            raise InputError(
                f"{output_dir}: the checkpoint of step {step} cannot be written "
                f"({str(error).strip().splitlines()[0]}); make room there, and the "
                "same command continues at the checkpoint before.") from error
        logging.info("Checkpoint of step %d saved in %s.", step, output_dir)

    # ---- evaluations -------------------------------------------------------

    def _evaluate(self) -> dict[str, float]:
        run = self.run
        begin = time.monotonic()
        metrics = self.evaluator.evaluate()
        self.evaluation_seconds.append(time.monotonic() - begin)
        rate = self.evaluator.num_steps / max(self.evaluation_seconds[-1], 1e-9)
        for name, value in metrics.items():
            # The last step before a checkpoint may ruin weights and not yet a loss.
            if not math.isfinite(value):
                self._diverged(f"{name} is {value} in the evaluation at step "
                               f"{run.current_step}", run.current_step)
        self.values.append(float(metrics[run.task.best_metric]))
        if self.best.test(metrics):
            write_whole(run.checkpoint, os.path.join(self.folder, BEST_CHECKPOINT))
            logging.info("Step %d is the best so far (%s %.4f): %s.", run.current_step,
                         run.task.best_metric, self.values[-1], BEST_CHECKPOINT)
            self.best.commit(metrics)
        run.last_evaluation = run.current_step, dict(metrics)
        run.write_results(metrics)
        # The row comes last: without it a run that was killed evaluates again.
        if self.log:
            self.log.write(run.current_step, "eval", metrics)
            self._draw()
        self.eval_summaries.write_summaries({**metrics, "steps_per_second": rate})
        self.eval_summaries.flush()
        return metrics

    def _draw(self) -> None:
        if self.log and self.log.rows:
            draw_curves(self.log.path, self.run.path(CURVES_FILE))


def _typical(seconds: list[float]) -> float:
    """The mean of the last few; the first took longer, since its steps were traced."""
    return statistics.fmean(seconds[1:][-5:] or seconds or [0.0])


def _next_multiple(step: int, interval: int) -> int:
    """The next step after `step` that is a multiple of `interval`."""
    return (step // interval + 1) * interval
