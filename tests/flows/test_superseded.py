"""Which of several scheduled runs that are due together stands back; the server's answers are made up."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from prefect.client.schemas.objects import FlowRun

from flows import schedule


def test_only_a_newer_run_with_the_same_parameters_supersedes_one(monkeypatch: pytest.MonkeyPatch) -> None:
    began, deployment = datetime.now(UTC) - timedelta(hours=3), uuid4()

    def due(hour: int, experiment: str) -> FlowRun:
        return FlowRun(
            name=f"{experiment} {hour}",
            flow_id=uuid4(),
            deployment_id=deployment,
            parameters={"experiment": experiment, "rounds": 1},
            auto_scheduled=True,
            expected_start_time=began + timedelta(hours=hour),
        )

    runs = [due(0, "lakes"), due(0, "shrines"), due(1, "lakes"), due(2, "shrines")]

    def answer(client: Any, conditions: dict[str, Any]) -> list[FlowRun]:
        after = conditions["expected_start_time"]["after_"]
        return [run for run in runs if run.expected_start_time is not None and run.expected_start_time >= after]

    monkeypatch.setattr(schedule, "flow_runs", answer)
    meaning: Any = SimpleNamespace(of_run=lambda run: run.parameters)
    newer = [schedule._newer(None, run, meaning) for run in runs]  # type: ignore[arg-type]
    assert [run and run.name for run in newer] == ["lakes 1", "shrines 2", None, None]
