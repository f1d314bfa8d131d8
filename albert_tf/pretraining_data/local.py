"""Creates pretraining records on the cores of one machine, in constant memory.

    spans    --scatter--> packs: instances with their tokens, sorted by bucket
    buckets  --write----> masked records from the bucket's part of all packs
    outputs  <--join----- the records of all buckets in a row, divided equally

An instance's bucket is given by the highest bits of its random number, so the order of
buckets and the order within each make a uniform shuffle of all instances.

Spans and buckets are units of work that do not depend on each other: they run in any
number of processes, and interrupted work is resumed from the finished units. Records
have the same distribution as those of `release`. Random numbers are functions of the
seed and the document (keyed_random), so records do not depend on the number of workers.
"""

import dataclasses
import functools
import itertools
import math
import shutil
import time
from typing import Any, BinaryIO, Iterable, Iterator, NamedTuple, Sequence

import numpy as np

from albert_tf import files
from albert_tf.jobs import parallel
from albert_tf.jobs.progress import Progress
from albert_tf.jobs.work_folder import WorkFolder
from albert_tf.masking.batched import mask_batch
from albert_tf.masking.options import SpecialIds
from albert_tf.pretraining_data.encoder import PieceEncoder, sums_before
from albert_tf.pretraining_data.options import DataOptions
from albert_tf.pretraining_data.plans import Documents, plan_chunks
from albert_tf.pretraining_data.spans import Span, plan_spans, read_span
from albert_tf.pretraining_data.summary import (
    InstanceCounts, check, check_counts, estimate, published)
from albert_tf.records import encode, tfrecord
from albert_tf.records.spec import pretraining_spec
from albert_tf.tokenization.sequences import assemble_batch
from albert_tf.tokenization.tokenizer import FullTokenizer, vocabulary_of

# Increase this when records change, so that older unfinished runs are not resumed.
_VERSION = 3

# An instance without its tokens. Its random number, the key for its masks, the lengths
# of both segments, and its label (plans.PLAN).
ROW = np.dtype([("order", "<u8"), ("mask", "<u8"), ("length_a", "<u4"),
                ("length_b", "<u4"), ("label", "u1")])
