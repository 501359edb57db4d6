"""How far back a stage reads is the recipe's; before the first round it is round 0; stages run when they are ready."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from crl.recipes import recipe_of
from crl.recipes.stage import Read, Stage, in_order
from crl.records import Episode, Generation, Retrieval, Row, Weights, rows_of
from crl.run.directory import RunDirectory
from tests.tiny_run import NAME, crl, experiment, train
from tests.unit.recipes.overlapped import KIND

ROUNDS = 3
WHAT_IS_PLAYED_WITH = {("plan", "bank"), ("collect", "bank"), ("collect", "actor"), ("distill", "extractor")}


def stage(name: str, *reads: str, offset: int = 0) -> Stage:
    return Stage(name, run=lambda ctx: None, reads=tuple(Read(each, offset) for each in reads))


def names(stages: Sequence[Stage]) -> list[str]:
    return [each.name for each in stages]


def test_a_stage_runs_after_those_of_its_round_that_it_reads() -> None:
    listed = [stage("evaluate", "update"), stage("update", "credit"), stage("plan"), stage("credit", "collect", "plan"),
              stage("collect", "plan")]  # fmt: skip
    assert names(in_order(listed)) == ["plan", "collect", "credit", "update", "evaluate"]
    free = [stage("b"), stage("a"), stage("c")]
    assert names(in_order(free)) == ["b", "a", "c"], "as listed where nothing decides"
    earlier = [stage("a", "b", offset=-1), stage("b", "a")]
    assert names(in_order(earlier)) == ["a", "b"], "a read of the round before holds nothing up"


def test_stages_that_wait_for_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="read each other: "):
        in_order([stage("a", "b"), stage("b", "a")])


@pytest.mark.parametrize("lag", [1, 2])
def test_the_distance_is_one_number_of_the_recipe(lag: int) -> None:
    method = experiment(**{"method__recipe__kind": KIND} if lag == 2 else {}).method
    recipe = recipe_of(method)
    for name, read in sorted(WHAT_IS_PLAYED_WITH):
        declared = recipe.stage(method, 4, name).read(read)
        assert declared.offset == -lag
        for number in (1, 2, 3, 4):
            found = recipe.resolve(method, number, declared.stage, declared.offset)
            assert found is not None and found[0] == max(0, number - lag), "before the first round it is round 0"
    assert recipe.stage(method, 4, "consolidate").read("bank").offset == -1, "a bank follows the one before it"
    assert recipe.stage(method, 4, "credit").read("before").offset == -1


def of(run: RunDirectory, number: int, name: str, row_type: type[Row]) -> list:
    return rows_of(row_type, run.read(number, name, row_type))


def test_a_recipe_at_distance_two_trains_and_verifies(tmp_path: Path) -> None:
    crl(tmp_path, *train(ROUNDS, method__recipe__kind=KIND))
    run = RunDirectory.open(tmp_path / NAME)
    first = {row.role: row for row in of(run, 0, "warm_start_actor", Weights)}["actor"].weights_digest
    updated = [first, *(of(run, number, "update_actor", Weights)[0].weights_digest for number in (1, 2))]
    assert len(set(updated)) > 1, "there were updates to tell apart"
    for number, played_with in ((1, first), (2, first), (3, updated[1])):
        assert of(run, number, "collect", Episode)
        assert {row.weights_digest for row in of(run, number, "collect", Generation)} == {played_with}
    assert {row.bank_round for row in of(run, 3, "plan", Retrieval)} <= {1}
    assert not of(run, 2, "plan", Retrieval), "the bank of round 0 is empty"
    assert "intact" in crl(tmp_path, "verify", NAME).stdout
