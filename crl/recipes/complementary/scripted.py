"""A policy that says what a script tells it: demonstrations go through the same code as sampled episodes.

So the token records of a warm start (ids, masks, chat glue) are made by the rollout and the extractor themselves and
cannot differ from what is sampled later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from crl.config import SamplingConfig
from crl.protocols import Answers, Chat, Sampled, StopReason, WholeTurns

Script = Callable[[int], str]
"""From the row of a session to what it says now."""


class ScriptedSession(WholeTurns):
    """A session without a model: answers are encoded, log-probabilities are 0."""

    def __init__(self, chat: Chat, prompts: Sequence[Sequence[int]], script: Script) -> None:
        self._chat, self._script = chat, script
        self._lengths = [len(prompt) for prompt in prompts]

    def extend(self, pieces: Mapping[int, Sequence[int]]) -> None:
        for row, ids in pieces.items():
            self._lengths[row] += len(ids)

    def sample(
        self, rows: Sequence[int], sampling: SamplingConfig, answers: Mapping[int, Answers] | None = None
    ) -> dict[int, Sampled]:
        said = {row: self._chat.answer(self._script(row)) for row in rows}
        for row, ids in said.items():
            self._lengths[row] += len(ids)
        return {row: Sampled(ids, [0.0] * len(ids), StopReason.end_of_turn) for row, ids in said.items()}

    def drop(self, rows: Sequence[int]) -> None:
        """Nothing is held."""

    def length(self, row: int) -> int:
        return self._lengths[row]


class ScriptedPolicy:
    """Opens scripted sessions with the chat format of a real policy."""

    def __init__(self, chat: Chat, context: int, script: Script) -> None:
        self.chat, self.context, self._script = chat, context, script

    def open(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], limit: int | None = None) -> ScriptedSession:
        return ScriptedSession(self.chat, prompts, self._script)
