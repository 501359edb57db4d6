"""The mechanisms of the method, each with its switches: rollout, retrieval, bank, trials, objectives, evaluation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, model_validator

from crl.config.base import COLDEST, MOST_ROUNDS, LearningRateSchedule, Model, off, refuse_warmup, unset
from crl.config.recorded import RecordedConfig
from crl.config.roles import SamplingChange
from crl.records.learning import CREDIT_RULES

LONGEST_OBSERVATION = 250_000
"""Characters that an environment may show at one time unless `rollout.max_observation_characters` says otherwise:
more than most contexts take, and tokenized in a second."""


class SearchAndAskConfig(Model):
    """Search-and-ask: a guided actor asks, the extractor answers from the top entry for the question."""

    uses: int = Field(2, ge=1, le=16, description="Most questions per episode; each spends a turn.")
    max_characters: int = Field(200, ge=4, le=4000, description="Longest question; a longer one is refused.")
    train_answers: bool = Field(
        False, description="Train the extractor on its answers: each earns the outcome of the episode that asked."
    )


class DynamicSampling(Model):
    """Groups that teach nothing are drawn again: DAPO (arXiv 2503.14476)."""

    max_draws: int = Field(
        3, ge=2, le=16, description="Times that a round draws at most, the first included; so many stages are listed."
    )


class RolloutConfig(Model):
    """How episodes are played."""

    group_size: int = Field(8, ge=2, le=1024, description="K, rollouts of one task.")
    wave_groups: int = Field(4, ge=1, le=1024, description="Groups of a wave: episodes that are played together.")
    batch: int | None = Field(
        None,
        ge=1,
        le=65536,
        description="Most episodes of a wave that are sampled at one time; one that ends makes room for the next. "
        "None: all. The engines vllm and openai sample all in any case.",
        exclude_if=unset,
    )
    environment_lag: int = Field(
        0,
        ge=0,
        le=1024,
        description="For slow environments: times that turns of other episodes end before one whose environment is "
        "stepping takes part again. 0: sampling waits for every step. Has no effect behind a server (vllm, openai) in "
        "a wave whose families all have `workers`, a step limit or `isolate`: a row goes on as soon as its own step is "
        "there.",
        exclude_if=off,
    )
    action_format: Literal["tag", "word"] = Field(
        "word", description="tag: the last <action>…</action> counts; word: the first legal action named counts."
    )
    placement: Literal["system", "user"] = Field("user", description="Where the experience is shown, always last.")

    max_observation_characters: int | None = Field(
        None,
        ge=1000,
        le=10_000_000,
        description="Characters of what an environment may show at one time, actions and feedback counted; an episode "
        f"that is shown more ends with an error. null: {LONGEST_OBSERVATION}.",
        exclude_if=unset,
    )
    dynamic_sampling: DynamicSampling | None = Field(
        None,
        exclude_if=unset,
        description="Other tasks take the place of groups in none of whose streams some rollouts were won and others "
        "lost; updates leave these groups out. All that is drawn is recorded and counted. null: each round draws once.",
    )
    mixed_waves: bool = Field(False, description="A wave may hold groups of several task families.")
    search_and_ask: SearchAndAskConfig | None = Field(None, description="Guided episodes may ask; none: they may not.")


EmbedderName = Annotated[
    str,
    Field(
        min_length=1,
        description="minilm (all-MiniLM-L6-v2), lexical (hashed bag of words), or a sentence-transformers model: a "
        "directory or a Hugging Face id.",
    ),
]
"""The field of a config."""


class RetrievalConfig(Model):
    """Eq. 6 and its choices."""

    embedder: EmbedderName = "minilm"
    query_instruction: str | None = Field(
        None,
        max_length=4000,
        description="What precedes queries only; none: the model's own prompt `query`, if its config names one.",
    )
    per: Literal["episode", "group"] = Field("episode", description="One retrieval per guided episode, or per group.")
    scope: Literal["family", "bank"] = Field("family", description="Search the task family or the whole bank.")
    top_k: int = Field(1, ge=1, le=16, description="K of eq. 6: experiences per episode.")
    candidates: int = Field(16, ge=1, le=4096, description="N of eq. 6: candidates are N times K.")
    diversify: bool = Field(True, description="Re-rank by eq. 6; off takes the nearest.")
    count_weight: float = Field(0.4, ge=0, le=1000, description="λ of eq. 6.")
    rank_score: Literal["negative_rank", "fraction"] = Field(
        "negative_rank", description="s_rank: −rank, or 1 − rank/N."
    )
    recent_rounds: int = Field(
        1, ge=0, le=MOST_ROUNDS, description="Window of eq. 6's recency in rounds, the present one included; 0: off."
    )
    ties: Literal["oldest", "newest"] = Field(
        "oldest",
        exclude_if=lambda value: value == "oldest",
        description="Which of several entries with equal cosines ranks first. Newest where the world may change.",
    )
    threshold: float = Field(0.0, ge=-1, le=1, description="Least cosine; with nothing above it the episode is free.")
    diversify_evaluation: bool = Field(
        False,
        description="Evaluation and answers to questions rank by eq. 6 with training's counters, too; off: they take "
        "the most relevant entry.",
    )
    index: Literal["auto", "exact", "approximate"] = Field(
        "auto",
        description="Exact search, approximate, or by size and hardware: approximate above 30,000 entries on a CPU.",
    )


class ActorCriticConfig(Model):
    """Actor-critic (eq. 8): the actor accepts, refines or rejects the experience before it plays."""

    max_new_tokens: int = Field(64, ge=1, le=8192, description="New tokens of the verdict.")


class SelectShare(Model):
    """A random share of the episodes of a round."""

    share: float = Field(gt=0, lt=1, description="Share of the episodes, rounded up.")


Selection = Literal["all", "contrast", "mixed"] | SelectShare


class DistillConfig(Model):
    """What the extractor reads and writes."""

    episodes: Literal["guided", "all"] = Field(
        "all", description="Which episodes are distilled; a round in which nothing guided is distilled whole."
    )
    select: Selection = Field(
        "all",
        exclude_if=lambda value: value == "all",
        description="Of these: all; contrast: one that was won and one that was lost of each group that has both; "
        "mixed: all of the groups that have both; or a random {share: x}.",
    )
    format: Literal["json", "lines"] = Field("lines", description="json as the paper; lines for small models.")
    max_operations: int = Field(3, ge=1, le=16, description="Operations an output may hold.")
    max_characters: int = Field(400, ge=8, le=20_000, description="Longest experience text.")
    batch: int = Field(16, ge=1, le=4096, description="Prompts sampled side by side.")


class MergeConfig(Model):
    """Periodic sliding merge."""

    every: int = Field(5, ge=0, le=MOST_ROUNDS, description="Merge after this many rounds; 0 never.")
    chunk: int = Field(5, ge=2, le=64, description="Entries shown at once; with carry: all, new ones.")
    scope: Literal["family", "bank"] = Field("family", description="Each task family on its own, or the whole bank.")
    carry: Literal["half", "all"] = Field(
        "half",
        description="Into the next chunk: what was newly merged; or, as the paper, all that a change left of a chunk.",
    )
    candidates: Literal["all", "near_duplicates"] = Field(
        "all", description="all as the paper; near_duplicates shows only entries that resemble another of their family."
    )
    similarity: float = Field(0.9, gt=0, le=1, description="Cosine from which two entries resemble.")


class ProvenConfig(Model):
    """Which text of the bank is proven, and so not replaced by one that nobody has tried."""

    uses: int = Field(
        4,
        ge=1,
        le=1_000_000,
        description="Games that a text must have guided; its new version is judged after as many.",
    )
    outcome: float = Field(
        0.0, ge=-1, le=1, description="Least mean outcome of them, from -1 (all lost) to 1 (all won)."
    )


class BankConfig(Model):
    """Capacity and eviction, and what a new text may replace."""

    capacity: int = Field(20_000, ge=1, le=10_000_000, description="Entries per task family.")
    eviction: Literal["fifo", "least_useful"] = Field(
        "fifo", description="What goes when the family is full: the oldest, or the least useful."
    )
    duplicates: Literal["reject", "keep", "near"] = Field(
        "reject",
        description="A new text that the family holds already: refused, or kept as an entry of its own; near also "
        "refuses one that resembles an entry (appendix C.2).",
    )
    similarity: float = Field(0.95, gt=0, le=1, description="Cosine from which a text repeats an entry's (near).")
    proven: ProvenConfig | None = Field(
        None,
        exclude_if=unset,
        description="An update of a proven entry waits beside it, as an entry of its own, and replaces it once it won "
        "as often; null: updates replace at once.",
    )
    merge_contained: bool = Field(
        False,
        exclude_if=off,
        description="A text that says less than another of its family (each of its sentences begins one of the other) "
        "is merged into that one.",
    )

    @property
    def keeps_what_is_better(self) -> bool:
        """Whether it is more than what was written last."""
        return self.proven is not None or self.merge_contained


class ImportanceSamplingCorrection(Model):
    """Importance weights for a sampler that differs a little from the trainer: `crl.learn.mismatch`."""

    mode: Literal["token_truncate", "token_mask"] = Field(
        "token_truncate",
        description="Weights outside the bounds become the bound (truncated importance sampling), or 0 (IcePop).",
    )
    clip_min: float | None = Field(None, gt=0, le=1, description="Lower bound of a weight; null: none.")
    clip_max: float = Field(2.0, ge=1, le=1000, description="Upper bound of a weight.")


Correction = Annotated[
    ImportanceSamplingCorrection | None,
    Field(
        exclude_if=unset,
        description="Correct for the mismatch of sampler and trainer: ratios are then against the trainer's own "
        "log-probabilities before the first step; null: against the sampler's.",
    ),
]


ScaleRewards = Annotated[
    Literal["group", "none"],
    Field(
        description="group: advantages are divided by the standard deviation of their group and stream; none: the mean "
        "is subtracted, nothing more."
    ),
]


LossType = Annotated[
    Literal["grpo", "dapo", "dr_grpo", "cispo", "token_sum"],
    Field(
        description="As in TRL. grpo: the mean over an episode's tokens, then over episodes; dapo: over all tokens of "
        "a step's episodes; dr_grpo: the sum over an episode's tokens, divided by `max_completion_length`; cispo: as "
        "dapo, but a bound holds the weight of a token's gradient and stops none; token_sum: the sum over an episode's "
        "tokens."
    ),
]

EpsilonHigh = Annotated[
    float | None, Field(gt=0, le=1000, description="Upper bound of the ratio: 1 + epsilon_high; null: epsilon.")
]

Beta = Annotated[
    float,
    Field(
        ge=0,
        le=1000,
        description="Coefficient of the divergence from the base model (low-variance estimator k3); 0: none, and no "
        "base model is read in updates.",
    ),
]


class PolicyObjective(Model):
    """What a policy is trained by: GRPO, and what others have made of it."""

    loss_type: LossType = "grpo"
    epsilon: float = Field(
        0.2, gt=0, le=1, description="ε of eq. 5: the lower bound of the ratio is 1 − epsilon. 1: there is none."
    )
    epsilon_high: EpsilonHigh = Field(None, exclude_if=unset)
    importance_sampling_level: Literal["token", "sequence", "sequence_product"] = Field(
        "token",
        description="Ratio of each token, or of the whole sequence: the geometric mean of its tokens' ratios (GSPO), "
        "or their product, as in the paper.",
    )
    beta: Beta = Field(0.0, exclude_if=off)
    entropy_coef: float = Field(
        0.0,
        ge=0,
        le=1000,
        exclude_if=off,
        description="Coefficient of the mean entropy of a step's tokens, which is then maximized, too.",
    )
    scale_rewards: ScaleRewards = "group"
    max_completion_length: int | None = Field(
        None,
        ge=1,
        le=100_000_000,
        exclude_if=unset,
        description="Tokens that the model may write in an episode: what dr_grpo divides by, and where "
        "`soft_punish_cache` punishes most.",
    )
    soft_punish_cache: int | None = Field(
        None,
        ge=1,
        le=100_000_000,
        exclude_if=unset,
        description="DAPO's soft overlong punishment: over the last so many tokens before `max_completion_length` the "
        "reward that advantages are made of falls by up to 1. The outcome stays what it is. null: none.",
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
    """Credit of single turns beside that of the episode: GiGPO (arXiv 2505.10978)."""

    weight: float = Field(1.0, gt=0, le=1000, description="ω: factor of a turn's own advantage.")
    gamma: float = Field(0.95, gt=0, le=1, description="γ: discount of a turn's return per turn.")
    scale_rewards: ScaleRewards = "group"


class ActorObjective(PolicyObjective):
    """Eq. 4 and 5."""

    advantage: Literal["subgroup", "pooled"] = Field("subgroup", description="Baseline inside subgroups, or pooled.")
    turn_credit: TurnCredit | None = Field(
        None,
        exclude_if=unset,
        description="Turns at the same observation are compared with each other, in their group and stream, and each "
        "has an advantage of its own beside its episode's (GiGPO); null: an episode's turns have one advantage.",
    )


if TYPE_CHECKING:
    CreditRule = str
else:
    CreditRule = Literal[tuple(CREDIT_RULES)]


class ExtractorObjective(Model):
    """Eq. 3 and 7."""

    epsilon: float = Field(
        0.1,
        gt=0,
        lt=1,
        description="ε_low of eq. 3: the weight of a token's gradient, its ratio, is at least 1 − epsilon. TRL's CISPO "
        "has no lower bound.",
    )
    epsilon_high: float = Field(
        0.1,
        gt=0,
        le=1000,
        description="ε_high of eq. 3: that weight is at most 1 + epsilon_high. In TRL's CISPO epsilon_high is the "
        "bound itself.",
    )
    batch: int = Field(
        64, ge=2, le=1_000_000, description="|B_φ|: outputs per update; training waits until that many are scored."
    )
    max_batches: int = Field(8, ge=1, le=1024, description="Most updates per round; each takes a full batch.")
    alpha: float = Field(0.5, ge=0, le=1000, description="α of eq. 7.")
    delta: int = Field(1, ge=0, le=MOST_ROUNDS, description="δ of eq. 7, in rounds.")
    malformed_reward: Literal["none"] | Annotated[float, Field(ge=-10, le=10)] = Field(
        -2.0, description="Reward of a malformed output; none: unscored, as in the paper."
    )
    baseline: Literal["all", "used"] = Field(
        "used", description="Mean reward of the whole batch, or of its outputs that are not malformed."
    )
    return_reward: Literal["none", "free_mean"] | Annotated[float, Field(ge=-1000, le=1000)] = Field(
        "none", description="Reward of `return`: unscored, the mean of its group's unguided rollouts, or a number."
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
        description="Its part of the squared gradient of an update, beside the policy objective. It is measured in "
        "every round, and what the loss is multiplied by changes at most twofold from one to the next.",
    ),
]


class ContextDistillationConfig(Model):
    """On-policy context distillation: what an unguided episode sampled is pulled toward what a teacher, which reads the
    experience that would have guided it, would have sampled there (reverse KL)."""

    share: Share = 0.25
    teacher: str | None = Field(
        None,
        exclude_if=unset,
        description="The role that teaches: a frozen model with the actor's vocabulary. null: the actor itself, with "
        "the weights that played the round.",
    )
    top_k: int | None = Field(
        None,
        ge=2,
        le=1024,
        exclude_if=unset,
        description="At each token the divergence is summed over so many ids, the sampled one and those that the "
        "teacher finds likeliest, all others counting as one. null: the sampled token stands for the sum.",
    )


class SelfDistillationConfig(Model):
    """Episodes trained by next-token loss, with all experience text stripped from their contexts."""

    every: int = Field(1, ge=1, le=MOST_ROUNDS, description="Every N rounds.")
    first_round: int = Field(1, ge=1, le=MOST_ROUNDS, description="First round it may happen in.")
    episodes: Literal["beats_free", "wins", "all_wins"] = Field(
        "beats_free",
        description="Guided episodes above the mean reward of unguided ones, all guided ones that were won, or all "
        "that were won, guided or not (which a recipe without a bank can do, too).",
    )
    weight: float = Field(1.0, gt=0, le=1000, description="Weight of the loss beside the policy objective.")
    share: Share | None = Field(None, exclude_if=unset)

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

    every: int = Field(1, ge=0, le=MOST_ROUNDS, description="Evaluate every N rounds; 0 never.")
    temperature: float = Field(1.0, ge=COLDEST, le=5, description="Sampling temperature in evaluation.")
    samples: int = Field(
        1,
        ge=1,
        le=1024,
        exclude_if=lambda value: value == 1,
        description="Plays of each held-out task in each condition; above 1 the results have pass@k. The first play is "
        "the same however many follow.",
    )
    sampling: SamplingChange | None = Field(
        None,
        exclude_if=unset,
        description="What else is different of the actor's sampling in evaluation, in every task family; null: nothing "
        "but the temperature.",
    )

    @model_validator(mode="after")
    def _changes_something(self) -> EvaluationConfig:
        if self.sampling is not None and not self.sampling.model_dump(exclude_none=True):
            raise ValueError("sampling changes nothing: name what is different in evaluation, or leave it out")
        return self


class WarmStartConfig(Model):
    """Supervised start before round 1: form, not the answer."""

    actor_episodes: int = Field(48, ge=0, le=100_000, description="Demonstrations for the actor; 0: none.")
    extractor_episodes: int = Field(48, ge=0, le=100_000, description="Templates over real episodes; 0: none.")
    demonstrations: Literal["oracle", "random", "practice", "recorded"] = Field(
        "oracle",
        description="What the actor imitates: oracle; random legal actions (form and nothing else); practice games "
        "under rules that no task has (both roles; environments that teach); or recorded games.",
    )
    recorded: list[RecordedConfig] | None = Field(
        None,
        exclude_if=unset,
        description="Games that people recorded (demonstrations: recorded). In a file: the name of one that `crl env "
        "play` kept, or a list of them, beside the experiment file; their content becomes a part of the "
        "method.",
    )
    num_train_epochs: int = Field(1, ge=1, le=100, description="Passes over the demonstrations.")
    learning_rate: float = Field(1e-4, gt=0, le=1, description="Learning rate.")
    lr_scheduler_type: LearningRateSchedule = "constant"
    warmup_steps: int = Field(0, ge=0, le=1_000_000, description="Steps in which the learning rate rises from 0.")

    @model_validator(mode="after")
    def _warms_up(self) -> WarmStartConfig:
        refuse_warmup(self.lr_scheduler_type, self.warmup_steps)
        return self


class StreamObjective(PolicyObjective):
    """The objective of recipes whose streams of episodes each have a baseline: ERL's settings."""

    loss_type: LossType = "token_sum"
    epsilon_high: EpsilonHigh = 0.28
    beta: Beta = 0.001
    singleton: Literal["reward", "zero"] = Field(
        "reward", description="Advantage of the only member of a group: its reward (mean 0, deviation 1), or 0."
    )


