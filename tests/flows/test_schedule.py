"""Schedules through a real server and worker: a missed one runs once, and the switch of the UI makes rounds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from crl.run.directory import RunDirectory
from tests.operate import as_parameter, operation
from tests.processes import wait_until
from tests.unit.engine.harness import make_experiment

pytestmark = pytest.mark.slow


def test_missed_schedules_run_once_and_the_switch_runs_the_next_round_at_its_time(tmp_path: Path) -> None:
    with operation(tmp_path, {"OMP_NUM_THREADS": "1"}, worker=False) as operated:
        deployment = operated._get("/deployments/name/train/nightly")
        path = f"/deployments/{deployment['id']}"
        operated._ask("PATCH", path, {"parameters": {"experiment": as_parameter(make_experiment()), "rounds": 1}})
        (schedule,) = deployment["schedules"]

        # A schedule of every minute, on since four minutes ago; nobody was there to work.
        every_minute = {"schedule": {"cron": "* * * * *", "timezone": "UTC"}, "active": True}
        operated._ask("PATCH", f"{path}/schedules/{schedule['id']}", every_minute)
        now = datetime.now(UTC)
        span = {"start_time": (now - timedelta(minutes=4)).isoformat(), "end_time": now.isoformat()}
        operated._ask("POST", f"{path}/schedule", {**span, "max_runs": 20})
        operated._ask("PATCH", f"{path}/schedules/{schedule['id']}", {"active": False})
        planned = [run for run in operated.flow_runs() if run["state_type"] == "SCHEDULED"]
        missed = [run for run in planned if datetime.fromisoformat(run["expected_start_time"]) <= now]
        assert len(missed) >= 4
        for run in planned:  # the server's own scheduler may have seen the schedule while it was on
            if run not in missed:
                operated._ask("DELETE", f"/flow_runs/{run['id']}")

        # The newest died before it could do anything: it is not the one that trains.
        missed.sort(key=lambda run: run["expected_start_time"])
        died = missed.pop()
        operated._ask("POST", f"/flow_runs/{died['id']}/set_state", {"state": {"type": "CRASHED"}, "force": True})

        # The worker comes back: each of them is handed to a process, one of them trains.
        operated.start_worker()
        for run in missed:
            operated.wait_for(run["id"])
        ended = [operated.flow_run(run["id"]) for run in missed]
        (trained,) = [run for run in ended if run["state_type"] == "COMPLETED"]
        newest = missed[-1]
        assert trained["id"] == newest["id"]
        names = (newest["name"], trained["name"])  # it names itself when it begins, before or after the others end
        for run in ended:
            if run["id"] != trained["id"]:
                assert run["state_type"] == "CANCELLED" and run["state"]["message"].startswith("superseded")
                assert any(name in run["state"]["message"] for name in names)
        record = RunDirectory.open(operated.runs / "fake")
        assert record.rounds() == [0, 1]

        # The switch beside the schedule, as the UI turns it; the run is that of a whole minute to come.
        turned = datetime.now(UTC)
        operated._ask("PATCH", f"{path}/schedules/{schedule['id']}", {"active": True})
        wait_until(lambda: 2 in record.rounds() and len(record.complete_stages(2)) == 4, "the next round", every=1)
        operated._ask("PATCH", f"{path}/schedules/{schedule['id']}", {"active": False})
        (first, *_) = sorted(
            (run for run in operated.flow_runs() if run["auto_scheduled"] and run["expected_start_time"] > str(turned)),
            key=lambda run: run["expected_start_time"],
        )
        due = datetime.fromisoformat(first["expected_start_time"])
        assert due.second == 0 and datetime.fromisoformat(first["start_time"]) >= due
