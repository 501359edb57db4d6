"""What every config model shares: frozen, unknown keys refused; and a range of environment seeds."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class Model(BaseModel):
    """Frozen; unknown keys are errors."""

    # Titles are the keys of the YAML file: a form would else show the name of a class, twice for the two roles.
    model_config = ConfigDict(
        frozen=True, extra="forbid", protected_namespaces=(), field_title_generator=lambda name, _: name
    )


class SeedRange(Model):
    """`count` consecutive environment seeds from `start`."""

    start: int = Field(0, ge=0, description="First environment seed.")
    count: int = Field(1000, ge=1, description="How many consecutive seeds.")

    def overlaps(self, other: SeedRange) -> bool:
        """Whether the two ranges share a seed."""
        return self.start < other.start + other.count and other.start < self.start + self.count
