"""TFRecord files → batches: endless for training, each example once for evaluation.

Training order is a function of the seed, the epoch and the shard alone: not of the
batch size, the number of threads, the machine, or where the run was resumed. So a run
that is killed and started again sees exactly the batches that it would have seen. The
same holds for random numbers that change examples, such as masks: they are a function
of the seed, the shard and the example's position in that order.

Both kinds of dataset are made for one of num_shards pipelines (one host), in batches of
that pipeline, from files that records.check_files has checked, which every shard gets
in the same order.
"""

from typing import Mapping, NamedTuple, Optional, Protocol, Sequence

import numpy as np
import tensorflow as tf
from absl import logging

from albert_tf.errors import InputError
from albert_tf.records.checks import explain_read_error
from albert_tf.records.spec import FeatureSpec
from albert_tf.records.tfrecord import FileInfo
from albert_tf.training.distribution import Batches, Pipeline, dataset_options

# Files read at the same time. Part of the order of examples, hence a constant
# and not a matter of the machine.
_CYCLE_LENGTH = 8
_READ_BYTES = 2 << 20  # per read and file; large reads matter for gs://

# What draws are for; the order's seeds have no such entry. Those of evaluation are
# the same for every run, whatever its seed.
_TRAINING, _EVALUATION = 1, 2
_DRAWS_PER_BLOCK = 4  # of Philox

# Nothing here needs AutoGraph, whose conversion takes long at the start.
_no_autograph = tf.autograph.experimental.do_not_convert


class EvaluationData(NamedTuple):
    """Batches of one pipeline: `num_batches` is the same in every shard, `num_examples`
    are those of all shards together."""

    dataset: tf.data.Dataset
    num_batches: int
    num_examples: int


class RandomMap(Protocol):
    """Changes the examples of a batch at random; `masking.in_training.DynamicMasking`
    is one.

    Called with the features of a batch and draws int32 [B, num_draws], each uniform
    over all int32; returns features of static shapes. An example's result may depend on
    its own features and draws alone.
    """

    num_draws: int

    def __call__(self, features: Mapping[str, tf.Tensor],
                 draws: tf.Tensor) -> dict[str, tf.Tensor]:
        ...


class _ShardFile(NamedTuple):
    """What one shard reads of a file: records index, index + step, ..."""

    path: str
    step: int
    index: int
    num_records: int  # read by this shard


def _shard_files(
        files: Sequence[FileInfo], shard_index: int, num_shards: int
) -> list[_ShardFile]:
    """Divides files among shards; the shards are disjoint and complete.

    With F = q·num_shards + r files, the first q·num_shards are dealt out whole. The r
    left over are read by all shards, each taking every num_shards-th record; dealing
    them out too would show some examples far more often than others.
    """
    if not 0 <= shard_index < num_shards:
        raise ValueError(f"shard_index {shard_index} is not in 0..{num_shards - 1}.")
    if not files:
        raise ValueError("there are no files to read.")
    whole = len(files) - len(files) % num_shards
    shard = [_ShardFile(f.path, 1, 0, f.num_records)
             for f in files[shard_index:whole:num_shards]]
    shard += [_ShardFile(f.path, num_shards, shard_index,
                         len(range(shard_index, f.num_records, num_shards)))
              for f in files[whole:]]
    if not sum(f.num_records for f in shard):
        raise InputError(
            f"{sum(f.num_records for f in files)} records in {len(files)} files are "
            f"too few for {num_shards} input pipelines; create more data or use "
            "fewer workers.")
    return shard


def _order_seed(seed: int, shard_index: int) -> int:
    """A seed for this shard, in 0..2³¹-1; shards shuffle independently."""
    sequence = np.random.SeedSequence([seed % 2**64, shard_index])
    return int(sequence.generate_state(1)[0] >> 1)


def draw(entropy: Sequence[int], first: tf.Tensor, num_examples: int,
         num_draws: int) -> tf.Tensor:
    """Random numbers of consecutive examples, int32 [num_examples, num_draws], uniform
    over all int32.

    Each example has its own range of one Philox sequence, which `entropy` decides, so
    that its numbers are the same in whatever batch it comes. `first` is the number of
    the first example, int64 [], not negative.
    """
    blocks = -(-num_draws // _DRAWS_PER_BLOCK)
    key, high = np.random.SeedSequence(entropy).generate_state(2, np.uint64)
    low = tf.cast(first, tf.uint64) * tf.constant(blocks, tf.uint64)
    draws = tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=[num_examples, blocks * _DRAWS_PER_BLOCK], dtype=tf.int32,
        key=tf.constant([key], tf.uint64),
        counter=tf.stack([low, tf.constant(high, tf.uint64)]),
        # By name: the default may depend on the device.
        alg=tf.random.Algorithm.PHILOX.value)
    return draws[:, :num_draws]


def _read_shard(path, step, index) -> tf.data.Dataset:
    records = tf.data.TFRecordDataset(path, buffer_size=_READ_BYTES)
    return records.shard(step, index)


