"""What a person may choose of an evaluation, what is refused; a choice plays the very episodes of the whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from crl.config import Experiment, Method, SeedRange
from crl.config.base import LAST_SEED
from crl.config.environments import FamilyBank
from crl.envs.frozenlake import FrozenLakeConfig
from crl.errors import BadInput
from crl.records import Evaluation
from crl.rounds.evaluate import Choice, chosen_method, evaluate_again
from tests.unit.recipes.played import Played, experiment

ROUND = 2
FIRST, SPLIT = 1_000_000, 8


def two_lakes(**changes: Any) -> Experiment:
    """Two tasks of one environment, `lake` and `pond`, with eight held-out seeds each."""
    made = experiment(**changes)
    families = [made.method.families[0].model_copy(update={"name": name}) for name in ("lake", "pond")]
    return made.model_copy(update={"method": made.method.model_copy(update={"families": families})})


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    return Played(tmp_path_factory.mktemp("played"), two_lakes(method__families__0__groups=2), ROUND)


def again(played: Played, number: int = ROUND, **choice: Any) -> list[Evaluation]:
    chosen = Choice(**choice)
    found = evaluate_again(played.run, played.method, played.recipe, number, played.services, choice=chosen)
    assert found.round == number
    return found.rows


def test_the_evaluation_again_is_that_of_the_stage_and_names_what_it_read(played: Played) -> None:
    found = evaluate_again(played.run, played.method, played.recipe, ROUND, played.services)
    assert found.rows == played.rows(Evaluation, "evaluate", ROUND)
    recorded = played.run.manifest(ROUND, "evaluate").digested.inputs
    assert found.inputs == recorded and f"{ROUND:04d}/consolidate" in found.inputs


@pytest.mark.parametrize("tasks", [("pond",), ("pond", "lake")])
@pytest.mark.parametrize("conditions", [("with",), ("without",), ("with", "without"), None])
@pytest.mark.parametrize("episodes", [3, SPLIT, None])
def test_a_choice_plays_the_episodes_of_the_whole(
    played: Played, tasks: tuple[str, ...], conditions: tuple[str, ...] | None, episodes: int | None
) -> None:
    rows = again(played, tasks=tasks, conditions=conditions, episodes=episodes)
    wanted = [
        row
        for row in played.rows(Evaluation, "evaluate", ROUND)
        if row.family in tasks
        and (conditions is None or row.condition.removesuffix("_bank") in conditions)
        and row.environment_seed < FIRST + (episodes or SPLIT)
    ]
    assert wanted and rows == wanted


@pytest.mark.slow
def test_a_family_that_is_evaluated_alone_searches_its_own_part_of_the_bank(tmp_path: Path) -> None:
    """`lake` and `pond` share; `own` keeps to itself, played or not."""
    made = two_lakes(method__families__0__groups=2)
    own = made.method.families[0].model_copy(update={"name": "own", "bank": FamilyBank(partition="family")})
    families = [*made.method.families, own]
    played = Played(
        tmp_path, made.model_copy(update={"method": made.method.model_copy(update={"families": families})}), ROUND
    )
    rows = played.rows(Evaluation, "evaluate", ROUND)
    for tasks in (("pond",), ("own",), ("pond", "own")):
        assert again(played, tasks=tasks) == [row for row in rows if row.family in tasks]


def test_more_episodes_than_the_split_go_on_after_it(played: Played) -> None:
    rows = again(played, tasks=("lake",), conditions=("without",), episodes=SPLIT + 3)
    assert [row.environment_seed for row in rows] == list(range(FIRST, FIRST + SPLIT + 3))
    assert rows[:SPLIT] == again(played, tasks=("lake",), conditions=("without",))


def test_the_random_policy_can_be_played_alone_in_round_0_only(played: Played) -> None:
    assert {row.condition for row in again(played, 0, conditions=("random",))} == {"random"}
    with pytest.raises(BadInput, match=f"round {ROUND} has nothing to play of the conditions random"):
        again(played, conditions=("random",))


def test_a_bank_without_entries_is_no_condition(played: Played) -> None:
    with pytest.raises(BadInput, match="round 0 has nothing to play of the conditions with"):
        again(played, 0, conditions=("with",))


@pytest.mark.parametrize(
    ("choice", "found", "expected"),
    [
        (Choice(tasks=("sea",)), "no task 'sea'", "lake, pond"),
        (Choice(tasks=("lake", "sea", "sky")), "no task 'sea', 'sky'", "lake, pond"),
        (Choice(tasks=()), "no task is named", "lake, pond"),
        (Choice(conditions=("both",)), "no condition 'both'", "with, without, random"),
        (Choice(conditions=()), "no condition is named", "with, without, random"),
        (Choice(episodes=0), "0 episodes", "from 1 to 100000"),
        (Choice(episodes=100_001), "100001 episodes", "from 1 to 100000"),
        (Choice(episodes=4, seeds=SeedRange(start=FIRST, count=4)), "both given", "one of them"),
        (Choice(seeds=SeedRange(start=99_990, count=20)), "overlap the training seeds of task lake", "never trained"),
        (Choice(seeds=SeedRange(start=500_000, count=20)), "levels of training in task lake", "held_out_from 1000000"),
    ],
)
def test_what_cannot_be_chosen_is_refused(choice: Choice, found: str, expected: str) -> None:
    with pytest.raises(BadInput, match=found) as caught:
        chosen_method(two_lakes().method, choice)
    assert expected in (caught.value.expected or "")


def test_only_the_chosen_tasks_have_a_say_about_seeds() -> None:
    method = two_lakes().method
    mine = method.families[1].model_copy(update={"train_seeds": SeedRange(start=5_000_000, count=10)})
    method = method.model_copy(update={"families": [method.families[0], mine]})
    seeds = SeedRange(start=5_000_000, count=5)
    assert chosen_method(method, Choice(tasks=("lake",), seeds=seeds)).families[0].evaluation_seeds == seeds
    with pytest.raises(BadInput, match="task pond"):
        chosen_method(method, Choice(seeds=seeds))


def lakes_with(environment: FrozenLakeConfig) -> Method:
    method = two_lakes().method
    family = method.families[0].model_copy(update={"environment": environment})
    return method.model_copy(update={"families": [family]})


class Listed(FrozenLakeConfig):
    """An environment with a fixed list of held-out tasks."""

    @property
    def held_out_levels(self) -> int | None:
        return 20


def test_a_split_ends_where_nothing_says_that_other_seeds_are_held_out() -> None:
    method = lakes_with(FrozenLakeConfig(held_out_from=None))
    assert chosen_method(method, Choice(episodes=SPLIT)).families[0].evaluation_seeds.count == SPLIT
    with pytest.raises(BadInput, match=f"task lake, whose split has {SPLIT} held-out seeds") as caught:
        chosen_method(method, Choice(episodes=SPLIT + 1))
    assert f"at most {SPLIT}" in (caught.value.expected or "")


def test_a_list_of_held_out_tasks_ends() -> None:
    method = lakes_with(Listed())
    assert chosen_method(method, Choice(episodes=20)).families[0].evaluation_seeds.count == 20
    with pytest.raises(BadInput, match=f"whose environment has 20 held-out seeds from {FIRST} on"):
        chosen_method(method, Choice(episodes=21))


def test_the_last_seed_is_the_end_of_every_split() -> None:
    method = lakes_with(FrozenLakeConfig())
    split = SeedRange(start=LAST_SEED - 1, count=1)
    family = method.families[0].model_copy(update={"evaluation_seeds": split})
    method = method.model_copy(update={"families": [family]})
    assert chosen_method(method, Choice(episodes=2)).families[0].evaluation_seeds.count == 2
    with pytest.raises(BadInput, match="has 2 held-out seeds"):
        chosen_method(method, Choice(episodes=3))


def test_a_place_without_an_evaluation_is_refused(played: Played, tmp_path: Path) -> None:
    recipe = type(played.recipe)(name="none", preparation=(), stages=())
    with pytest.raises(BadInput, match="recipe none has no evaluation"):
        evaluate_again(played.run, played.method, recipe, ROUND, played.services)
