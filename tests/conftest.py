"""Markers: `shared` needs the folder ../shared, `slow` takes more than a few seconds."""

import os

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from tests.helpers import SHARED  # noqa: E402


def pytest_collection_modifyitems(items):
    if SHARED is None:
        skip = pytest.mark.skip(reason="../shared is not here")
        for item in items:
            if "shared" in item.keywords:
                item.add_marker(skip)
