"""The loop, one for every task: start, train, save, evaluate, keep the best.

Where a run starts, in this order, said aloud (`_start`):
  1. the latest checkpoint of its own output_dir, at its exact step;
  2. the weights of init_checkpoint, at step 0;
  3. random weights, at step 0.
"""

import contextlib
import dataclasses
import glob
import io
import json
import os
import shutil
import signal
import tempfile
from typing import Any, Callable, Mapping, Optional

import orbit
import tensorflow as tf
from absl import logging

from albert_tf import checkpoint as checkpoints
from albert_tf import files
from albert_tf.config import AlbertConfig
from albert_tf.errors import InputError
from albert_tf.run_log import CURVES_FILE, MetricsLog, Progress, draw_curves
from albert_tf.training_steps import Evaluator, StepOptions, Task, Trainer

CHECKPOINT_NAME = "model.ckpt"
BEST_CHECKPOINT = "model.ckpt-best"
BEST_FILE = "best_metric.json"
OPTIONS_FILE = "options.json"


class DivergenceError(InputError):
    """The loss or the gradient is no longer finite."""


class Stopped(Exception):
    """A signal asked the run to end; its state has been saved."""

    def __init__(self, signal_number: int):
        super().__init__(signal_number)
        self.signal_number = signal_number


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """How a run goes.

    Attributes:
      output_dir: folder of checkpoints, metrics and curves.
      num_train_steps: the step at which training ends.
      train_batch_size: sequences per step, all replicas together.
      eval_batch_size: likewise in evaluation.
      iterations_per_loop: steps between two rows of training metrics.
      save_checkpoints_steps: steps between two checkpoints, and evaluations.
      keep_checkpoint_max: latest checkpoints to keep; 0 keeps all.
      init_checkpoint: checkpoint to start from; "" starts from random weights.
      init_from_group0: copy its group 0 into every group.
      allow_partial_init: start even where names or shapes do not match.
      step: how a training step is computed.
    """

    output_dir: str
    num_train_steps: int
    train_batch_size: int
    eval_batch_size: int = 64
    iterations_per_loop: int = 1000
    save_checkpoints_steps: int = 5000
    keep_checkpoint_max: int = 5
    init_checkpoint: str = ""
    init_from_group0: bool = False
    allow_partial_init: bool = False
    step: StepOptions = StepOptions()


@dataclasses.dataclass(frozen=True)
class Inputs:
    """Where the batches come from, for one input pipeline of several.

    Attributes:
      train: (batch_size, start_batch, shard_index, num_shards) → endless dataset.
      evaluation: (batch_size, replicas, shard_index, num_shards) → dataset and its
        number of batches, a multiple of `replicas`, the replicas that it feeds;
        None evaluates nothing.
      explain_error: error of reading a batch → InputError that names the file
        and record, or None.
    """

    train: Optional[Callable[..., tf.data.Dataset]] = None
    evaluation: Optional[Callable[..., tuple[tf.data.Dataset, int]]] = None
    explain_error: Callable[[Exception], Optional[InputError]] = lambda error: None


def check_batch_sizes(options: RunOptions, num_replicas: int) -> None:
    """Raises InputError where a batch does not divide over replicas and parts."""
    parts = options.step.gradient_accumulation_steps
    if parts < 1:
        raise InputError(
            f"gradient_accumulation_steps is {parts}; it must be 1 or more.")
    for name, size, divisor in (
            ("train_batch_size", options.train_batch_size, num_replicas * parts),
            ("eval_batch_size", options.eval_batch_size, num_replicas)):
        if size < 1 or size % divisor:
            raise InputError(
                f"{name} {size} must be a positive multiple of {divisor}, the "
                f"number of replicas ({num_replicas})"
                + (f" times gradient_accumulation_steps ({parts})."
                   if divisor != num_replicas else "."))


def is_chief(strategy: tf.distribute.Strategy) -> bool:
    """Whether this process writes what there is one of."""
    resolver = strategy.cluster_resolver
    if resolver is None or not resolver.task_type:
        return True
    if resolver.task_type == "chief":
        return True
    has_chief = "chief" in resolver.cluster_spec().as_dict()
    return resolver.task_type == "worker" and resolver.task_id == 0 and not has_chief


