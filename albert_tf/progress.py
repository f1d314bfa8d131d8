"""How far long work is, how fast, how long still."""

import time
from typing import Optional

from absl import logging

_SECONDS_BETWEEN_LINES = 10


def duration(seconds: float) -> str:
    """A duration in its two largest units: '2 d 3 h', '4 min 10 s'."""
    seconds = int(round(seconds))
    units = [("d", 86400), ("h", 3600), ("min", 60), ("s", 1)]
    for (name, size), (next_name, next_size) in zip(units, units[1:]):
        if seconds >= size:
            rest = seconds % size // next_size
            return f"{seconds // size} {name} {rest} {next_name}"
    return f"{seconds} s"


class Progress:
    """A line on the log now and then: how far, how fast, how long still.

    Args:
      doing: what goes on, to begin the line with.
      unit: what is counted.
      total: how many there are; None if that is not known.
    """

    def __init__(self, doing: str, unit: str, total: Optional[float]):
        self._doing, self._unit, self._total = doing, unit, total
        self._begin = self._last = time.monotonic()

    def update(self, done: float, more: str = "") -> None:
        """Tells of `done` units, and of `more` at the end of a line that is due."""
        now = time.monotonic()
        if now - self._last < _SECONDS_BETWEEN_LINES:
            return
        self._last = now
        rate = done / max(now - self._begin, 1e-9)
        line = f"{self._doing}: {_short(done)}"
        if self._total:
            line += f" of {_short(self._total)} {self._unit} ({done / self._total:.1%})"
            left = max(self._total - done, 0) / rate
            line += f", {duration(left)} left"
        else:
            line += f" {self._unit}"
        logging.info("%s, %s %s/s%s", line, _short(rate), self._unit, more)


def _short(number: float) -> str:
    return (f"{number:,}" if isinstance(number, int) else
            f"{number:,.0f}" if number >= 100 else f"{number:.1f}")
