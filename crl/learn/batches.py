"""Samples to micro-batches of tensors: what the model reads, packed into one row; what objectives see, by sample.

Shapes: B samples, T target tokens (the longest sequence less one: token t is predicted from tokens before it), P
positions in one row that all samples share.

The samples of a micro-batch are one row of positions without padding. Samples that begin alike form a tree: a token
that several have in the same place, behind the same tokens, is one position, so the prompt of a group is read for all
of it. Each sample adds a **segment**, the positions that it does not share with the sample before it; the segment sees
the way from the root to itself and nothing else (`tree_attention`). Attention then costs no more than the samples
apart, and all else costs less by what they share, so to share is never slower and no rule has to choose. Cut and
ordered the same way on every run and rank.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import torch

from crl.config.models import Update
from crl.errors import RecordDamaged
from crl.records import Sample, first_sequence
from crl.text.prefixes import shared_prefix


@dataclass(frozen=True)
class Tree:
    """The positions of samples, P in all, in segments."""

    token_ids: list[int]
    depths: list[int]
    """How many tokens come before each position in its sample: its position id."""
    paths: list[list[int]]
    """Of each sample, the positions of its inputs in their order."""
    segments: list[int]
    """Of each sample, how many positions it adds: the last of its path, and the next of all. 0 where it adds none."""
    continued: bool = False
    """Whether several samples are sequences of one episode: many that see almost the same, or few long ones."""


def tree_of(samples: Sequence[Sample]) -> Tree:
    """The tree of the samples' inputs: all tokens of a sample but its last, which is only predicted.

    Each shares with the sample before it, so those that begin alike should be neighbors, as :func:`cut` has them.
    """
    episodes = {first_sequence(sample.generation_id) for sample in samples}
    tree = Tree([], [], [], [], continued=len(episodes) < len(samples))
    before: Sequence[int] = ()
    for sample in samples:
        inputs = sample.token_ids[:-1]
        shared = shared_prefix(before, inputs)
        first, own = len(tree.token_ids), len(inputs) - shared
        tree.paths.append([*(tree.paths[-1][:shared] if shared else ()), *range(first, first + own)])
        tree.token_ids.extend(inputs[shared:])
        tree.depths.extend(range(shared, len(inputs)))
        tree.segments.append(own)
        before = inputs
    return tree


def cut(samples: Sequence[Sample], micro_batch: int, ranks: int, *, way: Update = "packed") -> list[list[list[Sample]]]:
    """For each rank and step the samples of one micro-batch, all of one objective, in the order of their trees.

    A micro-batch computes at most as many positions, and predicts at most as many trained tokens, as `micro_batch` of
    the longest samples of its objective have: that bounds the memory. Sequences of one episode are one sample here, or
    each few would be a micro-batch that reads again what all share. A model whose attention cannot be told what a
    position sees reads at most `micro_batch` samples of about one length, `padded`, or a single one in `rows`.

    Micro-batches are ordered by size (largest first, so that what does not fit in memory fails at once), and the cut
    does not depend on the order of the samples. Every rank has the same number of steps; where micro-batches run out
    a rank gets an empty list, for which it runs a dummy (collective operations need every rank).
    """
    pieces: list[tuple[int, list[Sample]]] = []

    def order(sample: Sample) -> tuple[Any, ...]:
        length = len(sample.token_ids) if way == "padded" else 0
        return sample.objective, length, sample.token_ids, sample.sample_id

    most_samples = micro_batch if way == "padded" else 1
    ordered = sorted(samples, key=order)
    for _, same in groupby(ordered, key=lambda sample: sample.objective):
        listed = list(same)
        longest = max(len(sample.token_ids) - 1 for sample in listed)
        of_episode = Counter[str]()
        for sample in listed:
            of_episode[first_sequence(sample.generation_id)] += sum(sample.loss_mask)
        most, most_trained = micro_batch * longest, micro_batch * min(max(of_episode.values()), longest)
        positions, trained, together = 0, 0, list[Sample]()
        for sample in listed:
            own = len(sample.token_ids) - 1
            shared = shared_prefix(together[-1].token_ids[:-1], sample.token_ids[:-1]) if together else 0
            full = positions + own - shared > most or trained + sum(sample.loss_mask) > most_trained
            if together and (full if way == "packed" else len(together) == most_samples):
                pieces.append((positions, together))
                positions, trained, together, shared = 0, 0, [], 0
            together = [*together, sample]
            positions, trained = positions + own - shared, trained + sum(sample.loss_mask)
        pieces.append((positions, together))
    pieces.sort(key=lambda piece: -piece[0])
    found = [together for _, together in pieces]
    found += [[] for _ in range(-len(found) % ranks)]
    return [found[rank::ranks] for rank in range(ranks)]


@dataclass(frozen=True)
class MicroBatch:
    """Samples of one objective. What the objectives see is padded on the right; what the model reads has no padding."""

    objective: str
    input_ids_P: torch.Tensor
    """Every token but the last of each sequence; what samples have in common is there once."""
    depths_P: torch.Tensor
    """How many tokens of its sequence come before each."""
    tree: Tree
    positions_N: torch.Tensor
    """For the N targets with mask 1, row by row: the position that predicts each."""
    targets_BT: torch.Tensor
    """Every token of each sequence but the first."""
    mask_BT: torch.Tensor
    """1 where the target was sampled by the model, as float."""
    behavior_BT: torch.Tensor
    """Stored behavior log-probabilities of the targets."""
    advantages_BT: torch.Tensor
    """Advantage of each target: that of its sample, or of its turn."""
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
    proximal_BT: torch.Tensor | None = None
    """Those of the trained model before the first of several steps; None where there is one, or no correction."""
    entropy_BT: torch.Tensor | None = None
    """Entropy of the distribution that each target was drawn from, in nats, with gradient; 0 outside the mask."""
    teacher_BT: torch.Tensor | None = None
    """A teacher's log-probabilities of the targets, 0 outside the mask; None where no sample has one."""
    some_NK: torch.Tensor | None = None
    """For the N targets with mask 1, row by row: the ids that a teacher finds likeliest; None where it names none."""
    teacher_NK: torch.Tensor | None = None
    """A teacher's log-probabilities of these."""
    logprobs_NK: torch.Tensor | None = None
    """Those of the trained model, with gradient."""

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
    elif not all(
        math.isfinite(value)
        for value in (
            *(*logprobs, *sample.token_advantages, *sample.teacher_logprobs),
            *(sample.advantage, sample.weight),
        )
    ):
        problem = "a log-probability, an advantage or the weight is not finite"
    elif len(sample.token_advantages) not in (0, trained_tokens(sample)):
        problem = f"{len(sample.token_advantages)} advantages of {trained_tokens(sample)} trained tokens"
    elif len(sample.teacher_logprobs) not in (0, trained_tokens(sample)):
        problem = f"a teacher's log-probabilities of {len(sample.teacher_logprobs)} of {trained_tokens(sample)} tokens"
    elif not len(sample.top_ids) == len(sample.top_logprobs) in (0, trained_tokens(sample)):
        problem = f"a teacher's likeliest ids of {len(sample.top_ids)} of {trained_tokens(sample)} tokens"
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
    advantages = sample.token_advantages or [sample.advantage]
    return sample.weight != 0 and any(advantages) and trained_tokens(sample) > 0


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
        positions_N=torch.tensor(places, dtype=torch.long),
        targets_BT=padded([sample.token_ids[1:] for sample in samples], torch.long),
        mask_BT=padded([sample.loss_mask[1:] for sample in samples], torch.float32),
        behavior_BT=padded([sample.logprobs[1:] for sample in samples], torch.float32),
        advantages_BT=padded(
            [_of_targets(sample, sample.token_advantages, sample.advantage) for sample in samples], torch.float32
        ),
        weights_B=torch.tensor([sample.weight for sample in samples], dtype=torch.float32),
        temperature_B=torch.tensor([sample.temperature for sample in samples], dtype=torch.float32),
        fresh_B=torch.tensor([float(_fresh(sample) and sample.sample_id not in stale) for sample in samples]),
        choices_NC=padded_choices([(sample.choices, trained_tokens(sample)) for sample in samples]),
        teacher_BT=padded([_of_targets(sample, sample.teacher_logprobs, 0.0) for sample in samples], torch.float32)
        if any(sample.teacher_logprobs for sample in samples)
        else None,
        some_NK=_rows([sample.top_ids for sample in samples], torch.long),
        teacher_NK=_rows([sample.top_logprobs for sample in samples], torch.float32),
    )


