"""An environment that raises, hangs, dies or writes a megabyte costs its own episode, never the round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from crl.records import Episode, Sample, Task, Turn
from tests.unit.envs.misbehaving import HANGS, WAYS
from tests.unit.recipes.played import Played, Policy, Services, experiment, write

SIZE = 2
CODES = {
    "well": None,
    "raise": "environment_KeyError",
    "exit": "environment_died",
    "segfault": "environment_died",
    "megabyte": "environment_observation_limit",
    "reset_raise": "environment_KeyError",
    "reset_exit": "environment_died",
    "reset_megabyte": "environment_observation_limit",
    "infinite": "environment_reward",
    "hang": "environment_time_limit",
    "reset_hang": "environment_time_limit",
}
DIES = ("exit", "segfault", "reset_exit")


def round_of(root: Path, ways: list[str], wave_groups: int = 0, **family: Any) -> dict[str, list[Episode]]:
    """The episodes of a round, by how their environment behaves: every training seed is played once by each member, in
    waves of all groups unless `wave_groups` says how many."""
    made = experiment(
        method__families=[
            {
                "name": "rough", "groups": len(ways), **family,
                "environment": {"kind": "tests.unit.envs.misbehaving:MisbehavingConfig", "ways": ways},
                "train_seeds": {"start": 0, "count": len(ways)}, "evaluation_seeds": {"start": 100, "count": 2},
            }
        ],
        method__rollout__group_size=SIZE,
        method__rollout__wave_groups=wave_groups or len(ways),
    )  # fmt: skip
    services = Services(made)
    services._policies = {"actor": Policy(lambda read, random: "go"), "extractor": Policy(write)}
    run = Played(root, made, 1, services)
    services.environment("rough", 1).close()
    episodes = run.rows(Episode, "collect", 1)
    assert len(episodes) == len(run.rows(Task, "plan", 1)) == SIZE * len(ways)
    trained = {row.generation_id for row in run.rows(Sample, "credit", 1)}
    assert not any(trained & {*each.generation_ids} for each in episodes if each.error is not None), (
        "nothing is learned of it"
    )
    turns = run.rows(Turn, "collect", 1)
    assert {turn.episode_id for turn in turns} == {each.episode_id for each in episodes}
    assert max(len(turn.observation) for turn in turns) < 1000
    found: dict[str, list[Episode]] = {}
    for each in episodes:
        found.setdefault(ways[each.environment_seed], []).append(each)
    return found


def compare(found: dict[str, list[Episode]], ways: list[str]) -> None:
    assert found.keys() == set(ways)
    for way, episodes in found.items():
        for each in episodes:
            assert each.error == CODES[way], way
            assert each.stop_reason == ("success" if way == "well" else "error"), way
            assert (each.success, each.reward, each.turns) == ((True, 1.0, 2) if way == "well" else (False, 0.0, 1))


@pytest.mark.slow
def test_it_costs_its_own_episode_whatever_it_does(tmp_path: Path) -> None:
    compare(round_of(tmp_path, list(WAYS), isolate=True, workers=4), list(WAYS))


def test_so_it_does_without_a_process_of_its_own_but_for_dying(tmp_path: Path) -> None:
    ways = [way for way in WAYS if way not in DIES]
    compare(round_of(tmp_path, ways), ways)


def test_so_it_does_where_its_wave_holds_no_other_seed(tmp_path: Path) -> None:
    compare(round_of(tmp_path, ["reset_raise", "well"], wave_groups=1), ["reset_raise", "well"])


@pytest.mark.slow
def test_one_that_hangs_costs_its_own_too(tmp_path: Path) -> None:
    ways = ["well", *HANGS, "exit"]
    compare(round_of(tmp_path, ways, isolate=True, workers=8, step_time_limit_seconds=20), ways)
