"""A trained agent as others use it: its weights, its prompts, its bank, as the held-out evaluation of a round had them.

It is opened from a run, or from a folder that `crl export` wrote, and only read. What is retrieved, and how a prompt is
put together, comes from the functions that evaluate a round: the same game has the same experience and the same prompt.
What a game needs of a model before its first turn (`actor_critic`), or while it runs (`search_and_ask`), is left out:
that is played, not retrieved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np

from crl.bank.retrieve import BankRetriever
from crl.config import FamilyConfig, Method, PromptConfig, RetrievalConfig, RoleConfig, SamplingConfig
from crl.engine.evaluation import evaluated_round
from crl.errors import BadInput
from crl.paths import possible_path
from crl.protocols import Chat, Embedder, Environment, Policy, Start
from crl.records import Retrieval, Weights, rows_of, shown_text
from crl.report.bank import BankAfter, ShownEntry
from crl.rollout.prompts import opened
from crl.rounds.context import BANK, StageContext
from crl.rounds.evaluate import evaluation_context
from crl.rounds.recipe import recipe_in
from crl.rounds.stage import Recipe
from crl.rounds.weights import update_name
from crl.run.directory import RunDirectory
from crl.run.find import beside, find_run
from crl.run.head import head_after
from crl.serve.folder import OfFolder, is_agent, same_base


@dataclass(frozen=True, slots=True)
class Guidance:
    """What guides one game."""

    entries: tuple[ShownEntry, ...]
    """The chosen experiences, in the order shown."""
    text: str
    """What the actor reads: the experience, or several of them, numbered."""
    candidates: tuple[Retrieval, ...]
    """All that was near, the nearest first, with every term of eq. 6: why these were chosen."""


class AgentServices(Protocol):
    """What lends models and environments (`crl.engine.services.EngineServices`)."""

    def environment(self, family: str, round_number: int) -> Environment: ...

    def policy(self, role: str, weights: Weights) -> Policy: ...

    def embedder(self) -> Embedder: ...


class Origin(Protocol):
    """Where an agent is read from: a round of a run, or an exported folder."""

    name: str
    path: Path
    method: Method
    round: int

    def digest(self) -> str: ...

    def weights(self, role: str) -> Weights: ...

    def checkpoint(self, weights: Weights) -> Path | None: ...

    def base(self, weights: Weights) -> Path: ...

    def entries(self, entry_ids: Sequence[str] | None = None) -> list[ShownEntry]:
        """Some entries of its bank, in that order; all for None, the oldest first."""

    def retriever(self) -> BankRetriever | None: ...

    def services(self, stack: ExitStack) -> AgentServices: ...


class TrainedAgent:
    """An agent after a round. Close it, or use it as a context, where models or environments were asked for.

    Attributes:
        name: of the experiment.
        round: whose evaluation it plays as.
        role: whose weights it has: `actor`, or another role of the method.
        method: frozen; families are as they are in that round.
    """

    def __init__(self, origin: Origin, role: str) -> None:
        if role not in (known := origin.method.roles):
            raise BadInput(f"{origin.name} has no role {role!r}", expected=f"one of {', '.join(known)}")
        families = [family.in_round(origin.round) for family in origin.method.families]
        self.name, self.round, self.role = origin.name, origin.round, role
        self.method = origin.method.model_copy(update={"families": families})
        self._origin, self._stack = origin, ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the models and environments that it lent."""
        self.__dict__.pop("_services", None)
        self._stack.close()

    # -- what it is ------------------------------------------------------------------------------------------------

    @property
    def path(self) -> Path:
        """The run, or the folder."""
        return self._origin.path

    @cached_property
    def digest(self) -> str:
        """The head of the run after the round: it vouches for everything that the agent comes from."""
        return self._origin.digest()

    @cached_property
    def weights(self) -> Weights:
        """Base, digest and checkpoint of the role's weights."""
        return self._origin.weights(self.role)

    @property
    def checkpoint(self) -> Path | None:
        """Folder of its weights, or of its adapter; None: the base model as it is."""
        return self._origin.checkpoint(self.weights)

    @property
    def base(self) -> Path:
        """Folder of the base model; of an exported folder whose weights are whole, the folder itself.

        Raises BadInput where it cannot be had on this machine, or is not the one that was trained from.
        """
        return self._origin.base(self.weights)

    @property
    def config(self) -> RoleConfig:
        """Of the role: chat template and what it is given, context, history rule, sampling."""
        return self.method.role(self.role)

    def sampling(self, family: str) -> SamplingConfig:
        """How it samples when it plays a task family, as in the held-out evaluation."""
        return self.method.evaluation_sampling(self.role, self.family(family).name)

    def prompts(self, family: str) -> Mapping[str, PromptConfig]:
        """The prompts of a task family."""
        return self.method.prompts_of(self.family(family).name)

    @property
    def families(self) -> list[str]:
        """Names of its task families."""
        return [family.name for family in self.method.families]

    def family(self, name: str) -> FamilyConfig:
        """A task family, with its environment as it is in the round. Raises BadInput for one that it lacks."""
        found = self.method.family(name)
        if found is None:
            raise BadInput(f"{self.name} has no task family {name!r}", expected=f"one of {', '.join(self.families)}")
        return found

    # -- its bank --------------------------------------------------------------------------------------------------

    @cached_property
    def entries(self) -> list[ShownEntry]:
        """Every entry of its bank, the oldest first; none where the recipe keeps no bank."""
        return self._origin.entries()

    @property
    def retrieval(self) -> RetrievalConfig | None:
        """The settings of retrieval; None where games are guided by nothing."""
        found = getattr(self.method.recipe, "retrieval", None)
        return found if isinstance(found, RetrievalConfig) else None

    def retrieve(self, family: str, query: str) -> Guidance | None:
        """What the evaluation shows in a game of the family; None where nothing is near enough. No counter moves.

        `query`: the task description, of a game :func:`crl.rounds.tasks.query_of`.
        """
        name = self.family(family).name
        if self._retriever is None:
            return None
        vector_D = self._services.embedder().embed_queries([query])[0]
        rows = self._retriever.retrieve("", name, vector_D, advance=False)
        chosen = tuple(self._origin.entries([row.entry_id for row in rows if row.chosen]))
        text = shown_text([entry.text for entry in chosen])
        return None if text is None else Guidance(chosen, text, tuple(rows))

    @cached_property
    def _retriever(self) -> BankRetriever | None:
        return self._origin.retriever()

    # -- to play ---------------------------------------------------------------------------------------------------

    def environment(self, family: str) -> Environment:
        """The environment of a task family. Raises BadInput where it cannot be played here."""
        return self._services.environment(self.family(family).name, self.round)

    def policy(self) -> Policy:
        """The model, ready to sample on the engine of its role. torch is imported now, and the model is loaded once."""
        return self._services.policy(self.role, self.weights)

    def opening(
        self, chat: Chat, family: str, start: Start, guidance: Guidance | None
    ) -> tuple[list[dict[str, str]], list[int]]:
        """The first prompt of a game, guided or not: its messages and its ids, as the evaluation puts them together."""
        shown = None if guidance is None else guidance.text
        prompt = self.prompts(family)["actor"]
        return opened(chat, prompt, start, experience=shown, placement=self.method.rollout.placement)

    @cached_property
    def _services(self) -> AgentServices:
        return self._origin.services(self._stack)


