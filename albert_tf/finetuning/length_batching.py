"""Batches of a few static lengths, so that little padding is computed.

Every sequence belongs to a bucket: the smallest of the static lengths ("shapes")
that holds it. Training walks through one random permutation of the rows per
epoch; within a window of about a hundred batches, rows of one bucket are brought
together:

    order     row  7  2  9  4  1  8      a window of 3 batches of 2 rows
    bucket         1  0  0  1  0  0
    sorted    row  2  9 |1  8 |7  4      stable: within a bucket the order stays
    shuffled       1  8 |7  4 |2  9      the window's batches, in random order

The order depends on the seed and the step only: not on the number of replicas or
pipelines, nor on where the run was resumed.
"""

import functools
from typing import NamedTuple, Optional, Sequence

import numpy as np
import tensorflow as tf

from albert_tf.finetuning.features import FeatureTable
from albert_tf.training.batches import Batches, Pipeline, dataset_options

_EPOCH, _WINDOW = 0, 1  # The purposes of random generators.


def choose_lengths(lengths: Sequence[int] | np.ndarray, max_length: int,
                   num_lengths: int) -> tuple[int, ...]:
    """Returns the static lengths, ascending, that need the least padding: multiples of
    8, or max_length. At most num_lengths are returned, fewer if more would not save
    anything; 0 or 1 gives (max_length,), the padding of the original implementation."""
    lengths = np.asarray(lengths, np.int64)
    if num_lengths < 2:
        return (max_length,)
    # Candidates 1, 2, ... are possible lengths; the last one holds all sequences.
    candidates = np.minimum(np.arange(0, lengths.max() + 8, 8), max_length)
    bucket = np.searchsorted(candidates, lengths)
    below = np.cumsum(np.bincount(bucket, minlength=len(candidates)))
    # The loop adds one length at a time. cost[j] is the number of positions of all
    # sequences up to candidate j if j is the last of the lengths so far; candidate 0
    # stands for no length and no sequence.
    cost = np.where(np.arange(len(candidates)) == 0, 0, np.inf)
    best, choice, tables = np.inf, (), []
    for _ in range(min(num_lengths, len(candidates) - 1)):
        # totals[i, j]: the cost if i is the length before j, so that all sequences
        # between them are padded to j.
        totals = cost[:, None] + (below[None, :] - below[:, None]) * candidates
        totals[np.tril_indices(len(candidates))] = np.inf
        tables.append(totals.argmin(axis=0))
        cost = totals.min(axis=0)
        if cost[-1] >= best:
            break
        best, last, choice = cost[-1], len(candidates) - 1, ()
        for table in reversed(tables):
            choice = (int(candidates[last]), *choice)
            last = table[last]
    return choice


