"""Data creation as a Beam pipeline: the records of the local run.

Most of it runs without Beam: its steps on a stand-in for a runner, which sends every
element through pickle and gives groups in random order. Tests of Beam's own runners
are skipped where Beam is not installed (requirements-beam.txt).
"""

import json
import pathlib
import pickle
import random
import sys

import numpy as np
import pytest

from albert_tf import beam_data, beam_stages, local_data, token_store
from albert_tf.errors import InputError
from albert_tf.masking import MaskingOptions
from albert_tf.pretraining_instances import InstanceOptions
from albert_tf.tokenization import FullTokenizer
from tests.data_creation import CORPUS, SPM_MODEL, options_of


# ---- a stand-in for a runner -------------------------------------------------


class Collection:
    def __init__(self, elements):
        self.elements = list(pickle.loads(pickle.dumps(elements)))
        random.shuffle(self.elements)

    def __or__(self, transform):
        return transform.applied(self)


class Transform:
    def __init__(self, function):
        self._function = function

    def __rrshift__(self, label):
        return self

    def __ror__(self, collections):
        return self.applied(collections)

    def applied(self, collections):
        return Collection(self._function(collections))


def grouped(pairs):
    groups = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def co_grouped(collections):
    groups = {name: grouped(each.elements) for name, each in collections.items()}
    # Like Beam: values can be read once from the first to the last.
    return [(key, {name: groups[name].get(key, []) for name in groups})
            for key in {key for each in groups.values() for key in each}]


class Beam:
    """As much of the package apache_beam as beam_data.build uses."""

    Create = staticmethod(lambda elements: Transform(lambda _: elements))
    Reshuffle = staticmethod(lambda: Transform(lambda it: it.elements))
    Map = staticmethod(lambda function, *args: Transform(
        lambda it: [function(each, *args) for each in it.elements]))
    FlatMap = staticmethod(lambda function, *args: Transform(
        lambda it: [found for each in it.elements for found in function(each, *args)]))
    Flatten = staticmethod(lambda: Transform(
        lambda them: [each for it in them for each in it.elements]))
    GroupByKey = staticmethod(lambda: Transform(
        lambda it: list(grouped(it.elements).items())))
    CoGroupByKey = staticmethod(lambda: Transform(co_grouped))
    CombinePerKey = staticmethod(lambda function: Transform(
        lambda it: [(key, function([function(values[:1]), *values[1:]]))
                    for key, values in grouped(it.elements).items()]))


@pytest.fixture
def stand_in(monkeypatch):
    monkeypatch.setattr(beam_data, "_beam", lambda: Beam)
    monkeypatch.setattr(beam_data, "_pipeline", lambda *args: Collection([]))

    def run_pipeline(beam, pipeline, spans, job):
        beam_data.build(beam, pipeline, spans, job)

    monkeypatch.setattr(beam_data, "_run_pipeline", run_pipeline)


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())
            if path.name != "text.txt"}


def run_both(tmp_path, *runner, **options):
    """Files of the local run and of Beam."""
    tokenizer = FullTokenizer(spm_model_file=SPM_MODEL)
    found = []
    for name in ("local", "beam"):
        (tmp_path / name).mkdir()
        own = options_of(tmp_path / name, **options)
        if name == "local":
            local_data.create(own, tokenizer, num_workers=1)
        else:
            beam_data.run(own, tokenizer, *runner)
        found.append(contents(tmp_path / name))
    return found


def assert_same(local, beam):
    assert sorted(local) == sorted(beam)
    for name in local:
        if name.endswith(".json"):
            local_summary, beam_summary = map(json.loads, (local[name], beam[name]))
            for summary in (local_summary, beam_summary):
                for key in ("input_files", "output_files"):
                    del summary["settings"][key]
            assert local_summary == beam_summary
        elif not name.endswith(".png"):
            assert local[name] == beam[name], name


OBJECTIVES = [
    ("order", "random"), ("order", "split"), ("order", "skip"), ("next", "random"),
    ("next", "split"), ("next", "skip"), ("none", "random")]


@pytest.mark.parametrize("objective, single_segment", OBJECTIVES)
def test_records_are_those_of_the_local_run(
        objective, single_segment, tmp_path, stand_in, monkeypatch):
    monkeypatch.setattr("albert_tf.text_spans._SMALLEST_SPAN", 4000)
    monkeypatch.setattr(beam_stages, "_SLICE_SENTENCES", 50)
    monkeypatch.setattr(beam_stages, "BLOCK_DOCUMENTS", 8)
    monkeypatch.setattr(beam_stages, "_FEWEST_BUCKET_BYTES", 5000)
    assert_same(*run_both(
        tmp_path, text=CORPUS[:30000], outputs=("a", "b", "c"), dupe_factor=2,
        instances=InstanceOptions(
            max_seq_length=64, sentence_objective=objective,
            single_segment=single_segment,
            masking=MaskingOptions(max_predictions_per_seq=10))))
