"""Writing, parsing and checking TFRecords."""

import gzip
import hashlib
import pathlib
import shutil
import struct
import subprocess
import sys

import numpy as np
import pytest

from albert_tf import files, records
from albert_tf.errors import InputError
from albert_tf.records.tfrecord import scan
from tests.helpers import FIXTURES

S, P = 6, 2
SPEC = records.pretraining_spec(S, P)
GOLDEN = FIXTURES / "records" / "default_32_for_training.tfrecord.gz"
# content_sha256 of the release's run that wrote the file.
GOLDEN_SHA256 = "87f8d8ada36caac1041c8fa445efd2917d236baa37574379e119f3cf20d2926e"


def example(number, length=S, predictions=P):
    """A record that can be told by its first input id; ids above 2**14, too."""
    tokens = np.arange(length)
    return dict(
        input_ids=number + tokens * 7001, input_mask=(tokens < 4).astype(int),
        segment_ids=(tokens > 2).astype(int), token_boundary=tokens % 2,
        masked_lm_positions=np.arange(predictions),
        masked_lm_ids=[number] * predictions,
        masked_lm_weights=[0.5] * predictions, next_sentence_labels=[number % 2])


def write(path, count=5, spec=SPEC, **lengths):
    with records.RecordWriter(str(path)) as writer:
        for number in range(count):
            writer.write(spec.serialize(example(number, **lengths)))
    assert writer.num_records == count
    return str(path)


def frame_size(path):
    return path.stat().st_size // 5


@pytest.fixture(name="path")
def _path(tmp_path):
    path = tmp_path / "x.tfrecord"
    write(path)
    return path


@pytest.fixture(name="golden")
def _golden(tmp_path):
    path = tmp_path / "golden.tfrecord"
    with gzip.open(GOLDEN) as source, open(path, "wb") as target:
        shutil.copyfileobj(source, target)
    return str(path)


# --- examples

def test_serialized_bytes_equal_tensorflows_own():
    import tensorflow as tf

    values = example(3) | {"masked_lm_ids": [-1, 2**40]}
    expected = tf.train.Example()
    for feature in SPEC.features:
        entry = expected.features.feature[feature.name]
        target = entry.int64_list if feature.dtype == "int64" else entry.float_list
        target.value.extend(values[feature.name])
    assert SPEC.serialize(values) == expected.SerializeToString(deterministic=True)


def test_bytes_do_not_depend_on_the_order_of_the_features():
    values = example(1)
    reordered = dict(reversed(values.items()))
    assert SPEC.serialize(values) == SPEC.serialize(reordered)


@pytest.mark.parametrize("batched", [False, True])
def test_parse_gives_what_was_written(batched):
    import tensorflow as tf

    serialized = SPEC.serialize(example(3))
    tensors = SPEC.parse(tf.constant([serialized] * 2) if batched else serialized)
    expected = example(3)
    # The label is renamed once, here; token_boundary is not read.
    expected["sentence_order_labels"] = expected.pop("next_sentence_labels")
    del expected["token_boundary"]
    assert tensors.keys() == expected.keys()
    for name, tensor in tensors.items():
        assert tensor.dtype == (tf.float32 if "weights" in name else tf.int32)
        value = tensor.numpy()[1] if batched else tensor.numpy()
        np.testing.assert_array_equal(value, expected[name], err_msg=name)


def test_parse_numpy_gives_what_was_written():
    arrays = SPEC.parse_numpy(SPEC.serialize(example(3)))
    assert arrays.keys() == example(3).keys()
    for name, value in example(3).items():
        np.testing.assert_array_equal(arrays[name], value, err_msg=name)
    assert arrays["input_ids"].dtype == np.int64
    assert arrays["masked_lm_weights"].dtype == np.float32


def test_a_record_without_token_boundary_is_read():
    spec = records.FeatureSpec(
        tuple(f for f in SPEC.features if f.name != "token_boundary"))
    values = example(3)
    del values["token_boundary"]
    serialized = spec.serialize(values)
    assert "token_boundary" not in SPEC.parse_numpy(serialized)
    assert SPEC.parse(serialized)["input_ids"].shape == [S]


