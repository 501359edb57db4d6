"""The experiment: `name`, `method` (frozen and digested) and `runtime` (free), as pydantic models.

Every field has a description and a bound: it becomes the form in the Prefect UI and the text of `crl doctor`. Models
are frozen and refuse unknown keys. `method` holds whatever can change a number; a changed method is a new experiment.
Reading a YAML file and resolving the prompt file it names is in `crl/experiment.py`.
"""

from __future__ import annotations

import hashlib
import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Model(BaseModel):
    """Frozen; unknown keys are errors."""

    # Titles are the keys of the YAML file: a form would else show the name of a class, twice for the two roles.
    model_config = ConfigDict(
        frozen=True, extra="forbid", protected_namespaces=(), field_title_generator=lambda name, _: name
    )


class RecipeName(StrEnum):
    """Which stages a round is made of."""

    complementary = "complementary"
    baseline = "baseline"
    static_online = "static_online"
    experience_only = "experience_only"


class WhenBusy(StrEnum):
    """What a run does while another attempt works on the same experiment."""

    wait = "wait"
    refuse = "refuse"


class TaskRunnerName(StrEnum):
    """Where the parts of a stage run when there is more than one shard."""

    engines = "engines"
    """Engines side by side under the driver; no further Prefect tasks."""
    threads = "threads"
    processes = "processes"
    dask = "dask"


class SeedRange(Model):
    """`count` consecutive environment seeds from `start`."""

    start: int = Field(0, ge=0, description="First environment seed.")
    count: int = Field(1000, ge=1, description="How many consecutive seeds.")

    def overlaps(self, other: SeedRange) -> bool:
        """Whether the two ranges share a seed."""
        return self.start < other.start + other.count and other.start < self.start + self.count


class MiniHackConfig(Model):
    """A registered MiniHack task."""

    model_config = ConfigDict(title="MiniHack")

    kind: Literal["minihack"] = "minihack"
    id: str = Field("MiniHack-Room-Ultimate-5x5-v0", description="Registered MiniHack id.")
    max_turns: int = Field(10, ge=1, le=1000, description="Turns before an episode counts as failed.")


class FrozenLakeConfig(Model):
    """FrozenLake, deterministic, a solvable map for each seed; `masked` replaces symbols and gives no rules."""

    model_config = ConfigDict(title="FrozenLake")

    kind: Literal["frozenlake"] = "frozenlake"
    size_min: int = Field(4, ge=2, le=16, description="Smallest side of the map.")
    size_max: int = Field(4, ge=2, le=16, description="Largest side of the map.")
    frozen_probability: float = Field(0.8, ge=0.05, le=1.0, description="Probability that a cell is safe.")
    masked: bool = Field(False, description="Abstract symbols and no rules: only action names are told.")
    max_turns: int = Field(8, ge=1, le=1000, description="Turns before an episode counts as failed.")

    @model_validator(mode="after")
    def _sizes(self) -> FrozenLakeConfig:
        if self.size_min > self.size_max:
            raise ValueError(f"size_min {self.size_min} is larger than size_max {self.size_max}")
        return self


EnvironmentConfig = Annotated[MiniHackConfig | FrozenLakeConfig, Field(discriminator="kind")]


