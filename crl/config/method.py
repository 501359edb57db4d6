"""The method: everything that can change a number. Frozen at the first run and digested.

Its recipe is a config of its own class (`crl/recipes/<name>/config.py`, or another package's), found by `kind`: it has
the mechanisms of the recipe, and what the recipe says of itself before any of its stages is imported.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from crl.config.base import Model, PromptConfig, off
from crl.config.environments import FamilyConfig
from crl.config.mechanisms import BankConfig, EvaluationConfig, RolloutConfig
from crl.config.registry import Registry
from crl.config.roles import ENDPOINT, OF_RUN, RoleConfig, SamplingConfig, SummaryHistory
from crl.errors import BadInput


@dataclass(frozen=True)
class RoleUse:
    """What a recipe does with a role."""

    trained: bool = True
    """Whether its weights are updated."""
    on_policy: bool = True
    """Whether what it samples is trained; false: its updates learn from texts that others wrote."""
    multi_turn: bool = False
    """Whether it answers over many turns of one conversation."""
    batch: int | None = None
    """Outputs sampled side by side, at most; None: as many as there are rows in a wave of episodes."""


JUDGE = "judge"
"""The role that gives rewards where a task family asks for it, whatever the recipe."""
JUDGED_AT_ONCE = 16
"""Prompts of a judge that are sampled side by side: part of the numbers, so it is fixed."""


@dataclass(frozen=True)
class EmbedderUse:
    """The embedder that a recipe retrieves with."""

    name: str
    query_instruction: str | None = None


@dataclass(frozen=True)
class BankUse:
    """What a recipe lets into its experience bank, and what goes when it is full."""

    bank: BankConfig
    max_characters: int
    """Longest text."""
    search_whole: bool = False
    """Whether retrieval searches all families."""
    merges_across: bool = False
    """Whether a merge may have parents of several families."""
    approved: bool = False
    """Whether a person approves each round's bank first."""


class RecipeConfig(Model):
    """Base class of every recipe's config. Derived classes carry the mechanisms as fields."""

    kind: str = Field(description="Which recipe: what a round consists of.")

    BUILDER: ClassVar[str]
    """`module:function` that builds the recipe (`crl.rounds.stage.Recipe`) of a `Method`: stages stay unloaded until
    somebody runs them."""
    AFTER_ROLLOUTS: ClassVar[frozenset[str]] = frozenset()
    """Keys of the method (`recipe.merge`; `*` stands for one name) that nothing reads until a round's episodes are
    over: a fork that keeps recorded rollouts may change them."""
    REPORT: ClassVar[str | None] = None
    """`module:name` of what it adds to the report of its runs (`crl.report.sections.Section`); None: nothing."""
    TABLES: ClassVar[Mapping[str, Any]] = {}
    """Settings with which `conf/<kind>.yaml` writes every table that it brings, for `docs/schema.md`."""
    DRAWS_LISTED: ClassVar[bool] = True
    """Whether it draws its training tasks from `train_tasks` of a family; False: from ranges of its own."""
    JUDGED: ClassVar[bool] = True
    """Whether a judge may give the rewards of what its rounds play."""
    DRAWS_AGAIN: ClassVar[bool] = False
    """Whether it builds rounds with further draws where `rollout.dynamic_sampling` asks for them."""
    OVERLAPS: ClassVar[bool] = False
    """Whether it builds rounds of two tracks where `method.overlap` asks for it."""

    @classmethod
    def of(cls, method: Method) -> Self:
        """The recipe's config of a method, as one of this class. Raises BadInput for another recipe."""
        if not isinstance(method.recipe, cls):
            raise BadInput(
                f"recipe {method.recipe.kind} has other mechanisms",
                expected=f"a recipe of {cls.__module__.rpartition('.')[0]}",
                where="method.recipe.kind",
            )
        return method.recipe

    def after_rollouts(self, method: Method) -> frozenset[str]:
        """`AFTER_ROLLOUTS`; for a recipe whose settings decide which of its stages play, those of these settings."""
        return self.AFTER_ROLLOUTS

    def roles(self) -> Mapping[str, RoleUse]:
        """Roles that the recipe works with, by name; each must be configured in `method.roles`."""
        raise NotImplementedError(f"{type(self).__name__} must name its roles")

    def outputs(self, method: Method) -> Mapping[str, int]:
        """How many outputs of each role a round samples, at most, which disk is counted by: here one per episode."""
        return dict.fromkeys(self.roles(), method.most_episodes)

    def prompts(self) -> frozenset[str]:
        """Names of the prompts that it needs, out of `method.prompts`."""
        return frozenset({"actor"})

    def embedder(self) -> EmbedderUse | None:
        """The embedder it retrieves with; None where it retrieves nothing."""
        return None

    def bank_use(self) -> BankUse:
        """The rules of its bank. Raises BadInput where it keeps none."""
        raise BadInput(
            f"recipe {self.kind} keeps no bank", expected="a recipe that keeps one", where="method.recipe.kind"
        )

    def problems(self, method: Method) -> Iterator[BadInput]:
        """Settings that are fine one by one and impossible together, each at its place; refused before any work."""
        return iter(())

    def steps_environments(self, method: Method) -> tuple[str, str] | None:
        """Why it needs environments that can be stepped, and what to set in place of that; None: it does not."""
        return None

    def fork_problems(self, method: Method, before: Method) -> Iterator[BadInput]:
        """Settings of a method that a fork cannot go on with after rounds by `before`, for what these wrote."""
        return iter(())


