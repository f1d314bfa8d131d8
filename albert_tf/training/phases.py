"""Schedules in phases: values that change as the training goes. No TensorFlow.

Depth (`depth`) and the lengths of sequences are written VALUE:SHARE,... and are
functions of the step alone, so that a run that was killed continues as it would have.
"""

import bisect
import dataclasses
import itertools
import math
import re
from typing import NamedTuple, Protocol, Sequence

from albert_tf import files
from albert_tf.errors import InputError


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


# ---- stages ----------------------------------------------------------------


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
