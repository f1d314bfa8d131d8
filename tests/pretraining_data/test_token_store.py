"""The token store holds what the release's way of reading gives, and finds it again."""

import collections
import functools
import os
import pickle
import random

import numpy as np
import pytest

from albert_tf import keyed_random
from albert_tf.errors import InputError
from albert_tf.jobs import work_folder
from albert_tf.pretraining_data import token_store
from albert_tf.pretraining_data.encoder import PieceEncoder
from albert_tf.pretraining_data.release import read_documents
from albert_tf.pretraining_data.spans import plan_spans
from albert_tf.pretraining_data.token_store import TokenStore, write_part
from albert_tf.jobs.work_folder import WorkFolder
from albert_tf.tokenization.tokenizer import FullTokenizer
from albert_tf.tokenization.sequences import WordStarts
from tests.pretraining_data.data_creation import (
    SPM_MODEL, WORDPIECE, documents_of, written)

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


def write(folder, paths, size=0, kind="sentencepiece", most_open=0, **limits):
    """Writes all parts; returns the store and the counts over all parts."""
    os.makedirs(folder, exist_ok=True)
    folder, total = WorkFolder(str(folder)), collections.Counter()
    for span in plan_spans(paths, size):
        counts, sums = write_part(folder, paths, span, encoder(kind), **limits)
        folder.finish(f"part-{span.number:05d}", {"counts": counts}, sums)
        assert folder.finished(f"part-{span.number:05d}")["counts"] == counts
        total.update(counts)
    return TokenStore(folder, most_open), total


def all_of(store, number):
    """All documents of a part."""
    found = [documents for _, _, documents in store.slices(number, 10**9)]
    return found[0] if found else documents_of([])


def as_lists(documents):
    """[(id, tokens of each sentence)] of Documents, their layout checked."""
    found = []
    assert documents.sentence_lengths.dtype == np.uint32
    assert documents.ids.dtype == np.uint64
    for places in (documents.first_sentence, documents.first_code):
        assert places.dtype == np.int64 and places[0] == 0
        assert len(places) == len(documents.ids) + 1
    assert documents.first_sentence[-1] == len(documents.sentence_lengths)
    assert documents.first_code[-1] == len(documents.codes)
    for d, number in enumerate(documents.ids.tolist()):
        first, last = documents.first_sentence[d:d + 2]
        place, end = documents.first_code[d:d + 2]
        sentences = []
        for length in documents.sentence_lengths[first:last].tolist():
            sentences.append(documents.codes[place:place + length].tolist())
            place += length
        assert documents.codes[place] == documents.codes[end - 1]
        assert place == end - 1
        found.append((number, sentences, int(documents.codes[place])))
    return found


def expected(paths, kind="sentencepiece"):
    """[tokens of each sentence] of each document, and counts, as the release reads."""
    tokenizer = encoder(kind).tokenizer
    starts = WordStarts("release" if kind == "sentencepiece" else "wordpiece")
    documents, counts = read_documents(paths, tokenizer)
    return [[[i * 2 + starts[piece] for piece, i in zip(
        pieces, tokenizer.convert_tokens_to_ids(pieces))] for pieces in document]
        for document in documents], vars(counts)


@pytest.mark.parametrize("kind", ["sentencepiece", "wordpiece"])
@pytest.mark.parametrize("seed", range(3))
def test_the_documents_of_the_release_however_the_text_is_cut(
        tmp_path, kind, seed):
    rng = random.Random(seed)
    paths = random_files(tmp_path, rng)
    documents, counts = expected(paths, kind)
    ids = None
    for size in (0, 41, 137):
        store, total = write(tmp_path / f"{size}", paths, size, kind,
                             block_bytes=rng.randrange(1, 300))
        assert total == counts
        assert store.num_documents == len(documents)
        parts = [as_lists(all_of(store, number)) for number in range(store.num_parts)]
        found = sum(parts, [])
        assert [sentences for _, sentences, _ in found] == documents
        assert {separator for _, _, separator in found} == {encoder(kind).separator}
        assert store.first_document.tolist() == np.cumsum(
            [0, *map(len, parts)])[:-1].tolist()
        ids = ids or [number for number, _, _ in found]
        assert [number for number, _, _ in found] == ids == sorted(set(ids))


def test_slices_of_a_part(tmp_path):
    paths = random_files(tmp_path, random.Random(1), 400)
    store, _ = write(tmp_path / "store", paths)
    whole = all_of(store, 0)
    for num_sentences in (1, 2, 7, 10**9):
        found, number, place = [], 0, 0
        for first, first_code, documents in store.slices(0, num_sentences):
            assert (first, first_code) == (number, place)
            number += len(documents.ids)
            place += len(documents.codes)
            assert len(documents.sentence_lengths[:documents.first_sentence[-2]]
                       ) < num_sentences
            found += as_lists(documents)
        assert found == as_lists(whole)


def test_a_text_without_a_sentence_gives_an_empty_part(tmp_path):
    path = written(tmp_path, b"\n \n\xef\xbf\xbd\n")
    store, counts = write(tmp_path / "store", [path], kind="wordpiece")
    assert store.num_parts == 1 and store.num_documents == 0
    assert as_lists(all_of(store, 0)) == [] and list(store.slices(0)) == []
    assert counts["lines_without_pieces"] == 1 and counts["documents"] == 0


# Reading from anywhere.

