"""Reads documents: plain text, wikiextractor output, JSON lines and Parquet.

    for document in read_documents(["wiki.jsonl.gz"], Layout(), Counter()):
        document.name, document.paragraphs     # "wiki.jsonl.gz, line 1", [...]

Files are read as streams and may be compressed (.gz, .bz2, .xz, .zst). Memory holds one
document at a time, or a part of a file for Parquet and Arrow.
"""

import collections
import dataclasses
import html
import itertools
import re
from typing import Any, Callable, Iterable, Iterator, NamedTuple

from albert_tf import files, row_files, text_files
from albert_tf.errors import InputError
from albert_tf.options import option
from albert_tf.rows import is_empty
from albert_tf.text.sentences import SPACELESS

FORMATS = ("auto", "text", "wikiextractor", "jsonl", "parquet")
# A document is held in memory; a longer one is a corpus that is read as one document.
MAX_DOCUMENT_CHARS = 100_000_000

Line = tuple[int, str]


class Document(NamedTuple):
    """A text in paragraphs, and its origin ("file, line 12")."""

    name: str
    paragraphs: list[str]
    source: str = ""  # such as its language, for sampling
    markup: bool = False  # whether paragraphs are lines for without_markup


@dataclasses.dataclass(frozen=True)
class Layout:
    """The layout of files; the fields are flags of prepare_corpus.py."""

    input_format: str = option(
        "auto", "Format of the input files. auto: text, wikiextractor, jsonl or parquet, "
        "detected from the name and first line of each file; parquet: also Arrow files, "
        "each row is a document; python: no --input_file; takes the documentation of the "
        "running Python and of the packages installed in it, and drops repeated sentences "
        "(--deduplicate=sentences).", choices=(*FORMATS, "python"))
    json_field: str = option(
        "text", "Name of the field, or column, with the text (JSON lines and Parquet "
        "only).")
    document_separator: str = option(
        "file", "What separates documents (plain text only). file: every file is a "
        "document, such as a book or an article; blank_line: every block of lines is a "
        "document.", choices=("file", "blank_line"))
    line_breaks: str = option(
        "keep", "What a single line break means (plain text, JSON, Parquet). keep: a new "
        "paragraph; join: nothing, because the lines are wrapped to the width of a page.",
        choices=("keep", "join"))
    keep_titles: bool = option(
        False, "Keep the title that is the first line of an article (wikiextractor only).")


def read_documents(
        paths: Iterable[str], layout: Layout, counts: collections.Counter,
        on_bytes: Callable[[int], None] = lambda count: None) -> Iterator[Document]:
    """Yields the documents in files, in order, including those without text.

    `counts` counts the "title lines" that were removed. For `on_bytes` see
    text_files.read_lines.
    """
    for path in paths:
        kind = layout.input_format
        if kind == "auto":
            kind = _format_of(path)
        if kind == "parquet":
            for number, row in row_files.read_rows(
                    path, [layout.json_field], (), "choose one with --json_field"):
                yield _document(f"{path}, row {number}", row, layout)
            on_bytes(files.size(path))
            continue
        lines = text_files.read_lines(path, on_bytes, True)
        if kind == "wikiextractor":
            yield from _wikiextractor(path, lines, layout, counts)
        elif kind == "jsonl":
            for number, line in lines:
                if line.strip():
                    value = text_files.parse_json(
                        line.strip(), path, "each line must hold one JSON object",
                        number, cleaned=True)
                    yield _document(f"{path}, line {number}", value, layout)
        else:
            yield from _plain_text(path, lines, layout)


def _format_of(path: str) -> str:
    """Detects the format of a file from its name or its first line that is not blank.
    """
    if row_files.is_row_file(path):
        return "parquet"
    first = next(filter(None, (
        line.strip() for _, line in text_files.read_lines(path))), "")
    if first.startswith("<doc "):
        return "wikiextractor"
    return "jsonl" if re.match(r'\{(\s*"|$)', first) or re.search(
        r"\.(jsonl?|ndjson)(\.(gz|bz2|xz|zst))?$", path) else "text"


def _plain_text(path: str, lines: Iterator[Line], layout: Layout) -> Iterator[Document]:
    per_file = layout.document_separator == "file"
    for is_blank, block in [(False, lines)] if per_file else itertools.groupby(
            lines, lambda line: is_empty(line[1])):
        if is_blank:
            continue
        number = size = 0
        held: list[str] = []
        for number, line in block:
            held.append(line)
            size += len(line)
            if size > MAX_DOCUMENT_CHARS:
                raise InputError(
                    f"{path}, line {number}: the document is longer than "
                    f"{MAX_DOCUMENT_CHARS:,} characters up to here; if blank lines separate "
                    "documents, give --document_separator=blank_line, else split the file.")
        yield Document(path if per_file else f"{path}, line {number - len(held) + 1}",
                       paragraphs_of(held, layout.line_breaks))


def _document(where: str, row: Any, layout: Layout) -> Document:
    """Returns the document in a field of a JSON object or of a row."""
    text = row.get(layout.json_field) if isinstance(row, dict) else None
    if not isinstance(text, str):
        names = ", ".join(map(repr, row)) if isinstance(row, dict) else "no fields"
        raise InputError(
            f"{where}: no text in '{layout.json_field}', but {names}; choose the field "
            "with --json_field, or give a different --input_format.")
    return Document(where, paragraphs_of(text.split("\n"), layout.line_breaks))


