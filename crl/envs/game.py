"""One class is an environment: a game of one player, whose settings are its fields and whose episodes are its states.

A subclass draws a state, shows it, says what may be done, and does it. What every environment owes the protocol is
here: waves of slots, turns, the turn limit, answers that name nothing, and, where the class says what a level's content
is, levels that are held out by it (`crl/envs/levels.py`). docs/environment_class.md has one.
"""

from __future__ import annotations

import copy
import inspect
import json
import random
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, cast

from pydantic import Field

from crl.config.environments import EnvironmentConfig
from crl.envs.asynchronous import run_all
from crl.envs.levels import Drawn, Levels
from crl.envs.slots import NO_ACTION, Slots, refusal, stepped
from crl.faults import Fault, broke
from crl.protocols import Actions, Environment, Start, Step, StopReason, ToolCalls

_DRAWS = 10_000


@dataclass(frozen=True, slots=True)
class Move:
    """What came of an action."""

    feedback: str = ""
    """What is said about it beside the next view; of an illegal one, what was wrong."""
    legal: bool = True
    """Whether it could be done. One that could not has to leave the state as it was."""
    over: bool = False
    """Whether the episode ends here."""
    success: bool = False
    """Whether the task is solved; the episode is then over."""
    reward: float | None = None
    """What the episode is worth if it ends here; None: 1 if it is solved, else 0; of an illegal action, what it was
    worth before."""
    turn_reward: float | None = None
    """What this turn earns, where a game pays turn by turn: an episode is worth their sum, and `reward` is not read."""
    reward_parts: Mapping[str, float] | None = None
    """Named parts of what the episode is worth, for the record."""


class Game(EnvironmentConfig):
    """Base class of a game: subclass it with a default for `kind`, own fields, and the methods below."""

    max_turns: int = Field(20, ge=1, le=10_000, description="Turns before an episode ends.")

    def begin(self, random: random.Random) -> Any:
        """The state of a new episode, drawn with `random` and nothing else."""
        raise NotImplementedError(f"{type(self).__name__} has to say how an episode begins")

    def goal(self, state: Any) -> str:
        """What the player is to do."""
        raise NotImplementedError(f"{type(self).__name__} has to say what its goal is")

    def look(self, state: Any) -> str:
        """What is seen now; also after the last action."""
        raise NotImplementedError(f"{type(self).__name__} has to show its state")

    def actions(self, state: Any) -> Actions:
        """What may be done next: names, `FreeText` or `ToolCalls`."""
        raise NotImplementedError(f"{type(self).__name__} has to say what may be done")

    def messages(self, state: Any) -> Sequence[tuple[str, str]]:
        """Role and text of messages of its own before the first view, such as a system text (`Start.messages`)."""
        return ()

    def act(self, state: Any, action: str) -> Move | Coroutine[Any, Any, Move]:
        """Do an action, in place. Where actions are listed it is one of them; of `ToolCalls` it is a call of one of the
        tools as JSON; else whatever was written. It may be `async`: then the slots of a wave wait side by side."""
        raise NotImplementedError(f"{type(self).__name__} has to do something")

    def solve(self, state: Any) -> str | None:
        """A good next action, for demonstrations; None where none is known."""
        return None

    def content(self, state: Any) -> str:
        """What of a new state a player could know by heart. With it and `held_out_from`, levels are held out by it."""
        raise NotImplementedError

    def make(self) -> Environment:
        """A wave of episodes."""
        return LeveledGames(self) if type(self).content is not Game.content else Games(self)


@dataclass
class _Slot:
    state: Any
    reward: float = 0.0
    turns: int = 0
    done: bool = False


