"""Helpers that the tasks share: sets of examples, label checks, output files."""

import json
import os
from typing import Any, Callable, Iterable, Mapping, NamedTuple, Sequence

from absl import logging

from albert_tf import files
from albert_tf.errors import InputError

# The scores of a test set with labels, in a run's folder.
PREDICT_RESULTS = "predict_results.json"

# A model's outputs for a set: name → one row per record.
Outputs = Mapping[str, Sequence]


class ExampleSet(NamedTuple):
    """The examples of a split in file order, the files that they were read from, and
    notes for the user, one sentence each."""

    examples: list
    paths: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def read_shards(where: str, flag: str, read: Callable[[str, int], ExampleSet]
                ) -> ExampleSet:
    """Reads the files that a path, a glob or a list with commas stands for, in the order
    of files.expand_patterns, as one set.

    `read` takes a file and the number of examples before it. With several files the log
    says how many examples each has.
    """
    parts: list[ExampleSet] = []
    paths = files.shards(where, flag)
    for path in paths:
        parts.append(read(path, sum(len(part.examples) for part in parts)))
    if len(parts) == 1:
        return parts[0]
    log_shards(flag, {path: len(part.examples) for path, part in zip(paths, parts)})
    return ExampleSet([each for part in parts for each in part.examples], tuple(paths),
                      tuple(note for part in parts for note in part.notes))


def log_shards(flag: str, counts: Mapping[str, int]) -> None:
    """Logs how many examples each of several files has."""
    listed = [f"{path} ({count:,})" for path, count in counts.items()]
    logging.info("%s: %s examples from %d files: %s.", flag, f"{sum(counts.values()):,}",
                 len(counts), ", ".join(listed[:10] + ["..."] * (len(listed) > 10)))


def check_labelled(examples: Iterable, use: str = "scored",
                   missing: str = "there is no label") -> None:
    """Raises InputError if an example has no label; `use` is what the labels are needed
    for, as a participle, and `missing` says what is missing."""
    for example in examples:
        if example.label is None:
            raise InputError(
                f"{example.where}: {missing}, so this set can be predicted but not "
                f"{use}.")


def cut_note(full: int, total: int, most: int, what: str = "texts") -> str:
    """Returns a sentence on the texts that fill the `most` tokens they may have."""
    return (f"{full:,} of {total:,} {what} fill all {most} tokens that the model reads; "
            "what is longer is cut.")


def as_table(rows: Iterable[Iterable[str]]) -> str:
    """Returns lines of tab-separated cells."""
    return "".join("\t".join(row) + "\n" for row in rows)


def as_json(value: Any, indent: int = 2) -> str:
    """Returns a value as JSON text that ends in a newline."""
    return json.dumps(value, indent=indent, ensure_ascii=False) + "\n"


def write_files(folder: str, contents: Mapping[str, str]) -> list[str]:
    """Writes texts by file name; returns the paths."""
    paths = [os.path.join(folder, name) for name in contents]
    for path, content in zip(paths, contents.values()):
        with files.atomic_write(path) as stream:
            stream.write(content.encode())
    return paths
