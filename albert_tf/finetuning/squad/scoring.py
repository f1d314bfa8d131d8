"""SQuAD's official metrics, and the threshold for "no answer".

The metrics are those of tf-models-official's copies of the official scripts, which
split answers at blanks. An answer in Chinese or Japanese is then one word, and F1 the
same as an exact match. In Korean, whose endings follow a word without a blank, it is
nearly so. These are therefore compared by characters, as CMRC and KorQuAD do:

    true answer 清代乾隆年间 (6 characters), answer 清代乾隆年 (5)
    F1 by words 0, by characters 2 * 5 / (5 + 6) = 0.91

Sources: cmrc2018_evaluate.py of CMRC 2018, which is also used for DRCD, and
evaluate-v1.0.py of KorQuAD, whose rule is used for Japanese, too.
"""

import collections
import difflib
import functools
import math
import operator
import re
import string
from typing import Iterable, Mapping, NamedTuple, Sequence

from albert_tf.checkpoints.folders import NULL_THRESHOLD
from albert_tf.errors import InputError
from albert_tf.finetuning.squad.dataset import QuestionSet, SquadExample
from albert_tf.finetuning.squad.predictions import Predictions

# Values of --answer_language. English stands for every language that is not listed.
ENGLISH = "en"
CHARACTER_LANGUAGES = {"zh": "Chinese", "ja": "Japanese", "ko": "Korean"}

_SCRIPTS = {
    "zh": re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002ebef]"),
    "ja": re.compile("[\u3041-\u30ff\u31f0-\u31ff\uff66-\uff9f]"),
    "ko": re.compile("[\u1100-\u11ff\u3131-\u318e\uac00-\ud7a3]")}
# CMRC leaves these out. Other punctuation counts as a word.
_CHINESE = str.maketrans("", "", "-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』")
# KorQuAD leaves out ASCII's punctuation, and makes blanks of these.
_KOREAN = str.maketrans(dict.fromkeys(string.punctuation) | dict.fromkeys(
    "'\"《》<>〈〉()‘’", " "))
# Characters that are looked at to tell the language.
_ENOUGH = 100_000


class Outcome(NamedTuple):
    """One question's metrics, from 0 to 1; the maximum over its true answers."""

    exact: float
    f1: float


class Answers(NamedTuple):
    """The answers to a set of questions."""

    predictions: Predictions
    metrics: dict[str, float]  # official, in percent; {} if true answers are not known
    texts: dict[str, str]      # the answers after the threshold of null odds is applied


def prepare(data: QuestionSet, version_2: bool, must_score: bool, language: str) -> None:
    """Sets whether predictions can be scored, and how; a language of "auto" is that of
    the passages. A test set has no answers, and no questions that are marked."""
    data.answered = must_score or any(
        each.answers or each.is_impossible is not None for each in data.examples)
    wrong = next((each for each in data.examples if each.answers is None or not (
        each.answers or version_2)), None)
    if data.answered and wrong:
        problem = (f"{wrong.where} has no answers, so that its prediction cannot be "
                   "scored; give a file with answers, or --version_2_with_negative if "
                   "the file marks questions without one.")
        if must_score:
            raise InputError(problem)
        data.answered = False
        data.notes += (f"No metrics will be computed: {problem}",)
    data.language = language if language != "auto" else language_of(dict.fromkeys(
        each.paragraph_text for each in data.examples))
    if data.answered and language == "auto" and data.language != ENGLISH:
        data.notes += (
            f"{data.paths[0]}: most of the text is {CHARACTER_LANGUAGES[data.language]}, "
            "so that F1 counts characters; --answer_language=en gives F1 by words, as "
            "for SQuAD.",)


def score(examples: Sequence[SquadExample] | None, predictions: Predictions,
          threshold: float | None = None, answer_at_threshold: bool = False,
          language: str = ENGLISH) -> Answers:
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
      language: how answers are compared (ENGLISH or one of CHARACTER_LANGUAGES).
    """
    if examples is None:
        return Answers(predictions, {},
                       predictions.texts_at(threshold, answer_at_threshold))
    if predictions.null_odds is None:
        outcomes = question_outcomes(examples, predictions.texts, False, language)
        exact, f1 = (100.0 * (functools.reduce(operator.add, scores) / len(outcomes))
                     for scores in zip(*outcomes.values()))
        return Answers(predictions, {"exact_match": exact, "f1": f1}, predictions.texts)
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
        NULL_THRESHOLD: threshold}, texts)


def question_outcomes(examples: Sequence[SquadExample], texts: Mapping[str, str],
                      version_2: bool, language: str = ENGLISH
                      ) -> dict[str, Outcome]:
    """Returns the metrics of each question, by id."""
    from official.nlp.tools import squad_evaluate_v1_1, squad_evaluate_v2_0

    if language != ENGLISH:
        return {each.qas_id: outcome(
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


# ---- Chinese, Japanese and Korean ------------------------------------------


def language_of(texts: Iterable[str]) -> str:
    """Returns the language of passages: zh, ja or ko if most letters are of their
    scripts, else en."""
    letters, counts = 0, collections.Counter()
    for text in texts:
        letters += sum(map(str.isalpha, text))
        for name, script in _SCRIPTS.items():
            counts[name] += len(script.findall(text))
        if letters >= _ENOUGH:
            break
    if 2 * counts.total() <= letters or not letters:
        return ENGLISH
    if counts["ko"] >= counts["zh"] + counts["ja"]:
        return "ko"
    return "ja" if 10 * counts["ja"] > counts["zh"] else "zh"


def outcome(truths: Iterable[str], answer: str, language: str) -> Outcome:
    """Compares an answer with the true ones of a question; without any, the empty
    answer is right."""
    plain, units = _units(answer, language)
    found = []
    for truth in truths:
        true, true_units = _units(truth, language)
        if language == "zh":  # F1 counts the longest run that both have.
            same = difflib.SequenceMatcher(None, true_units, units, autojunk=False
                                           ).find_longest_match().size
        else:
            same = (collections.Counter(true_units) & collections.Counter(units)).total()
        # Two answers without units agree.
        f1 = 2 * same / (len(true_units) + len(units)) if true_units and units else (
            float(len(true_units) == len(units)))
        found.append((float(true == plain), f1))
    return Outcome(*map(max, zip(*found or [[float(not answer)] * 2])))


def _units(text: str, language: str) -> tuple[str, Sequence[str]]:
    """Returns a text without signs, and its characters; in Chinese also words of other
    scripts, which are split by a rule here, by NLTK in CMRC."""
    if language != "zh":
        text = " ".join(text.translate(_KOREAN).lower().split())
        return text, text.replace(" ", "")
    text = text.lower().strip().translate(_CHINESE)
    return text, re.findall(r"\w+(?:[.,]\w+)*|[^\w\s]",
                            _SCRIPTS["zh"].sub(r" \g<0> ", text))
