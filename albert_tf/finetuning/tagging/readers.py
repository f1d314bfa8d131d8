"""Reading files of tagged words: CoNLL's columns, CoNLL-U, JSON lines, Parquet.

    EU  NNP  B-ORG            {"text": "EU rejects German call",
    rejects  VBZ  O            "entities": [{"start": 0, "end": 2, "type": "ORG"}]}

Parquet stands for Arrow files, too. Their columns are the fields of JSON lines, or
`tokens` and `ner_tags`, as the library `datasets` has them.
"""

import dataclasses
import json
import re
from typing import Any, Iterator, Optional, Sequence

from albert_tf import row_files
from albert_tf.checkpoints import labels as label_names
from albert_tf.errors import InputError
from albert_tf.finetuning import tables
from albert_tf.finetuning.tagging.files import (
    CONLLU, GLOBAL_COLUMNS, PREDICTION, Line, Sentence, joined)
from albert_tf.finetuning.tagging.scoring import Entity, as_tags, is_marked
from albert_tf.tokenization.cleaning import split_words

FORMATS = ("conll", "conllu", "jsonl", "parquet")
_DOCUMENT = "-DOCSTART-"
# Lines that are comments even if they have as many columns as the words.
_COMMENT = re.compile(r"#\s*(?:[\w.:-]+\s+=\s|id\s+\S+\s+domain=|"
                      r"(?:begin|end) document\b)")
