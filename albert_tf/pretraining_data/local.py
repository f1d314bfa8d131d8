"""Creates pretraining records on the cores of one machine, in constant memory.

    spans    --scatter--> files of packs, in the folder for unfinished work
    buckets  --write----> a file of records from the bucket's part of all packs
    outputs  <--join----- the files of all buckets in a row, divided equally

Spans and buckets are units of work that do not depend on each other (packs): they run in
any number of processes, and interrupted work is resumed from the finished units. Records
have the same distribution as those of `release`. Random numbers are functions of the
seed and the document (keyed_random), so records do not depend on the number of workers.
"""

import dataclasses
import functools
import itertools
import shutil
import time
from typing import Any, BinaryIO, Callable, Iterable, Iterator, Sequence

import numpy as np

from albert_tf import files
from albert_tf.jobs import parallel
from albert_tf.pretraining_data import packs
from albert_tf.pretraining_data.checks import (
    check, check_number, check_text, estimate)
from albert_tf.pretraining_data.encoder import PieceEncoder
from albert_tf.pretraining_data.job_options import DataOptions, Sizes
from albert_tf.pretraining_data.packs import ROW, Pack
from albert_tf.pretraining_data.spans import Span, plan_spans
from albert_tf.pretraining_data.summary import (
    CorpusCounts, InstanceCounts, published)
from albert_tf.jobs.progress import Progress
from albert_tf.records import tfrecord
from albert_tf.tokenization.tokenizer import FullTokenizer, vocabulary_of
from albert_tf.jobs.work_folder import WorkFolder, state_of

# Increase this when records change, so that older unfinished runs are not resumed.
_VERSION = 3
_SPAN, _BUCKET = "plans-{:05d}", "unit-{:06d}"  # the names of units


# ---- units of work, in any process -------------------------------------------


@dataclasses.dataclass
class Worker:
    """A function for worker processes: worker((step, name, unit)) does one unit, unless
    it is finished. A step takes the worker, the unit's name and the unit, and returns
    what WorkFolder.finish stores: JSON values and the names of its files."""

    options: DataOptions
    encoder: PieceEncoder
    folder: WorkFolder
    num_buckets: int
    sizes: Sizes

    def __call__(self, task: tuple[Callable, str, Any]) -> dict[str, Any]:
        step, name, unit = task
        return self.folder.finished(name) or self.folder.finish(
            name, *step(self, name, unit))

    @functools.cached_property
    def packs(self) -> list[str]:
        """The names of all packs, which must have been written."""
        infos = map(self.folder.known, map(_SPAN.format, itertools.count()))
        return [name for info in iter(infos.__next__, None) for name in info["files"]]


def scatter(worker: Worker, name: str, span: Span):
    """Makes the instances of a span, and writes them with their tokens."""
    corpus, counts, names = CorpusCounts(), InstanceCounts(), []
    for pack in packs.scatter(span, worker.options, worker.encoder, worker.num_buckets,
                              worker.sizes, corpus, counts):
        names.append(f"{name}-{len(names):04d}")
        with worker.folder.write(names[-1]) as stream:
            write_pack(pack, stream)
    return {"text": vars(corpus), "made": vars(counts)}, names


def write(worker: Worker, name: str, bucket: int):
    """Writes the records of a bucket."""
    counts, options = InstanceCounts(), worker.options
    rows, codes = zip(*(
        read_pack(worker.folder.file(each), bucket, worker.encoder.dtype)
        for each in worker.packs))
    with worker.folder.write(f"{name}.records") as stream:
        stream.writelines(packs.records(
            np.concatenate(rows), np.concatenate(codes), options.instances,
            worker.encoder.tokenizer, counts))
    return {"made": vars(counts), "rows": sum(map(len, rows))}, [f"{name}.records"]


def write_pack(pack: Pack, stream: BinaryIO) -> None:
    """Writes a pack: for each bucket and the end, the bytes at which its rows and its
    codes begin; all rows; all codes."""
    starts = np.stack([pack.first_row * ROW.itemsize,
                       pack.first_code * pack.codes.itemsize], axis=1)
    starts += (starts.nbytes, starts.nbytes + pack.rows.nbytes)
    for array in (starts, pack.rows, pack.codes):
        stream.write(array.tobytes())