class FamilyConfig(Model):
    """One task family: its environment, its share of a round, its seeds."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,30}$", description="Name of the task family (lower case).")
    environment: EnvironmentConfig = Field(description="The environment its episodes are played in.")
    groups: int = Field(4, ge=1, le=4096, description="Groups a round.")
    train_seeds: SeedRange = Field(SeedRange(start=0, count=100_000), description="Seeds training may draw from.")
    evaluation_seeds: SeedRange = Field(
        SeedRange(start=1_000_000, count=16), description="Held-out seeds, played at every evaluation."
    )

    @model_validator(mode="after")
    def _disjoint(self) -> FamilyConfig:
        if self.train_seeds.overlaps(self.evaluation_seeds):
            raise ValueError(f"family {self.name}: train_seeds and evaluation_seeds overlap; they must share no seed")
        return self


class SamplingConfig(Model):
    """How a role samples."""

    temperature: float = Field(1.0, gt=0, le=5, description="Divides the logits, when sampling and when training.")
    top_p: float = Field(1.0, gt=0, le=1, description="Nucleus mass; 1 keeps all.")
    top_k: int = Field(0, ge=0, description="Largest k; 0 keeps all.")
    max_new_tokens: int = Field(64, ge=1, le=32_768, description="New tokens a turn (actor) or an output (extractor).")


class LoraConfig(Model):
    """Low-rank adapters (peft) instead of full weights."""

    rank: int = Field(16, ge=1, le=1024, description="Rank of the adapters.")
    alpha: float = Field(32, gt=0, description="Scale numerator: the update is multiplied by alpha / rank.")
    target_modules: list[str] | Literal["all-linear"] = Field("all-linear", description="Modules that get an adapter.")


class OptimizerConfig(Model):
    """Optimiser of a role."""

    kind: Literal["adamw", "sgd"] = Field("adamw", description="AdamW, or plain SGD (for comparing gradients).")
    learning_rate: float = Field(1e-6, gt=0, le=10, description="Constant learning rate.")
    betas: tuple[float, float] = Field((0.9, 0.999), description="AdamW's moment decay rates.")
    weight_decay: float = Field(0.0, ge=0, le=1, description="Decoupled weight decay.")
    gradient_clip: float = Field(1.0, ge=0, description="Largest gradient norm; 0 does not clip.")


class DeepSpeedConfig(Model):
    """The update engine."""

    zero_stage: Literal[0, 1, 2, 3] = Field(0, description="ZeRO stage.")
    ranks: int = Field(1, ge=1, le=1024, description="Processes of the engine.")
    micro_batch: int = Field(4, ge=1, le=1024, description="Sequences a forward pass and rank; more accumulate.")
    autocast: Literal["none", "bfloat16"] = Field("none", description="Compute precision; weights stay float32.")
    gradient_checkpointing: bool = Field(False, description="Recompute activations: less memory, more time.")


class RoleConfig(Model):
    """A model with its sampling and training."""

    model: str = Field(
        "smollm2-135m-instruct",
        description="tiny, smollm2-135m-instruct, a directory of a transformers checkpoint, or a Hugging Face id.",
    )
    dtype: Literal["float32", "bfloat16"] = Field("float32", description="Precision of the sampling model.")
    context: int = Field(2048, ge=32, le=1_048_576, description="Longest sequence in tokens.")
    sampling: SamplingConfig = Field(SamplingConfig(), description="How it samples.")
    lora: LoraConfig | None = Field(None, description="Adapters; none trains full weights.")
    optimizer: OptimizerConfig = Field(OptimizerConfig(), description="Optimiser.")
    deepspeed: DeepSpeedConfig = Field(DeepSpeedConfig(), description="Update engine.")


class RolloutConfig(Model):
    """How episodes are played."""

    group_size: int = Field(8, ge=2, le=1024, description="K, rollouts of one task; even, half guided, half free.")
    wave_groups: int = Field(4, ge=1, le=1024, description="Groups that share a batch and its key-value cache.")
    action_format: Literal["tag", "word"] = Field(
        "word", description="tag: the last <action>…</action> counts; word: the first legal action named counts."
    )
    placement: Literal["system", "user"] = Field("user", description="Where the experience stands, always last.")

    @model_validator(mode="after")
    def _even(self) -> RolloutConfig:
        if self.group_size % 2:
            raise ValueError(f"group_size is {self.group_size}; it must be even: half guided, half free")
        return self


class RetrievalConfig(Model):
    """Eq. 6 and its choices."""

    embedder: str = Field("minilm", description="minilm (all-MiniLM-L6-v2) or lexical (hashed bag of words).")
    per: Literal["episode", "group"] = Field("episode", description="One retrieval a guided episode, or a group.")
    scope: Literal["family", "bank"] = Field("family", description="Search the task family or the whole bank.")
    top_k: Literal[1] = Field(1, description="K of eq. 6: experiences an episode (the method uses one).")
    candidates: int = Field(16, ge=1, le=4096, description="N of eq. 6: candidates are N times K.")
    diversify: bool = Field(True, description="Re-rank by eq. 6; off takes the nearest.")
    count_weight: float = Field(0.4, ge=0, description="λ of eq. 6.")
    rank_score: Literal["negative_rank", "fraction"] = Field(
        "negative_rank", description="s_rank: −rank, or 1 − rank/N."
    )
    recent_rounds: int = Field(
        1, ge=0, description="Window of eq. 6's recency in rounds, the present one included; 0: off."
    )
    threshold: float = Field(0.0, ge=-1, le=1, description="Least cosine; with nothing above it the episode is free.")
    # Left out of the digest where nothing is asked for: experiments frozen before it existed keep theirs.
    index: Literal["auto", "exact", "approximate"] = Field(
        "auto",
        exclude_if=lambda value: value == "auto",
        description="Exact search, approximate, or by size and hardware: approximate above 30,000 entries on a CPU.",
    )


class DistillConfig(Model):
    """What the extractor reads and writes."""

    episodes: Literal["guided", "all"] = Field(
        "all", description="Which episodes are distilled; a round in which nothing guided is distilled whole."
    )
    format: Literal["json", "lines"] = Field("lines", description="json as the paper; lines for small models.")
    max_operations: int = Field(3, ge=1, le=16, description="Operations an output may hold.")
    max_characters: int = Field(400, ge=8, le=20_000, description="Longest experience text.")


class MergeConfig(Model):
    """Periodic sliding merge."""

    every: int = Field(5, ge=0, description="Merge after this many rounds; 0 never.")
    chunk: int = Field(5, ge=2, le=64, description="Entries shown at once.")
    # Left out of the digest at their defaults: experiments frozen before they existed keep theirs.
    candidates: Literal["all", "near_duplicates"] = Field(
        "all",
        exclude_if=lambda value: value == "all",
        description="all as the paper; near_duplicates shows only entries that resemble another of their family.",
    )
    similarity: float = Field(
        0.9, gt=0, le=1, exclude_if=lambda value: value == 0.9, description="Cosine from which two entries resemble."
    )


class BankConfig(Model):
    """Capacity and eviction."""

    capacity: int = Field(20_000, ge=1, description="Entries a task family.")
    eviction: Literal["fifo", "least_useful"] = Field("fifo", description="What goes when the family is full.")


class ActorObjective(Model):
    """Eq. 4 and 5."""

    clip: float = Field(0.2, gt=0, lt=1, description="ε of eq. 5.")
    ratio: Literal["token", "sequence"] = Field("token", description="Ratio a token, or a sequence.")
    aggregation: Literal["token_mean", "token_sum"] = Field("token_mean", description="Over an episode's tokens.")
    advantage: Literal["subgroup", "pooled"] = Field("subgroup", description="Baseline inside subgroups, or pooled.")
    normalise: Literal["std", "mean"] = Field("std", description="Divide by the deviation, or subtract the mean only.")


class ExtractorObjective(Model):
    """Eq. 3 and 7."""

    clip_low: float = Field(0.1, gt=0, lt=1, description="ε_low of eq. 3.")
    clip_high: float = Field(0.1, gt=0, description="ε_high of eq. 3.")
    batch: int = Field(64, ge=2, description="|B_φ|: outputs an update; training waits until so many are scored.")
    alpha: float = Field(0.5, ge=0, description="α of eq. 7.")
    delta: int = Field(1, ge=0, description="δ of eq. 7, in rounds.")
    malformed_reward: float = Field(-2.0, ge=-10, le=10, description="Reward of a malformed output.")
    return_reward: Literal["none", "free_mean"] | float = Field(
        "none", description="Reward of `return`: unscored, the free twins' outcome, or a number."
    )


class EvaluationConfig(Model):
    """Held-out evaluation."""

    every: int = Field(1, ge=0, description="Evaluate after every so many rounds; 0 never.")
    temperature: float = Field(1.0, gt=0, le=5, description="Sampling temperature in evaluation.")


class WarmStartConfig(Model):
    """Supervised start before round 1: form, not the answer."""

    actor_episodes: int = Field(48, ge=0, le=100_000, description="Demonstrations for the actor; 0: none.")
    extractor_episodes: int = Field(48, ge=0, le=100_000, description="Templates over real episodes; 0: none.")
    demonstrations: Literal["oracle", "random"] = Field(
        "oracle", description="What the actor imitates: oracle, or random legal actions (form and nothing else)."
    )
    epochs: int = Field(1, ge=1, le=100, description="Passes over the demonstrations.")
    learning_rate: float = Field(1e-4, gt=0, le=1, description="Learning rate.")


class Exchange(Model):
    """A few-shot exchange."""

    user: str = Field(min_length=1, description="What is shown.")
    assistant: str = Field(min_length=1, description="The answer in form.")


class PromptConfig(Model):
    """Prompt of one role. Placeholders in braces are filled by name; others are refused."""

    system: str = Field(min_length=1, description="System text.")
    examples: list[Exchange] = Field([], description="Few-shot exchanges before the first real one.")
    first: str = Field(min_length=1, description="First real user message.")
    following: str = Field("{feedback}{observation}", description="Later user messages (actor).")
    experience: str = Field("Advice: {experience}\n", description="How an experience is shown (actor).")


class PromptSet(Model):
    """All prompts of an experiment; they are part of the method."""

    actor: PromptConfig = Field(description="Actor: {goal} {experience} {observation} {actions} {feedback}.")
    distill: PromptConfig = Field(description="Extractor: {goal} {trajectory} {outcome} {experience}.")
    merge: PromptConfig = Field(description="Extractor, merging: {family} {entries}.")


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

    def role(self, name: str) -> RoleConfig:
        """The config of a role by its name (`actor` or `extractor`)."""
        return {"actor": self.actor, "extractor": self.extractor}[name]

    def digest(self) -> str:
        """SHA-256 over the canonical JSON of the method."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()


