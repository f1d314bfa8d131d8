"""Tags of words as entities: their schemes, and scores as conlleval has them.

    iob2    O B-PER I-PER O B-LOC B-LOC      B begins every entity
    iob1    O I-PER I-PER O I-LOC B-LOC      B only behind an entity of the same type
    iobes   O B-PER E-PER O S-LOC S-LOC      E ends an entity, S is one word
    none    DET NOUN VERB                    no entities: parts of speech, say
"""

import collections
import itertools
import re
from typing import Iterable, Mapping, NamedTuple, Sequence

from albert_tf.errors import InputError

SCHEMES = ("iob1", "iob2", "iobes", "none")
OUTSIDE = "O"
_WITH_TYPE = re.compile(r"[BIES]-.+", re.DOTALL)
_OF_ENTITIES = re.compile(r"O|[BIES](-.+)?", re.DOTALL)
_PREFIXES = {"iob1": "OBI", "iob2": "OBI", "iobes": "OBIES"}

Tags = Sequence[str]


class Entity(NamedTuple):
    """Words start to end - 1 of a sentence."""

    start: int
    end: int
    type: str


# ---- entities as conlleval reads them --------------------------------------

# Prefixes of neighbours between which an entity begins or ends, beside those that
# always do. These are the rules of conlleval.pl for B, I, O, and of its successors
# (conlleval.py, seqeval), which know S, for the rest; any sequence has a reading.
_BEGINS = {("E", "E"), ("E", "I"), ("S", "E"), ("S", "I"), ("O", "E"), ("O", "I")}
_ENDS = {("B", "B"), ("B", "S"), ("B", "O"), ("I", "B"), ("I", "S"), ("I", "O")}
_NONE = ("O", ".")
EDGE = ("O", "")


def parse(tag: str) -> tuple[str, str]:
    """Prefix and type: ("B", "PER"), ("O", "")."""
    prefix, _, kind = tag.partition("-")
    return prefix, kind


def begins(before: tuple[str, str], here: tuple[str, str]) -> bool:
    return (here[0] in ("B", "S", "[", "]") or (before[0], here[0]) in _BEGINS
            or here[0] not in _NONE and before[1] != here[1])


def ends(before: tuple[str, str], here: tuple[str, str]) -> bool:
    """Whether an entity ends just before `here`."""
    return (before[0] in ("E", "S", "[", "]") or (before[0], here[0]) in _ENDS
            or before[0] not in _NONE and before[1] != here[1])


def entities(tags: Tags) -> list[Entity]:
    """The entities of a sentence, whatever its tags, as conlleval sees them."""
    found, start, before = [], None, EDGE
    for place, tag in enumerate([*tags, OUTSIDE]):
        here = parse(tag)
        if start is not None and ends(before, here):
            found.append(Entity(start, place, before[1]))
            start = None
        if begins(before, here):
            start = place
        before = here
    return found


def _conlleval(true: Tags, given: Tags, counts: "Counts") -> None:
    """Adds a sentence as conlleval counts it, word by word: in sequences with strange
    prefixes that is not the same as to compare `entities`."""
    both, before = False, (EDGE, EDGE)
    for pair in zip(map(parse, [*true, OUTSIDE]), map(parse, [*given, OUTSIDE])):
        ended = [*map(ends, before, pair)]
        if both and all(ended) and before[0][1] == before[1][1]:
            counts.right[before[0][1]] += 1
            both = False
        elif both and (any(ended) or pair[0][1] != pair[1][1]):
            both = False
        begun = [*map(begins, before, pair)]
        both = both or all(begun) and pair[0][1] == pair[1][1]
        for is_new, counter, (_, kind) in zip(begun, (counts.true, counts.given), pair):
            counter[kind] += is_new
        before = pair


# ---- strict ----------------------------------------------------------------

def _pairs(*patterns: str) -> frozenset[str]:
    """Prefix, prefix, and "=" for one type, "!" for two, "?" for either; "*" is any
    prefix."""
    return frozenset(
        first + second + third
        for pattern in patterns for first, second, third in itertools.product(*(
            {"*": "OBIES", "?": "=!"}.get(sign, sign) for sign in pattern)))


# Scheme → where an entity begins, goes on, and has ended well: seqeval's strict mode.
_STRICT = {
    "iob1": (_pairs("OI?", "II!", "BI?", "IB=", "BB="), _pairs("BI=", "II="),
             _pairs("II!", "IO?", "IB?", "BO?", "BI!", "BB=")),
    "iob2": (_pairs("*B?"), _pairs("BI=", "II="),
             _pairs("II!", "IO?", "IB?", "BO?", "BI!", "BB?")),
    "iobes": (_pairs("*B?", "*S?"), _pairs("BI=", "BE=", "II=", "IE="),
              _pairs("S*?", "E*?")),
}


def strict_entities(tags: Tags, scheme: str) -> list[Entity]:
    """The entities of a sentence that are written as the scheme says."""
    starts, inside, ends = _STRICT[scheme]
    parsed = [EDGE, *map(parse, tags), EDGE]
    pairs = [first[0] + second[0] + "!="[first[1] == second[1]]
             for first, second in itertools.pairwise(parsed)]
    found, place = [], 0
    while place < len(tags):
        start = place
        place += 1
        if pairs[start] in starts:
            while pairs[place] in inside:
                place += 1
            if pairs[place] in ends:
                found.append(Entity(start, place, parsed[start + 1][1]))
    return found


# ---- schemes ---------------------------------------------------------------


