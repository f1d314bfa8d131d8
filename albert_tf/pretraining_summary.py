"""What a pretraining data set looks like: counts, shares and lengths."""

import collections
from typing import Any, Iterable

from albert_tf.masking import MASK
from albert_tf.pretraining_instances import DocumentInstances, Instance


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

    def as_dict(self) -> dict[str, Any]:
        """All counts, and the share of unknown pieces."""
        return {**vars(self),
                "unknown_share": _share(self.unknown_pieces, self.pieces)}


class InstanceCounts:
    """Counts over the instances, filled while they are made."""

    def __init__(self, max_seq_length: int):
        self._max_seq_length = max_seq_length
        self._lengths = collections.Counter()
        self._origins = collections.Counter()
        self._labels = collections.Counter()
        self._ngrams = collections.Counter()
        self._shown = collections.Counter()  # what stands in place of a masked piece
        self._cut = 0
        self._without_predictions = 0
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
        self._labels[instance.label] += 1
        self._ngrams.update(instance.ngrams)
        self._cut += instance.num_cut
        self._without_predictions += not instance.masked_lm_positions
        for position, label in zip(
                instance.masked_lm_positions, instance.masked_lm_labels):
            shown = instance.tokens[position]
            self._shown["mask" if shown == MASK else
                        "same" if shown == label else "other"] += 1

    @property
    def instances(self) -> int:
        return sum(self._lengths.values())

    def as_dict(self) -> dict[str, Any]:
        """All counts with their shares, as they go into the JSON file."""
        count = self.instances
        pieces = sum(length * n for length, n in self._lengths.items())
        places = count * self._max_seq_length
        masked = sum(self._shown.values())
        return {
            "instances": count,
            "label_1_share": _share(self._labels[1], count),
            "second_segment": dict(sorted(self._origins.items())),
            "length": {
                "mean": _share(pieces, count),
                "min": min(self._lengths, default=0),
                "median": _median(self._lengths),
                "max": max(self._lengths, default=0),
            },
            "padding_share": _share(places - pieces, places),
            "predicted_pieces": masked,
            "predicted_share": _share(masked, pieces),
            "shown_instead": {name: _share(self._shown[name], masked)
                              for name in ("mask", "same", "other")},
            "ngram_words": {
                str(size): _share(n, sum(self._ngrams.values()))
                for size, n in sorted(self._ngrams.items())},
            "instances_without_predictions": self._without_predictions,
            "pieces_cut_off": self._cut,
            "single_sentences_skipped": self._skipped,
            "pieces_skipped": self._skipped_pieces,
        }


def _share(part: float, whole: float) -> float:
    return round(part / whole, 6) if whole else 0.0


def _median(lengths: collections.Counter) -> int:
    """The lower median of counted lengths."""
    seen, half = 0, sum(lengths.values()) / 2
    for length in sorted(lengths):
        seen += lengths[length]
        if seen >= half:
            return length
    return 0


def describe(corpus: dict[str, Any], made: dict[str, Any]) -> Iterable[str]:
    """The summary as lines of text.

    Args:
      corpus: CorpusCounts.as_dict.
      made: InstanceCounts.as_dict.
    """
    length, shown = made["length"], made["shown_instead"]
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
    yield (f"left out: {corpus['lines_without_pieces']:,} lines without pieces, "
           f"{made['single_sentences_skipped']:,} single sentences "
           f"({made['pieces_skipped']:,} pieces), {made['pieces_cut_off']:,} pieces "
           "cut off to fit")
