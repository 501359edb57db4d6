"""What can be set of Complementary RL, and of the ablations of its paper.

| kind | differs from complementary by |
|---|---|
| baseline | no bank, no extractor: all rollouts are free |
| static_online | the extractor is not trained |
| experience_only | the actor is not trained |
| offline_bank | a bank built in the warm-up rounds and never changed after them; the extractor is not trained |
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar, Literal

from pydantic import Field

from crl.config import (
    ActorCriticConfig,
    ActorObjective,
    BankConfig,
    BankUse,
    DistillConfig,
    EmbedderUse,
    ExtractorObjective,
    MergeConfig,
    Method,
    RecipeConfig,
    RetrievalConfig,
    RoleUse,
    SelfDistillationConfig,
    SuppressConfig,
    TrialConfig,
    WarmStartConfig,
)
from crl.config.base import MOST_ROUNDS
from crl.errors import BadInput
from crl.recipes.complementary.impossible import never_guided, recorded_problems, trial_problems
from crl.rounds.impossible import answers_are_actions, hidden_answers, unbounded

ACTOR, EXTRACTOR = "actor", "extractor"


class BankRecipeConfig(RecipeConfig):
    """The mechanisms that complementary and its ablations share."""

    BUILDER: ClassVar[str] = "crl.recipes.complementary.round:build"
    TRAINED: ClassVar[frozenset[str]] = frozenset({ACTOR, EXTRACTOR})
    """Roles that are trained."""
    has_bank: ClassVar[bool] = True
    """Whether it keeps an experience bank."""
    BANK_CHANGES_AFTER_WARM_UP: ClassVar[bool] = True
    AFTER_ROLLOUTS: ClassVar[frozenset[str]] = frozenset(
        {
            "prompts.distill", "prompts.merge", "recipe.actor_objective", "recipe.approve_bank", "recipe.bank",
            "recipe.distill.episodes", "recipe.distill.max_operations", "recipe.extractor_objective", "recipe.merge",
            "recipe.self_distillation", "recipe.warm_up_rounds",
        }
    )  # fmt: skip
    OVERLAPS: ClassVar[bool] = True

    guided_share: float = Field(0.5, ge=0, le=1, description="Share of a group that is guided.")
    guided_share_end: float | None = Field(
        None, ge=0, le=1, description="Share after guided_share_rounds rounds, reached in equal steps; none: constant."
    )
    guided_share_rounds: int = Field(0, ge=0, le=MOST_ROUNDS, description="Rounds the share takes to reach its end.")
    retrieval: RetrievalConfig = Field(RetrievalConfig(), description="How experiences are found.")
    distill: DistillConfig = Field(DistillConfig(), description="What the extractor reads and writes.")
    merge: MergeConfig = Field(MergeConfig(), description="Periodic merge.")
    bank: BankConfig = Field(BankConfig(), description="Capacity and eviction.")
    actor_objective: ActorObjective = Field(ActorObjective(), description="Eq. 4 and 5.")
    extractor_objective: ExtractorObjective = Field(ExtractorObjective(), description="Eq. 3 and 7.")
    approve_bank: bool = Field(False, description="A person approves each round's bank first.")
    trial: TrialConfig | None = Field(
        None,
        exclude_if=lambda value: value is None,
        description="New notes are played before they enter the bank; none: they are believed.",
    )
    suppress: SuppressConfig | None = Field(
        None,
        exclude_if=lambda value: value is None,
        description="Texts that do harm in a family are not retrieved for it; none: all are.",
    )
    actor_critic: ActorCriticConfig | None = Field(None, description="The actor judges an experience first; none: not.")
    self_distillation: SelfDistillationConfig | None = Field(
        None, description="Self-distillation of guided episodes; none: not."
    )
    warm_up_rounds: int = Field(
        0,
        ge=0,
        le=MOST_ROUNDS,
        description="Rounds that collect and distill before anything is trained; "
        "the baseline, which distills nothing, trains from the first round on.",
    )
    warm_start: WarmStartConfig | None = Field(None, description="Supervised start; none starts from the base models.")

    def guided_members(self, group_size: int, round_number: int) -> int:
        """Members of a group that are guided in a round: the first ones of it."""
        share = self.guided_share if self.has_bank else 0.0
        if self.guided_share_end is not None and self.has_bank:
            share += (self.guided_share_end - share) * min(1.0, (round_number - 1) / self.guided_share_rounds)
        return round(group_size * share)

    def trains(self, role: str, round_number: int) -> bool:
        """Whether a round updates a role: not in warm-up rounds, which only a recipe with a bank has a use for."""
        return role in self.TRAINED and (round_number > self.warm_up_rounds or not self.has_bank)

    # -- what a recipe says of itself ------------------------------------------------------------------------------

    def roles(self) -> Mapping[str, RoleUse]:
        """An actor that plays; an extractor that writes one turn, wherever there is a bank."""
        uses = {ACTOR: RoleUse(trained=ACTOR in self.TRAINED, multi_turn=True)}
        if self.has_bank:
            uses[EXTRACTOR] = RoleUse(trained=EXTRACTOR in self.TRAINED, batch=self.distill.batch)
        return uses

    def outputs(self, method: Method) -> Mapping[str, int]:
        """An output of each role per episode, and the games in which new notes are tried."""
        found = dict(super().outputs(method))
        if self.trial is not None and self.has_bank:
            for family in method.families:
                written = family.groups * method.group_size(family) * self.distill.max_operations
                notes = written if self.trial.notes is None else min(written, self.trial.notes)
                found[ACTOR] += (notes + 1) * self.trial.layouts
        return found

    def prompts(self) -> frozenset[str]:
        """One for playing, and with a bank those of the extractor; `critic` where the actor judges."""
        if not self.has_bank:
            return frozenset({"actor"})
        return frozenset({"actor", "distill", "merge"} | ({"critic"} if self.actor_critic is not None else set()))

    def embedder(self) -> EmbedderUse | None:
        """That of the retrieval."""
        return EmbedderUse(self.retrieval.embedder, self.retrieval.query_instruction) if self.has_bank else None

    def bank_use(self) -> BankUse:
        """That of the bank's settings; retrieval and merge say how far a text reaches."""
        return BankUse(
            self.bank,
            self.distill.max_characters,
            search_whole=self.retrieval.scope == "bank",
            merges_across=self.merge.scope == "bank",
            approved=self.approve_bank,
        )

    @staticmethod
    def lag(method: Method) -> int:
        """Rounds between what a round plays with and the stages that made it, unless they are on its own track."""
        return 2 if method.overlap else 1

    @property
    def scores_uses(self) -> bool:
        """Whether a use may earn something else than its episode's outcome, so that it has a row of its own."""
        return self.actor_critic is not None or self.extractor_objective.credit != "outcome"

    def problems(self, method: Method) -> Iterator[BadInput]:
        """Combinations that would run for hours and do nothing of what was asked for."""
        return _problems(self, method)


