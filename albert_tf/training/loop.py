"""The training loop, the same for every task: start, train, save, evaluate.

`run_folder` manages the files in a run's folder and chooses where the run starts.
`hooks` do everything beside the steps: checks, metrics, stops, lines of progress.
"""

import contextlib
import functools
import os
import tempfile
import time
from typing import Any, Callable, Iterable, Mapping, Optional

import tensorflow as tf
from absl import logging

from albert_tf import files, text_files
from albert_tf.checkpoints.folders import BEST_CHECKPOINT, CHECKPOINT_NAME
from albert_tf.config import AlbertConfig
from albert_tf.errors import InputError, Stopped, reason_of
from albert_tf.modeling.encoder import Computation
from albert_tf.training import devices, hooks, run_folder
from albert_tf.training.batches import Batches
from albert_tf.training.callbacks import Callback, checked_callbacks
from albert_tf.training.log import METRICS_FILE, MetricsLog, read_metrics
from albert_tf.training.loss_scaling import LossScaling
from albert_tf.training.losses import Predictions, Task
from albert_tf.training.options import RunOptions, check_batch_sizes
from albert_tf.training.schedules import Phases
from albert_tf.training.steps import Evaluator, Trainer
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
    number of passes of each training step; evaluation always uses all passes.
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
        self.callbacks = checked_callbacks(callbacks)
        self.task, self.config, self.options = task, config, options
        self.batches, self.optimizer = batches, optimizer
        self.depth, self.evaluation_set = depth, dict(evaluation_set or {})
        self.strategy = tf.distribute.get_strategy()
        self.chief = devices.is_chief(self.strategy)
        self.evaluates = batches.num_evaluation_shapes > 0
        # Invalid options are reported before anything is written.
        replicas = self.strategy.num_replicas_in_sync
        check_batch_sizes(options, replicas, train=optimizer is not None,
                          evaluate=self.evaluates)
        self._log_devices()
        files.make_directory(options.output_dir, "output_dir")
        # XLA needs static shapes, therefore it cannot leave padding out.
        compiled = options.step.jit_compile or isinstance(
            self.strategy, tf.distribute.TPUStrategy)
        self.computation = Computation(
            options.step.dtype, options.step.recompute, skip_padding=not compiled)
        # The options for options.json.
        self._all_options = {
            **self.options.kept(), "num_replicas": replicas, **(task_options or {})}
        # Checkpoints hold the model, the step and, in training, the optimizer.
        self.step = optimizer.iterations if optimizer is not None else tf.Variable(
            0, dtype=tf.int64, trainable=False, name="global_step")
        self.checkpoint = tf.train.Checkpoint(model=task.model, step=self.step)
        self.scaling = None
        if optimizer is not None:
            self.checkpoint.optimizer = optimizer
            if options.step.dtype == "float16":
                self.scaling = self.checkpoint.loss_scaling = LossScaling()
        self.signals = StopSignals()
        # Number of sequences to evaluate or predict after training, for time estimates.
        self.sequences_after = 0
        # Step and metrics of the evaluation that computed `evaluator.predictions`.
        self.last_evaluation: tuple[int, dict[str, float]] = (-1, {})

    def _log_devices(self) -> None:
        options, step = self.options, self.options.step
        replicas, parts = (self.strategy.num_replicas_in_sync,
                           step.gradient_accumulation_steps)
        batch = (f", and each replica computes {options.train_batch_size // replicas} "
                 f"of {options.train_batch_size} sequences in a step, in {parts} "
                 f"part{'s' * (parts > 1)}") if self.optimizer is not None else ""
        logging.info(
            "Running on %s in %s: %s with %d replica%s%s.",
            devices.hardware(self.strategy), step.dtype, type(self.strategy).__name__,
            replicas, "s" * (replicas > 1), batch)

    @property
    def current_step(self) -> int:
        """The number of steps done."""
        return int(self.step.numpy())

    @property
    def finished(self) -> bool:
        """True if all training steps are done."""
        return self.current_step >= self.options.num_train_steps

    def path(self, name: str) -> str:
        """Returns the path of a file in output_dir."""
        return os.path.join(self.options.output_dir, name)

    # ---- train -------------------------------------------------------------

    def train(self, on_start: Callable[[], None] = lambda: None,
              ) -> Optional[dict[str, float]]:
        """Trains to num_train_steps; returns the last evaluation's metrics, if any.

        The chief calls `on_start` after the weights are loaded. SIGTERM and SIGINT
        raise Stopped, after a checkpoint of the last whole step: on TPUs after
        --iterations_per_loop steps, with --jit_compile after a step, otherwise also
        between two parts of a step, whose gradients are then dropped, and between two
        batches of an evaluation.
        """
        # 1. Load the weights and their step. A failure here changes no files. The
        #    workers of a cluster meet there, and have read the set before the chief
        #    writes a different one.
        kept_set = run_folder.kept_set(self.options.output_dir)
        run_folder.load_to_train(self)
        # 2. Let the chief write the task's own files.
        if self.chief:
            on_start()
        # 3. Read the earlier evaluations. Every process of a cluster must read the same
        #    ones, therefore this happens before the chief opens the log.
        evaluated = self._earlier_evaluations()
        due = self._evaluation_due(evaluated)
        # 4. Remove the leftovers of a killed run, and store or compare the options.
        first = self.current_step
        nothing_to_do = self.finished and not due
        changes = run_folder.different(
            kept_set["set"], self.evaluation_set) if (
                kept_set and self.evaluates and first) else []
        starts_best = not first or bool(changes) and not nothing_to_do
        # Evaluations up to this step were on a different set.
        last = max((row["step"] for row in evaluated), default=0)
        after_step = last if changes else min(kept_set.get("after_step", 0), last)
        if changes:
            self._warn_of_set(changes, starts_best)
        log = None
        if not starts_best:
            run_folder.check_best(self.options.output_dir)
        if self.chief:
            run_folder.remove_unfinished(self.options.output_dir)
            run_folder.keep_options(
                self.options.output_dir, self._all_options, resumed=first > 0)
            if starts_best:
                files.remove(self.path(run_folder.BEST_FILE))
                files.remove(self.path(run_folder.SET_FILE))
            if self.evaluates and not nothing_to_do:
                run_folder.keep_set(
                    self.options.output_dir, self.evaluation_set, after_step)
            log = MetricsLog(self.options.output_dir, first)
        if nothing_to_do:
            logging.info("Step %d of %d is reached: nothing to train.",
                         first, self.options.num_train_steps)
            return None
        # 5. Train. Every process must take part in saving, but only the chief's files
        #    are kept.
        with tempfile.TemporaryDirectory() as scratch:
            folder = self.options.output_dir if self.chief else scratch
            training = _Training(
                self, [row for row in evaluated if row["step"] > after_step], log,
                folder, starts_best)
            with self.explained(), self.signals:
                return training.go(due)

    def _earlier_evaluations(self) -> list[dict[str, Any]]:
        """Returns the log's evaluation rows up to the current step."""
        step, path = self.current_step, self.path(METRICS_FILE)
        rows = read_metrics(path) if step and files.exists(path) else ()
        return [row for row in rows if row["split"] == "eval" and row["step"] <= step]

    def _warn_of_set(self, changes: list[str], starts_best: bool) -> None:
        logging.warning(
            "The evaluations of this run were on a different set (%s changed). %s",
            ", ".join(changes), "Their scores do not count any more: the next "
            f"evaluation replaces {BEST_CHECKPOINT}, and early stopping counts from "
            "there." if starts_best else
            f"{BEST_CHECKPOINT} was chosen on that set, and stays.")

    def _evaluation_due(self, evaluated: list[dict[str, Any]]) -> bool:
        """Returns True if the run was stopped between a checkpoint and its
        evaluation."""
        step, options = self.current_step, self.options
        return bool(
            self.evaluates and step
            and (not step % options.save_checkpoints_steps
                 or self.finished)
            and all(row["step"] != step for row in evaluated))

    # ---- evaluate and predict ----------------------------------------------

    def load(self, best: bool = True) -> None:
        """Loads weights to evaluate or predict with; see run_folder.load_to_use."""
        run_folder.load_to_use(self, best)

    @functools.cached_property
    def evaluator(self) -> Evaluator:
        """The evaluator of the evaluation set; without such a set it only predicts."""
        return Evaluator(self.task, self.batches.evaluation(), self.computation)

    def evaluate(self, best: bool = False) -> dict[str, float]:
        """Evaluates the latest or best checkpoint in output_dir, or init_checkpoint.

        Returns the metrics and writes them to `eval_results.json`.
        """
        self.load(best)
        # The process that trained may have evaluated this checkpoint already.
        step, metrics = self.last_evaluation
        if step != self.current_step:
            with self.explained():
                metrics = self.evaluator.evaluate()
        self.write_results(metrics)
        return metrics

    def predict(self, batches: Batches) -> Predictions:
        """Returns the predictions of the current weights; labels have no effect."""
        with self.explained():
            return self.evaluator.predict(batches.evaluation())

    def write_results(self, metrics: Mapping[str, float]) -> None:
        """Logs the metrics of an evaluation and writes them to output_dir."""
        logging.info("Evaluation at step %d: %s", self.current_step, ", ".join(
            f"{name} {value:.6g}" for name, value in metrics.items()))
        if self.chief:
            path = self.path(run_folder.RESULTS_FILE)
            kept = run_folder.kept_set(self.options.output_dir)
            changes = run_folder.different(
                kept["set"], self.evaluation_set) if kept else []
            if changes and files.exists(path):
                logging.warning(
                    "%s now holds results of a different set than that of training (%s "
                    "changed).", path, ", ".join(changes))
            text_files.write_json(path, {"step": self.current_step, **metrics})

    @contextlib.contextmanager
    def explained(self):
        """Replaces an error of TensorFlow, such as of reading a record, by an
        InputError that names the cause."""
        try:
            yield
        except tf.errors.ResourceExhaustedError as error:
            raise InputError(
                f"out of memory at step {self.current_step}: use a larger "
                "--gradient_accumulation_steps, a smaller batch or a shorter "
                f"--max_seq_length ({str(error).splitlines()[0][:200]}).") from error
        except (tf.errors.OpError, UnicodeDecodeError) as error:
            # UnicodeDecodeError is raised if TensorFlow's message quotes a record.
            explained = (devices.explain_error(error, self.options.output_dir)
                         or self.batches.explain_error(error))
            if explained is None:
                raise
            raise explained from error


