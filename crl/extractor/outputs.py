"""Sampling extractor outputs and making their rows: what distilling and merging share.

The ids sampled are the ids recorded: a generation's `token_ids` are the prompt's ids and the sampled ones, its mask is
1 on the latter. Ids of rows derive from what they are made for: distillation `d-<episode>` or
`m-r<round>-<family>-<step>`, generation `g-<distillation>`, operation `<distillation>-o<index>`, entry `x-<operation>`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from crl.config import RoleConfig, SamplingConfig
from crl.extractor.formats import ReasonCode
from crl.extractor.parse import ParsedOutput
from crl.extractor.prompts import Messages, prompt_text
from crl.protocols import Policy, Sampled, StopReason
from crl.records import Distillation, Generation, Operation
from crl.run.seeds import number_of

SeedOf = Callable[[str], np.random.SeedSequence]
"""Seed of the random stream of a distillation id."""


class Distilled(NamedTuple):
    """The rows of one extractor output."""

    distillation: Distillation
    operations: list[Operation]
    generation: Generation


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt ready to be sampled; `token_ids` None where it does not fit the context."""

    distillation_id: str
    """Id of the distillation, or of the question to answer: it names token record and random stream."""
    messages: Messages
    token_ids: list[int] | None


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
        return self.sampled is not None and self.sampled.stop_reason != StopReason.end_of_turn


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a wave of outputs is made: what all their rows have in common."""

    round: int
    stage: Literal["distill", "merge"]
    weights_digest: str
    form: Literal["json", "lines"]
    temperature: float


def room_for_prompt(policy: Policy, role: RoleConfig) -> int:
    """Tokens a prompt may have so that a whole output fits behind it."""
    return min(policy.context, role.context) - role.sampling.max_new_tokens


def sample_outputs(
    policy: Policy, prompts: Sequence[Prompt], sampling: SamplingConfig, seed_of: SeedOf, *, batch: int
) -> list[Output]:
    """One output a prompt, in their order; prompts that do not fit are passed over, with an empty text.

    `batch` is the number of prompts a session. It is part of the method: the composition of a batch can change a last
    digit.
    """
    ready = [index for index, prompt in enumerate(prompts) if prompt.token_ids is not None]
    sampled: dict[int, Sampled] = {}
    for first in range(0, len(ready), batch):
        chosen = ready[first : first + batch]
        rows = list(range(len(chosen)))
        seeds = [number_of(seed_of(prompts[index].distillation_id)) for index in chosen]
        session = policy.open([prompts[index].token_ids or [] for index in chosen], rows, seeds)
        found = session.sample(rows, sampling)
        session.drop(rows)
        sampled.update({chosen[row]: found[row] for row in rows})
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
    # Rows are UTF-8: a lone surrogate, should a tokenizer ever give one, becomes a question mark.
    return policy.chat.decode(sampled.token_ids).encode("utf-8", "replace").decode()


def generation_row(output: Output, origin: Origin) -> Generation:
    """The token record of a distillation or merge; without tokens where nothing was sampled."""
    return token_record(
        output,
        round=origin.round,
        stage=origin.stage,
        kind=origin.stage,
        weights_digest=origin.weights_digest,
        temperature=origin.temperature,
    )


def token_record(
    output: Output, *, round: int, stage: str, kind: str, weights_digest: str, temperature: float
) -> Generation:
    """The token record of an output; without tokens where nothing was sampled."""
    prompt_ids: list[int] = []
    new_ids: list[int] = []
    logprobs: list[float] = []
    stop_reason = StopReason.context_limit
    if output.sampled is not None:
        prompt_ids, new_ids = list(output.prompt.token_ids or []), list(output.sampled.token_ids)
        logprobs, stop_reason = list(output.sampled.logprobs), output.sampled.stop_reason
    return Generation(
        generation_id=generation_id_of(output.prompt.distillation_id),
        round=round,
        stage=stage,
        role="extractor",
        kind=kind,
        weights_digest=weights_digest,
        temperature=temperature,
        token_ids=prompt_ids + new_ids,
        loss_mask=[0] * len(prompt_ids) + [1] * len(new_ids),
        logprobs=[0.0] * len(prompt_ids) + logprobs,
        prompt=prompt_text(output.prompt.messages),
        output=output.text,
        stop_reason=str(stop_reason),
    )


def distillation_row(
    output: Output,
    origin: Origin,
    parsed: ParsedOutput,
    operations: int,
    *,
    family: str,
    episode_id: str | None = None,
    guiding_entry_id: str | None = None,
    source_entry_ids: Sequence[str] = (),
    turns: int | None = None,
    turns_shown: int | None = None,
) -> Distillation:
    """What became of an output."""
    return Distillation(
        distillation_id=output.prompt.distillation_id,
        round=origin.round,
        kind=origin.stage,
        family=family,
        episode_id=episode_id,
        guiding_entry_id=guiding_entry_id,
        source_entry_ids=list(source_entry_ids),
        generation_id=generation_id_of(output.prompt.distillation_id),
        format=origin.form,
        reason_code=str(parsed.reason_code),
        verdict=parsed.verdict,
        operations=operations,
        turns=turns,
        turns_shown=turns_shown,
    )


def operation_row(
    distillation_id: str,
    index: int,
    origin: Origin,
    kind: str,
    family: str,
    *,
    entry_id: str | None = None,
    text: str | None = None,
    parents: Sequence[str] = (),
    episode_ids: Sequence[str] = (),
) -> Operation:
    """One operation. Without an `entry_id`, an add or a merge gets the id of the entry it creates."""
    operation_id = f"{distillation_id}-o{index}"
    if entry_id is None and kind in ("add", "merge"):
        entry_id = f"x-{operation_id}"
    return Operation(
        operation_id=operation_id,
        distillation_id=distillation_id,
        generation_id=generation_id_of(distillation_id),
        round=origin.round,
        index=index,
        kind=kind,
        family=family,
        entry_id=entry_id,
        parents=list(parents),
        episode_ids=list(episode_ids),
        text=text,
        embedder_cut=None,  # filled in where there is an embedder
    )


def generation_id_of(distillation_id: str) -> str:
    """Id of an output's token record."""
    return f"g-{distillation_id}"


def not_sampled(origin: Origin) -> ParsedOutput:
    """The judgement on a prompt that does not fit."""
    return ParsedOutput(ReasonCode.prompt_too_long, (), origin.stage)
