"""Chooses the tokens of each instance: walks over documents, thousands at a time.

    walk   one document and one copy (0 ... dupe_factor - 1); without a sentence
           objective, one slice of documents and one copy
    chunk  the sentences from the walk's position until a target length is reached;
           one instance
    plan   where an instance's tokens are in the token store: a row of numbers

Instances have the same distribution as those of instances.create_instances. The t-th
chunks of all walks that have not ended are found together. Every random number is a
function of the walk's key and t (keyed_random), so instances depend neither on which
walks are processed together nor on where slices begin.

Each decision uses its own number from the walk's or the chunk's key, so it does not
depend on how many numbers were drawn before. Second segments from other documents are
in other parts of the store. Planning therefore has two halves: plan_chunks, which
returns what to look up, and finish.
"""

from typing import Iterator, NamedTuple

import numpy as np

from albert_tf import keyed_random
from albert_tf.pretraining_data.encoder import sums_before
from albert_tf.pretraining_data.options import InstanceOptions, ORIGINS
from albert_tf.pretraining_data.summary import InstanceCounts
from albert_tf.pretraining_data.token_store import Documents
from albert_tf.tokenization import sequences

# The codes for the second segment's origin are indices into ORIGINS.
_FOLLOWING, _SWAPPED, _RANDOM_DOCUMENT, _ONE_SEGMENT = range(len(ORIGINS))

# One instance, 50 bytes. order: a random number that gives its rank in the shuffle;
# mask: the key for its masks. The first segment is length_a tokens from code start_a on
# in part part_a of the token store, and likewise the second. Both are already swapped
# and cut. length_b is 0 if there is no second segment.
PLAN = np.dtype([
    ("order", "<u8"), ("mask", "<u8"), ("start_a", "<u8"), ("start_b", "<u8"),
    ("part_a", "<u4"), ("part_b", "<u4"), ("length_a", "<u4"), ("length_b", "<u4"),
    ("label", "u1"), ("origin", "u1")])

# A second segment to look up. row: the row of the instance; document: the number of the
# document in the corpus; drawn: the random number that decides where the text starts;
# wanted: the number of tokens. At least one sentence is taken, even if `wanted` is not
# positive, and more until `wanted` is reached or the document ends.
LOOKUP = np.dtype([
    ("row", "<i8"), ("document", "<i8"), ("drawn", "<u8"), ("wanted", "<i8")])

# The purpose of a key: a walk; a chunk's rank in the shuffle, its plan, its masks; a
# walk's target length.
WALK_KEY, ORDER_KEY, PLAN_KEY, MASK_KEY, TARGET_KEY = 1, 2, 3, 4, 5

# The number from a PLAN_KEY that makes each decision. (Without a sentence objective the
# first two decide the target length.)
SPLIT, LABEL, START, DOCUMENT, CUT = 0, 1, 2, 3, 16

AT_ONCE = 1 << 14  # walks; arrays of this size stay in the processor's cache
_STEPS_AHEAD = 256
_TRIES = 10  # attempts to find a different document


class SlicePosition(NamedTuple):
    """The position of a slice of documents."""

    part: int  # of the token store
    first_code: int  # position in the part's codes of the slice's first code
    first_document: int  # number in the corpus of the slice's first document
    num_documents: int  # in the whole corpus


class Drafts(NamedTuple):
    """N instances before they are cut, and what to look up for them."""

    # PLAN [N]; segments are already swapped, but not cut. The second segments of the
    # rows in `lookups` are unknown.
    plans: np.ndarray
    key: np.ndarray  # uint64 [N]; key for the instance's random numbers
    room: np.ndarray  # int64 [N]; maximum number of tokens in both segments together
    lookups: np.ndarray  # LOOKUP [R]; rows ascending


class _Text(NamedTuple):
    """The codes at which the sentences of a slice of documents start and end."""

    position: SlicePosition
    start: np.ndarray  # int64 [S]
    end: np.ndarray  # int64 [S]; before the separator, if there is one


class _Walks(NamedTuple):
    """W walks over the sentences begin, ..., end - 1."""

    key: np.ndarray  # uint64 [W]
    document: np.ndarray  # int64 [W]; number in the slice of the first document
    begin: np.ndarray  # int64 [W]
    end: np.ndarray  # int64 [W]
    # int64 [W]; tokens in a chunk. (Full sentences draw a target for every chunk.)
    target: np.ndarray


