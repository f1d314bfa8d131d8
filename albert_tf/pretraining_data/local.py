"""Creates pretraining records on the cores of one machine, in constant memory.

    text --spans--> tokenize --> token store: the codes of every document, once
         --parts--> plan     --> rows of PLAN.itemsize = 50 bytes: where an instance's
                                 tokens are; sorted by their rank in the shuffle
         --units--> write    --> tokens are read, masked, serialized, appended to the
                                 output files, which are renamed when all are complete

Units of work are independent of each other. They can therefore run in any number of
processes, and interrupted work is resumed from the finished units. The shuffle is
uniform over all instances of the data set (shuffle).

Records have the same distribution as those of `release`. Random numbers are functions
of the seed and the document (keyed_random), so records depend neither on the number of
workers nor on how the text is cut into units.
"""

import dataclasses
import functools
import os
import time
from typing import Any, Sequence

import numpy as np

from albert_tf.jobs import parallel
from albert_tf.errors import InputError, Interruption
from albert_tf.masking.batched import mask_batch
from albert_tf.masking.options import SpecialIds
from albert_tf.pretraining_data import shuffle
from albert_tf.pretraining_data.checks import (
    check, check_number, check_room, check_text)
from albert_tf.pretraining_data.encoder import PieceEncoder
from albert_tf.pretraining_data.options import DataOptions, InstanceOptions, Sizes
from albert_tf.pretraining_data.plans import SlicePosition, finish, plan_chunks
from albert_tf.pretraining_data.shuffle import (
    Shards, Unit, fragment_name, shard_name, unit_name)
from albert_tf.pretraining_data.spans import Span, plan_spans
from albert_tf.pretraining_data.summary import (
    CorpusCounts, InstanceCounts, publish, report, summary_of, summary_path)
from albert_tf.pretraining_data.token_store import TokenStore, write_part
from albert_tf.jobs.progress import Progress
from albert_tf.records import encode
from albert_tf.records.spec import pretraining_spec
from albert_tf.tokenization.sequences import assemble_batch
from albert_tf.tokenization.tokenizer import FullTokenizer, vocabulary_of
from albert_tf.jobs.work_folder import WorkFolder, state_of

# Increase this when records change, so that older unfinished runs are not resumed.
_VERSION = 1
plans_name = "plans-{:05d}".format  # the unit that plans a part
ROWS_PER_BATCH = 512  # Arrays of this size stay in the processor's cache.


def record_frames(
        plans: np.ndarray, codes_a: np.ndarray, codes_b: np.ndarray,
        options: InstanceOptions, tokenizer: FullTokenizer,
        counts: InstanceCounts) -> bytes:
    """Returns masked records in the bytes of a TFRecord file, from PLAN [N].

    `codes_a` and `codes_b` are the codes of all first and all second segments,
    concatenated. The masks are added to `counts`.
    """
    sequences = assemble_batch(
        plans, codes_a, codes_b, options.max_seq_length,
        tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id)
    masked = mask_batch(
        sequences.input_ids, sequences.starts_word, sequences.lengths,
        plans["mask"], options.masking,
        SpecialIds(tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id),
        tokenizer.vocab_size)
    counts.add_masks(masked.num_masked, masked.shown, masked.ngram_words)
    num_slots = options.masking.num_prediction_slots
    return encode.frames(pretraining_spec(options.max_seq_length, num_slots), {
        "input_ids": masked.input_ids,
        "input_mask": sequences.input_mask,
        "segment_ids": sequences.segment_ids,
        "token_boundary": masked.token_boundary,
        "masked_lm_positions": masked.masked_lm_positions,
        "masked_lm_ids": masked.masked_lm_ids,
        "masked_lm_weights": (
            np.arange(num_slots) < masked.num_masked[:, None]).astype(np.float32),
        "next_sentence_labels": plans["label"][:, None],
    })


# ---- units of work, in any process -------------------------------------------


