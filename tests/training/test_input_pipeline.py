"""Order, resuming, shards and padding of the input pipeline."""

import dataclasses
import itertools

import numpy as np
import pytest
import tensorflow as tf

from albert_tf import records
from albert_tf.records import tfrecord
from albert_tf.training import input_pipeline
from tests import pipelines
from tests.helpers import serialized

SPEC = records.FeatureSpec((
    records.Feature("number", "int64", (1,)),
    records.Feature("weights", "float32", (3,), parsed_name="w"),
    records.Feature("unread", "int64", (2,), parsed=False)))
COUNTS = (11, 7, 13, 9)  # records in the files
TOTAL = sum(COUNTS)


@pytest.fixture(scope="module", name="infos")
def _infos(tmp_path_factory):
    """Files whose records hold the numbers 0..TOTAL-1 in order."""
    folder, number, paths = tmp_path_factory.mktemp("records"), itertools.count(), []
    for count in COUNTS:
        paths.append(str(folder / f"{len(paths)}.tfrecord"))
        with records.RecordWriter(paths[-1]) as writer:
            for n in itertools.islice(number, count):
                writer.write(serialized(
                    SPEC, dict(number=[n], weights=[n + 0.5] * 3, unread=[0, 0])))
    return records.check_files(paths, SPEC)


def take(dataset, count):
    return [b["number"].numpy().ravel().tolist() for b in dataset.take(count)]


def train(infos, batch_size, count, seed=1, **options):
    """The numbers in the first `count` batches; a small buffer by default."""
    options = {"shuffle_buffer": 8} | options
    return take(pipelines.training_dataset(
        infos, SPEC, batch_size, seed, **options), count)


def flat(batches):
    return list(itertools.chain.from_iterable(batches))


def test_batches_have_static_shapes_and_model_types(infos):
    dataset = pipelines.training_dataset(infos, SPEC, 6, 1)
    assert dataset.element_spec == {
        "number": tf.TensorSpec([6, 1], tf.int32), "w": tf.TensorSpec([6, 3])}
    batch = next(iter(dataset))
    np.testing.assert_array_equal(batch["w"], batch["number"].numpy() + [0.5] * 3)


@pytest.mark.parametrize("shuffle_buffer", [0, 8, 1000])
def test_each_epoch_has_each_record_once(infos, shuffle_buffer):
    # One batch that crosses the ends of epochs, cut up into epochs.
    numbers = flat(train(infos, 3 * TOTAL, 1, shuffle_buffer=shuffle_buffer))
    epochs = [numbers[i:i + TOTAL] for i in range(0, 3 * TOTAL, TOTAL)]
    for epoch in epochs:
        assert sorted(epoch) == list(range(TOTAL))
        assert (epoch == sorted(epoch)) == (shuffle_buffer == 0)
    assert (epochs[0] == epochs[1]) == (shuffle_buffer == 0)


def test_seeds_differ(infos):
    orders = [str(train(infos, 8, 2, seed)) for seed in (1, -1, 2**40 + 1)]
    assert len(set(orders)) == 3


def test_the_order_does_not_depend_on_threads_or_the_global_seed(infos):
    """Nor does the pipeline change the global seed."""
    tf.random.set_seed(3)
    number, expected = tf.random.uniform([]), train(infos, 8, 12)
    for threads in (2, 16):
        tf.random.set_seed(3 if threads == 16 else threads)
        dataset = pipelines.training_dataset(infos, SPEC, 8, 1, shuffle_buffer=8)
        options = tf.data.Options()
        options.threading.private_threadpool_size = threads
        options.autotune.enabled = threads == 2
        assert take(dataset.with_options(options), 12) == expected
    assert tf.random.uniform([]) == number


def test_the_order_is_pinned(infos):
    """A resumed run needs this order; a change of it must be deliberate."""
    assert train(infos, 8, 2, shuffle_buffer=8) == [
        [32, 1, 18, 20, 11, 0, 33, 21],
        [13, 12, 19, 2, 14, 4, 23, 15]]


@pytest.mark.parametrize("batch_size, streams, shuffle_buffer", [
    (10, 1, 8), (8, 2, 0), (90, 3, 8), *(pytest.param(*each, marks=pytest.mark.long)
      for each in ((7, 1, 8), (8, 2, 8), (64, 1, 8), (90, 3, 1000)))])
def test_resuming_gives_the_batches_of_an_unbroken_run(
        infos, batch_size, streams, shuffle_buffer):
    options = dict(streams=streams, shuffle_buffer=shuffle_buffer)
    unbroken = train(infos, batch_size, 18, **options)
    # Inside an epoch, epochs later; with 10 in a batch, at the very end of one.
    for start in (4, 16):
        resumed = train(infos, batch_size, 2, start_step=start, **options)
        assert resumed == unbroken[start:start + 2], start


def test_resuming_far_away_skips_whole_epochs_by_arithmetic(infos):
    epochs = 10**11
    assert len(train(infos, TOTAL, 1, start_step=epochs)[0]) == TOTAL


@pytest.mark.parametrize("streams, hosts, replicas", [(1, 2, 2), *(
    pytest.param(streams, *shares, marks=pytest.mark.long) for streams in (1, 2, 4, 12)
    for shares in ((3, 1), (4, 1), (12, 1), (1, 3)))])
