"""Data creation as a Beam pipeline: the records of the local run.

Most of it runs without Beam: its steps on a stand-in for a runner, which sends every
element through pickle and gives groups in random order. Tests of Beam's own runners
are skipped where Beam is not installed (requirements-beam.txt).
"""

import json
import pickle
import random
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest

from albert_tf.jobs import beam as beam_runner
from albert_tf.errors import InputError
from albert_tf.masking.options import MaskingOptions
from albert_tf.pretraining_data import beam, beam_stages, local
from albert_tf.pretraining_data.options import InstanceOptions, Sizes
from tests.helpers import ROOT
from tests.pretraining_data.data_creation import CORPUS, TEXT, options_of

TWO_PROCESSES = ("--direct_running_mode=multi_processing", "--direct_num_workers=2")
NEEDS_BEAM = pytest.mark.skipif(
    find_spec("apache_beam") is None, reason="needs apache_beam (requirements-beam.txt)")

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


def applied(function, element, *args):
    """What a step gives, when it was done before and that was lost."""
    list(function(element, *args))
    return list(function(element, *args))


class Beam:
    """As much of the package apache_beam as beam.build uses."""

    Create = staticmethod(lambda elements: Transform(lambda _: elements))
    Reshuffle = staticmethod(lambda: Transform(lambda it: it.elements))
    Map = staticmethod(lambda function, *args: Transform(
        lambda it: [function(each, *args) for each in it.elements]))
    FlatMap = staticmethod(lambda function, *args: Transform(
        lambda it: [found for each in it.elements
                    for found in applied(function, each, *args)]))
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
    monkeypatch.setattr(beam_runner, "package", lambda: Beam)
    monkeypatch.setattr(beam_runner, "pipeline", lambda *args: Collection([]))

    def run_pipeline(package, pipeline, spans, job):
        beam.build(package, pipeline, spans, job)

    monkeypatch.setattr(beam, "_run_pipeline", run_pipeline)


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())
            if path.suffix != ".txt"}


def run_both(tmp_path, tokenizer, *runner, sizes=Sizes(span_bytes=3000),
             make=options_of, **options):
    """Files of the local run and of Beam."""
    found = []
    for name, create in (("local", local.create), ("beam", beam.run)):
        (tmp_path / name).mkdir()
        create(make(tmp_path / name, **options), tokenizer,
               *(runner if name == "beam" else ()), sizes=sizes)
        found.append(contents(tmp_path / name))
    return found


def assert_same(ours, theirs):
    assert sorted(ours) == sorted(theirs)
    for name in ours:
        if name.endswith(".json"):
            summaries = list(map(json.loads, (ours[name], theirs[name])))
            for summary in summaries:
                for key in ("input_files", "output_files"):
                    del summary["settings"][key]
            assert summaries[0] == summaries[1]
        else:
            assert ours[name] == theirs[name], name


# A small text is cut into many spans, slices, blocks and buckets all the same.
SMALL_UNITS = Sizes(span_bytes=3000, slice_sentences=30, block_documents=4,
                    bucket_bytes=2000)


def settings(objective="order", single_segment="random"):
    return dict(
        text=CORPUS[:10000], outputs=("a", "b", "c"), dupe_factor=2,
        instances=InstanceOptions(
            max_seq_length=64, sentence_objective=objective,
            single_segment=single_segment,
            masking=MaskingOptions(max_predictions_per_seq=10)))


@pytest.mark.parametrize("objective, single_segment", [
    ("order", "random"), ("order", "skip"), ("next", "random"), ("next", "skip"),
    ("none", "random")])
def test_records_are_those_of_the_local_run(
        objective, single_segment, tmp_path, tokenizer, stand_in):
    assert_same(*run_both(
        tmp_path, tokenizer, sizes=SMALL_UNITS, **settings(objective, single_segment)))


def test_a_sentence_longer_than_sequences_lends_all_that_may_stay(
        tmp_path, tokenizer, stand_in):
    # First segments that go to another document are cut before they do.
    long = "\n\n".join(" ".join(["word", "other"] * n) for n in (3, 40, 90, 200, 7))
    assert_same(*run_both(
        tmp_path, tokenizer, sizes=SMALL_UNITS, text=long, dupe_factor=20))


@pytest.mark.parametrize("text, num_outputs, message", [
    ("\n\n", 1, "text.txt: there is no sentence"),
    (TEXT, 30, "too few for 30 output files")])
def test_what_cannot_be_made(
        text, num_outputs, message, tmp_path, tokenizer, stand_in):
    with pytest.raises(InputError, match=message):
        beam.run(options_of(tmp_path, text, list(map(str, range(num_outputs)))),
                 tokenizer)
    assert not contents(tmp_path)


@pytest.mark.parametrize("package, runner", [
    ("apache_beam", "DirectRunner"),
    pytest.param("distributed", "DaskRunner", marks=NEEDS_BEAM)])
