"""Search-and-ask through the real stages: what a run with scripted policies leaves in the record, and what it does not.

The actor asks in its first turn and then walks; the extractor notes something of its own after each episode and answers
with a text that repeats the question. Chat formats, stages, checks and the updates are those of any run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from crl.audit.audit import problems_of
from crl.bank.segments import load_texts
from crl.config import Experiment, SamplingConfig
from crl.config.load import parse_experiment
from crl.engine.execute import Attempt, execute_part, execute_stage
from crl.engine.services import EngineServices
from crl.protocols import Chat, Policy, Sampled, StopReason, WholeTurns
from crl.records import (
    BufferItem,
    Credit,
    Episode,
    Evaluation,
    Generation,
    Metric,
    Question,
    Retrieval,
    RetrievalCount,
    Sample,
    StrippedContext,
    Task,
    Turn,
    Weights,
)
from crl.rounds.recipe import recipe_of, recorded_bank
from crl.run.directory import RunDirectory
from crl.run.lease import Lease
from tests.learning.harness import rows

EXPERIMENT = """
name: asking
method:
  seed: 3
  families:
    - name: lake
      environment: {kind: frozenlake, size_min: 3, size_max: 3, max_turns: 4}
      groups: 1
      evaluation_seeds: {start: 1000000, count: 2}
    - name: pond
      environment: {kind: frozenlake, size_min: 2, size_max: 2, max_turns: 3, held_out_moves: 1}
      groups: 1
      evaluation_seeds: {start: 1000000, count: 1}
  roles:
    actor: {model: tiny, sampling: {max_new_tokens: 16}}
    extractor: {model: tiny, sampling: {max_new_tokens: 48}}
  rollout:
    group_size: 4
    wave_groups: 1
    search_and_ask: {uses: 1, max_characters: 60}
  recipe:
    kind: complementary
    retrieval: {embedder: lexical, threshold: -1.0}
    merge: {every: 0}
    self_distillation: {}
    warm_up_rounds: 1
  evaluation: {every: 2}
  threads: 1
  prompts:
    actor: {system: Act., first: "{goal}\\n{experience}{observation}\\n", following: "{feedback}{observation}\\n"}
    distill: {system: Note., first: "{goal}\\n{trajectory}\\n{outcome}\\n"}
    merge: {system: Merge., first: "{entries}\\n"}
    ask:
      system: Answer.
      first: "Goal {goal}\\nNote {experience}\\nSeen {observation}\\nQuestion {question}\\n"
      offer: "You may ask.\\n"
"""
ROUNDS = 2


class Script:
    """A policy that says what a function of (prompt, row's turn, row) tells it, in the chat format of a real one."""

    def __init__(self, real: Policy, say: Callable[[str, int, int], str]) -> None:
        self.chat: Chat = real.chat
        self.context, self._say = real.context, say

    def open(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], limit: int | None = None) -> _Session:
        return _Session(self, prompts, self._say, seeds)


class _Session(WholeTurns):
    def __init__(
        self,
        policy: Script,
        prompts: Sequence[Sequence[int]],
        say: Callable[[str, int, int], str],
        seeds: Sequence[int],
    ) -> None:
        self._chat, self._say = policy.chat, say
        self._streams = [np.random.default_rng(seed) for seed in seeds]
        self._ids = [list(prompt) for prompt in prompts]
        self._prompts = [policy.chat.decode(prompt) for prompt in prompts]
        self._turns = [0] * len(prompts)

    def extend(self, pieces: Mapping[int, Sequence[int]]) -> None:
        for row, piece in pieces.items():
            self._ids[row] += piece

    def sample(
        self,
        rows: Sequence[int],
        sampling: SamplingConfig,
        answers: Mapping[int, Any] | None = None,
    ) -> dict[int, Sampled]:
        found = {}
        for row in rows:
            ids = self._chat.answer(self._say(self._prompts[row], self._turns[row], row))
            self._turns[row] += 1
            self._ids[row] += ids
            logprobs = [-float(self._streams[row].random()) for _ in ids]
            found[row] = Sampled(ids, logprobs, StopReason.end_of_turn)
        return found

    def drop(self, rows: Sequence[int]) -> None:
        """Nothing is held."""

    def length(self, row: int) -> int:
        return len(self._ids[row])


