"""A hook of mkdocs: adds pages and files of the repository that lie outside docs/.

mkdocs knows the files of docs/ alone. README.md becomes the index page, and the site also
contains the pages in PAGES and every file that a page links to, such as pictures. Links
are rewritten accordingly. Links to folders become plain text, since a site has no page for
them.
"""

import pathlib
import posixpath
import re

from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).parent.parent
PAGES = ("README.md", "CHANGELOG.md", "benchmarks/README.md", "benchmarks/NOTES.md")
# Code, which is left as it is, or a link: its text and its target.
_LINK = re.compile(r"```.*?```|`[^`\n]+`|\[([^\[\]]*)\]\(([^)\s]+)\)", re.S)


def in_site(path):
    """Returns the path in the site of a path in the repository."""
    return {"README.md": "index.md"}.get(path, path.removeprefix("docs/"))


def in_repository(path):
    """Returns the path in the repository of a page of the site."""
    if path == "index.md":
        return "README.md"
    return path if (ROOT / path).is_file() else f"docs/{path}"


def linked(path, target):
    """Returns the path that a page's link leads to, or None outside the repository."""
    target = target.partition("#")[0]
    if not target or re.match(r"\w+:|/", target):
        return None
    found = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
    return None if found.startswith("..") else found


def on_files(files, config):
    pages = [*PAGES, *(f"docs/{file.src_uri}" for file in files.documentation_pages())]
    for page in pages:  # Grows when a page links to a further page.
        text = (ROOT / page).read_text(encoding="utf-8")
        targets = [linked(page, match[2]) for match in _LINK.finditer(text) if match[2]]
        for path in filter(None, [page, *targets]):
            if (ROOT / path).is_file() and not files.get_file_from_path(in_site(path)):
                files.append(File.generated(
                    config, in_site(path), abs_src_path=str(ROOT / path)))
                if path.endswith(".md") and path not in pages:
                    pages.append(path)
    return files


def on_page_markdown(markdown, page, config, files):
    path = in_repository(page.file.src_uri)
    start = posixpath.dirname(page.file.src_uri)

    def rewritten(match):
        target = match[2] and linked(path, match[2])
        if not target:
            return match[0]
        if (ROOT / target).is_dir():
            return match[1]
        _, mark, anchor = match[2].partition("#")
        way = posixpath.relpath(in_site(target), start or ".")
        return f"[{match[1]}]({way}{mark}{anchor})"

    return _LINK.sub(rewritten, markdown)
