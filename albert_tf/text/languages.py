"""What differs between languages: how sentences end, and what a corpus needs of the next
scripts, kept in a file beside it: `<corpus>.language.json`.

The rules for sentence ends are those of the library sentencex (Wikimedia). If in doubt,
it does not split. One of its rules is corrected here: after a quotation mark or
parenthesis that is never closed, it treats all text up to the next one as a quotation,
which can join dozens of sentences. The ends of Khmer, Tibetan and Sinhala are added. Thai
and Lao mark none, and are divided at their blanks, which end clauses.
"""

import collections
import dataclasses
import itertools
import re
import unicodedata
from typing import Iterable, Iterator, Optional, Sequence

import sentencex
from absl import logging

from albert_tf import files, text_files
from albert_tf.errors import InputError, reading

# Characters to remove: control characters, byte-order marks, zero-width spaces, soft
# hyphens, direction marks and unassigned "non-characters". The joiners U+200C and U+200D
# are kept, because Persian and Indian languages spell words with them.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f"
    "\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ufffe\uffff]")

# Marks that occur in pairs, and apostrophes except those inside a word.
_PAIRED_MARKS = re.compile(
    r"""["“”„«»‹›「」『』《》〈〉()（）\[\]【】]|(?<!\w)['‘’`]|['‘’`](?!\w)""")
_OPENING_MARKS = "“„«‹「『《〈(（[【‘"
# A sentence with more UTF-8 bytes than this (about 50 English words or 100 Chinese
# characters) is split again without the marks that occur in pairs.
_SUSPICIOUS_BYTES = 300
# Scripts written without spaces between words: Thai, Lao, Tibetan, Burmese, Khmer,
# Chinese and Japanese.
SPACELESS = re.compile(
    "[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u2e80-\u9fff\uf900-\ufaff"
    "\uff00-\uff9f\U00020000-\U0003ffff]")
# Ends that sentencex does not know. In Khmer ។ល។ is "etc."; Tibetan doubles its marks. A
# blank ends a clause between two Thai or Lao letters, but not beside a mark such as ๆ.
_MORE_ENDS = re.compile(
    """(?:(?:។ល)?[។៕៚]+|[།-༒༔](?:\\s*[།-༒༔])*|෴)[»”’"')\\]]*\\s*"""
    "|(?<=[\u0e01-\u0e45\u0e47-\u0ec5\u0ec7-\u0eff]) "
    "(?=[\u0e01-\u0e2e\u0e40-\u0e44\u0e81-\u0eae\u0ec0-\u0ec4])")
_MORE_SCRIPTS = re.compile("[\u0d80-\u0fff\u1780-\u17ff]")
_LEAST_CLAUSE = 20  # characters; what is shorter stays with the next clause
# Marks after which a long sentence without spaces may be cut.
_CLAUSE_ENDS = "，、；：,;:…。！？"


def check_language(code: str) -> str:
    """Returns the language in a code such as "en", "pt-BR" or "zh_Hans"."""
    language = re.split("[-_]", code.strip().lower())[0]
    if not re.fullmatch("[a-z]{2,3}", language):
        raise InputError(f"--language={code} is not a language code; give one of ISO "
                         "639, such as en, de, zh or ja.")
    return language


def clean_text(text: str) -> tuple[str, int]:
    """Removes invisible characters and collapses white space, including line ends;
    returns the text and the number of characters removed."""
    text, removed = _INVISIBLE.subn("", text)
    return " ".join(text.split()), removed


def split_sentences(text: str, language: str = "en") -> list[str]:
    """Splits a paragraph, as `clean_text` returns it, into sentences without white space
    around them.

        split_sentences("It rained. We left.")  # ["It rained.", "We left."]
    """
    sentences: list[str] = []
    waiting, has_more_ends = "", _MORE_SCRIPTS.search(text)
    for part in sentencex.segment(language, text):
        for sentence in _split_swallowed(part, language) if (
                len(part.encode("utf-8")) > _SUSPICIOUS_BYTES) else [part]:
            for piece in filter(None, map(str.strip, (
                    _divided(sentence) if has_more_ends else [sentence]))):
                # What has no letter ("1.", "»") belongs to the next sentence, or at the
                # end of a paragraph to the sentence before.
                waiting = f"{waiting} {piece}".strip()
                if len(piece) > 12 or any(map(str.isalpha, piece)):
                    sentences.append(waiting)
                    waiting = ""
    if waiting:
        sentences[-1:] = [" ".join([*sentences[-1:], waiting])]
    return sentences


def _divided(sentence: str) -> Iterator[str]:
    """Divides a sentence at ends that sentencex does not know."""
    start = 0
    for end in _MORE_ENDS.finditer(sentence):
        if end[0] != " " or end.start() - start >= _LEAST_CLAUSE:
            yield sentence[start:end.end()]
            start = end.end()
    yield sentence[start:]


