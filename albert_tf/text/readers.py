"""Reads documents: plain text, wikiextractor output, JSON lines, Parquet and Arrow.

    for document in read_documents(["wiki.jsonl.gz"], Layout(), Counter()):
        document.paragraphs     # ["The mill grinds corn.", ...]

Files are read as streams and may be compressed (.gz, .bz2, .xz, .zst). Memory holds one
document at a time, or a part of a file for Parquet and Arrow.
"""

import collections
import dataclasses
import functools
import html
import itertools
import re
from typing import Callable, Iterable, Iterator, NamedTuple

from albert_tf import files, rows, text_files
from albert_tf.errors import InputError
from albert_tf.options import option
from albert_tf.text.languages import SPACELESS

# A document is held in memory; a longer one is a corpus that is read as one document.
MAX_DOCUMENT_CHARS = 100_000_000


class Document(NamedTuple):
    """A text in paragraphs."""

    paragraphs: list[str]
    source: str = ""  # such as its language, for sampling
    markup: bool = False  # whether paragraphs are lines for without_markup


def _read(*formats: str) -> str:
    return " ".join(f"input_format={each}" for each in ("auto", *formats))


@dataclasses.dataclass(frozen=True)
class Layout:
    """The layout of files; the fields are flags of prepare_corpus.py."""

    input_format: str = option(
        "auto", "Format of the input files. auto: text, wikiextractor, jsonl or parquet, "
        "detected from the name and first line of each file; parquet: also Arrow files, "
        "each row is a document.",
        choices=("auto", "text", "wikiextractor", "jsonl", "parquet"))
    json_field: str = option(
        "text", "Name of the field, or column, with the text (JSON lines and Parquet "
        "only).", needs=_read("jsonl", "parquet"))
    document_separator: str = option(
        "file", "What separates documents (plain text only). file: every file is a "
        "document, such as a book or an article; blank_line: every block of lines is a "
        "document.", choices=("file", "blank_line"), needs=_read("text"))
    line_breaks: str = option(
        "keep", "What a single line break means (plain text, JSON, Parquet). keep: a new "
        "paragraph; join: nothing, because the lines are wrapped to the width of a page.",
        choices=("keep", "join"), needs=_read("text", "jsonl", "parquet"))
    keep_titles: bool = option(
        False, "Keep the title that is the first line of an article (wikiextractor only).",
        needs=_read("wikiextractor"))


def read_documents(
        paths: Iterable[str], layout: Layout, counts: collections.Counter,
        on_bytes: Callable[[int], None] = lambda count: None) -> Iterator[Document]:
    """Yields the documents in files, in order, including those without text.

    `counts` counts the "title lines" that were removed. For `on_bytes` see
    text_files.read_lines.
    """
    for path in paths:
        kind, lines = layout.input_format, text_files.read_lines(path, on_bytes)
        if kind == "auto" and (kind := rows.kind_of(path, "auto")) not in (
                "jsonl", "parquet"):
            first = next((line.strip() for _, line in text_files.read_lines(path)
                          if line.strip()), "")
            kind = "wikiextractor" if first.startswith("<doc ") else (
                "jsonl" if re.match(rows.OBJECT, first) else "text")
        if kind == "text":
            yield from _plain_text(path, lines, layout)
        elif kind == "wikiextractor":
            yield from _wikiextractor(path, lines, layout, counts)
        else:
            field, advice = layout.json_field, (
                "choose the field with --json_field, or give another --input_format")
            for where, row in rows.rows(
                    path, [field], kind=kind, lines=lines, advice=advice):
                if not isinstance(row[field], str):
                    raise InputError(f"{where}: no text in '{field}'; {advice}.")
                yield Document(paragraphs_of(row[field].split("\n"), layout.line_breaks))
        if kind == "parquet":
            on_bytes(files.size(path))


