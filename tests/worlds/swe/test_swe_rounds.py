"""Whole rounds of repairs: what a tool does costs its own episode, and what is played is not played again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from crl.audit.audit import problems_of
from crl.audit.verify import verify
from crl.config import PromptConfig
from crl.config.load import load_experiment
from crl.engine.execute import Attempt, execute_part, execute_stage
from crl.extractor.parse import parse_output
from crl.extractor.prompts import check_prompts as check_extractor_prompts
from crl.records import Episode, Turn
from crl.rollout.actions import parse_action
from crl.rollout.prompts import check_prompts
from crl.rounds.recipe import recipe_of
from crl.run.directory import RunDirectory
from crl.run.lease import Lease
from crl.worlds.sandbox.bubblewrap import Bubblewrap
from crl.worlds.swe.calls import FORM, SUBMIT, call_of
from crl.worlds.swe.environment import SweEnvironment
from tests.learning.harness import rows, train
from tests.unit.recipes.played import ROOT, Played, Policy, Services, experiment, write
from tests.worlds.swe.world import made, make_row, make_rows, needs_bwrap

CONF = ROOT / "conf"
SAYS = (
    "execute_bash sleep 1000", "execute_bash kill -9 -1; kill -9 $$", "execute_bash head -c 1000000000 /dev/zero",
    "execute_bash sed -i 's|/ (len(numbers) + 1)|/ len(numbers) if numbers else 0|' tally.py", "submit", "nonsense",
)  # fmt: skip


def _experiment(folder: Path, *, groups: int = 2, group_size: int = 2, seconds: float = 0.5) -> Any:
    records = [make_row(folder, f"tally-{number}") for number in range(4)]
    limits = {"seconds": seconds, "output_mb": 1}
    environment = {"kind": "swe", "calls": "text", "rows": str(make_rows(folder, records)), "max_turns": 3,
                   "max_output_characters": 300, "limits": limits, "cache": str(folder / "cache")}  # fmt: skip
    family = {"name": "repairs", "environment": environment, "groups": groups,
              "evaluation_seeds": {"start": 1_000_000, "count": 1}}  # fmt: skip
    return experiment(method__families=[family], method__rollout__group_size=group_size, method__rollout__wave_groups=1)


def _services(run: Any, says: Sequence[str] = SAYS) -> Services:
    services = Services(run)
    actor = Policy(lambda read, random: says[int(random.integers(len(says)))])
    services._policies = {"actor": actor, "extractor": Policy(write)}
    return services


@needs_bwrap
@pytest.mark.slow
def test_a_tool_that_hangs_or_dies_costs_its_own_turn(tmp_path: Path) -> None:
    chosen = _experiment(tmp_path, groups=3)
    made(chosen.method.families[0].environment).close()
    services = _services(chosen)
    run = Played(tmp_path / "runs", chosen, 1, services)
    services.environment("repairs", 1).close()
    episodes, turns = run.rows(Episode, "collect", 1), run.rows(Turn, "collect", 1)
    assert len(episodes) == 6 and not [each for each in episodes if each.error]
    assert {each.stop_reason for each in episodes} <= {"success", "failure", "turn_limit"}
    shown = "\n".join(turn.observation for turn in turns)
    assert "it ran longer than 0.5 seconds" in shown


@needs_bwrap
@pytest.mark.slow
def test_a_sandbox_that_cannot_be_started_costs_its_own_episode(tmp_path: Path, monkeypatch: Any) -> None:
    chosen = _experiment(tmp_path)
    made(chosen.method.families[0].environment).close()
    services, whole = _services(chosen), Bubblewrap.run
    monkeypatch.setattr(Bubblewrap, "run", _broken_for(whole, "kill -9"))
    run = Played(tmp_path / "runs", chosen, 2, services)
    services.environment("repairs", 1).close()
    episodes = [each for number in (1, 2) for each in run.rows(Episode, "collect", number)]
    assert {each.error for each in episodes} == {None, "environment_OSError"}


def _broken_for(whole: Any, words: str) -> Any:
    def run(self: Any, place: Any, command: Any, **more: Any) -> Any:
        if words in str(command):
            raise OSError("no more processes")
        return whole(self, place, command, **more)

    return run


@pytest.mark.slow
@needs_bwrap
def test_a_resumed_round_replays_no_call_of_what_is_played(tmp_path: Path, monkeypatch: Any) -> None:
    """Collecting ends after its first wave; another process goes on."""
    chosen = _experiment(tmp_path)
    made(chosen.method.families[0].environment).close()
    steps: list[str | None] = []
    whole = SweEnvironment._step
    monkeypatch.setattr(
        SweEnvironment, "_step", lambda self, slot, action: steps.append(action) or whole(self, slot, action)
    )
    run = RunDirectory.create_or_open(chosen, tmp_path / "runs")
    recipe = recipe_of(run.method)
    with Lease.acquire(run.path, seconds=600) as lease:
        attempt = Attempt(token=lease.token)
        first, second = _services(chosen), _services(chosen)
        for number in (0, 1):
            for stage in recipe.stages_of(run.method, number):
                if (number, stage.name) == (1, "collect"):
                    steps.clear()
                    execute_part(run, recipe, 1, "collect", 0, attempt=attempt, services=first)
                    before = len(steps)
                    assert before
                execute_stage(run, recipe, number, stage.name, attempt=attempt, services=second)
                if (number, stage.name) == (1, "collect"):
                    after = len(steps) - before
    turns = rows(run, Turn, "collect", [1])
    waves = [[turn for turn in turns if turn.episode_id in ids] for ids in _waves(rows(run, Episode, "collect", [1]))]
    assert [len(wave) for wave in waves] == [before, after]
    for services in (first, second):
        services.environment("repairs", 1).close()


@pytest.mark.slow
@needs_bwrap
def test_a_resumed_wave_replays_no_call_of_an_episode_that_was_over(tmp_path: Path, monkeypatch: Any) -> None:
    """Collecting ends in the middle of a wave, when one episode is over and others are not."""
    chosen = _experiment(tmp_path, groups=1, group_size=4, seconds=60)
    made(chosen.method.families[0].environment).close()
    undisturbed = Played(tmp_path / "undisturbed", chosen, 1, _services(chosen, SAYS[1:]))
    called: list[int] = []
    stops = True
    whole = SweEnvironment._step

    def step(self: SweEnvironment, slot: Any, action: str | None) -> Any:
        if stops and any(each.done for each in self._slots):
            raise Stopped
        called.extend(index for index, each in enumerate(self._slots) if each is slot)
        return whole(self, slot, action)

    run = RunDirectory.create_or_open(chosen, tmp_path / "runs")
    recipe = recipe_of(run.method)
    services = _services(chosen, SAYS[1:]), _services(chosen, SAYS[1:])
    with Lease.acquire(run.path, seconds=600) as lease:
        attempt = Attempt(token=lease.token)
        for number, stages in ((0, recipe.stages_of(run.method, 0)), (1, recipe.stages_of(run.method, 1))):
            for stage in stages:
                if (number, stage.name) == (1, "collect"):
                    monkeypatch.setattr(SweEnvironment, "_step", step)
                    with pytest.raises(Stopped):
                        execute_stage(run, recipe, 1, "collect", attempt=attempt, services=services[0])
                    before, stops = list(called), False
                    called.clear()
                execute_stage(run, recipe, number, stage.name, attempt=attempt, services=services[1])
                if stage.name == "collect":
                    break
    turns = [each.turns for each in rows(run, Episode, "collect", [1])]
    over = [slot for slot, count in enumerate(turns) if before.count(slot) == count]
    assert 0 < len(over) < len(turns)
    assert [called.count(slot) for slot in range(4)] == [0 if slot in over else turns[slot] for slot in range(4)]
    assert run.manifest(1, "collect").digest == undisturbed.run.manifest(1, "collect").digest
    assert not run.unfinished_path(1, "collect").exists()
    for each in services:
        each.environment("repairs", 1).close()


class Stopped(MemoryError):
    """The memory is exhausted: that is no fault of a game, and nothing catches it on the way."""


def _waves(episodes: list[Episode]) -> list[set[str]]:
    groups = dict.fromkeys(each.group for each in episodes)
    return [{each.episode_id for each in episodes if each.group == group} for group in groups]


@pytest.mark.parametrize("name", ["swe", "swe_tools"])
def test_the_prompts_are_whole_and_their_examples_in_form(name: str) -> None:
    content = yaml.safe_load((CONF / f"prompts/{name}.yaml").read_text(encoding="utf-8"))
    found = {key: PromptConfig.model_validate(each) for key, each in content.items()}
    check_prompts(found)
    check_extractor_prompts(found)
    called = []
    for exchange in found["actor"].examples:
        action = parse_action(exchange.assistant, FORM, "word")
        called.append(call_of(action, as_text=True).name)
    assert not called or called[-1] == SUBMIT
    for exchange in found["distill"].examples:
        guided = "Advice used: none" not in exchange.user
        told = parse_output(exchange.assistant, format="lines", max_operations=1, max_characters=200, guided=guided)
        assert told.reason_code == "ok"


TINY: dict[str, Any] = {
    "method.families": [
        {"name": "repairs", "groups": 2, "evaluation_seeds": {"start": 1_000_000, "count": 1},
         "environment": {"kind": "swe", "calls": "text", "max_turns": 3, "max_output_characters": 300}},
    ],
    "method.prompts": "swe",
    "method.roles.actor.sampling.max_new_tokens": 24,
    "method.rollout.group_size": 2,
    "method.recipe.warm_start": None,
}  # fmt: skip


@needs_bwrap
@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "cut"),
    [
        ("tiny.yaml", TINY),
        (
            "swe.yaml",
            {
                "method.families.0.groups": 1, "method.families.0.environment.max_turns": 2,
                "method.families.0.evaluation_seeds.count": 1, "method.rollout.group_size": 2,
                "method.roles.actor.sampling.max_new_tokens": 32, "method.recipe.warm_start": None,
                "method.recipe.extractor_objective.batch": 2, "method.evaluation.every": 2, "method.threads": 1,
            },
        ),
    ],
)  # fmt: skip
def test_two_rounds_of_a_real_model(tmp_path: Path, file: str, cut: dict[str, Any]) -> None:
    loaded = load_experiment(CONF / file, cut)
    made(loaded.method.families[0].environment).close()
    run = train(loaded, tmp_path, 2)
    episodes = rows(run, Episode, "collect", (1, 2))
    assert len(episodes) >= 4 and not [each for each in episodes if each.error], json.dumps([e.error for e in episodes])
    assert verify(run.path) == [] and not problems_of(run, recipe_of(run.method))
