"""Batches by length: which rows come when, how they are padded, what is saved."""

import collections
import itertools

import numpy as np
import pytest
import tensorflow as tf

from albert_tf.config import AlbertConfig
from albert_tf.finetuning.classification.task import classification_spec
from albert_tf.finetuning.race.task import RaceTask
from albert_tf.finetuning.squad.task import SquadTask
from albert_tf.finetuning import length_batching
from albert_tf.finetuning.features import FeatureTable
from albert_tf.finetuning.length_batching import BatchPlan, FeatureBatches, Padded
from albert_tf.training.batches import Pipeline

SHAPES = (8, 16, 24)


def random_lengths(count, longest=24, seed=0):
    return np.random.default_rng(seed).integers(1, longest + 1, count)


def single(number, length):
    return dict(
        input_ids=[number % 90 + 1] * length, input_mask=[1] * length,
        segment_ids=np.arange(length) % 2, p_mask=np.arange(length) % 2,
        start_positions=[0], end_positions=[length - 1], is_impossible=[number % 2],
        example_index=[0], paragraph_len=[1], tok_start_to_orig_index=[1],
        tok_end_to_orig_index=[1], token_is_max_context=[1, 0])


def choice(number, length):
    ids = (number + np.arange(4 * length).reshape(4, length)) % 90 + 1
    return dict(input_ids=ids, input_mask=np.ones_like(ids), segment_ids=ids % 2,
                label_ids=[number % 4])


TABLES = {
    "spans": (SquadTask().spec(AlbertConfig(vocab_size=100)), single),
    "choices": (RaceTask().spec(AlbertConfig(vocab_size=100)), choice),
    "regression": (classification_spec(1, 100), lambda number, length: {
        name: single(number, length)[name]
        for name in ("input_ids", "input_mask", "segment_ids")
    } | {"label_ids": [number / 2]}),
}


def make_table(kind="spans", count=61):
    spec, example = TABLES[kind]
    return FeatureTable.from_values(
        spec, [example(*pair) for pair in enumerate(random_lengths(count).tolist())])


def check_batches(table, batches, length):
    """Every row of every batch is the table's, padded by NumPy alone."""
    for batch in batches:
        assert not {"paragraph_len", "tok_start_to_orig_index"} & batch.keys()
        for feature in (each for each in table.spec.features if each.parsed):
            for found, row in zip(batch[feature.name], batch["example_index"].tolist()):
                if row < 0:
                    continue
                value = table.columns[feature.name][row]
                if feature.is_variable:
                    value = np.pad(value, [(0, 0)] * (value.ndim - 1) + [
                        (0, length - value.shape[-1])],
                        constant_values=feature.name == "p_mask")
                assert found.dtype == value.dtype
                np.testing.assert_array_equal(found, value, feature.name)


# --- lengths

def cost(lengths, shapes):
    return sum(min(s for s in shapes if s >= length) for length in lengths)


@pytest.mark.parametrize("num_lengths", [2, 3, 4])
@pytest.mark.parametrize("seed", range(5))
def test_no_other_lengths_have_less_padding(num_lengths, seed):
    lengths = random_lengths(40, 9 + 10 * seed, seed)
    chosen = length_batching.choose_lengths(lengths, 53, num_lengths)
    assert list(chosen) == sorted(set(chosen)) and len(chosen) <= num_lengths
    assert chosen[-1] >= max(lengths)
    assert all(length % 8 == 0 or length == 53 for length in chosen)
    # The least cost, and of equal ones the fewest lengths.
    assert (cost(lengths, chosen), len(chosen)) == min(
        (cost(lengths, combination), count) for count in range(1, num_lengths + 1)
        for combination in itertools.combinations([*range(8, 53, 8), 53], count)
        if combination[-1] >= max(lengths))


