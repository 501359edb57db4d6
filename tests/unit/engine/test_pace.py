"""What a stage is expected to take: from its last time, per unit of the work that was done then."""

from __future__ import annotations

import pytest

from crl.engine.pace import Pace

COLLECT, EVALUATE = (1, "collect"), (1, "evaluate")


def after_one_round(*reports: tuple[int, int], seconds: float = 32.0) -> Pace:
    pace = Pace()
    for done, total in reports:
        assert pace.report(COLLECT, done, total) is None, "the first time nothing is known"
    pace.finished(COLLECT, seconds)
    return pace


def test_the_next_round_is_expected_to_take_as_long_per_unit() -> None:
    pace = after_one_round((0, 16), (2, 16), (16, 16))
    assert pace.report((2, "collect"), 0, 16) == 32.0
    assert pace.report((2, "collect"), 15, 16) == 32.0, "however much of it is done"
    assert pace.report((2, "evaluate"), 0, 16) is None
    pace.finished((2, "evaluate"), 1.0)
    assert pace.report((3, "collect"), 0, 64) == 128.0


@pytest.mark.parametrize("reports", [(), ((16, 16),)])
def test_a_stage_that_tells_nothing_on_its_way_has_no_pace(reports: tuple[tuple[int, int], ...]) -> None:
    assert after_one_round(*reports).report((2, "collect"), 0, 16) is None


def test_what_was_complete_before_is_no_work_of_this_attempt() -> None:
    pace = after_one_round((48, 64), (56, 64), (64, 64), seconds=8.0)
    assert pace.report((2, "collect"), 0, 64) == 32.0
    pace.failed()
    assert pace.report((2, "collect"), 32, 64) == 16.0, "half of it is left from before"


def test_an_attempt_that_failed_says_nothing() -> None:
    pace = Pace()
    pace.report(COLLECT, 0, 16)
    pace.report(COLLECT, 8, 16)
    pace.failed()
    assert pace.report(COLLECT, 8, 16) is None
    pace.report(COLLECT, 16, 16)
    pace.finished(COLLECT, 4.0)
    assert pace.report((2, "collect"), 0, 16) == 8.0
