"""Character classes and text preparation, optionally with the source of each character.

Preparation changes the number of characters: white space collapses, a ligature becomes
two letters, an accent is removed. To know later which characters of the original text a
token came from, functions can work on *sourced characters*. These are triples
(character, start, end), where the character comes from text[start:end].
"""

import dataclasses
import functools
import itertools
import unicodedata
from typing import Any, Callable, Literal, Mapping, Sequence

import numpy as np

from albert_tf.errors import InputError

SourcedChar = tuple[str, int, int]
# A token and its position in the text: (token, start, end).
Located = tuple[str, int, int]

# First and last code points of the blocks of Chinese characters that are separate
# tokens in the original implementation (_is_chinese_char), without extensions F and
# later.
CHINESE_RANGES = (
    (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x2A6DF),
    (0x2A700, 0x2CEAF), (0x2F800, 0x2FA1F))


@dataclasses.dataclass(frozen=True)
class Rules:
    """Rules by which another library's tokenizer cleans text. The defaults are those of
    the original implementation.

    Attributes:
      quotes: whether quotes written as `` and '' become ". SentencePiece only.
      all_marks: whether all characters of class M* are stripped as accents, which
        includes the vowel signs of Thai and Hindi. If not, SentencePiece strips those
        with a combining class, and WordPiece those of class Mn.
      final_sigma: whether a capital sigma at the end of a word becomes "ς", not "σ".
      strips_cased: whether accents are stripped from text that is not lower-cased, too.
        WordPiece only, as are the rest.
      clean: whether control characters are dropped.
      drop_private: whether characters of private use are dropped with them.
      split_chinese: whether each Chinese character is a separate word.
      max_word_chars: the length up to which a word is not unknown.
    """

    quotes: bool = False
    all_marks: bool = False
    final_sigma: bool = True
    strips_cased: bool = False
    clean: bool = True
    drop_private: bool = False
    split_chinese: bool = True
    max_word_chars: int = 200

    @property
    def changed(self) -> dict[str, Any]:
        """The rules that differ from the original implementation's."""
        return {field.name: getattr(self, field.name)
                for field in dataclasses.fields(self)
                if getattr(self, field.name) != field.default}

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

    def lowered(self, text: str) -> str:
        """Returns a text in lower case."""
        return (text if self.final_sigma else text.replace("Σ", "σ")).lower()

    def is_combining(self, char: str) -> bool:
        """Returns whether SentencePiece's cleaning strips a character as an accent."""
        return (unicodedata.category(char)[0] == "M" if self.all_marks
                else unicodedata.combining(char) != 0)

    def is_mark(self, char: str) -> bool:
        """Returns whether WordPiece's cleaning strips a character as an accent."""
        kind = unicodedata.category(char)
        return kind[0] == "M" if self.all_marks else kind == "Mn"

    def is_dropped(self, char: str) -> bool:
        """Returns whether WordPiece's cleaning drops a character."""
        return self.clean and (char in "\0\ufffd" or is_control(char) or (
            self.drop_private and unicodedata.category(char) == "Co"))


ORIGINAL = Rules()
_QUOTES = ("``", "''")


def is_control(char: str) -> bool:
    """Returns whether a character has Unicode class Cc or Cf, without tab, line feed
    and carriage return."""
    return char not in "\t\n\r" and unicodedata.category(char) in ("Cc", "Cf")


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
    if strip_accents and not text.isascii():  # ASCII has no decompositions.
        text = "".join(c for c in unicodedata.normalize("NFKD", text)
                       if not rules.is_combining(c))
    return rules.lowered(text) if lower else text


def _quoted(text: str, rules: Rules) -> str:
    for quote in _QUOTES if rules.quotes else ():
        text = text.replace(quote, '"')
    return text


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
        whole = _without_combining(
            unicodedata.normalize("NFKD", whole), rules.all_marks)
    return (rules.lowered(whole) if lower else whole).split("\n")


@functools.lru_cache(maxsize=None)
def _combining(all_marks: bool) -> np.ndarray:
    """Returns which code points are combining characters: bool [0x20001]. Planes from 2
    on have none, except variation selectors, which have class M* and no combining
    class, and share the last entry."""
    table = np.zeros(0x20001, bool)
    table[:-1] = np.fromiter(map(
        Rules(all_marks=all_marks).is_combining, map(chr, range(0x20000))), bool, 0x20000)
    return table


_SELECTORS = (0xE0100, 0xE01EF)


def _without_combining(text: str, all_marks: bool) -> str:
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
    dropped = _combining(all_marks)[np.minimum(codes, 0x20000)]
    if all_marks:
        dropped |= (codes >= _SELECTORS[0]) & (codes <= _SELECTORS[1])
    if not dropped.any():
        return text
    return codes[~dropped].tobytes().decode("utf-32-le", "surrogatepass")


def preprocess_with_sources(
        text: str, lower: bool = True, remove_space: bool = True,
        strip_accents: bool = True, rules: Rules = ORIGINAL) -> list[SourcedChar]:
    """Returns the characters of preprocess_text, for the same arguments, with sources.

    The source of a dropped combining character is added to the character before it.
    """
    chars = _collapse_spaces(text) if remove_space else source(text)
    for quote in _QUOTES if rules.quotes else ():
        chars = _join_quotes(chars, quote)
    if strip_accents and not text.isascii():
        chars = drop_marks(decompose(chars, "NFKD"), rules.is_combining)
    return lower_case(chars, rules) if lower else chars


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


def source(text: str) -> list[SourcedChar]:
    """Returns each character in a text as its own source."""
    return [(char, i, i + 1) for i, char in enumerate(text)]


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


def lower_case(chars: list[SourcedChar], rules: Rules = ORIGINAL) -> list[SourcedChar]:
    """Lower-cases the whole text at once, because a sigma depends on the word's end."""
    lowered = iter(rules.lowered("".join([char for char, _, _ in chars])))
    return [(next(lowered), start, end)
            for char, start, end in chars for _ in char.lower()]


def decompose(chars: list[SourcedChar], form: Literal["NFD", "NFKD"]
              ) -> list[SourcedChar]:
    """Applies unicodedata.normalize(form, text) for a decomposing form, NFD or NFKD.

    Each character is decomposed, and then each run of combining characters is sorted by
    combining class (Unicode standard, section 3.11).
    """
    decomposed: list[SourcedChar] = []
    run: list[SourcedChar] = []
    for char, start, end in chars:
        for part in unicodedata.normalize(form, char):
            if unicodedata.combining(part):
                run.append((part, start, end))
                continue
            decomposed += sorted(run, key=_combining_class)
            run.clear()
            decomposed.append((part, start, end))
    return decomposed + sorted(run, key=_combining_class)


def _combining_class(char: SourcedChar) -> int:
    return unicodedata.combining(char[0])


def drop_marks(
        chars: list[SourcedChar], is_mark: Callable[[str], bool]) -> list[SourcedChar]:
    """Drops marks, and adds the source of each to that of the character before it.

    Marks may be in canonical order, which is often not that of the text: Hebrew and
    Arabic put the sign for a double consonant before the vowel.
    """
    result: list[SourcedChar] = []
    for marks, run in itertools.groupby(chars, lambda char: is_mark(char[0])):
        if not marks:
            result += run
            continue
        for _, start, end in sorted(run, key=lambda mark: mark[1]):
            if result and result[-1][2] == start:
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
