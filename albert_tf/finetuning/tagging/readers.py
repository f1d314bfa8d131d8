"""Reading files of tagged words: CoNLL's columns, CoNLL-U, JSON lines, Parquet.

    EU  NNP  B-ORG            {"text": "EU rejects German call",
    rejects  VBZ  O            "entities": [{"start": 0, "end": 2, "type": "ORG"}]}

Parquet stands for Arrow files, too. Their columns are the fields of JSON lines, or
`tokens` and `ner_tags`, as the library `datasets` has them.
"""

import collections
import dataclasses
import functools
import itertools
import re
from typing import Any, Iterator, NamedTuple, Optional, Sequence

from albert_tf import text_files
from albert_tf.checkpoints import labels as label_names
from albert_tf.errors import InputError
from albert_tf.finetuning.tagging.scoring import Entity, as_tags, parse
from albert_tf.options import option
from albert_tf.rows import (
    columns_of, is_empty, kind_of, number_of, rows, typed)
from albert_tf.tokenization import cleaning

FORMATS = ("conll", "conllu", "jsonl", "parquet")
# The beginning of CoNLL-U Plus, and the columns of CoNLL-U.
_GLOBAL_COLUMNS = "# global.columns ="
_CONLLU = "ID FORM LEMMA UPOS XPOS FEATS HEAD DEPREL DEPS MISC".split()
_PREDICTION = "ALBERT:TAG"
_DOCUMENT = "-DOCSTART-"
# Lines that are comments even if they have as many columns as the words.
_COMMENT = re.compile(r"#\s*(?:[\w.:-]+\s+=\s|id\s+\S+\s+domain=|"
                      r"(?:begin|end) document\b)")
# A character of a segmented word, and its number within the word: 科0 技1.
_NUMBERED = re.compile(r"(.\D*?)[0-9]+", re.DOTALL)

# What a note says of lines → their numbers.
Found = dict[str, list[int]]
Spans = Sequence[tuple[int, int]]


class Sentence(NamedTuple):
    """A sentence of words with tags."""

    words: tuple[str, ...]
    tags: Optional[tuple[str, ...]]  # None if they are unknown.
    text: str
    spans: Spans  # The begin and end of each word in the text.
    numbers: tuple[int, ...]  # The line or row of each word in the file, from 1.
    path: str
    # The cells of each line in a file of columns, from the end of the sentence before,
    # and which word it has: a column of predictions is added there.
    lines: tuple[tuple[tuple[str, ...], Optional[int]], ...] = ()
    fields: dict[str, Any] = {}  # The other fields of an object of JSON lines or of a row.

    def where(self, word: int = 0) -> str:
        """Returns file and line or row of a word, for messages."""
        line = "row" if kind_of(self.path, "text") == "parquet" else "line"
        return f"{self.path}, {line} {self.numbers[word]}"


class Tagged(NamedTuple):
    """A model's answer for a sentence: a tag for each word, and its probability."""

    tags: list[str]
    scores: list[float]


