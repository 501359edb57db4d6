"""Which objectives an update mixes, as data: a name on every sample, and behind it a function with its settings.

Functions are named and imported where the update runs, so a recipe can list its objectives without torch. A function
takes one micro-batch and returns its part of the loss of the whole batch::

    def term(batch: MicroBatch, logprobs_BT, config, normalizer) -> tuple[Tensor, Statistics]

`normalizer` is the number of trained tokens of all samples of that objective, over micro-batches and ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from crl.config import ExtractorObjective
from crl.config.mechanisms import PolicyObjective
from crl.config.registry import load_object
from crl.errors import BadInput


@dataclass(frozen=True)
class Objective:
    """One objective of an update."""

    function: str
    """`module:function`."""
    config: Any = None
    """Its settings, handed to the function as they are."""
    on_policy: bool = True
    """Whether it compares with the probabilities that sampled the tokens: ratios of the metrics are of such ones."""
    reference: bool = False
    """Whether it compares with the base model: the update then has its log-probabilities too (`scoring.Reference`)."""
    entropy: bool = False
    """Whether the entropies of the distributions that tokens were drawn from have a gradient, too."""
    divides: bool = True
    """Whether it divides by the normalizer; otherwise the weights of a batch's samples are parts of a whole."""
    share: float | None = None
    """Its part of the squared gradient, beside objectives without one; None: its samples weigh what they say."""

    @property
    def corrects(self) -> bool:
        """Whether it goes by the log-probabilities before the first step (`mismatch`)."""
        return getattr(self.config, "importance_sampling_correction", None) is not None

    def load(self) -> Callable[..., Any]:
        """The function. Raises BadInput where the name leads nowhere."""
        try:
            found: Callable[..., Any] = load_object(self.function)
        except (ImportError, AttributeError, ValueError) as error:
            raise BadInput(
                f"objective {self.function!r} cannot be loaded: {error}",
                expected="module:function of a module that can be imported",
                where="the objectives of the recipe",
            ) from error
        return found


NLL = Objective("crl.learn.objectives:nll_term", on_policy=False)
"""Next-token loss: self-distillation, internalization, supervised samples."""


REVERSE_KL = Objective("crl.learn.objectives:reverse_kl_term", on_policy=False)
"""The divergence from a teacher, on the student's own samples."""


def objectives(*configs: PolicyObjective | ExtractorObjective) -> Mapping[str, Objective]:
    """GRPO and CISPO with these settings, and next-token loss, by the name that samples carry."""
    found = {"nll": NLL}
    for config in configs:
        if isinstance(config, PolicyObjective):
            needs = {"reference": config.beta > 0, "entropy": config.entropy_coef > 0}
            found["grpo"] = Objective("crl.learn.objectives:grpo_term", config, divides=False, **needs)
        else:
            found["cispo"] = Objective("crl.learn.objectives:cispo_term", config)
    return found


MOST_MOVED = 2.0
"""By how much the factor of an objective changes in a round, at most."""


def share_factors(
    norms: Mapping[str, float], shares: Mapping[str, float], before: Mapping[str, float]
) -> dict[str, float]:
    """What each objective of `shares` is multiplied by so that it has that part of the squared gradient.

    `norms` are of the gradients of all objectives of a step, each alone and unscaled; `before` are the factors of the
    round before, from which one moves at most :data:`MOST_MOVED`-fold; the first is at most 1, or a first batch that
    says next to nothing would have a factor without bound. The parts are those of the sum of the squares: how far two
    gradients point the same way does not count. Where there is nothing to compare with, the factor stays.
    """
    others = math.fsum(norm**2 for kind, norm in norms.items() if kind not in shares)
    present = {kind: share for kind, share in shares.items() if norms.get(kind)}
    factors = {}
    for kind in shares:
        last = before.get(kind)
        if kind not in present or not others:
            factors[kind] = 1.0 if last is None else last
            continue
        wanted = math.sqrt(others * present[kind] / (1.0 - math.fsum(present.values()))) / norms[kind]
        low, high = (0.0, 1.0) if last is None else (last / MOST_MOVED, last * MOST_MOVED)
        factors[kind] = min(max(wanted, low), high)
    return factors


def gradient_shares(norms: Mapping[str, float], factors: Mapping[str, float]) -> dict[str, float]:
    """The part of the squared gradient that each objective with a factor has with it."""
    squares = {kind: (factors.get(kind, 1.0) * norm) ** 2 for kind, norm in norms.items()}
    total = math.fsum(squares.values())
    return {kind: squares.get(kind, 0.0) / total if total else 0.0 for kind in factors}
