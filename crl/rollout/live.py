"""One episode while it is played: its sequences as they grow, each from a first prompt, and what happened so far.

A first prompt that does not fit, or an environment that does not start, is the end of the episode and of nothing else:
its first turn ends it, with a reason code, and says nothing about an experience.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from crl.config import Method, SamplingConfig
from crl.config.roles import HistoryConfig
from crl.errors import PromptTooLong, StageFailed
from crl.protocols import Actions, Policy, Sampled, Start, Step, StopReason
from crl.records import Generation, Question, Task, Turn, shown_text
from crl.rollout.prompts import Placement, opened
from crl.run.seeds import number_of
from crl.text.outputs import prompt_text

PROMPT_TOO_LONG = "prompt_too_long"
"""Reason code of an episode whose first prompt leaves no room for a turn: a long observation, long experiences."""


@dataclass(frozen=True, slots=True)
class Guide:
    """One experience that guides an episode."""

    entry_id: str
    content_digest: str
    experience: str


@dataclass(frozen=True, slots=True)
class EpisodeSlot:
    """A planned episode with what guides it. Without any guide it is free, whatever its slot was planned as."""

    task: Task
    guides: tuple[Guide, ...] = ()
    """In the order shown; several with top_k."""
    as_instructions: bool = False
    """Whether the experience replaces the prompt's system text, and not where `placement` says."""

    @property
    def shown(self) -> str | None:
        """What the actor reads: the experience, or several of them, numbered; as instructions under each other."""
        texts = [guide.experience for guide in self.guides]
        return "\n\n".join(texts) if self.as_instructions and texts else shown_text(texts)


def sequence_id(episode_id: str, stage: str, index: int) -> str:
    """Id of a sequence of an episode, its token record; `index` counts from 0 in the order in which they begin. See
    `crl.records.first_sequence`."""
    return f"{episode_id}-{stage}" + (f"-s{index}" if index else "")


@dataclass
class LiveSequence:
    """One sequence of an episode as it grows: what went into a session, in order."""

    generation_id: str
    prompt: str
    """Text of its first prompt."""
    prompt_with: Callable[[str | None], list[int]]
    """Ids of its first prompt as an episode with this experience has it, or a free one (None): without any."""
    token_ids: list[int]
    loss_mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    choices: list[list[int]] = field(default_factory=list)
    renormalized: bool = False
    """As in `Sampled`, of any of its turns."""

    def __post_init__(self) -> None:
        self.prompt_tokens = len(self.token_ids)
        self.loss_mask = [0] * len(self.token_ids)
        self.logprobs = [0.0] * len(self.token_ids)

    @property
    def first_prompt(self) -> list[int]:
        """Ids before its first output."""
        return self.token_ids[: self.prompt_tokens]

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
        self.renormalized |= sampled.renormalized
        return first, len(self.token_ids)


@dataclass(frozen=True, slots=True)
class Exchange:
    """A turn that is over, as later prompts have it."""

    asked: list[int]
    """Ids between the output before and its own: the opening, or a reply."""
    asked_text: str
    wrote: list[int]
    text: str


@dataclass
class LiveEpisode:
    """One episode while it is played."""

    slot: EpisodeSlot
    start: Start
    actions: Actions
    observation: str
    seed: int
    sequences: list[LiveSequence]
    """In the order in which they began: turns are sampled in the last one."""
    history: HistoryConfig = "append"
    exchanges: list[Exchange] = field(default_factory=list)
    """Its turns that are over."""
    stripped: int = 0
    """How many of them have lost their thoughts."""
    asked: list[int] = field(default_factory=list)
    """Ids that ask for the next turn, behind the output before."""
    asked_text: str = ""
    first: int = 0
    """The first turn that the next one's prompt shows."""
    unshown: int = 0
    """Tokens of the episode that its prompt does not show."""
    held: Step | None = None
    """What came of the turn before, while the actor writes a summary."""
    turns: list[Turn] = field(default_factory=list)
    may_ask: bool = False
    handed_on: int = 0
    """Questions that were not refused: uses of search-and-ask."""
    questions: list[Question] = field(default_factory=list)
    answers: list[Generation] = field(default_factory=list)
    invalid_actions: int = 0
    success: bool = False
    reward: float = 0.0
    reward_parts: dict[str, float] = field(default_factory=dict)
    stop_reason: StopReason | None = None
    last_observation: str | None = None
    error: str | None = None
    details: str | None = None

    @property
    def sequence(self) -> LiveSequence:
        """The sequence that the next turn is sampled in."""
        return self.sequences[-1]


