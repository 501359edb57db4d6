"""An agent that remembers what it was asked for, and a model of letters that is sampled step by step."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from crl.config import PromptConfig, RoleConfig, SamplingConfig
from crl.gateway.messages import ChatRequest, read_request
from crl.gateway.server import Call
from crl.protocols import Message, ParsedTurn, Sampled, StopReason, Tool
from crl.report.bank import ShownEntry
from crl.serve.answering import Answering
from crl.serve.own_model import OwnModel
from crl.serve.source import Guidance
from tests.processes import PATIENCE_SECONDS

END = 0
MARKED = ({"role": "system", "content": "S."}, {"role": "user", "content": "Goal\n{experience}Look."})


def entry(number: int, text: str) -> ShownEntry:
    return ShownEntry(f"x-{number}", "lake", 1, 1, 1, text, 0, 0, None, False)


@dataclass
class FakeAgent:
    """Its experience is the number of times that it was asked."""

    families: list[str] = field(default_factory=lambda: ["lake"])
    config: RoleConfig = field(default_factory=lambda: RoleConfig(model="tiny"))
    asked: list[tuple[str, str]] = field(default_factory=list)
    knows: bool = True

    def sampling(self, family: str) -> SamplingConfig:
        return SamplingConfig(temperature=0.5, top_k=7, max_new_tokens=20, stop_strings=["</a>"])

    def prompts(self, family: str) -> dict[str, PromptConfig]:
        prompt = PromptConfig(system="", first="{observation}", following="{feedback}{observation}",
                              experience="Advice: {experience}\n", summarize="Sum up {goal}.")  # fmt: skip
        return {"actor": prompt}

    def retrieve(self, family: str, query: str) -> Guidance | None:
        self.asked.append((family, query))
        text = f"E{len(self.asked)}"
        return Guidance((entry(len(self.asked), text),), text, ()) if self.knows else None


def request(*messages: Any, model: str = "actor", **more: Any) -> ChatRequest:
    body = {"model": model, "messages": [{"role": "user", "content": m} if isinstance(m, str) else m for m in messages]}
    return read_request(json.dumps(body | more).encode(), served=True)


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


class LetterChat:
    """A chat of characters: ids are code points, 0 ends a turn, a thought is in braces."""

    takes_tools = opens_thought = False
    template = ""

    def conversation(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> list[int]:
        return list(map(ord, "".join(f"[{each.role}:{each.content}]" for each in messages)))

    def follow(self, messages: Sequence[Message], *, ended: bool, by: int | None = None, calls: int = 0) -> list[int]:
        return self.conversation(messages)

    def keeps_thoughts(self, call: str) -> bool:
        return False

    def without_thoughts(self, asked: Sequence[int], wrote: Sequence[int]) -> tuple[list[int], list[int]]:
        return list(asked), list(wrote[wrote.index(ord("}")) + 1 if ord("}") in wrote else 0 :])

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(map(chr, filter(None, token_ids)))

    def parsed(self, token_ids: Sequence[int], tools: Sequence[Tool] = ()) -> ParsedTurn:
        text = self.decode(token_ids)
        thought, closed, answer = text.partition("}")
        return ParsedTurn(answer.strip(), thought[1:]) if closed else ParsedTurn(
            *(("", text[1:]) if text.startswith("{") else (text.strip(), ""))
        )  # fmt: skip


class LetterSession:
    """Writes what the policy says to a prompt, a letter a step."""

    def __init__(self, policy: LetterPolicy, rows: int) -> None:
        self.policy, self.ids = policy, [list[int]() for _ in range(rows)]
        self.turns: dict[int, tuple[str, list[int], int]] = {}
        self.given_up: list[int] = []

    def replace(self, row: int, token_ids: Sequence[int], seed: int | None = None) -> None:
        assert row not in self.turns
        self.ids[row] = list(token_ids)
        self.policy.prompts.append((row, "".join(map(chr, token_ids)), seed))

    def begin(self, rows: Sequence[int], sampling: SamplingConfig, answers: Any = None) -> None:
        for row in rows:
            self.policy.sampled.append(sampling)
            text = self.policy.say("".join(map(chr, self.ids[row])))
            self.turns[row] = (text, [], sampling.max_new_tokens)

    def step(self) -> bool:
        self.policy.widest = max(self.policy.widest, len(self.turns))
        self.policy.before_step()
        for text, wrote, most in self.turns.values():
            if len(wrote) < most:
                wrote.append(ord(text[len(wrote)]) if len(wrote) < len(text) else END)
        return bool(self.turns)

    def ended(self) -> dict[int, Sampled]:
        over = {
            row: StopReason.end_of_turn if wrote[-1:] == [END] else StopReason.length
            for row, (_, wrote, most) in self.turns.items()
            if wrote[-1:] == [END] or len(wrote) == most
        }
        return {row: Sampled(self.turns.pop(row)[1], [], reason) for row, reason in over.items()}

    def written(self, row: int) -> list[int]:
        return list(self.turns[row][1])

    def give_up(self, row: int) -> None:
        self.given_up.append(row)
        self.turns.pop(row, None)


class LetterPolicy:
    """A policy of such sessions."""

    context = 400

    def __init__(self, say: Callable[[str], str] = lambda prompt: "left") -> None:
        self.chat, self.say = LetterChat(), say
        self.prompts: list[tuple[int, str, int | None]] = []
        self.sampled: list[SamplingConfig] = []
        self.sessions: list[LetterSession] = []
        self.widest = 0
        self.before_step: Callable[[], None] = lambda: None

    def open(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int]) -> LetterSession:
        self.sessions.append(LetterSession(self, len(prompts)))
        return self.sessions[-1]


@contextmanager
def running(policy: Any, answering: Answering, *, history: Any = "append", rows: int = 4) -> Iterator[OwnModel]:
    """The loop in a thread."""
    model = OwnModel(policy, answering, history=history, rows=rows)
    thread = threading.Thread(target=model.run, daemon=True)
    thread.start()
    try:
        yield model
    finally:
        model.stop()
        thread.join(PATIENCE_SECONDS)


def answered(loop: Any, /, *messages: Any, **more: Any) -> Any:
    """What a call is answered, an Answer; or the error that refuses it."""
    call = Call(request(*messages, **more))
    loop.submit(call)
    return call.result.exception(PATIENCE_SECONDS) or call.result.result()
