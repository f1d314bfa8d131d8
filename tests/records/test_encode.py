"""Records of many instances at once: the same bytes as one by one."""

import numpy as np
import pytest

from albert_tf import records
from albert_tf.records import encode, tfrecord
from albert_tf.records.spec import Feature, FeatureSpec

# Where a varint takes another byte, and the ends of int64.
EDGES = [0, 1, 127, 128, 255, 16383, 16384, 2**21 - 1, 2**21, 2**28, 2**31, 2**35,
         2**42, 2**49, 2**56, 2**63 - 1, -1, -2**31, -2**63]


def one_by_one(spec, batch):
    """What FeatureSpec.serialize gives for each record of a batch."""
    def plain(values):
        return values.astype(int) if values.dtype == bool else values

    count = len(next(iter(batch.values())))
    return [spec.serialize({name: plain(np.atleast_1d(values[n]))
                            for name, values in batch.items()})
            for n in range(count)]


def pretraining_batch(rng, count, length, predictions, vocab_size):
    def of(bound, *shape):
        return rng.integers(0, bound, (count, *shape))

    return dict(
        input_ids=of(vocab_size, length).astype(np.int32),
        input_mask=of(2, length).astype(np.uint8),
        segment_ids=of(2, length).astype(np.uint8),
        token_boundary=of(2, length).astype(bool),
        masked_lm_positions=of(length, predictions).astype(np.uint16),
        masked_lm_ids=of(vocab_size, predictions),
        masked_lm_weights=of(2, predictions).astype(np.float32),
        next_sentence_labels=of(2))


# --- serialize, frames

@pytest.mark.parametrize("count", [1, 2, 300])
@pytest.mark.parametrize("length, predictions, vocab_size", [
    (8, 2, 100), (32, 5, 300), (200, 20, 30_000), (40, 3, 250_000)])
def test_records_of_pretraining(count, length, predictions, vocab_size):
    spec = records.pretraining_spec(length, predictions)
    batch = pretraining_batch(
        np.random.default_rng(length), count, length, predictions, vocab_size)
    assert encode.serialize(spec, batch) == one_by_one(spec, batch)


@pytest.mark.parametrize("edge", EDGES)
def test_integers_of_all_sizes(edge):
    spec = FeatureSpec((Feature("x", "int64", (3,)),))
    batch = {"x": np.array([[0, edge, 1], [edge, edge, edge], [1, 2, 3]])}
    serialized = encode.serialize(spec, batch)
    assert serialized == one_by_one(spec, batch)
    assert spec.parse_numpy(serialized[0])["x"].tolist() == [0, edge, 1]


def random_batch(rng):
    """A specification of a few features of any shape, and values for it."""
    features, batch, count = [], {}, int(rng.integers(1, 9))
    names = rng.permutation(
        ["a", "B", "bc", "Z_long_name_" * 12, "ä", "1", "zz", "m"])
    for name in names[:rng.integers(1, len(names))].tolist():
        shape = [(), (1,), (7,), (2, 3), (130,), (0,), (40, 4)][rng.integers(7)]
        dtype = ["int64", "float32"][rng.integers(2)]
        features.append(Feature(name, dtype, shape))
        if dtype == "float32":
            batch[name] = rng.normal(size=(count, *shape)).astype(np.float32)
        else:
            edges = np.array(EDGES[:rng.integers(1, len(EDGES) + 1)])
            batch[name] = rng.choice(edges, (count, *shape))
        if rng.random() < 0.5:
            batch[name] = batch[name].reshape(count, -1)
    return FeatureSpec(tuple(features)), batch


@pytest.mark.parametrize("seed", range(40))
def test_any_specification(seed):
    spec, batch = random_batch(np.random.default_rng(seed))
    assert encode.serialize(spec, batch) == one_by_one(spec, batch)


def test_a_name_that_begins_another_comes_first():
    """There protobuf's own implementations differ; the content is the same."""
    spec = FeatureSpec((Feature("aa", "int64", ()), Feature("a", "int64", ())))
    [serialized] = encode.serialize(spec, {"a": [1], "aa": [2]})
    assert serialized.index(b"\n\x01a") < serialized.index(b"\n\x02aa")
    assert spec.parse_numpy(serialized) == {"a": 1, "aa": 2}


def test_records_of_one_batch_differ_in_length():
    spec = FeatureSpec((Feature("x", "int64", (300,)), Feature("y", "int64", (2,))))
    x = np.zeros((4, 300), np.int64)
    x[1:, :90] = 128
    x[2:, :200] = 2**40
    x[3, 200:] = 2**20
    batch = {"x": x, "y": np.arange(8).reshape(4, 2) * 50}
    serialized = encode.serialize(spec, batch)
    assert len(set(map(len, serialized))) == 4
    assert serialized == one_by_one(spec, batch)


@pytest.mark.parametrize("values", [
    [0.0, -0.0, 1.5], [np.inf, -np.inf, 1e-45], [1e300, 1, 0],
    [2, 3, 2**60 + 2**36 + 1], [True, False, True]])
def test_floats(values):
    spec = FeatureSpec((Feature("x", "float32", (3,)),))
    for array in (np.array([values]), np.array([values], float)):
        assert encode.serialize(spec, {"x": array}) == [
            spec.serialize({"x": values})]


