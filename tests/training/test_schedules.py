"""Schedules in phases, and the stages that they make of a training.

    python -m pytest tests/training/test_schedules.py
"""

import pytest

from albert_tf.errors import InputError
from albert_tf.training.schedules import (
    Phases, Stage, by_length, mean_product, parts_of, patterns_by_length, stages_of)


@pytest.mark.parametrize("text, expected", [
    ("", [(0, 64)]), ("32:0.9,64:0.1", [(0, 32), (90, 64)]),
    ("64:0.1,32:0.8,64:0.1", [(0, 64), (10, 32), (90, 64)])])
def test_stages(text, expected):
    assert stages_of(100, 64, text) == [Stage(*stage) for stage in expected]


@pytest.mark.parametrize("text, message", [
    ("32", "--length_schedule=32 cannot be read; give LENGTH:SHA"),
    ("32:0.9,64:0.2", "the shares of the steps add up to 1.1"),
    ("64:0.5,32:0.5",
     "ends at 32, but --max_seq_length is 64; end at 64, or give --max_seq_length=32"),
    ("0:0.5,64:0.5", "has a length of 0; give lengths of 1 or more")])
def test_wrong_stages(text, message):
    with pytest.raises(InputError, match=message):
        stages_of(100, 64, text)


def test_numbers_by_length():
    assert by_length(" 32:5, 64:9", "--flag", [64, 32], "") == {32: 5, 64: 9}
    assert by_length("", "--flag", [], "") == {}


@pytest.mark.parametrize("text, lengths, message", [
    ("32:8", [], "--flag has an effect only with --length_schedule; give"),
    ("32:8,128:4", [32, 64], "has no length 128; give its lengths, 32"),
    ("32", [32, 64], "cannot be read; give LENGTH:NUMBER"),
    ("32:0", [32, 64], "cannot be read; give LENGTH:NUMBER"),
    ("32:8,32:9", [32, 64], "a length occurs twice")])
def test_wrong_numbers_by_length(text, lengths, message):
    with pytest.raises(InputError, match=message):
        by_length(text, "--flag", lengths, "128:20")


def test_files_by_length():
    assert patterns_by_length(
        "32:a*,b,64:gs://c/d,32:e", "--input_file", [32, 64]) == {
            32: ["a*", "b", "e"], 64: ["gs://c/d"]}
    for text, message in (
            ("a,64:b", "--input_file: a has no length; .* give 32:a"),
            ("32:a", "lists no records of length 64, which .*; give 64:FILES too"),
            ("32:a,64:b,128:c", "lists records of length 128, which is not in")):
        with pytest.raises(InputError, match=message):
            patterns_by_length(text, "--input_file", [32, 64])


def test_every_part_has_at_most_the_tokens_of_the_longest():
    for parts, rows, expected in ((1, 16, [1, 1]), (4, 16, [1, 4]), (8, 16, [2, 8]),
                                  (16, 16, [4, 16]), (3, 6, [1, 3]), (12, 18, [3, 18])):
        assert [parts_of(length, 64, parts, rows) for length in (16, 64)] == expected


def test_mean_of_a_product():
    one, other = Phases((1, 3), (5, 10)), Phases((2, 10), (8, 10))
    for first, end in ((0, 10), (3, 9), (8, 10), (4, 5), (9, 9)):
        steps = range(first, max(end, first + 1))
        assert mean_product([one, other], first, end) == pytest.approx(
            sum(one.at(step) * other.at(step) for step in steps) / len(steps))
    assert mean_product([], 0, 10) == 1
