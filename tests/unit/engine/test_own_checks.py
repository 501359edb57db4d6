"""A user's own data checks on the way from the runtime to an engine: they stop a stage, and change nothing in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from crl.errors import DataCheckFailed
from tests.unit.engine.harness import digests, make_driver

pytestmark = pytest.mark.slow

FEW = {"type": "expect_table_row_count_to_be_between", "kwargs": {"max_value": 1}}
MANY = {"type": "expect_table_row_count_to_be_between", "kwargs": {"max_value": 1000}}


def own(expectation: dict[str, object]) -> dict[str, object]:
    return {"metrics": {"expectations": [expectation]}}


def test_a_rule_that_fails_stops_the_stage_and_one_that_holds_changes_no_digest(
    tmp_path: Path, undisturbed: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CRL_FAKE_CHECKS", "1")
    with (
        make_driver(tmp_path / "a", expectations=own(FEW)) as driver,
        pytest.raises(DataCheckFailed, match=r"expect_table_row_count_to_be_between.* does not hold: found 5"),
    ):
        driver.run_rounds(1)
    with make_driver(tmp_path / "b", expectations=own(MANY)) as driver:
        driver.run_rounds(1)
        made = digests(driver.run)
    assert made and made.items() <= undisturbed.items()
