"""What can be set of the recipe `reviewed`. Read by every process that opens an experiment, so it imports no stage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from crl.config import ActorObjective, RecipeConfig, RoleUse


class ReviewedConfig(RecipeConfig):
    """GRPO whose episodes a third role reviews; what it writes is trained by an objective of this package."""

    kind: str = "reviewed"
    BUILDER: ClassVar[str] = "crl_outside.recipe:build"
    REPORT: ClassVar[str | None] = "crl_outside.report:SECTION"

    actor_objective: ActorObjective = Field(ActorObjective(), description="GRPO of the actor.")
    review_scale: float = Field(0.5, gt=0, le=10, description="Factor of the reviewer's objective.")
    review_batch: int = Field(16, ge=1, le=4096, description="Reviews sampled side by side.")

    def roles(self) -> Mapping[str, RoleUse]:
        """Which roles it works with. Whether two of them share weights is a matter of the experiment."""
        return {"actor": RoleUse(multi_turn=True), "reviewer": RoleUse()}

    def prompts(self) -> frozenset[str]:
        """Prompts that the experiment must have."""
        return frozenset({"actor", "review"})
