"""A policy of scripted texts over a character tokenizer, and an environment of scripted lengths."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from crl.config import Exchange, FamilyConfig, Method, PromptConfig, RoleConfig, RolloutConfig, SamplingConfig
from crl.envs.frozenlake import FrozenLakeConfig
from crl.protocols import Sampled, Start, Step, StopReason, Tool, WholeTurns
from crl.records import FREE, Task
from crl.rollout.play import EpisodeSlot
from crl.text.calls import json_calls

END, USER, ASSISTANT = 2, 3, 4
ROLES = {"system": 5, "user": USER, "assistant": ASSISTANT}


class CharacterChat:
    """One id a character; ids below 32 are special."""

    opens_thought = takes_tools = False

    def opening(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        ids: list[int] = []
        for message in messages:
            ids += [ROLES[message["role"]], *map(ord, message["content"]), END]
        return [*ids, ASSISTANT]

    def reply(self, text: str, *, ended: bool, by: int | None = None, call: str | None = None) -> list[int]:
        return [*([] if ended else [END]), USER, *map(ord, text), END, ASSISTANT]

    def without_thoughts(self, asked: Sequence[int], wrote: Sequence[int]) -> tuple[list[int], list[int]]:
        """A thought is in parentheses."""
        behind = wrote.index(ord(")")) + 1 if ord(")") in wrote else 0
        return list(asked), list(wrote[behind:])

    def calls(self, token_ids: Sequence[int], tools: Sequence[Tool]) -> list[str]:
        return json_calls(self.decode(token_ids), {tool.name for tool in tools})

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(chr(token) for token in token_ids if token >= 32)


class ScriptedSession(WholeTurns):
    """Keeps its own copy of every row's ids, against which the token record is compared."""

    def __init__(
        self, prompts: Sequence[Sequence[int]], script: Callable[[int, int], tuple[str, bool]], seeds: Sequence[int]
    ) -> None:
        self.streams = [np.random.default_rng(seed) for seed in seeds]
        self.ids = [list(prompt) for prompt in prompts]
        self.sampled_at: list[list[tuple[int, int]]] = [[] for _ in prompts]
        self.read: list[list[list[int]]] = [[] for _ in prompts]  # the whole prompt of each turn of each row
        self.dropped: set[int] = set()
        self.script = script

    def _alive(self, row: int) -> None:
        assert row not in self.dropped, f"row {row} was used after it was dropped"

    def extend(self, pieces: Mapping[int, Sequence[int]]) -> None:
        for row, piece in pieces.items():
            self._alive(row)
            self.ids[row].extend(piece)

    def replace(self, row: int, token_ids: Sequence[int], seed: int | None = None) -> None:
        self._alive(row)
        self.ids[row] = list(token_ids)

    def sample(
        self,
        rows: Sequence[int],
        sampling: SamplingConfig,
        answers: Mapping[int, Any] | None = None,
    ) -> dict[int, Sampled]:
        found = {}
        for row in rows:
            self._alive(row)
            self.read[row].append(list(self.ids[row]))
            text, ended = self.script(row, len(self.sampled_at[row]))
            ids = [*map(ord, text), *([END] if ended else [])]
            logprobs = [-float(value) for value in self.streams[row].random(len(ids))]
            self.sampled_at[row].append((len(self.ids[row]), len(self.ids[row]) + len(ids)))
            self.ids[row].extend(ids)
            found[row] = Sampled(ids, logprobs, StopReason.end_of_turn if ended else StopReason.length)
        return found

    def drop(self, rows: Sequence[int]) -> None:
        for row in rows:
            self._alive(row)
            self.dropped.add(row)

    def length(self, row: int) -> int:
        self._alive(row)
        return len(self.ids[row])