def _plain_text(path: str, lines: rows.Lines, layout: Layout) -> Iterator[Document]:
    for block in [lines] if layout.document_separator == "file" else (
            block for is_blank, block in itertools.groupby(
                lines, lambda line: rows.is_empty(line[1])) if not is_blank):
        held: list[str] = []
        size = 0
        for number, line in block:
            held.append(line)
            size += len(line)
            if size > MAX_DOCUMENT_CHARS:
                raise InputError(
                    f"{path}, line {number}: the document is longer than "
                    f"{MAX_DOCUMENT_CHARS:,} characters up to here; if blank lines separate "
                    "documents, give --document_separator=blank_line, else split the file.")
        yield Document(paragraphs_of(held, layout.line_breaks))


# Wiki and HTML tags that wikiextractor leaves in the text, escaped: a name, of which the
# later ones occur within words (H<sub>2</sub>O), then attributes or the end: neither
# "1<p and q>1" nor <p@example.org>. Of one letter there is only p: the others, which may
# be variables, wikiextractor removes itself.
_TAG = re.compile(
    "<!--.*?-->|</?(?:(?P<block>br|hr|p|div|ref|references|poem|center|blockquote|gallery|"
    "section|onlyinclude|noinclude|includeonly|templatestyles|table|tr|td|th|li|ul|ol|dl|"
    "dd|dt|h[1-6])|sub|sup|span|small|big|em|strong|tt|code|var|cite|abbr|nowiki|font|"
    "math|chem|kbd|del|ins)"
    r"(?:\s+[a-z][\w:.-]*\s*=\s*(?:\"[^\"]*\"|'[^']*'|[^\s\"'<>]+)"
    r"|\s+(?:nowrap|noshade|hidden|inline|compact|reversed))*\s*/?>",
    re.IGNORECASE | re.DOTALL)
# What remains of a "(template)" after the template was removed: "()", "(, )".
_EMPTY_PARENTHESES = re.compile(r"[^\S\n]?\((?:[^\S\n]|[,;:])*\)")


def without_markup(lines: Iterable[str], counts: collections.Counter) -> list[str]:
    """Returns lines of wikiextractor without tags, comments and empty parentheses, which
    `counts` counts."""
    text, tags = _TAG.subn(lambda tag: " " if tag["block"] else "",
                           html.unescape("\n".join(lines)))
    text, empty = _EMPTY_PARENTHESES.subn("", text)
    counts.update({name: number for name, number in (
        ("tags", tags), ("empty parentheses", empty)) if number})
    return text.split("\n")


def _wikiextractor(path: str, lines: rows.Lines, layout: Layout,
                   counts: collections.Counter) -> Iterator[Document]:
    opened, title = 0, ""
    paragraphs: list[str] = []
    for number, line in itertools.chain(lines, [(0, "<doc >")]):  # The end is checked.
        text = line.strip()
        begins = text.startswith("<doc ")
        if text and begins == bool(opened):
            raise InputError(
                f"{path}, line {opened or number}: a <doc> without </doc>, or text outside "
                "of both; extract the file again, or give --input_format=text.")
        if begins:
            opened, paragraphs = number, []
            match = re.search(r'\btitle="(.*?)"\s*>', text)
            title = html.unescape(match[1]).strip() if match else ""
        elif text == "</doc>":
            yield Document(paragraphs, markup=True)
            opened = 0
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
    split = itertools.chain.from_iterable(s.splitlines() or [""] for s in lines)
    paragraphs: list[str] = []
    for has_text, block in itertools.groupby(map(str.strip, split), bool):
        if has_text and line_breaks == "join":
            paragraphs.append(functools.reduce(_joined, block))
        elif has_text:
            paragraphs.extend(block)
    return paragraphs


def _joined(text: str, line: str) -> str:
    spaceless = SPACELESS.match(text[-1]) and SPACELESS.match(line)
    # As in "first-\npast-the-post"; a word that was divided keeps its hyphen.
    hyphen = text[-1] == "-" and text[-2:-1].isalpha()
    return text + line if spaceless or hyphen else f"{text} {line}"