def test_without_the_packages(package, runner, tmp_path, tokenizer, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InputError, match="pip install -r requirements-beam.txt"):
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
    (RuntimeError("out of memory"), None)])
def test_errors_of_the_input_come_back_as_their_sentence(error, found, monkeypatch):
    monkeypatch.setattr(beam, "build", lambda *args: None)
    with pytest.raises(InputError if found else type(error)) as raised:
        beam._run_pipeline(Beam, FailingPipeline(error), [], None)
    assert str(raised.value) == (found or "out of memory")


# ---- what the steps are made of ----------------------------------------------


def test_buckets_divide_the_order_into_ranges():
    order = np.sort(np.random.default_rng(1).integers(
        0, 2**64, 5000, dtype=np.uint64, endpoint=False))
    order[0], order[-1] = 0, 2**64 - 1
    for number in (1, 2, 64):
        buckets = beam_stages.buckets_of(order, number)
        assert (np.diff(buckets) >= 0).all()
        assert buckets[0] == 0 and buckets[-1] == number - 1
        assert np.bincount(buckets).max() < 2 * 5000 / number


def test_buckets_keep_within_memory_and_are_enough_for_many_workers():
    assert beam_stages.num_buckets(0, 1) == 1
    assert beam_stages.num_buckets(1000, 1) == 1
    for text_bytes in (10**7, 10**9, 10**12):
        buckets = beam_stages.num_buckets(text_bytes, 40)
        assert buckets & buckets - 1 == 0
        assert 40 * text_bytes / 2 / buckets <= 64 << 20
        assert buckets >= 128


def test_ranks_follow_one_another():
    given = (0, [(7, 5), (2, 10), (4, 1)])
    assert dict(beam_stages.number_through(given)) == {
        2: (0, 16), 4: (10, 16), 7: (11, 16)}


@pytest.fixture
def job(tmp_path):
    return beam_stages.Job(options_of(tmp_path), str(tmp_path), 1, "<u2")


def test_attempts_at_a_step_do_not_write_to_one_file(job):
    assert job.unique_file("one") != job.unique_file("one")


def test_a_document_that_is_not_there_is_no_silent_loss(job):
    request = np.zeros(1, beam_stages.REQUEST).tobytes(), b""
    with pytest.raises(ValueError, match="1 requested documents"):
        list(beam_stages.answer_requests(
            (0, {"texts": [], "requests": [request]}), job))


# ---- Beam's runners ----------------------------------------------------------


@NEEDS_BEAM
@pytest.mark.parametrize("flags", [
    (), pytest.param(TWO_PROCESSES, marks=pytest.mark.slow)],
    ids=["in_memory", "multi_processing"])
def test_direct_runner(flags, tmp_path, tokenizer):
    assert_same(*run_both(tmp_path, tokenizer, "DirectRunner", flags, **settings()))


@pytest.fixture
def job_server():
    """Flags that name Beam's local job server. Each job's workers are processes that
    get their work over gRPC, as those of Flink and Spark do."""
    process = subprocess.Popen(
        [sys.executable, "-c", "import time\n"
         "from apache_beam.runners.portability import local_job_service\n"
         "server = local_job_service.LocalJobServicer()\n"
         "print(server.start_grpc_server(0), flush=True)\n"
         "time.sleep(600)\n"], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        port = process.stdout.readline().strip()
        assert port.isdecimal(), port
        yield (f"--job_endpoint=localhost:{port}",
               "--environment_type=beam:env:harness_subprocess_python:v1",
               f"--environment_config={sys.executable} -m "
               "apache_beam.runners.worker.sdk_worker_main")
    finally:
        process.kill()
        process.wait()


@NEEDS_BEAM
@pytest.mark.long
def test_portable_runner(job_server, tmp_path, tokenizer):
    assert_same(*run_both(
        tmp_path, tokenizer, "PortableRunner", job_server, **settings()))


@NEEDS_BEAM
@pytest.mark.parametrize("runner, flags, message", [
    ("DirectRunner", ["--direct_num_worker=2"],
     "--direct_num_worker is not an option of D"),
    ("NoRunner", (), "--runner=NoRunner: ")])
def test_an_unknown_runner_or_option(runner, flags, message, tmp_path, tokenizer):
    with pytest.raises(InputError, match=message):
        beam.run(options_of(tmp_path), tokenizer, runner, flags)


@NEEDS_BEAM
@pytest.mark.slow
def test_wrong_input_in_a_worker_process(tmp_path, tokenizer):
    options = options_of(tmp_path, b"Good.\n\nNot \xff good.\n")
    with pytest.raises(InputError, match="line 3: byte 5 is not UTF-8.*iconv.$"):
        beam.run(options, tokenizer, "DirectRunner", TWO_PROCESSES)
    assert not contents(tmp_path)
