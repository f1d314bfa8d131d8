"""Entities in tags of words: the schemes, and scores as in conlleval.

    iob2    O B-PER I-PER O B-LOC B-LOC      B begins every entity
    iob1    O I-PER I-PER O I-LOC B-LOC      B only after an entity of the same type
    iobes   O B-PER E-PER O S-LOC S-LOC      E ends an entity, S is one word
    none    DET NOUN VERB                    no entities, e.g. parts of speech

Tags keep the spelling of their file; `parse` reads B-PER, B_PER and b-per.
"""

import collections
import functools
import re
from typing import Iterable, NamedTuple, Sequence

from albert_tf.errors import InputError

SCHEMES = ("iob1", "iob2", "iobes", "none")
OUTSIDE = "O"
_SPELLING = re.compile(r"(O)|([BIES])(?:[-_](.+))?", re.I | re.DOTALL)
_PREFIXES = {"iob1": "OBI", "iob2": "OBI", "iobes": "OBIES"}

Tags = Sequence[str]


class Entity(NamedTuple):
    """An entity: the words start to end - 1 of a sentence."""

    start: int
    end: int
    type: str


@functools.lru_cache(maxsize=1 << 12)
def parse(tag: str) -> tuple[str, str]:
    """Returns prefix and type of a tag in any spelling: ("B", "PER"), ("O", ""); of one
    that belongs to no scheme ("", "")."""
    match = _SPELLING.fullmatch(tag)
    return ((match[1] or match[2]).upper(), match[3] or "") if match else ("", "")


def continued(tag: str, scheme: str) -> str:
    """Returns the tag of the further tokens of a word: I-PER for B-PER, else the same."""
    return tag if scheme == "none" or parse(tag)[0] != "B" else (
        "i" if tag[0] == "b" else "I") + tag[1:]


# ---- entities as conlleval reads them --------------------------------------

EDGE = (OUTSIDE, "")


def divided(before: tuple[str, str], here: tuple[str, str]) -> bool:
    """Returns whether two adjacent tags, parsed, are not of the same entity. For B, I and
    O these are the rules of conlleval.pl, for E and S those of its successors
    (conlleval.py, seqeval)."""
    return (before[0] in ("E", "S", OUTSIDE) or here[0] in ("B", "S", OUTSIDE)
            or before[1] != here[1])


def entities(tags: Tags) -> list[Entity]:
    """Returns the entities of a sentence as conlleval reads them, for any tags."""
    parsed = [*map(parse, tags)]
    starts = [place for place, pair in enumerate(zip([EDGE, *parsed], parsed))
              if divided(*pair)]
    return [Entity(start, end, parsed[start][1])
            for start, end in zip(starts, [*starts[1:], len(tags)])
            if parsed[start][0] != OUTSIDE]


# ---- schemes ---------------------------------------------------------------


def misplaced(tags: Tags, scheme: str) -> list[int]:
    """Returns the words whose tag is not the one that the scheme has for the entities,
    such as I-PER after O in iob2."""
    return [place for place, pair in enumerate(zip(
        tags, as_tags(entities(tags), len(tags), scheme))) if parse(pair[0]) != parse(pair[1])]


def scheme_of_labels(labels: Iterable[str]) -> str:
    """Returns the scheme of labels, "none" for tags that mark no entities."""
    labels = set(labels)
    letters, types = ({*each} for each in zip(*map(parse, labels or "O")))
    # Without types in the plain spelling, all labels must be marked, and some of them as
    # in a scheme: B, I, E and S without a type divide a text into words, without O.
    if not any(re.match("[BIES]-.", label, re.DOTALL) for label in labels) and (
            "" in letters or not (letters > {OUTSIDE} or letters >= set("BES")
                                  or letters & set("BI") and types != {""})):
        return "none"
    return "iobes" if letters & {"E", "S"} else "iob2"


def recognise(sentences: Sequence[Tags]) -> str:
    """Returns the scheme of sentences' tags. If two are possible, it is the one with
    fewer misplaced tags."""
    scheme = scheme_of_labels({tag for tags in sentences for tag in tags})
    if scheme != "iob2":
        return scheme
    return min(("iob2", "iob1"), key=lambda scheme: sum(
        len(misplaced(tags, scheme)) for tags in sentences))


