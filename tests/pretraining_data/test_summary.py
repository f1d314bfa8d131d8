"""Counts over a data set: filled in two ways, merged, stored; what they warn of."""

import dataclasses
import json

import pytest

from albert_tf.errors import InputError
from albert_tf.masking.options import MASK
from albert_tf.pretraining_data import local
from albert_tf.pretraining_data.instances import Instance
from albert_tf.pretraining_data.options import (
    FOLLOWING, InstanceOptions, ONE_SEGMENT, RANDOM_DOCUMENT, SWAPPED)
from albert_tf.pretraining_data.summary import InstanceCounts
from tests.pretraining_data.data_creation import options_of, written

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
    ([
        instance(20, FOLLOWING, [MASK, MASK, "x"], [2, 1], num_cut=3),
        instance(20, SWAPPED, [MASK, "y", MASK], [3]),
        instance(11, RANDOM_DOCUMENT, ["y"], [1])], []),
    ([
        instance(5, FOLLOWING), instance(20, ONE_SEGMENT, [MASK], [1], num_cut=4)],
        [7, 2])]


def added(walks=WALKS, **text):
    counts = InstanceCounts(**text)
    for walk in walks:
        counts.add(*walk)
    return counts


def merged(*counts):
    """Counts that were stored as JSON, added up."""
    total = InstanceCounts()
    for each in counts:
        total.merge(json.loads(json.dumps(vars(each))))
    return total


def test_counts_of_instances():
    assert added(documents=2, sentences=7, pieces=160, unknown_pieces=4).as_dict(S) == {
        "text": {"documents": 2, "sentences": 7, "pieces": 160, "unknown_pieces": 4,
                 "lines_without_pieces": 0, "single_sentence_documents": 0,
                 "documents_alone": 0, "unknown_share": 0.025},
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
    parts = [added(WALKS[:1], pieces=1), added(WALKS[1:], pieces=2), added(WALKS)]
    assert merged(*parts).as_dict(S) == added(WALKS * 2, pieces=3).as_dict(S)
    counts = merged(parts[0], InstanceCounts())
    counts.add(*WALKS[1])
    assert counts.as_dict(S) == added(pieces=1).as_dict(S)


# ---- text that gives poor data -------------------------------------------------

SENTENCE = "The {} saw a small mouse near the old house and ran away."


def create(tmp_path, tokenizer, text, single="random"):
    return local.create(options_of(tmp_path, text, instances=InstanceOptions(
        max_seq_length=64, single_segment=single)), tokenizer, num_workers=1)


@pytest.mark.parametrize("single", ["random", "skip"])
def test_a_paragraph_a_line_is_reported(tmp_path, tokenizer, caplog, single):
    """Chunks of one line are frequent, though no line is longer than a sequence."""
    short, long = SENTENCE.format("cat"), f"{SENTENCE.format('old dog')} " * 3
    create(tmp_path, tokenizer, f"{short}\n{short}\n\n{long}\n\n{long}\n\n" * 80, single)
    assert "In the records" in caplog.text and f"--single_segment={single}" in caplog.text


def test_lines_longer_than_a_sequence_are_reported(tmp_path, tokenizer, caplog):
    line = "the old mouse ran near a house " * 20 + "\n"
    made = create(tmp_path, tokenizer, f"{line * 3}\n" * 20)
    assert made["label_1_share"] == 1  # As in the original implementation.
    cut = made["pieces_cut_off"] / (made["pieces_cut_off"] + made["pieces_in_instances"])
    assert f"100.0% of the instances have label 1, and {cut:.1%} of the tokens" in (
        caplog.text)


@pytest.mark.parametrize("name, content", [
    ("a.jsonl", b'{"text": "One."}\n'), ("a.json.gz", b""), ("a.parquet", b"PAR1"),
    ("old_mac.txt", b"One.\rTwo.\r\rThree.\r")])
def test_what_has_not_one_sentence_per_line_is_refused(
        tmp_path, tokenizer, name, content):
    options = dataclasses.replace(options_of(tmp_path, outputs=("new/out",)),
                                  input_files=(written(tmp_path, content, name),))
    with pytest.raises(InputError, match=f"--input_file.*{name}.*prepare_corpus.py"):
        local.create(options, tokenizer, num_workers=1)
    assert not (tmp_path / "new").exists()
