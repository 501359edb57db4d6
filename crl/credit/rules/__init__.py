"""Rules of credit: what the uses of a round earn for the outputs behind them, one rule per file.

`extractor_objective.credit` names one of `CREDIT_RULES` (`crl/records/learning.py`), the only list of them. Each is
the file of its name here, with an object `RULE`. It is handed a round and returns rows; it reads no files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from crl.config import ExtractorObjective
from crl.config.registry import load_object
from crl.credit.buffer import Earned
from crl.records import Credit, Distillation, Episode, Retrieval, Row, UseReward


class TaskKey(NamedTuple):
    """One task, whoever plays it and when."""

    family: str
    level: int | str
    """Digest of what it holds, where the environment says it; else its seed."""


def task_of(episode: Episode) -> TaskKey:
    """The task that an episode was of."""
    return TaskKey(episode.family, episode.task_digest or episode.environment_seed)


@dataclass(frozen=True)
class Round:
    """What a rule may know of the round that it scores."""

    config: ExtractorObjective
    episodes: Sequence[Episode]
    retrievals: Sequence[Retrieval]
    """Every candidate of the round's plan, chosen or not."""
    credits: Sequence[Credit]
    uses: Sequence[UseReward]
    """:func:`crl.credit.uses.uses_of`: they earn their outcome, ±1, and the actor's verdict. What the actor rejected
    has no outcome, and no credit."""
    distilled: Sequence[Distillation]
    """The outputs about the round's episodes."""
    earners: Callable[[UseReward], Sequence[str]]
    """The outputs that earn by a use, by generation id: :func:`crl.credit.buffer.earners`."""
    own_task: Callable[[str], TaskKey | None]
    """The task that an output was distilled from; None for a merged text."""

    def earned(self, uses: Iterable[UseReward]) -> list[Earned]:
        """Every use with its reward, for each output that earns by it."""
        return [Earned(name, use.reward) for use in uses for name in self.earners(use)]


@dataclass(frozen=True)
class Scored:
    """What a rule says of a round."""

    uses: Sequence[UseReward]
    """One row per use, in their order."""
    earned: Sequence[Earned]
    """What counts in the buffer."""
    after: Sequence[Any] = ()
    """The rule's own rows after the round."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Metrics of the rule."""


@dataclass(frozen=True)
class Rule:
    """One way to give credit."""

    score: Callable[[Round, Sequence[Any]], Scored]
    """From the round, and the rule's own rows after the round before."""
    keeps: type[Row] | None = None
    """The type of its own rows, which last from round to round."""
    when_written: bool = False
    """Whether it scores a distilled output when it is written. The uses of its texts then earn it nothing."""


def rule_of(name: str) -> Rule:
    """A rule by its name in the config."""
    found: Rule = load_object(f"{__name__}.{name}:RULE")
    return found
