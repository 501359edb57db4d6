"""The mechanisms of the method, each with its switches: rollout, retrieval, bank, trials, objectives, evaluation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, model_validator

from crl.config.base import COLDEST, MOST_ROUNDS, LearningRateSchedule, Model, off, refuse_warmup, single, unset
from crl.config.recorded import RecordedConfig
from crl.config.roles import SamplingChange
from crl.records.learning import CREDIT_RULES

LONGEST_OBSERVATION = 250_000
"""Characters that an environment may show at one time unless `rollout.max_observation_characters` says otherwise:
more than most contexts take, and tokenized in a second."""


class SearchAndAskConfig(Model):
    """A guided actor may ask questions; the extractor answers from the entry that fits best."""

    uses: int = Field(2, ge=1, le=16, description="Most questions per episode; each takes a turn.")
    max_characters: int = Field(200, ge=4, le=4000, description="Longest question; a longer one gets no answer.")
    train_answers: bool = Field(
        False, description="Train the extractor on its answers; each earns the outcome of its episode."
    )


class DynamicSampling(Model):
    """Draw again for groups that teach nothing: DAPO (arXiv 2503.14476)."""

    max_draws: int = Field(3, ge=2, le=16, description="Most draws per round, counting the first.")


class RolloutConfig(Model):
    """How episodes are played."""

    group_size: int = Field(8, ge=2, le=1024, description="K: rollouts per task.")
    wave_groups: int = Field(4, ge=1, le=1024, description="Groups played together, as one wave.")
    batch: int | None = Field(
        None,
        ge=1,
        le=65536,
        description="Most episodes of a wave sampled at once; the next starts when one ends. null: all. vllm and "
        "openai always sample all.",
        exclude_if=unset,
    )
    environment_lag: int = Field(
        0,
        ge=0,
        le=1024,
        description="For slow environments: turns that other episodes may advance while one waits for its "
        "environment. 0: everyone waits. No effect with vllm or openai if every family has `workers`, a step "
        "limit or `isolate`.",
        exclude_if=off,
    )
    action_format: Literal["tag", "word"] = Field(
        "word", description="tag: the last <action>…</action> counts; word: the first legal action in the text counts."
    )
    placement: Literal["system", "user"] = Field(
        "user",
        description="user: the experience stands before the first observation; system: at the end of the system text.",
    )

    max_observation_characters: int | None = Field(
        None,
        ge=1000,
        le=10_000_000,
        description="Most characters that an environment may show at once; more ends the episode with an error. "
        "null: 250000.",
        exclude_if=unset,
    )
    dynamic_sampling: DynamicSampling | None = Field(
        None,
        exclude_if=unset,
        description="Replace groups in which no stream has both wins and losses by other tasks, and leave them "
        "out of the policy objective; everything drawn is recorded. null: draw once.",
    )
    mixed_waves: bool = Field(False, description="A wave may mix task families.")
    search_and_ask: SearchAndAskConfig | None = Field(None, description="Questions of guided episodes; null: none.")


EmbedderName = Annotated[
    str,
    Field(
        min_length=1,
        description="Embedder: minilm (all-MiniLM-L6-v2), lexical (hashed bag of words), or a sentence-transformers "
        "model by directory or Hub id.",
    ),
]
"""The field of a config."""


class RetrievalConfig(Model):
    """How experiences are found: eq. 6."""

    embedder: EmbedderName = "minilm"
    query_instruction: str | None = Field(
        None,
        max_length=4000,
        description="Text before queries only; null: the embedder's own prompt `query`, if it has one.",
    )
    per: Literal["episode", "group"] = Field("episode", description="One retrieval per guided episode, or per group.")
    scope: Literal["family", "bank"] = Field("family", description="Search the family's entries, or the whole bank.")
    top_k: int = Field(1, ge=1, le=16, description="K of eq. 6: experiences per episode.")
    candidates: int = Field(16, ge=1, le=4096, description="N of eq. 6: N times K candidates.")
    diversify: bool = Field(True, description="Rank by eq. 6; false: by similarity alone.")
    count_weight: float = Field(0.4, ge=0, le=1000, description="λ of eq. 6.")
    rank_score: Literal["negative_rank", "fraction"] = Field(
        "negative_rank", description="s_rank of eq. 6: −rank, or 1 − rank/N."
    )
    recent_rounds: int = Field(
        1, ge=0, le=MOST_ROUNDS, description="Rounds that eq. 6 counts as recent, including this one; 0: off."
    )
    ties: Literal["oldest", "newest"] = Field(
        "oldest",
        exclude_if=lambda value: value == "oldest",
        description="Which entry ranks first at equal similarity. Choose newest if the task may change.",
    )
    threshold: float = Field(0.0, ge=-1, le=1, description="Least cosine. If nothing reaches it, the episode is free.")
    diversify_evaluation: bool = Field(
        False,
        description="Use eq. 6 with training's counts in evaluation and for questions, too; false: take the most "
        "similar entry.",
    )
    index: Literal["auto", "exact", "approximate"] = Field(
        "auto",
        description="auto: approximate search above 30,000 entries on a CPU, otherwise exact.",
    )


class ActorCriticConfig(Model):
    """Eq. 8: the actor accepts, refines or rejects an experience before it plays."""

    max_new_tokens: int = Field(64, ge=1, le=8192, description="Most tokens of a verdict.")


class SelectShare(Model):
    """A random share of the episodes."""

    share: float = Field(gt=0, lt=1, description="Share of the episodes, rounded up.")


Selection = Literal["all", "contrast", "mixed"] | SelectShare


class DistillConfig(Model):
    """What the extractor reads and writes."""

    episodes: Literal["guided", "all"] = Field(
        "all", description="Which episodes the extractor reads; in a round without guided ones, all."
    )
    select: Selection = Field(
        "all",
        exclude_if=lambda value: value == "all",
        description="Which of these: all; contrast: one won and one lost episode of each group that has both; "
        "mixed: all episodes of such groups; {share: x}: a random share.",
    )
    outputs: int = Field(
        1,
        ge=1,
        le=64,
        exclude_if=single,
        description="Outputs per episode. More than 1 needs `recipe.trial`: they are compared by the games that their "
        "texts guide, and only texts of the best one may enter the bank.",
    )
    format: Literal["json", "lines"] = Field("lines", description="json: as in the paper; lines: for small models.")
    max_operations: int = Field(3, ge=1, le=16, description="Most operations per output.")
    max_characters: int = Field(400, ge=8, le=20_000, description="Longest experience.")
    batch: int = Field(16, ge=1, le=4096, description="Prompts sampled side by side.")


class MergeConfig(Model):
    """The extractor tidies the bank, chunk by chunk."""

    every: int = Field(5, ge=0, le=MOST_ROUNDS, description="Merge every N rounds; 0: never.")
    chunk: int = Field(5, ge=2, le=64, description="Entries shown at once; with carry: all, new entries.")
    scope: Literal["family", "bank"] = Field("family", description="Merge within each family, or the whole bank.")
    carry: Literal["half", "all"] = Field(
        "half",
        description="What the next chunk still shows. half: newly merged entries; all: everything left of the "
        "chunk, as in the paper.",
    )
    candidates: Literal["all", "near_duplicates"] = Field(
        "all",
        description="all: every entry, as in the paper; near_duplicates: only entries that resemble another of "
        "their family.",
    )
    similarity: float = Field(0.9, gt=0, le=1, description="Cosine at which entries resemble each other.")


class ProvenConfig(Model):
    """When an entry is proven, so that an untested update cannot replace it."""

    uses: int = Field(
        4,
        ge=1,
        le=1_000_000,
        description="Games that it must have guided. Its update is judged after as many.",
    )
    outcome: float = Field(
        0.0, ge=-1, le=1, description="Least mean outcome of these games, from -1 (all lost) to 1 (all won)."
    )


class BankConfig(Model):
    """Capacity, eviction and duplicates."""

    capacity: int = Field(20_000, ge=1, le=10_000_000, description="Most entries per task family.")
    eviction: Literal["fifo", "least_useful"] = Field(
        "fifo", description="What leaves a full bank: the oldest or the least useful entry."
    )
    duplicates: Literal["reject", "keep", "near"] = Field(
        "reject",
        description="A text that the family already holds. reject: leave it out; keep: add an entry of its own; "
        "near: also leave out texts that resemble an entry (appendix C.2).",
    )
    similarity: float = Field(0.95, gt=0, le=1, description="Cosine at which a text resembles an entry (near).")
    proven: ProvenConfig | None = Field(
        None,
        exclude_if=unset,
        description="An update of a proven entry is tested beside it, and replaces it once it has won as often; "
        "null: updates replace at once.",
    )
    merge_contained: bool = Field(
        False,
        exclude_if=off,
        description="Merge an entry into another of its family that says the same and more (each of its "
        "sentences begins one of the other's).",
    )

    @property
    def keeps_what_is_better(self) -> bool:
        """Whether it is more than what was written last."""
        return self.proven is not None or self.merge_contained


class ImportanceSamplingCorrection(Model):
    """Importance weights for a sampler that differs slightly from the trainer."""

    mode: Literal["token_truncate", "token_mask"] = Field(
        "token_truncate",
        description="A weight outside the bounds becomes the bound (truncated importance sampling), or 0 (IcePop).",
    )
    clip_min: float | None = Field(None, gt=0, le=1, description="Lower bound; null: none.")
    clip_max: float = Field(2.0, ge=1, le=1000, description="Upper bound.")


Correction = Annotated[
    ImportanceSamplingCorrection | None,
    Field(
        exclude_if=unset,
        description="Correct for a sampler that differs from the trainer. Ratios are then to the trainer's "
        "log-probabilities before the first step; null: to the sampler's.",
    ),
]


ScaleRewards = Annotated[
    Literal["group", "none"],
    Field(
        description="group: divide advantages by the standard deviation of their group and stream; none: subtract the "
        "mean only."
    ),
]


LossType = Annotated[
    Literal["grpo", "dapo", "dr_grpo", "cispo", "token_sum"],
    Field(
        description="As in TRL. grpo: mean over an episode's tokens, then over episodes; dapo: mean over all tokens of "
        "a step; dr_grpo: sum over an episode's tokens, divided by `max_completion_length`; cispo: as dapo, but bounds "
        "each token's weight instead of clipping it; token_sum: sum over an episode's tokens."
    ),
]

EpsilonHigh = Annotated[
    float | None, Field(gt=0, le=1000, description="The ratio's upper bound is 1 + epsilon_high; null: epsilon.")
]

Beta = Annotated[
    float,
    Field(
        ge=0,
        le=1000,
        description="Coefficient of the divergence from the base model (estimator k3); 0: none, and updates load no "
        "base model.",
    ),
]


class PolicyObjective(Model):
    """GRPO and its variants."""

    loss_type: LossType = "grpo"
    epsilon: float = Field(
        0.2, gt=0, le=1, description="ε of eq. 5: the ratio's lower bound is 1 − epsilon; 1: no lower bound."
    )
    epsilon_high: EpsilonHigh = Field(None, exclude_if=unset)
    importance_sampling_level: Literal["token", "sequence", "sequence_product"] = Field(
        "token",
        description="Ratio per token, or per sequence: the geometric mean of token ratios (GSPO), or their "
        "product (sequence_product, the paper's).",
    )
    beta: Beta = Field(0.0, exclude_if=off)
    entropy_coef: float = Field(
        0.0,
        ge=0,
        le=1000,
        exclude_if=off,
        description="Coefficient of an entropy bonus.",
    )
    scale_rewards: ScaleRewards = "group"
    max_completion_length: int | None = Field(
        None,
        ge=1,
        le=100_000_000,
        exclude_if=unset,
        description="Tokens that the model may write per episode, for dr_grpo and `soft_punish_cache`.",
    )
    soft_punish_cache: int | None = Field(
        None,
        ge=1,
        le=100_000_000,
        exclude_if=unset,
        description="DAPO's soft overlong punishment: over this many tokens before `max_completion_length`, the "
        "training reward falls by up to 1. null: none.",
    )
    importance_sampling_correction: Correction = None

    @model_validator(mode="after")
    def _lengths(self) -> Self:
        longest, cache = self.max_completion_length, self.soft_punish_cache
        needs = "loss_type: dr_grpo" if self.loss_type == "dr_grpo" else "soft_punish_cache" if cache else None
        if needs and longest is None:
            raise ValueError(f"{needs} needs max_completion_length: the tokens that an episode's outputs may have")
        if longest is not None and not needs:
            raise ValueError("max_completion_length has no effect without loss_type: dr_grpo or soft_punish_cache")
        if longest is not None and cache is not None and cache > longest:
            raise ValueError(f"soft_punish_cache ({cache}) is above max_completion_length ({longest})")
        return self


class TurnCredit(Model):
    """Credit for single turns beside the episode's: GiGPO (arXiv 2505.10978)."""

    weight: float = Field(1.0, gt=0, le=1000, description="ω: factor of the turn's own advantage.")
    gamma: float = Field(0.95, gt=0, le=1, description="γ: discount per turn.")
    scale_rewards: ScaleRewards = "group"


