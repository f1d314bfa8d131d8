"""Fine-tuning: tables of features → batches of few lengths → a run of the loop.

What the tasks share. What is particular to one comes in as a `Task`: its model,
losses, predictions and score.
"""

import dataclasses
from typing import Any, Callable, Mapping, Optional

import numpy as np
import tf_keras
from absl import logging

from albert_tf.config import AlbertConfig
from albert_tf.finetuning import length_batching
from albert_tf.finetuning.feature_table import FeatureTable
from albert_tf.training import optimization
from albert_tf.training.loop import Run
from albert_tf.training.objectives import Objective, Predictions, Task
from albert_tf.training.options import RunOptions


@dataclasses.dataclass(frozen=True)
class BatchOptions:
    """How sequences become batches.

    Attributes:
      max_seq_length: the longest sequence, in pieces.
      num_lengths: static lengths that sequences are padded to; 1 pads all to
        max_seq_length, as the release does.
      random_seed: fixes the order of training.
      predict_batch_size: examples per batch of prediction, all replicas together.
    """

    max_seq_length: int
    num_lengths: int = 8
    random_seed: int = 12345
    predict_batch_size: int = 8


def make_task(model: tf_keras.Model, objective: Objective,
              score: Optional[Callable[[Predictions], Mapping[str, float]]],
              best_metric: str) -> Task:
    """A task for the loop; only its encoder must be in the checkpoint it starts from.

    Args:
      model: one of modeling.models.
      objective: its losses and predictions.
      score: predictions of the evaluation set → metrics.
      best_metric: the metric that the best checkpoint is chosen by.
    """
    return Task(model, objective, best_metric, score,
                may_be_new=lambda name: not name.startswith("bert/"))


def make_optimizer(model: tf_keras.Model, learning_rate: float, num_train_steps: int,
                   num_warmup_steps: int, optimizer: str):
    """A built optimizer for the model's trainable variables."""
    made = optimization.create_optimizer(
        learning_rate, num_train_steps, num_warmup_steps, optimizer=optimizer)
    made.build(model.trainable_variables)
    optimization.log_parameter_groups(model.trainable_variables, made)
    return made


def lengths_for(table: FeatureTable, batches: BatchOptions,
                lengths: tuple[int, ...] = ()) -> tuple[int, ...]:
    """The static lengths that a set's sequences are padded to.

    Args:
      table: the set.
      batches: how batches are made.
      lengths: those of another set, to be used again, so that fewer shapes are
        compiled; one more is added where sequences are longer.
    """
    own = length_batching.choose_lengths(
        table.lengths, batches.max_seq_length, batches.num_lengths)
    if not lengths:
        return own
    return lengths if own[-1] <= lengths[-1] else (*lengths, own[-1])


class FineTuning:
    """Training, evaluation and prediction of one task in one output_dir.

    To be constructed and used within the strategy's scope.

    Args:
      task: from make_task.
      config: the encoder's shape.
      options: how the run goes.
      batches: how batches are made.
      train: the set to train on, or None.
      evaluation: the set to evaluate on, or None.
      optimizer: from make_optimizer, or None where nothing is trained.
      task_options: what else the result depends on; kept in output_dir.
    """

    def __init__(self, task: Task, config: AlbertConfig, options: RunOptions,
                 batches: BatchOptions, train: Optional[FeatureTable],
                 evaluation: Optional[FeatureTable], optimizer=None,
                 task_options: Optional[Mapping[str, Any]] = None):
        self._batches = batches
        self._lengths: tuple[int, ...] = ()
        self._loaded = False
        train_lengths = (
            () if train is None else self._lengths_for(train, "training"))
        evaluation_lengths = (
            () if evaluation is None else self._lengths_for(evaluation, "evaluation"))
        inputs = length_batching.FeatureBatches(
            train, train_lengths, evaluation, evaluation_lengths,
            train_batch_size=options.train_batch_size,
            eval_batch_size=options.eval_batch_size,
            num_steps=options.num_train_steps, seed=batches.random_seed)
        self.run = Run(task, config, options, inputs, optimizer, task_options)

    def _lengths_for(self, table: FeatureTable, what: str) -> tuple[int, ...]:
        # Those of the first set, which is the one to train on: its order must not
        # depend on what is evaluated or predicted.
        self._lengths = lengths = lengths_for(table, self._batches, self._lengths)
        logging.info(
            "%s: %d sequences of %.1f pieces on average; batches are padded to %s "
            "pieces.", what, table.num_rows, float(np.mean(table.lengths)),
            ", ".join(map(str, lengths)))
        return lengths

    @property
    def chief(self) -> bool:
        """Whether this process writes what there is one of."""
        return self.run.chief

    @property
    def model(self) -> tf_keras.Model:
        """The model with the weights loaded last."""
        return self.run.task.model

    def train(self) -> None:
        """Trains to the last step, or until it stops early; see Run.train."""
        self.run.train()

    def load(self) -> None:
        """Loads the best checkpoint, else the latest, unless that is done."""
        if not self._loaded:
            self.run.load()
            self._loaded = True

    def evaluate(self) -> tuple[dict[str, float], Predictions]:
        """Metrics and predictions of the best checkpoint, else of the latest.

        See Run.evaluate; predictions have one row for each example.
        """
        self._loaded = True
        metrics = self.run.evaluate(best=True)
        return metrics, self.run.evaluator.predictions

    def predict(self, table: FeatureTable, what: str) -> Predictions:
        """The best checkpoint's predictions for a set, one row for each example."""
        self.load()
        replicas = self.run.strategy.num_replicas_in_sync
        batch_size = -(-self._batches.predict_batch_size // replicas) * replicas
        return self.run.predict(length_batching.FeatureBatches(
            evaluation=table, evaluation_lengths=self._lengths_for(table, what),
            eval_batch_size=batch_size))
