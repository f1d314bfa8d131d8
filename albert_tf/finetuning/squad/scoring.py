"""SQuAD: official metrics, the threshold of no answer, and prediction files.

The metrics are those of tf-models-official's copies of the official scripts.
"""

import math
from typing import Iterator, Mapping, NamedTuple, Sequence

from albert_tf.errors import InputError
from albert_tf.finetuning import tables
from albert_tf.finetuning.common import as_json
from albert_tf.finetuning.squad.dataset import SquadDataset, SquadExample
from albert_tf.finetuning.squad.predictions import Predictions


class Answers(NamedTuple):
    """The ranked answers to a set of questions; the official metrics in percent, none
    where true answers are not known; and the texts after the threshold of null odds."""

    predictions: Predictions
    metrics: dict[str, float]
    texts: dict[str, str]


class Outcome(NamedTuple):
    """One question's metrics, 0 to 1, the best over its true answers."""

    exact: float
    f1: float


def score(dataset: SquadDataset | None, predictions: Predictions,
          threshold: float | None = None, answer_at_threshold: bool = False) -> Answers:
    """Official metrics, of version 2.0 where the predictions have null odds.

    Version 1.1 has exact_match and f1. Version 2.0 has, of the answers after the
    threshold, exact, f1, total, the same of the answerable (HasAns_) and unanswerable
    (NoAns_) questions; null_score_diff_threshold; best_exact, best_f1 and their
    thresholds, whatever the threshold applied. Where leaving all questions unanswered
    is best, the official search says 0, though odds may be below, and questions would
    be answered after all: here the threshold is one that no odds are below.

    Args:
      dataset: questions with true answers, all or part of those that were predicted;
        None if the answers are not known.
      predictions: answers before any threshold.
      threshold: None takes the one that gives the best F1 on this very dataset, as the
        release does. See Predictions.texts_at.
    """
    if dataset is None:
        return Answers(predictions, {},
                       predictions.texts_at(threshold, answer_at_threshold))
    if predictions.null_odds is None:
        scores = _evaluate(dataset, predictions.texts, version_2=False)
        return Answers(predictions, {
            "exact_match": 100.0 * scores["exact_match"],
            "f1": 100.0 * scores["final_f1"]}, predictions.texts)
    best = _evaluate(dataset, predictions.texts, True, predictions.null_odds)
    for name in "f1", "exact":
        if best[f"final_{name}"] == 100.0 * best.get("NoAns_total", 0) / best["total"]:
            lowest = min(predictions.null_odds.values())
            best[f"final_{name}_thresh"] = (
                math.nextafter(lowest, -math.inf) if answer_at_threshold else lowest)
    if threshold is None:
        threshold = best["final_f1_thresh"]
    texts = predictions.texts_at(threshold, answer_at_threshold)
    # Without odds: these answers are final. With them the official code, made for
    # probabilities, would drop answers whose odds are above 1.
    scores = _evaluate(dataset, texts, version_2=True)
    kept = {name: value for name, value in scores.items()
            if name in ("exact", "f1", "total")
            or name.startswith(("HasAns_", "NoAns_"))}
    return Answers(predictions, kept | {
        "best_exact": best["final_exact"],
        "best_exact_thresh": best["final_exact_thresh"],
        "best_f1": best["final_f1"],
        "best_f1_thresh": best["final_f1_thresh"],
        "null_score_diff_threshold": threshold}, texts)


def question_outcomes(dataset: SquadDataset, texts: Mapping[str, str],
                      version_2: bool) -> dict[str, Outcome]:
    """Each question's own official metrics, by id."""
    from official.nlp.tools import squad_evaluate_v1_1, squad_evaluate_v2_0

    _check(dataset, texts, version_2)
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
              null_odds: Mapping[str, float] | None = None) -> dict[str, float]:
    from official.nlp.tools import squad_evaluate_v1_1, squad_evaluate_v2_0

    _check(dataset, texts, version_2)
    if not version_2:
        return squad_evaluate_v1_1.evaluate(dataset.articles, texts)
    # The official code fails at a question that is not in the dataset.
    ids = [question.content["id"] for question in dataset.questions]
    return squad_evaluate_v2_0.evaluate(
        dataset.articles, {qas_id: texts[qas_id] for qas_id in ids},
        None if null_odds is None else {qas_id: null_odds[qas_id] for qas_id in ids})


def _check(dataset: SquadDataset, texts: Mapping[str, str], version_2: bool) -> None:
    """The official scripts skip, log or fail where this raises."""
    dataset.check_answered(version_2)
    missing = [q.content["id"] for q in dataset.questions
               if q.content["id"] not in texts]
    if missing:
        raise InputError(
            f"Question '{missing[0]}' has no prediction ({len(missing)} of "
            f"{len(dataset.questions)} have none): predict and score the same file.")


def write_prediction_files(
        output_dir: str, examples: Sequence[SquadExample], answers: Answers,
        dataset: SquadDataset | None, prediction_file: str = "") -> list[str]:
    """Writes the predictions, for the official scripts and for people; returns the
    paths.

      predictions.json        answer by question id, the form of a submission
      nbest_predictions.json  the best answers with their probabilities, by id
      null_odds.json          version 2.0; null odds by id
      predictions.tsv         id, question, prediction, probability (of the best answer
                              among the n best, not against no answer; 1 without a
                              choice), the true answers and whether the prediction is
                              one of them (empty where `dataset` is None)

    `prediction_file` takes the place of predictions.tsv (tables.write_predictions) and
    has the passage, too, and the answer's first character in it and that behind the
    last.
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
                                     answers.predictions.null_odds is not None)
        truth = {q.content["id"]: dict.fromkeys(
            answer["text"] for answer in q.content["answers"])
            for q in dataset.questions}
    yield ("id", *["passage"] * own, "question", "prediction", "probability",
           *["start", "end"] * own, "answers", "exact_match")
    for example in examples:
        qas_id = example.qas_id
        # Where a threshold took the answer away, the row still has the probability
        # of the best one.
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
