"""Assembly, truncation and padding of sequences."""

import random

import pytest

from albert_tf.records import sequences


def _drop_one_by_one(length_a, length_b, max_tokens):
    """The rule spelt out: the longer loses its last, of equals the second."""
    while length_a + length_b > max_tokens:
        if length_a > length_b:
            length_a -= 1
        else:
            length_b -= 1
    return length_a, length_b


def test_assemble_a_pair_and_a_single_text():
    pair = sequences.assemble(["a", "b"], ["c"], "[CLS]", "[SEP]")
    assert pair.tokens == ["[CLS]", "a", "b", "[SEP]", "c", "[SEP]"]
    assert pair.segment_ids == [0, 0, 0, 0, 1, 1]
    single = sequences.assemble([7, 8], None, 2, 3)
    assert single == ([2, 7, 8, 3], [0, 0, 0, 0])
    empty_second = sequences.assemble([7], [], 2, 3)
    assert empty_second == ([2, 7, 3, 3], [0, 0, 0, 1])
    assert len(pair.tokens) == 3 + sequences.NUM_SPECIAL_PAIR
    assert len(single.tokens) == 2 + sequences.NUM_SPECIAL_SINGLE


def test_pad_inputs():
    inputs = sequences.pad_inputs([2, 7, 3, 8, 3], [0, 0, 0, 1, 1], 7, pad_id=9)
    assert inputs == {
        "input_ids": [2, 7, 3, 8, 3, 9, 9],
        "input_mask": [1, 1, 1, 1, 1, 0, 0],
        "segment_ids": [0, 0, 0, 1, 1, 0, 0],
    }


def test_pad_refuses_what_is_too_long():
    assert sequences.pad([1, 2], 2) == [1, 2]
    with pytest.raises(ValueError, match="3 values do not fit into 2"):
        sequences.pad([1, 2, 3], 2)


def test_longer_first_equals_dropping_one_by_one():
    for length_a in range(8):
        for length_b in range(8):
            for max_tokens in range(17):
                first, second = list(range(length_a)), list(range(length_b))
                kept = sequences.truncate_longer_first(first, second, max_tokens)
                expected = _drop_one_by_one(length_a, length_b, max_tokens)
                assert kept == (first[:expected[0]], second[:expected[1]])
                assert (len(first), len(second)) == (length_a, length_b)


def test_random_ends_keep_a_middle_part_of_the_right_length():
    source = random.Random(3)
    fronts = 0
    for _ in range(200):
        first = list(range(source.randint(1, 30)))
        second = list(range(source.randint(1, 30)))
        max_tokens = source.randint(2, 40)
        kept_first, kept_second = sequences.truncate_at_random_ends(
            first, second, max_tokens, source)
        assert (len(kept_first), len(kept_second)) == _drop_one_by_one(
            len(first), len(second), max_tokens)
        for given, kept in ((first, kept_first), (second, kept_second)):
            assert kept and kept == given[kept[0]:kept[0] + len(kept)]
            fronts += kept[0] > 0
    assert fronts > 50
