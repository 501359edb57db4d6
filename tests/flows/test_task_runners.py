"""Parts of a stage as tasks on Dask: equal digests, one part retried alone, what a failure leaves."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import psutil
import pytest
from prefect import get_client
from prefect.client.schemas.filters import FlowRunFilter, LogFilter, TaskRunFilter
from prefect.settings import PREFECT_API_URL

from crl.config.experiment import SCHEDULER_VARIABLE
from crl.engine.driver import Driver
from crl.engine.targets import last_runtime
from crl.errors import BadInput, DataCheckFailed
from crl.run.directory import RunDirectory
from flows.limits import ensure_limit
from flows.train import resume, train
from tests import tiny_run
from tests.faults.killing import MARK, marked
from tests.processes import PATIENCE_SECONDS, kill, wait_until
from tests.unit.engine.fake_recipe import PARTS
from tests.unit.engine.harness import digests, leftovers, make_driver, make_experiment

SHARDS, WORKERS = 4, 3
ORPHAN_SECONDS = 30.0
SLOW = pytest.mark.slow


@pytest.fixture(scope="module")
def one_shard(tmp_path_factory):
    """Digests of two rounds of the fake recipe with one shard."""
    with make_driver(tmp_path_factory.mktemp("one-shard")) as driver:
        driver.run_rounds(2)
        return digests(driver.run)


@contextlib.contextmanager
def cluster(workers: int = WORKERS, threads: int = 1) -> Iterator[Any]:
    """A Dask cluster of processes on this machine, named where a run looks for it; they inherit what is ordered now."""
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(
            n_workers=workers, threads_per_worker=threads, dashboard_address=None, memory_limit=None
        ) as local,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv(SCHEDULER_VARIABLE, local.scheduler_address)
        yield local


def spread(name: str = "fake"):
    """An experiment on Dask; one whose flow is killed has a name of its own, since its slot is taken for a while."""
    return make_experiment(shards=SHARDS, task_runner="dask").model_copy(update={"name": name})


def tasks_of_round(number: int) -> dict[str, Any]:
    """Task runs of the newest child run `round N`, by name."""
    return {run.name: run for run in tried_in_round(number)}


def tried_in_round(number: int) -> list[Any]:
    """Task runs of the newest child run `round N`: several of a part that was tried again."""
    with get_client(sync_client=True) as client:
        rounds = client.read_flow_runs(flow_run_filter=FlowRunFilter(name={"like_": f"round {number} of "}))
        newest = max(rounds, key=lambda run: run.created)
        return client.read_task_runs(task_run_filter=TaskRunFilter(flow_run_id={"any_": [newest.id]}))


def said_in(task_run_id: Any, text: str) -> bool:
    """Whether a line of a task run's log holds a text."""
    with get_client(sync_client=True) as client:
        lines = client.read_logs(LogFilter(task_run_id={"any_": [task_run_id]}))
        return any(text in line.message for line in lines)


@SLOW
def test_a_killed_part_alone_runs_again_and_the_digests_are_those_of_one_shard(fake, tmp_path, one_shard):
    path = fake({"spread/2": ["kill_once", str(tmp_path / "marker")], "spread/1": ["say", ""]})
    with cluster():
        state = train(spread(), rounds=2, return_state=True)
    assert state.result() == {"run": str(path), "rounds": [0, 1, 2]}
    assert digests(RunDirectory.open(path)) == one_shard

    for number, tried in ((1, [1, 1, 2, 1]), (2, [1, 1, 1, 1])):
        runs = tried_in_round(number)
        parts = [[run for run in runs if run.name == f"spread {part} of {PARTS}"] for part in range(1, PARTS + 1)]
        assert [len(runs) for runs in parts] == tried, "the stage was tried again with the part that was missing"
        assert all(sum(run.state.is_completed() for run in runs) == 1 for runs in parts)
        assert [run.run_count for run in runs if run.name == "spread"] == [2 if number == 1 else 1]
        assert len(runs) == 4 + sum(tried)
        said = parts[1][0].id
        wait_until(partial(said_in, said, "an error line"), "the part's log has the lines of its engine")


@SLOW
def test_a_permanent_failure_of_a_part_stops_the_stage_and_says_why(fake, one_shard):
    path = fake({"spread/1": ["breach", ""]})
    with cluster():
        state = train(spread(), rounds=1, return_state=True)
    with pytest.raises(DataCheckFailed, match="row 3 has"):
        state.result()
    runs = tasks_of_round(1)
    part, stage = runs[f"spread 2 of {PARTS}"], runs["spread"]
    assert part.run_count == stage.run_count == 1 and part.state.is_failed() and stage.state.is_failed()
    for message in (part.state.message, stage.state.message, state.message):
        assert f"part 2 of {PARTS}" in message and "row 3 has -1.0" in message and "look at row 3" in message
    run = RunDirectory.open(path)
    assert run.complete_stages(1) == ["draw"]

    # What the others completed is used: only the missing part is a task again.
    complete = [number for number in range(PARTS) if run.part_is_complete(1, "spread", number)]
    assert complete == [0, 2, 3]
    fake({})
    with cluster():
        assert resume(path)["rounds"] == [1]
    assert [name for name in tasks_of_round(1) if " of " in name] == [f"spread 2 of {PARTS}"]
    assert digests(run) == {key: value for key, value in one_shard.items() if not key.startswith("2/")}


