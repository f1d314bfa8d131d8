"""Checks before and during data creation: impossible settings, text that gives poor
data, and too little disk space or memory.
"""

import dataclasses
import os
import re
import shutil
from typing import Any

import numpy as np
from absl import logging

from albert_tf import files
from albert_tf.errors import InputError
from albert_tf.jobs import parallel
from albert_tf.jobs.progress import amount
from albert_tf.pretraining_data.encoder import PieceEncoder
from albert_tf.pretraining_data.options import DataOptions, SHARD
from albert_tf.pretraining_data.spans import plan_spans, read_span
from albert_tf.pretraining_data.summary import CorpusCounts, summary_paths
from albert_tf.records.spec import pretraining_spec
from albert_tf.tokenization.tokenizer import FullTokenizer

# If more tokens than this share are unknown, the vocabulary does not fit the text.
_MANY_UNKNOWN = 0.02


def check(options: DataOptions, tokenizer: FullTokenizer) -> None:
    """Checks flags and file names before any work, and makes the output folders."""
    for path in options.input_files:
        files.open_binary(path).close()
    files.prepare_outputs(
        {"--output_file": options.output_files,
         "the summary of --output_file": summary_paths(options)},
        {"--input_file": options.input_files,
         "the vocabulary": [tokenizer.vocabulary_path]})
    for folder in {os.path.dirname(path) or "." for path in options.output_files}:
        files.make_directory(folder, "--output_file")
    _check_no_other_shards(options.output_files)
    if options.word_start == "sentencepiece" and not tokenizer.uses_sentencepiece:
        raise InputError(
            "--word_start=sentencepiece needs --spm_model_file, because WordPiece "
            "marks words differently; give --spm_model_file or leave --word_start out.")
    instances, masking = options.instances, options.instances.masking
    wanted = round(instances.max_seq_length * masking.masked_lm_prob)
    if wanted > masking.max_predictions_per_seq:
        logging.warning(
            "--max_predictions_per_seq=%d masks only %.1f %% of a sequence of %d "
            "tokens; --masked_lm_prob=%g needs %d.", masking.max_predictions_per_seq,
            100 * masking.max_predictions_per_seq / instances.max_seq_length,
            instances.max_seq_length, masking.masked_lm_prob, wanted)


def _check_no_other_shards(paths: tuple[str, ...]) -> None:
    """Raises InputError if shards of a data set with other shard numbers are there."""
    names = {os.path.abspath(path) for path in paths if not files.is_remote(path)}
    for name in sorted({SHARD.sub("", name) for name in names}):
        folder = os.path.dirname(name)
        pattern = re.compile(re.escape(os.path.basename(name)) + SHARD.pattern)
        others = sorted(
            other for other in os.listdir(folder)
            if pattern.fullmatch(other) and os.path.join(folder, other) not in names)
        if others:
            raise InputError(
                f"--output_file: {os.path.join(folder, others[0])} is a shard from a "
                "different run, and a pattern for the new files would match it too; "
                "remove the files of that run, or choose a different name.")


def check_text(corpus: CorpusCounts, options: DataOptions) -> None:
    """Warns about text that gives poor data; raises InputError if it cannot be used."""
    if not corpus.documents:
        raise InputError(
            f"{', '.join(options.input_files)}: there is no sentence in the input; "
            "give text with one sentence per line and a blank line between documents.")
    if corpus.documents == 1:
        if options.instances.random_next_sentence:
            raise InputError(
                "The input is one document, but --random_next_sentence takes second "
                "segments from other documents; put a blank line between documents.")
        logging.warning(
            "The input is one document, because there is no blank line between "
            "sentences. With --single_segment=random, second segments that should come "
            "from a different document are taken from elsewhere in this one. Put a "
            "blank line between documents.")
    unknown_share = corpus.unknown_pieces / corpus.pieces
    if unknown_share > _MANY_UNKNOWN:
        logging.warning(
            "%.1f %% of the tokens are unknown, so the vocabulary does not fit the "
            "text. Check its language and --do_lower_case.", 100 * unknown_share)
    if (options.instances.single_segment == "random" and
            corpus.single_sentence_documents > corpus.documents / 2):
        logging.warning(
            "%d of %d documents are a single sentence. All their instances get label "
            "1, from which the model learns nothing about sentence order; see "
            "--single_segment.",
            corpus.single_sentence_documents, corpus.documents)


def check_number(made: dict[str, Any], options: DataOptions) -> None:
    """Raises InputError if an output would be empty.

    `made` is the result of InstanceCounts.as_dict.
    """
    if not made["instances"]:
        raise InputError(
            "The input gives no instance, because all "
            f"{made['single_sentences_skipped']} chunks are single sentences, which "
            f"--single_segment={options.instances.single_segment} leaves out; give "
            "documents with more sentences or --single_segment=random.")
    if made["instances"] < len(options.output_files):
        raise InputError(
            f"The input gives {made['instances']} instances, too few for "
            f"{len(options.output_files)} output files; give more text or fewer output "
            "files.")


# ---- room on the disk and in memory ----------------------------------------

