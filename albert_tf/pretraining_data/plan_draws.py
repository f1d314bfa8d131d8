"""What the random numbers of walks and chunks decide.

Of the same distribution as the draws of release_instances, with the numbers of
keyed_random: each decision has a number of its own of the walk's or the chunk's key, so
that it does not depend on how many were drawn before.
"""

import numpy as np

from albert_tf import keyed_random
from albert_tf.pretraining_data.encoder import sums_before
from albert_tf.pretraining_data.options import InstanceOptions

# What a key is for: a walk; a chunk's rank in the shuffle, its plan, its masks; a
# walk's target length.
WALK_KEY, ORDER_KEY, PLAN_KEY, MASK_KEY, TARGET_KEY = 1, 2, 3, 4, 5

# Which number of a PLAN_KEY decides what. (Without a sentence objective the first two
# decide the target length.)
SPLIT, LABEL, START, DOCUMENT, CUT = 0, 1, 2, 3, 16
_TRIES = 10  # to find another document
_PIECES_AT_ONCE = 1 << 20  # looked through for the starts of words


def target_lengths(numbers: np.ndarray, options: InstanceOptions) -> np.ndarray:
    """Pieces to aim at, from two random numbers each: uint64 [..., 2] → int64 [...].

    Mostly as many as fit, since padding is wasted computation; some fewer, so that
    pretraining differs less from fine-tuning, whose texts are shorter (release:
    create_instances_from_document).
    """
    short = keyed_random.as_uniform(numbers[..., 0]) < options.short_seq_prob
    shorter = 2 + keyed_random.below(numbers[..., 1], options.max_pieces - 1)
    return np.where(short, shorter, options.max_pieces)


def num_first(numbers: np.ndarray, num_sentences: np.ndarray) -> np.ndarray:
    """Sentences in a chunk's first segment, 1 to all but one or the only one: int64 [N]
    from random numbers and the sentences of the chunk, [N]."""
    return 1 + keyed_random.below(numbers, num_sentences - 1)


def is_negative(numbers: np.ndarray) -> np.ndarray:
    """Whether the text that follows is not to stand second: bool, as uint64 [N]."""
    return keyed_random.as_uniform(numbers) < 0.5


def cuts_of_sentences(codes: np.ndarray, start: np.ndarray, length: np.ndarray,
                      numbers: np.ndarray) -> np.ndarray:
    """Pieces before the cut of sentences that are split in two: int64 [N].

    Before the start of a word, where one starts after the first piece (each is as
    likely), else before any piece but the first: half a word at the cut would give the
    order away. `start` and `length` int64 [N] say where in the slice's codes the
    sentences lie, of two pieces or more, some perhaps several times; `numbers` uint64
    [N] are random.
    """
    codes = np.asarray(codes)  # slices of a memmap are slow
    cuts_at = np.zeros(len(start), np.int64)
    order = np.argsort(start, kind="stable")
    group = np.cumsum(length[order]) // _PIECES_AT_ONCE
    for rows in np.split(order, np.flatnonzero(np.diff(group)) + 1):
        starts, first, sentence = np.unique(
            start[rows], return_index=True, return_inverse=True)
        sizes = length[rows][first]
        pieces = np.concatenate([
            codes[at:at + size] for at, size in zip(starts, sizes)] or [codes[:0]])
        word_starts = np.flatnonzero(pieces & 1)
        bounds = sums_before(sizes)
        begin = bounds[:-1]
        low = np.searchsorted(word_starts, begin + 1)
        num_words = np.searchsorted(word_starts, bounds[1:]) - low
        num_choices = np.where(num_words > 0, num_words, sizes - 1)
        chosen = keyed_random.below(numbers[rows], num_choices[sentence])
        cuts_at[rows] = 1 + chosen
        at_word = np.flatnonzero(num_words[sentence])
        sentence = sentence[at_word]
        cuts_at[rows[at_word]] = (
            word_starts[low[sentence] + chosen[at_word]] - begin[sentence])
    return cuts_at


def other_documents(keys: np.ndarray, own: np.ndarray,
                    num_documents: int) -> np.ndarray:
    """Random documents, other than one's own unless ten draws all give that: int64 [N],
    of PLAN_KEYs and the documents that are not wanted, [N]."""
    other = keyed_random.below(keyed_random.word(keys, DOCUMENT), num_documents)
    for attempt in range(1, _TRIES):
        same = np.flatnonzero(other == own)
        if not same.size:
            break
        other[same] = keyed_random.below(
            keyed_random.word(keys[same], DOCUMENT + attempt), num_documents)
    return other


def cuts(keys: np.ndarray, length_a: np.ndarray, length_b: np.ndarray,
         room: np.ndarray) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
    """What pairs of segments lose to fit (sequences.truncate_at_random_ends).

    The longer segment always loses the next piece, the second where both have one
    length, so that an odd piece of `room` stays with the first. A random bit for each
    piece says whether it goes from the front or from the back: Binomial(n, 1/2) of n
    pieces. The bits of the second segment come after those of the first. If the first
    loses more, it loses as many or more at either end.

    Args:
      keys: uint64 [N]; PLAN_KEYs.
      length_a, length_b, room: int64 [N]; pieces of the segments, and of what both may
        have together.

    Returns:
      Pieces to lose and how many of them from the front, for both segments: int64 [N].
    """
    half = room // 2
    cut_a = np.maximum(length_a - np.maximum(room - half, room - length_b), 0)
    cut_b = np.maximum(length_b - np.maximum(half, room - length_a), 0)
    front_a = keyed_random.ones(keys, CUT, cut_a)
    front_b = keyed_random.ones(keys, CUT, cut_a + cut_b) - front_a
    return (cut_a, cut_b), (front_a, front_b)
