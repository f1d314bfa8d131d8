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
from typing import Iterable, NamedTuple, Sequence

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
