"""Text files → TFRecords for pretraining: reading, making, writing, summing up.

Input: a sentence a line, a blank line between documents. What an instance is
made of is decided in `pretraining_instances` and `masking`; here are files,
checks, progress and the summary.
"""

import contextlib
import dataclasses
import json
import os
import time
from typing import Any, Iterator, Optional, Sequence

from absl import logging

from albert_tf import files, run_log, sequences, task_folder
from albert_tf.errors import InputError
from albert_tf.masking import RandomSource
from albert_tf.pretraining_instances import (
    Document, Instance, InstanceOptions, Pieces, create_instances)
from albert_tf.pretraining_summary import CorpusCounts, InstanceCounts, describe
from albert_tf.records import FeatureSpec, RecordWriter, pretraining_spec
from albert_tf.tokenization import FullTokenizer

_LINES_PER_BATCH = 4096
_SECONDS_BETWEEN_LINES = 10
# Above this share of unknown pieces the vocabulary does not suit the text.
_MANY_UNKNOWN = 0.02


@dataclasses.dataclass(frozen=True)
class DataOptions:
    """One run of create_pretraining_data; fields as the flags, globs expanded.

    Attributes:
      input_files: text files, in the order in which they are read.
      output_files: TFRecord files, filled in turn.
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

    The name differs at its start, so that no glob for the outputs takes it in.
    """
    folder, name = os.path.split(output_file)
    return os.path.join(folder, f"summary-{name}.json")


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


def _same_file(path: str, other: str) -> bool:
    if files.is_remote(path) or files.is_remote(other):
        return path == other
    return os.path.realpath(path) == os.path.realpath(other)


class _Progress:
    """A line on the log now and then: how far, how fast, how long still.

    Args:
      doing: what goes on, to begin the line with.
      unit: what is counted.
      total: how many there are; None if that is not known.
    """

    def __init__(self, doing: str, unit: str, total: Optional[int]):
        self._doing, self._unit, self._total = doing, unit, total
        self._begin = self._last = time.monotonic()

    def update(self, done: int, more: str = "") -> None:
        """Tells of `done` units, and of `more` at the end of a line that is due."""
        now = time.monotonic()
        if now - self._last < _SECONDS_BETWEEN_LINES:
            return
        self._last = now
        rate = done / max(now - self._begin, 1e-9)
        line = f"{self._doing}: {done:,}"
        if self._total:
            line += f" of {self._total:,} {self._unit} ({done / self._total:.1%})"
            left = max(self._total - done, 0) / rate
            line += f", {run_log.duration(left)} left"
        else:
            line += f" {self._unit}"
        logging.info("%s, %s %s/s%s", line, f"{rate:,.0f}", self._unit, more)


def _batches_of_lines(paths: Sequence[str]) -> Iterator[list[str]]:
    batch = []
    for path in paths:
        for _, line in files.read_lines(path):
            batch.append(line)
            if len(batch) == _LINES_PER_BATCH:
                yield batch
                batch = []
    yield batch


def read_documents(
        paths: Sequence[str],
        tokenizer: FullTokenizer) -> tuple[list[Document], CorpusCounts]:
    """Reads and tokenizes documents, each once.

    A document ends at a blank line; where a file does not end in one, its last
    document goes on in the next file, as in the release.

    Args:
      paths: text files, a sentence a line.
      tokenizer: gives the pieces.

    Returns:
      The documents that have a sentence, in order; equal pieces are one object.

    Raises:
      InputError: if a line is not UTF-8, or there is no sentence at all.
    """
    local = not any(map(files.is_remote, paths))
    total = sum(map(os.path.getsize, paths)) if local else None
    progress = _Progress("tokenizing", "bytes", total)
    documents, counts, known = [[]], CorpusCounts(), {}
    num_bytes = 0
    for lines in _batches_of_lines(paths):
        # WordPiece cleans while it tokenizes; white space alone is blank to it too.
        prepared = [tokenizer.prepare(line).strip() for line in lines]
        for line, text, found in zip(
                lines, prepared, tokenizer.tokenize_batch(prepared)):
            num_bytes += len(line.encode()) + 1
            if not text:
                documents.append([])
            if not found:
                counts.lines_without_pieces += bool(text)
                continue
            segment = [known.setdefault(piece, piece) for piece in found]
            documents[-1].append(segment)
            counts.pieces += len(segment)
        progress.update(num_bytes)
    documents = [document for document in documents if document]
    if not documents:
        raise InputError(
            f"{', '.join(paths)}: there is no sentence in the input; give text with "
            "a sentence a line and a blank line between documents.")
    counts.documents = len(documents)
    counts.sentences = sum(map(len, documents))
    counts.single_sentence_documents = sum(len(d) == 1 for d in documents)
    unk_id = tokenizer.unk_id
    unknown = {p for p in known if tokenizer.vocab.get(p, unk_id) == unk_id}
    counts.unknown_pieces = sum(
        piece in unknown for d in documents for segment in d for piece in segment)
    return documents, counts


