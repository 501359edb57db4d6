"""Ratios where a server cuts: rounds of the real stages and trainers, sampled by tests/cutting.py, against arithmetic
on the stored rows by transformers alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch")

from crl.audit.audit import problems_of
from crl.records import SERVER, Generation
from crl.rounds.recipe import recipe_of
from crl.run.directory import RunDirectory
from tests.learning.harness import rows, train
from tests.ratios import behavior, check_round, metrics, samples
from tests.unit.recipes.played import experiment

ROUNDS = 3
SAMPLING = {"temperature": 0.8, "top_p": 0.9, "top_k": 20}
KIND = "tests.cutting:CutEngine"
SETTINGS: dict[str, Any] = {
    "method__families__0__groups": 4,
    "method__evaluation__every": 0,
    "method__recipe__extractor_objective__batch": 3,
    "method__recipe__extractor_objective__max_batches": 1,
    "method__roles__actor__engine": {"kind": KIND},
    "method__roles__actor__sampling": {**SAMPLING, "max_new_tokens": 4, "constrain": "actions"},
    "method__roles__actor__optimizer__learning_rate": 3.0e-4,
    "method__roles__extractor__engine": {"kind": KIND, "says": ["ADD: go up", "ADD: go left", "hm", "RETURN"]},
    "method__roles__extractor__sampling": {**SAMPLING, "max_new_tokens": 12},
    "method__roles__extractor__optimizer__learning_rate": 3.0e-3,
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunDirectory]:
    yield train(experiment(**SETTINGS), tmp_path_factory.mktemp("ratios"), ROUNDS)


def test_in_the_round_that_sampled_every_ratio_of_the_first_step_is_1(run: RunDirectory) -> None:
    told = rows(run, Generation, "collect", range(1, ROUNDS + 1))
    assert {row.logprobs_by for row in told} == {SERVER}
    stored = behavior(run, "actor")
    gaps = [
        value - own
        for row in told for value, own, mask in zip(row.logprobs, stored[row.generation_id], row.loss_mask, strict=True)
        if mask
    ]  # fmt: skip
    assert min(gaps) > -1e-4 and max(gaps) > 0.05, "what is left of a cut is more probable"
    stepped = [number for number in range(1, ROUNDS + 1) if metrics(run, "update_actor", number)["stepped"]]
    assert len(stepped) > 1, "weights moved in between"
    for number in stepped:
        assert not check_round(run, "actor", number)
        assert metrics(run, "update_actor", number)["logprob_mismatch"] < 1e-3


def test_an_output_that_is_trained_later_has_the_ratio_to_what_was_stored(run: RunDirectory) -> None:
    older = [number for number in range(2, ROUNDS + 1) if check_round(run, "extractor", number)]
    assert older, "an update trained outputs of weights before it"
    for number in older:
        assert {int(each.source[:4]) for each in samples(run, "extractor", number)} <= set(range(1, number))


def test_a_run_is_whole(run: RunDirectory) -> None:
    assert problems_of(run, recipe_of(run.method)) == []
