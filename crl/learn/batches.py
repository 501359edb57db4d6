"""Samples to padded micro-batches, cut and ordered the same way on every run and every rank.

Shapes: B samples, T target tokens (the longest sequence less one: token t is predicted from tokens before it).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import torch

from crl.errors import RecordDamaged
from crl.records import Sample


@dataclass(frozen=True)
class MicroBatch:
    """Samples of one objective, padded on the right."""

    objective: str
    input_ids_BT: torch.Tensor
    """Every token but the last of each sequence."""
    attention_mask_BT: torch.Tensor
    targets_BT: torch.Tensor
    """Every token but the first: targets_BT[b, t] is predicted at position t."""
    mask_BT: torch.Tensor
    """1 where the target was sampled by the model, as float."""
    behavior_BT: torch.Tensor
    """Stored behavior log-probabilities of the targets."""
    advantages_B: torch.Tensor
    weights_B: torch.Tensor
    temperature_B: torch.Tensor
    choices_NC: torch.Tensor | None = None
    """For the N targets with mask 1, row by row: the ids each was chosen among, padded with -1 (all -1: the whole
    vocabulary). None where no sample has any."""

    def to(self, device: torch.device) -> MicroBatch:
        """The same micro-batch on a device."""
        moved: dict[str, Any] = {
            name: value.to(device) for name, value in vars(self).items() if isinstance(value, torch.Tensor)
        }
        return replace(self, **moved)


def check_sample(sample: Sample) -> None:
    """Raise RecordDamaged for a sample that no model can have written as it is."""
    tokens, mask, logprobs = len(sample.token_ids), sample.loss_mask, sample.logprobs
    problem = None
    if not (tokens == len(mask) == len(logprobs)):
        problem = f"{tokens} tokens, {len(mask)} mask values and {len(logprobs)} log-probabilities"
    elif tokens and mask[0]:
        problem = "the first token is marked as sampled, but nothing precedes it"
    elif not all(math.isfinite(value) for value in (*logprobs, sample.advantage, sample.weight)):
        problem = "a log-probability, the advantage or the weight is not finite"
    elif sample.temperature <= 0:
        problem = f"temperature {sample.temperature}"
    elif sample.choices:
        problem = _flawed_choices(sample)
    if problem:
        raise RecordDamaged(
            f"sample {sample.sample_id}: {problem}",
            expected="equal lengths, a first token that was given, finite numbers",
            where=f"round {sample.round}, generation {sample.generation_id}",
            next_step="run `crl verify` on the run",
        )


def _flawed_choices(sample: Sample) -> str | None:
    trained = [token for token, mask in zip(sample.token_ids, sample.loss_mask, strict=True) if mask]
    if len(trained) != len(sample.choices):
        return f"{len(trained)} trained tokens and choices for {len(sample.choices)} of them"
    if any(token not in choices for token, choices in zip(trained, sample.choices, strict=True)):
        return "a trained token is not among those it was chosen from"
    return None


def trained_tokens(sample: Sample) -> int:
    """Tokens of the sample that carry the objective, |y| or |m|."""
    return sum(sample.loss_mask)


def has_gradient(sample: Sample) -> bool:
    """Whether the sample can change the weights: no forward pass is spent on advantage 0, weight 0 or no tokens."""
    return sample.weight * sample.advantage != 0 and trained_tokens(sample) > 0


def cut(samples: Sequence[Sample], micro_batch: int, ranks: int) -> list[list[list[Sample]]]:
    """[rank][step] → the samples of one micro-batch, at most `micro_batch` of them, all of one objective.

    Sorted by objective, length (longest first, so that what does not fit in memory fails at once) and id, so the cut
    does not depend on the order of the rows. Every rank has the same number of steps; where micro-batches run out a
    rank gets an empty list, for which it runs a dummy (collective operations need every rank).
    """
    ordered = sorted(samples, key=lambda sample: (sample.objective, -len(sample.token_ids), sample.sample_id))
    pieces = []
    for _, same in groupby(ordered, key=lambda sample: sample.objective):
        listed = list(same)
        pieces += [listed[start : start + micro_batch] for start in range(0, len(listed), micro_batch)]
    steps = math.ceil(len(pieces) / ranks)
    pieces += [[] for _ in range(steps * ranks - len(pieces))]
    return [pieces[rank::ranks] for rank in range(ranks)]


def collate(samples: Sequence[Sample]) -> MicroBatch:
    """Pad samples of one objective to a micro-batch on the CPU. Padding is token 0 behind attention mask 0."""
    length = max(2, *(len(sample.token_ids) for sample in samples)) - 1

    def padded(rows: Sequence[Sequence[float]], dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor([[*row, *([0] * (length - len(row)))] for row in rows], dtype=dtype)

    return MicroBatch(
        objective=samples[0].objective,
        input_ids_BT=padded([sample.token_ids[:-1] for sample in samples], torch.long),
        attention_mask_BT=padded([[1] * (len(sample.token_ids) - 1) for sample in samples], torch.long),
        targets_BT=padded([sample.token_ids[1:] for sample in samples], torch.long),
        mask_BT=padded([sample.loss_mask[1:] for sample in samples], torch.float32),
        behavior_BT=padded([sample.logprobs[1:] for sample in samples], torch.float32),
        advantages_B=torch.tensor([sample.advantage for sample in samples], dtype=torch.float32),
        weights_B=torch.tensor([sample.weight for sample in samples], dtype=torch.float32),
        temperature_B=torch.tensor([sample.temperature for sample in samples], dtype=torch.float32),
        choices_NC=padded_choices([(sample.choices, trained_tokens(sample)) for sample in samples]),
    )


def padded_choices(samples: Sequence[tuple[Sequence[Sequence[int]], int]]) -> torch.Tensor | None:
    """The choices of (choices, trained tokens) of each sample as one tensor [N, C]; None where there are none."""
    if not any(choices for choices, _ in samples):
        return None
    rows = [row for choices, trained in samples for row in (choices or [()] * trained)]
    width = max(map(len, rows))
    return torch.tensor([[*row, *([-1] * (width - len(row)))] for row in rows], dtype=torch.long)
