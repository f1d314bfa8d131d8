"""Data creation on this machine: slices have the documents that the release reads,
buckets hold each instance once; same bytes on several processes, stopped, resumed."""

import collections
import contextlib
import dataclasses
import functools
import itertools
import os
import pathlib
import pickle
import random
import subprocess
import sys
import time

import numpy as np
import pytest

from albert_tf import files
from albert_tf.jobs.work_folder import WorkFolder
from albert_tf.masking.options import MaskingOptions
from albert_tf.pretraining_data import local
from albert_tf.pretraining_data.encoder import PieceEncoder
from albert_tf.pretraining_data.local import Sizes
from albert_tf.pretraining_data.options import InstanceOptions
from albert_tf.pretraining_data.plans import plan_chunks
from albert_tf.pretraining_data.release import read_documents
from albert_tf.pretraining_data.spans import Span, plan_spans, read_span
from albert_tf.pretraining_data.summary import InstanceCounts
from albert_tf.tokenization.sequences import WordStarts
from albert_tf.tokenization.tokenizer import FullTokenizer
from tests.helpers import ROOT
from tests.pretraining_data.data_creation import (
    CORPUS, SPM_MODEL, WORDPIECE, documents_of, options_of, records_of, written)

SMALL = InstanceOptions(
    max_seq_length=48, masking=MaskingOptions(max_predictions_per_seq=7))
# Many spans and units of a small text, on processes of their own.
MANY_UNITS = Sizes(span_bytes=20_000, few_bytes=0, bucket_bytes=8_000)


def _create(options, tokenizer, num_workers=1, sizes=MANY_UNITS):
    return local.create(
        options, tokenizer, num_workers=num_workers, sizes=sizes)


def _bytes(options):
    return [pathlib.Path(path).read_bytes() for path in options.output_files]


def _options(tmp_path, outputs=("a.tfrecord", "b.tfrecord", "c.tfrecord"),
             text=CORPUS, **more):
    return options_of(tmp_path, text, outputs, **{
        "instances": SMALL, "dupe_factor": 2, **more})


@pytest.fixture(scope="module")
def expected(tmp_path_factory, tokenizer):
    """What one process makes."""
    options = _options(tmp_path_factory.mktemp("expected"))
    summary = _create(options, tokenizer)
    return _bytes(options), summary


def _check_made(options, tokenizer, expected, num_workers=1):
    """Makes the records, from what is there already, and compares with `expected`."""
    summary = _create(options, tokenizer, num_workers)
    assert _bytes(options) == expected[0]
    assert summary | {"settings": None} == expected[1] | {"settings": None}
    assert not pathlib.Path(f"{options.output_files[0]}.unfinished").exists()


def test_records_do_not_depend_on_processes(tmp_path, tokenizer, expected):
    _check_made(_options(tmp_path), tokenizer, expected, 2)
    assert sorted(os.listdir(tmp_path)) == [
        "a.tfrecord", "b.tfrecord", "c.tfrecord", "summary-a.tfrecord.json", "text.txt"]


# ---- the shuffle ------------------------------------------------------------


def test_every_instance_may_stand_anywhere(tmp_path, tokenizer, monkeypatch):
    """Over many seeds, documents' instances are spread evenly over the outputs."""
    # Made once, which else takes nearly half of the time.
    monkeypatch.setattr(local, "PieceEncoder", functools.cache(local.PieceEncoder))
    words = ("one", "two", "three", "four", "five", "six")
    text = "\n\n".join(f"{word} is away. \n{word} is back." for word in words)
    places = collections.defaultdict(list)
    for seed in range(40):
        options = options_of(
            tmp_path, text, ["out"], dupe_factor=2, random_seed=seed,
            instances=InstanceOptions(max_seq_length=24, short_seq_prob=0,
                                      masking=MaskingOptions(masked_lm_prob=0)))
        _create(options, tokenizer)
        rows = records_of(options)
        assert len(rows) == 12
        for place, row in enumerate(rows):
            found = "".join(tokenizer.convert_ids_to_tokens(row["input_ids"].tolist()))
            (word,) = [word for word in words if word in found]
            places[word].append(place)
    assert len(places) == 6
    from scipy import stats
    for found in places.values():
        assert stats.chisquare(np.bincount(found, minlength=12)).pvalue > 1e-4
    # Neighbours are no likelier to be of one document than others.
    gaps = np.concatenate([np.diff(found)[::2] for found in places.values()])
    expected = np.arange(11, 0, -1) / 66 * len(gaps)
    assert stats.chisquare(
        np.bincount(gaps, minlength=12)[1:], expected).pvalue > 1e-4


