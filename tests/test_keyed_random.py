"""Random numbers from keys: known values, independence of how they are asked for."""

import numpy as np

from albert_tf import keyed_random


def test_numbers_are_those_of_splitmix64():
    # Computed step by step with Python's integers, from the paper's definition.
    state, expected = 1234567, []
    for _ in range(5):
        state = (state + 0x9E3779B97F4A7C15) % 2**64
        mixed = ((state ^ state >> 30) * 0xBF58476D1CE4E5B9) % 2**64
        mixed = ((mixed ^ mixed >> 27) * 0x94D049BB133111EB) % 2**64
        expected.append(mixed ^ mixed >> 31)
    assert expected[0] == 6457827717110365317  # as published for the seed 1234567
    assert keyed_random.words(np.uint64(1234567), np.arange(5)).tolist() == expected


def test_a_number_depends_on_its_key_and_index_alone():
    keys = keyed_random.keys_of(7, np.arange(5))
    table = keyed_random.words(keys[:, None], np.arange(8))
    assert table.shape == (5, 8) and table.dtype == np.uint64
    np.testing.assert_array_equal(keyed_random.words(keys[3], np.arange(2, 6)), table[3, 2:6])
    np.testing.assert_array_equal(keyed_random.words(keys, 6), table[:, 6])


def test_keys_differ_with_every_part_and_with_the_order():
    parts = [(1, 2, 3), (1, 3, 2), (2, 1, 3), (1, 2), (1, 2, 3, 0),
             (0, 1, 2, 3), (1, 2, -3)]
    assert len({int(keyed_random.keys_of(*each)) for each in parts}) == len(parts)
    many = keyed_random.keys_of(5, np.arange(1000)[:, None], np.arange(50))
    assert many.shape == (1000, 50) and len(np.unique(many)) == 50_000
    assert many[17, 4] == keyed_random.keys_of(5, 17, 4)


def test_ones_among_random_bits():
    keys = keyed_random.keys_of(5, np.arange(300))
    counts = np.array([0, 1, 63, 64, 65, 128, 200, 1000, 70_000, 3] * 30)
    for count in np.unique(counts):
        bits = ["".join(f"{int(word):064b}" for word in row) for row in
                keyed_random.words(
                    keys[counts == count, None], np.arange(4, count // 64 + 5))]
        np.testing.assert_array_equal(
            keyed_random.ones(keys, 4, counts)[counts == count],
            [row[:count].count("1") for row in bits])
