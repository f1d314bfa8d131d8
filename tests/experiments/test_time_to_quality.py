"""The cases of time_to_quality_cases.py, in a process of their own: experiments have
flags of the same names with other defaults, and a process has each flag once."""

import os
import subprocess
import sys

from tests.helpers import ROOT


def test_what_recipes_cost_and_what_is_not_made_again():
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider",
         "tests/experiments/time_to_quality_cases.py"], cwd=ROOT, capture_output=True,
        text=True, check=False, env={name: value for name, value in os.environ.items()
                          if not name.startswith("PYTEST_")})
    assert result.returncode == 0, result.stdout[-5000:]
    # Six cases, and none left out.
    assert "......" in result.stdout