@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Many small parts, few open files, documents longer than the marks are apart."""
    rng = random.Random(7)
    folder = tmp_path_factory.mktemp("text")
    lines = ["x" if rng.random() < 0.97 else LINES[0] for _ in range(9000)]
    for blank in (*range(0, 4000, 17), 5000, 8000):
        lines[blank] = ""
    store, _ = write(folder / "store", [written(folder, "\n".join(lines))], 1700,
                     most_open=3, block_bytes=130)
    assert store.num_parts > 10 and store.num_documents > 200
    yield store
    store.close()


def test_tokens_from_anywhere(store):
    rng = np.random.default_rng(0)
    whole = [all_of(store, number).codes for number in range(store.num_parts)]
    full = [number for number, tokens in enumerate(whole) if len(tokens)]
    parts = rng.choice(full, 300).astype(np.uint32)
    starts = np.array([rng.integers(len(whole[p])) for p in parts], np.uint64)
    lengths = np.array([rng.integers(len(whole[p]) - int(s) + 1)
                        for p, s in zip(parts, starts)], np.uint32)
    found = store.read(parts, starts, lengths)
    assert found.dtype == store.dtype == encoder().dtype
    np.testing.assert_array_equal(found, np.concatenate(
        [whole[p][int(s):int(s) + n] for p, s, n in zip(parts, starts, lengths)]))
    assert len(store._open) == 3
    assert len(store.read(parts[:0], starts[:0], lengths[:0])) == 0


def test_second_segments_lie_at_random_starts(store):
    rng = np.random.default_rng(0)
    count = 2000
    numbers = rng.integers(store.num_documents, size=count)
    places = rng.integers(2**64, size=count, dtype=np.uint64)
    targets = rng.integers(-5, 300, count)
    part, start, length = store.second_segments(numbers, places, targets)
    assert (part.dtype, start.dtype, length.dtype) == (np.uint32, np.uint64, np.int64)
    slices = [all_of(store, number) for number in range(store.num_parts)]
    marked = 0
    for k in range(count):
        documents = slices[part[k]]
        own = int(numbers[k] - store.first_document[part[k]])
        [expected], [wanted] = token_store.random_starts(
            documents, np.array([own]), places[k:k + 1], targets[k:k + 1])
        assert (start[k], length[k]) == (expected, wanted)
        marked += start[k] - documents.first_code[own] > 600
    assert marked > 10
    found = store.second_segments(numbers[:0], places[:0], targets[:0])
    assert list(map(len, found)) == [0, 0, 0]


def test_random_starts_by_definition():
    lengths = [[3, 1], [2], [3, 1, 4, 1, 5, 9], [1], [2, 2]]
    documents, count = documents_of(lengths), 500
    numbers = np.random.default_rng(2).integers(len(lengths), size=count)
    places = keyed_random.words(keyed_random.keys_of(1, 2), 0, count)
    drawn = set()
    for target in (-3, 0, 1, 4, 5, 6, 100):
        found = token_store.random_starts(
            documents, numbers, places, np.full(count, target))
        for number, place, first, length in zip(numbers, places, *found):
            sentences = lengths[number]
            start = int(keyed_random.below(place, len(sentences)))
            drawn.add((number, start))
            taken = 0
            for size in sentences[start:]:
                taken += size
                if taken >= target:
                    break
            assert (first, length) == (
                documents.first_code[number] + sum(sentences[:start]), taken)
    assert len(drawn) == sum(map(len, lengths))


def test_a_store_is_opened_again_by_another_process(store):
    again = pickle.loads(pickle.dumps(store))
    arguments = np.array([0, 1]), np.array([5, 2**63], np.uint64), np.array([9, 9])
    for a, b in zip(again.second_segments(*arguments),
                    store.second_segments(*arguments)):
        np.testing.assert_array_equal(a, b)
    again.close()


# Limits and failures.

@pytest.fixture
def long_document(tmp_path):
    return written(tmp_path, "x\n\n" + "the cat sat on the mat\n" * 3000, "long.txt")


def test_no_more_than_a_block_is_held_of_a_long_document(
        tmp_path, long_document, monkeypatch):
    largest = []

    class Watched(work_folder.FileSum):
        def write(self, data):
            largest.append(len(data))
            super().write(data)

    monkeypatch.setattr(work_folder, "FileSum", Watched)
    store, counts = write(tmp_path / "store", [long_document], block_bytes=1000)
    assert counts["sentences"] == 3001 and counts["documents"] == 2
    assert max(largest) <= 4 * 1000 < os.path.getsize(
        tmp_path / "store" / "part-00000.tokens")


@pytest.mark.parametrize("unit", ["pieces", "sentences"])
def test_a_document_that_is_too_long(tmp_path, long_document, unit):
    with pytest.raises(InputError, match=f"long.txt, line 3: .* 2,000 {unit}"):
        write(tmp_path / "store", [long_document], block_bytes=1000,
              **{f"max_{unit}": 2000})
    assert not [n for n in os.listdir(tmp_path / "store") if n.startswith("part")]


def test_files_that_were_tampered_with(tmp_path):
    text = written(tmp_path, "one here\n\ntwo there\n\nthree")
    store, _ = write(tmp_path / "store", [text])
    path = str(tmp_path / "store" / "part-00000.tokens")
    os.truncate(path, 3)
    for read in (lambda: store.read(np.array([0]), np.array([0]), np.array([5])),
                 lambda: all_of(store, 0)):
        with pytest.raises(InputError, match="part-00000.tokens: shorter"):
            read()
    os.remove(path)
    with pytest.raises(InputError, match="part-00000.tokens"):
        TokenStore(WorkFolder(str(tmp_path / "store")))
