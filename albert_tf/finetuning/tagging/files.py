"""Sentences of tagged words, their features, and predictions as CoNLL's columns or as
spans.

A sentence has the lines of its file, so that predictions can be written as a further
column.
"""

import json
import re
from typing import Any, Iterable, NamedTuple, Optional, Sequence, Union

from albert_tf import row_files
from albert_tf.finetuning.common import write_files
from albert_tf.finetuning.tagging.scoring import entities
from albert_tf.records.spec import Feature, FeatureSpec, model_inputs

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


class Tagged(NamedTuple):
    """A model's answer for a sentence: a tag for each word, and its probability."""

    tags: list[str]
    scores: list[float]


def joined(words: Iterable[str], between: str
            ) -> tuple[str, tuple[tuple[int, int], ...]]:
    """Joins words; returns the text, and the begin and end of each word in it."""
    spans, end = [], -len(between)
    for word in words:
        start = end + len(between)
        end = start + len(word)
        spans.append((start, end))
    return between.join(words), tuple(spans)


def spec(num_labels: int, vocab_size: int, type_vocab_size: int = 2) -> FeatureSpec:
    """Returns the specification of a sentence with tags of words, or of a window of it.

    `label_ids` are, at the tokens that are trained, the label + 1; they are 0 at others
    and for unknown labels. The features that are not parsed say which words of
    which example have their tag in this window, and at which positions.
    """
    def places(name):
        return Feature(name, "int64", (None,), parsed=False)

    return FeatureSpec((
        *model_inputs((None,), vocab_size, type_vocab_size),
        Feature("label_ids", "int64", (None,), limit=num_labels + 1,
                limited_by="num_labels"),
        Feature("example_index", "int64", (1,), parsed=False),
        places("word_index"), places("word_place")))


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


def write(folder: str, kind: str, examples: Sequence[Sentence],
          tagged: Sequence[Tagged], with_entities: bool) -> list[str]:
    """Writes the predictions for a file of a format, and returns the paths.

      predictions.conll   the lines of the file with the predicted tag as the last
                          column, for conlleval; for CoNLL-U predictions.conllup, whose
                          first line names the columns
      predictions.jsonl   one sentence per line: text, words, tags and entities, whose
                          positions count characters of the text
    """
    text = as_conll(examples, [sentence.tags for sentence in tagged],
                    tabs=kind == "conllu")
    if kind == "conllu" and not text.startswith(GLOBAL_COLUMNS):
        text = f"{GLOBAL_COLUMNS} {' '.join([*CONLLU, PREDICTION])}\n{text}"
    lines = [json.dumps({**each.fields, "text": each.text, **answer(
        each.text, each.words, each.spans, *tags, with_entities)},
                        ensure_ascii=False) + "\n"
             for each, tags in zip(examples, tagged)]
    return write_files(folder, {
        f"predictions.conll{'up' * (kind == 'conllu')}": text,
        "predictions.jsonl": "".join(lines)})


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
