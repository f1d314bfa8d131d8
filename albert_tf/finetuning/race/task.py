"""RACE: reading comprehension with four choices, as in the TF1 release.

    <data_dir>/<split>/<level>/N.txt     split train, dev, test; level middle, high
    {"id": "high75.txt", "article": "...", "questions": ["...", ...],
     "options": [["...", "...", "...", "..."], ...], "answers": ["A", ...]}

A folder of a level may hold one file `all.txt` instead, with a passage a line,
which the release asks for.
"""

import dataclasses
import functools
import glob
import hashlib
import json
import math
import os
from typing import Any, Iterator, NamedTuple, Optional, Sequence

import numpy as np
from absl import logging

from albert_tf import files, text_files
from albert_tf.checkpoints.checkpoint import head_of
from albert_tf.errors import InputError
from albert_tf.finetuning import metrics, tables
from albert_tf.finetuning.common import (
    ExampleSet, Outputs, as_json, check_labelled, write_files)
from albert_tf.finetuning.task import FineTuningTask
from albert_tf.records.spec import Feature, FeatureSpec, model_inputs
from albert_tf.tokenization.cleaning import PreparedText
from albert_tf.tokenization.sequences import NUM_SPECIAL_PAIR, assemble, pad_inputs
from albert_tf.tokenization.tokenizer import FullTokenizer

LETTERS = "ABCD"
NUM_CHOICES = len(LETTERS)
LEVELS = ("middle", "high")  # In the release's order of examples.

# What a question has in place of a gap that the options fill.
_GAP = "_"
_WHOLE_LEVEL = "all.txt"
_PREDICT_RESULTS = "predict_results.json"


