"""A hook of setuptools: adapts the README's links for the package's page on an index.

That page has no other files of the repository. Links to them lead to [project.urls]'
Repository if there is one, and become plain text otherwise, like links to headings, which
such a page does not have.
"""

import re

from setuptools.command.egg_info import egg_info

# Code, which is left as it is, or a link: its text and its target.
_LINK = re.compile(r"```.*?```|`[^`\n]+`|\[((?:[^\[\]`]|`[^`\n]+`)*)\]\(([^)\s]+)\)", re.S)


def adapted(text, repository=""):
    """Returns the README's text with links that work anywhere."""

    def rewritten(match):
        words, target = match[1], match[2]
        if target is None or re.match(r"\w+:", target):
            return match[0]
        if not repository or target.startswith("#"):
            return words
        return f"[{words}]({repository.rstrip('/')}/blob/HEAD/{target})"

    return _LINK.sub(rewritten, text)


class EggInfo(egg_info):
    """Writes the metadata with the adapted README."""

    def finalize_options(self):
        super().finalize_options()
        metadata = self.distribution.metadata
        metadata.long_description = adapted(
            metadata.long_description, metadata.project_urls.get("Repository", ""))
