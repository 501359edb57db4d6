"""What DreamGym refuses before work: explorations that leave nothing to fit, and what no environment can do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from crl.config import Method
from crl.errors import BadInput
from crl.recipes.dreamgym.round import check_environments, check_ready
from crl.records import Metric
from tests.recipes.dreamgym.dreamgym_played import DreamServices, experiment, played
from tests.unit.recipes.branched import changed
from tests.unit.recipes.played import Played

CAPABILITY = {"recipe__curriculum__rule": "capability"}


def families(*environments: dict[str, Any], groups: int = 4) -> list[dict[str, Any]]:
    return [
        {"name": f"family{place}", "environment": each, "groups": groups} for place, each in enumerate(environments)
    ]


def method(*environments: dict[str, Any], **changes: Any) -> Method:
    """With families of these environments; free text is not constrained."""
    return changed(experiment().method, families=families(*environments), **changes)


@pytest.mark.parametrize(("seeds", "held_out"), [(2, 0.6), (3, 0.7), (5, 0.9), (9, 0.9)])
def test_some_seeds_are_left_to_fit_on(seeds: int, held_out: float) -> None:
    changes = {
        "method__families__0__train_seeds__count": seeds, "method__recipe__explore__held_out": held_out,
        "method__recipe__explore__further": 10,
    }  # fmt: skip
    with pytest.raises(BadInput, match=rf"leaves none of {seeds} seeds to fit on"):
        experiment(**changes)
    enough = {2: 3, 3: 4, 5: 10, 9: 10}[seeds]
    experiment(**{**changes, "method__families__0__train_seeds__count": enough})


@pytest.mark.parametrize(
    ("count", "explore", "found"),
    [
        (2, {"first": 3}, r"explore\.first is set, and a task family gets 1 of the 3 episodes"),
        (3, {"further": 5}, r"explore\.further is set, and a task family gets 1 of the 5 episodes"),
        (1, {"first": 2, "held_out": 0.6}, r"explore\.first is set, and a task family gets 2 of the 2 episodes"),
        (2, {"first": 4}, None),
        (3, {"further": 5, "every": 0}, None),
    ],
)
def test_every_family_has_an_episode_to_fit_on(count: int, explore: dict[str, Any], found: str | None) -> None:
    lake = experiment().method.families[0].environment.model_dump(mode="json")
    changes = {f"recipe__explore__{key}": value for key, value in explore.items()}
    if found is None:
        method(*[lake] * count, **changes)
        return
    with pytest.raises(BadInput, match=found) as caught:
        method(*[lake] * count, **changes)
    fewest = 3 if "held_out" in explore else 2
    assert caught.value.expected == f"at least {count * fewest}"


def test_random_actions_need_actions_that_are_listed() -> None:
    text = {"kind": "webshop"}
    with pytest.raises(BadInput, match="family family1 lists no actions to choose from at random") as caught:
        check_environments(method({"kind": "frozenlake"}, text))
    assert caught.value.where == "method.recipe.explore.policy" and caught.value.next_step == "set it to actor"
    check_environments(method(text, recipe__explore__policy="actor"))
    check_environments(method(text, recipe__synthetic_share=0.0))


def test_it_is_refused_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="lists no actions"):
        check_ready(method({"kind": "webshop"}), tmp_path)


def test_capability_needs_levels_that_are_graded() -> None:
    plain = {"kind": "shrines"}
    with pytest.raises(BadInput, match="no environment says how hard its levels are") as caught:
        check_environments(method(plain, **CAPABILITY))
    assert caught.value.where == "method.recipe.curriculum.rule"
    check_environments(method(plain, {"kind": "frozenlake"}, **CAPABILITY))
    check_environments(method(plain))
    check_environments(method(plain, recipe__synthetic_share=0.0, **CAPABILITY))


class Ungraded:
    """A lake that says nothing of its levels."""

    def __init__(self, lake: Any) -> None:
        self.reset_many, self.step_many = lake.reset_many, lake.step_many
        self.oracle, self.close, self.why = lake.oracle, lake.close, lake.why


@pytest.mark.slow
def test_capability_is_of_families_that_are_graded(tmp_path: Path) -> None:
    lake = experiment().method.families[0].environment.model_dump(mode="json")
    seeds = {"evaluation_seeds": {"start": 1_000_000, "count": 1}}
    made = experiment()
    two = changed(
        made.method, families=[{**each, **seeds} for each in families(lake, lake)], recipe__synthetic_share=1.0
    )
    made = made.model_copy(update={"method": two})
    services = DreamServices(made)
    whole = services.environment

    def environment(family: str, number: int) -> Any:
        return whole(family, number) if family == "family0" else Ungraded(whole(family, number))

    services.environment = environment  # type: ignore[method-assign, assignment]
    run = Played(tmp_path, made, 2, services)
    assert {row.name for row in run.rows(Metric, "plan", 2)} == {"capability_family0"}


def test_the_error_of_the_floors_says_that_nothing_was_learned(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"observation_agreement is 0\.00; its fit learned from no transition\n"):
        played(tmp_path, 1, method__roles__experience__context=100, method__recipe__truth__min_observation_accuracy=0.5)
