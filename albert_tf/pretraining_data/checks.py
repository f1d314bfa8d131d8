"""Checks before and during data creation: impossible settings, text that gives poor
data, and too little disk space or memory.
"""

import itertools
import os
import re
import shutil
from typing import Sequence

import numpy as np
from absl import logging

from albert_tf import files, row_files, text_files
from albert_tf.errors import InputError
from albert_tf.jobs import parallel
from albert_tf.jobs.progress import amount
from albert_tf.pretraining_data.encoder import PieceEncoder
from albert_tf.pretraining_data.options import DataOptions, SHARD
from albert_tf.pretraining_data.spans import Span, read_span
from albert_tf.pretraining_data.summary import (
    CorpusCounts, InstanceCounts, summary_path)
from albert_tf.tokenization.tokenizer import FullTokenizer

# If more tokens than this share are unknown, the vocabulary does not fit the text.
_MANY_UNKNOWN = 0.02


def check(options: DataOptions, tokenizer: FullTokenizer) -> None:
    """Checks flags and file names before any work, and makes the output folders."""
    for path in options.input_files:
        if row_files.is_row_file(path):
            raise InputError(f"--input_file: {path} is not text; prepare_corpus.py reads "
                             "it and writes the text.")
        _check_line_ends(path)
    files.prepare_outputs(
        {"--output_file": options.output_files,
         "the summary of --output_file": [summary_path(options.output_files[0])]},
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


def _check_line_ends(path: str) -> None:
    """Raises InputError if a file cannot be opened, or if carriage returns alone
    separate its lines."""
    with files.open_binary(path) as stream:
        try:
            start = text_files.decompressed(path, stream).read(_BLOCK_BYTES)
        except text_files.READ_ERRORS:
            return  # Reading all of it reports the damage, with the line.
    if b"\r" in start.rstrip() and b"\n" not in start:
        raise InputError(
            f"{path}: its lines end in carriage returns alone, as on old Macs, so that "
            "the whole file would be one line. Convert it with prepare_corpus.py, or "
            "with tr '\\r' '\\n'.")


def _check_no_other_shards(paths: tuple[str, ...]) -> None:
    """Raises InputError if shards of a data set with other shard numbers are there."""
    names = {path if files.is_remote(path) else os.path.abspath(path) for path in paths}
    for name in sorted({SHARD.sub("", name) for name in names}):
        folder = os.path.dirname(name)
        pattern = re.compile(re.escape(os.path.basename(name)) + SHARD.pattern)
        others = sorted(
            other for other in files.names_in(folder)
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
                "The input is one document, but --sentence_objective=next (or "
                "--random_next_sentence) takes second segments from other documents; put "
                "a blank line between documents.")
        if (options.instances.sentence_objective == "order"
                and options.instances.single_segment == "random"):
            logging.warning(
                "The input is one document, because there is no blank line between "
                "sentences. With --single_segment=random, second segments that should "
                "come from a different document are taken from elsewhere in this one. "
                "Put a blank line between documents.")
    elif options.instances.random_next_sentence and corpus.documents_alone:
        logging.warning(
            "%d documents are so long that their second segments, which should come "
            "from a different document, come from the same one. Split them by blank "
            "lines.",
            corpus.documents_alone)
    unknown_share = corpus.unknown_pieces / corpus.pieces
    if unknown_share > _MANY_UNKNOWN:
        logging.warning(
            "%.1f %% of the tokens are unknown, so the vocabulary does not fit the "
            "text. Check its language and --do_lower_case.", 100 * unknown_share)


def check_number(made: InstanceCounts, options: DataOptions) -> None:
    """Raises InputError if an output would be empty."""
    number = sum(made.lengths.values())
    if not number:
        raise InputError(
            f"The input gives no instance, because all {made.skipped} chunks are "
            "single sentences, which --single_segment=skip leaves out; give documents "
            "with more sentences or --single_segment=random.")
    if number < len(options.output_files):
        raise InputError(
            f"The input gives {number} instances, too few for "
            f"{len(options.output_files)} output files; give more text or fewer output "
            "files.")


# ---- room on the disk and in memory ----------------------------------------

_BLOCK_BYTES = 1 << 16  # the bytes at the beginning of the text that are counted
_MEMORY_OF_PIECE = 9  # bytes for a token if all documents are held as lists


def _counted(paths: Sequence[str], spans: Sequence[Span], encoder: PieceEncoder,
             text_bytes: int) -> np.ndarray:
    """Returns the numbers of tokens, sentences and documents in a text of this size,
    from its beginning."""
    blocks = (read_span(paths, span, encoder.prepare, _BLOCK_BYTES) for span in spans)
    block = next(itertools.chain.from_iterable(blocks), None)
    if block is None:
        return np.zeros(3)
    lengths = encoder.encode(block.lines).lengths
    found = [lengths.sum(), np.count_nonzero(lengths), len(block.first)]
    return np.array(found) * text_bytes / sum(
        len(line.encode()) + 1 for line in block.lines)


def check_room(options: DataOptions, encoder: PieceEncoder, spans: Sequence[Span],
               work_dir: str = "", in_memory: bool = False) -> None:
    """Logs what will be written; raises InputError if disk or memory is too small."""
    length = options.instances.max_seq_length
    text_bytes = sum(span.num_bytes for span in spans)
    tokens, sentences, documents = _counted(
        options.input_files, spans, encoder, text_bytes)
    # The last sentence of a sequence is cut on average in its middle, one target length
    # in ten is shorter, and a document's last sequence is half full.
    instances = options.dupe_factor * (documents / 2 + tokens / (
        0.95 * length + tokens / max(sentences, 1) / 2))
    # A token has an id of one to three bytes, and three numbers of a byte.
    records = instances * (
        4.8 * length + 8 * options.instances.masking.num_prediction_slots + 180)
    size = (f"about {instances:,.0f} instances, {amount(records)} (text of "
            f"{amount(text_bytes)}, --dupe_factor={options.dupe_factor}, "
            f"--max_seq_length={length})")
    logging.info("The records will be %s.", size)
    advice = ("a smaller --dupe_factor, or write each record once and mask it during "
              "training (--masked_lm_prob=0 --dupe_factor=1, and --dynamic_masking in "
              "run_pretraining.py)")
    outputs = os.path.dirname(options.output_files[0])
    # Files of an unfinished run that is resumed need no more space.
    done = sum(files.size(os.path.join(work_dir, name))
               for name in (files.names_in(work_dir) if work_dir else []))
    # Packs take at most half as much as the records, and are removed before joining.
    folders = [work_dir or outputs, outputs]
    disks, room = zip(*map(_disk, folders))
    most = 1 if in_memory else 2 if len({*disks}) == 1 else 1.5
    for folder, free, needed in zip(folders, room, (most * records - done, records)):
        if needed > free:
            raise InputError(
                f"The records will be {size}. With unfinished work they need "
                f"{amount(needed)} of disk space, but {folder or '.'} has "
                f"{amount(free)} free; make room, write to a different disk "
                f"(--output_file, --work_dir), give {advice}.")
    needed = records + _MEMORY_OF_PIECE * tokens
    if in_memory and needed > (free := parallel.available_memory()):
        raise InputError(
            f"--reproduce_release holds everything in memory: {size}. This needs "
            f"{amount(needed)}, but {amount(free)} are free; leave the flag out, or "
            f"give {advice}.")


def _disk(folder: str) -> tuple[int, float]:
    """Returns the number and the free bytes of the disk for a folder, which may not
    exist yet."""
    if files.is_remote(folder):
        return -1, float("inf")
    folder = os.path.abspath(folder)
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    return os.stat(folder).st_dev, shutil.disk_usage(folder).free