# ---- stopped, and resumed ----------------------------------------------------


class Stop(Exception):
    """Ends a run as an accident would."""


def _stop(*_):
    raise Stop


def _stopped(options, tokenizer, monkeypatch, owner=local, name="join", function=_stop):
    """Runs until a function raises Stop, by default when all units are made; returns the
    folder for unfinished work."""
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, function)
        with pytest.raises(Stop):
            _create(options, tokenizer)
    return pathlib.Path(f"{options.output_files[0]}.unfinished")


@pytest.mark.parametrize("after", [1, 8, 12])
def test_a_stopped_run_goes_on_to_the_same_bytes(
        after, tmp_path, tokenizer, expected, monkeypatch):
    calls, original, options = itertools.count(), local.Worker.__call__, _options(tmp_path)
    folder = _stopped(
        options, tokenizer, monkeypatch, local.Worker, "__call__", lambda *task: (
            _stop() if next(calls) == after else original(*task)))
    assert not any(map(os.path.exists, options.output_files))
    assert list(folder.glob("*.json"))
    _check_made(options, tokenizer, expected)


@pytest.mark.parametrize("damaged", [
    "unit-000001.records", "unit-000001.json", "plans-00000.json"])
def test_what_was_cut_meanwhile_is_made_again(
        damaged, tmp_path, tokenizer, expected, monkeypatch):
    options = _options(tmp_path)
    os.truncate(_stopped(options, tokenizer, monkeypatch) / f"albert_tf.{damaged}", 9)
    _check_made(options, tokenizer, expected)


def test_finished_units_are_not_made_again(
        tmp_path, tokenizer, expected, monkeypatch):
    options = _options(tmp_path)
    # The instances have left the disk when the outputs are written.
    assert not list(_stopped(options, tokenizer, monkeypatch).glob("*plans-00000-*"))
    for step in ("scatter", "write"):
        monkeypatch.setattr(local.Worker, step, _stop)
    _check_made(options, tokenizer, expected)


def test_a_run_stopped_while_files_get_their_names_goes_on(
        tmp_path, tokenizer, expected, monkeypatch):
    options, rename = _options(tmp_path), files.rename
    _stopped(options, tokenizer, monkeypatch, files, "rename", lambda source, target: (
        _stop() if target in options.output_files[1:] else rename(source, target)))
    assert [os.path.exists(path) for path in options.output_files] == [
        True, False, False]
    _check_made(options, tokenizer, expected)


@pytest.mark.long
@pytest.mark.parametrize("kills", [
    1, pytest.param(20, marks=pytest.mark.slow)])
def test_killed_at_random_moments(kills, tmp_path, tokenizer, expected):
    options, given = _options(tmp_path), tmp_path / "given"
    given.write_bytes(pickle.dumps(dict(
        options=options, tokenizer=tokenizer, sizes=MANY_UNITS, num_workers=2)))
    command = [sys.executable, "-c", "import pickle, sys\n"
               "from albert_tf.pretraining_data import local\n"
               "local.create(**pickle.load(open(sys.argv[1], 'rb')))", str(given)]
    draw = random.Random(kills)
    for _ in range(kills):
        with subprocess.Popen(command, cwd=ROOT, start_new_session=True,
                              stderr=subprocess.PIPE) as process:
            time.sleep(draw.uniform(0.3, 3))
            process.kill()
            process.communicate()
        deadline = time.monotonic() + 30
        with contextlib.suppress(ProcessLookupError):  # There is none in its group.
            while time.monotonic() < deadline:
                os.killpg(process.pid, 0)
                time.sleep(0.05)
            pytest.fail("workers outlived their parent")
    subprocess.run(command, cwd=ROOT, timeout=120, check=True)
    assert _bytes(options) == expected[0]


