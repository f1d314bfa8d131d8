"""The cases of the files *_cases.py, each file in a process of its own: experiments have
flags of the same names with other defaults, and a process has each flag once."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

from tests.helpers import ROOT


@pytest.mark.parametrize(
    "name", sorted(path.name for path in pathlib.Path(__file__).parent.glob("*_cases.py")))
def test_experiments_whose_flags_others_have(name):
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider",
         f"tests/experiments/{name}"], cwd=ROOT, capture_output=True,
        text=True, check=False, env={key: value for key, value in os.environ.items()
                          if not key.startswith("PYTEST_")})
    assert result.returncode == 0, result.stdout[-5000:]
    # None left out: the summary speaks of passed ones alone.
    assert re.search(r"^\d+ passed in", result.stdout, re.MULTILINE), result.stdout
