"""The batches of every replica, wherever they come from."""

from typing import Any, NamedTuple, Optional

import tensorflow as tf

from albert_tf.errors import InputError
from albert_tf.training.schedules import Schedule


class Pipeline(NamedTuple):
    """One of the num_shards input pipelines that share the data; each host has one. It
    feeds `replicas` replicas, each with batches of its own of `batch_size` rows."""

    batch_size: int
    replicas: int = 1
    shard_index: int = 0
    num_shards: int = 1


class Batches:
    """Every replica's batches, for training and for evaluation.

        batches = RecordBatches(...)         # or FeatureBatches(...)
        [dataset] = batches.train(start_step=0)

    Where they come from is a subclass: records for pretraining
    (`input_pipeline.RecordBatches`), features sorted by length for fine-tuning
    (`length_batching.FeatureBatches`). Batches have one of `num_shapes` static shapes
    in training and of `num_evaluation_shapes` (0 evaluates nothing) in evaluation; each
    has datasets of its own, so that accelerators compile a step for each. Both batch
    sizes are rows of all replicas together.
    """

    num_shapes = 1
    num_evaluation_shapes = 0
    # The length of each step's sequences, where it changes, for estimates of time.
    lengths: Optional[Schedule] = None

    def __init__(self, train_batch_size: int, eval_batch_size: int):
        self.train_batch_size = train_batch_size
        self.eval_batch_size = eval_batch_size

    # ---- what a subclass gives ---------------------------------------------

    def training_dataset(self, shape: int, start_step: int,
                         pipeline: Pipeline) -> tf.data.Dataset:
        """What a pipeline yields of one shape from step `start_step` on: for each step
        of that shape as many batches in a row as it feeds replicas."""
        raise NotImplementedError

    def evaluation_dataset(self, shape: int,
                           pipeline: Pipeline) -> tuple[tf.data.Dataset, int]:
        """What a pipeline yields of one shape, and how many batches each replica takes
        of it: the same number in every pipeline."""
        raise NotImplementedError

    def shape_of_step(self, step: int) -> int:
        """The shape of a training step's batch, in 0..num_shapes-1."""
        del step
        return 0

    def parts(self, shape: int, parts: int, replicas: int) -> int:
        """Into how many parts each replica cuts a batch of this shape, if it is to
        cut the largest into `parts`."""
        del shape, replicas
        return parts

    def explain_error(self, error: Exception) -> Optional[InputError]:
        """A sentence that names file and record, for an error of reading a batch."""
        del error
        return None

    # ---- what the loop takes -----------------------------------------------

    def train(self, start_step: int) -> list[Any]:
        """Distributed datasets, one for each shape, that begin with `start_step`."""
        strategy = tf.distribute.get_strategy()
        return [strategy.distribute_datasets_from_function(
            lambda context, shape=shape: self.training_dataset(
                shape, start_step, _pipeline(context, self.train_batch_size)))
                for shape in range(self.num_shapes)]

    def evaluation(self) -> list[tuple[Any, int]]:
        """(distributed dataset, batches that each replica takes) for each shape."""
        def distributed(shape):
            steps = []

            def dataset(context):
                made, count = self.evaluation_dataset(
                    shape, _pipeline(context, self.eval_batch_size))
                steps.append(count)
                return made

            return tf.distribute.get_strategy().distribute_datasets_from_function(
                dataset), steps[0]

        return [distributed(shape) for shape in range(self.num_evaluation_shapes)]


def _pipeline(context: tf.distribute.InputContext, batch_size: int) -> Pipeline:
    return Pipeline(
        context.get_per_replica_batch_size(batch_size),
        context.num_replicas_in_sync // context.num_input_pipelines,
        context.input_pipeline_id, context.num_input_pipelines)


def dataset_options() -> tf.data.Options:
    """What every dataset here has: a fixed order, and no sharding by tf.data."""
    options = tf.data.Options()
    options.deterministic = True
    # The tuning thread sleeps for up to a minute, and dropping an iterator waits for
    # it; without it AUTOTUNE takes as many threads as there are cores.
    options.autotune.enabled = False
    # Sharding is done here; tf.data must not do it once more.
    options.experimental_distribute.auto_shard_policy = (
        tf.data.experimental.AutoShardPolicy.OFF)
    return options
