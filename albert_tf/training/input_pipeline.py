"""TFRecord files → batches: endless for training, each example once for evaluation.

The training batches of all hosts together are a function of the seed and the step
alone: not of the number of hosts, replicas or threads, nor of where the run was
resumed. So a run that is killed and started again, on other machines too, sees exactly
the batches that it would have seen. For that, all records are cut into a fixed number
of streams, which hosts share out; each stream has an order of its own, and fills the
same rows of every batch:

    stream           0         1         2         3
    rows of a batch  0 1 2     3 4 5     6 7 8     9 10 11
                     |---- host 0 ----|  |---- host 1 ----|

Random numbers that change examples, such as masks, are a function of the seed and of
the example's number among all rows since the first step.

Both kinds of dataset are made for one of num_shards pipelines (one host), from files
that records.check_files has checked, which every host gets in the same order.
"""

import bisect
import itertools
import math
from typing import Mapping, NamedTuple, Optional, Protocol, Sequence

import numpy as np
import tensorflow as tf
from absl import logging

from albert_tf.errors import InputError
from albert_tf.records.checks import explain_read_error
from albert_tf.records.spec import FeatureSpec
from albert_tf.records.tfrecord import FileInfo
from albert_tf.training.batches import Batches, Pipeline, dataset_options
from albert_tf.training.schedules import Phases, Stage, parts_of

# Files that all streams read at the same time. Part of the order of examples, hence a
# constant and not a matter of the machine.
_CYCLE_LENGTH = 8
# The most streams; hosts are a power of two of them, or a few. Small sets have fewer,
# since streams do not mix.
_MOST_STREAMS = 48
_LEAST_OF_STREAM = 1024  # records
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


class _FilePart(NamedTuple):
    """Consecutive records of a file: what a stream reads of it."""

    path: str
    offset: int  # bytes to begin at, and
    skipped: int  # records of there to leave out
    num_records: int


def num_streams(num_records: int, batch_size: int,
                least: int = _LEAST_OF_STREAM) -> int:
    """Into how many streams so many records are cut: the most that divide a batch of
    all hosts evenly and have `least` records each; 1 if there are fewer."""
    divided = math.gcd(batch_size, _MOST_STREAMS)
    return max(count for count in range(1, divided + 1) if divided % count == 0
               and (count == 1 or num_records >= count * least))


def _stream(files: Sequence[FileInfo], index: int, count: int) -> list[_FilePart]:
    """The records of one of `count` streams, which differ by one record at most."""
    total = sum(info.num_records for info in files)
    begin, end = index * total // count, (index + 1) * total // count
    parts, first = [], 0
    for info in files:
        low, high = max(begin - first, 0), min(end - first, info.num_records)
        if low < high:
            parts.append(_FilePart(info.path, *info.near(low), high - low))
        first += info.num_records
    if not parts:
        raise InputError(f"{total} records in {len(files)} files are too few for "
                         f"{count} streams; create more data.")
    return parts


def _order_seed(seed: int, stream: int) -> int:
    """A seed for this stream, in 0..2³¹-1; streams shuffle independently."""
    sequence = np.random.SeedSequence([seed % 2**64, stream])
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


def _read_part(path, offset, skipped, num_records) -> tf.data.Dataset:
    # tf.data.TFRecordDataset begins at the start of a file only.
    records = tf.data.experimental.from_variant(
        tf.raw_ops.TFRecordDatasetV2(
            filenames=path, compression_type="", buffer_size=np.int64(_READ_BYTES),
            byte_offsets=offset), tf.TensorSpec([], tf.string))
    return records.skip(skipped).take(num_records)


