"""A sentence of tagged words, and predictions written: as CoNLL's columns, as spans.

A sentence keeps the lines that it came from, so that predictions can be written as a
column beside the others.
"""

import re
from typing import Any, Iterable, NamedTuple, Optional, Sequence, Union

from albert_tf.finetuning.tagging.scoring import entities

# What CoNLL-U Plus begins with, and the columns of CoNLL-U.
GLOBAL_COLUMNS = "# global.columns ="
CONLLU = "ID FORM LEMMA UPOS XPOS FEATS HEAD DEPREL DEPS MISC".split()
PREDICTION = "ALBERT:TAG"


class Line(NamedTuple):
    """A line of a sentence as it stands in the file: its columns, and what a prediction
    adds: that of a word (its number), a text, or None for nothing."""

    cells: tuple[str, ...]
    adds: Union[int, str, None]


class Sentence(NamedTuple):
    """Words with their tags, None if unknown.

    Attributes:
      text: the sentence, and spans: first character of each word in it, and the one
        behind its last.
      lines: as in the file, the words' and those between.
      numbers: of the words' lines in the file, from 1.
      fields: what else an object of JSON lines has.
    """

    words: tuple[str, ...]
    tags: Optional[tuple[str, ...]]
    text: str
    spans: tuple[tuple[int, int], ...]
    lines: tuple[Line, ...]
    numbers: tuple[int, ...]
    path: str
    fields: dict[str, Any] = {}

    def where(self, word: int = 0) -> str:
        return f"{self.path}, line {self.numbers[word]}"


def joined(words: Iterable[str], between: str
            ) -> tuple[str, tuple[tuple[int, int], ...]]:
    spans, end = [], -len(between)
    for word in words:
        start = end + len(between)
        end = start + len(word)
        spans.append((start, end))
    return between.join(words), tuple(spans)


# ---- writing ---------------------------------------------------------------


def answer(text: str, words: Sequence[str], spans: Sequence[tuple[int, int]],
           tags: Sequence[str], scores: Sequence[float], with_entities: bool
           ) -> dict[str, Any]:
    """What is said of a sentence: `words`, `tags`, and `entities` with their place in
    the text, characters start to end - 1, and the mean score of their tags."""
    found: dict[str, Any] = {"words": list(words), "tags": list(tags)}
    if with_entities:
        found["entities"] = [
            {"type": entity.type, "start": start, "end": end, "text": text[start:end],
             "score": round(sum(map(float, own)) / len(own), 6)}
            for entity in entities(tags)
            for own in [scores[entity.start:entity.end]]
            for start, end in [(spans[entity.start][0], spans[entity.end - 1][1])]]
    return found


def as_conll(sentences: Iterable[Sentence], tags: Iterable[Sequence[str]],
             tabs: bool) -> str:
    """Lines as they were, with the predicted tag as the last column; apart by blanks,
    as conlleval takes them, unless a cell holds one, or with `tabs`."""
    rows = []
    for sentence, given in zip(sentences, tags):
        for cells, adds in sentence.lines:
            rows.append(cells if adds is None else (
                *cells, given[adds] if isinstance(adds, int) else adds))
    tabs = tabs or any(re.search(r"[ \t]", cell) for row in rows for cell in row)
    return "\n".join(("\t" if tabs else " ").join(row) for row in rows).rstrip(
        "\n") + "\n\n"


def with_columns_named(text: str) -> str:
    """CoNLL-U with one column more, as CoNLL-U Plus: its columns named at the top."""
    if text.startswith(GLOBAL_COLUMNS):
        return text
    return f"{GLOBAL_COLUMNS} {' '.join([*CONLLU, PREDICTION])}\n{text}"

