"""How far back a stage reads is the recipe's; before the first round it is round 0; stages run when they are ready."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from crl.recipes.complementary.credit import COMING_BANK
from crl.rounds.context import BANK
from crl.rounds.recipe import recipe_of
from crl.rounds.stage import Read, Stage, in_order
from tests.tiny_run import experiment

OF_THE_SECOND_TRACK = {("plan", "bank"), ("collect", "bank"), ("collect", "extractor"), ("credit", "bank")}
"""What a round plays with, read from a stage of the other track."""
OF_ITS_OWN_TRACK = {("collect", "actor"), ("distill", "extractor"), ("consolidate", "bank")}


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


def test_credit_knows_the_bank_that_the_next_round_plays_with() -> None:
    method = experiment(method__overlap=True).method
    recipe = recipe_of(method)
    for number in (1, 2, 3):
        coming = recipe.stage(method, number, "credit").read(COMING_BANK)
        played = recipe.stage(method, number + 1, "plan").read(BANK)
        expected = recipe.resolve(method, number + 1, played.stage, played.offset)
        assert recipe.resolve(method, number, coming.stage, coming.offset) == expected


@pytest.mark.parametrize("lag", [1, 2])
def test_what_the_other_track_makes_is_read_two_rounds_later_where_rounds_overlap(lag: int) -> None:
    method = experiment(
        method__overlap=lag == 2, method__rollout__search_and_ask="{}", method__prompts="paper_ask"
    ).method
    recipe = recipe_of(method)
    for name, read in sorted(OF_THE_SECOND_TRACK | OF_ITS_OWN_TRACK):
        declared = recipe.stage(method, 4, name).read(read)
        expected = lag if (name, read) in OF_THE_SECOND_TRACK else 1
        assert declared.offset == -expected, (name, read)
        for number in (1, 2, 3, 4):
            found = recipe.resolve(method, number, declared.stage, declared.offset)
            assert found is not None and found[0] == max(0, number - expected), "before the first round it is round 0"
    assert recipe.reach() == lag, "so many checkpoints of the extractor are still read"
