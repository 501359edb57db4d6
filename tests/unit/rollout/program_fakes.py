"""Programs of a few lines, an environment that runs them, and a policy whose answers follow from what it reads."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from crl.config import SamplingConfig
from crl.policies.chat import ChatFormat
from crl.protocols import FreeText, Program, ProgramLimits, Sampled, Start, Step, StopReason, WholeTurns

CLIENT = """
import http.client, json, os, sys, threading, time
base = os.environ["OPENAI_BASE_URL"].removeprefix("http://")
host, _, path = base.partition("/")
def ask(messages, key=os.environ["OPENAI_API_KEY"], path=path, **more):
    connection = http.client.HTTPConnection(host, timeout=120)
    body = json.dumps({"model": "gpt", "messages": messages, **more})
    connection.request("POST", f"/{path}/chat/completions", body, {"authorization": f"Bearer {key}"})
    response = connection.getresponse()
    found = json.loads(response.read())
    if response.status != 200:
        raise SystemExit(f"{response.status}: {found['error']['code']}")
    return found["choices"][0]["message"]
def user(text): return {"role": "user", "content": text}
def system(text): return {"role": "system", "content": text}
task = os.environ["CRL_TASK"]
"""
TALK = """
messages = [system("Be short."), user(task)]
for turn in range(int(task.split()[0])):
    messages += [ask(messages), user(f"Go on {turn}.")]
"""
"""As many turns as the task's first word says."""


class Programs:
    """Slot i with seed s runs a program of `codes` with a task that begins with s (protocol `RunsPrograms`)."""

    def __init__(
        self, *codes: str, side: Sequence[str] = (), reward: Callable[[list[Any], Path, int], float] | None = None,
        **limits: Any,
    ) -> None:  # fmt: skip
        self.codes, self.side, self.reward = codes, frozenset(side), reward
        self.limits = ProgramLimits(**{"calls": 20, "tokens": 10_000, "seconds": 60.0, "call_seconds": 60.0, **limits})
        self.started: list[int] = []
        self.ended: list[tuple[int, int]] = []

    def reset_many(self, seeds: Sequence[int]) -> list[Start]:
        self.seeds = list(seeds)
        return [Start(task_of(seed), "", FreeText("anything")) for seed in seeds]

    home = None

    def program(self, slot: int, folder: Path) -> Program:
        assert not list(folder.iterdir())
        self.started.append(slot)
        code = CLIENT + self.codes[slot % len(self.codes)]
        return Program((sys.executable, "-I", "-S", "-c", code), {"CRL_TASK": task_of(self.seeds[slot])})

    def outcome(self, slot: int, messages: Sequence[Mapping[str, Any]], folder: Path, exit_code: int) -> Step:
        self.ended.append((slot, exit_code))
        reward = 1.0 if self.reward is None else self.reward(list(messages), folder, exit_code)
        reason = StopReason.success if reward >= 1 else StopReason.failure
        return Step(f"Reward: {reward:g}", FreeText(""), True, "", True, reward >= 1, reward, reason)

    def step_many(self, actions: Mapping[int, str | None]) -> dict[int, Step]:
        raise AssertionError("nobody steps a program")

    def oracle(self, slot: int) -> str | None:
        return None

    def close(self) -> None:
        pass


def task_of(seed: int) -> str:
    return f"{seed} turns, please. {os.getpid()}"


class ReadingPolicy:
    """Says what a function makes of the text that it reads; log-probabilities follow from a row's seed. Remembers every
    row: its seed, its prompt, what it sampled."""

    def __init__(
        self, chat: ChatFormat, says: Callable[[str], str], context: int = 4000, by_time: bool = False
    ) -> None:
        self.chat, self.says, self.context = chat, says, context
        self.batches: list[list[tuple[int, list[int], list[int]]]] = []

        if by_time:
            self.hand_over = lambda checkpoint, weights: None  # as behind a server

    def open(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], limit: int | None = None) -> ReadingSession:
        return ReadingSession(self, prompts, seeds)


class ReadingSession(WholeTurns):
    def __init__(self, policy: ReadingPolicy, prompts: Sequence[Sequence[int]], seeds: Sequence[int]) -> None:
        self.policy, self.prompts, self.seeds = policy, [list(each) for each in prompts], list(seeds)

    def replace(self, row: int, token_ids: Sequence[int], seed: int | None = None) -> None:
        assert seed is not None
        self.prompts[row], self.seeds[row] = list(token_ids), seed

    def sample(
        self, rows: Sequence[int], sampling: SamplingConfig, answers: Mapping[int, Any] | None = None
    ) -> dict[int, Sampled]:
        found, batch = {}, []
        for row in rows:
            text = self.policy.says(self.policy.chat._tokenizer.decode(self.prompts[row]))
            ids = self.policy.chat.answer(text, call=text.startswith('{"'))[: sampling.max_new_tokens]
            logprobs = [-float(value) for value in np.random.default_rng(self.seeds[row]).random(len(ids))]
            ended = ids[-1] in self.policy.chat.end_ids
            found[row] = Sampled(ids, logprobs, StopReason.end_of_turn if ended else StopReason.length)
            batch.append((self.seeds[row], self.prompts[row], ids))
        self.policy.batches.append(batch)
        return found

    def drop(self, rows: Sequence[int]) -> None:
        pass