class TrialConfig(Model):
    """Admission by trial: a new experience enters the bank if the actor plays better with it than without it."""

    layouts: int = Field(
        4,
        ge=1,
        le=1024,
        description="m: training layouts that a new experience is played on, each with and without it.",
    )
    threshold: float = Field(
        0.25,
        ge=-1,
        le=1,
        description="Least share of these episodes won with the experience, less the share won without it, "
        "that admits it.",
    )
    screen: int | None = Field(
        None,
        ge=1,
        le=1024,
        description="Layouts after which an experience that is not ahead is given up; none: all are played.",
    )
    max_experiences: int | None = Field(
        None,
        ge=1,
        le=1_000_000,
        description="Most experiences tried per family and round, those of won episodes first; the others stay out. "
        "None: all.",
    )
    reuse_rounds: int = Field(
        10,
        ge=0,
        le=MOST_ROUNDS,
        description="Later rounds that reuse a result where the same text is written again; 0: none.",
    )
    reward: Literal["trial", "both", "uses"] = Field(
        "trial",
        description="What the writer of a tried experience earns: 2 × the difference instead of what uses earn; that "
        "as one more use; or what uses earn alone (an experience that stays out then earns nothing).",
    )


class SuppressConfig(Model):
    """Suppression: a text that does harm in a task family is not retrieved for it, and stays in the bank."""

    min_uses: int = Field(
        8, ge=2, le=1_000_000, description="Fewest uses of a text in a family, beside unguided rollouts, that count."
    )
    max_effect: float = Field(
        0.0,
        ge=-2,
        le=2,
        description="A text is suppressed whose effect (outcome, ±1, less the mean of unguided rollouts of the same "
        "group) is surely below this.",
    )
    standard_errors: float = Field(
        1.64, ge=0, le=10, description="Standard errors by which the effect is below `max_effect`, at least."
    )
    decay: float = Field(
        1.0,
        gt=0,
        le=1,
        description="What a round leaves of the weight of earlier uses; below 1 a suppressed text comes back in time.",
    )
    withdraw: float | None = Field(
        None,
        ge=-2,
        le=2,
        exclude_if=unset,
        description="A text with `min_uses` whose effect is at most this guides no more episodes of training in the "
        "family, until `decay` has left less than `min_uses`; evaluation still finds it. 0: the present actor gains "
        "nothing from it. null: none is withdrawn.",
    )

    @model_validator(mode="after")
    def _of_the_present_actor(self) -> Self:
        if self.withdraw is not None and self.decay == 1:
            raise ValueError("withdraw needs decay below 1: uses of long ago do not say what the present actor gains")
        return self
