"""TFRecord files → batches: endless for training, each example once for evaluation.

The training batches of all hosts together depend only on the seed and the step: a run
that is killed and started again, even on different machines, sees exactly the batches
that it would have seen without the interruption. To achieve this, all records are split
into a fixed number of streams, which are distributed over the hosts. Each stream has its
own order, and fills the same rows of every batch:

    stream           0         1         2         3
    rows of a batch  0 1 2     3 4 5     6 7 8     9 10 11
                     |---- host 0 ----|  |---- host 1 ----|

Random numbers that change examples, such as masks, depend on the seed and on the
example's number among all rows since the first step.
"""

import itertools
import math
from typing import NamedTuple, Optional, Sequence

import numpy as np
import tensorflow as tf
from absl import logging

from albert_tf.masking.in_training import DynamicMasking
from albert_tf.records.checks import explain_read_error
from albert_tf.records.spec import FeatureSpec
from albert_tf.records.tfrecord import FileInfo
from albert_tf.training.batches import Batches, Pipeline, dataset_options

# Number of files that all streams together read at the same time. It is a constant,
# because the order of the examples depends on it.
_CYCLE_LENGTH = 8
# Maximum number of streams; it is divisible by common numbers of hosts. Small data sets
# have fewer streams, because records of different streams are not mixed.
_MOST_STREAMS = 48
_LEAST_OF_STREAM = 1024  # records
_READ_BYTES = 2 << 20  # per read and file; large reads matter for gs://

# Purpose of random draws, as part of their seed; the seeds of the order have no such
# entry. The draws of evaluation are the same for every run, regardless of its seed.
_TRAINING, _EVALUATION = 1, 2
_DRAWS_PER_BLOCK = 4  # of Philox

# No function here needs AutoGraph, whose conversion makes the start slow.
_no_autograph = tf.autograph.experimental.do_not_convert


class _FilePart(NamedTuple):
    """Consecutive records of a file, which belong to one stream."""

    path: str
    offset: int  # in bytes, where reading begins
    skipped: int  # number of records to skip from there
    num_records: int


def num_streams(num_records: int, batch_size: int) -> int:
    """Returns the largest number of streams that divides a batch of all hosts and leaves
    at least 1,024 records in each stream; 1 if there are fewer."""
    divided = math.gcd(batch_size, _MOST_STREAMS)
    return max(count for count in range(1, divided + 1) if divided % count == 0
               and (count == 1 or num_records >= count * _LEAST_OF_STREAM))


def _stream(files: Sequence[FileInfo], index: int, count: int) -> list[_FilePart]:
    """Returns the records of a stream; the sizes of all differ by at most 1."""
    total = sum(info.num_records for info in files)
    begin, end = index * total // count, (index + 1) * total // count
    parts, first = [], 0
    for info in files:
        low, high = max(begin - first, 0), min(end - first, info.num_records)
        if low < high:
            parts.append(_FilePart(info.path, *info.near(low), high - low))
        first += info.num_records
    return parts


def _order_seed(seed: int, stream: int) -> int:  # of a stream, in 0..2³¹-1
    sequence = np.random.SeedSequence([seed % 2**64, stream])
    return int(sequence.generate_state(1)[0] >> 1)


def draw(entropy: Sequence[int], first: tf.Tensor, num_examples: int,
         num_draws: int) -> tf.Tensor:
    """Returns random numbers, uniform over all int32, [num_examples, num_draws], for
    consecutive examples of which the first has the number `first`, int64 [].

    `entropy` selects a Philox sequence. Each example has its own range in it, so that
    its numbers do not depend on its batch.
    """
    blocks = -(-num_draws // _DRAWS_PER_BLOCK)
    key, high = np.random.SeedSequence(entropy).generate_state(2, np.uint64)
    low = tf.cast(first, tf.uint64) * tf.constant(blocks, tf.uint64)
    draws = tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=[num_examples, blocks * _DRAWS_PER_BLOCK], dtype=tf.int32,
        key=tf.constant([key], tf.uint64),
        counter=tf.stack([low, tf.constant(high, tf.uint64)]),
        # Named, because the default algorithm may depend on the device.
        alg=tf.random.Algorithm.PHILOX.value)
    return draws[:, :num_draws]


def _read_part(path, offset, skipped, num_records) -> tf.data.Dataset:
    # tf.data.TFRecordDataset can only begin at the start of a file.
    records = tf.data.experimental.from_variant(
        tf.raw_ops.TFRecordDatasetV2(
            filenames=path, compression_type="", buffer_size=np.int64(_READ_BYTES),
            byte_offsets=offset), tf.TensorSpec([], tf.string))
    return records.skip(skipped).take(num_records)


