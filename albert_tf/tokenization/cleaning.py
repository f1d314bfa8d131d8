"""Character classes and text preparation, optionally with the source of each character.

Preparation changes the number of characters: white space collapses, a ligature becomes
two letters, an accent is removed. To know later which characters of the original text a
token came from, preprocess_with_sources works on *sourced characters*. These are
triples (character, start, end), where the character comes from text[start:end].
"""

import dataclasses
import functools
import unicodedata
from typing import Any, Mapping, Sequence

import numpy as np

from albert_tf.errors import InputError

SourcedChar = tuple[str, int, int]

# First and last code points of the blocks of Chinese characters that are separate
# tokens in the original implementation (_is_chinese_char), without extensions F and
# later.
CHINESE_RANGES = (
    (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x2A6DF),
    (0x2A700, 0x2CEAF), (0x2F800, 0x2FA1F))


@dataclasses.dataclass(frozen=True)
class Rules:
    """Rules of Hugging Face's AlbertTokenizer and BertTokenizer for a spiece.model or a
    vocab.txt. The defaults are those of the original implementation.

    Attributes:
      quotes: whether quotes written as `` and '' become ". SentencePiece only.
      all_marks: whether all characters of class M* are stripped as accents, not only
        those with a combining class; this includes the vowel signs of Thai and Hindi.
        SentencePiece only.
      split_chinese: whether each Chinese character is a separate word. This and the
        rest are for WordPiece.
      strips_cased: whether accents are stripped from text that is not lower-cased, too.
      max_word_chars: the length up to which a word is not unknown.
    """

    quotes: bool = False
    all_marks: bool = False
    split_chinese: bool = True
    strips_cased: bool = False
    max_word_chars: int = 200

    @property
    def changed(self) -> dict[str, Any]:
        """The rules that differ from the original implementation's."""
        return {name: value for name, value in dataclasses.asdict(self).items()
                if value != getattr(ORIGINAL, name)}

    @classmethod
    def of(cls, changed: Any, path: str) -> "Rules":
        """Returns the rules that `changed` describes; `path` is the file it is from."""
        kinds = {field.name: field.type for field in dataclasses.fields(cls)}
        if not isinstance(changed, Mapping) or any(
                type(value) is not kinds.get(name) for name, value in changed.items()):
            raise InputError(
                f"{path}: the rules of its tokenizer, {changed!r:.60}, are damaged; "
                "copy the file again.")
        return cls(**changed)

    def is_combining(self, char: str) -> bool:
        """Returns whether SentencePiece's cleaning strips a character as an accent."""
        return (unicodedata.category(char)[0] == "M" if self.all_marks
                else unicodedata.combining(char) != 0)


ORIGINAL = Rules()
_QUOTES = ("``", "''")


def is_punctuation(char: str) -> bool:
    """Returns whether a character has a Unicode class P*, or is an ASCII sign such as
    $ + < ^ ` |."""
    code = ord(char)
    if code < 128:
        return 33 <= code <= 126 and not char.isalnum()
    return unicodedata.category(char).startswith("P")


# The ways to split a text into words that get tags.
WORD_SPLITS = ("punctuation", "whitespace", "characters")


def split_words(text: str, split: str = "punctuation") -> list[tuple[int, int]]:
    """Splits a text into words; returns the (start, end) of each.

        split_words("No. 5 科技")  # [(0, 2), (2, 3), (4, 5), (6, 7), (7, 8)]

    White space (str.isspace) is in no word. With "punctuation" each punctuation mark
    and each Chinese character is a separate word, as in BERT. With "characters" every
    character is. With "whitespace" only white space separates words.
    """
    spans: list[tuple[int, int]] = []
    inside = False
    for i, char in enumerate(text):
        alone = stands_alone(char, split)
        if inside and not alone and not char.isspace():
            spans[-1] = (spans[-1][0], i + 1)
        elif not char.isspace():
            spans.append((i, i + 1))
        inside = not (alone or char.isspace())
    return spans


def stands_alone(char: str, split: str) -> bool:
    """Returns whether a character, which is not white space, is a separate word."""
    return split == "characters" or split == "punctuation" and (
        is_punctuation(char) or any(first <= ord(char) <= last
                                    for first, last in CHINESE_RANGES))


class PreparedText(str):
    """A text returned by FullTokenizer.prepare. Preparing it again could change it,
    because lower-casing turns a few letters ("İ") into combining characters."""


def preprocess_text(text: str, lower: bool = True, remove_space: bool = True,
                    strip_accents: bool = True, rules: Rules = ORIGINAL) -> str:
    """Prepares text for SentencePiece (preprocess_text in the original implementation).

        preprocess_text(" Café  No. ½")  # "cafe no. 1⁄2"

    The result is the compatibility decomposition NFKD without combining characters.
    `remove_space` trims the text and replaces each run of white space with one blank.
    Quotes written as `` and '' are kept. Without `strip_accents` nothing is decomposed,
    and SentencePiece's normalization later composes characters.
    """
    if remove_space:
        text = " ".join(text.split())
    text = _quoted(text, rules)
    if strip_accents:
        text = _stripped(text, rules)
    return text.lower() if lower else text


