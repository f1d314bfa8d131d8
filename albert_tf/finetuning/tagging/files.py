"""Sentences of tagged words, and writing predictions as CoNLL's columns or as spans.

A sentence has the lines of its file, so that predictions can be written as a further
column.
"""

import re
from typing import Any, Iterable, NamedTuple, Optional, Sequence, Union

from albert_tf import row_files
from albert_tf.finetuning.tagging.scoring import entities

# The beginning of CoNLL-U Plus, and the columns of CoNLL-U.
GLOBAL_COLUMNS = "# global.columns ="
CONLLU = "ID FORM LEMMA UPOS XPOS FEATS HEAD DEPREL DEPS MISC".split()
PREDICTION = "ALBERT:TAG"


class Line(NamedTuple):
    """A line of a sentence in the file.

    Attributes:
      cells: its columns.
      adds: the column that predictions add: the number of a word, whose tag is added,
        a text, or None for nothing.
    """

    cells: tuple[str, ...]
    adds: Union[int, str, None]


class Sentence(NamedTuple):
    """A sentence of words with tags.

    Attributes:
      tags: the tag of each word, or None if they are unknown.
      text: the text of the sentence.
      spans: the begin and end of each word in the text.
      lines: the lines of the file, including those between the words.
      numbers: the number of the line or row of each word in the file, from 1.
      fields: the other fields of an object of JSON lines or of a row.
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
        """Returns file and line or row of a word, for messages."""
        return f"{self.path}, {row_files.unit(self.path)} {self.numbers[word]}"


def joined(words: Iterable[str], between: str
            ) -> tuple[str, tuple[tuple[int, int], ...]]:
    """Joins words; returns the text, and the begin and end of each word in it."""
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
    """Returns the answer for a sentence: `words`, `tags`, and `entities`, which are the
    characters start to end - 1 of the text, with the mean score of their tags."""
    result: dict[str, Any] = {"words": list(words), "tags": list(tags)}
    if with_entities:
        result["entities"] = [
            {"type": entity.type, "start": start, "end": end, "text": text[start:end],
             "score": round(sum(map(float, of_words)) / len(of_words), 6)}
            for entity in entities(tags)
            for of_words in [scores[entity.start:entity.end]]
            for start, end in [(spans[entity.start][0], spans[entity.end - 1][1])]]
    return result


def as_conll(sentences: Iterable[Sentence], tags: Iterable[Sequence[str]],
             tabs: bool) -> str:
    """Returns the lines of the file with the predicted tag as the last column. Columns
    are separated by blanks, for conlleval, or by tabs if `tabs` is true or a cell
    contains a blank."""
    rows = []
    for sentence, predicted in zip(sentences, tags):
        for cells, adds in sentence.lines:
            rows.append(cells if adds is None else (
                *cells, predicted[adds] if isinstance(adds, int) else adds))
    tabs = tabs or any(re.search(r"[ \t]", cell) for row in rows for cell in row)
    return "\n".join(("\t" if tabs else " ").join(row) for row in rows).rstrip(
        "\n") + "\n\n"


def with_columns_named(text: str) -> str:
    """Returns CoNLL-U with an additional column as CoNLL-U Plus, whose first line names
    the columns."""
    if text.startswith(GLOBAL_COLUMNS):
        return text
    return f"{GLOBAL_COLUMNS} {' '.join([*CONLLU, PREDICTION])}\n{text}"

