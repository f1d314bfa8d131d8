"""What is trained and evaluated, its evaluation and prediction, and what training shares
with them: mean metrics, and graphs that are traced once for each static shape."""

import contextlib
import dataclasses
import functools
import json
import os
from typing import Any, Callable, Iterable, Mapping, Optional, Sequence

import numpy as np
import tensorflow as tf
import tf_keras
from absl import logging

from albert_tf import files, text_files
from albert_tf.config import AlbertConfig
from albert_tf.errors import InputError
from albert_tf.jobs.progress import Progress
from albert_tf.modeling.encoder import Computation
from albert_tf.training import devices, run_folder
from albert_tf.training.batches import Batches
from albert_tf.training.log import evaluations
from albert_tf.training.losses import Objective, Predictions, WeightedValues
from albert_tf.training.options import RunOptions, check_batch_sizes


@dataclasses.dataclass(frozen=True)
class Task:
    """A task, as the training loop needs it.

        Task(AlbertForPreTraining(config), PRETRAINING, "masked_lm_accuracy")

    Attributes:
      model: called as model(features, training=..., seed=..., computation=...), without
        AutoGraph.
      objective: what it learns.
      training_objective: the objective in training, if evaluation has a simpler one.
      best_metric: the evaluation metric, higher is better, by which the best checkpoint
        is chosen.
      score: predictions of all examples, as Evaluator.predict returns them → further
        evaluation metrics.
      may_be_new: whether a variable of this name may be missing from the initial
        checkpoint, such as those of a new head, which is trained from scratch.
      labels: the labels of its outputs, in their order, with which those of an initial
        checkpoint are matched; () if it has none.
      on_report: called with the step and the metrics whenever progress is logged.
    """

    model: tf_keras.Model
    objective: Objective
    best_metric: str
    score: Optional[Callable[[Predictions], Mapping[str, float]]] = None
    may_be_new: Callable[[str], bool] = lambda name: False
    on_report: Callable[[int, Mapping[str, float]], None] = (
        lambda step, metrics: None)
    training_objective: Optional[Objective] = None
    labels: Sequence[str] = ()


# ---- metrics ---------------------------------------------------------------


def metric_sums(metrics: WeightedValues) -> dict[str, tf.Tensor]:
    """Returns the weighted sum and the sum of weights, [2], of each metric."""
    sums = {}
    for name, (values, weights) in metrics.items():
        values = tf.cast(values, tf.float32)
        weights = tf.broadcast_to(tf.cast(weights, tf.float32), tf.shape(values))
        sums[name] = tf.stack([tf.reduce_sum(values * weights), tf.reduce_sum(weights)])
    return sums


class MeanMetrics:
    """Weighted means over steps and replicas; create it in the strategy's scope."""

    def __init__(self, names: Iterable[str] = ()):
        self._means = {name: tf_keras.metrics.Mean(name) for name in names}

    def update(self, sums: Mapping[str, tf.Tensor]) -> None:
        """Adds [weighted sum, sum of weights] of each metric; in replica context."""
        for name, pair in sums.items():
            self._means[name].update_state(
                tf.math.divide_no_nan(pair[0], pair[1]), sample_weight=pair[1])

    def reset(self) -> None:
        for mean in self._means.values():
            mean.reset_state()

    def result(self, empty: bool = True) -> dict[str, float]:
        """Returns the means. A mean without weight is 0, or absent if not `empty`."""
        return {name: float(mean.result()) for name, mean in self._means.items()
                if empty or float(tf.convert_to_tensor(mean.count)) > 0}


def names_of(sums: Callable[[Any], Mapping[str, Any]], dataset: Any) -> list[str]:
    """Returns the names of the metrics of a batch, by tracing `sums` once."""
    spec = replica_spec(dataset.element_spec)
    return list(own_function(sums).get_concrete_function(spec).structured_outputs)


# ---- static shapes ---------------------------------------------------------


def own_function(python_function: Callable[..., Any], autograph: bool = False,
                 **options: Any) -> Any:
    """Returns a tf.function for one static shape. Steps do not need AutoGraph, which
    takes a third of the tracing time.

    TensorFlow warns if the same Python function is traced often, even by separate
    tf.functions. It counts each partial separately, which avoids the warning.
    """
    return tf.function(
        functools.partial(python_function), autograph=autograph, **options)


def replica_spec(element_spec: Any) -> Any:
    """Returns the spec of one replica's batch in a distributed dataset's spec."""
    def first(spec):
        if isinstance(spec, tf.TensorSpec):
            return spec
        return spec._component_specs[0] if hasattr(spec, "_component_specs") else (
            spec._value_specs[0])

    return {name: first(spec) for name, spec in element_spec.items()}


def shape_key(dataset: Any) -> frozenset:
    """Returns a key that is equal for datasets whose batches can share a graph."""
    return frozenset(replica_spec(dataset.element_spec).items())


# ---- evaluation ------------------------------------------------------------


