"""What the tasks share: sets of examples, their labels, files of predictions."""

import json
import os
from typing import Any, Iterable, Mapping, NamedTuple, Sequence

from albert_tf import files
from albert_tf.errors import InputError


# Outputs of a model: name → a row for each record of a set.
Outputs = Mapping[str, Sequence]


class ExampleSet(NamedTuple):
    """The examples of a split in the order of the file, the files they came from, and
    notes for the user, a sentence each."""

    examples: list
    paths: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def check_labelled(examples: Iterable, use: str = "scored",
                   missing: str = "there is no label") -> None:
    """Refuses a set to be `use` if an example has no label."""
    for example in examples:
        if example.label is None:
            raise InputError(
                f"{example.where}: {missing}, so this set can be predicted but not "
                f"{use}.")


def as_table(rows: Iterable[Iterable[str]], clean: bool = True) -> str:
    """Lines of cells with tabs between them. `clean` writes white space within a cell
    as one blank: a tab or a line end there would break the table."""
    return "".join(
        "\t".join(" ".join(cell.split()) if clean else cell for cell in row) + "\n"
        for row in rows)


def as_json(value: Any, indent: int = 2) -> str:
    return json.dumps(value, indent=indent, ensure_ascii=False) + "\n"


def write_files(folder: str, contents: Mapping[str, str]) -> list[str]:
    """Writes texts by file name; returns the paths."""
    paths = [os.path.join(folder, name) for name in contents]
    for path, content in zip(paths, contents.values()):
        with files.atomic_write(path) as stream:
            stream.write(content.encode())
    return paths
