"""Prompts filled from their templates, one sampled output per prompt, in batches, and its token record: shared by
whatever is asked once and answers once (the critic, the extractor, answers to questions).

A placeholder is a brace pair around a lower case name; everything else is text. `str.format` is not used because values
are model outputs and observations: braces in them must stay as they are, and a template may hold braces that are no
placeholder (JSON in an instruction).

The ids sampled are the ids recorded: a generation's `token_ids` are the prompt's ids and the sampled ones, its mask is
1 on the latter. Rows are returned, no file is written here.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

from crl.config import PromptConfig, RoleConfig, SamplingConfig
from crl.errors import BadInput, PromptTooLong
from crl.protocols import Chat, Policy, Sampled, StopReason
from crl.records import SAMPLER, SERVER, Generation
from crl.text.unicode import valid_text

Messages = list[dict[str, str]]
"""What a chat is opened with: a role and a text each."""
_PLACEHOLDER = re.compile(r"\{([a-z][a-z0-9_]*)\}")


def placeholders(template: str) -> set[str]:
    """Names of the placeholders in a template."""
    return set(_PLACEHOLDER.findall(template))


def fill(template: str, values: Mapping[str, str]) -> str:
    """Replace every `{name}` by its value, in one pass: braces inside a value are never expanded.

    Raises BadInput for a placeholder that has no value; values that no placeholder asks for are ignored.
    """
    check(template, values.keys())
    return _PLACEHOLDER.sub(lambda found: values[found.group(1)], template)


def check(template: str, allowed: Collection[str], where: str | None = None) -> None:
    """Raise BadInput if a template asks for a name that is not in `allowed`; `where` names the prompt and its part."""
    unknown = sorted(placeholders(template) - set(allowed))
    if unknown:
        raise BadInput(
            f"unknown placeholder {', '.join('{' + name + '}' for name in unknown)} in a prompt template",
            expected=", ".join("{" + name + "}" for name in sorted(allowed)) or "no placeholder",
            where=where or repr(template[:80]),
            next_step="correct the name in the prompt file",
        )


def check_prompt(
    prompt: PromptConfig, allowed: Collection[str], *, what: str, where: str, needed: Sequence[str] = ()
) -> None:
    """Raise BadInput for a placeholder that nobody fills, and for a prompt that does not show what is `needed`. `what`
    names the prompt, `where` its setting."""
    for part, template in (("system", prompt.system), ("first", prompt.first)):
        check(template, allowed, f"{where}.{part}")
    shown = placeholders(prompt.system) | placeholders(prompt.first)
    missing = ["{" + name + "}" for name in needed if name not in shown]
    if missing:
        raise BadInput(
            f"{what} does not show {' or '.join(missing)}",
            expected=" and ".join("{" + name + "}" for name in needed),
            where=f"{where}.first",
            next_step="add the placeholder where its text should be",
        )


def check_room(
    chat: Chat,
    prompt: PromptConfig,
    names: Collection[str],
    *,
    what: str,
    where: str,
    role: str,
    context: int,
    new: int,
) -> None:
    """Raise PromptTooLong where a prompt leaves no room for `new` tokens in the context of a role even with nothing
    filled in."""
    room = context - new
    needed = len(chat.opening(messages_of(prompt, dict.fromkeys(names, ""))))
    if needed >= room:
        raise PromptTooLong(
            f"{what} takes {needed} tokens before anything is filled in",
            expected=f"fewer than {room}: the context less {new} new tokens",
            where=where,
            next_step=f"shorten the prompt, or raise method.roles.{role}.context",
        )


def messages_of(prompt: PromptConfig, values: Mapping[str, str]) -> Messages:
    """Messages of a prompt: system and first user message filled by name, the example exchanges between them."""
    return conversation(prompt, fill(prompt.system, values), fill(prompt.first, values))


def conversation(prompt: PromptConfig, system: str, first: str) -> Messages:
    """Messages of a prompt whose system text and first user message are filled: its example exchanges between them.
    Without a system text there is no such message."""
    messages = [{"role": "system", "content": system}] if system else []
    for exchange in prompt.examples:
        messages.append({"role": "user", "content": exchange.user})
        messages.append({"role": "assistant", "content": exchange.assistant})
    return [*messages, {"role": "user", "content": first}]


def prompt_text(messages: Sequence[Mapping[str, str]]) -> str:
    """The messages as one readable text for the record (the token ids beside it are what the model read)."""
    return "\n\n".join(f"[{message['role']}]\n{message['content']}" for message in messages)


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt ready to be sampled; `token_ids` None where it does not fit the context."""

    name: str
    """Id of what it is made for: a distillation, a question, an episode."""
    messages: Messages
    token_ids: list[int] | None
    seed: int
    """Seed of its own random stream."""


