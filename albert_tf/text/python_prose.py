"""Collects the English prose in a Python installation, for the quickstart.

The prose is the language reference in `pydoc_data.topics`, and the docstrings of the
standard library and the installed packages, which are read from their source with `ast`
and never imported. Sentences are kept; code, tables and lists of arguments are dropped.
"""

import ast
import contextlib
import inspect
import itertools
import os
import pathlib
import re
import sysconfig
import warnings
from typing import Iterator, Optional, Sequence

# Folders without documentation: tests, vendored copies, and pip itself.
_SKIPPED = {"_vendor", "site-packages", "dist-packages", "idlelib", "lib2to3", "pip",
            "pydoc_data", "test", "tests", "turtledemo", "testing", "vendor"}
# A shorter document has only two or three sentences.
_MIN_CHARS = 200

_HEADING = re.compile(r"^.*\n([=\-~^*#\"'+])\1{2,} *$", re.M)  # underlined
_BULLET = re.compile(r"^( *)(?:[*+-]|\d\.) (?=\S)", re.M)
_MARKUP = re.compile(r":\w+:(?=`)|[`*]|\s?\[\w{1,9}\]_")  # :role:`name`, *emphasis*
_NOT_PROSE = re.compile(r"[=_{}|<>\\^~@$#]|->|::|://|\w\(\w*[,)]|\bself\.|copyright|"
                        "licen[cs]e", re.I)
_SENTENCES = re.compile(r"[\"'(]?[A-Z].*[.!?][\"')]*")
_WORD = re.compile(r"[A-Za-z][a-z']*(?:-[a-z]+)*[.,;:!?)\"']*")


def documents(folders: Optional[Sequence[str]] = None) -> Iterator[tuple[str, str]]:
    """Yields prose from the running Python and its packages, or from `folders`: pairs of
    a name ("topics.assert", "lib/python3.11/json/decoder.py") and a text with one
    paragraph per line, in an order that depends only on the names.

    Packages share docstrings; `prepare` with deduplicate="sentences" drops the copies.
    """
    if folders is None:
        with contextlib.suppress(ImportError):  # Some systems leave it out.
            from pydoc_data import topics

            for name, text in sorted(topics.topics.items()):
                yield from _document(f"topics.{name}", [text])
        folders = list(dict.fromkeys(os.path.realpath(sysconfig.get_path(name))
                                     for name in ("stdlib", "purelib", "platlib")))
    for folder in map(pathlib.Path, folders):
        for path in sorted(folder.rglob("*.py")):
            inside = path.relative_to(folder)
            if not _SKIPPED.intersection(inside.parts) and not re.search(
                    "^test_|_test$", path.stem):
                yield from _document(str(folder.name / inside), _docstrings(path))


def _document(name: str, texts: Sequence[str]) -> Iterator[tuple[str, str]]:
    prose = "\n".join(itertools.chain.from_iterable(map(_paragraphs, texts)))
    if len(prose) >= _MIN_CHARS:
        yield name, prose


def _docstrings(path: pathlib.Path) -> list[str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pending, docstrings = [ast.parse(path.read_bytes())], []
    except (OSError, SyntaxError, ValueError, RecursionError):
        return []  # These are templates, or sources for other versions of Python.
    while pending:
        node = pending.pop()
        docstrings.append(ast.get_docstring(node, clean=False) or "")
        pending += reversed([child for child in node.body if isinstance(
            child, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))])
    return docstrings


def _paragraphs(text: str) -> Iterator[str]:
    """Yields paragraphs that consist of sentences; indentation separates paragraphs."""
    text = _BULLET.sub(r"\n\1  ", _HEADING.sub("", inspect.cleandoc(text)))
    for _, lines in itertools.groupby(text.splitlines(), lambda line: (
            len(line) - len(line.lstrip()) if line.strip() else -1)):
        paragraph = " ".join(_MARKUP.sub("", " ".join(lines)).split())
        words = paragraph.split()
        if (len(words) >= 4 and _SENTENCES.fullmatch(paragraph)
                and not _NOT_PROSE.search(paragraph)
                and sum(map(bool, map(_WORD.fullmatch, words))) >= 0.75 * len(words)):
            yield paragraph
