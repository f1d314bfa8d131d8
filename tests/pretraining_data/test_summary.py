"""Counts over a data set: filled in two ways, merged, stored, described."""

import json

import numpy as np

from albert_tf.masking.options import MASK
from albert_tf.pretraining_data.options import (
    FOLLOWING, ONE_SEGMENT, RANDOM_DOCUMENT, SWAPPED)
from albert_tf.pretraining_data.instances import DocumentInstances, Instance
from albert_tf.pretraining_data.summary import (
    CorpusCounts, InstanceCounts)

S = 20


def instance(length, origin, shown=(), ngrams=(), num_cut=0):
    """One whose first pieces are predicted; `shown` stands in their place."""
    tokens = ["[CLS]", *shown, *["x"] * (length - 1 - len(shown))]
    return Instance(
        tokens=tokens, segment_ids=[0] * length, token_boundary=[1] * length,
        masked_lm_positions=list(range(1, len(shown) + 1)),
        masked_lm_labels=["x"] * len(shown),
        label=int(origin in (SWAPPED, RANDOM_DOCUMENT)), origin=origin,
        num_cut=num_cut, ngrams=list(ngrams))


WALKS = [
    DocumentInstances([
        instance(20, FOLLOWING, [MASK, MASK, "x"], [2, 1], num_cut=3),
        instance(20, SWAPPED, [MASK, "y", MASK], [3]),
        instance(11, RANDOM_DOCUMENT, ["y"], [1])], []),
    DocumentInstances([
        instance(5, FOLLOWING), instance(20, ONE_SEGMENT, [MASK], [1], num_cut=4)],
        [7, 2])]


def added(walks=WALKS):
    counts = InstanceCounts()
    for walk in walks:
        counts.add(walk)
    return counts


def through_json(counts):
    return json.loads(json.dumps(vars(counts)))


def merged(*counts):
    total = InstanceCounts()
    for each in counts:
        total.merge(each)
    return total


def test_counts_of_instances():
    assert added().as_dict(S) == {
        "instances": 5,
        "label_1_share": 0.4,
        "labels": {"0": 3, "1": 2},
        "second_segment": {"following": 2, "one_segment": 1, "random_document": 1,
                           "swapped": 1},
        "length": {"mean": 15.2, "min": 5, "median": 20, "max": 20},
        "pieces_in_instances": 76,
        "padding_places": 24,
        "padding_share": 0.24,
        "predicted_pieces": 8,
        "predicted_share": round(8 / 76, 6),
        "predicted_per_instance": {
            "mean": 1.6, "min": 0, "median": 1, "max": 3,
            "instances": {"0": 1, "1": 2, "3": 2}},
        "shown_instead": {"mask": 0.625, "same": 0.125, "other": 0.25},
        "ngram_words": {"1": 0.6, "2": 0.2, "3": 0.2},
        "instances_without_predictions": 1,
        "pieces_cut_off": 7,
        "single_sentences_skipped": 2,
        "pieces_skipped": 9,
    }


def test_counts_are_merged_stored_and_filled_on():
    parts = [added(WALKS[:1]), added(WALKS[1:]), added(WALKS)]
    total = merged(*map(through_json, parts))
    assert total.as_dict(S) == added(WALKS * 2).as_dict(S)
    counts = merged(through_json(parts[0]), through_json(InstanceCounts()))
    counts.add(WALKS[1])
    assert counts.as_dict(S) == added().as_dict(S)


def test_counts_of_text():
    total = CorpusCounts()
    for part in (
            CorpusCounts(documents=2, sentences=7, pieces=100, unknown_pieces=1),
            CorpusCounts(1, 1, np.int64(60), 3, lines_without_pieces=4,
                         single_sentence_documents=1)):
        total.merge(vars(part))
    assert json.loads(json.dumps(total.as_dict())) == {
        "documents": 3, "sentences": 8, "pieces": 160, "unknown_pieces": 4,
        "lines_without_pieces": 4, "single_sentence_documents": 1, "documents_alone": 0,
        "unknown_share": 0.025}