def test_hosts_and_replicas_share_one_order(infos, streams, hosts, replicas):
    """Those that share a stream, those with a stream and a half, those with several."""
    rows = 12
    whole = train(infos, rows, 10, streams=streams)
    shares = [train(infos, rows // hosts // replicas, 10 * replicas, streams=streams,
                    num_shards=hosts, shard_index=host, replicas=replicas)
              for host in range(hosts)]
    assert [flat(share[step * replicas + replica] for share in shares
                 for replica in range(replicas)) for step in range(10)] == whole
    resumed = train(infos, rows // hosts // replicas, replicas, streams=streams,
                    num_shards=hosts, shard_index=hosts - 1, replicas=replicas,
                    start_step=7)
    assert flat(resumed) == whole[7][-rows // hosts:]


@pytest.mark.parametrize("streams", [1, 3, 8])
def test_streams_are_disjoint_and_complete(infos, streams, monkeypatch):
    # Files whose records are found from one that is near.
    monkeypatch.setattr(tfrecord, "OFFSETS_EVERY", 3)
    infos = [tfrecord.scan(info.path) for info in infos]
    found = [input_pipeline._stream(infos, index, streams) for index in range(streams)]
    sizes = [sum(part.num_records for part in parts) for parts in found]
    assert sum(sizes) == TOTAL and max(sizes) - min(sizes) <= 1
    assert all(part.skipped < 3 for parts in found for part in parts)
    # Each stream fills its rows of a batch, in the order of the files here.
    numbers = np.reshape(train(infos, streams, min(sizes), streams=streams,
                               shuffle_buffer=0), [-1, streams])
    begins = np.cumsum([0, *sizes[:-1]])
    np.testing.assert_array_equal(
        numbers, begins + np.arange(min(sizes))[:, np.newaxis])


def test_streams_have_orders_of_their_own(infos):
    """Two halves of one file are not shuffled alike."""
    half = infos[2].num_records // 2
    whole = dataclasses.replace(infos[2], num_records=2 * half)
    first, second = np.transpose(train(
        [whole], 2, half, streams=2, shuffle_buffer=100))
    assert sorted(second) == sorted(first + half) and list(second) != list(first + half)


@pytest.mark.parametrize("num_records, batch_size, streams", [
    (10**6, 4096, 16), (10**6, 96, 48), (10**6, 20, 4), (10**6, 25, 1),
    (16 * 1024, 32, 16), (16 * 1024 - 1, 32, 8), (1000, 32, 1), (3 * 1024, 6, 3)])
def test_number_of_streams(num_records, batch_size, streams):
    assert input_pipeline.num_streams(num_records, batch_size) == streams


def test_more_files_than_are_read_at_a_time(tmp_path):
    paths = []
    for n in range(21):
        paths.append(str(tmp_path / f"{n}"))
        with records.RecordWriter(paths[-1]) as writer:
            for k in range(n % 3 + 1):
                writer.write(serialized(
                    SPEC, dict(number=[10 * n + k], weights=[0] * 3, unread=[0, 0])))
    infos = records.check_files(paths, SPEC)
    unbroken = train(infos, 42, 4)
    assert all(len(set(batch)) == 42 for batch in unbroken)
    assert train(infos, 6, 21, start_step=7) == [
        b for whole in unbroken[1:] for b in np.reshape(whole, [7, 6]).tolist()]


def evaluate(infos, batch_size, **options):
    """The numbers with weight 1 of each batch."""
    dataset, steps = pipelines.evaluation_dataset(infos, SPEC, batch_size, **options)
    assert dataset.element_spec["number"].shape == [batch_size, 1]
    batches = list(dataset)
    assert len(batches) == dataset.cardinality() == steps * options.get("replicas", 1)
    numbers = []
    for batch in batches:
        weights = batch["example_weights"].numpy()
        assert batch["number"].shape == [batch_size, 1]
        assert weights.dtype == np.float32 and weights.shape == (batch_size,)
        assert set(weights) <= {0, 1}
        for name in ("number", "w"):
            assert not batch[name].numpy()[weights == 0].any()
        numbers.append(batch["number"].numpy().ravel()[weights == 1].tolist())
    return numbers


@pytest.mark.parametrize("num_shards, batch_size, most, replicas, examples", [
    *((1, batch_size, most, 1, examples) for batch_size, most, examples in (
        (8, 0, TOTAL), (40, 0, TOTAL), (8, 2, 16), (8, 99, TOTAL), (100, 1, TOTAL))),
    (2, 8, 0, 2, TOTAL), (3, 14, 0, 2, TOTAL), (3, 4, 1, 2, 24), (7, 8, 0, 1, TOTAL)])
def test_evaluation_sees_each_example_once_in_equally_many_batches(
        infos, num_shards, batch_size, most, replicas, examples):
    shards = [evaluate(infos, batch_size, max_eval_steps=most, shard_index=i,
                       num_shards=num_shards, replicas=replicas)
              for i in range(num_shards)]
    rows = batch_size * num_shards * replicas
    assert {*map(len, shards)} == {-(-examples // rows) * replicas}
    numbers = flat(map(flat, shards))
    assert (sorted(numbers) if num_shards > 1 else numbers) == list(range(examples))


def test_evaluation_with_fewer_examples_than_shards(infos):
    for index in range(9):
        numbers = evaluate(infos[1:2], 2, num_shards=9, shard_index=index)
        assert numbers == [[11 + index] if index < 7 else []]
