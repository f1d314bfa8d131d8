"""The checks of data creation, and its summary: counts, shares and lengths, as JSON.

Counts are filled on any number of workers, passed on as JSON, and merged.
"""

import bisect
import collections
import contextlib
import dataclasses
import itertools
import json
import os
import shutil
import time
from typing import Any, Iterable, Iterator, Mapping, Sequence

import numpy as np
from absl import logging

from albert_tf import files, rows
from albert_tf.errors import InputError
from albert_tf.jobs.progress import amount, duration
from albert_tf.masking.options import MASK
from albert_tf.pretraining_data.encoder import PieceEncoder
from albert_tf.pretraining_data.instances import Instance
from albert_tf.pretraining_data.options import DataOptions, LABEL_1, ORIGINS, SHARD
from albert_tf.pretraining_data.spans import Span, read_span
from albert_tf.tokenization.tokenizer import FullTokenizer, vocabulary_of

_SHOWN = ("mask", "same", "other")  # the replacements of a masked token
# Ordinary sentences stay below these shares: label 1 exceeds one half where text ends
# in single sentences, and the last sentence of a chunk is cut. If more tokens are
# unknown, the vocabulary does not fit the text.
_MUCH_LABEL_1, _MUCH_CUT, _MUCH_UNKNOWN = 0.65, 0.25, 0.02


def _counter():
    return dataclasses.field(default_factory=collections.Counter)


@dataclasses.dataclass
class InstanceCounts:
    """Counts over a data set: over the text, filled while it is read, and over the
    instances, filled while they are planned and masked."""

    documents: int = 0  # with at least one sentence
    sentences: int = 0  # lines with tokens
    pieces: int = 0
    unknown_pieces: int = 0
    lines_without_pieces: int = 0  # lines that are not blank but have no tokens
    single_sentence_documents: int = 0
    # Documents of about the size of a slice (local), which holds no other.
    documents_alone: int = 0
    # The first of the instances' counts.
    lengths: collections.Counter = _counter()  # instances by length in tokens
    origins: collections.Counter = _counter()  # instances by second segment's origin
    ngrams: collections.Counter = _counter()  # masked n-grams by number of words
    shown: collections.Counter = _counter()  # masked tokens by replacement
    masked: collections.Counter = _counter()  # instances by number of masked tokens
    cut: int = 0  # tokens cut off to fit max_seq_length
    skipped: int = 0  # chunks of one sentence that were left out
    skipped_pieces: int = 0

    def merge(self, other: Mapping[str, Any]) -> None:
        """Adds the vars() of other counts, which may come from JSON."""
        for name, value in other.items():
            if isinstance(value, Mapping):
                # In JSON, keys that are numbers are strings.
                _add(vars(self)[name], (
                    (int(key) if str(key).isdecimal() else key, count)
                    for key, count in value.items()))
            else:
                vars(self)[name] += int(value)

    def add(self, items: Sequence[Instance], skipped: Sequence[int]) -> None:
        """Counts the complete instances from one walk over a document."""
        self.skipped += len(skipped)
        self.skipped_pieces += sum(skipped)
        self.add_plans([len(one.tokens) for one in items],
                       [ORIGINS.index(one.origin) for one in items],
                       sum(one.num_cut for one in items))
        shown = collections.Counter(
            0 if one.tokens[position] == MASK else 1 + (one.tokens[position] != label)
            for one in items for position, label in
            zip(one.masked_lm_positions, one.masked_lm_labels))
        self.add_masks([len(one.masked_lm_positions) for one in items],
                       [shown[kind] for kind in range(3)],
                       np.bincount([size for one in items for size in one.ngrams]))

    def add_plans(self, num_pieces: Any, origins: Any, num_cut: int) -> None:
        """Counts planned instances: their lengths and indices of ORIGINS, [N]."""
        _add(self.lengths, enumerate(np.bincount(num_pieces)))
        _add(self.origins, zip(ORIGINS, np.bincount(origins)))
        self.cut += int(num_cut)

    def add_masks(self, num_masked: Any, shown: Any, ngram_words: Any) -> None:
        """Counts the masks of instances: fields of masking.batched.MaskedBatch."""
        _add(self.masked, enumerate(np.bincount(num_masked)))
        _add(self.shown, zip(_SHOWN, shown))
        _add(self.ngrams, enumerate(ngram_words))

    def as_dict(self, max_seq_length: int) -> dict[str, Any]:
        """Returns all counts and their shares, as they go into the JSON file."""
        count, masked = self.lengths.total(), self.shown.total()
        pieces = sum(length * n for length, n in self.lengths.items())
        positions = count * max_seq_length
        label_1 = sum(self.origins[origin] for origin in LABEL_1)
        text = itertools.takewhile(lambda item: item[0] != "lengths", vars(self).items())
        return {
            "text": {**dict(text), "unknown_share": _share(self.unknown_pieces, self.pieces)},
            "instances": count,
            "label_1_share": _share(label_1, count),
            "labels": {"0": count - label_1, "1": label_1},
            "second_segment": dict(sorted(self.origins.items())),
            "length": _distribution(self.lengths),
            "pieces_in_instances": pieces,
            "padding_places": positions - pieces,
            "padding_share": _share(positions - pieces, positions),
            "predicted_pieces": masked,
            "predicted_share": _share(masked, pieces),
            "predicted_per_instance": {
                **_distribution(self.masked),
                "instances": {str(n): self.masked[n] for n in sorted(self.masked)}},
            "shown_instead": {name: _share(self.shown[name], masked)
                              for name in _SHOWN},
            "ngram_words": {str(size): _share(n, self.ngrams.total())
                            for size, n in sorted(self.ngrams.items())},
            "instances_without_predictions": self.masked[0],
            "pieces_cut_off": self.cut,
            "single_sentences_skipped": self.skipped,
            "pieces_skipped": self.skipped_pieces,
        }


