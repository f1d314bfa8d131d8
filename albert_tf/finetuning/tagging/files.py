"""Sentences of tagged words, and predictions as CoNLL's columns or as spans."""

import json
import re
from typing import Any, NamedTuple, Optional, Sequence

from albert_tf import row_files
from albert_tf.finetuning.common import write_files
from albert_tf.finetuning.tagging.scoring import entities

# The beginning of CoNLL-U Plus, and the columns of CoNLL-U.
GLOBAL_COLUMNS = "# global.columns ="
CONLLU = "ID FORM LEMMA UPOS XPOS FEATS HEAD DEPREL DEPS MISC".split()
PREDICTION = "ALBERT:TAG"


class Sentence(NamedTuple):
    """A sentence of words with tags.

    Attributes:
      tags: the tag of each word, or None if they are unknown.
      text: the text of the sentence.
      spans: the begin and end of each word in the text.
      numbers: the number of the line or row of each word in the file, from 1.
      lines: the cells of each line in a file of columns, from the end of the sentence
        before, and which word it has: a column of predictions is added there.
      fields: the other fields of an object of JSON lines or of a row.
    """

    words: tuple[str, ...]
    tags: Optional[tuple[str, ...]]
    text: str
    spans: Sequence[tuple[int, int]]
    numbers: tuple[int, ...]
    path: str
    lines: tuple[tuple[tuple[str, ...], Optional[int]], ...] = ()
    fields: dict[str, Any] = {}

    def where(self, word: int = 0) -> str:
        """Returns file and line or row of a word, for messages."""
        return f"{self.path}, {row_files.unit(self.path)} {self.numbers[word]}"

    def rows(self, predicted: Sequence[str]) -> list[tuple[str, ...]]:
        """Returns the cells of the sentence's lines with a column of predicted tags."""
        if self.lines:
            return [cells if word is None else (*cells, predicted[word])
                    for cells, word in self.lines]
        columns = [self.words, predicted] if self.tags is None else [
            self.words, self.tags, predicted]
        return [*zip(*columns), ()]


class Tagged(NamedTuple):
    """A model's answer for a sentence: a tag for each word, and its probability."""

    tags: list[str]
    scores: list[float]


def answer(sentence: Sentence, tagged: Tagged, with_entities: bool) -> dict[str, Any]:
    """Returns the answer for a sentence: `words`, `tags`, and `entities`, which are the
    characters start to end - 1 of the text, with the mean score of their tags."""
    result: dict[str, Any] = {"words": [*sentence.words], "tags": [*tagged.tags]}
    if with_entities:
        result["entities"] = []
        for first, end, kind in entities(tagged.tags):
            begin, last = sentence.spans[first][0], sentence.spans[end - 1][1]
            score = sum(map(float, tagged.scores[first:end])) / (end - first)
            result["entities"].append({
                "type": kind, "start": begin, "end": last,
                "text": sentence.text[begin:last], "score": round(score, 6)})
    return result


def write(folder: str, kind: str, examples: Sequence[Sentence],
          tagged: Sequence[Tagged], with_entities: bool) -> list[str]:
    """Writes the predictions for a file of a format, and returns the paths.

      predictions.conll   the lines of the file with the predicted tag as the last
                          column, separated by blanks, for conlleval, or by tabs if a
                          cell has a blank; for CoNLL-U predictions.conllup, with tabs,
                          whose first line names the columns
      predictions.jsonl   one sentence per line: text, words, tags and entities, whose
                          positions count characters of the text
    """
    is_conllu = kind == "conllu"
    rows = [row for sentence, (tags, _) in zip(examples, tagged)
            for row in sentence.rows(tags)]
    tabs = is_conllu or any(re.search(r"[ \t]", cell) for row in rows for cell in row)
    text = "\n".join(map("\t".join if tabs else " ".join, rows)).rstrip("\n") + "\n\n"
    if is_conllu and not text.startswith(GLOBAL_COLUMNS):
        text = f"{GLOBAL_COLUMNS} {' '.join([*CONLLU, PREDICTION])}\n{text}"
    lines = [json.dumps({**sentence.fields, "text": sentence.text, **answer(
        sentence, tags, with_entities)}, ensure_ascii=False) + "\n"
             for sentence, tags in zip(examples, tagged)]
    return write_files(folder, {
        f"predictions.conll{'up' * is_conllu}": text,
        "predictions.jsonl": "".join(lines)})
