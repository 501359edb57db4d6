"""Samples to micro-batches of tensors: what the model reads, packed into one row; what objectives see, by sample.

Shapes: B samples, T target tokens (the longest sequence less one: token t is predicted from tokens before it), P
positions in one row that all samples share (`packing`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

import torch

from crl.errors import RecordDamaged
from crl.learn.packing import Tree, tree_of
from crl.records import Sample


@dataclass(frozen=True)
class MicroBatch:
    """Samples of one objective. What the objectives see is padded on the right; what the model reads has no padding."""

    objective: str
    input_ids_P: torch.Tensor
    """Every token but the last of each sequence; what samples have in common is there once."""
    depths_P: torch.Tensor
    """How many tokens of its sequence come before each."""
    tree: Tree
    places_N: torch.Tensor
    """For the N targets with mask 1, row by row: the position that predicts each."""
    targets_BT: torch.Tensor
    """Every token of each sequence but the first."""
    mask_BT: torch.Tensor
    """1 where the target was sampled by the model, as float."""
    behavior_BT: torch.Tensor
    """Stored behavior log-probabilities of the targets."""
    advantages_B: torch.Tensor
    weights_B: torch.Tensor
    temperature_B: torch.Tensor
    fresh_B: torch.Tensor
    """1 where the weights before this step sampled the tokens: in this round, which has taken no other step, and by a
    stage that reads no older ones."""
    choices_NC: torch.Tensor | None = None
    """For the N targets with mask 1, row by row: the ids each was chosen among, padded with -1 (all -1: the whole
    vocabulary). None where no sample has any."""
    reference_BT: torch.Tensor | None = None
    """The base model's log-probabilities of the targets; None where the objective does not compare with it."""

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


def collate(samples: Sequence[Sample], stale: Set[str] = frozenset()) -> MicroBatch:
    """The tensors of samples of one objective, on the CPU. `stale` are ids of samples of the round that older weights
    wrote than the update begins with."""
    tree = tree_of(samples)
    length = max(len(sample.token_ids) for sample in samples) - 1

    def padded(rows: Sequence[Sequence[float]], dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor([[*row, *([0] * (length - len(row)))] for row in rows], dtype=dtype)

    places = [
        position
        for sample, path in zip(samples, tree.paths, strict=True)
        for position, trained in zip(path, sample.loss_mask[1:], strict=True)
        if trained
    ]
    return MicroBatch(
        objective=samples[0].objective,
        input_ids_P=torch.tensor(tree.token_ids),
        depths_P=torch.tensor(tree.depths),
        tree=tree,
        places_N=torch.tensor(places, dtype=torch.long),
        targets_BT=padded([sample.token_ids[1:] for sample in samples], torch.long),
        mask_BT=padded([sample.loss_mask[1:] for sample in samples], torch.float32),
        behavior_BT=padded([sample.logprobs[1:] for sample in samples], torch.float32),
        advantages_B=torch.tensor([sample.advantage for sample in samples], dtype=torch.float32),
        weights_B=torch.tensor([sample.weight for sample in samples], dtype=torch.float32),
        temperature_B=torch.tensor([sample.temperature for sample in samples], dtype=torch.float32),
        fresh_B=torch.tensor([float(_fresh(sample) and sample.sample_id not in stale) for sample in samples]),
        choices_NC=padded_choices([(sample.choices, trained_tokens(sample)) for sample in samples]),
    )


def _fresh(sample: Sample) -> bool:
    return sample.step == 0 and sample.source.partition("/")[0] == f"{sample.round:04d}"


def padded_choices(samples: Sequence[tuple[Sequence[Sequence[int]], int]]) -> torch.Tensor | None:
    """The choices of (choices, trained tokens) of each sample as one tensor [N, C]; None where there are none."""
    if not any(choices for choices, _ in samples):
        return None
    rows = [row for choices, trained in samples for row in (choices or [()] * trained)]
    width = max(map(len, rows))
    return torch.tensor([[*row, *([-1] * (width - len(row)))] for row in rows], dtype=torch.long)
