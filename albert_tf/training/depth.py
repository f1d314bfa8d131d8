"""Depth as a schedule: how many passes through the shared layer a step takes.

Where all layers share one block, depth is only the number of passes through it, so
that it can grow while the model learns: no weights are copied, and the moments of the
optimizer stay what they are. A pass is a layer of the config (its inner groups
together), and a step with fewer of them leaves out the last ones. No TensorFlow.
"""

import dataclasses
import re
from typing import Optional

import numpy as np

from albert_tf.config import AlbertConfig
from albert_tf.errors import InputError
from albert_tf.training.phases import Phases, Schedule

# The seeds of random depth are this and the step; dropout and masks have others.
_DRAWS = 0x44455054


@dataclasses.dataclass(frozen=True)
class RandomDepth:
    """Each step draws its passes from `least` to `most`, all equally likely, so that
    one model serves at any of these depths."""

    least: int
    most: int
    seed: int
    ends = ()  # Its mean never changes.

    @classmethod
    def parse(cls, text: str, seed: int) -> "RandomDepth":
        """From "least-most", as --random_depth has it."""
        found = re.fullmatch(r"\s*(\d{1,9})-(\d{1,9})\s*", text)
        if not found or int(found[1]) > int(found[2]):
            raise InputError(f"--random_depth={text} cannot be read; give LEAST-MOST "
                             "passes, such as 4-12.")
        return cls(int(found[1]), int(found[2]), seed)

    def at(self, step: int) -> int:
        draw, = np.random.SeedSequence(
            [_DRAWS, self.seed % 2**64, step]).generate_state(1, np.uint64)
        return self.least + int(draw) % (self.most - self.least + 1)

    def mean(self, first: int, end: int) -> float:
        del first, end
        return (self.least + self.most) / 2


def not_shared(config: AlbertConfig) -> str:
    """The kind of block of which the layers do not share one; "" if they share all."""
    for what, index in (("attention", config.attention_index),
                        ("feed-forward", config.ffn_index)):
        if len(set(map(index, range(config.num_hidden_layers)))) > 1:
            return what
    return ""


def depth_of(config: AlbertConfig, num_steps: int, seed: int, schedule: str = "",
             random: str = "") -> Optional[Schedule]:
    """What --depth_schedule or --random_depth ask for; None for all layers always."""
    if not schedule and not random:
        return None
    if schedule and random:
        raise InputError(
            "--depth_schedule and --random_depth exclude each other; give one of them.")
    given = (f"--depth_schedule={schedule}" if schedule else f"--random_depth={random}")
    layers = config.num_hidden_layers
    if what := not_shared(config):
        raise InputError(
            f"{given}: the config's layers do not share one {what} block "
            f"(num_hidden_groups {config.num_hidden_groups}, parameter_sharing "
            f"'{config.parameter_sharing}'), so depth is no free choice; leave the "
            "flag out.")
    depth: Schedule = (Phases.parse(schedule, num_steps, "--depth_schedule") if schedule
                       else RandomDepth.parse(random, seed))
    passes = depth.values if schedule else (depth.least, depth.most)
    wrong = [number for number in passes if not 1 <= number <= layers]
    if wrong:
        raise InputError(f"{given}: {wrong[0]} passes; the config has "
                         f"num_hidden_layers {layers}, so give 1 to {layers}.")
    if passes[-1] != layers:
        raise InputError(
            f"{given} ends at {passes[-1]} passes, but the config has "
            f"num_hidden_layers {layers}, which the model is used with; end at "
            f"{layers}, or give --config_overrides=num_hidden_layers={passes[-1]}.")
    return depth
