"""The mechanisms of importance-weighted replay, and what it says of itself. No stage is imported here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar, Literal

from pydantic import Field

from crl.config import (
    EmbedderUse,
    FamilyConfig,
    Method,
    Model,
    RecipeConfig,
    RoleUse,
    SeedRange,
    StreamObjective,
)
from crl.errors import BadInput
from crl.rounds.impossible import refused, unread_settings, whole_reference

ACTOR = "actor"
NEUTRAL = 0.5
"""Score of a sample that the network has not seen."""


class ReplayBufferConfig(Model):
    """Past samples to draw from."""

    capacity: int = Field(100_000, ge=0, le=1_000_000, description="Episodes kept; the oldest leave. 0: none.")
    batch: int | None = Field(
        None,
        ge=1,
        le=65_536,
        description="Episodes per step; null: as many as a round plays. A smaller buffer gives all it has.",
    )
    steps: int = Field(1, ge=1, le=10_000, description="Steps per round, each on its own batch.")


class ExtractorNetworkConfig(Model):
    """A small network that predicts how much a sample helps."""

    embedder: str | None = Field(
        "minilm",
        min_length=1,
        description="Embeds a sample's task and actions: minilm, lexical or a sentence-transformers model. null: "
        "the network sees reward, advantage, length, age and likelihood only.",
    )
    hidden: int = Field(64, ge=1, le=4096, description="Width of the hidden layer.")
    learning_rate: float = Field(1e-3, gt=0, le=1, description="Learning rate (Adam).")
    epochs: int = Field(8, ge=1, le=10_000, description="Passes over the window per round.")
    window: int = Field(16, ge=1, le=1024, description="Rounds of measured draws to train on, including this one.")
    extractor_coefficient: float = Field(0.5, ge=0, le=1000, description="Weight of the binary cross-entropy.")
    coupling_coefficient: float = Field(0.1, ge=0, le=1000, description="Weight of the mean |score − label|.")
    refresh_every: int = Field(10, ge=1, le=1_000_000, description="Training episodes between scorings of the buffer.")
    refresh_samples: int | None = Field(
        1000, ge=1, le=1_000_000, description="Samples per scoring, drawn evenly; null: all."
    )


class ReplayProbeConfig(Model):
    """Training tasks that are played before and after an update, with the same random numbers."""

    tasks: int = Field(8, ge=1, le=4096, description="Tasks per family and round.")
    pool: int = Field(
        256, ge=1, le=1_000_000, description="Training seeds per family set apart for probes (the last ones)."
    )
    margin: float = Field(0.0, ge=0, le=1e6, description="Mean reward differences up to this size are ties.")
    scope: Literal["all", "family", "task"] = Field(
        "all",
        description="What labels a sample: the probes of all families, of its own, or of its own task. With "
        "task, probes play the tasks of drawn samples, and only these get labels.",
    )


class ImportanceReplayConfig(RecipeConfig):
    """Importance-weighted replay: updates draw past samples by a learned score."""

    kind: Literal["importance_replay"] = "importance_replay"
    BUILDER: ClassVar[str] = "crl.recipes.importance_replay.round:build"
    DRAWS_LISTED: ClassVar[bool] = False
    REPORT: ClassVar[str | None] = "crl.recipes.importance_replay.report:SECTION"
    DRAWS_AGAIN: ClassVar[bool] = True
    AFTER_ROLLOUTS: ClassVar[frozenset[str]] = frozenset(
        {
            "recipe.extractor.coupling_coefficient", "recipe.extractor.epochs",
            "recipe.extractor.extractor_coefficient", "recipe.extractor.learning_rate", "recipe.extractor.window",
            "recipe.probe.margin",
        }
    )  # fmt: skip

    weighting: Literal["learned", "uniform", "none"] = Field(
        "learned",
        description="How past samples are drawn: by score, evenly, or not at all (updates then use the round's "
        "samples).",
    )
    buffer: ReplayBufferConfig = Field(ReplayBufferConfig(), description="Past samples.")
    extractor: ExtractorNetworkConfig = Field(ExtractorNetworkConfig(), description="The network that scores samples.")
    probe: ReplayProbeConfig = Field(ReplayProbeConfig(), description="How crl measures whether an update helped.")
    objective: StreamObjective = Field(
        StreamObjective(epsilon_high=0.2, beta=0.0, loss_type="grpo"),
        description="GRPO, with ratios to the probabilities that sampled the tokens.",
    )

    @property
    def replays(self) -> bool:
        """Whether updates draw from a buffer."""
        return self.weighting != "none" and self.buffer.capacity > 0

    @property
    def learns(self) -> bool:
        """Whether worth is measured, learned, and drawn by."""
        return self.replays and self.weighting == "learned"

    def after_rollouts(self, method: Method) -> frozenset[str]:
        """Where nothing is probed, draws and updates follow all play. A probe after the update depends on them."""
        if self.learns:
            return self.AFTER_ROLLOUTS
        drawing = {
            f"recipe.{key}" for key in ("weighting", "buffer", "extractor", "objective", "probe.tasks", "probe.scope")
        }
        return self.AFTER_ROLLOUTS | drawing

    def training_seeds(self, family: FamilyConfig) -> SeedRange:
        """The train seeds that rounds draw from. Equal for every weighting, so that these can be compared."""
        seeds = family.train_seeds
        return SeedRange(start=seeds.start, count=seeds.count - self.probe.pool)

    def probe_seeds(self, family: FamilyConfig) -> SeedRange:
        """The train seeds that only probes play."""
        seeds = family.train_seeds
        return SeedRange(start=seeds.start + seeds.count - self.probe.pool, count=self.probe.pool)

    def roles(self) -> Mapping[str, RoleUse]:
        """An actor. What scores samples is no language model."""
        return {ACTOR: RoleUse(multi_turn=True)}

    def outputs(self, method: Method) -> Mapping[str, int]:
        """Episodes, and probes before and after the update where worth is learned."""
        probes = 2 * self.probe.tasks * len(method.families) if self.learns else 0
        return {ACTOR: method.most_episodes + probes}

    def embedder(self) -> EmbedderUse | None:
        """That of the network's features."""
        if not self.learns or self.extractor.embedder is None:
            return None
        return EmbedderUse(self.extractor.embedder)

    def problems(self, method: Method) -> Iterator[BadInput]:
        """Combinations that would run for hours and do nothing of what was asked for."""
        yield from unread_settings(method, reward="samples are compared by what the task pays")
        yield from whole_reference(method, self.objective, [method.owner(ACTOR)])
        for index, family in enumerate(method.families):
            if self.probe.pool >= family.train_seeds.count:
                yield refused(
                    f"method.families.{index}.train_seeds.count",
                    f"family {family.name} has {family.train_seeds.count} train seeds, and probes take "
                    f"{self.probe.pool}",
                    "more than recipe.probe.pool",
                )
        if self.learns and self.probe.scope != "task" and self.probe.tasks > self.probe.pool:
            yield refused(
                "method.recipe.probe.tasks",
                f"a round probes {self.probe.tasks} tasks, each once, out of a pool of {self.probe.pool}",
                "at most recipe.probe.pool",
            )
        if self.learns and not self.extractor.extractor_coefficient and not self.extractor.coupling_coefficient:
            yield refused("method.recipe.extractor", "its coefficients are 0, so nothing is learned", "one above 0")

    def fork_problems(self, method: Method, before: Method) -> Iterator[BadInput]:
        """The network of the round before is of one width, and sees embeddings of one kind or none; and no seed that
        was trained on is probed."""
        old = before.recipe
        if not (isinstance(old, ImportanceReplayConfig) and self.learns):
            return
        for family in method.families:
            earlier = before.family(family.name)
            if earlier is None:
                continue
            probed, trained_to = self.probe_seeds(family), old.probe_seeds(earlier).start
            if probed.start < trained_to and earlier.train_seeds.start < probed.start + probed.count:
                yield refused(
                    "method.recipe.probe.pool",
                    f"seeds from {probed.start} on of family {family.name} would be probed, and the rounds before "
                    f"trained on those up to {trained_to - 1}",
                    "the pool and the train_seeds of the rounds before",
                )
        if not old.learns:
            return
        there, new = old.extractor, self.extractor
        if there.hidden != new.hidden:
            yield refused("method.recipe.extractor.hidden", f"the network that is there has {there.hidden}", "the same")
        if there.embedder != new.embedder:
            seen = "no embedding" if there.embedder is None else f"embeddings of {there.embedder}"
            yield refused("method.recipe.extractor.embedder", f"the network that is there sees {seen}", "the same")


config_of = ImportanceReplayConfig.of