class Games(Slots[_Slot]):
    """A wave of episodes of a game (protocol `Environment`)."""

    def __init__(self, game: Game) -> None:
        super().__init__()
        self.game = game
        self.steps_together = self.steps_apart = inspect.iscoroutinefunction(game.act)

    def _begin(self, seed: int) -> Any:
        """The state of a new episode, or a coroutine that returns it."""
        return self.game.begin(random.Random(f"{seed}"))

    def reset_many(self, seeds: Sequence[int]) -> list[Start]:
        """Start `len(seeds)` episodes, slot i with seeds[i]."""
        states = {index: self._begin(seed) for index, seed in enumerate(seeds)}
        states.update(run_all({index: state for index, state in states.items() if isinstance(state, Coroutine)}))
        self._slots = [_Slot(states[index], done=isinstance(states[index], Fault)) for index in range(len(seeds))]
        return [self._start(slot.state) for slot in self._slots]

    def _start(self, state: Any) -> Start:
        if isinstance(state, Fault):
            return Start.failed(state.code, state.details)
        game = self.game
        return Start(game.goal(state), game.look(state), game.actions(state), messages=tuple(game.messages(state)))

    def step_many(self, actions: Mapping[int, str | None]) -> dict[int, Step]:
        """Apply one action in each slot given; where acting is async, all of them at once, and what raises ends its own
        slot. Stepping a slot that is done raises RuntimeError."""
        if not self.steps_together:
            return super().step_many(actions)
        slots = self._turns_of(actions)
        moves: dict[int, Any] = {index: self._refused(slot, actions[index]) for index, slot in slots.items()}
        waiting = {
            index: cast("Coroutine[Any, Any, Move]", self.game.act(slot.state, cast(str, actions[index])))
            for index, slot in slots.items()
            if moves[index] is None
        }
        moves.update(run_all(waiting))
        return {index: self._answered(slots[index], move) for index, move in moves.items()}

    def _answered(self, slot: _Slot, move: Move | Fault) -> Step:
        if isinstance(move, Fault):
            slot.done = True
            return broke(move.code, move.details)
        return self._moved(slot, move)

    def _step(self, slot: _Slot, action: str | None) -> Step:
        move = self._refused(slot, action) or self.game.act(slot.state, cast(str, action))
        return self._moved(slot, cast(Move, move))

    def _refused(self, slot: _Slot, action: str | None) -> Move | None:
        """What comes of an answer that names nothing possible; None of one that does."""
        possible = self.game.actions(slot.state)
        if isinstance(possible, tuple):
            return None if action in possible else Move(refusal(possible), legal=False)
        if action is None:
            return Move(NO_ACTION, legal=False)
        if isinstance(possible, ToolCalls):
            names = [tool.name for tool in possible.tools]
            called = json.loads(action)
            for call in called if isinstance(called, list) else [called]:
                if call["name"] not in names:
                    told = f"There is no tool {call['name']}. Possible: {', '.join(names)}."
                    return Move(told, legal=False)
        return None

    def _moved(self, slot: _Slot, move: Move) -> Step:
        game, state = self.game, slot.state
        reason = None
        if move.over or move.success:
            reason = StopReason.success if move.success else StopReason.failure
        elif slot.turns >= game.max_turns:
            reason = StopReason.turn_limit
        if move.turn_reward is not None:
            slot.reward += move.turn_reward
        elif move.reward is not None:
            slot.reward = move.reward
        elif move.legal:
            slot.reward = float(move.success)
        actions = game.actions(state) if reason is None else ()
        step = stepped(slot, reason, game.look(state), actions, move.feedback, legal=move.legal, reward=slot.reward)
        return replace(step, turn_reward=move.turn_reward, reward_parts=move.reward_parts)

    def oracle(self, slot: int) -> str | None:
        """The action that the game would take; None when the episode is done."""
        found = self._slots[slot]
        return None if found.done else self.game.solve(found.state)


class LeveledGames(Games):
    """The same for a game that says what its levels hold (protocol `Leveled`)."""

    def __init__(self, game: Game) -> None:
        super().__init__(game)
        self._levels = Levels(
            self._draws,
            held_out_from=game.held_out_from,
            fewest_moves=1,
            draws=_DRAWS,
            where=f"environment {game.kind}",
            next_step="choose settings with more levels, or set held_out_from: null: then its evaluation is on levels "
            "that training knows",
        )
        self._contents: list[str] = []

    def _draws(self, seed: int) -> Iterator[Drawn]:
        for attempt in count():
            state = self.game.begin(random.Random(f"{seed}/{attempt}"))
            yield Drawn(state, self.game.content(state))

    def _begin(self, seed: int) -> Any:
        return copy.deepcopy(self._levels.of(seed).state)

    def reset_many(self, seeds: Sequence[int]) -> list[Start]:
        """Start `len(seeds)` episodes, slot i with seeds[i]."""
        starts = super().reset_many(seeds)
        self._contents = [self._levels.of(seed).content for seed in seeds]
        return starts

    def content(self, slot: int) -> str:
        """What the level of a slot holds."""
        return self._contents[slot]
