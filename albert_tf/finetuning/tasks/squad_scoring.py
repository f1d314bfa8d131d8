"""SQuAD: official metrics, the threshold of no answer, and prediction files.

The metrics are those of tf-models-official's copies of the official scripts. A
dataset is the list under "data" of a SQuAD file: articles with paragraphs with
"qas".
"""

import json
import math
import os
from typing import Any, Iterator, Mapping, NamedTuple, Sequence

from albert_tf import files
from albert_tf.errors import InputError
from albert_tf.finetuning.tasks.squad_predictions import Predictions


class ScoreV2(NamedTuple):
    """Metrics in percent, and the answers that they belong to."""

    metrics: dict[str, float]
    texts: dict[str, str]


class Outcome(NamedTuple):
    """One question's metrics, 0 to 1, the best over its true answers."""

    exact: float
    f1: float


def score_v1(articles: Sequence[Mapping[str, Any]],
             texts: Mapping[str, str]) -> dict[str, float]:
    """Official metrics of version 1.1, as the release's evaluate_v1.

    Args:
      articles: the dataset.
      texts: answers by question id; every question must have one.

    Returns:
      exact_match and f1, in percent.

    Raises:
      InputError: if the dataset has no question, one without true answers, or
        one that `texts` does not answer.
    """
    from official.nlp.tools import squad_evaluate_v1_1

    _check_questions(articles, texts, may_be_unanswerable=False)
    scores = squad_evaluate_v1_1.evaluate(articles, texts)
    return {"exact_match": 100.0 * scores["exact_match"],
            "f1": 100.0 * scores["final_f1"]}


def score_v2(articles: Sequence[Mapping[str, Any]], predictions: Predictions,
             threshold: float | None = None,
             answer_at_threshold: bool = False) -> ScoreV2:
    """Official metrics of version 2.0.

    Args:
      articles: the dataset.
      predictions: answers before any threshold, and null odds.
      threshold: questions whose null odds reach it are left unanswered. None
        takes the one that gives the best F1 on this very dataset, as the
        release does.
      answer_at_threshold: answer a question whose odds equal the threshold. The
        release does not, although its search counted that question as answered,
        so its f1 is as a rule slightly under best_f1.

    Returns:
      Metrics of the answers after the threshold: exact, f1, total, the same of
      the answerable (HasAns_) and unanswerable (NoAns_) questions;
      null_score_diff_threshold and whether it was found on this dataset
      (null_score_diff_threshold_found); best_exact, best_f1 and their
      thresholds, whatever the threshold applied. Where leaving all questions
      unanswered is best, the official search says 0, though some odds may be
      below.

    Raises:
      InputError: as for `score_v1`, and if the threshold is not a number.
    """
    best = _evaluate_v2(articles, predictions.texts, predictions.null_odds)
    found = threshold is None
    if found:
        threshold = best["final_f1_thresh"]
    elif math.isnan(threshold):
        raise InputError("The threshold of the null odds is not a number: give one, "
                         "or none to have the best one found.")
    texts = predictions.texts_at(threshold, answer_at_threshold)
    # Without odds: these answers are final. With them the official code, made for
    # probabilities, would drop answers whose odds are above 1.
    scores = _evaluate_v2(articles, texts, None)
    kept = {name: value for name, value in scores.items()
            if name in ("exact", "f1", "total")
            or name.startswith(("HasAns_", "NoAns_"))}
    return ScoreV2(kept | {
        "best_exact": best["final_exact"],
        "best_exact_thresh": best["final_exact_thresh"],
        "best_f1": best["final_f1"],
        "best_f1_thresh": best["final_f1_thresh"],
        "null_score_diff_threshold": threshold,
        "null_score_diff_threshold_found": found}, texts)


def score_v2_as_released(articles: Sequence[Mapping[str, Any]],
                         predictions: Predictions) -> ScoreV2:
    """The release's evaluate_v2: exact, f1, total, null_score_diff_threshold.

    The threshold of best F1 is found on this dataset and applied, with the
    release's two mistakes:

    - the question whose odds equal the threshold was counted as answered in the
      search and is then left unanswered, so the final F1 is slightly under the
      best;
    - the scores count a question with null odds above 1.0 as unanswered: a limit
      for probabilities, compared with raw scores. It matters when the threshold
      is above 1.

    Raises:
      InputError: as for `score_v1`.
    """
    best = _evaluate_v2(articles, predictions.texts, predictions.null_odds)
    threshold = best["final_f1_thresh"]
    texts = predictions.texts_at(threshold)
    scores = _evaluate_v2(articles, texts, predictions.null_odds)
    return ScoreV2({**{name: scores[name] for name in ("exact", "f1", "total")},
                    "null_score_diff_threshold": threshold}, texts)