# ---- slices, packs and buckets -------------------------------------------------

# Lines: with an unknown piece, blank but for WordPiece, without pieces, ...
LINES = ["the cat sat on the mat", "a dog ran 1,000 miles", "\u2603 and \u4e2d\u6587",
         "", "", " ", "\u0301", "\ufffd", "x",
         "one two three four five six seven eight"]


@functools.cache
def encoder(kind="sentencepiece"):
    return PieceEncoder(FullTokenizer(**(
        {"spm_model_file": SPM_MODEL} if kind == "sentencepiece" else
        {"vocab_file": WORDPIECE})))


def random_files(folder, rng, num_lines=25):
    return [written(folder, "\n".join(rng.choices(LINES, k=rng.randrange(num_lines))),
                    f"{number}.txt") for number in range(3)]


def as_lists(documents):
    """[(id, codes of each sentence)] of Documents, their layout checked."""
    found, at = [], 0
    assert documents.sentence_lengths.dtype == np.uint32
    assert documents.ids.dtype == np.uint64
    assert documents.first_sentence[0] == 0
    assert documents.first_sentence[-1] == len(documents.sentence_lengths)
    for number, first, last in zip(documents.ids.tolist(), documents.first_sentence,
                                   documents.first_sentence[1:]):
        sentences = []
        for length in documents.sentence_lengths[first:last].tolist():
            sentences.append(documents.codes[at:at + length].tolist())
            at += length
        assert documents.codes[at] == documents.codes[-1]
        found.append((number, sentences))
        at += 1
    assert at == len(documents.codes)
    return found


def as_released(paths, kind="sentencepiece"):
    """[codes of each sentence] of each document, and counts, as the release reads."""
    tokenizer = encoder(kind).tokenizer
    starts = WordStarts("release" if kind == "sentencepiece" else "wordpiece")
    documents, counts = read_documents(paths, tokenizer)
    return [[[i * 2 + starts[piece] for piece, i in zip(
        pieces, tokenizer.convert_tokens_to_ids(pieces))] for pieces in document]
        for document in documents], counts


def slices(paths, span_bytes=0, size=10**9, kind="sentencepiece"):
    counts = InstanceCounts()
    return [as_lists(each) for span in plan_spans(paths, span_bytes)
            for each in local.slices(paths, span, encoder(kind), counts, size)], counts


@pytest.mark.parametrize("kind", ["sentencepiece", "wordpiece"])
@pytest.mark.parametrize("seed", range(3))
def test_the_documents_of_the_release_however_the_text_is_cut(
        tmp_path, kind, seed, monkeypatch):
    rng = random.Random(seed)
    paths = random_files(tmp_path, rng)
    documents, counts = as_released(paths, kind)
    ids = None
    for span_bytes in (0, 41, 137):
        monkeypatch.setattr(local, "read_span", functools.partial(
            read_span, block_bytes=rng.randrange(1, 300)))
        found, total = slices(paths, span_bytes, kind=kind)
        alone = sum(len(documents) == 1 for documents in found)
        assert total == dataclasses.replace(counts, documents_alone=alone)
        found = sum(found, [])
        assert [sentences for _, sentences in found] == documents
        ids = ids or [number for number, _ in found]
        assert [number for number, _ in found] == ids == sorted(set(ids))