@dataclasses.dataclass
class Worker:
    """A function for worker processes: worker((step, name, unit)) does one unit.

    A unit that is finished already is not done again. A step takes the worker, the
    unit's name and the unit, and returns what WorkFolder.finish stores: JSON values and
    the sums of its files.
    """

    options: DataOptions
    encoder: PieceEncoder
    folder: WorkFolder

    def __call__(self, task: tuple) -> dict[str, Any]:
        step, name, unit = task
        finished = self.folder.finished(name)
        return finished or self.folder.finish(name, *step(self, name, unit))

    @functools.cached_property
    def store(self) -> TokenStore:
        """The token store of all parts, which must have been written."""
        return TokenStore(self.folder)


def tokenize(worker: Worker, name: str, span: Span):
    """Tokenizes the documents of a span, each once."""
    del name  # The files have the name of the part.
    counts, sums = write_part(
        worker.folder, worker.options.input_files, span, worker.encoder)
    return {"counts": counts}, sums


def plan(worker: Worker, name: str, part: int):
    """Plans the instances of a part's documents: their tokens and their ranks."""
    options, store = worker.options, worker.store
    counts = InstanceCounts(options.instances.max_seq_length)
    writer = shuffle.SortedWriter(worker.folder, name)
    for first, first_code, documents in store.slices(part):
        position = SlicePosition(part, first_code, int(store.first_document[part])
                                 + first, store.num_documents)
        for drafts in plan_chunks(documents, position, range(options.dupe_factor),
                                  options.instances, options.random_seed, counts):
            lookups = drafts.lookups
            writer.add(finish(drafts, *store.second_segments(
                lookups["document"], lookups["drawn"], lookups["wanted"]), counts))
    writer.flush()
    # The key "runs" is that of existing unfinished work.
    return {"counts": vars(counts), "runs": writer.names}, writer.sums


def write(worker: Worker, name: str, task: tuple[Unit, int]):
    """Writes a unit's records, in one file for each output file they belong to."""
    del name  # Each file has its own name.
    (unit, num_instances), store = task, worker.store
    counts = InstanceCounts(worker.options.instances.max_seq_length)
    names = (name for part in range(store.num_parts)
             for name in worker.folder.known(plans_name(part))["runs"])
    rows = shuffle.rows_of_unit(worker.folder, names, unit)
    sums = {}
    for shard, first, end in shuffle.shards_of_ranks(
            unit.first_rank, unit.end_rank, num_instances,
            len(worker.options.output_files)):
        fragment = fragment_name(shard, unit.number)
        unit_rows = rows[first - unit.first_rank:end - unit.first_rank]
        with worker.folder.write(fragment) as stream:
            for at in range(0, len(unit_rows), ROWS_PER_BATCH):
                plans = unit_rows[at:at + ROWS_PER_BATCH]
                stream.write(record_frames(
                    plans,
                    store.read(plans["part_a"], plans["start_a"], plans["length_a"]),
                    store.read(plans["part_b"], plans["start_b"], plans["length_b"]),
                    worker.options.instances, worker.encoder.tokenizer, counts))
        sums[fragment] = stream.sum
    return {"counts": vars(counts)}, sums


# ---- the run -----------------------------------------------------------------


def create(options: DataOptions, tokenizer: FullTokenizer, *, num_workers: int = 0,
           work_dir: str | None = None,
           sizes: Sizes = Sizes()) -> dict[str, Any]:
    """Creates a pretraining data set, or resumes one that was interrupted.

    Args:
      options: what to create, and from which files.
      tokenizer: splits the text into tokens.
      num_workers: number of processes, 0 for one on each core; records do not depend
        on it.
      work_dir: folder for unfinished work, removed at the end; by default the first
        output's name and ".unfinished". It takes about half the size of the text, 50
        bytes for each instance, and the records until they are complete.
      sizes: sizes of the units of work.

    Returns:
      The summary, as in its JSON file.
    """
    check(options, tokenizer)
    started = time.monotonic()
    workers = parallel.num_processes(num_workers)
    spans = plan_spans(options.input_files, sizes.span_bytes)
    text_bytes = sum(span.num_bytes for span in spans)
    if text_bytes < sizes.few_bytes:
        workers = 1
    folder = _work_folder(options, work_dir)
    encoder = PieceEncoder(tokenizer, options.word_start)
    check_room(options, encoder, text_bytes, folder.path)
    worker = Worker(options, encoder, folder)
    with folder.used(_settings(options, tokenizer), state_of(options.input_files),
                     # After an InputError the text or flags will change, and then
                     # nothing in the folder can be used.
                     keeps=lambda error: not isinstance(error, InputError)
                     or isinstance(error, Interruption)):
        with parallel.WorkerPool(worker, workers) as pool:
            summary = _make(worker, pool, spans, sizes)
        # A shard that is not there was moved before the run was stopped.
        publish({whole: path for shard, path in enumerate(options.output_files)
                 if os.path.exists(whole := folder.file(shard_name(shard)))},
                summary, summary_path(options.output_files[0]), folder.file)
    report(options, summary, time.monotonic() - started)
    return summary


