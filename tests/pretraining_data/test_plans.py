"""Plans of instances: the reference's walk exactly, and grouping.

The reference is instances, which makes the release's instances. Given the
random numbers of the plans it must make the same ones, piece by piece. Their odds are
compared in test_data_statistics.
"""

import itertools
import random

import numpy as np
import pytest
from numpy.lib.recfunctions import append_fields

from albert_tf import keyed_random
from albert_tf.masking.options import MaskingOptions
from albert_tf.masking.reference import RandomSource
from albert_tf.pretraining_data import plans as planning
from albert_tf.pretraining_data import instances as pi, release
from albert_tf.pretraining_data.options import InstanceOptions, ONE_SEGMENT, ORIGINS
from albert_tf.pretraining_data.plans import (
    MASK_KEY, ORDER_KEY, PLAN_KEY, TARGET_KEY, WALK_KEY)
from albert_tf.pretraining_data.summary import InstanceCounts
from albert_tf.tokenization import sequences
from tests.pretraining_data.data_creation import documents_of

UNMASKED = MaskingOptions(masked_lm_prob=0)
SEED = 17


def _documents(texts, ids):
    """texts: documents, of sentences, of 1 for each piece that starts a word else 0."""
    codes = [code for text in texts for code in (
        *(2 * 9 + starts for sentence in text for starts in sentence), 2 * 3 + 1)]
    return documents_of([list(map(len, text)) for text in texts])._replace(
        codes=np.array(codes, np.uint16), ids=np.array(ids, np.uint64))


def _slices(texts, sizes):
    """Cuts documents into slices of some documents each."""
    assert sum(sizes) == len(texts)
    ids = [(1 << 44) + 11 * number for number in range(len(texts))]
    ends = np.cumsum(sizes)
    return [_documents(texts[end - size:end], ids[end - size:end])
            for end, size in zip(ends, sizes)]


def _plan(slices, options, copies, seed=SEED, at_once=planning.AT_ONCE):
    """Plans of all slices, in the order of their ranks, and counts; `part` is the
    number of the slice."""
    parts, counts = [], InstanceCounts()
    for number, documents in enumerate(slices):
        parts += [
            append_fields(plans, "part", np.full(len(plans), number), usemask=False)
            for plans in planning.plan_chunks(
                documents, copies, options, seed, counts, at_once) if len(plans)]
    return np.sort(np.concatenate(parts), order="order"), counts


def _pieces(slices):
    """Documents of each slice for the reference; a piece is named after its place."""
    found = []
    for number, documents in enumerate(slices):
        at, texts = 0, []
        for first, last in itertools.pairwise(documents.first_sentence):
            texts.append([])
            for length in documents.sentence_lengths[first:last].tolist():
                texts[-1].append([
                    f"{'▁' if documents.codes[i] & 1 else ''}{number}:{i}"
                    for i in range(at, at + length)])
                at += length
            at += 1
        found.append(texts)
    return found


PIECES = pi.Pieces(["▁a"], sequences.WordStarts("sentencepiece"))


def _segment(tokens):
    """(part, start, length) of pieces that follow each other."""
    names = [token.lstrip("▁").split(":") for token in tokens if token != "[SEP]"]
    part, start = map(int, names[0])
    assert {int(name[0]) for name in names} == {part}
    known = [int(name[1]) - start for name in names]
    # A separator takes up a position in the part's codes.
    assert known == [i for i, token in enumerate(tokens) if token != "[SEP]"]
    return part, start, len(tokens)


def _rows(instance):
    """An instance of the reference as the fields of a plan without the keys."""
    assert instance.tokens[0] == "[CLS]" and instance.tokens[-1] == "[SEP]"
    if instance.origin == ONE_SEGMENT:
        first, second = _segment(instance.tokens[1:-1]), None
    else:
        middle = instance.segment_ids.index(1)
        first = _segment(instance.tokens[1:middle - 1])
        second = _segment(instance.tokens[middle:-1])
    return (first, second, instance.label, ORIGINS.index(instance.origin))