class Evaluator:
    """Evaluates a task's model on every example of the evaluation datasets, once.

        Evaluator(task, batches.evaluation()).evaluate()  # {"masked_lm_accuracy": ...}

    Each static shape of a batch is traced once, also if it occurs in several datasets.
    `predictions` holds the predictions of the last evaluation. `datasets` comes from
    Batches.evaluation; if it is empty, the evaluator only predicts.
    """

    def __init__(self, task: Task, datasets: Sequence[tuple[Any, int]] = (),
                 computation: Computation = Computation()):
        self.strategy = tf.distribute.get_strategy()
        self.task, self.computation = task, computation
        self.predictions: Predictions = {}
        self._datasets = datasets
        # The compiled step for each shape of a batch.
        self._steps: dict[frozenset, Any] = {}
        self.metrics = None
        if datasets:
            self.metrics = MeanMetrics(names_of(
                lambda features: self._metric_sums(self._outputs(features), features),
                datasets[0][0]))

    @property
    def num_steps(self) -> int:
        """The number of batches per replica."""
        return sum(steps for _, steps in self._datasets)

    def evaluate(self, on_batch: Callable[[], None] = lambda: None) -> dict[str, float]:
        """Returns the metrics over all examples: the objective's means and the task's
        score. `on_batch` is called after each batch."""
        self.metrics.reset()
        self.predictions = self.predict(self._datasets, on_batch)
        metrics = self.metrics.result()
        if self.task.score is not None:
            metrics |= self.task.score(self.predictions)
        return metrics

    def predict(self, datasets: Sequence[tuple[Any, int]],
                on_batch: Callable[[], None] = lambda: None) -> Predictions:
        """Returns the objective's predictions for every example; labels may be 0."""
        rows: dict[str, dict[int, np.ndarray]] = {}
        progress, done = Progress("evaluating" if datasets is self._datasets else
                                  "predicting", "batches",
                                  sum(steps for _, steps in datasets)), 0
        for dataset, steps in datasets:
            step = self._steps.setdefault(shape_key(dataset), own_function(self._step))
            iterator = iter(dataset) if steps else None
            for number in range(steps):
                batch = {name: value.numpy() for name, value in step(iterator).items()}
                indices = batch.pop("example_index", ())
                for name, values in batch.items():
                    rows.setdefault(name, {}).update(
                        (int(index), value) for index, value in zip(indices, values)
                        if index >= 0)
                done += 1
                if not number:  # The first batch of a length was traced.
                    progress.restart(done)
                progress.update(done)
                on_batch()
        return {name: [by_index[index] for index in sorted(by_index)]
                for name, by_index in rows.items()}

    def _outputs(self, features):
        return self.task.model(features, training=False, computation=self.computation)

    def _metric_sums(self, outputs, features):
        objective = self.task.objective
        losses = objective.losses(outputs, features, objective.denominators(features))
        return metric_sums(objective.metrics(outputs, features, losses))

    def _replica_step(self, features):
        """Evaluates one replica's batch; returns the predictions of its examples."""
        outputs = self._outputs(features)
        if self.metrics is not None:
            self.metrics.update(self._metric_sums(outputs, features))
        if self.task.objective.predictions is None:
            return {}
        return {**self.task.objective.predictions(outputs, features),
                "example_index": features["example_index"]}

    def _step(self, iterator):
        predictions = self.strategy.run(self._replica_step, args=(next(iterator),))
        # Gathers the examples of all replicas, also of other hosts. It happens in the
        # graph, because outside it each gather would be traced again.
        return {name: self.strategy.gather(value, axis=0)
                for name, value in predictions.items()}


# ---- in a folder -----------------------------------------------------------


class Evaluated:
    """A task's model in its output_dir, to evaluate and to predict with; loop.Run trains
    it. Its arguments are those of loop.Run."""

    def __init__(self, task: Task, config: AlbertConfig, options: RunOptions,
                 batches: Batches, optimizer: Any = None,
                 evaluation_set: Optional[Mapping[str, Any]] = None):
        self.task, self.config, self.options = task, config, options
        self.batches, self.optimizer = batches, optimizer
        # As metrics.jsonl will hold it.
        self.evaluation_set = json.loads(json.dumps(evaluation_set or {}))
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
        self.step = optimizer.iterations if optimizer is not None else tf.Variable(
            0, dtype=tf.int64, trainable=False, name="global_step")
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
            devices.hardware(), step.dtype, type(self.strategy).__name__,
            replicas, "s" * (replicas > 1), batch)

    @property
    def current_step(self) -> int:
        """The number of steps done."""
        return int(self.step.numpy())

    def path(self, name: str) -> str:
        """Returns the path of a file in output_dir."""
        return os.path.join(self.options.output_dir, name)

    def changes_of_set(self, rows: list[dict[str, Any]]) -> list[str]:
        """Returns in what the set of the latest of `rows` differs from the own one."""
        before = rows[-1].get("set") if rows else None
        return [] if before is None else run_folder.different(
            before, self.evaluation_set)

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
        changes = self.changes_of_set(evaluations(self.options.output_dir))
        if changes and files.exists(self.path(run_folder.RESULTS_FILE)):
            logging.warning(
                "%s now holds results of a different set than that of training (%s "
                "changed).", self.path(run_folder.RESULTS_FILE), ", ".join(changes))
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
            text_files.write_json(self.path(run_folder.RESULTS_FILE),
                                  {"step": self.current_step, **metrics})

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
