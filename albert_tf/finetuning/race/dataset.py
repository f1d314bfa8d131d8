"""Reading RACE, and data sets of the same form.

    <data_dir>/<split>/<level>/N.txt     split train, dev, test; level middle, high
    {"id": "high75.txt", "article": "...", "questions": ["...", ...],
     "options": [["...", "...", "...", "..."], ...], "answers": ["A", ...]}

A level's folder may instead have one file `all.txt` with one passage per line, which is
what the original implementation reads.

The folder may also have Parquet or Arrow files as the library `datasets` writes them,
with a row for each question: article, question, options, answer and example_id, which
begins with the level ("high75.txt"). Files of a split are <split>*.parquet beside each
other, or in a folder <split>; "validation" is "dev".
"""

import collections
import os
import re
from typing import Any, Iterator, NamedTuple, Optional, Sequence

from albert_tf import files, row_files, text_files
from albert_tf.errors import InputError
from albert_tf.rows import number_of, rows, typed

LETTERS = "ABCD"
NUM_CHOICES = len(LETTERS)
LEVELS = ("middle", "high")  # The original implementation's order of examples.

_WHOLE_LEVEL = "all.txt"


class RaceExample(NamedTuple):
    """One question about one passage."""

    example_id: str  # The passage's id, such as "high75.txt".
    number: int  # The number of the question within the passage, from 0.
    level: str  # One of LEVELS.
    article: str  # The passage.
    question: str
    options: tuple[str, ...]
    label: Optional[int]  # The number of the right option; None if unknown.
    where: str  # The file, and the line or row if the file has several passages.


def read(data_dir: str, split: str, levels: Sequence[str]) -> list[RaceExample]:
    """Reads the questions of a split's levels; see RaceTask.read for their order."""
    paths = _row_files(data_dir, split)
    examples: list[RaceExample] = []
    first: dict[str, RaceExample] = {}  # id → its first question
    for where, level, passage in (
            _of_rows(paths) if paths else _of_folders(data_dir, split, levels)):
        for example in _examples(where, level, passage):
            before = first.setdefault(example.example_id, example)
            # A passage of rows has a row for each question.
            if before.where != where and not (
                    paths and before.article == example.article):
                raise InputError(
                    f"{where}: the id '{example.example_id}' is also the id of the "
                    f"passage in {before.where}. Give each passage its own id, because "
                    "predictions are written by id.")
            if level in levels:
                examples.append(example)
    there = {example.level for example in examples}
    for level in [level for level in levels if level not in there]:
        raise InputError(
            f"{', '.join(paths) or data_dir}: there is no question of the level {level} "
            "(--high_only and --middle_only use only one).")
    examples.sort(key=lambda example: LEVELS.index(example.level))
    numbers: collections.Counter[str] = collections.Counter()
    for i, example in enumerate(examples):
        examples[i] = example._replace(number=numbers[example.example_id])
        numbers[example.example_id] += 1
    return examples


def _row_files(data_dir: str, split: str) -> list[str]:
    """Returns the paths of a split's Parquet and Arrow files, [] if there are none."""
    paths = []
    for name in {"dev": ("dev", "validation")}.get(split, (split,)):
        folder = os.path.join(data_dir, name)
        # `datasets` keeps intermediate results beside what it saves to disk.
        paths += [os.path.join(data_dir, file) for file in _visible(data_dir)
                  if re.match(rf"{name}\b", file)] + [
            os.path.join(folder, file) for file in _visible(folder)
            if not file.startswith("cache-")]
    return [path for path in paths if row_files.is_row_file(path)]


def _visible(folder: str) -> list[str]:
    """Returns the names in a folder, without hidden ones."""
    return [name for name in files.names_in(folder) if not name.startswith(".")]


# A place, the level, and a passage in RACE's form.
_Passage = tuple[str, str, Any]


def _of_rows(paths: Sequence[str]) -> Iterator[_Passage]:
    """Yields the questions of Parquet and Arrow files, each as a passage."""
    for path in paths:
        for where, row in rows(
                path, ("example_id", "article", "question", "options"), ("answer",)):
            name = typed(row, where, example_id=str)["example_id"]
            level = next(filter(name.startswith, LEVELS), None)
            if level is None:
                raise InputError(
                    f"{where}: the example_id {name[:40]!r} does not begin with "
                    f"{' or '.join(LEVELS)}, which is the level of the passage.")
            yield where, level, {
                "id": name, "article": row["article"], "questions": [row["question"]],
                "options": [row["options"]],
                "answers": [row["answer"]] if row.get("answer") else None}


def _of_folders(data_dir: str, split: str, levels: Sequence[str]) -> Iterator[_Passage]:
    """Yields the passages in the folders of a split's levels: <data_dir>/<split>, or
    <data_dir>/RACE/<split>, the path in the original implementation."""
    folders = [os.path.join(data_dir, split), os.path.join(data_dir, "RACE", split)]
    of_split = next(filter(files.exists, folders), None)
    if of_split is None:
        use = {"train": "train", "dev": "eval", "test": "predict"}[split]
        raise InputError(
            f"--data_dir={data_dir}: there is neither a folder {' nor '.join(folders)}, "
            f"nor a file {split}*.parquet; give the folder RACE as downloaded, or leave "
            f"this set out (--nodo_{use}).")
    for level in levels:
        folder = os.path.join(of_split, level)
        names = [name for name in _visible(folder) if name.endswith(".txt")]
        whole = os.path.join(folder, _WHOLE_LEVEL)
        if not names or len(names) > 1 and _WHOLE_LEVEL in names:
            raise InputError(
                f"{folder}: there is no such folder, or it has no .txt file, or "
                f"{_WHOLE_LEVEL} and others, so that each passage may occur twice; check "
                "--data_dir (--high_only and --middle_only use only one level).")
        passages = rows(whole, kind="jsonl") if _WHOLE_LEVEL in names else (
            (path, text_files.read_object(path, "the passage must be one object"))
            for path in (os.path.join(folder, name)
                         for name in sorted(names, key=_file_order)))
        for where, passage in passages:
            name = (f"{number_of(where)}.txt" if _WHOLE_LEVEL in names
                    else os.path.basename(where))
            yield where, level, {**passage, "id": passage.get("id") or level + name}


def _file_order(name: str) -> tuple:
    """Returns a sort key: files named by number in order, then the others by name."""
    stem = name.removesuffix(".txt")
    return (0, int(stem), name) if stem.isdecimal() else (1, 0, name)


def _examples(where: str, level: str, passage: Any) -> Iterator[RaceExample]:
    """Yields the questions of a passage after checking it."""
    typed(passage, where, article=str, questions=[str], options=[[str]],
          answers=([str], None))
    questions, options, answers = (
        passage.get(name) for name in ("questions", "options", "answers"))
    if not len(questions) == len(options) == len(
            questions if answers is None else answers) or not questions:
        raise InputError(
            f"{where}: there are {len(questions)} questions, {len(options)} lists of "
            f"options and {len(answers or ())} answers; each question needs each.")
    for number, (question, choices) in enumerate(zip(questions, options)):
        answer = "A" if answers is None else answers[number].strip()
        if len(choices) != NUM_CHOICES or answer not in tuple(LETTERS):
            raise InputError(
                f"{where}, question {number + 1}: there are {len(choices)} options, and "
                f"the answer is '{answer}'; give {NUM_CHOICES} options, and one of "
                f"{', '.join(LETTERS)} as the answer.")
        yield RaceExample(
            str(passage["id"]), number, level, passage["article"], question,
            tuple(choices), None if answers is None else LETTERS.index(answer), where)
