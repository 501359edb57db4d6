"""The settings of a warm start, as pydantic models; its file is in `conf/warm/`."""

from __future__ import annotations

import hashlib
import json
from functools import partial
from pathlib import Path

from pydantic import Field, ValidationError, model_validator

from crl.config import DeepSpeedConfig, PromptConfig
from crl.config.base import NAME_PATTERN, Model
from crl.config.load import find_prompts, listed_errors, read_yaml, readable
from crl.envs.realms import RealmsConfig
from crl.errors import BadInput
from crl.paths import experiment_file

EXTRACTOR_SEEDS, VERDICT_SEEDS, ANSWER_SEEDS, REFLECTION_SEEDS = 400_000, 600_000, 700_000, 800_000
EXPERIENCE_SEEDS = 900_000
"""First practice seed of what is demonstrated beside the actor's episodes, which begin at 0."""


class MiniatureConfig(Model):
    """A miniature: a small Llama with a word-level tokenizer."""

    width: int = Field(96, ge=8, le=1024, description="Hidden size.")
    layers: int = Field(4, ge=1, le=32, description="Layers.")
    heads: int = Field(4, ge=1, le=64, description="Attention heads; they divide the width.")
    positions: int = Field(256, ge=64, le=8192, description="Longest sequence in tokens.")

    @model_validator(mode="after")
    def _heads_divide(self) -> MiniatureConfig:
        if self.width % (2 * self.heads):
            raise ValueError(f"width {self.width} is not an even multiple of {self.heads} heads")
        return self


class Training(Model):
    """One supervised update."""

    num_train_epochs: int = Field(3, ge=1, le=100, description="Passes over the demonstrations.")
    batch: int = Field(64, ge=1, le=4096, description="Demonstrations per step.")
    learning_rate: float = Field(
        2e-3, gt=0, le=1, description="Peak rate: it rises for 100 steps, then falls as a cosine."
    )


class ActorDemonstrations(Model):
    """What the actor imitates: a plan in words, then shortest safe moves, under hints of varying quality."""

    episodes: int = Field(40_000, ge=1, le=1_000_000, description="Demonstrations.")
    full: float = Field(0.60, ge=0, le=1, description="Share with a hint that names key and goal.")
    partial: float = Field(0.15, ge=0, le=1, description="Share with a hint that names only the key.")
    slips: float = Field(
        0.15, ge=0, le=1, description="Share of later moves that are random safe moves, and not learned."
    )
    asking: float = Field(0.0, ge=0, le=1, description="Demonstrations that ask first, relative to the others.")
    verdicts: int = Field(0, ge=0, le=1_000_000, description="Verdicts on experiences (actor-critic), format only.")
    # This and `reflections` are left out of the digest where they are off: what computes the same has the same digest.
    instructed: float = Field(
        0.0,
        ge=0,
        le=1,
        exclude_if=lambda value: not value,
        description="Share of hints given as instructions, as in Experiential RL.",
    )

    @model_validator(mode="after")
    def _shares(self) -> ActorDemonstrations:
        if self.full + self.partial > 1:
            raise ValueError(f"full {self.full} and partial {self.partial} are more than all demonstrations")
        return self


class ExtractorDemonstrations(Model):
    """What the extractor imitates: noisy experiences about scripted episodes."""

    episodes: int = Field(12_000, ge=1, le=1_000_000, description="Episodes to write about.")
    noise: float = Field(0.25, ge=0, le=1, description="Share of key and goal words replaced by random symbols.")
    returns_won: float = Field(0.10, ge=0, le=1, description="Share of won episodes answered with RETURN.")
    returns_lost: float = Field(0.30, ge=0, le=1, description="Share of lost episodes answered with RETURN.")
    updates: float = Field(0.20, ge=0, le=1, description="Share of lost guided episodes answered with UPDATE.")
    merges: int = Field(0, ge=0, le=1_000_000, description="Chunks of entries to merge.")
    answers: int = Field(0, ge=0, le=1_000_000, description="Questions to answer (search-and-ask).")
    reflections: int = Field(
        0,
        ge=0,
        le=1_000_000,
        exclude_if=lambda value: not value,
        description="Lost attempts to reflect on (Experiential RL; prompt `reflect`).",
    )