def _rows(samples: Sequence[Sequence[Sequence[float]]], dtype: torch.dtype) -> torch.Tensor | None:
    """A row of each trained token of the samples; None where they have none."""
    rows = [row for sample in samples for row in sample]
    return torch.tensor(rows, dtype=dtype) if rows else None


def _of_targets(sample: Sample, of_trained: Sequence[float], otherwise: float) -> list[float]:
    """Of each target, from what each trained token has; `otherwise` of all where they have none."""
    if not of_trained:
        return [otherwise] * (len(sample.token_ids) - 1)
    own = iter(of_trained)
    return [next(own) if trained else 0.0 for trained in sample.loss_mask[1:]]


def _fresh(sample: Sample) -> bool:
    return sample.step == 0 and sample.source.partition("/")[0] == f"{sample.round:04d}"


def padded_choices(samples: Sequence[tuple[Sequence[Sequence[int]], int]]) -> torch.Tensor | None:
    """The choices of (choices, trained tokens) of each sample as one tensor [N, C]; None where there are none."""
    if not any(choices for choices, _ in samples):
        return None
    rows = [row for choices, trained in samples for row in (choices or [()] * trained)]
    width = max(map(len, rows))
    return torch.tensor([[*row, *([-1] * (width - len(row)))] for row in rows], dtype=torch.long)