RECIPES = Registry(
    "recipe",
    RecipeConfig,
    {
        "complementary": "crl.recipes.complementary.config:ComplementaryConfig",
        "baseline": "crl.recipes.complementary.config:BaselineConfig",
        "static_online": "crl.recipes.complementary.config:StaticOnlineConfig",
        "experience_only": "crl.recipes.complementary.config:ExperienceOnlyConfig",
        "offline_bank": "crl.recipes.complementary.config:OfflineBankConfig",
    },
)
"""Recipes by kind; guests and other packages add theirs in the entry-point group `crl.recipes`."""


def goes_on(value: str) -> bool:
    """Whether a collapse changes nothing (`exclude_if`)."""
    return value == "go_on"


Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,30}$")]


class Method(Model):
    """What affects results. Frozen at the first run."""

    seed: int = Field(0, ge=0, lt=2**32, description="Seed of the experiment.")
    families: list[FamilyConfig] = Field(min_length=1, description="The task families that a run trains on.")
    roles: dict[Name, RoleConfig] = Field(min_length=1, description="Models by role (actor, extractor, …).")
    rollout: RolloutConfig = Field(RolloutConfig(), description="How episodes are played.")
    recipe: Annotated[RecipeConfig, RECIPES] = Field(
        {"kind": "complementary"},
        validate_default=True,
        description="What a round consists of.",
    )
    evaluation: EvaluationConfig = Field(EvaluationConfig(), description="Held-out evaluation.")
    prompts: dict[Name, PromptConfig] = Field(
        min_length=1, description="Prompts by name; in a file, names under conf/prompts/."
    )
    overlap: bool = Field(
        False,
        exclude_if=off,
        description="Distill, credit and update the extractor while the next round plays, which then reads the "
        "bank and extractor of two rounds before.",
    )
    on_collapse: Literal["go_on", "stop", "fall_back"] = Field(
        "go_on",
        exclude_if=goes_on,
        description="After a collapse: go on, stop, or fall back to the best evaluated round's weights. stop and "
        "fall_back also warn early, and count falling success as a collapse.",
    )
    threads: int = Field(2, ge=1, le=1024, description="CPU threads per process; they can change the last digit.")

    @field_validator("roles")
    @classmethod
    def _weights_of_the_same_role(cls, roles: dict[str, RoleConfig]) -> dict[str, RoleConfig]:
        """`run:quickstart@3` names the weights of the role of the same name there."""
        return {
            name: role.model_copy(update={"model": f"{role.model}/{name}"}) if OF_RUN.fullmatch(role.model) else role
            for name, role in roles.items()
        }

    @model_validator(mode="after")
    def _families_differ(self) -> Method:
        names = [family.name for family in self.families]
        if len(set(names)) != len(names):
            raise ValueError(f"families must have different names, found {names}")
        return self

    @model_validator(mode="after")
    def _draws_listed(self) -> Method:
        listed = [family.name for family in self.families if family.train_tasks is not None]
        if listed and not self.recipe.DRAWS_LISTED:
            raise ValueError(f"family {listed[0]} has train_tasks, and recipe {self.recipe.kind} draws from ranges")
        return self

    @model_validator(mode="after")
    def _roles_fit(self) -> Method:
        for name, role in self.roles.items():
            if role.base is not None:
                self._check_base(name, role.base)
            if role.weights is not None:
                self._check_weights(name, role.weights)
            role.check_set_elsewhere(name)
        missing = [name for name in self.uses() if name not in self.roles]
        if missing:
            who = "a family's reward" if missing[0] == JUDGE else f"recipe {self.recipe.kind}"
            raise ValueError(f"{who} needs a role {missing[0]!r}; found {', '.join(self.roles)}")
        return self

    @model_validator(mode="after")
    def _judge_fits(self) -> Method:
        if not self.judged:
            return self
        if not self.recipe.JUDGED:
            raise ValueError(f"recipe {self.recipe.kind} learns what its environments pay: a judge cannot stand in")
        if self.owner(JUDGE) in self.trained():
            raise ValueError(
                f"the judge has the weights of {self.owner(JUDGE)}, which are trained: give roles.judge a model of its "
                "own, or it would come to say what pays"
            )
        return self

    def _check_weights(self, name: str, weights: str) -> None:
        """Raise ValueError where a role cannot have the weights of another."""
        owner = self.roles.get(weights)
        if owner is None or owner.weights is not None:
            own = ", ".join(each for each, config in self.roles.items() if config.weights is None)
            why = "there is no such role" if owner is None else "that role has none of its own"
            raise ValueError(
                f"roles.{name}.weights is {weights!r}, and {why}; expected a role with weights of its own: {own}"
            )

    def _check_base(self, name: str, base: str) -> None:
        """Raise ValueError or BadInput where a role cannot stand on the base of another."""
        owner = self.roles.get(base)
        if base == name or owner is None or owner.weights is not None or owner.base is not None:
            others = (each for each, role in self.roles.items() if each != name and role.weights is role.base is None)
            raise ValueError(
                f"roles.{name}.base is {base!r}, expected a role with a model of its own: {', '.join(others)}"
            )
        for each in (base, name):
            self.roles[each].check_shared_base(each)

    @model_validator(mode="after")
    def _prompts_fit(self) -> Method:
        missing = sorted(self.recipe.prompts() - self.prompts.keys())
        if missing:
            raise ValueError(
                f"recipe {self.recipe.kind} needs a prompt {missing[0]!r}; found {', '.join(sorted(self.prompts))}"
            )
        return self

    @model_validator(mode="after")
    def _can_overlap(self) -> Method:
        if self.overlap and not self.recipe.OVERLAPS:
            raise ValueError(f"overlap is on, and the rounds of recipe {self.recipe.kind} have one track")
        return self

    @model_validator(mode="after")
    def _can_draw_again(self) -> Method:
        if self.rollout.dynamic_sampling is not None and not self.recipe.DRAWS_AGAIN:
            raise ValueError(
                f"rollout.dynamic_sampling is set, and recipe {self.recipe.kind} trains no actor on groups that it "
                "could draw again: leave it out"
            )
        return self

    @model_validator(mode="after")
    def _possible_together(self) -> Method:
        # One at a time: a later question may make no sense where an earlier one has found something.
        problems = (self._program_problems(), self.recipe.problems(self), self._engine_problems())
        for problem in chain(*problems, self._history_problems()):
            raise problem
        return self

    def _program_problems(self) -> Iterator[BadInput]:
        """What cannot be done with episodes that are programs: nobody steps them, and they write their own prompts."""
        for family in (family for family in self.families if family.environment.runs_programs):
            stepped: dict[str, tuple[str, str] | None] = {
                "method.recipe": self.recipe.steps_environments(self),
                "method.rollout.search_and_ask": ("questions are asked between steps", "none")
                if self.rollout.search_and_ask is not None
                else None,
                "method.roles.actor.sampling.constrain": ("a program names no actions to choose from", "none")
                if any(each.constrain == "actions" for each in self.samplings("actor", family.name))
                else None,
                "method.roles.actor.history": ("they write their own histories", "append or strip_thoughts")
                if self.role("actor").history not in ("append", "strip_thoughts")
                else None,
                "method.roles.actor.engine": ("an endpoint renders chats itself, so nothing would be trained", "vllm")
                if self.role("actor").engine.REMOTE
                else None,
            }
            for where, problem in stepped.items():
                if problem is not None:
                    yield BadInput(
                        f"the episodes of family {family.name} are programs that run themselves, and {problem[0]}",
                        expected=problem[1],
                        where=where,
                        next_step="change it, or play another environment",
                    )

    def _engine_problems(self) -> Iterator[BadInput]:
        """What engines cannot do for their roles."""
        for name, use in self.uses().items():
            role, owner = self.role(name), self.owner(name)
            engine, remote = role.engine.kind, role.engine.REMOTE
            if remote and owner in self.trained():
                yield BadInput(
                    f"role {owner} is trained, and its engine is {engine}: the weights are not here",
                    expected="a recipe that does not train it (static_online, offline_bank), or another engine",
                    where=f"method.roles.{owner}.engine",
                    next_step="choose one of them",
                )
            if remote != role.model.startswith(ENDPOINT):
                yield BadInput(
                    f"role {owner} has the model {role.model!r} and the engine {engine}",
                    expected=f"{ENDPOINT}<name> with the engine openai, and with no other",
                    where=f"method.roles.{owner}.model",
                    next_step="change the model or the engine",
                )
            temperatures = {f"method.roles.{name}.sampling.temperature": role.sampling.temperature}
            if use.multi_turn:
                temperatures["method.evaluation.temperature"] = self.evaluation.temperature
            yield from role.engine_problems(name, temperatures)
            if use.multi_turn:
                yield from self._problems_of_families(role, name)

    def _history_problems(self) -> Iterator[BadInput]:
        """Histories that change nothing, or that are impossible."""
        for name, use in self.uses().items():
            history, where = self.roles[name].history, f"method.roles.{name}.history"
            if history != "append" and not use.multi_turn:
                yield BadInput(
                    f"{where} is set, and the role {name} answers once",
                    expected="none: a role that does not play has no history",
                    where=where,
                    next_step="leave it out",
                )
                continue
            for family in self.families:
                samplings = self.samplings(name, family.name)
                if history == "strip_thoughts" and any(each.constrain == "actions" for each in samplings):
                    yield BadInput(
                        f"{where} is strip_thoughts, and in family {family.name} a turn is an action and nothing else",
                        expected="constrain: none, or another history: there are no thoughts",
                        where=where,
                        next_step="choose one of them",
                    )
                if not isinstance(history, SummaryHistory):
                    continue
                most = max(each.max_new_tokens for each in samplings)
                room = self.roles[name].context - most
                if history.summarize.at >= room:
                    yield BadInput(
                        f"{where} asks for a summary at {history.summarize.at} tokens, where it no longer fits",
                        expected=f"fewer than {room}: the context of {self.roles[name].context} less "
                        f"{most} new tokens, and room for the question",
                        where=f"{where}.summarize.at",
                        next_step="lower it, or raise the role's context",
                    )
                if self.prompts_of(family.name)[name].summarize is None:
                    yield BadInput(
                        f"{where} is summarize, and the prompt of family {family.name} asks for no summary",
                        expected="prompts.actor.summarize, such as: Sum up what you know and what you have done.",
                        where=f"method.prompts.{name}.summarize",
                        next_step="add it to the prompt file",
                    )

    def _problems_of_families(self, role: RoleConfig, name: str) -> Iterator[BadInput]:
        """What the engine cannot do of the sampling that task families, or evaluations, have of their own."""
        shared = f"method.roles.{name}.sampling"
        own_settings = [
            (f"family {family.name}", f"method.families.{index}.sampling", self.sampling(name, family.name), True)
            for index, family in enumerate(self.families)
            if family.sampling is not None
        ]
        if (change := self.evaluation.sampling) is not None:
            own_settings.append(("evaluation", "method.evaluation.sampling", change.over(role.sampling), False))
        for who, own, sampling, trained in own_settings:
            asked = role.model_copy(update={"sampling": sampling})
            temperatures = {f"{own}.temperature": sampling.temperature} if trained else {}
            for problem in asked.engine_problems(name, temperatures):
                yield BadInput(
                    f"{who}: {problem.found.replace(shared, own)}",
                    expected=problem.expected,
                    where=(problem.where or own).replace(shared, own),
                    next_step=problem.next_step,
                )

    def role(self, name: str) -> RoleConfig:
        """The config of a role; what belongs to the weights, or to the base, is the owner's where they are shared."""
        role = self.roles[name]
        if role.weights is not None:
            owner, fields = self.role(role.weights), RoleConfig.OF_WEIGHTS
        elif role.base is not None:
            owner, fields = self.roles[role.base], RoleConfig.OF_BASE
        else:
            return role
        return role.model_copy(update={field: getattr(owner, field) for field in fields})

    def family(self, name: str) -> FamilyConfig | None:
        """The config of a task family; None where there is none of this name (a practice game, for instance)."""
        return next((family for family in self.families if family.name == name), None)

    def group_size(self, family: FamilyConfig) -> int:
        """K of a task family."""
        return self.rollout.group_size if family.group_size is None else family.group_size

    @property
    def episodes(self) -> int:
        """Episodes that a round draws at once: K of every group."""
        return sum(family.groups * self.group_size(family) for family in self.families)

    @property
    def most_episodes(self) -> int:
        """Episodes of a round, at most: those of every draw."""
        sampling = self.rollout.dynamic_sampling
        return self.episodes * (1 if sampling is None else sampling.max_draws)

    def sampling(self, role: str, family: str) -> SamplingConfig:
        """How a role samples when it plays a task family."""
        shared, config = self.role(role).sampling, self.family(family)
        return shared if config is None or config.sampling is None else config.sampling.over(shared)

    def evaluation_sampling(self, role: str, family: str) -> SamplingConfig:
        """How a role samples when it plays held-out tasks of a family."""
        config = self.evaluation
        trained = self.sampling(role, family).model_copy(update={"temperature": config.temperature})
        return trained if config.sampling is None else config.sampling.over(trained)

    def samplings(self, role: str, family: str) -> tuple[SamplingConfig, SamplingConfig]:
        """How a role samples when it plays a task family: in training, and in evaluation."""
        return self.sampling(role, family), self.evaluation_sampling(role, family)

    def renormalized(self) -> tuple[str, ...]:
        """The roles that are trained on what they sample, and whose engine tells log-probabilities of what a cut leaves
        (`EngineConfig.RENORMALIZES`), where any of their sampling in training cuts."""
        return tuple(
            name
            for name, use in self.uses().items()
            if use.trained and use.on_policy and self.role(name).engine.RENORMALIZES
            if self.role(name).sampling.cuts
            or (use.multi_turn and any(self.sampling(name, family.name).cuts for family in self.families))
        )

    def prompts_of(self, family: str) -> Mapping[str, PromptConfig]:
        """The prompts of a task family: its own, and those that it shares."""
        config = self.family(family)
        return self.prompts if config is None or config.prompts is None else {**self.prompts, **config.prompts}

    def own_prompts(self, name: str) -> dict[str, PromptConfig]:
        """The families' own prompts of a name, by family; those without one use `prompts`."""
        return {family.name: own[name] for family in self.families if name in (own := family.prompts or {})}

    @property
    def judged(self) -> list[FamilyConfig]:
        """The task families whose reward a judge gives."""
        return [family for family in self.families if family.judged]

    def uses(self) -> Mapping[str, RoleUse]:
        """The roles that are worked with: those of the recipe, and the judge where one gives rewards."""
        uses = dict(self.recipe.roles())
        if self.judged:
            uses.setdefault(JUDGE, RoleUse(trained=False, batch=JUDGED_AT_ONCE))
        return uses

    def owner(self, name: str) -> str:
        """The role whose weights a role has: its own name, unless it shares another's."""
        return self.roles[name].weights or name

    def base(self, name: str) -> str | None:
        """The role whose model is the frozen base of this one's weights and of others that the recipe works with; None
        where no other stands on it."""
        bases = [self._base(owner) for owner in self.owners()]
        base = self._base(self.owner(name))
        return base if bases.count(base) > 1 else None

    def _base(self, owner: str) -> str:
        return self.roles[owner].base or owner

    def owners(self) -> tuple[str, ...]:
        """Sets of weights that are worked with, by the role that owns each, in the order of its roles."""
        return tuple(dict.fromkeys(self.owner(name) for name in self.uses()))

    def trained(self) -> tuple[str, ...]:
        """Those sets of weights that are trained: some role that has them is."""
        uses = self.uses()
        return tuple(
            owner
            for owner in self.owners()
            if any(use.trained and self.owner(name) == owner for name, use in uses.items())
        )

    def identity(self, dumped: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The method as plain values, or another that was dumped, without the paths of data whose digests are known."""
        found = self.model_dump(mode="json") if dumped is None else dict(dumped)
        if isinstance(families := found.get("families"), list) and len(families) == len(self.families):
            found["families"] = [mine.identity(each) for mine, each in zip(self.families, families, strict=True)]
        return found

    def digest(self) -> str:
        """SHA-256 over the canonical JSON of the method."""
        dumped = self.identity()
        return hashlib.sha256(json.dumps(dumped, sort_keys=True, ensure_ascii=False).encode()).hexdigest()
