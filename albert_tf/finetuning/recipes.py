"""Settings for fine-tuning on a task, which --recipe uses: the paper's table 14, and
other known settings.
"""

import dataclasses
from typing import Sequence

import numpy as np

from albert_tf.config import AlbertConfig


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Settings for fine-tuning on a task, and their source."""

    # Both dropout rates inside the model, and that before the head; None: the default.
    albert_dropout: float | None
    classifier_dropout: float | None
    batch_size: int
    learning_rate: float  # The highest, reached after `warmup_steps`.
    num_train_steps: int  # With the warm-up.
    warmup_steps: int
    max_seq_length: int
    source: str = "the paper's table 14"


_MNLI = Recipe(0.0, 0.1, 128, 3e-5, 10000, 1000, 512)

# Task name, as in --task_name → its recipe.
RECIPES = {
    "cola": Recipe(0.0, 0.1, 16, 1e-5, 5336, 320, 512),
    "sts-b": Recipe(0.0, 0.1, 16, 2e-5, 3598, 214, 512),
    "sst-2": Recipe(0.0, 0.1, 32, 1e-5, 20935, 1256, 512),
    "mnli": _MNLI,
    # These use the training set of MNLI; AX is predicted with an MNLI model.
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
    # For version 2 of the released models, which diverge with the settings above
    # (README of the original implementation).
    "race-v2": Recipe(0.0, 0.1, 32, 1e-5, 12000, 1000, 512,
                      "the README of the original implementation, for version 2"),
}

# Several users report that large and larger models end at chance with the usual learning
# rates (transformers issue 2104, albert issues 29, 120, 132 and 135), but name a working
# rate for xlarge only, without its version (google-research issue 151). This is why there
# is --num_seeds.
_XLARGE_RATE = 5e-6
_SIZES = ("base", "large", "xlarge", "xxlarge")


def recipe_for(name: str, size: str = "", version: int = 1) -> Recipe:
    """Returns the recipe of RECIPES for a published model size, "" for other models."""
    recipe = RECIPES[name]
    if size == "xlarge":
        return dataclasses.replace(
            recipe, learning_rate=_XLARGE_RATE, source=f"{recipe.source}; learning rate: "
            "google-research issue 151: xlarge needed 5e-6")
    # The paper's table has one row per task for all sizes. Except for RACE (race-v2), no
    # learning rates are published for version 2.
    if size in _SIZES and version == 2 and recipe is not RECIPES["race-v2"]:
        return dataclasses.replace(
            recipe, source="the paper's table 14, which describes version 1")
    return recipe


# Training examples from which on → epochs and batch size. The paper trains about ten
# epochs on sets of up to 100,000 examples, and three to five on larger ones.
_BY_EXAMPLES = ((200_000, 3, 32), (20_000, 5, 32), (1_000, 10, 32), (0, 20, 16))
_FEWEST_STEPS = 100
# Width of the model from which on → learning rate. The narrow models of
# docs/RESULTS.md need higher rates than the released ones.
_BY_WIDTH = ((768, 2e-5), (300, 1e-4), (0, 5e-4))
# The share of the texts that the length holds, and of which numbers it is a multiple.
_HELD, _MULTIPLE = 0.99, 8
NUM_EVALUATIONS = 10


def recipe_for_data(num_examples: int, lengths: Sequence[int], config: AlbertConfig,
                    batch_size: int = 0) -> Recipe:
    """Returns settings for a user's own data. They extend the paper's to other sizes,
    and have not been measured on many sets. `lengths` are the numbers of tokens of some
    examples, with [CLS] and [SEP]. The width and size of the model decide the learning
    rate. batch_size=0 is given by num_examples."""
    epochs, own_size = next((epochs, size) for least, epochs, size in _BY_EXAMPLES
                            if num_examples >= least)
    batch_size = batch_size or own_size
    steps = max(_FEWEST_STEPS, num_examples * epochs // batch_size)
    rate = next(rate for width, rate in _BY_WIDTH if config.hidden_size >= width)
    most = _XLARGE_RATE if published_size(config)[0] == "xlarge" else rate
    length = int(np.quantile(lengths, _HELD, method="inverted_cdf"))
    return Recipe(
        None, None, batch_size, min(rate, most), steps,
        # As in the paper, a quarter of short runs, such as those on MRPC and RTE.
        steps // (4 if steps <= 800 else 10),
        min(-(-length // _MULTIPLE) * _MULTIPLE, config.max_position_embeddings),
        f"the size of the data, {num_examples} examples of which "
        f"{_HELD:.0%} have up to {length} tokens")


def published_size(config: AlbertConfig) -> tuple[str, int]:
    """Returns the published size that a config has, "" for none, and its version, which
    is 2 if it has no dropout (although xxlarge version 1 has none either)."""
    fields = ("num_hidden_layers", "hidden_size", "num_attention_heads",
              "intermediate_size", "embedding_size", "parameter_sharing")
    for name in _SIZES:
        named = AlbertConfig.named(name)
        if all(getattr(config, field) == getattr(named, field) for field in fields):
            return name, 1 + (not config.hidden_dropout_prob)
    return "", 1
