"""Files of features: what is written is read, and only what fits is reused."""

import json
import pathlib
import sys
import types

import numpy as np
import pytest

from albert_tf import files, records
from albert_tf.finetuning.classification.task import classification_spec
from albert_tf.finetuning.race.task import choice_spec
from albert_tf.finetuning.squad.dataset import span_spec
from albert_tf.errors import InputError
from albert_tf.finetuning import features

SPEC = classification_spec(3, vocab_size=100)
CHOICES = choice_spec(4, vocab_size=100)
SPANS = span_spec(100, max_seq_length=16)


def example(number, length):
    return dict(input_ids=[number % 100] * length, input_mask=[1] * length,
                segment_ids=np.arange(length) % 2, label_ids=[number % 3])


def examples(count=5):
    return [example(number, 1 + number * 2 % 7) for number in range(count)]


def span(number, length):
    return dict(
        unique_ids=[10**9 + number], input_ids=[number] * length,
        input_mask=[1] * length, segment_ids=[0] * length, p_mask=[1] * length,
        start_positions=[0], end_positions=[length - 1], is_impossible=[0],
        example_index=[number], paragraph_len=[2], tok_start_to_orig_index=[4, 5],
        tok_end_to_orig_index=[5], token_is_max_context=[])


class Source:
    """Makes examples and counts how often it was asked."""

    def __init__(self, values=None):
        self.values = examples() if values is None else values
        self.calls = 0

    def __call__(self):
        self.calls += 1
        return iter(self.values)


@pytest.fixture(name="path")
def _path(tmp_path):
    return str(tmp_path / "train.tfrecord")


def parts(**settings):
    return {"files": {"train data": "ab"}, "code": {"glue": "cd"},
            "settings": {"max_seq_length": 128, "labels": ("a", "b")} | settings}


def check(table, expected):
    assert table.num_rows == len(expected)
    for name, column in table.columns.items():
        assert len(column) == len(expected)
        for row, values in zip(column, expected):
            np.testing.assert_array_equal(row, values[name], err_msg=name)


# --- tables

def from_records(spec, values):
    return features.FeatureTable.from_records(spec, map(spec.serialize, values))


@pytest.mark.parametrize("make", [features.FeatureTable.from_values, from_records])
def test_a_table_holds_what_was_given(make):
    given = examples(1010)  # Read a thousand at once.
    table = make(SPEC, given)
    check(table, given)
    assert table.lengths.tolist() == [len(each["input_ids"]) for each in given]
    assert table.columns["input_ids"].values.dtype == np.int32
    assert table.columns["label_ids"].shape == (1010, 1)


def test_choices_keep_their_rows():
    rows = [[1, 2, 3], [4, 5, 0], [6, 0, 0], [7, 8, 9]]
    values = dict(input_ids=rows, input_mask=np.ones((4, 3), int),
                  segment_ids=[0] * 12, label_ids=[3])
    table = features.FeatureTable.from_values(CHOICES, [values, values])
    assert table.columns["input_ids"][1].tolist() == rows
    assert table.columns["segment_ids"][-1].shape == (4, 3)
    assert table.lengths.tolist() == [3, 3]


def test_features_that_are_for_predictions_only_have_lengths_of_their_own():
    table = features.FeatureTable.from_values(SPANS, [span(1, 3), span(2, 7)])
    check(table, [span(1, 3), span(2, 7)])
    assert table.columns["unique_ids"].tolist() == [[10**9 + 1], [10**9 + 2]]


def test_labels_of_a_regression_are_floats():
    spec = classification_spec(1, 100)
    table = features.FeatureTable.from_values(
        spec, [example(0, 2) | {"label_ids": [2.5]}])
    assert table.columns["label_ids"].tolist() == [[2.5]]
    assert table.columns["label_ids"].dtype == np.float32


def test_a_table_without_examples():
    table = features.FeatureTable.from_values(SPEC, [])
    assert table.num_rows == 0 and not table.lengths.size


@pytest.mark.parametrize("change, message", [
    ({"input_ids": [100, 1, 1]}, "input_ids holds 100, which is not in 0..99"),
    ({"label_ids": [3]}, "label_ids holds 3, which is not in 0..2, as num_labels 3"),
    ({"segment_ids": [0, 2, 0]}, "segment_ids holds 2.*type_vocab_size"),
    ({"input_mask": [1, 1]}, "same length.*, but their lengths are input_ids 3, input_mask 2"),
    ({name: [] for name in ("input_ids", "input_mask", "segment_ids")}, "input_ids 0"),
])
def test_wrong_values_name_the_example(change, message):
    values = examples(4) + [example(1, 3) | change]
    with pytest.raises(InputError, match=f"^example 5: .*{message}"):
        features.FeatureTable.from_values(SPEC, values)
    # More than 32 bits.
    with pytest.raises(InputError, match="^example 1: unique_ids"):
        features.FeatureTable.from_values(SPANS, [span(1, 3) | {"unique_ids": [2**31]}])


@pytest.mark.parametrize("spec, message", [
    (classification_spec(1, 100), "label_ids has 0 float32 values"),
    (records.FeatureSpec((*SPEC.features, records.Feature("more", "int64", (1,)))),
     "more has 0 int64 values"),
    (records.FeatureSpec((*SPEC.features, records.Feature(
        "more", "int64", (1,), parsed=False))), "it has no feature more"),
])
def test_records_of_another_specification_are_refused(spec, message):
    with pytest.raises(InputError, match=f"^record 1: {message}"):
        features.FeatureTable.from_records(spec, map(SPEC.serialize, examples()))
    flat = [SPEC.serialize(example(1, length)) for length in (4, 5)]
    with pytest.raises(InputError, match="^record 2: .*5 int64 values.*multiple of 4"):
        features.FeatureTable.from_records(CHOICES, flat)


