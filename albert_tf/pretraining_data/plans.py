"""Which pieces make which instance: the walk over documents, many at a time.

The same instances, in distribution, as pretraining_instances.create_instances, but
for thousands of walks in step, and as rows of numbers: where an instance's pieces
lie in the token store, not the pieces themselves.

Second segments from other documents lie in other parts of the store, so planning
has two halves: plan_chunks, which says what to look up, and finish_chunks.
"""

import dataclasses
from typing import Iterator, NamedTuple

import numpy as np

from albert_tf import keyed_random
from albert_tf.pretraining_data.plan_draws import (
    LABEL, MASK_KEY, ORDER_KEY, PLACE, PLAN_KEY, SPLIT, TARGET_KEY, WALK_KEY,
    cuts_of_sentences, is_negative, num_cut_from_front, num_first, other_documents,
    target_lengths)
from albert_tf.pretraining_data.plan_walks import (
    AT_ONCE, ChunkBounds, Place, Text, Walks, lockstep)
from albert_tf.pretraining_data.release_instances import (
    FOLLOWING, InstanceOptions, ONE_SEGMENT, RANDOM_DOCUMENT, SWAPPED)
from albert_tf.pretraining_data.token_parts import Documents
from albert_tf.records import sequences

# The names of PLAN's codes of the second segment's origin.
ORIGINS = (FOLLOWING, SWAPPED, RANDOM_DOCUMENT, ONE_SEGMENT)
_FOLLOWING, _SWAPPED, _RANDOM_DOCUMENT, _ONE_SEGMENT = range(len(ORIGINS))

# One instance. order: its place in the shuffle; mask: the key of its masks. The first
# segment is length_a pieces from token start_a of part part_a of the token store, the
# second likewise, swapped and cut already; length_b is 0 if there is none. origin: an
# index of ORIGINS.
PLAN = np.dtype([
    ("order", "<u8"), ("mask", "<u8"), ("start_a", "<u8"), ("start_b", "<u8"),
    ("part_a", "<u4"), ("part_b", "<u4"), ("length_a", "<u4"), ("length_b", "<u4"),
    ("label", "u1"), ("origin", "u1")])

@dataclasses.dataclass
class PlanCounts:
    """Counts over instances that were planned; add up with +=.

    Attributes:
      lengths: int64 [max_seq_length + 1]; instances of each length in pieces,
        special ones counted.
      origins: int64 [4]; instances of each of ORIGINS.
      single_sentences: instances of RANDOM_DOCUMENT because the chunk was one
        sentence.
      short_targets: target lengths drawn short: one for each walk, or without a
        sentence objective for each instance.
      pieces_cut_off: pieces cut off to fit max_seq_length.
      skipped, pieces_skipped: chunks of one sentence left out, and their pieces.
    """

    lengths: np.ndarray
    origins: np.ndarray
    single_sentences: int = 0
    short_targets: int = 0
    pieces_cut_off: int = 0
    skipped: int = 0
    pieces_skipped: int = 0

    @classmethod
    def zero(cls, max_seq_length: int) -> "PlanCounts":
        """Counts over nothing."""
        return cls(np.zeros(max_seq_length + 1, np.int64),
                   np.zeros(len(ORIGINS), np.int64))

    def __iadd__(self, other: "PlanCounts") -> "PlanCounts":
        for field in dataclasses.fields(self):
            setattr(self, field.name,
                    getattr(self, field.name) + getattr(other, field.name))
        return self


class Chunks(NamedTuple):
    """N instances, before second segments from other documents are known.

    Attributes:
      order, mask: uint64 [N], as in PLAN.
      key: uint64 [N]; of the instance's numbers.
      start_a, length_a, start_b, length_b: int64 [N]; segments, swapped where that
        is due, before the cut; the second's are 0 where it is not known.
      origin: uint8 [N].
      room: int64 [N]; pieces that both segments may have together.
      part: the part of all segments that are known.
      random_row: int64 [R], ascending; the instances whose second segment is text
        from another document, R of them:
      random_document: int64 [R]; its number in the corpus.
      random_place: uint64 [R]; a random number: where in the document.
      random_length: int64 [R]; pieces wanted. One sentence is to be taken in any
        case, also where this is not positive, and more until they are reached or
        the document ends.
      counts: what is known already: chunks left out, short targets.
    """

    order: np.ndarray
    mask: np.ndarray
    key: np.ndarray
    start_a: np.ndarray
    length_a: np.ndarray
    start_b: np.ndarray
    length_b: np.ndarray
    origin: np.ndarray
    room: np.ndarray
    part: int
    random_row: np.ndarray
    random_document: np.ndarray
    random_place: np.ndarray
    random_length: np.ndarray
    counts: PlanCounts