class ActorObjective(PolicyObjective):
    """The actor's objective: eq. 4 and 5."""

    advantage: Literal["subgroup", "pooled"] = Field(
        "subgroup", description="Compare episodes within guided and free, or all of a group together."
    )
    turn_credit: TurnCredit | None = Field(
        None,
        exclude_if=unset,
        description="Also compare turns at the same observation, within group and stream (GiGPO); null: all "
        "turns of an episode share its advantage.",
    )


if TYPE_CHECKING:
    CreditRule = str
else:
    CreditRule = Literal[tuple(CREDIT_RULES)]


class ExtractorObjective(Model):
    """The extractor's objective: eq. 3 and 7."""

    epsilon: float = Field(
        0.1,
        gt=0,
        lt=1,
        description="ε_low of eq. 3: a token's weight is at least 1 − epsilon. TRL's CISPO has no lower bound.",
    )
    epsilon_high: float = Field(
        0.1,
        gt=0,
        le=1000,
        description="ε_high of eq. 3: a token's weight is at most 1 + epsilon_high. In TRL's CISPO, epsilon_high "
        "is the bound itself.",
    )
    batch: int = Field(
        64, ge=2, le=1_000_000, description="|B_φ|: outputs per update; training waits until this many have scores."
    )
    max_batches: int = Field(8, ge=1, le=1024, description="Most updates per round, each on a full batch.")
    alpha: float = Field(0.5, ge=0, le=1000, description="α of eq. 7.")
    delta: int = Field(1, ge=0, le=MOST_ROUNDS, description="δ of eq. 7, in rounds.")
    malformed_reward: Literal["none"] | Annotated[float, Field(ge=-10, le=10)] = Field(
        -2.0, description="Reward of a malformed output; none: no score, as in the paper."
    )
    baseline: Literal["all", "used"] = Field(
        "used", description="Mean reward of all outputs in the batch, or of well-formed ones."
    )
    return_reward: Literal["none", "free_mean"] | Annotated[float, Field(ge=-1000, le=1000)] = Field(
        "none",
        description="Reward of `return`. none: no score; free_mean: the mean of its group's free episodes; or a "
        "number.",
    )
    credit: CreditRule = Field(
        "outcome",
        description="Reward of a use. "
        + "; ".join(f"{name}: {meaning}" for name, meaning in CREDIT_RULES.items())
        + ".",
    )
    usefulness_decay: float = Field(0.95, gt=0, lt=1, description="Decay of the running usefulness.")
    importance_sampling_correction: Correction = None


