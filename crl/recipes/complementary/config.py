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
from typing import Any, ClassVar, Literal

from pydantic import Field

from crl.config import (
    ActorCriticConfig,
    ActorObjective,
    BankConfig,
    BankUse,
    ContextDistillationConfig,
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
from crl.config.base import MOST_ROUNDS, unset
from crl.config.registry import load_object
from crl.errors import BadInput
from crl.rounds.impossible import hidden_answers, whole_reference

ACTOR, EXTRACTOR = "actor", "extractor"


class BankRecipeConfig(RecipeConfig):
    """The mechanisms that complementary and its ablations share."""

    BUILDER: ClassVar[str] = "crl.recipes.complementary.round:build"
    MECHANISMS: ClassVar[str] = "crl.recipes.complementary.round:MECHANISMS"
    TRAINED: ClassVar[frozenset[str]] = frozenset({ACTOR, EXTRACTOR})
    """Roles that are trained."""
    has_bank: ClassVar[bool] = True
    """Whether it keeps an experience bank."""
    BANK_CHANGES_AFTER_WARM_UP: ClassVar[bool] = True
    AFTER_ROLLOUTS: ClassVar[frozenset[str]] = frozenset(
        {
            "prompts.distill", "prompts.merge", "recipe.actor_objective", "recipe.approve_bank", "recipe.bank",
            "recipe.distill.episodes", "recipe.distill.max_operations", "recipe.distill.outputs",
            "recipe.distill.select",
            "recipe.extractor_objective", "recipe.merge", "recipe.warm_up_rounds",
        }
    )  # fmt: skip
    DRAWS_AGAIN: ClassVar[bool] = True
    OVERLAPS: ClassVar[bool] = True

    guided_share: float = Field(0.5, ge=0, le=1, description="Share of each group that is guided.")
    guided_share_end: float | None = Field(
        None, ge=0, le=1, description="Share after `guided_share_rounds`, reached in equal steps; null: constant."
    )
    guided_share_rounds: int = Field(0, ge=0, le=MOST_ROUNDS, description="Rounds until the share reaches its end.")
    retrieval: RetrievalConfig = Field(RetrievalConfig(), description="How experiences are found.")
    distill: DistillConfig = Field(DistillConfig(), description="What the extractor reads and writes.")
    merge: MergeConfig = Field(MergeConfig(), description="Merging the bank.")
    bank: BankConfig = Field(BankConfig(), description="Capacity, eviction and duplicates.")
    actor_objective: ActorObjective = Field(ActorObjective(), description="The actor's objective.")
    extractor_objective: ExtractorObjective = Field(ExtractorObjective(), description="The extractor's objective.")
    approve_bank: bool = Field(False, description="A person approves each round's bank.")
    trial: TrialConfig | None = Field(
        None,
        exclude_if=lambda value: value is None,
        description="Test new experiences before they enter the bank; null: all enter.",
    )
    suppress: SuppressConfig | None = Field(
        None,
        exclude_if=lambda value: value is None,
        description="Skip texts that did harm; null: off.",
    )
    actor_critic: ActorCriticConfig | None = Field(
        None, description="The actor judges each experience before it plays; null: off."
    )
    self_distillation: SelfDistillationConfig | None = Field(
        None, description="Learn from guided episodes without their experiences; null: off."
    )
    context_distillation: ContextDistillationConfig | None = Field(
        None,
        exclude_if=unset,
        description="Pull free episodes toward what the actor would do with an experience; null: off.",
    )
    warm_up_rounds: int = Field(
        0,
        ge=0,
        le=MOST_ROUNDS,
        description="Rounds that collect and distill before training starts (baseline: no effect).",
    )
    warm_start: WarmStartConfig | None = Field(None, description="Supervised start; null: none.")

    def guided_members(self, group_size: int, round_number: int) -> int:
        """Members of a group that are guided in a round: the first ones of it."""
        share = self.guided_share if self.has_bank else 0.0
        if self.guided_share_end is not None and self.has_bank:
            share += (self.guided_share_end - share) * min(1.0, (round_number - 1) / self.guided_share_rounds)
        return round(group_size * share)

    def guided_sizes(self, method: Method) -> set[tuple[int, int]]:
        """Sizes of groups with how many members are guided, in the first round and once the share has moved."""
        sizes = {method.group_size(family) for family in method.families}
        ends = (1, 1 + self.guided_share_rounds)
        return {(size, self.guided_members(size, number)) for size in sizes for number in ends}

    def always_guided(self, method: Method) -> bool:
        """Whether no member of any group is ever free."""
        return all(members == size for size, members in self.guided_sizes(method))

    def trains(self, role: str, round_number: int) -> bool:
        """Whether a round updates a role: not in warm-up rounds, which only a recipe with a bank has a use for."""
        return role in self.TRAINED and (round_number > self.warm_up_rounds or not self.has_bank)

    def teaches(self, round_number: int) -> bool:
        """Whether free episodes of a round are read by a teacher."""
        return self.context_distillation is not None and self.trains(ACTOR, round_number)

    def mechanisms(self, method: Method) -> tuple[Any, ...]:
        """The mechanisms that are on. Loaded by name, as the builder is: forms and `--help` read settings without any
        stage."""
        found = (kind.of(method) for kind in load_object(self.MECHANISMS))
        return tuple(mechanism for mechanism in found if mechanism is not None)

    def after_rollouts(self, method: Method) -> frozenset[str]:
        """`AFTER_ROLLOUTS`, and the settings of mechanisms that say so."""
        kept = self.AFTER_ROLLOUTS | {kind.key for kind in load_object(self.MECHANISMS) if kind.after_rollouts}
        # Which groups are drawn again depends on their baseline.
        return kept if method.rollout.dynamic_sampling is None else kept - {"recipe.actor_objective"}

    # -- what a recipe says of itself ------------------------------------------------------------------------------

    def roles(self) -> Mapping[str, RoleUse]:
        """An actor that plays; an extractor that writes one turn, wherever there is a bank."""
        uses = {ACTOR: RoleUse(trained=ACTOR in self.TRAINED, multi_turn=True)}
        if self.has_bank:
            uses[EXTRACTOR] = RoleUse(trained=EXTRACTOR in self.TRAINED, batch=self.distill.batch)
        if self.context_distillation is not None and self.context_distillation.teacher is not None:
            uses.setdefault(self.context_distillation.teacher, RoleUse(trained=False))
        return uses

    def outputs(self, method: Method) -> Mapping[str, int]:
        """One of the actor per episode, `distill.outputs` of the extractor, and the games that try new experiences."""
        found = dict(super().outputs(method))
        if EXTRACTOR in found:
            found[EXTRACTOR] *= self.distill.outputs
        if self.trial is not None and self.has_bank:
            for family in method.families:
                episodes = family.groups * method.group_size(family)
                written = episodes * self.distill.outputs * self.distill.max_operations
                experiences = (
                    written if self.trial.max_experiences is None else min(written, self.trial.max_experiences)
                )
                found[ACTOR] += (experiences + 1) * self.trial.layouts
        return found

    def prompts(self) -> frozenset[str]:
        """One for playing, and with a bank those of the extractor; `critic` where the actor critiques."""
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

    def warm_starts(self) -> tuple[bool, bool]:
        """Whether the actor, and the extractor, have a supervised start."""
        start = self.warm_start
        if start is None:
            return False, False
        given = start.adapters is not None
        return given or start.actor_episodes > 0, self.has_bank and (given or start.extractor_episodes > 0)

    @property
    def scores_uses(self) -> bool:
        """Whether a use may earn something else than its episode's outcome, so that it has a row of its own."""
        return self.actor_critic is not None or self.extractor_objective.credit != "outcome"

    def steps_environments(self, method: Method) -> tuple[str, str] | None:
        """Demonstrations are moves of an oracle, at random, or of a person's: somebody steps."""
        if self.warm_start is None or self.warm_start.actor_episodes == 0:
            return None
        return "demonstrations for the actor are played step by step", "warm_start.actor_episodes: 0, or no warm_start"

    def problems(self, method: Method) -> Iterator[BadInput]:
        """Combinations that would run for hours and do nothing of what was asked for."""
        yield from _guided_share(self, method)
        yield from _roles(self, method)
        if self.warm_start is not None:
            yield from _warm_start(self, self.warm_start, method)
        yield from _mechanisms(self, method)
        subgroup = self.actor_objective.advantage == "subgroup"
        if method.rollout.dynamic_sampling is not None and subgroup and (2, 1) in self.guided_sizes(method):
            yield BadInput(
                "groups of 2 have one guided rollout and one free: no stream varies, and all would be drawn again",
                expected="groups of 3 or more, or recipe.actor_objective.advantage: pooled",
                where="method.rollout.dynamic_sampling",
                next_step="change one of them, or leave it out",
            )


class ComplementaryConfig(BankRecipeConfig):
    """Complementary RL: actor and extractor are trained together."""

    kind: Literal["complementary"] = "complementary"


class BaselineConfig(BankRecipeConfig):
    """GRPO without a bank; settings of bank and extractor have no effect."""

    kind: Literal["baseline"] = "baseline"
    TRAINED: ClassVar[frozenset[str]] = frozenset({ACTOR})
    has_bank: ClassVar[bool] = False


class StaticOnlineConfig(BankRecipeConfig):
    """The bank grows, but its extractor is not trained."""

    kind: Literal["static_online"] = "static_online"
    TRAINED: ClassVar[frozenset[str]] = frozenset({ACTOR})


class ExperienceOnlyConfig(BankRecipeConfig):
    """Trains the extractor, not the actor."""

    kind: Literal["experience_only"] = "experience_only"
    TRAINED: ClassVar[frozenset[str]] = frozenset({EXTRACTOR})
    DRAWS_AGAIN: ClassVar[bool] = False


class OfflineBankConfig(BankRecipeConfig):
    """Builds the bank in the warm-up rounds, or imports it; does not train the extractor."""

    kind: Literal["offline_bank"] = "offline_bank"
    TRAINED: ClassVar[frozenset[str]] = frozenset({ACTOR})
    BANK_CHANGES_AFTER_WARM_UP: ClassVar[bool] = False


config_of = BankRecipeConfig.of


def _guided_share(config: BankRecipeConfig, method: Method) -> Iterator[BadInput]:
    """Shares that no group can have."""
    sizes = {"method.rollout.group_size": method.rollout.group_size}
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


def _roles(config: BankRecipeConfig, method: Method) -> Iterator[BadInput]:
    """What roles cannot do in this recipe, or together."""
    if config.has_bank and method.role(EXTRACTOR).sampling.constrain == "actions":
        yield BadInput(
            "the extractor's sampling is restricted to actions, and it writes text",
            expected="constrain: none",
            where="method.roles.extractor.sampling.constrain",
            next_step="leave it out",
        )
    yield from hidden_answers(method)
    trained = config.TRAINED & config.roles().keys()
    if ACTOR in trained:
        yield from whole_reference(method, config.actor_objective, [method.owner(ACTOR)])
    if method.overlap and EXTRACTOR in trained and method.owner(ACTOR) == method.owner(EXTRACTOR):
        yield BadInput(
            "actor and extractor share their weights, so the update that the next round waits for needs both",
            expected="weights of their own, or no overlap",
            where="method.overlap",
            next_step="leave one of the two out",
        )


def _warm_start(config: BankRecipeConfig, start: WarmStartConfig, method: Method) -> Iterator[BadInput]:
    """Supervised starts that cannot be made, or teach what they must not."""
    actor, extractor = config.warm_starts()
    if actor and extractor and method.owner(ACTOR) == method.owner(EXTRACTOR):
        yield BadInput(
            "actor and extractor share their weights, and each is to have a supervised start of its own",
            expected="actor_episodes: 0, extractor_episodes: 0, or no warm_start",
            where="method.recipe.warm_start",
            next_step="leave one of them out, or start from a model that `crl warm-start` taught both",
        )
    for role in (*([ACTOR] if actor else []), *([EXTRACTOR] if extractor else [])):
        if method.role(role).engine.REMOTE:
            yield BadInput(
                f"the {role} is to have a supervised start, and its model is behind an endpoint",
                expected=f"{role}_episodes 0, or weights that are here",
                where=f"method.recipe.warm_start.{role}_episodes",
                next_step="set it to 0",
            )
        if start.adapters is not None and method.role(role).lora is None:
            yield BadInput(
                f"the {role} is to begin with an adapter, and its whole weights are trained",
                expected=f"method.roles.{role}.lora with the adapter's r and lora_alpha, or no adapters",
                where="method.recipe.warm_start.adapters",
                next_step="set lora, or name a model that has the adapter merged: model: FOLDER",
            )
    if start.extractor_merges and not (start.extractor_episodes and start.demonstrations == "practice"):
        yield BadInput(
            "the extractor is to be shown how lists of experiences are merged, and it practices nothing",
            expected="demonstrations: practice with extractor_episodes above 0, or extractor_merges 0",
            where="method.recipe.warm_start.extractor_merges",
            next_step="leave it out",
        )
    for family in method.families:
        if start.actor_episodes and start.demonstrations == "oracle" and family.environment.hidden_rule:
            yield BadInput(
                f"the oracle of family {family.name} knows the hidden rule, and its demonstrations tell it",
                expected="demonstrations: practice (shrines) or random, or a warm start in practice realms "
                "(`crl warm-start`)",
                where="method.recipe.warm_start.demonstrations",
                next_step="set it to practice or random, or leave warm_start out",
            )
        if start.demonstrations == "practice" and not family.environment.teaches:
            yield BadInput(
                f"the environment of family {family.name} has no practice games",
                expected="an environment that teaches (shrines), or demonstrations: oracle or random",
                where="method.recipe.warm_start.demonstrations",
                next_step="choose another kind of demonstrations",
            )
    yield from _recorded(start, method)


def _mechanisms(config: BankRecipeConfig, method: Method) -> Iterator[BadInput]:
    """Options that would never do anything, and what each of them finds."""
    on = config.mechanisms(method)
    for mechanism in on if all(members == 0 for _, members in config.guided_sizes(method)) else ():
        if mechanism.needs_guided:
            why = "guided_share leaves every member of a group free"
            if not config.has_bank:
                why = f"recipe {config.kind} keeps no bank, so no episode is guided"
            yield BadInput(
                f"{why}: what {mechanism.key} asks for would never happen",
                expected="a share that guides some" if config.has_bank else "another recipe",
                where=f"method.{mechanism.key}",
                next_step="leave it out, or change what keeps episodes free",
            )
    if config.has_bank and config.trial is None and config.distill.outputs > 1:
        yield BadInput(
            f"{config.distill.outputs} outputs are written about each episode, and nothing compares them",
            expected="recipe.trial, which plays their texts in the same games, or one output",
            where="method.recipe.distill.outputs",
            next_step="set recipe.trial, or leave outputs out",
        )
    for mechanism in on:
        yield from mechanism.problems(method)


def _recorded(start: WarmStartConfig, method: Method) -> Iterator[BadInput]:
    """Recorded games that this experiment cannot learn from."""
    where = "method.recipe.warm_start.recorded"
    if start.demonstrations != "recorded" and start.recorded is None:
        return
    if start.demonstrations != "recorded" or start.recorded is None:
        yield BadInput(
            f"demonstrations is {start.demonstrations}, and recorded games are {'named' if start.recorded else 'not'}",
            expected="demonstrations: recorded with recorded: FILE, or neither",
            where=where,
            next_step="set both, or leave both out",
        )
        return
    for file in start.recorded:
        family = next((each for each in method.families if each.environment == file.environment), None)
        if family is None:
            yield BadInput(
                f"games were recorded in {file.environment.model_dump(mode='json')!r:.300}, which no family plays",
                expected="the environment of a family, with all its settings",
                where=where,
                next_step="record them with `crl env play EXPERIMENT.yaml --family FAMILY --record FILE`",
            )
            return
        seeds = family.train_seeds
        for game in file.games:
            if not seeds.start <= game.seed < seeds.start + seeds.count:
                yield BadInput(
                    f"a recorded game has seed {game.seed}, which is none that family {family.name} trains on",
                    expected=f"seeds from {seeds.start} to {seeds.start + seeds.count - 1}",
                    where=where,
                    next_step="record games of training seeds: `crl env play … --seed`",
                )
                return