def plan_chunks(documents: Documents, place: Place, copies: range,
                options: InstanceOptions, seed: int) -> Iterator[Chunks]:
    """Cuts a slice of documents into chunks and draws what becomes of them.

    The instances are a function of the documents, place.num_documents, copies,
    options and seed alone, not of where slices begin; but without a sentence
    objective a slice is the span over which a walk goes.

    Args:
      documents: the slice.
      place: where it lies.
      copies: numbers of the copies to make.
      options: how to cut; its masking is not read.
      seed: any integer.

    Yields:
      Some ten thousands of instances each, few enough to bound the memory.
    """
    text = Text.of(documents, place)
    if not len(documents.ids):
        return
    if options.sentence_objective == "none":
        for some in _ranges(copies, AT_ONCE):
            yield from _full_sentences(text, some, options, seed)
        return
    for some in _ranges(copies, AT_ONCE):
        each = max(1, AT_ONCE // len(some))
        for numbers in _ranges(range(len(documents.ids)), each):
            yield from _pairs(text, numbers, some, options, seed)


def _ranges(whole: range, size: int) -> Iterator[range]:
    """Cuts a range into ranges of `size` numbers or, the last one, fewer."""
    for begin in range(0, len(whole), size):
        yield whole[begin:begin + size]


class _PairWalks(NamedTuple):
    """W walks over a document each; document, target: int64 [W]."""

    walks: Walks
    document: np.ndarray
    target: np.ndarray


def _pairs(text: Text, numbers: range, copies: range, options: InstanceOptions,
           seed: int) -> Iterator[Chunks]:
    """Walks over some documents, some copies of each: instances of two segments."""
    documents = text.documents
    document = np.repeat(np.arange(numbers.start, numbers.stop), len(copies))
    copy = np.tile(np.arange(copies.start, copies.stop), len(numbers))
    first_sentence = np.asarray(documents.first_sentence, np.int64)
    walks = Walks(
        keyed_random.keys_of(seed, WALK_KEY, documents.ids[document], copy),
        first_sentence[document], first_sentence[document + 1])
    target, short = target_lengths(keyed_random.words(
        keyed_random.keys_of(walks.key, TARGET_KEY), 0, 2), options)

    def advance(active, position, drawn):
        reached = np.searchsorted(text.before, text.before[position] + target[active])
        ends = np.minimum(reached, walks.end[active])
        if not options.random_next_sentence:
            return ends, ends
        # Sentences that give way to another document's come again; a single one, which
        # is all of the first segment, does not.
        middle = position + num_first(drawn[:, SPLIT], ends - position)
        return ends, np.where(is_negative(drawn[:, LABEL]), middle, ends)

    counts = PlanCounts.zero(options.max_seq_length)
    counts.short_targets = int(short.sum())
    for found in lockstep(walks, advance, options.random_next_sentence):
        found = _without_skipped(text, found, options, counts)
        yield _pairs_of_chunks(
            text, _PairWalks(walks, document, target), found, options, counts)
        counts = PlanCounts.zero(options.max_seq_length)


def _without_skipped(text: Text, found: ChunkBounds, options: InstanceOptions,
                     counts: PlanCounts) -> ChunkBounds:
    """Leaves out and counts single sentences of which no pair is to be made."""
    if options.single_segment == "random":
        return found
    length = text.before[found.end] - text.before[found.begin]
    skip = found.end - found.begin == 1
    if options.single_segment == "split":
        skip &= length < 2
    counts.skipped += int(skip.sum())
    counts.pieces_skipped += int(length[skip].sum())
    return ChunkBounds(*(field[~skip] for field in found))


def _pairs_of_chunks(text: Text, of: _PairWalks, found: ChunkBounds,
                     options: InstanceOptions, counts: PlanCounts) -> Chunks:
    """Makes two segments of each chunk, as _pair_of_chunk of pretraining_instances."""
    walk_key, document = of.walks.key[found.walk], of.document[found.walk]
    key = keyed_random.keys_of(walk_key, PLAN_KEY, found.ordinal)
    split = keyed_random.word(key, SPLIT)
    num_sentences = found.end - found.begin
    before = text.before[found.begin]
    start = before + text.shift[document]
    first = text.before[found.begin + num_first(split, num_sentences)] - before
    second = text.before[found.end] - before - first
    swap = is_negative(keyed_random.word(key, LABEL))
    other = swap & options.random_next_sentence
    single = num_sentences == 1
    if options.single_segment == "random":
        other |= single
        counts.single_sentences += int(single.sum())
    elif options.single_segment == "split":
        rows = np.flatnonzero(single)
        whole = first[rows]
        first[rows] = cuts_of_sentences(
            text.documents.tokens, start[rows] - text.place.first_token, whole,
            split[rows])
        second[rows] = whole - first[rows]
    swap &= ~other
    rows = np.flatnonzero(other)
    start_b = start + first
    start_b[rows] = second[rows] = 0
    origin = np.where(swap, _SWAPPED, np.where(other, _RANDOM_DOCUMENT, _FOLLOWING))
    return Chunks(
        order=keyed_random.keys_of(walk_key, ORDER_KEY, found.ordinal),
        mask=keyed_random.keys_of(walk_key, MASK_KEY, found.ordinal),
        key=key,
        start_a=np.where(swap, start_b, start),
        length_a=np.where(swap, second, first),
        start_b=np.where(swap, start, start_b),
        length_b=np.where(swap, first, second),
        origin=origin.astype(np.uint8),
        room=np.full(len(key), options.max_pieces),
        part=text.place.part,
        random_row=rows,
        random_document=other_documents(
            key[rows], text.place.first_document + document[rows],
            text.place.num_documents),
        random_place=keyed_random.word(key[rows], PLACE),
        random_length=of.target[found.walk[rows]] - first[rows],
        counts=counts)


def _full_sentences(text: Text, copies: range, options: InstanceOptions,
                    seed: int) -> Iterator[Chunks]:
    """Walks over all documents in a row, some copies: instances of one segment.

    As create_full_sentences of pretraining_instances.
    """
    documents = text.documents
    start = np.repeat(text.shift, np.diff(documents.first_sentence))
    start += text.before[:-1]
    end = start + documents.sentence_lengths  # before the separator, if there is one
    copy = np.arange(copies.start, copies.stop)
    walks = Walks(keyed_random.keys_of(seed, WALK_KEY, documents.ids[0], copy),
                  np.zeros_like(copy), np.full_like(copy, len(start)))

    def advance(_, position, drawn):
        target, _ = target_lengths(drawn, options)
        reached = np.searchsorted(end, start[position] + target, side="right")
        ends = np.maximum(reached, position + 1)  # a sentence too long is cut
        return ends, ends

    nothing = np.zeros(0, np.int64)
    for found in lockstep(walks, advance, draws=True):
        walk_key = walks.key[found.walk]
        key = keyed_random.keys_of(walk_key, PLAN_KEY, found.ordinal)
        target, short = target_lengths(keyed_random.words(key, 0, 2), options)
        counts = PlanCounts.zero(options.max_seq_length)
        counts.short_targets = int(short.sum())
        begin = start[found.begin]
        yield Chunks(
            order=keyed_random.keys_of(walk_key, ORDER_KEY, found.ordinal),
            mask=keyed_random.keys_of(walk_key, MASK_KEY, found.ordinal),
            key=key,
            start_a=begin, length_a=end[found.end - 1] - begin,
            start_b=np.zeros_like(begin), length_b=np.zeros_like(begin),
            origin=np.full(len(key), _ONE_SEGMENT, np.uint8),
            room=target,
            part=text.place.part,
            random_row=nothing, random_document=nothing,
            random_place=np.zeros(0, np.uint64), random_length=nothing,
            counts=counts)


def finish_chunks(chunks: Chunks, part_b: np.ndarray, start_b: np.ndarray,
                  length_b: np.ndarray) -> tuple[np.ndarray, PlanCounts]:
    """Puts second segments from other documents in, and cuts all pairs to size.

    Args:
      chunks: N instances, R of them with such a segment.
      part_b, start_b, length_b: integers [R]; where it lies, for each random_row.

    Returns:
      plans: PLAN [N].
      counts: over these instances and the chunks left out.
    """
    plans = np.zeros(len(chunks.key), PLAN)
    plans["order"], plans["mask"] = chunks.order, chunks.mask
    plans["origin"] = chunks.origin
    plans["label"] = ((chunks.origin == _SWAPPED)
                      | (chunks.origin == _RANDOM_DOCUMENT))
    start_a, length_a = chunks.start_a, chunks.length_a
    parts, starts, lengths = (
        np.full(len(plans), chunks.part, np.int64),
        chunks.start_b.copy(), chunks.length_b.copy())
    for known, given in ((parts, part_b), (starts, start_b), (lengths, length_b)):
        known[chunks.random_row] = given
    cut_a, cut_b = _num_cut(length_a, lengths, chunks.room)
    front_a, front_b = num_cut_from_front(chunks.key, cut_a, cut_b)
    plans["part_a"], plans["part_b"] = chunks.part, parts
    plans["start_a"], plans["start_b"] = start_a + front_a, starts + front_b
    plans["length_a"], plans["length_b"] = length_a - cut_a, lengths - cut_b
    counts = PlanCounts.zero(len(chunks.counts.lengths) - 1)
    counts += chunks.counts
    one_segment = chunks.origin == _ONE_SEGMENT
    num_pieces = (length_a - cut_a + lengths - cut_b + np.where(
        one_segment, sequences.NUM_SPECIAL_SINGLE, sequences.NUM_SPECIAL_PAIR))
    counts.lengths += np.bincount(num_pieces, minlength=len(counts.lengths))
    counts.origins += np.bincount(chunks.origin, minlength=len(ORIGINS))
    counts.pieces_cut_off += int(cut_a.sum() + cut_b.sum())
    return plans, counts


def _num_cut(length_a: np.ndarray, length_b: np.ndarray,
             room: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pieces that two segments lose where the longer one always loses the next.

    The second loses it where both have one length (sequences.
    truncate_at_random_ends), so that an odd piece of `room` stays with the first.
    """
    half = room // 2
    keep_a = np.maximum(room - half, room - length_b)
    keep_b = np.maximum(half, room - length_a)
    return np.maximum(length_a - keep_a, 0), np.maximum(length_b - keep_b, 0)
