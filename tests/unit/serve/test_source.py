"""A trained agent, opened from a run, is shown what the held-out evaluation of the round shows in the same game."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from crl.config import Experiment
from crl.errors import BadInput
from crl.policies.embedders import embedder_digest
from crl.records import Evaluation, TextEffect
from crl.rounds.evaluate import WITH_BANK, best_round, evaluate_again, held_out_success
from crl.rounds.tasks import query_of
from crl.run.head import head_after
from crl.serve.source import open_agent
from tests.unit.recipes.played import Played, Policy, Services, Session, act, experiment
from tests.unit.rollout.fakes import CharacterChat

ROUND = 2
MOVED = {
    "method__families__0__groups": 2, "method__families__0__evaluation_seeds__count": 3,
    "method__recipe__retrieval__top_k": 2,
}  # fmt: skip


class Shown(Policy):
    """An actor that remembers the first prompt of each game."""

    def __init__(self) -> None:
        super().__init__(act)
        self.prompts: list[list[int]] = []

    def open(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], limit: int | None = None) -> Session:
        self.prompts += map(list, prompts)
        return super().open(prompts, seeds, limit)


class Embedding(Services):
    """Their embedder is the true one: an agent compares its digest."""

    def model_digest(self, role: str) -> str:
        return embedder_digest("lexical") if role == "embedder" else super().model_digest(role)


def two_lakes(**changes: Any) -> Experiment:
    """Two tasks, the second with a prompt and a place in the bank of its own, which changes in round 2."""
    made = experiment(**MOVED, **changes)
    lake = made.method.families[0]
    prompt = lake.model_validate(lake.model_dump() | {"prompts": {"actor": made.method.prompts["actor"].model_dump()}})
    pond = prompt.model_copy(update={"name": "pond"})
    pond.prompts["actor"] = pond.prompts["actor"].model_copy(update={"system": "You skate on a pond."})  # type: ignore[index]
    method = made.method.model_copy(update={"families": [lake, pond]})
    return made.model_copy(update={"method": method})


SUPPRESS = {"min_uses": 2, "max_effect": 1.0, "standard_errors": 0.0}
CHANGES: dict[str, dict[str, Any]] = {
    "diversified": {"method__recipe__retrieval__diversify_evaluation": True},
    "suppressed": {
        "method__rollout__placement": "system", "method__recipe__retrieval__scope": "bank",
        "method__recipe__suppress": SUPPRESS,
    },
}  # fmt: skip


@pytest.fixture(scope="module", params=CHANGES)
def played(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Played:
    made = two_lakes(**CHANGES[request.param])
    return Played(tmp_path_factory.mktemp("played"), made, ROUND, Embedding(made))


def evaluated(played: Played, number: int) -> list[tuple[Evaluation, list[int]]]:
    """The held-out games of a round, played again, each with the ids of its first prompt."""
    services, shown = Embedding(Experiment(name="again", method=played.method)), Shown()
    services._policies["actor"] = shown
    rows = evaluate_again(played.run, played.method, played.recipe, number, services).rows
    rows = [row for row in rows if row.condition != "random"]
    assert rows == [row for row in played.rows(Evaluation, "evaluate", number) if row.condition != "random"]
    return list(zip(rows, shown.prompts, strict=True))


@pytest.mark.parametrize("number", range(ROUND + 1))
def test_each_held_out_game_has_the_experience_and_the_prompt_of_the_record(played: Played, number: int) -> None:
    chat: Any = CharacterChat()
    with open_agent(played.run.path, number) as agent:
        assert agent.digest == head_after(played.run.path, number)
        for row, ids in evaluated(played, number):
            environment = agent.environment(row.family)
            start = environment.reset_many([row.environment_seed])[0]
            guidance = agent.retrieve(row.family, query_of(start)) if row.condition == WITH_BANK else None
            chosen = [] if guidance is None else [entry.entry_id for entry in guidance.entries]
            assert chosen == list(row.entry_ids)
            assert agent.opening(chat, row.family, start, guidance)[1] == ids
            again = agent.retrieve(row.family, query_of(start))  # no counter moves
            assert guidance is None or again == guidance
    guided = [row for row in played.rows(Evaluation, "evaluate", number) if row.guided]
    assert bool(guided) == (number > 0)
    if number == ROUND and played.method.recipe.suppress is not None:  # type: ignore[attr-defined]
        assert any(row.suppressed for row in played.rows(TextEffect, "effects", ROUND))


def test_what_an_agent_is(played: Played) -> None:
    agent = open_agent(played.run.path)
    assert (agent.name, agent.round, agent.families) == (played.run.experiment_name, ROUND, ["lake", "pond"])
    assert agent.weights.role == "actor" and agent.checkpoint is None
    assert agent.sampling("pond").temperature == played.method.evaluation.temperature
    assert agent.prompts("pond")["actor"].system == "You skate on a pond." != agent.prompts("lake")["actor"].system
    assert open_agent(played.run.path, role="extractor").weights.role == "extractor"
    with pytest.raises(BadInput, match="has no role 'critic'"):
        open_agent(played.run.path, role="critic")
    with pytest.raises(BadInput, match="has no task family 'sea'"):
        agent.retrieve("sea", "")
    with pytest.raises(BadInput, match="round 9"):
        open_agent(played.run.path, 9)
    with pytest.raises(BadInput, match="there is no run"):
        open_agent("nowhere")


def test_the_best_round_is_the_one_with_most_success_with_its_bank_and_of_equals_the_later(played: Played) -> None:
    success = [
        held_out_success(played.method, played.rows(Evaluation, "evaluate", number)) for number in range(ROUND + 1)
    ]
    best = max(range(ROUND + 1), key=lambda number: (success[number], number))
    assert best_round(played.run, played.method) == best == open_agent(played.run.path, best=True).round
    with pytest.raises(BadInput, match="both asked for"):
        open_agent(played.run.path, 1, best=True)
