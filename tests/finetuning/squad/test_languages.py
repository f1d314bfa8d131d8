"""Answers in Chinese, Japanese and Korean, compared as by CMRC and KorQuAD.

    python -m pytest tests/finetuning/squad/test_languages.py
"""

import json

import pytest

from albert_tf.finetuning.squad import scoring
from albert_tf.finetuning.squad.predictions import Predictions
from albert_tf.finetuning.squad.task import SquadTask
from tests.finetuning.squad.test_dataset import content, write
from tests.finetuning.squad.test_scoring import question


@pytest.mark.parametrize("language, truth, answer, exact, f1", [
    ("zh", "清代乾隆年间", "清代乾隆年", 0, 10 / 11),
    ("zh", "《河边的书店》", "河边的书店", 1, 1),
    # Only the longest run counts: 河 and 边书 of 5 and 3 units.
    ("zh", "河的边书店", "河边书", 0, 2 * 2 / 8),
    ("zh", "Blue Bird书店", "blue bird 书", 0, 2 * 3 / 7),
    ("zh", "12,500册", "12,500", 0, 2 / 3),
    ("zh", "杭州", "西湖", 0, 0),
    ("ko", "강가에", "강가", 0, 4 / 5),
    ("ko", "'김안나'가", "김안나 가", 1, 1),
    ("ko", "김 안나", "김안나", 0, 1),
    ("ko", "A급", "a급.", 1, 1),
    ("ja", "ガルシア先生", "ガルシア", 0, 8 / 10),
])
def test_answers_are_compared_by_characters(language, truth, answer, exact, f1):
    assert scoring.outcome([truth], answer, language) == (exact, pytest.approx(f1))
    assert scoring.outcome(["x", truth], answer, language).f1 == pytest.approx(f1)
    assert scoring.outcome([], "", language) == (1, 1)
    assert scoring.outcome([], truth, language) == scoring.outcome(
        [truth], "", language) == (0, 0)


@pytest.mark.parametrize("texts, language", [
    (["The clock is old."], "en"), (["Đồng hồ cũ.", "ساعة"], "en"), ([], "en"),
    (["1921"], "en"), (["新しい時計です。"], "ja"), (["钟很旧 (old)。", "书店。"], "zh"),
    (["시계는 낡았다 (時計)."], "ko"), (["The clock 钟 is old."], "en")])
def test_the_language_is_that_of_most_letters(texts, language):
    assert scoring.language_of(texts) == language


# The best threshold differs: by words, a part of an answer counts nothing.
ASKED = [question("a", "清代乾隆年间"), question("b", "杭州西湖"), question("c")]
ANSWERS = Predictions({"a": "清代乾隆年", "b": "杭州西", "c": "书"}, {},
                      {"a": 1.0, "b": 2.0, "c": 3.0})


def test_f1_by_characters_chooses_the_threshold():
    words = scoring.score(ASKED, ANSWERS, answer_at_threshold=True)
    found = scoring.score(ASKED, ANSWERS, answer_at_threshold=True, language="zh")
    assert words.metrics["f1"] == pytest.approx(100 / 3)
    assert set(words.texts.values()) == {""}
    assert found.metrics["null_score_diff_threshold"] == 2.0
    assert found.texts == {"a": "清代乾隆年", "b": "杭州西", "c": ""}
    assert [found.metrics[name] for name in ("f1", "best_f1")] == pytest.approx(
        [100 * (10 / 11 + 6 / 7 + 1) / 3] * 2)
    assert found.metrics["HasAns_f1"] == pytest.approx(50 * (10 / 11 + 6 / 7))
    assert found.metrics["NoAns_exact"] == 100 and found.metrics["total"] == 3
    assert found.metrics.keys() == words.metrics.keys()


def test_metrics_of_version_1_by_characters():
    asked = [question("a", "강가에", "강가"), question("b", "김안나")]
    answers = Predictions({"a": "강가", "b": "안나"}, {}, None)
    assert scoring.score(asked, answers, language="ko").metrics == {
        "exact_match": 50, "f1": pytest.approx(50 * (1 + 4 / 5))}
    assert scoring.score(asked, answers).metrics["f1"] == 50


def test_the_text_or_the_flag_chooses(tmp_path):
    path = write(tmp_path, json.loads(json.dumps(content()).replace(
        "The clock is old.", "书店很旧。")))
    found = SquadTask().read(path)
    assert found.language == "zh"
    assert "most of the text is Chinese" in found.notes[0]
    for language in "en", "ko":
        found = SquadTask(answer_language=language).read(path)
        assert found.language == language and not found.notes
    found = SquadTask().read(write(tmp_path, content()))
    assert found.language == "en" and not found.notes