@dataclasses.dataclass(frozen=True)
class Reading:
    """The options of reading files."""

    data_format: str = option(
        "auto", "Format of the files; auto: given by the extension (.conllu, .jsonl, "
        ".json, .parquet, .arrow), else CoNLL's columns.", choices=["auto", *FORMATS])
    tag_column: str = option(
        "", "Column of the tag: in CoNLL's columns a number, from 0 or from -1 backwards "
        "(default: the last); in CoNLL-U its name (default: UPOS), as in JSON lines "
        "(default: tags) and Parquet (default: tags or ner_tags).", kept=True)
    word_column: int = option(
        0, "CoNLL's columns: number of the word's column, from 0.", least=-2 ** 31,
        kept=True)
    split_words: str = option(
        "auto", "How to split the text of JSON lines, and the text of later requests, "
        "into words: at white space; also at punctuation and between Chinese characters; "
        "or into single characters. auto: characters if each word in --train_file is one "
        "character, else punctuation.", choices=["auto", *cleaning.WORD_SPLITS],
        kept=True)
    strip_numbers: bool = option(
        False, "Remove the segmentation number at the end of each word in columns, as in "
        "Weibo (\u79d10 \u62801).", kept=True)
    # The tags of numbers that have no names in the file (JSON lines, Parquet).
    names: tuple[str, ...] = ()

    def format_of(self, path: str) -> str:
        """Returns the format of a file, one of FORMATS."""
        if self.data_format != "auto":
            return self.data_format
        is_conllu = re.search(r"\.conllup?(\.\w+)?$", path.lower())
        kind = "conllu" if is_conllu else kind_of(path, "conll")
        return kind if kind in FORMATS else "conll"

    def named_tags(self, path: str) -> tuple[str, ...]:
        """Returns the tags that the schema of a Parquet file names; () for none."""
        if self.format_of(path) != "parquet":
            return ()
        columns = columns_of(path)
        return tuple(map(label_names.cleaned, columns.get(self._tag_field(columns, True), ())))

    def read(self, path: str, scheme: str = "iob2", tagged: Optional[bool] = True
             ) -> tuple[list[Sentence], Found]:
        """Reads the sentences of a file; returns them and what to note of its lines.
        Entities of JSON lines become tags of the scheme. `tagged` says whether there are
        tags; None: if the file has a column or field for them."""
        found: Found = collections.defaultdict(list)
        kind = self.format_of(path)
        sentences = [*(self._objects(path, kind == "parquet", scheme, tagged, found)
                       if kind in ("jsonl", "parquet") else
                       self._columns(path, kind == "conllu", tagged, found))]
        if not sentences:
            raise InputError(f"{path}: there is no word in this file; check the path "
                             "and the format.")
        return sentences, found

    def sentence(self, text: str, path: str = "text", number: int = 1) -> Sentence:
        """Splits a text into words as split_words says; there may be none."""
        spans = () if is_empty(text) else tuple(cleaning.split_words(
            text, "punctuation" if self.split_words == "auto" else self.split_words))
        return Sentence(tuple(text[start:end] for start, end in spans), None, text, spans,
                        (number,) * len(spans), path)

    # ---- columns

    def _columns(self, path: str, is_conllu: bool, tagged: Optional[bool], found: Found
                 ) -> Iterator[Sentence]:
        """Yields the sentences of a file of columns. In CoNLL-U, words are the
        syntactic ones: if "don't" has the ID 1-2, its words are 1 and 2. Empty nodes,
        such as 8.1, are not words."""
        def ends(line: str) -> bool:
            return not line.strip(" \t\r\f\v") or (
                not is_conllu and line.startswith(_DOCUMENT))

        all_lines = [*text_files.read_lines(path, cleaned=False)]
        of_words = [each for each in all_lines if not ends(each[1])]
        if not of_words:
            return
        tabs, width, word, column = self._layout(path, is_conllu, of_words, tagged)
        # conlleval expects the true tag in the last column but one.
        again = not is_conllu and column not in (None, width - 1)
        lines, comments, words = [], [], []  # words: each with its tag and line
        for number, line in [*all_lines, (0, "")]:  # An end follows the last sentence.
            cells = _cells(line, tabs)
            if ends(line):
                if words:
                    forms, tags, numbers = zip(*words)
                    yield Sentence(
                        forms, None if column is None else tags, *self._placed(forms),
                        numbers, path, tuple(lines),
                        {"comments": comments} if comments else {})
                    lines, comments, words = [], [], []
                cells = tuple(line.split())
                lines.append((cells and (
                    *cells, *["O"] * (width + again + 1 - len(cells))), None))
            elif is_conllu and line.startswith("#"):
                lines.append(((f"{line.rstrip()} {_PREDICTION}" if line.startswith(
                    _GLOBAL_COLUMNS) else line,), None))
            elif not is_conllu and not words and (
                    _COMMENT.match(line) or len(cells) != width
                    and re.match(r"#\s+\S", line) and not any(parse(cells[-1]))):
                comments.append(line)
                found["begin with # and are comments"].append(number)
            elif len(cells) != width:
                raise InputError(
                    f"{path}, line {number}: the line has {len(cells)} columns, but "
                    f"the file has {width}. Columns are separated by "
                    f"{'tabs' if tabs else 'blanks'}; a blank line ends a sentence.")
            elif is_conllu and re.search("[-.]", cells[0]):
                lines.append(((*cells, "_"), None))
            else:
                tag = "" if column is None else _cleaned(cells[column])
                # A blank may be a word, between tabs.
                if not cells[word] or column is not None and not tag:
                    raise InputError(
                        f"{path}, line {number}: the word or its tag is missing; "
                        "words outside entities have the tag O.")
                lines.append(((*cells, *[tag] * again), len(words)))
                is_numbered = self.strip_numbers and _NUMBERED.fullmatch(cells[word])
                words.append((is_numbered[1] if is_numbered else cells[word], tag, number))

    def _layout(self, path: str, is_conllu: bool, lines: Sequence[tuple[int, str]],
                tagged: Optional[bool]) -> tuple[bool, int, int, Optional[int]]:
        """Returns whether tabs separate columns, the number of columns, and the places
        of word and tag (None: without tags)."""
        # A line that begins with # may be a comment; it does not give the columns.
        number, line = next((each for each in lines if is_conllu
                             or not each[1].startswith("#")), lines[0])
        tabs = is_conllu or "\t" in line
        word, tag = ("1", "UPOS") if is_conllu else (str(self.word_column), "-1")
        names = [""] * len(_cells(line, tabs)) if not is_conllu else (
            line.removeprefix(_GLOBAL_COLUMNS).split()
            if line.startswith(_GLOBAL_COLUMNS) else _CONLLU)
        width = len(names)
        known = {str(place): place % width for place in range(-width, width)} | {
            name.upper(): place for place, name in enumerate(names)}
        places = []
        for flag, value in ("word", word), ("tag", self.tag_column or tag):
            if flag == "tag" and not tagged and (tagged is not None or width == 1):
                return tabs, width, *places, None
            if value.upper() not in known:
                raise InputError(
                    f"--{flag}_column={value} is not a column of {path}, which has "
                    f"{width} columns {' '.join(names)}".strip()
                    + "; count from 0, or from -1 backwards.")
            places.append(known[value.upper()])
        if places[0] == places[1]:
            raise InputError(
                f"{path}, line {number}: there are no tags, because column {places[1]} has "
                "the words. A line must have a word and its tag, separated by a tab or "
                "blanks.")
        return tabs, width, *places

    # ---- JSON lines and Parquet

    def _objects(self, path: str, is_parquet: bool, scheme: str, tagged: Optional[bool],
                 found: Found) -> Iterator[Sentence]:
        for where, row in rows(path, kind="parquet" if is_parquet else "jsonl"):
            number, field, tags = number_of(where), self._tag_field(row, is_parquet), None
            # Beside a text, JSON may have tokens of a different tokenizer.
            given = "tokens" if row.get("words") is None and (
                is_parquet or "text" not in row) else "words"
            if row.get(given) is not None:
                words = tuple(typed(row, where, **{given: [str]})[given])
                sentence = Sentence(words, None, *self._placed(words, row.get("text")),
                                    (number,) * len(words), path)
            else:
                sentence = self.sentence(typed(row, where, text=str)["text"], path, number)
            if not sentence.words and is_parquet:
                found["without a word are left out"].append(number)
                continue
            if not sentence.words:
                raise InputError(f"{where}: there is no word in the text; remove the "
                                 "line.")
            if tagged is not False and row.get("entities") is not None:
                spanned, is_widened = _entities(row, sentence, where)
                tags = as_tags(spanned, len(sentence.words), scheme)
                if is_widened:
                    found["have entities that begin or end inside a word, and are "
                          "extended to the whole word; with --split_words=characters, "
                          "each character is a word"].append(number)
            elif tagged is not False and row.get(field) is not None:
                tags = typed(row, where, **{field: [(str, int)]})[field]
                # --labels name tags that are numbers.
                wrong = [tag for tag in tags if isinstance(tag, int)
                         and not 0 <= tag < len(self.names)]
                if wrong:
                    raise InputError(
                        f"{where}: '{field}' holds {wrong[0]}, but --labels names "
                        f"{len(self.names)} tags; give them in the order of their "
                        "numbers, from 0.")
                tags = [tag if isinstance(tag, str) else self.names[tag] for tag in tags]
                if len(tags) != len(sentence.words):
                    raise InputError(f"{where}: words and tags differ in number "
                                     f"({len(sentence.words)} and {len(tags)}); each "
                                     "word needs a tag.")
            elif tagged:
                raise InputError(
                    f"{where}: there are neither 'entities' nor '{field}'; give text and "
                    "entities, or words and tags, and name the field of the tags with "
                    "--tag_column.")
            tags = tags and tuple(map(_cleaned, tags))
            if not all(each and not re.search(r"[\t\n\r]", each)
                       for each in itertools.chain(sentence.words, tags or ())):
                raise InputError(f"{where}: a word or tag is empty, or has a tab or line "
                                 "end; correct it.")
            # Predictions repeat further fields, but not all that Parquet may hold.
            yield sentence._replace(tags=tags or None, fields={
                name: value for name, value in row.items()
                if name not in ("text", given, field, "entities")
                and (not is_parquet or isinstance(value, str | int | float | None))})

    def _tag_field(self, fields: Any, is_parquet: bool) -> str:
        """Returns the field of the tags. That of JSON lines may be another one than
        --tag_column, which then is for files in columns."""
        names = [self.tag_column] if self.tag_column else []
        if not (is_parquet and names):
            names += ["tags", "ner_tags"]
        return next((name for name in names if name in fields), names[0])

    def _placed(self, words: Sequence[str], text: Any = "") -> tuple[str, Spans]:
        """Returns the text, and the begin and end of each word in it. A text that does
        not contain the words in order is replaced by the words."""
        spans: list[tuple[int, int]] = []
        for word in words:
            start = text.find(word, spans[-1][1] if spans else 0) if (
                isinstance(text, str)) else -1
            if start < 0:
                return self._placed(
                    words, ("" if self.split_words == "characters" else " ").join(words))
            spans.append((start, start + len(word)))
        return text, tuple(spans)


