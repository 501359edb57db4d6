"""The method: everything that can change a number. Frozen at the first run and digested."""

from __future__ import annotations

import hashlib
import json
from enum import StrEnum

from pydantic import Field, model_validator

from crl.config.base import Model
from crl.config.environments import FamilyConfig
from crl.config.mechanisms import (
    ActorCriticConfig,
    ActorObjective,
    BankConfig,
    DistillConfig,
    EvaluationConfig,
    ExtractorObjective,
    MergeConfig,
    RetrievalConfig,
    RolloutConfig,
    SelfDistillationConfig,
    WarmStartConfig,
)
from crl.config.prompts import PromptSet
from crl.config.roles import RoleConfig


class RecipeName(StrEnum):
    """Which stages a round is made of."""

    complementary = "complementary"
    baseline = "baseline"
    static_online = "static_online"
    experience_only = "experience_only"
    offline_bank = "offline_bank"


class Method(Model):
    """Everything that can change a number. Frozen at the first run and digested."""

    seed: int = Field(0, ge=0, lt=2**32, description="Experiment seed.")
    recipe: RecipeName = Field(RecipeName.complementary, description="Which stages a round is made of.")
    families: list[FamilyConfig] = Field(min_length=1, description="The mixture of task families.")
    actor: RoleConfig = Field(RoleConfig(), description="Policy actor.")
    extractor: RoleConfig = Field(RoleConfig(), description="Experience extractor; separate weights.")
    rollout: RolloutConfig = Field(RolloutConfig(), description="How episodes are played.")
    retrieval: RetrievalConfig = Field(RetrievalConfig(), description="How experiences are found.")
    distill: DistillConfig = Field(DistillConfig(), description="What the extractor reads and writes.")
    merge: MergeConfig = Field(MergeConfig(), description="Periodic merge.")
    bank: BankConfig = Field(BankConfig(), description="Capacity and eviction.")
    actor_objective: ActorObjective = Field(ActorObjective(), description="Eq. 4 and 5.")
    extractor_objective: ExtractorObjective = Field(ExtractorObjective(), description="Eq. 3 and 7.")
    # Left out of the digest where it is off: experiments frozen before it existed keep theirs.
    approve_bank: bool = Field(
        False, exclude_if=lambda value: value is False, description="A person approves each round's bank first."
    )
    # Left out of the digest where they are off: experiments frozen before they existed keep theirs.
    actor_critic: ActorCriticConfig | None = Field(
        None, exclude_if=lambda value: value is None, description="The actor judges an experience first; none: not."
    )
    self_distillation: SelfDistillationConfig | None = Field(
        None, exclude_if=lambda value: value is None, description="Self-distillation of guided episodes; none: not."
    )
    warm_up_rounds: int = Field(0, ge=0, description="Rounds that collect and distil before anything is trained.")
    warm_start: WarmStartConfig | None = Field(None, description="Supervised start; none starts from the base models.")
    evaluation: EvaluationConfig = Field(EvaluationConfig(), description="Held-out evaluation.")
    prompts: PromptSet = Field(description="Prompts; in a file, the name of one under conf/prompts/.")
    threads: int = Field(2, ge=1, le=1024, description="CPU threads of a process: they can change the last digit.")

    @model_validator(mode="after")
    def _families_differ(self) -> Method:
        names = [family.name for family in self.families]
        if len(set(names)) != len(names):
            raise ValueError(f"families must have different names, found {names}")
        return self

    @property
    def roles(self) -> tuple[str, ...]:
        """Roles that the recipe has. The model that a role without work names may not even be on this machine."""
        return ("actor",) if self.recipe is RecipeName.baseline else ("actor", "extractor")

    def role(self, name: str) -> RoleConfig:
        """The config of a role by its name (`actor` or `extractor`)."""
        return {"actor": self.actor, "extractor": self.extractor}[name]

    def digest(self) -> str:
        """SHA-256 over the canonical JSON of the method."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()
