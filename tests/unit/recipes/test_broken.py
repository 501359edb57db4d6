"""An environment that is out of order fails its stage: counted over all parts, for each family, never in silence."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from crl.config import EnvironmentConfig
from crl.engine.execute import Attempt, execute_part, execute_stage
from crl.errors import BadInput, EnvironmentBroken
from crl.protocols import Start, Step, StopReason
from crl.records import Episode, Evaluation
from crl.report.markdown import rounds_markdown
from crl.report.round_tables import remarks
from crl.report.summary import summarize
from crl.report.views import query
from crl.rounds.evaluate import evaluate_again
from crl.rounds.provenance import BROKEN, Game, add_games, joined, require_games
from crl.rounds.recipe import recipe_of
from crl.run.directory import RunDirectory
from crl.run.lease import Lease
from tests.unit.recipes.played import Policy, Services, experiment, write
from tests.unit.rollout.fakes import END, CharacterChat

OUTAGE: dict[str, Any] = {"act": False, "reset": False, "make": False}


class MoodyConfig(EnvironmentConfig):
    """Say go. `dead`: what never works; `rough`: seeds on which acting raises. The test may switch an outage on."""

    kind: str = "tests.unit.recipes.test_broken:MoodyConfig"
    dead: str = ""
    rough: tuple[int, ...] = ()
    keeps: bool = False

    @property
    def keeps_steps(self) -> bool:
        return self.keeps

    def make(self) -> Moody:
        self.fail("make")
        return Moody(self)

    def fail(self, what: str) -> None:
        if self.dead == what or OUTAGE[what]:
            raise ConnectionError(f"no simulator: {what}")


class Moody:
    def __init__(self, config: MoodyConfig) -> None:
        self.config = config

    def reset_many(self, seeds: Any) -> list[Start]:
        self.config.fail("reset")
        self.seeds = list(seeds)
        return [Start("Say go.", f"Level {seed}.", ("go", "stay")) for seed in seeds]

    def step_many(self, actions: Any) -> dict[int, Step]:
        self.config.fail("act")
        for slot in actions:
            if self.seeds[slot] in self.config.rough:
                raise (KeyError if self.seeds[slot] % 2 else TimeoutError)("rough")
        return {slot: Step("Done.", (), True, "", True, True, 1.0, StopReason.success) for slot in actions}

    def oracle(self, slot: int) -> str | None:
        return "go"

    def close(self) -> None:
        raise RuntimeError("it cannot even be closed")


@pytest.fixture(autouse=True)
def fair_weather() -> Any:
    yield
    OUTAGE.update(dict.fromkeys(OUTAGE, False))


def family(name: str, *, groups: int = 4, **settings: Any) -> dict[str, Any]:
    return {
        "name": name, "groups": groups, "train_seeds": {"start": 0, "count": groups},
        "evaluation_seeds": {"start": 100, "count": 4},
        "environment": {"kind": "tests.unit.recipes.test_broken:MoodyConfig", **settings},
    }  # fmt: skip


class Stages:
    """A run whose stages are run one by one."""

    def __init__(
        self, root: Path, *families: dict[str, Any], wave_groups: int = 2, limit: float = 0.9, warm_start: Any = None
    ) -> None:
        made = experiment(
            method__families=list(families), method__rollout__group_size=2, method__rollout__wave_groups=wave_groups,
            method__recipe__warm_start=warm_start,
        )  # fmt: skip
        self.run = RunDirectory.create_or_open(made, root)
        self.recipe, self.services = recipe_of(made.method), Services(made)
        self.services._policies = {"actor": Policy(lambda read, random: "go"), "extractor": Policy(write)}
        self.limit = limit

    def to(self, number: int, stage: str) -> None:
        """Every stage up to this one."""
        with Lease.acquire(self.run.path, seconds=600) as lease:
            attempt = Attempt(token=lease.token, broken_episodes_limit=self.limit)
            for each in range(number + 1):
                for name in (stage.name for stage in self.recipe.stages_of(self.run.method, each)):
                    execute_stage(self.run, self.recipe, each, name, attempt=attempt, services=self.services)
                    if (each, name) == (number, stage):
                        return

    def part(self, number: int, stage: str, part: int) -> None:
        with Lease.acquire(self.run.path, seconds=600) as lease:
            attempt = Attempt(token=lease.token)
            execute_part(self.run, self.recipe, number, stage, part, attempt=attempt, services=self.services)

    def broken(self) -> list[dict[str, Any]]:
        names, rows = query(self.run.path, "SELECT * FROM broken_games ORDER BY ALL")
        return [dict(zip(names, row, strict=True)) for row in rows]


def test_where_acting_raises_in_every_game_the_stage_fails_and_goes_on_once_it_can(tmp_path: Path) -> None:
    stages = Stages(tmp_path, family("sim"))
    stages.to(1, "plan")
    OUTAGE["act"] = True
    with pytest.raises(EnvironmentBroken, match="8 of 8 games of family sim broke") as caught:
        stages.to(1, "collect")
    assert caught.value.transient and "sim" in (caught.value.where or "")
    assert "ConnectionError: no simulator: act" in caught.value.found and "in fail" in caught.value.found
    assert not stages.run.is_complete(1, "collect")
    assert not list(stages.run.path.glob("rounds/0001/.parts-collect/[0-9]*")), "broken parts are played again"
    OUTAGE["act"] = False
    stages.to(1, "collect")
    assert {row["error"] for row in stages.run.read(1, "collect", Episode).to_pylist()} == {None}
    assert stages.broken() == []


@pytest.mark.parametrize("dead", ["act", "reset", "make"])
def test_one_dead_family_of_several_fails_the_stage(tmp_path: Path, dead: str) -> None:
    stages = Stages(tmp_path, family("well", groups=8), family("ill", groups=2, dead=dead))
    with pytest.raises(EnvironmentBroken) as caught:
        stages.to(1, "collect")
    assert "no simulator" in caught.value.found and "family ill" in f"{caught.value.found} {caught.value.where}"


@pytest.mark.parametrize("dead", ["act", "reset"])
def test_in_threads_of_their_own_too(tmp_path: Path, dead: str) -> None:
    with pytest.raises(EnvironmentBroken, match="no simulator"):
        Stages(tmp_path, {**family("ill", dead=dead), "workers": 2}).to(1, "collect")


@pytest.mark.slow
@pytest.mark.parametrize("dead", ["act", "reset", "make"])
def test_in_processes_of_their_own_too(tmp_path: Path, dead: str) -> None:
    with pytest.raises(EnvironmentBroken, match="no simulator"):
        Stages(tmp_path, {**family("ill", dead=dead), "isolate": True}).to(1, "collect")


def test_answers_of_broken_games_are_not_kept_for_the_next_attempt(tmp_path: Path) -> None:
    stages = Stages(tmp_path, family("sim", keeps=True))
    stages.to(1, "plan")
    OUTAGE["act"] = True
    with pytest.raises(EnvironmentBroken):
        stages.to(1, "collect")
    OUTAGE["act"] = False
    stages.to(1, "collect")
    assert {row["error"] for row in stages.run.read(1, "collect", Episode).to_pylist()} == {None}


@pytest.mark.slow
def test_the_share_is_of_the_whole_stage_whoever_played_its_parts(tmp_path: Path) -> None:
    stages = Stages(tmp_path, family("sim"), wave_groups=1, limit=0.7)
    stages.to(1, "plan")
    OUTAGE["act"] = True
    stages.part(1, "collect", 0)
    stages.part(1, "collect", 2)
    OUTAGE["act"] = False
    stages.to(1, "collect")  # half of it
    [found] = stages.broken()
    assert (found["games"], found["played"], found["location"].endswith("in fail")) == (4, 8, True)
    others = Stages(tmp_path / "more", family("sim"), wave_groups=1, limit=0.7)
    others.to(1, "plan")
    OUTAGE["act"] = True
    for part in (0, 1, 3):
        others.part(1, "collect", part)
    OUTAGE["act"] = False
    with pytest.raises(EnvironmentBroken, match="6 of 8"):
        others.to(1, "collect")
    kept = sorted(path.name for path in others.run.path.glob("rounds/0001/.parts-collect/[0-9]*"))
    assert kept == ["0002"], "what was sound stays"
    others.to(1, "collect")
    assert others.broken() == []


@pytest.mark.slow
def test_below_the_limit_the_first_of_each_kind_is_in_the_record_the_log_and_the_artifact(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    stages = Stages(tmp_path, family("sim", rough=(0, 1, 2)))
    stages.to(1, "collect")
    log = capfd.readouterr().err
    found = {row["error"]: row for row in stages.broken()}
    assert {error: row["games"] for error, row in found.items()} == {
        "environment_TimeoutError": 4, "environment_KeyError": 2
    }  # fmt: skip
    text, told = rounds_markdown("x", summarize(stages.run.path)), remarks(summarize(stages.run.path))
    for error, row in found.items():
        assert row["details"].startswith("Traceback") and row["location"].startswith("test_broken.py line ")
        assert log.count(f"broke: {error}") == 1 and row["details"].splitlines()[-1] in log
        assert row["details"].splitlines()[-1] in text and f"{row['games']} of 8 games of sim" in text
        assert any(f"{row['games']} of 8 games of sim: {error}" in line and row["location"] in line for line in told)
    digests = stages.run.manifest(1, "collect").digest
    again = Stages(tmp_path / "again", family("sim", rough=(0, 1, 2)))
    again.to(1, "collect")
    assert again.run.manifest(1, "collect").digest == digests, "tracebacks are beside the digest"


@pytest.mark.slow
def test_evaluations_fail_too_in_the_round_and_again(tmp_path: Path) -> None:
    stages = Stages(tmp_path, family("sim"))
    stages.to(1, "health")
    OUTAGE["act"] = True
    with pytest.raises(EnvironmentBroken, match="of family sim broke"):
        stages.to(1, "evaluate")
    OUTAGE["act"] = False
    stages.to(1, "evaluate")
    assert stages.run.read(1, "evaluate", Evaluation).num_rows
    OUTAGE["act"] = True
    with pytest.raises(EnvironmentBroken, match="8 of 8 games"):
        evaluate_again(stages.run, stages.run.method, stages.recipe, 1, stages.services)
    again = evaluate_again(stages.run, stages.run.method, stages.recipe, 1, stages.services, broken_episodes_limit=1.0)
    assert {row.stop_reason for row in again.rows} == {"error"}


def test_a_limit_of_1_goes_on_whatever_breaks(tmp_path: Path) -> None:
    stages = Stages(tmp_path, family("sim", dead="act"), limit=1.0)
    stages.to(1, "collect")
    assert {row["stage"]: row["games"] for row in stages.broken()}["collect"] == 8


@pytest.mark.slow
def test_one_broken_level_of_a_small_family_is_a_level(tmp_path: Path) -> None:
    stages = Stages(tmp_path, family("well"), family("small", groups=1, rough=(0,)))
    stages.to(1, "collect")
    assert {row["family"]: row["games"] for row in stages.broken()} == {"small": 2}


def counted(*games: tuple[str, str | None]) -> dict[str, Any]:
    notes: dict[str, Any] = {}
    add_games(notes, [Game(family, seed, error) for seed, (family, error) in enumerate(games)], of=(1, "collect"))
    return notes


def test_parts_add_up_whatever_their_order() -> None:
    one, other = counted(("a", "x"), ("a", None), ("b", "y")), counted(("a", "x"), ("a", "z"), ("c", None))
    both = joined(one, other)[BROKEN]
    totals = {family: (each["games"], each["broken"]) for family, each in both.items()}
    assert totals == {"a": (4, 3), "b": (1, 1), "c": (1, 0)}
    assert [(kind["error"], kind["games"]) for kind in both["a"]["kinds"]] == [("x", 2), ("z", 1)]
    assert one == counted(("a", "x"), ("a", None), ("b", "y")), "what is joined stays as it was"
    swapped = joined(other, one)[BROKEN]
    assert {name: each["broken"] for name, each in swapped.items()} == {"a": 3, "b": 1, "c": 0}


@pytest.mark.parametrize(
    ("games", "limit", "fails"),
    [
        ([("a", "x")] * 9 + [("a", None)], 0.9, False),  # exactly the share is allowed
        ([("a", "x")] * 10 + [("a", None)], 0.9, True),
        ([("a", "x")], 0.9, True),  # all there is
        ([("a", "x")] * 3 + [("b", None)], 0.9, False),
        ([("a", "x")] * 4 + [("b", None)] * 100, 0.9, True),
        ([("a", "x")] * 3 + [("b", "x")] * 3, 0.9, True),
        ([("a", None)], 0.0, False),
        ([("a", "x")] * 4 + [("a", None)] * 96, 0.0, True),
        ([("a", "x")] * 100, 1.0, False),
        ([], 0.0, False),
    ],
)
def test_what_is_too_much(games: list[tuple[str, str | None]], limit: float, fails: bool) -> None:
    notes = counted(*games)
    if fails:
        with pytest.raises(EnvironmentBroken, match="games of family a broke"):
            require_games(notes, limit, "round 1")
    else:
        require_games(notes, limit, "round 1")


def test_actions_of_no_kind_are_refused_before_work_starts() -> None:
    from crl.envs import check_environment

    class Lists(MoodyConfig):
        def make(self) -> Any:
            class Wrong(Moody):
                def close(self) -> None:
                    """This one can be closed."""

                def reset_many(self, seeds: Any) -> list[Start]:
                    return [dataclasses.replace(start, actions=["go"]) for start in super().reset_many(seeds)]

            return Wrong(self)

    with pytest.raises(BadInput, match="the actions are a list"):
        check_environment(Lists())


def test_a_warm_start_fails_before_it_trains_on_what_is_left(tmp_path: Path) -> None:
    class Answering(CharacterChat):
        def answer(self, text: str) -> list[int]:
            return [*map(ord, text), END]

    warm = {
        "demonstrations": "oracle",
        "actor_episodes": 8,
        "extractor_episodes": 0,
        "learning_rate": 1e-3,
        "num_train_epochs": 1,
    }
    stages = Stages(tmp_path, family("sim"), warm_start=warm)
    stages.services._policies["actor"].chat = Answering()
    stages.to(0, "evaluate_base")
    OUTAGE["act"] = True
    with pytest.raises(EnvironmentBroken, match="8 of 8 games"):
        stages.to(0, "warm_start_actor")
