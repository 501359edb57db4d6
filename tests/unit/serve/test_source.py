"""A trained agent, of a run or of an exported folder, is shown what the held-out evaluation shows in the same game."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from crl.config import Runtime
from crl.engine.driver import Driver
from crl.errors import BadInput
from crl.records import Evaluation, TextEffect
from crl.rounds.evaluate import WITH_BANK, best_round, held_out_success, recorded_evaluations
from crl.rounds.tasks import query_of
from crl.run.directory import RunDirectory
from crl.run.head import head_after
from crl.serve.export import export_agent
from crl.serve.source import TrainedAgent, open_agent
from tests.unit.recipes.played import Played
from tests.unit.rollout.fakes import CharacterChat
from tests.unit.serve.agents import CHANGES, ROUND, held_out, played


@pytest.fixture(scope="module", params=CHANGES)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Played:
    return played(tmp_path_factory.mktemp("played"), request.param)


def check_shown(agent: TrainedAgent, run: Played) -> None:
    """Each held-out game has the experience and the prompt of the record."""
    chat: Any = CharacterChat()
    for row, ids in held_out(run, agent.round):
        start = agent.environment(row.family).reset_many([row.environment_seed])[0]
        guidance = agent.retrieve(row.family, query_of(start))
        assert guidance == agent.retrieve(row.family, query_of(start)), "no counter moves"
        shown = guidance if row.condition == WITH_BANK else None
        assert list(row.entry_ids) == [entry.entry_id for entry in (shown.entries if shown else ())]
        assert agent.opening(chat, row.family, start, shown)[1] == ids


@pytest.mark.parametrize("number", range(ROUND + 1))
def test_each_held_out_game_has_the_experience_and_the_prompt_of_the_record(run: Played, number: int) -> None:
    with open_agent(run.run.path, number) as agent:
        assert agent.digest == head_after(run.run.path, number)
        check_shown(agent, run)
    guided = [row for row in run.rows(Evaluation, "evaluate", number) if row.guided]
    assert bool(guided) == (number > 0)
    if number == ROUND and run.method.recipe.suppress is not None:  # type: ignore[attr-defined]
        assert any(row.suppressed for row in run.rows(TextEffect, "effects", ROUND))


@pytest.mark.slow
def test_an_exported_folder_is_the_same_agent(run: Played, tmp_path: Path) -> None:
    export_agent(run.run.path, tmp_path / "agent", ROUND)
    with open_agent(run.run.path, ROUND) as own, open_agent(tmp_path / "agent") as agent:
        check_shown(agent, run)
        assert (agent.name, agent.round, agent.role, agent.digest) == (own.name, own.round, own.role, own.digest)
        assert [entry.text for entry in agent.entries] == [entry.text for entry in own.entries]
        assert agent.families == own.families and agent.sampling("pond") == own.sampling("pond")
        start = own.environment("lake").reset_many([1_000_000])[0]
        both = [each.retrieve("lake", query_of(start)) for each in (own, agent)]
        assert both[0] is not None and both[1] is not None and both[0].candidates == both[1].candidates


def test_what_an_agent_is(run: Played) -> None:
    agent = open_agent(run.run.path)
    assert (agent.name, agent.round, agent.families) == (run.run.experiment_name, ROUND, ["lake", "pond"])
    assert agent.weights.role == "actor" and agent.checkpoint is None
    assert agent.sampling("pond").temperature == run.method.evaluation.temperature
    assert agent.prompts("pond")["actor"].system == "You skate on a pond." != agent.prompts("lake")["actor"].system
    assert open_agent(run.run.path, role="extractor").weights.role == "extractor"
    with pytest.raises(BadInput, match="has no role 'critic'"):
        open_agent(run.run.path, role="critic")
    with pytest.raises(BadInput, match="has no task family 'sea'"):
        agent.retrieve("sea", "")
    with pytest.raises(BadInput, match="round 9"):
        open_agent(run.run.path, 9)
    with pytest.raises(BadInput, match="there is no run"):
        open_agent("nowhere")


def test_the_best_round_is_the_one_with_most_success_with_its_bank_and_of_equals_the_later(run: Played) -> None:
    success = [held_out_success(run.method, run.rows(Evaluation, "evaluate", number)) for number in range(ROUND + 1)]
    best = max(range(ROUND + 1), key=lambda number: (success[number], number))
    assert best_round(run.method, recorded_evaluations(run.run)) == best == open_agent(run.run.path, best=True).round
    with pytest.raises(BadInput, match="both asked for"):
        open_agent(run.run.path, 1, best=True)


def test_retention_reads_each_evaluation_once(run: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round that follows many others must not read them all again."""
    read: list[int] = []
    reads = RunDirectory.read

    def counted(self: RunDirectory, number: int, stage: str, row_type: type[Any]) -> Any:
        if row_type is Evaluation:
            read.append(number)
        return reads(self, number, stage, row_type)

    monkeypatch.setattr(RunDirectory, "read", counted)
    with Driver(run.run, Runtime(save_total_limit=100)) as driver:
        for _ in range(3):
            with driver.round(ROUND):
                pass  # it is complete: retention follows
    assert sorted(read) == list(range(ROUND + 1))
