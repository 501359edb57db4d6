"""Artifacts and progress through a real Prefect server: keys, history, contents, and that none of it can stop a run."""

from __future__ import annotations

import re
import shutil
from typing import Any

import pytest
from prefect import flow, get_client, task
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey, ArtifactFilterTaskRunId
from prefect.context import get_run_context

import tasks.artifacts
import tasks.stage
from crl.engine.events import Progress, StageDone
from crl.errors import DataCheckFailed
from crl.report.diff import bank_diff
from crl.report.round_tables import recipe_tables
from crl.report.summary import summarize
from crl.report.views import query
from crl.run.directory import manifests
from crl.run.head import heads
from tasks.artifacts import KINDS, PAGES, artifact_key, finish_page, publish_breach, publish_failure, publish_round
from tasks.stage import shown_progress
from tests.processes import wait_until
from tests.recipe_runs import OTHERS, tiny_name

pytestmark = pytest.mark.slow


def test_keys_are_allowed_and_keep_experiments_apart() -> None:
    import re

    names = ["tiny", "a_b", "a-b", "a__b", "a-_b", "x" * 63, "0"]
    keys = [artifact_key(name, kind) for name in names for kind in KINDS]
    assert len(set(keys)) == len(keys) and all(re.fullmatch(r"[a-z0-9-]+", key) for key in keys)
    assert artifact_key("tiny", "rounds") == "tiny-rounds"


def artifacts(key: str) -> list[Any]:
    """Every version under a key, oldest first."""
    with get_client(sync_client=True) as client:
        found = client.read_artifacts(artifact_filter=ArtifactFilter(key=ArtifactFilterKey(any_=[key])))
    return sorted(found, key=lambda artifact: artifact.created)


def published(work: Any) -> str:
    """Do something inside a flow run; returns the run's id."""

    @flow(name="round")
    def run() -> str:
        work()
        return str(get_run_context().flow_run.id)  # type: ignore[union-attr]

    return str(run())


