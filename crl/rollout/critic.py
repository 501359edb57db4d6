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
from crl.protocols import Chat, Policy, Sampled, StopReason
from crl.records import Generation, Judgement, Retrieval, Task
from crl.rollout.prompts import prompt_text
from crl.rollout.verdicts import Verdict, VerdictReason, malformed, parse_verdict
from crl.run.seeds import number_of
from crl.text.templates import check, fill

BATCH = 16
"""Prompts a session: part of the numbers (a batch's composition can change a last digit), so it is fixed."""
UNKNOWN = "unknown"
"""The success rate of a family that was never played."""
_NAMES = frozenset({"goal", "observation", "experience", "success_rate"})


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

    judgement: Judgement
    generation: Generation


def check_critic_prompt(prompt: PromptConfig) -> None:
    """Raise BadInput for a critic's template with an unknown placeholder, or one that does not show the experience."""
    check(prompt.system, _NAMES, "prompts.critic.system")
    check(prompt.first, _NAMES, "prompts.critic.first")
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
    needed = len(chat.opening(critic_messages(prompt, dict.fromkeys(_NAMES, ""))))
    if needed >= room:
        raise PromptTooLong(
            f"the critic's prompt takes {needed} tokens before anything is filled in",
            expected=f"fewer than {room}: the context less {critic.max_new_tokens} new tokens",
            where="method.prompts.critic",
            next_step="shorten the prompt, or raise actor.context",
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
) -> list[Judged]:
    """One verdict per experience, in their order; each is sampled from its own seed, `seed_of(episode_id)`.

    A prompt that does not fit the context is not sampled: its verdict is malformed, the experience is used as it is.
    """
    sampling = role.sampling.model_copy(update={"max_new_tokens": critic.max_new_tokens, "temperature": temperature})
    room = min(policy.context, role.context) - critic.max_new_tokens
    messages = [critic_messages(prompt, _values(each)) for each in proposed]
    prompts = [list(policy.chat.opening(each)) for each in messages]
    sampled: dict[int, Sampled] = {}
    ready = [index for index, ids in enumerate(prompts) if len(ids) <= room]
    for at in range(0, len(ready), BATCH):
        batch = ready[at : at + BATCH]
        rows = list(range(len(batch)))
        session = policy.open(
            [prompts[index] for index in batch],
            [proposed[index].task.group for index in batch],
            [number_of(seed_of(proposed[index].task.episode_id)) for index in batch],
        )
        found = session.sample(rows, sampling)
        session.drop(rows)
        sampled.update({batch[row]: found[row] for row in rows})
    judged = []
    for index, each in enumerate(proposed):
        output = sampled.get(index)
        text = "" if output is None else policy.chat.decode(output.token_ids)
        verdict = malformed(VerdictReason.prompt_too_long)
        if output is not None:
            verdict = parse_verdict(
                text,
                output_format.format,
                max_characters=output_format.max_characters,
                truncated=output.stop_reason != StopReason.end_of_turn,
                thinking=policy.chat.opens_thought,
            )
        generation_id = f"{each.task.episode_id}-{stage}"
        prompt_ids, new_ids = ([], []) if output is None else (prompts[index], list(output.token_ids))
        generation = Generation(
            generation_id=generation_id,
            round=each.task.round,
            stage=stage,
            role="actor",
            kind="critic",
            weights_digest=weights_digest,
            temperature=temperature,
            token_ids=prompt_ids + new_ids,
            loss_mask=[0] * len(prompt_ids) + [1] * len(new_ids),
            logprobs=[0.0] * len(prompt_ids) + ([] if output is None else list(output.logprobs)),
            prompt=prompt_text(messages[index]),
            output=text.encode("utf-8", "replace").decode(),
            stop_reason=(StopReason.context_limit if output is None else output.stop_reason).value,
        )
        judged.append(Judged(_judgement(each, verdict, generation_id), generation))
    return judged


def _judgement(proposed: Proposed, verdict: Verdict, generation_id: str) -> Judgement:
    return Judgement(
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


def critic_messages(prompt: PromptConfig, values: Mapping[str, str]) -> list[dict[str, str]]:
    """Messages of the critic's prompt: system, example exchanges, and the question filled by name."""
    messages = [{"role": "system", "content": fill(prompt.system, values)}]
    for exchange in prompt.examples:
        messages.append({"role": "user", "content": exchange.user})
        messages.append({"role": "assistant", "content": exchange.assistant})
    return [*messages, {"role": "user", "content": fill(prompt.first, values)}]
