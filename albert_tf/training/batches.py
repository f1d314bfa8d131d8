"""The batches of every replica, for training and for evaluation."""

import functools
from typing import Any, NamedTuple, Optional

import tensorflow as tf

from albert_tf.errors import InputError


class Pipeline(NamedTuple):
    """One of the num_shards input pipelines that share the data, one for each host. It
    gives each of its `replicas` batches of `batch_size` rows of its own."""

    batch_size: int
    replicas: int = 1
    shard_index: int = 0
    num_shards: int = 1


class Batches:
    """Every replica's batches, for training and for evaluation.

        batches = RecordBatches(...)         # or FeatureBatches(...)
        [dataset] = batches.train(start_step=0)

    A subclass reads them. Batches have one of `num_shapes` static shapes in training and
    one of `num_evaluation_shapes` in evaluation (0 evaluates nothing). Each shape has its
    own dataset, so that accelerators compile one step for each. Both batch sizes count
    the rows of all replicas together.
    """

    num_shapes = 1
    num_evaluation_shapes = 0

    def __init__(self, train_batch_size: int, eval_batch_size: int):
        self.train_batch_size = train_batch_size
        self.eval_batch_size = eval_batch_size

    # ---- what a subclass overrides -----------------------------------------

    def training_dataset(self, shape: int, start_step: int,
                         pipeline: Pipeline) -> tf.data.Dataset:
        """Returns a pipeline's batches of one shape from step `start_step` on: for each
        step of that shape, one batch for each of its replicas, in a row."""
        raise NotImplementedError

    def evaluation_dataset(self, shape: int,
                           pipeline: Pipeline) -> tuple[tf.data.Dataset, int]:
        """Returns a pipeline's batches of one shape, and the number of them that each
        replica takes, which is the same in every pipeline."""
        raise NotImplementedError

    def shape_of_step(self, step: int) -> int:
        """Returns the shape of a training step's batch, in 0..num_shapes-1."""
        return 0

    def explain_error(self, error: Exception) -> Optional[InputError]:
        """Returns an error that names file and record if reading a batch failed."""
        return None

    # ---- what the loop calls -----------------------------------------------

    def train(self, start_step: int) -> list[Any]:
        """Returns distributed datasets, one per shape, that begin at `start_step`."""
        strategy = tf.distribute.get_strategy()
        return [strategy.distribute_datasets_from_function(
            lambda context, shape=shape: self.training_dataset(
                shape, start_step, _pipeline(context, self.train_batch_size)))
                for shape in range(self.num_shapes)]

    def evaluation(self) -> list[tuple[Any, int]]:
        """Returns (distributed dataset, batches per replica) for each shape."""
        strategy = tf.distribute.get_strategy()
        steps: dict[int, int] = {}

        def dataset(context, shape):
            batches, steps[shape] = self.evaluation_dataset(
                shape, _pipeline(context, self.eval_batch_size))
            return batches

        return [(strategy.distribute_datasets_from_function(
            functools.partial(dataset, shape=shape)), steps[shape])
                for shape in range(self.num_evaluation_shapes)]


def _pipeline(context: tf.distribute.InputContext, batch_size: int) -> Pipeline:
    return Pipeline(
        context.get_per_replica_batch_size(batch_size),
        context.num_replicas_in_sync // context.num_input_pipelines,
        context.input_pipeline_id, context.num_input_pipelines)


def dataset_options() -> tf.data.Options:
    """Returns the options of all datasets: a fixed order, no sharding by tf.data."""
    options = tf.data.Options()
    options.deterministic = True
    # The tuning thread sleeps for up to a minute, and deleting an iterator waits for
    # it. Without it AUTOTUNE uses as many threads as there are cores.
    options.autotune.enabled = False
    # The subclasses shard the data; tf.data must not shard it again.
    options.experimental_distribute.auto_shard_policy = (
        tf.data.experimental.AutoShardPolicy.OFF)
    return options
