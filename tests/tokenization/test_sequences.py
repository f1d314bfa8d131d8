"""Assembly, truncation and padding of sequences; which tokens start a word."""

import gzip
import itertools
import json
import random

import numpy as np
import pytest

from albert_tf.tokenization import sequences
from albert_tf.tokenization.sequences import WordStarts
from tests.helpers import FIXTURES

RELEASE = json.loads(gzip.decompress(
    (FIXTURES / "pretraining_data" / "unit_cases.json.gz").read_bytes()))
CLS, SEP = 2, 3


def test_assemble_a_pair_and_a_single_text():
    assert sequences.assemble([7, 8], [9], 2, 3) == ([2, 7, 8, 3, 9, 3], [0, 0, 0, 0, 1, 1])
    assert sequences.assemble([7, 8], None, 2, 3) == ([2, 7, 8, 3], [0, 0, 0, 0])
    assert sequences.assemble([7], [], 2, 3) == ([2, 7, 3, 3], [0, 0, 0, 1])


def test_longer_first_equals_dropping_one_by_one():
    """The longer loses its last, of equals the second."""
    for lengths in itertools.product(range(8), range(8)):
        for most in range(17):
            first, second = map(list, map(range, lengths))
            kept = sequences.truncate_longer_first(first, second, most)
            assert (len(first), len(second)) == lengths
            while len(first) + len(second) > most:
                (first if len(first) > len(second) else second).pop()
            assert kept == (first, second)


@pytest.mark.parametrize("case", RELEASE["truncate_seq_pair"])
def test_truncation_of_the_release(case):
    source = random.Random(case["seed"])
    kept = sequences.truncate_at_random_ends(
        [f"a{i}" for i in range(case["len_a"])],
        [f"b{i}" for i in range(case["len_b"])], case["max_num_tokens"], source)
    assert kept == (case["out_a"], case["out_b"])
    assert source.random() == case["next_random"]


# Many at a time.

LENGTHS = np.dtype([("length_a", "<u4"), ("length_b", "<u4")])


def flat(segments, dtype):
    return np.array([token for segment in segments for token in segment], dtype)


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
@pytest.mark.parametrize("seed", range(4))
def test_sequences_are_those_of_one_instance(dtype, seed):
    rng, size = np.random.default_rng(seed), 12
    pairs = []
    for _ in range(30):
        first = int(rng.integers(1, size - 3))
        second = int(rng.integers(0, size - 3 - first + 1))
        pairs.append([rng.integers(8, 60_000, n).tolist() for n in (first, second)])
    pairs.append([[9] * (size - 2), []])  # full, of one segment
    plans = np.array([(len(a), len(b)) for a, b in pairs], LENGTHS)
    made = sequences.assemble_batch(
        plans, flat([a for a, _ in pairs], dtype), flat([b for _, b in pairs], dtype),
        size, CLS, SEP, pad_id=1)
    for row, (first, second) in enumerate(pairs):
        # Special pieces start words.
        tokens, segment_ids = sequences.assemble(
            first, second or None, CLS * 2 + 1, SEP * 2 + 1)
        expected = sequences.pad_inputs({
            "input_ids": [token // 2 for token in tokens],
            "input_mask": [1] * len(tokens), "segment_ids": segment_ids}, size, pad_id=1)
        for name, values in expected.items():
            assert getattr(made, name)[row].tolist() == values, name
        assert made.starts_word[row].tolist() == sequences.pad(
            [token % 2 == 1 for token in tokens], size, False)
        assert made.lengths[row] == len(tokens)
    assert [made.input_ids.dtype, made.starts_word.dtype, made.segment_ids.dtype,
            made.input_mask.dtype] == [np.int32, bool, np.uint8, np.uint8]


# ---- words -----------------------------------------------------------------


def test_word_starts():
    release, wordpiece = WordStarts("release"), WordStarts("wordpiece")
    for piece, expected in RELEASE["is_start_piece"].items():
        assert [release[piece], wordpiece[piece]] == expected, piece
    words = ["▁при", "вет", "▁мир", ",", "▁2", "019"]
    starts = WordStarts("sentencepiece")
    assert [starts[p] for p in words] == [True, False, True, False, True, False]
    assert all(release[p] for p in words)


def test_windows_hold_every_token_of_the_longer_text():
    for length in (5, 6, 9, 12):
        for first_length in range(14):
            for second_length in range(14):
                first, second = range(first_length), range(100, 100 + second_length)
                [whole], cut = sequences.fitted(first, second, length)
                parts, lost = sequences.fitted(first, second, length, windows=True)
                assert parts[0] == whole and (len(parts) > 1) == (cut > 0)
                assert all(len(a) + len(b) + (3 if second else 2) <= length
                           for a, b in parts)
                read = {*(piece for part in parts for text in part for piece in text)}
                assert len({*first, *second} - read) == lost <= cut
                # One text is whole in every window, or both are cut.
                assert not lost or min(first_length, second_length) > (length - 3) // 2
                assert all(2 * len(a) >= len(parts[0][0])
                           and 2 * len(b) >= len(parts[0][1]) for a, b in parts)