def _quoted(text: str, rules: Rules) -> str:
    for quote in _QUOTES if rules.quotes else ():
        text = text.replace(quote, '"')
    return text


def _stripped(text: str, rules: Rules) -> str:
    if text.isascii():  # It has no decompositions.
        return text
    return "".join([c for c in unicodedata.normalize("NFKD", text)
                    if not rules.is_combining(c)])


def preprocess_batch(texts: Sequence[str], lower: bool = True,
                     strip_accents: bool = True, rules: Rules = ORIGINAL) -> list[str]:
    """Returns preprocess_text(text, lower, strip_accents=..., rules=...) for each text,
    faster.

    The texts are joined with line feeds and then decomposed and lower-cased together.
    No character decomposes into a line feed or across one.
    """
    if not texts:
        return []
    whole = "\n".join([_quoted(" ".join(text.split()), rules) for text in texts])
    if strip_accents and not whole.isascii():
        codes = np.frombuffer(unicodedata.normalize("NFKD", whole).encode(
            "utf-32-le", "surrogatepass"), "<u4")
        kept = ~_combining(rules)[np.minimum(codes, _BEHIND_MARKS)]
        whole = codes[kept].tobytes().decode("utf-32-le", "surrogatepass")
    return (whole.lower() if lower else whole).split("\n")


# Beyond plane 1 only variation selectors have class M*; what follows them has not.
_BEHIND_MARKS = 0xE01F0


@functools.lru_cache(maxsize=None)
def _combining(rules: Rules) -> np.ndarray:
    """Returns which code points are stripped as accents: bool [_BEHIND_MARKS + 1]."""
    table = np.zeros(_BEHIND_MARKS + 1, bool)
    for part in (range(0x20000), range(0xE0100, _BEHIND_MARKS)):
        table[part.start:part.stop] = [rules.is_combining(chr(code)) for code in part]
    return table


def preprocess_with_sources(
        text: str, lower: bool = True, strip_accents: bool = True,
        rules: Rules = ORIGINAL) -> list[SourcedChar]:
    """Returns the characters of preprocess_text, for the same arguments, with sources.

    The source of a dropped combining character is added to the character before it.
    """
    chars = _collapse_spaces(text)
    for quote in _QUOTES if rules.quotes else ():
        chars = _join_quotes(chars, quote)
    if strip_accents and not text.isascii():
        chars = _strip_each(chars, rules)
    if not lower:
        return chars
    # A sigma depends on the whole word.
    lowered = iter("".join([char for char, _, _ in chars]).lower())
    return [(next(lowered), start, end)
            for char, start, end in chars for _ in char.lower()]


def _collapse_spaces(text: str) -> list[SourcedChar]:
    """Returns " ".join(text.split()) as sourced characters."""
    chars: list[SourcedChar] = []
    end = 0
    for word in text.split():
        start = text.find(word, end)  # Nothing but white space lies between.
        if chars:
            chars.append((" ", end, start))
        end = start + len(word)
        chars += [(char, start + i, start + i + 1) for i, char in enumerate(word)]
    return chars


def _join_quotes(chars: list[SourcedChar], quote: str) -> list[SourcedChar]:
    """Replaces a quote of two characters by ", which comes from both."""
    result: list[SourcedChar] = []
    waits = False  # whether the last character is the first half of a quote
    for char in chars:
        if waits and char[0] == quote[1]:
            result[-1] = ('"', result[-1][1], char[2])
            waits = False
        else:
            result.append(char)
            waits = char[0] == quote[0]
    return result


def _strip_each(chars: list[SourcedChar], rules: Rules) -> list[SourcedChar]:
    """Decomposes each character alone, because all that Unicode sorts is dropped."""
    result: list[SourcedChar] = []
    for char, start, end in chars:
        parts = char if char < "\x80" else _stripped(char, rules)
        if parts:
            result += [(part, start, end) for part in parts]
        elif result and result[-1][2] == start:
            result[-1] = (*result[-1][:2], end)
    return result


@functools.lru_cache(maxsize=100_000)
def comparable(char: str, lower: bool, strip_accents: bool,
               rules: Rules = ORIGINAL) -> str:
    """Returns a character after preprocess_text. If accents are kept, it is composed as
    by SentencePiece. The result can be "" or several characters."""
    return preprocess_text(
        char if strip_accents else unicodedata.normalize("NFKC", char), lower,
        remove_space=False, strip_accents=strip_accents, rules=rules)
