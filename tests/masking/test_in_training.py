"""The masker of training: the reference's choice, compiled, in the input pipeline.

    python -m pytest tests/masking/test_in_training.py
"""

import types

import numpy as np
import pytest
import tensorflow as tf

from albert_tf import records
from albert_tf.masking import reference
from albert_tf.masking.in_training import DynamicMasking
from albert_tf.masking.options import MaskingOptions
from albert_tf.records.checks import unmasked_spec
from albert_tf.training import input_pipeline
from tests import pipelines
from tests.helpers import serialized
from tests.masking.maskers import (
    IDS, IS_START, ODD_ROWS, OPTIONS, STARTS, VOCABULARY, features, random_rows)

VOCAB_SIZE = len(VOCABULARY)
LENGTH = 40  # S of records


def random_draws(*shape):
    return np.random.default_rng(1).integers(-2**31, 2**31, shape).astype(np.int32)


def share(draw):
    """A draw of all int32 as a number in 0..1."""
    return (float(draw) + 2**31 + 0.5) / 2**32


def walk(row, places, sizes, options):
    """Positions by reference.mask_sequence, made to draw these."""
    words = []

    def shuffle(order):
        words.extend(order)
        order.sort(key=lambda word: places[word])
        words[:] = order

    sizes_in_order = (share(sizes[word]) for word in words)
    source = reference.RandomSource(
        types.SimpleNamespace(shuffle=shuffle, random=lambda: 0.0),
        types.SimpleNamespace(random_sample=lambda: next(sizes_in_order)))
    return reference.mask_sequence(
        [VOCABULARY[i] for i in row], IS_START, VOCABULARY, options, source).positions


@pytest.mark.parametrize("name", [
    name for name, options in OPTIONS.items() if not options.do_permutation])
def test_same_numbers_give_the_masks_of_mask_sequence(name):
    options, rows = OPTIONS[name], ODD_ROWS + random_rows(40)
    batch = features(rows)
    length = batch["input_ids"].shape[1]
    mask = DynamicMasking(options, IDS, length, VOCAB_SIZE)
    draws = random_draws(len(rows), 4, length)
    found = mask(batch, tf.constant(draws.reshape(len(rows), -1)))
    assert {name: (values.shape[1], values.dtype) for name, values in found.items()} == {
        **dict.fromkeys(("input_ids", "input_mask", "segment_ids"), (length, tf.int32)),
        **dict.fromkeys(("masked_lm_positions", "masked_lm_ids"),
                        (options.max_predictions_per_seq, tf.int32)),
        "masked_lm_weights": (options.max_predictions_per_seq, tf.float32)}
    assert not found["input_ids"].numpy()[batch["input_mask"].numpy() == 0].any()
    positions, labels, weights = (found[f"masked_lm_{name}"].numpy() for name in (
        "positions", "ids", "weights"))
    for i, (row, (places, sizes, fates, pieces)) in enumerate(zip(rows, draws)):
        masked = walk(row, places, sizes, options)
        # What becomes of each piece.
        expected = list(row)
        for at in masked:
            fate = share(fates[at])
            expected[at] = (IDS.mask if fate < 0.8 else row[at] if fate < 0.9
                            else int(share(pieces[at]) * VOCAB_SIZE))
        assert found["input_ids"][i, :len(row)].numpy().tolist() == expected
        rest = [0] * (options.max_predictions_per_seq - len(masked))
        assert positions[i].tolist() == masked + rest
        assert labels[i].tolist() == [row[at] for at in masked] + rest
        assert weights[i].tolist() == [1] * len(masked) + rest


@pytest.mark.long
def test_compiles_for_accelerators_with_the_same_result():
    rows = random_rows(6, most_words=10) + ODD_ROWS[:2]
    batch = features(rows)
    mask = DynamicMasking(
        OPTIONS["default"], IDS, batch["input_ids"].shape[1], VOCAB_SIZE)

    def step(batch, first):
        return mask(batch, input_pipeline.draw((5,), first, len(rows), mask.num_draws))

    first = tf.constant(10**12, tf.int64)
    expected = step(batch, first)
    for jit in (False, True):
        found = tf.function(step, jit_compile=jit, autograph=False)(batch, first)
        for name, value in expected.items():
            np.testing.assert_array_equal(found[name], value, err_msg=name)


# ---- the input pipeline ----------------------------------------------------

UNMASKED = unmasked_spec(records.pretraining_spec(LENGTH, 6, VOCAB_SIZE, 2))
COUNT = 21  # records


