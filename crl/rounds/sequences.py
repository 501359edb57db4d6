"""Samples of a policy objective over sequences whose groups are normalized on their own: shared by recipes whose
episodes belong to streams."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

from crl.config import ClippedObjective
from crl.credit.streams import stream_advantages
from crl.errors import RecordDamaged
from crl.records import Generation, Sample


@dataclass(frozen=True, slots=True)
class Sequenced:
    """One sequence of a stream, with its reward and the group that it is compared in."""

    role: str
    generation: Generation
    reward: float
    group: Hashable


def sequence_samples(
    sequences: Sequence[Sequenced], objective: ClippedObjective, weight_of: Callable[[str], float], *, round: int
) -> list[Sample]:
    """One GRPO sample per sequence, in their order; `weight_of` is the weight of a sequence of a role."""
    advantages = stream_advantages([each.reward for each in sequences], [each.group for each in sequences], objective)
    return [
        grpo_sample(each.generation, each.role, each.reward, float(advantage), weight_of(each.role), round=round)
        for each, advantage in zip(sequences, advantages, strict=True)
    ]


def grpo_sample(
    record: Generation,
    role: str,
    reward: float,
    advantage: float,
    weight: float,
    *,
    round: int,
    step: int | None = None,
) -> Sample:
    """The sample that an update learns from a token record; `step` is its optimizer step, where a round has several."""
    return Sample(
        sample_id=f"r{round:04d}-{role}-{'' if step is None else f's{step}-'}{record.generation_id}",
        round=round,
        role=role,
        objective="grpo",
        source=f"{record.round:04d}/{record.stage}",
        generation_id=record.generation_id,
        reward=reward,
        advantage=advantage,
        # An episode whose every turn left no choice (`sampling.constrain`) has nothing to train.
        weight=weight if any(record.loss_mask) else 0.0,
        step=step or 0,
        temperature=record.temperature,
        token_ids=record.token_ids,
        loss_mask=record.loss_mask,
        logprobs=record.logprobs,
        choices=record.choices,
    )


def record_of(records: Mapping[str, Generation], generation_id: str) -> Generation:
    """A token record by its id. Raises RecordDamaged where there is none."""
    if generation_id not in records:
        raise RecordDamaged(
            f"no token record of {generation_id}",
            expected="the generations of the stage that wrote it",
            next_step="run `crl verify` on the run",
        )
    return records[generation_id]
