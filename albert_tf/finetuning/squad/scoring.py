"""SQuAD's official metrics, the threshold for "no answer", and prediction files.

The metrics are those of tf-models-official's copies of the official scripts, which
split answers into words. Answers in Chinese, Japanese and Korean are compared as
`languages` says instead.
"""

import math
from typing import Iterator, Mapping, NamedTuple, Sequence

from albert_tf.errors import InputError
from albert_tf.finetuning import tables
from albert_tf.finetuning.common import as_json
from albert_tf.finetuning.squad import languages
from albert_tf.finetuning.squad.dataset import SquadDataset, SquadExample
from albert_tf.finetuning.squad.languages import Outcome
from albert_tf.finetuning.squad.predictions import Predictions


class Answers(NamedTuple):
    """The answers to a set of questions.

    Attributes:
      predictions: the ranked answers.
      metrics: the official metrics in percent; empty if true answers are not known.
      texts: the answers after the threshold of null odds is applied.
      language: how answers are compared (see languages).
    """

    predictions: Predictions
    metrics: dict[str, float]
    texts: dict[str, str]
    language: str = languages.ENGLISH


def score(dataset: SquadDataset | None, predictions: Predictions,
          threshold: float | None = None, answer_at_threshold: bool = False,
          language: str = languages.ENGLISH) -> Answers:
    """Computes the official metrics, of version 2.0 if the predictions have null odds.

    Version 1.1 has exact_match and f1. Version 2.0 has exact, f1 and total of the
    answers after the threshold, for all, answerable (HasAns_) and unanswerable (NoAns_)
    questions; null_score_diff_threshold; and best_exact, best_f1 and their thresholds,
    which do not depend on the threshold applied. If it is best to answer no question,
    the official search returns the threshold 0, although some odds may be below it, so
    that questions would be answered. Here no odds are below the threshold.

    Args:
      dataset: questions with true answers, all or some of those that were predicted;
        None if the answers are not known.
      predictions: the answers before any threshold.
      threshold: the threshold of null odds; None: the one with the best F1 on this
        dataset, as in the original implementation. See Predictions.texts_at.
      answer_at_threshold: see Predictions.texts_at.
      language: how answers are compared (see languages).
    """
    if dataset is None:
        return Answers(predictions, {},
                       predictions.texts_at(threshold, answer_at_threshold))
    if predictions.null_odds is None:
        scores = _evaluate(dataset, predictions.texts, False, language)
        return Answers(predictions, {
            "exact_match": 100.0 * scores["exact_match"],
            "f1": 100.0 * scores["final_f1"]}, predictions.texts, language)
    best = _evaluate(dataset, predictions.texts, True, language, predictions.null_odds)
    for name in "f1", "exact":
        if best[f"final_{name}"] == 100.0 * best.get("NoAns_total", 0) / best["total"]:
            lowest = min(predictions.null_odds.values())
            best[f"final_{name}_thresh"] = (
                math.nextafter(lowest, -math.inf) if answer_at_threshold else lowest)
    if threshold is None:
        threshold = best["final_f1_thresh"]
    texts = predictions.texts_at(threshold, answer_at_threshold)
    # These answers are final, so that no odds are passed. The official code expects
    # probabilities, and would drop answers whose odds are above 1.
    scores = _evaluate(dataset, texts, True, language)
    applied = {name: value for name, value in scores.items()
               if name in ("exact", "f1", "total")
               or name.startswith(("HasAns_", "NoAns_"))}
    return Answers(predictions, applied | {
        "best_exact": best["final_exact"],
        "best_exact_thresh": best["final_exact_thresh"],
        "best_f1": best["final_f1"],
        "best_f1_thresh": best["final_f1_thresh"],
        "null_score_diff_threshold": threshold}, texts, language)


def question_outcomes(dataset: SquadDataset, texts: Mapping[str, str],
                      version_2: bool, language: str = languages.ENGLISH
                      ) -> dict[str, Outcome]:
    """Returns the metrics of each question, by id."""
    from official.nlp.tools import squad_evaluate_v1_1, squad_evaluate_v2_0

    _check(dataset, texts, version_2)
    if language != languages.ENGLISH:
        return {question.content["id"]: languages.outcome(
            [text for answer in question.content["answers"]
             if (text := answer["text"]).strip()],
            texts[question.content["id"]], language) for question in dataset.questions}
    evaluate, names, whole = (
        (squad_evaluate_v2_0.evaluate, ("exact", "f1"), 100) if version_2
        else (squad_evaluate_v1_1.evaluate, ("exact_match", "final_f1"), 1))
    outcomes = {}
    for question in dataset.questions:
        qas_id = question.content["id"]
        scores = evaluate([{"paragraphs": [{"qas": [question.content]}]}],
                          {qas_id: texts[qas_id]})
        outcomes[qas_id] = Outcome(*(float(scores[name]) / whole for name in names))
    return outcomes


