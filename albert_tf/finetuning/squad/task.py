"""SQuAD 1.1 and 2.0: questions → windows of features → answers, as in the original
implementation. `dataset` reads the file, `alignment` finds the characters of tokens,
`predictions` ranks the model's outputs, and `scoring` computes the metrics.
"""

import dataclasses
import functools
import math
import os
from typing import Any, Mapping, Optional, Sequence

import numpy as np
from absl import logging

from albert_tf import files, options, text_files
from albert_tf.checkpoints.checkpoint import head_of, some
from albert_tf.checkpoints.folders import NULL_THRESHOLD, NULL_THRESHOLD_FILE
from albert_tf.errors import InputError
from albert_tf.finetuning.command import Command, features_option
from albert_tf.finetuning.common import (
    ExampleSet, Outputs, as_json, cut_note, read_shards, write_files,
    write_predictions)
from albert_tf.finetuning.squad import predictions, scoring
from albert_tf.finetuning.squad.alignment import align_paragraph
from albert_tf.finetuning.squad.dataset import (
    QuestionSet, SquadExample, read_questions, to_train)
from albert_tf.finetuning.task import FineTuningTask
from albert_tf.options import given, option
from albert_tf.records.spec import Feature, FeatureSpec, model_inputs
from albert_tf.tokenization.sequences import NUM_SPECIAL_PAIR, windows_of
from albert_tf.tokenization.tokenizer import FullTokenizer

_MOST_TRIED = 1000  # starts and ends, in pairs