def act(prompt: str, turn: int, row: int) -> str:
    """Two rows of a group ask in their first turn, one of them again; then they walk."""
    if row % 2 == 0 and turn < 1 + (row % 4 == 0):
        return f"ASK: where now, {row}?"
    return ("right", "down")[(turn + row) % 2]


def note(prompt: str, turn: int, row: int) -> str:
    _, asked, question = prompt.partition("\nQuestion ")
    if asked:
        return f"answer to {question.splitlines()[0]}"
    return f"ADD: way {len(prompt)} {row} of {sum(map(ord, prompt)) % 997}"


class Scripted(EngineServices):
    def policy(self, role: str, weights: Weights) -> Policy:
        real = super().policy(role, weights)
        return Script(real, act if role == "actor" else note)  # type: ignore[return-value]


def make_experiment(overrides: Mapping[str, Any]) -> Experiment:
    return parse_experiment(yaml.safe_load(EXPERIMENT), overrides, base=Path(), where="asking")


def train(root: Path, *, backwards: bool = False, overrides: Mapping[str, Any] | None = None) -> RunDirectory:
    """The rounds of the run; `backwards` collects with the last wave first, each in services of its own."""
    run = RunDirectory.create_or_open(make_experiment(overrides or {}), root)
    recipe = recipe_of(run.method)
    with Lease.acquire(run.path, seconds=600) as lease:
        attempt = Attempt(token=lease.token)
        services = Scripted(run)
        for number in range(ROUNDS + 1):
            for stage in recipe.stages_of(run.method, number):
                if stage.name == "collect" and backwards:
                    for part in reversed(range(2)):
                        own = Scripted(run)
                        own.begin(number, stage.name, part)
                        execute_part(run, recipe, number, stage.name, part, attempt=attempt, services=own)
                        own.close()
                services.begin(number, stage.name, None)
                execute_stage(run, recipe, number, stage.name, attempt=attempt, services=services)
        services.close()
    return run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunDirectory]:
    yield train(tmp_path_factory.mktemp("asking"))


def questions(run: RunDirectory) -> list[Question]:
    return rows(run, Question, "collect", range(1, ROUNDS + 1))


def test_guided_episodes_are_answered_and_free_ones_are_not(run: RunDirectory) -> None:
    played = {each.episode_id: each for each in rows(run, Episode, "collect", range(1, ROUNDS + 1))}
    asked = questions(run)
    assert {each.round for each in asked if each.reason_code == "ok"} == {ROUNDS}
    for each in asked:
        index = int(each.question_id.rsplit("-", 1)[1])
        expected = "free_episode" if not played[each.episode_id].guided else "ok" if index == 0 else "uses_spent"
        assert each.reason_code == expected
    assert {each.reason_code for each in asked} == {"ok", "free_episode", "uses_spent"}
    for record in rows(run, Generation, "collect", [ROUNDS]):
        if record.kind == "episode":
            guided = played[record.generation_id.removesuffix("-collect")].guided
            assert ("You may ask." in record.prompt) is guided


