"""Packages of the peers, which are measured where they are installed."""

import importlib


class NotInstalled(Exception):
    """A peer's package is missing."""


def imported(module: str, package: str):
    """A peer's module; `package` is what the reader knows it by."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise NotInstalled(f"{package} cannot be imported: {error}") from error