@dataclass(frozen=True, slots=True)
class Output:
    """What came of a prompt; `sampled` None where it was not sampled."""

    prompt: Prompt
    sampled: Sampled | None
    text: str
    thinking: bool = False
    """Whether the prompt began a thought, so that the text begins inside it."""

    @property
    def truncated(self) -> bool:
        """Whether the length limit ended it."""
        return self.sampled is not None and self.sampled.stop_reason == StopReason.length


def prepared(policy: Policy, name: str, messages: Messages, room: int, *, seed: int) -> Prompt:
    """The prompt of messages, ready to be sampled where it takes at most `room` tokens."""
    token_ids = list(policy.chat.opening(messages))
    return Prompt(name, messages, token_ids if len(token_ids) <= room else None, seed)


def room_for_prompt(policy: Policy, role: RoleConfig) -> int:
    """Tokens a prompt may have so that a whole output fits behind it."""
    return min(policy.context, role.context) - role.sampling.max_new_tokens


def sample_outputs(policy: Policy, prompts: Sequence[Prompt], sampling: SamplingConfig, *, batch: int) -> list[Output]:
    """One output per prompt, in their order; prompts that do not fit are passed over, with an empty text.

    `batch` is the number of prompts that are sampled at one time; one that is done makes room for the next. It is part
    of the method: the composition of a batch can change a last digit.
    """
    ready = [(index, prompt, prompt.token_ids) for index, prompt in enumerate(prompts) if prompt.token_ids is not None]
    sampled: dict[int, Sampled] = {}
    if ready:
        seeds = [prompt.seed for _, prompt, _ in ready]
        with closing(policy.open([ids for _, _, ids in ready], seeds, batch)) as session:
            session.begin(range(len(ready)), sampling)
            while found := session.advance():
                sampled |= {ready[row][0]: turn for row, turn in found.items()}
                session.drop(list(found))
    return [
        Output(
            prompt,
            sampled.get(index),
            _text(policy, sampled[index]) if index in sampled else "",
            thinking=policy.chat.opens_thought,
        )
        for index, prompt in enumerate(prompts)
    ]


def _text(policy: Policy, sampled: Sampled) -> str:
    return valid_text(policy.chat.decode(sampled.token_ids))


def token_record(
    output: Output,
    *,
    generation_id: str,
    round: int,
    stage: str,
    role: str,
    kind: str,
    weights_digest: str,
    temperature: float,
) -> Generation:
    """The token record of an output; without tokens where nothing was sampled."""
    prompt_ids: list[int] = []
    new_ids: list[int] = []
    logprobs: list[float] = []
    by, stop_reason = SAMPLER, StopReason.context_limit
    if output.sampled is not None:
        prompt_ids, new_ids = list(output.prompt.token_ids or []), list(output.sampled.token_ids)
        logprobs, stop_reason = list(output.sampled.logprobs), output.sampled.stop_reason
        by = SERVER if output.sampled.renormalized else SAMPLER
    return Generation(
        generation_id=generation_id,
        round=round,
        stage=stage,
        role=role,
        kind=kind,
        weights_digest=weights_digest,
        temperature=temperature,
        token_ids=prompt_ids + new_ids,
        loss_mask=[0] * len(prompt_ids) + [1] * len(new_ids),
        logprobs=[0.0] * len(prompt_ids) + logprobs,
        logprobs_by=by,
        prompt=prompt_text(output.prompt.messages),
        output=output.text,
        stop_reason=stop_reason.value,
    )
