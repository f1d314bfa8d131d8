"""Random numbers as a pure function of a key and an index.

    keys = keys_of(seed, np.arange(1000))    # one for each of 1000 sequences
    as_uniform(words(keys, 7))               # number 7 of each in [0, 1), [1000]

Data creation draws numbers for millions of sequences, in any order and on any number of
workers, and must create the same records. There is therefore no generator with a state.
A key, such as that of (seed, document, copy, instance), has a sequence of numbers, and
the i-th number is computed from the key and i alone, for whole arrays of keys at once.

The numbers are those of SplitMix64 (Steele, Lea and Flood, "Fast splittable
pseudorandom number generators", OOPSLA 2014; its outputs pass BigCrush). The state is
increased by an odd constant, and each state is mixed by two rounds of shift, xor and
multiplication.
"""

import numpy as np

_STEP = np.uint64(0x9E3779B97F4A7C15)  # 2^64 divided by the golden ratio, odd
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_UNIT = 2.0 ** -53


def _mixed(states: np.ndarray) -> np.ndarray:
    """Applies SplitMix64's output function in place: uint64 [...]."""
    states ^= states >> np.uint64(30)
    states *= _MIX_1
    states ^= states >> np.uint64(27)
    states *= _MIX_2
    states ^= states >> np.uint64(31)
    return states


def keys_of(*parts: int | np.ndarray) -> np.ndarray:
    """Returns a key for several integers, which depends on their values and order.

    The parts are integers of 64 bits, or arrays of them. The result is uint64 with the
    shape to which they broadcast, [] if all are integers.
    """
    key = np.uint64(0)
    for part in parts:
        with np.errstate(over="ignore"):
            key = _mixed((key ^ np.asarray(part).astype(np.uint64)) + _STEP)
    return key


def words(keys: np.ndarray, index: int | np.ndarray) -> np.ndarray:
    """Returns number `index`, from 0, of each key: uint64 with the shape to which keys and
    indices broadcast."""
    with np.errstate(over="ignore"):
        return _mixed(keys + np.asarray(index + 1).astype(np.uint64) * _STEP)


def as_uniform(numbers: np.ndarray) -> np.ndarray:
    """Converts numbers to float64 in [0, 1) with 53 random bits."""
    return (numbers >> np.uint64(11)).astype(np.float64) * _UNIT


def below(numbers: np.ndarray, bounds: int | np.ndarray) -> np.ndarray:
    """Converts uint64 numbers to int64 in 0 ... bounds - 1, for bounds from 1 to 2^53.

    All results are equally likely, except for a relative error of bounds / 2^53.
    """
    return (as_uniform(numbers) * bounds).astype(np.int64)


def ones(keys: np.ndarray, first: int, counts: np.ndarray) -> np.ndarray:
    """Draws Binomial(counts, 1/2) for each of keys [N]: int64 [N].

    It counts the ones in `counts` [N] random bits, from the numbers first, first + 1
    and so on of each key. The bits for a smaller count are the first bits for a larger
    count.
    """
    # One row for each number that a key needs; the last of a key may have unused bits.
    sizes = -(-counts // 64)
    rows = np.repeat(np.arange(len(keys)), sizes)
    index = np.arange(len(rows)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    unused = np.maximum(64 * (index + 1) - counts[rows], 0).astype(np.uint64)
    used = words(keys[rows], first + index) >> unused
    return np.bincount(rows, np.bitwise_count(used), len(keys)).astype(np.int64)