Share = Annotated[
    float,
    Field(
        gt=0,
        lt=1,
        description="Its share of an update's squared gradient, beside the policy objective. The factor for that is "
        "measured every round, and changes at most twofold.",
    ),
]


class ContextDistillationConfig(Model):
    """On-policy context distillation: reverse KL from free episodes to a teacher that reads the experience they went
    without."""

    share: Share = 0.25
    teacher: str | None = Field(
        None,
        exclude_if=unset,
        description="Role of the teacher: a frozen model with the actor's vocabulary. null: the actor that "
        "played the round.",
    )
    top_k: int | None = Field(
        None,
        ge=2,
        le=1024,
        exclude_if=unset,
        description="Sum the divergence over this many ids per token: the sampled one, the teacher's likeliest, "
        "and the rest as one. null: the sampled id alone.",
    )


class SelfDistillationConfig(Model):
    """Next-token loss on good episodes, with all experience text removed from their contexts."""

    every: int = Field(1, ge=1, le=MOST_ROUNDS, description="Every N rounds.")
    first_round: int = Field(1, ge=1, le=MOST_ROUNDS, description="First round.")
    episodes: Literal["beats_free", "wins", "all_wins"] = Field(
        "beats_free",
        description="beats_free: guided episodes above the mean reward of their group's free ones; wins: guided "
        "wins; all_wins: all wins.",
    )
    weight: float = Field(1.0, gt=0, le=1000, description="Weight of the loss beside the policy objective.")
    share: Share | None = Field(
        None, exclude_if=unset, description="In place of weight: share of an update's squared gradient; null: weight."
    )

    @model_validator(mode="after")
    def _weighs_once(self) -> Self:
        if self.share is not None and self.weight != 1.0:
            raise ValueError("share and weight both say how much self-distillation counts: set one of them")
        return self

    @property
    def guided_only(self) -> bool:
        """Whether unguided episodes are left out."""
        return self.episodes != "all_wins"

    def due(self, round_number: int) -> bool:
        """Whether it happens in a round: in multiples of `every`, from `first_round` on."""
        return round_number >= self.first_round and round_number % self.every == 0


