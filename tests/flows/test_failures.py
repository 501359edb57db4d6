"""What the list of runs shows of an error."""

from __future__ import annotations

import pytest

import flows  # noqa: F401  (first: it turns Prefect's telemetry off)
from crl.errors import BadInput, DataCheckFailed

pytest.importorskip("prefect")


def test_a_message_is_one_line_that_says_what_where_and_what_to_do() -> None:
    from tasks.failures import failed, located, one_line

    error = DataCheckFailed(
        "table metrics, rule value >= 0:\n  row 3 has -1.0\n  row 9 has -2.0",
        expected="values from 0",
        where="runs/tiny/rounds/0007",
        next_step="look at row 3",
    )
    located(error, "round 7, collect")
    located(error, "somewhere further out")
    assert one_line(error) == (
        "DataCheckFailed (round 7, collect): table metrics, rule value >= 0: row 3 has -1.0; row 9 has -2.0. "
        "Expected: values from 0. Where: runs/tiny/rounds/0007. What to do: look at row 3"
    )
    state = failed(error)
    assert state.is_failed() and state.message == one_line(error)
    with pytest.raises(DataCheckFailed):
        state.result()


def test_a_message_has_an_end() -> None:
    from tasks.failures import one_line

    long = one_line(BadInput("\n".join(f"key_{number}: unknown" for number in range(1000))))
    assert long.startswith("BadInput: key_0: unknown; key_1") and len(long) < 2000
