"""Random numbers as a pure function of a key and an index.

    keys = keys_of(seed, np.arange(1000))    # one for each of 1000 sequences
    uniform(keys, 7)                         # number 7 of each, [1000]

Data creation draws for millions of sequences at once, in any order, on any number of
workers, and must come to the same records. So there is no generator with a state: a
sequence of numbers belongs to a key, such as that of (seed, document, copy, instance),
and its i-th number is computed from the key and i alone, for whole arrays of keys at a
time.

The numbers are those of SplitMix64 (Steele, Lea and Flood, "Fast splittable
pseudorandom number generators", OOPSLA 2014; its outputs pass BigCrush): the state goes
up by an odd constant, and each state is mixed by two rounds of shift, xor and
multiplication.
"""

import numpy as np

_STEP = np.uint64(0x9E3779B97F4A7C15)  # 2^64 divided by the golden ratio, odd
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_UNIT = 2.0 ** -53
_WORDS_AT_ONCE = 1 << 18  # bounds the memory of `ones`


def _mixed(states: np.ndarray) -> np.ndarray:
    """SplitMix64's output function, in place: uint64 [...]."""
    states ^= states >> np.uint64(30)
    states *= _MIX_1
    states ^= states >> np.uint64(27)
    states *= _MIX_2
    states ^= states >> np.uint64(31)
    return states


def keys_of(*parts: int | np.ndarray) -> np.ndarray:
    """One key for several integers: other integers, or another order, another key.

    The parts are integers modulo 2^64, or arrays of them; the result is uint64 of the
    shape to which they broadcast, [] if all are integers.
    """
    key = np.zeros(np.broadcast_shapes(*(np.shape(part) for part in parts)), np.uint64)
    for part in parts:
        if isinstance(part, (int, np.integer)):
            part = np.uint64(int(part) % 2**64)
        with np.errstate(over="ignore"):
            key = _mixed((key ^ np.asarray(part).astype(np.uint64)) + _STEP)
    return key


def words(keys: np.ndarray, first: int, count: int) -> np.ndarray:
    """Numbers first, ..., first + count - 1 of each key: uint64 [..., count]."""
    keys = np.asarray(keys, np.uint64)
    with np.errstate(over="ignore"):
        steps = np.arange(first + 1, first + count + 1, dtype=np.uint64) * _STEP
        return _mixed(keys[..., None] + steps)


def word(keys: np.ndarray, index: int) -> np.ndarray:
    """Number `index` of each key: uint64 [...]."""
    return words(keys, index, 1)[..., 0]


def as_uniform(numbers: np.ndarray) -> np.ndarray:
    """Numbers as float64 in [0, 1), of 53 random bits."""
    return (numbers >> np.uint64(11)).astype(np.float64) * _UNIT


def uniform(keys: np.ndarray, index: int) -> np.ndarray:
    """`word` as float64 in [0, 1): [...]."""
    return as_uniform(word(keys, index))


def below(numbers: np.ndarray, bounds: int | np.ndarray) -> np.ndarray:
    """uint64 numbers of `words` as int64 in 0 ... bounds - 1, bounds being 1 to 2^53;
    all equally likely but for a share of bounds / 2^53."""
    return (as_uniform(numbers) * bounds).astype(np.int64)


def ones(keys: np.ndarray, first: int, counts: np.ndarray) -> np.ndarray:
    """How many of counts [N] random bits are 1, for each of keys [N]: Binomial(counts,
    1/2), int64 [N].

    The bits are those of the words first, first + 1, ...; for the same key those of a
    smaller count are the first ones of those of a larger.
    """
    found = np.zeros(len(keys), np.int64)
    rows, word = np.flatnonzero(counts), 0
    while rows.size:
        # Most need one word; the few that need more get twice as many each time.
        width = max(1, min(word, _WORDS_AT_ONCE // rows.size))
        numbers = words(keys[rows], first + word, width)
        left = np.clip(
            counts[rows, None] - 64 * np.arange(word, word + width), 0, 64)
        unused = np.minimum(64 - left, 63).astype(np.uint64)
        found[rows] += np.where(left > 0, np.bitwise_count(numbers >> unused), 0).sum(
            axis=1, dtype=np.int64)
        word += width
        rows = rows[counts[rows] > 64 * word]
    return found
