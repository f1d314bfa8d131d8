"""Evaluation on every replica: each example once, its metrics and predictions."""

from typing import Any, Sequence

import numpy as np
import orbit
import tensorflow as tf

from albert_tf.training_steps import (
    MeanMetrics, Predictions, Task, metric_sums, replica_spec)


class Evaluator(orbit.AbstractEvaluator):
    """Evaluates a task's model over every example of a dataset, once.

    Args:
      task: what to evaluate.
      datasets: (distributed dataset, batches that each replica takes) for each
        static shape of a batch; padded with examples of weight 0.
    """

    def __init__(self, task: Task, datasets: Sequence[tuple[Any, int]]):
        self.strategy = tf.distribute.get_strategy()
        self.task = task
        self.metrics = MeanMetrics()
        self._datasets = [(data, steps) for data, steps in datasets if steps]
        self._batch_metrics = tf.function(self._metric_step)
        self._batch_predictions = tf.function(self._prediction_step)

    @property
    def num_steps(self) -> int:
        """Batches that each replica takes."""
        return sum(steps for _, steps in self._datasets)

    def create_metrics(self) -> None:
        """Makes the metrics' variables, whose names tracing one batch tells."""
        spec = replica_spec(self._datasets[0][0].element_spec)
        outputs = tf.function(
            lambda features: self._metric_sums(
                self.task.model(features, training=False), features)
        ).get_concrete_function(spec).structured_outputs
        self.metrics.create(outputs)

    def evaluate(self, num_steps=None) -> dict[str, float]:
        """Metrics over all examples: the task's means, and what it scores."""
        del num_steps  # orbit hands it over; all are taken.
        self.metrics.reset()
        predictions = self._run(self._batch_metrics)
        metrics = self.metrics.result()
        if self.task.score is not None:
            metrics |= self.task.score(predictions)
        return metrics

    def predict(self) -> Predictions:
        """The task's predictions for every example; labels are not looked at."""
        return self._run(self._batch_predictions)

    def _run(self, step) -> Predictions:
        rows: dict[str, dict[int, np.ndarray]] = {}
        for dataset, steps in self._datasets:
            iterator = iter(dataset)
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

    def _metric_sums(self, outputs, features):
        denominators = self.task.denominators(features)
        losses = self.task.losses(outputs, features, denominators)
        return metric_sums(self.task.metrics(outputs, features, losses))

    def _kept(self, outputs, features):
        if self.task.predictions is None:
            return {}
        return {**self.task.predictions(outputs, features),
                "example_index": features["example_index"]}

    def _metric_step(self, iterator):
        def replica_step(features):
            outputs = self.task.model(features, training=False)
            self.metrics.update(self._metric_sums(outputs, features))
            return self._kept(outputs, features)

        return self.strategy.run(replica_step, args=(next(iterator),))

    def _prediction_step(self, iterator):
        def replica_step(features):
            return self._kept(self.task.model(features, training=False), features)

        return self.strategy.run(replica_step, args=(next(iterator),))
