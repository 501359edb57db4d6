"""What an option of Complementary RL adds to a round. Each is one file here; `round.py` lists them.

The first choice is a stage of its own, whose rows other stages declare as reads. What a stage cannot do goes through
one of four hooks: rows that are kept of played waves, operations that the bank must not take, earnings beside those of
the uses, metrics of the round's health. A hook has two users; what has one user is a function that the stage which
needs it calls by its name. This is no framework: nothing here is found by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from crl.config import Method
from crl.credit.buffer import Earned
from crl.errors import BadInput
from crl.records import Row
from crl.rollout.play import PlayedEpisode
from crl.rounds.alarms import Metrics
from crl.rounds.context import StageContext
from crl.rounds.stage import Read, RowsOf, Stage

Text = tuple[str, str]
"""A task family, and a text that is written, held or shown there."""
TruthShare = Callable[[str, Sequence[Text]], Metrics]
"""The share of texts that are right as a metric of that name; nothing where nobody knows of any."""
MetricsAndAlarms = tuple[Metrics, Mapping[str, str]]
"""Metrics, and alarms by their names."""
RowsByType = Mapping[type[Row], Sequence[Row]]


@dataclass(frozen=True)
class Sources:
    """Reads as this round names them: no mechanism counts rounds, or asks whether they overlap."""

    played: Read
    """The bank that the round plays with."""
    before: Read
    """The bank that it changes."""
    weights: Callable[[str, int], Read]
    """Of a role, so many rounds back."""
    lag: int
    """Rounds between what a round plays with and the stages of the second track that made it."""
    changes_bank: Callable[[Method, int], bool]
    """Whether a round may change the bank."""


@dataclass(frozen=True)
class Adds:
    """What an option adds to a stage that is there anyway."""

    reads: tuple[Read, ...] = ()
    writes: tuple[type[Row], ...] = ()


class Mechanism:
    """One option. What is not overridden does nothing."""

    key: ClassVar[str]
    """Of its settings in the method: `recipe.trial`."""
    after_rollouts: ClassVar[bool]
    """Whether nothing reads its settings until a round's episodes are over, so that a fork that keeps recorded rollouts
    may change them."""

    def __init__(self, config: Any) -> None:
        """`config` are its settings (:meth:`of`)."""
        self.config = config

    @classmethod
    def of(cls, method: Method) -> Self | None:
        """The mechanism as a method has it; None where it is off."""
        found: Any = method
        for name in cls.key.split("."):
            found = getattr(found, name)
        return None if found is None else cls(found)

    @property
    def needs_guided(self) -> bool:
        """Whether it does nothing without guided episodes."""
        return True

    def problems(self, method: Method) -> Iterator[BadInput]:
        """Settings that would do nothing of what they ask for."""
        return iter(())

    def stages(self, method: Method, at: Sources) -> Sequence[Stage]:
        """Stages of its own, in any order: what they read says where they belong."""
        return ()

    def adds(self, method: Method, at: Sources) -> Mapping[str, Adds]:
        """What it adds to other stages, by their names: the reads and writes of its hooks, and of calls by name."""
        return {}

    # -- hooks; in brackets the stages that call them -----------------------------------------------------------------

    def wave_rows(self, ctx: StageContext, played: Sequence[PlayedEpisode]) -> RowsByType:
        """Rows of a wave [collect]."""
        return {}

    def refused(self, rows: RowsOf) -> Mapping[str, str]:
        """Reasons by id of operations that the bank must not take [merge, approve, consolidate]."""
        return {}

    def earned(self, ctx: StageContext) -> list[Earned]:
        """What outputs earned, beside what the rule of credit gives for uses [credit]."""
        return []

    def metrics(self, ctx: StageContext, truth: TruthShare) -> MetricsAndAlarms:
        """What is measured of a round [health]. A metric that is there already is added to it: tokens of a role."""
        return {}, {}


def with_mechanisms(stages: Sequence[Stage], on: Sequence[Mechanism], method: Method, at: Sources) -> list[Stage]:
    """The stages of the paper, and what the options add to them and beside them."""
    listed = {stage.name: stage for stage in stages}
    for mechanism in on:
        listed |= {stage.name: stage for stage in mechanism.stages(method, at)}
    for mechanism in on:
        for name, more in mechanism.adds(method, at).items():
            if name in listed:
                old = listed[name]
                listed[name] = replace(old, reads=(*old.reads, *more.reads), writes=(*old.writes, *more.writes))
    return list(listed.values())
