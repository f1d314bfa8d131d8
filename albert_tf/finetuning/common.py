"""Helpers that the tasks share: sets of examples, notes on them, files of results."""

import csv
import io
import json
import os
from typing import Any, Callable, Iterable, Mapping, NamedTuple, Sequence

from absl import logging

from albert_tf import files, rows, text_files
from albert_tf.checkpoints.checkpoint import some
from albert_tf.errors import InputError

PREDICT_RESULTS = "predict_results.json"  # The scores of a test set with labels.
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
    """Reads the files that a path, a glob or a list with commas stands for as one set.
    `read` takes a file and the number of examples before it."""
    parts: dict[str, ExampleSet] = {}
    for path in files.expand_patterns(where, flag):
        parts[path] = read(path, sum(len(part.examples) for part in parts.values()))
    examples = [each for part in parts.values() for each in part.examples]
    if len(parts) > 1:
        logging.info("%s: %s examples from %d files: %s.", flag, f"{len(examples):,}",
                     len(parts), some([f"{path} ({len(part.examples):,})"
                                       for path, part in parts.items()], 10))
    return ExampleSet(examples, tuple(parts), tuple(
        note for part in parts.values() for note in part.notes))


def check_labelled(examples: Iterable) -> None:
    """Raises InputError if an example has no label."""
    for example in examples:
        if example.label is None:
            raise InputError(f"{example.where}: there is no label or answer, so this set "
                             "can be predicted, but not trained on or scored.")


def line_note(path: str, numbers: list[int], what: str) -> tuple[str, ...]:
    """Returns one sentence on the lines that are `what`, or () if there are none."""
    line = "row" if rows.kind_of(path, "text") == "parquet" else "line"
    return (f"{path}: {len(numbers)} {line}(s) {what} ({line} "
            f"{some(map(str, numbers), 10)}).",) * bool(numbers)


def cut_note(full: int, total: int, most: int, what: str = "texts") -> str:
    """Returns a sentence on the texts that fill the `most` tokens they may have."""
    return (f"{full:,} of {total:,} {what} fill all {most} tokens that the model reads; "
            "what is longer is cut.")


def as_table(cells: Iterable[Iterable[str]]) -> str:
    """Returns lines of tab-separated cells."""
    return "".join("\t".join(row) + "\n" for row in cells)


def as_json(value: Any, indent: int = 2) -> str:
    """Returns a value as JSON text that ends in a newline."""
    return json.dumps(value, indent=indent, ensure_ascii=False) + "\n"


def write_files(folder: str, contents: Mapping[str, str]) -> list[str]:
    """Writes texts by file name; returns the paths."""
    for name, content in contents.items():
        files.write(os.path.join(folder, name), content.encode())
    return [os.path.join(folder, name) for name in contents]


def written_format_of(path: str) -> str:
    """Returns the format of a file of predictions, given its name."""
    kind = rows.kind_of(path)
    if kind == "parquet" or path.lower().endswith(text_files.COMPRESSED):
        raise InputError(f"{path}: predictions are written as .tsv, .csv or .jsonl, not "
                         "compressed; choose such a name.")
    return kind


def write_predictions(folder: str, contents: Mapping[str, str],
                      table: Sequence[Sequence[str | int]], prediction_file: str = ""
                      ) -> list[str]:
    """Writes files of a folder, name → content, and a readable table, whose first row
    names the columns, to `prediction_file` or predictions.tsv; returns the paths. In
    TSV, white space within a cell is written as one blank."""
    path = prediction_file or os.path.join(folder, "predictions.tsv")
    kind, stream = written_format_of(path), io.StringIO()
    if kind == "csv":
        csv.writer(stream, lineterminator="\n").writerows(table)
    elif kind == "jsonl":
        for row in table[1:]:
            stream.write(json.dumps({
                name: float(cell) if name.startswith("probability") else cell
                for name, cell in zip(table[0], row)}, ensure_ascii=False) + "\n")
    else:
        stream.write(as_table(
            [" ".join(str(cell).split()) for cell in row] for row in table))
    paths = write_files(folder, contents)
    files.write(path, stream.getvalue().encode())
    return [*paths, path]