def _plan_rows(plans):
    return [
        ((int(p["part"]), int(p["start_a"]), int(p["length_a"])),
         (int(p["part"]), int(p["start_b"]), int(p["length_b"]))
         if p["length_b"] else None, int(p["label"]), int(p["origin"])) for p in plans]


class PlannedNumbers:
    """Stands for random.Random in the reference: gives the numbers of the plans.

    The one pin of which number of which key decides what: a change there
    makes other records for the same seed.
    """

    def __init__(self, walk_key, document_index, num_documents):
        self.walk_key = walk_key
        self.document_index, self.num_documents = document_index, num_documents
        self.ordinal, self.attempt = -1, None

    def key(self, purpose=PLAN_KEY):
        return keyed_random.keys_of(self.walk_key, purpose, self.ordinal)

    def next_chunk(self):
        self.ordinal, self.attempt = self.ordinal + 1, None

    def target_length(self, options):
        key = (self.key() if options.sentence_objective == "none"
               else keyed_random.keys_of(self.walk_key, TARGET_KEY))
        if keyed_random.as_uniform(keyed_random.words(key, 0)) >= options.short_seq_prob:
            return options.max_pieces
        return 2 + self._below(key, 1, options.max_pieces - 1)

    @staticmethod
    def _below(key, index, bound):
        return int(keyed_random.below(keyed_random.words(key, index), bound))

    def random(self):
        return float(keyed_random.as_uniform(keyed_random.words(self.key(), 1)))

    def randint(self, low, high):
        bound = high - low + 1
        if self.attempt is None:
            return low + self._below(self.key(), 0, bound)
        if self.attempt == "found":
            return self._below(self.key(), 2, bound)
        assert bound == self.num_documents
        self.attempt += 1
        if bound > 1 or self.attempt == 10:
            self.attempt = "found"
        other = self._below(self.key(), 3, max(bound - 1, 1))
        return min(other + (other >= self.document_index), bound - 1)


