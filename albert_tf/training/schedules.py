"""Schedules: depth and sequence lengths that change during training, without
TensorFlow.

Both are written VALUE:SHARE,... and depend only on the step, so that a run that was
killed resumes exactly where it stopped. The learning-rate schedule is in
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
from typing import NamedTuple, Optional, Sequence

from albert_tf import files
from albert_tf.config import AlbertConfig
from albert_tf.errors import InputError


@dataclasses.dataclass(frozen=True)
class Phases:
    """Values that follow each other, each for a share of the training.

    >>> phases = Phases.parse("3:0.5,6:0.25,12:0.25", 1000, "--depth_schedule")
    >>> [phases.at(step) for step in (0, 499, 500, 749, 750, 999)]
    [3, 3, 6, 6, 12, 12]

    Attributes:
      values: value of each phase.
      ends: step at which each phase ends; the last phase never ends.
    """

    values: tuple[int, ...]
    ends: tuple[int, ...]

    @classmethod
    def parse(cls, text: str, num_steps: int, flag: str,
              form: str = "PASSES:SHARE,... such as 3:0.5,6:0.25,12:0.25") -> "Phases":
        """Parses "value:share of the steps,…", the value of `flag`."""
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
                f"{flag}={text}: the shares of the steps add up to "
                f"{sum(shares):g}; give positive shares that add up to 1.")
        whole = sum(shares)
        ends = (*(round(done / whole * num_steps)
                  for done in list(itertools.accumulate(shares))[:-1]), num_steps)
        for phase, begin, end in zip(phases, (0, *ends), ends):
            if begin == end:
                raise InputError(
                    f"{flag}={text}: {phase[0].strip()} is less than one step of "
                    f"{num_steps}; give it a larger share, or leave it out.")
        return cls(tuple(int(phase[1]) for phase in phases), ends)

    def at(self, step: int) -> int:
        """Returns the value at step `step`, which counts from 0."""
        return self.values[bisect.bisect_right(self.ends[:-1], step)]

    def mean(self, first: int, end: int) -> float:
        """Returns the mean over the steps from `first` to `end`, for time estimates."""
        if first >= end:
            return self.at(first)
        bounds = [first, *(min(max(bound, first), end) for bound in self.ends[:-1]),
                  end]
        return sum(value * (after - before) for value, before, after in zip(
            self.values, bounds, bounds[1:])) / (end - first)


def mean_product(schedules: Sequence[Phases], first: int, end: int) -> float:
    """Returns the mean of the schedules' product over the steps `first` to `end`."""
    bounds = sorted({first, max(end, first + 1), *(
        bound for schedule in schedules for bound in schedule.ends
        if first < bound < end)})
    return sum(
        (after - before) * math.prod(s.mean(before, after) for s in schedules)
        for before, after in zip(bounds, bounds[1:])) / (bounds[-1] - bounds[0])


# ---- depth -----------------------------------------------------------------


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
    depth = Phases.parse(schedule, num_steps, "--depth_schedule")
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


# ---- lengths ---------------------------------------------------------------


class Stage(NamedTuple):
    """Training steps with one sequence length, which end where the next stage
    begins."""

    begin: int
    length: int


def stages_of(num_steps: int, length: int, length_schedule: str = "") -> list[Stage]:
    """Returns the stages of --length_schedule, which must end at `length`.

    >>> stages_of(100, 512, "128:0.9,512:0.1")
    [Stage(begin=0, length=128), Stage(begin=90, length=512)]
    """
    if not length_schedule:
        return [Stage(0, length)]
    flag = f"--length_schedule={length_schedule}"
    lengths = Phases.parse(length_schedule, num_steps, "--length_schedule",
                           "LENGTH:SHARE,... such as 128:0.9,512:0.1")
    last = lengths.values[-1]
    if 0 in lengths.values:
        raise InputError(f"{flag} has a length of 0; give lengths of 1 or more.")
    if last != length:
        raise InputError(
            f"{flag} ends at {last}, but --max_seq_length is {length}; end at "
            f"{length}, or give --max_seq_length={last}.")
    return list(map(Stage, (0, *lengths.ends), lengths.values))


def parts_of(length: int, longest: int, parts: int, rows: int) -> int:
    """Returns the number of parts into which each replica splits its `rows` sequences
    of `length`, if it splits sequences of length `longest` into `parts`: no part may
    have more tokens than with the longest."""
    needed = -(-parts * length // longest)
    return next((count for count in range(max(needed, 1), rows) if rows % count == 0),
                rows)


def by_length(text: str, flag: str, lengths: Sequence[int], such_as: str
              ) -> dict[int, int]:
    """Parses "length:number,…", the value of `flag`; returns the numbers by length.
    `lengths` are those of --length_schedule; empty without it."""
    if text and not lengths:
        raise InputError(
            f"{flag} has an effect only with --length_schedule; give both, or leave "
            f"{flag} out.")
    pairs = [re.fullmatch(r"\s*(\d{1,9}):(\d{1,9})\s*", pair)
             for pair in text.split(",")] if text else []
    if not all(pairs) or any(int(pair[2]) < 1 for pair in pairs):
        raise InputError(f"{flag}={text} cannot be read; give LENGTH:NUMBER,... such "
                         f"as {such_as}.")
    keys = [int(pair[1]) for pair in pairs]
    for length in keys:
        if length not in lengths:
            raise InputError(f"{flag}={text}: --length_schedule has no length "
                             f"{length}; give its lengths, "
                             f"{', '.join(map(str, lengths))}.")
    if len(set(keys)) < len(keys):
        raise InputError(f"{flag}={text}: a length occurs twice; give each once.")
    return {int(pair[1]): int(pair[2]) for pair in pairs}


def patterns_by_length(text: str, flag: str, lengths: Sequence[int]
                       ) -> dict[int, list[str]]:
    """Parses "length:pattern,…", the value of `flag`; returns patterns of files by the
    length of their records. A pattern without a length has the length before it."""
    patterns: dict[int, list[str]] = {}
    length = None
    for name in files.split_names(text, lambda name: False):
        match = re.fullmatch(r"(\d{1,9}):(.*)", name)
        length = int(match[1]) if match else length
        if length is None:
            raise InputError(
                f"{flag}: {name} has no length; with --length_schedule give "
                f"{lengths[0]}:{name}, or another length.")
        patterns.setdefault(length, []).append(match[2] if match else name)
    for length in {**dict.fromkeys(lengths), **patterns}:
        if length not in patterns:
            raise InputError(
                f"{flag} lists no records of length {length}, which is in "
                f"--length_schedule; give {length}:FILES too.")
        if length not in lengths:
            raise InputError(
                f"{flag} lists records of length {length}, which is not in "
                "--length_schedule; remove them.")
    return patterns
