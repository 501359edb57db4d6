"""Samples of a policy objective over sequences whose groups are normalized on their own: shared by recipes whose
episodes belong to streams."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

from crl.config import ClippedObjective
from crl.credit.advantages import stream_advantages
from crl.credit.samples import sample_of
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
    sample = sample_of(
        record,
        round=round,
        role=role,
        objective="grpo",
        reward=reward,
        advantage=advantage,
        weight=weight,
        step=step or 0,
    )
    return sample if step is None else replace(sample, sample_id=f"r{round:04d}-{role}-s{step}-{record.generation_id}")
