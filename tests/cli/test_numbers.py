"""Numbers with a fraction: nan and inf are refused by all flags."""

import re

import pytest

from albert_tf.cli.checks import ANY, Number
from tests.helpers import ROOT


@pytest.mark.parametrize("bounds", [{}, ANY, {"below": 1}, {"upper_bound": 1}])
@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "1e999"])
def test_what_is_not_finite_is_refused(bounds, text):
    parser = Number(**bounds)
    with pytest.raises(ValueError):
        parser.parse(text)
    assert parser.parse("0.5") == 0.5


def test_scripts_have_no_other_type_of_number():
    """nan is the default of --threshold_to_export: there is none."""
    for path in [*ROOT.glob("*.py"), *(ROOT / "albert_tf/cli").glob("*.py")]:
        names = re.findall(r"DEFINE_float\(\s*\"(\w+)\"", path.read_text())
        assert set(names) <= {"threshold_to_export"}, path