@pytest.fixture
def reference(monkeypatch):
    """The walks of instances with the plans' numbers, as a function."""
    pair_of_chunk, random_segment = pi._pair_of_chunk, pi._random_segment
    truncate = sequences.truncate_at_random_ends

    def planned_pair(*args):
        args[-1].python.next_chunk()
        return pair_of_chunk(*args)

    def planned_segment(*args):
        args[-1].python.attempt = 0
        return random_segment(*args)

    def planned_target(options, source):
        if options.sentence_objective == "none":
            source.python.next_chunk()
        return source.python.target_length(options)

    def planned_cut(first, second, max_pieces, numbers):
        kept = truncate(first, second, max_pieces, random.Random(0))
        cut = [len(first) - len(kept[0]), len(second) - len(kept[1])]
        words = keyed_random.words(numbers.key(), np.arange(16, sum(cut) // 64 + 18))
        bits = "".join(f"{int(word):064b}" for word in words)
        # A 1 for each piece off the front; a last, half-used word gives its first bits.
        front = bits[:cut[0]].count("1")
        both = bits[:sum(cut)].count("1")
        begins = [front, both - front]
        return [text[begin:begin + len(text) - lost] for text, begin, lost in
                zip((first, second), begins, cut)]

    monkeypatch.setattr(pi, "_pair_of_chunk", planned_pair)
    monkeypatch.setattr(pi, "_random_segment", planned_segment)
    monkeypatch.setattr(pi, "draw_target_length", planned_target)
    monkeypatch.setattr(sequences, "truncate_at_random_ends", planned_cut)

    def walks(slices, options, copies):
        """{order: (mask, fields)}, and the walks."""
        rows, made = {}, []
        none = options.sentence_objective == "none"
        masked = pi.masked_instance
        for documents, each in zip(_pieces(slices), slices):
            for start, copy in itertools.product(
                    range(1 if none else len(documents)), copies):
                walk_key = keyed_random.keys_of(
                    SEED, WALK_KEY, int(each.ids[start]), copy)
                numbers = PlannedNumbers(walk_key, start, len(documents))
                source, ordinals = RandomSource(numbers, None), []

                def numbered(*args):
                    ordinals.append(numbers.ordinal)
                    return masked(*args)

                monkeypatch.setattr(pi, "masked_instance", numbered)
                walk = (release.create_full_sentences(
                    documents, PIECES, options, source) if none else
                    pi.create_instances(documents, start, PIECES, options, source))
                made.append(walk)
                for numbers.ordinal, instance in zip(ordinals, walk[0]):
                    order, mask = map(int, map(numbers.key, (ORDER_KEY, MASK_KEY)))
                    rows[order] = (mask, _rows(instance))
        return rows, made

    return walks


def _text(source, num_sentences, longest, share_of_starts=0.6):
    return [[int(source.random() < share_of_starts)
             for _ in range(source.randint(1, longest))]
            for _ in range(num_sentences)]


def _varied():
    """Documents of many and of few sentences, of one, of long ones, of one piece."""
    source = random.Random(4)
    return [_text(source, 30, 9), _text(source, 1, 9), _text(source, 1, 1),
            _text(source, 3, 70), _text(source, 12, 3), _text(source, 1, 300),
            [[1, 0, 0, 0]], _text(source, 2, 5)]


SETTINGS = {
    "order": {},
    "longer": {"max_seq_length": 64},
    "shortest": {"max_seq_length": 5},
    "half_short": {"short_seq_prob": 0.5},
    "next": {"random_next_sentence": True, "short_seq_prob": 0.5},
    "skip": {"single_segment": "skip"},
    "next_skip": {"random_next_sentence": True, "single_segment": "skip"},
    "none": {"sentence_objective": "none"},
    "none_half_short": {"sentence_objective": "none", "short_seq_prob": 0.5},
}


def _options(setting):
    return InstanceOptions(
        **{"max_seq_length": 24, "masking": UNMASKED, **SETTINGS[setting]})


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_walk_of_the_reference(reference, setting):
    for texts, sizes in [
            (_varied(), [3, 5]), ([_text(random.Random(2), 25, 8)], [1]),
            ([_text(random.Random(2), 9, 8), _text(random.Random(3), 1, 8)], [2]),
            ([[[1]]], [1]), ([[[0, 0, 0]]], [1])]:
        if "skip" in setting and len(texts) == len(texts[0]) == 1:
            continue  # The one chunk is left out.
        slices, options = _slices(texts, sizes), _options(setting)
        rows, walks = reference(slices, options, range(2, 5))
        expected = InstanceCounts()
        for walk in walks:
            expected.add(*walk)
        expected.masked.clear()  # Counted where masks are made.
        for walks_at_once in (1, 7, planning.AT_ONCE):
            plans, counts = _plan(slices, options, range(2, 5), at_once=walks_at_once)
            given = {int(p["order"]): (int(p["mask"]), fields)
                     for p, fields in zip(plans, _plan_rows(plans))}
            assert given == rows and len(plans) == len(rows)
            assert counts == expected


@pytest.mark.parametrize("setting", ["order", "next", "none"])
@pytest.mark.parametrize("texts, copies", [
    ([[[1] * 3] * 4000], 3),  # a long document
    ([[[1]]] * 2000, 2),  # many short ones
    ([[[1] * 3] * 2], 3000),  # many copies
], ids=["long", "short", "copies"])
def test_groups_are_small_enough_to_bound_the_memory(setting, texts, copies):
    (documents,) = _slices(texts, [len(texts)])
    options = _options(setting)
    sizes = [len(plans) for plans in planning.plan_chunks(
        documents, range(copies), options, SEED,
        InstanceCounts(), at_once=100)]
    # What there was so far, and at most one more of each walk.
    assert max(sizes) < 200 and len(sizes) > 3
