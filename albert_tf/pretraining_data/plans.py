"""Chooses the tokens of each instance: walks over documents, thousands at a time.

    walk   one document and one copy (0 ... dupe_factor - 1); without a sentence
           objective, one slice of documents and one copy
    chunk  the sentences from the walk's position until a target length is reached;
           one instance
    plan   where an instance's tokens are among those of its slice

Instances have the same distribution as those of instances.create_instances. The t-th
chunks of all walks that have not ended are found together. Every decision has its own
random number, a function of the walk's key and t (keyed_random), so instances do not
depend on which walks are processed together.
"""

from typing import Iterator, NamedTuple

import numpy as np

from albert_tf import keyed_random
from albert_tf.pretraining_data.encoder import sums_before
from albert_tf.pretraining_data.options import InstanceOptions, ORIGINS
from albert_tf.pretraining_data.summary import InstanceCounts
from albert_tf.tokenization import sequences

# The codes for the second segment's origin are indices into ORIGINS.
_FOLLOWING, _SWAPPED, _RANDOM_DOCUMENT, _ONE_SEGMENT = range(len(ORIGINS))

# One instance. order: its random rank in the shuffle; mask: the key for its masks. The
# first segment is length_a tokens from the slice's code start_a on, and likewise the
# second, both swapped and cut. length_b is 0 if there is no second segment.
PLAN = np.dtype([
    ("order", "<u8"), ("mask", "<u8"), ("start_a", "<i8"), ("start_b", "<i8"),
    ("length_a", "<u4"), ("length_b", "<u4"), ("label", "u1"), ("origin", "u1")])

# The purpose of a key: a walk; a chunk's rank in the shuffle, its plan, its masks; a
# walk's target length.
WALK_KEY, ORDER_KEY, PLAN_KEY, MASK_KEY, TARGET_KEY = 1, 2, 3, 4, 5

# The number from a PLAN_KEY that makes each decision. (Without a sentence objective the
# first two decide the target length.)
SPLIT, LABEL, START, DOCUMENT, CUT = 0, 1, 2, 3, 16

AT_ONCE = 1 << 14  # walks; arrays of this size stay in the processor's cache
_STEPS_AHEAD = 256


class Documents(NamedTuple):
    """A slice of the text in memory: C codes, S sentences, D documents.

    Document d has the sentences first_sentence[d], ..., first_sentence[d + 1] - 1.
    """

    codes: np.ndarray  # [C]; the codes of each document, followed by a separator
    sentence_lengths: np.ndarray  # uint32 [S]; tokens in each sentence, at least 1
    first_sentence: np.ndarray  # int64 [D + 1]
    ids: np.ndarray  # uint64 [D]; where each begins in the input (spans.Lines)


class _Text(NamedTuple):
    """The codes at which the sentences of a slice start, and end before a separator."""

    start: np.ndarray  # int64 [S]
    end: np.ndarray  # int64 [S]
    first_sentence: np.ndarray  # int64 [D + 1], of each document


class _Walks(NamedTuple):
    """W walks over the sentences begin, ..., end - 1."""

    key: np.ndarray  # uint64 [W]
    document: np.ndarray  # int64 [W]; number of the first document
    begin: np.ndarray  # int64 [W]
    end: np.ndarray  # int64 [W]
    target: np.ndarray  # int64 [W]; tokens in a chunk; full sentences draw each time


class _Chunks(NamedTuple):
    """N chunks: the sentences begin, ..., end - 1; all int64 [N]."""

    walk: np.ndarray
    ordinal: np.ndarray  # number of chunks before this one in the walk
    begin: np.ndarray
    end: np.ndarray


def plan_chunks(documents: Documents, copies: range, options: InstanceOptions,
                seed: int, counts: InstanceCounts,
                at_once: int = AT_ONCE) -> Iterator[np.ndarray]:
    """Yields the instances made from copies of a slice of documents as PLAN [N], some ten
    thousand at a time, which bounds the memory; adds all but masks to `counts`. At most
    `at_once` walks advance together."""
    first_sentence, num_documents = documents.first_sentence, len(documents.ids)
    # Each document before a sentence has a separator after it.
    start = sums_before(documents.sentence_lengths)[:-1] + np.repeat(
        np.arange(num_documents), np.diff(first_sentence))
    text = _Text(start, start + documents.sentence_lengths, first_sentence)
    pairs = options.sentence_objective != "none"
    num_walks = len(copies) * (num_documents if pairs else min(num_documents, 1))
    for first in range(0, num_walks, at_once):
        number = np.arange(first, min(first + at_once, num_walks))
        document, copy = number // len(copies), copies.start + number % len(copies)
        key = keyed_random.keys_of(seed, WALK_KEY, documents.ids[document], copy)
        target = target_lengths(keyed_random.words(
            keyed_random.keys_of(key, TARGET_KEY)[:, None], np.arange(2)), options)
        walks = _Walks(
            key, document, first_sentence[document],
            first_sentence[document + (1 if pairs else num_documents)], target)
        for chunks in _chunks(text, walks, options, at_once):
            make = _segment_pairs if pairs else _full_sentences
            yield make(text, walks, chunks, options, counts)