def question_outcomes(articles: Sequence[Mapping[str, Any]],
                      texts: Mapping[str, str],
                      version_2: bool) -> dict[str, Outcome]:
    """Each question's own official metrics, by id; arguments as for `score_v1`."""
    from official.nlp.tools import squad_evaluate_v1_1, squad_evaluate_v2_0

    _check_questions(articles, texts, may_be_unanswerable=version_2)
    outcomes = {}
    for question in _questions(articles):
        alone = [{"paragraphs": [{"qas": [question]}]}]
        answer = {question["id"]: texts[question["id"]]}
        if version_2:
            scores = squad_evaluate_v2_0.evaluate(alone, answer)
            outcome = Outcome(scores["exact"] / 100, scores["f1"] / 100)
        else:
            scores = squad_evaluate_v1_1.evaluate(alone, answer)
            outcome = Outcome(float(scores["exact_match"]), float(scores["final_f1"]))
        outcomes[question["id"]] = outcome
    return outcomes


def write_prediction_files(
        output_dir: str, examples: Sequence[Any], predictions: Predictions,
        texts: Mapping[str, str],
        articles: Sequence[Mapping[str, Any]] | None = None) -> list[str]:
    """Writes what was predicted, for the official scripts and for people.

    predictions.json: answer by question id, the form of a submission.
    nbest_predictions.json: the best answers with their probabilities, by id.
    null_odds.json: version 2.0; null odds by id.
    predictions.tsv: id, question, prediction, probability (of the best answer
      among the n best, not against no answer; 1 where there was no choice), the
      true answers and whether the prediction is one of them (empty where not
      known).

    Args:
      examples: with `.qas_id` and `.question_text`, as for the predictions.
      texts: the final answers, after a threshold if there is one.
      articles: the dataset, if its questions have true answers.

    Returns:
      The paths written.
    """
    contents = {"predictions.json": _json(texts),
                "nbest_predictions.json": _json(predictions.nbest)}
    if predictions.null_odds is not None:
        contents["null_odds.json"] = _json(predictions.null_odds)
    contents["predictions.tsv"] = _table(examples, predictions, texts, articles)
    paths = []
    for name, content in contents.items():
        paths.append(os.path.join(output_dir, name))
        with files.atomic_write(paths[-1]) as stream:
            stream.write(content.encode("utf-8"))
    return paths


def _table(examples: Sequence[Any], predictions: Predictions,
           texts: Mapping[str, str],
           articles: Sequence[Mapping[str, Any]] | None) -> str:
    truth, outcomes = {}, {}
    if articles is not None:
        outcomes = question_outcomes(articles, texts,
                                     version_2=predictions.null_odds is not None)
        truth = {question["id"]: list(dict.fromkeys(
            answer["text"] for answer in question["answers"]))
            for question in _questions(articles)}
    lines = ["id\tquestion\tprediction\tprobability\tanswers\texact_match"]
    for example in examples:
        qas_id = example.qas_id
        # Where a threshold took the answer away, the row still tells how likely
        # the best one was.
        best = predictions.nbest[qas_id][0]
        cells = [qas_id, example.question_text, texts[qas_id],
                 f"{best['probability']:.4f}", " | ".join(truth.get(qas_id, [])),
                 {1.0: "yes", 0.0: "no"}[outcomes[qas_id].exact]
                 if qas_id in outcomes else ""]
        # A tab or an end of line inside a cell would break the table.
        lines.append("\t".join(" ".join(cell.split()) for cell in cells))
    return "\n".join(lines) + "\n"


def _json(content: Any) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def _evaluate_v2(articles: Sequence[Mapping[str, Any]], texts: Mapping[str, str],
                 null_odds: Mapping[str, float] | None) -> dict[str, float]:
    from official.nlp.tools import squad_evaluate_v2_0

    _check_questions(articles, texts, may_be_unanswerable=True)
    # The official code fails at a question that is not in the dataset.
    ids = [question["id"] for question in _questions(articles)]
    texts = {qas_id: texts[qas_id] for qas_id in ids}
    if null_odds is not None:
        null_odds = {qas_id: null_odds[qas_id] for qas_id in ids}
    return squad_evaluate_v2_0.evaluate(articles, texts, null_odds)


def _questions(articles: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    for article in articles:
        for paragraph in article["paragraphs"]:
            yield from paragraph["qas"]


def _check_questions(articles: Sequence[Mapping[str, Any]], texts: Mapping[str, str],
                     may_be_unanswerable: bool) -> None:
    """The official scripts skip, log or fail where this raises."""
    questions = list(_questions(articles))
    if not questions:
        raise InputError("The dataset to score has no questions; check the file.")
    missing = [q["id"] for q in questions if q["id"] not in texts]
    if missing:
        raise InputError(
            f"Question '{missing[0]}' has no prediction ({len(missing)} of "
            f"{len(questions)} have none): predict and score the same file.")
    for question in questions:
        if "answers" not in question or not (
                question["answers"] or may_be_unanswerable):
            raise InputError(
                f"Question '{question['id']}' has no true answers, so the file "
                "cannot be scored; predict without evaluation"
                + ("." if may_be_unanswerable else
                   ", or use version 2.0, where questions may have none."))