@dataclasses.dataclass(frozen=True)
class SquadTask(FineTuningTask):
    """The SQuAD task, with the options of its windows and answers.

        task = SquadTask(version_2=True)
        questions = task.read("dev-v2.0.json")
        windows = task.featurize(questions.examples[0], tokenizer=tokenizer)
    """

    version_2: bool = option(
        False, "Train for SQuAD 2.0, where some questions have no answer.",
        flag="version_2_with_negative", kept=True)
    max_seq_length: int = 384
    doc_stride: int = option(
        128, "Distance between the starts of consecutive windows of a paragraph, in "
        "tokens.", least=1, kept=True)
    max_query_length: int = option(
        64, "Maximum length of a question in tokens; longer ones are cut.", least=1,
        kept=True)
    n_best_size: int = option(
        20, "Number of candidate answers kept for each question and, for SQuAD 1.1, of "
        "starts and of ends tried in each window.", least=1, most=_MOST_TRIED, kept=True)
    max_answer_length: int = option(
        30, "Maximum length of an answer in tokens.", least=1, kept=True)
    start_n_top: int = option(
        5, "SQuAD 2.0: number of starts tried in each window.", least=1,
        most=_MOST_TRIED, kept=True, only_with="version_2_with_negative")
    end_n_top: int = option(
        5, "SQuAD 2.0: number of ends tried for each start.", least=1,
        most=_MOST_TRIED, kept=True, only_with="version_2_with_negative")
    threshold: Optional[float] = option(
        None, "SQuAD 2.0: questions whose null odds reach this threshold are left "
        "unanswered. Default: the threshold with the best F1 on --predict_file; if that "
        "file has no answers, the threshold of the model in --output_dir, which its "
        "evaluation found; else 0.", flag="null_score_diff_threshold", least=-1e38,
        only_with="version_2_with_negative")
    answer_at_threshold: bool = option(
        False, "SQuAD 2.0: answer questions whose null odds equal the threshold, as the "
        "search for the best threshold assumes. The original implementation does not; "
        "its F1 is therefore usually slightly below the best.",
        only_with="version_2_with_negative")
    answer_language: str = option(
        "auto", "How exact match and F1 compare answers: en, the official script of "
        "SQuAD, for all languages with blanks between words; zh as CMRC and DRCD, ja and "
        "ko as KorQuAD, by characters. auto: by the script of --predict_file's passages.",
        choices=["auto", scoring.ENGLISH, *scoring.CHARACTER_LANGUAGES], kept=True)
    must_score: bool = False  # whether a file to predict must have true answers

    main_metric: str = "f1"

    evaluation_split = prediction_split = "predict"
    in_windows = True
    texts = ("question_text", "paragraph_text")

    def __post_init__(self):
        options.check(self)
        least = self.max_query_length + NUM_SPECIAL_PAIR + 1
        if self.max_seq_length < least:
            raise InputError(
                f"--max_seq_length={self.max_seq_length} leaves no room for the paragraph "
                f"beside a question of --max_query_length={self.max_query_length} tokens; "
                f"give at least {least}.")

    @property
    def metric_names(self) -> Sequence[str]:
        return "f1", "exact" if self.version_2 else "exact_match"

    @property
    def name(self) -> str:
        return "squad-2.0" if self.version_2 else "squad-1.1"

    @property
    def vectors_of_piece(self) -> int:
        return self.version_2 * self.start_n_top  # Ends are scored for each start.

    # --- data and features

    def read(self, where: str, split: str = "predict") -> QuestionSet:
        found = read_shards(where, f"--{split}_file",
                            lambda path, _: ExampleSet(read_questions(path)))
        by_id, contradictions, several = dict[str, SquadExample](), 0, 0
        for each in found.examples:
            if each.qas_id in by_id:
                raise InputError(f"{each.where}: {by_id[each.qas_id].where} has the same "
                                 "id; give each question its own id.")
            if each.is_impossible and not self.version_2:
                raise InputError(f"{each.where} is marked as impossible to answer, as in "
                                 "SQuAD 2.0; add --version_2_with_negative.")
            if each.is_impossible and each.answers:
                # A question is scored as it is trained.
                contradictions += any(map(str.strip, each.truths))
                each = each._replace(answers=[])
            if split == "train":
                several += len(each.truths) > 1
                each = to_train(each)
            by_id[each.qas_id] = each
        data = QuestionSet([*by_id.values()], found.paths, notes=tuple(
            f"{where}: {count} of {len(by_id)} questions {what}." for what, count in (
                ("are marked as impossible, but have answers, which are left out; remove "
                 "is_impossible to use them", contradictions),
                ("have several answers; training takes the first", several)) if count))
        if split != "train":
            scoring.prepare(data, self.version_2, self.must_score, self.answer_language)
        return data

    def spec(self, config):
        """Returns the specification of a window (see featurize). The features that are
        not parsed turn predictions into text; they differ in length."""
        single, sequence = (functools.partial(Feature, dtype="int64", shape=(size,))
                            for size in (1, None))
        position = {"limit": self.max_seq_length, "limited_by": "max_seq_length"}
        return FeatureSpec((
            *model_inputs((None,), config.vocab_size, config.type_vocab_size),
            sequence("p_mask", limit=2, pad_value=1),
            single("start_positions", **position), single("end_positions", **position),
            single("is_impossible", limit=2),
            single("example_index", parsed=False), single("paragraph_len", parsed=False),
            sequence("tok_start_to_orig_index", parsed=False),
            sequence("tok_end_to_orig_index", parsed=False),
            sequence("token_is_max_context", parsed=False, limit=2)))

    def featurize(self, example: SquadExample, *, tokenizer: FullTokenizer,
                  is_training: bool = False) -> list[dict[str, list[int]]]:
        """Computes the windows of one example (convert_examples_to_features in the
        original implementation).

            [CLS] question [SEP] tokens of the window [SEP]
              0      0       0     1   ...      1       1      segment_ids
              0      1       1     0   ...      0       1      p_mask

        Returns one dict per window, in order; values are lists of ints without padding.

        * input_ids, input_mask, segment_ids and p_mask (1 where no answer can be) have
          one entry per token.
        * start_positions, end_positions (the positions of the answer's first and last
          token), is_impossible and paragraph_len (the length of the whole sequence) have
          one entry. In training, a window without the whole answer is impossible, with
          positions 0, in SQuAD 1.1, too. In prediction these three are 0.
        * tok_start_to_orig_index and tok_end_to_orig_index (the first and last character
          in the paragraph) and token_is_max_context (1 if no other window has more
          context for the token) have one entry per token of the paragraph.

        The list is empty if the paragraph has no alignment (see align_paragraph), or if
        the answer has no tokens. Such questions are not trained on, and are answered
        with "".
        """
        paragraph = align_paragraph(example.paragraph_text, tokenizer)
        if paragraph is None:
            return []
        answer = None
        if is_training and not example.is_impossible:
            last = example.start_position + len(example.answer_text) - 1
            answer = (paragraph.piece_of_start[example.start_position],
                      paragraph.piece_of_end[last])
            if answer[0] > answer[1]:  # It has no tokens.
                return []
        question = tokenizer.encode(
            tokenizer.prepare(example.question_text))[:self.max_query_length]
        room = self.max_seq_length - len(question) - NUM_SPECIAL_PAIR
        first = len(question) + 2  # The position after [CLS] question [SEP].
        windows = []
        for begin, end, is_max_context in windows_of(
                len(paragraph.piece_ids), room, self.doc_stride):
            holds = answer is not None and begin <= answer[0] and answer[1] < end
            positions = [first + piece - begin for piece in answer] if holds else [0, 0]
            windows.append({
                **tokenizer.assembled(question, paragraph.piece_ids[begin:end]),
                "p_mask": [0] + [1] * (first - 1) + [0] * (end - begin) + [1],
                "start_positions": positions[:1],
                "end_positions": positions[1:],
                "paragraph_len": [first + end - begin + 1],
                "tok_start_to_orig_index": paragraph.starts[begin:end],
                "tok_end_to_orig_index": paragraph.ends[begin:end],
                "is_impossible": [int(is_training and not holds)],
                "token_is_max_context": is_max_context})
        return windows

    def feature_settings(self, split):
        return {"is_training": split == "train", "doc_stride": self.doc_stride,
                "max_query_length": self.max_query_length,
                "version_2_with_negative": self.version_2}

    def check_features(self, sets, tables, settings):
        """Logs the questions without features, and how many are cut."""
        for split, data in sets.items():
            columns = tables[split].columns
            known, first = np.unique(columns["example_index"][:, 0], return_index=True)
            dropped = [data.examples[i].qas_id for i in np.setdiff1d(
                np.arange(len(data.examples)), known)]
            if dropped:
                logging.warning(
                    "%s: %d of %d questions are %s, because their paragraph or answer "
                    "has no tokens with known characters: %s.",
                    data.paths[0], len(dropped), len(data.examples), "left out" if (
                        split == "train") else "answered with \"\"", some(dropped, 10))
            # [CLS] and [SEP] have the question's segment, too.
            full = sum(np.count_nonzero(columns["segment_ids"][row] == 0)
                       >= self.max_query_length + 2 for row in first)
            if full:
                logging.warning(
                    "--max_query_length=%d, %s: %s", self.max_query_length, split,
                    cut_note(full, len(first), self.max_query_length, "questions"))

    # --- model and results

    def head(self, settings):
        if not self.version_2:
            return head_of("spans")
        return head_of("conditional_spans", start_n_top=self.start_n_top,
                       end_n_top=self.end_n_top, dropout_prob=settings.dropout_prob)

    def kept_options(self):
        return {"task": self.name}

    def answers(self, questions: QuestionSet, outputs: Outputs,
                columns: Mapping[str, Sequence]) -> scoring.Answers:
        """Ranks and scores a model's outputs, given their windows as columns; keeps the
        result for the last outputs."""
        last = questions.last
        if last is None or last[0] != self or last[1] is not outputs:
            last = questions.last = self, outputs, scoring.score(
                questions.examples if questions.answered else None,
                self.rank(questions.examples, outputs, columns), self.threshold,
                self.answer_at_threshold, questions.language)
        return last[-1]

    def rank(self, examples: Sequence[SquadExample], outputs: Outputs,
             columns: Mapping[str, Sequence]) -> predictions.Predictions:
        """Returns the best answers to each question; arguments as for `answers`."""
        return predictions.rank(examples, columns, outputs, n_best_size=self.n_best_size,
                                max_answer_length=self.max_answer_length)

    def score(self, data, outputs, table):
        return self.answers(data, outputs, table.columns).metrics

    def scoring(self):
        return {name: getattr(self, name) for name in (
            "threshold", "answer_at_threshold", "n_best_size", "max_answer_length",
            "answer_language")}

    def failure(self, data, outputs, table):
        texts = set(self.answers(data, outputs, table.columns).texts.values())
        return f"all {len(data.examples)} answers are {texts.pop()[:40]!r}" if (
            len(texts) == 1 < len(data.examples)) else ""

    def chance_loss(self, data, table):
        """Returns the loss of a model that gives all positions, and answer or no
        answer, equal probabilities."""
        places = np.log(table.columns["paragraph_len"].astype(int)).mean()
        return float(places) + 0.5 * math.log(2) * self.version_2

    def write_predictions(self, folder, data, outputs, table, prediction_file="",
                          all_probabilities=False):
        """Writes the predictions for the official scripts, and a readable table.

          predictions.json        answer by question id, the format of a submission
          nbest_predictions.json  the best answers with their probabilities, by id
          null_odds.json          version 2.0: null odds by id
          predictions.tsv         id, question, prediction, probability (of the best
                                  answer relative to the n best, not to "no answer"),
                                  the true answers, and whether the prediction is one
                                  of them (both empty unless `data.answered`)

        `prediction_file` replaces predictions.tsv (common.write_predictions). It also has
        the passage, and the positions where the answer begins and ends in it.
        """
        answers = self.answers(data, outputs, table.columns)
        found = answers.predictions
        contents = {"predictions.json": answers.texts,
                    "nbest_predictions.json": found.nbest}
        if found.null_odds is not None:
            contents["null_odds.json"] = found.null_odds
        outcomes = scoring.question_outcomes(
            data.examples, answers.texts, found.null_odds is not None, data.language
        ) if data.answered else {}
        rows = []
        for example in data.examples:
            # If the threshold removed the answer, the row still has the probability of
            # the best one.
            key, text = example.qas_id, answers.texts[example.qas_id]
            start, end, _ = found.best[key] if text else (0, 0, 0)
            rows.append({
                "id": key, "passage": example.paragraph_text,
                "question": example.question_text, "prediction": text,
                "probability": f"{found.nbest[key][0]['probability']:.4f}",
                "start": start, "end": end,
                "answers": " | ".join(dict.fromkeys(example.truths * data.answered)),
                "exact_match": "" if not outcomes else (
                    "yes" if outcomes[key].exact else "no")})
        names = [name for name in rows[0]
                 if prediction_file or name not in ("passage", "start", "end")]
        return write_predictions(
            folder, {name: as_json(value) for name, value in contents.items()},
            [names, *([row[name] for name in names] for row in rows)], prediction_file)

    def write(self, split, data, outputs, table, step, settings):
        """Writes files of predictions, and keeps the threshold that an evaluation found,
        unless the model was evaluated on other questions before."""
        folder = settings.run.output_dir
        # An evaluation of --resume_from's checkpoint does not concern the model.
        if settings.do_eval and self.version_2 and not settings.run.resume_from:
            found = self.answers(data, outputs, table.columns).metrics[NULL_THRESHOLD]
            kept = {} if settings.do_train else _kept_threshold(folder)
            if kept.get("step") != step:
                write_files(folder, {NULL_THRESHOLD_FILE: as_json({
                    "step": step, NULL_THRESHOLD: found, "files": list(data.paths)})})
            elif kept.get(NULL_THRESHOLD) != found:
                logging.warning(
                    "The model keeps the threshold of null odds %s, which was found on "
                    "%s; %s has %g. To use that one, remove %s in %s and evaluate again.",
                    kept.get(NULL_THRESHOLD), ", ".join(kept.get("files", ())),
                    ", ".join(data.paths), found, NULL_THRESHOLD_FILE, folder)
        if settings.do_predict:
            task = self if data.answered else dataclasses.replace(
                self, threshold=self.known_threshold(folder, step))
            super(SquadTask, task).write(split, data, outputs, table, step, settings)

    def known_threshold(self, folder: str, step: int) -> Optional[float]:
        """Returns the threshold of null odds of the model in a run's folder: that of the
        flag, else the one found when this step was evaluated, else 0; None for version
        1.1."""
        if not self.version_2:
            return None
        threshold, source, kept = self.threshold, "the flag", _kept_threshold(folder)
        if threshold is None and kept.get("step") == step:
            threshold, source = kept.get(NULL_THRESHOLD), NULL_THRESHOLD_FILE
        if threshold is None:
            threshold, source = 0.0, f"the default: step {step} was not evaluated"
        logging.info("Questions with null odds of %g or more are left unanswered (%s).",
                     threshold, source)
        return float(threshold)


