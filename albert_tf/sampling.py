"""Mixes sources of text, such as languages, in more even shares than those they have;
draws random samples.

    times = times_of({"en/*": 9000, "fi/*": 1000}, 0.7)   # {"en/*": 0.915, "fi/*": 1.768}
    copies = Copies(times, seed=1)
    copies.of("fi/*", 20)      # 1 or 2, for a document of 20 sentences

The share of source i becomes proportional to n_i^exponent, where n_i is its number of
sentences (Conneau and Lample, "Cross-lingual language model pretraining", 2019, section
3.1; Conneau et al., "Unsupervised cross-lingual representation learning at scale", 2020,
section 3). The total stays the same: texts of small sources are repeated, and texts of
large ones left out.
"""

import collections
import math
import random
from typing import Iterable, Mapping, Optional, Sequence, TypeVar

from albert_tf.errors import InputError

T = TypeVar("T")


def sample(items: Iterable[T], size: int, seed: int) -> list[T]:
    """Returns all items, or a uniform random sample of `size` of them if there are more
    (Vitter 1985, "Random sampling with a reservoir", algorithm R)."""
    draw = random.Random(seed)
    chosen: list[T] = []
    for number, item in enumerate(items):
        if number < size:
            chosen.append(item)
        elif (place := draw.randrange(number + 1)) < size:
            chosen[place] = item
    return chosen


def is_wanted(exponent: Optional[float], sources: Mapping[str, Sequence[str]]) -> bool:
    """Returns whether --sampling_exponent changes the shares; 1 and None do not.

    `sources` are the patterns in --input_file with their files. Raises InputError for
    other numbers than those above 0 up to 1, and for fewer than two sources.
    """
    if exponent is None or exponent == 1:
        return False
    if not 0 < exponent < 1:
        raise InputError(
            f"--sampling_exponent={exponent:g} is not above 0 and at most 1; give a "
            "number such as 0.7, or 1 to leave the shares as they are.")
    if len(sources) < 2:
        raise InputError(
            f"--sampling_exponent={exponent:g} needs at least two sources; give a "
            "pattern for each in --input_file, as in 'en/*.txt,fi/*.txt', or leave "
            "--sampling_exponent out.")
    for pattern, paths in sources.items():
        if not paths:
            raise InputError(
                f"--input_file: all files that match '{pattern}' match a pattern before "
                "it, too, and a file belongs to one source; change the patterns, or "
                "leave --sampling_exponent out.")
    return True


def times_of(amounts: Mapping[str, int], exponent: float) -> dict[str, float]:
    """Returns how often to take each source, on average, so that its share is
    proportional to its amount raised to `exponent`; at least once for the smallest."""
    powers = {source: amount ** exponent for source, amount in amounts.items()}
    factor = sum(amounts.values()) / max(sum(powers.values()), 1)
    # Rounded, so that equal amounts have exactly 1.
    return {source: round(factor * powers[source] / max(amount, 1), 9)
            for source, amount in amounts.items()}


def as_table(amounts: Mapping[str, int], times: Mapping[str, float]) -> str:
    """Returns lines with the shares of the sources before and after."""
    total, width = max(sum(amounts.values()), 1), max(map(len, [*amounts, "source"]))
    lines = [f"{'source':{width}} {'sentences':>13} {'share':>7} {'sampled':>13} "
             f"{'share':>7} {'times':>8}"]
    for source, amount in amounts.items():
        after = amount * times[source]
        lines.append(
            f"{source:{width}} {amount:13,} {amount / total:7.2%} {after:13,.0f} "
            f"{after / total:7.2%} {times[source]:8.3f}")
    return "\n".join(lines)


class Copies:
    """Decides how often each text of a source is taken: the number of `times` (1 if the
    source is not among them), rounded up or down.

    A text that is taken more or less often than that is made up for by the next ones.
    The sum of a source is therefore right up to about one text. Equal seeds give equal
    decisions.
    """

    def __init__(self, times: Optional[Mapping[str, float]] = None, seed: int = 12345):
        self._times = times or {}
        self._owed: dict[str, float] = collections.defaultdict(float)
        self._draw = random.Random(seed)

    def of(self, source: str, amount: int = 1) -> int:
        """Returns how often to take the source's next text, which has this amount."""
        times = self._times.get(source)
        if times is None:
            return 1
        owed = self._owed[source] + times * amount
        copies = math.floor(owed / amount + self._draw.random())
        copies = min(max(copies, math.floor(times)), math.ceil(times))
        self._owed[source] = owed - copies * amount
        return copies