def flow_process(folder, experiment, mark) -> subprocess.Popen[bytes]:
    """The flow `train` in a process of its own, as a worker starts it: without the guardian of the command line."""
    script = folder / "flow.py"
    script.write_text(
        "from crl.config import Experiment\nfrom flows.train import train\n\nif __name__ == '__main__':\n"
        f"    train(Experiment.model_validate_json({experiment.model_dump_json()!r}), 1)\n"
    )
    variables = {
        **os.environ, MARK: mark, "PYTHONPATH": str(tiny_run.ROOT), "PREFECT_API_URL": PREFECT_API_URL.value(),
    }  # fmt: skip
    with (folder / "output.txt").open("wb") as output:
        return subprocess.Popen(
            [sys.executable, str(script)], env=variables, cwd=folder, stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT,
        )  # fmt: skip


@SLOW
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_engines_end_with_the_flow_the_cluster_lives_on_and_a_resume_goes_on(number, fake, tmp_path, one_shard):
    markers = [tmp_path / f"marker-{part}" for part in range(PARTS)]
    fake({f"spread/{part}": ["sleep", str(marker)] for part, marker in enumerate(markers)})
    name = f"fake-{number.name.lower()}"
    path, mark = tmp_path / name, f"{os.getpid()}-{name}"
    # Two parts at a time in each worker process.
    with cluster(2, 2) as local:
        process = flow_process(tmp_path, spread(name), mark)
        try:
            wait_until(
                lambda: process.poll() is not None or all(marker.exists() and marker.read_text() for marker in markers),
                "every part runs",
                240.0,
            )
            assert process.poll() is None, (tmp_path / "output.txt").read_text()[-3000:]
            engines = [int(marker.read_text()) for marker in markers]
            assert len(set(engines)) == PARTS
            process.send_signal(number)
            wait_until(lambda: not any(map(psutil.pid_exists, engines)), "the engines ended", ORPHAN_SECONDS)
            ended = "every process that the flow had started ended"
            wait_until(lambda: not others(mark, process), ended, ORPHAN_SECONDS)
            process.wait(PATIENCE_SECONDS)
            if number == signal.SIGTERM:
                states = {name: run.state_name for name, run in tasks_of_round(1).items() if name.startswith("spread")}
                assert set(states.values()) == {"Crashed"} and len(states) == 1 + PARTS
            assert len(local.scheduler_info["workers"]) == 2
        finally:
            kill(marked(mark))
            process.wait()
    fake({})
    finish(path, one_shard)


def finish(path, one_shard) -> None:
    """What `crl resume` does: without Prefect, whose slot a killed flow holds for a while."""
    run = RunDirectory.open(path)
    with Driver(run, last_runtime(path)) as driver:
        assert driver.run_rounds(driver.unfinished()[1]) == [1]
    assert digests(run) == {key: value for key, value in one_shard.items() if not key.startswith("2/")}
    assert not leftovers(run)


def others(mark: str, process: subprocess.Popen[bytes]) -> list[int]:
    return [each.pid for each in marked(mark) if each.pid != process.pid]


@SLOW
def test_two_real_rounds_on_three_processes_have_the_digests_of_one_shard(copied, finished, prefect_server):
    tiny_run.cut_back(copied, 1, "collect")
    ensure_limit(tiny_run.NAME)
    with cluster() as local:
        resume(copied, {"shards": SHARDS, "task_runner": "dask", "retry_delay_seconds": 0.1})
        assert len(local.scheduler_info["workers"]) == WORKERS
    for number in range(1, tiny_run.ROUNDS + 1):
        names = [name for name in tasks_of_round(number) if " of " in name]
        assert {"collect 1 of 4", "collect 4 of 4", "evaluate 1 of 2", "evaluate 2 of 2"} <= set(names)
    assert tiny_run.digests(copied) == tiny_run.digests(finished)
    assert not tiny_run.leftovers(copied)


def test_a_task_runner_that_is_not_installed_is_named_before_anything_runs(fake, monkeypatch):
    monkeypatch.setattr("crl.preflight.find_spec", lambda name: None)
    path = fake({})
    with pytest.raises(BadInput, match="Dask task runner is not installed") as raised:
        train(spread(), rounds=1)
    assert "-e '.[dask]'" in str(raised.value) and not path.exists()


def test_a_cluster_that_nobody_named_is_said_before_anything_runs(fake, monkeypatch):
    monkeypatch.delenv(SCHEDULER_VARIABLE, raising=False)
    path = fake({})
    with pytest.raises(BadInput, match=f"{SCHEDULER_VARIABLE} names no cluster"):
        train(spread(), rounds=1)
    assert not path.exists()
