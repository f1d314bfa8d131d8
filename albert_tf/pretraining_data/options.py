"""Text files → TFRecords for pretraining: what to make, checks, progress, summary.

Input: a sentence a line, a blank line between documents. Three modules make the
records: `local_data` on the cores of one machine, `beam_data` on a cluster, both the
same ones; `release_data` those of the release, bit for bit.
"""

import dataclasses
import json
import os
import re
from typing import Any, Callable

from absl import logging

from albert_tf import files
from albert_tf.errors import InputError
from albert_tf.pretraining_data.release_instances import InstanceOptions
from albert_tf.pretraining_data.summary import CorpusCounts, InstanceCounts, describe
from albert_tf.pretraining_data.summary_picture import draw_summary
from albert_tf.progress import duration
from albert_tf.tokenization.tokenizer import FullTokenizer, vocabulary_of

# Above this share of unknown pieces the vocabulary does not suit the text.
_MANY_UNKNOWN = 0.02
_SHARD = re.compile(r"-\d{5}-of-\d{5}$")


@dataclasses.dataclass(frozen=True)
class DataOptions:
    """One run of create_pretraining_data; fields as the flags, globs expanded.

    Attributes:
      input_files: text files, in the order in which they are read.
      output_files: TFRecord files, evenly filled.
      instances: how to cut and mask.
      dupe_factor: walks over each document, with other masks each time.
      word_start: which pieces start a word with SentencePiece: "release" or
        "sentencepiece".
      random_seed: fixes all that is random.

    Raises:
      InputError: if a value is out of its range or does not go with another.
    """

    input_files: tuple[str, ...]
    output_files: tuple[str, ...]
    instances: InstanceOptions = InstanceOptions()
    dupe_factor: int = 40
    word_start: str = "release"
    random_seed: int = 12345

    def __post_init__(self):
        if self.dupe_factor < 1:
            raise InputError(
                f"--dupe_factor={self.dupe_factor}: give a number of 1 or more.")
        if self.word_start not in ("release", "sentencepiece"):
            raise InputError(
                f"--word_start={self.word_start}: give release or sentencepiece.")
        if not self.output_files:
            raise InputError("--output_file names no file: give one or more paths.")
        if len(set(self.output_files)) < len(self.output_files):
            raise InputError("--output_file names a file twice; give each once.")


def summary_path(output_file: str) -> str:
    """Where the summary of a run goes: beside its first output.

    The name differs at its start, so that no glob for the outputs takes it in; the
    number of a shard is left out.
    """
    folder, name = os.path.split(_SHARD.sub("", output_file))
    return os.path.join(folder, f"summary-{name}.json")


def shard_names(output_file: str, num_shards: int) -> tuple[str, ...]:
    """`name-00000-of-00064` and so on; the name itself for one shard.

    Raises:
      InputError: if num_shards is out of range.
    """
    if not 1 <= num_shards <= 99_999:
        raise InputError(
            f"--num_shards={num_shards}: give a number from 1 to 99999.")
    if num_shards == 1:
        return (output_file,)
    return tuple(f"{output_file}-{number:05d}-of-{num_shards:05d}"
                 for number in range(num_shards))


def check(options: DataOptions, tokenizer: FullTokenizer) -> None:
    """Checks, before any work, all that can be told from flags and names.

    Raises:
      InputError: names the flag or the file and what is wrong with it.
    """
    check_files(options)
    if options.word_start == "sentencepiece" and not tokenizer.uses_sentencepiece:
        raise InputError(
            "--word_start=sentencepiece needs --spm_model_file: a WordPiece "
            "vocabulary marks words in its own way.")
    _warn_of_few_predictions(options.instances)


def check_files(options: DataOptions) -> None:
    """Checks, before any work, that inputs can be read and outputs written.

    Raises:
      InputError: names the file and what is wrong with it.
    """
    for path in options.input_files:
        files.open_binary(path).close()
    for path in options.output_files:
        if not files.is_remote(path) and os.path.isdir(path):
            raise InputError(f"--output_file: {path} is a folder; give a file in it.")
        if any(_same_file(path, given) for given in options.input_files):
            raise InputError(
                f"--output_file: {path} is an input file too; choose another name.")
        files.make_directory(os.path.dirname(path) or ".", "--output_file")
    _check_no_other_shards(options.output_files)


def _check_no_other_shards(paths: tuple[str, ...]) -> None:
    """Refuses to mix with shards of a run that made another number of them."""
    names = {os.path.abspath(path) for path in paths if not files.is_remote(path)}
    for name in sorted({_SHARD.sub("", name) for name in names}):
        folder = os.path.dirname(name)
        pattern = re.compile(re.escape(os.path.basename(name)) + _SHARD.pattern)
        others = sorted(
            other for other in os.listdir(folder)
            if pattern.fullmatch(other) and os.path.join(folder, other) not in names)
        if others:
            raise InputError(
                f"--output_file: {os.path.join(folder, others[0])} is a shard of "
                "another run, which a pattern for the new files would take in too; "
                "remove the files of that run, or choose another name.")


