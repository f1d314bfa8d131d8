"""The wording of pages, helps, messages and comments, and the README's length.

    python -m pytest tests/test_wording.py

Plain standard English is easier to read. This test holds the expressions that keep coming
back although standard English has better ones, and how much of the README may be tables.
"""

import ast
import re

import pytest

from tests.helpers import ROOT

README = ROOT / "README.md"
PAGES = [README, ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md")),
         *sorted((ROOT / "benchmarks").glob("*.md"))]
MODULES = [*sorted(ROOT.glob("*.py")), *(
    path for name in ("albert_tf", "benchmarks", "docs", "experiments")
    for path in sorted((ROOT / name).rglob("*.py")))]
# Expression → what to write instead.
RULED_OUT = {
    r"go(es)? before|went before": "override, precede",
    r"whoever": "who, callers that, users who",
    r"anew": "again, new",
    r"(come|comes|came|coming) out": "result in, be reproduced, become",
    r"of no account": "unimportant, ignored",
    r"so many": "N, this number of",
    r"(has|have|had) not got": "has no, lacks",
    r"in the mean": "on average",
    r"(go|goes|gone|went) on with": "continue, resume",
    r"(is|are|was|were|be) told": "is printed, is passed, learns",
    r"aloud": "with a message",
    r"made of": "created from, built from, consists of",
}


def places(text):
    """Yields (line number, expression, replacement). Words may be on two lines, of a
    comment or of adjacent string constants."""
    for words, instead in RULED_OUT.items():
        pattern = rf"\b(?:{words})\b".replace(" ", r"(?:[\s#\"']|\b[fr](?=[\"']))+")
        for match in re.finditer(pattern, text, re.I):
            yield text.count("\n", 0, match.start()) + 1, match[0], instead


@pytest.mark.parametrize("path", [*PAGES, *MODULES],
                         ids=lambda path: f"{path.relative_to(ROOT)}")
def test_expressions_that_are_ruled_out(path):
    assert not list(places(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: f"{path.relative_to(ROOT)}")
def test_docstrings_begin_with_a_verb_or_a_noun(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = [ast.get_docstring(node) or "" for node in ast.walk(tree)
                  if isinstance(node, documented)]
    assert not [text.splitlines()[0] for text in docstrings
                if re.match(r"(Of|What|Whether|Whoever) ", text)]


def test_readme_is_short_and_prose():
    lines = README.read_text(encoding="utf-8").splitlines()
    words = sum(len(line.split()) for line in lines)
    in_tables = sum(len(line.split()) for line in lines if line.startswith("|"))
    assert words <= 1500
    assert in_tables <= 0.15 * words
