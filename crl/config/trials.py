"""Notes tested before they are believed: admission by trial, and suppression where a note does harm."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from crl.config.base import MOST_ROUNDS, Model


class TrialConfig(Model):
    """Admission by trial: a new note enters the bank if the actor plays better with it than without it."""

    layouts: int = Field(
        4, ge=1, le=1024, description="m: training layouts that a new note is played on, each with and without it."
    )
    threshold: float = Field(
        0.25,
        ge=-1,
        le=1,
        description="Least share of these episodes won with the note, less the share won without it, that admits it.",
    )
    screen: int | None = Field(
        None,
        ge=1,
        le=1024,
        description="Layouts after which a note that is not ahead is given up; none: all are played.",
    )
    notes: int | None = Field(
        None,
        ge=1,
        le=1_000_000,
        description="Most notes tried per family and round, those of won episodes first; the others stay out. None: "
        "all.",
    )
    holds: int = Field(
        10,
        ge=0,
        le=MOST_ROUNDS,
        description="Later rounds in which a result holds where the same text is written again; 0: none.",
    )
    reward: Literal["trial", "both", "uses"] = Field(
        "trial",
        description="What the writer of a tried note earns: 2 × the difference instead of what uses earn; that as one "
        "more use; or what uses earn alone (a note that stays out then earns nothing).",
    )


class SuppressConfig(Model):
    """Suppression: a text that does harm in a task family is not retrieved for it, and stays in the bank."""

    uses: int = Field(
        8, ge=2, le=1_000_000, description="Fewest uses of a text in a family, beside unguided rollouts, that count."
    )
    below: float = Field(
        0.0,
        ge=-2,
        le=2,
        description="A text is suppressed whose effect (outcome, ±1, less the mean of unguided rollouts of the same "
        "group) is surely below this.",
    )
    sureness: float = Field(1.64, ge=0, le=10, description="Standard errors between the effect and `below`, at least.")
    decay: float = Field(
        1.0,
        gt=0,
        le=1,
        description="What a round leaves of the weight of earlier uses; below 1 a suppressed text comes back in time.",
    )