def test_a_round_publishes_every_kind_with_the_contents_of_the_record(prefect_server, copied, monkeypatch):
    monkeypatch.setenv(PAGES, "http://127.0.0.1:4201")
    last = query(copied, "SELECT max(round) FROM rounds")[1][0][0]
    first = published(lambda: publish_round(copied, last - 1))
    second = published(lambda: publish_round(str(copied), last))
    name = copied.name
    for kind in KINDS:
        versions = artifacts(artifact_key(name, kind))
        assert [str(version.flow_run_id) for version in versions] == [first, second], f"{kind} has a history"
        assert versions[-1].type == "markdown" and versions[-1].description == f"Round {last}"
    rounds, curve, diff, checks, report = (artifacts(artifact_key(name, kind))[-1].data for kind in KINDS)
    bank = query(copied, "SELECT count(*) FROM bank WHERE round = $round", {"round": last})[1][0][0]
    assert re.search(rf"^\| {last} \| [\d.]+\s% \| [\d.]+\s% \| {bank} \|", rounds, re.MULTILINE)
    told = [re.findall("crl verify tiny --head ([0-9a-f]{64})", each.data) for each in artifacts("tiny-rounds")]
    assert told == [[kept] for kept in list(heads(manifests(copied)).values())[-2:]]
    assert curve.count("data:image/svg+xml;base64,") == 2 and "http" not in curve
    assert bank_diff(copied, last).summary() in diff
    assert f"Data checks of round {last}: passed" in checks and "| collect | episodes |" in checks
    assert f"](http://127.0.0.1:4201/{name}/report.html)" in report
    assert "<html" in (copied / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("recipe", OTHERS)
def test_rounds_of_other_recipes_are_published_too(prefect_server, run_of, tmp_path, recipe, caplog):
    copy = tmp_path / tiny_name(recipe)
    shutil.copytree(run_of(recipe), copy)
    flow_run = published(lambda: publish_round(copy, 2))
    found = {kind: artifacts(artifact_key(copy.name, kind)) for kind in KINDS}
    keeps_a_bank = recipe == "erl"
    assert {kind for kind, versions in found.items() if versions} == set(KINDS) - (
        set() if keeps_a_bank else {"bank-diff"}
    )
    for versions in found.values():
        assert all(str(version.flow_run_id) == flow_run and version.type == "markdown" for version in versions)
    rounds, checks = found["rounds"][-1].data, found["data-checks"][-1].data
    assert re.search(r"^\| 2 \|", rounds, re.MULTILINE) and "Data checks of round 2: passed" in checks
    # What the recipe records of a round is shown as `crl status` shows it: a table under its title, with a row of it.
    tables = recipe_tables(summarize(copy))
    assert tables
    for title, rows in tables.items():
        _, _, after = rounds.partition(f"## {title.capitalize()}\n\n| {' | '.join(rows[0])} |\n")
        shown = after.partition("\n\n")[0].replace("\u00a0", " ")
        assert f"| {' | '.join(rows[-1].values())} |" in shown, title
    assert "<html" in (copy / "report.html").read_text(encoding="utf-8")
    assert not [record for record in caplog.records if record.levelname == "WARNING" and "artifact" in record.message]


def test_rounds_that_are_quick_share_a_page_and_the_last_is_on_it(prefect_server, copied, monkeypatch):
    clock, written = [100.0], []

    def write(path: Any, history: Any) -> None:
        clock[0] += 3.0
        written.append(clock[0])

    monkeypatch.setattr(tasks.artifacts, "monotonic", lambda: clock[0])
    monkeypatch.setattr(tasks.artifacts, "write_report", write)

    def work() -> None:
        for seconds in (0, 10, 40, 10, 1):  # three took 3 s each: the next is due 60 s later
            clock[0] += seconds
            publish_round(copied, 1)
        assert written == [103.0, 166.0]
        finish_page(copied)
        assert written == [103.0, 166.0, 170.0]
        finish_page(copied)
        publish_failure(copied, 2)
        assert len(written) == 4, "why a run stopped is told at once"

    published(work)


def test_a_failure_and_a_breach_are_shown(prefect_server, copied):
    error = DataCheckFailed("table bank: 'x' is broken in 1 row: row 3 (`<b>`)", next_step="look at row 3")
    before = len(artifacts(artifact_key(copied.name, "data-checks")))

    def work() -> None:
        publish_breach(copied, 3, "consolidate", error)
        publish_failure(copied, 3)

    published(work)
    versions = artifacts(artifact_key(copied.name, "data-checks"))
    assert len(versions) == before + 1 and "row 3 (`<b>`)" in versions[-1].data and "**not**" in versions[-1].data
    assert artifacts(artifact_key(copied.name, "report"))[-1].description == "Stopped in round 3"


def test_what_cannot_be_made_or_published_is_a_warning(prefect_server, copied, monkeypatch, caplog):
    def broken(*arguments: Any, **named: Any) -> Any:
        raise RuntimeError("it broke")

    before = {kind: len(artifacts(artifact_key(copied.name, kind))) for kind in KINDS}
    monkeypatch.setattr(tasks.artifacts.markdown, "curve_markdown", broken)
    monkeypatch.setattr(tasks.artifacts, "write_report", broken)
    with caplog.at_level("WARNING"):
        published(lambda: publish_round(copied, 1))
    assert "the report page could not be written: it broke" in caplog.text
    assert f"the artifact {copied.name}-learning-curve could not be made: it broke" in caplog.text
    after = {kind: len(artifacts(artifact_key(copied.name, kind))) - count for kind, count in before.items()}
    assert after == {kind: int(kind != "learning-curve") for kind in KINDS}, "the others were published all the same"

    monkeypatch.setattr(tasks.artifacts, "get_client", broken)
    with caplog.at_level("WARNING"):
        published(lambda: publish_round(copied, 1))
    assert "artifacts could not be published: it broke" in caplog.text


class Stages:
    """As much of a driver as progress needs: it hands events to whoever subscribed."""

    def __init__(self) -> None:
        self.subscribers: list[Any] = []

    def subscribe(self, callback: Any) -> Any:
        self.subscribers.append(callback)
        return lambda: self.subscribers.remove(callback)

    def tell(self, event: Any) -> None:
        for subscriber in list(self.subscribers):
            subscriber(event)


def bars(task_run: Any) -> list[Any]:
    """Progress artifacts of a task run."""
    with get_client(sync_client=True) as client:
        found = client.read_artifacts(
            artifact_filter=ArtifactFilter(task_run_id=ArtifactFilterTaskRunId(any_=[task_run]))
        )
    return [artifact for artifact in found if artifact.type == "progress"]


def staged(work: Any) -> Any:
    """Do something inside a task run of a stage, with a driver's events; returns the task run's id."""

    @task(name="stage")
    def stage() -> Any:
        driver: Any = Stages()
        with shown_progress(driver, 2, "collect"):
            work(driver)
        assert not driver.subscribers
        return get_run_context().task_run.id  # type: ignore[union-attr]

    @flow(name="round")
    def run() -> Any:
        return stage()

    return run()


def test_a_long_stage_has_a_bar_that_ends_full(prefect_server, monkeypatch):
    monkeypatch.setattr(tasks.stage, "AFTER_SECONDS", 0.1)
    monkeypatch.setattr(tasks.stage, "EVERY_SECONDS", 0.1)
    seen = []

    def work(driver: Stages) -> None:
        run = get_run_context().task_run.id  # type: ignore[union-attr]
        driver.tell(Progress(2, "distill", 9, 10, 1.0))
        driver.tell(Progress(2, "collect", 4, 16, 1.0, {"episodes": 4}))
        wait_until(lambda: bars(run), "there is a bar")
        seen.append(bars(run)[0])
        driver.tell(Progress(2, "collect", 12, 16, 2.0, {"episodes": 12}))
        wait_until(lambda: bars(run)[0].data == 75.0, "the bar moves")
        driver.tell(StageDone(2, "collect", "d", 3.0))

    run = staged(work)
    assert seen[0].data == 25.0 and "round 2, collect: 4 of 16" in seen[0].description
    # A stage that is done waits for its last request for a moment only.
    wait_until(lambda: bars(run)[0].data == 100.0, "the bar is full")
    assert [(bar.data, bar.description) for bar in bars(run)] == [(100.0, "round 2, collect: committed")]


def test_a_short_stage_has_no_bar_and_a_failed_one_does_not_end_full(prefect_server, monkeypatch):
    monkeypatch.setattr(tasks.stage, "AFTER_SECONDS", 3600.0)
    assert bars(staged(lambda driver: driver.tell(Progress(2, "collect", 4, 16, 1.0)))) == []
    monkeypatch.setattr(tasks.stage, "AFTER_SECONDS", 0.0)
    monkeypatch.setattr(tasks.stage, "EVERY_SECONDS", 0.1)

    def work(driver: Stages) -> None:
        driver.tell(Progress(2, "collect", 4, 16, 1.0))
        run = get_run_context().task_run.id  # type: ignore[union-attr]
        wait_until(lambda: bars(run), "there is a bar")

    assert [bar.data for bar in bars(staged(work))] == [25.0]


def test_a_server_that_does_not_answer_costs_the_bar_only(prefect_server, monkeypatch, caplog):
    def broken(*arguments: Any, **named: Any) -> Any:
        raise RuntimeError("no server")

    monkeypatch.setattr(tasks.stage, "AFTER_SECONDS", 0.0)
    monkeypatch.setattr(tasks.stage, "create_progress_artifact", broken)
    with caplog.at_level("WARNING"):

        def work(driver: Stages) -> None:
            driver.tell(Progress(2, "collect", 4, 16, 1.0))
            wait_until(lambda: "could not be shown" in caplog.text, "there is a warning")

        assert bars(staged(work)) == []
    assert "the progress of collect could not be shown: no server" in caplog.text
