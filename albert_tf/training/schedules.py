"""Schedules of depth, a number of layers that grows during training, and recipes: named
presets of flags for create_pretraining_data.py and run_pretraining.py. Without TensorFlow.

If all layers share one block, their number can grow: no weights are copied, and the
moments of the optimizer stay valid. A step with fewer layers leaves out the last ones,
each with all its inner groups. A schedule depends only on the step, so that a run that
was killed resumes exactly where it stopped.
"""

import bisect
import contextlib
import dataclasses
import itertools
import math
from typing import Any, Mapping, Optional

from albert_tf.config import AlbertConfig
from albert_tf.errors import InputError


@dataclasses.dataclass(frozen=True)
class Phases:
    """Numbers of layers that follow each other, each for a share of the training.

    >>> phases = Phases((3, 6, 12), (500, 750, 1000))
    >>> [phases.at(step) for step in (0, 499, 500, 749, 750, 999)]
    [3, 3, 6, 6, 12, 12]

    """

    values: tuple[int, ...]
    ends: tuple[int, ...]  # step at which each phase ends; the last phase never ends

    def at(self, step: int) -> int:
        """Returns the number of layers of step `step`, which counts from 0."""
        return self.values[bisect.bisect_right(self.ends[:-1], step)]


def not_shared(config: AlbertConfig) -> str:
    """Returns the kind of block that the layers do not share; "" if they share all."""
    for kind, what in (("attention", "attention"), ("ffn", "feed-forward")):
        if len({*config.block_indices(kind)}) > 1:
            return what
    return ""


def depth_of(config: AlbertConfig, num_steps: int, schedule: str = ""
             ) -> Optional[Phases]:
    """Returns the phases of --depth_schedule, "layers:share of the steps,…"; None uses
    all layers in every step."""
    if not schedule:
        return None
    flag, most = f"--depth_schedule={schedule}", config.num_hidden_layers
    if what := not_shared(config):
        raise InputError(
            f"{flag}: the config's layers do not share one {what} block "
            f"(num_hidden_groups {config.num_hidden_groups}, parameter_sharing "
            f"'{config.parameter_sharing}'), therefore their number cannot change; "
            "leave the flag out.")
    depth, shares = None, ()
    with contextlib.suppress(ValueError, ArithmeticError):
        layers, shares = zip(*((int(number), float(share)) for number, _, share in (
            phase.partition(":") for phase in schedule.split(","))))
        whole = sum(shares)
        ends = [round(done / whole * num_steps) for done in itertools.accumulate(shares)]
        depth = Phases(layers, (*ends[:-1], num_steps))
    # The trained model uses all layers, so the last step must, too.
    if not (depth and all(share > 0 for share in shares)
            and math.isclose(sum(shares), 1, abs_tol=1e-3)
            and all(1 <= number <= most for number in depth.values)
            and depth.at(num_steps - 1) == most):
        raise InputError(
            f"{flag}: give LAYERS:SHARE,..., such as 3:0.5,6:0.25,12:0.25, with positive "
            "shares of the steps that add up to 1, and numbers of layers up to the "
            f"config's num_hidden_layers {most}, which is that of the last step.")
    return depth


# ---- recipes ---------------------------------------------------------------


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