def test_chosen_lengths():
    choose = length_batching.choose_lengths
    # As the release pads.
    assert choose([3, 60], 128, 1) == choose([3, 60], 128, 0) == (128,)
    # Nothing to gain from more; never longer than needed, nor than the limit.
    assert choose([3, 60], 128, 5) == (8, 64)
    assert choose([8, 8], 128, 3) == (8,)
    assert choose([99, 100], 100, 3) == (100,)


# --- the plan

def all_rows(plan, steps):
    return np.concatenate([plan.step(step)[1] for step in range(steps)])


@pytest.mark.parametrize("rows, batch, window", [
    (60, 4, 5), (61, 4, 100), (7, 16, 100), (3, 2, 100), (1, 4, 3)])
@pytest.mark.parametrize("shapes", [SHAPES, (24,)])
def test_every_row_is_seen_equally_often(rows, batch, window, shapes):
    plan = BatchPlan(random_lengths(rows), shapes, batch, seed=3, window=window)
    # So many steps end with a window and with an epoch at the same time.
    steps = plan.window * rows
    counts = np.bincount(all_rows(plan, steps), minlength=rows)
    assert (counts == steps * batch // rows).all()
    # And at no time does a row fall behind by more than the windows allow.
    for end in range(1, min(rows, 5)):
        counts = np.bincount(all_rows(plan, end * plan.window), minlength=rows)
        assert counts.max() - counts.min() <= 1


def test_the_shape_of_a_step_is_the_smallest_that_holds_its_rows():
    lengths = random_lengths(500)
    plan = BatchPlan(lengths, SHAPES, 4, seed=1, window=25)
    shapes = []
    for step in range(300):
        shape, rows = plan.step(step)
        shapes.append(shape)
        assert SHAPES[shape] == min(s for s in SHAPES if s >= lengths[rows].max())
    # Sorting within windows leaves little padding; chance alone would leave more.
    waste = sum(SHAPES[shape] * 4 for shape in shapes) / cost(
        lengths[all_rows(plan, 300)], SHAPES)
    assert waste < 1.1
    shuffled = np.random.default_rng(0).permutation(all_rows(plan, 300)).reshape(-1, 4)
    assert sum(4 * cost([lengths[r].max()], SHAPES) for r in shuffled) > 1.2 * cost(
        lengths[shuffled.ravel()], SHAPES)
    # The lengths come mixed, not in ascending order.
    assert shapes[:25] != sorted(shapes[:25]) and shapes[:25] != shapes[25:50]


def test_the_order_depends_on_the_seed_and_the_epoch():
    def rows(seed, shapes=(24,)):
        return all_rows(BatchPlan(random_lengths(60), shapes, 4, seed), 45).tolist()

    assert rows(1) == rows(1) != rows(2)
    first, second, third = np.reshape(rows(-1), (3, 60)).tolist()
    assert sorted(first) == sorted(second) == list(range(60))
    assert first != second != third != sorted(third)


# --- training

def batches_of(table, batch_size=4, shapes=SHAPES, steps=28, window=5):
    return FeatureBatches(
        Padded(table, shapes), Padded(table, shapes), train_batch_size=batch_size,
        num_steps=steps, seed=1, window=window)


def train(batches, start=0, steps=28, **pipeline):
    """For each step, the batches of the pipeline's replicas."""
    pipeline = Pipeline(**{"batch_size": batches.train_batch_size, **pipeline})
    iterators = [iter(batches.training_dataset(shape, start, pipeline
                                               ).as_numpy_iterator())
                 for shape in range(batches.num_shapes)]
    result = [[next(iterators[batches.shape_of_step(step)])
               for _ in range(pipeline.replicas)] for step in range(start, steps)]
    for iterator in iterators:  # and not one batch more
        assert next(iterator, None) is None
    return result


@pytest.mark.parametrize("kind", TABLES)
def test_training_batches_hold_the_tables_rows(kind):
    table = make_table(kind)
    batches = batches_of(table)
    for step, [batch] in enumerate(train(batches)):
        shape, rows = batches.plan.step(step)
        assert batch["input_ids"].shape[-1] == SHAPES[shape]
        assert batch["example_index"].tolist() == rows.tolist()
        check_batches(table, [batch], SHAPES[shape])


def test_shapes_are_static_and_nobody_shards_once_more():
    batches = batches_of(make_table("choices"))
    dataset = batches.training_dataset(1, 0, Pipeline(2, 2))
    evaluation, _ = batches.evaluation_dataset(1, Pipeline(2))
    expected = {
        **{name: tf.TensorSpec([2, 4, 16], tf.int32)
           for name in ("input_ids", "input_mask", "segment_ids")},
        "label_ids": tf.TensorSpec([2, 1], tf.int32),
        "example_index": tf.TensorSpec([2], tf.int32)}
    assert dataset.element_spec == expected
    for data in (dataset, evaluation):
        assert data.options().deterministic
        assert (data.options().experimental_distribute.auto_shard_policy
                == tf.data.experimental.AutoShardPolicy.OFF)
    assert evaluation.element_spec == expected | {
        "example_weights": tf.TensorSpec([2], tf.float32)}


@pytest.mark.parametrize("replicas, num_shards", [(1, 2), (2, 2)])
def test_the_order_does_not_depend_on_replicas_and_pipelines(replicas, num_shards):
    batches = batches_of(make_table(), 8)
    pipelines = [
        train(batches, batch_size=8 // replicas // num_shards, replicas=replicas,
              shard_index=shard, num_shards=num_shards) for shard in range(num_shards)]
    for step, parts in enumerate(zip(*pipelines)):
        assert [row for found in parts for batch in found for row in batch[
            "example_index"].tolist()] == batches.plan.step(step)[1].tolist()


def test_a_resumed_run_sees_what_the_unbroken_one_sees():
    table = make_table()
    unbroken = train(batches_of(table))
    for start in (5, 28):
        resumed = train(batches_of(table), start)
        assert len(resumed) == 28 - start
        for [expected], [batch] in zip(unbroken[start:], resumed):
            for name, value in expected.items():
                np.testing.assert_array_equal(batch[name], value)


def test_data_is_no_part_of_the_graph():
    """A graph may not be larger than 2 GB, the data may."""
    table = make_table(count=1)
    table.columns["input_ids"].values = np.arange(10**6, dtype=np.int32)
    dataset = batches_of(table, 1).training_dataset(0, 0, Pipeline(1))

    @tf.function(autograph=False)
    def function():
        return length_batching.assembler(table, 8)(tf.constant([0]))["input_ids"]

    graph = function.get_concrete_function().graph
    assert graph.as_graph_def().ByteSize() < 100_000
    assert dataset.element_spec["input_ids"].shape == [1, 8]


# --- evaluation

@pytest.mark.parametrize("kind, batch, replicas, num_shards", [
    ("choices", 4, 1, 1), ("regression", 3, 2, 1), ("spans", 2, 1, 2), ("spans", 5, 2, 3)])
def test_every_example_is_evaluated_exactly_once(kind, batch, replicas, num_shards):
    table = make_table(kind)
    rows = collections.Counter()
    for shape, length in enumerate(SHAPES):
        counts = set()
        for shard in range(num_shards):
            dataset, per_replica = batches_of(table).evaluation_dataset(
                shape, Pipeline(batch, replicas, shard, num_shards))
            batches = list(dataset.as_numpy_iterator())
            assert len(batches) == per_replica * replicas
            counts.add(per_replica)
            check_batches(table, batches, length)
            for element in batches:
                assert element["input_ids"].shape[0] == batch
                index, weights = element["example_index"], element["example_weights"]
                assert (weights == (index >= 0)).all()
                rows.update(index[index >= 0].tolist())
                # Rows that fill up are like any other input.
                assert element["input_mask"].any(axis=-1).all()
        assert len(counts) == 1
        own = np.sum(np.searchsorted(SHAPES, table.lengths) == shape)
        assert counts == {-(-own // (batch * replicas * num_shards))}
    assert rows == collections.Counter(range(table.num_rows))
