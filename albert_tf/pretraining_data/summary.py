"""What a pretraining data set looks like: counts, shares and lengths, in three files.

Counts are filled where data is made, on any number of workers, go through JSON from
one to the other, and are merged into one summary.
"""

import collections
import dataclasses
import json
import os
from typing import Any, Iterable, Mapping

import numpy as np
from absl import logging

from albert_tf.masking.options import MASK
from albert_tf.pretraining_data.options import DataOptions, LABEL_1, ORIGINS, SHARD
from albert_tf.pretraining_data.instances import DocumentInstances
from albert_tf.jobs.progress import duration
from albert_tf.tokenization.tokenizer import FullTokenizer, vocabulary_of

_SHOWN = ("mask", "same", "other")  # what stands in place of a masked piece
_MOST_BINS = 64  # of the histogram of lengths


def _counter():
    return dataclasses.field(default_factory=collections.Counter)


@dataclasses.dataclass
class CorpusCounts:
    """Counts over the text, filled while it is read."""

    documents: int = 0  # with at least one sentence
    sentences: int = 0  # lines that gave pieces
    pieces: int = 0
    unknown_pieces: int = 0
    lines_without_pieces: int = 0  # that are not blank
    single_sentence_documents: int = 0

    def merge(self, other: Mapping[str, int]) -> None:
        """Adds vars() of the counts over other text, also after JSON."""
        _check_keys(other, self)
        for name, count in other.items():
            setattr(self, name, getattr(self, name) + int(count))

    def as_dict(self) -> dict[str, Any]:
        """All counts, and the share of unknown pieces."""
        return {**vars(self),
                "unknown_share": _share(self.unknown_pieces, self.pieces)}


@dataclasses.dataclass
class InstanceCounts:
    """Counts over the instances, filled where plans and where masks are made.

        counts = InstanceCounts(max_seq_length=512)
        counts.add(walk)  # instances.DocumentInstances
        counts.as_dict()["padding_share"]
    """

    max_seq_length: int
    lengths: collections.Counter = _counter()  # instances by pieces, special ones too
    origins: collections.Counter = _counter()  # instances by those of second segments
    ngrams: collections.Counter = _counter()  # masked n-grams by their words
    shown: collections.Counter = _counter()  # masked pieces by what is shown instead
    masked: collections.Counter = _counter()  # instances by their masked pieces
    cut: int = 0  # pieces cut off to fit max_seq_length
    skipped: int = 0  # chunks of one sentence left out
    skipped_pieces: int = 0

    def add(self, walk: DocumentInstances) -> None:
        """Counts whole instances: what one walk over a document gave."""
        made = walk.instances
        self.skipped += len(walk.skipped)
        self.skipped_pieces += sum(walk.skipped)
        self.add_plans([len(one.tokens) for one in made],
                       [ORIGINS.index(one.origin) for one in made],
                       sum(one.num_cut for one in made))
        shown = [(one.tokens[position], label) for one in made for position, label in
                 zip(one.masked_lm_positions, one.masked_lm_labels)]
        is_mask = sum(seen == MASK for seen, _ in shown)
        is_same = sum(seen == label != MASK for seen, label in shown)
        self.add_masks([len(one.masked_lm_positions) for one in made],
                       [is_mask, is_same, len(shown) - is_mask - is_same],
                       np.bincount([size for one in made for size in one.ngrams]))

    def add_plans(self, num_pieces: Any, origins: Any, num_cut: int) -> None:
        """Counts all but the masks of N planned instances: their lengths and indices of
        ORIGINS, [N], and how many pieces were cut off."""
        _add(self.lengths, enumerate(np.bincount(num_pieces)))
        _add(self.origins, zip(ORIGINS, np.bincount(origins)))
        self.cut += int(num_cut)

    def add_masks(self, num_masked: Any, shown: Any, ngram_words: Any) -> None:
        """Counts the masks of instances: fields of masking.batched.MaskedBatch."""
        _add(self.masked, enumerate(np.bincount(num_masked)))
        _add(self.shown, zip(_SHOWN, shown))
        _add(self.ngrams, enumerate(ngram_words))

    def merge(self, other: Mapping[str, Any]) -> None:
        """Adds vars() of the counts over other instances, also after JSON."""
        _check_keys(other, self)
        if other["max_seq_length"] != self.max_seq_length:
            raise ValueError(
                f"counts for sequences of {other['max_seq_length']} do not go with "
                f"those of {self.max_seq_length}.")
        for name, value in other.items():
            if isinstance(value, Mapping):
                # JSON makes strings of numbers that are keys.
                vars(self)[name].update({
                    int(key) if str(key).isdecimal() else key: count
                    for key, count in value.items()})
            elif name != "max_seq_length":
                vars(self)[name] += value

    def as_dict(self) -> dict[str, Any]:
        """All counts with their shares, as they go into the JSON file."""
        count = sum(self.lengths.values())
        pieces = sum(length * n for length, n in self.lengths.items())
        positions = count * self.max_seq_length
        masked = sum(self.shown.values())
        label_1 = sum(self.origins[origin] for origin in LABEL_1)
        return {
            "instances": count,
            "label_1_share": _share(label_1, count),
            "labels": {"0": count - label_1, "1": label_1},
            "second_segment": dict(sorted(self.origins.items())),
            "length": _distribution(self.lengths),
            "length_histogram": _binned(self.lengths, self.max_seq_length),
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
            "ngram_words": {
                str(size): _share(n, sum(self.ngrams.values()))
                for size, n in sorted(self.ngrams.items())},
            "instances_without_predictions": self.masked[0],
            "pieces_cut_off": self.cut,
            "single_sentences_skipped": self.skipped,
            "pieces_skipped": self.skipped_pieces,
        }