def open_agent(
    path: str | Path, round: int | None = None, *, best: bool = False, role: str | None = None
) -> TrainedAgent:
    """The agent of a run after a round: by default the latest that can be evaluated, or the best evaluated one. Its
    role is the actor, or the one that an exported folder has.

    `path` may also be a folder that `crl export` wrote, which has one round. Raises BadInput for a run, round or role
    that is not there, for weights that retention deleted, and for a folder that is not what was written.
    """
    if round is not None and best:
        raise BadInput("a round and the best one are both asked for", expected="one of them")
    if is_agent(folder := possible_path(path, "the agent")):
        exported = OfFolder(folder)
        if best or round not in (None, exported.round):
            raise BadInput(f"{folder} holds round {exported.round}", expected="no round, and not the best one")
        return TrainedAgent(exported, role or exported.role)
    run = RunDirectory.open(find_run(path))
    recipe = recipe_in(run)
    number = evaluated_round(run, recipe, round, best=best)
    return TrainedAgent(OfRun(run, recipe, number), role or "actor")


class OfRun:
    """A round of a run as the origin of a :class:`TrainedAgent`."""

    def __init__(self, run: RunDirectory, recipe: Recipe, number: int) -> None:
        self.name, self.path, self.method, self.round = run.experiment_name, run.path, run.method, number
        self.run, self._recipe = run, recipe

    @property
    def guides(self) -> bool:
        """Whether games of its evaluation are guided by a bank, where that holds something."""
        return any(read.name == BANK for read in self.context.stage.reads)

    def digest(self) -> str:
        return head_after(self.path, self.round)

    def weights(self, role: str) -> Weights:
        owner = self.method.owner(role)
        place = self._recipe.resolve(self.method, self.round, update_name(owner), 0)
        rows = [] if place is None else rows_of(Weights, self.run.read(*place, Weights))
        found = next((row for row in rows if row.role == owner), None)
        if found is None:
            raise BadInput(
                f"round {self.round} of {self.path} has no weights of role {role}",
                expected="a role that the recipe works with",
            )
        return found

    def checkpoint(self, weights: Weights) -> Path | None:
        if weights.checkpoint is not None and not (self.path / weights.checkpoint).is_dir():
            raise BadInput(
                f"the weights of role {weights.role} after round {self.round} are not there any more",
                expected=f"a checkpoint in {weights.checkpoint}",
                where=str(self.path),
                next_step="name a later round, or the best evaluated one",
            )
        return None if weights.checkpoint is None else self.path / weights.checkpoint

    def base(self, weights: Weights) -> Path:
        with beside(self.path):
            return same_base(weights.source, weights.base_digest)

    def entries(self, entry_ids: Sequence[str] | None = None) -> list[ShownEntry]:
        if not self._recipe.has_bank:
            return []
        bank = self._bank
        return bank.entries(bank.rows() if entry_ids is None else np.array(bank.snapshot.rows_of(entry_ids), np.int64))

    def retriever(self) -> BankRetriever | None:
        from crl.recipes.complementary.plan import counters, open_retriever

        ctx = self.context
        if not self.guides or not len(bank := ctx.bank()):
            return None
        return open_retriever(ctx, bank, counters(ctx, "plan"), training=False)

    def services(self, stack: ExitStack) -> AgentServices:
        from crl.engine.services import services_here

        return stack.enter_context(services_here(self.run))

    @cached_property
    def _bank(self) -> BankAfter:
        return BankAfter(self.run, self.round)

    @cached_property
    def context(self) -> StageContext:
        """What the stage `evaluate` of the round sees."""
        nobody: Any = None  # nothing is played in it
        return evaluation_context(self.run, self.method, self._recipe, self.round, nobody)