def _split_swallowed(text: str, language: str) -> list[str]:
    """Splits a sentence again, without quotation marks and parentheses, and transfers
    the cuts to the text with its marks: closing marks belong to the sentence before a
    cut, opening marks to the sentence after it."""
    marks = {mark.start() for mark in _PAIRED_MARKS.finditer(text)}
    positions = [i for i in range(len(text)) if i not in marks]
    plain = "".join(text[i] for i in positions)
    parts = sentencex.segment(language, plain)
    if len(parts) < 2 or "".join(parts) != plain:
        return [text]
    cuts, end = [0], 0
    for part in parts[:-1]:
        end += len(part)
        cut = positions[end - 1] + 1 if part[-1].isspace() else positions[end]
        while cut > cuts[-1] and text[cut - 1] in _OPENING_MARKS:
            cut -= 1
        cuts.append(cut)
    return [text[a:b] for a, b in itertools.pairwise([*cuts, len(text)])]


def cut_long(sentence: str, max_chars: int) -> list[str]:
    """Cuts a sentence into parts with at most `max_chars` characters: at white space,
    else after a mark such as a comma, else anywhere."""
    parts = []
    while len(sentence) > max_chars:
        cut = sentence.rfind(" ", 1, max_chars + 1)
        if cut < 0:
            marks = [sentence.rfind(mark, 0, max_chars) for mark in _CLAUSE_ENDS]
            cut = max(marks) + 1 or max_chars
        parts.append(sentence[:cut].strip())
        sentence = sentence[cut:].strip()
    return [*parts, sentence] if sentence else parts


# ---- what a corpus needs ---------------------------------------------------

# Written with no or few accents and other combining marks; the paper's English.
_WITHOUT_MARKS = frozenset(
    "en eng zh zho chi cmn yue id ind ms msa zsm sw swa la lat".split())
# Written without spaces between words, each of whose tokens counts as a word.
_WITHOUT_SPACES = frozenset(
    "zh zho chi cmn yue wuu hak gan hsn cdo cjy lzh ja jpn ryu th tha tts sou nod lo lao "
    "km khm my mya bur mnw shn rki ksw bo bod tib dz dzo lbj adx".split())
# English Wikipedia has an accent on 0.001 of its letters, and 0.0003 that are not Latin.
_MANY, _MANY_FOREIGN, _SAMPLE = 0.003, 0.01, 10_000  # lines


@dataclasses.dataclass(frozen=True)
class Language:
    """The settings for text in one or more languages.

        Language.of("kk")  # Language("kk", False, "sentencepiece")
    """

    language: str  # codes as from check_language, in alphabetical order
    strip_accents: bool
    word_start: str  # "release" or "sentencepiece": see pretraining_data.options

    @classmethod
    def of(cls, *codes: str) -> "Language":
        """Returns the settings for codes such as "de"."""
        strips = _WITHOUT_MARKS.issuperset(codes)
        return cls(" ".join(sorted(codes)), strips, "release" if strips or (
            not _WITHOUT_SPACES.isdisjoint(codes)) else "sentencepiece")

    def write(self, corpus: str) -> None:
        """Writes the file beside a corpus."""
        text_files.write_json(file_of(corpus), dataclasses.asdict(self))


def file_of(corpus: str) -> str:
    """Returns the path of the file beside a corpus, which may be compressed by now."""
    return re.sub(r"\.(gz|bz2|xz|zst)$", "", corpus) + ".language.json"


def of_corpora(paths: Iterable[str]) -> Optional[Language]:
    """Returns the settings for corpora, of which some have a file; None if none has."""
    found = set()
    for path in filter(files.exists, map(file_of, paths)):
        with reading(path):
            found.add(Language(**text_files.read_object(path)))
    if len(found) < 2:
        return next(iter(found), None)
    return Language.of(*{code for each in found for code in each.language.split()})


def warn_of_losses(paths: Sequence[str], strips: bool, by_script: bool) -> None:
    """Warns if a sample of the text would lose letters, because accents are stripped
    (`strips`), or has words that are never masked whole, because each token in letters
    that are not Latin counts as a word (`by_script`)."""
    counts: collections.Counter[str] = collections.Counter()
    for path in (chosen := paths[::-(-len(paths) // 16)]):
        for _, line in itertools.islice(
                text_files.read_lines(path), _SAMPLE // len(chosen)):
            counts.update(line)
    letters = lost = foreign = 0
    for char, number in counts.items():
        whole = unicodedata.normalize("NFKD", char)
        bare = "".join(c for c in whole if not unicodedata.combining(c))
        letters += number * char.isalpha()
        lost += number * (bare != whole)
        foreign += number * (char.isalpha() and not (
            strips and bare != whole or bare.isascii() or SPACELESS.match(char)))
    for applies, number, many, what in (
            (strips, lost, _MANY, "lose a mark (as ё becomes е), so words change"),
            (by_script, foreign, _MANY_FOREIGN, "are not Latin ones without accents, whose "
             "tokens each count as a word, so words are never masked whole")):
        if applies and number > many * max(letters, 1):
            logging.warning(
                "%s: %.1f %% of the letters %s. Give --language to prepare_corpus.py; see "
                "docs/PRETRAINING.md, Other languages.", chosen[0],
                100 * number / max(letters, 1), what)