def _records_of_streams(
        files: Sequence[FileInfo], seed: int, own: range, streams: int, start: int,
        rows: int, shuffle_buffer: int) -> tf.data.Dataset:
    """Returns raw records of the streams `own`, in turns `rows` from each, beginning at
    record `start` of each."""
    parts = [_stream(files, stream, streams) for stream in own]
    paths, *numbers = zip(*itertools.chain.from_iterable(parts))
    columns = (tf.constant(paths), *(tf.constant(column, tf.int64)
                                     for column in numbers))
    # The parts of stream i are rows bounds[i]:bounds[i + 1] of the columns.
    bounds = tf.constant([0, *itertools.accumulate(map(len, parts))], tf.int64)
    starts = [divmod(start, sum(part.num_records for part in stream))
              for stream in parts]
    start_epochs, skipped = tf.unstack(tf.constant(starts, tf.int64), axis=1)
    seeds = tf.constant([_order_seed(seed, stream) for stream in own], tf.int64)

    @_no_autograph
    def records_of_stream(index):
        @_no_autograph
        def epoch_records(epoch):
            parts = [column[bounds[index]:bounds[index + 1]] for column in columns]
            if not shuffle_buffer:
                records = tf.data.Dataset.from_tensor_slices(
                    tuple(parts)).flat_map(_read_part)
            else:
                # Philox is named, because the default algorithm may depend on the device.
                draws = tf.random.stateless_uniform(
                    [tf.size(parts[0]) + 1], tf.stack([seeds[index], epoch]),
                    minval=None, maxval=None, dtype=tf.int64, alg="philox")
                order = tf.argsort(draws[:-1], stable=True)
                # shuffle() mixes the global seed into its own. In a traced function,
                # this sets only the function's global seed, so that the program's has
                # no effect.
                tf.random.set_seed(_order_seed(seed, 0) + 1)
                records = tf.data.Dataset.from_tensor_slices(tuple(
                    tf.gather(column, order) for column in parts)).interleave(
                        _read_part, cycle_length=max(1, _CYCLE_LENGTH // streams),
                        block_length=1, num_parallel_calls=tf.data.AUTOTUNE,
                        deterministic=True).shuffle(
                            -(-shuffle_buffer // streams), seed=draws[-1],
                            reshuffle_each_iteration=False)
            # Skipped after the shuffle, so that the order is that of an unbroken run.
            return records.skip(tf.where(
                epoch == start_epochs[index], skipped[index], 0))

        return tf.data.Dataset.range(
            start_epochs[index], np.iinfo(np.int64).max).flat_map(epoch_records)

    return tf.data.Dataset.range(len(own)).interleave(
        records_of_stream, cycle_length=len(own), block_length=rows,
        num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)


class RecordBatches(Batches):
    """Batches from TFRecords: dicts, name → int32 or float32 [B, ...].

        infos = check_files(paths, spec)
        RecordBatches(spec, infos, None, train_batch_size=4096, eval_batch_size=64,
                      seed=1)

    Each epoch of training reads a stream's files in a new order and mixes their records
    in a buffer. A batch may span the end of an epoch, so that every record is seen
    equally often.

    Evaluation sees the examples in the order of the files. Its last batches are filled
    up with rows of zeros; `example_weights` [B] float32 is 0 for them and 1 for
    examples. Every shard has the same number of batches, some possibly only padding,
    because a replica without a batch would make the others wait forever.

    Args:
      train, evaluation: files that records.check_files has checked, in the same order
        on every host; or None.
      max_eval_steps: maximum number of batches per replica in an evaluation; 0 for all.
      shuffle_buffer: number of records to mix, of all streams together; 0 keeps the
        order of the files and of the records in them, in every epoch.
      streams: number of streams, from num_streams; it must divide the rows of a step.
      random_map: changes each example: in training differently each time it is read, in
        the same way in every evaluation of every run. Its results have static shapes,
        and depend only on an example's own features and draws.
      evaluation_spec: given if the evaluation records have other features than those of
        training, such as masks; then `random_map` does not change them.
    """

    def __init__(self, spec: FeatureSpec, train: Optional[Sequence[FileInfo]],
                 evaluation: Optional[Sequence[FileInfo]], *, train_batch_size: int,
                 eval_batch_size: int, seed: int, max_eval_steps: int = 0,
                 shuffle_buffer: int = 10_000, streams: int = 1,
                 random_map: Optional[DynamicMasking] = None,
                 evaluation_spec: Optional[FeatureSpec] = None):
        super().__init__(train_batch_size, eval_batch_size)
        self.num_evaluation_shapes = 1 if evaluation else 0
        self._spec, self._evaluation_spec = spec, evaluation_spec or spec
        self._train, self._evaluation = train or [], evaluation or []
        self._seed, self._max_eval_steps = seed, max_eval_steps
        self._shuffle_buffer, self._streams = shuffle_buffer, streams
        self._random_map = random_map
        self._evaluation_map = None if evaluation_spec else random_map

    def training_dataset(self, shape, start_step, pipeline: Pipeline):
        batch_size, replicas, shard_index, num_shards = pipeline
        streams, random_map = self._streams, self._random_map
        own_rows = batch_size * replicas
        step_rows = own_rows * num_shards
        first_row = shard_index * own_rows
        rows = step_rows // streams  # filled by one stream
        # The streams that this host reads, and the rows in them that belong to other
        # hosts.
        begin, end = first_row // rows, -(-(first_row + own_rows) // rows)
        others = first_row - begin * rows

        # Steps are skipped whole epochs at a time by arithmetic, the rest by reading
        # records without parsing them.
        serialized = _records_of_streams(
            self._train, self._seed, range(begin, end), streams, start_step * rows,
            rows, self._shuffle_buffer)
        if own_rows != (end - begin) * rows:
            serialized = serialized.batch((end - begin) * rows).map(_no_autograph(
                lambda step: step[others:others + own_rows])).unbatch()

        @_no_autograph
        def parse(number, serialized):
            features = self._spec.parse(serialized)
            if random_map is None:
                return features
            # The draws depend on the example's number since the first step.
            step, replica = number // replicas, number % replicas
            first = step * step_rows + first_row + replica * batch_size
            return random_map(features, draw((self._seed % 2**64, 0, _TRAINING), first,
                                             batch_size, random_map.num_draws))

        return (serialized.batch(batch_size, drop_remainder=True)
                .enumerate(start_step * replicas)
                .map(parse, num_parallel_calls=tf.data.AUTOTUNE)
                .prefetch(tf.data.AUTOTUNE)
                .with_options(dataset_options()))

    def evaluation_dataset(self, shape, pipeline: Pipeline):
        batch_size, replicas, shard_index, num_shards = pipeline
        random_map = self._evaluation_map
        everything = sum(info.num_records for info in self._evaluation)
        # Of all shards, and of each: a multiple of its replicas.
        num_examples = min(everything, self._max_eval_steps * replicas * batch_size
                           * num_shards or everything)
        num_batches = -(-num_examples // (batch_size * num_shards))
        num_batches += -num_batches % replicas
        if num_examples < everything:
            logging.info("--max_eval_steps leaves %d of %d records out of each "
                         "evaluation.", everything - num_examples, everything)

        @_no_autograph
        def with_draws(number, record):
            # Records are numbered over all shards.
            return record, draw(
                (0, 0, _EVALUATION), number, 1, random_map.num_draws)[0]

        @_no_autograph
        def parse(serialized, *draws):
            features = self._evaluation_spec.parse(serialized)
            if draws:
                features = random_map(features, *draws)
            # Add example_weights and rows of zeros: [b, ...] → [batch_size, ...], static.
            count = tf.shape(next(iter(features.values())))[0]
            features = features | {"example_weights": tf.ones([count], tf.float32)}
            return {name: tf.ensure_shape(
                tf.pad(tensor, [[0, batch_size - count],
                                *[[0, 0]] * (tensor.shape.rank - 1)]),
                [batch_size, *tensor.shape[1:]]) for name, tensor in features.items()}

        records = tf.data.TFRecordDataset(
            [info.path for info in self._evaluation], buffer_size=_READ_BYTES
            ).take(num_examples)
        if random_map is None:
            records = records.shard(num_shards, shard_index)
        else:
            records = records.enumerate().shard(
                num_shards, shard_index).map(with_draws)
        dataset = records.batch(batch_size).map(
            parse, num_parallel_calls=tf.data.AUTOTUNE)
        padding = {name: tf.zeros(tensor.shape, tensor.dtype)
                   for name, tensor in dataset.element_spec.items()}
        # This shard may have fewer batches with examples than others.
        dataset = (dataset.concatenate(tf.data.Dataset.from_tensors(padding).repeat())
                   .take(num_batches)
                   .apply(tf.data.experimental.assert_cardinality(num_batches))
                   .prefetch(tf.data.AUTOTUNE)
                   .with_options(dataset_options()))
        return dataset, num_batches // replicas

    def explain_error(self, error):
        for spec, infos in ((self._spec, self._train),
                            (self._evaluation_spec, self._evaluation)):
            explained = explain_read_error([info.path for info in infos], spec, error)
            if explained:
                return explained
        return None