def test_an_answer_is_made_from_an_entry_of_the_round_before_and_its_tokens_are_exact(run: RunDirectory) -> None:
    services = EngineServices(run)
    records = {each.generation_id: each for each in rows(run, Generation, "collect", [ROUNDS])}
    turns = {(each.episode_id, each.turn): each for each in rows(run, Turn, "collect", [ROUNDS])}
    bank = recorded_bank(run, recipe_of(run.method), ROUNDS - 1)
    texts = load_texts(run.path, bank.table)
    families = dict(zip(bank.table["entry_id"].to_pylist(), bank.table["family"].to_pylist(), strict=True))
    (weights,) = rows(run, Weights, "update_extractor", [ROUNDS - 1])
    chat = services.policy("extractor", weights).chat
    answered = [each for each in rows(run, Question, "collect", [ROUNDS]) if each.answer is not None]
    for each in answered:
        assert each.generation_id is not None and each.content_digest is not None
        record, turn = records[each.generation_id], turns[each.episode_id, each.turn]
        assert (record.role, record.kind, record.stage) == ("extractor", "ask", "collect")
        assert record.weights_digest == weights.weights_digest
        assert families[str(each.entry_id)] == each.family
        goal = next(task.goal for task in rows(run, Task, "plan", [ROUNDS]) if task.episode_id == each.episode_id)
        prompt = chat.opening(
            [
                {"role": "system", "content": "Answer."},
                {
                    "role": "user",
                    "content": f"Goal {goal}\nNote {texts[each.content_digest]}\nSeen {turn.observation}\n"
                    f"Question {each.question}\n",
                },
            ]
        )
        written = chat.answer(f"answer to {each.question}")
        assert record.token_ids == prompt + written
        assert record.loss_mask == [0] * len(prompt) + [1] * len(written)
        assert each.answer == f"answer to {each.question}" == turn.feedback
        stream = np.random.default_rng(_seed(run, ROUNDS, each.question_id))
        assert record.logprobs[len(prompt) :] == pytest.approx([-stream.random() for _ in written])
    assert len(answered) == len(records) - len(rows(run, Episode, "collect", [ROUNDS])) > 0
    services.close()


def _seed(run: RunDirectory, number: int, question_id: str) -> np.random.SeedSequence:
    from crl.run.seeds import seed_for

    return seed_for(run.method.seed, number, "collect", "ask", question_id)


def test_questions_move_no_counter_and_earn_nothing_unless_answers_are_trained(run: RunDirectory) -> None:
    chosen: dict[str, int] = {}
    for number in range(1, ROUNDS + 1):
        for row in rows(run, Retrieval, "plan", [number]):
            chosen[row.entry_id] = chosen.get(row.entry_id, 0) + row.chosen
        counted = {row.entry_id: row.count for row in rows(run, RetrievalCount, "plan", [number])}
        assert counted == {entry: count for entry, count in chosen.items() if count}
    guiding = {
        (each.episode_id, each.entry_ids[0])
        for each in rows(run, Episode, "collect", range(1, ROUNDS + 1))
        if each.guided and each.error is None
    }
    assert {(each.episode_id, each.entry_id) for each in rows(run, Credit, "credit", range(1, ROUNDS + 1))} == guiding
    answers = {each.generation_id for each in questions(run) if each.generation_id is not None}
    assert answers and not answers & {each.generation_id for each in rows(run, BufferItem, "credit", [ROUNDS])}
    trained = rows(run, Sample, "credit", [ROUNDS])
    assert trained and not answers & {each.generation_id for each in trained}


def test_what_the_actor_asked_is_trained_and_what_it_was_answered_is_not(run: RunDirectory) -> None:
    samples = {each.generation_id: each for each in rows(run, Sample, "credit", [ROUNDS]) if each.objective == "grpo"}
    turns = rows(run, Turn, "collect", [ROUNDS])
    for number, each in enumerate(turns):
        sample = samples[f"{each.episode_id}-collect"]
        assert set(sample.loss_mask[each.first_token : each.last_token]) == {1}
        follows = number + 1 < len(turns) and turns[number + 1].episode_id == each.episode_id
        if follows:
            assert set(sample.loss_mask[each.last_token : turns[number + 1].first_token]) == {0}
    assert any(each.action == "<ask>" for each in turns)


def test_every_guided_episode_has_a_context_without_any_of_it(run: RunDirectory) -> None:
    services = EngineServices(run)
    (weights,) = rows(run, Weights, "update_actor", [1])
    chat = services.policy("actor", weights).chat
    for number in range(1, ROUNDS + 1):
        guided = {each.episode_id: each for each in rows(run, Episode, "collect", [number]) if each.guided}
        contexts = rows(run, StrippedContext, "collect", [number])
        assert {each.episode_id for each in contexts} == set(guided)
        for each in contexts:
            text = chat.decode(each.token_ids)
            assert "Advice" not in text and "ASK" not in text and "ask" not in text and "answer to" not in text
            assert each.removed_tokens > 0
    services.close()