def _chunks(text: _Text, walks: _Walks, options: InstanceOptions,
            at_once: int) -> Iterator[_Chunks]:
    """Yields the first chunks of all walks, then the second ones, and so on, `at_once` or
    more at a time. For few walks, random numbers are computed for many steps ahead,
    because a step takes as long for one walk as for hundreds."""
    full_sentences = options.sentence_objective == "none"
    draws = full_sentences or options.random_next_sentence
    active, position = np.arange(len(walks.key)), walks.begin
    parts, num_chunks, ordinal = [], 0, 0
    numbers, column = np.zeros((len(active), 0, 2), np.uint64), 0
    while active.size:
        if draws:
            if column == numbers.shape[1]:
                ahead = max(1, min(_STEPS_AHEAD, at_once // active.size))
                keys = keyed_random.keys_of(
                    walks.key[active][:, None], PLAN_KEY, ordinal + np.arange(ahead))
                numbers, column = keyed_random.words(keys[..., None], np.arange(2)), 0
            drawn, column = numbers[:, column], column + 1
        if full_sentences:
            target = target_lengths(drawn, options)
            reached = np.searchsorted(
                text.end, text.start[position] + target, side="right")
            # A sentence that is too long is taken, and is cut later.
            ends = np.maximum(reached, position + 1)
        else:
            reached = np.searchsorted(
                text.start, text.start[position] + walks.target[active])
            ends = np.minimum(reached, walks.end[active])
        following = ends
        if options.random_next_sentence:
            # Sentences that are replaced by those of a different document are used
            # again. A single sentence is the whole first segment and is not.
            middle = position + num_first(drawn[:, SPLIT], ends - position)
            negative = keyed_random.as_uniform(drawn[:, LABEL]) < 0.5
            following = np.where(negative, middle, ends)
        parts.append((active, np.full(active.size, ordinal), position, ends))
        num_chunks += active.size
        ordinal += 1
        go_on = following < walks.end[active]
        if not go_on.all():
            active, following = active[go_on], following[go_on]
            if draws:
                numbers = numbers[go_on]
        position = following
        if num_chunks >= at_once:
            yield _Chunks(*map(np.concatenate, zip(*parts)))
            parts, num_chunks = [], 0
    if parts:
        yield _Chunks(*map(np.concatenate, zip(*parts)))


def _segment_pairs(text: _Text, walks: _Walks, chunks: _Chunks,
                   options: InstanceOptions, counts: InstanceCounts) -> np.ndarray:
    """Divides each chunk into two segments, as instances._pair_of_chunk does."""
    length = text.end[chunks.end - 1] - text.start[chunks.begin]
    if options.single_segment == "skip":
        kept = chunks.end - chunks.begin > 1
        counts.skipped += int((~kept).sum())
        counts.skipped_pieces += int(length[~kept].sum())
        chunks, length = _Chunks(*(field[kept] for field in chunks)), length[kept]
    key, plans = _plans_of(walks, chunks)
    start, num_sentences = text.start[chunks.begin], chunks.end - chunks.begin
    split = num_first(keyed_random.words(key, SPLIT), num_sentences)
    first = text.end[chunks.begin + split - 1] - start
    # Half of the pairs are negative. For sentence order their segments are swapped, so
    # that both kinds have the same topic and words and differ only in coherence.
    swap = keyed_random.as_uniform(keyed_random.words(key, LABEL)) < 0.5
    other = swap & options.random_next_sentence | (num_sentences == 1)
    swap &= ~other
    plans["start_a"] = np.where(swap, start + first, start)
    plans["start_b"] = np.where(swap, start, start + first)
    plans["length_a"] = np.where(swap, length - first, first)
    plans["length_b"] = np.where(swap, first, length - first)
    plans["origin"] = np.where(
        swap, _SWAPPED, np.where(other, _RANDOM_DOCUMENT, _FOLLOWING))
    plans["label"] = swap | other
    rows = np.flatnonzero(other)
    document = walks.document[chunks.walk[rows]]
    plans["start_b"][rows], plans["length_b"][rows] = random_starts(
        text, other_documents(keyed_random.words(key[rows], DOCUMENT), document,
                              len(text.first_sentence) - 1),
        keyed_random.words(key[rows], START),
        walks.target[chunks.walk[rows]] - first[rows])
    return _cut_to_size(plans, key, np.full(len(key), options.max_pieces), counts)


def _full_sentences(text: _Text, walks: _Walks, chunks: _Chunks,
                    options: InstanceOptions, counts: InstanceCounts) -> np.ndarray:
    """Turns each chunk into one segment, as release.create_full_sentences does."""
    key, plans = _plans_of(walks, chunks)
    plans["start_a"] = text.start[chunks.begin]
    plans["length_a"] = text.end[chunks.end - 1] - text.start[chunks.begin]
    plans["origin"] = _ONE_SEGMENT
    room = target_lengths(keyed_random.words(key[:, None], np.arange(2)), options)
    return _cut_to_size(plans, key, room, counts)


def _plans_of(walks: _Walks, chunks: _Chunks):
    """Returns the keys for the chunks' numbers, and PLAN rows without segments."""
    walk_key = walks.key[chunks.walk]
    plans = np.zeros(len(walk_key), PLAN)
    plans["order"] = keyed_random.keys_of(walk_key, ORDER_KEY, chunks.ordinal)
    plans["mask"] = keyed_random.keys_of(walk_key, MASK_KEY, chunks.ordinal)
    return keyed_random.keys_of(walk_key, PLAN_KEY, chunks.ordinal), plans


def _cut_to_size(plans: np.ndarray, key: np.ndarray, room: np.ndarray,
                 counts: InstanceCounts) -> np.ndarray:
    """Cuts the segments of PLAN [N] so that both together have at most `room` tokens,
    and counts the instances; `key` is as for `cuts`."""
    lengths = [plans[name].astype(np.int64) for name in ("length_a", "length_b")]
    cut, front = cuts(key, *lengths, room)
    for i, name in enumerate("ab"):
        plans[f"start_{name}"] += front[i]
        plans[f"length_{name}"] = lengths[i] - cut[i]
    num_special = np.where(plans["origin"] == _ONE_SEGMENT,
                           sequences.NUM_SPECIAL_SINGLE, sequences.NUM_SPECIAL_PAIR)
    counts.add_plans(sum(lengths) - sum(cut) + num_special, plans["origin"],
                     sum(map(np.sum, cut)))
    return plans


# ---- random decisions ---------------------------------------------------------


def target_lengths(numbers: np.ndarray, options: InstanceOptions) -> np.ndarray:
    """Returns the target length in tokens: int64 [...] from random uint64 [..., 2].

    Most targets are as long as fits, because padding wastes computation. Some are
    shorter, so that pretraining differs less from fine-tuning, in which texts are
    shorter (create_instances_from_document in the original implementation).
    """
    short = keyed_random.as_uniform(numbers[..., 0]) < options.short_seq_prob
    shorter = 2 + keyed_random.below(numbers[..., 1], options.max_pieces - 1)
    return np.where(short, shorter, options.max_pieces)


def num_first(numbers: np.ndarray, num_sentences: np.ndarray) -> np.ndarray:
    """Returns the number of sentences in each chunk's first segment: int64 [N], at least
    1, and one less than the chunk's at most if that has several."""
    return 1 + keyed_random.below(numbers, num_sentences - 1)


def other_documents(numbers: np.ndarray, own: np.ndarray,
                    num_documents: int) -> np.ndarray:
    """Returns random documents that differ from `own`, if there is one: int64 [N]."""
    other = keyed_random.below(numbers, max(num_documents - 1, 1))
    return np.minimum(other + (other >= own), num_documents - 1)


def random_starts(text: _Text, documents: np.ndarray, numbers: np.ndarray,
                  targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Chooses text from a random sentence on in each of `documents`, all [K]: as many
    sentences as reach the target, at least one, up to the document's end. Returns the
    first code of each text and its number of tokens, int64 [K]."""
    first, limit = text.first_sentence[documents], text.first_sentence[documents + 1]
    first += keyed_random.below(numbers, limit - first)
    start = text.start[first]
    end = np.clip(np.searchsorted(text.start, start + targets), first + 1, limit)
    return start, text.end[end - 1] - start


def cuts(keys: np.ndarray, length_a: np.ndarray, length_b: np.ndarray,
         room: np.ndarray) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
    """Cuts pairs of segments to size (sequences.truncate_at_random_ends).

    The next token is always removed from the longer segment, or from the second if both
    are equally long, so that an odd token of `room` stays with the first. A random bit
    for each token decides whether it is removed from the front or from the back:
    Binomial(n, 1/2) for n tokens. The bits for the second segment follow those for the
    first. If more is cut from the first, no fewer tokens are cut at either end.

    `keys`, uint64 [N], are PLAN_KEYs; `room`, [N], is for both segments together.
    Returns the number of tokens to remove, and how many of them from the front, each for
    both segments: int64 [N].
    """
    half = room // 2
    cut_a = np.maximum(length_a - np.maximum(room - half, room - length_b), 0)
    cut_b = np.maximum(length_b - np.maximum(half, room - length_a), 0)
    front_a = keyed_random.ones(keys, CUT, cut_a)
    front_b = keyed_random.ones(keys, CUT, cut_a + cut_b) - front_a
    return (cut_a, cut_b), (front_a, front_b)
