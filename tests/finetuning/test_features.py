"""Features: computed on several cores, written to files that are read again."""

import os
import pickle
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from albert_tf import files
from albert_tf.errors import InputError
from albert_tf.finetuning import features
from albert_tf.finetuning.classification.task import classification_spec
from tests.finetuning.featurize import Featurize
from tests.finetuning.test_length_batching import TABLES

SPEC = classification_spec(3, vocab_size=100)


def example(number, length):
    return {**TABLES["regression"][1](number, length), "label_ids": [number % 3]}


def examples(count=5):
    return [example(number, 1 + number * 2 % 7) for number in range(count)]


@pytest.fixture(name="path")
def _path(tmp_path):
    return str(tmp_path / "train-0a.npz")


# --- tables

@pytest.mark.parametrize("error, change, message", [
    (InputError, {"input_ids": [100, 1, 1]}, "input_ids holds 100, which is not in 0..99"),
    (InputError, {"label_ids": [3]}, "label_ids holds 3, which is not in 0..2, as num_"),
    (InputError, {"segment_ids": [0, 2, 0]}, "segment_ids holds 2.*type_vocab_size"),
    (ValueError, {"label_ids": [1, 1]}, "label_ids"),
    (ValueError, {"input_mask": [1, 1]}, "differ in length"),
    (ValueError, dict.fromkeys(("input_ids", "input_mask", "segment_ids"), []), "empty"),
])
def test_wrong_values(error, change, message):
    with pytest.raises(error, match=message):
        features.FeatureTable.from_values(SPEC, examples(4) + [example(1, 3) | change])


def test_a_model_with_one_segment_reads_pairs():
    pair = example(1, 3) | {"segment_ids": [0, 0, 1]}
    table = features.FeatureTable.from_values(
        classification_spec(3, vocab_size=100, type_vocab_size=1), [pair])
    assert table.columns["segment_ids"].values.tolist() == [0, 0, 1]


# --- files

@pytest.mark.parametrize("path", ["train-0a.npz", "ram://features/x.npz"])
@pytest.mark.parametrize("spec, given", [
    (SPEC, examples(1010)),  # A thousand are read at once.
    *((spec, [make(1, 3), make(2, 7)]) for spec, make in TABLES.values())])
def test_features_are_made_once(tmp_path, monkeypatch, caplog, path, spec, given):
    monkeypatch.chdir(tmp_path)
    source = mock.Mock(side_effect=lambda: iter(given))
    tables = [features.load_or_create(path, spec, source) for _ in range(2)]
    assert source.call_count == 1
    assert f"Reusing the features of {len(given)} records in {path}." in caplog.text
    files.remove(path)
    for table in tables:
        assert table.num_rows == len(given)
        assert table.lengths.tolist() == [
            np.shape(each["input_ids"])[-1] for each in given]
        for name, column in table.columns.items():
            assert column[0].dtype in (np.int32, np.float32)
            for row, values in zip(column, given, strict=True):
                np.testing.assert_array_equal(row, values[name], err_msg=name)
                assert row.shape == np.shape(values[name])


def test_a_damaged_file_is_named(path):
    features.load_or_create(path, SPEC, examples)
    os.truncate(path, 99)
    with pytest.raises(InputError, match=f"^{path}: .*damaged"):
        features.load_or_create(path, SPEC, examples)


def test_a_failure_leaves_no_file(tmp_path, path):
    def broken():
        yield example(0, 3)
        raise InputError("train.tsv, line 2: no label.")

    for create in (broken, lambda: iter(())):
        with pytest.raises(InputError, match="line 2|there is no example"):
            features.load_or_create(path, SPEC, create)
    assert not list(tmp_path.iterdir())


def test_a_digest_depends_on_content_code_and_settings(tmp_path):
    code = tmp_path / "task.py"

    def digest(source="A = 1\n", spec=SPEC, **made_of):
        code.write_text(source)
        return features.digest_of([str(tmp_path)], spec, **made_of)

    first = digest(labels=("a", "b"))
    assert first == digest(labels=["a", "b"])
    assert len({first, digest("A = 2\n", labels=["a", "b"]), digest(labels=["a"]),
                digest(spec=TABLES["spans"][0], labels=["a", "b"])}) == 4


# --- on several cores

MANY = 3001


def featurize(function, examples=range(MANY), num_workers=2):
    return features.featurize_all(
        examples, function, what="train", num_workers=num_workers)


def ids(results):
    return [[record["id"].tolist() for record in result] for result in results]


@pytest.mark.parametrize("workers", [1, 2])
def test_results_come_in_the_order_of_the_examples(workers):
    """With TensorFlow's threads running, too; each process is sent the function once."""
    tf.constant(1) + 1
    before = Featurize.pickled
    assert ids(featurize(Featurize(), num_workers=workers)) == [
        [[n]] * (n % 3) for n in range(MANY)]
    assert Featurize.pickled == before + workers * (workers > 1)


def test_a_small_set_is_made_in_this_process():
    [[record]] = featurize(Featurize(), [1])
    assert record["process"].tolist() == [os.getpid()]
    assert not list(featurize(Featurize(), []))


@pytest.mark.parametrize("workers", [1, 2])
def test_the_first_wrong_example_is_named(workers):
    with pytest.raises(InputError) as caught:
        list(featurize(Featurize(bad=(2900, 700, 1500)), num_workers=workers))
    assert str(caught.value) == "train.tsv, line 700: no label; give one."


@pytest.mark.parametrize("function, examples, workers, error, message", [
    # A process that is killed.
    (Featurize(kill=2000), range(MANY), 2, InputError,
     "features of train: .*was killed.*--num_workers below 2"),
    # A function that cannot be sent fails at once.
    (lambda _: [], range(MANY), 2, (pickle.PicklingError, AttributeError), "lambda")])
def test_what_cannot_be_done(function, examples, workers, error, message):
    with pytest.raises(error, match=message):
        list(featurize(function, examples, workers))
