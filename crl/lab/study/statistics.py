"""Means over seeds with their 95 % intervals, paired differences, areas, and when a level was reached.

Intervals are Student's t over seeds (Student 1908): n values, n − 1 degrees of freedom. They tell how far another set
of seeds may be, not how many episodes were played.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise

from pydantic import BaseModel

CONFIDENCE = 0.95
LONG = 5
"""With fewer evaluations than so many times those that the end is the mean of, the best says little beside the end."""


class Interval(BaseModel, frozen=True):
    """A mean over seeds, and where it may be."""

    mean: float
    low: float | None
    """None for one value, which has no spread."""
    high: float | None
    deviation: float | None
    """Standard deviation of the values (n − 1)."""
    seeds: int


class Reached(BaseModel, frozen=True):
    """When a level was reached, over seeds."""

    median: float | None
    """None where half of the seeds or more did not reach it."""
    reached: int
    seeds: int


def interval(values: Sequence[float]) -> Interval:
    """Mean and 95 % t-interval of at least one value."""
    n, mean = len(values), math.fsum(values) / len(values)
    if n == 1:
        return Interval(mean=mean, low=None, high=None, deviation=None, seeds=1)
    from scipy.special import stdtrit

    deviation = statistics.stdev(values)
    half = float(stdtrit(n - 1, (1 + CONFIDENCE) / 2)) * deviation / math.sqrt(n)
    return Interval(mean=mean, low=mean - half, high=mean + half, deviation=deviation, seeds=n)


def paired(values: Mapping[int, float], reference: Mapping[int, float]) -> Interval | None:
    """Differences `values - reference` of the seeds that both have; None where there is none."""
    common = [seed for seed in values if seed in reference]
    return interval([values[seed] - reference[seed] for seed in common]) if common else None


def area(curve: Mapping[int, float]) -> float | None:
    """Area under a curve over rounds (trapezoids), divided by its length: mean success on the way. None for a point."""
    points = sorted(curve.items())
    if len(points) < 2:
        return None
    total = math.fsum((x1 - x0) * (y0 + y1) / 2 for (x0, y0), (x1, y1) in pairwise(points))
    return total / (points[-1][0] - points[0][0])


def first_at(curve: Mapping[int, float], level: float) -> int | None:
    """The first round whose success is at least `level`."""
    return next((number for number, value in sorted(curve.items()) if value >= level), None)


def median_reached(rounds: Sequence[float | None]) -> Reached:
    """Median over seeds, where None stands for later than every number."""
    late = statistics.median([math.inf if each is None else float(each) for each in rounds])
    reached = sum(each is not None for each in rounds)
    return Reached(median=late if math.isfinite(late) else None, reached=reached, seeds=len(rounds))


def final(curve: Mapping[int, float], last: int) -> float:
    """Mean of the last evaluations."""
    values = [value for _, value in sorted(curve.items())][-last:]
    return math.fsum(values) / len(values)


def best(curve: Mapping[int, float], last: int) -> float | None:
    """The highest mean of as many evaluations in a row, the first (nothing is trained yet) left out.

    It is chosen afterwards, so it lies a little above what success was. None for less than :data:`LONG` times as many.
    """
    values = [value for _, value in sorted(curve.items())][1:]
    if len(values) < LONG * last:
        return None
    return max(math.fsum(values[at : at + last]) / last for at in range(len(values) - last + 1))


def common_curve(curves: Sequence[Mapping[int, float]]) -> dict[int, Interval]:
    """Of the rounds that every seed was evaluated after: a mean over fewer would jump where one is missing."""
    common = [number for number in curves[0] if all(number in curve for curve in curves)]
    return {number: interval([curve[number] for curve in curves]) for number in common}
