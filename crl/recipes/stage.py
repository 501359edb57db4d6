"""What a stage is, what a recipe is: all that a flow, the engine and the record know of either.

A stage declares the rows it reads, as (stage, round offset), and the row types it writes. Offsets are rules of round
numbers, never "whatever is newest", so any round can be made again from the record alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from crl.config import Method
from crl.errors import BadInput
from crl.records import Row, Weights

R = TypeVar("R", bound=Row)

Run = Callable[[Any], None]
"""What a stage does. It is called with the `StageContext` of its round (`context.py`), which knows its stage: hence
`Any` here, and the true type in every function that is one."""


class RowsOf(Protocol):
    """Rows of a stage so many rounds back; none where that round has no such stage."""

    def __call__(self, row_type: type[R], stage: str, offset: int = 0) -> list[R]: ...


@dataclass(frozen=True)
class Read:
    """Rows of `stage`, `offset` rounds back (0 this round, −1 the one before)."""

    stage: str
    offset: int = 0


def always(method: Method, round_number: int) -> bool:
    """Due in every round."""
    return True


@dataclass(frozen=True)
class Stage:
    """One retryable, resumable step of a round."""

    name: str
    run: Run | None = None
    """Runs the stage in one piece; None where it consists of its parts and nothing remains once they are joined."""
    reads: tuple[Read, ...] = ()
    writes: tuple[type[Row], ...] = ()
    role: str | None = None
    """Role whose model it needs; None needs no language model."""
    update: bool = False
    """Whether it trains: it then runs on every rank of the role's engine."""
    due: Callable[[Method, int], bool] = always
    parts: Callable[[Any], int] | None = None
    """How many independent parts the stage has; None: one piece. Parts may run in any engine, in any order."""
    run_part: Callable[[Any, int], None] | None = None
    """Writes the rows of one part; the stage is their concatenation in order."""
    waits_for: Callable[[Method, int, RowsOf], list[str]] | None = None
    """Set where a person decides before the stage runs: gives, from the rows it reads, the ids of what they may refuse.
    The decision lies in `decisions/` of the run directory."""

    def __post_init__(self) -> None:
        if (self.parts is None) != (self.run_part is None) or (self.run is None) != (self.parts is not None):
            raise ValueError(f"stage {self.name} needs either `run`, or `parts` and `run_part`")

    @property
    def from_rows(self) -> bool:
        """Whether it is a function of recorded rows: no language model, no person. It can be made again at any time."""
        return self.run is not None and self.role is None and self.waits_for is None


@dataclass(frozen=True)
class Recipe:
    """Round 0 is `preparation`; every later round is `stages`."""

    name: str
    preparation: tuple[Stage, ...]
    stages: tuple[Stage, ...]
    initial: Mapping[str, str] = field(default_factory=dict)
    """Which preparation stage stands for a stage in round 0."""
    trains: frozenset[str] = frozenset()
    """Roles that are trained."""
    guided: bool = True
    """Whether the bank guides a share of each group (`rollout.guided_share`); else all rollouts are free."""

    def stages_of(self, method: Method, round_number: int) -> tuple[Stage, ...]:
        """The stages due in a round, in order."""
        listed = self.preparation if round_number == 0 else self.stages
        return tuple(stage for stage in listed if stage.due(method, round_number))

    def stage(self, method: Method, round_number: int, name: str) -> Stage:
        """A stage of a round by its name."""
        for stage in self.stages_of(method, round_number):
            if stage.name == name:
                return stage
        names = ", ".join(stage.name for stage in self.stages_of(method, round_number))
        raise BadInput(
            f"recipe {self.name} has no stage {name!r} in round {round_number}",
            expected=f"one of {names}",
        )

    def from_rows(self, method: Method, round_number: int, name: str) -> bool:
        """Whether a stage of a round is a function of recorded rows (:attr:`Stage.from_rows`)."""
        return any(stage.name == name and stage.from_rows for stage in self.stages_of(method, round_number))

    def checkpoint_stages(self) -> dict[str, list[str]]:
        """Stages that write a role's weights; one that names no role writes those of every role."""
        found: dict[str, list[str]] = {}
        for stage in (*self.preparation, *self.stages):
            if Weights in stage.writes:
                for role in [stage.role] if stage.role is not None else sorted(self.trains):
                    found.setdefault(role, []).append(stage.name)
        return found

    def resolve(self, method: Method, round_number: int, name: str, offset: int) -> tuple[int, str] | None:
        """(round, stage) that a read refers to; None where there is no such stage (its rows are none).

        Round 0 has its own stages: there, and in every round of a recipe that lacks the stage (a role that is not
        trained keeps its first weights), `initial` says which preparation stage stands for it.
        """
        target = round_number + offset
        if target < 0:
            return None
        lacking = all(stage.name != name for stage in self.stages)
        if name in self.initial and (target == 0 or lacking):
            target, name = 0, self.initial[name]
        if any(stage.name == name for stage in self.stages_of(method, target)):
            return target, name
        return None
