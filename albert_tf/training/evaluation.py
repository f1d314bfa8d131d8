"""What is trained and evaluated, its evaluation and prediction, and what training shares
with them: mean metrics, and graphs that are traced once for each static shape."""

import dataclasses
import functools
from typing import Any, Callable, Iterable, Mapping, Optional, Sequence

import numpy as np
import tensorflow as tf
import tf_keras

from albert_tf.jobs.progress import Progress
from albert_tf.modeling.encoder import Computation
from albert_tf.training.losses import Objective, Predictions, WeightedValues


@dataclasses.dataclass(frozen=True)
class Task:
    """A task, as the training loop needs it.

        Task(AlbertForPreTraining(config), PRETRAINING, "masked_lm_accuracy")

    The model is called as model(features, training=..., seed=..., computation=...),
    without AutoGraph. The best checkpoint has the highest value of `best_metric`.

    Attributes:
      score: predictions of all examples, as Evaluator.predict returns them → further
        evaluation metrics.
      may_be_new: whether a variable of this name may be missing from the initial
        checkpoint, such as those of a new head, which is trained from scratch.
      on_report: called with the step and the metrics whenever progress is logged.
      training_objective: the objective in training, if evaluation has a simpler one.
      labels: the labels of its outputs, in their order, with which those of an initial
        checkpoint are matched; () if it has none.
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
    """Returns the names of the metrics of a batch, by tracing `sums` once; callers run
    one layer there, since each that is traced takes a tenth of a second."""
    spec = replica_spec(dataset.element_spec)
    return list(own_function(sums).get_concrete_function(spec).structured_outputs)


# ---- static shapes ---------------------------------------------------------


def own_function(python_function: Callable[..., Any], autograph: bool = False,
                 **options: Any) -> Any:
    """Returns a tf.function for one static shape. Steps do not need AutoGraph, which
    takes a third of the tracing time."""
    # TensorFlow warns if a Python function is traced often, but counts each partial
    # separately.
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
                lambda features: self._metric_sums(
                    self._outputs(features, passes=1), features), datasets[0][0]))

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

    def _outputs(self, features, **changes):
        return self.task.model(features, training=False, computation=dataclasses.replace(
            self.computation, **changes))

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
