"""SQuAD 1.1 and 2.0: questions → windows of features → answers, as in the release.

dataset reads the file, alignment finds the characters of pieces,
predictions ranks what the model gives, scoring scores it.
"""

import dataclasses
import functools
import math
import os
from typing import Iterable, Iterator, Mapping, Optional, Sequence

import numpy as np
from absl import logging

from albert_tf import files, text_files
from albert_tf.checkpoints.checkpoint import head_of
from albert_tf.errors import InputError
from albert_tf.finetuning.common import Outputs, as_json, write_files
from albert_tf.finetuning.squad import alignment, dataset, scoring
from albert_tf.finetuning.squad.alignment import ParagraphAlignment, align_paragraph
from albert_tf.finetuning.squad.dataset import (
    QuestionSet, SquadDataset, SquadExample, span_spec)
from albert_tf.finetuning.squad.predictions import (
    Predictions, TopSpans, Windows, null_odds, rank_spans, spans_v1, spans_v2)
from albert_tf.finetuning.squad.scoring import Answers
from albert_tf.finetuning.task import FineTuningTask
from albert_tf.tokenization.sequences import (
    NUM_SPECIAL_PAIR, assemble, max_context, window_spans)
from albert_tf.tokenization.tokenizer import FullTokenizer
from albert_tf.training.log import METRICS_FILE, read_metrics

# unique_ids of the first feature; the next ones count on.
FIRST_UNIQUE_ID = 1_000_000_000

_DROPPED_FILE = "dropped_questions.txt"
_RESULTS_FILE = "eval_results.json"
_THRESHOLD = "null_score_diff_threshold"


def check_room(max_seq_length: int, max_query_length: int) -> None:
    """Refuses lengths that leave no piece of a window for the paragraph."""
    least = max_query_length + NUM_SPECIAL_PAIR + 1
    if max_seq_length < least:
        raise InputError(
            f"--max_seq_length={max_seq_length} leaves no room for the paragraph "
            f"beside a question of --max_query_length={max_query_length} pieces; give "
            f"at least {least}.")


