"""Features: computed on several cores, written to files that are read again."""

import os
import pickle
import signal
from unittest import mock

import numpy as np
import pytest

from albert_tf.config import AlbertConfig
from albert_tf import files
from albert_tf.finetuning.classification.task import classification_spec
from albert_tf.finetuning.race.task import choice_spec
from albert_tf.finetuning.squad.task import SquadTask
from albert_tf.errors import InputError
from albert_tf.finetuning import features

SPEC = classification_spec(3, vocab_size=100)
CHOICES = choice_spec(4, vocab_size=100)
SPANS = SquadTask(max_seq_length=16, max_query_length=8).spec(AlbertConfig(vocab_size=100))


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


def source_of(values):
    """Makes examples and counts how often it was asked."""
    return mock.Mock(side_effect=lambda: iter(values))


@pytest.fixture(name="path")
def _path(tmp_path):
    return str(tmp_path / "train-0a.npz")


def check(table, expected):
    assert table.num_rows == len(expected)
    for name, column in table.columns.items():
        assert len(column) == len(expected)
        for row, values in zip(column, expected):
            np.testing.assert_array_equal(row, values[name], err_msg=name)


# --- tables

def test_a_table_holds_what_was_given():
    given = examples(1010)  # Read a thousand at once.
    table = features.FeatureTable.from_values(SPEC, given)
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

@pytest.mark.parametrize("spec, values", [
    (SPEC, examples()), (SPANS, [span(1, 3), span(2, 7)]),
    (CHOICES, [dict(input_ids=[[1, 2], [3, 0], [4, 5], [6, 7]], input_mask=[1] * 8,
                    segment_ids=[0] * 8, label_ids=[3])])])
def test_features_are_made_once(path, caplog, spec, values):
    source = source_of(values)
    first, second = (features.load_or_create(path, spec, source) for _ in range(2))
    assert source.call_count == 1
    assert f"Reusing the features of {len(values)} records in {path}." in caplog.text
    for name, column in first.columns.items():
        same = second.columns[name]
        assert [row.tolist() for row in same] == [row.tolist() for row in column]
        assert same[0].dtype == column[0].dtype and same[0].shape == column[0].shape


def test_a_damaged_file_is_named(path):
    features.load_or_create(path, SPEC, source_of(examples()))
    with open(path, "r+b") as stream:
        stream.truncate(99)
    with pytest.raises(InputError, match=f"^{path}: .*damaged"):
        features.load_or_create(path, SPEC, source_of(examples()))


def test_a_failure_leaves_no_file(tmp_path, path):
    def broken():
        yield example(0, 3)
        raise InputError("train.tsv, line 2: no label.")

    for create in (broken, lambda: iter(())):
        with pytest.raises(InputError, match="line 2|there is no example"):
            features.load_or_create(path, SPEC, create)
    assert not list(tmp_path.iterdir())


def test_files_with_a_scheme():
    path = "ram://features/x.npz"
    source = source_of(examples())
    for _ in range(2):
        check(features.load_or_create(path, SPEC, source), examples())
    assert source.call_count == 1
    files.remove(path)


def test_a_digest_depends_on_content_code_and_settings(tmp_path):
    code = tmp_path / "task.py"

    def digest(source="A = 1\n", spec=SPEC, **made_of):
        code.write_text(source)
        return features.digest_of([str(tmp_path)], spec, **made_of)

    first = digest(labels=("a", "b"))
    assert first == digest(labels=["a", "b"])
    assert len({first, digest("A = 2\n", labels=["a", "b"]), digest(labels=["a"]),
                digest(spec=SPANS, labels=["a", "b"])}) == 4


# --- on several cores

MANY = 3001


class Featurize:
    """A picklable function with something in it, as a tokenizer is."""

    pickled = 0

    def __init__(self, bad=(), kill=None):
        self.bad, self.kill = bad, kill

    def __getstate__(self):
        Featurize.pickled += 1
        return self.__dict__

    def __call__(self, example):
        if example == self.kill:
            os.kill(os.getpid(), signal.SIGKILL)
        if example in self.bad:
            raise InputError(f"train.tsv, line {example}: no label; give one.")
        return [{"id": [example], "process": [os.getpid()]}] * (example % 3)


EXPECTED = [[[n]] * (n % 3) for n in range(MANY)]


def featurize(function, examples=range(MANY), num_workers=2):
    return features.featurize_all(
        examples, function, what="train", num_workers=num_workers)


def ids(results):
    return [[record["id"].tolist() for record in result] for result in results]


@pytest.mark.parametrize("workers", [1, 0])
def test_results_come_in_the_order_of_the_examples(workers):
    assert ids(featurize(Featurize(), num_workers=workers)) == EXPECTED


def test_results_are_the_same_with_tensorflow_loaded_and_the_function_is_sent_once():
    import tensorflow as tf

    tf.constant(1) + 1  # its threads run now
    before = Featurize.pickled
    assert ids(featurize(Featurize())) == EXPECTED
    assert Featurize.pickled == before + 1


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
