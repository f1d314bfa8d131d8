"""RACE: reading comprehension with four choices, as in the original implementation.
finetuning.race.dataset reads its files.
"""

import dataclasses
import functools
import hashlib
import json
import math
import os
from typing import Any, Sequence

import numpy as np
from absl import logging

from albert_tf import files
from albert_tf.checkpoints.checkpoint import head_of
from albert_tf.errors import InputError
from albert_tf.finetuning import metrics, tables
from albert_tf.finetuning.common import (
    PREDICT_RESULTS, ExampleSet, Outputs, as_json, check_labelled, cut_note,
    write_files)
from albert_tf.finetuning.race import dataset
from albert_tf.finetuning.race.dataset import (
    LETTERS, LEVELS, NUM_CHOICES, RaceExample)
from albert_tf.finetuning.task import FineTuningTask
from albert_tf.records.spec import Feature, FeatureSpec, model_inputs
from albert_tf.tokenization.cleaning import PreparedText
from albert_tf.tokenization.sequences import NUM_SPECIAL_PAIR, assemble, pad_inputs
from albert_tf.tokenization.tokenizer import FullTokenizer

# A gap in a question, which the options fill.
_GAP = "_"


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
    code = (dataset,)

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
        examples = dataset.read(where, split, levels)
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


def choice_spec(
        num_choices: int, vocab_size: int, type_vocab_size: int = 2) -> FeatureSpec:
    """Returns the specification of RACE's records: one sequence per choice [C, None],
    padded to the longest, and the number of the right choice [1], 0 if unknown."""
    return FeatureSpec((
        *model_inputs((num_choices, None), vocab_size, type_vocab_size),
        Feature("label_ids", "int64", (1,), limit=num_choices,
                limited_by="num_choices")))
