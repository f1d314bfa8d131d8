"""English prose that every Python installation holds.

The language reference in `pydoc_data.topics`, and the docstrings of the standard
library and of the installed packages, read from their source with `ast` and
never imported. Signatures, doctests, code, tables, lists of arguments and
directives are left out by simple rules; what stays are paragraphs of sentences.
The order depends on nothing but the names of the files.
"""

import ast
import gc
import inspect
import os
import re
import sysconfig
import warnings
from typing import Callable, Iterator

# Folders without documentation: tests, vendored copies, and pip itself.
_SKIPPED_FOLDERS = frozenset((
    "__pycache__", "_vendor", "site-packages", "dist-packages", "idlelib", "lib2to3",
    "pip", "pydoc_data", "test", "tests", "turtledemo", "testing", "vendor"))
# A document shorter than this holds no more than two or three sentences.
_MIN_CHARS = 250

_Entry = tuple[str, str]


def documents(on_file: Callable[[int], None] = lambda count: None,
              roots: list[_Entry] | None = None) -> Iterator[tuple[str, str]]:
    """Prose of the running Python and the packages installed in it.

    Sentences may occur in several documents, because packages share docstrings:
    `corpus_preparation.prepare` with deduplicate="sentences" drops them.

    Args:
      on_file: is told 1 after each file.
      roots: pairs of a name and a folder to read instead of the installation.

    Yields:
      Pairs of a name ("topics.assert", "lib/json/decoder.py",
      "site-packages/numpy/ma/core.py:MaskedArray") and a text with one paragraph
      to a line. A top-level class is a document of its own where it has enough
      text, and the rest of a module is one.
    """
    if roots is None:
        yield from _topics()
        roots = installation_folders()
    for name, folder in roots:
        for path in _python_files(folder):
            relative = os.path.relpath(path, folder).replace(os.sep, "/")
            yield from _module_documents(f"{name}/{relative}", path)
            on_file(1)


def installation_folders() -> list[_Entry]:
    """The standard library and the folders of installed packages, each once."""
    paths = sysconfig.get_paths()
    folders: dict[str, str] = {os.path.realpath(paths["stdlib"]): "lib"}
    for key in ("purelib", "platlib"):
        folders.setdefault(os.path.realpath(paths[key]), "site-packages")
    return [(name, folder) for folder, name in folders.items()]


def _python_files(folder: str) -> Iterator[str]:
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(f for f in folders if f not in _SKIPPED_FOLDERS)
        for name in sorted(names):
            if name.endswith(".py") and not name.startswith("test_") and (
                    not name.endswith("_test.py")):
                yield os.path.join(parent, name)


def _topics() -> Iterator[_Entry]:
    try:
        from pydoc_data import topics
    except ImportError:  # Some systems ship Python without its documentation.
        return
    for name, text in sorted(topics.topics.items()):
        paragraphs = prose_paragraphs(text, keep_indented=True)
        if sum(map(len, paragraphs)) >= _MIN_CHARS:
            yield f"topics.{name}", "\n".join(paragraphs)


def _module_documents(name: str, path: str) -> Iterator[_Entry]:
    try:
        with open(path, "rb") as stream:
            source = stream.read()
        if b'"""' not in source and b"'''" not in source:
            return
        tree = _parse(source)
    except (OSError, SyntaxError, ValueError, RecursionError):
        return  # Templates and sources for other versions of Python.
    rest: list[str] = []
    for part, docstrings in _parts(tree):
        paragraphs = [p for text in docstrings for p in prose_paragraphs(text)]
        if part and sum(map(len, paragraphs)) >= _MIN_CHARS:
            yield f"{name}:{part}", "\n".join(paragraphs)
        else:
            rest.extend(paragraphs)
    if sum(map(len, rest)) >= _MIN_CHARS:
        yield name, "\n".join(rest)


