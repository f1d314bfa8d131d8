"""Records of many instances at once: the bytes of protobuf.

    python -m pytest tests/records/test_encode.py
"""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from albert_tf.records import encode
from albert_tf.records.spec import Feature, FeatureSpec

# Where a varint takes another byte, and the ends of int64.
EDGES = [0, 1, 127, 128, 255, 16383, 16384, 2**21 - 1, 2**21, 2**28, 2**31, 2**35,
         2**42, 2**49, 2**56, 2**63 - 1, -1, -2**31, -2**63]


def one_by_one(spec, batch):
    """What protobuf gives for each record of a batch."""
    from tensorflow.core.example.example_pb2 import Example

    found = []
    for n in range(len(next(iter(batch.values())))):
        example = Example()
        for feature in spec.features:
            entry = example.features.feature[feature.name]
            kind = entry.int64_list if feature.dtype == "int64" else entry.float_list
            kind.SetInParent()
            kind.value.extend(np.asarray(batch[feature.name][n], (
                int if feature.dtype == "int64" else float)).ravel().tolist())
        found.append(example.SerializeToString(deterministic=True))
    return found


def check(spec, batch):
    found = encode.serialize(spec, batch)
    assert found == one_by_one(spec, batch)
    return found


@st.composite
def batches(draw):
    """A specification of a few features of any shape, and values for it."""
    # No name begins another: those are not in one order in all of protobuf.
    names = draw(st.lists(
        st.text(st.characters(exclude_characters="|", exclude_categories=["Cs"]),
                max_size=150).map(lambda name: name + "|"),
        min_size=1, max_size=6, unique=True))
    # 300 are encoded in several parts.
    count, features, batch = draw(st.sampled_from([1, 2, 5, 300])), [], {}
    for name in names:
        shape = draw(st.sampled_from(
            [(), (1,), (7,), (2, 3), (130,), (0,), (40, 4), (None,), (2, None)]))
        dtype, kind, numbers = draw(st.sampled_from([
            ("int64", np.int64, st.one_of(
                st.sampled_from(EDGES), st.integers(-2**63, 2**63 - 1))),
            ("int64", np.uint16, st.integers(0, 2**16 - 1)),
            ("int64", np.int32, st.integers(0, 30_000)),
            ("int64", np.uint8, st.integers(0, 127)),
            ("int64", bool, st.booleans()),
            ("float32", np.float32, st.floats(width=32, allow_nan=False))]))
        features.append(Feature(name, dtype, shape))
        some = draw(st.lists(numbers, min_size=1, max_size=9))
        full = [draw(st.integers(0, 4)) if d is None else d for d in shape]
        batch[name] = np.resize(np.array(some, kind), [count, *full])
        if draw(st.booleans()):
            batch[name] = batch[name].reshape(count, int(np.prod(full)))
    return FeatureSpec(tuple(features)), batch


@hypothesis.settings(max_examples=50, deadline=None, derandomize=True, database=None)
@hypothesis.given(batches())
def test_any_specification_is_encoded_as_by_protobuf(made):
    check(*made)


def test_a_name_that_begins_another_comes_first():
    """There protobuf's own implementations differ; the content is the same."""
    spec = FeatureSpec((Feature("aa", "int64", ()), Feature("a", "int64", ())))
    [serialized] = encode.serialize(spec, {"a": [1], "aa": [2]})
    assert serialized.index(b"\n\x01a") < serialized.index(b"\n\x02aa")
    assert spec.parse_numpy(serialized) == {"a": 1, "aa": 2}


@pytest.mark.parametrize("name", ["x", "n" * 127, "n" * 128])
def test_lengths_around_those_that_take_another_byte(name):
    for count in [*range(110, 135), 16370, 16383, 16384]:
        check(FeatureSpec((Feature(name, "int64", (count,)),)),
              {name: np.ones((1, count), np.uint8)})