def check_tag(tag: str, scheme: str, where: str, advice: str = "") -> None:
    """Raises InputError if a tag does not belong to a scheme with entities."""
    if scheme != "none" and (parse(tag)[0] or "-") not in _PREFIXES[scheme]:
        known = ", ".join(f"{prefix}-TYPE" for prefix in _PREFIXES[scheme][1:])
        raise InputError(
            f"{where}: the tag '{tag}' is neither O nor one of {known}; correct it, or "
            f"give another --scheme, which is none if no tag marks an entity{advice}.")


def tag_at_ends(texts: Iterable[str], labels: Iterable[str]) -> str:
    """Returns a tag that stands behind a separator at the end of a text, if most texts
    end so: they are lines of a table. Else returns "", also if all end in an "O"."""
    # Words such as "part" and "noun" are no tags of PART and NOUN, but b-x is one of B-X.
    names = {label for label in labels if re.search(r"\w", label)}
    marked = {label.upper() for label in names if parse(label)[0]}
    texts = [*filter(str.strip, texts)]
    ends = [match[1] for text in texts
            if (match := re.search(r"""[\s,;|]["']?([^\s,;|"']+)["']?\s*$""", text))
            and (match[1] in names or match[1].upper() in marked)]
    if 2 * len(ends) <= len(texts) or len({*ends}) == 1 and (
            ends[0] == OUTSIDE or not parse(ends[0])[0]):
        return ""
    return max(ends, key=len)


def as_tags(found: Iterable[Entity], num_words: int, scheme: str) -> list[str]:
    """Returns the tags of a sentence with these entities, which are in order and do not
    overlap."""
    tags, last = [OUTSIDE] * num_words, Entity(0, -1, "")
    for entity in found:
        start, end, kind = entity
        letters = ["I"] * (end - start)
        if scheme != "iob1" or (last.end, last.type) == (start, kind):
            letters[0] = "B"
        if scheme == "iobes":
            letters[-1] = "S" if len(letters) == 1 else "E"
        tags[start:end] = [f"{letter}-{kind}" if kind else letter for letter in letters]
        last = entity
    return tags


# ---- scores ----------------------------------------------------------------


class Counts(NamedTuple):
    """Counts of entities by type, or of tags if tags mark no entities."""

    true: collections.Counter  # The numbers in the data,
    given: collections.Counter  # predicted,
    right: collections.Counter  # and predicted correctly.
    right_words: int  # The number of words with the right tag.
    words: int

    def table(self) -> dict[str, tuple[float, float, float, int]]:
        """Returns type → precision, recall, F1, number in the data; the last row, "all",
        is that of all types together."""
        table, counters = {}, self[:3]
        numbers = {kind: [counter[kind] for counter in counters]
                   for kind in sorted({*+self.true, *+self.given})}
        numbers["all"] = [counter.total() for counter in counters]
        for kind, (true, given, right) in numbers.items():
            precision, recall = right / max(given, 1), right / max(true, 1)
            # conlleval computes F1 in the same way, and also has 0 if nothing is right.
            f1 = 2 * precision * recall / (precision + recall) if right else 0.0
            table[kind] = precision, recall, f1, true
        return table

    def metrics(self) -> dict[str, float]:
        """Returns precision, recall, F1, and the accuracy of words' tags."""
        precision, recall, f1, _ = self.table()["all"]
        return {"f1": f1, "precision": precision, "recall": recall,
                "accuracy": self.right_words / max(self.words, 1)}

    def report(self) -> str:
        """Returns the table as text."""
        rows = self.table()
        width = max(map(len, rows))
        return "\n".join([
            f"{'':{width}}  precision  recall      f1  support",
            *(f"{kind:{width}}  {precision:9.4f}  {recall:6.4f}  {f1:6.4f}  {support:7}"
              for kind, (precision, recall, f1, support) in rows.items())]) + "\n"


def score(true: Sequence[Tags], given: Sequence[Tags], scheme: str) -> Counts:
    """Counts entities in sentences' true and predicted tags, by conlleval's rules. With
    the scheme "none", it counts tags."""
    def marked(sentences):
        return [(number, entity) for number, tags in enumerate(sentences) for entity in (
            entities(tags) if scheme != "none" else
            [Entity(place, place + 1, tag) for place, tag in enumerate(tags)])]

    hits = [first == second for tags in zip(true, given, strict=True)
            for first, second in zip(*tags, strict=True)]
    found = marked(true), marked(given)
    return Counts(*(collections.Counter(entity.type for _, entity in each)
                    for each in (*found, {*found[0]} & {*found[1]})),
                  sum(hits), len(hits))