def misplaced(tags: Tags, scheme: str) -> list[int]:
    """Words whose tag may not stand there by the scheme, such as I-PER behind O in
    iob2; the last word, where an entity of iobes is not ended."""
    found, before = [], EDGE
    for place, tag in enumerate([*tags, OUTSIDE]):
        here = parse(tag)
        goes_on = before[0] in ("B", "I") and before[1] == here[1]
        wrong = {"iob1": here[0] == "B" and not goes_on,
                 "iob2": here[0] == "I" and not goes_on,
                 "iobes": (here[0] in ("I", "E")) != (before[0] in ("B", "I"))
                 or here[0] in ("I", "E") and not goes_on}[scheme]
        if wrong:
            found.append(min(place, len(tags) - 1))
        before = here
    return found


def scheme_of_labels(labels: Iterable[str]) -> str:
    """The scheme that labels may be of, "none" for tags that name no entities."""
    labels = set(labels)
    if not any(map(_WITH_TYPE.fullmatch, labels)) and not (
            OUTSIDE in labels and len(labels) > 1
            and all(map(_OF_ENTITIES.fullmatch, labels))):
        return "none"
    return "iobes" if {parse(label)[0] for label in labels} & {"E", "S"} else "iob2"


def recognise(sentences: Sequence[Tags]) -> str:
    """The scheme of sentences' tags: where two could be meant, the one that fewer of
    them break."""
    scheme = scheme_of_labels({tag for tags in sentences for tag in tags})
    if scheme != "iob2":
        return scheme
    return min(("iob2", "iob1"), key=lambda scheme: sum(
        len(misplaced(tags, scheme)) for tags in sentences))


def check_tag(tag: str, scheme: str, where: str) -> None:
    """Refuses a tag that is none of a scheme with entities."""
    if scheme != "none" and not (
            _OF_ENTITIES.fullmatch(tag) and tag[0] in _PREFIXES[scheme]):
        known = ", ".join(f"{prefix}-TYPE" for prefix in _PREFIXES[scheme][1:])
        raise InputError(
            f"{where}: the tag '{tag}' is neither O nor one of {known}; mend it, or "
            "give --scheme=none for tags that name no entities.")


def as_tags(found: Iterable[Entity], num_words: int, scheme: str) -> list[str]:
    """The tags of a sentence with these entities, which do not overlap, in order."""
    tags, last = [OUTSIDE] * num_words, Entity(0, -1, "")
    for entity in found:
        start, end, kind = entity
        tags[start:end] = [f"I-{kind}"] * (end - start)
        if scheme != "iob1" or (last.end, last.type) == (start, kind):
            tags[start] = f"B-{kind}"
        if scheme == "iobes":
            tags[end - 1] = f"{'S' if end - start == 1 else 'E'}-{kind}"
        last = entity
    return tags


# ---- scores ----------------------------------------------------------------


class Counts(NamedTuple):
    """How many there are of each type (of each tag, where tags name no entities): in
    the data, predicted, and both; and words with the right tag, of all."""

    true: collections.Counter
    given: collections.Counter
    right: collections.Counter
    right_words: int
    words: int

    def table(self) -> dict[str, tuple[float, float, float, int]]:
        """Type → precision, recall, F1, how many there are in the data."""
        return {kind: self._row(self.true[kind], self.given[kind], self.right[kind])
                for kind in sorted({*+self.true, *+self.given})}

    def overall(self) -> tuple[float, float, float, int]:
        """As a row of the table, of all types together."""
        return self._row(*(counter.total() for counter in self[:3]))

    def metrics(self) -> Mapping[str, float]:
        """Precision, recall, F1 and the share of words with the right tag."""
        precision, recall, f1, _ = self.overall()
        return {"f1": f1, "precision": precision, "recall": recall,
                "accuracy": self.right_words / max(self.words, 1)}

    def report(self) -> str:
        """The table as text."""
        rows = {**self.table(), "all": self.overall()}
        width = max(map(len, rows))
        return "\n".join([
            f"{'':{width}}  precision  recall      f1  support",
            *(f"{kind:{width}}  {precision:9.4f}  {recall:6.4f}  {f1:6.4f}  {support:7}"
              for kind, (precision, recall, f1, support) in rows.items())]) + "\n"

    @staticmethod
    def _row(true: int, given: int, right: int) -> tuple[float, float, float, int]:
        precision, recall = right / max(given, 1), right / max(true, 1)
        # As conlleval computes it; the same number for 0.
        f1 = 2 * precision * recall / (precision + recall) if right else 0.0
        return precision, recall, f1, true


def score(true: Sequence[Tags], given: Sequence[Tags], scheme: str,
          strict: bool = False) -> Counts:
    """Counts of sentences' true and predicted tags: by conlleval's rules, by seqeval's
    strict ones, or with the scheme "none" tag by tag."""
    pairs = [pair for tags in zip(true, given, strict=True)
             for pair in zip(*tags, strict=True)]
    counts = Counts(collections.Counter(), collections.Counter(), collections.Counter(),
                    sum(first == second for first, second in pairs), len(pairs))
    if scheme == "none":
        counts.true.update(first for first, _ in pairs)
        counts.given.update(second for _, second in pairs)
        counts.right.update(first for first, second in pairs if first == second)
        return counts
    for first, second in zip(true, given):
        if not strict:
            _conlleval(first, second, counts)
            continue
        sets = [set(strict_entities(tags, scheme)) for tags in (first, second)]
        for counter, found in zip(counts, (*sets, sets[0] & sets[1])):
            counter.update(entity.type for entity in found)
    return counts
