"""Depth as a schedule: how many passes through the shared layer a step takes.

Where all layers share one block, depth is only the number of passes through it, so
that it can grow while the model learns: no weights are copied, and the moments of the
optimizer stay what they are. A pass is a layer of the config (its inner groups
together), and a step with fewer of them leaves out the last ones. No TensorFlow.
"""

import bisect
import dataclasses
import math
import re
from typing import Optional, Protocol

import numpy as np

from albert_tf.config import AlbertConfig
from albert_tf.errors import InputError

# The seeds of random depth are this and the step; dropout and masks have others.
_DRAWS = 0x44455054


class Depth(Protocol):
    """The passes of each training step; a function of the step alone, so that a run
    that was killed continues as it would have."""

    def at(self, step: int) -> int:
        """The passes of step `step`, which counts from 0."""

    def mean(self, first: int, end: int) -> float:
        """The mean over the steps from `first` to `end`, for estimates of time."""


@dataclasses.dataclass(frozen=True)
class DepthSchedule:
    """Phases of the training, each with its number of passes.

    >>> schedule = DepthSchedule.parse("3:0.5,6:0.25,12:0.25", num_steps=1000)
    >>> [schedule.at(step) for step in (0, 499, 500, 749, 750, 999)]
    [3, 3, 6, 6, 12, 12]

    Attributes:
      passes: of each phase.
      ends: the step at which each phase ends.
    """

    passes: tuple[int, ...]
    ends: tuple[int, ...]

    @classmethod
    def parse(cls, text: str, num_steps: int) -> "DepthSchedule":
        """From "passes:share of the steps,…", as --depth_schedule has it."""
        phases = [re.fullmatch(r"\s*(\d{1,9}):([0-9.eE+-]+)\s*", phase)
                  for phase in text.split(",")]
        advice = "give PASSES:SHARE,... such as 3:0.5,6:0.25,12:0.25"
        if not all(phases):
            raise InputError(f"--depth_schedule={text} cannot be read; {advice}.")
        try:
            shares = [float(phase[2]) for phase in phases]
        except ValueError:
            raise InputError(
                f"--depth_schedule={text} cannot be read; {advice}.") from None
        if not all(share > 0 for share in shares) or (
                not math.isclose(sum(shares), 1, abs_tol=1e-3)):
            raise InputError(
                f"--depth_schedule={text}: the shares of the steps make "
                f"{sum(shares):g}; give positive ones that make 1.")
        done = np.cumsum(shares) / sum(shares) * num_steps
        ends = (*(round(float(end)) for end in done[:-1]), num_steps)
        for phase, begin, end in zip(phases, (0, *ends), ends):
            if begin == end:
                raise InputError(
                    f"--depth_schedule={text}: {phase[0].strip()} is not one step of "
                    f"{num_steps}; give it a larger share, or leave it out.")
        return cls(tuple(int(phase[1]) for phase in phases), ends)

    def at(self, step: int) -> int:
        phase = bisect.bisect_right(self.ends, step)
        return self.passes[min(phase, len(self.passes) - 1)]

    def mean(self, first: int, end: int) -> float:
        if first >= end:
            return self.at(first)
        bounds = [first, *(min(max(bound, first), end) for bound in self.ends[:-1]),
                  end]
        return sum(passes * (after - before) for passes, before, after in zip(
            self.passes, bounds, bounds[1:])) / (end - first)


@dataclasses.dataclass(frozen=True)
class RandomDepth:
    """Each step draws its passes from `least` to `most`, all equally likely, so that
    one model serves at any of these depths."""

    least: int
    most: int
    seed: int

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


def depth_of(config: AlbertConfig, num_steps: int, seed: int, schedule: str = "",
             random: str = "") -> Optional[Depth]:
    """What --depth_schedule or --random_depth ask for; None for all layers always."""
    if not schedule and not random:
        return None
    if schedule and random:
        raise InputError(
            "--depth_schedule and --random_depth exclude each other; give one of them.")
    given = (f"--depth_schedule={schedule}" if schedule else f"--random_depth={random}")
    layers = config.num_hidden_layers
    for what, index in (("attention", config.attention_index),
                        ("feed-forward", config.ffn_index)):
        if len(set(map(index, range(layers)))) > 1:
            raise InputError(
                f"{given}: the config's layers do not share one {what} block "
                f"(num_hidden_groups {config.num_hidden_groups}, parameter_sharing "
                f"'{config.parameter_sharing}'), so depth is no free choice; leave the "
                "flag out.")
    depth: Depth = (DepthSchedule.parse(schedule, num_steps) if schedule
                    else RandomDepth.parse(random, seed))
    passes = depth.passes if schedule else (depth.least, depth.most)
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
