"""The passes of each step, by a schedule."""

import collections
import re

import pytest

from albert_tf.config import AlbertConfig
from albert_tf.errors import InputError
from albert_tf.training.schedules import PRETRAINING_RECIPES, depth_of
from tests.training.tiny_trainer import Training, assert_close

STEPS = 1000


def config(**changes):
    return AlbertConfig.named("base", vocab_size=100, **changes)


@pytest.mark.parametrize("text, steps, expected", [
    ("3:0.5,6:0.25,12:0.25", 1000, {3: 500, 6: 250, 12: 250}),
    ("12:1", 7, {12: 7}),
    (" 6:0.333, 12:0.667 ", 10, {6: 3, 12: 7}),
    ("12:0.1,3:0.8,12:1e-1", 10, {12: 2, 3: 8})])
def test_schedule(text, steps, expected):
    depth = depth_of(config(), steps, text)
    assert collections.Counter(map(depth.at, range(steps))) == expected
    # However long a run continues, it ends at full depth.
    assert depth.at(steps - 1) == depth.at(10 * steps) == 12


@pytest.mark.parametrize("text", [
    "12", "3:0.5,", "3:0.5;12:0.5", "-3:0.5,12:0.5", "3:x,12:1", "3.5:0.5,12:0.5",
    "3:1e,12:1", ":1", "3:0.5,12:0.6", "3:0.5,12:0.4", "3:0,12:1", "3:-1,12:2",
    "3:1e999,12:1", "3:0.9999,12:0.0001", "0:0.5,12:0.5", "13:0.5,12:0.5",
    "12:0.5,6:0.5"])
def test_wrong_values(text):
    with pytest.raises(InputError, match=f"--depth_schedule={re.escape(text)}: "):
        depth_of(config(), STEPS, text)


@pytest.mark.parametrize("changes, message", [
    (dict(parameter_sharing="none"), "attention block"),
    (dict(parameter_sharing="attention"), "feed-forward block"),
    (dict(num_hidden_groups=2), "num_hidden_groups 2")])
def test_layers_that_are_not_shared(changes, message):
    with pytest.raises(InputError, match=message):
        depth_of(config(**changes), STEPS, "3:0.5,12:0.5")


@pytest.mark.parametrize("layers, expected", [
    (12, "3:0.5,6:0.25,12:0.25"), (24, "6:0.5,12:0.25,24:0.25"),
    (2, "1:0.5,1:0.25,2:0.25"), (1, "1:0.5,1:0.25,1:0.25")])
def test_recipe_that_grows(layers, expected):
    shape = config(num_hidden_layers=layers)
    values = PRETRAINING_RECIPES["fast"].training_for(shape)
    assert values["depth_schedule"] == expected
    assert depth_of(shape, STEPS, expected).at(STEPS - 1) == layers
    assert "depth_schedule" not in PRETRAINING_RECIPES["fast"].training_for(
        config(parameter_sharing="attention"))


@pytest.mark.parametrize("recipe, length, slots", [
    ("roberta", 512, 77), ("roberta", 64, 10), ("fast", 512, 205), ("fast", 64, 26)])
def test_recipe_with_slots_for_its_masks(recipe, length, slots):
    assert PRETRAINING_RECIPES[recipe].slots_at(length) == {
        "max_predictions_per_seq": slots}
    assert not PRETRAINING_RECIPES["release"].slots_at(length)


def test_depth_changes_while_moments_stay(eager):
    """Steps at depths 1, 2, 1 are those of models of these depths in turns."""
    made = Training(layers=2, passes=(1, 2))
    shallow, deep = Training(layers=1), Training(layers=2)
    rows = made.run(steps=3)
    shallow.run(steps=1)
    for one, other in ((shallow, deep), (deep, shallow)):
        other.take_over(one)
        one = other.more(1)
    assert rows[-1]["total_loss"] == pytest.approx(one[0]["total_loss"])
    assert_close(made.state(), shallow.state(), 1e-6)
