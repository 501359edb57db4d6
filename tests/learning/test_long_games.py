"""Games of 60 turns in a context of 2,048 tokens, played to their own end by histories that are cut."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crl.audit.audit import problems_of
from crl.policies import resolve_model
from crl.records import SUMMARY, Episode, Evaluation, Generation, Sample, Turn, Weights, rows_of
from crl.rounds.recipe import recipe_of
from crl.run.directory import RunDirectory
from tests.faults.killing import killed_run
from tests.faults.test_kills import SEED
from tests.tiny_run import NAME, crl_here, digests, leftovers, train

pytestmark = pytest.mark.slow
ROUNDS, TURNS, CONTEXT = 2, 60, 2048
HISTORIES = {"append": "append", "window": "{window: 5}", "summarize": "{summarize: {at: 1200}}"}


def settings(history: str) -> Mapping[str, Any]:
    environment = f"{{kind: 'tests.longwalk:LongWalk', max_turns: {TURNS}}}"
    return {
        "method__families": f"[{{name: walk, environment: {environment}, groups: 1, "
        "evaluation_seeds: {start: 1000000, count: 1}}]",
        "method__roles__actor": f"{{model: tiny, context: {CONTEXT}, history: {HISTORIES[history]}, "
        "sampling: {max_new_tokens: 6}, optimizer: {learning_rate: 1.0e-3}}",
        "method__prompts__actor__summarize": "Sum up what you know.",
        "method__rollout__group_size": 4,
        "method__recipe__warm_start": "null",
    }


@pytest.fixture(scope="module", params=["window", "summarize"])
def undisturbed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    runs = tmp_path_factory.mktemp(request.param)
    crl_here(runs, *train(ROUNDS, **settings(request.param)))
    return request.param, runs / NAME


def test_appending_ends_at_the_context(tmp_path: Path) -> None:
    crl_here(tmp_path, *train(1, **settings("append")))
    run = RunDirectory.open(tmp_path / NAME)
    episodes = rows_of(Episode, run.read(1, "collect", Episode))
    assert len(episodes) == 4
    assert {row.stop_reason for row in episodes} == {"context_limit"} and max(row.turns for row in episodes) < TURNS


def test_every_game_is_played_to_its_own_end(undisturbed: tuple[str, Path]) -> None:
    history, path = undisturbed
    run = RunDirectory.open(path)
    assert problems_of(run, recipe_of(run.method)) == []
    for number in range(1, ROUNDS + 1):
        episodes = rows_of(Episode, run.read(number, "collect", Episode))
        turns = rows_of(Turn, run.read(number, "collect", Turn))
        assert {row.stop_reason for row in episodes} == {"turn_limit"}
        steps = Counter(turn.episode_id for turn in turns if turn.action != SUMMARY)
        assert set(steps.values()) == {TURNS}
        assert any(turn.action == SUMMARY for turn in turns) == (history == "summarize")
        assert all(len(row.generation_ids) > 1 for row in episodes)
        records = [row for row in rows_of(Generation, run.read(number, "collect", Generation)) if row.kind == "episode"]
        assert max(len(record.token_ids) for record in records) <= CONTEXT
        dropped = [turn.dropped_turns for turn in turns if turn.turn == len(turns) // len(episodes) - 1]
        assert min(dropped) > 0
        samples = rows_of(Sample, run.read(number, "credit", Sample))
        mine = {row.generation_id: row for row in samples if row.role == "actor"}
        for row in episodes:
            assert len({mine[name].advantage for name in row.generation_ids}) == 1, "that of the episode"
        [weights] = rows_of(Weights, run.read(number, "update_actor", Weights))
        assert weights.updates == number
    evaluated = rows_of(Evaluation, run.read(ROUNDS, "evaluate", Evaluation))
    assert {row.stop_reason for row in evaluated} == {"turn_limit"}


def test_stored_logprobs_equal_teacher_forcing(undisturbed: tuple[str, Path]) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    _, path = undisturbed
    model = AutoModelForCausalLM.from_pretrained(resolve_model("tiny").path, dtype=torch.float32).eval()
    records = rows_of(Generation, RunDirectory.open(path).read(1, "collect", Generation))
    gaps = []
    for record in [each for each in records if each.kind == "episode"][::3]:
        ids = torch.tensor([record.token_ids])
        with torch.no_grad():
            forced = torch.log_softmax(model(ids).logits[0, :-1], -1).gather(1, ids[0, 1:, None])[:, 0].numpy()
        gaps.append(np.abs(forced - record.logprobs[1:])[np.array(record.loss_mask[1:]) == 1].max())
    assert max(gaps) < 1e-4


def test_killed_and_resumed_it_has_equal_digests(undisturbed: tuple[str, Path], tmp_path: Path) -> None:
    history, reference = undisturbed
    with killed_run(tmp_path / "runs", reference, ROUNDS, SEED + 11, **settings(history)) as killed:
        for key in ("0001/collect", "0002/collect", "0002/update_actor"):
            if not killed.alive:
                killed.start(shards=killed.random.choice([1, 2]))
            if not killed.kill_in(key, whom=killed.random.choice(["flow", "engine", "both"])):
                break
        killed.finish()
        assert len(killed.kills) >= 2
        assert digests(killed.path) == killed.expected and leftovers(killed.path) == []
