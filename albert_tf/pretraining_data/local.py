"""Pretraining records on the cores of one machine, in constant memory.

    text --spans--> [tokenize] --> token store: ids of every document, once
         --parts--> [plan]     --> rows of 48 bytes that say where an instance's
                                   pieces lie, sorted by their place in the shuffle
         --ranks--> [write]    --> pieces fetched, masked, serialized
                                   appended to the output files, which get their
                                   names when all are whole

Every step works on units that do not know of each other, so that they go to any
number of processes, and an interrupted run goes on from the units that are finished.
The shuffle is uniform over all instances of the data set: each has a random number of
its own (`order`), and lies where that number stands among all of them.

The distribution is that of `release_data`; the random numbers are functions of the
seed and the document (`counter_random`), so that the records depend neither on the
number of workers nor on how the text is cut into units.
"""

import dataclasses
import errno
import os
import time
from typing import Any, Iterator, Mapping, Sequence

import numpy as np
from absl import logging

from albert_tf import files, parallel
from albert_tf.errors import InputError, Interruption
from albert_tf.pretraining_data import (
    plans as instance_plans, shuffle, spans as text_spans, token_parts, token_store)
from albert_tf.pretraining_data.encoder import TokenEncoder
from albert_tf.pretraining_data.instance_records import ROWS_PER_BATCH, RecordMaker
from albert_tf.pretraining_data.options import (
    DataOptions, check, check_number, check_text, report, summary_of, summary_path,
    summary_writers)
from albert_tf.pretraining_data.shards import Shards, piece_name, shard_name, unit_name
from albert_tf.pretraining_data.shuffle import Unit
from albert_tf.pretraining_data.summary import CorpusCounts, InstanceCounts
from albert_tf.pretraining_data.work_folder import WorkFolder
from albert_tf.progress import Progress
from albert_tf.tokenization.tokenizer import FullTokenizer, vocabulary_of

# Part of what an unfinished run is compared by: goes up when records change.
_VERSION = 1
# Starting processes takes longer than so much text.
_FEW_BYTES = 1 << 20


def work_folder_of(options: DataOptions, work_dir: str | None) -> WorkFolder:
    """Where unfinished work lies: beside the first output, if not told otherwise.

    Raises:
      InputError: if the outputs are remote and no folder is given.
    """
    if work_dir:
        return WorkFolder(work_dir)
    if files.is_remote(options.output_files[0]):
        raise InputError(
            f"--work_dir is missing: {options.output_files[0]} is not on this machine; "
            "give a local folder for unfinished work, with room for all records.")
    return WorkFolder(f"{options.output_files[0]}.unfinished")


# ---- units of work, in any process -----------------------------------------


