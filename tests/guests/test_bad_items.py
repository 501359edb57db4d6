"""Tasks of a person's files: one that is bad costs one episode, and removing one moves no other between the sides."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crl.config import EnvironmentConfig, FamilyConfig
from crl.envs import check_environment
from crl.envs.game import Game, Move
from crl.envs.items import check_tasks, look
from crl.errors import BadInput, EnvironmentBroken, StageFailed
from crl.preflight import check_ready
from crl.records import Episode, rows_of
from crl.rollout.environments import starts_or_errors
from crl.run.directory import RunDirectory
from crl.worlds.alfworld import AlfworldConfig
from crl.worlds.bridges.textworld import TextWorldConfig
from crl.worlds.dataset import DatasetConfig
from crl.worlds.hotpotqa import HotpotQAConfig
from crl.worlds.swe import SweConfig
from tests.tiny_run import crl_here, experiment
from tests.worlds.alfworld import world as alfworld_files
from tests.worlds.bridges import standins
from tests.worlds.hotpotqa import hotpotqa_files
from tests.worlds.swe import world as swe_files
from tests.worlds.webshop import webshop_files

ITEMS = 6
FROM = 1_000_000
BINARY = "diff --git a/logo.png b/logo.png\nnew file mode 100644\nindex 0000000..1111111\nBinary files differ\n"
DIFFS = {
    "binary": BINARY,
    "cut": "diff --git a/tally.py b/tally.py\n--- a/tally.py\n+++ b/tally.py\n@@ -1,3 +1,3 @@\n x\n",
    "elsewhere": "diff --git a/no.py b/no.py\n--- a/no.py\n+++ b/no.py\n@@ -1 +1 @@\n-old\n+new\n",
    "prose": "see the attached file\n",
}
GAMES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "goal": lambda texts: texts | {"pddl_problem": texts["pddl_problem"].replace("(:goal", "(:goal (odd", 1)},
    "problem": lambda texts: texts | {"pddl_problem": texts["pddl_problem"][:200]},
    "domain": lambda texts: texts | {"pddl_domain": "(define (domain nothing"},
    "grammar": lambda texts: texts | {"grammar": "{}"},
}


def rows(folder: Path, bad: int, how: str) -> SweConfig:
    record = swe_files.make_row(folder)
    made = [{**record, "instance_id": f"t-{number}"} for number in range(ITEMS)]
    made[bad] |= {"test_patch": DIFFS[how]}
    return swe_files.config_of(folder, made)


def games(folder: Path, bad: int, how: str) -> AlfworldConfig:
    data = alfworld_files.make_data(folder, train=ITEMS, evaluation=1)
    path = sorted((data / "json_2.1.1" / "train").glob("*/*/game.tw-pddl"))[bad]
    path.write_text(json.dumps(GAMES[how](json.loads(path.read_text()))))
    return AlfworldConfig(data=data, held_out_from=None)


CASES = [
    *(
        pytest.param(
            rows, how, marks=[swe_files.needs_bwrap, *([] if how == "binary" else [pytest.mark.slow])], id=f"rows-{how}"
        )
        for how in DIFFS
    ),
    *(pytest.param(games, how, id=f"games-{how}") for how in GAMES),
]


@pytest.mark.parametrize(("write", "how"), CASES)
def test_one_bad_task_costs_its_own_episode_and_is_named_before_work(
    write: Callable[[Path, int, str], EnvironmentConfig], how: str, tmp_path: Path
) -> None:
    config = write(tmp_path, random.Random(how).randrange(ITEMS), how)
    family = FamilyConfig(name="tasks", environment=config)
    with pytest.raises(BadInput) as refused:
        check_tasks(family)
    assert f"1 of {ITEMS} tasks cannot be started:\n" in refused.value.found
    assert "take them out now" in str(refused.value) and str(tmp_path) in (refused.value.where or "")
    with closing(config.make()) as environment:
        starts = starts_or_errors(environment, range(ITEMS))
    broken = [start for start in starts if start.error is not None]
    assert [start.error for start in broken] == ["environment_BadInput"] and broken[0].details
    check_environment(config)  # a run that goes on meets no wall, whichever task is bad


def test_where_seconds_are_over_it_is_said_how_many_were_not_tried(tmp_path: Path) -> None:
    data = alfworld_files.make_data(tmp_path, train=ITEMS, evaluation=2)
    family = FamilyConfig(name="tasks", environment=AlfworldConfig(data=data))
    assert check_tasks(family) == f"all {ITEMS + 2} tasks can be started"
    assert (
        check_tasks(family, seconds=0) == f"1 of {ITEMS + 2} tasks can be started; the other {ITEMS + 1} were not tried"
    )
    assert look(family.environment, seconds=0).tried == 1
    assert check_tasks(FamilyConfig.model_validate({"name": "lake", "environment": {"kind": "frozenlake"}})) == ""


@pytest.mark.slow
def test_a_bad_task_is_refused_before_a_run_and_not_when_it_goes_on(tmp_path: Path) -> None:
    family = FamilyConfig(name="tasks", environment=games(tmp_path, 2, "goal"))
    method = experiment().method
    made = experiment().model_copy(update={"method": method.model_copy(update={"families": [family]})})
    with pytest.raises(BadInput, match="1 of 6 tasks cannot be started"):
        check_ready(made, tmp_path / "runs" / made.name, 1)
    (tmp_path / "runs" / made.name).mkdir(parents=True)
    (tmp_path / "runs" / made.name / "experiment.yaml").touch()
    try:
        check_ready(made, tmp_path / "runs" / made.name, 1)
    except BadInput as error:  # of prompts and models, which are not this test's
        assert "tasks cannot be started" not in error.found


def reward(completions: list[Any], **columns: Any) -> list[float]:
    """Of no interest here."""
    return [0.0] * len(completions)


def of_dataset(folder: Path, items: list[int]) -> EnvironmentConfig:
    lines = [json.dumps({"prompt": f"What is {each}?"}) + "\n" for each in items]
    (folder / "tasks.jsonl").write_text("".join(lines))
    return DatasetConfig(data=str(folder / "tasks.jsonl"), reward="tests.guests.test_bad_items:reward", test_size=0.3)


def of_hotpotqa(folder: Path, items: list[int]) -> EnvironmentConfig:
    hotpotqa_files.write(folder / "train.json", [hotpotqa_files.record(each) for each in items])
    return HotpotQAConfig(questions="files", directory=str(folder), train_file="train.json")


def of_webshop(folder: Path, items: list[int]) -> EnvironmentConfig:
    records = [webshop_files.record(each, customization_options={}) for each in items]
    texts = {each["asin"]: webshop_files.entry("easy clean", text=f"Find {each['asin']}") for each in records}
    return webshop_files.write(folder, records, texts).model_copy(update={"held_out_from": FROM})


def of_textworld(folder: Path, items: list[int]) -> EnvironmentConfig:
    for path in folder.glob("*.z8"):
        path.unlink()
    for at, each in enumerate(items):
        (folder / f"{at:02}.z8").write_text(f"game {each}")
        (folder / f"{at:02}.json").write_text(f"game {each}")
    return TextWorldConfig(games=f"{folder}/*.z8")


def held_out(config: EnvironmentConfig) -> set[str]:
    with closing(config.make()) as environment:
        count = config.held_out_levels
        assert count is not None
        environment.reset_many(range(FROM, FROM + count))
        return {environment.content(slot) for slot in range(count)}


@pytest.mark.parametrize("write", [of_dataset, of_hotpotqa, of_webshop, of_textworld], ids=lambda each: each.__name__)
def test_removing_or_moving_items_moves_no_other_between_the_sides(
    write: Callable[[Path, list[int]], EnvironmentConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    standins.textworld(monkeypatch)
    everything = list(range(40))
    whole = held_out(write(tmp_path, everything))
    assert 2 <= len(whole) <= 25

    @settings(max_examples=5, deadline=None)
    @given(st.sets(st.sampled_from(everything), min_size=1, max_size=5), st.randoms(use_true_random=False))
    def removed(gone: set[int], shuffled: random.Random) -> None:
        left = [each for each in everything if each not in gone]
        shuffled.shuffle(left)
        those = held_out(write(tmp_path, left))
        assert those <= whole and len(whole - those) <= len(gone)

    removed()


RAISED = [
    BadInput("no such task"), EnvironmentBroken("the simulator is gone"), StageFailed("stop"), MemoryError(),
    RecursionError("deep"), SystemExit("license expired"), KeyboardInterrupt(), GeneratorExit(),
    asyncio.CancelledError("the tool's time was over"), StopIteration(),
]  # fmt: skip


class Walls(Game):
    """Every third level raises something, in its reset or in its first step; every twelfth names no action."""

    kind: str = "tests.guests.test_bad_items:Walls"
    max_turns: int = 3

    def begin(self, random: random.Random) -> dict[str, int]:
        level = random.randrange(60)
        if level % 6 == 0:
            raise RAISED[level // 6]
        return {"level": level, "turn": 0}

    def goal(self, state: dict[str, int]) -> str:
        return "Find the door."

    def look(self, state: dict[str, int]) -> str:
        return "Walls."

    def actions(self, state: dict[str, int]) -> tuple[str, ...]:
        return () if state["level"] % 12 == 1 and state["turn"] else ("left", "right")

    def act(self, state: dict[str, int], action: str) -> Move:
        if state["level"] % 6 == 3:
            raise RAISED[state["level"] // 6]
        state["turn"] += 1
        return Move(success=action == "left" and state["turn"] == 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "more", [{}, {"workers": 2, "isolate": True}, {"workers": 3}], ids=["plain", "isolated", "beside"]
)
def test_a_run_goes_on_over_whatever_its_tasks_raise(more: dict[str, Any], tmp_path: Path) -> None:
    shown = {"name": "walls", "environment": {"kind": Walls().kind}, "groups": 12, "evaluation_seeds": {
        "start": 1_000_000, "count": 4}, **more}  # fmt: skip
    settings = {"method.families": json.dumps([shown]), "name": "walls", "method.recipe.warm_start": "null",
                "method.rollout.group_size": 2, "method.prompts": "actions", "method.evaluation.every": 1}  # fmt: skip
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    crl_here(tmp_path / "runs", "train", "conf/tiny.yaml", "--rounds", "1", "--no-prefect", *words)
    crl_here(tmp_path / "runs", "resume", "walls", "--rounds", "2")
    run = RunDirectory.open(tmp_path / "runs" / "walls")
    episodes = [row for number in (1, 2, 3) for row in rows_of(Episode, run.read(number, "collect", Episode))]
    errors = {row.error for row in episodes if row.error}
    names = {f"environment_{type(each).__name__}" for each in RAISED} | {"environment_no_action"}
    assert len(episodes) == 72 and len(errors) >= 4 and errors <= names
    assert sum(row.error is None for row in episodes) >= 20
