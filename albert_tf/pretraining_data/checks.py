"""Checks of data creation: impossible settings, and text that gives poor data."""

import os
import shutil
from typing import Sequence

from absl import logging

from albert_tf import files, text_files
from albert_tf.errors import InputError
from albert_tf.jobs.progress import amount
from albert_tf.pretraining_data.encoder import PieceEncoder
from albert_tf.pretraining_data.job_options import DataOptions, SHARD
from albert_tf.pretraining_data.spans import Span, read_span
from albert_tf.pretraining_data.summary import (
    CorpusCounts, InstanceCounts, summary_path)
from albert_tf.tokenization.tokenizer import FullTokenizer

# If more tokens than this share are unknown, the vocabulary does not fit the text.
_MANY_UNKNOWN = 0.02
_SAMPLE_BYTES = 1 << 16  # bytes at the beginning of the text that are counted


def check(options: DataOptions, tokenizer: FullTokenizer) -> None:
    """Checks flags and file names before any work."""
    text_files.check_sentences(options.input_files)
    files.prepare_outputs(
        {"--output_file": options.output_files,
         "the summary of --output_file": [summary_path(options.output_files[0])]},
        {"--input_file": options.input_files,
         "the vocabulary": [tokenizer.vocabulary_path]})
    _check_no_other_shards(options.output_files)
    masking, length = options.instances.masking, options.instances.max_seq_length
    wanted = round(length * masking.masked_lm_prob)
    if wanted > masking.max_predictions_per_seq:
        logging.warning(
            "--max_predictions_per_seq=%d is fewer than the %d tokens that "
            "--masked_lm_prob=%g masks of %d.", masking.max_predictions_per_seq, wanted,
            masking.masked_lm_prob, length)


def _check_no_other_shards(paths: tuple[str, ...]) -> None:
    """Refuses shards of a data set with other shard numbers."""
    names = {path if files.is_remote(path) else os.path.abspath(path) for path in paths}
    for folder, name in {os.path.split(SHARD.sub("", name)) for name in names}:
        for other in files.names_in(folder):
            path = os.path.join(folder, other)
            if path not in names and other != name and SHARD.sub("", other) == name:
                raise InputError(
                    f"--output_file: {path} is a shard from a different run, which a "
                    "pattern for the new files would match too; remove that run's files.")


def estimate(options: DataOptions, encoder: PieceEncoder, spans: Sequence[Span],
             folder: str) -> None:
    """Logs how much will be written, from the beginning of the text; warns if the disk of
    `folder` has too little room for it and for unfinished work."""
    block = next(read_span(options.input_files, spans[0], encoder.prepare,
                           _SAMPLE_BYTES), None)
    if not block:
        return
    lengths = encoder.encode(block.lines).lengths
    text_bytes = sum(span.num_bytes for span in spans)
    copies = options.dupe_factor * text_bytes / len("\n".join(block.lines).encode())
    # One target length in ten is shorter, a sequence's last sentence is cut on average in
    # its middle, and a document's last sequence is half full.
    length = options.instances.max_seq_length
    instances = copies * (len(block.first) / 2 + lengths.sum() / (
        0.95 * length + lengths.mean() / 2))
    # A token has an id of one to three bytes, and three numbers of a byte.
    records = instances * (
        4.8 * length + 8 * options.instances.masking.num_prediction_slots + 180)
    logging.info("The records will be about %s instances, %s; until the end they take "
                 "twice the space.", f"{instances:,.0f}", amount(records))
    while folder and not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    if (free := shutil.disk_usage(folder or ".").free) < 2 * records:
        logging.warning("%s has %s free.", folder or "This folder", amount(free))


def check_text(corpus: CorpusCounts, options: DataOptions) -> None:
    """Warns about text that gives poor data; raises InputError if it cannot be used."""
    if not corpus.documents:
        raise InputError(
            f"{', '.join(options.input_files)}: there is no sentence in the input; "
            "give text with one sentence per line and a blank line between documents.")
    instances, alone = options.instances, corpus.documents == 1
    if alone and instances.random_next_sentence:
        raise InputError(
            "The input is one document, but --sentence_objective=next takes second "
            "segments from other documents; put a blank line between documents.")
    if corpus.documents_alone and instances.random_next_sentence or alone and (
            instances.sentence_objective, instances.single_segment) == (
                "order", "random"):
        logging.warning(
            "Second segments that should come from a different document come from the "
            "same one, where that is the only one or very long. Put a blank line "
            "between documents.")
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
            f"The input gives no instance, because all {made.skipped} chunks are single "
            "sentences; give longer documents or --single_segment=random.")
    if number < len(options.output_files):
        raise InputError(
            f"The input gives {number} instances, too few for {len(options.output_files)} "
            "output files; give more text or fewer files.")
