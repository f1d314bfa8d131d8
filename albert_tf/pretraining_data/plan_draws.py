"""What the random numbers of walks and chunks decide.

Of the same distribution as the draws of pretraining_instances, with the numbers of
counter_random: each decision has a number of its own of the walk's or the chunk's
key, so that it does not depend on how many were drawn before.
"""

import numpy as np

from albert_tf import keyed_random
from albert_tf.pretraining_data.release_instances import InstanceOptions

# What a key is for: a walk; a chunk's place in the shuffle, its plan, its masks; a
# walk's target length.
WALK_KEY, ORDER_KEY, PLAN_KEY, MASK_KEY, TARGET_KEY = 1, 2, 3, 4, 5

# Which number of a PLAN_KEY decides what. (Without a sentence objective the first two
# decide the target length.)
SPLIT, LABEL, PLACE, DOCUMENT, CUT = 0, 1, 2, 3, 16
_TRIES = 10  # to find another document
_PIECES_AT_ONCE = 1 << 20  # looked through for the starts of words


def target_lengths(numbers: np.ndarray, options: InstanceOptions
                   ) -> tuple[np.ndarray, np.ndarray]:
    """Target lengths from two random numbers each, and which of them are short.

    Args:
      numbers: uint64 [..., 2].
      options: max_pieces and short_seq_prob.

    Returns:
      Pieces, int64 [...]; bool [...].
    """
    short = keyed_random.as_uniform(numbers[..., 0]) < options.short_seq_prob
    shorter = 2 + keyed_random.below(numbers[..., 1], options.max_pieces - 1)
    return np.where(short, shorter, options.max_pieces), short


def num_first(numbers: np.ndarray, num_sentences: np.ndarray) -> np.ndarray:
    """Sentences in a chunk's first segment: 1 to all but one, or the only one.

    Args:
      numbers: uint64 [N].
      num_sentences: int64 [N]; of the chunk.

    Returns:
      int64 [N].
    """
    return 1 + keyed_random.below(numbers, num_sentences - 1)


def is_negative(numbers: np.ndarray) -> np.ndarray:
    """Whether the text that follows is not to stand second: bool, as uint64 [N]."""
    return keyed_random.as_uniform(numbers) < 0.5


def cuts_of_sentences(tokens: np.ndarray, start: np.ndarray, length: np.ndarray,
                      numbers: np.ndarray) -> np.ndarray:
    """Pieces before the cut of sentences that are split in two: int64 [N].

    Before the start of a word, where one starts after the first piece (each is as
    likely), else before any piece but the first.

    Args:
      tokens: the slice's.
      start, length: int64 [N]; where the sentences lie in tokens, and their pieces,
        two or more. A sentence may come several times.
      numbers: uint64 [N]; a random number for each.
    """
    tokens = np.asarray(tokens)  # slices of a memmap are slow
    cuts = np.zeros(len(start), np.int64)
    order = np.argsort(start, kind="stable")
    group = np.cumsum(length[order]) // _PIECES_AT_ONCE
    for rows in np.split(order, np.flatnonzero(np.diff(group)) + 1):
        places, first, sentence = np.unique(
            start[rows], return_index=True, return_inverse=True)
        sizes = length[rows][first]
        pieces = np.concatenate([
            tokens[place:place + size] for place, size in zip(places, sizes)]
            or [tokens[:0]])
        word_starts = np.flatnonzero(pieces & 1)
        begin = np.cumsum(sizes) - sizes
        low = np.searchsorted(word_starts, begin + 1)
        num_places = np.searchsorted(word_starts, begin + sizes) - low
        num_choices = np.where(num_places > 0, num_places, sizes - 1)
        chosen = keyed_random.below(numbers[rows], num_choices[sentence])
        cuts[rows] = 1 + chosen
        at_word = np.flatnonzero(num_places[sentence])
        sentence = sentence[at_word]
        cuts[rows[at_word]] = (
            word_starts[low[sentence] + chosen[at_word]] - begin[sentence])
    return cuts


def other_documents(keys: np.ndarray, own: np.ndarray,
                    num_documents: int) -> np.ndarray:
    """Random documents, other than one's own unless ten draws all give that.

    Args:
      keys: uint64 [N]; PLAN_KEYs.
      own: int64 [N]; numbers of the documents that are not wanted.
      num_documents: documents to choose from.

    Returns:
      Their numbers, int64 [N].
    """
    other = keyed_random.below(keyed_random.word(keys, DOCUMENT), num_documents)
    for attempt in range(1, _TRIES):
        same = np.flatnonzero(other == own)
        if not same.size:
            break
        other[same] = keyed_random.below(
            keyed_random.word(keys[same], DOCUMENT + attempt), num_documents)
    return other


def num_cut_from_front(keys: np.ndarray, cut_a: np.ndarray, cut_b: np.ndarray
                       ) -> tuple[np.ndarray, np.ndarray]:
    """How many of the pieces that two segments lose go from their fronts.

    A random bit for each piece says whether it goes from the front or from the back:
    Binomial(n, 1/2) of n pieces. Those of the second segment come after those of the
    first. If the first loses more, it loses as many or more at either end.

    Args:
      keys: uint64 [N]; PLAN_KEYs.
      cut_a, cut_b: int64 [N]; pieces to lose.

    Returns:
      For the first segment and for the second, int64 [N] each.
    """
    front_a = keyed_random.ones(keys, CUT, cut_a)
    return front_a, keyed_random.ones(keys, CUT, cut_a + cut_b) - front_a
