"""The actor as critic (eq. 8): before it plays, it reads an experience and accepts, refines or rejects it.

It is shown goal and first observation of the task, the experience that was retrieved, and how often it has won in the
task family so far. What it writes is recorded like all that a model writes; it is not trained on: eq. 8 rewards the
extractor, and an actor that were paid for its verdicts would soon give the one that pays. Rows are returned, no file is
written here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from crl.config import ActorCriticConfig, DistillConfig, PromptConfig, RoleConfig
from crl.errors import BadInput, PromptTooLong
from crl.protocols import Chat, Policy
from crl.records import Generation, Judgment, Retrieval, Task
from crl.rollout.verdicts import Verdict, VerdictReason, malformed, parse_verdict
from crl.run.seeds import number_of
from crl.text.outputs import prepared, room_for_prompt, sample_outputs, token_record
from crl.text.templates import check, messages_of

BATCH = 16
"""Prompts a session: part of the numbers (a batch's composition can change a last digit), so it is fixed."""
UNKNOWN = "unknown"
"""The success rate of a family that was never played."""
NAMES = frozenset({"goal", "observation", "experience", "success_rate"})


@dataclass(frozen=True, slots=True)
class Proposed:
    """An experience that was retrieved for an episode, to be judged."""

    task: Task
    retrieval: Retrieval
    experience: str
    success_rate: float | None
    """Share of the episodes of the family that were won so far; None before the first."""


@dataclass(frozen=True, slots=True)
class Judged:
    """The rows of one verdict."""

    judgment: Judgment
    generation: Generation


def check_critic_prompt(prompt: PromptConfig) -> None:
    """Raise BadInput for a critic's template with an unknown placeholder, or one that does not show the experience."""
    check(prompt.system, NAMES, "prompts.critic.system")
    check(prompt.first, NAMES, "prompts.critic.first")
    if "{experience}" not in prompt.first:
        raise BadInput(
            "the critic's prompt does not show the experience",
            expected="{experience} in it: the actor cannot judge what it does not see",
            where="prompts.critic.first",
            next_step="add the placeholder where the text should be",
        )


def check_critic_room(chat: Chat, context: int, prompt: PromptConfig, critic: ActorCriticConfig) -> None:
    """Raise PromptTooLong where the critic's prompt leaves no room for a verdict even with nothing filled in."""
    room = context - critic.max_new_tokens
    needed = len(chat.opening(messages_of(prompt, dict.fromkeys(NAMES, ""))))
    if needed >= room:
        raise PromptTooLong(
            f"the critic's prompt takes {needed} tokens before anything is filled in",
            expected=f"fewer than {room}: the context less {critic.max_new_tokens} new tokens",
            where="method.prompts.critic",
            next_step="shorten the prompt, or raise method.roles.actor.context",
        )


def judge(
    policy: Policy,
    proposed: Sequence[Proposed],
    *,
    role: RoleConfig,
    critic: ActorCriticConfig,
    prompt: PromptConfig,
    output_format: DistillConfig,
    seed_of: Callable[[str], np.random.SeedSequence],
    temperature: float,
    weights_digest: str,
    stage: str,
    own: Mapping[str, PromptConfig] | None = None,
) -> list[Judged]:
    """One verdict per experience, in their order; each is sampled from its own seed, `seed_of(episode_id)`.

    `own` holds the prompts of task families that have one of their own; the others use `prompt`.

    A prompt that does not fit the context is not sampled: its verdict is malformed, the experience is used as it is.
    """
    # The actor's stop strings end its actions; a verdict has a form of its own.
    changed = {"max_new_tokens": critic.max_new_tokens, "temperature": temperature, "stop_strings": []}
    sampling = role.sampling.model_copy(update=changed)
    room = room_for_prompt(policy, role.model_copy(update={"sampling": sampling}))
    prompts = [
        prepared(
            policy,
            each.task.episode_id,
            messages_of((own or {}).get(each.task.family, prompt), _values(each)),
            room,
            seed=number_of(seed_of(each.task.episode_id)),
        )
        for each in proposed
    ]
    judged = []
    for each, output in zip(proposed, sample_outputs(policy, prompts, sampling, batch=BATCH), strict=True):
        if output.sampled is None:
            verdict = malformed(VerdictReason.prompt_too_long)
        else:
            verdict = parse_verdict(
                output.text,
                output_format.format,
                max_characters=output_format.max_characters,
                truncated=output.truncated,
                thinking=output.thinking,
            )
        generation = token_record(
            output,
            generation_id=f"{each.task.episode_id}-{stage}",
            round=each.task.round,
            stage=stage,
            role="actor",
            kind="critic",
            weights_digest=weights_digest,
            temperature=temperature,
        )
        judged.append(Judged(_judgment(each, verdict, generation.generation_id), generation))
    return judged


def _judgment(proposed: Proposed, verdict: Verdict, generation_id: str) -> Judgment:
    return Judgment(
        episode_id=proposed.task.episode_id,
        round=proposed.task.round,
        family=proposed.task.family,
        entry_id=proposed.retrieval.entry_id,
        content_digest=proposed.retrieval.content_digest,
        generation_id=generation_id,
        success_rate=proposed.success_rate,
        verdict=verdict.kind,
        reason_code=verdict.reason.value,
        score=verdict.score,
        text=verdict.experience(proposed.experience),
    )


def _values(proposed: Proposed) -> dict[str, str]:
    rate = proposed.success_rate
    return {
        "goal": proposed.task.goal,
        "observation": proposed.task.first_observation,
        "experience": proposed.experience,
        "success_rate": UNKNOWN if rate is None else f"{rate:.1f}",
    }
