"""The whole circle: train, take the agent away, serve it, play with any client, and train on from what was served.

A served agent plays a held-out game as the run's own evaluation did: the same experience, the same ids before each
answer, the same actions.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from openai import OpenAI
from transformers import AutoModelForCausalLM, AutoTokenizer

from crl.engine.services import services_here
from crl.gateway.conversations import MARK
from crl.gateway.server import Client, Gateway
from crl.policies.language_model import LanguagePolicy
from crl.policies.sources import resolve_model
from crl.protocols import Environment, Written
from crl.records import Evaluation, ImportedEntry, Weights, rows_of
from crl.report.bank import entries_after
from crl.rollout.actions import parse_action
from crl.rollout.prompts import following_text
from crl.rounds.evaluate import Choice, evaluate_again
from crl.rounds.recipe import recipe_in
from crl.run.directory import RunDirectory
from crl.serve.answering import Answering
from crl.serve.own_model import own_model
from crl.serve.recording import Recording
from crl.serve.source import TrainedAgent, open_agent
from crl.text.outputs import fill
from tests.processes import PATIENCE_SECONDS
from tests.recipe_runs import requires
from tests.tiny_run import CONFIG, ROUNDS, crl_here, train

pytestmark = [pytest.mark.slow, requires("bank_from_chats")]
NAME, GAMES = "circle", 3
# At this temperature nothing is left to chance, so a game has one course. An export takes no recipe of a test's own.
GREEDY = {
    "method__evaluation__temperature": 0.001, "method__families__0__evaluation_seeds__count": GAMES,
    "method__recipe__kind": "complementary",
}  # fmt: skip


class Watched:
    """A session that says what each turn reads."""

    def __init__(self, session: Any, prompts: Sequence[Sequence[int]], read: list[tuple[int, list[int]]]) -> None:
        self._session, self._read = session, read
        self._ids = {row: list(prompt) for row, prompt in enumerate(prompts)}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def extend(self, pieces: Any) -> None:
        for row, piece in pieces.items():
            self._ids[row] += piece
        self._session.extend(pieces)

    def replace(self, row: int, token_ids: Sequence[int], seed: int | None = None) -> None:
        self._ids[row] = list(token_ids)
        self._session.replace(row, token_ids, seed)

    def begin(self, rows: Sequence[int], *more: Any) -> None:
        self._read += [(row, list(self._ids[row])) for row in rows]
        self._session.begin(rows, *more)

    def _took(self, ended: dict[int, Any]) -> dict[int, Any]:
        for row, sampled in ended.items():
            self._ids[row] += sampled.token_ids
        return ended

    def advance(self) -> dict[int, Any]:
        return self._took(self._session.advance())

    def ended(self) -> dict[int, Any]:
        return self._took(self._session.ended())


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, list[int]]]:
    """Row and ids of whatever a model reads before a turn, in order."""
    found: list[tuple[int, list[int]]] = []
    opened = LanguagePolicy.open

    def watched(self: LanguagePolicy, prompts: Any, seeds: Any, limit: Any = None) -> Any:
        return Watched(opened(self, prompts, seeds, limit), prompts, found)

    monkeypatch.setattr(LanguagePolicy, "open", watched)
    return found


@contextmanager
def served(path: Path, record: Path) -> Iterator[tuple[OpenAI, TrainedAgent]]:
    """An agent behind its endpoint, and a client."""
    with open_agent(path) as agent:
        recording = Recording(record)
        answering = Answering(agent, recording=recording)
        model = own_model(agent, answering)
        thread = threading.Thread(target=model.run)
        with Gateway() as gateway:
            client = Client("", "", model.submit, answering.models, served=True, posts={"feedback": recording.feedback})
            url = gateway.url(gateway.serve(client))
            thread.start()
            yield OpenAI(base_url=url, api_key="none", max_retries=0, timeout=PATIENCE_SECONDS), agent
            model.stop()
            thread.join(PATIENCE_SECONDS)


def play(
    client: OpenAI, agent: TrainedAgent, environment: Environment, seed: int
) -> tuple[list[str], bool, str, list[str]]:
    """A game through the API: its actions, whether it was won, the id of its last answer, the experiences shown."""
    prompt = agent.prompts("lake")["actor"]
    (start,) = environment.reset_many([seed])
    values = {"goal": start.goal, "observation": start.observation, "actions": "", "experience": MARK}
    messages: list[Any] = [
        {"role": "system", "content": prompt.system}, {"role": "user", "content": fill(prompt.first, values)}
    ]  # fmt: skip
    actions, actions_now = [], start.actions
    while True:
        answer = client.chat.completions.create(model="actor", messages=messages)
        said = answer.choices[0].message.content or ""
        action = parse_action(Written(said), actions_now, agent.method.rollout.action_format)
        actions.append(action or "")
        step = environment.step_many({0: action})[0]
        if step.done:
            return actions, step.success, answer.id, answer.model_extra["entry_ids"]  # type: ignore[index]
        text = following_text(
            prompt, goal=start.goal, observation=step.observation, actions=step.actions, feedback=step.feedback
        )
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": text}]
        actions_now = step.actions


def by_game(read: Sequence[tuple[int, list[int]]]) -> dict[tuple[int, ...], list[list[int]]]:
    """What was read before the turns of each game, by what its first turn read."""
    games: list[list[list[int]]] = []
    for _, ids in read:
        game = next((each for each in games if ids[: len(each[-1])] == each[-1]), None)
        if game is None:
            games.append(game := [])
        game.append(ids)
    return {tuple(game[0]): game for game in games}


def compare_logits(path: Path, exported: Path) -> None:
    """The exported model, opened by transformers alone, computes what the run's model does, bit by bit."""
    with open_agent(path) as agent:
        policy: Any = agent.policy()
        ids = torch.tensor([policy.chat.opening([{"role": "user", "content": "Walk to the goal."}])])
        opened = AutoModelForCausalLM.from_pretrained(exported, dtype=policy.model.dtype).eval()
        with torch.no_grad():
            ours, theirs = (model(input_ids=ids, use_cache=False).logits for model in (policy.model, opened))
    assert torch.equal(ours, theirs)
    tokenizer = AutoTokenizer.from_pretrained(exported)
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Walk to the goal."}], tokenize=False, add_generation_prompt=True
    )
    assert tokenizer(text, add_special_tokens=False)["input_ids"] == ids[0].tolist()


