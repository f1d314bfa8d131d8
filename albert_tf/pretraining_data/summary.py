"""The summary of a pretraining data set: counts, shares and lengths, as JSON.

Counts are filled on any number of workers, passed on as JSON, and merged.
"""

import bisect
import collections
import contextlib
import dataclasses
import itertools
import json
import os
import time
from typing import Any, Iterable, Iterator, Mapping

import numpy as np
from absl import logging

from albert_tf import files
from albert_tf.masking.options import MASK
from albert_tf.pretraining_data.job_options import DataOptions, SHARD
from albert_tf.pretraining_data.options import LABEL_1, ORIGINS
from albert_tf.pretraining_data.instances import DocumentInstances
from albert_tf.jobs.progress import duration
from albert_tf.tokenization.tokenizer import FullTokenizer, vocabulary_of

_SHOWN = ("mask", "same", "other")  # the replacements of a masked token
# Ordinary sentences stay below these shares: label 1 exceeds one half where text ends
# in single sentences, and the last sentence of a chunk is cut.
_MUCH_LABEL_1, _MUCH_CUT = 0.65, 0.25


def _counter():
    return dataclasses.field(default_factory=collections.Counter)


class _Counts:
    """Counts that can be merged; the base of a dataclass."""

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


@dataclasses.dataclass
class CorpusCounts(_Counts):
    """Counts over the text, filled while it is read."""

    documents: int = 0  # with at least one sentence
    sentences: int = 0  # lines with tokens
    pieces: int = 0
    unknown_pieces: int = 0
    lines_without_pieces: int = 0  # lines that are not blank but have no tokens
    single_sentence_documents: int = 0
    # Documents of about the size of a slice (packs), which holds no other.
    documents_alone: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Returns all counts and the share of unknown tokens."""
        return {**vars(self),
                "unknown_share": _share(self.unknown_pieces, self.pieces)}


@dataclasses.dataclass
class InstanceCounts(_Counts):
    """Counts over the instances, filled while they are planned and masked."""

    lengths: collections.Counter = _counter()  # instances by length in tokens
    origins: collections.Counter = _counter()  # instances by second segment's origin
    ngrams: collections.Counter = _counter()  # masked n-grams by number of words
    shown: collections.Counter = _counter()  # masked tokens by replacement
    masked: collections.Counter = _counter()  # instances by number of masked tokens
    cut: int = 0  # tokens cut off to fit max_seq_length
    skipped: int = 0  # chunks of one sentence that were left out
    skipped_pieces: int = 0

    def add(self, walk: DocumentInstances) -> None:
        """Counts the complete instances from one walk over a document."""
        items = walk.instances
        self.skipped += len(walk.skipped)
        self.skipped_pieces += sum(walk.skipped)
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
        """Counts N planned instances: their lengths and indices of ORIGINS, [N], and the
        number of tokens that were cut off."""
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
        return {
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
    text, length, shown = summary["text"], summary["length"], summary["shown_instead"]
    kept, cut, skipped = (summary[f"pieces_{name}"] for name in (
        "in_instances", "cut_off", "skipped"))
    logging.info(
        f"Text: {text['documents']:,} documents, {text['sentences']:,} sentences, "
        f"{text['pieces']:,} tokens, {text['unknown_share']:.3%} unknown.")
    logging.info(
        f"Instances: {summary['label_1_share']:.1%} with label 1; "
        f"{length['mean']:.1f} tokens on average, {length['min']} to {length['max']}; "
        f"{summary['padding_share']:.1%} padding; {cut:,} tokens cut off to fit; "
        f"{summary['single_sentences_skipped']:,} single sentences left out.")
    logging.info(
        f"Predictions: {summary['predicted_share']:.1%} of the tokens, shown as [MASK] "
        f"{shown['mask']:.1%}, unchanged {shown['same']:.1%}, a random token "
        f"{shown['other']:.1%}.")
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


# ---- the files ---------------------------------------------------------------


def summary_path(output_file: str) -> str:
    """Returns the path of the summary, which is beside the first output. Its name begins
    differently, so that a glob for the outputs does not match it."""
    folder, name = os.path.split(SHARD.sub("", output_file))
    return os.path.join(folder, f"summary-{name}.json")


@contextlib.contextmanager
def published(options: DataOptions, tokenizer: FullTokenizer, corpus: CorpusCounts,
              made: InstanceCounts, started: float
              ) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """Yields the summary, and temporary names for the outputs, which the block writes.
    At its end all files get their names, and the log says what was made since `started`
    (time.monotonic). If the block raises, older files stay."""
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
        "text": corpus.as_dict(),
        **made.as_dict(options.instances.max_seq_length)}
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
