"""What the steps of the Beam pipeline do to one element; they know nothing of Beam.

Here are those from text to instances; `beam_writing` has those from there to records,
and `beam_data` joins them to a pipeline. An element is a tuple of a number, by which
elements are brought together, and of numbers and bytes. A step that gives several
kinds of elements names the kind before:

    kind      number    value
    slice     span      (number in the span of the first document, Documents)
    counts    span      (number of documents, CorpusCounts)
    text      block     (number in the corpus of the first document, Documents)
    request   block     instances that want a second segment from the block
    pack      bucket    finished instances with their pieces, unmasked
    piece     shard     (rank of the first record, file of records)
    result    0         what goes into the summary, and the finished shards

A span is as text_spans plans it. A block is so many documents in the order of the
corpus. A bucket is the instances whose `order` begins with the same bits: as many
buckets as keep each within memory. Ranks, shards and records are those of
`local_data`.
"""

import dataclasses
import functools
import pickle
import tempfile
import uuid
from typing import Any, Iterable, Iterator

import numpy as np

from albert_tf import files
from albert_tf.pretraining_data import (
    plans as instance_plans, spans, token_parts, token_store)
from albert_tf.pretraining_data.encoder import TokenEncoder
from albert_tf.pretraining_data.options import DataOptions
from albert_tf.pretraining_data.plan_walks import Place
from albert_tf.pretraining_data.plans import Chunks, ORIGINS, PlanCounts
from albert_tf.pretraining_data.release_instances import RANDOM_DOCUMENT
from albert_tf.pretraining_data.summary import InstanceCounts
from albert_tf.pretraining_data.token_parts import Documents
from albert_tf.pretraining_data.work_folder import WorkFolder

BLOCK_DOCUMENTS = 256
_SLICE_SENTENCES = 1 << 16
# Bytes of pieces in a bucket: few, so that there are buckets for many workers, but
# no more of them than large data needs.
_FEWEST_BUCKET_BYTES, _MOST_BUCKET_BYTES, _BUCKETS = 1 << 20, 64 << 20, 256
_TEXT_BYTES_PER_PIECE_BYTE = 2

# An instance without its second segment. skipped, carried: of the length_a pieces of
# its first segment, those that surely are cut from the front, and those that come
# with it. document, place, wanted: as random_document, ... of Chunks.
REQUEST = np.dtype([
    ("order", "<u8"), ("mask", "<u8"), ("key", "<u8"), ("place", "<u8"),
    ("length_a", "<i8"), ("room", "<i8"), ("document", "<i8"), ("wanted", "<i8"),
    ("skipped", "<i8"), ("carried", "<i8")])


@dataclasses.dataclass(frozen=True)
class Job:
    """What all workers know.

    Attributes:
      options: what to make.
      folder: of unfinished work, which all workers reach under this name.
      num_buckets: a power of two.
      token_dtype: of tokens, "<u2" or "<u4".
    """

    options: DataOptions
    folder: str
    num_buckets: int
    token_dtype: str

    def file(self, name: str) -> str:
        """Path of a file in the folder."""
        return f"{self.folder}/{name}"

    def unique_file(self, name: str) -> str:
        """Another path each time: an engine may do a step twice at once."""
        return self.file(f"{name}-{uuid.uuid4().hex}")

    @property
    def needs_random_documents(self) -> bool:
        """Whether second segments come from other documents."""
        instances = self.options.instances
        return instances.sentence_objective != "none" and (
            instances.random_next_sentence or instances.single_segment == "random")

    def new_counts(self) -> InstanceCounts:
        """Counts over no instance."""
        return InstanceCounts(self.options.instances.max_seq_length)

    def save_encoder(self, encoder: TokenEncoder) -> None:
        """Lays the encoder where workers find it; once, as it is large."""
        with files.atomic_write(self.file("encoder")) as stream:
            pickle.dump(encoder, stream)

    def encoder(self) -> TokenEncoder:
        """What save_encoder saved."""
        return _load(self.file("encoder"))


