"""Reading files of tagged words: CoNLL's columns, CoNLL-U, JSON lines, Parquet.

    EU  NNP  B-ORG            {"text": "EU rejects German call",
    rejects  VBZ  O            "entities": [{"start": 0, "end": 2, "type": "ORG"}]}

Parquet stands for Arrow files, too. Their columns are the fields of JSON lines, or
`tokens` and `ner_tags`, as the library `datasets` has them.
"""

import dataclasses
import re
from typing import Any, Iterator, Optional, Sequence

from albert_tf import row_files
from albert_tf.checkpoints import labels as label_names
from albert_tf.errors import InputError
from albert_tf.finetuning import tables
from albert_tf.finetuning.tagging.files import (
    CONLLU, GLOBAL_COLUMNS, PREDICTION, Line, Sentence, joined)
from albert_tf.finetuning.tagging.scoring import Entity, as_tags, is_marked
from albert_tf.rows import Row, is_empty, kind_of, number_of, rows, text_lines, typed
from albert_tf.tokenization.cleaning import split_words

FORMATS = ("conll", "conllu", "jsonl", "parquet")
_DOCUMENT = "-DOCSTART-"
# Lines that are comments even if they have as many columns as the words.
_COMMENT = re.compile(r"#\s*(?:[\w.:-]+\s+=\s|id\s+\S+\s+domain=|"
                      r"(?:begin|end) document\b)")