def test_the_time_of_every_search_and_answer_is_noted_and_their_tokens_are_counted(run: RunDirectory) -> None:
    handed_on = [each for each in rows(run, Question, "collect", [ROUNDS]) if each.reason_code == "ok"]
    timings = run.manifest(ROUNDS, "collect").provenance["timings"]
    assert timings["retrieval"]["items"] == timings["answers"]["items"] == len(handed_on) > 0
    assert 0 < timings["answers"]["seconds"] <= timings["play"]["seconds"]
    evaluated = run.manifest(ROUNDS, "evaluate").provenance["timings"]
    assert evaluated["answers"]["items"] > 0
    assert {"retrieval", "play with_bank", "play without_bank"} <= evaluated.keys()
    stages = [name for name in ("collect", "distill", "merge") if run.is_complete(ROUNDS, name)]
    written = [each for stage in stages for each in rows(run, Generation, stage, [ROUNDS])]
    wrote = {
        "actor": sum(each.last_token - each.first_token for each in rows(run, Turn, "collect", [ROUNDS])),
        "extractor": sum(sum(each.loss_mask) for each in written if each.role == "extractor"),
    }
    for role, sampled in wrote.items():
        read = sum(len(each.token_ids) for each in written if each.role == role) - sampled
        metrics = {row.name: row.value for row in rows(run, Metric, "health", [ROUNDS])}
        assert (metrics[f"{role}_tokens_read"], metrics[f"{role}_tokens_sampled"]) == (read, sampled)


def test_evaluation_with_the_bank_asks_too_and_leaves_no_row_of_it(run: RunDirectory) -> None:
    held_out = rows(run, Evaluation, "evaluate", [ROUNDS])
    with_bank = [each for each in held_out if each.condition == "with_bank"]
    assert any("<ask>" in each.actions for each in with_bank)
    assert all("<ask>" not in each.actions for each in held_out if each.condition == "without_bank")
    assert all(each.turns <= 4 for each in held_out)
    assert list(run.manifest(ROUNDS, "evaluate").digested.files) == ["evaluations.parquet"]


@pytest.mark.slow
def test_the_record_does_not_depend_on_the_order_of_waves(run: RunDirectory, tmp_path: Path) -> None:
    again = train(tmp_path, backwards=True)
    for number in range(1, ROUNDS + 1):
        for stage in ("plan", "collect", "credit"):
            assert again.manifest(number, stage).digest == run.manifest(number, stage).digest


@pytest.mark.slow
def test_answers_are_trained_where_the_method_says_so_on_their_own_tokens_with_the_outcome(tmp_path: Path) -> None:
    trained = train(
        tmp_path,
        overrides={
            "method.rollout.search_and_ask.train_answers": True,
            "method.seed": 4,  # one guided episode wins: rewards that are all equal would train nothing
            "method.recipe.extractor_objective.batch": 6,
            "method.evaluation.every": 0,
        },
    )
    episodes = {each.episode_id: each for each in rows(trained, Episode, "collect", [ROUNDS])}
    records = {each.generation_id: each for each in rows(trained, Generation, "collect", [ROUNDS])}
    asked = {
        str(each.generation_id): episodes[each.episode_id]
        for each in rows(trained, Question, "collect", [ROUNDS])
        if each.answer is not None
    }
    held = {each.generation_id: each for each in rows(trained, BufferItem, "credit", [ROUNDS]) if each.kind == "answer"}
    assert set(held) == set(asked) and len(asked) > 1
    assert {name: item.score_sum for name, item in held.items()} == {
        name: 1.0 if episode.success else -1.0 for name, episode in asked.items()
    }
    samples = [each for each in rows(trained, Sample, "credit", [ROUNDS]) if each.generation_id in asked]
    assert {each.generation_id for each in samples} == {n for n, item in held.items() if item.status == "selected"}
    assert samples
    for each in samples:
        record = records[each.generation_id]
        assert (each.role, each.objective, each.source) == ("extractor", "cispo", f"{ROUNDS:04d}/collect")
        assert (each.token_ids, each.loss_mask, each.logprobs) == (record.token_ids, record.loss_mask, record.logprobs)
        assert each.reward == held[each.generation_id].score_sum
    assert not problems_of(trained, recipe_of(trained.method))