def training_dataset(
        files: Sequence[FileInfo], spec: FeatureSpec, batch_size: int, seed: int, *,
        start_batch: int = 0, shard_index: int = 0, num_shards: int = 1,
        shuffle_buffer: int = 10_000, random_map: Optional[RandomMap] = None,
) -> tf.data.Dataset:
    """Endless batches: dicts, name → int32 or float32 [batch_size, ...].

        infos = check_files(paths, spec)
        for batch in training_dataset(infos, spec, batch_size=32, seed=1).take(100):

    Each epoch reads the shard's files in a new order, several at a time, and mixes
    their records in a buffer. Batches run on over the ends of epochs, so every record
    is seen equally often. A dataset with batch size B/2 yields the same examples in its
    batches 2k and 2k+1 as one with batch size B in batch k: however many replicas a
    host feeds, the host's examples of a step stay the same.

    Args:
      seed: any integer; fixes the order together with epoch and shard.
      start_batch: batches of this size to skip: whole epochs by arithmetic, the rest by
        reading records without parsing them.
      shuffle_buffer: records to mix; 0 keeps the order of the files and of the records
        in them, in every epoch.
      random_map: changes each example, differently each time it comes.
    """
    if batch_size < 1 or start_batch < 0 or shuffle_buffer < 0:
        raise ValueError(
            f"batch_size {batch_size}, start_batch {start_batch}, shuffle_buffer "
            f"{shuffle_buffer}: out of range.")
    shard = _shard_files(files, shard_index, num_shards)
    start_epoch, skipped = divmod(
        start_batch * batch_size, sum(f.num_records for f in shard))

    @_no_autograph
    def epoch_records(epoch):
        records = _epoch_records(shard, epoch, _order_seed(seed, shard_index),
                                 shuffle_buffer)
        # After the shuffle, so that the rest comes as in a run that was not stopped.
        return records.skip(tf.where(epoch == start_epoch, np.int64(skipped), 0))

    @_no_autograph
    def parse(number, serialized):
        features = spec.parse(serialized)
        if random_map is None:
            return features
        # Examples are counted over all epochs.
        return random_map(features, draw(
            (seed % 2**64, shard_index, _TRAINING), number * batch_size, batch_size,
            random_map.num_draws))

    epochs = tf.data.Dataset.range(start_epoch, np.iinfo(np.int64).max)
    return (epochs.flat_map(epoch_records)
            .batch(batch_size, drop_remainder=True)
            .enumerate(start_batch)
            .map(parse, num_parallel_calls=tf.data.AUTOTUNE)
            .prefetch(tf.data.AUTOTUNE)
            .with_options(dataset_options()))


