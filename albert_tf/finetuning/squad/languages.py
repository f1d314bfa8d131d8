"""Comparing answers in Chinese, Japanese and Korean, as CMRC and KorQuAD do.

The official script of SQuAD splits answers at blanks. An answer in Chinese or Japanese
is then one word, and F1 the same as an exact match. In Korean, whose endings follow a
word without a blank, it is nearly so.

    true answer 清代乾隆年间 (6 characters), answer 清代乾隆年 (5)
    F1 by words 0, by characters 2 * 5 / (5 + 6) = 0.91

Sources: cmrc2018_evaluate.py of CMRC 2018, which is also used for DRCD, and
evaluate-v1.0.py of KorQuAD, whose rule is used for Japanese, too.
"""

import collections
import difflib
import re
import string
from typing import Iterable, NamedTuple

# Values of --answer_language. English stands for every language that is not listed.
ENGLISH = "en"
CHARACTER_LANGUAGES = {"zh": "Chinese", "ja": "Japanese", "ko": "Korean"}

# CMRC leaves these out. Other punctuation counts as a word.
_CHINESE_SIGNS = frozenset("-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』")
# KorQuAD makes blanks of these, and leaves out ASCII's punctuation.
_KOREAN_BLANKS = str.maketrans(dict.fromkeys("'\"《》<>〈〉()‘’", " "))
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)

_HAN = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002ebef]")
_KANA = re.compile("[\u3041-\u30ff\u31f0-\u31ff\uff66-\uff9f]")
_HANGUL = re.compile("[\u1100-\u11ff\u3131-\u318e\uac00-\ud7a3]")
# Characters that are looked at to tell the language.
_ENOUGH = 100_000


class Outcome(NamedTuple):
    """One question's metrics, from 0 to 1; the maximum over its true answers."""

    exact: float
    f1: float


def language_of(texts: Iterable[str]) -> str:
    """Returns the language of passages: zh, ja or ko if most letters are of their
    scripts, else en."""
    letters, counts = 0, collections.Counter()
    for text in texts:
        letters += sum(map(str.isalpha, text))
        for name, script in ("zh", _HAN), ("ja", _KANA), ("ko", _HANGUL):
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
    compare = _compare_chinese if language == "zh" else _compare_characters
    found = [compare(truth, answer) for truth in truths] or [
        Outcome(*[float(not answer)] * 2)]
    return Outcome(*map(max, zip(*found)))


def _compare_chinese(truth: str, answer: str) -> Outcome:
    """Compares as CMRC: F1 counts the longest run of units that both have. Words of
    other scripts are units; they are split by a rule here, by NLTK in CMRC."""
    first, second = _chinese_units(truth), _chinese_units(answer)
    same = difflib.SequenceMatcher(
        None, first, second, autojunk=False).find_longest_match().size
    exact = _without_signs(truth) == _without_signs(answer)
    return Outcome(float(exact), _f1(same, first, second))


def _without_signs(text: str) -> str:
    return "".join(char for char in text.lower().strip() if char not in _CHINESE_SIGNS)


def _chinese_units(text: str) -> list[str]:
    spaced = _HAN.sub(r" \g<0> ", _without_signs(text))
    return re.findall(r"\w+(?:[.,]\w+)*|[^\w\s]", spaced)


def _compare_characters(truth: str, answer: str) -> Outcome:
    """Compares as KorQuAD: F1 counts the characters that both have."""
    first, second = (
        " ".join(text.translate(_KOREAN_BLANKS).translate(
            _NO_PUNCTUATION).lower().split())
        for text in (truth, answer))
    units = [text.replace(" ", "") for text in (first, second)]
    same = (collections.Counter(units[0]) & collections.Counter(units[1])).total()
    return Outcome(float(first == second), _f1(same, *units))


def _f1(same: int, first, second) -> float:
    if not first or not second:  # Two answers without units agree.
        return float(len(first) == len(second))
    return 2 * same / (len(first) + len(second))
