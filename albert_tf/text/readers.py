"""Reading documents: plain text, wikiextractor output, JSON lines, and the passages of
SQuAD's and RACE's files.

    for document in read_documents(["wiki.jsonl.gz"], Layout(), Counter()):
        document.name, document.paragraphs     # "wiki.jsonl.gz, line 1", [...]

Files are read as streams and may be compressed (.gz, .bz2, .xz, .zst); memory holds one
document at a time, of SQuAD one file.
"""

import collections
import html
import itertools
import json
import re
from typing import Any, Callable, Iterable, Iterator, NamedTuple

from albert_tf import text_files
from albert_tf.errors import InputError

FORMATS = ("auto", "text", "wikiextractor", "jsonl", "squad", "race")
DOCUMENT_SEPARATORS = ("file", "blank_line")
LINE_BREAKS = ("auto", "join", "keep")
# A document is held in memory; more than this is a corpus read as one document.
MAX_DOCUMENT_CHARS = 100_000_000
# Characters by which a file is recognised, line by line: RACE's passage may come last.
_HEAD = 20_000

Line = tuple[int, str]


class Document(NamedTuple):
    """A text in paragraphs, and where it came from ("file, line 12")."""

    name: str
    paragraphs: list[str]


class Layout(NamedTuple):
    """How files are laid out."""

    input_format: str = "auto"  # one of FORMATS; auto: _recognise
    json_field: str = "text"  # of a JSON line, that holds the text
    document_separator: str = "file"  # what ends a document of plain text
    line_breaks: str = "auto"  # what a line end in text and JSON means: paragraphs_of
    keep_titles: bool = False  # an article's title, which wikiextractor puts first


def read_documents(
        paths: Iterable[str], layout: Layout, counts: collections.Counter,
        on_bytes: Callable[[int], None] = lambda count: None) -> Iterator[Document]:
    """Documents of the files, in order; one without text is yielded too.

    `counts` receives what was removed: "title lines", "repeated paragraphs"; for
    on_bytes see text_files.read_lines.
    """
    for path in paths:
        lines, kind = text_files.read_lines(path, on_bytes, True), layout.input_format
        if kind == "auto":
            kind, lines = _recognise(path, lines, layout.json_field)
        if kind == "wikiextractor":
            yield from _wikiextractor(path, lines, layout, counts)
        elif kind == "jsonl":
            yield from _json_lines(
                path, lines, layout, "each line holds one JSON object",
                "choose one with --json_field")
        elif kind == "squad":
            yield from _squad(path, lines, layout, counts)
        elif kind == "race":
            yield from _json_lines(
                path, _objects(lines), layout._replace(json_field="article"),
                "RACE has one object for each passage", _OTHER_FORMAT)
        else:
            yield from _plain_text(path, lines, layout)


# How SQuAD's files begin; before their lists there may be strings or numbers.
_VALUES = r'(?:"\w+"\s*:\s*(?:"(?:[^"\\]|\\.)*"|[\d.]+)\s*,\s*)*'
_SQUAD = re.compile(
    rf'\{{\s*{_VALUES}"data"\s*:\s*\[\s*\{{\s*{_VALUES}"paragraphs"\s*:')
# A quotation mark within a JSON text has a backslash before it: these are keys.
_KEYS = re.compile(r'(?<!\\)"(\w+)"\s*:')
_OTHER_FORMAT = "give another file, or another --input_format"


def _recognise(path: str, lines: Iterator[Line], json_field: str
               ) -> tuple[str, Iterator[Line]]:
    """The format of a file by its name or how it begins, blank lines aside."""
    head, size = [], 0
    for line in lines:
        head.append(line)
        size += len(line[1].strip())
        if size > _HEAD:
            break
    text = "".join(line for _, line in head).lstrip()
    keys = set(_KEYS.findall(text, 0, _HEAD)) if text.startswith("{") else set()
    if text.startswith("<doc "):
        kind = "wikiextractor"
    elif _SQUAD.match(text, 0, _HEAD):
        kind = "squad"
    elif {"article", "options"} <= keys and json_field not in keys:
        kind = "race"
    elif re.search(r"\.(jsonl?|ndjson)(\.(gz|bz2|xz|zst))?$", path) or re.match(
            r'\{\s*"', text.partition("\n")[0]):
        kind = "jsonl"
    else:
        kind = "text"
    return kind, itertools.chain(head, lines)


