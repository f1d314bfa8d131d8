"""The steps of the Beam pipeline as functions of one element, without Beam.

`beam` joins them to a pipeline. An element is a tuple of a number, by which elements
are joined, and of numbers and bytes. A step that yields several kinds of elements puts
the kind first:

    kind      number    value
    slice     span      (number in the span of the first document, Documents)
    counts    span      (number of documents, CorpusCounts)
    text      block     (number in the corpus of the first document, Documents)
    request   block     instances that need a second segment from the block
    pack      bucket    finished instances with their tokens, unmasked
    fragment  shard     (rank of the first record, file of records)
    result    0         counts for the summary, and the finished shards

A span is as `spans` plans it. A block is a fixed number of consecutive documents of
the corpus. A bucket holds the instances whose `order` begins with the same bits; there
are enough buckets for each to fit into memory. Ranks, shards and records are those of
`local`.
"""

import dataclasses
import functools
import json
import pickle
import shutil
import tempfile
import uuid
from typing import Any, Iterable, Iterator

import numpy as np

from albert_tf import files
from albert_tf.pretraining_data import plans as planning
from albert_tf.pretraining_data import shuffle, spans, token_store
from albert_tf.pretraining_data.encoder import PieceEncoder, sums_before
from albert_tf.pretraining_data.local import ROWS_PER_BATCH, record_frames
from albert_tf.pretraining_data.options import DataOptions, Sizes
from albert_tf.pretraining_data.plans import Drafts, LOOKUP, PLAN, SlicePosition
from albert_tf.pretraining_data.summary import CorpusCounts, InstanceCounts
from albert_tf.pretraining_data.token_store import Documents
from albert_tf.jobs.work_folder import WorkFolder

# The maximum size of a bucket in bytes of token codes, and the number of buckets to aim
# at: enough for many workers, but no more than large data needs.
_MOST_BUCKET_BYTES, _BUCKETS = 64 << 20, 256
_TEXT_BYTES_PER_PIECE_BYTE = 2

# An instance without its second segment: its plan, key and room, and what to look up
# (Drafts). skipped is the number of tokens of its first segment that are certainly cut
# from the front, carried the number of those that are sent with the request.
REQUEST = np.dtype([
    ("plan", PLAN), ("key", "<u8"), ("room", "<i8"), ("lookup", LOOKUP),
    ("skipped", "<i8"), ("carried", "<i8")])


@dataclasses.dataclass(frozen=True)
class Job:
    """The settings that all workers share."""

    options: DataOptions
    folder: str  # for unfinished work; all workers reach it under this name
    num_buckets: int  # a power of two
    code_dtype: str  # "<u2" or "<u4"
    sizes: Sizes = Sizes()  # of slices and blocks

    def file(self, name: str) -> str:
        return f"{self.folder}/{name}"

    def unique_file(self, name: str) -> str:
        """Returns a new path each time: an engine may run a step twice at once."""
        return self.file(f"{name}-{uuid.uuid4().hex}")

    def new_counts(self) -> InstanceCounts:
        return InstanceCounts(self.options.instances.max_seq_length)

    def encoder(self) -> PieceEncoder:
        return _load(self.file("encoder"))


@functools.lru_cache(maxsize=1)
def _load(path: str) -> PieceEncoder:
    with files.open_binary(path) as stream:
        return pickle.load(stream)


