"""Fixtures that the tests of serving share; a file may have its own of the same name."""

import pytest

import albert_tf
from tests.serving import tiny_models


@pytest.fixture(scope="module", name="folder")
def _folder(tmp_path_factory):
    """The folder of a tiny classifier."""
    return tiny_models.write(tmp_path_factory.mktemp("served") / "tiny", "classes")


@pytest.fixture(scope="module", name="model")
def _model(folder):
    return albert_tf.load(folder)