class BatchPlan:
    """The plan of which rows each training step sees, padded to which length: sequences
    of `lengths` [N] to ascending `shapes`. A step has batch_size rows over all replicas
    and pipelines. `window` batches, at most an epoch, are sorted by length together."""

    def __init__(self, lengths: np.ndarray, shapes: Sequence[int], batch_size: int,
                 seed: int, window: int = 100):
        self.shapes, self.batch_size, self.num_rows = shapes, batch_size, len(lengths)
        self.window = max(1, min(window, self.num_rows // batch_size))
        self._buckets = np.searchsorted(shapes, lengths)
        self._seed = seed % 2**64
        # The datasets of all shapes read the same windows, each at its own pace.
        # (lru_cache may be called from several threads.)
        self._permutation = functools.lru_cache(4)(lambda epoch: self._random(
            _EPOCH, epoch).permutation(self.num_rows).astype(np.int32))
        # Window n has the steps from n · window on: their rows, int32 [window,
        # batch_size], and the index of each step's shape, [window].
        self.steps_of_window = functools.lru_cache(16)(self._make_window)

    def step(self, step: int) -> tuple[int, np.ndarray]:
        """Returns the index of a step's shape, and its rows [batch_size]."""
        number, at = divmod(step, self.window)
        rows, shapes = self.steps_of_window(number)
        return int(shapes[at]), rows[at]

    def _random(self, purpose: int, number: int) -> np.random.Generator:
        # Philox is named because NumPy's default generator may change.
        return np.random.Generator(np.random.Philox(
            np.random.SeedSequence([self._seed, purpose, number])))

    def _make_window(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        size = self.window * self.batch_size
        # Windows continue across the ends of epochs, so that no row is left out.
        first, begin = divmod(number * size, self.num_rows)
        last = (begin + size - 1) // self.num_rows
        order = np.concatenate([
            self._permutation(first + epoch) for epoch in range(last + 1)])
        order = order[begin:begin + size]
        order = order[np.argsort(self._buckets[order], kind="stable")]
        batches = order.reshape(self.window, self.batch_size)
        batches = batches[self._random(_WINDOW, number).permutation(self.window)]
        # A batch is sorted, so that its last row is in its largest bucket.
        return batches, self._buckets[batches[:, -1]]


class Padded(NamedTuple):
    """A set, and the ascending static lengths to which its rows are padded."""

    table: FeatureTable
    lengths: tuple[int, ...]


class FeatureBatches(Batches):
    """Batches of sets of features, padded to a few lengths.

    A batch is name → [batch_size, ...] int32 or float32, with variable features padded
    to the length of its shape, and `example_index` [batch_size] int32, the rows. All
    shapes are static. Batch sizes are over all replicas.
    """

    def __init__(self, train: Optional[Padded] = None,
                 evaluation: Optional[Padded] = None, *, train_batch_size: int = 1,
                 eval_batch_size: int = 1, num_steps: int = 0, seed: int = 0,
                 window: int = 100):
        super().__init__(train_batch_size, eval_batch_size)
        self._train, self._evaluation = train, evaluation
        self._num_steps = num_steps
        self.num_shapes = len(train.lengths) if train else 0
        self.num_evaluation_shapes = len(evaluation.lengths) if evaluation else 0
        self.plan = train and BatchPlan(
            train.table.lengths, train.lengths, train_batch_size, seed, window)

    def shape_of_step(self, step):
        return self.plan.step(step)[0]

    def training_dataset(self, shape, start_step, pipeline):
        """Returns the training batches of one shape. A step's rows are distributed in
        order: to pipelines, then to replicas."""
        plan = self.plan

        def rows_in_window(number):
            steps = number * plan.window + np.arange(plan.window)
            rows, shapes = plan.steps_of_window(int(number))
            return _share(rows[(shapes == shape) & (steps >= start_step)
                               & (steps < self._num_steps)], pipeline)

        def batches(number):
            rows = tf.numpy_function(rows_in_window, [number], tf.int32)
            return tf.data.Dataset.from_tensor_slices(
                tf.ensure_shape(rows, [None, pipeline.batch_size]))

        windows = tf.data.Dataset.range(start_step // plan.window,
                                        -(-max(self._num_steps, 0) // plan.window))
        return _assembled(windows.flat_map(batches),
                          assembler(self._train.table, plan.shapes[shape]))

    def evaluation_dataset(self, shape, pipeline):
        """Returns batches with every row of one bucket exactly once over all pipelines,
        and their number. They also have `example_weights` [batch_size] float32. The last
        batches are filled with rows of weight 0 and example_index -1, which repeat a row
        of the bucket, so that they are valid inputs."""
        table, shapes = self._evaluation
        at_once = pipeline.batch_size * pipeline.replicas * pipeline.num_shards
        rows = np.flatnonzero(
            np.searchsorted(shapes, table.lengths) == shape).astype(np.int32)
        padding = -len(rows) % at_once
        index = np.concatenate([rows, np.full(padding, -1, np.int32)])
        rows = np.concatenate([rows, np.repeat(rows[:1], padding)])
        assemble = assembler(table, shapes[shape])

        def batch(rows, index):
            return {**assemble(rows), "example_index": index,
                    "example_weights": tf.cast(index >= 0, tf.float32)}

        return _assembled(tf.data.Dataset.from_tensor_slices(
            (_share(rows, pipeline), _share(index, pipeline))), batch
            ), len(rows) // at_once


def _share(rows: np.ndarray, pipeline: Pipeline) -> np.ndarray:
    """Returns a pipeline's part of some steps' rows, [steps · replicas, batch_size]."""
    batch_size, replicas, shard_index, num_shards = pipeline
    rows = rows.reshape(-1, num_shards, replicas, batch_size)[:, shard_index]
    return np.ascontiguousarray(rows.reshape(-1, batch_size))


def _assembled(rows: tf.data.Dataset, assemble) -> tf.data.Dataset:
    return (rows.map(assemble, num_parallel_calls=tf.data.AUTOTUNE)
            .prefetch(tf.data.AUTOTUNE).with_options(dataset_options()))


def assembler(table: FeatureTable, length: int):
    """Returns a function: rows int32 [B] → a batch, padded to `length`. The table's
    tensors are captured: inputs of the graph, not constants, which all datasets share."""
    features = [f for f in table.spec.features if f.parsed]
    tensors = table.tensors

    def assemble(rows):
        batch = {"example_index": rows}
        for feature in features:
            if not feature.is_variable:
                batch[feature.name] = tf.gather(tensors[feature.name], rows)
                continue
            # The sequences of an example are adjacent.
            count = feature.num_values
            sequences = tf.reshape(rows[:, tf.newaxis] * count + tf.range(count), [-1])
            padded = tf.gather(tensors[feature.name], sequences).to_tensor(
                feature.pad_value, shape=tf.constant([-1, length]))
            batch[feature.name] = tf.reshape(
                padded, [*rows.shape, *feature.shape[:-1], length])
        return batch

    return assemble