def num_buckets(text_bytes: int, dupe_factor: int,
                fewest_bytes: int = Sizes.bucket_bytes) -> int:
    """Returns the number of buckets for this many bytes of text: a power of two."""
    num_bytes = text_bytes * dupe_factor // _TEXT_BYTES_PER_PIECE_BYTE
    size = min(max(num_bytes // _BUCKETS, fewest_bytes), _MOST_BUCKET_BYTES)
    return 1 << max(0, -(-num_bytes // size) - 1).bit_length()


def buckets_of(order: np.ndarray, num_buckets: int) -> np.ndarray:
    """Returns the bucket of each `order`, which is its highest bits: int64 [N]."""
    bits = num_buckets.bit_length() - 1
    if not bits:
        return np.zeros(len(order), np.int64)
    return (order >> np.uint64(64 - bits)).astype(np.int64)


def codes_at(codes: np.ndarray, starts: np.ndarray,
             lengths: np.ndarray) -> np.ndarray:
    """Returns codes[start : start + length] for each start and length, concatenated."""
    starts, lengths = starts.astype(np.int64), lengths.astype(np.int64)
    shifts = starts - sums_before(lengths)[:-1]
    return codes[np.repeat(shifts, lengths) + np.arange(lengths.sum())]


def slice_of(documents: Documents, first: int, end: int) -> Documents:
    """Returns the documents first ... end - 1, with positions that start from 0."""
    first_sentence = np.asarray(documents.first_sentence[first:end + 1], np.int64)
    first_code = np.asarray(documents.first_code[first:end + 1], np.int64)
    return Documents(
        np.array(documents.codes[first_code[0]:first_code[-1]]),
        np.array(documents.sentence_lengths[first_sentence[0]:first_sentence[-1]]),
        first_sentence - first_sentence[0], first_code - first_code[0],
        np.array(documents.ids[first:end]))


def of_kind(element: Any, kind: str) -> Iterator[tuple[int, Any]]:
    """Yields (number, value) if the element is of this kind."""
    if element[0] == kind:
        yield element[1], element[2]


def with_others(element: Any) -> tuple[int, Any]:
    """Returns the element under the key 0, so that it is joined with all others."""
    return 0, element


def number_through(element: Any) -> Iterator[tuple[int, Any]]:
    """Yields (key, (count of all smaller keys, total count)) for each key.

    `element` is (0, [(key, count), ...]) with all keys.
    """
    counts = sorted(element[1])
    before = sums_before(np.array([count for _, count in counts])).tolist()
    for (key, _), first in zip(counts, before):
        yield key, (first, before[-1])


# ---- text -------------------------------------------------------------------


def tokenize_span(span: Any, job: Job) -> Iterator[Any]:
    """Yields the slices and counts of a span, which is given by its fields."""
    span = spans.Span(*span)
    # This goes through the disk, because a compressed file of any size is one span.
    with tempfile.TemporaryDirectory(prefix="albert_tf-span-") as path:
        folder = WorkFolder(path)
        counts, _ = token_store.write_part(
            folder, job.options.input_files, span._replace(number=0), job.encoder())
        store = token_store.TokenStore(folder)
        # Without a sentence objective instances depend on the size of slices, which
        # must therefore be that of `local`.
        size = (token_store.SENTENCES_PER_SLICE
                if job.options.instances.sentence_objective == "none"
                else job.sizes.slice_sentences)
        for first, _, documents in store.slices(0, size):
            yield "slice", span.number, (first, pickle.dumps(
                documents._replace(codes=np.array(documents.codes))))
    yield "counts", span.number, (counts["documents"], counts)


def count_documents(element: Any) -> tuple[int, int]:
    """Returns (span, number of documents) from (span, counts)."""
    span, (count, _) = element
    return span, count


def text_result(element: Any) -> tuple[int, Any]:
    """Returns (0, result) from (span, counts)."""
    return 0, {"text": element[1][1]}


# ---- plans ------------------------------------------------------------------


def plan_span(element: Any, job: Job) -> Iterator[Any]:
    """Yields packs, requests, texts and counts from (span, its slices and numbers)."""
    _, groups = element
    (first, total), = groups["numbers"]
    slices = ((number, pickle.loads(data)) for number, data in groups["slices"])
    options, counts = job.options, job.new_counts()
    for number, documents in slices:
        for drafts in planning.plan_chunks(
                documents, SlicePosition(0, 0, first + number, total),
                range(options.dupe_factor), options.instances, options.random_seed,
                counts):
            yield from _packs_and_requests(drafts, documents.codes, job, counts)
        if options.instances.needs_random_documents:
            yield from _texts(documents, first + number, job.sizes.block_documents)
    yield "result", 0, {"made": vars(counts)}


def _texts(documents: Documents, number: int, block_size: int) -> Iterator[Any]:
    """Yields documents by blocks; `number` is the corpus number of the first one."""
    at = 0
    while at < len(documents.ids):
        block = (number + at) // block_size
        end = min((block + 1) * block_size - number, len(documents.ids))
        yield "text", block, (
            number + at, pickle.dumps(slice_of(documents, at, end)))
        at = end


def _packs_and_requests(drafts: Drafts, codes: np.ndarray, job: Job,
                        counts: InstanceCounts) -> Iterator[Any]:
    """Yields packs of finished instances and requests for the others."""
    rows = drafts.lookups["row"]
    nothing = np.zeros(0, np.int64)
    plans = planning.finish(
        Drafts(*(np.delete(each, rows, axis=0) for each in drafts[:3]),
               drafts.lookups[:0]), nothing, nothing, nothing, counts)
    yield from _packs(plans, codes, plans["start_a"], codes, plans["start_b"], job)
    # The longer the second segment is, the more is cut off either end of the first. A
    # second segment of one token therefore shows the most that can remain of the first.
    one = np.ones(len(rows), np.int64)
    wanting = Drafts(*(each[rows] for each in drafts[:3]), drafts.lookups.copy())
    wanting.lookups["row"] = np.arange(len(rows))
    widest = planning.finish(wanting, one, one, one, job.new_counts())
    requests = np.zeros(len(rows), REQUEST)
    for name, values in zip(("plan", "key", "room", "lookup"), wanting):
        requests[name] = values
    requests["skipped"] = widest["start_a"] - wanting.plans["start_a"]
    requests["carried"] = widest["length_a"]
    block = wanting.lookups["document"] // job.sizes.block_documents
    for number, members in _groups(block):
        yield "request", number, (requests[members].tobytes(), codes_at(
            codes, widest["start_a"][members], widest["length_a"][members]).tobytes())


def _groups(numbers: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Yields each number that occurs, and the rows in which it does."""
    rows = np.argsort(numbers, kind="stable")
    borders = np.flatnonzero(np.diff(numbers[rows])) + 1
    for members in np.split(rows, borders):
        if len(members):
            yield int(numbers[members[0]]), members


def _packs(plans: np.ndarray, codes_a: np.ndarray, starts_a: np.ndarray,
           codes_b: np.ndarray, starts_b: np.ndarray, job: Job) -> Iterator[Any]:
    """Yields packs, by buckets: plans with the tokens of both segments."""
    for bucket, members in _groups(buckets_of(plans["order"], job.num_buckets)):
        rows = plans[members]
        yield "pack", bucket, (
            rows.tobytes(),
            codes_at(codes_a, starts_a[members], rows["length_a"]).tobytes(),
            codes_at(codes_b, starts_b[members], rows["length_b"]).tobytes())


def answer_requests(element: Any, job: Job) -> Iterator[Any]:
    """Yields packs and counts from (block, its texts and requests for them)."""
    _, groups = element
    requests = list(groups["requests"])
    if not requests:
        return
    rows = np.frombuffer(b"".join(data for data, _ in requests), REQUEST)
    codes = np.frombuffer(b"".join(data for _, data in requests), job.code_dtype)
    starts = sums_before(rows["carried"])[:-1] - rows["skipped"]
    counts, num_answered = job.new_counts(), 0
    for first, data in groups["texts"]:
        documents = pickle.loads(data)
        number = rows["lookup"]["document"] - first
        members = np.flatnonzero((number >= 0) & (number < len(documents.ids)))
        if not len(members):
            continue
        num_answered += len(members)
        drafts = Drafts(*(rows[members][name] for name in ("plan", "key", "room")),
                        rows[members]["lookup"].copy())
        drafts.lookups["row"] = np.arange(len(members))
        first_a = drafts.plans["start_a"]
        start_b, length_b = token_store.random_starts(
            documents, number[members], drafts.lookups["drawn"],
            drafts.lookups["wanted"])
        plans = planning.finish(
            drafts, np.zeros(len(members), np.int64), start_b, length_b, counts)
        yield from _packs(
            plans, codes,
            starts[members] + (plans["start_a"] - first_a).astype(np.int64),
            documents.codes, plans["start_b"], job)
    if num_answered != len(rows):
        raise ValueError(f"{len(rows) - num_answered} requested documents are missing.")
    yield "result", 0, {"made": vars(counts)}


# ---- records -----------------------------------------------------------------


def count_pack(element: Any) -> tuple[int, int]:
    """Returns (bucket, number of instances) from (bucket, pack)."""
    bucket, (rows, _, _) = element
    return bucket, len(rows) // PLAN.itemsize


def write_bucket(element: Any, job: Job) -> Iterator[Any]:
    """Writes the records of a bucket from (bucket, its packs and ranks).

    Yields fragments, each with its file, and counts.
    """
    number, groups = element
    (first_rank, total), = groups["ranks"]
    rows, codes_a, codes_b = (
        np.frombuffer(b"".join(data), dtype) for data, dtype in zip(
            zip(*groups["packs"]), (PLAN, job.code_dtype, job.code_dtype)))
    order = np.lexsort((rows["mask"], rows["order"]))
    starts_a = sums_before(rows["length_a"])[order]
    starts_b = sums_before(rows["length_b"])[order]
    plans = rows[order]
    options, tokenizer = job.options.instances, job.encoder().tokenizer
    counts = job.new_counts()
    for shard, first, end in shuffle.shards_of_ranks(
            first_rank, first_rank + len(plans), total, len(job.options.output_files)):
        path = job.unique_file(f"fragment-{shard:05d}-{number:06d}")
        with files.atomic_write(path) as stream:
            for at in range(first - first_rank, end - first_rank, ROWS_PER_BATCH):
                members = slice(at, min(at + ROWS_PER_BATCH, end - first_rank))
                stream.write(record_frames(
                    plans[members],
                    codes_at(codes_a, starts_a[members], plans["length_a"][members]),
                    codes_at(codes_b, starts_b[members], plans["length_b"][members]),
                    options, tokenizer, counts))
        yield "fragment", shard, (first, path)
    yield "result", 0, {"made": vars(counts)}


def join_shard(element: Any, job: Job) -> tuple[int, Any]:
    """Joins (shard, its fragments) into one file; returns (0, result)."""
    shard, fragments = element
    path = job.unique_file(f"shard-{shard:05d}")
    with files.atomic_write(path) as stream:
        for _, fragment in sorted(fragments):
            with files.open_binary(fragment) as source:
                shutil.copyfileobj(source, stream, 1 << 22)
    return 0, {"shards": {str(shard): path}}


def merge_results(results: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Merges results; the keys are those of "text", "made" and "shards" that occur."""
    merged: dict[str, Any] = {}
    for result in results:
        if "shards" in result:
            merged["shards"] = {**merged.get("shards", {}), **result["shards"]}
        if "text" in result:
            counts = CorpusCounts(**merged.get("text", {}))
            counts.merge(result["text"])
            merged["text"] = vars(counts)
        if "made" in result:
            counts = InstanceCounts(result["made"]["max_seq_length"])
            for each in filter(None, (merged.get("made"), result["made"])):
                counts.merge(each)
            merged["made"] = vars(counts)
    return merged


def write_result(element: Any, job: Job) -> str:
    """Writes (0, merged result) to a file for the process that started the pipeline."""
    path = job.file("result.json")
    files.write(path, json.dumps(element[1]).encode())
    return path
