"""What Prefect costs: rounds of nine stages that do nothing, by the driver alone and as a flow.

    python benchmarks/prefect_share.py [ROUNDS] [REPEATS]

Three ways, in turns, each in a process of its own: the driver alone, the flow `train` with the temporary server that
Prefect starts when none is named, and the flow with a server that runs. A round counts from the end of the one before
to its own end, so the child flow, its tasks, logs and artifacts are all in it; start-up and the first rounds are not.
Prefect's share is the difference of the medians. The flow's own processor seconds are shown beside the wall clock,
which on shared cores says little: with a server on the same machine both compete for them.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import psutil

from crl.config import RecipeConfig, RoleUse

ROOT = Path(__file__).resolve().parents[1]
STAGES = 9
WARM_UP = 2
"""Rounds that are not counted: the preparation, and the first in which every path of the code is new."""
WAYS = ("driver alone", "flow, temporary server", "flow, running server")


KIND = "benchmarks.prefect_share:NothingConfig"


class NothingConfig(RecipeConfig):
    """The config of a recipe whose stages do nothing."""

    kind: str = KIND
    BUILDER: ClassVar[str] = "benchmarks.prefect_share:build"

    def roles(self) -> Mapping[str, RoleUse]:
        return {"actor": RoleUse()}


def build(method: Any) -> Any:
    """Nine stages that do nothing, after one that does the same."""
    from crl.rounds.stage import Recipe, Stage

    return Recipe(
        name="nothing",
        preparation=(Stage("prepare", run=nothing),),
        stages=tuple(Stage(f"stage_{number}", run=nothing) for number in range(1, STAGES + 1)),
        initial={},
    )


def nothing(ctx: Any) -> None:
    """A stage that writes no row."""


def measure(way: str, rounds: int) -> dict[str, Any]:
    """Seconds of each round in this process, and its processor seconds per round."""
    import flows  # noqa: F401  (first: it turns Prefect's telemetry off)
    from crl.config.load import load_experiment, runs_root
    from crl.engine.driver import Driver, watch
    from crl.engine.events import Event, RoundDone
    from crl.run.directory import RunDirectory

    marks: list[tuple[float, float]] = []

    def mark(event: Event) -> None:
        if isinstance(event, RoundDone):
            marks.append((time.perf_counter(), time.process_time()))

    experiment = load_experiment(ROOT / "conf" / "tiny.yaml", {"method.recipe": {"kind": KIND}})
    watch(mark)
    tasks = 0
    if way == WAYS[0]:
        run = RunDirectory.create_or_open(experiment, runs_root(experiment))
        with Driver(run, experiment.runtime) as driver:
            driver.run_rounds(driver.set_target(WARM_UP - 1 + rounds)[1])
    else:
        from flows.train import train

        state = train(experiment, WARM_UP - 1 + rounds, return_state=True)
        state.result()
        tasks = tasks_a_round(state.state_details.flow_run_id, WARM_UP + rounds)
    counted = marks[WARM_UP - 1 :]
    seconds = [after[0] - before[0] for before, after in itertools.pairwise(counted)]
    return {"seconds": seconds, "processor": (counted[-1][1] - counted[0][1]) / rounds, "tasks": tasks}


def tasks_a_round(flow_run_id: Any, rounds: int) -> float:
    """Task runs that Prefect shows for a round: its stages, and the one that stands for the round in its parent."""
    from prefect import get_client
    from prefect.client.schemas.filters import FlowRunFilter

    time.sleep(5)  # the last ones are still on their way
    wanted = FlowRunFilter.model_validate({"parent_flow_run_id": {"any_": [flow_run_id]}})
    with get_client(sync_client=True) as client:
        of_rounds = client.read_task_runs(flow_run_filter=wanted, limit=200)
    stages = [task for task in of_rounds if task.name.startswith("stage_")]
    return len(stages) / (rounds - 1) + 1


@contextlib.contextmanager
def running_server(home: Path) -> Iterator[tuple[str, psutil.Process]]:
    """A server of its own, on loopback and a free port."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    environment = {**os.environ, "PREFECT_HOME": str(home), "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}
    server = psutil.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}/api"
    try:
        for _ in range(240):
            with contextlib.suppress(urllib.error.URLError, OSError), urllib.request.urlopen(f"{url}/health"):
                break
            time.sleep(0.5)
        yield url, server
    finally:
        children = server.children(recursive=True)
        server.terminate()
        _, alive = psutil.wait_procs([server, *children], timeout=15)
        for process in alive:
            process.kill()


def processor_seconds(process: psutil.Process) -> float:
    """Of a process and its children, so far."""
    total = 0.0
    for each in [process, *process.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):
            used = each.cpu_times()
            total += used.user + used.system
    return total


def main() -> None:
    """Run every way in turns, print medians, spread and Prefect's share."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 6
    repeats = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    found: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as folder, running_server(Path(folder) / "server") as (url, server):
        for repeat in range(repeats):
            for way in WAYS:
                environment = {
                    **os.environ,
                    "CRL_RUNS": f"{folder}/{repeat}-{WAYS.index(way)}",
                    "PREFECT_HOME": f"{folder}/home-{WAYS.index(way)}",
                    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
                    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
                    # As runs on a worker have it.
                    "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
                    "PYTHONPATH": str(ROOT),
                }
                environment.pop("PREFECT_API_URL", None)
                if way == WAYS[2]:
                    environment["PREFECT_API_URL"] = url
                before = processor_seconds(server)
                done = subprocess.run(
                    [sys.executable, __file__, "--measure", way, str(rounds)],
                    env=environment,
                    cwd=ROOT,
                    check=True,
                    stdout=subprocess.PIPE,
                    text=True,
                )
                answer = json.loads(done.stdout.splitlines()[-1])
                answer["server"] = (processor_seconds(server) - before) / (WARM_UP + rounds)
                found[way].append(answer)
    alone = statistics.median(second for each in found[WAYS[0]] for second in each["seconds"])
    print(f"{rounds} rounds of {STAGES} stages that do nothing, {repeats} times; seconds per round")
    for way in WAYS:
        seconds = sorted(second for each in found[way] for second in each["seconds"])
        median = statistics.median(seconds)
        print(
            f"{way:24} median {median:.3f} ({seconds[0]:.3f} to {seconds[-1]:.3f}), "
            f"processor {statistics.median(each['processor'] for each in found[way]):.3f}"
            + (
                f", of the server {statistics.median(each['server'] for each in found[way]):.3f}"
                if way == WAYS[2]
                else ""
            )
            + (f", Prefect's share {median - alone:.3f}" if way != WAYS[0] else "")
            + (f", {max(each['tasks'] for each in found[way]):.0f} tasks per round" if way == WAYS[2] else "")
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        print(json.dumps(measure(sys.argv[2], int(sys.argv[3]))))
    else:
        main()
