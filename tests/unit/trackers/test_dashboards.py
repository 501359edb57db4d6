"""MLflow, Weights & Biases and Trackio, each against a recording of the calls that its documentation names.

They are no dependency of the project. What was tried with the libraries themselves is in docs/trackers.md.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from crl.trackers.base import RoundMetrics, TrackedRun
from crl.trackers.dashboards import MLflow, Trackio, WandB

ROWS = [{"round": 3, "condition": "with_bank", "won": 2, "games": 4}]
Calls = list[tuple[str, tuple[Any, ...], dict[str, Any]]]


class Spy:
    """Keeps every call; answers from `answers`, else with itself, and raises an answer that is an exception."""

    def __init__(self, **answers: Any) -> None:
        self._calls: Calls = []
        self._answers = answers

    def __getattr__(self, name: str) -> Any:
        def call(*positional: Any, **named: Any) -> Any:
            self._calls.append((name, positional, named))
            answer = self._answers.get(name, self)
            if isinstance(answer, Exception):
                raise answer
            return answer

        return call

    def made(self, name: str) -> Calls:
        return [call for call in self._calls if call[0] == name]


class Refusal(Exception):
    """As MLflow's."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.error_code = code


def module(monkeypatch: pytest.MonkeyPatch, name: str, **contents: Any) -> None:
    fake = ModuleType(name)
    fake.__dict__.update(contents)
    monkeypatch.setitem(sys.modules, name, fake)


def run(path: Path, earlier: str | None = None) -> TrackedRun:
    return TrackedRun(path, "tiny", {"seed": 1, "rollout.group_size": 4}, "d" * 64, earlier)


def round_metrics(number: int = 3) -> RoundMetrics:
    return RoundMetrics(number, {"held_out/with_bank": 0.5, "bank/entries": 7.0}, ROWS, "| 3 |", "e" * 64, "f" * 64)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Spy:
    info = type("Info", (), {"run_id": "run-7"})
    kept = SimpleNamespace(info=SimpleNamespace(lifecycle_stage="active"))
    made = type("Made", (), {"info": info})
    spy = Spy(get_experiment_by_name=None, create_experiment="12", create_run=made, get_run=kept)
    module(monkeypatch, "mlflow.exceptions", MlflowException=Refusal)
    module(monkeypatch, "mlflow", MlflowClient=lambda tracking_uri=None: spy)
    module(monkeypatch, "mlflow.entities", Metric=lambda *values: values, Param=lambda *values: values)
    return spy


def test_mlflow_gets_metrics_with_the_round_as_step_tables_and_the_record(client: Spy, tmp_path: Path) -> None:
    tracker = MLflow(run(tmp_path))
    tracker.write(round_metrics())
    tracker.close()
    (_, (experiment,), named) = client.made("create_run")[0]
    assert experiment == "12" and named["tags"]["record"] == str(tmp_path) and tracker.id == "run-7"
    parameters, metrics = (named for _, _, named in client.made("log_batch"))
    assert ("rollout.group_size", "4") in parameters["params"]
    assert [(name, value, step) for name, value, _, step in metrics["metrics"]] == [
        ("bank/entries", 7.0, 3),
        ("held_out/with_bank", 0.5, 3),
    ]
    assert client.made("log_text")[0][1] == ("run-7", "| 3 |", "rounds.md")
    assert client.made("log_dict")[0][1][1] == {"rows": ROWS}
    tags = {name: value for _, (_, name, value), _ in client.made("set_tag")}
    assert (tags["round_0003"], tags["head"]) == ("e" * 64, "f" * 64)
    assert len(client.made("set_terminated")) == 1


def test_mlflow_goes_on_with_the_run_it_made(client: Spy, tmp_path: Path) -> None:
    assert MLflow(run(tmp_path, "run-5")).id == "run-5"
    assert client.made("create_run") == [] and client.made("update_run")[0][2] == {"status": "RUNNING"}


def test_mlflow_begins_anew_where_the_run_it_made_is_gone(client: Spy, tmp_path: Path) -> None:
    client._answers["get_run"].info.lifecycle_stage = "deleted"
    assert MLflow(run(tmp_path, "run-5")).id == "run-7"
    client._answers["get_run"] = Refusal("RESOURCE_DOES_NOT_EXIST")
    assert MLflow(run(tmp_path, "run-5")).id == "run-7"
    client._answers["get_run"] = Refusal("INTERNAL_ERROR")
    with pytest.raises(Refusal):
        MLflow(run(tmp_path, "run-5"))
    assert len(client.made("create_run")) == 2, "a server that does not answer has the run still"


