"""Settings for a user's own data: by their number, their length and the model."""

import dataclasses

import pytest

from albert_tf.config import AlbertConfig
from albert_tf.errors import InputError
from albert_tf.finetuning.classification import glue
from albert_tf.finetuning.recipes import RECIPES, Recipe, recipe_for, recipe_for_data
from albert_tf.finetuning.task import Settings
from albert_tf.training.options import RunOptions

BASE = AlbertConfig.named("base")


def test_recipes_know_tasks_and_sizes_and_name_their_source():
    assert {*glue.TASKS} < {*RECIPES}
    assert RECIPES["qqp"] == Recipe(0.1, 0.1, 128, 5e-5, 14000, 1000, 512)
    assert recipe_for("mrpc") == recipe_for("mrpc", "base", 1) == RECIPES["mrpc"]
    for version in 1, 2:
        recipe = recipe_for("mrpc", "xlarge", version)
        assert recipe.learning_rate == 5e-6 and "issue 151" in recipe.source
        assert recipe.num_train_steps == RECIPES["mrpc"].num_train_steps
    assert "version 1" in recipe_for("mrpc", "large", 2).source
    assert recipe_for("race-v2", "large", 2) == RECIPES["race-v2"]


@pytest.mark.parametrize("rows, batch, steps, warmup", [
    (1, 16, 100, 25), (500, 16, 625, 156), (1000, 32, 312, 78), (5000, 32, 1562, 156),
    (20_000, 32, 3125, 312), (100_000, 32, 15625, 1562), (500_000, 32, 46875, 4687)])
def test_steps_and_batch_follow_the_number_of_examples(rows, batch, steps, warmup):
    """docs/FINETUNING.md has the same table."""
    recipe = recipe_for_data(rows, [9], BASE)
    assert (recipe.batch_size, recipe.num_train_steps, recipe.warmup_steps) == (
        batch, steps, warmup)
    assert f"{rows} examples" in recipe.source


def test_the_length_holds_nearly_all_texts_and_fits_the_model():
    assert recipe_for_data(100, [9] * 99 + [400], BASE).max_seq_length == 16
    assert recipe_for_data(100, [9] * 90 + [400] * 10, BASE).max_seq_length == 400
    assert recipe_for_data(100, [900], BASE).max_seq_length == 512
    assert recipe_for_data(100, [16], BASE).max_seq_length == 16


@pytest.mark.parametrize("config, rate", [
    (BASE, 2e-5), (AlbertConfig.named("xlarge"), 5e-6),
    (AlbertConfig.named("xxlarge-v2"), 2e-5), (AlbertConfig.named("tiny"), 1e-4),
    (BASE.replace(hidden_size=128, num_attention_heads=2), 5e-4)])
def test_the_rate_follows_the_model(config, rate):
    assert recipe_for_data(5000, [9], config).learning_rate == rate


def test_epochs_and_shares_become_steps():
    required = {field.name: None for field in dataclasses.fields(Settings) if
                field.default is field.default_factory is dataclasses.MISSING}

    def scheduled(examples, num_evaluations):
        return Settings(**{
            **required, "run": RunOptions("runs/x", 0, 8), "num_train_epochs": 3.0,
            "num_warmup_steps": -1, "warmup_proportion": 0.2,
            "num_evaluations": num_evaluations}).scheduled(examples)

    found = scheduled(100, 10)
    assert (found.run.num_train_steps, found.num_warmup_steps) == (37, 7)
    # More often than there are steps it is not evaluated.
    assert [scheduled(100, count).run.save_checkpoints_steps for count in (10, 2, 50)] == [
        4, 19, 1]
    with pytest.raises(InputError, match="--num_train_epochs=3 .*--train_batch_size=8"):
        scheduled(2, 10)