def opened_row(
    policy: Policy,
    slot: EpisodeSlot,
    start: Start,
    *,
    method: Method,
    seed_of: Callable[[str], np.random.SeedSequence],
    sampling: SamplingConfig,
    stage: str,
    answered: bool,
) -> LiveEpisode:
    """The row of an episode before its first turn. `answered`: a guided one may ask.

    Raises StageFailed where the environment starts otherwise than planned, PromptTooLong where a prompt alone leaves no
    room for a turn.
    """
    task = slot.task
    may_ask = answered and bool(slot.guides)
    start = as_planned(task, start)
    prompts = method.prompts_of(task.family)
    offer = prompts["ask"].offer if may_ask and "ask" in prompts else ""
    placement: Placement = "instructions" if slot.as_instructions else method.rollout.placement
    messages, token_ids = opened(
        policy.chat, prompts["actor"], start, experience=slot.shown, placement=placement, offer=offer
    )
    allowed = policy.context - sampling.max_new_tokens
    if len(token_ids) > allowed:
        # One long observation or experience must not stop the round, in which it would be met again by every retry.
        start = Start.failed(PROMPT_TOO_LONG, f"the first prompt has {len(token_ids)} tokens; at most {allowed} fit")
        messages, token_ids = opened(policy.chat, prompts["actor"], start, experience=None, placement=placement)
    if len(token_ids) > allowed:
        raise PromptTooLong(
            f"the prompt of role actor has {len(token_ids)} tokens without any observation or experience",
            expected=f"at most {allowed}: the context of {policy.context} less {sampling.max_new_tokens} new tokens",
            where=f"episode {task.episode_id}, family {task.family}",
            next_step="shorten the prompt or its examples, or raise method.roles.ROLE.context",
        )
    first = LiveSequence(
        generation_id=sequence_id(task.episode_id, stage, 0),
        prompt=prompt_text(messages),
        prompt_with=lambda experience: opened(
            policy.chat, prompts["actor"], start, experience=experience, placement=placement
        )[1],
        token_ids=token_ids,
    )
    return LiveEpisode(
        slot=slot,
        start=start,
        actions=start.actions,
        observation=start.observation,
        seed=number_of(seed_of(task.episode_id)),
        sequences=[first],
        history=method.role("actor").history,
        asked=list(token_ids),
        may_ask=may_ask,
    )


def as_planned(task: Task, start: Start) -> Start:
    """The start to open; an episode that could not be started when it was planned, or cannot now, is over at its first
    turn. Raises StageFailed where the environment starts otherwise than planned."""
    failed = Start.failed("environment_start")
    if start.error is not None or without_start(task.goal, task.first_observation):
        error = start.error or failed.error
        return Start(task.goal, task.first_observation, failed.actions, error, start.details, start.messages)
    if (start.goal, start.observation) != (task.goal, task.first_observation):
        raise StageFailed(
            f"episode {task.episode_id} starts otherwise than it was planned: {start.observation!r}",
            expected=f"the planned first observation {task.first_observation!r}",
            where=f"environment of family {task.family}, seed {task.environment_seed}",
            next_step="the environment is not deterministic in its seed, or its version changed since the plan",
        )
    return start


def without_start(goal: str, first_observation: str) -> bool:
    """Whether an episode of this goal could not be started when it was planned."""
    failed = Start.failed("")
    return (goal, first_observation) == (failed.goal, failed.observation)
