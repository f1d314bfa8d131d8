"""RACE: reading comprehension with four choices, as in the original implementation.

    <data_dir>/<split>/<level>/N.txt     split train, dev, test; level middle, high
    {"id": "high75.txt", "article": "...", "questions": ["...", ...],
     "options": [["...", "...", "...", "..."], ...], "answers": ["A", ...]}

A level's folder may instead have one file `all.txt` with one passage per line, which is
what the original implementation reads. The folder may also have Parquet or Arrow files as
the library `datasets` writes them, with a row for each question: article, question,
options, answer and example_id, which begins with the level ("high75.txt"). Files of a
split are <split>*.parquet beside each other, or in a folder <split>; "validation" is
"dev".
"""

import collections
import dataclasses
import functools
import hashlib
import itertools
import json
import os
import re
from typing import Any, Iterator, NamedTuple, Optional, Sequence

import numpy as np
from absl import logging

from albert_tf import files, options, text_files
from albert_tf.checkpoints.checkpoint import head_of
from albert_tf.errors import InputError
from albert_tf.finetuning.command import Command, features_option
from albert_tf.finetuning.common import ExampleSet, as_json, check_labelled, cut_note
from albert_tf.finetuning.task import LabelledTask
from albert_tf.options import given, option
from albert_tf.records.spec import Feature, FeatureSpec, model_inputs
from albert_tf.rows import kind_of, number_of, rows, typed
from albert_tf.tokenization.cleaning import PreparedText
from albert_tf.tokenization.sequences import (
    NUM_SPECIAL_PAIR, check_length, pad_inputs)
from albert_tf.tokenization.tokenizer import FullTokenizer

LETTERS = "ABCD"
NUM_CHOICES = len(LETTERS)
LEVELS = ("middle", "high")  # The original implementation's order of examples.
_WHOLE_LEVEL = "all.txt"
_GAP = "_"  # in a question, which the options fill


class RaceExample(NamedTuple):
    """One question about one passage."""

    example_id: str  # The passage's id, such as "high75.txt".
    number: int  # Of the question within the passage, from 0.
    level: str  # One of LEVELS.
    article: str  # The passage.
    question: str
    options: tuple[str, ...]
    label: Optional[str]  # The letter of the right option; None if unknown.
    where: str  # The file, and the line or row if the file has several passages.


