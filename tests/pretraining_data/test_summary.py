"""Counts over a data set: filled in two ways, merged, stored, described, drawn."""

import json
import random

import numpy as np
import pytest

from albert_tf.errors import InputError
from albert_tf.masking import batched as batch_masking
from albert_tf.masking.options import MASK
from albert_tf.pretraining_data import plans as instance_plans
from albert_tf.pretraining_data.release_instances import (
    DocumentInstances, FOLLOWING, Instance, ONE_SEGMENT, RANDOM_DOCUMENT, SWAPPED)
from albert_tf.pretraining_data.summary import CorpusCounts, InstanceCounts, describe
from albert_tf.pretraining_data.summary_picture import draw_summary

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
    counts = InstanceCounts(S)
    for walk in walks:
        counts.add(walk)
    return counts


def batched(walks=WALKS):
    """The same counts, filled as by the path that plans and masks in batches."""
    instances = [i for walk in walks for i in walk.instances]
    planned = instance_plans.PlanCounts.zero(S)
    for made in instances:
        planned.lengths[len(made.tokens)] += 1
        planned.origins[instance_plans.ORIGINS.index(made.origin)] += 1
        planned.pieces_cut_off += made.num_cut
    planned.skipped = sum(len(walk.skipped) for walk in walks)
    planned.pieces_skipped = sum(sum(walk.skipped) for walk in walks)
    shown = [made.tokens[p] for made in instances for p in made.masked_lm_positions]
    masked = batch_masking.MaskedBatch(
        None, None, None, None,
        num_masked=np.array([len(made.masked_lm_positions) for made in instances]),
        shown=np.array([shown.count(MASK), shown.count("x"), shown.count("y")]),
        ngram_words=np.bincount(
            [n for made in instances for n in made.ngrams] or [0], minlength=4))
    return planned, masked


def corpus(**counts):
    made = CorpusCounts()
    vars(made).update(counts)
    return made


def through_json(counts):
    return type(counts).from_json(json.loads(json.dumps(counts.to_json())))


