"""Evaluation on every replica: each example once, its metrics and predictions."""

from typing import Any, Optional, Sequence

import numpy as np
import orbit
import tensorflow as tf

from albert_tf.modeling.encoder import Computation
from albert_tf.training.steps import (
    MeanMetrics, Predictions, Task, metric_sums, own_function, replica_spec, shape_key)

# A dataset of batches of one shape, and how many each replica takes.
Batches = Sequence[tuple[Any, int]]


class Evaluator(orbit.AbstractEvaluator):
    """Evaluates a task's model over every example of a dataset, once.

    Each static shape of a batch is traced once, whatever sets it occurs in.

    Args:
      task: what to evaluate.
      datasets: (distributed dataset, batches that each replica takes) for each
        static shape of a batch; padded with examples of weight 0.
      computation: how the model computes.

    Attributes:
      predictions: what was kept of each example in the last evaluation.
    """

    def __init__(self, task: Task, datasets: Batches = (),
                 computation: Computation = Computation()):
        self.strategy = tf.distribute.get_strategy()
        self.task = task
        self.computation = computation
        self.metrics = MeanMetrics()
        self.predictions: Predictions = {}
        self._datasets = datasets
        # A task may have none, so their number does not tell.
        self._has_metrics = False
        # The step on batches of each shape.
        self._steps: dict[frozenset, Any] = {}

    @property
    def num_steps(self) -> int:
        """Batches that each replica takes."""
        return sum(steps for _, steps in self._datasets)

    def create_metrics(self, datasets: Optional[Batches] = None) -> None:
        """Makes the metrics' variables, whose names tracing one batch tells."""
        spec = replica_spec((datasets or self._datasets)[0][0].element_spec)
        outputs = tf.function(
            lambda features: self._metric_sums(self._outputs(features), features)
        ).get_concrete_function(spec).structured_outputs
        self.metrics.create(outputs)
        self._has_metrics = True

    def evaluate(self, num_steps=None) -> dict[str, float]:
        """Metrics over all examples: the task's means, and what it scores."""
        del num_steps  # orbit hands it over; all are taken.
        self.metrics.reset()
        self.predictions = self._run(self._datasets)
        metrics = self.metrics.result()
        if self.task.score is not None:
            metrics |= self.task.score(self.predictions)
        return metrics

    def predict(self, datasets: Batches) -> Predictions:
        """The task's predictions for every example of another set.

        Its labels are of no matter; they may all be 0.
        """
        if not self._has_metrics:
            self.create_metrics(datasets)
        return self._run(datasets)

    def _run(self, datasets: Batches) -> Predictions:
        rows: dict[str, dict[int, np.ndarray]] = {}
        for dataset, steps in datasets:
            step = self._steps.setdefault(
                shape_key(dataset), own_function(self._metric_step))
            iterator = iter(dataset) if steps else None
            for _ in range(steps):
                batch = {name: self._gathered(value)
                         for name, value in step(iterator).items()}
                indices = batch.pop("example_index", ())
                for name, values in batch.items():
                    rows.setdefault(name, {}).update(
                        (int(index), value) for index, value in zip(indices, values)
                        if index >= 0)
        return {name: [found[index] for index in sorted(found)]
                for name, found in rows.items()}

    def _gathered(self, value) -> np.ndarray:
        """All replicas' examples, those of other hosts too."""
        return self.strategy.gather(value, axis=0).numpy()

    def _outputs(self, features):
        return self.task.model(features, training=False, computation=self.computation)

    def _metric_sums(self, outputs, features):
        denominators = self.task.denominators(features)
        losses = self.task.losses(outputs, features, denominators)
        return metric_sums(self.task.metrics(outputs, features, losses))

    def _metric_step(self, iterator):
        def replica_step(features):
            outputs = self._outputs(features)
            self.metrics.update(self._metric_sums(outputs, features))
            if self.task.predictions is None:
                return {}
            return {**self.task.predictions(outputs, features),
                    "example_index": features["example_index"]}

        return self.strategy.run(replica_step, args=(next(iterator),))