@dataclasses.dataclass(frozen=True)
class RaceTask(LabelledTask):
    """The RACE task, with the options of its examples and features.

        examples = RaceTask(high_only=True).read("RACE", "dev").examples
    """

    max_seq_length: int = 512
    max_qa_length: int = option(
        128, "Maximum length of question and option together, in tokens; of longer ones "
        "the last tokens are kept.", least=1, kept=True)
    high_only: bool = option(False, "Use only the high-school passages.", kept=True)
    middle_only: bool = option(False, "Use only the middle-school passages.", kept=True)

    name = "race"
    main_metric = "accuracy"
    metric_names = (main_metric,)
    texts = ("article", "question", "options")
    labels, counted, column_names = LETTERS, "questions", {"label": "answer"}

    def __post_init__(self):
        check_length(self.max_seq_length)
        options.check(self)
        if self.high_only and self.middle_only:
            raise InputError("--high_only and --middle_only exclude each other; leave "
                             "one of them out.")

    # --- data and features

    def read(self, where: str, split: str) -> ExampleSet:
        """Reads the questions of a split (`RaceProcessor.read_examples` in the original
        implementation). Only "test" may lack answers. The order is: middle before high;
        within a level, the order of all.txt's lines, or of the numbers in the files'
        names; within a passage, its own order."""
        levels = LEVELS[self.high_only:len(LEVELS) - self.middle_only]
        paths, examples = _row_files(where, split), []
        first: dict[str, RaceExample] = {}  # id → its first question
        numbers: collections.Counter[str] = collections.Counter()
        for place, level, passage in (
                _of_rows(paths) if paths else _of_folders(where, split, levels)):
            for example in _examples(place, level, passage):
                before = first.setdefault(example.example_id, example)
                # A passage of rows has a row for each question.
                if before.where != place and not (
                        paths and before.article == example.article):
                    raise InputError(
                        f"{place}: the id '{example.example_id}' is also the id of the "
                        f"passage in {before.where}; give each its own.")
                if level in levels:
                    examples.append(example._replace(number=numbers[example.example_id]))
                    numbers[example.example_id] += 1
        there = {example.level for example in examples}
        for level in [level for level in levels if level not in there]:
            raise InputError(
                f"{', '.join(paths) or where}: there is no question of the level {level} "
                "(--high_only and --middle_only use only one).")
        examples.sort(key=lambda example: LEVELS.index(example.level))
        if split != "test":
            check_labelled(examples)
        logging.info("%s: %d questions about %d passages.", split, len(examples),
                     len(numbers))
        return ExampleSet(examples)

    def spec(self, config):
        # A sequence for each choice, and the number of the right one, 0 if unknown.
        return FeatureSpec((
            *model_inputs((NUM_CHOICES, None), config.vocab_size, config.type_vocab_size),
            Feature("label_ids", "int64", (1,), limit=NUM_CHOICES,
                    limited_by="num_choices")))

    def sources(self, split, data):
        # RACE consists of 28,000 files, for which one digest is enough.
        digest = hashlib.sha256()
        for example in data.examples:
            digest.update(json.dumps([
                example.article, example.question, example.options,
                example.label and LETTERS.index(example.label)]).encode())
        return {f"{split} data": digest.hexdigest()}

    def feature_settings(self, split):
        return {"max_qa_length": self.max_qa_length}

    def featurize(self, example: RaceExample, *, tokenizer: FullTokenizer,
                  is_training: bool = False) -> list[dict[str, list]]:
        """Computes the four sequences of a question (`convert_single_example` in the
        original implementation), [4, length of the longest], and label_ids [1], 0 if the
        answer is unknown.

        Each is [CLS] article [SEP] question and option [SEP]. Question and option keep
        their last max_qa_length tokens, and the article gets the rest of max_seq_length,
        which may be nothing; there the original fails.
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
            choices.append(tokenizer.assembled(begin, ending))
        length = max(len(choice["input_ids"]) for choice in choices)
        padded = [pad_inputs(choice, length, tokenizer.pad_id) for choice in choices]
        return {**{name: [choice[name] for choice in padded] for name in padded[0]},
                "label_ids": [LETTERS.index(example.label or "A")]}, cut

    def check_features(self, sets, tables, settings):
        """Logs how many options, with their questions, are cut."""
        most = min(self.max_qa_length, self.max_seq_length - NUM_SPECIAL_PAIR)
        for split, table in tables.items():
            lengths = np.concatenate([rows.sum(axis=-1) for rows in table.columns[
                "segment_ids"]]) - 1  # [SEP]
            if full := int(np.count_nonzero(lengths >= most)):
                logging.warning("--max_qa_length=%d, %s: %s", self.max_qa_length, split,
                                cut_note(full, len(lengths), most,
                                         "options with their questions"))

    # --- model and results

    def head(self, settings):
        return head_of("multiple_choice", dropout_prob=settings.dropout_prob)

    def score(self, data, outputs, table):
        """Computes `accuracy`, and that of the levels that occur: `high_accuracy`."""
        hits = self.decisions(outputs) == self.label_ids(data.examples)
        levels = np.array([example.level for example in data.examples])
        return {"accuracy": float(hits.mean()),
                **{f"{level}_accuracy": float(hits[levels == level].mean())
                   for level in LEVELS if level in levels}}

    # --- files of predictions: predictions.json is passage's id → letters of questions

    def described(self, examples, full):
        cells = zip(*((each.example_id, each.number + 1, each.level, each.article,
                       each.question) for each in examples))
        columns = [*zip(("id", "question_number", "level", "passage", "question"), cells)]
        return columns if full else [*columns[:3], columns[4]]

    def beside(self, examples, chosen):
        return [("option", [each.options[i] for each, i in zip(examples, chosen)])]

    def contents(self, examples, rows, names):
        answers: dict[str, list[str]] = {}
        for example, letter in zip(examples, names):
            answers.setdefault(example.example_id, []).append(letter)
        return {"predictions.json": as_json(answers, indent=1)}


# The questions of a passage are adjacent, so that it is tokenized once for all.
@functools.lru_cache(maxsize=4)
def _article_pieces(text: str, tokenizer: FullTokenizer) -> list[int]:
    """Returns the token ids of an article; the caller must not change the list."""
    return tokenizer.encode(text)


# ---- files -------------------------------------------------------------------

# A place, the level, and a passage in RACE's form.
_Passage = tuple[str, str, Any]


def _row_files(data_dir: str, split: str) -> list[str]:
    """Returns the paths of a split's Parquet and Arrow files, [] if there are none."""
    paths = []
    for name in {"dev": ("dev", "validation")}.get(split, (split,)):
        folder = os.path.join(data_dir, name)
        # `datasets` keeps intermediate results beside what it saves to disk.
        paths += [os.path.join(data_dir, file) for file in files.names_in(data_dir)
                  if re.match(rf"{name}\b", file)] + [
            os.path.join(folder, file) for file in files.names_in(folder)
            if not file.startswith((".", "cache-"))]
    return [path for path in paths if kind_of(path, "text") == "parquet"]


