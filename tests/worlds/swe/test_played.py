"""The tasks that ship, played: every one at length; and calls that leave nothing behind."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from crl.worlds.swe import SweConfig
from crl.worlds.swe.shipped import shipped_tasks
from crl.worlds.swe.sources import tasks_of
from tests.worlds.swe.world import Player, config_of, files_below, made, mounts, needs_bwrap

pytestmark = needs_bwrap
FROM = 1_000_000


@pytest.fixture(scope="module")
def shipped():
    with closing(made(SweConfig())) as environment:
        yield environment


def _won(environment, seed):
    """The reward of the oracle's repair, and that of handing in the repository as it is."""
    untouched = Player(environment, seed).submit()
    environment.reset_many([seed])
    while not (step := environment.step_many({0: environment.oracle(0)})[0]).done:
        assert step.legal
    return untouched.reward, step.reward


@pytest.mark.slow
def test_tasks_that_ship_are_played(shipped):
    """One to train on, one held out."""
    assert [_won(shipped, seed) for seed in (0, FROM)] == [(0.0, 1.0)] * 2


@pytest.mark.parametrize("level", [None, "easy"])
def test_seeds_of_the_tasks_that_ship(level):
    config = SweConfig(level=level)
    found = tasks_of(config)
    for split, first, count in (("train", 0, 60), ("evaluation", FROM, len(found.evaluation))):
        there = {name for name, task in shipped_tasks().items() if task.split == split and level in (None, task.level)}
        assert {found.of(first + seed).instance_id for seed in range(count)} == there
    assert config.held_out_levels == len(found.evaluation) > 0


@pytest.mark.slow
def test_the_oracle_repairs_every_task_that_ships():
    every = {}
    with closing(made(SweConfig())) as environment:
        trained = len(environment.tasks.training)
        for seed in [*range(trained), *range(FROM, FROM + len(environment.tasks.evaluation))]:
            every[environment.tasks.of(seed).instance_id] = _won(environment, seed)
    assert every == dict.fromkeys(shipped_tasks(), (0.0, 1.0))


@pytest.mark.parametrize("calls", [40, pytest.param(1000, marks=pytest.mark.slow)])
def test_calls_leave_no_process_mount_or_file(tmp_path, calls):
    """Sixteen episodes side by side."""
    config = config_of(tmp_path, max_turns=1000)
    before = _mounts(tmp_path), _files(), _descriptors()
    children = _children()
    environments = [made(config) for _ in range(4 if calls < 100 else 16)]
    for environment in environments:
        environment.reset_many([0])

    def play(environment):
        for number in range(calls // len(environments)):
            step = environment.step_many({0: '{"name": "execute_bash", "arguments": {"command": "sleep 50 & ls"}}'})[0]
            assert step.observation == "README.md\ntally.py\ntests", number

    with ThreadPoolExecutor(len(environments)) as threads:
        list(threads.map(play, environments))
    assert not [each for each in environments if files_below(each._workplace.folder / "graded")]
    for environment in environments:
        environment.close()
    assert (_mounts(tmp_path), _files(), _descriptors()) == before
    assert set(_children()) <= set(children), "one that had ended before may be reaped meanwhile"


def _mounts(folder):
    """All mounts but those that tests beside this one make in folders of their own."""
    return [each for each in mounts().splitlines() if "/pytest-of-" not in each or str(folder) in each]


def _children():
    found = []
    for path in Path("/proc").iterdir():
        try:
            if path.name.isdigit() and f"\nPPid:\t{os.getpid()}\n" in (path / "status").read_text():
                found.append(path.name)
        except OSError:
            continue
    return sorted(found)


def _files():
    """What environments of this process keep in the folder of temporary files; others' come and go."""
    return [each for each in Path("/tmp").glob("crl-swe-*") if _is_ours(each)]


def _is_ours(folder):
    links = []
    for each in Path("/proc/self/fd").iterdir():
        try:
            links.append(str(each.readlink()))
        except OSError:
            continue
    return f"{folder}/lock" in links


def _descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))
