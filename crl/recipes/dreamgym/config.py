"""The mechanisms of DreamGym (arXiv 2511.03773), and what it says of itself. No stage is imported here."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from crl.config import EmbedderUse, Method, Model, RecipeConfig, RoleUse, SeedRange, StreamObjective
from crl.config.base import MOST_ROUNDS
from crl.config.mechanisms import EmbedderName
from crl.errors import BadInput
from crl.rounds.impossible import refused, unread_settings, whole_reference

ACTOR, EXPERIENCE, TEACHER = "actor", "experience", "teacher"
PREDICT, VARY, ANNOTATE = "predict", "vary", "annotate"
"""Names of the prompts that the experience model predicts and varies tasks with, and of the teacher's."""


class ExploreConfig(Model):
    """Real episodes for the experience model."""

    first: int = Field(
        64,
        ge=0,
        le=100_000,
        description="Episodes before the first fit, over all families; 0 only with `given`.",
    )
    further: int = Field(16, ge=2, le=100_000, description="Episodes before each later fit.")
    every: int = Field(5, ge=0, le=MOST_ROUNDS, description="Rounds between fits; 0: one fit only.")
    policy: Literal["random", "actor"] = Field(
        "random",
        description="Who plays the first ones: random legal actions, or the actor. The actor plays the rest.",
    )
    held_out: float = Field(
        0.2,
        gt=0,
        le=0.9,
        description="Share of training seeds (the last ones), and of these episodes, kept from every fit to "
        "measure how accurate the experience model is.",
    )


class FitConfig(Model):
    """How the experience model is fitted, by next-token loss."""

    reasoning: Literal["environment", "teacher", "none"] = Field(
        "environment",
        description="Who explains a transition: the environment, the role `teacher`, or nobody.",
    )
    max_transitions: int = Field(4096, ge=1, le=1_000_000, description="Most transitions per fit, newest first.")
    num_train_epochs: int = Field(2, ge=1, le=1000, description="Passes over them.")
    batch: int = Field(16, ge=1, le=4096, description="Transitions per step.")


class StoreConfig(Model):
    """Pools of transitions. The oldest leave; families have equal shares."""

    real: int = Field(100_000, ge=1, le=10_000_000, description="Capacity for real transitions.")
    synthetic: int = Field(100_000, ge=0, le=10_000_000, description="Capacity for predicted ones.")
    held_out: int = Field(1000, ge=1, le=1_000_000, description="Capacity for held-out ones.")
    search: Literal["real", "both"] = Field("real", description="Pools that are searched for similar transitions.")
    top_k: int = Field(3, ge=0, le=16, description="Similar transitions shown to a prediction; 0: none.")
    embedder: EmbedderName = "minilm"


class PredictConfig(Model):
    """What the experience model reads."""

    history: int = Field(2, ge=0, le=64, description="Earlier turns.")
    batch: int = Field(64, ge=1, le=4096, description="Predictions sampled side by side.")


_Floor = Annotated[float | None, Field(ge=0, le=1)]
FEWEST_UNSEEN = 10
"""Fewer unseen steps than these say too little: minimums then apply to all held-out steps."""


class PoolsConfig(Model):
    """Pools of episodes from which the actor's steps draw."""

    real: int = Field(100_000, ge=1, le=1_000_000, description="Most real episodes; the oldest leave.")
    synthetic: int = Field(100_000, ge=1, le=1_000_000, description="Most synthetic episodes; the oldest leave.")
    steps: int = Field(10, ge=1, le=10_000, description="Steps per round, each on its own batch.")
    batch: int = Field(32, ge=1, le=65_536, description="Episodes per batch.")
    real_share: float = Field(
        0.5,
        ge=0,
        le=1,
        description="Share of a batch that is real; if a pool is short, batches shrink.",
    )


class ValidateConfig(Model):
    """Checks on held-out real transitions at every fit."""

    max_transitions: int = Field(256, ge=1, le=100_000, description="Most transitions to predict, newest first.")
    min_observation_accuracy: _Floor = Field(
        0.5,
        description="Least share of correct next observations over unseen held-out steps (over all, if fewer than "
        f"{FEWEST_UNSEEN} are unseen). Below it, nothing is played. null: any.",
    )
    min_reward_accuracy: _Floor = Field(0.8, description="Least share of correct outcomes, likewise. null: any.")
    min_ending_accuracy: _Floor = Field(
        0.5,
        description="Least share of correct outcomes over unseen steps that end an episode (not by its turn limit); "
        f"ignored with fewer than {FEWEST_UNSEEN} of them. null: any.",
    )
    gamma: float = Field(0.9, ge=0, lt=1, description="Discount in the bound on the gap to the real environment.")