class EvaluationConfig(Model):
    """Held-out evaluation."""

    every: int = Field(1, ge=0, le=MOST_ROUNDS, description="Evaluate every N rounds; 0: never.")
    temperature: float = Field(1.0, ge=COLDEST, le=5, description="Sampling temperature in evaluation.")
    samples: int = Field(
        1,
        ge=1,
        le=1024,
        exclude_if=single,
        description="Plays per held-out task and condition; above 1, results have pass@k. The first play is "
        "always the same.",
    )
    sampling: SamplingChange | None = Field(
        None,
        exclude_if=unset,
        description="Further changes to the actor's sampling in evaluation; null: none.",
    )

    @model_validator(mode="after")
    def _changes_something(self) -> EvaluationConfig:
        if self.sampling is not None and not self.sampling.model_dump(exclude_none=True):
            raise ValueError("sampling changes nothing: name what is different in evaluation, or leave it out")
        return self


class WarmStartConfig(Model):
    """Supervised start before round 1: teaches the output format, not the solutions."""

    actor_episodes: int = Field(48, ge=0, le=100_000, description="Demonstrations for the actor; 0: none.")
    extractor_episodes: int = Field(
        48, ge=0, le=100_000, description="Demonstrations for the extractor: templates over real episodes; 0: none."
    )
    extractor_merges: int = Field(
        0,
        ge=0,
        le=100_000,
        exclude_if=lambda value: value == 0,
        description="With demonstrations: practice, lists of experiences that the extractor is shown merged.",
    )
    demonstrations: Literal["oracle", "random", "practice", "recorded"] = Field(
        "oracle",
        description="What the actor imitates. oracle: solutions; random: legal actions (format only); practice: "
        "games under rules that no task has (environments that teach; both roles); recorded: people's games.",
    )
    adapters: str | None = Field(
        None,
        min_length=1,
        exclude_if=unset,
        description="Adapters that the roles begin with, before any demonstration: a folder with one per role "
        "(FOLDER/actor …), run:NAME@ROUND, or warm:NAME. warm:quickstart comes with the project.",
    )
    recorded: list[RecordedConfig] | None = Field(
        None,
        exclude_if=unset,
        description="With demonstrations: recorded, the games. In a file: the names of files by `crl env play` "
        "beside it; their content becomes part of the method.",
    )
    num_train_epochs: int = Field(1, ge=1, le=100, description="Passes over the demonstrations.")
    learning_rate: float = Field(1e-4, gt=0, le=1, description="Learning rate.")
    lr_scheduler_type: LearningRateSchedule = "constant"
    warmup_steps: int = Field(0, ge=0, le=1_000_000, description="Steps over which the learning rate rises from 0.")

    @model_validator(mode="after")
    def _warms_up(self) -> WarmStartConfig:
        refuse_warmup(self.lr_scheduler_type, self.warmup_steps)
        return self