# The estimate tokenizes a small sample of the text. The number of instances of a
# document is about its tokens divided by the length that sequences aim at, at least 1.
_FILES, _BLOCK_BYTES = 4, 1 << 16  # the files in the sample, and the bytes of each
_FRAME_BYTES = 16  # the length and the checksums of a record
_PLAN_BYTES = 50  # the size of an instance in unfinished work
_MEMORY_OF_PIECE = 9  # bytes for a token if all documents are held as lists


@dataclasses.dataclass(frozen=True)
class Estimate:
    """The expected size of a data set, accurate to about 20 %."""

    text_bytes: int
    pieces: float
    instances: float
    record_bytes: float  # of all instances together
    work_bytes: float  # of unfinished work, without the records


def estimate(options: DataOptions, encoder: PieceEncoder,
             text_bytes: int) -> Estimate:
    """Returns the expected size of the data set; `text_bytes` are decompressed."""
    goal = options.instances.max_pieces * (1 - options.instances.short_seq_prob / 2)
    codes, num_bytes, instances = [np.zeros(1, encoder.dtype)], 1, 0.0
    step = max(1, len(options.input_files) // _FILES)
    for path in options.input_files[::step][:_FILES]:
        for lines in _first_documents(path, encoder):
            num_bytes += sum(len(line.encode()) + 1 for line in lines)
            codes.append(encoder.encode(lines).codes)
            instances += max(len(codes[-1]) / goal, len(codes[-1]) > 0)
    ids = np.concatenate(codes) >> 1
    scale = text_bytes / num_bytes
    pieces, instances = len(ids) * scale, instances * scale * options.dupe_factor
    return Estimate(
        text_bytes, pieces, instances, instances * _record_bytes(options, ids),
        pieces * ids.itemsize + instances * _PLAN_BYTES)


def _first_documents(path: str, encoder: PieceEncoder) -> list[list[str]]:
    """Returns prepared documents from a file's start; the last may be cut short."""
    for block in read_span(
            [path], plan_spans([path])[0], encoder.prepare, _BLOCK_BYTES):
        bounds = sorted({0, *block.first, len(block.lines)})
        return [block.lines[start:end] for start, end in zip(bounds, bounds[1:])]
    return []


def _record_bytes(options: DataOptions, ids: np.ndarray) -> int:
    """Returns the size in bytes of a record that is filled with these ids."""
    masking = options.instances.masking
    length, slots = options.instances.max_seq_length, masking.num_prediction_slots
    masked = int(masking.num_to_predict(length)) if masking.masked_lm_prob else 0
    spec, ones = pretraining_spec(length, slots), np.ones(length, np.int64)
    labels = np.pad(np.resize(ids, masked), (0, slots - masked)[:2])
    return _FRAME_BYTES + len(spec.serialize({
        "input_ids": np.resize(ids, length), "input_mask": ones, "segment_ids": ones,
        "token_boundary": ones, "masked_lm_positions": labels % length,
        "masked_lm_ids": labels, "masked_lm_weights": np.zeros(slots, np.float32),
        "next_sentence_labels": [1]}))


def check_room(options: DataOptions, encoder: PieceEncoder, text_bytes: int,
               work_dir: str = "", in_memory: bool = False) -> None:
    """Logs what will be written; raises InputError if disk or memory is too small."""
    expected = estimate(options, encoder, text_bytes)
    size = (f"about {expected.instances:,.0f} instances, "
            f"{amount(expected.record_bytes)} (text of {amount(text_bytes)}, "
            f"--dupe_factor={options.dupe_factor}, "
            f"--max_seq_length={options.instances.max_seq_length})")
    logging.info("The records will be %s.", size)
    advice = ("a smaller --dupe_factor, or write each record once and mask it during "
              "training (--masked_lm_prob=0 --dupe_factor=1, and --dynamic_masking in "
              "run_pretraining.py)")
    outputs = os.path.dirname(options.output_files[0])
    # Files of an unfinished run that is resumed need no more space.
    done = sum(files.size(os.path.join(work_dir, name))
               for name in (files.names_in(work_dir) if work_dir else []))
    for folder, needed in (
            (work_dir or outputs, expected.record_bytes + expected.work_bytes - done),
            (outputs, expected.record_bytes - done)):
        free = _free(folder)
        if needed > free:
            raise InputError(
                f"The records will be {size}. With unfinished work they need "
                f"{amount(needed)} of disk space, but {folder or '.'} has "
                f"{amount(free)} free; make room, write to a different disk "
                f"(--output_file, --work_dir), give {advice}.")
    needed = expected.record_bytes + _MEMORY_OF_PIECE * expected.pieces
    if in_memory and needed > (free := parallel.available_memory()):
        raise InputError(
            f"--reproduce_release holds everything in memory: {size}. This needs "
            f"{amount(needed)}, but {amount(free)} are free; leave the flag out, or "
            f"give {advice}.")


def _free(folder: str) -> float:
    """Returns the free disk space in bytes for a folder, which may not exist yet."""
    if files.is_remote(folder):
        return float("inf")
    folder = os.path.abspath(folder)
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    return shutil.disk_usage(folder).free
