"""RACE: reading comprehension with four choices, as in the original implementation.

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

import dataclasses
import functools
import glob
import hashlib
import json
import math
import os
import re
from typing import Any, Iterator, NamedTuple, Optional, Sequence

import numpy as np
from absl import logging

from albert_tf import files, row_files, text_files
from albert_tf.checkpoints.checkpoint import head_of
from albert_tf.errors import InputError
from albert_tf.finetuning import metrics, tables
from albert_tf.finetuning.common import (
    PREDICT_RESULTS, ExampleSet, Outputs, as_json, check_labelled, cut_note,
    write_files)
from albert_tf.finetuning.task import FineTuningTask
from albert_tf.records.spec import Feature, FeatureSpec, model_inputs
from albert_tf.tokenization.cleaning import PreparedText
from albert_tf.tokenization.sequences import NUM_SPECIAL_PAIR, assemble, pad_inputs
from albert_tf.tokenization.tokenizer import FullTokenizer

LETTERS = "ABCD"
NUM_CHOICES = len(LETTERS)
LEVELS = ("middle", "high")  # The original implementation's order of examples.

# A gap in a question, which the options fill.
_GAP = "_"
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


@dataclasses.dataclass(frozen=True)
class RaceTask(FineTuningTask):
    """The RACE task, with the options of its examples and features.

        task = RaceTask(high_only=True)
        examples = task.read("RACE", "dev").examples
        [features] = task.featurize(examples[0], tokenizer=tokenizer)

    Question and option together keep their last `max_qa_length` tokens.
    """

    max_seq_length: int = 512
    max_qa_length: int = 128
    high_only: bool = False
    middle_only: bool = False

    name = "race"
    main_metric = "accuracy"
    metric_names = (main_metric,)

    def __post_init__(self):
        if self.max_seq_length <= NUM_SPECIAL_PAIR:
            raise InputError(
                f"--max_seq_length={self.max_seq_length} leaves no room for text: "
                f"[CLS] and two [SEP] take {NUM_SPECIAL_PAIR} tokens; give a larger "
                "number.")
        if self.max_qa_length < 1:
            raise InputError(
                f"--max_qa_length={self.max_qa_length} leaves no room for question "
                "and option; give 1 or more.")
        if self.high_only and self.middle_only:
            raise InputError(
                "--high_only and --middle_only exclude each other; give one of them, "
                "or neither to use both levels.")

    # --- data and features

    def read(self, where: str, split: str) -> ExampleSet:
        """Reads the questions of a split (`RaceProcessor.read_examples` in the original
        implementation). Only "test" may lack answers.

        The order is: middle before high; within a level, the order of all.txt's lines,
        or of the numbers in the files' names; within a passage, its own order.

        Args:
          where: the folder RACE as downloaded, or the folder that contains it, or a
            folder of Parquet or Arrow files.
          split: "train", "dev" or "test".
        """
        levels = [level for level in LEVELS
                  if not (self.high_only and level == "middle"
                          or self.middle_only and level == "high")]
        if paths := _row_files(where, split):
            examples = _of_rows(paths, levels)
        else:
            examples = _of_folders(_split_dir(where, split), levels)
        if split != "test":
            check_labelled(examples, "trained on" if split == "train" else "scored",
                           "there are no answers")
        logging.info("%s: %d questions about %d passages.", split, len(examples),
                     len({example.example_id for example in examples}))
        return ExampleSet(examples)

    def spec(self, config):
        return choice_spec(NUM_CHOICES, config.vocab_size, config.type_vocab_size)

    def sources(self, split, data):
        # RACE consists of 28,000 files, for which one digest is enough.
        digest = hashlib.sha256()
        for example in data.examples:
            digest.update(json.dumps([
                example.article, example.question, example.options,
                example.label]).encode())
        return {f"{split} data": digest.hexdigest()}

    def feature_settings(self, split):
        return {"max_qa_length": self.max_qa_length}

    def featurize(self, example: RaceExample, *, tokenizer: FullTokenizer
                  ) -> list[dict[str, list]]:
        """Computes the four sequences of a question (`convert_single_example` in the
        original implementation).

        Each is [CLS] article [SEP] question and option [SEP]. Question and option keep
        their last max_qa_length tokens, and the article gets the rest of
        max_seq_length. If question and option alone are too long, they are cut, and the
        article is left out; the original fails.

        Returns:
          A list of one dict (other tasks have several): input_ids, input_mask and
          segment_ids [4, length of the longest choice], and label_ids [1], 0 if the
          answer is unknown.
        """
        return [self.fitted(example, tokenizer)[0]]

    def fitted(self, example: RaceExample, tokenizer: FullTokenizer
               ) -> tuple[dict[str, list], int]:
        """Returns the features of a question, and the number of tokens that are cut
        from its four sequences."""
        article = _article_pieces(example.article, tokenizer)
        question = tokenizer.prepare(example.question)
        texts = [PreparedText(question.replace(_GAP, option) if _GAP in question
                              else f"{question} {option}")
                 for option in map(tokenizer.prepare, example.options)]
        room = self.max_seq_length - NUM_SPECIAL_PAIR
        choices, cut = [], 0
        for whole in tokenizer.encode_batch(texts):
            ending = whole[-min(self.max_qa_length, room):]
            begin = article[:room - len(ending)]
            cut += len(article) - len(begin) + len(whole) - len(ending)
            choices.append(assemble(begin, ending, tokenizer.cls_id, tokenizer.sep_id))
        length = max(len(choice.tokens) for choice in choices)
        padded = [pad_inputs(*choice, length, tokenizer.pad_id) for choice in choices]
        return {**{name: [choice[name] for choice in padded] for name in padded[0]},
                "label_ids": [example.label or 0]}, cut

    def check_features(self, sets, tables, settings):
        """Logs how many options, with their questions, are cut."""
        most = min(self.max_qa_length, self.max_seq_length - NUM_SPECIAL_PAIR)
        for split, table in tables.items():
            lengths = np.concatenate([rows.sum(axis=-1) for rows in table.columns[
                "segment_ids"]]) - 1  # [SEP]
            full = int(np.count_nonzero(lengths >= most))
            if full:
                logging.warning("--max_qa_length=%d, %s: %s", self.max_qa_length, split,
                                cut_note(full, len(lengths), most,
                                         "options with their questions"))

    # --- model and results

    def head(self, settings):
        return head_of("multiple_choice", dropout_prob=settings.dropout_prob)

    def score(self, data: ExampleSet, outputs: Outputs, table: Any = None
              ) -> dict[str, float]:
        """Computes `accuracy`, and `middle_accuracy` and `high_accuracy` for the levels
        that occur. Questions without an answer do not count."""
        chosen = _probabilities(data.examples, outputs).argmax(axis=1)
        known = [(example, choice) for example, choice in zip(data.examples, chosen)
                 if example.label is not None]
        if not known:
            raise InputError("There is no question with an answer to score; give a set "
                             "with answers.")
        hits = np.array([choice == example.label for example, choice in known])
        levels = np.array([example.level for example, _ in known])
        return {"accuracy": float(hits.mean()),
                **{f"{level}_accuracy": float(hits[levels == level].mean())
                   for level in LEVELS if level in levels}}

    def failure(self, data, outputs, table):
        return metrics.at_chance(
            _probabilities(data.examples, outputs),
            np.array([example.label for example in data.examples]), LETTERS)

    def chance_loss(self, data, table):
        return math.log(NUM_CHOICES)

    def write(self, split, data, outputs, table, step, settings):
        """Writes predictions and, for a test set with answers, the accuracy."""
        folder = settings.run.output_dir
        paths = self.write_predictions(
            os.path.join(folder, "eval_predictions" if split == "dev" else ""),
            data.examples, outputs, "" if split == "dev" else settings.prediction_file,
            settings.all_probabilities)
        known = sum(example.label is not None for example in data.examples)
        if split == "test" and known:
            scores = self.score(data, outputs)
            logging.info(
                "Test (%d of %d questions have an answer): %s", known,
                len(data.examples), ", ".join(
                    f"{name} {value:.6g}" for name, value in scores.items()))
            paths += write_files(folder, {
                PREDICT_RESULTS: as_json({"questions": known, **scores})})
        elif split == "test":
            logging.info("The test set has no answers; it is not scored.")
            # A remaining file would have the results of a different set.
            files.remove(os.path.join(folder, PREDICT_RESULTS))
        logging.info("Wrote %s.", ", ".join(paths))

    def write_predictions(
            self, folder: str, examples: Sequence[RaceExample], outputs: Outputs,
            prediction_file: str = "", all_probabilities: bool = False) -> list[str]:
        """Writes the predictions, and returns the paths.

          predictions.json  the passage's id → the letters of its questions, like the
                            answers in RACE's files
          predictions.tsv   a readable table: the question, the predicted letter, its
                            probability, the option, the true letter if known; tabs and
                            line ends within a text are written as blanks

        `prediction_file` replaces predictions.tsv (tables.write_predictions), and also
        has the passage. `all_probabilities` adds the probability of each letter.
        """
        known = any(example.label is not None for example in examples)
        answers: dict[str, list[str]] = {}
        full, every = bool(prediction_file), all_probabilities
        table = [["id", "question_number", "level", *["passage"] * full, "question",
                  "prediction", "probability", "option",
                  *[f"probability of {letter}" for letter in LETTERS] * every,
                  *["answer"] * known]]
        for example, row in zip(examples, _probabilities(examples, outputs)):
            chosen = int(np.argmax(row))
            answers.setdefault(example.example_id, []).append(LETTERS[chosen])
            label = "" if example.label is None else LETTERS[example.label]
            table.append([
                example.example_id, example.number + 1, example.level,
                *[example.article] * full, example.question, LETTERS[chosen],
                f"{row[chosen]:.4f}", example.options[chosen],
                *map(str, row[:len(row) * every]), *[label] * known])
        return tables.write_predictions(folder, {
            "predictions.json": as_json(answers, indent=1)}, table, prediction_file)


def _probabilities(examples: Sequence[RaceExample], outputs: Outputs) -> np.ndarray:
    """Returns the probabilities [N, 4]. Raises DivergenceError if one is not finite."""
    rows = np.stack(outputs["probabilities"])
    if rows.shape != (len(examples), NUM_CHOICES):
        raise ValueError(f"probabilities of shape {rows.shape} for {len(examples)} "
                         f"examples of {NUM_CHOICES} options")
    metrics.check_finite(rows, lambda i: (
        f"the model's output for question {examples[i].number + 1} of "
        f"{examples[i].example_id}"))
    return rows


# The questions of a passage are adjacent, so that it is tokenized once for all.
@functools.lru_cache(maxsize=4)
def _article_pieces(text: str, tokenizer: FullTokenizer) -> list[int]:
    """Returns the token ids of an article; the caller must not change the list."""
    return tokenizer.encode(tokenizer.prepare(text))


# --- reading ---------------------------------------------------------------------

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


def choice_spec(
        num_choices: int, vocab_size: int, type_vocab_size: int = 2) -> FeatureSpec:
    """Returns the specification of RACE's records: one sequence per choice [C, None],
    padded to the longest, and the number of the right choice [1], 0 if unknown."""
    return FeatureSpec((
        *model_inputs((num_choices, None), vocab_size, type_vocab_size),
        Feature("label_ids", "int64", (1,), limit=num_choices,
                limited_by="num_choices")))