class Worker:
    """Does one unit: worker((step, unit)) with a step's name and its unit.

    Args:
      options: what to make.
      encoder: lines → pieces; its tokenizer's special ids go into the records.
      folder: of unfinished work.
    """

    def __init__(self, options: DataOptions, encoder: TokenEncoder,
                 folder: WorkFolder):
        self._options = options
        self._encoder = encoder
        self._folder = folder
        self._store: token_store.TokenStore | None = None
        self._maker = RecordMaker(options.instances, encoder.tokenizer)

    def __getstate__(self):
        return {**self.__dict__, "_store": None}  # holds open files

    def __call__(self, task: tuple[str, Any]) -> dict[str, Any]:
        step, unit = task
        return getattr(self, f"_{step}")(unit)

    def _tokenize(self, span: text_spans.Span) -> dict[str, Any]:
        name = f"part-{span.number:05d}"
        done = self._folder.finished(name)
        if done is None:
            counts, sums = token_parts.write_part(
                self._folder, self._options.input_files, span, self._encoder)
            done = self._folder.finish(name, counts, sums)
        return done

    def _plan(self, part: int) -> dict[str, Any]:
        name = _plans_name(part)
        return self._folder.finished(name) or self._make_plans(part, name)

    def _make_plans(self, part: int, name: str) -> dict[str, Any]:
        options, store = self._options, self._opened_store()
        counts = InstanceCounts(options.instances.max_seq_length)
        runs = shuffle.RunWriter(self._folder, name)
        for first, first_token, documents in store.slices(part):
            place = instance_plans.Place(
                part, first_token, int(store.first_document[part]) + first,
                store.num_documents)
            for chunks in instance_plans.plan_chunks(
                    documents, place, range(options.dupe_factor), options.instances,
                    options.random_seed):
                rows, made = instance_plans.finish_chunks(chunks, *store.second_segment(
                    chunks.random_document, chunks.random_place, chunks.random_length))
                counts.add_plans(made)
                runs.add(rows)
        runs.flush()
        return self._folder.finish(
            name, {"counts": counts.to_json(), "runs": runs.names}, runs.sums)

    def _write(self, task: tuple[Unit, int]) -> dict[str, Any]:
        """A unit's records, in one file for each output file they belong to."""
        unit, num_instances = task
        name = unit_name(unit.number)
        return (self._folder.finished(name)
                or self._make_records(unit, num_instances, name))

    def _make_records(self, unit: Unit, num_instances: int,
                      name: str) -> dict[str, Any]:
        options = self._options
        counts = InstanceCounts(options.instances.max_seq_length)
        rows = shuffle.rows_of_unit(self._folder, self._runs(), unit)
        sums = {}
        for shard, first, end in shuffle.shards_of_ranks(
                unit.first_rank, unit.end_rank, num_instances,
                len(options.output_files)):
            piece = piece_name(shard, unit.number)
            own = rows[first - unit.first_rank:end - unit.first_rank]
            with self._folder.write(piece) as stream:
                for at in range(0, len(own), ROWS_PER_BATCH):
                    stream.write(self._records(own[at:at + ROWS_PER_BATCH], counts))
            sums[piece] = stream.sum
        return self._folder.finish(name, {"counts": counts.to_json()}, sums)

    def _records(self, plans: np.ndarray, counts: InstanceCounts) -> bytes:
        """Framed records of a batch of plans."""
        store = self._opened_store()
        return self._maker.frames(
            plans,
            store.read(plans["part_a"], plans["start_a"], plans["length_a"]),
            store.read(plans["part_b"], plans["start_b"], plans["length_b"]), counts)

    def _runs(self) -> Iterator[str]:
        for part in range(self._opened_store().num_parts):
            yield from self._folder.known(_plans_name(part))["runs"]

    def _opened_store(self) -> token_store.TokenStore:
        if self._store is None:
            self._store = token_store.TokenStore(self._folder)
        return self._store


def _plans_name(part: int) -> str:
    return f"plans-{part:05d}"


# ---- the run ----------------------------------------------------------------


class LocalRun:
    """All steps, one after the other; see `create`."""

    def __init__(self, options: DataOptions, tokenizer: FullTokenizer,
                 folder: WorkFolder, pool: parallel.WorkerPool):
        self._options = options
        self._tokenizer = tokenizer
        self._folder = folder
        self._pool = pool

    def run(self, spans: Sequence[text_spans.Span]) -> dict[str, Any]:
        """Makes what is still to be made; returns the summary."""
        corpus = self._tokenize(spans)
        check_text(corpus, self._options)
        counts, cells = self._plan()
        check_number(counts.as_dict(), self._options)
        units = shuffle.units_of_cells(cells)
        self._write(units, int(cells.sum()), counts)
        summary = summary_of(self._options, self._tokenizer, corpus, counts)
        self._publish(summary)
        return summary

    def _tokenize(self, spans: Sequence[text_spans.Span]) -> CorpusCounts:
        progress = Progress("tokenizing", "MB", sum(s.num_bytes for s in spans) / 1e6)
        corpus, done = CorpusCounts(), 0
        for span, info in zip(spans, self._pool.in_order(
                (("tokenize", span) for span in spans), "tokenizing")):
            corpus.merge(CorpusCounts.from_json(info["counts"]))
            done += span.num_bytes
            progress.update(done / 1e6, f"{corpus.documents:,} documents")
        return corpus

    def _plan(self) -> tuple[InstanceCounts, np.ndarray]:
        num_parts = token_store.TokenStore(self._folder).num_parts
        progress = Progress("planning", "parts", num_parts)
        counts = InstanceCounts(self._options.instances.max_seq_length)
        cells = np.zeros(shuffle.NUM_CELLS, np.int64)
        tasks = (("plan", part) for part in range(num_parts))
        for part, info in enumerate(self._pool.in_order(tasks, "planning")):
            counts.merge(InstanceCounts.from_json(info["counts"]))
            for run in info["runs"]:
                cells += shuffle.cells_of_run(self._folder, run)
            progress.update(part + 1, f"{int(cells.sum()):,} instances")
        return counts, cells

    def _write(self, units: list[Unit], num_instances: int,
               counts: InstanceCounts) -> None:
        """Makes the shards; `counts` receives what was masked."""
        shards = Shards(
            self._folder, self._options.output_files, units, num_instances)
        todo = []
        for unit in units:
            # What was masked in a unit is told by its note, which may be damaged.
            info = shards.hold(unit) and self._folder.known(unit_name(unit.number))
            if info:
                counts.merge(_counts_of(info))
            else:
                todo.append(unit)
        done = num_instances - sum(u.end_rank - u.first_rank for u in todo)
        progress = Progress("writing", "instances", num_instances, done)
        for unit, info in zip(todo, self._pool.in_order(
                (("write", (unit, num_instances)) for unit in todo), "writing")):
            shards.append(unit)
            counts.merge(_counts_of(info))
            done += unit.end_rank - unit.first_rank
            progress.update(done)
        shards.finish()

    def _publish(self, summary: dict[str, Any]) -> None:
        """Gives everything its final name, once all is whole."""
        outputs = self._options.output_files
        writers = summary_writers(summary, summary_path(outputs[0]))
        for number, (_, write) in enumerate(writers.items()):
            write(self._folder.file(f"summary-{number}"))
        for shard, path in enumerate(outputs):
            whole = self._folder.file(shard_name(shard))
            if os.path.exists(whole):  # else it was moved before the run was stopped
                _move(whole, path)
        for number, path in enumerate(writers):
            _move(self._folder.file(f"summary-{number}"), path)


