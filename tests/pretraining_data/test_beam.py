"""Data creation as a Beam pipeline: the records of the local run.

Most of it runs without Beam: its steps on a stand-in for a runner, which sends every
element through pickle and gives groups in random order. Tests of Beam's own runners
are skipped where Beam is not installed (requirements-beam.txt).
"""

import dataclasses
import pickle
import random
import sys
from importlib.util import find_spec

import pytest

from albert_tf.errors import InputError
from albert_tf.masking.options import MaskingOptions
from albert_tf.pretraining_data import beam, local
from albert_tf.pretraining_data.local import Sizes
from albert_tf.pretraining_data.options import InstanceOptions
from tests.pretraining_data.data_creation import CORPUS, TEXT, options_of

TWO_PROCESSES = ("--direct_running_mode=multi_processing", "--direct_num_workers=2")
NEEDS_BEAM = pytest.mark.skipif(
    find_spec("apache_beam") is None, reason="needs apache_beam (requirements-beam.txt)")

# ---- a stand-in for a runner -------------------------------------------------


class Step:
    """A function of all elements as one of Beam's transforms."""

    def __init__(self, function):
        self._function = function

    def __rrshift__(self, label):
        return self

    def __ror__(self, elements):
        found = pickle.loads(pickle.dumps(list(self._function(elements))))
        random.shuffle(found)
        return found


def grouped(pairs):
    groups = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups.items()


class Beam:
    """As much of the package apache_beam as beam.run uses."""

    Create = staticmethod(lambda elements: Step(lambda _: elements))
    Reshuffle = staticmethod(lambda: Step(list))
    Map = staticmethod(lambda function, *args: Step(
        lambda elements: [function(each, *args) for each in elements]))
    FlatMap = staticmethod(lambda function, *args: Step(
        # A step may be done twice, if a worker is lost.
        lambda elements: [found for each in elements
                          for found in [list(function(each, *args)) for _ in "12"][1]]))
    GroupByKey = staticmethod(lambda: Step(grouped))


@pytest.fixture
def stand_in(monkeypatch):
    monkeypatch.setitem(sys.modules, "apache_beam", Beam)
    monkeypatch.setattr(beam, "new_pipeline", lambda *args: [])
    monkeypatch.setattr(beam, "finish", lambda *args: None)


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())
            if path.suffix != ".txt"}


def check(tmp_path, tokenizer, monkeypatch, *runner, sizes=Sizes(span_bytes=3000),
          **options):
    """Compares the files of the local run and of Beam."""
    options = dataclasses.replace(
        options_of(tmp_path, **options), output_files=("a", "b", "c"))
    for name, create in (("local", local.create), ("beam", beam.run)):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        create(options, tokenizer, *(runner if name == "beam" else ()), sizes=sizes)
    assert contents(tmp_path / "local") == contents(tmp_path / "beam") != {}


# A small text is cut into many spans, slices and buckets all the same.
SMALL_UNITS = Sizes(span_bytes=3000, slice_codes=400, bucket_bytes=2000)


def settings(objective="order", single_segment="random"):
    return dict(
        text=CORPUS[:10000], dupe_factor=2,
        instances=InstanceOptions(
            max_seq_length=64, sentence_objective=objective,
            single_segment=single_segment,
            masking=MaskingOptions(max_predictions_per_seq=10)))


@pytest.mark.parametrize("objective, single_segment", [
    ("order", "random"), ("order", "skip"), ("next", "random"), ("next", "skip"),
    ("none", "random")])
def test_records_are_those_of_the_local_run(
        objective, single_segment, tmp_path, tokenizer, stand_in, monkeypatch):
    check(tmp_path, tokenizer, monkeypatch, sizes=SMALL_UNITS,
          **settings(objective, single_segment))


@pytest.mark.parametrize("text, num_outputs, message", [
    ("\n\n", 1, "text.txt: there is no sentence"),
    (TEXT, 30, "too few for 30 output files")])
def test_what_cannot_be_made(
        text, num_outputs, message, tmp_path, tokenizer, stand_in):
    with pytest.raises(InputError, match=message):
        beam.run(options_of(tmp_path, text, list(map(str, range(num_outputs)))),
                 tokenizer)
    assert not contents(tmp_path)


@pytest.mark.parametrize("package, runner, message", [
    ("apache_beam", "DirectRunner", "pip install -r requirements-beam.txt"),
    pytest.param("distributed", "DaskRunner", "--runner=DaskRunner: .*distributed",
                 marks=NEEDS_BEAM)])
def test_without_the_packages(
        package, runner, message, tmp_path, tokenizer, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InputError, match=message):
        beam.run(options_of(tmp_path), tokenizer, runner)
    assert not contents(tmp_path)


class FailingPipeline:
    def __init__(self, error):
        self.error = error

    def run(self):
        raise self.error


READ = "text.txt, line 3: byte 9 is not UTF-8; convert it."


@pytest.mark.parametrize("error, found", [
    (InputError(f"{READ} [while running 'Tokenize']"), READ),
    (RuntimeError(
        f"Traceback ...\n  raise x\nalbert_tf.errors.InputError: {READ} "
        "[while running 'Tokenize-ptransform-57']\n\nmore"), READ),
    (FileNotFoundError(2, "No such file or directory", "java"), "--runner: the pipeline")])
def test_errors_of_the_input_and_the_runner_are_one_sentence(error, found):
    with pytest.raises(InputError, match=f"^{found}"):
        beam.finish(FailingPipeline(error))


# ---- Beam's runners ----------------------------------------------------------


@NEEDS_BEAM
@pytest.mark.parametrize("flags", [
    (), pytest.param(TWO_PROCESSES, marks=pytest.mark.slow)],
    ids=["in_memory", "multi_processing"])
def test_direct_runner(flags, tmp_path, tokenizer, monkeypatch):
    check(tmp_path, tokenizer, monkeypatch, "DirectRunner", flags, **settings())
