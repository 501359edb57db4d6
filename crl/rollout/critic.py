"""The actor as critic (eq. 8): before it plays, it reads an experience and accepts, refines or rejects it.

It is shown goal and first observation of the task, the experience that was retrieved, and how often it has won in the
task family so far. What it writes is recorded like all that a model writes; it is not trained on: eq. 8 rewards the
extractor, and an actor that were paid for its verdicts would soon give the one that pays. Rows are returned, no file is
written here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

import numpy as np

from crl.config import ActorCriticConfig, DistillConfig, PromptConfig, RoleConfig
from crl.errors import BadInput
from crl.protocols import Chat, Policy
from crl.records import Critique, Generation, Retrieval, Task
from crl.run.seeds import number_of
from crl.text.answers import after_thoughts, json_part, text_flaw
from crl.text.outputs import check, check_room, messages_of, prepared, room_for_prompt, sample_outputs, token_record

Form = Literal["json", "lines"]

SCORES = {"accept": 1.0, "refine": 0.5, "reject": 0.0}
"""s_c of eq. 8 by verdict."""
_LINE = re.compile(r"(accept|reject)|refine[ \t]*:(.*)", re.IGNORECASE)


class VerdictReason(StrEnum):
    """What became of a verdict: `ok`, or the first thing that is wrong with it."""

    ok = "ok"
    truncated = "truncated"
    unfinished_thought = "unfinished_thought"
    """It ended, or was cut off, inside a thought."""
    no_verdict = "no_verdict"
    bad_json = "bad_json"
    empty_text = "empty_text"
    text_too_long = "text_too_long"
    bad_text = "bad_text"
    prompt_too_long = "prompt_too_long"
    """Nothing was sampled: the prompt does not fit the model's context."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A verdict as written."""

    kind: str
    """accept, refine, reject or malformed."""
    reason: VerdictReason = VerdictReason.ok
    text: str | None = None
    """The rewritten experience; None unless it is refined."""

    @property
    def score(self) -> float | None:
        """s_c of eq. 8; None where the verdict is malformed."""
        return SCORES.get(self.kind)

    def experience(self, retrieved: str) -> str | None:
        """What guides the episode; None where the experience is rejected. A malformed verdict changes nothing."""
        return {"refine": self.text, "reject": None}.get(self.kind, retrieved)


def malformed(reason: VerdictReason) -> Verdict:
    """No verdict, for a reason."""
    return Verdict("malformed", reason)


def parse_verdict(
    text: str, form: Form, *, max_characters: int, truncated: bool = False, thinking: bool = False
) -> Verdict:
    """The verdict that a text gives, or none: never an error, whatever it holds. `truncated`: the length limit ended
    it, so its text would be half a sentence; `thinking`: the prompt began a thought.

    The form is that of the extractor's outputs (`distill.format`). `lines` is one line and nothing else, blank ones
    aside: `ACCEPT`, `REFINE: text` or `REJECT`. `json` is an object with `verdict` and, to refine, `experience`; a
    fence around it is allowed. Either may follow thoughts (`<think>…</think>`); what is in them is no verdict.
    """
    answer = after_thoughts(text, begun=thinking)
    if answer is None:
        return malformed(VerdictReason.unfinished_thought)
    if truncated:
        return malformed(VerdictReason.truncated)
    found = _from_json(answer) if form == "json" else _from_lines(answer)
    if found.text is None:
        return found
    flaw = text_flaw(found.text, max_characters)
    return found if flaw is None else malformed(VerdictReason(flaw))


def _from_lines(text: str) -> Verdict:
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    found = _LINE.fullmatch(lines[0]) if len(lines) == 1 else None
    if found is None:
        return malformed(VerdictReason.no_verdict)
    if found.group(1) is not None:
        return Verdict(found.group(1).lower())
    return Verdict("refine", text=found.group(2).strip())


def _from_json(text: str) -> Verdict:
    try:
        value: Any = json.loads(json_part(text))
    except (ValueError, RecursionError):  # ValueError: also numbers with more digits than Python converts
        return malformed(VerdictReason.bad_json)
    kind = value.get("verdict") if isinstance(value, dict) else None
    if not isinstance(kind, str) or kind.strip().lower() not in SCORES:
        return malformed(VerdictReason.no_verdict)
    kind = kind.strip().lower()
    if kind != "refine":
        return Verdict(kind)
    experience = value.get("experience")
    if experience is not None and not isinstance(experience, str):
        return malformed(VerdictReason.bad_text)
    return Verdict("refine", text=(experience or "").replace("\r\n", "\n").strip())


BATCH = 16
"""Prompts a session: part of the numbers (a batch's composition can change a last digit), so it is fixed."""
UNKNOWN = "unknown"
"""The success rate of a family that was never played."""
NAMES = frozenset({"goal", "observation", "experience", "success_rate"})


@dataclass(frozen=True, slots=True)
class Proposed:
    """An experience that was retrieved for an episode, to be critiqued."""

    task: Task
    retrieval: Retrieval
    experience: str
    success_rate: float | None
    """Share of the episodes of the family that were won so far; None before the first."""


@dataclass(frozen=True, slots=True)
class Critiqued:
    """The rows of one verdict."""

    critique: Critique
    generation: Generation


def check_critic_prompt(prompt: PromptConfig) -> None:
    """Raise BadInput for a critic's template with an unknown placeholder, or one that does not show the experience."""
    check(prompt.system, NAMES, "prompts.critic.system")
    check(prompt.first, NAMES, "prompts.critic.first")
    if "{experience}" not in prompt.first:
        raise BadInput(
            "the critic's prompt does not show the experience",
            expected="{experience} in it: the actor cannot criticize what it does not see",
            where="prompts.critic.first",
            next_step="add the placeholder where the text should be",
        )


def check_critic_room(chat: Chat, context: int, prompt: PromptConfig, critic: ActorCriticConfig) -> None:
    """Raise PromptTooLong where the critic's prompt leaves no room for a verdict even with nothing filled in."""
    check_room(
        chat, prompt, NAMES, what="the critic's prompt", where="method.prompts.critic", role="actor", context=context,
        new=critic.max_new_tokens,
    )  # fmt: skip


def critique(
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
) -> list[Critiqued]:
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
    critiqued = []
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
        critiqued.append(Critiqued(_critique(each, verdict, generation.generation_id), generation))
    return critiqued


def _critique(proposed: Proposed, verdict: Verdict, generation_id: str) -> Critique:
    return Critique(
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
