"""Settings for fine-tuning on a task: the paper's table 14, and what is known of others.

`recipe_for` gives those for a task and a size of model; `--recipe` takes them.
"""

import dataclasses
from typing import NamedTuple

from albert_tf.config import AlbertConfig


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Settings for fine-tuning on a task; `source` says whose they are.

    `albert_dropout` is both dropout rates inside the model, of hidden values and of
    attention probabilities; `classifier_dropout` is that before the task's head. Steps
    include `warmup_steps`, at whose end the rate is `learning_rate`.

        RECIPES["sst-2"].batch_size  # 32
    """

    albert_dropout: float
    classifier_dropout: float
    batch_size: int
    learning_rate: float
    num_train_steps: int
    warmup_steps: int
    max_seq_length: int
    source: str = "the paper's table 14"


_MNLI = Recipe(0.0, 0.1, 128, 3e-5, 10000, 1000, 512)

# By task name, as --task_name has it.
RECIPES = {
    "cola": Recipe(0.0, 0.1, 16, 1e-5, 5336, 320, 512),
    "sts-b": Recipe(0.0, 0.1, 16, 2e-5, 3598, 214, 512),
    "sst-2": Recipe(0.0, 0.1, 32, 1e-5, 20935, 1256, 512),
    "mnli": _MNLI,
    # The same training set as MNLI; AX is predicted with an MNLI model.
    "mismnli": _MNLI,
    "ax": _MNLI,
    "qnli": Recipe(0.0, 0.1, 32, 1e-5, 33112, 1986, 512),
    "qqp": Recipe(0.1, 0.1, 128, 5e-5, 14000, 1000, 512),
    "rte": Recipe(0.1, 0.1, 32, 3e-5, 800, 200, 512),
    "mrpc": Recipe(0.0, 0.1, 32, 2e-5, 800, 200, 512),
    "wnli": Recipe(0.1, 0.1, 16, 2e-5, 2000, 250, 512),
    "squad-1.1": Recipe(0.0, 0.1, 48, 5e-5, 3649, 365, 384),
    "squad-2.0": Recipe(0.0, 0.1, 48, 3e-5, 8144, 814, 512),
    "race": Recipe(0.1, 0.1, 32, 2e-5, 12000, 1000, 512),
    # For version 2 of the released models, which diverge with the line above (the
    # release's README).
    "race-v2": Recipe(0.0, 0.1, 32, 1e-5, 12000, 1000, 512,
                      "the release's README, for version 2"),
}


class HighestRate(NamedTuple):
    """A rate at which models of a size are known to train, None where that of the task
    will do, and who says so."""

    rate: float | None
    source: str


# The paper's table has one row for each task, whatever the size, and is of version 1.
_PAPER = HighestRate(None, "the paper's table 14")
# Nothing published says which rates version 2 needs, but for RACE (race-v2).
_NO_SOURCE = HighestRate(None, "the paper's table 14, which is of version 1")
# Whose model does not say its version: of either.
_XLARGE = HighestRate(5e-6, "google-research issue 151: xlarge needed 5e-6")

# By size and version. Reports that large and larger models end at chance at the usual
# rates (transformers issue 2104, albert issues 29, 120, 132 and 135) name no rate that
# is known to be good, but for xlarge: hence --num_seeds and --restart_on_failure.
HIGHEST_RATES = {
    ("base", 1): _PAPER, ("base", 2): _NO_SOURCE,
    ("large", 1): _PAPER, ("large", 2): _NO_SOURCE,
    ("xlarge", 1): _XLARGE, ("xlarge", 2): _XLARGE,
    ("xxlarge", 1): _PAPER, ("xxlarge", 2): _NO_SOURCE,
}


def recipe_for(name: str, size: str = "", version: int = 1) -> Recipe:
    """The recipe of RECIPES for a model of a published size; of another, for "".

        recipe_for("mrpc", "xlarge", 2).learning_rate  # 5e-6
    """
    recipe = RECIPES[name]
    most = HIGHEST_RATES.get((size, version), _PAPER)
    if most.rate is not None and most.rate < recipe.learning_rate:
        return dataclasses.replace(
            recipe, learning_rate=most.rate,
            source=f"{recipe.source}; the rate by {most.source}")
    if most is _NO_SOURCE and recipe is not RECIPES["race-v2"]:
        return dataclasses.replace(recipe, source=most.source)
    return recipe


def published_size(config: AlbertConfig) -> tuple[str, int]:
    """The published size that a config is of, "" for none, and its version: 2 is
    without dropout (as is xxlarge of version 1)."""
    fields = ("num_hidden_layers", "hidden_size", "num_attention_heads",
              "intermediate_size", "embedding_size", "parameter_sharing")
    for name in ("base", "large", "xlarge", "xxlarge"):
        named = AlbertConfig.named(name)
        if all(getattr(config, field) == getattr(named, field) for field in fields):
            return name, 1 + (not config.hidden_dropout_prob)
    return "", 1
