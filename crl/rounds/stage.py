"""What a stage is, what a recipe is: all that a flow, the engine and the record know of either.

A stage declares the rows it reads, as (stage, round offset), and the row types it writes. Offsets belong to the recipe:
a stage asks for its reads by name ("bank", "actor") and does not know how many rounds back they are. They are rules of
round numbers, never "whatever is newest", so any round can be made again from the record alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, Protocol, TypeVar

from crl.config import Method
from crl.errors import BadInput
from crl.learn.terms import Objective
from crl.records import BankSnapshot, Row, Weights

R = TypeVar("R", bound=Row)

Run = Callable[[Any], None]
"""What a stage does. It is called with the `StageContext` of its round (`context.py`), which knows its stage: hence
`Any` here, and the true type in every function that is one."""


class RowsOf(Protocol):
    """Rows of a declared read, by its name; none where that round has no such stage."""

    def __call__(self, row_type: type[R], name: str) -> list[R]: ...


@dataclass(frozen=True)
class Read:
    """Rows of `stage`, `offset` rounds back (0 this round, −1 the one before; before the first round it is round 0)."""

    stage: str
    offset: int = 0
    name: str = ""
    """What the reading stage calls it; by default as the stage."""

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", self.stage)


BEFORE = "before"
"""Name of the read of a stage's own rows of the round before."""


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
    second_track: bool = False
    """Whether it may run beside the first track of the round after. Within a round the first track comes first."""
    due: Callable[[Method, int], bool] = always
    parts: Callable[[Any], int] | None = None
    """How many independent parts the stage has; None: one piece. Parts may run in any engine, in any order."""
    run_part: Callable[[Any, int], None] | None = None
    """Writes the rows of one part; the stage is their concatenation in order."""
    waits_for: Callable[[Method, int, RowsOf], list[str]] | None = None
    """Set where a person decides before the stage runs: gives, from the rows it reads, the ids of what they may refuse.
    The decision is in `decisions/` of the run directory."""

    def __post_init__(self) -> None:
        if (self.parts is None) != (self.run_part is None) or (self.run is None) != (self.parts is not None):
            raise ValueError(f"stage {self.name} needs either `run`, or `parts` and `run_part`")

    def read(self, name: str) -> Read:
        """A declared read by its name. Undeclared reads are refused."""
        for read in self.reads:
            if read.name == name:
                return read
        raise AssertionError(f"stage {self.name} reads {name!r} without declaring it")

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
    """Sets of weights that are trained, by the role that owns each."""
    objectives: Mapping[str, Objective] = field(default_factory=dict)
    """Objectives of the updates, by the name that samples carry."""
    row_types: tuple[type[Row], ...] = ()
    """The row types that the recipe brings, with their rules."""
    check_ready: Callable[[Method, Path], None] = lambda method, run_path: None
    """Raises BadInput for what only models, prompts or the run's directory can tell, before work starts."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "preparation", in_order(self.preparation))
        object.__setattr__(self, "stages", in_order(self.stages))
        for listed in (self.preparation, self.stages):
            tracks = [stage.second_track for stage in listed]
            if tracks != sorted(tracks):
                raise ValueError(f"recipe {self.name}: a stage of the first track reads one of the second")

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

    @property
    def has_bank(self) -> bool:
        """Whether a stage of its rounds publishes an experience bank."""
        return any(BankSnapshot in stage.writes for stage in self.stages)

    def reach(self) -> int:
        """Rounds that stages look back for weights: so many checkpoints may still be read. Beside the second track of a
        round the first track of the next one may have written another."""
        writers = {stage.name: stage for stage in self.stages if Weights in stage.writes}
        return max(
            (
                -read.offset + (stage.second_track and not writers[read.stage].second_track)
                for stage in self.stages
                for read in stage.reads
                if read.stage in writers
            ),
            default=0,
        )

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
        if round_number == 0 and offset < 0:
            return None
        target = max(0, round_number + offset)
        lacking = all(stage.name != name for stage in self.stages)
        if name in self.initial and (target == 0 or lacking):
            target, name = 0, self.initial[name]
        if any(stage.name == name for stage in self.stages_of(method, target)):
            return target, name
        return None


def in_order(stages: Sequence[Stage]) -> tuple[Stage, ...]:
    """Stages so that each comes after those of its round that it reads, and the second track after the first; as listed
    where that leaves a choice.

    Raises ValueError where stages read each other.
    """
    names = {stage.name: (stage.second_track, place) for place, stage in enumerate(stages)}
    sorter = TopologicalSorter(
        {
            stage.name: {read.stage for read in stage.reads if read.offset == 0 and read.stage in names}
            for stage in stages
        }
    )
    try:
        sorter.prepare()
    except CycleError as error:
        raise ValueError(f"stages read each other: {' → '.join(error.args[1])}") from None
    found: list[Stage] = []
    ready: list[str] = []
    while sorter.is_active():
        ready = sorted([*ready, *sorter.get_ready()], key=names.__getitem__)
        found.append(stages[names[ready[0]][1]])
        sorter.done(ready.pop(0))
    return tuple(found)
