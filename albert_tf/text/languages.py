"""What a corpus in a language needs, kept in a file beside it: `<corpus>.language.json`.

    language = Language.of("kk")
    language.strip_accents, language.word_start      # False, "sentencepiece"
    language.write("corpus/kk.txt")
    of_corpora(["corpus/kk.txt"]) == language        # True

prepare_corpus.py writes the file. train_sentencepiece.py reads it and keeps the settings
in the vocabulary, whose settings all later steps follow.
"""

import collections
import dataclasses
import re
import unicodedata
from typing import Iterable, Optional, Sequence

from absl import logging

from albert_tf import files, text_files
from albert_tf.errors import reading
from albert_tf.text.sentences import SPACELESS

# Written with no or few accents and other combining marks; the paper's English.
_WITHOUT_MARKS = frozenset(
    "en eng zh zho chi cmn yue id ind ms msa zsm sw swa la lat".split())
# Written without spaces between words, each of whose tokens counts as a word.
_WITHOUT_SPACES = frozenset(
    "zh zho chi cmn yue wuu hak gan hsn cdo cjy lzh ja jpn ryu th tha tts sou nod lo lao "
    "km khm my mya bur mnw shn rki ksw bo bod tib dz dzo lbj adx".split())
_SAMPLE, _PLACES = 1 << 20, 16  # bytes; places in a file that they come from
# English Wikipedia has an accent on 0.001 of its letters, and 0.0003 that are not Latin.
_MANY, _MANY_FOREIGN = 0.003, 0.01


@dataclasses.dataclass(frozen=True)
class Language:
    """The settings for text in one or more languages."""

    language: str  # codes as from sentences.check_language, in alphabetical order
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
    """Returns the path of the language's file beside a corpus, which may have been
    compressed since."""
    return re.sub(r"\.(gz|bz2|xz|zst)$", "", corpus) + ".language.json"


def of_corpora(paths: Iterable[str]) -> Optional[Language]:
    """Returns the settings for corpora, of which some have a file; None if none has."""
    found = set()
    for path in filter(files.exists, map(file_of, paths)):
        with reading(path, binary=True):
            found.add(Language(**text_files.read_object(path)))
    if len(found) < 2:
        return next(iter(found), None)
    return Language.of(*{code for each in found for code in each.language.split()})


def _sample(path: str, size: int) -> str:
    """Returns text from a file: from several places, if it is not compressed."""
    with files.open_binary(path) as stream, reading(path):
        if path.endswith(text_files.COMPRESSED):
            return text_files.decompressed(path, stream).read(size).decode("utf-8", "ignore")
        sample = b""
        for number in range(_PLACES):
            stream.seek(files.size(path) * number // _PLACES)
            sample += stream.read(size // _PLACES)
    return sample.decode("utf-8", "ignore")


def warn_of_losses(paths: Sequence[str], strips: bool, by_script: bool) -> None:
    """Warns if a sample of the text would lose letters, because accents are stripped
    (`strips`), or has words that are never masked whole, because each token in letters
    that are not Latin counts as a word (`by_script`)."""
    chosen = paths[::-(-len(paths) // 16)]
    counts: collections.Counter[str] = collections.Counter()
    for path in chosen:
        counts.update(_sample(path, _SAMPLE // len(chosen)))
    letters = max(1, sum(n for char, n in counts.items() if char.isalpha()))
    lost, foreign = collections.Counter[str](), 0
    for char, number in counts.items():
        whole = unicodedata.normalize("NFKD", char)
        bare = "".join(c for c in whole if not unicodedata.combining(c))
        if strips and bare != whole:
            lost[f"{char} becomes {bare}" if bare else
                 f"U+{ord(char):04X} is left out"] += number
        elif char.isalpha() and not (bare.isascii() or SPACELESS.match(char)):
            foreign += number
    if lost.total() > _MANY * letters:
        logging.warning(
            "%s: %.1f %% of the letters lose a mark (%s), so words change. To keep them, "
            "give --language to prepare_corpus.py, or --strip_accents=false with a "
            "vocabulary that was trained so.", chosen[0], 100 * lost.total() / letters,
            ", ".join(each for each, _ in lost.most_common(4)))
    if by_script and foreign > _MANY_FOREIGN * letters:
        logging.warning(
            "%s: %.1f %% of the letters are not Latin ones without accents. Each token "
            "that has one counts as a word, so words are never masked whole. Give "
            "--language to prepare_corpus.py, or --word_start=sentencepiece to "
            "create_pretraining_data.py.", chosen[0], 100 * foreign / letters)
