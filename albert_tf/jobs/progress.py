"""Logs the progress of long work: how much is done, how fast, and the time left."""

import datetime
import time
from typing import Callable, Iterable, Mapping, Optional

from absl import logging

from albert_tf import files

SECONDS_BETWEEN_LINES = 10.0
# The speed is an average over the last lines: steady, but not that of an hour ago.
_LINES_OF_RATE = 10


def duration(seconds: float) -> str:
    """Formats a duration for people: '0:04:10', '2 days, 3:00:00'."""
    return str(datetime.timedelta(seconds=round(seconds)))


def amount(num_bytes: float) -> str:
    """Formats a number of bytes for people: '3,100 MB'."""
    return f"{_short(num_bytes / 1e6)} MB"


class Progress:
    """A counter of finished work that logs a line every few seconds.

        progress = Progress("reading", "documents", len(documents))
        progress.add(1)  # reading: 310 of 1,240 documents (25.0%), 0:00:50 left, ...

    `done` units are done at the start; `contents` is how many other things a unit has, by
    name, whose speed is logged, too.
    """

    def __init__(self, doing: str, unit: str, total: Optional[float], done: float = 0,
                 contents: Optional[Mapping[str, float]] = None):
        self._doing, self._unit, self._total, self._done = doing, unit, total, done
        self._rates = {unit: 1.0, **(contents or {})}
        self._marks = [(time.monotonic(), done)]

    @classmethod
    def of_bytes(cls, doing: str, paths: Iterable[str]) -> Callable[[int], None]:
        """Returns a function to call with numbers of bytes read of files; lines count in
        MB, and lack the total if a file is remote, where asking would be slow."""
        paths = list(paths)
        progress = cls(doing, "MB", None if any(map(files.is_remote, paths)) else sum(
            map(files.size, paths)) / 1e6)
        return lambda count: progress.add(count / 1e6)

    def restart(self, done: float) -> None:
        """Excludes the time since the last line from the speed, for example tracing."""
        self._marks = [(time.monotonic(), done)]

    def due(self) -> bool:
        """Returns whether it is time for the next line."""
        return time.monotonic() - self._marks[-1][0] >= SECONDS_BETWEEN_LINES

    def add(self, count: float) -> None:
        self.update(self._done + count)

    def update(self, done: float, more: str = "") -> None:
        """Logs a line, which ends in `more`, if one is due."""
        self._done = done
        if self.due():
            self.report(done, more)

    def report(self, done: float, more: str = "") -> None:
        """Logs a line now, which ends in `more`."""
        begin, first = self._marks[0]
        rate = max(done - first, 0) / max(time.monotonic() - begin, 1e-9)
        self._marks = [*self._marks, (time.monotonic(), done)][-_LINES_OF_RATE:]
        line = f"{self._doing}: {_short(done)} {self._unit}"
        if self._total:
            line = (f"{self._doing}: {_short(done)} of {_short(self._total)} {self._unit} "
                    f"({done / self._total:.1%})")
        if self._total and rate:
            seconds = max(self._total - done, 0) / rate
            end = datetime.datetime.now() + datetime.timedelta(seconds=seconds)
            line += f", {duration(seconds)} left"
            line += f" (until {end:%Y-%m-%d %H:%M})" * (seconds >= 60)
        for name, count in self._rates.items() if rate else ():
            line += f", {_short(rate * count)} {name}/s"
        logging.info("%s%s", line, more and f", {more}")


def _short(number: float) -> str:
    whole = isinstance(number, int) or number >= 100
    return f"{number:,.0f}" if whole else f"{number:.3g}"