@pytest.mark.parametrize("change, message", [
    ({"input_idz": [1]}, "unknown .'input_idz'., missing .."),
    ({"input_ids": None}, "missing .'input_ids'."),
    ({"input_ids": [1] * (S + 1)}, "input_ids has 7 values instead of 6"),
    ({"input_ids": []}, "input_ids has 0 values"),
    ({"input_ids": [1.5] * S}, "input_ids does not hold int64"),
    ({"input_ids": np.ones(S)}, "input_ids does not hold int64"),
    ({"input_ids": [2**63] * S}, "input_ids does not hold int64"),
    ({"masked_lm_weights": ["a"] * P}, "masked_lm_weights does not hold float32"),
])
def test_serialize_refuses_what_does_not_fit(change, message):
    values = example(0) | change
    values = {name: value for name, value in values.items() if value is not None}
    with pytest.raises(ValueError, match=message):
        SPEC.serialize(values)


def test_scalar_features():
    spec = records.FeatureSpec((records.Feature("label", "float32", ()),))
    serialized = spec.serialize({"label": [2.5]})
    assert spec.parse_numpy(serialized)["label"] == 2.5
    assert spec.parse(serialized)["label"].shape == []


VARIABLE = records.FeatureSpec((
    records.Feature("ids", "int64", (None,), limit=100),
    records.Feature("choices", "float32", (2, None), parsed=False)))


@pytest.mark.parametrize("length", [0, 1, 5])
@pytest.mark.parametrize("form", ["flat", "rows", "array"])
def test_features_of_variable_length(length, form):
    choices = np.arange(2 * length, dtype=np.float32).reshape(2, length)
    given = {"flat": choices.ravel().tolist(), "rows": choices.tolist(),
             "array": choices}[form]
    arrays = VARIABLE.parse_numpy(VARIABLE.serialize(
        {"ids": list(range(length)), "choices": given}))
    assert arrays["ids"].tolist() == list(range(length))
    assert arrays["choices"].dtype == np.float32
    np.testing.assert_array_equal(arrays["choices"], choices)


@pytest.mark.parametrize("choices, message", [
    ([1, 2, 3], "choices has 3 values instead of a multiple of 2"),
    ([[1, 2], [3]], r"choices has the shape \(2,\) .* in rows of one length"),
    ([[1, 2], [3, 4], [5, 6]], r"choices has the shape \(3, 2\) instead of \(2, None"),
    (np.ones((4, 2)), r"choices has the shape \(4, 2\)"),
    ([["a"], ["b"]], "choices does not hold float32"),
])
def test_rows_that_do_not_fit_are_refused(choices, message):
    with pytest.raises(ValueError, match=message):
        VARIABLE.serialize({"ids": [1], "choices": choices})


def test_wrong_records_of_variable_length_are_told():
    other = records.FeatureSpec((records.Feature("ids", "int64", (2,)),
                                 records.Feature("choices", "float32", (3,))))
    data = other.serialize({"ids": [1, 100], "choices": [1.0] * 3})
    with pytest.raises(InputError, match=(
            "^x: choices has 3 values, which is not a multiple of 2; ids holds 100, "
            "which is not in 0..99[.]$")):
        VARIABLE.parse_numpy(data, "x")


def test_variable_features_are_not_for_parse():
    with pytest.raises(ValueError, match="feature_table reads ids, not parse"):
        VARIABLE.parse(VARIABLE.serialize({"ids": [1], "choices": []}))


def test_only_the_last_dimension_may_vary():
    with pytest.raises(ValueError, match="only the last dimension"):
        records.Feature("ids", "int64", (None, 4))


def test_specifications_that_make_no_sense():
    with pytest.raises(ValueError, match="int32"):
        records.Feature("a", "int32", (1,))
    with pytest.raises(ValueError, match="twice"):
        records.FeatureSpec((records.Feature("a", "int64", (1,)),
                             records.Feature("b", "int64", (1,), parsed_name="a")))


def test_no_tensorflow_and_no_clash_with_it():
    code = """
import sys
from albert_tf import records
spec = records.FeatureSpec((records.Feature("a", "int64", (2,)),))
data = spec.serialize({"a": [1, 2]})
assert spec.parse_numpy(data)["a"].tolist() == [1, 2]
assert "tensorflow" not in sys.modules
import tensorflow as tf
assert tf.train.Example.FromString(data).features.feature["a"].int64_list.value[1] == 2
assert spec.serialize({"a": [1, 2]}) == data
"""
    subprocess.run([sys.executable, "-c", code], check=True,
                   cwd=pathlib.Path(__file__).parents[2])


# --- files