# Wiki and HTML tags that wikiextractor leaves in the text, escaped. Those in the second
# group occur within words (H<sub>2</sub>O).
_BLOCKS = (
    "br|hr|p|div|ref|references|poem|center|blockquote|gallery|section|onlyinclude|"
    "noinclude|includeonly|templatestyles|table|tr|td|th|li|ul|ol|dl|dd|dt|h[1-6]")
_IN_WORDS = (
    "sub|sup|span|small|big|b|i|u|s|em|strong|tt|code|var|cite|abbr|nowiki|font|math|"
    "chem|kbd|q|del|ins")
_ALONE = ("br", "hr", "li", "dd", "dt", "tr", "td", "th")  # need no end
# A name, then attributes or the end: neither "1<p and q>1" nor <p@example.org>.
_TAG = re.compile(
    rf"<(?P<close>/?)(?:(?P<block>{_BLOCKS})|(?P<name>{_IN_WORDS}))"
    r"(?P<more>(?:\s+[a-z][\w:.-]*\s*=\s*(?:\"[^\"]*\"|'[^']*'|[^\s\"'<>]+)"
    r"|\s+(?:nowrap|noshade|hidden|inline|compact|reversed))*\s*/?)>"
    r"|(?P<comment><!--.*?-->)", re.IGNORECASE | re.DOTALL)
# What remains of a "(template)" after the template was removed: "()", "(, )".
_EMPTY_PARENTHESES = re.compile(r"[^\S\n]?\((?:[^\S\n]|[,;:])*\)")


def without_markup(lines: Iterable[str], counts: collections.Counter) -> list[str]:
    """Returns lines of wikiextractor without tags, comments and empty parentheses, which
    `counts` counts.

    A tag of one letter, or right behind a word, may be another thing, as in a<b>c and
    List<code>; it is removed only if it is closed.
    """
    text = html.unescape("\n".join(lines))
    removed = set()
    closed: dict[str, int] = collections.Counter()  # ends that wait for their beginning
    for tag in reversed([*_TAG.finditer(text)]):
        name = (tag["block"] or tag["name"] or "").lower()
        before = text[tag.start() - 1:tag.start()]
        if tag["close"]:
            closed[name] += 1
        elif closed[name]:
            closed[name] -= 1
        elif tag["comment"] or '"' in tag["more"] or tag["more"] and len(name) > 1:
            pass  # There is no doubt.
        elif before.isalnum() and name not in _ALONE or (
                len(name) == 1 and not (name == "p" and before in ("", "\n"))):
            continue
        removed.add(tag.start())

    def replace(tag: re.Match) -> str:
        if tag.start() not in removed:
            return tag[0]
        counts["comments" if tag["comment"] else "tags"] += 1
        return " " if tag["block"] else ""

    text, empty = _EMPTY_PARENTHESES.subn("", _TAG.sub(replace, text))
    if empty:
        counts["empty parentheses"] += empty
    return text.split("\n")


def _wikiextractor(path: str, lines: Iterator[Line], layout: Layout,
                   counts: collections.Counter) -> Iterator[Document]:
    opened = 0
    paragraphs: list[str] = []
    for number, line in itertools.chain(lines, [(0, "<doc >")]):  # The end is checked.
        text = line.strip()
        if text.startswith("<doc "):
            if opened:
                raise InputError(f"{path}, line {opened}: this <doc> has no </doc>; "
                                 "extract the file again.")
            opened, paragraphs = number, []
            match = re.search(r'\btitle="(.*?)"\s*>', text)
            title = html.unescape(match[1]).strip() if match else ""
        elif text == "</doc>" and opened:
            yield Document(f"{path}, line {opened}", paragraphs, markup=True)
            opened = 0
        elif text and not opened:
            raise InputError(
                f"{path}, line {number}: text outside <doc> ... </doc>; if this is not "
                "wikiextractor's output, give --input_format=text.")
        elif text and not layout.keep_titles and not paragraphs and (
                html.unescape(text) == title):
            counts["title lines"] += 1
            title = ""
        elif text:
            paragraphs.append(text)


def paragraphs_of(lines: Iterable[str], line_breaks: str) -> list[str]:
    """Joins lines into paragraphs, which are separated by blank lines.

    Line ends other than "\\n" (a form feed, U+2028, the "\\r" in old files) separate
    lines too. With line_breaks "keep" each line is a paragraph. With "join" lines up to
    a blank one are one paragraph.
    """
    paragraphs: list[str] = []
    block: list[str] = []
    split = itertools.chain.from_iterable(s.splitlines() or [""] for s in lines)
    for line in map(str.strip, itertools.chain(split, [""])):
        if line:
            block.append(line)
        elif block:
            paragraphs += [_joined(block)] if line_breaks == "join" else block
            block = []
    return paragraphs


def _joined(block: list[str]) -> str:
    text = block[0]
    for line in block[1:]:
        spaceless = SPACELESS.match(text[-1]) and SPACELESS.match(line)
        # As in "first-\npast-the-post"; a word that was divided keeps its hyphen.
        hyphen = text[-1] == "-" and text[-2:-1].isalpha()
        text += line if spaceless or hyphen else f" {line}"
    return text