def read_pack(path: str, bucket: int, dtype: np.dtype
              ) -> tuple[np.ndarray, np.ndarray]:
    """Returns the rows and codes of a bucket from a file of `write_pack`."""
    with open(path, "rb", buffering=0) as stream:
        stream.seek(16 * bucket)
        first_row, first_code, end_row, end_code = np.frombuffer(
            stream.read(32), np.int64).tolist()
        stream.seek(first_row)
        rows = np.frombuffer(stream.read(end_row - first_row), ROW)
        stream.seek(first_code)
        return rows, np.frombuffer(stream.read(end_code - first_code), dtype)


# ---- the run -----------------------------------------------------------------


def create(options: DataOptions, tokenizer: FullTokenizer, *, num_workers: int = 0,
           work_dir: str | None = None,
           sizes: Sizes = Sizes()) -> dict[str, Any]:
    """Creates a pretraining data set, or resumes one that was interrupted; returns the
    summary, as in its JSON file. With num_workers=0 there is a process on each core.
    `work_dir` is a folder for unfinished work, which is removed at the end, by default
    the first output's name and ".unfinished"."""
    check(options, tokenizer)
    started = time.monotonic()
    workers = num_workers or parallel.num_cores()
    spans = plan_spans(options.input_files, sizes.span_bytes)
    text_bytes = sum(span.num_bytes for span in spans)
    folder = WorkFolder.beside(options.output_files[0], work_dir)
    encoder = PieceEncoder(tokenizer, options.word_start)
    estimate(options, encoder, spans, folder.path)
    worker = Worker(options, encoder, folder, packs.num_buckets(
        text_bytes, options.dupe_factor, sizes), sizes)
    with folder.used(_settings(options, tokenizer), state_of(options.input_files)):
        with parallel.WorkerPool(
                worker, 1 if text_bytes < sizes.few_bytes else workers) as pool:
            corpus, counts, pieces = _make(worker, pool, spans)
        with published(options, tokenizer, corpus, counts, started) as (summary, outputs):
            for path, parts in zip(outputs, divided(pieces, len(outputs))):
                with files.open_binary(path, "wb") as output:
                    join(parts, output)
    return summary


def _make(worker: Worker, pool: parallel.WorkerPool, spans: Sequence[Span]
          ) -> tuple[CorpusCounts, InstanceCounts, list[tuple[str, int]]]:
    """Does all units that are not finished yet; returns the counts, and the file and
    the number of records of each bucket."""
    options, folder = worker.options, worker.folder
    corpus, counts = CorpusCounts(), InstanceCounts()
    names = [_SPAN.format(span.number) for span in spans]
    units = [_BUCKET.format(bucket) for bucket in range(worker.num_buckets)]
    done = all(map(folder.finished, units)) and all(map(folder.known, names))

    def results(step: Callable, names: Sequence[str], items: Iterable, what: str):
        # Without a finished bucket the packs are needed, and else may be gone.
        return map(folder.known, names) if done else pool.in_order(
            zip(itertools.repeat(step), names, items), what)

    progress = Progress("tokenizing", "MB", sum(s.num_bytes for s in spans) / 1e6)
    for span, info in zip(spans, results(scatter, names, spans, "tokenizing")):
        corpus.merge(info["text"])
        counts.merge(info["made"])
        progress.add(span.num_bytes / 1e6)
    check_text(corpus, options)
    check_number(counts, options)

    progress = Progress("writing", "instances", sum(counts.lengths.values()))
    pieces = []
    for name, info in zip(units, results(
            write, units, range(worker.num_buckets), "writing")):
        counts.merge(info["made"])
        pieces.append((folder.file(f"{name}.records"), info["rows"]))
        progress.add(info["rows"])
    for name in worker.packs:
        files.remove(folder.file(name))
    return corpus, counts, pieces


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


def _settings(options: DataOptions, tokenizer: FullTokenizer) -> dict[str, Any]:
    """Returns all settings that the records depend on; flags by their names."""
    settings = dataclasses.asdict(options)
    del settings["input_files"]
    for name in ("instances", "masking"):
        settings |= settings.pop(name)
    return {**settings, "version": _VERSION,
            "vocabulary": vocabulary_of(tokenizer.vocabulary_path)["sha256"],
            "do_lower_case": tokenizer.do_lower_case, **tokenizer.keeps}