class ComplementaryConfig(BankRecipeConfig):
    """Complementary RL: actor and extractor co-evolve."""

    kind: Literal["complementary"] = "complementary"


class BaselineConfig(BankRecipeConfig):
    """GRPO without a bank: the settings of bank and extractor have no effect."""

    kind: Literal["baseline"] = "baseline"
    TRAINED: ClassVar[frozenset[str]] = frozenset({ACTOR})
    has_bank: ClassVar[bool] = False


class StaticOnlineConfig(BankRecipeConfig):
    """The bank grows, its extractor is not trained."""

    kind: Literal["static_online"] = "static_online"
    TRAINED: ClassVar[frozenset[str]] = frozenset({ACTOR})


class ExperienceOnlyConfig(BankRecipeConfig):
    """The extractor is trained, the actor is not."""

    kind: Literal["experience_only"] = "experience_only"
    TRAINED: ClassVar[frozenset[str]] = frozenset({EXTRACTOR})


class OfflineBankConfig(BankRecipeConfig):
    """The bank is built in the warm-up rounds, or imported; the extractor is not trained."""

    kind: Literal["offline_bank"] = "offline_bank"
    TRAINED: ClassVar[frozenset[str]] = frozenset({ACTOR})
    BANK_CHANGES_AFTER_WARM_UP: ClassVar[bool] = False