def _epoch_records(
        shard: list[_ShardFile], epoch: tf.Tensor, order_seed: int,
        shuffle_buffer: int) -> tf.data.Dataset:
    """Raw records of one epoch; called while tf.data traces `epoch_records`."""
    paths, steps, indices, _ = zip(*shard)
    columns = (tf.constant(paths), tf.constant(steps, tf.int64),
               tf.constant(indices, tf.int64))
    if not shuffle_buffer:
        return tf.data.Dataset.from_tensor_slices(columns).flat_map(_read_shard)

    # Philox by name: the default may depend on the device.
    draws = tf.random.stateless_uniform(
        [len(shard) + 1], [order_seed, epoch], minval=None, maxval=None,
        dtype=tf.int64, alg="philox")
    order = tf.argsort(draws[:-1], stable=True)
    columns = [tf.gather(column, order) for column in columns]
    # shuffle() mixes the global seed into its own. In a traced function, this
    # sets that of the function only, so that the program's does not matter.
    tf.random.set_seed(order_seed + 1)
    return (tf.data.Dataset.from_tensor_slices(tuple(columns))
            .interleave(_read_shard, cycle_length=_CYCLE_LENGTH, block_length=1,
                        num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
            .shuffle(shuffle_buffer, seed=draws[-1], reshuffle_each_iteration=False))


def evaluation_dataset(
        files: Sequence[FileInfo], spec: FeatureSpec, batch_size: int, *,
        max_batches: Optional[int] = None, shard_index: int = 0, num_shards: int = 1,
        batches_multiple_of: int = 1, random_map: Optional[RandomMap] = None,
) -> EvaluationData:
    """Every example exactly once, in the order of the files; padded, none dropped.

    The last batches are filled up with rows of zeros. `example_weights` [B] float32 is
    1 for examples and 0 for such rows; sums must be weighted by it and divided by its
    sum. Every shard yields the same number of batches, if need be some of padding only,
    because a replica without a batch would make the others wait for ever.

    Args:
      max_batches: batches of each pipeline to stop after; None reads all. The examples
        are the first of the files, whatever the number of shards.
      batches_multiple_of: pads to a multiple of this many batches: the replicas that
        this pipeline feeds, each with batches of its own.
      random_map: changes each example in the same way in every evaluation, in every run
        and with any number of shards.
    """
    if (batch_size < 1 or batches_multiple_of < 1 or max_batches is not None
            and max_batches < 1 or not files or not 0 <= shard_index < num_shards):
        raise ValueError(
            f"{len(files)} files, batch_size {batch_size}, max_batches {max_batches}, "
            f"batches_multiple_of {batches_multiple_of}, shard {shard_index} of "
            f"{num_shards}: out of range.")
    num_examples = sum(f.num_records for f in files)
    if max_batches is not None:
        num_examples = min(num_examples, max_batches * batch_size * num_shards)
    num_batches = -(-num_examples // (batch_size * num_shards))
    num_batches += -num_batches % batches_multiple_of

    @_no_autograph
    def with_draws(number, record):
        # The number among the records of all shards.
        return record, draw((0, 0, _EVALUATION), number, 1, random_map.num_draws)[0]

    @_no_autograph
    def parse(serialized, *draws):
        features = spec.parse(serialized)
        if draws:
            features = random_map(features, *draws)
        return _pad(features, batch_size)

    records = tf.data.TFRecordDataset([f.path for f in files], buffer_size=_READ_BYTES)
    records = records.take(num_examples)
    if random_map is None:
        records = records.shard(num_shards, shard_index)
    else:
        records = records.enumerate().shard(num_shards, shard_index).map(with_draws)
    dataset = records.batch(batch_size).map(parse, num_parallel_calls=tf.data.AUTOTUNE)
    padding = {name: tf.zeros(tensor.shape, tensor.dtype)
               for name, tensor in dataset.element_spec.items()}
    # This shard may have fewer batches of examples than others.
    dataset = (dataset.concatenate(tf.data.Dataset.from_tensors(padding).repeat())
               .take(num_batches)
               .apply(tf.data.experimental.assert_cardinality(num_batches))
               .prefetch(tf.data.AUTOTUNE)
               .with_options(dataset_options()))
    return EvaluationData(dataset, num_batches, num_examples)


def _pad(batch: dict[str, tf.Tensor], rows: int) -> dict[str, tf.Tensor]:
    """Adds example_weights, and rows of zeros: [b, ...] → [rows, ...], static."""
    count = tf.shape(next(iter(batch.values())))[0]
    batch = batch | {"example_weights": tf.ones([count], tf.float32)}

    def pad(tensor):
        ends = [[0, rows - count]] + [[0, 0]] * (tensor.shape.rank - 1)
        return tf.ensure_shape(tf.pad(tensor, ends), [rows, *tensor.shape[1:]])

    return {name: pad(tensor) for name, tensor in batch.items()}


class RecordBatches(Batches):
    """Batches of TFRecords: endless for training, each example once in evaluation.

        infos = check_files(paths, spec)
        RecordBatches(spec, infos, None, train_batch_size=4096, eval_batch_size=64,
                      seed=1)

    `train` and `evaluation` are checked files, or None. `max_eval_steps` are batches of
    each replica in an evaluation; 0 evaluates all. For the others see training_dataset.
    """

    def __init__(self, spec: FeatureSpec, train: Optional[Sequence[FileInfo]],
                 evaluation: Optional[Sequence[FileInfo]], *, train_batch_size: int,
                 eval_batch_size: int, seed: int, max_eval_steps: int = 0,
                 shuffle_buffer: int = 10_000,
                 random_map: Optional[RandomMap] = None):
        super().__init__(train_batch_size, eval_batch_size)
        self.num_evaluation_shapes = 1 if evaluation else 0
        self._spec = spec
        self._train = train or []
        self._evaluation = evaluation or []
        self._seed = seed
        self._max_eval_steps = max_eval_steps
        self._shuffle_buffer = shuffle_buffer
        self._random_map = random_map

    def training_dataset(self, shape, start_step, pipeline: Pipeline):
        return training_dataset(
            self._train, self._spec, pipeline.batch_size, self._seed,
            # Each replica takes a batch of its own in each step.
            start_batch=start_step * pipeline.replicas,
            shard_index=pipeline.shard_index, num_shards=pipeline.num_shards,
            shuffle_buffer=self._shuffle_buffer, random_map=self._random_map)

    def evaluation_dataset(self, shape, pipeline: Pipeline):
        replicas = pipeline.replicas
        made = evaluation_dataset(
            self._evaluation, self._spec, pipeline.batch_size,
            max_batches=self._max_eval_steps * replicas or None,
            shard_index=pipeline.shard_index, num_shards=pipeline.num_shards,
            batches_multiple_of=replicas, random_map=self._random_map)
        everything = sum(info.num_records for info in self._evaluation)
        if made.num_examples < everything:
            logging.info("--max_eval_steps leaves %d of %d records out of each "
                         "evaluation.", everything - made.num_examples, everything)
        return made.dataset, made.num_batches // replicas

    def explain_error(self, error):
        paths = [info.path for info in (*self._train, *self._evaluation)]
        return explain_read_error(paths, self._spec, error)
