"""Checks before data is made and between steps: what cannot be made, what is poor, what
a disk or a memory has no room for.
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

# Above this share of unknown pieces the vocabulary does not suit the text.
_MANY_UNKNOWN = 0.02


def check(options: DataOptions, tokenizer: FullTokenizer) -> None:
    """Checks, before any work, what flags and names of files can show."""
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
            "--word_start=sentencepiece needs --spm_model_file: a WordPiece "
            "vocabulary marks words in its own way.")
    instances, masking = options.instances, options.instances.masking
    wanted = round(instances.max_seq_length * masking.masked_lm_prob)
    if wanted > masking.max_predictions_per_seq:
        logging.warning(
            "max_predictions_per_seq=%d masks %.1f %% of a sequence of %d pieces; "
            "masked_lm_prob=%g would take %d.", masking.max_predictions_per_seq,
            100 * masking.max_predictions_per_seq / instances.max_seq_length,
            instances.max_seq_length, masking.masked_lm_prob, wanted)


def _check_no_other_shards(paths: tuple[str, ...]) -> None:
    """Refuses to mix shards with those of a data set cut otherwise."""
    names = {os.path.abspath(path) for path in paths if not files.is_remote(path)}
    for name in sorted({SHARD.sub("", name) for name in names}):
        folder = os.path.dirname(name)
        pattern = re.compile(re.escape(os.path.basename(name)) + SHARD.pattern)
        others = sorted(
            other for other in os.listdir(folder)
            if pattern.fullmatch(other) and os.path.join(folder, other) not in names)
        if others:
            raise InputError(
                f"--output_file: {os.path.join(folder, others[0])} is a shard of "
                "another run, which a pattern for the new files would match too; "
                "remove the files of that run, or choose another name.")


def check_text(corpus: CorpusCounts, options: DataOptions) -> None:
    """Warns of text that gives poor data; refuses what cannot be made."""
    if not corpus.documents:
        raise InputError(
            f"{', '.join(options.input_files)}: there is no sentence in the input; "
            "give text with a sentence a line and a blank line between documents.")
    if corpus.documents == 1:
        if options.instances.random_next_sentence:
            raise InputError(
                "The input is one document, but --random_next_sentence takes second "
                "segments from other documents; put a blank line between documents.")
        logging.warning(
            "The input is one document: there is no blank line between sentences. "
            "Second segments that should come from another document (where a chunk "
            "is one sentence, with --single_segment=random) come from elsewhere in "
            "this one. Put a blank line between documents.")
    unknown_share = corpus.unknown_pieces / corpus.pieces
    if unknown_share > _MANY_UNKNOWN:
        logging.warning(
            "%.1f %% of the pieces are unknown: the vocabulary does not suit the "
            "text (its language, or --do_lower_case).", 100 * unknown_share)
    if (options.instances.single_segment == "random" and
            corpus.single_sentence_documents > corpus.documents / 2):
        logging.warning(
            "%d of %d documents are one sentence: their instances all get the label "
            "1, which says nothing of sentence order; see --single_segment.",
            corpus.single_sentence_documents, corpus.documents)


def check_number(made: dict[str, Any], options: DataOptions) -> None:
    """Refuses to write an output without a record; `made` is InstanceCounts.as_dict."""
    if not made["instances"]:
        raise InputError(
            "The input gives no instance: all "
            f"{made['single_sentences_skipped']} chunks are single sentences, which "
            f"--single_segment={options.instances.single_segment} leaves out; give "
            "documents of more sentences or --single_segment=random.")
    if made["instances"] < len(options.output_files):
        raise InputError(
            f"The input gives {made['instances']} instances, too few for "
            f"{len(options.output_files)} output files; give more text or fewer "
            "names in --output_file.")


# ---- room on the disk and in memory ----------------------------------------

# A small part of the text is tokenized. Instances are about its tokens by the length
# that sequences aim at, and one more for each document, whose last one is not full.
_FILES, _BLOCK_BYTES = 4, 1 << 16  # that are looked at, and of each
_FRAME_BYTES = 16  # length and checksums of a record
_PLAN_BYTES = 50  # of an instance in unfinished work
_MEMORY_OF_PIECE = 9  # where all documents are held, as lists of pieces


@dataclasses.dataclass(frozen=True)
class Estimate:
    """What a data set will hold, within a fifth."""

    text_bytes: int
    pieces: float
    instances: float
    record_bytes: float  # of all instances
    work_bytes: float  # of unfinished work besides the records


def estimate(options: DataOptions, encoder: PieceEncoder,
             text_bytes: int) -> Estimate:
    """Of a text of so many bytes, decompressed."""
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
    """Prepared documents at a file's start, the last one perhaps cut short."""
    for block in read_span(
            [path], plan_spans([path])[0], encoder.prepare, _BLOCK_BYTES):
        bounds = sorted({0, *block.first, len(block.lines)})
        return [block.lines[start:end] for start, end in zip(bounds, bounds[1:])]
    return []


def _record_bytes(options: DataOptions, ids: np.ndarray) -> int:
    """Bytes of a record full of these ids."""
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
    """Logs what will be written; refuses what the disk, or the memory, has not got."""
    found = estimate(options, encoder, text_bytes)
    size = (f"about {found.instances:,.0f} instances, {amount(found.record_bytes)} "
            f"(text of {amount(text_bytes)}, --dupe_factor={options.dupe_factor}, "
            f"--max_seq_length={options.instances.max_seq_length})")
    logging.info("The records will be %s.", size)
    advice = ("a smaller --dupe_factor, or write each record once, to be masked in "
              "training (--masked_lm_prob=0 --dupe_factor=1, and --dynamic_masking in "
              "run_pretraining.py)")
    outputs = os.path.dirname(options.output_files[0])
    # What unfinished work holds is not written again.
    done = sum(files.size(os.path.join(work_dir, name))
               for name in (files.names_in(work_dir) if work_dir else []))
    for folder, needed in (
            (work_dir or outputs, found.record_bytes + found.work_bytes - done),
            (outputs, found.record_bytes - done)):
        free = _free(folder)
        if needed > free:
            raise InputError(
                f"the records will be {size}, and need {amount(needed)} of disk with "
                f"unfinished work, but {folder or '.'} has {amount(free)} free; make "
                f"room, write elsewhere (--output_file, --work_dir), give {advice}.")
    needed = found.record_bytes + _MEMORY_OF_PIECE * found.pieces
    if in_memory and needed > (free := parallel.available_memory()):
        raise InputError(
            f"--reproduce_release holds all in memory: {size}, which takes "
            f"{amount(needed)}, but {amount(free)} are free; leave it out, or give "
            f"{advice}.")


def _free(folder: str) -> float:
    """Bytes of disk free for a folder, which may not be there yet."""
    if files.is_remote(folder):
        return float("inf")
    folder = os.path.abspath(folder)
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    return shutil.disk_usage(folder).free
