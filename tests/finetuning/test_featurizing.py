"""Features on several cores: the order, errors and killed processes."""

import os
import pickle
import signal
import time

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


def ids(results):
    return [[record["id"].tolist() for record in result] for result in results]


EXPECTED = [[[n]] * (n % 3) for n in range(MANY)]


@pytest.mark.parametrize("workers", [1, 2, 0])
def test_results_come_in_the_order_of_the_examples(workers):
    results = list(features.featurize_all(
        range(MANY), Featurize(), what="train", num_workers=workers))
    assert ids(results) == EXPECTED


class Meeting(Featurize):
    """Goes on once two processes have come, so that none does all the work."""

    def __init__(self, folder):
        super().__init__()
        self.folder = str(folder)

    def __call__(self, example):
        open(os.path.join(self.folder, str(os.getpid())), "wb").close()
        deadline = time.monotonic() + 60
        while len(os.listdir(self.folder)) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        return super().__call__(example)


def test_two_processes_share_the_work(tmp_path):
    results = list(features.featurize_all(
        range(MANY), Meeting(tmp_path), what="train", num_workers=2))
    assert ids(results) == EXPECTED
    processes = {record["process"][0] for r in results for record in r}
    assert os.getpid() not in processes and len(processes) == 2


def test_results_are_the_same_with_tensorflow_loaded():
    import tensorflow as tf

    tf.constant(1) + 1  # its threads run now
    assert ids(features.featurize_all(
        range(MANY), Featurize(), what="train", num_workers=2)) == EXPECTED


def test_the_function_is_not_sent_with_every_task():
    before = Featurize.pickled
    list(features.featurize_all(range(MANY), Featurize(), what="x", num_workers=2))
    assert Featurize.pickled == before + 1


def test_a_small_set_is_made_in_this_process():
    [[record]] = features.featurize_all([1], Featurize(), what="x", num_workers=2)
    assert record["process"].tolist() == [os.getpid()]
    assert not list(features.featurize_all([], Featurize(), what="x"))


@pytest.mark.parametrize("workers", [1, 2])
def test_the_first_wrong_example_is_told(workers):
    with pytest.raises(InputError) as caught:
        list(features.featurize_all(
            range(MANY), Featurize(bad=(2900, 700, 1500)), what="train",
            num_workers=workers))
    assert str(caught.value) == "train.tsv, line 700: no label; give one."


def test_processes_that_are_always_killed_end_the_job_with_a_sentence():
    with pytest.raises(
            InputError, match="features of train: .*killed 4 times.*--num_workers"):
        list(features.featurize_all(
            range(MANY), Featurize(kill=2000), what="train", num_workers=2))


class KilledOnce(Featurize):
    """Dies at one example, the first time only."""

    def __init__(self, folder):
        super().__init__()
        self.mark = str(folder / "killed")

    def __call__(self, example):
        if example == 1500 and not os.path.exists(self.mark):
            open(self.mark, "wb").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(example)


def test_what_a_killed_process_was_doing_is_done_again(tmp_path):
    assert ids(features.featurize_all(
        range(MANY), KilledOnce(tmp_path), what="train", num_workers=2)) == EXPECTED
    assert os.path.exists(tmp_path / "killed")


def test_a_function_that_cannot_be_sent_fails_at_once():
    with pytest.raises((pickle.PicklingError, AttributeError)):
        list(features.featurize_all(
            range(MANY), lambda _: [], what="train", num_workers=2))


def test_a_negative_number_of_processes_is_refused():
    with pytest.raises(InputError, match="--num_workers=-1"):
        list(features.featurize_all([1], Featurize(), what="x", num_workers=-1))


def test_a_reader_that_stops_early_ends_the_processes():
    results = features.featurize_all(
        range(MANY), Featurize(), what="x", num_workers=2)
    next(results)
    process = next(results)[0]["process"][0]
    results.close()
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


def test_a_long_job_says_how_far_it_is(caplog, monkeypatch):
    list(features.featurize_all([1, 2], Featurize(), what="train"))
    assert not caplog.messages
    monkeypatch.setattr("albert_tf.progress.SECONDS_BETWEEN_LINES", 0)
    list(features.featurize_all([1, 2], Featurize(), what="train"))
    assert "features of train: 2 of 2 examples (100.0%)" in caplog.text