def test_mlflow_knows_its_run_before_the_parameters_are_written(client: Spy, tmp_path: Path) -> None:
    tracker = MLflow(run(tmp_path))
    client._answers["log_batch"] = Refusal("INVALID_PARAMETER_VALUE")
    with pytest.raises(Refusal):
        tracker.write(round_metrics())
    client._answers["log_batch"] = None
    tracker.write(round_metrics())
    tracker.write(round_metrics(4))
    logged = [list(named) for _, _, named in client.made("log_batch")]
    assert logged == [["params"], ["params"], ["metrics"], ["metrics"]] and len(client.made("create_run")) == 1


def test_wandb_logs_one_step_a_round_and_resumes_by_id(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    session = Spy()
    session.id = "abc"
    session.summary, session.step = {}, 0
    library = Spy(init=session, Table="table", login=True)
    module(monkeypatch, "wandb", init=library.init, Table=library.Table, login=library.login, Settings=dict)
    tracker = WandB(run(tmp_path), mode="offline")
    tracker.write(round_metrics())
    tracker.close()
    assert tracker.id == "abc"
    options = library.made("init")[0][2]
    assert options["id"] is None and options["resume"] == "allow" and options["config"]["record"] == str(tmp_path)
    assert options["reinit"] == "create_new", "two trackers of one run have a session each"
    (_, (logged,), named) = session.made("log")[0]
    assert logged["held_out/with_bank"] == 0.5 and logged["success_by_condition"] == "table"
    assert (logged["round"], named) == (3, {"step": 3, "commit": True})
    axes = [("define_metric", ("round",), {}), ("define_metric", ("*",), {"step_metric": "round"})]
    assert session.made("define_metric") == axes
    assert library.made("Table")[0][2] == {"columns": list(ROWS[0]), "data": [list(ROWS[0].values())]}
    assert (session.summary["record_digest"], session.summary["head"]) == ("e" * 64, "f" * 64)
    assert len(session.made("finish")) == 1
    WandB(run(tmp_path, "xyz"), mode="offline")
    assert library.made("init")[1][2]["id"] == "xyz"


def test_wandb_gets_a_redone_round_at_a_step_that_is_free(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    session = Spy()
    session.id, session.summary, session.step = "abc", {}, 5
    library = Spy(init=session, Table="table")
    module(monkeypatch, "wandb", init=library.init, Table=library.Table, Settings=dict)
    WandB(run(tmp_path, "abc"), mode="offline").write(round_metrics(3))
    (_, (logged,), named) = session.made("log")[0]
    assert (logged["round"], named["step"]) == (3, 5), "it would be dropped at an earlier step"


def test_wandb_never_asks_for_a_key_in_the_middle_of_a_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("WANDB_MODE", raising=False)
    library = Spy(login=False)
    contents = {"init": library.init, "login": library.login, "Settings": dict}
    module(monkeypatch, "wandb", run=None, **contents)
    with pytest.raises(RuntimeError, match="wandb login"):
        WandB(run(tmp_path))
    assert library.made("login")[0][2] == {"prompt": False} and library.made("init") == []
    module(monkeypatch, "wandb", run=Spy(), **contents)
    WandB(run(tmp_path))
    assert len(library.made("login")) == len(library.made("init")) == 1, "beside an open session it does not log in"


def test_trackio_logs_one_step_a_round_and_resumes_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    library = Spy(Table="table")
    heads = {"columns": ["round", "head"], "data": [[3, "f" * 64]]}
    module(monkeypatch, "trackio", init=library.init, log=library.log, finish=library.finish, Table=library.Table)
    tracker = Trackio(run(tmp_path), project="lakes")
    tracker.write(round_metrics())
    tracker.close()
    options = library.made("init")[0][2]
    assert (options["project"], options["name"], options["resume"]) == ("lakes", tracker.id, "allow")
    assert tracker.id.startswith("tiny-")
    (_, (logged,), named) = library.made("log")[0]
    assert logged["bank/entries"] == 7.0 and logged["success_by_condition"] == "table" and named == {"step": 3}
    assert logged["head"] == "table" and library.made("Table")[-1][2] == heads
    assert len(library.made("finish")) == 1
    Trackio(run(tmp_path, tracker.id))
    assert library.made("init")[1][2]["name"] == tracker.id
    assert Trackio(run(tmp_path / "copy")).id != tracker.id, "another directory with this method is another run"
