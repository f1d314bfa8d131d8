"""Schedules in phases, and the stages that they make of a training.

    python -m pytest tests/training/test_phases.py
"""

import pytest

from albert_tf.errors import InputError
from albert_tf.training.phases import (
    Phases, Stage, by_length, check_sizes, mean_product, parts_of,
    patterns_by_length, stages_of)

LENGTHS = dict(length_schedule="32:0.5,64:0.5")


@pytest.mark.parametrize("given, expected", [
    ({}, [(0, 64, 16)]),
    (dict(length_schedule="32:0.9,64:0.1"), [(0, 32, 16), (90, 64, 16)]),
    (dict(length_schedule="64:0.1,32:0.8,64:0.1", sizes_by_length="32:24"),
     [(0, 64, 16), (10, 32, 24), (90, 64, 16)])])
def test_stages(given, expected):
    assert stages_of(100, 64, 16, **given) == [Stage(*stage) for stage in expected]


@pytest.mark.parametrize("given, message", [
    (dict(length_schedule="32"), "--length_schedule=32 cannot be read; give LENGTH:SHA"),
    (dict(length_schedule="32:0.9,64:0.2"), "the shares of the steps make 1.1"),
    (dict(length_schedule="64:0.5,32:0.5"),
     "ends at 32, but --max_seq_length is 64; end at 64, or give --max_seq_length=32"),
    (dict(length_schedule="0:0.5,64:0.5"), "has a 0; give numbers of 1 or more"),
    (dict(sizes_by_length="32:8"), "--train_batch_size_by_length is for --length_sched"),
    (dict(LENGTHS, sizes_by_length="32:8,128:4"), "has no 128; give its lengths, 32"),
    (dict(LENGTHS, sizes_by_length="32"), "cannot be read; give LENGTH:NUMBER"),
    (dict(LENGTHS, sizes_by_length="32:0"), "cannot be read; give LENGTH:NUMBER"),
    (dict(LENGTHS, sizes_by_length="32:8,32:9"), "a length occurs twice")])
def test_wrong_stages(given, message):
    with pytest.raises(InputError, match=message):
        stages_of(100, 64, 16, **given)


def test_numbers_by_length():
    assert by_length(" 32:5, 64:9", "--flag", [64, 32], "") == {32: 5, 64: 9}
    assert by_length("", "--flag", [], "") == {}


def test_files_by_length():
    assert patterns_by_length(
        "32:a*,b,64:gs://c/d,32:e", "--input_file", [32, 64]) == {
            32: ["a*", "b", "e"], 64: ["gs://c/d"]}
    for text, message in (
            ("a,64:b", "--input_file: a does not say of which length .* give 32:a"),
            ("32:a", "has no records of length 64, which .*; give 64:FILES too"),
            ("32:a,64:b,128:c", "has records of length 128, which --length_schedule has "
             "not")):
        with pytest.raises(InputError, match=message):
            patterns_by_length(text, "--input_file", [32, 64])


def test_every_part_has_at_most_the_pieces_of_the_largest():
    stages = [Stage(0, 32, 8), Stage(1, 32, 6), Stage(2, 64, 16)]
    for parts, expected in ((1, [1, 1, 1]), (4, [1, 1, 4]), (8, [2, 2, 8]),
                            (16, [4, 3, 16])):
        assert [parts_of(stage, stages, parts) for stage in stages] == expected
    assert [parts_of(stage, stages, 8, replicas=2) for stage in stages] == [2, 3, 8]


def test_batches_divide_over_replicas():
    stages = stages_of(10, 64, 16, **LENGTHS, sizes_by_length="32:6")
    check_sizes(stages, 2)
    with pytest.raises(InputError, match="a batch of 6, from step 0 on, does not divide "
                       "over 4 replicas; give multiples of 4 to --train_batch"):
        check_sizes(stages, 4)


def test_mean_of_a_product():
    one, other = Phases((1, 3), (5, 10)), Phases((2, 10), (8, 10))
    for first, end in ((0, 10), (3, 9), (8, 10), (4, 5), (9, 9)):
        steps = range(first, max(end, first + 1))
        assert mean_product([one, other], first, end) == pytest.approx(
            sum(one.at(step) * other.at(step) for step in steps) / len(steps))
    assert mean_product([], 0, 10) == 1
