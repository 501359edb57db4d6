"""Samples of a policy objective over sequences whose groups are normalized on their own: shared by recipes whose
episodes belong to streams."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

from crl.config import ClippedObjective
from crl.errors import RecordDamaged
from crl.learn.streams import stream_advantages
from crl.records import Generation, Sample


@dataclass(frozen=True, slots=True)
class Sequenced:
    """One sequence of a stream, with its reward and the group that it is compared in."""

    role: str
    generation: Generation
    reward: float
    group: Hashable


def grpo_samples(
    sequences: Sequence[Sequenced], objective: ClippedObjective, weight_of: Callable[[str], float], *, round: int
) -> list[Sample]:
    """One GRPO sample per sequence, in their order; `weight_of` is the weight of a sequence of a role."""
    advantages = stream_advantages([each.reward for each in sequences], [each.group for each in sequences], objective)
    return [
        Sample(
            sample_id=f"r{round:04d}-{each.role}-{each.generation.generation_id}",
            round=round,
            role=each.role,
            objective="grpo",
            source=f"{each.generation.round:04d}/{each.generation.stage}",
            generation_id=each.generation.generation_id,
            reward=each.reward,
            advantage=float(advantage),
            # An episode whose every turn left no choice (`sampling.constrain`) has nothing to train.
            weight=weight_of(each.role) if any(each.generation.loss_mask) else 0.0,
            temperature=each.generation.temperature,
            token_ids=each.generation.token_ids,
            loss_mask=each.generation.loss_mask,
            logprobs=each.generation.logprobs,
            choices=each.generation.choices,
        )
        for each, advantage in zip(sequences, advantages, strict=True)
    ]


def record_of(records: Mapping[str, Generation], generation_id: str) -> Generation:
    """A token record by its id. Raises RecordDamaged where there is none."""
    if generation_id not in records:
        raise RecordDamaged(
            f"no token record of {generation_id}",
            expected="the generations of the stage that wrote it",
            next_step="run `crl verify` on the run",
        )
    return records[generation_id]
