"""Rounds are validated beside a run by one process; what goes wrong with it is a verdict and never stops a run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

from crl.config import Runtime
from crl.config.load import load_experiment
from crl.engine.events import RoundDone, StageDone
from crl.engine.jobs import Job
from crl.engine.supervisor import Engine
from crl.run.directory import RunDirectory
from crl.run.validations import load_verdict, verdict_path
from crl.validation import subscriber
from crl.validation.subscriber import Validations, validations_of
from tests.processes import wait_until
from tests.unit.report.test_data_docs import TINY, attempt
from tests.unit.validation.child import ORDERS
from tests.unit.validation.test_round import RECIPE


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    """Rounds 0 to 4 are complete; a process of the tests validates them."""
    monkeypatch.setattr(subscriber, "Engine", Stub)
    monkeypatch.setattr(subscriber, "recipe_in", lambda run: RECIPE)
    made = RunDirectory.create_or_open(load_experiment(TINY), tmp_path)
    for number in range(5):
        attempt(made, number, RECIPE)
    return made


HANGING = 3


class Stub(Engine):
    """Runs the process of the tests. It has all the time it needs, but for one round."""

    def __init__(self, **named: Any) -> None:
        super().__init__(**{**named, "module": "tests.unit.validation.child"})

    def run(self, job: Job, *, time_limit: float | None = None, **more: Any) -> dict[str, Any]:
        return super().run(job, time_limit=3.0 if job.round == HANGING else time_limit, **more)


@pytest.fixture(autouse=True)
def one_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stage of the recipe is due in round 0 as well."""
    monkeypatch.setattr(type(RECIPE), "stages_of", lambda self, method, number: self.stages)


def outcomes(run: RunDirectory) -> dict[int, str]:
    found = {number: load_verdict(run.path, number) for number in run.rounds()}
    return {number: verdict.outcome for number, verdict in found.items() if verdict is not None}


def test_every_round_is_validated_by_one_process(run: RunDirectory) -> None:
    said: list[str] = []
    with Validations(run, Runtime(), said.append) as validations:
        for number in range(5):
            validations(StageDone(number, "collect", "", 0.0))
            validations(RoundDone(number, 0.0))
    assert outcomes(run) == dict.fromkeys(range(5), "passed"), "the end waits for the last ones"
    verdicts = [load_verdict(run.path, number) for number in range(5)]
    pids = {verdict.megabytes for verdict in verdicts if verdict is not None}
    assert len(pids) == 1 and pids != {os.getpid()} and not Path(f"/proc/{pids.pop():.0f}").exists()
    assert said[0].startswith("waiting for the data checks of round") and len(said) == 1


@pytest.mark.parametrize(("every", "wanted"), [(0, []), (2, [0, 2, 4])])
def test_every_so_many_rounds(run: RunDirectory, every: int, wanted: list[int]) -> None:
    with Validations(run, Runtime(validate_every=every), pytest.fail if every == 0 else print) as validations:
        for number in range(5):
            validations(RoundDone(number, 0.0))
    assert sorted(outcomes(run)) == wanted


@pytest.mark.slow
def test_a_process_that_fails_is_a_verdict_and_the_next_round_goes_on(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ORDERS, json.dumps({"0": "dies", "1": "raises", str(HANGING): "hangs"}))
    said: list[str] = []
    with Validations(run, Runtime(), said.append) as validations:
        for number in range(4):
            validations(RoundDone(number, 0.0))
    failed = dict.fromkeys((0, 1, HANGING), "not validated")
    assert outcomes(run) == {**failed, 2: "passed", 4: "passed"}, "and round 4, which had no verdict either"
    reasons = [str(getattr(load_verdict(run.path, number), "reason", "")) for number in failed]
    endings = ("ended with exit code 3", "this is no frame", "ran past its time limit")
    for reason, words in zip(reasons, endings, strict=True):
        assert words in reason and any(reason in line for line in said), reason
    monkeypatch.setenv(ORDERS, "{}")
    with Validations(run, Runtime(), print):
        pass  # as `crl resume` where nothing is left to do
    assert outcomes(run) == dict.fromkeys(range(5), "passed"), "made up for"


