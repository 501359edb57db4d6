"""Which samples share a forward pass, and what of them is computed once: the prompt of a group is read for all of it.

The samples of a micro-batch are one row of positions without padding. Samples that begin alike form a tree: a token
that several have in the same place, behind the same tokens, is one position. Each sample adds a **segment**, the
positions that it does not share with the sample before it; the segment sees the way from the root to itself and
nothing else (`tree_attention`). Attention then costs no more than the samples apart, and all else costs less by what
they share, so to share is never slower and no rule has to choose. Cut and ordered the same way on every run and rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from crl.records import Sample


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


def tree_of(samples: Sequence[Sample]) -> Tree:
    """The tree of the samples' inputs: all tokens of a sample but its last, which is only predicted.

    Each shares with the sample before it, so those that begin alike should be neighbors, as :func:`cut` has them.
    """
    tree = Tree([], [], [], [])
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


def shared_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two sequences have in common from the first on."""
    pairs = zip(one, other, strict=False)
    return next((index for index, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def cut(samples: Sequence[Sample], micro_batch: int, ranks: int, *, packed: bool = True) -> list[list[list[Sample]]]:
    """[rank][step] → the samples of one micro-batch, all of one objective, in the order of their trees.

    A micro-batch computes at most as many positions, and predicts at most as many trained tokens, as `micro_batch` of
    the longest samples of its objective have: that bounds the memory. Without `packed` it is a single sample, for a
    model whose attention cannot be told what a position sees.

    Micro-batches are ordered by size (largest first, so that what does not fit in memory fails at once), and the cut
    does not depend on the order of the samples. Every rank has the same number of steps; where micro-batches run out
    a rank gets an empty list, for which it runs a dummy (collective operations need every rank).
    """
    pieces: list[tuple[int, list[Sample]]] = []
    ordered = sorted(samples, key=lambda sample: (sample.objective, sample.token_ids, sample.sample_id))
    for _, same in groupby(ordered, key=lambda sample: sample.objective):
        listed = list(same)
        most = micro_batch * max(len(sample.token_ids) - 1 for sample in listed)
        most_trained = micro_batch * max(sum(sample.loss_mask) for sample in listed)
        positions, trained, together = 0, 0, list[Sample]()
        for sample in listed:
            own = len(sample.token_ids) - 1
            shared = shared_prefix(together[-1].token_ids[:-1], sample.token_ids[:-1]) if together else 0
            full = positions + own - shared > most or trained + sum(sample.loss_mask) > most_trained
            if together and (full or not packed):
                pieces.append((positions, together))
                positions, trained, together, shared = 0, 0, [], 0
            together = [*together, sample]
            positions, trained = positions + own - shared, trained + sum(sample.loss_mask)
        pieces.append((positions, together))
    pieces.sort(key=lambda piece: -piece[0])
    found = [together for _, together in pieces]
    found += [[] for _ in range(-len(found) % ranks)]
    return [found[rank::ranks] for rank in range(ranks)]
