"""Models of other libraries: their outputs, computed here."""

import pytest

from albert_tf.checkpoints.restore import load
from tests.golden.interop import (
    FIXTURE_FOLDERS, assert_gives, case, config, other_folders)
from tests.helpers import FIXTURES, SHARED


def check(folder):
    path, inputs, outputs = case(folder)
    loaded = load(path, config(folder))
    assert loaded.format == folder.parent.name
    # Of these every tensor has a place.
    if folder.parent.name == "hf" and "bin" not in folder.name:
        assert not loaded.report.dropped
    assert len(loaded.model.weights) == len(loaded.report.matched)
    assert_gives(loaded.model, inputs, outputs)


@pytest.mark.parametrize("name", FIXTURE_FOLDERS)
def test_outputs(name):
    check(FIXTURES / "interop" / name)


@pytest.mark.shared
@pytest.mark.parametrize("name", other_folders())
def test_outputs_of_the_others(name):
    check(SHARED / "golden" / "interop" / name)