def _kept_threshold(folder: str) -> dict[str, Any]:
    path = os.path.join(folder, NULL_THRESHOLD_FILE)
    return text_files.read_object(path, "remove it") if files.exists(path) else {}


# ---- the script ------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class SquadFiles:
    """The files of a run."""

    train_file: Optional[str] = option(
        None, "JSON file in SQuAD's format to train on, or JSON lines, Parquet or Arrow "
        "with a row for each question. Several paths or globs, separated by commas, are "
        "one set.")
    predict_file: Optional[str] = option(
        None, "File in SQuAD's format, like --train_file, to predict and evaluate on.")
    train_feature_file: Optional[str] = features_option("train")
    predict_feature_file: Optional[str] = features_option("predict")
    predict_feature_left_file: Optional[str] = option(
        None, "Ignored; kept for command lines of the original implementation. "
        "--predict_feature_file holds everything.")


class SquadCommand(Command):
    """SQuAD as run_squad.py trains it: questions about a text."""

    options = (SquadTask, SquadFiles)
    defaults = dict(max_seq_length=384, save_checkpoints_steps=1000,
                    num_train_epochs=3.0, warmup_proportion=0.1)
    helps = dict(do_eval=" Uses --predict_file, which must have answers.")
    first = "train_file predict_file version_2_with_negative doc_stride"
    without = "all_probabilities"
    in_epochs = True
    data_options = {"train": "train_file", "predict": "predict_file"}
    feature_options = {split: f"{split}_feature_file" for split in data_options}

    def task(self):
        return given(SquadTask, self.values, must_score=self.values.do_eval,
                     max_seq_length=self.values.max_seq_length)

    def text(self, task, settings, step):
        return dict(threshold=task.known_threshold(settings.run.output_dir, step))
