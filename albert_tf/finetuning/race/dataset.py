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

import glob
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
    """One question about one passage.

    Attributes:
      example_id: the passage's id, such as "high75.txt".
      number: the number of the question within the passage, from 0.
      level: one of LEVELS.
      article: the passage.
      label: the number of the right option; None if unknown.
      where: the file, and the line or row if the file has several passages.
    """

    example_id: str
    number: int
    level: str
    article: str
    question: str
    options: tuple[str, ...]
    label: Optional[int]
    where: str


def read(data_dir: str, split: str, levels: Sequence[str]) -> list[RaceExample]:
    """Reads the questions of a split's levels; see RaceTask.read for their order."""
    paths = _row_files(data_dir, split)
    passages = _of_rows(paths) if paths else _of_folders(data_dir, split, levels)
    examples: list[RaceExample] = []
    first: dict[str, RaceExample] = {}  # id → its first question
    for where, level, passage in passages:
        for example in _examples(where, level, passage):
            before = first.setdefault(example.example_id, example)
            # A passage of rows has a row for each question.
            is_same = paths and before.article == example.article
            if before.where != where and not is_same:
                raise InputError(
                    f"{where}: the id '{example.example_id}' is also the id of the "
                    f"passage in {before.where}. Give each passage its own id, because "
                    "predictions are written by id.")
            examples.append(example)
    for level in levels:
        if not any(example.level == level for example in examples):
            raise InputError(
                f"{', '.join(paths) or data_dir}: there is no question of the level "
                f"{level}{_other(levels, level)}.")
    examples = sorted((example for example in examples if example.level in levels),
                      key=lambda example: LEVELS.index(example.level))
    numbers = dict.fromkeys(first, -1)
    for i, example in enumerate(examples):
        numbers[example.example_id] += 1
        examples[i] = example._replace(number=numbers[example.example_id])
    return examples


def _other(levels: Sequence[str], level: str) -> str:
    other = LEVELS[1 - LEVELS.index(level)]
    return f"; give --{other}_only to use only the other level" * (len(levels) > 1)


def _row_files(data_dir: str, split: str) -> list[str]:
    """Returns the paths of a split's Parquet and Arrow files, [] if there are none."""
    paths = []
    for name in {"dev": ("dev", "validation")}.get(split, (split,)):
        folder = os.path.join(data_dir, name)
        paths += [os.path.join(data_dir, file) for file in _visible(data_dir)
                  if re.match(rf"{name}\b", file) and row_files.is_row_file(file)]
        # `datasets` keeps intermediate results beside what it saves to disk.
        paths += [os.path.join(folder, file) for file in _visible(folder)
                  if row_files.is_row_file(file) and not file.startswith("cache-")]
    return paths


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
        if not names:
            raise InputError(f"{folder}: there is no such folder, or no .txt file in "
                             f"it; check --data_dir{_other(levels, level)}.")
        if _WHOLE_LEVEL not in names:
            pattern = folder if files.is_remote(folder) else glob.escape(folder)
            for path in sorted(files.expand_patterns(
                    [os.path.join(pattern, "*.txt")], "--data_dir"), key=_file_order):
                passage = text_files.read_object(path, "the passage must be one object")
                yield path, level, _with_id(passage, level + os.path.basename(path))
            continue
        whole = os.path.join(folder, _WHOLE_LEVEL)
        if len(names) > 1:
            raise InputError(
                f"{folder}: there are {_WHOLE_LEVEL} and {len(names) - 1} other .txt "
                "files, so that each passage may occur twice; remove the one or the "
                "others.")
        for where, passage in rows(whole, kind="jsonl"):
            yield where, level, _with_id(passage, f"{level}{number_of(where)}.txt")


def _with_id(passage: dict[str, Any], default: str) -> dict[str, Any]:
    return {**passage, "id": passage.get("id") or default}


def _file_order(path: str) -> tuple:
    """Returns a sort key: files named by number in order, then the others by name."""
    name = os.path.basename(path)
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
        here = f"{where}, question {number + 1}"
        if len(choices) != NUM_CHOICES:
            raise InputError(f"{here}: there are {len(choices)} options; give "
                             f"{NUM_CHOICES} texts.")
        answer = "A" if answers is None else answers[number].strip()
        if answer not in tuple(LETTERS):
            raise InputError(f"{here}: the answer '{answer}' is not one of "
                             f"{', '.join(LETTERS)}; correct it.")
        yield RaceExample(
            str(passage["id"]), number, level, passage["article"], question,
            tuple(choices), None if answers is None else LETTERS.index(answer), where)
