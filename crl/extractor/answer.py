"""Answers to the questions that actors ask (search-and-ask): the extractor reads the entry that was found.

One sample per question, all questions of a turn in batches. The ids sampled are the ids recorded, and those trained
where answers are (the mechanism `search_and_ask.py` says what an answer earns). The actor reads what follows the
extractor's thoughts. An answer that the length limit cut off is shown as it is: the actor loses less by half a
sentence than by none; a thought that was cut off is no answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from crl.config import PromptConfig, RoleConfig
from crl.extractor.outputs import SeedOf, generation_id_of
from crl.extractor.prompts import NO_OWN, ask_messages
from crl.protocols import Inquiry, Policy
from crl.records import Generation
from crl.run.seeds import number_of
from crl.text.answers import after_thoughts
from crl.text.outputs import prepared, room_for_prompt, sample_outputs, token_record


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer; without a text where the reason code is not ok."""

    reason_code: str
    text: str | None
    generation: Generation | None
    """Token record; None where the prompt did not fit and nothing was sampled."""


def answer_all(
    policy: Policy,
    inquiries: Sequence[Inquiry],
    experiences: Sequence[str],
    *,
    prompt: PromptConfig,
    role: RoleConfig,
    batch: int,
    seed_of: SeedOf,
    weights_digest: str,
    round: int,
    stage: str,
    own: Mapping[str, PromptConfig] = NO_OWN,
) -> list[Answered]:
    """Answer each inquiry from the experience beside it; `seed_of` gives the random stream of a question id.

    `own` holds the prompts of task families that have one of their own.
    """
    room = room_for_prompt(policy, role)
    prompts = []
    for inquiry, experience in zip(inquiries, experiences, strict=True):
        name, asked = inquiry.question_id, own.get(inquiry.family, prompt)
        prompts.append(
            prepared(policy, name, ask_messages(asked, inquiry, experience), room, seed=number_of(seed_of(name)))
        )
    answered = []
    for output in sample_outputs(policy, prompts, role.sampling, batch=batch):
        if output.sampled is None:
            answered.append(Answered("prompt_too_long", None, None))
            continue
        text = (after_thoughts(output.text, begun=output.thinking) or "").strip()
        record = token_record(
            output,
            generation_id=generation_id_of(output.prompt.name),
            round=round,
            stage=stage,
            role="extractor",
            kind="ask",
            weights_digest=weights_digest,
            temperature=role.sampling.temperature,
        )
        answered.append(Answered("ok" if text else "no_answer", text or None, record))
    return answered