def training_dataset(
        files: Sequence[FileInfo], spec: FeatureSpec, batch_size: int, seed: int, *,
        start_step: int = 0, replicas: int = 1, shard_index: int = 0,
        num_shards: int = 1, streams: int = 1, rows_before: int = 0,
        shuffle_buffer: int = 10_000, random_map: Optional[RandomMap] = None,
) -> tf.data.Dataset:
    """Endless batches: dicts, name → int32 or float32 [batch_size, ...].

        infos = check_files(paths, spec)
        for batch in training_dataset(infos, spec, batch_size=32, seed=1).take(100):

    Each epoch reads a stream's files in a new order and mixes their records in a
    buffer. Batches run on over the ends of epochs, so every record is seen equally
    often. A step's rows are dealt out in order: to hosts, then to replicas.

    Args:
      batch_size: of each replica; hosts have `replicas` batches for each step.
      seed: any integer; fixes the order together with the step.
      start_step: steps to skip: whole epochs by arithmetic, the rest by reading records
        without parsing them.
      streams: of num_streams, for instance; a divisor of all rows of a step.
      rows_before: examples used before step 0, in earlier stages; a multiple of
        streams.
      shuffle_buffer: records to mix, of all streams together; 0 keeps the order of the
        files and of the records in them, in every epoch.
      random_map: changes each example, differently each time it comes.
    """
    own_rows = batch_size * replicas
    step_rows = own_rows * num_shards
    if (batch_size < 1 or start_step < 0 or shuffle_buffer < 0 or not files
            or not 0 <= shard_index < num_shards or streams < 1 or step_rows % streams
            or rows_before % streams):
        raise ValueError(
            f"{len(files)} files, batch_size {batch_size}, start_step {start_step}, "
            f"shard {shard_index} of {num_shards}, {streams} streams, shuffle_buffer "
            f"{shuffle_buffer}, rows_before {rows_before}: out of range.")
    first_row = shard_index * own_rows
    rows = step_rows // streams  # that a stream fills
    # Streams that this host reads, and which of their rows are its own.
    begin, end = first_row // rows, -(-(first_row + own_rows) // rows)
    others = first_row - begin * rows

    serialized = _records_of_streams(
        files, seed, range(begin, end), streams,
        rows_before // streams + start_step * rows, rows, shuffle_buffer)
    if own_rows != (end - begin) * rows:
        serialized = serialized.batch((end - begin) * rows).map(_no_autograph(
            lambda step: step[others:others + own_rows])).unbatch()

    @_no_autograph
    def parse(number, serialized):
        features = spec.parse(serialized)
        if random_map is None:
            return features
        # Examples are counted over all steps.
        step, replica = number // replicas, number % replicas
        first = rows_before + step * step_rows + first_row + replica * batch_size
        return random_map(features, draw(
            (seed % 2**64, 0, _TRAINING), first, batch_size, random_map.num_draws))

    return (serialized.batch(batch_size, drop_remainder=True)
            .enumerate(start_step * replicas)
            .map(parse, num_parallel_calls=tf.data.AUTOTUNE)
            .prefetch(tf.data.AUTOTUNE)
            .with_options(dataset_options()))


def _records_of_streams(
        files: Sequence[FileInfo], seed: int, own: range, streams: int, start: int,
        rows: int, shuffle_buffer: int) -> tf.data.Dataset:
    """Raw records of the streams `own`, in turns `rows` of each, from record `start` of
    each on."""
    parts = [_stream(files, stream, streams) for stream in own]
    paths, *numbers = zip(*itertools.chain.from_iterable(parts))
    columns = (tf.constant(paths), *(tf.constant(column, tf.int64)
                                     for column in numbers))
    # A stream's parts are bounds[i]:bounds[i + 1] of all.
    bounds = tf.constant([0, *itertools.accumulate(map(len, parts))], tf.int64)
    starts = [divmod(start, sum(part.num_records for part in stream))
              for stream in parts]
    start_epochs, skipped = tf.unstack(tf.constant(starts, tf.int64), axis=1)
    seeds = tf.constant([_order_seed(seed, stream) for stream in own], tf.int64)

    @_no_autograph
    def records_of_stream(index):
        @_no_autograph
        def epoch_records(epoch):
            own = [column[bounds[index]:bounds[index + 1]] for column in columns]
            records = _epoch_records(
                own, epoch, seeds[index], _order_seed(seed, 0) + 1,
                max(1, _CYCLE_LENGTH // streams),
                shuffle_buffer and -(-shuffle_buffer // streams))
            # After the shuffle, so that the rest comes as in an unbroken run.
            return records.skip(tf.where(
                epoch == start_epochs[index], skipped[index], 0))

        return tf.data.Dataset.range(
            start_epochs[index], np.iinfo(np.int64).max).flat_map(epoch_records)

    return tf.data.Dataset.range(len(own)).interleave(
        records_of_stream, cycle_length=len(own), block_length=rows,
        num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)


def _epoch_records(columns: list[tf.Tensor], epoch: tf.Tensor, order_seed: tf.Tensor,
                   graph_seed: int, cycle_length: int, shuffle_buffer: int
                   ) -> tf.data.Dataset:
    """Raw records of one epoch of a stream, whose parts `columns` hold; called while
    tf.data traces `epoch_records`."""
    if not shuffle_buffer:
        return tf.data.Dataset.from_tensor_slices(tuple(columns)).flat_map(_read_part)

    # Philox by name: the default may depend on the device.
    draws = tf.random.stateless_uniform(
        [tf.size(columns[0]) + 1], tf.stack([order_seed, epoch]), minval=None,
        maxval=None, dtype=tf.int64, alg="philox")
    order = tf.argsort(draws[:-1], stable=True)
    columns = [tf.gather(column, order) for column in columns]
    # shuffle() mixes the global seed into its own. In a traced function, this
    # sets that of the function only, so that the program's does not matter.
    tf.random.set_seed(graph_seed)
    return (tf.data.Dataset.from_tensor_slices(tuple(columns))
            .interleave(_read_part, cycle_length=cycle_length, block_length=1,
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


class RecordSet(NamedTuple):
    """Checked files of records of one length, and what changes them."""

    spec: FeatureSpec
    files: Sequence[FileInfo]
    random_map: Optional[RandomMap] = None


class RecordBatches(Batches):
    """Batches of TFRecords: endless for training, each example once in evaluation.

        infos = check_files(paths, spec)
        RecordBatches(spec, infos, None, train_batch_size=4096, eval_batch_size=64,
                      seed=1)

    `train` and `evaluation` are checked files, or None. `max_eval_steps` are batches of
    each replica in an evaluation; 0 evaluates all. For the others see training_dataset.

    The length of a training's sequences changes with its `stages`. Those of one length
    go on in the order of its records where an earlier stage left it; `sets` are lengths
    → records, in place of `train`.
    """

    def __init__(self, spec: FeatureSpec, train: Optional[Sequence[FileInfo]],
                 evaluation: Optional[Sequence[FileInfo]], *, train_batch_size: int,
                 eval_batch_size: int, seed: int, max_eval_steps: int = 0,
                 shuffle_buffer: int = 10_000, streams: int = 1,
                 random_map: Optional[RandomMap] = None, stages: Sequence[Stage] = (),
                 sets: Mapping[int, RecordSet] = {}):
        super().__init__(train_batch_size, eval_batch_size)
        self.num_evaluation_shapes = 1 if evaluation else 0
        self._spec = spec
        self._evaluation = evaluation or []
        self._seed = seed
        self._max_eval_steps = max_eval_steps
        self._shuffle_buffer = shuffle_buffer
        self._streams = streams
        self._random_map = random_map
        self._stages = stages or [Stage(0, 0)]
        self._sets = sets or dict.fromkeys(
            {stage.length for stage in self._stages},
            RecordSet(spec, train or [], random_map))
        self.num_shapes = len(self._stages)
        if self.num_shapes > 1:
            self.lengths = Phases(
                tuple(stage.length for stage in stages),
                (*(stage.begin for stage in stages[1:]), stages[-1].begin + 1))

    def shape_of_step(self, step):
        return bisect.bisect_right(
            self._stages, step, key=lambda stage: stage.begin) - 1

    def parts(self, shape, parts, replicas):
        if self.num_shapes == 1:
            return parts
        return parts_of(
            self._stages[shape].length, max(stage.length for stage in self._stages),
            parts, self.train_batch_size // replicas)

    def training_dataset(self, shape, start_step, pipeline: Pipeline):
        stage = self._stages[shape]
        records = self._sets[stage.length]
        rows_before = self.train_batch_size * sum(
            after.begin - one.begin for one, after in zip(
                self._stages[:shape], self._stages[1:])
            if self._sets[one.length] is records)
        return training_dataset(
            records.files, records.spec, seed=self._seed,
            start_step=max(start_step - stage.begin, 0), **pipeline._asdict(),
            streams=self._streams, rows_before=rows_before,
            shuffle_buffer=self._shuffle_buffer, random_map=records.random_map)

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
        for spec, found in (*((each.spec, each.files) for each in self._sets.values()),
                            (self._spec, self._evaluation)):
            explained = explain_read_error([info.path for info in found], spec, error)
            if explained:
                return explained
        return None
