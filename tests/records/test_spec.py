"""One specification writes, checks and parses a record.

    python -m pytest tests/records/test_spec.py
"""

import gzip
import hashlib

import numpy as np
import pytest

from albert_tf import records
from albert_tf.errors import InputError
from tests.helpers import FIXTURES, serialized
from tests.records.examples import S, SPEC, example

GOLDEN = FIXTURES / "records" / "default_32_for_training.tfrecord.gz"
# content_sha256 of the release's run that wrote the file.
GOLDEN_SHA256 = "87f8d8ada36caac1041c8fa445efd2917d236baa37574379e119f3cf20d2926e"


@pytest.mark.parametrize("batched", [False, True])
def test_parse_gives_what_was_written(batched):
    import tensorflow as tf

    record = serialized(SPEC, example(3))
    tensors = SPEC.parse(tf.constant([record] * 2) if batched else record)
    expected = example(3)
    # The label is renamed once, here; token_boundary is not read.
    expected["sentence_order_labels"] = expected.pop("next_sentence_labels")
    del expected["token_boundary"]
    assert tensors.keys() == expected.keys()
    for name, tensor in tensors.items():
        assert tensor.dtype == (tf.float32 if "weights" in name else tf.int32)
        value = tensor.numpy()[1] if batched else tensor.numpy()
        np.testing.assert_array_equal(value, expected[name], err_msg=name)


def test_a_record_without_token_boundary_is_read():
    spec = records.FeatureSpec(
        tuple(f for f in SPEC.features if f.name != "token_boundary"))
    values = example(3)
    del values["token_boundary"]
    record = serialized(spec, values)
    assert "token_boundary" not in SPEC.parse_numpy(record)
    assert SPEC.parse(record)["input_ids"].shape == [S]


def test_ids_out_of_range_are_told():
    ids = records.FeatureSpec((records.Feature("ids", "int64", (2,), limit=100),))
    with pytest.raises(InputError, match="^x: ids holds 100"):
        ids.parse_numpy(serialized(ids, {"ids": [1, 100]}), "x")


def test_the_releases_records(tmp_path):
    golden = tmp_path / "golden.tfrecord"
    golden.write_bytes(gzip.decompress(GOLDEN.read_bytes()))
    digest, spec = hashlib.sha256(), records.pretraining_spec(32, 5)
    for number, record in enumerate(records.read_records(str(golden))):
        values = spec.parse_numpy(record)
        for name, array in sorted(values.items()):
            digest.update(name.encode() + array.tobytes())
        # Our bytes of it are as many.
        assert number >= 20 or len(serialized(spec, values)) == len(record)
    assert digest.hexdigest() == GOLDEN_SHA256
    [info] = records.check_files([str(golden)], spec)
    assert info.num_records == 1161