config_of = BankRecipeConfig.of


def declares_rewards(method: Method) -> bool:
    """Whether some task family has a reward convention, so that the environments' own rewards are kept beside."""
    return any(family.reward is not None for family in method.families)


def _problems(config: BankRecipeConfig, method: Method) -> Iterator[BadInput]:
    """Each combination that cannot work; `where` is the setting to change."""
    rollout = method.rollout
    sizes = {"method.rollout.group_size": rollout.group_size}
    for index, family in enumerate(method.families):
        if family.group_size is not None:
            sizes[f"method.families.{index}.group_size"] = family.group_size
    halves = config.has_bank and config.guided_share == 0.5 and config.guided_share_end is None
    for where, size in sizes.items():
        if halves and size % 2:
            yield BadInput(
                f"group_size is {size}",
                expected="an even number: half of a group is guided, half is free",
                where=where,
                next_step="make it even, or set method.recipe.guided_share",
            )
    if config.guided_share_end is not None and config.guided_share_rounds == 0:
        yield BadInput(
            f"the guided share is to end at {config.guided_share_end}, after no rounds",
            expected="guided_share_rounds above 0: over so many rounds the share moves",
            where="method.recipe.guided_share_rounds",
            next_step="set it, or set guided_share alone",
        )
    if config.guided_share_rounds > 0 and config.guided_share_end is None:
        yield BadInput(
            f"the guided share is to move over {config.guided_share_rounds} rounds, toward nothing",
            expected="guided_share_end: the share after these rounds",
            where="method.recipe.guided_share_end",
            next_step="set it, or leave guided_share_rounds out",
        )
    yield from _constrained(config, method)
    yield from _unbounded(config, method)
    start = config.warm_start
    shared = config.has_bank and method.owner(ACTOR) == method.owner(EXTRACTOR)
    if shared and start is not None and start.actor_episodes > 0 and start.extractor_episodes > 0:
        yield BadInput(
            "actor and extractor share their weights, and each is to have a supervised start of its own",
            expected="actor_episodes: 0, extractor_episodes: 0, or no warm_start",
            where="method.recipe.warm_start",
            next_step="leave one of them out, or start from a model that `crl warm-start` taught both",
        )
    episodes = {} if start is None else {ACTOR: start.actor_episodes, EXTRACTOR: start.extractor_episodes}
    for role in (role for role, count in episodes.items() if count > 0 and role in config.roles()):
        if method.role(role).engine.REMOTE:
            yield BadInput(
                f"the {role} is to have a supervised start, and its model is behind an endpoint",
                expected=f"{role}_episodes 0, or weights that are here",
                where=f"method.recipe.warm_start.{role}_episodes",
                next_step="set it to 0",
            )
    of_actor = {role for role in config.TRAINED & config.roles().keys() if method.owner(role) == method.owner(ACTOR)}
    if method.overlap and EXTRACTOR in of_actor:
        yield BadInput(
            "actor and extractor share their weights, so the update that the next round waits for needs both",
            expected="weights of their own, or no overlap",
            where="method.overlap",
            next_step="leave one of the two out",
        )
    if start is not None and start.actor_episodes > 0 and start.demonstrations == "oracle":
        for family in method.families:
            if family.environment.hidden_rule:
                yield BadInput(
                    f"the oracle of family {family.name} knows the hidden rule, and its demonstrations tell it",
                    expected="demonstrations: practice (shrines) or random, or a warm start in practice realms "
                    "(`crl warm-start`)",
                    where="method.recipe.warm_start.demonstrations",
                    next_step="set it to practice or random, or leave warm_start out",
                )
    yield from recorded_problems(start, method)
    if start is not None and start.demonstrations == "practice":
        for family in method.families:
            if not family.environment.teaches:
                yield BadInput(
                    f"the environment of family {family.name} has no practice games",
                    expected="an environment that teaches (shrines), or demonstrations: oracle or random",
                    where="method.recipe.warm_start.demonstrations",
                    next_step="choose another kind of demonstrations",
                )
    ends = (1, 1 + config.guided_share_rounds)
    groups = {method.group_size(family) for family in method.families}
    guided = {size: {config.guided_members(size, number) for number in ends} for size in groups}
    distills = config.self_distillation
    needs_guided = {
        "method.recipe.trial": config.trial is not None,
        "method.recipe.suppress": config.suppress is not None,
        "method.recipe.actor_critic": config.actor_critic is not None,
        "method.recipe.self_distillation": distills is not None and distills.guided_only,
        "method.rollout.search_and_ask": rollout.search_and_ask is not None,
    }
    for where, asked in needs_guided.items():
        if not asked:
            continue
        if not config.has_bank:
            yield never_guided(where, f"recipe {config.kind} keeps no bank, so no episode is guided", "another recipe")
        elif all(members == {0} for members in guided.values()):
            yield never_guided(where, "guided_share leaves every member of a group free", "a share that guides some")
    guided_members = [(size, members) for size, found in guided.items() for members in sorted(found)]
    yield from trial_problems(
        config.trial,
        config.suppress,
        config.extractor_objective,
        guided_members,
        trains_extractor=EXTRACTOR in config.TRAINED,
    )
    if config.actor_critic is not None and config.retrieval.top_k > 1:
        yield BadInput(
            f"the actor judges one experience per episode (eq. 8), and top_k is {config.retrieval.top_k}",
            expected="top_k 1, or no actor_critic",
            where="method.recipe.retrieval.top_k",
            next_step="set it to 1, or leave actor_critic out",
        )
    if config.has_bank and rollout.search_and_ask is not None and "ask" not in method.prompts:
        yield BadInput(
            "guided actors may ask, and there is no prompt for it",
            expected="a prompt `ask` in the prompt set",
            where="method.prompts.ask",
            next_step="add `ask` to the prompt file, or leave the setting out",
        )
    trains_answers = rollout.search_and_ask is not None and rollout.search_and_ask.train_answers
    if trains_answers and EXTRACTOR not in config.TRAINED:
        yield BadInput(
            f"recipe {config.kind} does not train the extractor, so none of its answers would be trained",
            expected="a recipe that trains the extractor",
            where="method.rollout.search_and_ask.train_answers",
            next_step="set it to false, or choose another recipe",
        )
    if config.self_distillation is not None:
        if ACTOR not in config.TRAINED:
            yield BadInput(
                f"recipe {config.kind} does not train the actor, so it distills nothing into it",
                expected="a recipe that trains the actor",
                where="method.recipe.self_distillation",
                next_step="set method.recipe.self_distillation to null, or choose another recipe",
            )
        if config.self_distillation.episodes == "beats_free" and all(
            members == {size} for size, members in guided.items()
        ):
            yield BadInput(
                "guided episodes are to beat unguided rollouts of the same group, and guided_share leaves none",
                expected="a share that leaves some free, or episodes: wins",
                where="method.recipe.self_distillation.episodes",
                next_step="lower recipe.guided_share, or set self_distillation.episodes to wins",
            )


def _constrained(config: BankRecipeConfig, method: Method) -> Iterator[BadInput]:
    """What sampling restricted to the legal actions cannot go with."""
    if config.has_bank and method.role(EXTRACTOR).sampling.constrain == "actions":
        yield BadInput(
            "the extractor's sampling is restricted to actions, and it writes text",
            expected="constrain: none",
            where="method.roles.extractor.sampling.constrain",
            next_step="leave it out",
        )
    yield from hidden_answers(method)
    if answers_are_actions(method) and method.rollout.search_and_ask is not None:
        yield BadInput(
            "the actor answers with a legal action and nothing else, so there would be no questions",
            expected="search_and_ask: none, or roles.actor.sampling.constrain: none",
            where="method.rollout.search_and_ask",
            next_step="change one of the two",
        )


def _unbounded(config: BankRecipeConfig, method: Method) -> Iterator[BadInput]:
    """Objectives whose clip would never act."""
    corrections = {ACTOR: config.actor_objective.correction, EXTRACTOR: config.extractor_objective.correction}
    for role in sorted(config.TRAINED & config.roles().keys()):
        yield from unbounded(method, role, corrections[role], f"method.recipe.{role}_objective.correction")
