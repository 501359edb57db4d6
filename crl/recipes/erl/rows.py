"""The rows that Experiential RL brings: a reflection, what it is about, and the attempt that it guides; and what an
entry of the memory keeps of these attempts."""

from __future__ import annotations

import dataclasses
from typing import Annotated as A
from typing import ClassVar

from crl.records import Row, Rules

FIRST, SECOND, REFLECTION = "first", "second", "reflection"
"""Streams: attempts as they come, attempts after another one, and what was written between the two."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Reflection(Row):
    """What the reflector wrote about an attempt: new instructions for the next one."""

    table: ClassVar[str] = "reflections"
    reflection_id: A[str, "f-<attempt>; also the id of its distillation, if it enters the memory"]
    round: A[int, "round number"]
    family: A[str, "task family"]
    revision: A[int, "1 for the one about a first attempt"]
    episode_id: A[str, "attempt it is about"]
    retry_id: A[str, "attempt that it guides"]
    reward: A[float, "reward of the attempt it is about"]
    feedback: A[str, "what the environment said about the whole attempt"]
    entry_ids: A[list[str], "memories that the reflector was shown, in order"]
    content_digests: A[list[str], "versions of these entries"]
    reason_code: A[str, "ok, or why the output is malformed; the next attempt then keeps the old instructions"]
    text: A[str | None, "the new instructions; null: malformed"]
    turns: A[int, "turns of the attempt"]
    turns_shown: A[int, "turns that the prompt showed in full; fewer than turns if it was cut"]
    generation_id: A[str, "token record"]

    rules: ClassVar[Rules] = Rules(
        key=("reflection_id",),
        filled=("reflection_id", "family", "episode_id", "retry_id", "reason_code", "generation_id"),
        unique=(("episode_id",), ("retry_id",), ("generation_id",)),
        ranges={"revision": (1, 8), "turns": (0, None), "turns_shown": (0, None)},
        ordered=(("turns", "turns_shown"),),
        rows={
            "the id names the attempt": "reflection_id = 'f-' || episode_id",
            "an attempt is followed by another one": "retry_id <> episode_id",
            "the reward is finite": "isfinite(reward)",
            "ok means that there are instructions": "(reason_code = 'ok') = (text IS NOT NULL)",
            "instructions are not empty": "text IS NULL OR trim(text) <> ''",
            "every memory has its version, and is shown once": (
                "len(entry_ids) = len(content_digests) AND len(list_distinct(entry_ids)) = len(entry_ids)"
            ),
        },
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RevisedAttempt(Row):
    """The attempts before and after a reflection in the memory, cut to length."""

    table: ClassVar[str] = "revised_attempts"
    entry_id: A[str, "entry of the memory; its text is the reflection"]
    round: A[int, "round number"]
    episode_id: A[str, "attempt that the reflection is about"]
    retry_id: A[str, "attempt that it guided, which succeeded"]
    first: A[str, "text of the first attempt: turns and result, at most recipe.attempt_characters long"]
    revised: A[str, "text of the revised attempt, likewise"]

    rules: ClassVar[Rules] = Rules(
        key=("entry_id",),
        filled=("entry_id", "episode_id", "retry_id", "first", "revised"),
        rows={"an attempt is followed by another one": "retry_id <> episode_id"},
    )