class StreamObjective(PolicyObjective):
    """The objective of recipes with several streams of episodes."""

    loss_type: LossType = "token_sum"
    epsilon_high: EpsilonHigh = 0.28
    beta: Beta = 0.001
    singleton: Literal["reward", "zero"] = Field(
        "reward", description="Advantage of a group's only member: its reward, or 0."
    )


class TrialConfig(Model):
    """A new experience enters the bank if the actor plays better with it than without it."""

    layouts: int = Field(
        4,
        ge=1,
        le=1024,
        description="m: training layouts on which it is played, each with it and without it.",
    )
    threshold: float = Field(
        0.25,
        ge=-1,
        le=1,
        description="Least share of wins with it minus share of wins without it.",
    )
    screen: int | None = Field(
        None,
        ge=1,
        le=1024,
        description="Give up an experience that is not ahead after this many layouts; null: play all.",
    )
    max_experiences: int | None = Field(
        None,
        ge=1,
        le=1_000_000,
        description="Most experiences tried per family and round, from won episodes first; the rest stay out. "
        "null: all.",
    )
    reuse_rounds: int = Field(
        10,
        ge=0,
        le=MOST_ROUNDS,
        description="Rounds for which the result of the same text is reused; 0: none.",
    )
    reward: Literal["trial", "both", "uses"] = Field(
        "trial",
        description="What its writer earns. trial: 2 × the difference, in place of what uses earn; both: the "
        "difference and uses; uses: uses alone, so nothing if it stays out.",
    )


