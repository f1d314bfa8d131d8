"""Checks before data is made and between steps: what cannot be made, what is poor."""

import os
import re
from typing import Any

from absl import logging

from albert_tf import files
from albert_tf.errors import InputError
from albert_tf.pretraining_data.options import DataOptions, SHARD
from albert_tf.pretraining_data.summary import CorpusCounts, summary_paths
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
