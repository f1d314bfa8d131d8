"""Many walks over documents in step: where their chunks begin and end.

    walk   one document and one copy (0 ... dupe_factor - 1); without a sentence
           objective, one span of documents and one copy
    chunk  the sentences from the walk's position until a target length is reached

The t-th chunks of all walks that are not at their end are found together. Every
random number is a function of the walk's key and t (counter_random), so that chunks
do not depend on which walks go in step.
"""

from typing import Callable, Iterator, NamedTuple

import numpy as np

from albert_tf import keyed_random
from albert_tf.pretraining_data import plan_draws
from albert_tf.pretraining_data.token_parts import Documents, sums_before

AT_ONCE = 1 << 14  # walks; arrays of so many numbers stay in the processor's cache
_STEPS_AHEAD = 256


class Place(NamedTuple):
    """Where a slice of documents lies.

    Attributes:
      part: number of its part of the token store.
      first_token: position in the part's token file of the slice's first token.
      first_document: number in the corpus of the slice's first document.
      num_documents: documents in the whole corpus.
    """

    part: int
    first_token: int
    first_document: int
    num_documents: int


class Text(NamedTuple):
    """A slice of documents as walks need it; S sentences, D documents.

    Attributes:
      documents, place: as given.
      before: int64 [S + 1]; pieces before each sentence, without separators.
      shift: int64 [D]; what to add to that in each document to have the position
        in the part's token file.
    """

    documents: Documents
    place: Place
    before: np.ndarray
    shift: np.ndarray

    @classmethod
    def of(cls, documents: Documents, place: Place) -> "Text":
        before = sums_before(documents.sentence_lengths)
        first_token = np.asarray(documents.first_token[:-1], np.int64)
        return cls(documents, place, before,
                   first_token + place.first_token
                   - before[np.asarray(documents.first_sentence[:-1], np.int64)])


class Walks(NamedTuple):
    """W walks; each goes over the sentences begin, ..., end - 1.

    Attributes:
      key: uint64 [W].
      begin, end: int64 [W].
    """

    key: np.ndarray
    begin: np.ndarray
    end: np.ndarray


class ChunkBounds(NamedTuple):
    """N chunks: the sentences begin, ..., end - 1.

    Attributes:
      walk: int64 [N].
      ordinal: int64 [N]; how many chunks of the walk came before.
      begin, end: int64 [N].
    """

    walk: np.ndarray
    ordinal: np.ndarray
    begin: np.ndarray
    end: np.ndarray


# (walks [A], positions [A], the chunks' first two numbers [A, 2] or None) → where the
# chunks end [A], where the next ones begin [A].
Advance = Callable[..., tuple[np.ndarray, np.ndarray]]


def lockstep(walks: Walks, advance: Advance, draws: bool) -> Iterator[ChunkBounds]:
    """Finds the first chunk of every walk, then the second of those not at their end.

    Args:
      walks: where to go.
      advance: finds chunks.
      draws: whether it needs random numbers: those of keys_of(walk's key, PLAN_KEY,
        ordinal). They are computed for many steps ahead where walks are few, since a
        step costs as much for one walk as for hundreds.

    Yields:
      The chunks in the order in which they are found, AT_ONCE or more at a time.
    """
    active, position = np.arange(len(walks.key)), walks.begin
    found, num_found, ordinal = [], 0, 0
    numbers, column, drawn = np.zeros((len(active), 0, 2), np.uint64), 0, None
    while active.size:
        if draws:
            if column == numbers.shape[1]:
                ahead = max(1, min(_STEPS_AHEAD, AT_ONCE // active.size))
                keys = keyed_random.keys_of(
                    walks.key[active][:, None], plan_draws.PLAN_KEY,
                    ordinal + np.arange(ahead))
                numbers, column = keyed_random.words(keys, 0, 2), 0
            drawn, column = numbers[:, column], column + 1
        ends, following = advance(active, position, drawn)
        found.append((active, position, ends))
        num_found += active.size
        ordinal += 1
        go_on = following < walks.end[active]
        if not go_on.all():
            active, following = active[go_on], following[go_on]
            if draws:
                numbers = numbers[go_on]
        position = following
        if num_found >= AT_ONCE:
            yield _joined(found, ordinal)
            found, num_found = [], 0
    if found:
        yield _joined(found, ordinal)


def _joined(found: list[tuple], ordinal: int) -> ChunkBounds:
    """The chunks of several steps, the last of them step `ordinal` - 1."""
    walk, begin, end = map(np.concatenate, zip(*found))
    ordinals = np.arange(ordinal - len(found), ordinal)
    sizes = [len(each[0]) for each in found]
    return ChunkBounds(walk, np.repeat(ordinals, sizes), begin, end)
