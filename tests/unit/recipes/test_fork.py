"""A fork goes on as its parent went on: equal digests from every round; with another method, from that round.

Rollouts that it takes over are not played again, and refused where the changed method would play others."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from crl.audit.audit import problems_of
from crl.audit.mend import mend
from crl.cli.fork import changed_experiment
from crl.config import Runtime
from crl.errors import BadInput
from crl.records import Generation, Sample, Weights, rows_of
from crl.rounds.fork import fork
from crl.rounds.recipe import recipe_in, recorded_bank
from crl.run.directory import RunDirectory, manifests
from crl.run.head import heads
from crl.run.lease import Lease
from crl.run.retention import prune
from tests.marks import sampled
from tests.recipe_runs import HERE, requires
from tests.unit.recipes.branched import changed, digests, experiment_of, finished, play, services_of, stages
from tests.unit.recipes.played import CRITIC

GUESTS = {"erl": "erl", "uniform": "importance_replay", "learned": "importance_replay"}
"""Kinds of runs whose recipe is a guest."""
ROUNDS = {
    kind: last
    for kind, last in {"complementary": 2, "overlap": 3, "erl": 2, "uniform": 2, "learned": 2}.items()
    if GUESTS.get(kind, "complementary") in HERE
}
"""Rounds of the finished runs, of recipes that are here. Where rounds overlap, the third is the first that reads two
different ones before it."""


PLAYED = {
    "complementary": {"plan", "collect"},
    "overlap": {"plan", "collect"},
    "erl": {"plan", "collect", "reflect", "retry"},
    "uniform": {"plan", "collect"},
}
FOLLOWS: dict[str, dict[str, Any]] = {
    "complementary": {"recipe__actor_objective__scale_rewards": "none", "evaluation__every": 0},
    "overlap": {"recipe__actor_objective__scale_rewards": "none", "evaluation__every": 0},
    "erl": {"recipe__objective__scale_rewards": "none", "evaluation__every": 0},
    "uniform": {"recipe__objective__scale_rewards": "none", "recipe__buffer__steps": 2, "evaluation__every": 0},
}
"""Changes of what follows the rollouts; without evaluation nothing else plays in the round."""


class Finished:
    """An environment whose games are over."""

    def reset_many(self, seeds: Any) -> Any:
        raise AssertionError("a game was begun again")

    def step_many(self, actions: Any) -> Any:
        raise AssertionError("a game was played again")


@pytest.fixture(scope="module")
def parents(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, RunDirectory]:
    """A finished run of each kind, made when a test asks for it."""

    class Parents(dict[str, RunDirectory]):
        def __missing__(self, kind: str) -> RunDirectory:
            return self.setdefault(kind, finished(tmp_path_factory.mktemp(kind), ROUNDS[kind], kind))

    return Parents()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "number"), sampled([(kind, number) for kind, last in ROUNDS.items() for number in range(last)], 3)
)
def test_with_nothing_changed_every_later_digest_is_the_parents(
    parents: Mapping[str, RunDirectory], tmp_path: Path, kind: str, number: int
) -> None:
    parent = parents[kind]
    child = fork(parent, number, experiment_of(parent, "child"), tmp_path)
    assert digests(child) == digests(parent, last=number)
    # One is played to the end; of the others the next round, whose digests are those that another case begins with.
    last = ROUNDS[kind] if (kind, number) == ("erl", 0) else number + 1
    ran = play(child, last)
    assert {int(key.split("/")[0]) for key in ran} == set(range(number + 1, last + 1)), "nothing inherited ran again"
    assert digests(child) == digests(parent, last=last)
    assert not problems_of(child, recipe_in(child))
    own = heads(manifests(child.path))
    assert own == {each: head for each, head in heads(manifests(parent.path)).items() if each <= last}
    found = child.lineage.parent
    assert found is not None and (found.experiment, found.round) == (parent.experiment_name, number)
    assert found.head == heads(manifests(parent.path))[number]


def test_the_parent_may_go(parents: Mapping[str, RunDirectory], tmp_path: Path) -> None:
    source = shutil.copytree(parents["complementary"].path, tmp_path / "played")
    parent = RunDirectory.open(source)
    child = fork(parent, 1, experiment_of(parent, "child", changed(parent.method, rollout__group_size=6)), tmp_path)
    expected = digests(parents["complementary"], after=1)
    shutil.rmtree(source)
    assert not problems_of(child, recipe_in(child))
    play(child, 2)
    assert not problems_of(child, recipe_in(child))
    assert digests(child, after=1) != expected and digests(child, after=1).keys() == expected.keys()
    assert child.method_of(1, "plan").rollout.group_size == 4 and child.method_of(2, "plan").rollout.group_size == 6


def test_a_damaged_table_of_an_inherited_round_is_made_again_by_the_parents_method(
    parents: Mapping[str, RunDirectory], tmp_path: Path
) -> None:
    parent = parents["complementary"]
    made = experiment_of(parent, "child", changed(parent.method, recipe__bank__capacity=1))
    child = fork(parent, 2, made, tmp_path)
    damaged = child.path / "rounds/0001/consolidate/bank_changes.parquet"
    content = damaged.read_bytes()
    damaged.unlink()
    with Lease.acquire(child.path, seconds=60) as lease:
        done = mend(child, recipe_in(child), services_of(made), token=lease.token)
    assert done.mended == ["rounds/0001/consolidate/bank_changes.parquet"] and damaged.read_bytes() == content
    assert not problems_of(child, recipe_in(child))


@requires("erl")
def test_another_recipe_goes_on_with_weights_and_bank(parents: Mapping[str, RunDirectory], tmp_path: Path) -> None:
    parent = parents["complementary"]
    made = changed_experiment(
        parent, Runtime(), "child",
        ["method.roles.reflector={weights: actor}", "method.prompts=erl_tiny",
         "method.roles.actor.sampling.constrain=none", "method.recipe.memory.embedder=lexical",
         "method.families.0.environment.masked=true"],
        "erl",
    )  # fmt: skip
    child = fork(parent, 1, made, tmp_path)
    assert made.method.recipe.kind == "erl" and made.method.recipe.bank.capacity == 64, "what both have stays"
    play(child, 2)
    assert not problems_of(child, recipe_in(child))
    inputs = child.manifest(2, "update_actor").digested.inputs
    assert inputs["0001/update_actor"] == parent.manifest(1, "update_actor").digest
    bank = recorded_bank(child, recipe_in(child), 2)
    assert set(recorded_bank(parent, recipe_in(parent), 1).table["entry_id"].to_pylist()) <= set(
        bank.table["entry_id"].to_pylist()
    )


@pytest.mark.slow
def test_a_role_that_is_no_longer_trained_keeps_the_weights_of_the_round(
    parents: Mapping[str, RunDirectory], tmp_path: Path
) -> None:
    parent = parents["complementary"]
    child = fork(
        parent, 1, experiment_of(parent, "child", changed(parent.method, recipe__kind="static_online")), tmp_path
    )
    recipe = recipe_in(child)
    assert recipe.resolve(child.method, 5, "update_extractor", -1) == (1, "update_extractor")
    play(child, 2)
    written = {row.weights_digest for row in rows_of(Generation, child.read(2, "distill", Generation))}
    [extractor] = rows_of(Weights, child.read(1, "update_extractor", Weights))
    assert written == {extractor.weights_digest} and not problems_of(child, recipe)


@pytest.mark.parametrize(
    ("kind", "change", "found"),
    [
        ("complementary", {"roles__actor__model": "smollm2-135m"}, "those of model 'tiny'"),
        ("complementary", {"roles__extractor__lora": {}}, "those of lora None"),
        ("complementary", {"roles__actor__optimizer__kind": "sgd"}, "optimizer.kind adamw, not sgd"),
        ("complementary", {"recipe__retrieval__embedder": "hashed"}, "vectors are those of the embedder lexical"),
        pytest.param("overlap", {"overlap": False}, None, marks=pytest.mark.slow),
        ("complementary", {"overlap": True}, None),
    ],
)
def test_a_method_that_the_state_does_not_fit_is_refused(
    parents: Mapping[str, RunDirectory], tmp_path: Path, kind: str, change: dict[str, Any], found: str | None
) -> None:
    parent = parents[kind]
    made = experiment_of(parent, "child", changed(parent.method, **change))
    if found is None:
        child = fork(parent, 1, made, tmp_path)
        play(child, 2)
        assert not problems_of(child, recipe_in(child))
        return
    with pytest.raises(BadInput, match=found):
        fork(parent, 1, made, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_recipe_of_other_roles_is_refused(tmp_path: Path) -> None:
    parent = finished(tmp_path, 1, "baseline", method__evaluation__every=0)
    made = experiment_of(parent, "child", changed(parent.method, recipe__kind="complementary"))
    with pytest.raises(BadInput, match="no weights of role extractor"):
        fork(parent, 1, made, tmp_path)


def test_a_pruned_checkpoint_is_no_damage(parents: Mapping[str, RunDirectory], tmp_path: Path) -> None:
    parent = RunDirectory.open(shutil.copytree(parents["complementary"].path, tmp_path / "played"))
    with Lease.acquire(parent.path, seconds=60) as lease:
        prune(parent.path, recipe_in(parent).checkpoint_stages(), 1, 0, token=lease.token)
    with pytest.raises(BadInput, match=r"was pruned: rounds/0001/update_actor/checkpoint"):
        fork(parent, 1, experiment_of(parent, "child"), tmp_path)
    child = fork(parent, 2, experiment_of(parent, "child"), tmp_path)
    assert not problems_of(child, recipe_in(child))


@pytest.mark.parametrize("kind", sampled([kind for kind in PLAYED if kind in ROUNDS], 4))
def test_nothing_is_played_again_and_what_follows_is_made_by_the_changed_method(
    parents: Mapping[str, RunDirectory], tmp_path: Path, kind: str
) -> None:
    parent, last = parents[kind], ROUNDS[kind]
    made = experiment_of(parent, "child", changed(parent.method, **FOLLOWS[kind]))
    child = fork(parent, last - 1, made, tmp_path, keep_rollouts=True)
    services = services_of(made)
    services.environment = lambda family, round_number: Finished()  # type: ignore[method-assign]
    ran = play(child, last, services)
    assert PLAYED[kind].isdisjoint(stages(ran)) and {"credit", "update_actor"} <= stages(ran)
    before, after = digests(parent), digests(child)
    assert all(after[f"{last}/{stage}"] == before[f"{last}/{stage}"] for stage in PLAYED[kind])
    assert after[f"{last}/credit"] != before[f"{last}/credit"]
    credit = "advantages" if kind == "overlap" else "credit"
    old, new = (rows_of(Sample, run.read(last, credit, Sample)) for run in (parent, child))
    assert [row.advantage for row in old] != [row.advantage for row in new]
    assert {row.generation_id for row in new} and not problems_of(child, recipe_in(child))


def test_with_nothing_changed_it_is_the_parents_round(parents: Mapping[str, RunDirectory], tmp_path: Path) -> None:
    parent = parents["complementary"]
    child = fork(parent, 1, experiment_of(parent, "child"), tmp_path, keep_rollouts=True)
    assert play(child, 2)[0] == "2/distill"
    assert digests(child) == digests(parent) and heads(manifests(child.path)) == heads(manifests(parent.path))
    grandchild = fork(child, 1, experiment_of(child, "grandchild"), tmp_path, keep_rollouts=True)
    assert [each.kept for each in grandchild.lineage.ancestors] == [("0002/plan", "0002/collect")] * 2
    again = fork(child, 0, experiment_of(child, "again"), tmp_path)
    assert [(each.experiment, each.round, each.kept) for each in again.lineage.ancestors] == [
        ("played", 0, ()), ("child", 0, ())
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "change", "found"),
    [
        ("complementary", {"families__0__environment__max_turns": 5}, "method.families.0.environment.max_turns"),
        ("complementary", {"rollout__group_size": 6}, "method.rollout.group_size"),
        ("complementary", {"prompts__actor__system": "Play."}, "method.prompts.actor.system"),
        ("complementary", {"roles__actor__sampling__temperature": 0.5}, "method.roles.actor.sampling.temperature"),
        ("complementary", {"recipe__retrieval__top_k": 2}, "method.recipe.retrieval.top_k"),
        ("complementary", {"recipe__guided_share": 1.0}, "method.recipe.guided_share"),
        ("complementary", {"seed": 2}, "method.seed"),
        ("complementary", {"recipe__kind": "static_online"}, "method.recipe.kind"),
        ("complementary", {"recipe__kind": "baseline"}, "method.recipe.kind"),
        ("complementary", {"recipe__self_distillation": {}}, "collect writes other rows"),
        ("complementary", {"recipe__actor_critic": {}, "prompts__critic": CRITIC}, "critique|reads other stages"),
        ("overlap", {"overlap": False}, "plan reads other stages"),
        ("erl", {"recipe__gate": 0.5}, "method.recipe.gate"),
        ("uniform", {"recipe__probe__pool": 32}, "method.recipe.probe.pool"),
        ("uniform", {"recipe__weighting": "learned"}, "would play in it too"),
        ("erl", {"recipe__revisions": 2}, "reflect2|would play in it too"),
        ("erl", {"roles__reflector__sampling__temperature": 0.5}, "method.roles.reflector.sampling.temperature"),
    ],
)
def test_a_change_that_the_rollouts_depend_on_is_refused(
    parents: Mapping[str, RunDirectory], tmp_path: Path, kind: str, change: dict[str, Any], found: str
) -> None:
    if kind not in ROUNDS:
        pytest.skip(f"not here: {GUESTS[kind]}")
    parent = parents[kind]
    made = experiment_of(parent, "child", changed(parent.method, **change))
    with pytest.raises(BadInput, match=found):
        fork(parent, ROUNDS[kind] - 1, made, tmp_path, keep_rollouts=True)
    assert not (tmp_path / "child").exists()


def test_what_only_the_extractor_needs_may_change(parents: Mapping[str, RunDirectory], tmp_path: Path) -> None:
    parent = parents["complementary"]
    method = changed(
        parent.method, roles__extractor__sampling__temperature=0.5, prompts__distill__system="Write.",
        roles__actor__optimizer__learning_rate=0.5, recipe__merge__every=0,
    )  # fmt: skip
    child = fork(parent, 1, experiment_of(parent, "child", method), tmp_path, keep_rollouts=True)
    assert stages(play(child, 2)).isdisjoint({"plan", "collect", "merge"})


def test_there_have_to_be_rollouts(parents: Mapping[str, RunDirectory], tmp_path: Path) -> None:
    parent = parents["complementary"]
    with pytest.raises(BadInput, match="no rollouts of round 3"):
        fork(parent, 2, experiment_of(parent, "child"), tmp_path, keep_rollouts=True)


def test_inherited_rounds_are_checked_by_the_roles_of_the_run_that_made_them(
    parents: Mapping[str, RunDirectory], tmp_path: Path
) -> None:
    """The extractor had weights of its own then; in the fork it shares the actor's."""
    parent = parents["complementary"]
    shared = {"roles__extractor": {"weights": "actor", "context": parent.method.role("extractor").context}}
    made = experiment_of(parent, "child", changed(parent.method, **shared))
    child = fork(parent, 2, made, tmp_path)
    assert problems_of(child, recipe_in(child)) == []