class _Chunks(NamedTuple):
    """N chunks: the sentences begin, ..., end - 1; all int64 [N]."""

    walk: np.ndarray
    ordinal: np.ndarray  # number of chunks before this one in the walk
    begin: np.ndarray
    end: np.ndarray


def plan_chunks(documents: Documents, position: SlicePosition, copies: range,
                options: InstanceOptions, seed: int, counts: InstanceCounts,
                at_once: int = AT_ONCE) -> Iterator[Drafts]:
    """Cuts a slice of documents into chunks and draws the instances made from them.

    The instances are a function of the documents, position.num_documents, copies,
    options and seed alone, and not of where slices begin. Without a sentence objective
    they do depend on that, because a walk goes over a slice.

    `copies` are the numbers of the copies to make. At most `at_once` walks advance
    together. Chunks that are left out are added to `counts`. Yields some ten thousand
    instances at a time, which bounds the memory.
    """
    num_documents = len(documents.ids)
    if not num_documents:
        return
    first_sentence = np.asarray(documents.first_sentence, np.int64)
    before = sums_before(documents.sentence_lengths)[:-1]
    start = before + np.repeat(
        position.first_code + np.asarray(documents.first_code[:-1], np.int64)
        - before[first_sentence[:-1]], np.diff(first_sentence))
    text = _Text(position, start, start + documents.sentence_lengths)
    pairs = options.sentence_objective != "none"
    begins = range(num_documents if pairs else 1)
    for first_copy in range(0, len(copies), at_once):
        some = copies[first_copy:first_copy + at_once]
        size = max(1, at_once // len(some))
        for first in range(0, len(begins), size):
            numbers = begins[first:first + size]
            document = np.repeat(np.arange(numbers.start, numbers.stop), len(some))
            copy = np.tile(np.arange(some.start, some.stop), len(numbers))
            key = keyed_random.keys_of(seed, WALK_KEY, documents.ids[document], copy)
            target = target_lengths(keyed_random.words(
                keyed_random.keys_of(key, TARGET_KEY), 0, 2), options)
            walks = _Walks(
                key, document, first_sentence[document],
                first_sentence[document + 1 if pairs else document + num_documents],
                target)
            for chunks in _chunks(text, walks, options, at_once):
                if not pairs:
                    yield _full_sentences(text, walks, chunks, options)
                    continue
                chunks = _without_skipped(text, chunks, options, counts)
                yield _segment_pairs(text, walks, chunks, options)


def _chunks(text: _Text, walks: _Walks, options: InstanceOptions,
            at_once: int) -> Iterator[_Chunks]:
    """Yields the first chunks of all walks, then the second ones, and so on.

    Yields `at_once` chunks or more at a time. If the end of a chunk depends on random
    numbers and there are few walks, numbers are computed for many steps ahead, because
    a step takes as long for one walk as for hundreds.
    """
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
                numbers, column = keyed_random.words(keys, 0, 2), 0
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


def _without_skipped(text: _Text, chunks: _Chunks, options: InstanceOptions,
                     counts: InstanceCounts) -> _Chunks:
    """Leaves out and counts single sentences from which no pair is to be made."""
    if options.single_segment == "random":
        return chunks
    length = text.end[chunks.end - 1] - text.start[chunks.begin]
    skip = chunks.end - chunks.begin == 1
    counts.skipped += int(skip.sum())
    counts.skipped_pieces += int(length[skip].sum())
    return _Chunks(*(field[~skip] for field in chunks))


def _segment_pairs(text: _Text, walks: _Walks, chunks: _Chunks,
                   options: InstanceOptions) -> Drafts:
    """Divides each chunk into two segments, as instances._pair_of_chunk does."""
    key, plans = _plans_of(text, walks, chunks)
    num_sentences = chunks.end - chunks.begin
    start = text.start[chunks.begin]
    length = text.end[chunks.end - 1] - start
    split = num_first(keyed_random.word(key, SPLIT), num_sentences)
    first = text.end[chunks.begin + split - 1] - start
    # Half of the pairs are negative. For sentence order their segments are swapped, so
    # that both kinds have the same topic and words and differ only in coherence.
    swap = keyed_random.as_uniform(keyed_random.word(key, LABEL)) < 0.5
    other = swap & options.random_next_sentence
    if options.single_segment == "random":
        other |= num_sentences == 1
    swap &= ~other
    plans["start_a"] = np.where(swap, start + first, start)
    plans["start_b"] = np.where(swap, start, start + first)
    plans["length_a"] = np.where(swap, length - first, first)
    plans["length_b"] = np.where(swap, first, length - first)
    plans["origin"] = np.where(
        swap, _SWAPPED, np.where(other, _RANDOM_DOCUMENT, _FOLLOWING))
    plans["label"] = swap | other
    rows = np.flatnonzero(other)
    lookups = np.zeros(len(rows), LOOKUP)
    lookups["row"] = rows
    lookups["document"] = other_documents(
        key[rows], text.position.first_document + walks.document[chunks.walk[rows]],
        text.position.num_documents)
    lookups["drawn"] = keyed_random.word(key[rows], START)
    lookups["wanted"] = walks.target[chunks.walk[rows]] - first[rows]
    return Drafts(plans, key, np.full(len(key), options.max_pieces), lookups)


def _full_sentences(text: _Text, walks: _Walks, chunks: _Chunks,
                    options: InstanceOptions) -> Drafts:
    """Turns each chunk into one segment, as instances.create_full_sentences does."""
    key, plans = _plans_of(text, walks, chunks)
    plans["start_a"] = text.start[chunks.begin]
    plans["length_a"] = text.end[chunks.end - 1] - text.start[chunks.begin]
    plans["origin"] = _ONE_SEGMENT
    room = target_lengths(keyed_random.words(key, 0, 2), options)
    return Drafts(plans, key, room, np.zeros(0, LOOKUP))


def _plans_of(text: _Text, walks: _Walks, chunks: _Chunks):
    """Returns the keys for the chunks' numbers, and PLAN rows without segments."""
    walk_key = walks.key[chunks.walk]
    plans = np.zeros(len(walk_key), PLAN)
    plans["order"] = keyed_random.keys_of(walk_key, ORDER_KEY, chunks.ordinal)
    plans["mask"] = keyed_random.keys_of(walk_key, MASK_KEY, chunks.ordinal)
    plans["part_a"] = plans["part_b"] = text.position.part
    return keyed_random.keys_of(walk_key, PLAN_KEY, chunks.ordinal), plans


def finish(drafts: Drafts, part_b: np.ndarray, start_b: np.ndarray,
           length_b: np.ndarray, counts: InstanceCounts) -> np.ndarray:
    """Adds second segments from other documents and cuts pairs to size: PLAN [N].

    `part_b`, `start_b`, `length_b`, integers [R], give the position of the segment for
    each of the R lookups. Everything except masks is added to `counts`.
    """
    plans, rows = drafts.plans.copy(), drafts.lookups["row"]
    plans["part_b"][rows], plans["start_b"][rows] = part_b, start_b
    plans["length_b"][rows] = length_b
    lengths = [plans[name].astype(np.int64) for name in ("length_a", "length_b")]
    cut, front = cuts(drafts.key, *lengths, drafts.room)
    for i, name in enumerate("ab"):
        plans[f"start_{name}"] += front[i].astype(np.uint64)
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
    """Returns the number of sentences in each chunk's first segment: int64 [N].

    It is at least 1, and leaves one sentence for the second segment if there are two or
    more. `numbers` are random, `num_sentences` counts the chunk's sentences, both [N].
    """
    return 1 + keyed_random.below(numbers, num_sentences - 1)


def other_documents(keys: np.ndarray, own: np.ndarray,
                    num_documents: int) -> np.ndarray:
    """Returns random documents that differ from `own`: int64 [N].

    If ten draws all give `own`, it is returned. `keys` are PLAN_KEYs [N].
    """
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
    """Cuts pairs of segments to size (sequences.truncate_at_random_ends).

    The next token is always removed from the longer segment, or from the second if both
    are equally long, so that an odd token of `room` stays with the first. A random bit
    for each token decides whether it is removed from the front or from the back:
    Binomial(n, 1/2) for n tokens. The bits for the second segment follow those for the
    first. If more is cut from the first, no fewer tokens are cut at either end.

    `keys`, uint64 [N], are PLAN_KEYs; `room`, [N], is the maximum length of both
    segments together. Returns the number of tokens to remove, and how many of them from
    the front, each for both segments: int64 [N].
    """
    half = room // 2
    cut_a = np.maximum(length_a - np.maximum(room - half, room - length_b), 0)
    cut_b = np.maximum(length_b - np.maximum(half, room - length_a), 0)
    front_a = keyed_random.ones(keys, CUT, cut_a)
    front_b = keyed_random.ones(keys, CUT, cut_a + cut_b) - front_a
    return (cut_a, cut_b), (front_a, front_b)
