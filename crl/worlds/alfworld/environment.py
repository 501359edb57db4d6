"""ALFWorld: household tasks in words. Its config, and a wave of its episodes.

What is shown, what can be done and when a task is done are those of the `alfworld` package on the same game file; the
engine is this project's own (`game`, about 4,000 steps per second on one core). The files themselves are the user's:
`files` says where they are looked for and what to do where they are missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field, field_validator, model_validator

from crl.config.environments import EnvironmentConfig, HeldOutFrom
from crl.envs.slots import NO_ACTION, Slots, stepped, with_ending
from crl.protocols import Lesson, Start, Step, StopReason
from crl.records import Episode, Turn
from crl.worlds.alfworld.files import TASKS, Games, Task, games_of, load
from crl.worlds.alfworld.game import Game, State
from crl.worlds.alfworld.lessons import lesson_of
from crl.worlds.alfworld.oracle import next_command
from crl.worlds.alfworld.speech import Wording

_CACHED = 256
"""Compiled games that an environment keeps: a group shares its game, and rounds come back to it."""

Split = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,60}$")]


class AlfworldConfig(EnvironmentConfig):
    """ALFWorld's text games: six kinds of household tasks."""

    model_config = ConfigDict(title="ALFWorld")

    PATHS: ClassVar[tuple[str, ...]] = ("data",)

    kind: Literal["alfworld"] = "alfworld"
    data: Path | None = Field(
        None,
        description="Folder with json_2.1.1, as alfworld-download fills it. null: $ALFWORLD_DATA, else "
        "~/.cache/alfworld.",
    )
    train_split: Split = Field("train", description="Folder of the training games.")
    evaluation_split: Split = Field("valid_unseen", description="Folder of the held-out games.")
    tasks: tuple[Task, ...] = Field(TASKS, min_length=1, description="Kinds of tasks to play.")
    max_turns: int = Field(40, ge=1, le=1000, description="Turns after which an episode is lost.")
    failure_reward: float = Field(-1.0, ge=-1000.0, le=1.0, description="Reward of a lost episode; a won one earns 1.")
    wording: Wording = Field(
        "put",
        description="How to put something down. put: put X in/on Y (release 2.1.1, the paper's); move: move X to "
        "Y (alfworld from 0.4 on); file: as the game file says.",
    )
    held_out_from: HeldOutFrom = 1_000_000

    @field_validator("tasks")
    @classmethod
    def _once(cls, tasks: tuple[Task, ...]) -> tuple[Task, ...]:
        if len(set(tasks)) < len(tasks):
            raise ValueError("a task family is named twice")
        return tasks

    @model_validator(mode="after")
    def _splits(self) -> AlfworldConfig:
        if self.held_out_from is not None and self.train_split == self.evaluation_split:
            raise ValueError(
                f"train_split and evaluation_split are both {self.train_split}: nothing would be held out. Name "
                "another split, or set held_out_from: null"
            )
        return self

    @property
    def held_out_levels(self) -> int | None:
        """The number of games of the evaluation split. Raises BadInput where they are missing."""
        if self.held_out_from is None:
            return None
        return len(games_of(self.data, self.evaluation_split, self.tasks))

    def data_files(self) -> dict[str, list[Path]]:
        """The games of both splits. Raises BadInput where they are missing."""
        splits = {"train_split": self.train_split}
        splits |= {} if self.held_out_from is None else {"evaluation_split": self.evaluation_split}
        return {name: [game.path for game in games_of(self.data, split, self.tasks)] for name, split in splits.items()}

    def make(self) -> AlfworldEnvironment:
        """A wave of ALFWorld episodes. Raises BadInput where game files are missing or damaged."""
        return AlfworldEnvironment(self)


@dataclass
class _Slot:
    state: State
    turns: int = 0
    done: bool = False


class AlfworldEnvironment(Slots[_Slot]):
    """A wave of ALFWorld episodes (protocol `Environment`). The admissible commands are the actions.

    Reaching the goal ends an episode with reward 1; until then it is worth `failure_reward`. An action that is not
    admissible spends a turn, as in the `alfworld` package. Raises BadInput where a game file is missing or damaged.
    """

    def __init__(self, config: AlfworldConfig) -> None:
        super().__init__()
        self.config = config
        self.games = Games(
            config.data,
            train_split=config.train_split,
            evaluation_split=config.evaluation_split,
            tasks=config.tasks,
            held_out_from=config.held_out_from,
        )
        self._loaded = lru_cache(maxsize=_CACHED)(self._load)

    def items(self) -> Iterator[tuple[str, Callable[[], object]]]:
        """Each game, and what compiles it."""
        for game in (*self.games.evaluation, *self.games.training):
            yield game.name, partial(self._load, game.path)

    def _load(self, path: Path) -> Game:
        return load(path, self.config.wording)

    def reset_many(self, seeds: Sequence[int]) -> list[Start]:
        """Start `len(seeds)` episodes, slot i with the game of seeds[i]. Raises BadInput for a damaged game file."""
        self._slots = [_Slot(self._loaded(self.games.of(seed).path).start()) for seed in seeds]
        return [Start(slot.state.game.task, slot.state.text, slot.state.commands) for slot in self._slots]

    def _step(self, slot: _Slot, action: str | None) -> Step:
        state = slot.state
        command = (action or "").strip()  # as the package alfworld does
        legal = command in state.operators
        text = state.do(command if legal else "")
        reason = None
        if state.won:
            reason = StopReason.success
        elif slot.turns >= self.config.max_turns:
            reason = StopReason.turn_limit
        commands, reward = state.commands if reason is None else (), 1.0 if state.won else self.config.failure_reward
        feedback = "" if legal else NO_ACTION
        return stepped(slot, reason, with_ending(text, reason), commands, feedback, legal=legal, reward=reward)

    def oracle(self, slot: int) -> str | None:
        """The first command of a short way to the goal, from the full state; None when the episode is done."""
        return None if self._slots[slot].done else next_command(self._slots[slot].state)

    def content(self, slot: int) -> str:
        """The task of a slot and all that is true at its beginning, by the names that a player reads."""
        return self._slots[slot].state.game.content

    def lesson(self, episode: Episode, turns: Sequence[Turn]) -> Lesson:
        """What a game teaches, for demonstrations (protocol `Instructive`)."""
        return lesson_of(episode, turns)

    def close(self) -> None:
        """Drop the compiled games: nothing else is held."""
        super().close()
        self._loaded.cache_clear()