class CurriculumConfig(Model):
    """New tasks made from old ones."""

    share: float = Field(0.25, ge=0, le=1, description="λ: largest share of a round's synthetic groups.")
    rule: Literal["variance", "capability"] = Field(
        "variance",
        description="variance: vary the tasks whose groups vary most; capability: make tasks harder than the "
        "measured capability by `step` (environments that grade their levels).",
    )
    step: float = Field(0.2, ge=0, le=1, description="How much harder, on a scale from 0 to 1.")
    noise: float = Field(0.1, ge=0, le=1, description="Standard deviation of the target difficulty.")
    target: float = Field(
        0.7, gt=0, le=1, description="Success at which a difficulty counts as mastered, and a task as completed."
    )
    capability: Literal["threshold", "mean"] = Field(
        "threshold",
        description="threshold: largest difficulty that the last round's tasks mastered; mean: mean success over "
        "all tasks completed so far (0.5 at first).",
    )
    tasks: int | None = Field(
        None, ge=1, le=4096, description="Most new tasks per family and round; null: as many as `share` allows."
    )
    candidates: int = Field(16, ge=1, le=4096, description="Levels drawn per task; the closest in difficulty is used.")
    max_characters: int = Field(2000, ge=8, le=20_000, description="Longest first observation that a model may write.")


