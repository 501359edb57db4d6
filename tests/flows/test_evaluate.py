"""The flow `evaluate` on a real run: the rows, the table in the UI, errors with their reason, and an end on request."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from prefect import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey
from prefect.settings import PREFECT_API_URL

from crl.errors import BadInput
from crl.records import Evaluation, rows_of
from crl.run.directory import RunDirectory
from crl.run.evaluations import Kept, kept_evaluations
from flows.evaluate import ARTIFACT_KEY, evaluate
from tests.processes import PATIENCE_SECONDS, wait_until
from tests.tiny_run import ROOT, ROUNDS, digests, experiment

pytestmark = pytest.mark.slow


@pytest.fixture
def run_path(copied: Path, prefect_server: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy: what is played is kept in it."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("CRL_RUNS", str(copied.parent))
    return copied


def test_other_seeds_become_a_table_and_the_run_is_not_changed(run_path: Path) -> None:
    before = digests(run_path)
    rows = evaluate(run_path.name, round=1, seeds={"start": 3_000_000, "count": 3})
    assert digests(run_path) == before
    assert {row["condition"] for row in rows} == {"with bank", "without bank"} and {
        row["episodes"] for row in rows
    } == {3}
    assert all(row["won"] == f"{round(3 * row['success'])}/3" and row["95 % interval"] for row in rows)
    assert all(row["score"] == row["success"] and row["tokens read"] > 0 for row in rows)
    [kept] = kept_evaluations(RunDirectory.open(run_path))
    assert isinstance(kept, Kept) and kept.round == 1 and len(kept.rows) == 6
    assert kept.settings == {"conditions": ["with_bank", "without_bank"], "seeds": {"lake": [3_000_000, 3]}}
    with get_client(sync_client=True) as client:
        wanted = ArtifactFilter(key=ArtifactFilterKey(any_=[ARTIFACT_KEY]))
        (artifact,) = client.read_artifacts(artifact_filter=wanted)
    assert "without bank" in artifact.data and artifact.description == f"Held-out seeds, round 1 of {run_path.name}"


def test_the_form_takes_what_the_command_takes(run_path: Path) -> None:
    split = experiment().method.families[0].evaluation_seeds
    [row] = evaluate(run_path.name, tasks=["lake"], episodes=split.count + 1, conditions=["without"])
    assert (row["task"], row["condition"], row["episodes"]) == ("lake", "without bank", split.count + 1)
    recorded = [
        each
        for each in rows_of(Evaluation, RunDirectory.open(run_path).read(ROUNDS, "evaluate", Evaluation))
        if each.condition == "without_bank"
    ]
    [kept] = kept_evaluations(RunDirectory.open(run_path))
    assert isinstance(kept, Kept) and kept.rows[: split.count] == recorded, "the episodes of the stage, and one more"
    refused = evaluate(run_path.name, tasks=["sea"], return_state=True)
    assert refused.is_failed() and "no task 'sea'" in refused.message and "lake" in refused.message


def test_an_error_says_why(run_path: Path) -> None:
    state = evaluate(run_path.name, round=99, return_state=True)
    assert state.is_failed() and "round 99" in state.message and "BadInput" in state.message
    with pytest.raises(BadInput):
        state.result()
    assert "there is no run" in evaluate("nobody", return_state=True).message


def test_a_cancelled_evaluation_ends_with_its_process(run_path: Path) -> None:
    """Cancel in the UI sends SIGTERM to the process of the flow run."""
    variables = {**os.environ, "PREFECT_API_URL": str(PREFECT_API_URL.value())}
    code = f"from flows.evaluate import evaluate; evaluate({run_path.name!r})"
    with subprocess.Popen([sys.executable, "-c", code], env=variables, stderr=subprocess.DEVNULL) as process:
        this = psutil.Process(process.pid)
        wait_until(lambda: any("libtorch" in each.path for each in this.memory_maps()), "the evaluation loads models")
        children = this.children(recursive=True)
        process.terminate()
        assert process.wait(PATIENCE_SECONDS) != 0
    wait_until(lambda: not any(each.is_running() for each in children), lambda: str(children), 30)
