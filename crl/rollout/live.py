"""One episode while it is played: its token record as it grows, and what happened so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from crl.protocols import Actions, Sampled, Start, StopReason
from crl.records import Generation, Question, Task, Turn
from crl.text.templates import numbered


@dataclass(frozen=True, slots=True)
class Guide:
    """One experience that guides an episode."""

    entry_id: str
    content_digest: str
    experience: str


@dataclass(frozen=True, slots=True)
class EpisodeSlot:
    """A planned episode with what guides it. Without an `experience` it is free, whatever its slot was planned as."""

    task: Task
    entry_id: str | None = None
    content_digest: str | None = None
    experience: str | None = None
    others: tuple[Guide, ...] = ()
    """Experiences beside that first one (top_k), in the order shown."""
    as_instructions: bool = False
    """Whether the experience replaces the prompt's system text, and not where `placement` says."""

    @property
    def shown(self) -> str | None:
        """What the actor reads: the experience, or several of them, numbered."""
        if self.experience is None or not self.others:
            return self.experience
        return numbered([self.experience, *(other.experience for other in self.others)])


@dataclass
class LiveEpisode:
    """One episode while it is played."""

    slot: EpisodeSlot
    start: Start
    actions: Actions
    observation: str
    prompt: str
    seed: int
    token_ids: list[int]
    loss_mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    choices: list[list[int]] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    may_ask: bool = False
    handed_on: int = 0
    """Questions that were not refused: uses of search-and-ask."""
    questions: list[Question] = field(default_factory=list)
    answers: list[Generation] = field(default_factory=list)
    invalid_actions: int = 0
    success: bool = False
    reward: float = 0.0
    stop_reason: StopReason | None = None
    last_observation: str | None = None
    error: str | None = None
    details: str | None = None

    def __post_init__(self) -> None:
        self.loss_mask = [0] * len(self.token_ids)
        self.logprobs = [0.0] * len(self.token_ids)

    def append(self, token_ids: Sequence[int]) -> None:
        """Ids that the model read and did not write."""
        self.token_ids.extend(token_ids)
        self.loss_mask.extend([0] * len(token_ids))
        self.logprobs.extend([0.0] * len(token_ids))

    def append_sampled(self, sampled: Sampled) -> tuple[int, int]:
        """Ids that the model wrote; their offsets (first, one past the last)."""
        first = len(self.token_ids)
        self.token_ids.extend(sampled.token_ids)
        self.loss_mask.extend(sampled.drawn if sampled.drawn is not None else [1] * len(sampled.token_ids))
        self.logprobs.extend(sampled.logprobs)
        self.choices.extend(sampled.choices)
        return first, len(self.token_ids)
