"""Character classes and text preparation, each also with the source of every character.

Preparation changes the number of characters: white space collapses, a ligature
becomes two letters, an accent goes. To say later which characters of the
original text a piece came from, the functions here can work on *sourced
characters*, triples (character, start, end): the character stems from
text[start:end] of the original text.
"""

import functools
import unicodedata
from typing import Callable, Sequence

import numpy as np

SourcedChar = tuple[str, int, int]
# A piece and its place in the text: (piece, start, end).
Located = tuple[str, int, int]

# First and last code points of the blocks of Chinese characters that the release
# sets apart (its _is_chinese_char); extensions F and later are not among them.
CHINESE_RANGES = (
    (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x2A6DF),
    (0x2A700, 0x2CEAF), (0x2F800, 0x2FA1F))


def is_control(char: str) -> bool:
    """Unicode classes Cc and Cf, without tab, line feed and carriage return."""
    return char not in "\t\n\r" and unicodedata.category(char) in ("Cc", "Cf")


def is_punctuation(char: str) -> bool:
    """Unicode classes P*, and every ASCII sign such as $ + < ^ ` |."""
    code = ord(char)
    if code < 128:
        return 33 <= code <= 126 and not char.isalnum()
    return unicodedata.category(char).startswith("P")


# How a text is split into words that get tags.
WORD_SPLITS = ("punctuation", "whitespace", "characters")


def split_words(text: str, split: str = "punctuation") -> list[tuple[int, int]]:
    """The words of a text: the first character of each, and the one behind its last.

        split_words("No. 5 科技")  # [(0, 2), (2, 3), (4, 5), (6, 7), (7, 8)]

    White space (str.isspace) is in no word. By "punctuation" each punctuation mark and
    each Chinese character is a word of its own, as in BERT; by "characters" every
    character; by "whitespace" what stands between white space.
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
    """Whether a character that is no white space is a word of its own."""
    return split == "characters" or split == "punctuation" and (
        is_punctuation(char) or any(first <= ord(char) <= last
                                    for first, last in CHINESE_RANGES))


class PreparedText(str):
    """A text that FullTokenizer.prepare made: preparing it again may change it, since
    lower-casing makes combining characters of a few letters ("İ")."""


def preprocess_text(text: str, lower: bool = True, remove_space: bool = True,
                    strip_accents: bool = True) -> str:
    """Prepares text for SentencePiece (the release's preprocess_text).

        preprocess_text(" Café  No. ½")  # "cafe no. 1⁄2"

    The compatibility decomposition NFKD without its combining characters.
    `remove_space` trims the text, and makes each run of white space one blank. Quotes
    written as `` and '' stay as they are. Without `strip_accents` nothing is decomposed:
    SentencePiece's own normalization then composes what it knows.
    """
    if remove_space:
        text = " ".join(text.split())
    if strip_accents and not text.isascii():  # ASCII has no decompositions.
        text = "".join(c for c in unicodedata.normalize("NFKD", text)
                       if not unicodedata.combining(c))
    return text.lower() if lower else text


def preprocess_batch(texts: Sequence[str], lower: bool = True,
                     strip_accents: bool = True) -> list[str]:
    """[preprocess_text(text, lower, strip_accents=...) for text in texts], faster.

    The texts are decomposed and lower-cased as one, a line each: no character
    decomposes into a line feed, and none across one.
    """
    if not texts:
        return []
    lines = [" ".join(text.split()) for text in texts]
    whole = "\n".join(lines)
    if strip_accents and not whole.isascii():
        changed = [i for i, line in enumerate(lines) if not line.isascii()]
        plain = _without_combining(unicodedata.normalize(
            "NFKD", "\n".join([lines[i] for i in changed])))
        for i, line in zip(changed, plain.split("\n")):
            lines[i] = line
        if not lower:
            return lines
        whole = "\n".join(lines)
    return whole.lower().split("\n") if lower else lines


@functools.lru_cache(maxsize=None)
def _combining() -> np.ndarray:
    """Whether a code point is a combining character: bool [0x20001]. Planes from 2 on
    have none; they share the last row."""
    table = np.zeros(0x20001, bool)
    table[:-1] = np.fromiter(
        map(unicodedata.combining, map(chr, range(0x20000))), np.uint8, 0x20000)
    return table


def _without_combining(text: str) -> str:
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
    dropped = _combining()[np.minimum(codes, 0x20000)]
    if not dropped.any():
        return text
    return codes[~dropped].tobytes().decode("utf-32-le", "surrogatepass")


def preprocess_with_sources(
        text: str, lower: bool = True, remove_space: bool = True,
        strip_accents: bool = True) -> list[SourcedChar]:
    """The characters of preprocess_text, of the same arguments, with sources.

    A combining character that is dropped belongs to the character before it.
    """
    chars = _collapse_spaces(text) if remove_space else source(text)
    if strip_accents and not text.isascii():
        chars = drop_marks(
            decompose(chars, "NFKD"), lambda c: unicodedata.combining(c) != 0)
    return lower_case(chars) if lower else chars


def source(text: str) -> list[SourcedChar]:
    """Each character of a text, its own source."""
    return [(char, i, i + 1) for i, char in enumerate(text)]


def _collapse_spaces(text: str) -> list[SourcedChar]:
    """" ".join(text.split()) as sourced characters."""
    chars: list[SourcedChar] = []
    end = 0
    for word in text.split():
        start = text.find(word, end)  # Nothing but white space lies between.
        if chars:
            chars.append((" ", end, start))
        end = start + len(word)
        chars += [(char, start + i, start + i + 1) for i, char in enumerate(word)]
    return chars


def lower_case(chars: list[SourcedChar]) -> list[SourcedChar]:
    """str.lower over the whole text, as a sigma at a word's end depends on it."""
    lowered = iter("".join([char for char, _, _ in chars]).lower())
    return [(next(lowered), start, end)
            for char, start, end in chars for _ in char.lower()]


def decompose(chars: list[SourcedChar], form: str) -> list[SourcedChar]:
    """unicodedata.normalize(form, text) for a decomposing form, NFD or NFKD.

    That is each character's own decomposition, and then each run of combining
    characters sorted by combining class (Unicode standard, section 3.11).
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
    """Drops marks; the source of a mark joins that of the character it follows."""
    kept: list[SourcedChar] = []
    for char, start, end in chars:
        if not is_mark(char):
            kept.append((char, start, end))
        elif kept and kept[-1][2] == start:
            base, base_start, _ = kept[-1]
            kept[-1] = (base, base_start, end)
    return kept


@functools.lru_cache(maxsize=100_000)
def comparable(char: str, lower: bool, strip_accents: bool) -> str:
    """A character as preprocess_text alone makes it, or where accents are kept as
    SentencePiece composes it; it can be "" or several."""
    return preprocess_text(
        char if strip_accents else unicodedata.normalize("NFKC", char), lower,
        remove_space=False, strip_accents=strip_accents)
