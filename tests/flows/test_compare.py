"""The flow `compare`: a task an arm and seed, the table and the page as artifacts, a failure that names its run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from prefect import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey, TaskRunFilter
from prefect.client.schemas.objects import TaskRun
from prefect.states import State

from crl.errors import BadInput, StudyIncomplete
from flows.compare import LINK, TABLE, compare
from tasks.artifacts import artifact_key
from tests.study.studies import NAME, fake, write
from tests.tiny_run import ROOT, digests


@pytest.fixture
def runs(prefect_server: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where runs lie; studies run on the recipe without models."""
    for name, value in fake().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("CRL_RUNS", str(tmp_path / "runs"))
    monkeypatch.chdir(ROOT)
    return tmp_path / "runs"


def task_runs(state: State[Any]) -> dict[str, TaskRun]:
    with get_client(sync_client=True) as client:
        wanted = TaskRunFilter.model_validate({"flow_run_id": {"any_": [state.state_details.flow_run_id]}})
        return {each.name: each for each in client.read_task_runs(task_run_filter=wanted)}


def artifact(kind: str) -> str:
    with get_client(sync_client=True) as client:
        wanted = ArtifactFilter(key=ArtifactFilterKey(any_=[artifact_key(NAME, kind)]))
        found = client.read_artifacts(artifact_filter=wanted)
    return str(max(found, key=lambda each: each.created).data)


@pytest.mark.slow
def test_a_study_runs_as_tasks_fails_by_name_and_goes_on(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path, seeds=[11], rounds=2)
    monkeypatch.setenv("CRL_STUDY_FAKE", fake(baseline_s11="fail")["CRL_STUDY_FAKE"])
    stopped: State[Any] = compare(file, jobs=2, return_state=True)
    assert stopped.is_failed() and f"{NAME}-baseline-s11: the fake refuses" in str(stopped.message)
    with pytest.raises(StudyIncomplete):
        stopped.result()
    states = {name: run.state_type.value for name, run in task_runs(stopped).items()}
    assert states == {"complementary-s11": "COMPLETED", "baseline-s11": "FAILED"}
    assert task_runs(stopped)["baseline-s11"].run_count == 1, "what is refused is not tried again"
    before = digests(runs / NAME / f"{NAME}-complementary-s11")

    monkeypatch.setenv("CRL_STUDY_FAKE", "{}")
    done: State[Any] = compare(file, return_state=True)
    assert done.is_completed() and set(task_runs(done)) == {"baseline-s11"}
    files = [Path(path) for path in done.result()["files"]]
    assert [path.name for path in files] == ["study.json", "study.md", "results.parquet", "runs.parquet", "study.html"]
    assert artifact(TABLE) == files[1].read_text(encoding="utf-8")
    assert str(files[4]) in artifact(LINK)
    assert [arm["finished"] for arm in json.loads(files[0].read_text())["arms"]] == [[11], [11]]
    assert digests(runs / NAME / f"{NAME}-complementary-s11") == before


@pytest.mark.slow
def test_what_is_wrong_with_a_study_fails_at_once_and_names_the_key(runs: Path, tmp_path: Path) -> None:
    state: State[Any] = compare(write(tmp_path, tuned_on=[11]), return_state=True)
    assert state.is_failed() and "settings were chosen on seeds [11]" in str(state.message)
    state = compare(write(tmp_path), arms=["nobody"], return_state=True)
    with pytest.raises(BadInput, match="the study has no arm nobody"):
        state.result()
    assert not runs.exists()


def test_the_form_offers_the_studies_of_conf_or_another_file() -> None:
    from prefect.utilities.callables import parameter_schema

    schema = parameter_schema(compare).model_dump()
    offered, another = schema["properties"]["study"]["anyOf"]
    assert "conf/study/tiny.yaml" in offered["enum"] and another["title"] == "Another file"
    assert all((ROOT / name).is_file() for name in offered["enum"])
    assert schema["required"] == ["study"]
    assert all(field.get("description") for field in schema["properties"].values())
