"""Success rates and their intervals against SciPy and against published values."""

from __future__ import annotations

import pytest
from scipy import stats

from crl.report.success import NONE, Rate, wilson


@pytest.mark.parametrize("episodes", [1, 2, 8, 64, 1000])
def test_the_interval_is_wilsons(episodes: int) -> None:
    for successes in {0, 1, episodes // 3, episodes // 2, episodes - 1, episodes}:
        found = stats.binomtest(successes, episodes).proportion_ci(0.95, method="wilson")
        assert wilson(successes, episodes) == pytest.approx((found.low, found.high), abs=1e-12)


def test_published_values() -> None:
    # Newcombe (1998), "Two-sided confidence intervals for the single proportion", table I, method 3.
    for successes, episodes, low, high in ((81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0, 0.1611),
                                           (1, 29, 0.0061, 0.1718)):  # fmt: skip
        assert wilson(successes, episodes) == pytest.approx((low, high), abs=5e-5)


@pytest.mark.parametrize(("successes", "episodes"), [(1, 0), (0, 0), (3, 2), (-1, 2)])
def test_what_is_no_rate_is_refused(successes: int, episodes: int) -> None:
    with pytest.raises(ValueError, match="no rate"):
        wilson(successes, episodes)


def test_in_words() -> None:
    rate = Rate(3, 8)
    assert (str(rate), rate.percent, rate.span, rate.told) == ("3/8", "38 %", "14–69", "3/8 38 % [14–69]")
    assert Rate(0, 8).span == "0–32" and Rate(8, 8).span == "68–100"
    assert {str(NONE), NONE.percent, NONE.span, NONE.told} == {"–"} and NONE.value is None and NONE.interval is None
    assert rate + Rate(1, 8) == Rate(4, 16) and rate.value == 0.375


def test_broken_episodes_are_told_where_there_are_any() -> None:
    rate = Rate(53, 64, 3)
    assert (str(rate), rate.short) == ("53/64, 3 broke", "53/64 83 %, 3 broke")
    assert rate.told == "53/64 83 % [72–90], 3 broke"
    assert rate + Rate(1, 8, 1) == Rate(54, 72, 4) and rate.interval == Rate(53, 64).interval, "they count as lost"
