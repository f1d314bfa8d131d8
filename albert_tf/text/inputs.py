"""Texts to answer, from files or the standard input: a text a line, with a tab before a
second one, or JSON lines with the inputs by name and whatever `id` they have.
"""

import sys
from typing import Any, Iterator, Mapping, NamedTuple, Sequence

from albert_tf import text_files
from albert_tf.errors import InputError

STANDARD_INPUT = "-"


class Input(NamedTuple):
    """What `predict` takes, what the answer begins with, and where it stood."""

    given: Any
    kept: dict[str, Any]
    where: str


def read(path: str) -> Iterator[Input]:
    """The inputs of a file, or of STANDARD_INPUT."""
    typed = path == STANDARD_INPUT
    plain = path
    for end in text_files.COMPRESSED:
        plain = plain.removesuffix(end)
    is_json = plain.endswith((".jsonl", ".ndjson", ".json"))
    for number, line in _typed() if typed else text_files.read_lines(path):
        where = f"{'the standard input' if typed else path}, line {number}"
        if not is_json and not (typed and line.startswith("{")):
            first, tab, second = line.partition("\t")
            yield Input((first, second) if tab else line, {}, where)
        elif line.strip():
            value = text_files.parse_json(
                line, path, "each line must hold one JSON object", number)
            if not isinstance(value, dict):
                raise InputError(f"{path}, line {number}: holds no JSON object.")
            kept = {"id": value.pop("id")} if "id" in value else {}
            yield Input(value, kept, where)


def _typed() -> Iterator[tuple[int, str]]:
    """Lines of the standard input."""
    for number, line in enumerate(sys.stdin.buffer, 1):
        try:
            yield number, line.decode().rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise text_files.not_utf8("The standard input", number, error.start + 1,
                                      error.reason) from error


def named(given: Any, names: Sequence[str], optional: Sequence[str] = ()
          ) -> Mapping[str, Any]:
    """An input as an object of a task's inputs by name, those in `optional` last."""
    words = (given,) if isinstance(given, str) else given
    if isinstance(words, (tuple, list)):
        most = len(names)
        # Options are the words behind passage and question.
        if "options" in names and len(words) >= most:
            words = [*words[:most - 1], words[most - 1:]]
        if len(words) > most:
            raise InputError(f"there are {len(words)} texts, but the model takes "
                             f"{' and '.join(names)}.")
        given = dict(zip(names, words))
    if not isinstance(given, Mapping):
        raise InputError(f"it is {given!r:.40}, not a text, nor an object of "
                         f"{', '.join(names)}.")
    unknown = [name for name in given if name not in names]
    if unknown:
        raise InputError(f"there is no input '{unknown[0]}': the model takes "
                         f"{', '.join(names)}.")
    for name in names:
        value = given.get(name)
        if value is None and name in optional:
            continue
        if value is None:
            raise InputError(f"'{name}' is missing: the model takes "
                             f"{', '.join(names)}.")
        if name == "options":
            good = isinstance(value, (list, tuple)) and len(value) > 1 and all(
                isinstance(option, str) for option in value)
        else:
            good = isinstance(value, str)
        if not good:
            raise InputError(f"'{name}' is {value!r:.40}, not " + (
                "a list of two texts or more." if name == "options" else "a text."))
    return given
