"""Features on several cores: the order, errors and killed processes."""

import os
import pickle
import signal

import pytest

from albert_tf.errors import InputError
from albert_tf.finetuning import features

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