class ScriptedPolicy:
    def __init__(self, script: Callable[[int, int], tuple[str, bool]], context: int = 100_000) -> None:
        self.chat = CharacterChat()
        self.context = context
        self.script = script
        self.session: ScriptedSession | None = None

    def open(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], limit: int | None = None) -> ScriptedSession:
        self.limit = limit
        self.session = ScriptedSession(prompts, self.script, seeds)
        return self.session


class Corridor:
    """Slot i with seed s is won after s right moves; `left` is deadly; `breaks` names (slot, turn) that raise."""

    actions = ("right", "left")

    def __init__(self, max_turns: int = 6, breaks: tuple[int, int] | None = None, whole: bool = False) -> None:
        self.max_turns, self.breaks, self.whole = max_turns, breaks, whole

    def reset_many(self, seeds: Sequence[int]) -> list[Start]:
        self.left = list(seeds)
        self.turn = [0] * len(seeds)
        self.done = [False] * len(seeds)
        return [Start("Go {right}.", f"{left} to go {{x}}", self.actions) for left in self.left]

    def step_many(self, actions: Mapping[int, str | None]) -> dict[int, Step]:
        steps = {}
        for slot, action in actions.items():
            assert not self.done[slot]
            if self.breaks == (slot, self.turn[slot]):
                if self.whole:
                    raise KeyError("broken")
                self.done[slot] = True
                steps[slot] = Step("", (), True, "", True, False, 0.0, StopReason.error, "environment_KeyError")
                continue
            self.turn[slot] += 1
            self.left[slot] -= action == "right"
            won, dead = self.left[slot] == 0, action == "left"
            reason = (
                StopReason.success if won
                else StopReason.failure if dead
                else StopReason.turn_limit if self.turn[slot] >= self.max_turns
                else None
            )  # fmt: skip
            self.done[slot] = reason is not None
            feedback = "" if action else "Say right or left."
            observation = f"{self.left[slot]} to go {{x}}"
            steps[slot] = Step(
                observation, self.actions, action is not None, feedback, self.done[slot], won, float(won), reason
            )
        return steps

    def oracle(self, slot: int) -> str | None:
        return "right"

    def close(self) -> None:
        pass


def actor_prompt() -> PromptConfig:
    return PromptConfig(
        system="You walk. Actions: {actions}.",
        examples=[Exchange(user="1 to go", assistant="right")],
        first="{goal}\n{experience}{observation}\nMove?",
        following="{feedback}{observation}\nMove?",
        experience="Advice: {experience}\n",
    )


OFFER = "Or ASK: something.\n"


def method(**rollout: object) -> Method:
    extractor = PromptConfig(system="s", first="{trajectory}")
    prompts = {"actor": actor_prompt(), "distill": extractor, "merge": PromptConfig(system="s", first="{entries}")}
    if rollout.get("search_and_ask"):
        prompts["ask"] = PromptConfig(system="s", first="{question}", offer=OFFER)
    return Method(
        families=[FamilyConfig(name="walk", environment=FrozenLakeConfig())],
        rollout=RolloutConfig(group_size=2, **rollout),  # type: ignore[arg-type]
        roles={"actor": RoleConfig(), "extractor": RoleConfig()},
        prompts=prompts,
    )


def task(member: int, seed: int, group: int = 0, family: str = "walk") -> Task:
    return Task(
        episode_id=f"r1-{family}-g{group}-m{member}",
        round=1,
        family=family,
        group=group,
        member=member,
        environment_seed=seed,
        stream="free",
        goal="Go {right}.",
        first_observation=f"{seed} to go {{x}}",
        query="q",
    )


def slots_of(starts: Sequence[Start]) -> list[EpisodeSlot]:
    """Slots of free episodes that begin so, two in each group."""
    return [
        EpisodeSlot(
            Task(
                episode_id=f"e{at}", round=1, family="walk", group=at // 2, member=at % 2, environment_seed=at,
                stream=FREE, goal=start.goal, first_observation=start.observation, query="",
            )
        )
        for at, start in enumerate(starts)
    ]  # fmt: skip
