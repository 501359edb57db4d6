"""The mechanisms of Experiential RL (arXiv 2602.13949), and what it says of itself. No stage is imported here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from crl.config import (
    BankConfig,
    BankUse,
    EmbedderUse,
    Method,
    Model,
    RecipeConfig,
    RoleUse,
    StreamObjective,
)
from crl.config.base import COLDEST
from crl.config.mechanisms import EmbedderName
from crl.errors import BadInput
from crl.rounds.impossible import refused, unread_settings, whole_reference

ACTOR, REFLECTOR = "actor", "reflector"
REFLECT = "reflect"
"""Name of the prompt that reflections are asked for with."""
LONGEST_ATTEMPT = 20_000
"""Characters of an attempt that the memory may keep."""


class ReflectConfig(Model):
    """What the reflector reads and writes."""

    form: Literal["text", "tag"] = Field(
        "text",
        description="text: the whole output is the new instructions; tag: what is inside the last <instructions> tag.",
    )
    max_characters: int = Field(4000, ge=8, le=20_000, description="Longest reflection; a longer one is malformed.")
    truncated: Literal["malformed", "keep"] = Field(
        "malformed", description="A reflection cut off by the token limit is malformed, or kept."
    )
    batch: int = Field(64, ge=1, le=4096, description="Reflections sampled side by side.")
    malformed_reward: Literal["outcome"] | Annotated[float, Field(ge=-1000, le=1000)] = Field(
        "outcome",
        description="Reward of a malformed reflection; outcome: that of the next attempt, as in the authors' code.",
    )


class MemoryConfig(Model):
    """How the reflector uses the bank of successful reflections."""

    order: Literal["similarity", "recency", "last"] = Field(
        "similarity",
        description="Which reflections it sees. similarity: the most similar of the family; recency: its newest; "
        "last: the newest of all (the authors' code).",
    )
    top_k: int = Field(2, ge=1, le=16, description="Most reflections shown; last: 1.")
    threshold: float = Field(-1.0, ge=-1, le=1, description="Least cosine (similarity only).")
    attempts: bool = Field(
        True,
        description="Also keep and show the attempts before and after a reflection; false: the reflection alone, "
        "as in the authors' code.",
    )
    embedder: EmbedderName = "minilm"
    query_instruction: str | None = Field(
        None,
        max_length=4000,
        description="Text before queries only; null: the embedder's own prompt `query`, if it has one.",
    )

    @property
    def shown(self) -> int:
        """Entries that a reflection may be shown."""
        return 1 if self.order == "last" else self.top_k


class RevisionConfig(Model):
    """How a further attempt is played."""

    shows_attempt: bool = Field(False, description="End the instructions with the attempt before. The paper does not.")
    temperature: float | None = Field(
        None, ge=COLDEST, le=5, description="Sampling temperature; null: as in first attempts."
    )


class InternalizeConfig(Model):
    """Learns rewarded second attempts in the context of the first prompt."""

    weight: float = Field(1.0, gt=0, le=1000, description="Weight of the loss, beside the reward.")


class ErlConfig(RecipeConfig):
    """Experiential RL: an attempt, a reflection, and another attempt guided by it."""

    kind: Literal["erl"] = "erl"
    BUILDER: ClassVar[str] = "crl.recipes.erl.round:build"
    REPORT: ClassVar[str | None] = "crl.recipes.erl.report:SECTION"
    DRAWS_AGAIN: ClassVar[bool] = True
    AFTER_ROLLOUTS: ClassVar[frozenset[str]] = frozenset(
        {
            "recipe.approve_bank",
            "recipe.bank",
            "recipe.internalize",
            "recipe.objective",
            "recipe.reflect.malformed_reward",
        }
    )

    revisions: int = Field(1, ge=1, le=8, description="Further attempts per episode, each with new feedback.")
    gate: float | None = Field(1.0, ge=-1e6, le=1e6, description="Try again if an attempt earned less; null: always.")
    revision: RevisionConfig = Field(RevisionConfig(), description="How further attempts are played.")
    attempt_characters: int = Field(
        1000,
        ge=120,
        le=LONGEST_ATTEMPT,
        description="Most characters of an attempt that memory or `revision.shows_attempt` shows.",
    )
    reflect: ReflectConfig | None = Field(
        ReflectConfig(), description="Reflections; null: further attempts keep the old instructions."
    )
    memory: MemoryConfig | None = Field(
        MemoryConfig(), description="A bank of successful reflections for the reflector; null: none."
    )
    bank: BankConfig = Field(BankConfig(capacity=1000), description="Capacity and eviction of that bank.")
    approve_bank: bool = Field(False, description="A person approves each round's bank.")
    objective: StreamObjective = Field(StreamObjective(), description="The objective of all streams.")
    internalize: InternalizeConfig | None = Field(
        InternalizeConfig(), description="Next-token loss on guided successes, without their guidance; null: off."
    )

    @property
    def keeps_attempts(self) -> bool:
        """Whether an entry of its memory keeps the attempts on both sides of the reflection."""
        return self.has_memory and self.memory is not None and self.memory.attempts

    @property
    def has_memory(self) -> bool:
        """Whether it keeps a bank of reflections."""
        return self.reflect is not None and self.memory is not None

    def passes(self, reward: float) -> bool:
        """Whether an attempt of such a reward is left as it is."""
        return self.gate is not None and reward >= self.gate

    def roles(self) -> Mapping[str, RoleUse]:
        """An actor that plays, and a reflector that writes one turn; they may share their weights."""
        uses = {ACTOR: RoleUse(multi_turn=True)}
        if self.reflect is not None:
            uses[REFLECTOR] = RoleUse(batch=self.reflect.batch)
        return uses

    def outputs(self, method: Method) -> Mapping[str, int]:
        """Every attempt, and a reflection for each revision."""
        again = self.revisions * method.most_episodes
        made = {ACTOR: method.most_episodes + again}
        return made | ({REFLECTOR: again} if self.reflect is not None else {})

    def prompts(self) -> frozenset[str]:
        """One for playing, one for reflecting."""
        return frozenset({ACTOR} | ({REFLECT} if self.reflect is not None else set()))

    def embedder(self) -> EmbedderUse | None:
        """That of the memory."""
        if not self.has_memory or self.memory is None:
            return None
        return EmbedderUse(self.memory.embedder, self.memory.query_instruction)

    def bank_use(self) -> BankUse:
        """The memory: reflections of a family are compared with those of the family."""
        if not self.has_memory or self.reflect is None:
            return super().bank_use()
        return BankUse(self.bank, self.reflect.max_characters, approved=self.approve_bank)

    def problems(self, method: Method) -> Iterator[BadInput]:
        """Combinations that would run for hours and do nothing of what was asked for."""
        yield from unread_settings(method, reward="attempts are compared by what the task pays", bank=True)
        if self.reflect is None and self.memory is not None:
            yield refused(
                "method.recipe.memory",
                "nothing is reflected on, so the memory stays empty",
                "none",
                next_step="set method.recipe.memory to null as well; left out it is on",
            )
        if self.approve_bank and not self.has_memory:
            yield refused("method.recipe.approve_bank", "there is no memory whose changes a person could see", "false")
        if self.revision.temperature is not None:
            role, where = method.role(ACTOR), "method.recipe.revision.temperature"
            yield from role.engine.problems(role, ACTOR, {where: self.revision.temperature})
        if self.bank.duplicates == "near":
            yield refused("method.recipe.bank.duplicates", "texts are not compared with each other", "reject or keep")
        if self.reflect is not None and method.role(REFLECTOR).sampling.constrain == "actions":
            yield refused("method.roles.reflector.sampling.constrain", "a reflection is text, not an action", "none")
        yield from whole_reference(method, self.objective, method.trained())


config_of = ErlConfig.of


def reflect_of(method: Method) -> ReflectConfig:
    """How it reflects. Raises BadInput where it does not."""
    config = config_of(method).reflect
    if config is None:
        raise BadInput("this experiment writes no reflections", where="method.recipe.reflect")
    return config
