"""A file of five records."""

import pytest

from tests.records.examples import write


@pytest.fixture(name="path")
def _path(tmp_path):
    path = tmp_path / "x.tfrecord"
    write(path)
    return path