class Run:
    """A run of a task in its output_dir, under the current strategy.

    To be constructed and used within the strategy's scope.

    Args:
      task: model, losses and metrics.
      config: the model's shape, kept beside the checkpoints.
      options: how the run goes.
      inputs: where the batches come from.
      optimizer: a built optimizer; None where nothing is trained.

    Raises:
      InputError: if the batch sizes do not divide, output_dir cannot be written
        or holds a model of another shape.
    """

    def __init__(self, task: Task, config: AlbertConfig, options: RunOptions,
                 inputs: Inputs, optimizer=None):
        self.task = task
        self.options = options
        self.inputs = inputs
        self.optimizer = optimizer
        self.strategy = tf.distribute.get_strategy()
        self.chief = is_chief(self.strategy)
        check_batch_sizes(options, self.strategy.num_replicas_in_sync)
        files.make_directory(options.output_dir, "output_dir")
        if self.chief:
            checkpoints.write_config(options.output_dir, config)
        self.step = tf.Variable(0, dtype=tf.int64, trainable=False, name="global_step")
        if optimizer is not None:
            self.step = optimizer.iterations
        self.checkpoint = tf.train.Checkpoint(model=task.model, step=self.step)
        if optimizer is not None:
            self.checkpoint.optimizer = optimizer
        self._signal = None

    @property
    def current_step(self) -> int:
        """Steps done."""
        return int(self.step.numpy())

    # ---- start -------------------------------------------------------------

    def _start(self, need_weights: bool) -> None:
        """Loads the weights to start from; see the top of this file."""
        latest = latest_checkpoint(self.options.output_dir)
        if latest:
            restore(self.checkpoint, latest)
            logging.info("Going on at step %d from %s.", self.current_step, latest)
        elif self.options.init_checkpoint:
            report = checkpoints.restore_tf1(
                self.task.model, self.options.init_checkpoint,
                allow_partial=self.options.allow_partial_init,
                init_from_group0=self.options.init_from_group0)
            logging.info("Starting at step 0 from the weights of %s. %s",
                         self.options.init_checkpoint, report.summary())
        elif need_weights:
            raise InputError(
                f"nothing to evaluate: {self.options.output_dir} holds no checkpoint "
                "and no init_checkpoint is given.")
        else:
            logging.info(
                "Starting at step 0 from random weights: %s holds no checkpoint and "
                "no init_checkpoint is given.", self.options.output_dir)

    # ---- data --------------------------------------------------------------

    def _train_dataset(self):
        """Every replica's batches, from the current step on."""
        start, size = self.current_step, self.options.train_batch_size

        def pipeline(context):
            replicas = context.num_replicas_in_sync // context.num_input_pipelines
            return self.inputs.train(
                batch_size=context.get_per_replica_batch_size(size),
                start_batch=start * replicas,
                shard_index=context.input_pipeline_id,
                num_shards=context.num_input_pipelines)

        return self.strategy.distribute_datasets_from_function(pipeline)

    def _evaluator(self) -> Optional[Evaluator]:
        if self.inputs.evaluation is None:
            return None
        steps = []

        def pipeline(context):
            replicas = context.num_replicas_in_sync // context.num_input_pipelines
            dataset, batches = self.inputs.evaluation(
                batch_size=context.get_per_replica_batch_size(
                    self.options.eval_batch_size),
                replicas=replicas,
                shard_index=context.input_pipeline_id,
                num_shards=context.num_input_pipelines)
            steps.append(batches // replicas)
            return dataset

        dataset = self.strategy.distribute_datasets_from_function(pipeline)
        evaluator = Evaluator(self.task, dataset, steps[0])
        evaluator.create_metrics(dataset)
        return evaluator

    # ---- evaluate ----------------------------------------------------------

    def evaluate(self) -> dict[str, float]:
        """Evaluates the latest checkpoint of output_dir, or init_checkpoint.

        Returns:
          The metrics; they are also written to `eval_results.json`.
        """
        self._start(need_weights=True)
        evaluator = self._evaluator()
        with self._explained():
            metrics = evaluator.evaluate(tf.constant(evaluator.num_steps))
        self._write_results(metrics)
        return metrics

    def _write_results(self, metrics: Mapping[str, float]) -> None:
        logging.info("Evaluation at step %d: %s", self.current_step, ", ".join(
            f"{name} {value:.6g}" for name, value in metrics.items()))
        if self.chief:
            path = os.path.join(self.options.output_dir, "eval_results.json")
            with files.atomic_write(path) as stream:
                stream.write(json.dumps(
                    {"step": self.current_step, **metrics}, indent=2).encode() + b"\n")

    # ---- train -------------------------------------------------------------

    def train(self) -> Optional[dict[str, float]]:
        """Trains to num_train_steps, with a checkpoint and an evaluation each
        save_checkpoints_steps.

        Returns:
          The metrics of the last evaluation, or None.

        Raises:
          DivergenceError: if the loss is no longer finite.
          Stopped: after SIGTERM or SIGINT, with a checkpoint of the last step.
        """
        self._start(need_weights=False)
        first = self.current_step
        with tempfile.TemporaryDirectory() as scratch:
            return self._train(first, scratch)

    def _train(self, first: int, scratch: str) -> Optional[dict[str, float]]:
        options = self.options
        if self.chief:
            remove_unfinished(options.output_dir)
            if not first:
                files.remove(os.path.join(options.output_dir, BEST_FILE))
        log = MetricsLog(options.output_dir, first) if self.chief else None
        if first >= options.num_train_steps:
            logging.info("Step %d of %d is reached: nothing to train.",
                         first, options.num_train_steps)
            return None
        self._progress = Progress(
            options.num_train_steps, options.train_batch_size, first)
        dataset = self._train_dataset()
        trainer = Trainer(self.task, self.optimizer, dataset, options.step, self._on_step)
        trainer.create_metrics(dataset)
        self._trainer = trainer
        evaluator = self._evaluator()
        # Every process must take part in saving; only the chief's files count.
        self._folder = options.output_dir if self.chief else scratch
        manager = tf.train.CheckpointManager(
            self.checkpoint, self._folder,
            max_to_keep=options.keep_checkpoint_max or None,
            checkpoint_name=CHECKPOINT_NAME)
        controller = orbit.Controller(
            strategy=self.strategy, global_step=self.step, trainer=trainer,
            evaluator=evaluator, steps_per_loop=self._steps_per_loop,
            train_actions=[lambda output: self._after_loop(log, output)],
            eval_actions=self._evaluation_actions(log),
            summary_dir=self._summary_folder("train"),
            eval_summary_dir=self._summary_folder("eval"))
        def save():
            manager.save(checkpoint_number=self.current_step)
            logging.info("Checkpoint of step %d saved in %s.",
                         self.current_step, options.output_dir)

        # orbit also prints what it logs; our lines say the same and more.
        quiet = contextlib.redirect_stdout(io.StringIO())
        with self._explained(), quiet, self._signals():
            try:
                return self._interleave(controller, evaluator, log, save)
            except Stopped as stop:
                save()
                logging.info(
                    "Stopped by signal %d at step %d; the same command goes on there.",
                    stop.signal_number, self.current_step)
                raise
            finally:
                if self.chief and log.rows:
                    draw_curves(log.path, os.path.join(options.output_dir, CURVES_FILE))

    def _interleave(self, controller, evaluator, log, save):
        """Trains from checkpoint to checkpoint; the last evaluation's metrics."""
        options = self.options
        metrics = None
        evaluate = evaluator is not None
        if evaluate and log and self.current_step and not log.has(self.current_step, "eval"):
            # The run was stopped between the checkpoint and its evaluation.
            metrics = controller.evaluate(steps=evaluator.num_steps)
        while self.current_step < options.num_train_steps:
            # Checkpoints fall on multiples, wherever the run started.
            interval = options.save_checkpoints_steps
            target = min((self.current_step // interval + 1) * interval,
                         options.num_train_steps)
            controller.train(steps=target, checkpoint_at_completion=False)
            self._report(self._trainer.metrics.result())
            save()
            if evaluate:
                metrics = controller.evaluate(steps=evaluator.num_steps)
            self._progress.skip()
        return metrics

    def _steps_per_loop(self, step: int) -> int:
        """Steps to the next multiple, so that rows fall on round steps."""
        loop = self.options.iterations_per_loop
        return loop - int(step) % loop

    def _on_step(self) -> None:
        """After each step on the host."""
        if self._signal is not None:
            raise Stopped(self._signal)
        if self._progress.due():
            self._check_finite()
            self._report(self._trainer.metrics.result())

    def _report(self, metrics: Mapping[str, float]) -> None:
        shown = {name: value for name, value in metrics.items() if "loss" in name}
        self._progress.report(self.current_step, shown)

    def _after_loop(self, log: Optional[MetricsLog], output: Mapping[str, Any]) -> None:
        # Before anything is saved or written.
        self._check_finite()
        if log:
            log.write(self.current_step, "train", output)
        if self._trainer.runs_on_device:
            self._report(output)
        if self._signal is not None:
            raise Stopped(self._signal)

    def _check_finite(self) -> None:
        bad = int(self._trainer.first_bad_step.numpy())
        if bad < 0:
            return
        # The checkpoint of step `bad` itself holds the weights that failed.
        good = [path for path in all_checkpoints(self.options.output_dir)
                if step_of(path) < bad]
        raise DivergenceError(
            f"the loss or the gradient is not finite at step {bad}; "
            + (f"the last good checkpoint is {good[-1]}" if good
               else "there is no checkpoint from before")
            + "; use a lower learning rate or a longer warm-up, or check the data.")

    def _evaluation_actions(self, log: Optional[MetricsLog]) -> list:
        options = self.options
        best = orbit.actions.NewBestMetric(
            self.task.best_metric, write_metric=self.chief,
            filename=os.path.join(options.output_dir, BEST_FILE))

        def keep_best(output):
            checkpoints.write_whole(
                self.checkpoint, os.path.join(self._folder, BEST_CHECKPOINT))
            logging.info("Step %d is the best so far (%s %.4f): %s.", self.current_step,
                         self.task.best_metric, float(output[self.task.best_metric]),
                         BEST_CHECKPOINT)

        def record(output):
            self._write_results(output)
            if log:
                log.write(self.current_step, "eval", output)
                draw_curves(log.path, os.path.join(options.output_dir, CURVES_FILE))

        return [record, orbit.actions.ConditionalAction(
            condition=best.test, action=[keep_best, best.commit])]

    def _summary_folder(self, split: str) -> Optional[str]:
        if not self.chief:
            return None
        return os.path.join(self.options.output_dir, "tensorboard", split)

    # ---- what surrounds a loop ---------------------------------------------

    @contextlib.contextmanager
    def _explained(self):
        """Turns an error of reading into the sentence that names the record."""
        try:
            yield
        except (tf.errors.OpError, UnicodeDecodeError) as error:
            # TensorFlow raises UnicodeDecodeError where its message quotes a record.
            explained = self.inputs.explain_error(error)
            if explained is None:
                raise
            raise explained from error

    @contextlib.contextmanager
    def _signals(self):
        """Within it SIGTERM and SIGINT end the run after the step at hand."""

        def note(number, frame):
            self._signal = number

        old = {number: signal.signal(number, note)
               for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)


# ---- checkpoints of a folder -----------------------------------------------


def latest_checkpoint(output_dir: str) -> Optional[str]:
    """The latest checkpoint of a folder, or None if it never held one.

    Raises:
      InputError: if the folder's list of checkpoints names files that are gone.
    """
    state = tf.train.get_checkpoint_state(output_dir)
    if state is None or not state.model_checkpoint_path:
        return None
    if not tf.io.gfile.exists(state.model_checkpoint_path + ".index"):
        raise InputError(
            f"{output_dir}/checkpoint names {state.model_checkpoint_path}, which is "
            "not there; restore that file, or move the folder away to start anew.")
    return state.model_checkpoint_path


def all_checkpoints(output_dir: str) -> list[str]:
    """Checkpoints that a folder lists, oldest first."""
    state = tf.train.get_checkpoint_state(output_dir)
    return list(state.all_model_checkpoint_paths) if state else []


def step_of(path: str) -> int:
    """The step in a checkpoint's name."""
    return int(path.rsplit("-", 1)[1])


def restore(checkpoint: tf.train.Checkpoint, path: str) -> None:
    """Restores everything that `checkpoint` holds.

    Raises:
      InputError: if the file is damaged or lacks a variable.
    """
    try:
        checkpoint.restore(path).assert_existing_objects_matched()
    except (tf.errors.OpError, AssertionError, ValueError) as error:
        first_line = str(error).strip().splitlines()[0]
        raise InputError(
            f"{path}: cannot be restored ({first_line}); if the file is damaged, "
            "delete it and its line in the file 'checkpoint' beside it, to go on "
            "from the checkpoint before.") from error


def remove_unfinished(output_dir: str) -> None:
    """Removes what a run that was killed while saving left behind."""
    for path in glob.glob(os.path.join(glob.escape(output_dir), "*_temp*")):
        if CHECKPOINT_NAME in path:
            logging.info("Removing %s, left by a run that was killed.", path)
            shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)