@pytest.mark.parametrize("dtype", ["<i4", "u1", "<f2", ">f4"])
def test_numbers_of_any_type_become_floats(dtype):
    spec = FeatureSpec((Feature("x", "float32", (2,)),))
    assert encode.serialize(spec, {"x": np.array([[1, 200]], dtype)}) == [
        spec.serialize({"x": [1.0, 200.0]})]


@pytest.mark.parametrize("name", ["x", "n" * 127, "n" * 128])
def test_lengths_around_those_that_take_another_byte(name):
    for count in [*range(110, 135), 16370, 16383, 16384]:
        spec = FeatureSpec((Feature(name, "int64", (count,)),))
        batch = {name: np.ones((1, count), np.uint8)}
        assert encode.serialize(spec, batch) == one_by_one(spec, batch)


@pytest.mark.parametrize("order", ["F", "strided", ">i8"])
def test_arrays_of_any_layout(order):
    x = np.arange(12).reshape(4, 3) * 99
    given = {"F": np.asfortranarray(x), "strided": np.repeat(x, 2, axis=1)[:, ::2],
             ">i8": x.astype(">i8")}[order]
    spec = FeatureSpec((Feature("x", "int64", (3,)), Feature("y", "float32", (3,))))
    assert encode.serialize(spec, {"x": given, "y": given}) == one_by_one(
        spec, {"x": x, "y": x})


def test_no_records():
    spec = records.pretraining_spec(8, 2)
    batch = {name: values[:0] for name, values in pretraining_batch(
        np.random.default_rng(0), 1, 8, 2, 99).items()}
    assert encode.serialize(spec, batch) == []
    assert encode.frames(spec, batch) == b""


def test_features_of_variable_length_have_one_length_in_a_batch():
    spec = FeatureSpec((Feature("x", "int64", (2, None)),))
    batch = {"x": np.arange(30).reshape(3, 2, 5) * 40}
    assert encode.serialize(spec, batch) == one_by_one(
        spec, {"x": batch["x"].reshape(3, 10)})


def test_tensorflow_parses_them():
    spec = records.pretraining_spec(40, 5)
    batch = pretraining_batch(np.random.default_rng(1), 3, 40, 5, 30_000)
    parsed = spec.parse(encode.serialize(spec, batch))
    batch["sentence_order_labels"] = batch.pop("next_sentence_labels")[:, None]
    del batch["token_boundary"]
    for name, values in batch.items():
        np.testing.assert_array_equal(parsed[name], values, err_msg=name)


def test_frames_are_a_file(tmp_path):
    spec = records.pretraining_spec(40, 5)
    batch = pretraining_batch(np.random.default_rng(2), 5, 40, 5, 30_000)
    path = tmp_path / "x.tfrecord"
    # Frames of several batches, one after the other, are one file.
    path.write_bytes(encode.frames(spec, batch) * 2)
    assert list(tfrecord.read_records(str(path))) == one_by_one(spec, batch) * 2
    assert tfrecord.scan(str(path)).num_records == 10


def test_frames_are_what_the_writer_writes(tmp_path):
    spec = records.pretraining_spec(40, 5)
    batch = pretraining_batch(np.random.default_rng(3), 4, 40, 5, 30_000)
    path = tmp_path / "x.tfrecord"
    with tfrecord.RecordWriter(str(path)) as writer:
        for record in one_by_one(spec, batch):
            writer.write(record)
    assert path.read_bytes() == encode.frames(spec, batch)


SMALL = FeatureSpec((
    Feature("ids", "int64", (2, 3)), Feature("weights", "float32", (2,))))


@pytest.mark.parametrize("change, message", [
    ({"idz": np.zeros((4, 6), int)}, "unknown .'idz'., missing .."),
    ({"ids": None}, "unknown .., missing .'ids'."),
    ({"ids": np.zeros((4, 5), int)}, "ids has 5 values instead of 6"),
    ({"ids": np.zeros(4, int)}, "ids has 1 values instead of 6"),
    ({"ids": np.zeros((4, 3, 2), int)},
     r"ids has the shape \(3, 2\) instead of \(2, 3\)"),
    ({"ids": np.zeros((4, 2, 3, 1), int)}, r"ids has the shape \(2, 3, 1\)"),
    ({"ids": 7}, "ids has no dimension of records"),
    ({"ids": np.zeros((3, 6), int)},
     "different numbers of records: ids 3, weights 4"),
    ({"ids": np.ones((4, 6))}, "ids does not hold int64 values but float64"),
    ({"ids": np.full((4, 6), 2**63, np.uint64)}, "ids does not hold int64.* too large"),
    ({"ids": np.full((4, 6), 2**64, object)}, "ids does not hold int64"),
    ({"weights": np.full((4, 2), "a")}, "weights does not hold float32"),
    ({"weights": np.ones((4, 2), complex)}, "weights does not hold float32"),
])
def test_what_does_not_fit_is_refused(change, message):
    batch = {"ids": np.zeros((4, 6), int), "weights": np.zeros((4, 2))} | change
    batch = {name: values for name, values in batch.items() if values is not None}
    for function in (encode.serialize, encode.frames):
        with pytest.raises(ValueError, match=message):
            function(SMALL, batch)
