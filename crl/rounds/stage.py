"""What a stage is, what a recipe is: all that a flow, the engine and the record know of either.

A stage declares the rows it reads, as (stage, round offset), and the row types it writes. Offsets belong to the recipe:
a stage asks for its reads by name ("bank", "actor") and does not know how many rounds back they are. They are rules of
round numbers, never "whatever is newest", so any round can be made again from the record alone.

All that is asked of a run is asked of its recipe. So nobody else need know of forks: the stages of an inherited round
are those that the parent's recipe had due in it, by the parent's method, and what a round reads of them is where the
parent put it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, Protocol, TypeVar

from crl.config import Method
from crl.errors import BadInput
from crl.learn.terms import Objective
from crl.records import BankSnapshot, BehaviorLogprobs, EntryScore, Generation, Row, Weights

R = TypeVar("R", bound=Row)
T = TypeVar("T")

Run = Callable[[Any], None]
"""What a stage does. It is called with the `StageContext` of its round (`context.py`), which knows its stage: hence
`Any` here, and the true type in every function that is one."""
PUBLISHES = "consolidate"
"""The stage that publishes the bank; in round 0 the preparation stage that stands for it does."""
BEFORE = "before"
"""Name of the read of a stage's own rows of the round before."""


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


Refused = Callable[[RowsOf], Mapping[str, str]]
"""From the rows of a round to reasons by id of operations that the bank must not take, whatever a person says."""


Tried = Callable[[RowsOf], Mapping[tuple[str, str], tuple[int, int]]]
"""From the rows of a round to the pairs of episodes and the wins of each text (task family, digest) that was tried in
it: all texts of a family on the same layouts."""


def nothing_tried(rows: RowsOf) -> Mapping[tuple[str, str], tuple[int, int]]:
    """No text was tried."""
    return {}


SCORES = "scores"
"""Name of the read of the scores that entries of the bank had after the round before."""
Scores = Callable[[RowsOf], list[EntryScore]]
"""From the rows of a round to the scores of entries that its bank is decided by."""


def scores_before(rows: RowsOf) -> list[EntryScore]:
    """Those after the round before."""
    return rows(EntryScore, SCORES)


def nothing_refused(rows: RowsOf) -> Mapping[str, str]:
    """The bank may take every operation."""
    return {}


DRAWN = ("plan", "critique", "collect")
"""Stages of a round that may come again in it, as `plan_2`, `collect_2` … (`rollout.dynamic_sampling`)."""
FURTHER = rf"({'|'.join(DRAWN)})_([0-9]+)"
"""Names of these further draws."""


def draw_of(stage: str) -> tuple[str, int]:
    """The stage that a stage is a draw of, and which: `collect_2` is the second of `collect`; any other its own first.

    Whoever reads `collect` reads every draw of it: stages by :meth:`Recipe.read_keys`, queries by the macro `draw_of`.
    """
    found = re.fullmatch(FURTHER, stage)
    return (stage, 1) if found is None else (found[1], int(found[2]))


def draws_of(stage: str, names: Iterable[str]) -> list[str]:
    """Those of some stages that are draws of one, in order; a further draw has none but itself."""
    return sorted(
        (name for name in names if name == stage or draw_of(name)[0] == stage), key=lambda name: draw_of(name)[1]
    )


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
    """Whether it has a trainer: it then runs on every rank of the role's engine."""
    untrained: bool = False
    """Whether nothing that it samples is ever trained, though what it writes is read where samples are made."""
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
    recalls: tuple[type[Row], ...] = ()
    """Row types that a stage may read of any earlier round, because a row of it names that round; other reads are
    declared by the stages."""
    refused: Refused = nothing_refused
    """What it keeps out of its bank; stages that apply operations read the rows that this asks for."""
    tried: Tried = nothing_tried
    """Which texts it tried in a round; read likewise."""
    scores: Scores = scores_before
    """How entries fared, as far as its bank is decided by it; read likewise."""

    def __post_init__(self) -> None:
        if Generation in self.recalls:  # with them come their behavior log-probabilities
            object.__setattr__(self, "recalls", tuple(dict.fromkeys((*self.recalls, BehaviorLogprobs))))
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

    def draws(self, method: Method, round_number: int, stage: str) -> list[tuple[int, str]]:
        """(round, stage) of every draw of a stage in a round, as whoever made the round drew."""
        return [
            (round_number, name) for name in draws_of(stage, (s.name for s in self.stages_of(method, round_number)))
        ]

    def read_keys(self, method: Method, round_number: int, stage: Stage, read: Read) -> list[tuple[int, str]]:
        """(round, stage) of all that a read of a stage refers to: every draw of what it names (:meth:`resolve`), within
        its own round those that it :func:`follows`. None where there is no such stage."""
        place = self.resolve(method, round_number, read.stage, read.offset)
        if place is None:
            return []
        return [
            (number, name)
            for number, name in self.draws(method, *place)
            if number < round_number or follows(stage.name, place[1], name)
        ]

    def behavior_stages(self, method: Method, round_number: int, stage: str) -> list[str]:
        """Stages of a round that write behavior log-probabilities of what a stage sampled in it (`behavior.py`)."""
        return [
            each.name
            for each in self.stages_of(method, round_number)
            if BehaviorLogprobs in each.writes and (round_number, stage) in self.inputs(method, round_number, each)
        ]

    def inputs(self, method: Method, round_number: int, stage: Stage) -> list[tuple[int, str]]:
        """(round, stage) of all that a stage reads in a round, read by read (:meth:`read_keys`)."""
        return [place for read in stage.reads for place in self.read_keys(method, round_number, stage, read)]

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