def test_counts_of_instances():
    assert added().as_dict() == {
        "instances": 5,
        "label_1_share": 0.4,
        "labels": {"0": 3, "1": 2},
        "second_segment": {"following": 2, "one_segment": 1, "random_document": 1,
                           "swapped": 1},
        "length": {"mean": 15.2, "min": 5, "median": 20, "max": 20},
        "length_histogram": {
            "bin_width": 1, "longest": 20,
            "instances": [0] * 4 + [1] + [0] * 5 + [1] + [0] * 8 + [3]},
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


def test_the_median_is_the_lower_one():
    counts = added([DocumentInstances(
        [instance(n, FOLLOWING) for n in (5, 20, 6, 19)], [])])
    assert counts.as_dict()["length"]["median"] == 6


def test_both_ways_of_counting_agree():
    counts = InstanceCounts(S)
    planned, masked = batched()
    counts.add_plans(planned)
    assert counts.instances == 5
    counts.add_masks(masked)
    assert counts.as_dict() == added().as_dict()


def test_halves_are_merged_after_json():
    planned, masked = batched()
    plans, masks = InstanceCounts(S), InstanceCounts(S)
    plans.add_plans(planned)
    masks.add_masks(masked)
    total = InstanceCounts(S)
    for part in (masks, plans):
        total.merge(through_json(part))
    assert total.as_dict() == added().as_dict()


def test_parts_are_merged_in_any_order():
    parts = [added(WALKS[:1]), added(WALKS[1:]), added(WALKS)]
    expected = added(WALKS * 2).as_dict()
    for seed in range(3):
        total = InstanceCounts(S)
        for part in random.Random(seed).sample(parts, 3):
            total.merge(part)
        assert total.as_dict() == expected
    # The parts are as they were.
    assert parts[0].as_dict() == added(WALKS[:1]).as_dict()


def test_counts_may_be_stored_and_filled_on():
    counts = through_json(added(WALKS[:1]))
    counts.add(WALKS[1])
    assert counts.as_dict() == added().as_dict()
    assert through_json(InstanceCounts(S)).as_dict() == InstanceCounts(S).as_dict()


def test_counts_of_other_lengths_do_not_go_together():
    with pytest.raises(ValueError, match="sequences of 8 do not go with those of 20"):
        added().merge(InstanceCounts(8))
    with pytest.raises(ValueError, match="sequences of 8 do not go with"):
        added().add_plans(instance_plans.PlanCounts.zero(8))


@pytest.mark.parametrize("counts", [InstanceCounts(S), CorpusCounts()])
def test_other_json_is_refused(counts):
    state = counts.to_json()
    with pytest.raises(ValueError, match="'more'"):
        type(counts).from_json(state | {"more": 1})
    state.popitem()
    with pytest.raises(ValueError, match="are not those of"):
        type(counts).from_json(state)


@pytest.mark.parametrize(
    "longest, width, bins", [(64, 1, 64), (65, 2, 33), (512, 8, 64)])
def test_the_histogram_of_lengths_has_few_bins(longest, width, bins):
    lengths = [5, longest - width, longest - width + 1, longest, longest]
    counts = InstanceCounts(longest)
    counts.add(DocumentInstances([instance(n, FOLLOWING) for n in lengths], []))
    histogram = counts.as_dict()["length_histogram"]
    assert histogram["bin_width"] == width
    assert len(histogram["instances"]) == bins and sum(histogram["instances"]) == 5
    # The last bin begins right behind the one before it.
    assert histogram["instances"][-1] == sum(n > longest - width for n in lengths)
    assert histogram["instances"][-2] == 1


def test_counts_of_text():
    first = corpus(documents=2, sentences=7, pieces=100, unknown_pieces=1)
    second = corpus(documents=1, sentences=1, pieces=60, unknown_pieces=3,
                    lines_without_pieces=4, single_sentence_documents=1)
    total = CorpusCounts()
    for part in (first, second):
        total.merge(through_json(part))
    assert total.as_dict() == {
        "documents": 3, "sentences": 8, "pieces": 160, "unknown_pieces": 4,
        "lines_without_pieces": 4, "single_sentence_documents": 1,
        "unknown_share": 0.025}


def test_numpy_numbers_can_be_stored():
    assert json.loads(json.dumps(corpus(pieces=np.int64(3)).to_json()))["pieces"] == 3
    planned, masked = batched()
    counts = InstanceCounts(S)
    counts.add_plans(planned)
    counts.add_masks(masked)
    json.dumps(counts.to_json())
    json.dumps(counts.as_dict())


def test_description():
    text = corpus(documents=1200, sentences=7, pieces=1000, unknown_pieces=2).as_dict()
    lines = "\n".join(describe(text, added().as_dict()))
    for part in ("1,200 documents", "7 sentences", "1,000 pieces", "0.200% unknown",
                 "instances: 5, 40.0% with label 1", "swapped 1",
                 "15.2 pieces in the mean, 5 to 20, median 20; 24.0% padding",
                 "8 pieces, 10.5% of all; shown as [MASK] 62.5%",
                 "1.6 in the mean, 0 to 3, median 1; instances without any: 1; ",
                 "n-grams of 1 word 60.0%, 2 words 20.0%",
                 "2 single sentences (9 pieces), 7 pieces cut off"):
        assert part in lines


def test_description_without_predictions():
    counts = added([DocumentInstances([instance(5, FOLLOWING)], [])])
    lines = list(describe(CorpusCounts().as_dict(), counts.as_dict()))
    assert "predictions: 0 pieces, 0.0% of all" in "\n".join(lines)
    assert not any("n-grams" in line for line in lines)


@pytest.mark.parametrize("counts", [
    added(), InstanceCounts(S),
    added([DocumentInstances([instance(5, ONE_SEGMENT)], [])]),
], ids=["all", "none", "no predictions"])
def test_picture(tmp_path, counts):
    from matplotlib import image

    path = tmp_path / "new" / "x.png"
    draw_summary(str(path), corpus(documents=3).as_dict(), counts.as_dict())
    pixels = image.imread(path)
    assert pixels.shape[:2] == (800, 1200)
    assert pixels.min() < 0.5  # something is drawn
    assert [p.name for p in path.parent.iterdir()] == ["x.png"]


def test_a_picture_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="x.png.*cannot be written"):
        draw_summary(str(tmp_path / "file" / "x.png"), CorpusCounts().as_dict(),
                     added().as_dict())
