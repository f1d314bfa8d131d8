"""RACE: reading comprehension with four choices, as in the TF1 release.

    <data_dir>/<split>/<level>/N.txt     split train, dev, test; level middle, high
    {"id": "high75.txt", "article": "...", "questions": ["...", ...],
     "options": [["...", "...", "...", "..."], ...], "answers": ["A", ...]}

A folder of a level may hold one file `all.txt` instead, with a passage a line,
which the release asks for.
"""

import functools
import glob
import json
import os
from typing import Any, Iterator, NamedTuple, Optional, Sequence

import numpy as np

from albert_tf import files
from albert_tf.errors import InputError
from albert_tf.records.sequences import NUM_SPECIAL_PAIR, assemble, pad_inputs
from albert_tf.tokenization.tokenizer import FullTokenizer

LETTERS = "ABCD"
NUM_CHOICES = len(LETTERS)
LEVELS = ("middle", "high")  # In the release's order of examples.

# What a question has in place of a gap that the options fill.
_GAP = "_"
_WHOLE_LEVEL = "all.txt"


class RaceExample(NamedTuple):
    """One question about one passage.

    Attributes:
      example_id: the passage's id, such as "high75.txt".
      number: of the question among the passage's, starting at 0.
      level: "middle" or "high".
      article, question: as in the file.
      options: the four answers to choose from.
      label: number of the right option; None where it is not given.
      where: the file, and its line where it holds several passages.
    """

    example_id: str
    number: int
    level: str
    article: str
    question: str
    options: tuple[str, ...]
    label: Optional[int]
    where: str


# --- reading ---------------------------------------------------------------------


def read_examples(data_dir: str, split: str, *, high_only: bool = False,
                  middle_only: bool = False) -> list[RaceExample]:
    """Reads the questions of a split (`RaceProcessor.read_examples`).

    Args:
      data_dir: the folder RACE as downloaded, or the one that holds it.
      split: "train", "dev" or "test".
      high_only: without the middle-school passages.
      middle_only: without the high-school passages.

    Returns:
      Middle before high; a level's passages in the order of all.txt's lines, or of
      the numbers in the files' names; a passage's questions in its order.

    Raises:
      InputError: if a folder is missing, there is no question, or a file is not as
        described above; names the file, the line and the question.
    """
    if high_only and middle_only:
        raise InputError(
            "--high_only and --middle_only exclude each other: give one of them, or "
            "neither to use both levels.")
    levels = [level for level in LEVELS
              if not (high_only and level == "middle"
                      or middle_only and level == "high")]
    split_dir = _split_dir(data_dir, split)
    examples, seen = [], {}
    for level in levels:
        folder = os.path.join(split_dir, level)
        if not files.exists(folder):
            (other,) = set(LEVELS) - {level}
            raise InputError(
                f"{folder}: there is no such folder; check --data_dir"
                + (f", or give --{other}_only to use the other level alone."
                   if len(levels) > 1 else "."))
        for passage, default_id, where in _passages(folder, level):
            found = _examples(passage, default_id, level, where)
            example_id = found[0].example_id
            if example_id in seen:
                raise InputError(
                    f"{where}: the id '{example_id}' is also that of the passage in "
                    f"{seen[example_id]}; give each its own, since predictions are "
                    "written by id.")
            seen[example_id] = where
            examples += found
    return examples


def _split_dir(data_dir: str, split: str) -> str:
    """<data_dir>/<split>, or <data_dir>/RACE/<split> as the release has it."""
    folders = [os.path.join(data_dir, split), os.path.join(data_dir, "RACE", split)]
    for folder in folders:
        if files.exists(folder):
            return folder
    use = {"train": "train", "dev": "eval", "test": "predict"}[split]
    raise InputError(
        f"--data_dir={data_dir}: there is neither a folder {folders[0]} nor "
        f"{folders[1]}; give the folder RACE as downloaded, or do without this set "
        f"(--nodo_{use}).")


def _passages(folder: str, level: str) -> Iterator[tuple[Any, str, str]]:
    """(parsed JSON, id if it has none, where) of a level's passages."""
    pattern = folder if files.is_remote(folder) else glob.escape(folder)
    try:
        paths = files.expand_patterns([os.path.join(pattern, "*.txt")], "--data_dir")
    except InputError as error:
        raise InputError(
            f"{folder}: holds no .txt file; RACE has one for each passage there, or "
            f"one {_WHOLE_LEVEL}.") from error
    whole = os.path.join(folder, _WHOLE_LEVEL)
    single = sorted((path for path in paths if path != whole), key=_file_order)
    if whole in paths:
        if single:
            raise InputError(
                f"{folder}: holds {_WHOLE_LEVEL} and {len(single)} other .txt files, "
                "and so perhaps every passage twice; move one or the others away.")
        found = 0
        for number, line in files.read_lines(whole):
            if line.strip():
                found += 1
                where = f"{whole}, line {number}"
                yield _parse(line, whole, number), f"{level}{number}.txt", where
        if not found:
            raise InputError(f"{whole}: is empty; it needs a JSON object a line.")
    for path in single:
        text = "\n".join(line for _, line in files.read_lines(path))
        yield _parse(text, path), level + os.path.basename(path), path


