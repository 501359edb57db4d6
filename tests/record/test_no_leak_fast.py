"""Nothing leaks: what `test_no_leak.py` proves of models that learn, here of scripted ones in seconds, every prompt
included.

Two realms are played for two rounds by the stages of any run, with the miniature's tokenizer. The script's notes name
one symbol twice, which no hidden rule does: whatever prompt tells two different ones has been told the truth.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crl.bank.segments import load_texts
from crl.config import Method, SamplingConfig
from crl.config.load import load_experiment
from crl.engine.execute import Attempt, execute_stage
from crl.engine.services import EngineServices
from crl.envs.realms import ACTIONS, RealmsConfig, experience_text, hidden_rule, layouts
from crl.extractor.distill import items_of
from crl.extractor.prompts import ask_messages, distill_messages, merge_messages
from crl.lab.warm.config import load_warm_start
from crl.lab.warm.words import words_of
from crl.policies import load_chat
from crl.policies.miniature import write_miniature
from crl.policies.sources import resolve_model, warm_directory
from crl.protocols import Chat, Inquiry, Sampled, StopReason, WholeTurns
from crl.records import (
    TRIAL,
    Critique,
    Distillation,
    Episode,
    Evaluation,
    Generation,
    Operation,
    Question,
    Retrieval,
    Task,
    Turn,
    Weights,
)
from crl.rollout.critic import UNKNOWN
from crl.rounds.recipe import recipe_of, recorded_bank
from crl.run.directory import RunDirectory
from crl.run.lease import Lease
from crl.text.outputs import messages_of, prompt_text
from tests.learning.harness import rows

CONF = Path(__file__).parents[2] / "conf"
ROUNDS, REALMS, MEMBERS, HELD_OUT, WORLD = 2, 2, 4, 6, 7
SEEN = r"(?:[A-Z]@\d+ )+at p\d+|[pk]\d+"
"""Everything that a realm ever lets see: the first observation, and where the agent stands."""
SETTINGS = {
    "method.families.0.repeat": REALMS,
    "method.families.0.groups": 1,
    "method.families.0.environment.world": WORLD,
    "method.families.0.evaluation_seeds.count": HELD_OUT,
    "method.roles.actor.model": "warm:leak/actor",
    "method.roles.extractor.model": "warm:leak/extractor",
    "method.rollout.group_size": MEMBERS,
    "method.rollout.search_and_ask": {"uses": 1},
    "method.recipe.actor_critic": {"max_new_tokens": 8},
    # Every note is played, and whatever it did the bank takes it: what was tried is read as well.
    "method.recipe.trial": {"layouts": 2, "threshold": -1.0},
    "method.recipe.merge.every": 1,
    "method.recipe.warm_up_rounds": ROUNDS,
    "method.evaluation.every": ROUNDS,
}  # fmt: skip


def act(prompt: str, turn: int, random: np.random.Generator) -> str:
    """The critic accepts; a guided actor asks first, then walks anywhere."""
    if "critique" in prompt:
        return "ACCEPT"
    if "ask?" in prompt and turn == 0:
        return f"ASK: {random.choice(list('ABCDEFGH'))}"
    return str(random.choice(list(ACTIONS)))


def write(prompt: str, turn: int, random: np.random.Generator) -> str:
    """Notes and answers that are true of no realm."""
    if "merge" in prompt:
        return "KEEP 1"
    symbol = random.choice(list("ABCDEFGH"))
    return experience_text(symbol, symbol) if "answer" in prompt else f"ADD: {experience_text(symbol, symbol)}"


class Script:
    """A policy that says what a function of (prompt, turn, random stream) tells it, in the chat format of a model."""

    def __init__(self, chat: Chat, say: Callable[[str, int, np.random.Generator], str]) -> None:
        self.chat, self.context, self._say = chat, 256, say

    def open(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], limit: int | None = None) -> Script.Session:
        return Script.Session(self.chat, self._say, prompts, seeds)

    class Session(WholeTurns):
        def __init__(
            self,
            chat: Chat,
            say: Callable[[str, int, np.random.Generator], str],
            prompts: Sequence[Sequence[int]],
            seeds: Sequence[int],
        ) -> None:
            self._streams = [np.random.default_rng(seed) for seed in seeds]
            self._chat, self._say = chat, say
            self._lengths, self._turns = [len(prompt) for prompt in prompts], [0] * len(prompts)
            self._prompts = [chat.decode(prompt) for prompt in prompts]

        def extend(self, pieces: Mapping[int, Sequence[int]]) -> None:
            for row, piece in pieces.items():
                self._lengths[row] += len(piece)

        def sample(
            self,
            rows: Sequence[int],
            sampling: SamplingConfig,
            answers: Mapping[int, Any] | None = None,
        ) -> dict[int, Sampled]:
            found = {}
            for row in rows:
                ids = self._chat.answer(self._say(self._prompts[row], self._turns[row], self._streams[row]))
                self._turns[row] += 1
                self._lengths[row] += len(ids)
                found[row] = Sampled(ids, [-1.0] * len(ids), StopReason.end_of_turn)
            return found

        def drop(self, rows: Sequence[int]) -> None:
            """Nothing is held."""

        def length(self, row: int) -> int:
            return self._lengths[row]


class Services(EngineServices):
    """Those of an engine, with the tokenizers of its models and none of their weights."""

    def policy(self, role: str, weights: Weights) -> Script:  # type: ignore[override]
        return Script(chat_of(self._method, role), act if role == "actor" else write)


def chat_of(method: Method, role: str) -> Chat:
    chat = load_chat(resolve_model(method.role(role).model))
    return chat


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunDirectory]:
    place = tmp_path_factory.mktemp("leak")
    warm = load_warm_start(CONF / "warm/realms.yaml")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CRL_MODELS", str(place / "models"))
        words = words_of(warm.environment, warm.prompts)
        for role in ("actor", "extractor"):
            directory = warm_directory("leak") / role
            directory.mkdir(parents=True)
            write_miniature(directory, words, width=8, layers=1, heads=1, positions=256, seed=1)
        made = RunDirectory.create_or_open(load_experiment(CONF / "realms.yaml", SETTINGS), place / "runs")
        recipe, services = recipe_of(made.method), Services(made)
        with Lease.acquire(made.path, seconds=600) as lease:
            for number in range(ROUNDS + 1):
                for stage in recipe.stages_of(made.method, number):
                    services.begin(number, stage.name, None)
                    attempt = Attempt(token=lease.token)
                    execute_stage(made, recipe, number, stage.name, attempt=attempt, services=services)
        services.close()
        yield made


def prompts_of(run: RunDirectory, number: int, stage: str, kind: str) -> dict[str, Generation]:
    return {row.generation_id: row for row in rows(run, Generation, stage, [number]) if row.kind == kind}


def assert_rendered(record: Generation, messages: list[dict[str, str]], chat: Chat) -> None:
    """The model read these messages, token by token, and nothing else before it wrote."""
    opening = chat.opening(messages)
    assert record.prompt == prompt_text(messages)
    assert record.token_ids[: len(opening)] == opening
    assert record.loss_mask == [0] * len(opening) + [1] * (len(record.token_ids) - len(opening))


# -- what is held out -------------------------------------------------------------------------------------------------


def test_no_evaluated_layout_is_ever_trained_on(run: RunDirectory) -> None:
    tasks = rows(run, Task, "plan", range(1, ROUNDS + 1))
    tried = {row.environment_seed for row in rows(run, Episode, TRIAL, range(1, ROUNDS + 1))}
    trained = {task.first_observation for task in tasks}
    assert tried, "notes were tried, on layouts of their own"
    assert len(tasks) == ROUNDS * REALMS * MEMBERS
    for family in run.method.families:
        drawn = layouts(family.environment)
        assert all(seed - family.train_seeds.start in range(family.train_seeds.count) for seed in tried)
        trained |= {drawn.of(seed).text() for seed in tried}
        for task in tasks:
            if task.family == family.name:  # drawing again gives what was recorded, so it tells of evaluation too
                assert drawn.of(task.environment_seed).text() == task.first_observation
        evaluated = rows(run, Evaluation, "evaluate", (0, ROUNDS))
        seeds = {row.environment_seed for row in evaluated if row.family == family.name}
        grids = {drawn.of(seed).text() for seed in seeds}
        assert len(seeds) == HELD_OUT and grids and not grids & trained


def test_the_rules_of_the_run_are_in_no_practice(run: RunDirectory) -> None:
    practice = load_warm_start(CONF / "warm/realms.yaml").environment
    worlds = [family.environment for family in run.method.families]
    hidden = {(world.realm, *hidden_rule(world)) for world in worlds if isinstance(world, RealmsConfig)}
    assert len(hidden) == REALMS and {world.world for world in worlds} == {WORLD}
    drawn = layouts(practice)
    practiced = {(layout.realm, layout.key, layout.goal) for layout in map(drawn.of, range(400))}
    assert len(practiced) > 200 and not practiced & hidden


# -- what models read -------------------------------------------------------------------------------------------------


def test_what_is_distilled_is_the_rendering_of_recorded_rows(run: RunDirectory) -> None:
    chat = chat_of(run.method, "extractor")
    for number in range(1, ROUNDS + 1):
        written = prompts_of(run, number, "distill", "distill")
        of_episode = {row.episode_id: row for row in rows(run, Distillation, "distill", [number])}
        items = items_of(
            rows(run, Episode, "collect", [number]), rows(run, Turn, "collect", [number]), run.method.recipe.distill
        )
        for item in items:
            messages = distill_messages(
                run.method.prompts["distill"], item.episode, item.turns, run.method.recipe.distill
            )
            assert_rendered(written.pop(of_episode[item.episode.episode_id].generation_id), messages, chat)
        assert len(items) == REALMS * MEMBERS and not written


def test_what_is_merged_is_the_rendering_of_recorded_entries(run: RunDirectory) -> None:
    chat, recipe = chat_of(run.method, "extractor"), recipe_of(run.method)
    for number in range(1, ROUNDS + 1):
        written = prompts_of(run, number, "merge", "merge")
        # Nothing is merged away: the bank after the round holds all that was shown.
        bank = recorded_bank(run, recipe, number)
        texts = load_texts(run.path, bank.table)
        shown = {entry.entry_id: texts[entry.content_digest] for entry in bank.entries()}
        steps = rows(run, Distillation, "merge", [number])
        for step in steps:
            entries = [shown[name] for name in step.source_entry_ids]
            messages = merge_messages(run.method.prompts["merge"], step.family, entries, run.method.recipe.distill)
            assert_rendered(written.pop(step.generation_id), messages, chat)
        assert len(steps) >= REALMS and not written


def test_what_is_answered_is_the_rendering_of_recorded_rows(run: RunDirectory) -> None:
    chat, recipe = chat_of(run.method, "extractor"), recipe_of(run.method)
    prompt = run.method.prompts["ask"]
    assert prompt is not None
    written = prompts_of(run, ROUNDS, "collect", "ask")
    bank = recorded_bank(run, recipe, ROUNDS - 1)
    texts = load_texts(run.path, bank.table)
    turns = {(row.episode_id, row.turn): row for row in rows(run, Turn, "collect", [ROUNDS])}
    goals = {row.episode_id: row.goal for row in rows(run, Task, "plan", [ROUNDS])}
    asked = [row for row in rows(run, Question, "collect", [ROUNDS]) if row.generation_id is not None]
    for row in asked:
        inquiry = Inquiry(
            row.question_id, row.episode_id, row.family, goals[row.episode_id],
            turns[row.episode_id, row.turn].observation, row.question,
        )  # fmt: skip
        messages = ask_messages(prompt, inquiry, texts[str(row.content_digest)])
        assert_rendered(written.pop(str(row.generation_id)), messages, chat)
    assert len(asked) == REALMS * MEMBERS // 2 and not written


def test_what_is_judged_is_the_rendering_of_recorded_rows(run: RunDirectory) -> None:
    chat, recipe = chat_of(run.method, "actor"), recipe_of(run.method)
    prompt = run.method.prompts["critic"]
    assert prompt is not None
    written = prompts_of(run, ROUNDS, "critique", "critic")
    bank = recorded_bank(run, recipe, ROUNDS - 1)
    texts = load_texts(run.path, bank.table)
    tasks = {row.episode_id: row for row in rows(run, Task, "plan", [ROUNDS])}
    chosen = {row.episode_id: row for row in rows(run, Retrieval, "plan", [ROUNDS]) if row.chosen}
    judged = rows(run, Critique, "critique", [ROUNDS])
    for row in judged:
        task, rate = tasks[row.episode_id], row.success_rate
        values = {
            "goal": task.goal, "observation": task.first_observation,
            "experience": texts[chosen[row.episode_id].content_digest],
            "success_rate": UNKNOWN if rate is None else f"{rate:.1f}",
        }  # fmt: skip
        assert_rendered(written.pop(row.generation_id), messages_of(prompt, values), chat)
    assert len(judged) == REALMS * MEMBERS // 2 and not written


def test_no_prompt_and_no_row_behind_one_tells_a_rule(run: RunDirectory) -> None:
    """Notes of the script name one symbol; nothing else ever says `take`, and no text names two."""
    kinds = set()
    for number in range(1, ROUNDS + 1):
        for row in rows(run, Operation, "distill", [number]):
            assert row.text is None or re.fullmatch(r"take ([A-H]) then \1", row.text)
        reading = ("collect", "critique", "distill", TRIAL, "merge")
        stages = [name for name in run.complete_stages(number) if name in reading]
        for row in [row for stage in stages for row in rows(run, Generation, stage, [number])]:
            kinds.add(row.kind)
            read = chat_of(run.method, row.role).decode(row.token_ids)
            for text in (row.prompt, row.output, read):
                assert all(key == goal for key, goal in re.findall(r"take (\w+) then (\w+)", text)), text
        for item in items_of(
            rows(run, Episode, "collect", [number]), rows(run, Turn, "collect", [number]), run.method.recipe.distill
        ):
            assert re.fullmatch(r"r\d+", item.episode.goal)
            assert all(re.fullmatch(SEEN, turn.observation) for turn in item.turns)
            silent = [dataclasses.replace(turn, output=turn.action or "", feedback=None) for turn in item.turns]
            bare = dataclasses.replace(item.episode, experiences=[])
            messages = distill_messages(run.method.prompts["distill"], bare, silent, run.method.recipe.distill)
            assert "take" not in prompt_text(messages), "the word that every rule is told with"
    assert kinds == {"episode", "critic", "ask", "distill", "merge"}
