"""SQuAD's official metrics, the threshold for "no answer", and prediction files.

The metrics are those of tf-models-official's copies of the official scripts, which
split answers into words. Answers in Chinese, Japanese and Korean are compared as
`languages` says instead.
"""

import functools
import math
import operator
from typing import Mapping, NamedTuple, Sequence

from albert_tf.checkpoints.folders import NULL_THRESHOLD
from albert_tf.finetuning.common import as_json, write_predictions
from albert_tf.finetuning.squad import languages
from albert_tf.finetuning.squad.dataset import SquadExample
from albert_tf.finetuning.squad.languages import Outcome
from albert_tf.finetuning.squad.predictions import Predictions


class Answers(NamedTuple):
    """The answers to a set of questions."""

    predictions: Predictions
    metrics: dict[str, float]  # official, in percent; {} if true answers are not known
    texts: dict[str, str]      # the answers after the threshold of null odds is applied
    language: str = languages.ENGLISH


def score(examples: Sequence[SquadExample] | None, predictions: Predictions,
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
      examples: questions with true answers, all or some of those that were predicted;
        None if the answers are not known.
      threshold: the threshold of null odds (Predictions.texts_at); None: the one with
        the best F1 on them, as in the original implementation.
      language: how answers are compared (see languages).
    """
    if examples is None:
        return Answers(predictions, {},
                       predictions.texts_at(threshold, answer_at_threshold))
    if predictions.null_odds is None:
        outcomes = question_outcomes(examples, predictions.texts, False, language)
        exact, f1 = (100.0 * (functools.reduce(operator.add, scores) / len(outcomes))
                     for scores in zip(*outcomes.values()))
        return Answers(predictions, {"exact_match": exact, "f1": f1},
                       predictions.texts, language)
    best = _evaluate(examples, predictions.texts, language, predictions.null_odds)
    for name in "f1", "exact":
        if best[f"final_{name}"] == 100.0 * best.get("NoAns_total", 0) / best["total"]:
            lowest = min(predictions.null_odds.values())
            best[f"final_{name}_thresh"] = (
                math.nextafter(lowest, -math.inf) if answer_at_threshold else lowest)
    if threshold is None:
        threshold = best["final_f1_thresh"]
    texts = predictions.texts_at(threshold, answer_at_threshold)
    return Answers(predictions, {
        **_evaluate(examples, texts, language),
        **{name: best[name.replace("best", "final")] for name in (
            "best_exact", "best_exact_thresh", "best_f1", "best_f1_thresh")},
        NULL_THRESHOLD: threshold}, texts, language)


def question_outcomes(examples: Sequence[SquadExample], texts: Mapping[str, str],
                      version_2: bool, language: str = languages.ENGLISH
                      ) -> dict[str, Outcome]:
    """Returns the metrics of each question, by id."""
    from official.nlp.tools import squad_evaluate_v1_1, squad_evaluate_v2_0

    if language != languages.ENGLISH:
        return {each.qas_id: languages.outcome(
            filter(str.strip, each.truths), texts[each.qas_id], language)
                for each in examples}
    articles = {each.qas_id: {"paragraphs": [{"qas": [{
        "id": each.qas_id, "answers": each.answers}]}]} for each in examples}
    if version_2:
        exact, f1 = squad_evaluate_v2_0._get_raw_scores(articles.values(), texts)
        return {qas_id: Outcome(float(exact[qas_id]), float(f1[qas_id]))
                for qas_id in exact}
    return {qas_id: Outcome(*map(float, squad_evaluate_v1_1.evaluate(
        [article], texts).values())) for qas_id, article in articles.items()}


def _evaluate(examples: Sequence[SquadExample], texts: Mapping[str, str], language: str,
              null_odds: Mapping[str, float] | None = None) -> dict[str, float]:
    """Returns what the official script of version 2.0 does, by its functions. It would
    take odds for probabilities, and drop answers whose odds are above 1."""
    from official.nlp.tools import squad_evaluate_v2_0 as official

    outcomes = question_outcomes(examples, texts, True, language)
    exact, f1 = ({qas_id: outcome[i] for qas_id, outcome in outcomes.items()}
                 for i in range(2))
    has_answers = {each.qas_id: bool(each.answers) for each in examples}
    scores = official._make_eval_dict(exact, f1)
    for name, wanted in ("HasAns", True), ("NoAns", False):
        ids = [qas_id for qas_id, has in has_answers.items() if has == wanted]
        if ids:
            official._merge_eval(scores, official._make_eval_dict(exact, f1, ids), name)
    if null_odds is not None:
        official._find_all_best_thresh(
            scores, texts, exact, f1,
            {qas_id: null_odds[qas_id] for qas_id in has_answers}, has_answers)
    return dict(scores)


# ---- files -----------------------------------------------------------------


def write_prediction_files(
        output_dir: str, examples: Sequence[SquadExample], answers: Answers,
        answered: bool, prediction_file: str = "") -> list[str]:
    """Writes the predictions for the official scripts, and a readable table; returns
    the paths.

      predictions.json        answer by question id, the format of a submission
      nbest_predictions.json  the best answers with their probabilities, by id
      null_odds.json          version 2.0: null odds by id
      predictions.tsv         id, question, prediction, probability (of the best answer
                              relative to the n best, not to "no answer"), the true
                              answers, and whether the prediction is one of them (both
                              empty unless `answered`)

    `prediction_file` replaces predictions.tsv (common.write_predictions). It also has
    the passage, and the positions where the answer begins and ends in it.
    """
    predictions, own = answers.predictions, bool(prediction_file)
    contents = {"predictions.json": answers.texts,
                "nbest_predictions.json": predictions.nbest}
    if predictions.null_odds is not None:
        contents["null_odds.json"] = predictions.null_odds
    outcomes = question_outcomes(
        examples, answers.texts, predictions.null_odds is not None, answers.language
    ) if answered else {}
    table: list[tuple[str | int, ...]] = [(
        "id", *["passage"] * own, "question", "prediction", "probability",
        *["start", "end"] * own, "answers", "exact_match")]
    for example in examples:
        # If the threshold removed the answer, the row still has the probability of the
        # best one.
        best, text = predictions.nbest[example.qas_id][0], answers.texts[example.qas_id]
        place = predictions.best[example.qas_id][:2] if own and text else (0, 0)
        exact = outcomes[example.qas_id].exact if answered else None
        table.append((
            example.qas_id, *[example.paragraph_text] * own, example.question_text, text,
            f"{best['probability']:.4f}", *place * own,
            " | ".join(dict.fromkeys(example.truths * answered)),
            {1.0: "yes", 0.0: "no", None: ""}[exact]))
    return write_predictions(
        output_dir, {name: as_json(value) for name, value in contents.items()}, table,
        prediction_file)
