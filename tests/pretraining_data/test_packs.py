"""Slices have the documents that the release reads; buckets hold each instance once."""

import dataclasses
import functools
import random

import numpy as np
import pytest

from albert_tf.masking.options import MaskingOptions
from albert_tf.pretraining_data import local
from albert_tf.pretraining_data.encoder import PieceEncoder
from albert_tf.pretraining_data.local import Sizes
from albert_tf.pretraining_data.options import DataOptions, InstanceOptions
from albert_tf.pretraining_data.plans import plan_chunks
from albert_tf.pretraining_data.release import read_documents
from albert_tf.pretraining_data.spans import Span, plan_spans, read_span
from albert_tf.pretraining_data.summary import CorpusCounts, InstanceCounts
from albert_tf.tokenization.sequences import WordStarts
from albert_tf.tokenization.tokenizer import FullTokenizer
from tests.pretraining_data.data_creation import (
    CORPUS, SPM_MODEL, WORDPIECE, documents_of, written)

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


def expected(paths, kind="sentencepiece"):
    """[codes of each sentence] of each document, and counts, as the release reads."""
    tokenizer = encoder(kind).tokenizer
    starts = WordStarts("release" if kind == "sentencepiece" else "wordpiece")
    documents, counts = read_documents(paths, tokenizer)
    return [[[i * 2 + starts[piece] for piece, i in zip(
        pieces, tokenizer.convert_tokens_to_ids(pieces))] for pieces in document]
        for document in documents], counts


def slices(paths, span_bytes=0, size=10**9, kind="sentencepiece"):
    counts = CorpusCounts()
    return [as_lists(each) for span in plan_spans(paths, span_bytes)
            for each in local.slices(paths, span, encoder(kind), counts, size)], counts


@pytest.mark.parametrize("kind", ["sentencepiece", "wordpiece"])
@pytest.mark.parametrize("seed", range(3))
def test_the_documents_of_the_release_however_the_text_is_cut(
        tmp_path, kind, seed, monkeypatch):
    rng = random.Random(seed)
    paths = random_files(tmp_path, rng)
    documents, counts = expected(paths, kind)
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
        read_span, block_bytes=50))
    sentence = "the cat sat on the mat\n"
    paths = [written(tmp_path, "\n".join([sentence * 2] * 30 + [sentence * 100]
                                         + [sentence * 2] * 3))]
    documents, counts = expected(paths)
    found, total = slices(paths, size=60)
    assert total.documents == counts.documents and len(found) > 8
    assert total.pieces == counts.pieces and total.documents_alone >= 2
    sizes = [sum(len(s) for _, document in each for s in document) for each in found]
    assert max(sizes) < 4 * 60 + 40 and min(sizes[:-1]) >= 60
    ids = [number for each in found for number, _ in each]
    assert ids == sorted(set(ids)) and len(ids) > len(documents)
    assert sum((s for each in found for _, s in each), []) == sum(documents, [])


def test_a_document_may_end_with_a_slice(tmp_path, monkeypatch):
    monkeypatch.setattr(local, "read_span", functools.partial(
        read_span, block_bytes=23))
    for size in range(1, 40):
        path = written(tmp_path, "the cat sat on the mat\n" * 20)
        found, counts = slices([path], size=size)
        assert counts.documents == 1 and all(found)


def test_a_text_without_a_sentence_has_no_document(tmp_path):
    path = written(tmp_path, b"\n \n\xef\xbf\xbd\n")
    found, counts = slices([path], kind="wordpiece")
    assert sum(found, []) == []
    assert counts.lines_without_pieces == 1 and counts.documents == 0


def test_no_document_gives_no_plan():
    for objective in ("order", "none"):
        assert not sum(map(len, plan_chunks(
            documents_of([]), range(3), InstanceOptions(
                max_seq_length=24, sentence_objective=objective), 1,
            InstanceCounts())))


@pytest.fixture(name="options")
def _options(tmp_path, monkeypatch):
    monkeypatch.setattr(
        local, "plan_chunks", functools.partial(plan_chunks, at_once=50))
    return DataOptions((written(tmp_path, CORPUS[:20_000]),), ("out",), InstanceOptions(
        max_seq_length=48, masking=MaskingOptions(max_predictions_per_seq=7)), 3)


def scattered(options, num_buckets, sizes=Sizes(pack_bytes=3000)):
    counts = InstanceCounts()
    (span,) = plan_spans(options.input_files)
    return list(local.packs(
        span, options, encoder(), num_buckets, sizes, counts)), counts


def test_records_do_not_depend_on_packs_and_buckets(options):
    """Each instance has its own tokens, in whichever pack and batch it is."""
    made = []
    for num_buckets, size in ((1, 1 << 20), (4, 1)):
        found, _ = scattered(options, num_buckets, Sizes(pack_bytes=size))
        random.Random(1).shuffle(found)
        counts, data = InstanceCounts(), []
        for bucket in range(num_buckets):
            rows, codes = zip(*(
                (pack.rows[pack.first_row[bucket]:pack.first_row[bucket + 1]],
                 pack.codes[pack.first_code[bucket]:pack.first_code[bucket + 1]])
                for pack in found))
            data += local.records(np.concatenate(rows), np.concatenate(codes),
                                  options.instances, encoder().tokenizer, counts)
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


@pytest.mark.parametrize("sizes, num_outputs, expected", [
    ([10], 1, [[(0, 0, 10, 10)]]),
    ([2, 5, 3], 3, [[(0, 0, 2, 2), (1, 0, 1, 5)], [(1, 1, 4, 5)],
                    [(1, 4, 5, 5), (2, 0, 3, 3)]]),
    ([0, 2, 0], 4, [[], [(1, 0, 1, 2)], [], [(1, 1, 2, 2)]]),
])
def test_outputs_consist_of_parts_of_buckets(sizes, num_outputs, expected):
    assert list(local.divided(list(enumerate(sizes)), num_outputs)) == expected