def test_slices_end_with_documents_and_long_documents_are_continued(
        tmp_path, monkeypatch):
    monkeypatch.setattr(local, "read_span", functools.partial(
        read_span, block_bytes=23))
    for size in range(1, 40):  # The document ends with a slice, or not.
        found, counts = slices([written(tmp_path, "the cat sat on the mat\n" * 20)], size=size)
        assert counts.documents == 1 and all(found)
    sentence = "the cat sat on the mat\n"
    paths = [written(tmp_path, "\n".join([sentence * 2] * 30 + [sentence * 100]
                                         + [sentence * 2] * 3))]
    documents, counts = as_released(paths)
    found, total = slices(paths, size=60)
    assert total.documents == counts.documents and len(found) > 8
    assert total.pieces == counts.pieces and total.documents_alone >= 2
    sizes = [sum(len(s) for _, document in each for s in document) for each in found]
    assert max(sizes) < 4 * 60 + 40 and min(sizes[:-1]) >= 60
    ids = [number for each in found for number, _ in each]
    assert ids == sorted(set(ids)) and len(ids) > len(documents)
    assert sum((s for each in found for _, s in each), []) == sum(documents, [])


def test_a_text_without_a_sentence_has_no_document_and_gives_no_plan(tmp_path):
    found, counts = slices(
        [written(tmp_path, b"\n \n\xef\xbf\xbd\n")], kind="wordpiece")
    assert sum(found, []) == []
    assert counts.lines_without_pieces == 1 and counts.documents == 0
    for objective in ("order", "none"):
        assert not sum(map(len, plan_chunks(
            documents_of([]), range(3), InstanceOptions(
                max_seq_length=24, sentence_objective=objective), 1,
            InstanceCounts())))


def test_records_do_not_depend_on_packs_and_buckets(tmp_path, monkeypatch):
    """Each instance has its own tokens, in whichever pack and batch it is."""
    monkeypatch.setattr(
        local, "plan_chunks", functools.partial(plan_chunks, at_once=50))
    options, made = _options(tmp_path, text=CORPUS[:20_000], dupe_factor=3), []
    for num_buckets, size in ((1, 1 << 20), (4, 1)):
        worker = local.Worker(
            options, encoder(), num_buckets, Sizes(pack_bytes=size), WorkFolder("x"))
        (span,) = plan_spans(options.input_files)
        found = list(worker.packs(span, InstanceCounts()))
        random.Random(1).shuffle(found)
        counts, data = InstanceCounts(), []
        for bucket in range(num_buckets):
            rows, codes = zip(*(
                (pack.rows[pack.first_row[bucket]:pack.first_row[bucket + 1]],
                 pack.codes[pack.first_code[bucket]:pack.first_code[bucket + 1]])
                for pack in found))
            data += worker.records(np.concatenate(rows), np.concatenate(codes), counts)
        made.append((b"".join(data), counts))
    assert made[0] == made[1] and len(made[0][0]) > 10_000


def test_buckets_fit_into_memory_and_are_enough_for_many_workers():
    def number_of(text_bytes, dupe_factor):
        return local.num_buckets([Span(0, 0, 0, 1, 0, text_bytes)], dupe_factor)

    assert number_of(0, 1) == number_of(1000, 1) == 1
    for text_bytes in (10**8, 10**10, 10**12):
        number = number_of(text_bytes, 40)
        assert number & number - 1 == 0
        assert number >= 128 and 40 * text_bytes / 2 / number <= 128 << 20


@pytest.mark.parametrize("sizes, num_outputs, parts", [
    ([10], 1, [[(0, 0, 10, 10)]]),
    ([2, 5, 3], 3, [[(0, 0, 2, 2), (1, 0, 1, 5)], [(1, 1, 4, 5)],
                    [(1, 4, 5, 5), (2, 0, 3, 3)]]),
    ([0, 2, 0], 4, [[], [(1, 0, 1, 2)], [], [(1, 1, 2, 2)]]),
])
def test_outputs_consist_of_parts_of_buckets(sizes, num_outputs, parts):
    assert list(local.divided(list(enumerate(sizes)), num_outputs)) == parts