def _check_keys(state: Mapping[str, Any], counts: Any) -> None:
    if state.keys() != vars(counts).keys():
        raise ValueError(f"counts of {sorted(state)} are not those of "
                         f"{sorted(vars(counts))}.")


def _add(counter: collections.Counter, counts: Iterable[tuple[Any, int]]) -> None:
    """Adds counts by their keys, except those that are 0."""
    for key, count in counts:
        if count:
            counter[key] += int(count)


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
    """Counts of lengths in B bins of equal width; bin i holds the lengths up to
    longest - (B - 1 - i) * width."""
    width = max(1, -(-longest // _MOST_BINS))
    counts = [0] * -(-longest // width)
    for length, n in lengths.items():
        counts[len(counts) - 1 - (longest - length) // width] += n
    return {"bin_width": width, "longest": longest, "instances": counts}


def figures(corpus: Mapping[str, Any], made: Mapping[str, Any]) -> dict[str, str]:
    """The numbers of a summary (the `as_dict` of CorpusCounts and of InstanceCounts) as
    text, by names for the eye."""
    length, masked = made["length"], made["predicted_per_instance"]
    return {
        "documents": f"{corpus['documents']:,}",
        "sentences": f"{corpus['sentences']:,}",
        "pieces": f"{corpus['pieces']:,}",
        "unknown pieces": f"{corpus['unknown_share']:.3%}",
        "lines without pieces": f"{corpus['lines_without_pieces']:,}",
        "instances": f"{made['instances']:,}",
        "mean length": f"{length['mean']:.1f}",
        "mean / median length": f"{length['mean']:.1f} / {length['median']}",
        "padding": f"{made['padding_share']:.1%}",
        "label 1": f"{made['label_1_share']:.1%}",
        "predicted pieces": f"{made['predicted_pieces']:,}",
        "share of all pieces": f"{made['predicted_share']:.1%}",
        "mean of an instance": f"{masked['mean']:.1f}",
        "instances without": f"{made['instances_without_predictions']:,}",
        "pieces cut off to fit": f"{made['pieces_cut_off']:,}",
        "single sentences": f"{made['single_sentences_skipped']:,}",
    }


def describe(corpus: Mapping[str, Any], made: Mapping[str, Any]) -> Iterable[str]:
    """The summary as lines of text; arguments as of `figures`."""
    shown, length = made["shown_instead"], made["length"]
    masked, n = made["predicted_per_instance"], figures(corpus, made)
    yield (f"text: {n['documents']} documents, {n['sentences']} sentences, "
           f"{n['pieces']} pieces, {n['unknown pieces']} unknown")
    yield (f"instances: {n['instances']}, {n['label 1']} with label 1; second segment"
           ": " + ", ".join(f"{name} {count:,}"
                       for name, count in made["second_segment"].items()))
    yield (f"length: {n['mean length']} pieces in the mean, {length['min']} to "
           f"{length['max']}, median {length['median']}; {n['padding']} padding")
    yield (f"predictions: {n['predicted pieces']} pieces, "
           f"{n['share of all pieces']} of all; shown as [MASK] {shown['mask']:.1%}, "
           f"unchanged {shown['same']:.1%}, another piece {shown['other']:.1%}")
    if made["predicted_pieces"]:
        yield (f"predictions of an instance: {n['mean of an instance']} in the mean, "
               f"{masked['min']} to {masked['max']}, median {masked['median']}; "
               f"instances without any: {n['instances without']}; n-grams of "
               + ", ".join(f"{words} {'word' if words == '1' else 'words'} {share:.1%}"
                           for words, share in made["ngram_words"].items()))
    yield (f"left out: {n['lines without pieces']} lines without pieces, "
           f"{n['single sentences']} single sentences ({made['pieces_skipped']:,} "
           f"pieces), {n['pieces cut off to fit']} pieces cut off to fit")


# ---- the files ---------------------------------------------------------------


def summary_path(output_file: str) -> str:
    """Where the summary goes: beside the first output, without the number of a shard.

    The name differs at its start, so that no glob for the outputs matches it.
    """
    folder, name = os.path.split(SHARD.sub("", output_file))
    return os.path.join(folder, f"summary-{name}.json")


def summary_paths(options: DataOptions) -> tuple[str, ...]:
    """The summary's files: as JSON, as text, as a picture."""
    stem = summary_path(options.output_files[0]).removesuffix(".json")
    return tuple(stem + suffix for suffix in (".json", ".txt", ".png"))


def summary_of(options: DataOptions, tokenizer: FullTokenizer, corpus: CorpusCounts,
               made: InstanceCounts) -> dict[str, Any]:
    """What goes into the JSON file: settings, vocabulary, counts."""
    return {
        "settings": dataclasses.asdict(options),
        "vocabulary": {
            "kind": "SentencePiece" if tokenizer.uses_sentencepiece else "WordPiece",
            **vocabulary_of(tokenizer.vocabulary_path),
            "size": tokenizer.vocab_size,
            "do_lower_case": tokenizer.do_lower_case, **tokenizer.keeps,
            # For masking while training.
            "special_ids": {name: getattr(tokenizer, f"{name}_id")
                            for name in ("cls", "sep", "mask", "pad", "unk")}},
        "text": corpus.as_dict(),
        **made.as_dict()}


def summary_files(summary: dict[str, Any], options: DataOptions,
                  picture: bool = True) -> dict[str, bytes]:
    """The summary's files: path → content; `picture`: whether there is one."""
    as_json, as_text, as_picture = summary_paths(options)
    text = summary["text"]
    contents = {
        as_json: (json.dumps(summary, indent=1) + "\n").encode(),
        as_text: "".join(f"{line}\n" for line in describe(text, summary)).encode()}
    if picture:
        from albert_tf.pretraining_data.summary_picture import draw_summary

        contents[as_picture] = draw_summary(summary, figures(text, summary))
    return contents


def report(options: DataOptions, summary: dict[str, Any], seconds: float) -> None:
    """Logs what was made and where it is."""
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
