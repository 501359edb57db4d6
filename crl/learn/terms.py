"""Which objectives an update mixes, as data: a name on every sample, and behind it a function with its settings.

Functions are named and imported where the update runs, so a recipe can list its objectives without torch. A function
takes one micro-batch and returns its part of the loss of the whole batch::

    def term(batch: MicroBatch, logprobs_BT, config, normalizer) -> tuple[Tensor, Statistics]

`normalizer` is the number of trained tokens of all samples of that objective, over micro-batches and ranks.
"""

from __future__ import annotations

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


def objectives(*configs: PolicyObjective | ExtractorObjective) -> Mapping[str, Objective]:
    """GRPO and CISPO with these settings, and next-token loss, by the name that samples carry."""
    found = {"nll": NLL}
    for config in configs:
        if isinstance(config, PolicyObjective):
            needs = {"reference": config.beta > 0, "entropy": config.entropy_coef > 0}
            found["grpo"] = Objective("crl.learn.objectives:grpo_term", config, **needs)
        else:
            found["cispo"] = Objective("crl.learn.objectives:cispo_term", config)
    return found
