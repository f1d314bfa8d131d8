"""SQuAD: official metrics, the threshold of no answer, files of predictions.

fixtures/squad/predictions_scores*: the release's metrics of its answers to the
questions of golden/squad, and of pairs of texts.
"""

import gzip
import json
from unittest import mock

import pytest

from albert_tf.finetuning.squad import scoring
from albert_tf.finetuning.squad.dataset import QuestionSet, SquadExample
from albert_tf.finetuning.squad.predictions import Predictions
from albert_tf.finetuning.squad.scoring import Answers
from albert_tf.finetuning.squad.task import SquadTask
from tests.helpers import FIXTURES

RUNS = ("one", "two_accumulated", "nbest3_len5")
SCORES = json.loads(gzip.decompress(
    (FIXTURES / "squad" / "predictions_scores.json.gz").read_bytes()))


def questions_of(articles):
    return [SquadExample(question["id"], "", "", answers=question["answers"])
            for article in articles for paragraph in article["paragraphs"]
            for question in paragraph["qas"]]


@pytest.mark.parametrize("name", RUNS)
def test_metrics_of_version_1_equal_the_releases(name):
    run = SCORES["v1"]["runs"][name]
    assert scoring.score(questions_of(SCORES["v1"]["articles"]), Predictions(
        run["predictions"], {}, None)).metrics == (
            pytest.approx(run["evaluate_v1"], rel=0, abs=1e-9))


@pytest.mark.parametrize("name", RUNS)
def test_metrics_of_version_2_equal_the_releases(name):
    """No odds of these are above 1.0, where the release takes them for probabilities, and
    counts answers as none."""
    run, articles = SCORES["v2"]["runs"][name], SCORES["v2"]["articles"]
    score = scoring.score(questions_of(articles), Predictions(
        run["predictions"], {}, run["null_odds"]))
    assert {name: score.metrics[name] for name in run["evaluate_v2"]} == (
        pytest.approx(run["evaluate_v2"], rel=0, abs=1e-9))
    assert score.texts == run["final_predictions"]
    for best in "f1", "exact":
        assert run[f"find_best_thresh_{best}"] == pytest.approx(
            [score.metrics[f"best_{best}"], score.metrics[f"best_{best}_thresh"]],
            rel=0, abs=1e-9)


def question(qas_id, *answers, text=""):
    return SquadExample(qas_id, text, "", answers=[{"text": answer} for answer in answers])


@pytest.mark.parametrize("pair", SCORES["pairs"], ids=lambda p: f"{p['a']}~{p['b']}")
def test_two_texts_are_compared_as_the_release_does(pair):
    asked, texts = [question("q", pair["b"])], {"q": pair["a"]}
    for version in 1, 2:
        outcome = scoring.question_outcomes(asked, texts, version == 2)["q"]
        assert outcome.exact == pair[f"em_v{version}"]
        assert outcome.f1 == pytest.approx(pair[f"f1_v{version}"], abs=1e-9)


ASKED = [question(qas_id, *answers, text=f"Which\t{qas_id}\n?") for qas_id, *answers in (
    ("a", "red", "red", "a red"), ("b", "blue"), ("c",), ("d",))]
ANSWERS = Predictions(
    {"a": "red", "b": "blue", "c": "green", "d": "pink"},
    {i: [{"text": i, "probability": 0.5}] for i in "abcd"},
    {"a": 2.0, "b": 3.0, "c": 4.0, "d": 5.0})


def test_the_best_threshold_leaves_its_own_question_out_unless_told():
    score = scoring.score(ASKED, ANSWERS)
    assert score.metrics["best_f1"] == 100 and score.metrics["best_f1_thresh"] == 3
    assert score.metrics["f1"] == 75 and score.texts["b"] == ""
    mended = scoring.score(ASKED, ANSWERS, answer_at_threshold=True)
    assert mended.metrics["f1"] == 100 and mended.texts["b"] == "blue"
    for found in score, mended:
        assert found.metrics["null_score_diff_threshold"] == 3


@pytest.mark.parametrize("answer_at_threshold", [False, True])
def test_where_no_answer_is_best_there_is_none(answer_at_threshold):
    """The official search says 0, at which questions of lower odds are answered."""
    wrong = ANSWERS._replace(texts=dict.fromkeys("abcd", "mauve"),
                             null_odds={"a": -4.0, "b": -3.0, "c": -2.0, "d": 1.0})
    score = scoring.score(ASKED, wrong, answer_at_threshold=answer_at_threshold)
    assert set(score.texts.values()) == {""}
    assert score.metrics["f1"] == score.metrics["best_f1"] == 50
    assert score.metrics["exact"] == score.metrics["best_exact"] == 50
    for name in "best_f1_thresh", "best_exact_thresh", "null_score_diff_threshold":
        assert -5 < score.metrics[name] <= -4


def test_a_threshold_given_is_applied_and_recorded():
    score = scoring.score(ASKED, ANSWERS, threshold=4.5)
    assert score.texts == {"a": "red", "b": "blue", "c": "green", "d": ""}
    assert score.metrics["null_score_diff_threshold"] == 4.5
    assert score.metrics["exact"] == 75
    assert score.metrics["HasAns_exact"] == 100 and score.metrics["NoAns_exact"] == 50
    assert score.metrics["best_f1"] == 100


def test_files_hold_the_answers_for_scripts_and_for_people(tmp_path):
    texts = ANSWERS.texts_at(4.5) | {"b": "bläu"}
    task, outputs = SquadTask(version_2=True), {}
    answers = Answers(ANSWERS._replace(best=dict.fromkeys("abcd", (0, 0, 0.0))), {}, texts)
    paths = task.write_predictions(str(tmp_path / "out"), QuestionSet(
        ASKED, last=(task, outputs, answers)), outputs, mock.Mock())
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == sorted(
        path.rpartition("/")[2] for path in paths) == [
            "nbest_predictions.json", "null_odds.json", "predictions.json",
            "predictions.tsv"]
    content = {path.rpartition("/")[2]: open(path, encoding="utf-8").read()
               for path in paths}
    assert json.loads(content["predictions.json"]) == texts
    assert "bläu" in content["predictions.json"]
    assert json.loads(content["nbest_predictions.json"]) == ANSWERS.nbest
    assert json.loads(content["null_odds.json"]) == ANSWERS.null_odds
    rows = [line.split("\t") for line in content["predictions.tsv"].splitlines()]
    assert rows == [
        ["id", "question", "prediction", "probability", "answers", "exact_match"],
        ["a", "Which a ?", "red", "0.5000", "red | a red", "yes"],
        ["b", "Which b ?", "bläu", "0.5000", "blue", "no"],
        ["c", "Which c ?", "green", "0.5000", "", "no"],
        ["d", "Which d ?", "", "0.5000", "", "yes"]]
