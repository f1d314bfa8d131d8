"""Recipes: named presets of flags for create_pretraining_data.py and
run_pretraining.py, without TensorFlow."""

import dataclasses
import math
from typing import Any, Mapping

from albert_tf.config import AlbertConfig
from albert_tf.training.schedules import not_shared


@dataclasses.dataclass(frozen=True)
class PretrainingRecipe:
    """Values of flags that are not given explicitly."""

    source: str
    records: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    training: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    # The depth schedule, as (share of the layers, share of the steps).
    depth: tuple[tuple[float, float], ...] = ()
    # Share of a sequence's positions that are predicted; 0 sets no flag.
    slots: float = 0.0

    def slots_at(self, max_seq_length: int) -> dict[str, int]:
        """Returns the flag of both scripts that `slots` sets, for a sequence length."""
        return {"max_predictions_per_seq": math.ceil(self.slots * max_seq_length)
                } if self.slots else {}

    def training_for(self, config: AlbertConfig) -> dict[str, Any]:
        """Returns `training`, with the depth schedule for a config."""
        if not self.depth or not_shared(config):
            return dict(self.training)
        layers = config.num_hidden_layers
        return {**self.training, "depth_schedule": ",".join(
            f"{max(1, round(part * layers))}:{share:g}" for part, share in self.depth)}


# By the value of --recipe.
PRETRAINING_RECIPES = {
    "release": PretrainingRecipe(
        "the defaults of the original "
        "implementation", training={"sentence_objective": "order"}),
    # Section 4 and table 9, for base. The optimizer is still LAMB, with the learning
    # rate that its paper gives for this batch size, 5 / (2^1.5 * 1000).
    "roberta": PretrainingRecipe(
        "RoBERTa (Liu et al., 2019)",
        records=dict(sentence_objective="none", masked_lm_prob=0.0, dupe_factor=1,
                     short_seq_prob=0.0),
        training=dict(sentence_objective="none", dynamic_masking=True,
                      train_batch_size=8192, num_train_steps=500_000,
                      num_warmup_steps=24_000),
        slots=0.15),
    # Each sequence has 2.7 times as many predictions, so that half the batch size is
    # enough. The first steps use few layers. The learning rate decays late.
    "fast": PretrainingRecipe(
        "experiments/time_to_quality.py", records=dict(masked_lm_prob=0.4),
        training=dict(train_batch_size=2048, decay_share=0.3),
        depth=((0.25, 0.5), (0.5, 0.25), (1.0, 0.25)), slots=0.4),
}