def test_the_whole_circle(
    made_once: Callable[[str, list[str]], Path], tmp_path: Path, read: list[tuple[int, list[int]]]
) -> None:
    path = made_once(NAME, train(ROUNDS, name=NAME, **GREEDY))
    run, exported = RunDirectory.open(path), tmp_path / "agent"
    crl_here(path.parent, "export", NAME, "--to", exported)
    compare_logits(path, exported)
    rows = [row for row in rows_of(Evaluation, run.read(ROUNDS, "evaluate", Evaluation)) if row.guided]
    assert len(rows) == GAMES

    # What the record's held-out games read.
    with services_here(run) as services:
        choice = Choice(conditions=("with",))
        assert evaluate_again(run, run.method, recipe_in(run), ROUNDS, services, choice=choice).rows == rows
    recorded = by_game(read)
    read.clear()

    # The same games through the API.
    with served(exported, tmp_path / "record") as (client, agent):
        environment = agent.environment("lake")
        for row in rows:
            actions, won, answer_id, entry_ids = play(client, agent, environment, row.environment_seed)
            assert (actions, won, entry_ids) == (row.actions, row.success, row.entry_ids)
            told = {"id": answer_id, "success": won, "reward": float(won)}
            assert httpx.post(f"{client.base_url}feedback", json=told).json()["success"] is won
    assert by_game(read) == recorded

    # What was served becomes a bank, and both the beginning of another run.
    runs = tmp_path / "runs"
    built = crl_here(
        path.parent, "bank", "build", f"run:{NAME}@{ROUNDS}/extractor", "--from", tmp_path / "record", "--to",
        runs / "served", "--prompts", "tiny", "--embedder", "lexical", "--family", "lake",
    )  # fmt: skip
    assert built.stdout.startswith(f"{GAMES} chats of ")
    onward = [
        word
        for setting in (
            "name=onward", "method.recipe.warm_start=null", "method.families.0.evaluation_seeds.count=2",
            f"method.roles.actor.model={exported}",
        )
        for word in ("--set", setting)
    ]  # fmt: skip
    crl_here(runs, "bank", "import", CONFIG, runs / "served", *onward)
    crl_here(runs, "train", CONFIG, "--rounds", "1", "--no-prefect", *onward)
    begun = RunDirectory.open(runs / "onward")
    imported = rows_of(ImportedEntry, begun.read(0, "initialize", ImportedEntry))
    assert {entry.text for entry in entries_after(runs / "onward", 0)} == {
        entry.text for entry in entries_after(runs / "served")
    }
    (first,) = (row for row in rows_of(Weights, begun.read(0, "initialize", Weights)) if row.role == "actor")
    assert imported and begun.is_complete(1, "evaluate")
    assert first.base_digest == resolve_model(str(exported)).digest
