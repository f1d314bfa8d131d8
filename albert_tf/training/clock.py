"""--time_budget: schedules follow the clock, and the run ends on time."""

import statistics
import time
from typing import Optional

import tensorflow as tf
from absl import logging

from albert_tf.jobs.progress import duration
from albert_tf.training.phases import PLACES, Phases, Schedule


class Clock:
    """How much of a run's time is gone, in PLACES of the whole, which its schedules
    count; made in the strategy's scope.

        clock = Clock(budget=6 * 3600)
        optimizer = create_optimizer(0.00176, 125000, 3125, clock=clock.place)
        Run(..., clock=clock)

    The time of a run's earlier parts, up to the checkpoint that it goes on from, counts
    too. In a cluster the chief's clock holds for all: each step's exchange of gradients
    brings what it says.

    Args:
      budget: seconds.
      begin: time.monotonic() at the start of the program.
      now: the clock.
    """

    def __init__(self, budget: float, begin: Optional[float] = None,
                 now=time.monotonic):
        self.budget, self._now = budget, now
        self._begin = now() if begin is None else begin

        def variable(value, dtype):
            return tf.Variable(
                value, False, dtype=dtype,
                aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)

        self.place = variable(0, tf.int64)
        # Of a checkpoint: what was used up to it, and of what.
        self.state = tf.train.Checkpoint(
            place=self.place, seconds=variable(0.0, tf.float64),
            budget=variable(budget, tf.float64))
        self._before = 0.0
        # What `place` holds, without asking TensorFlow.
        self.place_on_host = 0
        self._last, self._steps = self.used, []

    @property
    def used(self) -> float:
        """Seconds since the start of the run's first part, without pauses."""
        return self._before + self._now() - self._begin

    @property
    def over(self) -> bool:
        """Whether training is to end."""
        return self.place_on_host >= PLACES

    def restored(self) -> None:
        """Goes on from what a checkpoint says."""
        self._before = float(self.state.seconds.numpy())
        moment = int(self.place.numpy())
        if float(self.state.budget.numpy()) != self.budget:
            moment = min(int(self._before / self.budget * PLACES), PLACES)
        self._last = self.used
        self.go_to(moment)

    def before_saving(self) -> None:
        self.state.seconds.assign(self.used)
        self.state.budget.assign(self.budget)

    def go_to(self, moment: int) -> None:
        """Sets the place, for the host and for the step."""
        self.place_on_host = moment
        self.place.assign(moment)

    @property
    def of_step(self) -> float:
        """Seconds that a step takes: the median of the last few."""
        return statistics.median(self._steps or [0.0])

    @property
    def steps_at_once(self) -> int:
        """So many that schedules move by a hundredth of the time."""
        return int(max(1, 0.01 * self.budget / self.of_step)) if self._steps else 1

    def moment(self, reserve: float, steps: int, before_checkpoint: bool = False) -> int:
        """The place now, where the last `reserve` seconds are left to what follows the
        training. `steps` were made since the last call, 0 if they say nothing of the
        time of others. `before_checkpoint`: as many seconds will be used first."""
        used = self.used
        if steps:
            self._steps = [*self._steps, (used - self._last) / steps][-9:]
        self._last = used
        end = self.budget - reserve
        if used + self.of_step > end or (
                before_checkpoint and used + reserve + 2 * self.of_step > end):
            return PLACES
        return max(self.place_on_host, min(int(used / end * PLACES), PLACES - 1))

    def skip(self) -> float:
        """Leaves the time since the last step out of what steps take; returns it."""
        begin, self._last = self._last, self.used
        return self._last - begin

    def followed_by(self, schedule: Optional[Schedule]) -> Optional[Schedule]:
        """The schedule by the clock, if it was made of PLACES."""
        return _ByClock(schedule, self) if isinstance(schedule, Phases) else schedule

    def say(self, step: int) -> None:
        logging.info("The time is over: step %d, after %s of --time_budget's %s.", step,
                     duration(self.used), duration(self.budget))


class _ByClock:
    """Phases of the time."""

    ends = ()

    def __init__(self, phases: Phases, clock: Clock):
        self._phases, self._clock, self.values = phases, clock, phases.values

    def at(self, step: int) -> int:
        del step
        return self._phases.at(self._clock.place_on_host)

    def mean(self, first: int, end: int) -> float:
        del end
        return self.at(first)