# --- files

def test_features_are_made_once(path, caplog):
    source = Source()
    check(features.load_or_create(path, SPEC, parts(), source), examples())
    check(features.load_or_create(path, SPEC, parts(), source), examples())
    assert source.calls == 1
    assert f"Reusing the features of 5 records in {path}." in caplog.text
    assert "WARNING" not in caplog.text


@pytest.mark.parametrize("change, message", [
    ({"settings": {"max_seq_length": 64, "labels": ["a", "b"]}},
     "max_seq_length was 128 and is 64 now."),
    ({"settings": {"max_seq_length": 128}}, 'labels was ["a", "b"] and is unset now.'),
    ({"files": {"train data": "xy"}}, "the content of train data changed."),
    ({"code": {"glue": "xy"}}, "the code of glue changed."),
    ({"spec": classification_spec(4, 100)}, "label_ids was"),
])
def test_a_change_makes_them_anew_and_is_logged(path, caplog, change, message):
    features.load_or_create(path, SPEC, parts(), Source())
    source = Source(examples(7))
    spec = change.get("spec", SPEC)
    table = features.load_or_create(path, spec, parts() | {
        key: value for key, value in change.items() if key != "spec"}, source)
    check(table, examples(7))
    assert source.calls == 1
    assert f"computed again, because {message}" in caplog.text


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def rewrite(*values):
    """Whole and readable, but of another run than the fingerprint."""
    def write(path, sidecar):
        with records.RecordWriter(str(path)) as writer:
            for value in values:
                writer.write(SPEC.serialize(value))

    return write


@pytest.mark.parametrize("damage, message", [
    (lambda path, sidecar: flip(path), "damaged"),
    (lambda path, sidecar: path.write_bytes(path.read_bytes()[:-9]), "cut off"),
    (lambda path, sidecar: path.write_bytes(b""), "cut off"),
    (rewrite(*examples(4)), "has 4 records, which do not match"),
    (rewrite(*examples()[::-1]), "has 5 records, which do not match"),
    (lambda path, sidecar: sidecar.unlink(), "has no fingerprint"),
    (lambda path, sidecar: sidecar.write_text("abc"), "json is damaged"),
    (lambda path, sidecar: sidecar.write_text("[]"), "json is damaged"),
    (lambda path, sidecar: flip(sidecar), "json"),
])
def test_a_damaged_file_is_made_anew_with_a_warning(path, caplog, damage, message):
    features.load_or_create(path, SPEC, parts(), Source())
    damage(pathlib.Path(path), pathlib.Path(features.fingerprint_path(path)))
    source = Source()
    for _ in range(2):
        check(features.load_or_create(path, SPEC, parts(), source), examples())
    assert source.calls == 1 and message in caplog.text


def test_a_failure_leaves_no_file(tmp_path, path):
    def broken():
        yield example(0, 3)
        raise InputError("train.tsv, line 2: no label.")

    for create in (broken, lambda: iter(())):
        with pytest.raises(InputError, match="line 2|there is no example"):
            features.load_or_create(path, SPEC, parts(), create)
    assert not list(tmp_path.iterdir())


def test_a_folder_of_that_name_is_told(tmp_path, path):
    (tmp_path / "train.tfrecord").mkdir()
    with pytest.raises(InputError, match=f"^{path}: cannot be written: Is a directory"):
        features.load_or_create(path, SPEC, parts(), Source())
    assert len(list(tmp_path.iterdir())) == 1


def test_files_with_a_scheme():
    path = "ram://features/x.tfrecord"
    source = Source()
    for _ in range(2):
        check(features.load_or_create(path, SPEC, parts(), source), examples())
    assert source.calls == 1
    files.remove(path)


# --- fingerprints

def make_module(tmp_path, source, monkeypatch):
    (tmp_path / "featurizer_of_test.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "featurizer_of_test", raising=False)
    module = types.ModuleType("featurizer_of_test")
    module.__file__ = str(tmp_path / "featurizer_of_test.py")
    return module


def test_a_fingerprint_depends_on_content_code_and_settings(tmp_path, monkeypatch):
    data = tmp_path / "a.tsv"

    def fingerprint(content="x\t1\n", source="A = 1\n", name="a.tsv", **settings):
        data.write_text(content)
        path = data.rename(tmp_path / name)
        module = make_module(tmp_path, source, monkeypatch)
        return features.fingerprint_parts(
            {"train data": files.sha256(str(path))}, [module], **settings)

    first = fingerprint(max_seq_length=8, labels=("a", "b"))
    assert first == json.loads(json.dumps(first))
    assert first == fingerprint(max_seq_length=8, labels=["a", "b"])
    assert first == fingerprint(name="b.tsv", max_seq_length=8, labels=["a", "b"])
    for other in (
            fingerprint("x\t2\n", max_seq_length=8, labels=["a", "b"]),
            fingerprint(source="A = 2\n", max_seq_length=8, labels=["a", "b"]),
            fingerprint(max_seq_length=9, labels=["a", "b"])):
        assert other != first


def test_a_missing_file_is_told(tmp_path):
    with pytest.raises(InputError, match="nowhere.tsv: No such file"):
        files.sha256(str(tmp_path / "nowhere.tsv"))
