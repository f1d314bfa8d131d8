r"""Labels as they are written in one cell: one, several, a list, zeros and ones.

    ['warm', 'lovely']   as pandas writes a column of lists; also JSON, tuples and sets
    ['warm' 'lovely']    NumPy
    [1, 0, 1]            with as many --labels: 1 for each label that the text has
    warm,lovely          with --label_separator=,
"""

import ast
import itertools
import json
import math
import re
from typing import Any, Sequence

from albert_tf.checkpoints.labels import check_lines, cleaned, shown
from albert_tf.errors import InputError

_ADVICE = "correct it, or, in a test file, leave labels unread (--notest_labels)"
_QUOTED = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""
# np.str_('warm'), as NumPy writes an element, and array([...], dtype=object).
_ELEMENT = re.compile(r"\b(?:np|numpy)\.(?:\w+\(([^()]*)\)|(True|False)_)")
_CALL = re.compile(r"[\w.]+\(\s*([\[({].*[\])}])?\s*(?:,\s*\w+=[^\])}]*)?\)", re.S)


def number(value: Any) -> float:
    """Returns a cell's number; NaN if it is none. (Python's float reads 1_5 as 15.)"""
    try:
        return math.nan if isinstance(value, bool) or "_" in str(value) else float(value)
    except (TypeError, ValueError):
        return math.nan


def truth(value: Any) -> bool | None:
    """Returns whether a cell says 1 or true; None if it says neither that nor 0."""
    word = str(value).strip().lower()
    return {1.0: True, 0.0: False}.get(number({"true": 1, "false": 0}.get(word, word)))


def as_text(value: Any, where: str, column: str) -> str | None:
    """Returns a label or id as text; None if it is missing."""
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        raise InputError(f"{where}: '{column}' is {value!r:.40}; it must be a text, a "
                         "number, true or false, or with --multi_label a list.")
    return json.dumps(value)  # 1, 0.5, true


def parse_label(text: str, labels: Sequence[str] | None, where: str) -> str | float:
    """Parses a label in a file: one of `labels`, any text if they are None, or a number
    if they are (). `where` is "file, line 12"."""
    # A model may have labels that were not cleaned.
    text = text.strip() if text.strip() in (labels or ()) else cleaned(text)
    if labels is None:
        check_lines([text], where, "remove it")
    elif labels and text not in labels:
        raise InputError(f"{where}: the label {shown(text)} is not one of "
                         f"{', '.join(map(shown, labels))}; {_ADVICE}.")
    if labels or labels is None:
        return text
    if not math.isfinite(value := number(text)):
        raise InputError(f"{where}: the label '{text}' is not a number; {_ADVICE}.")
    return value


def one(value: Any, where: str, column: str) -> list[str]:
    """Returns the label of a cell that holds one, in a list."""
    text = as_text(value, where, column) or ""
    bare = text.strip()
    if bare[:1] not in ("", "'", '"') and _elements(bare, ",") not in (
            None, [bare[1:-1].strip()]):
        raise InputError(f"{where}: '{column}' holds {bare[:40]!r}, a list; give "
                         "--multi_label if a text has any number of labels.")
    return [text]


def several(value: Any, where: str, column: str, separator: str,
            labels: Sequence[str] | None, ordered: bool) -> list[str]:
    """Returns the labels of a cell that holds any number. `labels` are those of the task,
    if they are known, and `ordered` says whether the user gave their order, which that of
    zeros and ones is."""
    words: Sequence[str | None] | None
    if isinstance(value, list):
        words = [as_text(each, where, column) for each in value]
    elif (words := _elements(text := as_text(value, where, column) or "", separator)
          ) is None:
        words = re.split(r"[\s,;|/]+", text.strip())
        if None in map(truth, words):
            words = text.split(separator)
    names = [word for word in words if word is not None]
    if len(names) < len(words):
        raise InputError(f"{where}: '{column}' holds {str(value)[:60]!r}, which is not a "
                         f"list of labels that can be read; write {separator!r} between "
                         "them, or a JSON list of texts.")
    given, count = [*map(truth, names)], len(labels or ())
    are_names = len({*given}) == len(names) and (
        labels is None or {*map(cleaned, names)} <= {*labels})
    if not names or None in given or (
            len(names) != count and (are_names or len(names) == 1)):
        return names
    if are_names or not ordered or len(names) != count:
        raise InputError(
            f"{where}: '{column}' holds {str(value)[:40]!r}, {len(names)} times 0 or 1. "
            "Give --labels, in its order, with one for each, or write the names.")
    return [*itertools.compress(labels or (), given)]


def _elements(text: str, separator: str) -> list[str | None] | None:
    """Returns the elements of a list that is written as text, among them None if they
    cannot be read; None if the text is no list."""
    text = _ELEMENT.sub(lambda match: match[1] or match[2] or "", text.strip())
    if call := _CALL.fullmatch(text):
        text = call[1] or "[]"
    inside = text[1:-1].strip()
    if text[:1] + text[-1:] not in ("[]", "()", "{}"):
        # "warm", "lovely"; or a list that is cut.
        return [None] if re.search(r"['\"]", text) and (
            text[0] == text[-1] and text[0] in "'\"" and len(text) > 1
            or (text[0] in "[{") != (text[-1] in "]}")) else None
    quoted = re.search(_QUOTED, inside)
    if text[0] == "(" and inside and not quoted and ("," not in inside or ")" in inside):
        return None  # (none) is a label, and so is each of (a), b (c).
    if quoted:
        # Python would join the texts of NumPy, which have no comma between them.
        inside = re.sub(rf"({_QUOTED})(\s*(?=['\"]))?", lambda match: match[1] + (
            "" if match[2] is None else ", "), inside)
        try:
            found = ast.literal_eval(f"[{inside}]")
        except (SyntaxError, ValueError):
            return [None]
        return [str(each) if isinstance(each, (str, int, float)) else None
                for each in found]
    if re.search(r"['\"\[\](){}]|\.\.\.", inside) or text[0] == "{" and ":" in inside:
        return [None]
    by = next((each for each in (",", separator) if each in inside), None)
    words = list(filter(None, map(str.strip, inside.split(by))))
    if by and inside.count(by) not in (len(words) - 1, len(words)):
        return [None]
    if not by and None in map(truth, words):
        words = [inside]  # [very good]
    return [None if word.lower() in ("none", "null", "nan") else word for word in words]