def _plain_text(path: str, lines: Iterator[Line], layout: Layout) -> Iterator[Document]:
    per_file = layout.document_separator == "file"
    held: list[str] = []
    size, start, number = 0, 1, 0
    for number, line in lines:
        if not per_file and not line.strip():
            if held:
                yield Document(f"{path}, line {start}",
                               paragraphs_of(held, layout.line_breaks))
            held, size = [], 0
            continue
        if not held:
            start = number
        held.append(line)
        size += len(line)
        if size > MAX_DOCUMENT_CHARS:
            raise InputError(
                f"{path}: the document that starts at line {start} is longer than "
                f"{MAX_DOCUMENT_CHARS:,} characters; if blank lines separate its "
                "documents, give --document_separator=blank_line, otherwise cut "
                "the file up.")
    if held or per_file:
        name = path if per_file else f"{path}, line {start}"
        yield Document(name, paragraphs_of(held, layout.line_breaks))


def _json_lines(path: str, lines: Iterable[Line], layout: Layout, form: str,
                otherwise: str) -> Iterator[Document]:
    """`form` says what lines hold, `otherwise` what to do where the field is missing. A
    line 0 is a whole file."""
    field = layout.json_field
    for number, line in lines:
        if number and not line.strip():
            continue
        where = f"{path}, line {number}" if number else path
        value = text_files.parse_json(line, path, form, number, cleaned=True)
        if not isinstance(value, dict):
            raise InputError(
                f"{where}: holds a JSON {type(value).__name__}, but {form}, with the "
                f"text in its field '{field}'.")
        if field not in value:
            raise InputError(
                f"{where}: the object has no field '{field}'; its fields are "
                f"{', '.join(map(repr, value)) or 'none'}: {otherwise}.")
        text = value[field]
        if not isinstance(text, str):
            raise InputError(
                f"{where}: the field '{field}' holds {json.dumps(text)[:40]}, not "
                f"a text; {otherwise}.")
        yield Document(where, paragraphs_of(text.split("\n"), layout.line_breaks))


def _objects(lines: Iterator[Line]) -> Iterable[Line]:
    """Lines that hold a JSON object each, or a line 0, the whole file, that is one."""
    head = []
    for line in lines:
        head.append(line)
        if line[1].strip():
            break
    if head and head[-1][1].rstrip().endswith("}"):
        return itertools.chain(head, lines)
    return [(0, "".join(line for _, line in itertools.chain(head, lines)))]


def _squad(path: str, lines: Iterable[Line], layout: Layout,
           counts: collections.Counter) -> Iterator[Document]:
    """An article is a document, as it was in Wikipedia: its paragraphs follow each
    other in the file as there."""
    content = text_files.parse_json(
        "".join(line for _, line in lines), path,
        f"SQuAD's file holds one object: {_OTHER_FORMAT}", cleaned=True)
    for number, article in enumerate(_of_squad(content, "data", list, path), 1):
        where = f"{path}, article {number}"
        contexts = [
            _of_squad(paragraph, "context", str, f"{where}, paragraph {place}")
            for place, paragraph in enumerate(
                _of_squad(article, "paragraphs", list, where), 1)]
        once = dict.fromkeys(contexts)
        if len(once) < len(contexts):
            counts["repeated paragraphs"] += len(contexts) - len(once)
        yield Document(where, paragraphs_of(
            "\n\n".join(once).split("\n"), layout.line_breaks))


def _of_squad(holder: Any, key: str, kind: type, where: str) -> Any:
    value = holder.get(key) if isinstance(holder, dict) else None
    if not isinstance(value, kind):
        raise InputError(
            f"{where}: has no {'text' if kind is str else 'list'} '{key}', so this is "
            f"not SQuAD's JSON; {_OTHER_FORMAT}.")
    return value


# Marks of wiki and HTML markup that wikiextractor leaves in the text, escaped.
# Those in the second group stand within words (H<sub>2</sub>O).
_MARKUP = re.compile(
    r"</?(?:br|hr|p|div|ref|references|poem|center|blockquote|gallery|section|"
    r"onlyinclude|noinclude|includeonly|templatestyles|table|tr|td|th|li|ul|ol|dl|"
    r"dd|dt|h[1-6])\b[^<>]*>", re.IGNORECASE)
