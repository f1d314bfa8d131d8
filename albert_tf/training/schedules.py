"""Schedules of depth: passes through the shared layer that change during training,
without TensorFlow.

A schedule is written PASSES:SHARE,... and depends only on the step, so that a run that
was killed resumes exactly where it stopped. The learning-rate schedule is in
`optimization`.

If all layers share one block, depth is only the number of passes through it, so that it
can grow during training: no weights are copied, and the moments of the optimizer stay
valid. A pass is a layer of the config (with all its inner groups). A step with fewer
passes leaves out the last ones.
"""

import bisect
import dataclasses
import itertools
import math
import re
from typing import Optional

from albert_tf.config import AlbertConfig
from albert_tf.errors import InputError


@dataclasses.dataclass(frozen=True)
class Phases:
    """Numbers of passes that follow each other, each for a share of the training.

    >>> phases = Phases.parse("3:0.5,6:0.25,12:0.25", 1000)
    >>> [phases.at(step) for step in (0, 499, 500, 749, 750, 999)]
    [3, 3, 6, 6, 12, 12]

    Attributes:
      values: number of passes of each phase.
      ends: step at which each phase ends; the last phase never ends.
    """

    values: tuple[int, ...]
    ends: tuple[int, ...]

    @classmethod
    def parse(cls, text: str, num_steps: int) -> "Phases":
        """Parses "passes:share of the steps,…", the value of --depth_schedule."""
        flag = f"--depth_schedule={text}"
        phases = [re.fullmatch(r"\s*(\d{1,9}):([0-9.eE+-]+)\s*", phase)
                  for phase in text.split(",")]
        advice = "give PASSES:SHARE,... such as 3:0.5,6:0.25,12:0.25"
        if not all(phases):
            raise InputError(f"{flag} cannot be read; {advice}.")
        try:
            shares = [float(phase[2]) for phase in phases]
        except ValueError:
            raise InputError(f"{flag} cannot be read; {advice}.") from None
        if not all(share > 0 for share in shares) or (
                not math.isclose(sum(shares), 1, abs_tol=1e-3)):
            raise InputError(
                f"{flag}: the shares of the steps add up to "
                f"{sum(shares):g}; give positive shares that add up to 1.")
        whole = sum(shares)
        ends = (*(round(done / whole * num_steps)
                  for done in list(itertools.accumulate(shares))[:-1]), num_steps)
        for phase, begin, end in zip(phases, (0, *ends), ends):
            if begin == end:
                raise InputError(
                    f"{flag}: {phase[0].strip()} is less than one step of "
                    f"{num_steps}; give it a larger share, or leave it out.")
        return cls(tuple(int(phase[1]) for phase in phases), ends)

    def at(self, step: int) -> int:
        """Returns the number of passes of step `step`, which counts from 0."""
        return self.values[bisect.bisect_right(self.ends[:-1], step)]

    def mean(self, first: int, end: int) -> float:
        """Returns the mean over the steps from `first` to `end`, for time estimates."""
        if first >= end:
            return self.at(first)
        bounds = [first, *(min(max(bound, first), end) for bound in self.ends[:-1]),
                  end]
        return sum(value * (after - before) for value, before, after in zip(
            self.values, bounds, bounds[1:])) / (end - first)


def not_shared(config: AlbertConfig) -> str:
    """Returns the kind of block that the layers do not share; "" if they share all."""
    for what, index in (("attention", config.attention_index),
                        ("feed-forward", config.ffn_index)):
        if len(set(map(index, range(config.num_hidden_layers)))) > 1:
            return what
    return ""


def depth_of(config: AlbertConfig, num_steps: int, schedule: str = ""
             ) -> Optional[Phases]:
    """Returns the phases of --depth_schedule; None uses all layers in every step."""
    if not schedule:
        return None
    flag = f"--depth_schedule={schedule}"
    layers = config.num_hidden_layers
    if what := not_shared(config):
        raise InputError(
            f"{flag}: the config's layers do not share one {what} block "
            f"(num_hidden_groups {config.num_hidden_groups}, parameter_sharing "
            f"'{config.parameter_sharing}'), therefore their number cannot change; "
            "leave the flag out.")
    depth = Phases.parse(schedule, num_steps)
    wrong = [number for number in depth.values if not 1 <= number <= layers]
    if wrong:
        raise InputError(f"{flag}: {wrong[0]} passes; the config has "
                         f"num_hidden_layers {layers}; give 1 to {layers}.")
    last = depth.values[-1]
    if last != layers:
        raise InputError(
            f"{flag} ends at {last} passes, but the trained model uses the "
            f"config's num_hidden_layers {layers}; end at "
            f"{layers}, or give --config_overrides=num_hidden_layers={last}.")
    return depth
