"""Schedules: the depth and the lengths of sequences change as the training goes.

Both are written VALUE:SHARE,... and are functions of the step alone, so that a run that
was killed continues as it would have. The learning rate's is in `optimization`. No
TensorFlow.

Where all layers share one block, depth is only the number of passes through it, so that
it can grow while the model learns: no weights are copied, and the moments of the
optimizer stay what they are. A pass is a layer of the config (its inner groups
together), and a step with fewer of them leaves out the last ones.
"""

import bisect
import dataclasses
import itertools
import math
import re
from typing import NamedTuple, Optional, Protocol, Sequence

import numpy as np

from albert_tf import files
from albert_tf.config import AlbertConfig
from albert_tf.errors import InputError

# The seeds of random depth are this and the step; dropout and masks have others.
_DRAWS = 0x44455054


class Schedule(Protocol):
    """A number for each training step."""

    ends: Sequence[int]  # steps at which its mean may change

    def at(self, step: int) -> int:
        """That of step `step`, which counts from 0."""

    def mean(self, first: int, end: int) -> float:
        """The mean over the steps from `first` to `end`, for estimates of time."""


@dataclasses.dataclass(frozen=True)
class Phases:
    """Values in turns, each for a share of the training.

    >>> phases = Phases.parse("3:0.5,6:0.25,12:0.25", 1000, "--depth_schedule")
    >>> [phases.at(step) for step in (0, 499, 500, 749, 750, 999)]
    [3, 3, 6, 6, 12, 12]

    Attributes:
      values: of each phase.
      ends: the step at which each phase ends; the last one never does.
    """

    values: tuple[int, ...]
    ends: tuple[int, ...]

    @classmethod
    def parse(cls, text: str, num_steps: int, flag: str,
              form: str = "PASSES:SHARE,... such as 3:0.5,6:0.25,12:0.25") -> "Phases":
        """From "value:share of the steps,…", as `flag` has it."""
        phases = [re.fullmatch(r"\s*(\d{1,9}):([0-9.eE+-]+)\s*", phase)
                  for phase in text.split(",")]
        advice = f"give {form}"
        if not all(phases):
            raise InputError(f"{flag}={text} cannot be read; {advice}.")
        try:
            shares = [float(phase[2]) for phase in phases]
        except ValueError:
            raise InputError(f"{flag}={text} cannot be read; {advice}.") from None
        if not all(share > 0 for share in shares) or (
                not math.isclose(sum(shares), 1, abs_tol=1e-3)):
            raise InputError(
                f"{flag}={text}: the shares of the steps make "
                f"{sum(shares):g}; give positive ones that make 1.")
        whole = sum(shares)
        ends = (*(round(done / whole * num_steps)
                  for done in list(itertools.accumulate(shares))[:-1]), num_steps)
        for phase, begin, end in zip(phases, (0, *ends), ends):
            if begin == end:
                raise InputError(
                    f"{flag}={text}: {phase[0].strip()} is not one step of "
                    f"{num_steps}; give it a larger share, or leave it out.")
        return cls(tuple(int(phase[1]) for phase in phases), ends)

    def at(self, step: int) -> int:
        return self.values[bisect.bisect_right(self.ends[:-1], step)]

    def mean(self, first: int, end: int) -> float:
        if first >= end:
            return self.at(first)
        bounds = [first, *(min(max(bound, first), end) for bound in self.ends[:-1]),
                  end]
        return sum(value * (after - before) for value, before, after in zip(
            self.values, bounds, bounds[1:])) / (end - first)


def mean_product(schedules: Sequence[Schedule], first: int, end: int) -> float:
    """The mean of the schedules' product over the steps from `first` to `end`."""
    bounds = sorted({first, max(end, first + 1), *(
        bound for schedule in schedules for bound in schedule.ends
        if first < bound < end)})
    return sum(
        (after - before) * math.prod(s.mean(before, after) for s in schedules)
        for before, after in zip(bounds, bounds[1:])) / (bounds[-1] - bounds[0])


# ---- depth -----------------------------------------------------------------


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


# ---- lengths ---------------------------------------------------------------


class Stage(NamedTuple):
    """Training steps whose sequences have one length, up to where the next begins."""

    begin: int
    length: int


def stages_of(num_steps: int, length: int, length_schedule: str = "") -> list[Stage]:
    """The stages that --length_schedule makes of a training, which ends at `length`.

    >>> stages_of(100, 512, "128:0.9,512:0.1")
    [Stage(begin=0, length=128), Stage(begin=90, length=512)]
    """
    if not length_schedule:
        return [Stage(0, length)]
    given = f"--length_schedule={length_schedule}"
    lengths = Phases.parse(length_schedule, num_steps, "--length_schedule",
                           "LENGTH:SHARE,... such as 128:0.9,512:0.1")
    last = lengths.values[-1]
    if 0 in lengths.values:
        raise InputError(f"{given} has a 0; give numbers of 1 or more.")
    if last != length:
        raise InputError(
            f"{given} ends at {last}, but --max_seq_length is {length}; end at "
            f"{length}, or give --max_seq_length={last}.")
    return list(map(Stage, (0, *lengths.ends), lengths.values))


def parts_of(length: int, longest: int, parts: int, rows: int) -> int:
    """Into how many parts each replica cuts its `rows` sequences of `length`, where
    those of the longest are cut into `parts`: a part has no more tokens than there."""
    needed = -(-parts * length // longest)
    return next((count for count in range(max(needed, 1), rows) if rows % count == 0),
                rows)


def by_length(text: str, flag: str, lengths: Sequence[int], such_as: str
              ) -> dict[int, int]:
    """Numbers by length, from "length:number,…", as `flag` has it; `lengths` are those
    of --length_schedule, none without it."""
    if text and not lengths:
        raise InputError(
            f"{flag} is for --length_schedule; give it too, or leave {flag} out.")
    pairs = [re.fullmatch(r"\s*(\d{1,9}):(\d{1,9})\s*", pair)
             for pair in text.split(",")] if text else []
    if not all(pairs) or any(int(pair[2]) < 1 for pair in pairs):
        raise InputError(f"{flag}={text} cannot be read; give LENGTH:NUMBER,... such as "
                         f"{such_as}.")
    found = [int(pair[1]) for pair in pairs]
    for length in found:
        if length not in lengths:
            raise InputError(f"{flag}={text}: --length_schedule has no {length}; give "
                             f"its lengths, {', '.join(map(str, lengths))}.")
    if len(set(found)) < len(found):
        raise InputError(f"{flag}={text}: a length occurs twice; give each once.")
    return {int(pair[1]): int(pair[2]) for pair in pairs}


def patterns_by_length(text: str, flag: str, lengths: Sequence[int]
                       ) -> dict[int, list[str]]:
    """Patterns of files by the length of their records, from "length:pattern,…": one
    without a length is of that before."""
    found: dict[int, list[str]] = {}
    length = None
    for name in files.split_names(text, lambda name: False):
        given = re.fullmatch(r"(\d{1,9}):(.*)", name)
        length = int(given[1]) if given else length
        if length is None:
            raise InputError(
                f"{flag}: {name} does not say of which length it is; with "
                f"--length_schedule give {lengths[0]}:{name}, or another length's.")
        found.setdefault(length, []).append(given[2] if given else name)
    for length in {**dict.fromkeys(lengths), **found}:
        if length not in found:
            raise InputError(
                f"{flag} has no records of length {length}, which --length_schedule "
                f"has; give {length}:FILES too.")
        if length not in lengths:
            raise InputError(
                f"{flag} has records of length {length}, which --length_schedule has "
                "not; leave them out.")
    return found
