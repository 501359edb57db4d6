"""What environments share whose episodes are programs that run themselves: limits, tasks, the end of an episode."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, Protocol, TypeVar

from pydantic import Field

from crl.config.base import LONGEST_SECONDS, off
from crl.config.environments import EnvironmentConfig, HeldOutFrom
from crl.errors import BadInput
from crl.protocols import FreeText, ProgramLimits, Start, Step, StopReason
from crl.records import OutsideRows, Row, Rules, table_of
from crl.worlds.programs.tasks import Sides

FORM = FreeText("what the program asks for")
_SOLVED = 1e-9
"""What a sum may lack of `success_at` by rounding."""


class _Worded(Protocol):
    @property
    def text(self) -> str:
        """What a task says."""


T = TypeVar("T", bound=_Worded)


class ProgramConfig(EnvironmentConfig):
    """What such an environment is set up with, whatever its programs are."""

    side: list[Annotated[str, Field(min_length=1, max_length=200)]] = Field(
        [],
        exclude_if=off,
        description="Model names whose calls the actor answers without being trained on them. Every other name "
        "is the trained actor.",
    )
    max_calls: int = Field(64, ge=1, le=100_000, description="Most calls per episode.")
    max_tokens: int = Field(1_000_000, ge=1, le=1_000_000_000, description="Most tokens sampled per episode.")
    seconds: float = Field(
        1800.0, gt=0, le=LONGEST_SECONDS, description="Longest run time of a program, apart from its calls."
    )
    call_seconds: float = Field(
        300.0,
        gt=0,
        le=LONGEST_SECONDS,
        description="Longest time until the next call or the end; others of the wave wait for it.",
    )
    test_size: float = Field(0.1, gt=0, lt=1, description="Held-out share of the tasks, by a digest of their texts.")
    held_out_from: HeldOutFrom = 1_000_000

    @property
    def runs_programs(self) -> bool:
        """Nobody steps it."""
        return True

    @property
    def keeps_steps(self) -> bool:
        """A program that has ended is not started again."""
        return True

    @property
    def held_out_levels(self) -> int | None:
        """The number of held-out tasks. Raises BadInput where they cannot be read."""
        return None if self.held_out_from is None else len(self.sides().held_out)

    def sides(self) -> Sides[Any]:
        """The tasks; each has a `text`. Raises BadInput where they cannot be read."""
        raise NotImplementedError


class ProgramEnvironment(Generic[T]):
    """A wave of programs. It cannot be stepped.

    Attributes:
        limits: what a program may use.
        side: names of models whose calls are not trained.
        home: where programs in sandboxes run.
        tasks: of the slots.
    """

    def __init__(self, config: ProgramConfig) -> None:
        """Raises BadInput where the tasks cannot be read."""
        self.limits = ProgramLimits(config.max_calls, config.max_tokens, config.seconds, config.call_seconds)
        self.side, self._kind = frozenset(config.side), config.kind
        self.home: Path | None = None
        self.tasks: list[T] = []
        self._sides: Sides[T] = config.sides()
        self._held_out_from = config.held_out_from

    def reset_many(self, seeds: Sequence[int]) -> list[Start]:
        """The tasks of some seeds; nothing is started yet."""
        self.tasks = [self._sides.of(seed, self._held_out_from) for seed in seeds]
        return [Start(task.text, "", FORM) for task in self.tasks]

    def step_many(self, actions: Mapping[int, str | None]) -> dict[int, Step]:
        """Raises BadInput: nobody steps a program."""
        raise BadInput(
            f"an episode of {self._kind} is a program that runs itself: it cannot be stepped",
            expected="a run, an evaluation, or `crl env check`",
            where=f"environment {self._kind}",
        )

    def oracle(self, slot: int) -> str | None:
        """Nobody knows what a program will ask."""
        return None

    def close(self) -> None:
        """Nothing is left of it."""


def ended(reward: float, parts: Mapping[str, float], success_at: float) -> Step:
    """The end of an episode that earned `reward`; `parts` is empty where it has none."""
    success = reward >= success_at - _SOLVED
    named = ", ".join(f"{name} {value:g}" for name, value in parts.items())
    text = f"Reward: {reward:g}" + (f" ({named})" if len(parts) > 1 else "")
    reason = StopReason.success if success else StopReason.failure
    return Step(text, FreeText(""), True, "", True, success, reward, reason, reward_parts=dict(parts) or None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramTask(Row):
    """A row of a person's tasks, as Great Expectations looks at it before it is played."""

    table: ClassVar[str] = "program_tasks"
    rules: ClassVar[Rules] = Rules(key=("location",), filled=("location", "task"))
    location: Annotated[str, "where it stands"]
    task: Annotated[str, "its text"]


def outside_rows(tasks: Iterable[tuple[str, str]], where: str) -> Iterator[OutsideRows]:
    """Tasks, by their places, before they are played."""
    rows = [ProgramTask(location=location, task=text) for location, text in tasks]
    yield OutsideRows(ProgramTask, table_of(ProgramTask, rows), where, "correct or remove the row")