_MARKUP_IN_WORDS = re.compile(
    r"</?(?:sub|sup|span|small|big|b|i|u|s|em|strong|tt|code|var|cite|abbr|nowiki|"
    r"font|math|chem|kbd|q|del|ins)\b[^<>]*>", re.IGNORECASE)
# A "(template)" from which the template was removed: "()", "(, )".
_EMPTY_PARENTHESES = re.compile(r"\s?\([\s,;:]*\)")


def _wikiextractor(path: str, lines: Iterator[Line], layout: Layout,
                   counts: collections.Counter) -> Iterator[Document]:
    opened = 0
    title = ""
    held: list[str] = []
    for number, line in lines:
        text = line.strip()
        if text.startswith("<doc "):
            if opened:
                raise InputError(
                    f"{path}, line {number}: a new <doc> starts, but the one of "
                    f"line {opened} has no </doc>; extract the file again.")
            opened, held = number, []
            match = re.search(r'\btitle="(.*?)"\s*>', text)
            title = html.unescape(match.group(1)).strip() if match else ""
        elif text == "</doc>" and opened:
            yield Document(f"{path}, line {opened}", held)
            opened = 0
        elif not opened:
            if text:
                raise InputError(
                    f"{path}, line {number}: text outside <doc> ... </doc>; if this "
                    "is not wikiextractor's output, give --input_format=text.")
        elif text:
            text = html.unescape(text)
            if not layout.keep_titles and not held and text == title:
                counts["title lines"] += 1
                title = ""
                continue
            text = _MARKUP_IN_WORDS.sub("", _MARKUP.sub(" ", text))
            held.append(_EMPTY_PARENTHESES.sub("", text))
    if opened:
        raise InputError(
            f"{path}, line {opened}: this <doc> has no </doc>; the file was cut "
            "short: extract it again.")


# Scripts written without spaces: Chinese, Japanese, Thai, Lao, Burmese, Khmer.
_NO_SPACES = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u9fff\uf900-\ufaff\uff00-\uff9f"
    "\U00020000-\U0003ffff]")
# Lines longer than this are not wrapped to fit a page.
_WIDEST_PAGE = 160


def paragraphs_of(lines: Iterable[str], line_breaks: str) -> list[str]:
    """Paragraphs of lines: blank lines separate them, and single line ends may.

    Other line ends than "\\n" (a form feed, U+2028, the "\\r" of old files) are
    honoured inside the lines. With line_breaks "keep" each line is a paragraph, with
    "join" lines up to a blank one are one paragraph, with "auto" they are joined if
    they look wrapped to the width of a page (`_is_wrapped`).
    """
    paragraphs: list[str] = []
    block: list[str] = []
    split = itertools.chain.from_iterable(s.splitlines() or [""] for s in lines)
    for line in map(str.strip, itertools.chain(split, [""])):
        if line:
            block.append(line)
        elif block:
            if line_breaks == "join" or line_breaks == "auto" and _is_wrapped(block):
                paragraphs.append(_joined(block))
            else:
                paragraphs.extend(block)
            block = []
    return paragraphs


def _is_wrapped(block: list[str]) -> bool:
    """Whether most lines end where the next word would have crossed the margin.

    The margin is the longest line; a fifth of it is allowed for ragged text.
    """
    width = max(map(len, block))
    if width > _WIDEST_PAGE or len(block) < 2:
        return False
    full = 0
    for line, following in zip(block, block[1:]):
        word = 1 if _NO_SPACES.match(following) else len(following.split()[0]) + 1
        full += len(line) + word > 0.8 * width
    return full > 0.6 * (len(block) - 1)


def _joined(block: list[str]) -> str:
    text = block[0]
    for line in block[1:]:
        spaceless = _NO_SPACES.match(text[-1]) and _NO_SPACES.match(line)
        # "first-\npast-the-post"; a word cut in two keeps its hyphen.
        hyphen = text[-1] == "-" and text[-2:-1].isalpha()
        text += line if spaceless or hyphen else f" {line}"
    return text
