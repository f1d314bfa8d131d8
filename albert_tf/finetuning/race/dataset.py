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
import json
import os
import re
from typing import Any, Iterator, NamedTuple, Optional, Sequence

from absl import logging

from albert_tf import files, row_files, text_files
from albert_tf.errors import InputError

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
    if paths := _row_files(data_dir, split):
        return _of_rows(paths, levels)
    return _of_folders(_split_dir(data_dir, split), levels)


def _split_dir(data_dir: str, split: str) -> str:
    """Returns <data_dir>/<split>, or <data_dir>/RACE/<split>, the path in the original
    implementation."""
    folders = [os.path.join(data_dir, split), os.path.join(data_dir, "RACE", split)]
    for folder in folders:
        if files.exists(folder):
            return folder
    use = {"train": "train", "dev": "eval", "test": "predict"}[split]
    raise InputError(
        f"--data_dir={data_dir}: there is neither a folder {folders[0]} nor "
        f"{folders[1]}, nor a file {split}*.parquet; give the folder RACE as "
        f"downloaded, or leave this set out (--nodo_{use}).")


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


def _of_rows(paths: Sequence[str], levels: Sequence[str]) -> list[RaceExample]:
    """Returns the questions of Parquet and Arrow files."""
    articles: dict[str, tuple[str, str, int]] = {}  # id → article, where, questions
    examples, found = [], set()
    for path in paths:
        for number, row in row_files.read_rows(
                path, ("example_id", "article", "question", "options"), ("answer",)):
            where = f"{path}, row {number}"
            example_id = row["example_id"]
            level = next((level for level in LEVELS
                          if str(example_id).startswith(level)), None)
            if level is None:
                raise InputError(
                    f"{where}: the example_id {str(example_id)[:40]!r} does not begin "
                    f"with {' or '.join(LEVELS)}, which is the level of the passage.")
            found.add(level)
            if level not in levels:
                continue
            answer = row.get("answer")
            [example] = _examples({
                "id": example_id, "article": row["article"],
                "questions": [row["question"]], "options": [row["options"]],
                "answers": [answer] if answer else None}, "", level, where)
            article, first, count = articles.get(
                example_id, (example.article, where, 0))
            if article != example.article:
                raise InputError(
                    f"{where}: the example_id '{example_id}' is also that of a "
                    f"different passage in {first}. Give each passage its own id, "
                    "because predictions are written by id.")
            articles[example_id] = article, first, count + 1
            examples.append(example._replace(number=count))
    for level in levels:
        if level not in found:
            (other,) = set(LEVELS) - {level}
            raise InputError(
                f"{', '.join(paths)}: there is no question of the level {level}"
                + (f"; give --{other}_only to use only the other level."
                   if len(levels) > 1 else "."))
    return sorted(examples, key=lambda example: LEVELS.index(example.level))


def _of_folders(split_dir: str, levels: Sequence[str]) -> list[RaceExample]:
    """Returns the questions in the folders of a split's levels."""
    examples, seen = [], {}
    for level in levels:
        folder = os.path.join(split_dir, level)
        if not files.exists(folder):
            (other,) = set(LEVELS) - {level}
            raise InputError(
                f"{folder}: there is no such folder; check --data_dir"
                + (f", or give --{other}_only to use only the other level."
                   if len(levels) > 1 else "."))
        for passage, default_id, source in _passages(folder, level):
            questions = _examples(passage, default_id, level, source)
            example_id = questions[0].example_id
            if example_id in seen:
                raise InputError(
                    f"{source}: the id '{example_id}' is also the id of the "
                    f"passage in {seen[example_id]}. Give each passage its own id, "
                    "because predictions are written by id.")
            seen[example_id] = source
            examples += questions
    _warn_of_others(split_dir, levels)
    return examples


def _visible(folder: str) -> list[str]:
    """Returns the names in a folder, without hidden ones."""
    return [name for name in files.names_in(folder) if not name.startswith(".")]


def _warn_of_others(split_dir: str, levels: Sequence[str]) -> None:
    """Warns of what a split holds besides the passages, which is not read."""
    others = [os.path.join(split_dir, name) for name in _visible(split_dir)
              if name.rstrip("/") not in LEVELS]
    for level in levels:
        folder = os.path.join(split_dir, level)
        others += [os.path.join(folder, name) for name in _visible(folder)
                   if not name.endswith(".txt")]
    if others:
        logging.warning(
            "%d files or folders in %s are not read, as in the original "
            "implementation, because passages are .txt files in %s; the first is %s.",
            len(others), split_dir, " and ".join(LEVELS), others[0])