def _file_order(path: str) -> tuple:
    """By number where the name is one, the other files after them by name."""
    name = os.path.basename(path)
    stem = name.removesuffix(".txt")
    return (0, int(stem), name) if stem.isdecimal() else (1, 0, name)


def _parse(text: str, path: str, line: int = 0) -> Any:
    """JSON of a line, or of a whole file if `line` is 0."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(
            f"{path}, line {line or error.lineno}: is not JSON ({error.msg}, "
            f"character {error.colno}); it needs the passage as one object"
            + (" on one line." if line else ".")) from error


def _examples(passage: Any, default_id: str, level: str, where: str
              ) -> list[RaceExample]:
    """The questions of a passage, checked."""
    if not isinstance(passage, dict):
        raise InputError(
            f"{where}: is not a JSON object with article, questions and options.")
    for name, kind, expected in (
            ("article", str, "text"), ("questions", list, "a list"),
            ("options", list, "a list of lists")):
        if not isinstance(passage.get(name), kind):
            raise InputError(
                f"{where}: '{name}' is missing or is not {expected}; a passage needs "
                "article, questions and options.")
    questions, options = passage["questions"], passage["options"]
    answers = passage.get("answers")
    if answers is not None and not isinstance(answers, list):
        raise InputError(
            f"{where}: 'answers' is not a list; it needs a letter for each question.")
    if not questions:
        raise InputError(f"{where}: the passage has no question; take it out.")
    for name, values in (("options", options), ("answers", answers)):
        if values is not None and len(values) != len(questions):
            raise InputError(
                f"{where}: there are {len(questions)} questions but {len(values)} "
                f"{name}; each question needs its own.")
    example_id = str(passage.get("id") or default_id)
    examples = []
    for i, question in enumerate(questions):
        here = f"{where}, question {i + 1}"
        if not isinstance(question, str):
            raise InputError(f"{here}: the question is not text.")
        if (not isinstance(options[i], list) or len(options[i]) != NUM_CHOICES
                or not all(isinstance(option, str) for option in options[i])):
            count = len(options[i]) if isinstance(options[i], list) else "no list of"
            raise InputError(
                f"{here}: there are {count} options; it needs {NUM_CHOICES} texts.")
        label = None if answers is None else _label(answers[i], here)
        examples.append(RaceExample(
            example_id, i, level, passage["article"], question, tuple(options[i]),
            label, where))
    return examples


def _label(answer: Any, where: str) -> int:
    letter = answer.strip() if isinstance(answer, str) else ""
    if len(letter) != 1 or letter not in LETTERS:
        raise InputError(f"{where}: the answer {json.dumps(answer)} is not one of "
                         f"{', '.join(LETTERS)}.")
    return LETTERS.index(letter)


# --- features --------------------------------------------------------------------


def check_lengths(max_seq_length: int, max_qa_length: int) -> None:
    """Raises InputError if there is no room for a question."""
    if max_seq_length <= NUM_SPECIAL_PAIR:
        raise InputError(
            f"--max_seq_length={max_seq_length} leaves no room for text: [CLS] and "
            f"two [SEP] take {NUM_SPECIAL_PAIR}.")
    if max_qa_length < 1:
        raise InputError(
            f"--max_qa_length={max_qa_length} leaves no room for question and "
            "option; give 1 or more.")


def featurize(example: RaceExample, *, tokenizer: FullTokenizer, max_seq_length: int,
              max_qa_length: int) -> list[dict[str, list]]:
    """The four sequences of a question (`convert_single_example`).

    Each is [CLS] article [SEP] question and option [SEP]. Of question and option
    the last max_qa_length pieces are kept, and the article gets what is left of
    max_seq_length. The release fails where the former alone are too long; here
    they are cut too, and the article is left out.

    Args:
      example: the question.
      tokenizer: the tokenizer.
      max_seq_length: longest sequence.
      max_qa_length: largest number of pieces of question and option.

    Returns:
      One dict, a list because other tasks make several of an example: input_ids,
      input_mask, segment_ids [4, length of the longest choice], and label_ids [1],
      0 where the answer is unknown.

    Raises:
      InputError: if the lengths leave no room.
    """
    check_lengths(max_seq_length, max_qa_length)
    article = _article_pieces(example.article, tokenizer)
    question = tokenizer.prepare(example.question)
    texts = [question.replace(_GAP, option) if _GAP in question
             else f"{question} {option}"
             for option in map(tokenizer.prepare, example.options)]
    room = max_seq_length - NUM_SPECIAL_PAIR
    choices = []
    for ending in tokenizer.encode_batch(texts):
        ending = ending[-min(max_qa_length, room):]
        choices.append(assemble(article[:room - len(ending)], ending,
                                tokenizer.cls_id, tokenizer.sep_id))
    length = max(len(choice.tokens) for choice in choices)
    padded = [pad_inputs(*choice, length, tokenizer.pad_id) for choice in choices]
    return [{**{name: [choice[name] for choice in padded] for name in padded[0]},
             "label_ids": [example.label or 0]}]


# The questions of a passage follow each other: it is tokenized once for them all.
@functools.lru_cache(maxsize=4)
def _article_pieces(text: str, tokenizer: FullTokenizer) -> list[int]:
    """Ids of an article, not to be changed."""
    return tokenizer.encode(tokenizer.prepare(text))


# --- scores and files ------------------------------------------------------------


def labels_of(examples: Sequence[RaceExample]) -> np.ndarray:
    """Numbers of the right options, int64 [N].

    Raises:
      InputError: if an example has none.
    """
    for example in examples:
        if example.label is None:
            raise InputError(
                f"{example.where}: there are no answers, so this set can be predicted "
                "but not scored.")
    return np.array([example.label for example in examples], np.int64)


def score(examples: Sequence[RaceExample], predictions: np.ndarray) -> dict[str, float]:
    """Shares of right answers.

    Args:
      examples: N questions.
      predictions: numbers of the chosen options [N], in the examples' order.

    Returns:
      `accuracy`, and `middle_accuracy` and `high_accuracy` for levels that occur.

    Raises:
      InputError: if an example has no label, or there is none.
    """
    if not examples:
        raise InputError("There is no question to score.")
    hits = np.asarray(predictions) == labels_of(examples)
    levels = np.array([example.level for example in examples])
    return {"accuracy": float(hits.mean()),
            **{f"{level}_accuracy": float(hits[levels == level].mean())
               for level in LEVELS if level in levels}}


def write_predictions(output_dir: str, examples: Sequence[RaceExample],
                      probabilities: np.ndarray) -> list[str]:
    """Writes what the model chose.

      predictions.json  id of the passage → letters of its questions, as RACE's
                        files have their answers
      predictions.tsv   for people: the question, the letter, its probability, the
                        option, the true letter where it is known; tabs and line
                        ends within a text are written as blanks

    Args:
      output_dir: where to.
      examples: N questions.
      probabilities: [N, 4], in the examples' order.

    Returns:
      The paths.

    Raises:
      InputError: if a probability is not finite or a file cannot be written.
    """
    probabilities = np.asarray(probabilities)
    if probabilities.shape != (len(examples), NUM_CHOICES):
        raise ValueError(f"probabilities of shape {probabilities.shape} for "
                         f"{len(examples)} examples of {NUM_CHOICES} options")
    wrong = np.flatnonzero(~np.isfinite(probabilities).all(axis=1))
    if wrong.size:
        example = examples[wrong[0]]
        raise InputError(
            f"the model's output for question {example.number + 1} of "
            f"{example.example_id} is not a number: it has diverged; take an earlier "
            "checkpoint or train with a lower --learning_rate.")
    known = any(example.label is not None for example in examples)
    answers: dict[str, list[str]] = {}
    table = [["id", "question_number", "level", "question", "prediction",
              "probability", "option", *["answer"] * known]]
    for example, row in zip(examples, probabilities):
        chosen = int(np.argmax(row))
        answers.setdefault(example.example_id, []).append(LETTERS[chosen])
        cells = [example.example_id, str(example.number + 1), example.level,
                 example.question, LETTERS[chosen], f"{row[chosen]:.4f}",
                 example.options[chosen]]
        if known:
            cells.append("" if example.label is None else LETTERS[example.label])
        table.append([" ".join(cell.split()) for cell in cells])
    contents = {
        "predictions.json": json.dumps(answers, ensure_ascii=False, indent=1) + "\n",
        "predictions.tsv": "".join("\t".join(row) + "\n" for row in table),
    }
    paths = []
    for name, content in contents.items():
        path = os.path.join(output_dir, name)
        with files.atomic_write(path) as stream:
            stream.write(content.encode())
        paths.append(path)
    return paths