def _parse(source: bytes) -> ast.Module:
    """`ast.parse` without warnings about the source, and faster.

    A syntax tree is hundreds of thousands of objects and no cycle: the garbage
    collector would only walk them again and again.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(source)
    finally:
        if collecting:
            gc.enable()


def _parts(tree: ast.Module) -> Iterator[tuple[str, list[str]]]:
    """Docstrings by top-level class; "" for those outside classes."""
    yield "", _docstring(tree)
    for node in tree.body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            part = node.name if isinstance(node, ast.ClassDef) else ""
            yield part, _nested_docstrings(node)


def _nested_docstrings(node: ast.AST) -> list[str]:
    found = _docstring(node)
    for child in node.body:
        if isinstance(child, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            found.extend(_nested_docstrings(child))
    return found


def _docstring(node: ast.AST) -> list[str]:
    text = ast.get_docstring(node, clean=False)
    return [text] if text else []


# A heading that starts a list of arguments or the like, as "Args:" or, over a
# line of dashes, "Parameters".
_LIST_HEADING = re.compile(
    r"(args?|arguments?|parameters?|other parameters|keyword arg\w*|returns?|yields?|"
    r"raises|attributes|methods|examples?|usage|see also|references|todo|inputs?|"
    r"outputs?|call arguments|input shapes?|output shapes?|properties|warns|"
    r"sample usage|for example|e\.g\.)\b.{0,20}:?", re.IGNORECASE)
_UNDERLINE = re.compile(r"([=\-~^*#\"'+`])\1{2,}")
_BULLET = re.compile(r"(?:[*•+-]|\(?\d{1,2}[.)])\s+(?=\S)")
_FENCE = re.compile(r"```|~~~")
_INLINE = (
    (re.compile(r":[a-zA-Z:]+:`~?(?:[\w.]*\.)?([^`<]+?)(?:\s*<[^`>]*>)?`"), r"\1"),
    (re.compile(r"!?\[([^\]]+)\]\([^)\s]*\)"), r"\1"),
    (re.compile(r"`([^`<]+?)\s*<[^`>]*>`_{0,2}"), r"\1"),
    (re.compile(r"\s?\[(?:\d{1,2}|\w+\d{4}\w?|#\w*)\]_?"), ""),
    (re.compile(r"`+([^`]*)`+_{0,2}"), r"\1"),
    (re.compile(r"\*{1,2}(?=\S)([^*]+?)(?<=\S)\*{1,2}"), r"\1"),
    (re.compile(r"\|([^|\s]+)\|"), r"\1"),
)
# What gives code, tables, grammar and links away.
_NOT_PROSE = re.compile(
    r">>>|->|=>|::|==|\+=|\|\||&&|://|[{}|<>\\^~]|[=]\s*[\w'\"(\[]|\w\(\w*[,=]|"
    r"\bself\.|\bdef |\bimport \w+$|@\w|\$|copyright|\(c\)|licen[cs]e|mailto",
    re.IGNORECASE)
_SENTENCE_END = re.compile(r"[.!?][\"')\]]*$")
_LETTERS = re.compile(r"[^\W\d_]+|\s+")
_WORD = re.compile(r"[A-Za-z][a-z']*(?:-[a-z]+)*(?=[\s.,;:!?)\"']|$)")


def prose_paragraphs(docstring: str, keep_indented: bool = False) -> list[str]:
    """The paragraphs of sentences in a docstring or a page of documentation.

    Args:
      docstring: the text.
      keep_indented: whether indented paragraphs count, which explain arguments
        in docstrings and methods in the language reference.
    """
    paragraphs = []
    for lines in _blocks(inspect.cleandoc(docstring), keep_indented):
        text = " ".join(line.strip() for line in lines)
        for pattern, replacement in _INLINE:
            text = pattern.sub(replacement, text)
        text = " ".join(text.split())
        if _is_prose(text):
            paragraphs.append(text)
    return paragraphs


def _is_prose(text: str) -> bool:
    """Whether a paragraph reads as sentences: its start, end, words and letters."""
    if not (text and (text[0].isupper() or text[0] in "\"'(")):
        return False
    if not _SENTENCE_END.search(text) or _NOT_PROSE.search(text):
        return False
    words = text.split()
    plain = len(_WORD.findall(text))
    return (len(words) >= 5 and plain >= 0.75 * len(words)
            and len(_LETTERS.sub("", text)) <= 0.1 * len(text))


def _blocks(text: str, keep_indented: bool) -> Iterator[list[str]]:
    """Paragraphs and list items that are neither code nor lists of arguments.

    Indented lines are code, the body of a directive or the explanation of an
    argument, except below a bullet, which they continue. With `keep_indented`
    a change of indentation starts a paragraph.
    """
    block: list[str] = []
    fenced = False
    in_list = False  # below a heading such as "Parameters"
    hanging = 0  # the indentation that continues the current bullet
    for line in [*text.expandtabs().splitlines(), ""]:
        stripped = line.strip()
        indent = len(line) - len(line.lstrip())
        if _FENCE.match(stripped):
            fenced = not fenced
            stripped = ""
        if keep_indented and not block:
            hanging = indent
        bullet = None if in_list or fenced else _BULLET.match(stripped)
        if _UNDERLINE.fullmatch(stripped):
            in_list = bool(block and _LIST_HEADING.fullmatch(block[-1].strip()))
            block, hanging = [], 0
            continue
        starts_list = (not indent and stripped.endswith(":")
                       and _LIST_HEADING.fullmatch(stripped))
        skipped = (not stripped or fenced or starts_list or bullet
                   or stripped.startswith((">>>", "... ", "..", ":", "@"))
                   or indent > 0 and indent != hanging)
        if skipped and block:
            yield block
            block = []
        if starts_list:
            in_list, hanging = True, 0
        elif stripped and not indent and not skipped and not block and (
                in_list and _NEW_TEXT.match(stripped)):
            in_list = False
        if bullet and indent <= 4:
            block = [stripped[bullet.end():]]
            hanging = indent + bullet.end()
        elif not skipped and not in_list:
            if not indent:
                hanging = 0
            block.append(stripped)


# The first line of a paragraph after a list of arguments, not one more argument.
_NEW_TEXT = re.compile(r"[A-Z][a-z]*(?: [a-z]+){3,}")
