"""An option: one field, a flag, a value in Python and in task.json."""

import dataclasses
from typing import Optional

import pytest
from absl import flags

from albert_tf import options
from albert_tf.cli.define import check_needs, define, take
from albert_tf.errors import InputError
from albert_tf.options import given, option, options_of
from tests.helpers import ROOT


@dataclasses.dataclass(frozen=True)
class Windows:
    path: str  # no option
    stride: int = option(128, "Tokens.", least=1, kept=True)
    rate: float = option(0.1, "Share.", below=1, needs="train")
    train: bool = option(False, "Train.")
    kind: str = option("auto", "Kind.", choices=["auto", "none"])
    labels: Optional[list[str]] = option(None, "Labels.")
    threshold: Optional[float] = option(
        None, "Threshold.", flag="odds", least=-1e38, only_with="train kind=none")

    def __post_init__(self):
        options.check(self)


def parsed(*words):
    values = flags.FlagValues()
    define(Windows, values=values, stride=64)
    values(["script", *words])
    return values


def test_an_option_is_a_flag_and_a_field():
    assert given(Windows, parsed(), path="p") == Windows("p", stride=64)
    values = parsed("--stride=2", "--labels=a,b", "--odds=-1", "--train")
    assert given(Windows, values, path="p", rate=0.5) == Windows(
        "p", 2, 0.5, True, labels=["a", "b"], threshold=-1.0)
    assert values["stride"].help == "Tokens."
    assert [each.name for each in options_of(Windows) if each.kept] == ["stride"]


# An option's value that is no use, on the command line, in Python and in task.json.
@pytest.mark.parametrize("name, value", [
    ("stride", 0), ("stride", 2 ** 31), ("stride", 1.5), ("rate", 1), ("rate", -0.1),
    ("rate", float("nan")), ("rate", "x"), ("kind", "many"), ("odds", float("nan")),
    ("odds", float("inf")), ("odds", float("-inf")), ("train", 2)])
def test_bounds(name, value):
    with pytest.raises(flags.IllegalFlagValueError, match=f"--{name}="):
        parsed(f"--{name}={value}")
    with pytest.raises(InputError, match=f"--{name}="):
        take(parsed(), options_of(Windows), {name: value})
    with pytest.raises(InputError, match=f"--{name}="):
        Windows("p", **{{"odds": "threshold"}.get(name, name): value})


def test_values_of_a_mapping_are_taken_for_flags_that_are_not_given():
    values = parsed("--stride=3")
    take(values, options_of(Windows), {"stride": 5, "rate": 0, "labels": ("a",)})
    assert (values.stride, values.rate, values.labels) == (3, 0, ["a"])


def test_what_has_no_effect_or_is_a_mistake(caplog):
    check_needs(parsed("--rate=0.1", "--odds=1", "--kind=none"))
    assert not caplog.records
    check_needs(parsed("--rate=0.5"))
    assert "--rate has no effect without --train" in caplog.text
    with pytest.raises(InputError, match="--odds .* with --train or --kind=none"):
        check_needs(parsed("--odds=1"))


def test_scripts_have_no_other_type_of_number():
    for path in [*ROOT.glob("*.py"), *(ROOT / "albert_tf/cli").glob("*.py")]:
        assert "DEFINE_float" not in path.read_text(), path
