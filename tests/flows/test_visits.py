"""Which rounds a flow run visits; without Prefect. `test_record_wins.py` has whole flows."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flows import train


@pytest.mark.parametrize(
    ("complete", "visited", "worked"),
    [
        ({0, 1, 2, 3, 4}, [4, 5, 6], [5, 6]),  # complete ones too: Prefect knows child runs by their order
        ({0, 1}, [2, 3, 4, 5, 6], [2, 3, 4, 5, 6]),  # `crl redo` took round 2 and all behind it back
    ],
)
def test_a_retried_flow_run_begins_with_what_was_taken_back(
    complete: set[int], visited: list[int], worked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_report_disagreements", "end_earlier_attempts", "spread_over_tasks", "finish_page"):
        monkeypatch.setattr(train, name, lambda *arguments: None)
    monkeypatch.setattr(train, "get_run_logger", lambda: SimpleNamespace(info=lambda *words: None))
    driver: Any = SimpleNamespace(
        round_complete=complete.__contains__,
        next_round=lambda: len(complete),
        run=SimpleNamespace(path=Path("/run"), experiment_name="run"),
    )
    with train.visits(driver, 4, 6) as (numbers, due):
        assert due == worked, "what it set out for once"
        assert numbers == visited