def follows(stage: str, read: str, draw: str) -> bool:
    """Whether a stage that reads another one of its round reads this draw of it: all, but a draw only those before it
    and what it names."""
    return draw_of(stage)[0] not in DRAWN or draw == read or draw_of(draw)[1] < draw_of(stage)[1]


def read_beside(stage: Stage, names: Iterable[str]) -> set[str]:
    """Those of the stages of a round that one of them reads in it."""
    listed = list(names)
    reads = {read.stage for read in stage.reads if read.offset == 0}
    return {name for read in reads for name in draws_of(read, listed) if follows(stage.name, read, name)}


def when(condition: bool, *items: T) -> tuple[T, ...]:
    """The items, or none."""
    return items if condition else ()


def in_order(stages: Sequence[Stage]) -> tuple[Stage, ...]:
    """Stages so that each comes after those of its round that it reads, and the second track after the first; as listed
    where that leaves a choice.

    Raises ValueError where stages read each other.
    """
    names = {stage.name: (stage.second_track, place) for place, stage in enumerate(stages)}
    sorter = TopologicalSorter({stage.name: read_beside(stage, names) for stage in stages})
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


@dataclass(frozen=True)
class Inherited:
    """What a fork begins with."""

    recipe: Recipe
    """The parent's; of a fork of a fork it has its own inherited rounds."""
    method: Method
    round: int
    """The last round that the parent made."""


@dataclass(frozen=True)
class ForkedRecipe(Recipe):
    """A recipe whose first rounds are another's."""

    inherited: Inherited = field(kw_only=True)

    def stages_of(self, method: Method, round_number: int) -> tuple[Stage, ...]:
        """The stages due in a round, in order: by the parent's recipe and method in the rounds that it made."""
        before = self.inherited
        if round_number <= before.round:
            return before.recipe.stages_of(before.method, round_number)
        return super().stages_of(method, round_number)

    def resolve(self, method: Method, round_number: int, name: str, offset: int) -> tuple[int, str] | None:
        """(round, stage) that a read refers to; None where there is no such stage (its rows are none).

        Weights that this recipe does not train stay those of the round it was forked at.
        """
        if round_number == 0 and offset < 0:
            return None
        before, target = self.inherited, max(0, round_number + offset)
        if target <= before.round:
            return before.recipe.resolve(before.method, target, name, 0)
        if name in self.initial and all(stage.name != name for stage in self.stages):
            # Not trained here. A recipe without a bank has none to go on with: it reads that of round 0, as always.
            return before.recipe.resolve(before.method, 0 if name == PUBLISHES else before.round, name, 0)
        return super().resolve(method, round_number, name, offset)


def maker_of(recipe: Recipe, method: Method, round_number: int) -> tuple[Recipe, Method]:
    """What a round is made with: a run's own recipe and method, or of an inherited round those of the run that made
    it."""
    while isinstance(recipe, ForkedRecipe) and round_number <= recipe.inherited.round:
        before = recipe.inherited
        recipe, method = before.recipe, before.method
    return recipe, method


def forked(recipe: Recipe, parent: Recipe, parent_method: Method, round_number: int) -> ForkedRecipe:
    """The recipe of a run that goes on with `recipe` after a round of its parent."""
    own = {each.name: getattr(recipe, each.name) for each in fields(Recipe)}
    return ForkedRecipe(**own, inherited=Inherited(parent, parent_method, round_number))