class Runtime(Model):
    """What changes no number: paths, shards, limits, retries, retention."""

    runs: Path | None = Field(None, description="Where run directories lie; default $CRL_RUNS or ./runs.")
    shards: int = Field(1, ge=1, le=256, description="Engines that collect side by side.")
    task_runner: TaskRunnerName = Field(
        TaskRunnerName.engines,
        description="What spreads the shards: engines, or Prefect tasks on a task runner (without Prefect: engines).",
    )
    when_busy: WhenBusy = Field(
        WhenBusy.wait, description="While another run works on the experiment: wait for it, or refuse at once."
    )
    wait_seconds: float = Field(6 * 3600, ge=0, description="Longest wait for another run before giving up.")
    approval_wait_seconds: float = Field(
        7 * 86_400, ge=0, description="Longest wait of a flow run for a person; 0 ends it at once, to be resumed."
    )
    retries: int = Field(2, ge=0, le=20, description="Retries of a stage after a transient failure.")
    retry_delay_seconds: float = Field(5.0, ge=0, le=3600, description="First delay; it doubles with each retry.")
    stage_time_limit_seconds: float = Field(3600, gt=0, description="A stage past it is ended with its engine.")
    lease_seconds: float = Field(60, ge=2, le=3600, description="Owners elsewhere are dead so long after a heartbeat.")
    keep_checkpoints: int = Field(2, ge=1, description="Newest checkpoints kept a role; older ones are pruned.")
    keep_every: int = Field(0, ge=0, description="Also keep the checkpoint of every so many rounds; 0: none.")
    min_free_gigabytes: float = Field(1.0, ge=0, description="Least to be left free after the estimate.")


class Experiment(Model):
    """One experiment: its name, its frozen method, its free runtime."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$", description="Name; the run directory has it too.")
    method: Method = Field(description="Frozen at the first run.")
    runtime: Runtime = Field(Runtime(), description="Free to change between runs.")