def _of_rows(paths: Sequence[str]) -> Iterator[_Passage]:
    """Yields the questions of Parquet and Arrow files, each as a passage."""
    for path in paths:
        for where, row in rows(
                path, ("example_id", "article", "question", "options"), ("answer",)):
            name = typed(row, where, example_id=str)["example_id"]
            level = next(filter(name.startswith, LEVELS), None)
            if level is None:
                raise InputError(f"{where}: the example_id {name[:40]!r} does not begin "
                                 f"with the level, {' or '.join(LEVELS)}.")
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
            f"nor a file {split}*.parquet; give the folder RACE, or --nodo_{use}.")
    for level in levels:
        folder = os.path.join(of_split, level)
        names = [name for name in files.names_in(folder)
                 if name.endswith(".txt") and not name.startswith(".")]
        if not names or len(names) > 1 and _WHOLE_LEVEL in names:
            raise InputError(
                f"{folder}: there is no .txt file, or {_WHOLE_LEVEL} and others, so that "
                "passages may occur twice; check --data_dir (--high_only and "
                "--middle_only use only one level).")
        if _WHOLE_LEVEL in names:
            for where, passage in rows(os.path.join(folder, _WHOLE_LEVEL), kind="jsonl"):
                yield where, level, {**passage, "id": passage.get("id") or (
                    f"{level}{number_of(where)}.txt")}
            continue
        # Those that are named by number first, in their order.
        for name in sorted(names, key=lambda name: (
                int(stem) if (stem := name[:-4]).isdecimal() else float("inf"), name)):
            passage = text_files.read_object(
                path := os.path.join(folder, name), "the passage must be one object")
            yield path, level, {**passage, "id": passage.get("id") or level + name}


def _examples(where: str, level: str, passage: Any) -> Iterator[RaceExample]:
    """Yields the questions of a passage after checking it."""
    typed(passage, where, article=str, questions=[str], options=[[str]],
          answers=([str], None))
    questions, choices, answers = (
        passage.get(name) for name in ("questions", "options", "answers"))
    if not len(questions) == len(choices) == len(
            questions if answers is None else answers) or not questions:
        raise InputError(
            f"{where}: there are {len(questions)} questions, {len(choices)} lists of "
            f"options and {len(answers or ())} answers; each question needs each.")
    for number, (question, offered) in enumerate(zip(questions, choices)):
        answer = "A" if answers is None else answers[number].strip()
        if len(offered) != NUM_CHOICES or answer not in tuple(LETTERS):
            raise InputError(
                f"{where}, question {number + 1}: there are {len(offered)} options, and "
                f"the answer is '{answer}'; give {NUM_CHOICES}, and one of {LETTERS}.")
        yield RaceExample(
            str(passage["id"]), 0, level, passage["article"], question, tuple(offered),
            None if answers is None else answer, where)


# ---- the script ------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class RaceFiles:
    """The files of a run."""

    task_name: str = option(
        "race", "Must be race; kept for command lines of the original implementation.",
        kept=True)
    data_dir: str = option(
        "", "The folder RACE as downloaded, or the folder that contains it, or a folder "
        "of Parquet or Arrow files with a row for each question (train*.parquet, "
        "validation*.parquet, test*.parquet).")
    train_file: Optional[str] = features_option("train")
    eval_file: Optional[str] = features_option("dev")
    predict_file: Optional[str] = features_option("test")


class RaceCommand(Command):
    """RACE as run_race.py trains it: reading comprehension with four choices."""

    options = (RaceTask, RaceFiles)
    defaults = dict(do_train=True, do_eval=True, learning_rate=1e-5, train_step=12000,
                    warmup_step=1000, save_checkpoints_steps=100)
    helps = dict(recipe=(
        " For a model whose config has no dropout, the recipe is that of version 2 of "
        "the released models: no dropout, learning rate 1e-5. (The config of xxlarge "
        "version 1 has no dropout either, but the paper trains it with dropout: add "
        "--albert_dropout_prob=0.1.)"))
    first = "data_dir max_qa_length"
    data_options = dict.fromkeys(("train", "dev", "test"), "data_dir")
    feature_options = {"train": "train_file", "dev": "eval_file", "test": "predict_file"}

    def task(self):
        values = self.values
        # The levels exclude each other: one that is given overrides a kept one.
        for level, other in itertools.permutations(("high_only", "middle_only")):
            if values[level].present and not values[other].present:
                values[other].value = False
        if values.task_name.lower() != "race":
            raise InputError(f"--task_name={values.task_name}: this script knows race "
                             "alone; run_classifier.py has other tasks.")
        room = values.max_seq_length - NUM_SPECIAL_PAIR
        if values["max_qa_length"].present and values.max_qa_length >= room > 1:
            raise InputError(
                f"--max_qa_length={values.max_qa_length} leaves no room for the passage "
                f"in --max_seq_length={values.max_seq_length}; give less than {room}, or "
                "a larger --max_seq_length.")
        return given(RaceTask, values, max_seq_length=values.max_seq_length)

    def recipe(self, task, config):
        # The released models of version 2 have no dropout in their config.
        return "race" if config.hidden_dropout_prob or (
            config.attention_probs_dropout_prob) else "race-v2"
