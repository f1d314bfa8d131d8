"""RACE: reading comprehension with four choices, as in the original implementation.
finetuning.race.dataset reads its files.
"""

import dataclasses
import functools
import hashlib
import json
from typing import Sequence

import numpy as np
from absl import logging

from albert_tf import options
from albert_tf.checkpoints.checkpoint import head_of
from albert_tf.errors import InputError
from albert_tf.finetuning.common import (
    ExampleSet, Outputs, as_json, check_labelled, cut_note)
from albert_tf.finetuning.labelled import LabelledTask
from albert_tf.finetuning.race import dataset
from albert_tf.finetuning.race.dataset import (
    LETTERS, LEVELS, NUM_CHOICES, RaceExample)
from albert_tf.options import option
from albert_tf.records.spec import Feature, FeatureSpec, model_inputs
from albert_tf.tokenization.cleaning import PreparedText
from albert_tf.tokenization.sequences import NUM_SPECIAL_PAIR, assemble, pad_inputs
from albert_tf.tokenization.tokenizer import FullTokenizer, check_length

# A gap in a question, which the options fill.
_GAP = "_"


@dataclasses.dataclass(frozen=True)
class RaceTask(LabelledTask):
    """The RACE task, with the options of its examples and features.

        task = RaceTask(high_only=True)
        examples = task.read("RACE", "dev").examples
        [features] = task.featurize(examples[0], tokenizer=tokenizer)
    """

    max_seq_length: int = 512
    max_qa_length: int = option(
        128, "Maximum length of question and option together, in tokens; of longer ones "
        "the last tokens are kept.", least=1, kept=True)
    high_only: bool = option(
        False, "Use only the high-school passages.", kept=True)
    middle_only: bool = option(
        False, "Use only the middle-school passages.", kept=True)

    name = "race"
    main_metric = "accuracy"
    metric_names = (main_metric,)
    texts = ("article", "question", "options")
    labels, counted, column_names = LETTERS, "questions", {"label": "answer"}

    def __post_init__(self):
        check_length(self.max_seq_length)
        options.check(self)
        if self.high_only and self.middle_only:
            raise InputError(
                "--high_only and --middle_only exclude each other; give one of them, "
                "or neither to use both levels.")

    # --- data and features

    def read(self, where: str, split: str) -> ExampleSet:
        """Reads the questions of a split (`RaceProcessor.read_examples` in the original
        implementation). Only "test" may lack answers.

        The order is: middle before high; within a level, the order of all.txt's lines,
        or of the numbers in the files' names; within a passage, its own order. `where`
        is the folder RACE as downloaded, or the one that contains it, or one of Parquet
        or Arrow files.
        """
        levels = [level for level in LEVELS
                  if not (self.high_only and level == "middle"
                          or self.middle_only and level == "high")]
        examples = dataset.read(where, split, levels)
        if split != "test":
            check_labelled(examples)
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

        Returns a list of one dict (other tasks have several): input_ids, input_mask and
        segment_ids [4, length of the longest choice], and label_ids [1], 0 if the answer
        is unknown.
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
            if full := int(np.count_nonzero(lengths >= most)):
                logging.warning("--max_qa_length=%d, %s: %s", self.max_qa_length, split,
                                cut_note(full, len(lengths), most,
                                         "options with their questions"))

    # --- model and results

    def head(self, settings):
        return head_of("multiple_choice", dropout_prob=settings.dropout_prob)

    def label_ids(self, examples):
        return np.array([example.label for example in examples])

    def scores(self, examples: Sequence[RaceExample], outputs: Outputs
               ) -> dict[str, float]:
        """Computes `accuracy`, and `middle_accuracy` and `high_accuracy` for the levels
        that occur."""
        hits = self.decisions(outputs) == self.label_ids(examples)
        levels = np.array([example.level for example in examples])
        return {"accuracy": float(hits.mean()),
                **{f"{level}_accuracy": float(hits[levels == level].mean())
                   for level in LEVELS if level in levels}}

    # --- files of predictions: predictions.json has, for each passage's id, the letters
    # of its questions, like the answers in RACE's files

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

    def shown(self, label):
        return LETTERS[label]


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