def _passages(folder: str, level: str) -> Iterator[tuple[Any, str, str]]:
    """Yields (parsed JSON, default id, where) for a level's passages."""
    pattern = folder if files.is_remote(folder) else glob.escape(folder)
    if not any(name.endswith(".txt") for name in _visible(folder)):
        raise InputError(
            f"{folder}: there is no .txt file; it needs one for each passage, or one "
            f"{_WHOLE_LEVEL}. Check the download.")
    paths = files.expand_patterns([os.path.join(pattern, "*.txt")], "--data_dir")
    whole = os.path.join(folder, _WHOLE_LEVEL)
    single = sorted((path for path in paths if path != whole), key=_file_order)
    if whole not in paths:
        for path in single:
            yield (text_files.read_json(path, "the passage must be one object"),
                   level + os.path.basename(path), path)
        return
    if single:
        raise InputError(
            f"{folder}: there are {_WHOLE_LEVEL} and {len(single)} other .txt files, "
            "so that each passage may occur twice; remove the one or the others.")
    has_line = False
    for number, line in text_files.read_lines(whole):
        if line.strip():
            has_line = True
            yield (text_files.parse_json(
                line, whole, "the passage must be one object on one line", number),
                   f"{level}{number}.txt", f"{whole}, line {number}")
    if not has_line:
        raise InputError(f"{whole}: the file is empty; it needs one JSON object per "
                         "line.")


def _file_order(path: str) -> tuple:
    """Returns a sort key: files named by number in order, then the others by name."""
    name = os.path.basename(path)
    stem = name.removesuffix(".txt")
    return (0, int(stem), name) if stem.isdecimal() else (1, 0, name)


def _examples(passage: Any, default_id: str, level: str, where: str
              ) -> list[RaceExample]:
    """Returns the questions of a passage. Raises InputError if a value is wrong."""
    if not isinstance(passage, dict):
        raise InputError(f"{where}: the passage is not a JSON object; it must be one "
                         "with article, questions and options.")
    for name, kind, expected in (
            ("article", str, "text"), ("questions", list, "a list"),
            ("options", list, "a list of lists")):
        if not isinstance(passage.get(name), kind):
            raise InputError(f"{where}: '{name}' is missing or is not {expected}; a "
                             "passage needs article, questions and options.")
    questions, options = passage["questions"], passage["options"]
    answers = passage.get("answers")
    if answers is not None and not isinstance(answers, list):
        raise InputError(f"{where}: 'answers' is not a list; it must have one letter "
                         "for each question.")
    if not questions:
        raise InputError(f"{where}: the passage has no question; remove it.")
    for name, values in (("options", options), ("answers", answers)):
        if values is not None and len(values) != len(questions):
            raise InputError(f"{where}: there are {len(questions)} questions but "
                             f"{len(values)} {name}; each question needs its own.")
    example_id = str(passage.get("id") or default_id)
    examples = []
    for i, question in enumerate(questions):
        here = f"{where}, question {i + 1}"
        if not isinstance(question, str):
            raise InputError(f"{here}: the question is not text; write it in quotes.")
        if not isinstance(options[i], list) or len(options[i]) != NUM_CHOICES:
            count = len(options[i]) if isinstance(options[i], list) else "no list of"
            raise InputError(f"{here}: there are {count} options; give {NUM_CHOICES} "
                             "texts.")
        for letter, option in zip(LETTERS, options[i]):
            if not isinstance(option, str):
                raise InputError(f"{here}: option {letter} is {json.dumps(option)[:40]}"
                                 ", which is not text; write it in quotes.")
        label = None if answers is None else _label(answers[i], here)
        examples.append(RaceExample(
            example_id, i, level, passage["article"], question, tuple(options[i]),
            label, where))
    return examples


def _label(answer: Any, where: str) -> int:
    letter = answer.strip() if isinstance(answer, str) else ""
    if len(letter) != 1 or letter not in LETTERS:
        raise InputError(f"{where}: the answer {json.dumps(answer)} is not one of "
                         f"{', '.join(LETTERS)}; correct it.")
    return LETTERS.index(letter)