@pytest.mark.slow
def test_a_package_that_is_missing_is_said(run: RunDirectory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The real process, in an environment without Great Expectations."""
    (tmp_path / "without").mkdir()
    missing = "raise ModuleNotFoundError(\"No module named 'great_expectations'\")"
    (tmp_path / "without" / "great_expectations.py").write_text(missing, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path / "without")
    monkeypatch.setattr(subscriber, "Engine", Engine)
    said: list[str] = []
    with Validations(run, Runtime(validate_every=4), said.append) as validations:
        validations(RoundDone(0, 0.0))
    verdict = load_verdict(run.path, 0)
    assert verdict is not None and "No module named 'great_expectations'" in str(verdict.reason)
    assert any("round 0 was not validated: " in line for line in said)


@pytest.mark.slow
def test_a_verdict_that_is_lost_is_made_again(run: RunDirectory) -> None:
    with Validations(run, Runtime(), print) as validations:
        validations(RoundDone(4, 0.0))
    assert len(outcomes(run)) == 5, "rounds before it had none"
    verdict_path(run.path, 1).unlink()
    kept = verdict_path(run.path, 2).stat().st_mtime_ns
    with Validations(run, Runtime(), print):
        pass
    assert len(outcomes(run)) == 5 and verdict_path(run.path, 2).stat().st_mtime_ns == kept


def test_a_run_that_fails_waits_for_nothing(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ORDERS, json.dumps({"0": "hangs"}))
    with pytest.raises(KeyboardInterrupt), Validations(run, Runtime(), print) as validations:
        validations(RoundDone(0, 0.0))
        engine = validations._engine
        wait_until(lambda: engine.running and engine.pids, "the process runs")
        (pid,) = engine.pids
        raise KeyboardInterrupt
    assert not Path(f"/proc/{pid}").exists() and outcomes(run) == {}


def test_a_scheduler_that_is_away_costs_no_verdict(run: RunDirectory) -> None:
    """Each round goes through what the flow gives; where that fails, it is validated all the same."""
    said: list[str] = []
    threads = set()

    def through(path: str, number: int) -> None:
        threads.add(threading.current_thread().name)
        if number == 0:
            raise ConnectionError("no server")
        validations_of(path).validate(number)

    with Validations(run, Runtime(validate_every=4), said.append, through) as validations:
        validations(RoundDone(0, 0.0))
        validations(RoundDone(4, 0.0))
    assert outcomes(run) == {0: "passed", 4: "passed"} and threads == {"validations"}
    assert "Prefect cannot show the data checks of round 0: no server" in said
    with pytest.raises(KeyError):
        validations_of(run.path)


TURNS = """
import os, sys, time
os.sched_setaffinity(0, {int(sys.argv[1])})
if sys.argv[2] == "validates":
    from crl.validation.process import give_way
    give_way()
print(flush=True)
while True:
    pass
"""


@pytest.mark.slow
def test_a_program_that_never_rests_does_not_starve_it(tmp_path: Path) -> None:
    """Both compute on one core. With the lowest priority it would get a sixtieth."""
    core = str(min(os.sched_getaffinity(0)))
    command = [sys.executable, "-c", TURNS, core]
    with ExitStack() as stack:
        started = []
        for name in ("other", "validates"):
            process = stack.enter_context(subprocess.Popen([*command, name], stdout=subprocess.PIPE))
            stack.callback(process.kill)
            started.append(process)
        for process in started:
            assert process.stdout is not None and process.stdout.readline()
        other, mine = ([psutil.Process(each.pid), _computed(each.pid)] for each in started)
        wait_until(lambda: _computed(mine[0].pid) > mine[1] + 0.5, "it computes")
        assert _computed(other[0].pid) - other[1] < 10 * (_computed(mine[0].pid) - mine[1])


def _computed(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def test_it_imports_no_great_expectations() -> None:
    code = "import sys, crl.validation.subscriber, crl.engine.worker, crl.cli.train, crl.run.validations\n"
    code += "print({'great_expectations', 'pandas', 'torch'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