@pytest.fixture(scope="module", name="infos")
def _infos(tmp_path_factory):
    """Three files of unmasked records, each record with other pieces."""
    folder, random = tmp_path_factory.mktemp("unmasked"), np.random.default_rng(7)
    spec = records.pretraining_spec(LENGTH, 6)
    rows = random.integers(4, VOCAB_SIZE, [COUNT, 38])
    rows[:, 1::3] = random.choice(STARTS, [COUNT, 13])  # no word is over the budget
    rows[:, 0], rows[:, 20], rows[:, -1] = IDS.cls, IDS.sep, IDS.sep
    batch = {name: values.numpy()
             for name, values in features(rows.tolist(), LENGTH).items()}
    paths = [str(folder / f"{part}.tfrecord") for part in range(3)]
    for part, path in enumerate(paths):
        with records.RecordWriter(path) as writer:
            for number in range(part * 7, part * 7 + 7):
                writer.write(serialized(spec, {
                    **{name: values[number] for name, values in batch.items()},
                    "masked_lm_positions": [0] * 6, "masked_lm_ids": [0] * 6,
                    "masked_lm_weights": [0.] * 6,
                    "next_sentence_labels": [number % 2]}))
    return records.check_files(paths, UNMASKED)


MASK = DynamicMasking(MaskingOptions(12), IDS, LENGTH, VOCAB_SIZE)


def examples(batches):
    """Features of each example in turn, as tuples that compare."""
    names = ("input_ids", "masked_lm_positions", "masked_lm_ids", "masked_lm_weights")
    return [tuple(b[name][i].numpy().tobytes() for name in names)
            for b in batches for i in range(len(b["input_ids"]))]


def unmasked(batches):
    """The pieces of each example before it was masked."""
    found = []
    for batch in batches:
        for ids, positions, labels, weights in zip(*(batch[n].numpy() for n in (
                "input_ids", "masked_lm_positions", "masked_lm_ids",
                "masked_lm_weights"))):
            ids = ids.copy()
            ids[positions[weights > 0]] = labels[weights > 0]
            found.append(ids.tobytes())
    return found


def train(infos, batch_size, count, seed=1, **options):
    return list(pipelines.training_dataset(
        infos, UNMASKED, batch_size, seed, random_map=MASK,
        **{"shuffle_buffer": 5, **options}).take(count))


def test_masks_differ_in_each_epoch_and_cover_all_words(infos):
    dataset = pipelines.training_dataset(
        infos, UNMASKED, COUNT, 1, shuffle_buffer=0, random_map=MASK)
    assert {name: spec.shape.as_list() for name, spec in dataset.element_spec.items()
            } == {**dict.fromkeys(("input_ids", "input_mask", "segment_ids"),
                                  [COUNT, LENGTH]),
                  **dict.fromkeys(("masked_lm_positions", "masked_lm_ids",
                                   "masked_lm_weights"), [COUNT, 12]),
                  "sentence_order_labels": [COUNT, 1]}
    epochs = list(dataset.take(60))
    plain = unmasked(epochs[:1])
    assert len(set(plain)) == COUNT
    masks = [set() for _ in range(COUNT)]
    hit = np.zeros([COUNT, LENGTH], bool)
    for epoch in epochs:
        assert unmasked([epoch]) == plain
        for row, example in enumerate(examples([epoch])):
            masks[row].add(example)
        hit[np.arange(COUNT)[:, None], epoch["masked_lm_positions"]] |= (
            epoch["masked_lm_weights"].numpy() > 0)
    assert all(len(found) > 55 for found in masks)
    ids = np.array([np.frombuffer(p, np.int32) for p in plain])
    np.testing.assert_array_equal(hit, (ids != 0) & (ids != IDS.cls) & (ids != IDS.sep))


def test_a_resumed_run_has_the_masks_of_an_unbroken_one(infos):
    options = dict(num_shards=2, shard_index=1, streams=2)
    unbroken = train(infos, 24, 12, **options)
    assert len(set(examples(unbroken))) > 0.98 * 12 * 24
    resumed = train(infos, 24, 2, start_step=9, **options)
    assert examples(resumed) == examples(unbroken[9:11])


def test_draws_are_pinned():
    """A resumed run needs these; a change of them must be deliberate."""
    def draw(first, count, num_draws):
        return input_pipeline.draw(
            (7, 0, 1), tf.constant(first, tf.int64), count, num_draws).numpy().tolist()

    assert draw(3, 2, 5) == PINNED
    assert draw(4, 1, 5) == PINNED[1:]


PINNED = [[-614798303, 1344677474, 631414092, 1393979722, 2101918512],
          [-860212042, 1082056362, -1812166366, 1845985296, -443625932]]


def test_evaluation_masks_the_same_each_time_in_any_number_of_shards(infos):
    def evaluate(batch_size, shards=1, shard=0):
        dataset, _ = pipelines.evaluation_dataset(
            infos, UNMASKED, batch_size, num_shards=shards, shard_index=shard,
            random_map=MASK)
        return [(example, weight) for batch in dataset
                for example, weight in zip(examples([batch]),
                                           batch["example_weights"].numpy())]

    found = evaluate(4)
    whole = [example for example, weight in found if weight]
    assert len(whole) == COUNT
    for shard in range(2):
        assert [e for e, weight in evaluate(8, 2, shard) if weight] == whole[shard::2]
    # Rows that fill up a batch predict nothing.
    assert all(not any(example[3]) for example, weight in found if not weight)