def _add(counter: collections.Counter, counts: Iterable[tuple[Any, int]]) -> None:
    """Adds (key, count) pairs to a counter, except counts of 0."""
    for key, count in counts:
        if count:
            counter[key] += int(count)


def _share(part: float, whole: float) -> float:
    return round(part / whole, 6) if whole else 0.0


def _distribution(counted: collections.Counter) -> dict[str, float]:
    """Returns mean, minimum, lower median and maximum of counted numbers, of which there
    is one at least."""
    numbers = sorted(counted)
    ranks = list(itertools.accumulate(map(counted.__getitem__, numbers)))
    return {"mean": _share(sum(n * counted[n] for n in numbers), ranks[-1]),
            "min": numbers[0],
            "median": numbers[bisect.bisect_left(ranks, ranks[-1] / 2)],
            "max": numbers[-1]}


def _log(summary: Mapping[str, Any], options: DataOptions) -> None:
    """Logs the most important counts, and warns of lines that make poor instances."""
    text, length = summary["text"], summary["length"]
    kept, cut, skipped = (summary[f"pieces_{name}"] for name in (
        "in_instances", "cut_off", "skipped"))
    logging.info(
        f"Text: {text['documents']:,} documents, {text['sentences']:,} sentences, "
        f"{text['pieces']:,} tokens, {text['unknown_share']:.3%} unknown.")
    logging.info(
        f"Instances: {summary['label_1_share']:.1%} with label 1; "
        f"{length['mean']:.1f} tokens on average, {length['min']} to {length['max']}; "
        f"{summary['padding_share']:.1%} padding; {cut:,} tokens cut off to fit; "
        f"{summary['single_sentences_skipped']:,} single sentences left out; "
        f"{summary['predicted_share']:.1%} of the tokens are predicted.")
    # The label of a pair is a coin; a share of few coins may be high by chance.
    chance = 1 / summary["instances"] ** 0.5
    share = _share(cut + skipped, kept + cut + skipped)
    if summary["label_1_share"] > _MUCH_LABEL_1 + chance or (
            max(cut, skipped) > _MUCH_CUT * (kept + cut + skipped)):
        logging.warning(
            "In the records, %.1f%% of the instances have label 1, and %.1f%% of the "
            "tokens are cut off to fit or left out by --single_segment=%s. Lines have "
            "%.0f tokens on average, and --max_seq_length=%d. Write one sentence per "
            "line and several to a document, which prepare_corpus.py does.",
            100 * summary["label_1_share"], 100 * share,
            options.instances.single_segment, text["pieces"] / text["sentences"],
            options.instances.max_seq_length)


# ---- checks ----------------------------------------------------------------


