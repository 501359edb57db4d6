"""Environments in processes of their own: what dies or hangs there costs one slot, and nothing outlives its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from crl.config import FamilyConfig
from crl.envs import check_environment, make_environment
from crl.envs.frozenlake import FrozenLakeConfig
from crl.envs.isolated import EnvironmentLost, ForkServer, Isolated
from crl.envs.side_by_side import SideBySide
from crl.errors import BadInput
from tests.processes import PATIENCE_SECONDS, ended, gone
from tests.unit.envs.misbehaving import HANGS, WAYS, MisbehavingConfig

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    made = ForkServer(MisbehavingConfig(ways=(*WAYS, *HANGS)))
    yield made
    made.close()


def wait(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_rows_are_those_of_the_environment_itself() -> None:
    alone = make_environment(FamilyConfig(name="a", environment=FrozenLakeConfig()))
    apart = make_environment(FamilyConfig(name="a", environment=FrozenLakeConfig(), isolate=True, workers=2))
    assert isinstance(apart, SideBySide)
    seeds = [3, 1, 4]
    assert apart.reset_many(seeds) == alone.reset_many(seeds)
    assert apart.difficulty(1) == alone.difficulty(1) > 0  # type: ignore[attr-defined]
    live = set(range(len(seeds)))
    while live:
        actions = {slot: apart.oracle(slot) for slot in live}
        assert actions == {slot: alone.oracle(slot) for slot in live}
        steps = apart.step_many(actions)
        assert steps == alone.step_many(actions)
        live -= {slot for slot, step in steps.items() if step.done}
    assert apart.content(1) == alone.content(1)  # type: ignore[attr-defined]
    told: list[str] = [environment.why(1) for environment in (apart, alone)]  # type: ignore[attr-defined]
    assert told[0] == told[1] and " goes " in told[0]
    pids = [instance.pid for instance in apart._instances]  # type: ignore[attr-defined]
    assert len(set(pids)) == 3 and os.getpid() not in pids
    apart.close()
    wait(lambda: all(map(gone, pids)))


@pytest.mark.parametrize(
    ("way", "code"),
    [
        ("raise", "environment_KeyError"),
        ("exit", "environment_died"),
        ("segfault", "environment_died"),
        ("reset_raise", "environment_KeyError"),
        ("reset_exit", "environment_died"),
    ],
)
def test_what_it_does_is_the_reason_of_its_slot(server: ForkServer, way: str, code: str) -> None:
    instances = SideBySide(lambda: Isolated(server), workers=2)
    starts = instances.reset_many([0, WAYS.index(way)])
    if way.startswith("reset_"):
        assert starts[1].error == code and starts[0].error is None
        steps = instances.step_many({0: "go"})
    else:
        steps = instances.step_many({0: "go", 1: "go"})
        assert steps[1].error == code and steps[1].done and steps[1].reward == 0.0
        assert instances.oracle(1) == (None if code == "environment_died" else "go")
    assert steps[0].observation == "seed 0 turn 1" and steps[0].error is None
    assert instances.reset_many([0, 50])[1].observation == "seed 50", "a new process took its place"
    instances.close()


@pytest.mark.parametrize("way", HANGS)
def test_what_hangs_is_killed_at_its_limit(server: ForkServer, way: str) -> None:
    seed = len(WAYS) + HANGS.index(way)
    isolated = Isolated(server)
    pid = isolated.pid
    if way == "hang":
        isolated.reset_many([seed])
    isolated._limit = 0.3
    with pytest.raises(EnvironmentLost, match=r"no answer within 0.3 s") as caught:
        isolated.reset_many([seed]) if way == "reset_hang" else isolated.step_many({0: "go"})
    assert caught.value.code == "environment_time_limit"
    wait(lambda: gone(pid))
    isolated._limit = None
    assert isolated.reset_many([0])[0].observation == "seed 0"
    isolated.close()


@pytest.mark.slow
def test_what_is_killed_leaves_no_process_that_it_has_started() -> None:
    with closing(ForkServer(MisbehavingConfig(ways=("helper_hang",)))) as server, closing(Isolated(server)) as isolated:
        isolated.reset_many([0])
        [helper] = psutil.Process(isolated.pid).children()
        isolated._limit = 0.3
        with pytest.raises(EnvironmentLost, match="its process was killed"):
            isolated.step_many({0: "go"})
        wait(lambda: ended(helper))


def test_all_of_them_end_with_their_parent_whatever_they_do() -> None:
    """The parent is killed while one instance hangs and another one waits for work."""
    script = (
        "from crl.envs.isolated import Isolated, ForkServer\n"
        "from tests.unit.envs.misbehaving import MisbehavingConfig\n"
        "server = ForkServer(MisbehavingConfig(ways=['hang']))\n"
        "one, other = Isolated(server), Isolated(server)\n"
        "one.reset_many([0])\n"
        "print(server._process.pid, one.pid, other.pid, flush=True)\n"
        "one.step_many({0: 'go'})\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    assert parent.stdout is not None
    pids = [int(word) for word in parent.stdout.readline().split()]
    assert len(pids) == 3 and not any(map(gone, pids))
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    wait(lambda: all(map(gone, pids)))
    parent.stdout.close()


@pytest.mark.slow
def test_an_environment_that_dies_at_its_start_is_refused_before_work() -> None:
    with pytest.raises(BadInput, match="its process ended after `reset_many` was called"):
        check_environment(MisbehavingConfig(ways=("reset_exit",) * 4), isolate=True)


def test_what_no_other_process_can_import_is_refused() -> None:
    class Local(MisbehavingConfig):
        pass

    with pytest.raises(BadInput, match="where no other process finds it"):
        ForkServer(Local())


def test_practice_games_cannot_be_isolated_and_the_digest_of_older_methods_stays() -> None:
    with pytest.raises(ValueError, match="practice games cannot be isolated"):
        FamilyConfig.model_validate({"name": "a", "environment": "shrines", "isolate": True})
    plain = FamilyConfig(name="a", environment=FrozenLakeConfig())
    assert "isolate" not in plain.model_dump(mode="json")
    assert plain.model_copy(update={"isolate": True}).model_dump(mode="json")["isolate"] is True