def _make(worker: Worker, pool: parallel.WorkerPool, spans: Sequence[Span],
          sizes: Sizes) -> dict[str, Any]:
    """Does all units that are not finished yet; returns the summary."""
    options, folder = worker.options, worker.folder
    progress = Progress("tokenizing", "MB", sum(s.num_bytes for s in spans) / 1e6)
    corpus, done = CorpusCounts(), 0
    tasks = ((tokenize, f"part-{span.number:05d}", span) for span in spans)
    for span, info in zip(spans, pool.in_order(tasks, "tokenizing")):
        corpus.merge(info["counts"])
        done += span.num_bytes
        progress.update(done / 1e6, f"{corpus.documents:,} documents")
    check_text(corpus, options)

    progress = Progress("planning", "parts", len(spans))
    counts = InstanceCounts(options.instances.max_seq_length)
    cells = np.zeros(shuffle.NUM_CELLS, np.int64)
    tasks = ((plan, plans_name(span.number), span.number) for span in spans)
    for part, info in enumerate(pool.in_order(tasks, "planning")):
        counts.merge(info["counts"])
        for name in info["runs"]:
            cells += shuffle.cells_of(folder, name)
        progress.update(part + 1, f"{int(cells.sum()):,} instances")
    check_number(counts.as_dict(), options)

    units = shuffle.units_of_cells(cells, sizes.unit_rows)
    _write(units, int(cells.sum()), options.output_files, folder, pool, counts)
    return summary_of(options, worker.encoder.tokenizer, corpus, counts)


def _write(units: Sequence[Unit], num_instances: int, outputs: Sequence[str],
           folder: WorkFolder, pool: parallel.WorkerPool,
           counts: InstanceCounts) -> None:
    """Writes the shards; adds the masks to `counts`."""
    shards = Shards(folder, outputs, units, num_instances)
    todo = []
    for unit in units:
        # The unit's JSON file holds the counts of its masks, but may be damaged.
        info = shards.hold(unit) and folder.known(unit_name(unit.number))
        if info:
            counts.merge(info["counts"])
        else:
            todo.append(unit)
    done = num_instances - sum(unit.end_rank - unit.first_rank for unit in todo)
    progress = Progress("writing", "instances", num_instances, done)
    tasks = ((write, unit_name(unit.number), (unit, num_instances)) for unit in todo)
    for unit, info in zip(todo, pool.in_order(tasks, "writing")):
        shards.append(unit)
        counts.merge(info["counts"])
        done += unit.end_rank - unit.first_rank
        progress.update(done)
    shards.finish()


def _work_folder(options: DataOptions, work_dir: str | None) -> WorkFolder:
    """Returns the folder for unfinished work."""
    first, *others = options.output_files
    return WorkFolder.beside(first, work_dir, (
        *options.input_files, *others, summary_path(first)))


def _settings(options: DataOptions, tokenizer: FullTokenizer) -> dict[str, Any]:
    """Returns all settings that the records depend on; flags by their names."""
    settings = dataclasses.asdict(options)
    del settings["input_files"]
    for name in ("instances", "masking"):
        settings |= settings.pop(name)
    return {**settings, "version": _VERSION,
            "vocabulary": vocabulary_of(tokenizer.vocabulary_path)["sha256"],
            "do_lower_case": tokenizer.do_lower_case, **tokenizer.keeps}
