"""A file of answers in the order of the inputs, JSON lines, in bounded memory.

Each unit of some batches is answered by itself, so that an interruption changes nothing.
"""

import collections
import dataclasses
from typing import Any, Iterator, Mapping, Optional

from albert_tf import files
from albert_tf.errors import InputError
from albert_tf.features.extract import line
from albert_tf.jobs.work_folder import WorkFolder
from albert_tf.serving.options import Ask
from albert_tf.serving.predict import Answer, Model
from albert_tf.text.inputs import Input

_BATCHES = 8  # batches in a unit


@dataclasses.dataclass
class Counts:
    """Counts answers, those with `error`, and those to texts that are cut, by task."""

    answers: int = 0
    wrong: int = 0
    first_wrong: str = ""
    cut: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)

    def full(self, item: Input, answer: Answer) -> Answer:
        """Counts an answer, and adds the fields that are kept of its input."""
        self.answers += 1
        if "error" not in answer:
            return {**item.kept, **answer}
        self.wrong += 1
        self.first_wrong = self.first_wrong or ": ".join(
            filter(None, (item.where, answer["error"])))
        return {**item.kept, "line": item.line, **answer}

    def include(self, other: Mapping[str, Any]) -> None:
        """Adds other counts, which are JSON values."""
        self.answers += other["answers"]
        self.wrong += other["wrong"]
        self.first_wrong = self.first_wrong or other["first_wrong"]
        self.cut.update(other["cut"])

    def check(self) -> None:
        if self.wrong:
            raise InputError(
                f"{self.wrong:,} of {self.answers:,} inputs have an `error` instead of "
                f"an answer. The first is {self.first_wrong}")


def write(model: Model, inputs: Iterator[Input], path: str, folder: WorkFolder,
          ask: Ask, total: Optional[int] = None) -> Counts:
    """Answers inputs, of which there are `total`, and writes the file `path`. Parts
    that are finished in the folder, which is in use (WorkFolder.used), are not computed
    again."""
    counts, size = Counts(), _BATCHES * ask.batch_size

    def answer(unit: list[Input]) -> tuple[list[str], dict[str, Any]]:
        of_unit = Counts()
        answers = model.stream((item.given for item in unit), ask, size, True, of_unit.cut)
        return [line(of_unit.full(*pair)) for pair in zip(unit, answers)], vars(of_unit)

    for info in folder.write_lines(
            path, inputs, size, answer, ("answering", "inputs", total)):
        counts.include(info)
    model.log_cut(counts.cut, counts.answers)
    return counts


def write_stream(lines: Iterator[str], path: str) -> None:
    """Writes lines as they come, to `<path>.unfinished` until the last: they cannot be
    had again if the run is interrupted."""
    unfinished = f"{path}.unfinished"
    if files.exists(unfinished):
        raise InputError(f"{unfinished} holds the answers of an interrupted run; "
                         "rename or remove it.")
    with files.open_binary(unfinished, "wb") as stream:
        for each in lines:
            stream.write(f"{each}\n".encode())
            stream.flush()
    files.rename(unfinished, path)
