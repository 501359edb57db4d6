"""How many shards have something to do while a round's games are played."""

from __future__ import annotations

from pathlib import Path

import pytest

from crl.cli.doctor import _shards
from crl.config import Experiment
from crl.config.load import load_experiment
from crl.preflight.placement import collecting_parts
from crl.records import FREE, Task
from crl.rollout.play import waves_of
from crl.rounds.waves import together

CONF = Path(__file__).parents[3] / "conf"


def experiment(name: str, **settings: object) -> Experiment:
    return load_experiment(CONF / name, {key.replace("__", "."): value for key, value in settings.items()})


@pytest.mark.parametrize("wave_groups", [1, 3, 4, 5, 16, 100])
@pytest.mark.parametrize("mixed", [True, False])
def test_parts_are_the_waves_of_the_round(wave_groups: int, mixed: bool) -> None:
    method = experiment(
        "quickstart.yaml", method__rollout__wave_groups=wave_groups, method__rollout__mixed_waves=mixed
    ).method
    groups = [name for family in method.families for name in [family.name] * family.groups]
    tasks = [
        Task(
            episode_id=f"{family}-{group}", round=1, family=family, group=group, member=0, environment_seed=group,
            stream=FREE, goal="", first_observation="", query="",
        )
        for group, family in enumerate(groups)
    ]  # fmt: skip
    assert collecting_parts(method) == len(waves_of(tasks, wave_groups, together(method)))


def test_doctor_says_where_shards_would_have_nothing_to_do() -> None:
    (finding,) = _shards(experiment("scale/qwen-7b.yaml", runtime__shards=8))
    assert "8" in finding.result and "2 parts" in finding.result and "wave_groups" in finding.mend
    assert finding.mark == "–", "no error"
    assert not list(_shards(experiment("scale/qwen-7b.yaml", runtime__shards=2)))


@pytest.mark.parametrize(
    ("name", "wave_groups", "shards"), [("quickstart.yaml", 4, 4), ("scale/qwen-7b.yaml", 1, 8)], ids=str
)
def test_the_commands_of_the_page_on_scale_split_the_games(name: str, wave_groups: int, shards: int) -> None:
    page = (CONF.parent / "docs/scale.md").read_text(encoding="utf-8")
    (command,) = (line for line in page.splitlines() if name in line and "runtime.shards" in line)
    assert f"--set method.rollout.wave_groups={wave_groups} " in command and f"runtime.shards={shards}" in command
    assert collecting_parts(experiment(name, method__rollout__wave_groups=wave_groups).method) == shards