_ROWS_PER_BATCH = 512  # Arrays of this size stay in the processor's cache.
_TEXT_BYTES_PER_CODE_BYTE = 2
# Bytes of a bucket in each pack, unless the bucket would be too large for memory.
_BYTES_AT_ONCE = 1 << 14
_LARGEST_BUCKET = 128 << 20


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Sizes of the units of work; tests use small ones. Second segments from other
    documents depend on the first two, and the rest of the records on none."""

    span_bytes: int = 0  # of text; 0: by the input's size
    slice_codes: int = 8 << 20  # minimum tokens of text in memory at a time
    pack_bytes: int = 16 << 20  # minimum size of the tokens of instances in memory
    bucket_bytes: int = 1 << 20  # minimum size of the tokens of a bucket
    few_bytes: int = 1 << 20  # less text takes one process: starting more is slower


def num_buckets(spans: Iterable[Span], dupe_factor: int, sizes: Sizes = Sizes()) -> int:
    """Returns the number of buckets for copies of a text: a power of two."""
    num_bytes = sum(span.num_bytes for span in spans) * (
        dupe_factor) // _TEXT_BYTES_PER_CODE_BYTE
    size = min(max(math.isqrt(num_bytes * _BYTES_AT_ONCE), sizes.bucket_bytes),
               _LARGEST_BUCKET)
    return 1 << max(0, -(-num_bytes // size) - 1).bit_length()


# ---- spans of text to packs ----------------------------------------------------


class Pack(NamedTuple):
    """N instances made from a slice of documents, sorted by their random numbers."""

    rows: np.ndarray  # ROW [N]
    codes: np.ndarray  # [C]; the codes of each first and second segment in turn
    first_row: np.ndarray  # int64 [num_buckets + 1], of each bucket
    first_code: np.ndarray  # int64 [num_buckets + 1]


def slices(paths: Sequence[str], span: Span, encoder: PieceEncoder,
           counts: InstanceCounts, size: int) -> Iterator[Documents]:
    """Yields the documents of a span, at least `size` tokens at a time. One of several
    times that size is continued in the next slice as another."""
    # Codes, tokens in each line, lines at which documents begin, and their ids.
    held: list[tuple[np.ndarray, np.ndarray, Sequence[int], Sequence[int]]] = []
    num_codes = 0
    for block in read_span(paths, span, encoder.tokenizer.prepare_batch):
        codes, lengths, unknown = encoder.encode(block.lines)
        counts.unknown_pieces += unknown
        first, ids = block.first, block.ids
        if num_codes >= 4 * size and first[:1] != [0]:
            documents = _documents(held, encoder.separator, counts)
            yield documents
            # Sentences are no more than bytes, so no other document has this id.
            sentences = np.diff(documents.first_sentence)[-1]
            next_id = int(documents.ids[-1]) + int(sentences)
            held, num_codes = [(codes[:0], lengths[:0], [0], [next_id])], 0
            counts.documents -= 1
        if first and num_codes >= size:
            # The block's last document begins the next slice.
            line, code = first[-1], int(lengths[:first[-1]].sum())
            held.append((codes[:code], lengths[:line], first[:-1], ids[:-1]))
            yield _documents(held, encoder.separator, counts)
            held, num_codes = [], 0
            codes, lengths, first, ids = codes[code:], lengths[line:], [0], ids[-1:]
        held.append((codes, lengths, first, ids))
        num_codes += len(codes)
    if held:
        yield _documents(held, encoder.separator, counts)


def _documents(held: list[tuple], separator: int, counts: InstanceCounts) -> Documents:
    """Returns the documents that have a sentence, and counts them."""
    codes, lengths, first, ids = zip(*held)
    lines = sums_before(list(map(len, lengths)))
    starts = [line + i for each, line in zip(first, lines.tolist()) for i in each]
    lengths = np.concatenate(lengths)
    sentences = sums_before(lengths > 0)
    first = sentences[[*starts, len(lengths)]]
    filled = np.flatnonzero(np.diff(first))
    first = np.append(first[filled], sentences[-1])
    lengths = lengths[lengths > 0]
    codes = np.concatenate(codes)
    counts.documents += len(filled)
    counts.single_sentence_documents += int((np.diff(first) == 1).sum())
    counts.documents_alone += len(filled) == 1
    counts.sentences += len(lengths)
    counts.pieces += len(codes)
    counts.lines_without_pieces += int(lines[-1]) - len(lengths)
    return Documents(
        np.insert(codes, sums_before(lengths)[first[1:]], separator), lengths, first,
        np.array([i for each in ids for i in each], np.uint64)[filled])


def _pack(plans: np.ndarray, codes: np.ndarray, num_buckets: int) -> Pack:
    plans = plans[np.argsort(plans["order"])]
    starts = np.stack([plans["start_a"], plans["start_b"]], axis=1)
    ends = starts + np.stack([plans["length_a"], plans["length_b"]], axis=1)
    # Python's integer of the first number of each bucket; the last would be too large.
    limits = np.array([k * 2**64 // num_buckets for k in range(num_buckets)], np.uint64)
    first = np.append(np.searchsorted(plans["order"], limits), len(plans))
    return Pack(plans[[*ROW.names]].astype(ROW), np.concatenate([
        _codes_at(codes, starts[at:at + _ROWS_PER_BATCH], ends[at:at + _ROWS_PER_BATCH])
        for at in range(0, len(plans), _ROWS_PER_BATCH)]),
        first, sums_before((ends - starts).sum(axis=1))[first])


def _codes_at(codes: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Returns codes[start:end] for each start and end, concatenated."""
    view = memoryview(codes)
    return np.frombuffer(b"".join([view[start:end] for start, end in zip(
        starts.ravel().tolist(), ends.ravel().tolist())]), codes.dtype)


# ---- records to outputs --------------------------------------------------------


