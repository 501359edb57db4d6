"""The tasks of a round: no two of them are the same one, whatever their seeds, where there are so many."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crl.config import EnvironmentConfig, FamilyConfig
from crl.envs import make_environment
from crl.envs.game import Game, Move
from crl.protocols import Start
from crl.records import Task
from crl.rollout.environments import MixedEnvironment, Readable
from crl.rounds.context import StageContext
from crl.rounds.stage import Stage
from crl.rounds.tasks import distinct, drawn_tasks
from tests.tiny_run import experiment


class Cards(Game):
    """Tasks of a short list, as of a person's file."""

    kind: str = "tests.unit.rounds.test_tasks:Cards"
    cards: int = 6
    max_turns: int = 2

    def begin(self, random: Random) -> int:
        return random.randrange(self.cards)

    def goal(self, state: int) -> str:
        return "Guess the card."

    def look(self, state: int) -> str:
        return "A card lies face down."

    def actions(self, state: int) -> tuple[str, ...]:
        return tuple(map(str, range(self.cards)))

    def act(self, state: int, action: str) -> Move:
        return Move(success=action == str(state))


class Told(Cards):
    """The same; the game says which card lies there."""

    kind: str = "tests.unit.rounds.test_tasks:Told"

    def content(self, state: int) -> str:
        return f"card {state}"


def context(game: EnvironmentConfig, groups: int, round_number: int) -> StageContext:
    family = FamilyConfig(name="cards", environment=game, groups=groups)
    method = experiment().method.model_copy(update={"families": [family]})
    services: Any = SimpleNamespace(environment=lambda name, number: make_environment(family))
    nothing: Any = None
    return StageContext(
        method=method, recipe=nothing, stage=Stage(name="plan", run=lambda ctx: None), round_number=round_number,
        reader=nothing, writer=nothing, services=services, progress=lambda metrics: None,
    )  # fmt: skip


def planned(game: EnvironmentConfig, groups: int, round_number: int = 1, **more: Any) -> list[Task]:
    return drawn_tasks(context(game, groups, round_number), lambda size: ["free"], **more)


@pytest.mark.parametrize("round_number", range(1, 6))
def test_a_round_plays_different_tasks_where_there_are_so_many(round_number: int) -> None:
    tasks = planned(Told(), 3, round_number)
    assert len(tasks) == len({task.task_digest for task in tasks}) == 3 and all(task.task_digest for task in tasks)
    assert [task.group for task in tasks] == [0, 1, 2]
    assert len(planned(Told(cards=2), 5, round_number)) == 5, "of fewer tasks each as often as it comes"
    first = planned(Told(cards=999), 4, round_number)
    assert [task.environment_seed for task in first] == [
        task.environment_seed for task in planned(Cards(cards=999), 4, round_number)
    ], "seeds of different tasks stay as they were drawn"


def test_who_does_not_say_what_is_in_a_level_has_tasks_by_their_seeds() -> None:
    tasks = planned(Cards(), 4)
    assert {task.task_digest for task in tasks} == {""} and len({task.environment_seed for task in tasks}) == 4


def test_a_wave_of_several_families_says_it_of_each_that_knows() -> None:
    told, silent = Told().make(), Cards().make()
    mixed = MixedEnvironment(["a", "b", "a"], {"a": told, "b": silent}.__getitem__)
    starts = Readable(mixed).reset_many([3, 3, 3])
    assert starts[0].task_digest == starts[2].task_digest != "" and starts[1].task_digest == ""
    assert starts[0].task_digest == Readable(Told().make()).reset_many([3])[0].task_digest


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 5), max_size=30), st.integers(0, 8), st.sets(st.integers(1, 5)))
def test_the_first_of_each_task_is_taken_and_others_only_where_these_are_too_few(
    contents: list[int], wanted: int, taken: set[int]
) -> None:
    """A content of 0 stands for a level that nobody describes."""
    asked: list[int] = []

    def starts_of(seeds: Sequence[int]) -> list[Start]:
        asked.extend(seeds)
        return [Start("g", "o", (), task_digest=str(contents[seed] or "")) for seed in seeds]

    found = distinct(range(len(contents)), wanted, starts_of, {str(each) for each in taken})
    seeds = [seed for seed, _ in found]
    assert asked == sorted(set(asked)), "no seed is asked for twice"
    assert len(seeds) == len(set(seeds)) == min(wanted, len(contents))
    good = [
        seed for seed, content in enumerate(contents)
        if content == 0 or (content not in taken and content not in contents[:seed])
    ]  # fmt: skip
    assert seeds[: len(good)] == good[:wanted]