def test_tensorflow_reads_our_files(path):
    import tensorflow as tf

    ours = list(records.read_records(str(path)))
    assert ours == [SPEC.serialize(example(n)) for n in range(5)]
    assert ours == list(tf.data.TFRecordDataset(str(path)).as_numpy_iterator())


def test_we_read_tensorflows_files(tmp_path):
    import tensorflow as tf

    path = str(tmp_path / "tf.tfrecord")
    contents = [b"", b"one", b"x" * 100_000]
    with tf.io.TFRecordWriter(path) as writer:
        for content in contents:
            writer.write(content)
    assert list(records.read_records(path)) == contents
    assert scan(path).num_records == 3


def test_the_releases_records(golden):
    digest, spec = hashlib.sha256(), records.pretraining_spec(32, 5)
    for record in records.read_records(golden):
        for name, array in sorted(spec.parse_numpy(record).items()):
            digest.update(name.encode() + array.tobytes())
    assert digest.hexdigest() == GOLDEN_SHA256
    [info] = records.check_files([golden], spec)
    assert info.num_records == 1161


def test_our_bytes_of_the_releases_records_are_the_same_size(golden):
    spec = records.pretraining_spec(32, 5)
    for record in list(records.read_records(golden))[:20]:
        assert len(spec.serialize(spec.parse_numpy(record))) == len(record)


def test_a_block_that_raises_leaves_the_old_file(path):
    before = path.read_bytes()
    with pytest.raises(RuntimeError):
        with records.RecordWriter(str(path)) as writer:
            writer.write(b"half")
            raise RuntimeError
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == ["x.tfrecord"]
    with pytest.raises(ValueError, match="not open"):
        writer.write(b"late")


def test_scan_counts(path):
    expected = records.FileInfo(str(path), 5, path.stat().st_size)
    assert scan(str(path)) == expected
    # Headers and contents that lie across the ends of reads of any size.
    for chunk in (1, 7, 12, 13, frame_size(path), frame_size(path) + 3):
        assert scan(str(path), chunk) == expected


def test_files_with_a_scheme():
    path = write("ram://records/x.tfrecord")
    assert records.check_files([path], SPEC)[0].num_records == 5
    assert len(list(records.read_records(path))) == 5
    files.remove(path)


# --- damage: every message names the file and the record

def flip(path, offset):
    content = bytearray(path.read_bytes())
    content[offset] ^= 4
    path.write_bytes(content)


def outcome(function, *arguments):
    with pytest.raises(InputError) as caught:
        result = function(*arguments)
        list(result)
    return str(caught.value)


@pytest.mark.parametrize("record", [1, 2, 5])
@pytest.mark.parametrize("cut", ["in header", "in content", "in checksum"])
@pytest.mark.parametrize("chunk", [5, 1 << 20])
def test_truncation(path, record, cut, chunk):
    frame = frame_size(path)
    end = (record - 1) * frame + {
        "in header": 5, "in content": 20, "in checksum": frame - 1}[cut]
    path.write_bytes(path.read_bytes()[:end])
    for function in (lambda path: scan(path, chunk), records.read_records):
        message = outcome(function, str(path))
        assert message.startswith(f"{path}, record {record}: cut off")
        assert " 1 bytes" in message or cut != "in checksum"


def test_damaged_header(path):
    flip(path, 2 * frame_size(path) + 1)
    for function in (scan, records.read_records):
        message = outcome(function, str(path))
        assert message.startswith(f"{path}, record 3: damaged")
        assert "header" in message


def test_damaged_content(path):
    flip(path, 3 * frame_size(path) + 40)
    assert scan(str(path)).num_records == 5  # looks at headers only
    message = outcome(records.read_records, str(path))
    assert message.startswith(f"{path}, record 4: damaged")
    assert "content" in message


@pytest.mark.parametrize("content, message", [
    (b"", "the file is empty"),
    (b"short\n", "record 1: cut off.* not a TFRecord file"),
    (b"A text of some length, a sentence a line.\n" * 9, "record 1: not a TFRecord"),
    (gzip.compress(b"x" * 99, mtime=0), "record 1: not a TFRecord file.*gunzip"),
])
def test_other_files(tmp_path, content, message):
    path = tmp_path / "other.txt"
    path.write_bytes(content)
    for function in (scan, records.read_records):
        with pytest.raises(InputError, match=f"{path}.*{message}"):
            list(function(str(path)))
    with pytest.raises(InputError, match=f"{path}.*{message}"):
        records.check_files([str(path)], SPEC)