_cleaned = functools.cache(label_names.cleaned)


def _cells(line: str, tabs: bool) -> tuple[str, ...]:
    return tuple(cell.strip(" ") or cell for cell in (
        line.split("\t") if tabs else re.split(" +", line.strip(" "))))


def _entities(row: dict[str, Any], sentence: Sentence, where: str
              ) -> tuple[list[Entity], bool]:
    """Returns the entities of an object in the order of the text, and whether one of
    them begins or ends inside a word."""
    result, is_widened = [], False
    for value in typed(row, where, entities=[(dict, list)])["entities"]:
        here = f"{where}, the entity {value!r:.60}"
        if isinstance(value, list):
            value = dict(zip(("start", "end", "type"), value)) if len(value) == 3 else {}
        kind = value.get("type", value.get("label"))
        typed({**value, "type": kind}, here, start=int, end=int, type=str)
        start, end = value["start"], value["end"]
        inside = [place for place, (first, last) in enumerate(sentence.spans)
                  if first < end and start < last]
        if not 0 <= start < end <= len(sentence.text) or not inside:
            raise InputError(
                f"{here} has no word in the text of {len(sentence.text)} characters; "
                "start counts from 0, and end is one more than the last character.")
        if value.get("text") not in (None, sentence.text[start:end]):
            raise InputError(
                f"{here} is '{sentence.text[start:end]}' in the text; offsets count "
                "characters (code points), not bytes.")
        result.append(Entity(inside[0], inside[-1] + 1, kind))
        is_widened |= (start, end) != (
            sentence.spans[inside[0]][0], sentence.spans[inside[-1]][1])
    result.sort()
    for before, after in itertools.pairwise(result):
        if after.start < before.end:
            raise InputError(f"{where}: two entities share the word "
                             f"'{sentence.words[after.start]}'; remove one of them.")
    return result, is_widened


def with_tags(sentences: Sequence[Sentence], predicted: Sequence[Sequence[str]],
              is_conllu: bool) -> str:
    """Returns the lines of sentences with the predicted tag as the last column, separated
    by blanks, for conlleval, or by tabs in CoNLL-U, and if a cell has a blank."""
    lines: list[Sequence[str]] = []
    for sentence, tags in zip(sentences, predicted):
        lines += [cells if word is None else (*cells, tags[word])
                  for cells, word in sentence.lines] or [
            *zip(*filter(None, (sentence.words, sentence.tags, tags))), ()]
    tabs = is_conllu or any(re.search(r"[ \t]", cell) for line in lines for cell in line)
    text = "\n".join(map("\t".join if tabs else " ".join, lines)).rstrip("\n") + "\n\n"
    if is_conllu and not text.startswith(_GLOBAL_COLUMNS):
        text = f"{_GLOBAL_COLUMNS} {' '.join([*_CONLLU, _PREDICTION])}\n{text}"
    return text
