"""Where a limit binds, each task family has its newest transitions judged, fitted and explained, in equal shares."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest

from crl.recipes.dreamgym.config import StoreConfig
from crl.recipes.dreamgym.rows import Annotation, PoolItem, Prediction, Transition
from crl.recipes.dreamgym.store import gathered, newest
from crl.records import Generation
from tests.recipes.dreamgym.dreamgym_played import experiment, played
from tests.unit.recipes.played import Played

JUDGED, FITTED = 6, 10
"""The limits of the run: `truth.max_transitions` and `fit.max_transitions`."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Played:
    """Two families that are explored one after the other, and a teacher."""
    family = experiment().method.families[0].model_dump(mode="json")
    shorter = {**family["environment"], "max_turns": 2}
    return played(
        tmp_path_factory.mktemp("newest"), 2,
        method__families=[{**family, "name": "lake"}, {**family, "name": "pond", "environment": shorter}],
        method__recipe__explore__first=24, method__recipe__explore__further=24, method__recipe__explore__held_out=0.4,
        method__recipe__truth__max_transitions=JUDGED, method__recipe__fit__max_transitions=FITTED,
        method__recipe__fit__reasoning="teacher",
        method__prompts__annotate={"system": "Why?", "first": "{observation} {action} {outcome}"},
        method__roles__teacher={"weights": "actor", "sampling": {"temperature": 1.0, "max_new_tokens": 16}},
    )  # fmt: skip


def in_shares(ids: dict[str, str], most: int) -> list[str]:
    """Of ids, in the order in which they came, with their families: the last of each family, as many of both."""
    share, families = most // 2, set(ids.values())
    assert families == {"lake", "pond"} and min(Counter(ids.values()).values()) > share, "the limit binds"
    kept = {name for of in families for name in [each for each, family in ids.items() if family == of][-share:]}
    tail = list(ids)[-most:]
    assert {ids[name] for name in tail} == {"pond"}, "the end of the list is one family"
    return [name for name in ids if name in kept]


def pooled(run: Played, number: int, pool: str) -> dict[str, str]:
    """Ids of what a pool holds in a round, with their families."""
    return {row.transition_id: row.family for row in run.rows(PoolItem, "gather", number) if row.pool == pool}


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, 2])
def test_every_family_is_judged_by_the_floors_in_equal_shares(run: Played, number: int) -> None:
    judged = [row.held_to for row in run.rows(Prediction, "validate", number)]
    assert judged == in_shares(pooled(run, number, "held_out"), JUDGED)


@pytest.mark.slow
def test_drift_is_measured_on_every_family_in_equal_shares(run: Played) -> None:
    fresh = [row for row in run.rows(Transition, "explore", 2) if row.split == "held_out"]
    judged = [row.held_to for row in run.rows(Prediction, "drift", 2)]
    assert judged == in_shares({row.transition_id: row.family for row in fresh}, JUDGED)


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, 2])
def test_every_family_is_fitted_in_equal_shares(run: Played, number: int) -> None:
    fitted = [row.generation_id.split("fit-", 1)[1] for row in run.rows(Generation, "corpus", number)]
    assert fitted == in_shares(pooled(run, number, "real"), FITTED)


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, 2])
def test_a_teacher_explains_every_family_in_equal_shares(run: Played, number: int) -> None:
    explained = [row.transition_id for row in run.rows(Annotation, "annotate", number)]
    assert explained == in_shares(pooled(run, number, "real"), FITTED), "none of them was explained before"


def item(name: str, family: str) -> PoolItem:
    return PoolItem(pool="real", transition_id=name, family=family, round=1, stage="explore", entered=1)


@pytest.mark.parametrize(
    ("most", "expected"),
    [
        (1, ["c1"]),
        (3, ["a4", "b2", "c1"]),
        (5, ["a3", "a4", "b1", "b2", "c1"]),
        (6, ["a2", "a3", "a4", "b1", "b2", "c1"]),
        (7, ["a1", "a2", "a3", "a4", "b1", "b2", "c1"]),
        (99, ["a1", "a2", "a3", "a4", "b1", "b2", "c1"]),
    ],
)
def test_what_a_small_family_leaves_of_its_share_is_dealt_to_the_others(most: int, expected: list[str]) -> None:
    rows = [item(name, name[0]) for name in ("a1", "a2", "a3", "a4", "b1", "b2", "c1")]
    assert [row.transition_id for row in newest(rows, most)] == expected


def test_of_one_family_the_end_of_the_list_is_the_newest() -> None:
    rows = [item(f"a{number}", "a") for number in range(9)]
    assert newest(rows, 4) == rows[5:]


def test_a_full_pool_is_shared_by_the_families() -> None:
    rounds = [[item(f"{family}{round}-{n}", family) for family, n in product("ab", range(3))] for round in range(4)]
    held: list[PoolItem] = []
    store = StoreConfig(real=8)
    for arrived in rounds:
        held = gathered(held, arrived, store)
    assert [row.transition_id for row in held] == ["a2-2", "b2-2", "a3-0", "a3-1", "a3-2", "b3-0", "b3-1", "b3-2"]
    only_a = gathered(held, [item(f"a4-{n}", "a") for n in range(9)], store)
    assert [row.family for row in only_a] == list("bbbbaaaa"), "what another family holds stays"


def test_an_older_round_gives_way_to_a_newer_one_in_each_family() -> None:
    rows = [item(name, name[0]) for name in ("a1", "a2", "b1", "b2", "a3", "b3")]
    assert [row.transition_id for row in newest(rows, 4)] == ["a2", "b2", "a3", "b3"]