_ADVICE = "each line must be one object with text and entities, or words and tags"
# The fields of words and of tags: ours, and those of `datasets`.
_WORDS = ("words", "tokens")
_TAGS = ("tags", "ner_tags")
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
        name = re.sub(r"\.(gz|bz2|xz|zst)$", "", path.lower())
        return ("parquet" if row_files.is_row_file(name) else
                "conllu" if name.endswith((".conllu", ".conllup")) else
                "jsonl" if name.endswith((".jsonl", ".ndjson", ".json")) else "conll")

    def of_objects(self, path: str) -> bool:
        """Returns whether a file has fields by name, not columns of text."""
        return self.format_of(path) in ("jsonl", "parquet")

    def named_tags(self, path: str) -> tuple[str, ...]:
        """Returns the tags that the schema of a Parquet file names; () for none."""
        if self.format_of(path) != "parquet":
            return ()
        columns = row_files.columns_of(path)
        name = self._tag_field(columns)
        return tuple(map(label_names.cleaned, columns[name].classes)
                     ) if name in columns else ()

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

        Raises:
          InputError: with file and line, if something is wrong.
        """
        kind = self.format_of(path)
        notes: list[str] = []
        if self.of_objects(path):
            sentences = list(self._read_objects(
                path, self._rows(path, tagged) if kind == "parquet" else
                tables.read_rows(path, "jsonl"), scheme, tagged, notes))
        elif kind == "conllu":
            sentences = list(_read_conllu(path, self.tag_column, tagged))
        else:
            sentences = list(self._read_conll(path, tagged, notes))
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

    def _read_conll(self, path: str, tagged: Optional[bool], notes: list[str]
                    ) -> Iterator[Sentence]:
        rows = [*tables.text_lines(path), (0, "")]
        # A line that begins with # may be a comment; it does not give the columns.
        of_words = [row for row in rows if not _is_blank(row[1])
                    and not row[1].startswith(_DOCUMENT)]
        first, line = next((row for row in of_words if not row[1].startswith("#")),
                           of_words[0] if of_words else (0, ""))
        tabs = "\t" in line
        width = len(_cells(line, tabs))
        column = self._tag_column(path, first, width, tagged) if of_words else None
        lines, between, comments, numbers = [], [], [], []
        for number, line in rows:
            blank = _is_blank(line)
            if blank or line.startswith(_DOCUMENT):
                if lines:
                    yield self._sentence(path, between, lines, column, comments)
                    between, lines, comments = [], [], []
                between.append(Line(() if blank else tuple(line.split()),
                                    None if blank else "O"))
                continue
            cells = _cells(line, tabs)
            if not lines and (_COMMENT.match(line) or len(cells) != width
                              and re.match(r"#\s+\S", line)
                              and not is_marked(cells[-1])):
                comments.append(line)
                numbers.append(number)
                continue
            if len(cells) != width:
                raise InputError(
                    f"{path}, line {number}: the line has {len(cells)} columns, but "
                    f"line {first} has {width}. A line must have a word and its tags, "
                    f"separated by {'tabs' if tabs else 'blanks'}; a blank line ends a "
                    "sentence.")
            if not cells[self.word_column]:
                raise InputError(
                    f"{path}, line {number}: the word (column {self.word_column}) is "
                    "missing; correct the line, or leave it empty to end the sentence.")
            if column is not None and not cells[column].strip():
                raise InputError(f"{path}, line {number}: the tag (column {column}) is "
                                 "missing; words outside entities have the tag O.")
            lines.append((number, cells))
        notes += tables.line_note(path, numbers, "begin with # and are comments")

    def _tag_column(self, path: str, number: int, width: int, tagged: Optional[bool]
                    ) -> Optional[int]:
        """Returns the column of the tags, None for none. Raises InputError if the table
        does not have the columns; `number` is its first line."""
        column = None
        if tagged or tagged is None and width > 1:
            column = _number(self.tag_column or "-1")
            if column is None:
                raise InputError(
                    f"--tag_column={self.tag_column} is not a number, which {path} "
                    "needs; count columns from 0, or from -1 backwards (names are for "
                    "CoNLL-U).")
        for place, flag in ((self.word_column, "word_column"), (column, "tag_column")):
            if place is not None and not -width <= place < width:
                raise InputError(f"{path}, line {number}: the line has {width} "
                                 f"columns, but --{flag} is {place}; correct the flag "
                                 "or the file.")
        if column is not None and column % width == self.word_column % width:
            raise InputError(
                f"{path}, line {number}: there are no tags, because column {column} "
                "has the words. A line must have a word and its tag, separated by a tab "
                "or blanks.")
        return column

    def _sentence(self, path, between, lines, column, comments) -> Sentence:
        words = [cells[self.word_column] for _, cells in lines]
        if self.strip_numbers:
            words = [match[1] if (match := _NUMBERED.fullmatch(word)) else word
                     for word in words]
        tags = None
        if column is not None:
            tags = tuple(cells[column].strip() for _, cells in lines)
        text, spans = joined(words, "" if self.split == "characters" else " ")
        # conlleval expects the true tag in the last column but one.
        again = tags and column % len(lines[0][1]) != len(lines[0][1]) - 1
        rows = [Line((*cells, cells[column]) if again else cells, i)
                for i, (_, cells) in enumerate(lines)]
        width = len(rows[0].cells)
        between = [Line((*row.cells, *["O"] * (width - len(row.cells))), row.adds)
                   if row.cells else row for row in between]
        return Sentence(tuple(words), tags, text, spans, (*between, *rows),
                        tuple(number for number, _ in lines), path,
                        {"comments": comments} if comments else {})

    # ---- JSON lines and Parquet

    def _rows(self, path: str, tagged: Optional[bool]) -> Iterator[tables.Row]:
        """Yields the rows of a Parquet file, with the columns that are read and those
        of texts and numbers, which predictions repeat."""
        columns = row_files.columns_of(path)
        words = next((name for name in (*_WORDS, "text") if name in columns), None)
        tags = self._tag_field(columns)
        if words is None:
            raise InputError(
                f"{path}: there is no column 'tokens', 'words' or 'text'; the file has "
                f"{', '.join(map(repr, columns))}.")
        if tagged and self.tag_column and self.tag_column not in columns:
            raise InputError(
                f"--tag_column={self.tag_column} is not a column of {path}; give one of "
                f"{', '.join(columns)}.")
        if tagged and tags not in columns and "entities" not in columns:
            raise InputError(
                f"{path}: there is no column 'ner_tags', 'tags' or 'entities'; the file "
                f"has {', '.join(map(repr, columns))}. Name the column of the tags with "
                "--tag_column.")
        return tables.read_rows(path, "parquet", columns=[
            name for name, column in columns.items()
            if column.is_simple or name in (words, tags, "text", "entities")])

    def _read_objects(self, path: str, rows: Iterator[tables.Row], scheme: str,
                      tagged: Optional[bool], notes: list[str]) -> Iterator[Sentence]:
        widened: list[int] = []
        empty: list[int] = []
        is_parquet = self.format_of(path) == "parquet"
        if tagged and scheme == "none":
            scheme = "iob2"
        for row in rows:
            if row.cells == []:
                continue
            fields = dict(row.cells)
            tag_field = self._tag_field(fields)
            words_field = _WORDS[0]
            if words_field not in fields and (is_parquet or "text" not in fields):
                words_field = _WORDS[1]
            text, words = fields.pop("text", None), fields.pop(words_field, None)
            tags, objects = fields.pop(tag_field, None), fields.pop("entities", None)
            if is_parquet and words == []:
                empty.append(row.number)
                continue
            if words is not None:
                words = _strings(words, words_field, row.where)
                text, spans = _placed(words, text, self.split)
            else:
                if not isinstance(text, str):
                    raise InputError(f"{row.where}: there is no 'text'; "
                                     f"{_advice(path)}.")
                words, spans = of_text(text, self.split)
            if not words:
                raise InputError(f"{row.where}: there is no word in the text; remove "
                                 f"the {row_files.unit(path)}.")
            if tagged is False:
                tags = None
            elif objects is not None:
                placed = _entities(objects, text, row.where)
                inner = [_words_of(entity, spans, row.where) for entity in placed]
                widened += [row.number for entity, (first, end) in zip(placed, inner)
                            if (spans[first][0], spans[end - 1][1]) != entity[:2]]
                for before, after in zip(inner, inner[1:]):
                    if after[0] < before[1]:
                        raise InputError(
                            f"{row.where}: two entities share the word "
                            f"'{words[after[0]]}', but a word has only one tag; remove "
                            "one of them.")
                tags = as_tags([Entity(*place, entity.type)
                                for place, entity in zip(inner, placed)],
                               len(words), scheme)
            elif tags is not None:
                tags = _strings(self._named(tags, tag_field, row.where), tag_field,
                                row.where)
                if len(tags) != len(words):
                    raise InputError(f"{row.where}: words and tags differ in number "
                                     f"({len(words)} and {len(tags)}); each word needs "
                                     "a tag.")
            elif tagged:
                raise InputError(f"{row.where}: there are neither 'entities' nor "
                                 f"'{tag_field}'; {_advice(path)}.")
            yield Sentence(
                tuple(words), None if tags is None else tuple(tags), text, spans,
                (*(Line((word, *([] if tags is None else [tags[i]])), i)
                   for i, word in enumerate(words)), Line((), None)),
                (row.number,) * len(words), path, fields)
        notes += tables.line_note(path, empty, "without a word are left out")
        notes += tables.line_note(
            path, widened, "have entities that begin or end inside a word, and are "
            "extended to the whole word; with --split_words=characters, each character "
            "is a word")

    def _named(self, tags: Any, field: str, where: str) -> Any:
        """Returns tags with the names of those that are numbers."""
        if not isinstance(tags, list) or not any(type(tag) is int for tag in tags):
            return tags
        if not self.names:
            raise InputError(
                f"{where}: '{field}' holds numbers, which have no names in the file; "
                "give --labels, the tags in the order of these numbers, from 0.")
        wrong = next((tag for tag in tags if type(tag) is not int or not (
            0 <= tag < len(self.names))), None)
        if wrong is not None:
            raise InputError(f"{where}: '{field}' holds {wrong!r:.40}, but --labels "
                             f"names the numbers 0 to {len(self.names) - 1}.")
        return [self.names[tag] for tag in tags]


def _is_blank(line: str) -> bool:
    return not line.strip(" \t\r\f\v")


def _cells(line: str, tabs: bool) -> tuple[str, ...]:
    return tuple(cell.strip(" ") or cell for cell in (
        line.split("\t") if tabs else re.split(" +", line.strip(" "))))


def _number(text: str) -> Optional[int]:
    return int(text) if re.fullmatch("-?[0-9]{1,9}", text) else None


# ---- CoNLL-U ---------------------------------------------------------------


def _read_conllu(path: str, column: str, tagged: Optional[bool]) -> Iterator[Sentence]:
    """Yields the sentences of a CoNLL-U file. Words are the syntactic ones: if "don't"
    has the ID 1-2, its words are 1 and 2. Empty nodes, such as 8.1, are not words."""
    names, lines = CONLLU, []
    for number, line in [*tables.text_lines(path), (0, "")]:
        if line.startswith(GLOBAL_COLUMNS):
            names = line[len(GLOBAL_COLUMNS):].split()
            if names[:2] != CONLLU[:2]:
                raise InputError(f"{path}, line {number}: the columns {' '.join(names)}"
                                 " do not begin with ID and FORM; correct the line.")
        if line.strip():
            lines.append((number, line))
            continue
        if any(not line.startswith("#") for _, line in lines):
            place = _column(path, column or "UPOS", names)
            yield _conllu_sentence(path, lines, names, place, tagged is not False)
            lines = []


def _column(path: str, column: str, names: Sequence[str]) -> int:
    known = {name.upper(): i for i, name in enumerate(names)}
    if column.upper() in known:
        return known[column.upper()]
    place = _number(column)
    if place is not None and -len(names) <= place < len(names):
        return place
    raise InputError(f"--tag_column={column} is not a column of {path}; give one of "
                     f"{', '.join(names)}.")


def _conllu_sentence(path: str, lines: list[tuple[int, str]], names: Sequence[str],
                     column: int, tagged: bool) -> Sentence:
    misc = names.index("MISC") if "MISC" in names else None
    rows, words, tags, numbers = [], [], [], []
    # The tokens of the text, the number of words of each, and the space after it.
    surface: list[tuple[str, int, str]] = []
    last_of_token = 0
    for number, line in lines:
        if line.startswith("#"):
            if line.startswith(GLOBAL_COLUMNS):
                line = f"{line.rstrip()} {PREDICTION}"
            rows.append(Line((line,), None))
            continue
        cells, where = tuple(line.split("\t")), f"{path}, line {number}"
        if len(cells) != len(names):
            raise InputError(f"{where}: the line has {len(cells)} columns, but CoNLL-U "
                             f"has {len(names)} ({' '.join(names)}), separated by "
                             "tabs.")
        match = re.fullmatch(r"([0-9]{1,9})(?:([-.])([0-9]{1,9}))?", cells[0])
        if match is None:
            raise InputError(f"{where}: the ID '{cells[0]}' is not that of a word (1), "
                             "a token of several words (1-2) or an empty node (1.1).")
        space = "" if misc is not None and "SpaceAfter=No" in cells[misc].split(
            "|") else " "
        if match[2]:
            rows.append(Line(cells, "_"))
            if match[2] == "-":
                first, last_of_token = int(match[1]), int(match[3])
                if first != len(words) + 1 or last_of_token < first:
                    raise InputError(f"{where}: the token {cells[0]} does not begin "
                                     f"with the next word, {len(words) + 1}.")
                surface.append((cells[1], last_of_token - first + 1, space))
            continue
        if int(match[1]) != len(words) + 1:
            raise InputError(
                f"{where}: the ID is {cells[0]}, but {len(words) + 1} is next; IDs "
                "count from 1, and a blank line ends a sentence.")
        if not cells[1]:
            raise InputError(f"{where}: the word (FORM) is missing; fill it in.")
        if len(words) >= last_of_token:
            surface.append((cells[1], 1, space))
        rows.append(Line(cells, len(words)))
        words.append(cells[1])
        tags.append(cells[column])
        numbers.append(number)
    if len(words) < max(last_of_token, 1):
        raise InputError(f"{path}, line {lines[-1][0]}: the sentence ends without word "
                         f"{len(words) + 1}; add it.")
    text, spans = "", []
    for form, count, space in surface:
        parts = words[len(spans):len(spans) + count]
        start = len(text)
        if "".join(parts) == form:
            spans += [(start + first, start + end)
                      for first, end in joined(parts, "")[1]]
        else:  # Both words, "de" and "le", are at the place of French "du".
            spans += [(start, start + len(form))] * count
        text += form + space
    return Sentence(tuple(words), tuple(tags) if tagged else None, text.rstrip(" "),
                    tuple(spans), (*rows, Line((), None)), tuple(numbers), path)


# ---- JSON lines and Parquet ------------------------------------------------


def _advice(path: str) -> str:
    return ("a row needs text and entities, or tokens and tags"
            if row_files.is_row_file(path) else _ADVICE)


def of_text(text: str, split: str) -> tuple[list[str], tuple[tuple[int, int], ...]]:
    """Splits a text; returns its words, and the begin and end of each in the text."""
    spans = tuple(split_words(text, split))
    return [text[start:end] for start, end in spans], spans


def _strings(value: Any, name: str, where: str) -> list[str]:
    if not isinstance(value, list) or not all(map(_fits_a_column, value)):
        raise InputError(f"{where}: '{name}' is not a list of texts; they must not be "
                         "empty, and must contain neither tab nor line end.")
    return value


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


def _entities(found: Any, text: str, where: str) -> list[Entity]:
    """Returns the entities of a JSON object, with their characters, in text order."""
    if not isinstance(found, list):
        raise InputError(f"{where}: 'entities' is not a list; give start, end and type "
                         "of each.")
    placed = []
    for value in found:
        if isinstance(value, dict):
            start, end = value.get("start"), value.get("end")
            kind = value.get("type", value.get("label"))
        else:
            start, end, kind = value if isinstance(value, list) and len(
                value) == 3 else (None, None, None)
        shown = json.dumps(value, ensure_ascii=False)[:60]
        if type(start) is not int or type(end) is not int or not _fits_a_column(kind):
            raise InputError(f"{where}: the entity {shown} lacks start and end, which "
                             "are numbers of characters, or type; add them.")
        if not 0 <= start < end <= len(text) or not text[start:end].strip():
            raise InputError(
                f"{where}: the entity {shown} is not in the text of {len(text)} "
                "characters; start counts from 0, and end is one more than the last "
                "character.")
        named = value.get("text", text[start:end]) if isinstance(value, dict) else None
        if named is not None and named != text[start:end]:
            raise InputError(
                f"{where}: the entity {shown} is '{text[start:end]}' in the text; "
                "offsets count characters (code points), not bytes.")
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