class RaceExample(NamedTuple):
    """One question about one passage.

    Attributes:
      example_id: the passage's id, such as "high75.txt".
      number: of the question among the passage's, starting at 0.
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


@dataclasses.dataclass(frozen=True)
class RaceTask(FineTuningTask):
    """RACE, and the options of its examples and features.

        task = RaceTask(high_only=True)
        examples = task.read("RACE", "dev").examples
        [features] = task.featurize(examples[0], tokenizer=tokenizer)

    Question and option keep their last `max_qa_length` pieces.
    """

    max_seq_length: int = 512
    max_qa_length: int = 128
    high_only: bool = False
    middle_only: bool = False

    name = "race"
    main_metric = "accuracy"

    def __post_init__(self):
        if self.max_seq_length <= NUM_SPECIAL_PAIR:
            raise InputError(
                f"--max_seq_length={self.max_seq_length} leaves no room for text: "
                f"[CLS] and two [SEP] take {NUM_SPECIAL_PAIR}.")
        if self.max_qa_length < 1:
            raise InputError(
                f"--max_qa_length={self.max_qa_length} leaves no room for question "
                "and option; give 1 or more.")
        if self.high_only and self.middle_only:
            raise InputError(
                "--high_only and --middle_only exclude each other: give one of them, "
                "or neither to use both levels.")

    # --- data and features

    def read(self, where: str, split: str) -> ExampleSet:
        """Reads the questions of a split (`RaceProcessor.read_examples`), of which
        "test" alone may lack answers; `where` is the folder RACE as downloaded, or the
        one that holds it.

        Middle before high; a level's passages in the order of all.txt's lines, or of
        the numbers in the files' names; a passage's questions in its order.
        """
        levels = [level for level in LEVELS
                  if not (self.high_only and level == "middle"
                          or self.middle_only and level == "high")]
        split_dir = _split_dir(where, split)
        examples, seen = [], {}
        for level in levels:
            folder = os.path.join(split_dir, level)
            if not files.exists(folder):
                (other,) = set(LEVELS) - {level}
                raise InputError(
                    f"{folder}: there is no such folder; check --data_dir"
                    + (f", or give --{other}_only to use the other level alone."
                       if len(levels) > 1 else "."))
            for passage, default_id, source in _passages(folder, level):
                questions = _examples(passage, default_id, level, source)
                example_id = questions[0].example_id
                if example_id in seen:
                    raise InputError(
                        f"{source}: the id '{example_id}' is also that of the passage "
                        f"in {seen[example_id]}; give each its own, since predictions "
                        "are written by id.")
                seen[example_id] = source
                examples += questions
        if split != "test":
            check_labelled(examples, "trained on" if split == "train" else "scored",
                           "there are no answers")
        logging.info("%s: %d questions on %d passages.", split, len(examples), len(seen))
        return ExampleSet(examples)

    def spec(self, config):
        return choice_spec(NUM_CHOICES, config.vocab_size, config.type_vocab_size)

    def sources(self, split, data):
        # RACE comes as 28,000 files; one digest stands for all.
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
        """The four sequences of a question (`convert_single_example`).

        Each is [CLS] article [SEP] question and option [SEP]. Of question and option
        the last max_qa_length pieces are kept, and the article gets the rest of
        max_seq_length. The release fails where the former alone are too long; here they
        are cut too, and the article is left out.

        One dict, a list because other tasks make several of an example: input_ids,
        input_mask, segment_ids [4, length of the longest choice], and label_ids [1], 0
        where the answer is unknown.
        """
        article = _article_pieces(example.article, tokenizer)
        question = tokenizer.prepare(example.question)
        texts = [PreparedText(question.replace(_GAP, option) if _GAP in question
                              else f"{question} {option}")
                 for option in map(tokenizer.prepare, example.options)]
        room = self.max_seq_length - NUM_SPECIAL_PAIR
        choices = []
        for ending in tokenizer.encode_batch(texts):
            ending = ending[-min(self.max_qa_length, room):]
            choices.append(assemble(article[:room - len(ending)], ending,
                                    tokenizer.cls_id, tokenizer.sep_id))
        length = max(len(choice.tokens) for choice in choices)
        padded = [pad_inputs(*choice, length, tokenizer.pad_id) for choice in choices]
        return [{**{name: [choice[name] for choice in padded] for name in padded[0]},
                 "label_ids": [example.label or 0]}]

    # --- model and results

    def head(self, settings):
        return head_of("multiple_choice", dropout_prob=settings.dropout_prob)

    def score(self, data: ExampleSet, outputs: Outputs, table: Any = None
              ) -> dict[str, float]:
        """`accuracy`, and `middle_accuracy` and `high_accuracy` for levels that occur:
        shares of right answers to the questions whose answer is given."""
        chosen = _probabilities(data.examples, outputs).argmax(axis=1)
        known = [(example, choice) for example, choice in zip(data.examples, chosen)
                 if example.label is not None]
        if not known:
            raise InputError("There is no question with an answer to score.")
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
        """Writes predictions and, for the test set, the accuracy if it is known."""
        folder = settings.run.output_dir
        paths = self.write_predictions(
            os.path.join(folder, "eval_predictions" if split == "dev" else ""),
            data.examples, outputs, "" if split == "dev" else settings.prediction_file,
            settings.all_probabilities)
        known = sum(example.label is not None for example in data.examples)
        if split == "test" and known:
            scores = self.score(data, outputs)
            logging.info(
                "Test, %d of %d questions with an answer: %s", known,
                len(data.examples), ", ".join(
                    f"{name} {value:.6g}" for name, value in scores.items()))
            paths += write_files(folder, {
                _PREDICT_RESULTS: as_json({"questions": known, **scores})})
        elif split == "test":
            logging.info("The test set has no answers, so it is not scored.")
            # Of another set.
            files.remove(os.path.join(folder, _PREDICT_RESULTS))
        logging.info("Wrote %s.", ", ".join(paths))

    def write_predictions(
            self, folder: str, examples: Sequence[RaceExample], outputs: Outputs,
            prediction_file: str = "", all_probabilities: bool = False) -> list[str]:
        """Writes what the model chose, and returns the paths.

          predictions.json  id of the passage → letters of its questions, as RACE's
                            files have their answers
          predictions.tsv   for people: the question, the letter, its probability, the
                            option, the true letter where it is known; tabs and line
                            ends within a text are written as blanks

        `prediction_file` takes the place of predictions.tsv (tables.write_predictions)
        and has the passage, too. `all_probabilities` adds that of each letter.
        """
        known = any(example.label is not None for example in examples)
        answers: dict[str, list[str]] = {}
        own, every = bool(prediction_file), all_probabilities
        table = [["id", "question_number", "level", *["passage"] * own, "question",
                  "prediction", "probability", "option",
                  *[f"probability of {letter}" for letter in LETTERS] * every,
                  *["answer"] * known]]
        for example, row in zip(examples, _probabilities(examples, outputs)):
            chosen = int(np.argmax(row))
            answers.setdefault(example.example_id, []).append(LETTERS[chosen])
            label = "" if example.label is None else LETTERS[example.label]
            table.append([
                example.example_id, example.number + 1, example.level,
                *[example.article] * own, example.question, LETTERS[chosen],
                f"{row[chosen]:.4f}", example.options[chosen],
                *map(str, row[:len(row) * every]), *[label] * known])
        return tables.write_predictions(folder, {
            "predictions.json": as_json(answers, indent=1)}, table, prediction_file)


def _probabilities(examples: Sequence[RaceExample], outputs: Outputs) -> np.ndarray:
    """[N, 4], checked."""
    rows = np.stack(outputs["probabilities"])
    if rows.shape != (len(examples), NUM_CHOICES):
        raise ValueError(f"probabilities of shape {rows.shape} for {len(examples)} "
                         f"examples of {NUM_CHOICES} options")
    metrics.check_finite(rows, lambda i: (
        f"the model's output for question {examples[i].number + 1} of "
        f"{examples[i].example_id}"))
    return rows


# The questions of a passage follow each other: it is tokenized once for them all.
@functools.lru_cache(maxsize=4)
def _article_pieces(text: str, tokenizer: FullTokenizer) -> list[int]:
    """Ids of an article, not to be changed."""
    return tokenizer.encode(tokenizer.prepare(text))


# --- reading ---------------------------------------------------------------------

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
    if whole not in paths:
        for path in single:
            yield (text_files.read_json(path, "it needs the passage as one object"),
                   level + os.path.basename(path), path)
        return
    if single:
        raise InputError(
            f"{folder}: holds {_WHOLE_LEVEL} and {len(single)} other .txt files, and "
            "so perhaps every passage twice; move one or the others away.")
    found = False
    for number, line in text_files.read_lines(whole):
        if line.strip():
            found = True
            yield (text_files.parse_json(
                line, whole, "it needs the passage as one object on one line", number),
                   f"{level}{number}.txt", f"{whole}, line {number}")
    if not found:
        raise InputError(f"{whole}: is empty; it needs a JSON object a line.")


def _file_order(path: str) -> tuple:
    """By number where the name is one, the other files after them by name."""
    name = os.path.basename(path)
    stem = name.removesuffix(".txt")
    return (0, int(stem), name) if stem.isdecimal() else (1, 0, name)


def _examples(passage: Any, default_id: str, level: str, where: str
              ) -> list[RaceExample]:
    """The questions of a passage, checked."""
    if not isinstance(passage, dict):
        raise InputError(f"{where}: is not a JSON object with article, questions and "
                         "options.")
    for name, kind, expected in (
            ("article", str, "text"), ("questions", list, "a list"),
            ("options", list, "a list of lists")):
        if not isinstance(passage.get(name), kind):
            raise InputError(f"{where}: '{name}' is missing or is not {expected}; a "
                             "passage needs article, questions and options.")
    questions, options = passage["questions"], passage["options"]
    answers = passage.get("answers")
    if answers is not None and not isinstance(answers, list):
        raise InputError(f"{where}: 'answers' is not a list; it needs a letter for "
                         "each question.")
    if not questions:
        raise InputError(f"{where}: the passage has no question; take it out.")
    for name, values in (("options", options), ("answers", answers)):
        if values is not None and len(values) != len(questions):
            raise InputError(f"{where}: there are {len(questions)} questions but "
                             f"{len(values)} {name}; each question needs its own.")
    example_id = str(passage.get("id") or default_id)
    examples = []
    for i, question in enumerate(questions):
        here = f"{where}, question {i + 1}"
        if not isinstance(question, str):
            raise InputError(f"{here}: the question is not text.")
        if not isinstance(options[i], list) or len(options[i]) != NUM_CHOICES:
            count = len(options[i]) if isinstance(options[i], list) else "no list of"
            raise InputError(f"{here}: there are {count} options; it needs "
                             f"{NUM_CHOICES} texts.")
        for letter, option in zip(LETTERS, options[i]):
            if not isinstance(option, str):
                raise InputError(f"{here}: option {letter} is {json.dumps(option)[:40]}"
                                 " and not text; write it in quotes.")
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


def choice_spec(
        num_choices: int, vocab_size: int, type_vocab_size: int = 2) -> FeatureSpec:
    """A sequence per choice [C, None], padded to the longest, and the number of the
    right one [1], 0 where unknown (RACE)."""
    return FeatureSpec((
        *model_inputs((num_choices, None), vocab_size, type_vocab_size),
        Feature("label_ids", "int64", (1,), limit=num_choices,
                limited_by="num_choices")))
