"""Games that are played by a script, with the chat formats of real models: the ids are what such a model would read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from crl.config import Method, RoleConfig, SamplingConfig
from crl.policies.chat import ChatFormat
from crl.protocols import Sampled, StopReason
from crl.rollout.live import EpisodeSlot
from crl.rollout.play import PlayedEpisode, play_wave
from tests.unit.policies.families import tokenizer_of
from tests.unit.rollout import fakes

Says = Callable[[int, int], str]
"""What a row says in a turn."""
SAMPLING = SamplingConfig(max_new_tokens=40)


class _Session(fakes.ScriptedSession):
    def __init__(self, chat: ChatFormat, prompts: Sequence[Sequence[int]], says: Says, seeds: Sequence[int]) -> None:
        super().__init__(prompts, lambda row, turn: (says(row, turn), True), seeds)
        self._chat = chat

    def sample(
        self, rows: Sequence[int], sampling: SamplingConfig, answers: Mapping[int, Any] | None = None
    ) -> dict[int, Sampled]:
        found = {}
        for row in rows:
            text = self.script(row, len(self.sampled_at[row]))[0]
            cut = text.endswith("…")  # at the limit of an answer
            ids = self._chat.answer(text.removesuffix("…"), call=True)
            ids = ids[:-1] if cut else ids
            self.sampled_at[row].append((0, 0))
            self.ids[row].extend(ids)
            found[row] = Sampled(ids, [-0.5] * len(ids), StopReason.length if cut else StopReason.end_of_turn)
        return found


class Policy:
    """Says what a script says, in the form of a family of models."""

    def __init__(self, chat: ChatFormat, says: Says, context: int = 100_000) -> None:
        self.chat, self.context, self._says = chat, context, says

    def open(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], limit: int | None = None) -> _Session:
        return _Session(self.chat, prompts, self._says, seeds)


def chat_of(family: str, history: Any = "append") -> ChatFormat:
    return ChatFormat(tokenizer_of(family), family, strips=history == "strip_thoughts")


def method(history: Any = "append", **rollout: Any) -> Method:
    base = fakes.method(**rollout)
    actor = base.prompts["actor"].model_copy(
        update={"summarize": "Sum up {goal}", "following": "{feedback}{observation}\nOf {actions}?"}
    )
    roles = {**base.roles, "actor": RoleConfig(history=history, context=100_000, sampling=SAMPLING)}
    return Method(families=base.families, rollout=base.rollout, roles=roles, prompts={**base.prompts, "actor": actor})


def play(
    chat: ChatFormat, says: Says, slots: Sequence[EpisodeSlot], *, history: Any = "append", environment: Any = None,
    context: int = 100_000, turns: int = 6,
) -> list[PlayedEpisode]:  # fmt: skip
    return play_wave(
        Policy(chat, says, context), environment or fakes.Corridor(turns), slots, method=method(history),
        sampling=SAMPLING, weights_digest="0" * 64, seed_of=lambda name: np.random.SeedSequence(1), stage="collect",
    )  # fmt: skip
