"""Mixes sources of text, such as languages, in more even shares than those they have
(Conneau and Lample, "Cross-lingual language model pretraining", 2019, section 3.1)."""

import collections
import dataclasses
import math
import random
from typing import Mapping, Optional, Sized

from absl import logging

from albert_tf.errors import InputError
from albert_tf.options import option


@dataclasses.dataclass(frozen=True)
class Sampling:
    """The option of the scripts that mix sources."""

    sampling_exponent: Optional[float] = option(
        None, "Mix several sources, such as languages, in more even shares. Each pattern "
        "of --input_file is a source, and its share becomes proportional to its number of "
        "sentences raised to this exponent, such as 0.7. The total stays the same: texts "
        "of small sources are repeated, and texts of large ones left out, except those "
        "held out. Default: 1, which takes everything once.", most=1)


def is_wanted(exponent: Optional[float], sources: Sized) -> bool:
    """Returns whether --sampling_exponent changes the shares of the patterns in
    --input_file. Raises InputError if there are no several ones."""
    wanted = exponent not in (None, 1)
    if wanted and len(sources) < 2:
        raise InputError(
            f"--sampling_exponent={exponent:g} needs a pattern for each source in "
            "--input_file, as in 'en/*.txt,fi/*.txt'.")
    return wanted


def times_of(amounts: Mapping[str, int], exponent: float) -> dict[str, float]:
    """Returns how often to take each source, on average, so that its share is
    proportional to its amount raised to `exponent`; logs the shares before and after."""
    powers = {source: amount ** exponent for source, amount in amounts.items()}
    total = max(sum(amounts.values()), 1)
    factor, times = total / max(sum(powers.values()), 1), {}
    for source, amount in amounts.items():
        # Rounded, so that equal amounts have exactly 1.
        times[source] = round(factor * powers[source] / max(amount, 1), 9)
        logging.info("%s: %d sentences, %.2f %%, taken %.3f times: %.2f %%", source, amount,
                     100 * amount / total, times[source],
                     100 * amount * times[source] / total)
    return times


class Copies:
    """Decides how often each text is taken: `times` of its source (by default 1), rounded
    up or down. The next texts make up for it."""

    def __init__(self, times: Optional[Mapping[str, float]] = None, seed: int = 12345):
        self._times, self._draw = times or {}, random.Random(seed)
        self._owed: dict[str, float] = collections.defaultdict(float)

    def of(self, source: str, amount: int = 1) -> int:
        """Returns how often to take the source's next text, which has this amount."""
        times = self._times.get(source, 1)
        owed = self._owed[source] + times * amount
        copies = math.floor(owed / amount + self._draw.random())
        copies = min(max(copies, math.floor(times)), math.ceil(times))
        self._owed[source] = owed - copies * amount
        return copies
