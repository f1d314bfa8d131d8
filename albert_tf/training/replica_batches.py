"""Every replica's batches: the distributed datasets of training and evaluation."""

from typing import Any

import tensorflow as tf

from albert_tf.training.options import Inputs


def training_datasets(strategy: tf.distribute.Strategy, inputs: Inputs,
                      batch_size: int, start_step: int) -> list[Any]:
    """Distributed datasets, one for each static shape, from `start_step` on.

    Args:
      strategy: the current one.
      inputs: where the batches come from.
      batch_size: sequences per step, all replicas together.
      start_step: steps done.
    """
    def dataset(shape):
        def pipeline(context):
            replicas = context.num_replicas_in_sync // context.num_input_pipelines
            return inputs.train(
                shape=shape,
                batch_size=context.get_per_replica_batch_size(batch_size),
                start_batch=start_step * replicas,
                shard_index=context.input_pipeline_id,
                num_shards=context.num_input_pipelines)

        return strategy.distribute_datasets_from_function(pipeline)

    return [dataset(shape) for shape in range(inputs.num_shapes)]


def evaluation_datasets(strategy: tf.distribute.Strategy, inputs: Inputs,
                        batch_size: int) -> list[tuple[Any, int]]:
    """(distributed dataset, batches that each replica takes) for each shape."""
    def dataset(shape):
        steps = []

        def pipeline(context):
            replicas = context.num_replicas_in_sync // context.num_input_pipelines
            batches, count = inputs.evaluation(
                shape=shape,
                batch_size=context.get_per_replica_batch_size(batch_size),
                replicas=replicas,
                shard_index=context.input_pipeline_id,
                num_shards=context.num_input_pipelines)
            steps.append(count // replicas)
            return batches

        distributed = strategy.distribute_datasets_from_function(pipeline)
        return distributed, steps[0]

    return [dataset(shape) for shape in range(inputs.num_evaluation_shapes)]
