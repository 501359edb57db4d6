"""Intervals, pairs, areas and medians against SciPy's own and against sums done by hand."""

from __future__ import annotations

import random

import pytest
from scipy import integrate, stats

from crl.lab.study.statistics import area, best, final, first_at, interval, median_reached, paired


@pytest.mark.parametrize("count", [2, 3, 5, 30])
def test_an_interval_is_students(count: int) -> None:
    generator = random.Random(count)
    values = [generator.random() for _ in range(count)]
    found = interval(values)
    low, high = stats.t.interval(0.95, count - 1, loc=sum(values) / count, scale=stats.sem(values))
    assert (found.mean, found.low, found.high) == pytest.approx((sum(values) / count, low, high), rel=1e-9)
    assert found.seeds == count


def test_by_hand() -> None:
    # Mean 0.4, deviation 0.1, standard error 0.1/√3; t with 2 degrees of freedom at 97.5 % is 4.302653.
    found = interval([0.3, 0.4, 0.5])
    assert found.mean == pytest.approx(0.4) and found.deviation == pytest.approx(0.1)
    assert found.high == pytest.approx(0.4 + 4.302653 * 0.1 / 3**0.5, rel=1e-6)


def test_one_value_has_no_interval_and_equal_values_one_without_width() -> None:
    assert (interval([0.5]).low, interval([0.5]).high, interval([0.5]).deviation) == (None, None, None)
    assert (interval([0.5, 0.5]).low, interval([0.5, 0.5]).high) == (0.5, 0.5)


def test_pairs_are_of_the_same_seed_whatever_their_order() -> None:
    ours, theirs = {3: 0.9, 1: 0.5, 2: 0.7, 9: 0.0}, {1: 0.1, 2: 0.4, 3: 0.2, 8: 1.0}
    found = paired(ours, theirs)
    assert found is not None and found.seeds == 3
    wanted = stats.ttest_rel([0.5, 0.7, 0.9], [0.1, 0.4, 0.2]).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx(tuple(wanted))
    assert paired({1: 0.5}, {2: 0.5}) is None


def test_area_is_that_of_trapezoids_over_uneven_rounds() -> None:
    curve = {0: 0.0, 10: 0.5, 15: 0.25, 40: 1.0}
    wanted = integrate.trapezoid(list(curve.values()), list(curve)) / 40
    assert area(curve) == pytest.approx(wanted)
    assert area(dict(reversed(curve.items()))) == pytest.approx(wanted)
    assert area({3: 0.2}) is None


def test_the_first_round_at_a_level_and_medians_with_seeds_that_never_reach_it() -> None:
    assert first_at({0: 0.1, 10: 0.4, 20: 0.3, 30: 0.5}, 0.4) == 10 and first_at({0: 0.1}, 0.4) is None
    assert median_reached([10, None, 30]).model_dump() == {"median": 30.0, "reached": 2, "seeds": 3}
    assert median_reached([10, None]).median is None, "half of the seeds did not reach it"
    assert median_reached([10, 20, 40, None]).median == 30


def test_the_best_is_that_of_as_many_evaluations_in_a_row_after_the_first() -> None:
    curve = dict(enumerate([0.9, 0.1, 0.5, 0.6, 0.4, 0.9, 0.1, 0.2, 0.3, 0.2, 0.1]))
    assert best(curve, 2) == pytest.approx(0.65) and best(dict(reversed(curve.items())), 2) == pytest.approx(0.65)
    assert best(curve, 1) == 0.9
    assert best(curve, 3) is None, "ten evaluations are no long run for three at a time"


def test_final_success_is_the_mean_of_the_last_evaluations() -> None:
    curve = {20: 0.6, 0: 0.0, 10: 0.3}
    assert final(curve, 1) == 0.6 and final(curve, 2) == pytest.approx(0.45) and final(curve, 9) == pytest.approx(0.3)