def divided(pieces: Sequence[tuple[str, int]], num_outputs: int
            ) -> Iterator[list[tuple[str, int, int, int]]]:
    """Yields what each output consists of: (file, first record, end, number of records
    in the file). The sizes of outputs differ by at most one record."""
    total = sum(size for _, size in pieces)
    for number in range(num_outputs):
        first, end = (k * total // num_outputs for k in (number, number + 1))
        parts, start = [], 0
        for path, size in pieces:
            low, high = max(first - start, 0), min(end - start, size)
            if low < high:
                parts.append((path, low, high, size))
            start += size
        yield parts


def join(parts: Iterable[tuple[str, int, int, int]], output: BinaryIO) -> None:
    """Writes a TFRecord file that consists of parts of others (divided)."""
    for piece, first, end, size in parts:
        if end - first == size:
            with files.open_binary(piece) as stream:
                shutil.copyfileobj(stream, output, 1 << 20)
        else:
            for record in itertools.islice(tfrecord.read_records(piece), first, end):
                output.write(tfrecord.frame(record))


# ---- units of work, in any process ---------------------------------------------


def name_of(unit: Span | int) -> str:
    """Returns the name of a unit of work, a span or a bucket."""
    return f"unit-{unit:06d}" if isinstance(unit, int) else f"plans-{unit.number:05d}"


@dataclasses.dataclass
class Worker:
    """A function for worker processes: worker(unit) does a unit of work, unless it is
    finished, and returns what WorkFolder.finish stores."""

    options: DataOptions
    encoder: PieceEncoder
    num_buckets: int
    sizes: Sizes
    folder: WorkFolder

    def __call__(self, unit: Span | int) -> dict[str, Any]:
        name = name_of(unit)
        return self.folder.finished(name) or (
            self.write(name, unit) if isinstance(unit, int) else self.scatter(name, unit))

    def packs(self, span: Span, counts: InstanceCounts) -> Iterator[Pack]:
        """Yields the instances of all copies of a span's documents; adds all but masks
        to `counts`."""
        options, sizes = self.options, self.sizes
        for documents in slices(
                options.input_files, span, self.encoder, counts, sizes.slice_codes):
            held, num_bytes = [], 0
            for plans in plan_chunks(documents, range(options.dupe_factor),
                                     options.instances, options.random_seed, counts):
                held.append(plans)
                num_bytes += documents.codes.itemsize * int(
                    plans["length_a"].sum() + plans["length_b"].sum())
                if num_bytes >= sizes.pack_bytes:
                    yield _pack(np.concatenate(held), documents.codes, self.num_buckets)
                    held, num_bytes = [], 0
            if num_bytes:
                yield _pack(np.concatenate(held), documents.codes, self.num_buckets)

    def scatter(self, name: str, span: Span) -> dict[str, Any]:
        """Makes the instances of a span, and writes a file for each pack: the bytes at
        which the rows and the codes of each bucket, and the end, begin; all rows; all
        codes."""
        counts, names = InstanceCounts(), []
        for pack in self.packs(span, counts):
            starts = np.stack([pack.first_row * ROW.itemsize,
                               pack.first_code * pack.codes.itemsize], axis=1)
            starts += (starts.nbytes, starts.nbytes + pack.rows.nbytes)
            names.append(f"{name}-{len(names):04d}")
            with files.atomic_write(self.folder.file(names[-1])) as stream:
                for array in (starts, pack.rows, pack.codes):
                    stream.write(array.tobytes())
        return self.folder.finish(name, {"made": vars(counts)}, names)

    @functools.cached_property
    def pack_names(self) -> list[str]:
        """The names of all packs, which must have been written."""
        infos = (self.folder.known(f"plans-{number:05d}") for number in itertools.count())
        return [name for info in iter(infos.__next__, None) for name in info["files"]]

    def write(self, name: str, bucket: int) -> dict[str, Any]:
        """Writes the records of a bucket."""
        counts, rows, codes = InstanceCounts(), [], []
        for pack in self.pack_names:
            with open(self.folder.file(pack), "rb", buffering=0) as stream:
                stream.seek(16 * bucket)
                first_row, first_code, end_row, end_code = np.frombuffer(
                    stream.read(32), np.int64).tolist()
                stream.seek(first_row)
                rows.append(np.frombuffer(stream.read(end_row - first_row), ROW))
                stream.seek(first_code)
                codes.append(np.frombuffer(
                    stream.read(end_code - first_code), self.encoder.dtype))
        with files.atomic_write(self.folder.file(f"{name}.records")) as stream:
            stream.writelines(self.records(
                np.concatenate(rows), np.concatenate(codes), counts))
        return self.folder.finish(name, {
            "made": vars(counts), "rows": sum(map(len, rows))}, [f"{name}.records"])

    def records(self, rows: np.ndarray, codes: np.ndarray, counts: InstanceCounts
                ) -> Iterator[bytes]:
        """Yields the masked records of a bucket in the bytes of a TFRecord file, sorted
        by their random numbers, and adds the masks to `counts`; `rows` and `codes` are
        those of all packs, concatenated."""
        order = np.argsort(rows["order"], kind="stable")
        start_a = sums_before(rows["length_a"] + rows["length_b"])[:-1][order]
        rows = rows[order]
        start_b = start_a + rows["length_a"]
        end_b = start_b + rows["length_b"]
        options, tokenizer = self.options.instances, self.encoder.tokenizer
        ids = SpecialIds(tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id)
        num_slots = options.masking.num_prediction_slots
        spec = pretraining_spec(options.max_seq_length, num_slots)
        for at in range(0, len(rows), _ROWS_PER_BATCH):
            some = slice(at, at + _ROWS_PER_BATCH)
            sequences = assemble_batch(
                rows[some], _codes_at(codes, start_a[some], start_b[some]),
                _codes_at(codes, start_b[some], end_b[some]), options.max_seq_length,
                ids.cls, ids.sep, tokenizer.pad_id)
            masked = mask_batch(
                sequences.input_ids, sequences.starts_word, sequences.lengths,
                rows["mask"][some], options.masking, ids, tokenizer.vocab_size)
            counts.add_masks(masked.num_masked, masked.shown, masked.ngram_words)
            yield b"".join(map(tfrecord.frame, encode.serialize(spec, {
                **sequences._asdict(), **masked._asdict(),
                "masked_lm_weights": (
                    np.arange(num_slots) < masked.num_masked[:, None]).astype(np.float32),
                "next_sentence_labels": rows["label"][some, None],
            })))


# ---- the run -------------------------------------------------------------------


def create(options: DataOptions, tokenizer: FullTokenizer, *, num_workers: int = 0,
           work_dir: str | None = None,
           sizes: Sizes = Sizes()) -> dict[str, Any]:
    """Creates a pretraining data set, or resumes one that was interrupted; returns the
    summary, as in its JSON file. With num_workers=0 there is a process on each core.
    `work_dir` is a folder for unfinished work, which is removed at the end, by default
    the first output's name and ".unfinished"."""
    check(options, tokenizer)
    started = time.monotonic()
    spans = plan_spans(options.input_files, sizes.span_bytes)
    folder = WorkFolder.beside(options.output_files[0], work_dir)
    encoder = PieceEncoder(tokenizer, options.word_start)
    worker = Worker(options, encoder, num_buckets(spans, options.dupe_factor, sizes),
                    sizes, folder)
    settings = dataclasses.asdict(options)  # what the records depend on, by flags' names
    del settings["input_files"]
    for name in ("instances", "masking"):
        settings |= settings.pop(name)
    settings |= {"version": _VERSION,
                 "vocabulary": vocabulary_of(tokenizer.vocabulary_path)["sha256"],
                 "do_lower_case": tokenizer.do_lower_case, **tokenizer.keeps}
    few = sum(span.num_bytes for span in spans) < sizes.few_bytes
    with folder.used(settings, options.input_files):
        estimate(options, encoder, spans, folder.path)
        with parallel.WorkerPool(
                worker, 1 if few else num_workers or parallel.num_cores()) as pool:
            counts, pieces = _make(worker, pool, spans)
        with published(options, tokenizer, counts, started) as (summary, outputs):
            for path, parts in zip(outputs, divided(pieces, len(outputs))):
                with files.open_binary(path, "wb") as output:
                    join(parts, output)
    return summary


def _make(worker: Worker, pool: parallel.WorkerPool, spans: Sequence[Span]
          ) -> tuple[InstanceCounts, list[tuple[str, int]]]:
    """Does all units that are not finished yet; returns the counts, and the file and
    the number of records of each bucket."""
    folder, counts, buckets = worker.folder, InstanceCounts(), range(worker.num_buckets)
    # Without a finished bucket the packs are needed, and else may be gone.
    done = all(map(folder.finished, map(name_of, buckets))) and all(
        map(folder.known, map(name_of, spans)))

    def results(units: Sequence[Any], what: str) -> Iterator[Any]:
        return map(folder.known, map(name_of, units)) if done else pool.in_order(
            units, what)

    progress = Progress("tokenizing", "MB", sum(s.num_bytes for s in spans) / 1e6)
    for span, info in zip(spans, results(spans, "tokenizing")):
        # Earlier versions kept the counts of the text apart.
        counts.merge(info.get("text", {}))
        counts.merge(info["made"])
        progress.add(span.num_bytes / 1e6)
    check_counts(counts, worker.options)

    progress = Progress("writing", "instances", sum(counts.lengths.values()))
    pieces = []
    for bucket, info in zip(buckets, results(buckets, "writing")):
        counts.merge(info["made"])
        pieces.append((folder.file(f"{name_of(bucket)}.records"), info["rows"]))
        progress.add(info["rows"])
    for name in worker.pack_names:
        files.remove(folder.file(name))
    return counts, pieces