class DreamGymConfig(RecipeConfig):
    """DreamGym: the actor plays in a learned model of the environment."""

    kind: Literal["dreamgym"] = "dreamgym"
    BUILDER: ClassVar[str] = "crl.recipes.dreamgym.round:build"
    DRAWS_AGAIN: ClassVar[bool] = True
    DRAWS_LISTED: ClassVar[bool] = False
    JUDGED: ClassVar[bool] = False
    REPORT: ClassVar[str | None] = "crl.recipes.dreamgym.report:SECTION"
    TABLES: ClassVar[Mapping[str, Any]] = {
        "method.recipe.fit.reasoning": "teacher",
        "method.roles.teacher": {},
        "method.recipe.pools": {"real_share": 0.0},
    }
    AFTER_ROLLOUTS: ClassVar[frozenset[str]] = frozenset({"recipe.objective", "recipe.pools"})

    explore: ExploreConfig = Field(ExploreConfig(), description="Real episodes for the experience model.")
    fit: FitConfig = Field(FitConfig(), description="How the experience model is fitted.")
    store: StoreConfig = Field(StoreConfig(), description="Transitions to keep.")
    predict: PredictConfig = Field(PredictConfig(), description="What the experience model reads.")
    # Not `validate`: pydantic's models have a method of that name.
    truth: ValidateConfig = Field(ValidateConfig(), description="How its accuracy is checked.")
    curriculum: CurriculumConfig | None = Field(
        CurriculumConfig(), description="New tasks made from old ones; null: tasks are drawn."
    )
    given: str | None = Field(
        None,
        min_length=1,
        description="File of real transitions to start with, with the columns of the table `transitions` "
        "(.jsonl, .json, .csv, .parquet, .arrow); null: none.",
    )
    synthetic_share: float = Field(
        1.0, ge=0, le=1, description="Largest share of a family's groups played in the experience model."
    )
    pools: PoolsConfig | None = Field(
        None, description="Pools that updates draw from; null: one step on each round's episodes."
    )
    synthetic_rounds: int | None = Field(
        None, ge=0, le=MOST_ROUNDS, description="Rounds until all episodes are real (sim to real); null: never."
    )
    objective: StreamObjective = Field(StreamObjective(), description="The actor's objective.")

    def share(self, round_number: int) -> float:
        """Largest share of the groups of a round that are synthetic."""
        over = self.synthetic_rounds is not None and round_number > self.synthetic_rounds
        return 0.0 if over else self.synthetic_share

    def real_share(self, round_number: int) -> float:
        """Share of a batch from the pools that is real: all of it where no group is synthetic any more."""
        return 1.0 if self.pools is None or not self.share(round_number) else self.pools.real_share

    def synthetic_groups(self, groups: int, round_number: int) -> int:
        """How many of a family's groups are played in the experience model: as many as the share allows."""
        return math.floor(self.share(round_number) * groups + 1e-9)

    def varied_groups(self, synthetic: int) -> int:
        """How many of a family's synthetic groups are new tasks at most: the share λ."""
        if self.curriculum is None:
            return 0
        most = math.floor(self.curriculum.share * synthetic + 1e-9)
        return most if self.curriculum.tasks is None else min(most, self.curriculum.tasks)

    def fits(self, round_number: int) -> bool:
        """Whether the experience model is fitted in a round: in the first, at intervals, while anyone plays in it."""
        if round_number < 1 or not self.share(round_number):
            return False
        every = self.explore.every
        return round_number == 1 or (every > 0 and (round_number - 1) % every == 0)

    def held_out(self, count: int) -> int:
        """How many of so many seeds or episodes no fit sees."""
        return min(count, max(1, math.ceil(self.explore.held_out * count - 1e-9)))

    def held_out_from(self, start: int, count: int) -> int:
        """First training seed of a range that no fit sees."""
        return start + count - self.held_out(count)

    def _sides(self, seeds: SeedRange) -> list[tuple[int, int]]:
        """First and end of the training seeds that fits see, and of those that they do not."""
        first = self.held_out_from(seeds.start, seeds.count)
        return [(seeds.start, first), (first, seeds.start + seeds.count)]

    def fork_problems(self, method: Method, before: Method) -> Iterator[BadInput]:
        """No seed whose transitions were fitted is held out afterward, and none that was held out is fitted. Recorded
        transitions have so many earlier turns with them as a prediction was shown."""
        old = before.recipe
        if not isinstance(old, DreamGymConfig):
            if self.given is not None:
                yield refused("method.recipe.given", "the rounds before have no given transitions", "none")
            return
        if self.given != old.given:
            yield refused("method.recipe.given", "what is given is read before the first round", str(old.given))
        if self.predict.history != old.predict.history:
            yield refused(
                "method.recipe.predict.history",
                f"the transitions of the rounds before have {old.predict.history} earlier turns with them: a fit would "
                f"show those, and a prediction {self.predict.history}",
                f"{old.predict.history}, as in the rounds before",
            )
        for family in method.families:
            earlier = before.family(family.name)
            if earlier is None:
                continue
            sides, before_sides = self._sides(family.train_seeds), old._sides(earlier.train_seeds)
            if any(a[0] < b[1] and b[0] < a[1] for a, b in zip(sides, reversed(before_sides), strict=True)):
                yield refused(
                    "method.recipe.explore.held_out",
                    f"seeds from {sides[1][0]} on of family {family.name} would be held out; before it was those from "
                    f"{before_sides[1][0]} on, and what fits saw and what measures the model must stay apart",
                    "the share and the train_seeds of the rounds before",
                )

    def roles(self) -> Mapping[str, RoleUse]:
        """An actor that plays, an experience model that answers it, perhaps a teacher that explains transitions."""
        batch = self.predict.batch
        uses = {ACTOR: RoleUse(multi_turn=True), EXPERIENCE: RoleUse(on_policy=False, batch=batch)}
        if self.fit.reasoning == "teacher":
            uses[TEACHER] = RoleUse(trained=False, batch=batch)
        return uses

    def outputs(self, method: Method) -> Mapping[str, int]:
        """Of a round with a fit: the episodes of the actor, real ones to fit on included, and a prediction per turn of
        those that are synthetic and per transition that is held out. Tasks that a model varies are left out."""
        writes = max(1, method.role(ACTOR).sampling.max_new_tokens)
        turns = max(family.turn_limit or method.role(ACTOR).context // writes for family in method.families)
        explored = max(self.explore.first, self.explore.further)
        predicted = turns * sum(
            self.synthetic_groups(family.groups, 1) * method.group_size(family) for family in method.families
        )
        made = {
            ACTOR: method.most_episodes + explored,
            EXPERIENCE: predicted + min(self.truth.max_transitions, turns * explored),
        }
        return made | ({TEACHER: turns * explored} if TEACHER in self.roles() else {})

    def prompts(self) -> frozenset[str]:
        """One for playing, one for predicting, others for what a mechanism asks."""
        found = {ACTOR, PREDICT}
        if self.fit.reasoning == "teacher":
            found.add(ANNOTATE)
        if self.curriculum is not None and self.curriculum.rule == "variance":
            found.add(VARY)
        return frozenset(found)

    def embedder(self) -> EmbedderUse:
        """That of the store."""
        return EmbedderUse(self.store.embedder)

    def steps_environments(self, method: Method) -> tuple[str, str] | None:
        """Its experience model predicts steps."""
        return "an experience model stands for an environment's steps", "another recipe"

    def problems(self, method: Method) -> Iterator[BadInput]:
        """Combinations that would run for hours and do nothing of what was asked for."""
        yield from unread_settings(method, reward="the model predicts what the task pays")
        if method.rollout.environment_lag:
            yield refused("method.rollout.environment_lag", "the environment is a model that samples beside", "0")
        fewest = next(count for count in itertools.count(2) if self.held_out(count) < count)
        for index, family in enumerate(method.families):
            seeds, where = family.train_seeds.count, f"method.families.{index}.train_seeds.count"
            if seeds < 2:
                yield refused(where, "one seed leaves none to hold out", "2")
            elif seeds < fewest:
                why = f"explore.held_out {self.explore.held_out:g} leaves none of {seeds} seeds to fit on"
                yield refused(where, why, f"at least {fewest}", "give it more seeds, or lower recipe.explore.held_out")
        yield from self._pools_that_stay_empty(method)
        if self.curriculum and self.curriculum.capability == "mean" and self.curriculum.rule != "capability":
            yield refused("method.recipe.curriculum.capability", "no task is made by capability", "rule: capability")
        if self.share(1):
            yield from self._rounded_away(max(self.synthetic_groups(family.groups, 1) for family in method.families))
            yield from self._nothing_to_fit(len(method.families), fewest)
        if method.owner(EXPERIENCE) != EXPERIENCE or method.owner(ACTOR) == EXPERIENCE:
            yield refused("method.roles.experience.weights", "the experience model has weights of its own", "none")
        for role in self.roles():
            if role != ACTOR and method.role(role).sampling.constrain == "actions":
                yield refused(
                    f"method.roles.{role}.sampling.constrain", "what it writes is text, not an action", "none"
                )
        yield from whole_reference(method, self.objective, {method.owner(ACTOR)} & set(method.trained()))

    def _nothing_to_fit(self, families: int, fewest: int) -> Iterator[BadInput]:
        """Explorations of which a task family gets so few episodes that all of them are held out, or none at all."""
        explored = {} if self.given is not None else {"first": self.explore.first}
        if self.explore.every and self.fits(1 + self.explore.every):
            explored["further"] = self.explore.further
        for key, episodes in explored.items():
            if episodes // families < fewest:
                yield refused(
                    f"method.recipe.explore.{key}",
                    f"a task family gets {episodes // families} of the {episodes} episodes: explore.held_out "
                    f"{self.explore.held_out:g} leaves none of them to fit on",
                    f"at least {families * fewest}",
                    "raise it, or lower recipe.explore.held_out",
                )

    def _pools_that_stay_empty(self, method: Method) -> Iterator[BadInput]:
        """Batches that want episodes of a pool which nothing ever enters."""
        if self.pools is None:
            return
        share, where = self.pools.real_share, "method.recipe.pools.real_share"
        synthetic = [self.synthetic_groups(family.groups, 1) for family in method.families]
        played = [family.groups - count for family, count in zip(method.families, synthetic, strict=True)]
        if share and not any(played) and self.given is None:
            yield refused(where, "no round before the last synthetic one plays a real group, and none is given", "0")
        if share < 1 and not any(synthetic):
            yield refused(where, "no group is synthetic", "1")
        if 0 < share < 1 and not 0 < math.floor(share * self.pools.batch + 0.5) < self.pools.batch:
            yield refused(where, f"{share:g} of a batch of {self.pools.batch} is none or all of it", "a larger batch")

    def _rounded_away(self, synthetic: int) -> Iterator[BadInput]:
        """Shares that leave no group; `synthetic` is the most that a task family has in the model."""
        if not synthetic:
            why = f"{self.synthetic_share:g} of any task family's groups is none"
            yield refused("method.recipe.synthetic_share", why, "a larger share")
        elif self.curriculum is not None and self.curriculum.share and not self.varied_groups(synthetic):
            yield refused(
                "method.recipe.curriculum.share",
                f"{self.curriculum.share:g} of the {synthetic} synthetic groups of a task family is none",
                f"at least {1 / synthetic:.3g}, more groups, or curriculum: null",
            )


config_of = DreamGymConfig.of
