"""Won games out of played ones, with what chance leaves open: the one place where a success rate gets its interval.

The interval is that of Wilson (1927, "Probable inference, the law of succession, and statistical inference", JASA 22),
at 95 %: honest for few games and for rates near 0 and 1. The average over tasks gets its interval from those of the
tasks (:func:`average`). Nothing heavy is imported: every reader of a run uses this.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

Z = 1.959963984540054
"""The 97.5 % quantile of the standard normal distribution."""
NOTHING = "–"
"""What is written where no game was played."""


def wilson(successes: int, episodes: int) -> tuple[float, float]:
    """The ends of the 95 % interval of a success rate, in 0 to 1.

    Raises ValueError without episodes, and for other successes than 0 to `episodes`.
    """
    if not 0 <= successes <= episodes or episodes < 1:
        raise ValueError(f"{successes} successes of {episodes} episodes are no rate")
    share = successes / episodes
    middle = (share + Z**2 / (2 * episodes)) / (1 + Z**2 / episodes)
    half = Z / (1 + Z**2 / episodes) * math.sqrt(share * (1 - share) / episodes + Z**2 / (4 * episodes**2))
    # At the ends the two terms cancel: what rounding leaves of them is no part of the interval.
    return 0.0 if successes == 0 else middle - half, 1.0 if successes == episodes else middle + half


@dataclass(frozen=True, slots=True)
class Rate:
    """Successes of a number of episodes."""

    successes: int
    episodes: int
    broken: int = 0
    """Of the episodes, those that broke before their end: they count as lost."""

    @property
    def value(self) -> float | None:
        """Share of successes; None without episodes."""
        return self.successes / self.episodes if self.episodes else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Its 95 % interval; None without episodes."""
        return wilson(self.successes, self.episodes) if self.episodes else None

    @property
    def percent(self) -> str:
        """`38 %`."""
        return f"{100 * self.successes / self.episodes:.0f} %" if self.episodes else NOTHING

    @property
    def span(self) -> str:
        """The interval in percent: `14–69`."""
        if self.interval is None:
            return NOTHING
        low, high = self.interval
        return f"{100 * low:.0f}–{100 * high:.0f}"

    @property
    def short(self) -> str:
        """Counts and share: `3/8 38 %`, or `3/8 38 %, 2 broke`."""
        return f"{self.successes}/{self.episodes} {self.percent}{self._broke}" if self.episodes else NOTHING

    @property
    def told(self) -> str:
        """Counts, share and interval: `3/8 38 % [14–69]`, or `3/8 38 % [14–69], 2 broke`."""
        return (
            f"{self.successes}/{self.episodes} {self.percent} [{self.span}]{self._broke}" if self.episodes else NOTHING
        )

    @property
    def _broke(self) -> str:
        return f", {self.broken} broke" if self.broken else ""

    def __str__(self) -> str:
        return f"{self.successes}/{self.episodes}{self._broke}" if self.episodes else NOTHING

    def __add__(self, other: Rate) -> Rate:
        return Rate(self.successes + other.successes, self.episodes + other.episodes, self.broken + other.broken)


NONE = Rate(0, 0)


@dataclass(frozen=True, slots=True)
class Average:
    """The mean of the success rates of several tasks, each task with equal weight, and where it may be (95 %)."""

    mean: float
    low: float
    high: float

    @property
    def percent(self) -> str:
        """`38 %`."""
        return f"{100 * self.mean:.0f} %"

    @property
    def span(self) -> str:
        """The interval in percent: `14–69`."""
        return f"{100 * self.low:.0f}–{100 * self.high:.0f}"


def average(rates: Sequence[Rate]) -> Average | None:
    """The macro average of the rates of different tasks; None without rates, or where one has no episodes.

    Its interval is put together from Wilson's of each task by the method of variance estimates recovery (Zou and
    Donner 2008, "Construction of confidence limits about effect measures", Statistics in Medicine 27): the distances
    from each rate to its own ends are added as squares. That of one task is Wilson's.
    """
    known = [
        (rate.successes / rate.episodes, *wilson(rate.successes, rate.episodes)) for rate in rates if rate.episodes
    ]
    if not known or len(known) < len(rates):
        return None
    mean = math.fsum(share for share, _, _ in known) / len(known)
    below = math.sqrt(math.fsum((share - low) ** 2 for share, low, _ in known)) / len(known)
    above = math.sqrt(math.fsum((high - share) ** 2 for share, _, high in known)) / len(known)
    return Average(mean, max(mean - below, 0.0), min(mean + above, 1.0))
