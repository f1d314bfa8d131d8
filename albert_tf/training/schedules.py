"""Schedules of depth: a number of layers that grows during training, without TensorFlow.

If all layers share one block, their number can grow: no weights are copied, and the
moments of the optimizer stay valid. A step with fewer layers leaves out the last ones,
each with all its inner groups. A schedule depends only on the step, so that a run that
was killed resumes exactly where it stopped.
"""

import bisect
import dataclasses
import itertools
import math
from typing import Optional

from albert_tf.config import AlbertConfig
from albert_tf.errors import InputError


@dataclasses.dataclass(frozen=True)
class Phases:
    """Numbers of layers that follow each other, each for a share of the training.

    >>> phases = Phases.parse("3:0.5,6:0.25,12:0.25", 1000)
    >>> [phases.at(step) for step in (0, 499, 500, 749, 750, 999)]
    [3, 3, 6, 6, 12, 12]

    """

    values: tuple[int, ...]
    ends: tuple[int, ...]  # step at which each phase ends; the last phase never ends

    @classmethod
    def parse(cls, text: str, num_steps: int) -> "Phases":
        """Parses "layers:share of the steps,…", the value of --depth_schedule."""
        try:
            layers, shares = zip(*(
                (int(number), float(share)) for number, _, share in (
                    phase.partition(":") for phase in text.split(","))))
        except ValueError:
            shares = ()
        if not all(share > 0 for share in shares) or (
                not math.isclose(sum(shares), 1, abs_tol=1e-3)):
            raise InputError(
                f"--depth_schedule={text}: give LAYERS:SHARE,... with positive shares "
                "of the steps that add up to 1, such as 3:0.5,6:0.25,12:0.25.")
        whole = sum(shares)
        ends = (*(round(done / whole * num_steps)
                  for done in list(itertools.accumulate(shares))[:-1]), num_steps)
        return cls(layers, ends)

    def at(self, step: int) -> int:
        """Returns the number of layers of step `step`, which counts from 0."""
        return self.values[bisect.bisect_right(self.ends[:-1], step)]


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
    # The trained model uses all layers, so the last step must, too.
    if not all(1 <= number <= layers for number in depth.values) or (
            depth.at(num_steps - 1) != layers):
        raise InputError(
            f"{flag}: give numbers of layers from 1 to the config's num_hidden_layers "
            f"{layers}, which is that of the last step.")
    return depth