def check(options: DataOptions, tokenizer: FullTokenizer) -> None:
    """Checks flags and file names before any work."""
    rows.check_sentences(options.input_files)
    files.prepare_outputs(
        {"--output_file": options.output_files,
         "the summary of --output_file": [summary_path(options.output_files[0])]},
        {"--input_file": options.input_files,
         "the vocabulary": [tokenizer.vocabulary_path]})
    # Shards of a data set with other shard numbers would be read together with these.
    names = {path if files.is_remote(path) else os.path.abspath(path)
             for path in options.output_files}
    for folder, name in {os.path.split(SHARD.sub("", name)) for name in names}:
        for other in files.names_in(folder):
            path = os.path.join(folder, other)
            if path not in names and other != name and SHARD.sub("", other) == name:
                raise InputError(
                    f"--output_file: {path} is a shard from a different run, which a "
                    "pattern for the new files would match too; remove that run's files.")
    masking, length = options.instances.masking, options.instances.max_seq_length
    wanted = round(length * masking.masked_lm_prob)
    if wanted > masking.max_predictions_per_seq:
        logging.warning(
            "--max_predictions_per_seq=%d is fewer than the %d tokens that "
            "--masked_lm_prob=%g masks of %d.", masking.max_predictions_per_seq, wanted,
            masking.masked_lm_prob, length)


def estimate(options: DataOptions, encoder: PieceEncoder, spans: Sequence[Span],
             folder: str) -> None:
    """Logs how much will be written, from the beginning of the text; warns if the disk of
    `folder` has too little room for it and for unfinished work."""
    block = next(read_span(
        options.input_files, spans[0], encoder.tokenizer.prepare_batch), None)
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
    if (free := shutil.disk_usage(folder).free) < 2 * records:
        logging.warning("%s has %s free.", folder, amount(free))


def check_counts(counts: InstanceCounts, options: DataOptions) -> None:
    """Warns about text that gives poor data; raises InputError if it cannot be used."""
    instances, number = options.instances, counts.lengths.total()
    alone = counts.documents == 1
    if not counts.documents:
        raise InputError(
            f"{', '.join(options.input_files)}: there is no sentence in the input; "
            "give text with one sentence per line and a blank line between documents.")
    if number < len(options.output_files):
        raise InputError(
            f"The input gives {number} instances, too few for {len(options.output_files)} "
            f"output files ({counts.skipped} chunks of a single sentence were left out); "
            "give more text, longer documents or fewer files.")
    if instances.random_next_sentence and (alone or counts.documents_alone) or alone and (
            instances.sentence_objective, instances.single_segment) == (
                "order", "random"):
        logging.warning(
            "Second segments that should come from a different document come from the "
            "same one, where that is the only one or very long. Put a blank line "
            "between documents.")
    unknown_share = counts.unknown_pieces / counts.pieces
    if unknown_share > _MUCH_UNKNOWN:
        logging.warning(
            "%.1f %% of the tokens are unknown, so the vocabulary does not fit the "
            "text. Check its language and --do_lower_case.", 100 * unknown_share)


# ---- the files ---------------------------------------------------------------


def summary_path(output_file: str) -> str:
    """Returns the path of the summary, which is beside the first output. Its name begins
    differently, so that a glob for the outputs does not match it."""
    folder, name = os.path.split(SHARD.sub("", output_file))
    return os.path.join(folder, f"summary-{name}.json")


@contextlib.contextmanager
def published(options: DataOptions, tokenizer: FullTokenizer, counts: InstanceCounts,
              started: float) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """Yields the summary, and temporary names for the outputs, which the block writes.
    At its end all files get their names, and the log says what was made since `started`
    (time.monotonic)."""
    summary = {
        "settings": dataclasses.asdict(options),
        "vocabulary": {
            "kind": "SentencePiece" if tokenizer.uses_sentencepiece else "WordPiece",
            **vocabulary_of(tokenizer.vocabulary_path),
            # Pretraining copies the file into the model's folder.
            "path": os.path.abspath(tokenizer.vocabulary_path),
            "size": tokenizer.vocab_size,
            "do_lower_case": tokenizer.do_lower_case, **tokenizer.keeps,
            # Masking during training needs these.
            "special_ids": {name: getattr(tokenizer, f"{name}_id")
                            for name in ("cls", "sep", "mask", "pad", "unk")}},
        **counts.as_dict(options.instances.max_seq_length)}
    path = summary_path(options.output_files[0])
    with files.staged(*options.output_files, path) as (*outputs, temporary):
        yield summary, outputs
        files.write(temporary, (json.dumps(summary, indent=1) + "\n").encode())
    seconds = time.monotonic() - started
    logging.info("Created %d instances in %s (%.0f per second).", summary["instances"],
                 duration(seconds), summary["instances"] / max(seconds, 1e-9))
    _log(summary, options)
    ends = dict.fromkeys((options.output_files[0], options.output_files[-1]))
    logging.info("Wrote %s, and %s.", " ... ".join(ends), path)
