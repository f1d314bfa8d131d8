"""Instances and masks: the release's unit cases, invariants, options."""

import gzip
import json
import random

import numpy as np
import pytest

from albert_tf.errors import InputError
from albert_tf.masking.options import MaskingOptions
from albert_tf.masking.reference import RandomSource
from albert_tf.pretraining_data import instances as pi, release
from albert_tf.pretraining_data.options import (
    InstanceOptions, ONE_SEGMENT)
from albert_tf.tokenization.sequences import WordStarts
from tests.helpers import FIXTURES

CASES = json.loads(gzip.decompress(
    (FIXTURES / "pretraining_data" / "unit_cases.json.gz").read_bytes()))
VOCABULARY = [line.split("\t")[0] for line in (
    FIXTURES / "spm" / "en4k.vocab").read_text(encoding="utf-8").splitlines()]


def _setting(case):
    """Options, pieces and generators of a unit case."""
    flags = case["flags"]
    options = MaskingOptions(
        max_predictions_per_seq=case["max_predictions_per_seq"],
        masked_lm_prob=case["masked_lm_prob"], ngram=flags["ngram"],
        favor_shorter_ngram=flags["favor_shorter_ngram"],
        do_whole_word_mask=flags["do_whole_word_mask"],
        do_permutation=flags["do_permutation"])
    rule = "release" if flags["spm_model_file"] else "wordpiece"
    source = RandomSource(
        random.Random(case["python_seed"]),
        np.random.RandomState(case["np_seed"]))
    return options, pi.Pieces(VOCABULARY, WordStarts(rule)), source


def _check_next_numbers(case, source):
    assert source.python.random() == case["next_random"]
    assert source.numpy.random_sample() == case["next_np_random"]


@pytest.mark.parametrize("case", CASES["create_instances_from_document"])
def test_instances_of_the_release(case):
    masking_options, pieces, source = _setting(case)
    options = InstanceOptions(
        max_seq_length=case["max_seq_length"], short_seq_prob=case["short_seq_prob"],
        random_next_sentence=case["flags"]["random_next_sentence"],
        masking=masking_options)
    documents = case.get("all_documents") or CASES["documents"]
    made, skipped = pi.create_instances(
        documents, case["document_index"], pieces, options, source)
    assert [
        {"tokens": i.tokens, "segment_ids": i.segment_ids,
         "is_random_next": bool(i.label), "token_boundary": i.token_boundary,
         "masked_lm_positions": i.masked_lm_positions,
         "masked_lm_labels": i.masked_lm_labels}
        for i in made] == case["instances"]
    assert skipped == []
    _check_next_numbers(case, source)


PIECES = pi.Pieces(["▁a", "b"], WordStarts("release"))
LONG, SHORT = ["▁a", "b", "▁c", "d", "▁e", "f"], ["▁x"]
DOCUMENTS = [[LONG], [SHORT], [["▁p", "q"], ["▁r"], ["▁s", "t"]]]
UNMASKED = MaskingOptions(masked_lm_prob=0)


def _walk(index, seed=0, documents=DOCUMENTS, **options):
    options = InstanceOptions(
        **{"max_seq_length": 16, "short_seq_prob": 0, "masking": UNMASKED, **options})
    return pi.create_instances(
        documents, index, PIECES, options, RandomSource.from_seed(seed))


def _segments(instance):
    end = instance.tokens.index("[SEP]")
    return instance.tokens[1:end], instance.tokens[end + 1:-1]


@pytest.mark.parametrize("random_next", [True, False])
@pytest.mark.parametrize("single_segment", ["random", "skip"])
def test_one_document_alone_neither_loops_nor_fails(random_next, single_segment):
    for seed in range(10):
        made, _ = _walk(0, seed, [[["▁a", "b"]] * 9], max_seq_length=8, short_seq_prob=0.1,
                     random_next_sentence=random_next, single_segment=single_segment,
                     masking=MaskingOptions())
        assert made and all(_segments(i)[0] and _segments(i)[1] for i in made)


def test_cut_and_skipped_pieces_are_counted():
    assert _walk(0, single_segment="skip") == ([], [len(LONG)])
    assert len(_walk(2, single_segment="skip")[0]) == 1
    documents = [[["▁a"] * 30, ["▁b"] * 30], [SHORT]]
    [instance], _ = _walk(
        0, documents=documents, max_seq_length=43, masking=MaskingOptions())
    assert len(instance.tokens) == 43 and instance.num_cut == 20
    assert documents[0][0] == ["▁a"] * 30


def _full_sentences(documents, seed=0, **options):
    options = InstanceOptions(**{
        "short_seq_prob": 0, "masking": UNMASKED, "sentence_objective": "none",
        **options})
    made, skipped = release.create_full_sentences(
        documents, PIECES, options, RandomSource.from_seed(seed))
    assert skipped == []
    for instance in made:
        assert len(instance.tokens) <= options.max_seq_length
        assert (instance.tokens[0], instance.tokens[-1]) == ("[CLS]", "[SEP]")
        assert instance.segment_ids == [0] * len(instance.tokens)
        assert (instance.label, instance.origin) == (0, ONE_SEGMENT)
    return made


def test_full_sentences_run_over_the_ends_of_documents():
    for length, expected in {
            # Six pieces; one; two, one and two: with a [SEP] between documents.
            13: [[*LONG, "[SEP]", *SHORT, "[SEP]", "▁p", "q"], ["▁r", "▁s", "t"]],
            # Room for the [SEP], but not for the next sentence too: neither is taken.
            9: [LONG, [*SHORT, "[SEP]", "▁p", "q", "▁r", "▁s", "t"]],
            8: [LONG, [*SHORT, "[SEP]", "▁p", "q", "▁r"], ["▁s", "t"]]}.items():
        instances = _full_sentences(DOCUMENTS, max_seq_length=length)
        assert [i.tokens[1:-1] for i in instances] == expected
        assert not any(i.num_cut for i in instances)


def test_full_sentences_cut_only_a_sentence_longer_than_the_target():
    kept = set()
    for seed in range(30):
        long, rest = _full_sentences(DOCUMENTS, seed, max_seq_length=7)[:2]
        assert len(long.tokens) == 7 and long.num_cut == 1
        assert rest.tokens[1:-1] == ["▁x", "[SEP]", "▁p", "q", "▁r"]
        kept.add(tuple(long.tokens[1:-1]))
    assert kept == {tuple(LONG[1:]), tuple(LONG[:-1])}


def test_random_next_sentence_is_the_objective_next():
    both = {("random_next_sentence", True), ("sentence_objective", "next")}
    for given in both:
        options = InstanceOptions(**dict([given]))
        assert both <= vars(options).items()
    assert not InstanceOptions().random_next_sentence


def test_values_out_of_range_and_two_objectives():
    with pytest.raises(InputError, match="--max_seq_length=4"):
        InstanceOptions(max_seq_length=4)
    with pytest.raises(InputError, match="next_sentence .* --sentence_objective=none"):
        InstanceOptions(sentence_objective="none", random_next_sentence=True)
