"""Objectives that recipes share beside those of Complementary RL (`mechanisms.py`)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from crl.config.base import Model
from crl.config.mechanisms import Correction


class ClippedObjective(Model):
    """GRPO with a lower and an upper bound of its own, and a penalty for leaving the base model."""

    clip_low: float = Field(0.2, gt=0, lt=1, description="Lower bound of the ratio: 1 − clip_low.")
    clip_high: float = Field(0.28, gt=0, le=1000, description="Upper bound of the ratio: 1 + clip_high.")
    kl: float = Field(
        0.001,
        ge=0,
        le=1000,
        description="Coefficient of the divergence from the base model (low-variance estimator k3); 0: none, and no "
        "base model is read in updates.",
    )
    aggregation: Literal["token_mean", "token_sum"] = Field(
        "token_sum", description="Over the tokens of a sequence; over sequences it is always the mean."
    )
    normalize: Literal["std", "mean"] = Field("std", description="Divide by the deviation, or subtract the mean only.")
    singleton: Literal["reward", "zero"] = Field(
        "reward", description="Advantage of the only member of a group: its reward (mean 0, deviation 1), or 0."
    )
    correction: Correction = None