@dataclasses.dataclass(frozen=True)
class SquadTask(FineTuningTask):
    """SQuAD, and the options of its windows and answers.

        task = SquadTask(version_2=True)
        questions = task.read("dev-v2.0.json")
        windows = task.featurize(
            questions.examples[0], tokenizer=tokenizer, is_training=False)

    Attributes:
      version_2: whether questions may have no answer.
      max_seq_length: pieces of a window, special ones included.
      doc_stride: pieces from one window's start to the next; a window's own length
        where that is less.
      max_query_length: pieces kept of the question, from its start.
      n_best_size: answers kept; in version 1.1 also the starts and ends tried in each
        window.
      max_answer_length: in pieces.
      start_n_top, end_n_top: starts that the head of version 2.0 gives, and ends for
        each.
      threshold: null odds from which on a question is left unanswered; None takes the
        one of the best F1 where the true answers are known, else none.
      answer_at_threshold: see scoring.score.
      must_score: whether a file to predict must have true answers.
      num_train_epochs: how often to train on every question, if the number of steps is
        not given.
      warmup_proportion: share of the steps with warm-up, if their number is negative.
    """

    version_2: bool = False
    max_seq_length: int = 384
    doc_stride: int = 128
    max_query_length: int = 64
    n_best_size: int = 20
    max_answer_length: int = 30
    start_n_top: int = 5
    end_n_top: int = 5
    threshold: Optional[float] = None
    answer_at_threshold: bool = False
    must_score: bool = False
    num_train_epochs: float = 3.0
    warmup_proportion: float = 0.1

    # Of the answers as they are written, after the threshold.
    main_metric = "f1"
    evaluation_split = prediction_split = "predict"
    code = (alignment, dataset)

    def __post_init__(self):
        for name in ("max_query_length", "doc_stride"):
            if getattr(self, name) < 1:
                raise InputError(f"--{name}={getattr(self, name)} is not positive; "
                                 "give at least 1.")
        check_room(self.max_seq_length, self.max_query_length)
        if self.threshold is not None and not self.version_2:
            raise InputError("--null_score_diff_threshold is for SQuAD 2.0: leave it "
                             "out, or add --version_2_with_negative.")
        if self.threshold is not None and math.isnan(self.threshold):
            raise InputError("--null_score_diff_threshold is not a number; leave it "
                             "out to have the best one found.")

    @property
    def name(self) -> str:
        """The name of its recipe."""
        return "squad-2.0" if self.version_2 else "squad-1.1"

    @property
    def vectors_of_piece(self) -> int:
        return self.version_2 * self.start_n_top  # Ends are scored for each start.

    # --- data and features

    def read(self, where: str, split: str = "predict") -> QuestionSet:
        """The questions of a file, "train" or to "predict"."""
        is_training = split == "train"
        data = SquadDataset.read(where)
        questions = QuestionSet(data, data.examples(
            is_training=is_training, version_2=self.version_2), (where,))
        if is_training:
            several = data.count_several_answers()
            questions.notes = (
                f"{where}: {several} of {len(questions.examples)} questions have "
                "several answers; training takes the first.",) * bool(several)
        elif not (self.must_score or data.has_any_answer()):
            questions.answered = False
        else:
            try:
                data.check_answered(self.version_2)
            except InputError as error:
                if self.must_score:
                    raise
                questions.answered = False
                questions.notes = (f"There will be no metrics: {error}",)
        return questions

    def schedule(self, num_examples, settings):
        """By questions, as in the original implementation."""
        steps = settings.run.num_train_steps or int(
            num_examples / settings.run.train_batch_size * self.num_train_epochs)
        if steps < 1:
            raise InputError(
                f"{num_examples} questions, --num_train_epochs="
                f"{self.num_train_epochs:g} and --train_batch_size="
                f"{settings.run.train_batch_size} give no training step; give more "
                "epochs, or --num_train_steps.")
        warmup = settings.num_warmup_steps
        return steps, int(steps * self.warmup_proportion) if warmup < 0 else warmup

    def spec(self, config):
        return span_spec(config.vocab_size, config.type_vocab_size,
                         max_seq_length=self.max_seq_length)

    def featurizer(self, split, settings):
        return functools.partial(self.featurize, tokenizer=settings.tokenizer,
                                 is_training=split == "train")

    def featurize(self, example: SquadExample, *, tokenizer: FullTokenizer,
                  is_training: bool) -> list[dict[str, list[int]]]:
        """Windows of one example (the release's convert_examples_to_features).

            [CLS] question [SEP] pieces of the window [SEP]
              0      0       0     1   ...      1       1      segment_ids
              0      1       1     0   ...      0       1      p_mask

        A dict for each window, in their order; values are lists of ints without
        padding. input_ids, input_mask, segment_ids, p_mask (1 where no answer can be)
        have one entry per piece. start_positions, end_positions (positions of the
        answer's first and last piece), is_impossible and paragraph_len (pieces of the
        window, special ones and question included) have one. In training, a window that
        does not hold the whole answer is impossible, with positions 0, in SQuAD 1.1
        too; in prediction these three are 0. tok_start_to_orig_index and
        tok_end_to_orig_index (first and last character in the paragraph) and
        token_is_max_context (1 where no other window shows more context around the
        piece) have one entry per piece of the paragraph, that is from position
        paragraph_len - 1 - their length on.

        Empty if the paragraph has no alignment (see align_paragraph), or if none of its
        pieces stands for the answer: such questions are not trained on, and answered
        with "".
        """
        paragraph = align_paragraph(example.paragraph_text, tokenizer)
        if paragraph is None:
            return []
        answer = None
        if is_training and not example.is_impossible:
            answer = _answer_pieces(example, paragraph)
            if answer[0] > answer[1]:
                return []
        question = tokenizer.encode(
            tokenizer.prepare(example.question_text))[:self.max_query_length]
        room = self.max_seq_length - len(question) - NUM_SPECIAL_PAIR
        spans = window_spans(len(paragraph.piece_ids), room, self.doc_stride)
        return [{**_window(question, paragraph, span, answer, tokenizer),
                 "is_impossible": [int(is_training and not _holds(span, answer))],
                 "token_is_max_context": is_max_context}
                for span, is_max_context in zip(spans, max_context(spans))]

    def records(self, featurized):
        return number_features(featurized)

    def feature_settings(self, split):
        return {"is_training": split == "train", "doc_stride": self.doc_stride,
                "max_query_length": self.max_query_length,
                "version_2_with_negative": self.version_2}

    def check_features(self, sets, tables, settings):
        """Reports questions without features: some to the log, all to a file, as
        "set<tab>id"."""
        folder = settings.run.output_dir
        path, lines = os.path.join(folder, _DROPPED_FILE), []
        if files.exists(path):  # What is known of a set that is not used now.
            lines = [line for _, line in text_files.read_lines(path)
                     if line.partition("\t")[0] not in sets]
        for split, data in sets.items():
            known = set(tables[split].columns["example_index"][:, 0].tolist())
            dropped = [example.qas_id for i, example in enumerate(data.examples)
                       if i not in known]
            lines += [f"{split}\t{qas_id}" for qas_id in dropped]
            if dropped:
                logging.warning(
                    "%s: %d of %d questions are %s, as their paragraph or answer "
                    "cannot be matched with its pieces; %s lists them all: %s%s",
                    data.paths[0], len(dropped), len(data.examples),
                    "left out" if split == "train" else "answered with \"\"", path,
                    ", ".join(dropped[:10]), ", ..." if len(dropped) > 10 else ".")
        if lines:
            write_files(folder, {
                _DROPPED_FILE: "".join(f"{line}\n" for line in lines)})
        else:
            files.remove(path)

    # --- model and results

    def head(self, settings):
        if not self.version_2:
            return head_of("spans")
        return head_of("conditional_spans", start_n_top=self.start_n_top,
                       end_n_top=self.end_n_top, dropout_prob=settings.dropout_prob)

    def kept_options(self, settings):
        return {"task": self.name, "num_warmup_steps": settings.num_warmup_steps,
                **settings.options}

    def answers(self, questions: QuestionSet, outputs: Outputs,
                columns: Mapping[str, Sequence]) -> Answers:
        """Ranks and scores a model's outputs, once for the same outputs: name → a row
        for each window. `columns` are those of the windows' table of features."""
        if questions.last is not None:
            task, given, answers = questions.last
            if task == self and given is outputs:
                return answers
        questions.last = self, outputs, scoring.score(
            questions.dataset if questions.answered else None,
            self.rank(questions.examples, outputs, columns), self.threshold,
            self.answer_at_threshold)
        return questions.last[-1]

    def rank(self, examples: Sequence[SquadExample], outputs: Outputs,
             columns: Mapping[str, Sequence]) -> Predictions:
        """The best answers to each question; arguments as for `answers`."""
        windows, odds = Windows(*(columns[name] for name in Windows._fields)), None
        if not self.version_2:
            spans = spans_v1(
                examples, windows, outputs["start_log_probs"], outputs["end_log_probs"],
                n_best_size=self.n_best_size, max_answer_length=self.max_answer_length)
        else:
            results = TopSpans(*(np.stack(outputs[name]) for name in TopSpans._fields))
            spans = spans_v2(
                examples, windows, results, start_n_top=self.start_n_top,
                end_n_top=self.end_n_top, max_answer_length=self.max_answer_length)
            odds = null_odds(examples, windows, results.cls_logits)
        return rank_spans(examples, windows, spans, self.n_best_size, odds)

    def score(self, data, outputs, table):
        return self.answers(data, outputs, table.columns).metrics

    def failure(self, data, outputs, table):
        texts = set(self.answers(data, outputs, table.columns).texts.values())
        if data.dataset.has_answers() and texts == {""}:
            return f"all {len(data.examples)} questions are left unanswered"
        if len(data.examples) > 1 and len(texts) == 1:
            return f"all {len(data.examples)} answers are {texts.pop()[:40]!r}"
        return ""

    def chance_loss(self, data, table):
        """The loss of a model to which all positions, and an answer or none, are
        alike."""
        places = np.log(np.reshape(np.asarray(table.columns["paragraph_len"], int), -1))
        return float(places.mean()) + 0.5 * math.log(2) * self.version_2

    def write(self, split, data, outputs, table, step, settings):
        """Writes files of predictions (see scoring) and, if there are answers, the
        metrics."""
        if not settings.do_predict:
            return
        folder, task = settings.run.output_dir, self
        if not data.answered:
            task = dataclasses.replace(
                self, threshold=self.known_threshold(folder, step))
        answers = task.answers(data, outputs, table.columns)
        if answers.metrics and not settings.do_eval:  # Which has logged them.
            logging.info("Predictions at step %d: %s", step, ", ".join(
                f"{name} {value:.6g}" for name, value in answers.metrics.items()))
            write_files(folder, {
                _RESULTS_FILE: as_json({"step": step, **answers.metrics})})
        logging.info("Wrote %s.", ", ".join(scoring.write_prediction_files(
            folder, data.examples, answers, data.dataset if data.answered else None,
            settings.prediction_file)))

    def known_threshold(self, folder: str, step: int) -> Optional[float]:
        """The threshold of null odds if there are no answers to find it by: the option,
        or that of the evaluation of this very step in the folder of the run."""
        if not self.version_2:
            return None
        threshold, source = self.threshold, "the flag"
        for name, rows in ((_RESULTS_FILE, _results), (METRICS_FILE, read_metrics)):
            path = os.path.join(folder, name)
            if threshold is None and files.exists(path):
                values = [row.get(_THRESHOLD) for row in rows(path)
                          if row.get("step") == step]
                threshold = next((float(value) for value in reversed(values)
                                  if isinstance(value, (int, float))), None)
                source = path
        if threshold is None:
            threshold = 0.0
            source = f"default; none was searched for at step {step} in this folder"
        logging.info("Questions with null odds of %g or more are left unanswered (%s).",
                     threshold, source)
        return threshold


