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
    (finding,) = _shards(experiment("gpu/one_24gb.yaml", method__rollout__wave_groups=4, runtime__shards=8))
    assert "8" in finding.result and "2 parts" in finding.result and "wave_groups" in finding.mend
    assert finding.mark == "–", "no error"
    assert not list(_shards(experiment("gpu/one_24gb.yaml", runtime__shards=8)))


@pytest.mark.parametrize("path", [*CONF.glob("gpu/*.yaml"), *CONF.glob("paper/*.yaml")], ids=lambda path: path.stem)
def test_no_gpu_that_a_file_asks_for_has_nothing_to_do(path: Path) -> None:
    """Neither while games are played nor, of weights that are trained on several, in an update."""
    made = load_experiment(path)
    gpus = made.runtime.gpus
    if gpus is None:
        assert path.stem in ("sokoban", "importance_replay"), "these are for one GPU of any size, or none"
        return
    machines = 2 if path.stem == "two_nodes" else 1
    assert made.runtime.shards == machines * gpus.count <= collecting_parts(made.method)
    assert {made.method.role(owner).deepspeed.ranks for owner in made.method.trained()} == {machines * gpus.count}


def test_the_commands_of_the_page_on_scale_split_the_games() -> None:
    page = (CONF.parent / "docs/scale.md").read_text(encoding="utf-8")
    (command,) = (line for line in page.splitlines() if "conf/quickstart.yaml" in line and "runtime.shards" in line)
    settings = dict(word.split("=", 1) for word in command.split() if "=" in word)
    waves, shards = int(settings["method.rollout.wave_groups"]), int(settings["runtime.shards"])
    assert collecting_parts(experiment("quickstart.yaml", method__rollout__wave_groups=waves).method) == shards > 1
