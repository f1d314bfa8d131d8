"""Character classes and text preparation, optionally with the source of each character:
white space collapses, a ligature becomes two letters, an accent is removed."""

import functools
import re
import sys
import unicodedata
from typing import Any, NamedTuple, Optional

import numpy as np

from albert_tf.errors import reading

UNDERLINE = "\u2581"  # It represents a blank; SentencePiece puts it before each word.
# The blocks of Chinese characters that are separate tokens in the original implementation
# (_is_chinese_char), without extensions F and later.
CHINESE_RANGES = (
    (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x2A6DF),
    (0x2A700, 0x2CEAF), (0x2F800, 0x2FA1F))


class AddedToken(NamedTuple):
    """A token that is found in the text before it is cleaned:
    https://huggingface.co/docs/tokenizers/api/added-tokens."""

    content: str
    id: Optional[int] = None  # as in the vocabulary, or the first behind it
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = False
    special: bool = True

    @classmethod
    def of(cls, given: Any) -> "AddedToken":
        """Returns the token that a JSON file of Hugging Face's describes."""
        given = {"content": given} if isinstance(given, str) else given
        values = {"id": None, "normalized": not given.get("special", True), **given}
        if not (type(values["content"]) is str and values["content"]
                and isinstance(values["id"], int | None)):
            raise ValueError(f"an added token is {given!r:.80}")
        return cls(**{name: values[name] for name in cls._fields if name in values})


class Rules(NamedTuple):
    """Rules of Hugging Face's AlbertTokenizer and BertTokenizer for a spiece.model or a
    vocab.txt. The defaults are those of the original implementation."""

    # For SentencePiece: quotes written as `` and '' become "; all characters of class
    # M* are stripped as accents, such as the vowel signs of Thai and Hindi, and not
    # only those with a combining class.
    quotes: bool = False
    all_marks: bool = False
    # For WordPiece: each Chinese character is a word; accents are stripped from text
    # that is not lower-cased, too; a longer word is unknown.
    split_chinese: bool = True
    strips_cased: bool = False
    max_word_chars: int = 200
    added: tuple[AddedToken, ...] = ()  # besides those of a tokenizer.json

    @property
    def changed(self) -> dict[str, Any]:
        """The rules that differ from the original implementation's, for JSON."""
        values = {**self._asdict(), "added": [token._asdict() for token in self.added] or ()}
        return {name: value for name, value in values.items()
                if value != self._field_defaults[name]}

    @classmethod
    def of(cls, changed: Any, path: str) -> "Rules":
        """Returns the rules that `changed` describes; `path` is the file it is from."""
        with reading(path):
            return cls(**{**changed, "added": tuple(
                map(AddedToken.of, changed.get("added", ())))})


ORIGINAL = Rules()
# The ways to split a text into words that get tags.
WORD_SPLITS = ("punctuation", "whitespace", "characters")


def split_words(text: str, split: str = "punctuation") -> list[tuple[int, int]]:
    """Splits a text into words; returns the (start, end) of each.

        split_words("No. 5 科技")  # [(0, 2), (2, 3), (4, 5), (6, 7), (7, 8)]

    White space (str.isspace) is in no word. With "punctuation" each punctuation mark and
    each Chinese character is a word, as in BERT; with "characters" each character.
    """
    kinds = "".join(" " if char.isspace() else "." if stands_alone(char, split) else "a"
                    for char in text)
    return [word.span() for word in re.finditer("a+|[.]", kinds)]


def stands_alone(char: str, split: str) -> bool:
    """Returns whether a character, which is not white space, is a separate word. As in
    BERT, punctuation is what has a Unicode class P*, and ASCII's signs such as $ + < ^."""
    return split == "characters" or split == "punctuation" and (
        unicodedata.category(char)[0] in ("PS" if char.isascii() else "P")
        or any(first <= ord(char) <= last for first, last in CHINESE_RANGES))


def ends_in_digit_comma(piece: str) -> bool:
    """Returns whether the digit-comma rule splits a token."""
    return len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit()


class PreparedText(str):
    """A text returned by FullTokenizer.prepare. Preparing it again could change it,
    because lower-casing turns a few letters ("İ") into combining characters."""


def preprocess_text(text: str, lower: bool = True, remove_space: bool = True,
                    strip_accents: bool = True, rules: Rules = ORIGINAL) -> str:
    """Prepares text for SentencePiece (preprocess_text in the original implementation).

        preprocess_text(" Café  No. ½")  # "cafe no. 1⁄2"

    The result is the compatibility decomposition NFKD without combining characters.
    `remove_space` trims the text and replaces each run of white space with one blank.
    Without `strip_accents` nothing is decomposed, and SentencePiece's normalization later
    composes characters.
    """
    if remove_space:
        text = " ".join(text.split())
    if rules.quotes:
        text = text.replace("``", '"').replace("''", '"')
    if strip_accents and not text.isascii():  # ASCII has no decompositions.
        codes = np.frombuffer(unicodedata.normalize("NFKD", text).encode(
            "utf-32-le", "surrogatepass"), "<u4")
        text = codes[~_accents(rules.all_marks)[codes]].tobytes().decode(
            "utf-32-le", "surrogatepass")
    return text.lower() if lower else text


@functools.cache
def _accents(all_marks: bool) -> np.ndarray:
    """Returns which code points are stripped as accents: bool [0x110000]."""
    table = np.zeros(sys.maxunicode + 1, bool)
    # Beyond plane 1 only variation selectors have class M*.
    for char in map(chr, (*range(0x20000), *range(0xE0100, 0xE01F0))):
        table[ord(char)] = (unicodedata.category(char)[0] == "M" if all_marks
                            else unicodedata.combining(char))
    return table


@functools.lru_cache(maxsize=100_000)
def clean_each(text: str, lower: bool, strip_accents: bool, rules: Rules = ORIGINAL
               ) -> str:
    """Returns preprocess_text of each character alone: blanks are not collapsed, and "Σ"
    stays, because its small letter depends on its neighbours."""
    text = preprocess_text("".join([" " if char.isspace() else char for char in text]),
                           False, False, strip_accents, rules)
    return "Σ".join(map(str.lower, text.split("Σ"))) if lower else text


def preprocess_with_sources(
        text: str, lower: bool = True, strip_accents: bool = True,
        rules: Rules = ORIGINAL) -> tuple[str, list[tuple[int, int]]]:
    """Returns the result of preprocess_text, and where the source of each of its
    characters, with dropped combining ones behind it, begins and ends in `text`."""
    parts = {char: clean_each(char, lower, strip_accents, rules) for char in set(text)}
    # A run of white space, a quote, or any other character.
    units = re.compile(r"\s+|" + "``|''|" * rules.quotes + ".", re.DOTALL)
    chars: list[str] = []
    sources: list[tuple[int, int]] = []
    for unit in units.finditer(
            text, len(text) - len(text.lstrip()), len(text.rstrip())):
        source = unit.span()
        chars.append(part := '"' if unit[0] in ("``", "''") else parts[unit[0][0]])
        if part:
            sources += [source] * len(part)
        elif sources and sources[-1][1] == source[0]:
            sources[-1] = sources[-1][0], source[1]
    prepared = "".join(chars)
    return prepared.lower() if lower else prepared, sources
