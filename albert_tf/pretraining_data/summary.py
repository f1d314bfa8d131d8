"""What a pretraining data set looks like: counts, shares and lengths.

Counts are filled where data is made, on any number of workers, go through JSON from
one to the other, and are merged into one summary.
"""

import collections
from typing import Any, Iterable, Mapping

import numpy as np

from albert_tf.masking.batched import MaskedBatch
from albert_tf.masking.options import MASK
from albert_tf.pretraining_data.plans import ORIGINS, PlanCounts
from albert_tf.pretraining_data.release_instances import (
    DocumentInstances, FOLLOWING, Instance, ONE_SEGMENT)
from albert_tf.pretraining_data.summary_picture import draw_summary

__all__ = ["CorpusCounts", "InstanceCounts", "describe", "draw_summary"]

_SHOWN = ("mask", "same", "other")  # what stands in place of a masked piece
_LABEL_0 = (FOLLOWING, ONE_SEGMENT)  # origins of instances of label 0
_MOST_BINS = 64  # of the histogram of lengths


class CorpusCounts:
    """Counts over the text, filled while it is read.

    Attributes:
      documents: documents with at least one sentence.
      sentences: lines that gave pieces.
      pieces: pieces of all sentences.
      unknown_pieces: pieces that are not in the vocabulary.
      lines_without_pieces: lines that are not blank but gave no piece.
      single_sentence_documents: documents of one sentence.
    """

    def __init__(self):
        self.documents = 0
        self.sentences = 0
        self.pieces = 0
        self.unknown_pieces = 0
        self.lines_without_pieces = 0
        self.single_sentence_documents = 0

    def merge(self, other: "CorpusCounts") -> None:
        """Adds the counts over another part of the text."""
        for name, count in vars(other).items():
            setattr(self, name, getattr(self, name) + count)

    def to_json(self) -> dict[str, int]:
        """The counts as an object for json.dumps."""
        return {name: int(count) for name, count in vars(self).items()}

    @classmethod
    def from_json(cls, state: Mapping[str, int]) -> "CorpusCounts":
        """Counts from what to_json gave.

        Raises:
          ValueError: if a count is missing or unknown.
        """
        counts = cls()
        _check_keys(state, vars(counts))
        vars(counts).update(state)
        return counts

    def as_dict(self) -> dict[str, Any]:
        """All counts, and the share of unknown pieces."""
        return {**vars(self),
                "unknown_share": _share(self.unknown_pieces, self.pieces)}


class InstanceCounts:
    """Counts over the instances, filled while they are made.

    Either `add` counts whole instances, or `add_plans` and `add_masks` count their
    halves where those are made; halves of one data set may be merged.

    Args:
      max_seq_length: places of a record.
    """

    def __init__(self, max_seq_length: int):
        self._max_seq_length = max_seq_length
        self._lengths = collections.Counter()
        self._origins = collections.Counter()
        self._ngrams = collections.Counter()  # n-grams by their words
        self._shown = collections.Counter()
        self._masked = collections.Counter()  # instances by their masked pieces
        self._cut = 0
        self._skipped = self._skipped_pieces = 0

    def add(self, walk: DocumentInstances) -> None:
        """Counts what one walk over a document gave."""
        self._skipped += len(walk.skipped)
        self._skipped_pieces += sum(walk.skipped)
        for instance in walk.instances:
            self._add_instance(instance)

    def _add_instance(self, instance: Instance) -> None:
        self._lengths[len(instance.tokens)] += 1
        self._origins[instance.origin] += 1
        self._ngrams.update(instance.ngrams)
        self._cut += instance.num_cut
        self._masked[len(instance.masked_lm_positions)] += 1
        for position, label in zip(
                instance.masked_lm_positions, instance.masked_lm_labels):
            shown = instance.tokens[position]
            self._shown["mask" if shown == MASK else
                        "same" if shown == label else "other"] += 1

    def add_plans(self, made: PlanCounts) -> None:
        """Counts instances that were planned: all but their masks.

        Raises:
          ValueError: if they were planned for another max_seq_length.
        """
        self._check_length(len(made.lengths) - 1)
        _add_histogram(self._lengths, made.lengths)
        _add_histogram(self._origins, made.origins, ORIGINS)
        self._cut += int(made.pieces_cut_off)
        self._skipped += int(made.skipped)
        self._skipped_pieces += int(made.pieces_skipped)

    def add_masks(self, masked: MaskedBatch) -> None:
        """Counts the masks of instances, and no instance."""
        _add_histogram(self._masked, np.bincount(masked.num_masked))
        _add_histogram(self._shown, masked.shown, _SHOWN)
        _add_histogram(self._ngrams, masked.ngram_words)

    def merge(self, other: "InstanceCounts") -> None:
        """Adds the counts over other instances of the data set, or another half.

        Raises:
          ValueError: if they are of another max_seq_length.
        """
        self._check_length(other._max_seq_length)
        for name, value in vars(other).items():
            if isinstance(value, collections.Counter):
                vars(self)[name].update(value)
            elif name != "_max_seq_length":
                vars(self)[name] += value

    def _check_length(self, max_seq_length: int) -> None:
        if max_seq_length != self._max_seq_length:
            raise ValueError(f"counts for sequences of {max_seq_length} do not go with "
                             f"those of {self._max_seq_length}.")

    def to_json(self) -> dict[str, Any]:
        """The counts as an object for json.dumps."""
        return {name[1:]: dict(value) if isinstance(value, collections.Counter)
                else value for name, value in vars(self).items()}

    @classmethod
    def from_json(cls, state: Mapping[str, Any]) -> "InstanceCounts":
        """Counts from what to_json gave, also after json.dumps and json.loads.

        Raises:
          ValueError: if a count is missing or unknown.
        """
        counts = cls(0)
        _check_keys(state, [name[1:] for name in vars(counts)])
        for name, value in state.items():
            if isinstance(value, Mapping):
                # JSON makes strings of numbers that are keys.
                value = collections.Counter({
                    int(key) if str(key).isdecimal() else key: count
                    for key, count in value.items()})
            setattr(counts, f"_{name}", value)
        return counts

    @property
    def instances(self) -> int:
        return sum(self._lengths.values())

    def as_dict(self) -> dict[str, Any]:
        """All counts with their shares, as they go into the JSON file."""
        count = self.instances
        pieces = sum(length * n for length, n in self._lengths.items())
        places = count * self._max_seq_length
        masked = sum(self._shown.values())
        label_0 = sum(self._origins[origin] for origin in _LABEL_0)
        return {
            "instances": count,
            "label_1_share": _share(count - label_0, count),
            "labels": {"0": label_0, "1": count - label_0},
            "second_segment": dict(sorted(self._origins.items())),
            "length": _distribution(self._lengths),
            "length_histogram": _binned(self._lengths, self._max_seq_length),
            "pieces_in_instances": pieces,
            "padding_places": places - pieces,
            "padding_share": _share(places - pieces, places),
            "predicted_pieces": masked,
            "predicted_share": _share(masked, pieces),
            "predicted_per_instance": {
                **_distribution(self._masked),
                "instances": {str(n): self._masked[n] for n in sorted(self._masked)}},
            "shown_instead": {name: _share(self._shown[name], masked)
                              for name in _SHOWN},
            "ngram_words": {
                str(size): _share(n, sum(self._ngrams.values()))
                for size, n in sorted(self._ngrams.items())},
            "instances_without_predictions": self._masked[0],
            "pieces_cut_off": self._cut,
            "single_sentences_skipped": self._skipped,
            "pieces_skipped": self._skipped_pieces,
        }


