"""Several replicas and processes that train one model: the batches of each, which
process writes, where they start.
"""

import re
from typing import Any, NamedTuple, Optional

import tensorflow as tf

from albert_tf.errors import InputError


class Pipeline(NamedTuple):
    """One of the input pipelines that share the data; each host has one.

    Attributes:
      batch_size: rows of one replica's batch.
      replicas: replicas that this pipeline feeds, each with batches of its own.
      shard_index: which pipeline it is, 0..num_shards-1.
      num_shards: number of pipelines.
    """

    batch_size: int
    replicas: int
    shard_index: int
    num_shards: int


class Batches:
    """Every replica's batches, for training and for evaluation.

    Where they come from is a subclass: records for pretraining
    (`input_pipeline.RecordBatches`), features sorted by length for fine-tuning
    (`length_batching.FeatureBatches`). Batches may have one of several static shapes;
    each has datasets of its own, so that accelerators compile a step for each.

    Args:
      train_batch_size: rows of a training step, all replicas together.
      eval_batch_size: rows of an evaluation batch, all replicas together.

    Attributes:
      num_shapes: shapes of training batches.
      num_evaluation_shapes: shapes of evaluation batches; 0 evaluates nothing.
    """

    num_shapes = 1
    num_evaluation_shapes = 0

    def __init__(self, train_batch_size: int, eval_batch_size: int):
        self.train_batch_size = train_batch_size
        self.eval_batch_size = eval_batch_size

    # ---- what a subclass gives ---------------------------------------------

    def training_dataset(self, shape: int, start_step: int,
                         pipeline: Pipeline) -> tf.data.Dataset:
        """What a pipeline yields of one shape from step `start_step` on: as many
        batches in a row as it feeds replicas for each step of that shape."""
        raise NotImplementedError

    def evaluation_dataset(self, shape: int,
                           pipeline: Pipeline) -> tuple[tf.data.Dataset, int]:
        """What a pipeline yields of one shape, and how many batches each replica
        takes of it: the same number in every pipeline."""
        raise NotImplementedError

    def shape_of_step(self, step: int) -> int:
        """The shape of a training step's batch, in 0..num_shapes-1."""
        del step
        return 0

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


def is_chief(strategy: tf.distribute.Strategy) -> bool:
    """Whether this process writes what there is one of."""
    resolver = strategy.cluster_resolver
    if resolver is None or not resolver.task_type:
        return True
    if resolver.task_type == "chief":
        return True
    has_chief = "chief" in resolver.cluster_spec().as_dict()
    return resolver.task_type == "worker" and resolver.task_id == 0 and not has_chief


def check_same_start(strategy: tf.distribute.Strategy, step: int) -> None:
    """Checks that the workers of a cluster are about to start at the same step.

    To be called before anything is restored, which the workers do together.

    Args:
      strategy: the current one.
      step: where this worker is about to start.

    Raises:
      InputError: if another worker is about to start elsewhere; on every worker.
    """
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return

    @tf.function
    def everyones_steps():
        own = tf.constant([step], tf.int64)
        return tf.distribute.get_replica_context().all_gather(own, axis=0)

    gathered = strategy.run(everyones_steps)
    steps = strategy.experimental_local_results(gathered)[0].numpy().tolist()
    if len(set(steps)) > 1:
        raise InputError(
            f"the workers start at different steps ({steps}): --output_dir must be "
            "one folder that all of them see.")


def explain_error(error: Exception, output_dir: str) -> Optional[InputError]:
    """A sentence for an exchange that broke off because another worker is gone."""
    broken = re.search("Collective ops is aborted by: (.*)", str(error))
    if broken is None:
        return None
    return InputError(
        f"another worker has ended or cannot be reached ({broken[1].rstrip(' .:')}); "
        "see its log; the same command, started on all of them, goes on at the latest "
        f"checkpoint in {output_dir}.")