def test_missing_file(tmp_path):
    with pytest.raises(InputError, match="nowhere.tfrecord: cannot be opened"):
        scan(str(tmp_path / "nowhere.tfrecord"))


# --- files that do not fit

def test_check_files_keeps_the_order(tmp_path):
    paths = [write(tmp_path / f"{n}", n) for n in (7, 2, 5)]
    infos = records.check_files(paths, SPEC)
    assert [(i.path, i.num_records) for i in infos] == list(zip(paths, (7, 2, 5)))


def test_another_length(tmp_path, path):
    other = write(tmp_path / "other.tfrecord", 1, records.pretraining_spec(8, 3),
                  length=8, predictions=3)
    with pytest.raises(InputError) as caught:
        records.check_files([str(path), other], SPEC)
    message = str(caught.value)
    assert message.startswith(f"{other}, record 1: ")
    assert ("input_ids, input_mask, segment_ids, token_boundary have 8 values where "
            "max_seq_length says 6 (set max_seq_length to 8") in message
    assert ("masked_lm_positions, masked_lm_ids, masked_lm_weights have 3 values where "
            "max_predictions_per_seq says 2") in message


def test_missing_features_and_other_types(tmp_path):
    spec = records.FeatureSpec((
        records.Feature("input_ids", "int64", (S,)),
        records.Feature("masked_lm_weights", "int64", (P,))))
    path = str(tmp_path / "x")
    with records.RecordWriter(path) as writer:
        writer.write(spec.serialize(
            {"input_ids": [1] * S, "masked_lm_weights": [1] * P}))
    with pytest.raises(InputError, match=(
            f"{path}, record 1: it has no feature input_mask, segment_ids, "
            "masked_lm_positions, masked_lm_ids, next_sentence_labels; "
            "masked_lm_weights holds int64_list instead of float_list")):
        records.check_files([path], SPEC)


def test_contents_that_are_no_examples(tmp_path):
    path = str(tmp_path / "x")
    with records.RecordWriter(path) as writer:
        writer.write(b"\xff\xff\xff")
    with pytest.raises(InputError, match="record 1: the content is not a tf.train.Ex"):
        records.check_files([path], SPEC)


# --- errors that show while training

def error_of_tf_data(paths, spec=SPEC):
    import tensorflow as tf

    with pytest.raises((tf.errors.OpError, UnicodeDecodeError)) as caught:
        for _ in tf.data.TFRecordDataset(paths).batch(2).map(spec.parse):
            continue
    return caught.value


@pytest.mark.parametrize("what", ["content", "header", "cut", "gone"])
def test_explain_damage(tmp_path, path, what):
    good = write(tmp_path / "good")
    paths = [good, str(path)]
    if what == "content":
        flip(path, struct.calcsize("<QI") + frame_size(path) + 9)
    elif what == "header":
        flip(path, frame_size(path))
    elif what == "cut":
        path.write_bytes(path.read_bytes()[:2 * frame_size(path) - 9])
    else:
        path.unlink()
    explanation = records.explain_read_error(paths, SPEC, error_of_tf_data(paths))
    assert isinstance(explanation, InputError)
    expected = f"{path}:" if what == "gone" else f"{path}, record 2:"
    assert str(explanation).startswith(expected)


@pytest.mark.parametrize("content", [
    b"\xff\xff", b"", records.pretraining_spec(8, 2).serialize(example(1, length=8))])
def test_explain_a_later_record_that_does_not_fit(tmp_path, content):
    path = str(tmp_path / "mixed")
    with records.RecordWriter(path) as writer:
        writer.write(SPEC.serialize(example(0)))
        writer.write(content)
    records.check_files([path], SPEC)  # only looks at the first record
    explanation = records.explain_read_error([path], SPEC, error_of_tf_data([path]))
    assert str(explanation).startswith(f"{path}, record 2:")


def test_other_errors_are_not_explained(path):
    import tensorflow as tf

    data_loss = tf.errors.DataLossError(None, None, "corrupted record at 0")
    assert records.explain_read_error([str(path)], SPEC, data_loss) is None
    flip(path, 40)
    elsewhere = tf.errors.InvalidArgumentError(None, None, "indices[0] = 5 is not in")
    for error in (elsewhere, ValueError("x")):
        assert records.explain_read_error([str(path)], SPEC, error) is None
    assert records.explain_read_error([str(path)], SPEC, data_loss)