def _check_keys(state: Mapping[str, Any], expected: Iterable[str]) -> None:
    if state.keys() != set(expected):
        raise ValueError(f"counts of {sorted(state)} are not those of "
                         f"{sorted(expected)}.")


def _add_histogram(counter: collections.Counter, counts: np.ndarray,
                   names: Iterable[str] | None = None) -> None:
    """Adds counts of 0, 1, ... or of the names, but for those that are 0."""
    for key, count in zip(range(len(counts)) if names is None else names,
                          counts.tolist()):
        if count:
            counter[key] += count


def _share(part: float, whole: float) -> float:
    return round(part / whole, 6) if whole else 0.0


def _distribution(counted: collections.Counter) -> dict[str, float]:
    """Mean, lower median and ends of counted numbers; 0 of none."""
    count = sum(counted.values())
    median = seen = 0
    for number in sorted(counted):
        seen += counted[number]
        if 2 * seen >= count:
            median = number
            break
    return {
        "mean": _share(sum(number * n for number, n in counted.items()), count),
        "min": min(counted, default=0),
        "median": median,
        "max": max(counted, default=0),
    }


def _binned(lengths: collections.Counter, longest: int) -> dict[str, Any]:
    """Counts of lengths in bins of equal width, the last of which ends at `longest`.

    Bin i of B holds the lengths up to longest - (B - 1 - i) * width.
    """
    width = max(1, -(-longest // _MOST_BINS))
    counts = [0] * -(-longest // width)
    for length, n in lengths.items():
        counts[len(counts) - 1 - (longest - length) // width] += n
    return {"bin_width": width, "longest": longest, "instances": counts}


def describe(corpus: Mapping[str, Any], made: Mapping[str, Any]) -> Iterable[str]:
    """The summary as lines of text.

    Args:
      corpus: CorpusCounts.as_dict.
      made: InstanceCounts.as_dict.
    """
    length, shown = made["length"], made["shown_instead"]
    masked = made["predicted_per_instance"]
    yield (f"text: {corpus['documents']:,} documents, {corpus['sentences']:,} "
           f"sentences, {corpus['pieces']:,} pieces, "
           f"{corpus['unknown_share']:.3%} unknown")
    yield (f"instances: {made['instances']:,}, {made['label_1_share']:.1%} with label "
           "1; second segment: " + ", ".join(
               f"{name} {n:,}" for name, n in made["second_segment"].items()))
    yield (f"length: {length['mean']:.1f} pieces in the mean, {length['min']} to "
           f"{length['max']}, median {length['median']}; "
           f"{made['padding_share']:.1%} padding")
    yield (f"predictions: {made['predicted_pieces']:,} pieces, "
           f"{made['predicted_share']:.1%} of all; shown as [MASK] "
           f"{shown['mask']:.1%}, unchanged {shown['same']:.1%}, another piece "
           f"{shown['other']:.1%}")
    if made["predicted_pieces"]:
        yield (f"predictions of an instance: {masked['mean']:.1f} in the mean, "
               f"{masked['min']} to {masked['max']}, median {masked['median']}; "
               "instances without any: "
               f"{made['instances_without_predictions']:,}; "
               "n-grams of " + ", ".join(
                   f"{words} {'word' if words == '1' else 'words'} {share:.1%}"
                   for words, share in made["ngram_words"].items()))
    yield (f"left out: {corpus['lines_without_pieces']:,} lines without pieces, "
           f"{made['single_sentences_skipped']:,} single sentences "
           f"({made['pieces_skipped']:,} pieces), {made['pieces_cut_off']:,} pieces "
           "cut off to fit")
