"""Held-out tasks that are played several times, and with sampling that training does not have."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from crl.config import Method, SamplingConfig
from crl.config.load import load_experiment
from crl.errors import BadInput
from crl.records import Evaluation
from tests.unit.recipes.played import ROOT, Played, Policy, Services, Session, act, experiment

SAMPLES, ROUNDS = 3, 1
RANDOM_PLAYS = 8


class Noting(Policy):
    """Notes the setting that every turn is sampled with, by what the actor had read first."""

    def __init__(self) -> None:
        super().__init__(act)
        self.settings: list[SamplingConfig] = []

    def open(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], limit: int | None = None) -> Session:
        noted = self.settings

        class Noted(Session):
            def sample(
                self, rows: Sequence[int], sampling: SamplingConfig, answers: Mapping[int, Any] | None = None
            ) -> Any:
                noted.append(sampling)
                return super().sample(rows, sampling, answers)

        return Noted(prompts, self._answer, seeds)


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Played:
    return Played(tmp_path_factory.mktemp("once"), experiment(), ROUNDS)


@pytest.fixture(scope="module")
def thrice(tmp_path_factory: pytest.TempPathFactory) -> Played:
    return Played(tmp_path_factory.mktemp("thrice"), experiment(method__evaluation__samples=SAMPLES), ROUNDS)


@pytest.mark.parametrize("number", range(ROUNDS + 1))
def test_the_first_play_is_the_only_one_of_a_run_that_plays_once(once: Played, thrice: Played, number: int) -> None:
    first = once.rows(Evaluation, "evaluate", number)
    by_id = {row.evaluation_id: row for row in thrice.rows(Evaluation, "evaluate", number)}
    assert [by_id[row.evaluation_id] for row in first] == first
    tasks = once.method.families[0].evaluation_seeds.count
    for condition in {row.condition for row in first} - {"random"}:
        mine = [row for row in by_id.values() if row.condition == condition]
        assert len(mine) == SAMPLES * tasks and len({row.environment_seed for row in mine}) == tasks
    assert sum(row.condition == "random" for row in by_id.values()) == (number == 0) * RANDOM_PLAYS * tasks
    assert (
        once.digests()[f"{ROUNDS}/collect"]
        and {
            stage: each
            for stage, each in once.digests().items()
            if "evaluate" not in stage and "initialize" not in stage
        }.keys()
        <= thrice.digests().keys()
    )


def test_further_plays_have_streams_of_their_own_that_are_the_same_in_every_round(thrice: Played) -> None:
    plays: dict[int, list[list[Evaluation]]] = {}
    for number in range(ROUNDS + 1):
        by_play: dict[str, list[Evaluation]] = {}
        for row in thrice.rows(Evaluation, "evaluate", number):
            if row.condition == "without_bank":
                _, _, play = row.evaluation_id.partition(f"-s{row.environment_seed}")
                by_play.setdefault(play, []).append(row)
        plays[number] = list(by_play.values())
    acted = {number: [[row.actions for row in rows] for rows in found] for number, found in plays.items()}
    assert len(acted[0]) == SAMPLES and acted[0][0] != acted[0][1] != acted[0][2], "other plays are other draws"
    assert acted[0] == acted[1], "nothing was trained, so what differs between rounds would be noise of the streams"


def test_an_evaluation_samples_as_it_is_told_and_training_as_its_role(tmp_path: Path) -> None:
    changed = {"method__evaluation__sampling": {"top_p": 0.8, "top_k": 20}, "method__evaluation__temperature": 0.7}
    made = experiment(**changed, method__roles__actor__sampling={"temperature": 0.9, "max_new_tokens": 4})
    services = Services(made)
    policy = services._policies["actor"] = Noting()
    played = Played(tmp_path, made, ROUNDS, services)
    trained = SamplingConfig(temperature=0.9, max_new_tokens=4)
    evaluated = trained.model_copy(update={"temperature": 0.7, "top_p": 0.8, "top_k": 20})
    assert {each.model_dump_json() for each in policy.settings} == {
        trained.model_dump_json(), evaluated.model_dump_json()
    }  # fmt: skip
    assert played.method.evaluation_sampling("actor", "lake") == evaluated
    assert played.method.sampling("actor", "lake") == trained


def test_what_is_said_for_evaluations_goes_before_what_a_family_has_of_its_own() -> None:
    made = load_experiment(
        ROOT / "conf/tiny.yaml",
        {
            "method.families.0.sampling": {"top_p": 0.5, "max_new_tokens": 3, "temperature": 0.2},
            "method.evaluation": {"temperature": 0.6, "sampling": {"top_p": 0.8}},
        },
    )
    found = made.method.evaluation_sampling("actor", made.method.families[0].name)
    assert (found.temperature, found.top_p, found.max_new_tokens) == (0.6, 0.8, 3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"samples": 0}, "samples"),
        ({"sampling": {"temperature": 0.6}}, "temperature"),
        ({"sampling": {}}, "sampling"),
        ({"sampling": {"constrain": "actions", "stop_strings": ["x"]}}, "stop_strings"),
    ],
)
def test_what_cannot_be_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        load_experiment(ROOT / "conf/tiny.yaml", {"method.evaluation": settings})


def test_a_method_without_these_settings_has_the_digest_that_it_had() -> None:
    method = experiment().method
    assert {"samples", "sampling"}.isdisjoint(method.model_dump()["evaluation"])
    other: Method = method.model_copy(update={"evaluation": method.evaluation.model_copy(update={"samples": SAMPLES})})
    assert other.digest() != method.digest()
    assert dataclasses.is_dataclass(Evaluation) and not {"play", "sample"} & set(Evaluation.added)
