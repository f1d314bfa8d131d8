"""time_to_quality_cases.py in a process of its own: experiments have flags of the same
names with other defaults, and a process has each flag once."""

from tests.helpers import run_python


def test_experiments_whose_flags_others_have():
    result = run_python(
        "-m", "pytest", "--noconftest", "-p", "no:cacheprovider",
        "tests/experiments/time_to_quality_cases.py", env={"PYTEST_ADDOPTS": ""})
    assert result.returncode == 0 and " passed in" in result.stdout, (
        result.stdout[-5000:])