def _same_file(path: str, other: str) -> bool:
    if files.is_remote(path) or files.is_remote(other):
        return path == other
    return os.path.realpath(path) == os.path.realpath(other)


def check_number(made: dict[str, Any], options: DataOptions) -> None:
    """Refuses to write an output without a record."""
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


def _warn_of_few_predictions(options: InstanceOptions) -> None:
    masking = options.masking
    wanted = round(options.max_seq_length * masking.masked_lm_prob)
    if wanted > masking.max_predictions_per_seq:
        logging.warning(
            "max_predictions_per_seq=%d masks %.1f %% of a sequence of %d pieces; "
            "masked_lm_prob=%g would take %d.", masking.max_predictions_per_seq,
            100 * masking.max_predictions_per_seq / options.max_seq_length,
            options.max_seq_length, masking.masked_lm_prob, wanted)


def check_text(corpus: CorpusCounts, options: DataOptions) -> None:
    """Warns of text that gives poor data; refuses what cannot be made.

    Raises:
      InputError: if there is no sentence, or one document where two are needed.
    """
    if not corpus.documents:
        raise InputError(
            f"{', '.join(options.input_files)}: there is no sentence in the input; "
            "give text with a sentence a line and a blank line between documents.")
    _check_documents(corpus, options.instances)


def _check_documents(corpus: CorpusCounts, options: InstanceOptions) -> None:
    if corpus.documents == 1:
        if options.random_next_sentence:
            raise InputError(
                "The input is one document, but --random_next_sentence takes second "
                "segments from other documents; put a blank line between documents.")
        logging.warning(
            "The input is one document: there is no blank line between sentences. "
            "Second segments that should come from another document (where a chunk "
            "is one sentence, with --single_segment=random) come from another place "
            "of this one. Put a blank line between documents.")
    unknown_share = corpus.unknown_pieces / corpus.pieces
    if unknown_share > _MANY_UNKNOWN:
        logging.warning(
            "%.1f %% of the pieces are unknown: the vocabulary does not suit the "
            "text (its language, or --do_lower_case).", 100 * unknown_share)
    if (options.single_segment == "random" and
            corpus.single_sentence_documents > corpus.documents / 2):
        logging.warning(
            "%d of %d documents are one sentence: their instances all get the label "
            "1, which tells nothing of sentence order; see --single_segment.",
            corpus.single_sentence_documents, corpus.documents)


def summary_of(options: DataOptions, tokenizer: FullTokenizer, corpus: CorpusCounts,
               made: InstanceCounts) -> dict[str, Any]:
    """What goes into the summary file: settings, vocabulary, counts."""
    return {
        "settings": dataclasses.asdict(options),
        "vocabulary": {
            "kind": "SentencePiece" if tokenizer.uses_sentencepiece else "WordPiece",
            **vocabulary_of(tokenizer.vocabulary_path),
            "size": tokenizer.vocab_size,
            "do_lower_case": tokenizer.do_lower_case,
            # For masking while training.
            "special_ids": {name: getattr(tokenizer, f"{name}_id")
                            for name in ("cls", "sep", "mask", "pad", "unk")}},
        "text": corpus.as_dict(),
        **made.as_dict()}


def summary_writers(summary: dict[str, Any], path: str) -> dict[str, Callable]:
    """The summary's files: path → function that writes it under a given path.

    Args:
      summary: from summary_of.
      path: of the JSON file; text and picture go beside it.
    """
    def write_json(to):
        with files.atomic_write(to) as stream:
            stream.write((json.dumps(summary, indent=1) + "\n").encode())

    def write_text(to):
        with files.atomic_write(to) as stream:
            stream.write("".join(
                f"{line}\n" for line in describe(summary["text"], summary)).encode())

    stem = path.removesuffix(".json")
    return {path: write_json, f"{stem}.txt": write_text,
            f"{stem}.png": lambda to: draw_summary(to, summary["text"], summary)}


def report(options: DataOptions, summary: dict[str, Any], seconds: float) -> None:
    """Tells on the log what was made and where it lies."""
    made = summary["instances"]
    logging.info("Made %d instances in %s, %.0f a second.", made,
                 duration(seconds), made / max(seconds, 1e-9))
    for line in describe(summary["text"], summary):
        logging.info("%s", line)
    shown = options.output_files
    if len(shown) > 4:
        shown = (*shown[:2], "...", shown[-1])
    for line in (*shown, summary_path(options.output_files[0])):
        logging.info("wrote %s", line)