@functools.lru_cache(maxsize=1)
def _load(path: str) -> TokenEncoder:
    with files.open_binary(path) as stream:
        return pickle.load(stream)


def num_buckets(text_bytes: int, dupe_factor: int) -> int:
    """Buckets for a text of about so many bytes: a power of two, at least 1."""
    num_bytes = text_bytes * dupe_factor // _TEXT_BYTES_PER_PIECE_BYTE
    size = min(max(num_bytes // _BUCKETS, _FEWEST_BUCKET_BYTES), _MOST_BUCKET_BYTES)
    return 1 << max(0, -(-num_bytes // size) - 1).bit_length()


def buckets_of(order: np.ndarray, num_buckets: int) -> np.ndarray:
    """The bucket of each `order`: its highest bits. int64 [N]."""
    bits = num_buckets.bit_length() - 1
    if not bits:
        return np.zeros(len(order), np.int64)
    return (order >> np.uint64(64 - bits)).astype(np.int64)


def pieces_at(tokens: np.ndarray, starts: np.ndarray,
              lengths: np.ndarray) -> np.ndarray:
    """tokens[start : start + length] for each start and length, all in a row."""
    starts, lengths = starts.astype(np.int64), lengths.astype(np.int64)
    shifts = starts - starts_of(lengths)
    return tokens[np.repeat(shifts, lengths) + np.arange(lengths.sum())]


def starts_of(lengths: np.ndarray) -> np.ndarray:
    """Where each begins, if one follows the other: int64 [N]."""
    lengths = lengths.astype(np.int64)
    return np.cumsum(lengths) - lengths


def slice_of(documents: Documents, first: int, end: int) -> Documents:
    """Documents first ... end - 1 as if there were no others."""
    first_sentence = np.asarray(documents.first_sentence[first:end + 1], np.int64)
    first_token = np.asarray(documents.first_token[first:end + 1], np.int64)
    return Documents(
        np.array(documents.tokens[first_token[0]:first_token[-1]]),
        np.array(documents.sentence_lengths[first_sentence[0]:first_sentence[-1]]),
        first_sentence - first_sentence[0], first_token - first_token[0],
        np.array(documents.ids[first:end]))


def joined(slices: Iterable[tuple[int, Documents]]) -> Documents:
    """One of several consecutive slices, each with the number of its first."""
    parts = [documents for _, documents in sorted(slices, key=lambda each: each[0])]

    def borders(arrays):
        steps = np.concatenate([np.zeros(1, np.int64), *map(np.diff, arrays)])
        return np.cumsum(steps)

    return Documents(
        np.concatenate([each.tokens for each in parts]),
        np.concatenate([each.sentence_lengths for each in parts]),
        borders([each.first_sentence for each in parts]),
        borders([each.first_token for each in parts]),
        np.concatenate([each.ids for each in parts]))


def of_kind(element: Any, kind: str) -> Iterator[tuple[int, Any]]:
    """(number, value) of an element of this kind; nothing of another."""
    if element[0] == kind:
        yield element[1], element[2]


# ---- text -------------------------------------------------------------------


def tokenize_span(span: Any, job: Job) -> Iterator[Any]:
    """The fields of a span → its slices and counts."""
    span = spans.Span(*span)
    # By way of the disk, as a compressed file of any size is one span.
    with tempfile.TemporaryDirectory(prefix="albert_tf-span-") as path:
        folder = WorkFolder(path)
        info, _ = token_parts.write_part(
            folder, job.options.input_files, span._replace(number=0), job.encoder())
        store = token_store.TokenStore(folder)
        for first, _, documents in store.slices(0, _SLICE_SENTENCES):
            yield "slice", span.number, (first, pickle.dumps(
                documents._replace(tokens=np.array(documents.tokens))))
    yield "counts", span.number, (info["counts"]["documents"], info["counts"])


def count_documents(element: Any) -> tuple[int, Any]:
    """(span, counts) → 0, (span, its documents)."""
    span, (count, _) = element
    return 0, (span, count)


def text_result(element: Any) -> tuple[int, Any]:
    """(span, counts) → 0, result."""
    return 0, {"text": element[1][1]}


def number_documents(element: Any) -> Iterator[tuple[int, Any]]:
    """(0, (span, documents) of all spans) → span, (its first document's number in
    the corpus, documents in the corpus)."""
    numbers = sorted(element[1])
    total = sum(count for _, count in numbers)
    first = 0
    for span, count in numbers:
        yield span, (first, total)
        first += count


# ---- plans ------------------------------------------------------------------


def plan_span(element: Any, job: Job) -> Iterator[Any]:
    """(span, its slices and numbers) → packs, requests, texts and counts.

    One slice is in memory at a time; without a sentence objective all of a span.
    """
    _, given = element
    (first, total), = given["numbers"]
    slices = ((number, pickle.loads(data)) for number, data in given["slices"])
    if job.options.instances.sentence_objective == "none":
        slices = _whole_walks(slices)
    counts = job.new_counts()
    for number, documents in slices:
        place = Place(0, 0, first + number, total)
        for chunks in instance_plans.plan_chunks(
                documents, place, range(job.options.dupe_factor),
                job.options.instances, job.options.random_seed):
            yield from _packs_and_requests(chunks, documents.tokens, job, counts)
        if job.needs_random_documents:
            yield from _texts(documents, first + number)
    yield "result", 0, {"made": counts.to_json()}


def _whole_walks(slices: Iterable[tuple[int, Documents]]
                 ) -> Iterator[tuple[int, Documents]]:
    """Slices of a span as full sentences are packed in them, here and in local_data."""
    slices = list(slices)
    if slices:
        documents = joined(slices)
        borders = token_store.slice_borders(documents.first_sentence)
        for first, end in zip(borders, borders[1:]):
            yield first, slice_of(documents, first, end)


def _texts(documents: Documents, number: int) -> Iterator[Any]:
    """Documents in their blocks; `number` is that of the first in the corpus."""
    at = 0
    while at < len(documents.ids):
        block = (number + at) // BLOCK_DOCUMENTS
        end = min((block + 1) * BLOCK_DOCUMENTS - number, len(documents.ids))
        yield "text", block, (
            number + at, pickle.dumps(slice_of(documents, at, end)))
        at = end


def _packs_and_requests(chunks: Chunks, tokens: np.ndarray, job: Job,
                        counts: InstanceCounts) -> Iterator[Any]:
    known = np.ones(len(chunks.key), bool)
    known[chunks.random_row] = False
    nothing = np.zeros(0, np.int64)
    plans, made = instance_plans.finish_chunks(
        _rows_of(chunks, known)._replace(
            random_row=nothing, random_document=nothing,
            random_place=nothing.astype(np.uint64), random_length=nothing),
        nothing, nothing, nothing)
    counts.add_plans(made)
    yield from _packs(plans, tokens, plans["start_a"], tokens, plans["start_b"], job)
    if len(chunks.random_row):
        yield from _requests(chunks, tokens)


def _rows_of(chunks: Chunks, rows: np.ndarray) -> Chunks:
    return chunks._replace(**{name: getattr(chunks, name)[rows] for name in (
        "order", "mask", "key", "start_a", "length_a", "start_b", "length_b",
        "origin", "room")})


def _requests(chunks: Chunks, tokens: np.ndarray) -> Iterator[Any]:
    """Instances that want a second segment, with all of the first that may stay."""
    some = _rows_of(chunks, chunks.random_row)._replace(
        random_row=np.arange(len(chunks.random_row)),
        counts=PlanCounts.zero(len(chunks.counts.lengths) - 1))
    # The longer the second segment is, the more is cut off either end of the first.
    one = np.ones(len(some.key), np.int64)
    widest, _ = instance_plans.finish_chunks(some, one, one, one)
    rows = np.zeros(len(some.key), REQUEST)
    for name in ("order", "mask", "key", "length_a", "room"):
        rows[name] = getattr(some, name)
    rows["document"], rows["place"] = some.random_document, some.random_place
    rows["wanted"] = some.random_length
    rows["skipped"] = widest["start_a"].astype(np.int64) - some.start_a
    rows["carried"] = widest["length_a"]
    block = some.random_document // BLOCK_DOCUMENTS
    for number, own in _groups(block):
        yield "request", number, (rows[own].tobytes(), pieces_at(
            tokens, widest["start_a"][own], widest["length_a"][own]).tobytes())


def _groups(numbers: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Each number that occurs, and the places at which it does."""
    places = np.argsort(numbers, kind="stable")
    borders = np.flatnonzero(np.diff(numbers[places])) + 1
    for own in np.split(places, borders):
        if len(own):
            yield int(numbers[own[0]]), own


def _packs(plans: np.ndarray, tokens_a: np.ndarray, starts_a: np.ndarray,
           tokens_b: np.ndarray, starts_b: np.ndarray, job: Job) -> Iterator[Any]:
    """Plans with the pieces of both segments, by buckets."""
    for bucket, own in _groups(buckets_of(plans["order"], job.num_buckets)):
        rows = plans[own]
        yield "pack", bucket, (
            rows.tobytes(),
            pieces_at(tokens_a, starts_a[own], rows["length_a"]).tobytes(),
            pieces_at(tokens_b, starts_b[own], rows["length_b"]).tobytes())


def answer_requests(element: Any, job: Job) -> Iterator[Any]:
    """(block, its texts and requests for them) → packs and counts."""
    _, given = element
    requests = list(given["requests"])
    if not requests:
        return
    rows = np.frombuffer(b"".join(data for data, _ in requests), REQUEST)
    tokens = np.frombuffer(b"".join(data for _, data in requests), job.token_dtype)
    starts = starts_of(rows["carried"])
    counts, num_answered = job.new_counts(), 0
    for first, data in given["texts"]:
        documents = pickle.loads(data)
        number = rows["document"] - first
        own = np.flatnonzero((number >= 0) & (number < len(documents.ids)))
        if len(own):
            num_answered += len(own)
            yield from _answers(
                rows[own], number[own], tokens, starts[own], documents, job, counts)
    if num_answered != len(rows):
        raise ValueError(f"{len(rows) - num_answered} documents are not there.")
    yield "result", 0, {"made": counts.to_json()}


def _answers(rows: np.ndarray, numbers: np.ndarray, tokens: np.ndarray,
             starts: np.ndarray, documents: Documents, job: Job,
             counts: InstanceCounts) -> Iterator[Any]:
    nothing = np.zeros(len(rows), np.int64)
    start_b, length_b = token_store.random_places(
        documents, numbers, rows["place"], rows["wanted"])
    plans, made = instance_plans.finish_chunks(
        Chunks(
            order=rows["order"], mask=rows["mask"], key=rows["key"], start_a=nothing,
            length_a=rows["length_a"], start_b=nothing, length_b=nothing,
            origin=np.full(len(rows), ORIGINS.index(RANDOM_DOCUMENT), np.uint8),
            room=rows["room"],
            part=0, random_row=np.arange(len(rows)), random_document=rows["document"],
            random_place=rows["place"], random_length=rows["wanted"],
            counts=PlanCounts.zero(job.options.instances.max_seq_length)),
        nothing, start_b, length_b)
    counts.add_plans(made)
    yield from _packs(
        plans, tokens, starts + plans["start_a"].astype(np.int64) - rows["skipped"],
        documents.tokens, plans["start_b"], job)