class _Training:
    """The parts of a run that exist while it trains; created after its weights are
    loaded.

    `evaluated` are rows of earlier evaluations on the same set; this process saves in
    `folder`. With `starts_best` there is no best checkpoint to compare with.
    """

    def __init__(self, run: Run, evaluated: list[dict[str, Any]],
                 log: Optional[MetricsLog], folder: str, starts_best: bool):
        options = run.options
        self.run = run
        # The trainer runs the steps, with a graph for each shape and depth.
        self.trainer = Trainer(
            run.task, run.optimizer, run.batches.train(run.current_step), options.step,
            self._all("on_step"), run.batches.shape_of_step,
            run.depth.at if run.depth else lambda step: None,
            run.scaling, run.computation, self._all("on_compile"))
        run.signals.on_signal = lambda: self.trainer.stop.assign(True)
        if not self.trainer.stops:
            run.signals.when = ("after this loop of steps" if self.trainer.runs_on_device
                                else "after this step, which XLA computes as a whole")
        # The manager saves checkpoints and removes old ones.
        self.manager = tf.train.CheckpointManager(
            run.checkpoint, folder, max_to_keep=options.keep_checkpoint_max or None,
            checkpoint_name=CHECKPOINT_NAME)
        # The hooks do everything else, in the order of the list.
        finite = hooks.FiniteCheck(run, self.trainer)
        self.best = hooks.BestCheckpoint(run, evaluated, folder, starts_best)
        self.files = hooks.MetricsFiles(run, log)
        self.callbacks = hooks.Callbacks(run)
        self.progress = hooks.ProgressLines(run, self.trainer, finite)
        self.hooks: list[Any] = [
            finite, self.best, self.files, self.callbacks,
            hooks.StopCheck(run, self.trainer, finite), self.progress]

    def go(self, evaluation_due: bool) -> Optional[dict[str, float]]:
        """Trains from checkpoint to checkpoint; returns the last evaluation's
        metrics."""
        run, options = self.run, self.run.options
        self._saved = run.current_step
        try:
            # 1. Catch up on the evaluation that an earlier run did not finish.
            metrics = self._evaluate() if evaluation_due else None
            while not run.finished:
                # 2. Stop early if the evaluations do not improve any more.
                if self.best.stalled():
                    logging.info(
                        "Stopped early at step %d: %d evaluations in a row did not "
                        "improve %s.", run.current_step, options.early_stopping,
                        run.task.best_metric)
                    break
                # 3. Train to the next multiple of save_checkpoints_steps or to the end,
                #    no matter where the run started.
                self._train_to(min(options.num_train_steps, _next_multiple(
                    run.current_step, options.save_checkpoints_steps)))
                # 4. Save, then evaluate, so that a failed evaluation loses no step.
                begin = time.monotonic()
                self._save()
                if run.evaluates:
                    metrics = self._evaluate()
                self._all("on_checkpoint")(time.monotonic() - begin)
            # A signal may have come after the last batch of the evaluation.
            if run.signals.received is not None:
                raise Stopped(run.signals.received)
            return metrics
        except Stopped as stop:
            # A signal came between two steps, during a step or during an evaluation, or
            # a callback failed. Keep everything up to the last whole step.
            if run.current_step > self._saved:
                self._save()
            self.callbacks.raise_failure()
            logging.info(
                "Stopped by signal %d at step %d; run the same command to continue.",
                stop.signal_number, run.current_step)
            raise
        finally:
            self.files.draw()

    def _train_to(self, target: int) -> None:
        """Trains in loops that end at multiples of iterations_per_loop and at
        `target`."""
        interval = self.run.options.iterations_per_loop
        while (step := self.run.current_step) < target:
            end = min(_next_multiple(step, interval), target)
            metrics = self.trainer.train(tf.constant(end - step))
            self._all("on_loop")(step, metrics)
        self.progress.report(self.trainer.current_metrics())

    def _all(self, method: str) -> Callable[..., None]:
        """Returns a function that calls a method of all hooks that have it."""
        def call(*arguments):
            for hook in self.hooks:
                if function := getattr(hook, method, None):
                    function(*arguments)

        return call

    def _evaluate(self) -> dict[str, float]:
        begin = time.monotonic()
        evaluator = self.run.evaluator
        evaluator.on_batch = self._all("on_batch")
        try:
            metrics = evaluator.evaluate()
        finally:
            evaluator.on_batch = lambda: None
        self._all("on_evaluation")(metrics, time.monotonic() - begin)
        return metrics

    def _save(self) -> None:
        """Saves a checkpoint of the current step."""
        step, output_dir = self.run.current_step, self.run.options.output_dir
        try:
            with run_folder.saving(self.manager.directory, step):
                self.manager.save(checkpoint_number=step)
        except (tf.errors.OpError, OSError) as error:
            raise InputError(
                f"{output_dir}: the checkpoint of step {step} cannot be written "
                f"({reason_of(error)}); free some space there, and "
                "run the same command to continue from the previous checkpoint."
            ) from error
        self._saved = step
        logging.info("Checkpoint of step %d saved in %s.", step, output_dir)


def _next_multiple(step: int, interval: int) -> int:
    """Returns the next step after `step` that is a multiple of `interval`."""
    return (step // interval + 1) * interval