class SuppressConfig(Model):
    """Retrieval skips texts that did harm in a family; they stay in the bank."""

    min_uses: int = Field(
        8,
        ge=2,
        le=1_000_000,
        description="Fewest uses in the family, in groups with free episodes, before an effect counts.",
    )
    max_effect: float = Field(
        0.0,
        ge=-2,
        le=2,
        description="Skip texts whose effect (outcome, ±1, minus the mean of the group's free episodes) is below "
        "this by `standard_errors`.",
    )
    standard_errors: float = Field(1.64, ge=0, le=10, description="How many standard errors below.")
    decay: float = Field(
        1.0,
        gt=0,
        le=1,
        description="What each round leaves of the weight of earlier uses; below 1, suppressed texts return in time.",
    )
    withdraw: float | None = Field(
        None,
        ge=-2,
        le=2,
        exclude_if=unset,
        description="After `min_uses`, stop training with texts whose effect is at most this, until `decay` "
        "leaves fewer than `min_uses`; evaluation still uses them. 0: those that no longer help. null: none.",
    )

    @model_validator(mode="after")
    def _of_the_present_actor(self) -> Self:
        if self.withdraw is not None and self.decay == 1:
            raise ValueError("withdraw needs decay below 1: uses of long ago do not say what the present actor gains")
        return self
