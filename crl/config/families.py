"""What one task family of a mixture may have of its own: sampling, a reward convention, a place in the bank.

Each is optional, and left out of a dump where it is not set: experiments that compute the same have the same digest.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from crl.config.base import COLDEST, MOST_ROUNDS, Model
from crl.config.roles import SamplingConfig, StopString


def unset(value: Any) -> bool:
    """Whether a key has no value, so that it is left out of a dump."""
    return value is None


class FamilySampling(Model):
    """What is different of the actor's sampling when it plays this family."""

    temperature: float | None = Field(None, ge=COLDEST, le=5, exclude_if=unset, description="Divides the logits.")
    top_p: float | None = Field(None, gt=0, le=1, exclude_if=unset, description="Nucleus mass; 1 keeps all.")
    top_k: int | None = Field(None, ge=0, le=1_048_576, exclude_if=unset, description="Largest k; 0 keeps all.")
    max_new_tokens: int | None = Field(None, ge=1, le=32_768, exclude_if=unset, description="New tokens per turn.")
    constrain: Literal["none", "actions"] | None = Field(
        None, exclude_if=unset, description="actions: it answers with a legal action and nothing else; none: any text."
    )
    stop_strings: list[StopString] | None = Field(
        None, max_length=8, exclude_if=unset, description="Texts that end a turn once it contains one; []: none."
    )

    def over(self, sampling: SamplingConfig) -> SamplingConfig:
        """The settings of a role with those that are set here."""
        return sampling.model_copy(update=self.model_dump(exclude_none=True))


_Worth = Annotated[float | None, Field(ge=-1000, le=1000, exclude_if=unset)]


class FamilyReward(Model):
    """The reward convention of a family: what an episode is worth in training. Evaluation has the environment's own."""

    success: _Worth = Field(None, description="Reward of an episode that was won; none: scale · environment's + shift.")
    failure: _Worth = Field(None, description="Reward of one that was not; none: scale · environment's + shift.")
    scale: float = Field(1.0, gt=0, le=1000, description="Multiplies the environment's reward.")
    shift: float = Field(0.0, ge=-1000, le=1000, description="Is added to it.")

    @model_validator(mode="after")
    def _winning_pays(self) -> FamilyReward:
        if self.success is not None and self.failure is not None and self.success <= self.failure:
            raise ValueError(f"success is worth {self.success:g}, failure {self.failure:g}: success must be worth more")
        return self

    def of(self, reward: float, *, success: bool) -> float:
        """What an episode is worth that its environment gave `reward`."""
        declared = self.success if success else self.failure
        return self.scale * reward + self.shift if declared is None else declared


class FamilyBank(Model):
    """A family's place in the experience bank."""

    partition: Literal["shared", "family"] | None = Field(
        None,
        exclude_if=unset,
        description="What retrieval searches for its episodes. family: its own entries; shared: those of all families "
        "that share. None: as retrieval.scope says, where bank means shared.",
    )
    capacity: int | None = Field(
        None, ge=1, le=10_000_000, exclude_if=unset, description="Its entries; none: bank.capacity."
    )


class FamilyChange(Model):
    """A task that becomes another one while a run goes on: what was learned of it may no longer fit."""

    round: int = Field(
        ge=1, le=MOST_ROUNDS, description="First round that is played, and evaluated, with the new settings."
    )
    environment: dict[str, Any] = Field(
        min_length=1, description="The keys of the environment that change, with their new values."
    )
