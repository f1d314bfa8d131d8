"""Cleaning text and splitting it into sentences.

    split_sentences("It rained. We left.", "en")  # ["It rained.", "We left."]

The rules for sentence ends are those of the library sentencex (Wikimedia), which
carries them inside its package: nothing is downloaded at run time. It prefers two
sentences left together to one torn apart. One of its rules is corrected here: a
quotation mark or parenthesis that is never closed makes it take all text up to the next
one for a quotation, which can swallow dozens of sentences (`_split_swallowed`).
"""

import re

import sentencex

from albert_tf.errors import InputError

# ISO 639-1, and the longer codes of Wikipedia that sentencex maps to a related
# language. A language without rules of its own follows a related one or
# English; sentence marks such as 。 and । end sentences in every language.
LANGUAGES = frozenset("""
aa ab ae af ak am an ar as av ay az ba be bg bh bi bm bn bo br bs ca ce ch co cr
cs cu cv cy da de dv dz ee el en eo es et eu fa ff fi fj fo fr fy ga gd gl gn gu
gv ha he hi ho hr ht hu hy hz ia id ie ig ii ik io is it iu ja jv ka kg ki kj kk
kl km kn ko kr ks ku kv kw ky la lb lg li ln lo lt lu lv mg mh mi mk ml mn mr ms
mt my na nb nd ne ng nl nn no nr nv ny oc oj om or os pa pi pl ps pt qu rm rn ro
ru rw sa sc sd se sg si sk sl sm sn so sq sr ss st su sv sw ta te tg th ti tk tl
tn to tr ts tt tw ty ug uk ur uz ve vi vo wa wo xh yi yo za zh zu
als arz ast azb bar ceb ckb cmn dsb frr gan gsw hak hsb lmo lzh mai mhr min mwl
mzn nan nap nds new pms pnb sah scn sco sgs szl vec vls war wuu yue
""".split())

# Removed: control characters, byte-order marks, zero-width spaces, soft
# hyphens, direction marks, unassigned "non-characters" and half surrogate
# pairs (which JSON can hold). The joiners U+200C and U+200D stay, because
# Persian and the languages of India spell words with them.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f"
    "\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ufffe\uffff\ud800-\udfff]")

# Marks that pair up, and apostrophes except those inside a word.
_PAIRED_MARKS = re.compile(
    r"""["“”„«»‹›「」『』《》〈〉()（）\[\]【】]|(?<!\w)['‘’`]|['‘’`](?!\w)""")
_OPENING_MARKS = "“„«‹「『《〈(（[【‘"
# A sentence of more UTF-8 bytes than this is looked at again without the marks
# that pair up: about 50 English words or 100 Chinese characters.
_SUSPICIOUS_BYTES = 300
# Where a sentence in a script without spaces may be cut if it must be.
_CLAUSE_END = re.compile(r"[，、；：,;:…。！？]")


def check_language(code: str, flag: str = "--language") -> str:
    """The language part of a code such as "en", "pt-BR" or "zh_Hans"."""
    language = re.split("[-_]", code.strip().lower())[0]
    if language not in LANGUAGES:
        raise InputError(
            f"{flag}={code} is not a language code that is known: give an ISO 639 "
            "code such as en, de, zh or ja.")
    return language


def clean_text(text: str) -> tuple[str, int]:
    """Removes invisible characters and collapses white space, line ends included;
    returns the text and the number of characters removed other than white space."""
    text, removed = _INVISIBLE.subn("", text)
    return " ".join(text.split()), removed


def split_sentences(text: str, language: str = "en") -> list[str]:
    """Splits one paragraph, as `clean_text` returns it, into sentences without white
    space around them. Joined, they hold every character of `text` but white space."""
    sentences = []
    for sentence in sentencex.segment(language, text):
        if len(sentence.encode("utf-8")) > _SUSPICIOUS_BYTES:
            sentences.extend(_split_swallowed(sentence, language))
        else:
            sentences.append(sentence)
    return _join_fragments([s for s in map(str.strip, sentences) if s])


def _split_swallowed(text: str, language: str) -> list[str]:
    """Splits again without regard to quotation marks and parentheses.

    The marks are taken out, the rest is split, and the cuts are carried over to the
    text with its marks: closing marks stay with the sentence before a cut, opening ones
    go with the sentence after it.
    """
    kept = []  # position in `text` of each character of `plain`
    start = 0
    for mark in _PAIRED_MARKS.finditer(text):
        kept.extend(range(start, mark.start()))
        start = mark.end()
    kept.extend(range(start, len(text)))
    plain = "".join(text[i] for i in kept)
    parts = sentencex.segment(language, plain)
    if len(parts) < 2 or "".join(parts) != plain:
        return [text]
    cuts = [0]
    end = 0
    for part in parts[:-1]:
        end += len(part)
        if part[-1].isspace():
            cut = kept[end - 1] + 1
        else:
            cut = kept[end]
            while cut > cuts[-1] and text[cut - 1] in _OPENING_MARKS:
                cut -= 1
        cuts.append(cut)
    cuts.append(len(text))
    return [text[a:b] for a, b in zip(cuts, cuts[1:])]


def _join_fragments(sentences: list[str]) -> list[str]:
    """Joins parts without a letter ("1.", "»") to the sentence after them, the last one
    of a paragraph to the sentence before it."""
    joined: list[str] = []
    waiting = ""
    for sentence in sentences:
        if len(sentence) <= 12 and not any(map(str.isalpha, sentence)):
            waiting = f"{waiting} {sentence}".strip()
            continue
        joined.append(f"{waiting} {sentence}".strip())
        waiting = ""
    if waiting and joined:
        joined[-1] = f"{joined[-1]} {waiting}"
    elif waiting:
        joined.append(waiting)
    return joined


def cut_long(sentence: str, max_chars: int) -> list[str]:
    """Cuts a sentence into parts of at most `max_chars` characters: at white space,
    else after a comma or the like, else anywhere."""
    parts = []
    while len(sentence) > max_chars:
        cut = sentence.rfind(" ", 1, max_chars + 1)
        if cut < 0:
            ends = [m.end() for m in _CLAUSE_END.finditer(sentence, 0, max_chars)]
            cut = ends[-1] if ends else max_chars
        parts.append(sentence[:cut].strip())
        sentence = sentence[cut:].strip()
    return [*parts, sentence] if sentence else parts
