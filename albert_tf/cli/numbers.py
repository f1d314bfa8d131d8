"""The type of all flags that are numbers with a fraction."""

from typing import Optional

from absl import flags


# For flags whose bounds are checked elsewhere, with a sentence of its own.
ANY = dict(lower_bound=-1e38)


class Number(flags.FloatParser):
    """Parses a finite number within bounds, for flags.DEFINE; `below` itself is
    refused.

    absl's own parser lets nan pass every bound."""

    def __init__(self, upper_bound: float = 1e38, below: Optional[float] = None,
                 lower_bound: float = 0.0):
        super().__init__(lower_bound, upper_bound)
        self._below = below
        if (lower_bound, upper_bound) == (-1e38, 1e38):
            self.syntactic_help = "a finite number"
        if below is not None:
            self.syntactic_help = f"a number of at least 0 and below {below:g}"

    def is_outside_bounds(self, val: float) -> bool:
        return not self.lower_bound <= val <= self.upper_bound or (
            self._below is not None and val >= self._below)