def _evaluate(dataset: SquadDataset, texts: Mapping[str, str], version_2: bool,
              language: str, null_odds: Mapping[str, float] | None = None
              ) -> dict[str, float]:
    from official.nlp.tools import squad_evaluate_v1_1, squad_evaluate_v2_0

    if language != languages.ENGLISH:
        return _combined(
            question_outcomes(dataset, texts, version_2, language),
            dataset, texts, version_2, null_odds)
    _check(dataset, texts, version_2)
    if not version_2:
        return squad_evaluate_v1_1.evaluate(dataset.articles, texts)
    # The official code fails if it gets a question that is not in the dataset.
    ids = [question.content["id"] for question in dataset.questions]
    return squad_evaluate_v2_0.evaluate(
        dataset.articles, {qas_id: texts[qas_id] for qas_id in ids},
        None if null_odds is None else {qas_id: null_odds[qas_id] for qas_id in ids})


def _combined(outcomes: Mapping[str, Outcome], dataset: SquadDataset,
              texts: Mapping[str, str], version_2: bool,
              null_odds: Mapping[str, float] | None) -> dict[str, float]:
    """Returns what the official scripts would for these outcomes, by their functions.
    """
    from official.nlp.tools import squad_evaluate_v2_0 as official

    exact, f1 = ({qas_id: outcome[i] for qas_id, outcome in outcomes.items()}
                 for i in range(2))
    if not version_2:
        return {"exact_match": sum(exact.values()) / len(exact),
                "final_f1": sum(f1.values()) / len(f1)}
    has_answers = {question.content["id"]: bool(question.content["answers"])
                   for question in dataset.questions}
    scores = official._make_eval_dict(exact, f1)
    for name, wanted in ("HasAns", True), ("NoAns", False):
        ids = [qas_id for qas_id, has in has_answers.items() if has == wanted]
        if ids:
            official._merge_eval(scores, official._make_eval_dict(exact, f1, ids), name)
    if null_odds is not None:
        official._find_all_best_thresh(
            scores, texts, exact, f1,
            {qas_id: null_odds[qas_id] for qas_id in has_answers}, has_answers)
    return scores


def _check(dataset: SquadDataset, texts: Mapping[str, str], version_2: bool) -> None:
    """Raises InputError where the official scripts would skip a question, log or
    fail."""
    dataset.check_answered(version_2)
    missing = [q.content["id"] for q in dataset.questions
               if q.content["id"] not in texts]
    if missing:
        raise InputError(
            f"Question '{missing[0]}' has no prediction ({len(missing)} of "
            f"{len(dataset.questions)} have none); predict and score the same file.")


def write_prediction_files(
        output_dir: str, examples: Sequence[SquadExample], answers: Answers,
        dataset: SquadDataset | None, prediction_file: str = "") -> list[str]:
    """Writes the predictions for the official scripts, and a readable table; returns
    the paths.

      predictions.json        answer by question id, the format of a submission
      nbest_predictions.json  the best answers with their probabilities, by id
      null_odds.json          version 2.0: null odds by id
      predictions.tsv         id, question, prediction, probability (of the best answer
                              relative to the n best, not to "no answer"), the true
                              answers, and whether the prediction is one of them (both
                              empty if `dataset` is None)

    `prediction_file` replaces predictions.tsv (tables.write_predictions). It also has
    the passage, and the positions where the answer begins and ends in it.
    """
    predictions = answers.predictions
    contents = {"predictions.json": as_json(answers.texts),
                "nbest_predictions.json": as_json(predictions.nbest)}
    if predictions.null_odds is not None:
        contents["null_odds.json"] = as_json(predictions.null_odds)
    return tables.write_predictions(output_dir, contents, [*_readable(
        examples, answers, dataset, bool(prediction_file))], prediction_file)


def _readable(examples: Sequence[SquadExample], answers: Answers,
              dataset: SquadDataset | None, own: bool
              ) -> Iterator[tuple[str | int, ...]]:
    truth, outcomes = {}, {}
    if dataset is not None:
        outcomes = question_outcomes(dataset, answers.texts,
                                     answers.predictions.null_odds is not None,
                                     answers.language)
        truth = {q.content["id"]: dict.fromkeys(
            answer["text"] for answer in q.content["answers"])
            for q in dataset.questions}
    yield ("id", *["passage"] * own, "question", "prediction", "probability",
           *["start", "end"] * own, "answers", "exact_match")
    for example in examples:
        qas_id = example.qas_id
        # If the threshold removed the answer, the row still has the probability of the
        # best one.
        best = answers.predictions.nbest[qas_id][0]
        exact = {1.0: "yes", 0.0: "no"}[outcomes[qas_id].exact] if outcomes else ""
        text = answers.texts[qas_id]
        passage, place = [], []
        if own:
            passage = [example.paragraph_text]
            place = answers.predictions.best[qas_id][:2] if text else (0, 0)
        yield (qas_id, *passage, example.question_text, text,
               f"{best['probability']:.4f}", *place, " | ".join(truth.get(qas_id, ())),
               exact)