def _results(path: str) -> list[dict]:
    return [text_files.read_object(path, "remove it, and evaluate again")]


# --- Windows ----------------------------------------------------------------------

def _answer_pieces(
        example: SquadExample, paragraph: ParagraphAlignment) -> tuple[int, int]:
    """First and last piece of the answer; the last before the first: there is none."""
    last = example.start_position + len(example.answer_text) - 1
    return (paragraph.piece_of_start[example.start_position],
            paragraph.piece_of_end[last])


def _holds(span: tuple[int, int], answer: Optional[tuple[int, int]]) -> bool:
    """Whether a window (begin, end) shows the whole answer (first, last piece)."""
    return answer is not None and span[0] <= answer[0] and answer[1] < span[1]


def _window(question: list[int], paragraph: ParagraphAlignment, span: tuple[int, int],
            answer: Optional[tuple[int, int]],
            tokenizer: FullTokenizer) -> dict[str, list[int]]:
    """A window's features, but for what other windows or the purpose determine."""
    begin, end = span
    input_ids, segment_ids = assemble(
        question, paragraph.piece_ids[begin:end], tokenizer.cls_id, tokenizer.sep_id)
    first = len(question) + 2  # behind [CLS] question [SEP]
    positions = ([first + piece - begin for piece in answer]
                 if _holds(span, answer) else [0, 0])
    return {
        "input_ids": input_ids,
        "input_mask": [1] * len(input_ids),
        "segment_ids": segment_ids,
        "p_mask": [0] + [1] * (first - 1) + [0] * (end - begin) + [1],
        "start_positions": positions[:1],
        "end_positions": positions[1:],
        "paragraph_len": [len(input_ids)],
        "tok_start_to_orig_index": paragraph.starts[begin:end],
        "tok_end_to_orig_index": paragraph.ends[begin:end],
    }


def number_features(features_per_example: Iterable[Sequence[dict]]) -> Iterator[dict]:
    """All features in order, with the entries that only the whole set determines:
    unique_ids, counted on from FIRST_UNIQUE_ID, and example_index, the number of its
    example, whether or not the examples before it have features."""
    unique_id = FIRST_UNIQUE_ID
    for index, features in enumerate(features_per_example):
        for feature in features:
            yield {"unique_ids": [unique_id], **feature, "example_index": [index]}
            unique_id += 1