def features_of(instance: Instance, tokenizer: FullTokenizer,
                options: InstanceOptions) -> dict[str, list]:
    """An instance as the values of a record, padded; names as on disk."""
    slots = options.masking.num_prediction_slots
    labels = tokenizer.convert_tokens_to_ids(instance.masked_lm_labels)
    return {
        **sequences.pad_inputs(
            tokenizer.convert_tokens_to_ids(instance.tokens), instance.segment_ids,
            options.max_seq_length),
        "token_boundary": sequences.pad(
            instance.token_boundary, options.max_seq_length),
        "masked_lm_positions": sequences.pad(instance.masked_lm_positions, slots),
        "masked_lm_ids": sequences.pad(labels, slots),
        "masked_lm_weights": sequences.pad([1.0] * len(labels), slots, 0.0),
        "next_sentence_labels": [instance.label],
    }


def make_records(
        documents: list[Document], tokenizer: FullTokenizer, options: DataOptions,
        random: RandomSource) -> tuple[list[bytes], InstanceCounts]:
    """Serialized instances of all documents, shuffled.

    Args:
      documents: from read_documents; shuffled in place, as the release does.
      tokenizer: the one that made their pieces.
      options: what to make.
      random: shuffles the documents, makes the instances, shuffles those.

    Returns:
      Records, and counts over their instances.
    """
    rule = options.word_start if tokenizer.uses_sentencepiece else "wordpiece"
    pieces = Pieces.of(tokenizer.vocab, rule)
    spec: FeatureSpec = pretraining_spec(
        options.instances.max_seq_length,
        options.instances.masking.num_prediction_slots)
    counts = InstanceCounts(options.instances.max_seq_length)
    random.python.shuffle(documents)
    progress = _Progress(
        "instances", "documents", options.dupe_factor * len(documents))
    records, done = [], 0
    for _ in range(options.dupe_factor):
        for index in range(len(documents)):
            walk = create_instances(
                documents, index, pieces, options.instances, random)
            counts.add(walk)
            # Serialized at once: that takes a fraction of an instance's memory.
            records += [
                spec.serialize(features_of(instance, tokenizer, options.instances))
                for instance in walk.instances]
            done += 1
            progress.update(done, f", {len(records):,} instances so far")
    random.python.shuffle(records)
    return records, counts


def write_outputs(records: Sequence[bytes], paths: Sequence[str],
                  summary: dict[str, Any]) -> None:
    """Writes records to the files in turn, and the summary: all files or none.

    Raises:
      InputError: if a file cannot be written; none is there then, and files of
        an earlier run stay as they were.
    """
    summary_file = summary_path(paths[0])
    staged = {path: f"{path}.unfinished-{os.getpid()}"
              for path in (*paths, summary_file)}
    try:
        with contextlib.ExitStack() as stack:
            writers = [stack.enter_context(RecordWriter(staged[path]))
                       for path in paths]
            for number, record in enumerate(records):
                writers[number % len(writers)].write(record)
        with files.atomic_write(staged[summary_file]) as stream:
            stream.write((json.dumps(summary, indent=1) + "\n").encode())
        # All are whole now; renaming takes no space and no time.
        for path, whole in staged.items():
            files.rename(whole, path)
    finally:
        for whole in staged.values():
            files.remove(whole)


def create(options: DataOptions, tokenizer: FullTokenizer,
           random: Optional[RandomSource] = None) -> dict[str, Any]:
    """Makes a pretraining data set.

    Args:
      options: what to make, from and into which files.
      tokenizer: gives pieces and ids.
      random: by default both generators come from options.random_seed.

    Returns:
      The summary, as in the JSON file beside the first output.

    Raises:
      InputError: if something in the input is wrong; no output is written then.
    """
    check_files(options)
    if options.word_start == "sentencepiece" and not tokenizer.uses_sentencepiece:
        raise InputError(
            "--word_start=sentencepiece needs --spm_model_file: a WordPiece "
            "vocabulary marks words in its own way.")
    _warn_of_few_predictions(options.instances)
    begin = time.monotonic()
    documents, corpus = read_documents(options.input_files, tokenizer)
    logging.info("Read %d documents in %s.", len(documents),
                 run_log.duration(time.monotonic() - begin))
    _check_documents(corpus, options.instances)
    begin = time.monotonic()
    records, counts = make_records(
        documents, tokenizer, options,
        random or RandomSource.from_seed(options.random_seed))
    seconds = time.monotonic() - begin
    made = counts.as_dict()
    _check_number(made, options)
    summary = {
        "settings": dataclasses.asdict(options),
        "vocabulary": {
            "kind": "SentencePiece" if tokenizer.uses_sentencepiece else "WordPiece",
            **task_folder.vocabulary_of(tokenizer.vocabulary_path),
            "size": tokenizer.vocab_size,
            "do_lower_case": tokenizer.do_lower_case},
        "text": corpus.as_dict(),
        **made}
    write_outputs(records, options.output_files, summary)
    logging.info("Made %d instances in %s, %.0f a second.", len(records),
                 run_log.duration(seconds), len(records) / max(seconds, 1e-9))
    for line in describe(corpus.as_dict(), made):
        logging.info("%s", line)
    for line in (*options.output_files, summary_path(options.output_files[0])):
        logging.info("wrote %s", line)
    return summary


def _check_number(made: dict[str, Any], options: DataOptions) -> None:
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


def _check_documents(corpus: CorpusCounts, options: InstanceOptions) -> None:
    """Warns of text that gives poor data; refuses what cannot be made."""
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