# The fields of words and of tags: ours, and those of `datasets`.
_WORDS = ("words", "tokens")
_TAGS = ("tags", "ner_tags")
_SIMPLE = (str, int, float, bool, type(None))
# A character of a segmented word, and its number within the word: 科0 技1.
_NUMBERED = re.compile(r"(.\D*?)[0-9]+", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Reading:
    """The options of reading files.

    Attributes:
      format: one of FORMATS. "auto": given by the extension: .conllu is CoNLL-U, .jsonl
        and .json are JSON lines, .parquet and .arrow Parquet, all others are columns.
      tag_column: a number from 0, or from -1 backwards; for CoNLL-U a name or number;
        for JSON lines and Parquet a name.
      word_column: the number of the word's column, in CoNLL's columns.
      split: how a text is split into words; one of cleaning.WORD_SPLITS.
      strip_numbers: whether words in columns end in their segmentation number, which is
        removed.
      names: the tags of numbers that have no names in the file (JSON lines, Parquet).
    """

    format: str = "auto"
    tag_column: str = ""
    word_column: int = 0
    split: str = "punctuation"
    strip_numbers: bool = False
    names: tuple[str, ...] = ()

    def format_of(self, path: str) -> str:
        """Returns the format of a file, one of FORMATS."""
        if self.format != "auto":
            return self.format
        kind = kind_of(path, "conll")
        if kind in FORMATS[2:]:
            return kind
        return "conllu" if re.search(r"\.conllup?(\.\w+)?$", path.lower()) else "conll"

    def of_objects(self, path: str) -> bool:
        """Returns whether a file has fields by name, not columns of text."""
        return self.format_of(path) in ("jsonl", "parquet")

    def named_tags(self, path: str) -> tuple[str, ...]:
        """Returns the tags that the schema of a Parquet file names; () for none."""
        if self.format_of(path) != "parquet":
            return ()
        columns = row_files.columns_of(path)
        return tuple(map(label_names.cleaned, columns.get(self._tag_field(columns), ())))

    def _tag_field(self, fields: Any) -> str:
        """Returns the field of the tags, the first of _TAGS if there is none."""
        return self.tag_column if self.tag_column in fields else next(
            (name for name in _TAGS if name in fields), _TAGS[0])

    def read(self, path: str, scheme: str = "iob2", tagged: Optional[bool] = True
             ) -> tuple[list[Sentence], list[str]]:
        """Reads the sentences of a file; returns them and notes for the user.

        Args:
          path: the file.
          scheme: the scheme in which the entities of JSON lines become tags.
          tagged: whether there are tags; None: if the file has a column or field for
            them.
        """
        notes: list[str] = []
        sentences = list(
            self._read_objects(path, scheme, tagged, notes) if self.of_objects(path) else
            self._read_columns(path, tagged, notes))
        if not sentences:
            raise InputError(f"{path}: there is no word in this file; check the path "
                             "and the format.")
        unclean = {tag for sentence in sentences for tag in sentence.tags or ()
                   if not label_names.is_clean(tag)}
        if unclean:
            notes += tables.line_note(path, [
                sentence.numbers[i] for sentence in sentences
                for i, tag in enumerate(sentence.tags or ()) if tag in unclean],
                "have invisible characters in the tag, which are removed")
            sentences = [sentence if sentence.tags is None else sentence._replace(
                tags=tuple(label_names.cleaned(tag) if tag in unclean else tag
                           for tag in sentence.tags)) for sentence in sentences]
        return sentences, notes

    # ---- columns

    def _read_columns(self, path: str, tagged: Optional[bool], notes: list[str]
                      ) -> Iterator[Sentence]:
        """Yields the sentences of a file of columns. In CoNLL-U, words are the
        syntactic ones: if "don't" has the ID 1-2, its words are 1 and 2. Empty nodes,
        such as 8.1, are not words."""
        lines = [*text_lines(path), (0, "")]
        is_conllu = self.format_of(path) == "conllu"
        names, word, column, tabs = self._layout(path, lines, tagged)
        width = len(names)
        # conlleval expects the true tag in the last column but one.
        again = not is_conllu and column is not None and column % width != width - 1
        between, rows, words, tags, numbers, comments = ([] for _ in range(6))
        commented: list[int] = []
        for number, line in lines:
            where, is_document = f"{path}, line {number}", line.startswith(_DOCUMENT)
            if _is_blank(line) or is_document and not is_conllu:
                if words:
                    yield Sentence(
                        tuple(words), None if column is None else tuple(tags),
                        *joined(words, "" if self.split == "characters" else " "),
                        (*between, *rows), tuple(numbers), path,
                        {"comments": comments} if comments else {})
                    between, rows, words, tags, numbers, comments = (
                        [] for _ in range(6))
                cells = tuple(line.split())
                outside = ["O"] * (width + again - len(cells))
                between.append(Line((*cells, *outside), "O") if is_document else
                               Line((), None))
                continue
            cells = tuple(line.split("\t")) if is_conllu else _cells(line, tabs)
            if is_conllu and line.startswith("#"):
                rows.append(Line((f"{line.rstrip()} {PREDICTION}" if line.startswith(
                    GLOBAL_COLUMNS) else line,), None))
                continue
            if not is_conllu and not words and (
                    _COMMENT.match(line) or len(cells) != width
                    and re.match(r"#\s+\S", line) and not is_marked(cells[-1])):
                comments.append(line)
                commented.append(number)
                continue
            if len(cells) != width:
                raise InputError(
                    f"{where}: the line has {len(cells)} columns, but the file has "
                    f"{width}. A line must have a word and its tags, separated by "
                    f"{'tabs' if tabs else 'blanks'}; a blank line ends a sentence.")
            if is_conllu and re.search("[-.]", cells[0]):
                rows.append(Line(cells, "_"))
                continue
            if is_conllu and cells[0] != str(len(words) + 1):
                raise InputError(
                    f"{where}: the ID is '{cells[0]}', but {len(words) + 1} is next; "
                    "IDs count from 1, and a blank line ends a sentence.")
            # A blank may be a word, between tabs.
            if not cells[word] or column is not None and not cells[column].strip():
                what, place = ("tag", column) if cells[word] else ("word", word)
                raise InputError(f"{where}: the {what} (column {place}) is missing; "
                                 "words outside entities have the tag O.")
            rows.append(Line((*cells, *cells[column:][:1] * again), len(words)))
            is_numbered = self.strip_numbers and _NUMBERED.fullmatch(cells[word])
            words.append(is_numbered[1] if is_numbered else cells[word])
            tags.append("" if column is None else cells[column].strip())
            numbers.append(number)
        notes += tables.line_note(path, commented, "begin with # and are comments")

    def _layout(self, path: str, lines: Sequence[tuple[int, str]],
                tagged: Optional[bool]
                ) -> tuple[Sequence[str], int, Optional[int], bool]:
        """Returns the names of the columns, "" if they have none, the places of word
        and tag (None: without tags), and whether tabs separate columns."""
        tabs, number, names, word = True, 1, CONLLU, 1
        if self.format_of(path) != "conllu":
            # A line that begins with # may be a comment; it does not give the columns.
            of_words = [row for row in lines if not _is_blank(row[1])
                        and not row[1].startswith(_DOCUMENT)] or [(0, "no word")]
            number, line = next((row for row in of_words if not row[1].startswith("#")),
                                of_words[0])
            tabs, word = "\t" in line, self.word_column
            names = [""] * len(_cells(line, tabs))
        elif lines[0][1].startswith(GLOBAL_COLUMNS):
            names = lines[0][1][len(GLOBAL_COLUMNS):].split()
        column = None
        if tagged or tagged is None and len(names) > 1:
            column = _place(path, "tag", self.tag_column or (
                "UPOS" if any(names) else "-1"), names)
        place = _place(path, "word", str(word), names)
        if column is not None and column % len(names) == place % len(names):
            raise InputError(
                f"{path}, line {number}: there are no tags, because column {column} has "
                "the words. A line must have a word and its tag, separated by a tab or "
                "blanks.")
        return names, word, column, tabs

    # ---- JSON lines and Parquet

    def _read_objects(self, path: str, scheme: str, tagged: Optional[bool],
                      notes: list[str]) -> Iterator[Sentence]:
        widened: list[int] = []
        empty: list[int] = []
        is_parquet = self.format_of(path) == "parquet"
        if tagged and scheme == "none":
            scheme = "iob2"
        for where, row in rows(path, kind=self.format_of(path)):
            if is_parquet and tagged and self.tag_column and self.tag_column not in row:
                raise row_files.missing(where, self.tag_column, row,
                                        "correct --tag_column")
            number, tag_field = number_of(where), self._tag_field(row)
            # Beside a text, JSON may have tokens of a different tokenizer.
            words_field = next((name for name in _WORDS[:1 + (
                is_parquet or "text" not in row)] if name in row), "")
            if is_parquet and row.get(words_field) == []:
                empty.append(number)
                continue
            if row.get(words_field) is None:
                text = typed(row, where, text=str)["text"]
                words, spans = of_text(text, self.split)
            else:
                words = _strings(row, words_field, where)
                text, spans = _placed(words, row.get("text"), self.split)
            if not words:
                raise InputError(f"{where}: there is no word in the text; remove the "
                                 f"{row_files.unit(path)}.")
            tags = None
            if tagged is not False and row.get("entities") is not None:
                placed = _entities(row, text, where)
                inner = [_words_of(entity, spans, where) for entity in placed]
                widened += [number for entity, (first, end) in zip(placed, inner)
                            if (spans[first][0], spans[end - 1][1]) != entity[:2]]
                for before, after in zip(inner, inner[1:]):
                    if after[0] < before[1]:
                        raise InputError(
                            f"{where}: two entities share the word "
                            f"'{words[after[0]]}', but a word has only one tag; remove "
                            "one of them.")
                tags = as_tags([Entity(*place, entity.type)
                                for place, entity in zip(inner, placed)],
                               len(words), scheme)
            elif tagged is not False and row.get(tag_field) is not None:
                tags = _strings(self._named(row, tag_field, where), tag_field, where)
                if len(tags) != len(words):
                    raise InputError(f"{where}: words and tags differ in number "
                                     f"({len(words)} and {len(tags)}); each word needs "
                                     "a tag.")
            elif tagged:
                raise InputError(
                    f"{where}: there are neither 'entities' nor '{tag_field}'; give "
                    "text and entities, or words and tags, and name the field of the "
                    "tags with --tag_column.")
            yield Sentence(
                tuple(words), None if tags is None else tuple(tags), text, spans,
                (*(Line((word, *([] if tags is None else [tags[i]])), i)
                   for i, word in enumerate(words)), Line((), None)),
                # Predictions repeat further fields, but not all that Parquet may hold.
                (number,) * len(words), path, {
                    name: value for name, value in row.items()
                    if name not in ("text", words_field, tag_field, "entities") and (
                        not is_parquet or isinstance(value, _SIMPLE))})
        notes += tables.line_note(path, empty, "without a word are left out")
        notes += tables.line_note(
            path, widened, "have entities that begin or end inside a word, and are "
            "extended to the whole word; with --split_words=characters, each character "
            "is a word")

    def _named(self, row: Row, field: str, where: str) -> Row:
        """Returns the row with the names of tags that are numbers."""
        tags = row[field]
        if not isinstance(tags, list) or not any(type(tag) is int for tag in tags):
            return row
        if not self.names:
            raise InputError(
                f"{where}: '{field}' holds numbers, which have no names in the file; "
                "give --labels, the tags in the order of these numbers, from 0.")
        for tag in tags:
            if type(tag) is not int or not 0 <= tag < len(self.names):
                raise InputError(f"{where}: '{field}' holds {tag!r:.40}, but --labels "
                                 f"names the numbers 0 to {len(self.names) - 1}.")
        return {**row, field: [self.names[tag] for tag in tags]}


def _is_blank(line: str) -> bool:
    return not line.strip(" \t\r\f\v")


def _cells(line: str, tabs: bool) -> tuple[str, ...]:
    return tuple(cell.strip(" ") or cell for cell in (
        line.split("\t") if tabs else re.split(" +", line.strip(" "))))


def _place(path: str, what: str, column: str, names: Sequence[str]) -> int:
    """Returns the place of a column, given its name or number."""
    for place, name in enumerate(names):
        if name.upper() == column.upper():
            return place
    if re.fullmatch("-?[0-9]{1,9}", column) and -len(names) <= int(column) < len(names):
        return int(column)
    raise InputError(
        f"--{what}_column={column} is not a column of {path}, which has {len(names)} "
        f"columns {' '.join(names)}".strip() + "; count from 0, or from -1 backwards.")


# ---- JSON lines and Parquet ------------------------------------------------


def of_text(text: str, split: str) -> tuple[list[str], tuple[tuple[int, int], ...]]:
    """Splits a text; returns its words, and the begin and end of each in the text."""
    spans = () if is_empty(text) else tuple(split_words(text, split))
    return [text[start:end] for start, end in spans], spans


def _strings(row: Row, name: str, where: str) -> list[str]:
    """Returns a list of words or tags, which fit a column of CoNLL's."""
    values = typed(row, where, **{name: [str]})[name]
    if not all(map(_fits_a_column, values)):
        raise InputError(f"{where}: a text in '{name}' is empty, or contains a tab or "
                         "line end; correct it.")
    return values


def _fits_a_column(value: Any) -> bool:
    return isinstance(value, str) and bool(value) and not re.search(r"[\t\n\r]", value)


def _placed(words: Sequence[str], text: Any, split: str):
    """Returns the text, and the begin and end of each word in it. If the text does not
    contain the words in order, it is built from them."""
    spans, end = [], 0
    for word in words if isinstance(text, str) else ():
        start = text.find(word, end)
        if start < 0:
            break
        end = start + len(word)
        spans.append((start, end))
    if len(spans) == len(words):
        return text, tuple(spans)
    return joined(words, "" if split == "characters" else " ")


def _entities(row: Row, text: str, where: str) -> list[Entity]:
    """Returns the entities of an object, with their characters, in text order."""
    placed = []
    for value in typed(row, where, entities=[(dict, list)])["entities"]:
        here = f"{where}, the entity {value!r:.60}"
        if isinstance(value, list):
            value = dict(zip(("start", "end", "type"), value)) if len(value) == 3 else {}
        kind = value.get("type", value.get("label"))
        typed({**value, "type": kind}, here, start=int, end=int, type=str)
        start, end = value["start"], value["end"]
        if not _fits_a_column(kind) or not 0 <= start < end <= len(text) or (
                not text[start:end].strip()):
            raise InputError(
                f"{here} is not in the text of {len(text)} characters, or its type is "
                "empty or has a tab or line end; start counts from 0, and end is one "
                "more than the last character.")
        if value.get("text") not in (None, text[start:end]):
            raise InputError(
                f"{here} is '{text[start:end]}' in the text; offsets count characters "
                "(code points), not bytes.")
        placed.append(Entity(start, end, kind))
    return sorted(placed)


def _words_of(entity: Entity, spans: Sequence[tuple[int, int]], where: str
              ) -> tuple[int, int]:
    """Returns the first word that an entity overlaps, and the number after the last."""
    inside = [i for i, (start, end) in enumerate(spans)
              if start < entity.end and entity.start < end]
    if not inside:
        raise InputError(f"{where}: the entity from {entity.start} to {entity.end} "
                         "overlaps no word; correct its start and end.")
    return inside[0], inside[-1] + 1