def _counts_of(info: Mapping[str, Any]) -> InstanceCounts:
    return InstanceCounts.from_json(info["counts"])


def _move(source: str, target: str) -> None:
    """Renames a file, or copies it whole where it goes to another disk."""
    if not files.is_remote(target):
        try:
            os.replace(source, target)
            return
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise Interruption(
                    f"{target}: cannot be written: {error.strerror}; make room or "
                    "change its permissions, and start again.") from error
    files.copy(source, target)
    files.remove(source)


def create(options: DataOptions, tokenizer: FullTokenizer, *, num_workers: int = 0,
           work_dir: str | None = None) -> dict[str, Any]:
    """Makes a pretraining data set, or goes on with one that was interrupted.

    Args:
      options: what to make, from and into which files.
      tokenizer: gives pieces and ids.
      num_workers: processes; 0 takes as many as there are cores. The records do not
        depend on it.
      work_dir: folder for unfinished work, removed at the end; by default the first
        output's name and ".unfinished". It takes about half the size of the text, 50
        bytes for each instance, and the records until they are whole.

    Returns:
      The summary, as in the JSON file beside the first output.

    Raises:
      InputError: if something in the input is wrong; no output is written then.
    """
    check(options, tokenizer)
    begin = time.monotonic()
    workers = parallel.num_processes(num_workers)
    spans = text_spans.plan_spans(options.input_files)
    if sum(span.num_bytes for span in spans) < _FEW_BYTES:
        workers = 1
    folder = work_folder_of(options, work_dir)
    worker = Worker(options, TokenEncoder(tokenizer, options.word_start), folder)
    with folder.claimed(_settings(options, tokenizer), _state_of(options)) as resumed:
        if resumed:
            logging.info("Going on with the unfinished run in %s.", folder.path)
        try:
            with parallel.WorkerPool(worker, workers) as pool:
                summary = LocalRun(options, tokenizer, folder, pool).run(spans)
        except BaseException as error:
            # With the text or flags mended nothing in the folder would fit.
            wrong = (isinstance(error, InputError)
                     and not isinstance(error, Interruption))
            if wrong or folder.is_empty():
                folder.remove()
            else:
                logging.info("What is finished stays in %s; the same command goes on "
                             "from there.", folder.path)
            raise
        folder.remove()
    report(options, summary, time.monotonic() - begin)
    return summary


def _settings(options: DataOptions, tokenizer: FullTokenizer) -> dict[str, Any]:
    """All that the records depend on, but for the text; flags by their names."""
    def flat(values):
        for name, value in values.items():
            if isinstance(value, dict):
                yield from flat(value)
            else:
                yield name, value

    settings = dict(flat(dataclasses.asdict(options)))
    del settings["input_files"]
    return {**settings, "version": _VERSION,
            "vocabulary": vocabulary_of(tokenizer.vocabulary_path)["sha256"],
            "do_lower_case": tokenizer.do_lower_case,
            "strip_digit_comma_prefix": tokenizer.strip_digit_comma_prefix}


def _state_of(options: DataOptions) -> list:
    """The input files with what tells that one was changed."""
    return [[path, *((os.path.getsize(path), os.stat(path).st_mtime_ns)
                     if not files.is_remote(path) else ())]
            for path in options.input_files]