class ExperienceDemonstrations(Model):
    """What an experience model (DreamGym) imitates: steps of practice episodes, with reasons."""

    episodes: int = Field(10_000, ge=1, le=1_000_000, description="Episodes; two steps of each are learned.")
    wander: float = Field(0.3, ge=0, le=1, description="Share of random moves; the others follow a plan.")


class WarmStartFile(Model):
    """A model, a practice environment, and demonstrations for each role."""

    name: str = Field(pattern=NAME_PATTERN, description="Name: its models are warm:<name>/<role>.")
    seed: int = Field(1, ge=0, lt=2**32, description="Seed.")
    threads: int = Field(1, ge=1, le=1024, description="CPU threads; they can change the last digit.")
    model: str = Field("miniature", description="miniature, or any model of `crl doctor`.")
    miniature: MiniatureConfig = Field(MiniatureConfig(), description="Sizes of the miniature.")
    context: int = Field(256, ge=64, le=1_048_576, description="Longest sequence in tokens.")
    deepspeed: DeepSpeedConfig = Field(DeepSpeedConfig(), description="Only autocast and gradient_checkpointing count.")
    environment: RealmsConfig = Field(RealmsConfig(practice=True), description="Where it practices; `practice: true`.")
    prompts: dict[str, PromptConfig] = Field(description="Prompts; in a file, names under conf/prompts/.")
    training: Training = Field(Training(), description="Supervised update of both roles.")
    actor: ActorDemonstrations = Field(ActorDemonstrations(), description="Demonstrations for the actor.")
    extractor: ExtractorDemonstrations = Field(
        ExtractorDemonstrations(), description="Demonstrations for the extractor."
    )
    experience: ExperienceDemonstrations | None = Field(
        None,
        exclude_if=lambda value: value is None,
        description="Demonstrations for an experience model (prompt `predict`); null: none.",
    )

    @model_validator(mode="after")
    def _practices(self) -> WarmStartFile:
        if not self.environment.practice:
            raise ValueError("environment.practice must be true: a warm start may not see the rules of a world")
        return self

    @model_validator(mode="after")
    def _has_prompts(self) -> WarmStartFile:
        for key, wanted, name in (
            ("extractor.reflections", self.extractor.reflections, "reflect"),
            ("experience", self.experience, "predict"),
        ):
            if wanted and name not in self.prompts:
                raise ValueError(f"{key} needs a prompt named {name}")
        return self

    @model_validator(mode="after")
    def _holds_out(self) -> WarmStartFile:
        used = {
            "actor.episodes": (0, self.actor.episodes + round(self.actor.episodes * self.actor.asking)),
            "extractor.episodes": (EXTRACTOR_SEEDS, self.extractor.episodes),
            "actor.verdicts": (VERDICT_SEEDS, self.actor.verdicts),
            "extractor.answers": (ANSWER_SEEDS, self.extractor.answers),
            "extractor.reflections": (REFLECTION_SEEDS, self.extractor.reflections),
            "experience.episodes": (EXPERIENCE_SEEDS, self.experience.episodes if self.experience else 0),
        }
        end = self.environment.held_out_from
        for what, (first, count) in used.items():
            if first + count > end:
                raise ValueError(f"{what} takes {count} seeds from {first} on; environment.held_out_from is {end}")
        return self

    def digest(self) -> str:
        """SHA-256 over the canonical JSON of the settings but the name: it says where they are, not what they are."""
        text = json.dumps(self.model_dump(mode="json", exclude={"name"}), sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()


def load_warm_start(path: str | Path) -> WarmStartFile:
    """Read a warm start's file. Raises BadInput naming file, key, what was found and what was expected."""
    path = experiment_file(path)
    data = read_yaml(path)
    if isinstance(data.get("prompts"), str):
        data["prompts"] = read_yaml(find_prompts(data["prompts"], path.parent, str(path)))
    try:
        return WarmStartFile.model_validate(data)
    except ValidationError as error:
        raise BadInput(
            f"{path} is not a valid warm start:\n"
            + "\n".join(listed_errors(error, partial(readable, model=WarmStartFile))),
            next_step="correct the keys named above; docs/study_file.md describes every key",
        ) from None
