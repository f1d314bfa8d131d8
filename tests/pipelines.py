"""The batches of one input pipeline from records."""

from albert_tf.training.batches import Pipeline
from albert_tf.training.input_pipeline import RecordBatches


def _batches(spec, train, evaluation, **options):
    return RecordBatches(spec, train, evaluation, train_batch_size=0, eval_batch_size=0,
                         **options)


def training_dataset(infos, spec, batch_size, seed, *, start_step=0, replicas=1,
                     shard_index=0, num_shards=1, **options):
    return _batches(spec, infos, None, seed=seed, **options).training_dataset(
        0, start_step, Pipeline(batch_size, replicas, shard_index, num_shards))


def evaluation_dataset(infos, spec, batch_size, *, replicas=1, shard_index=0,
                       num_shards=1, **options):
    """(batches, their number for each replica)."""
    return _batches(spec, None, infos, seed=1, **options).evaluation_dataset(
        0, Pipeline(batch_size, replicas, shard_index, num_shards))
