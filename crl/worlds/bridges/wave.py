"""A wave over episodes of another package's games: what all bridges share.

A bridge says how an episode begins (:class:`Episode`), this file counts its turns, says what an illegal action is
answered with, and ends the slot of a game that raises. An action that is illegal spends a turn; the game never sees it
where its actions have names.
"""

from __future__ import annotations

import random
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from crl.envs.slots import ENDINGS, NO_ACTION, Slots, stepped
from crl.envs.slots import refusal as listed
from crl.faults import Fault, attempt, broke, close
from crl.protocols import Actions, FreeText, Start, Step, StopReason

_FULL_LIST = 12
"""With more actions than so many an invalid one is not answered with all of them: the prompt has named them."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a game answers to one action."""

    over: bool = False
    success: bool = False
    reward: float = 0.0
    """What the episode is worth if it ends here."""
    feedback: str = ""
    legal: bool = True
    """False where a game that parses text could make nothing of it."""
    out_of_turns: bool = False
    """Over by the game's own limit of turns."""


class Episode(ABC):
    """One episode of a game, from its start on."""

    goal: str
    reward = 0.0
    """What it is worth if it ends before the first action."""

    @abstractmethod
    def observation(self) -> str:
        """What is seen now."""

    @abstractmethod
    def actions(self) -> Actions:
        """What may be done now."""

    @abstractmethod
    def act(self, action: str) -> Outcome:
        """Do it. What it raises ends this episode alone."""

    def oracle(self) -> str | None:
        """A good next action; None where none is known."""
        return None

    @property
    def content(self) -> str:
        """What of its level a player could know by heart."""
        raise NotImplementedError(f"{type(self).__name__} does not know its level")

    def close(self) -> None:  # noqa: B027
        """Free what it holds: mostly nothing."""


def seed_of(seed: int, attempt: int = 0) -> int:
    """The seed, below 2³¹, that a package is given for a draw of one of our seeds; the same in every process."""
    return int(np.random.SeedSequence([seed, attempt]).generate_state(1)[0]) >> 1


def refusal(actions: Actions) -> str:
    """What an action is answered with that names nothing possible."""
    if isinstance(actions, FreeText):
        return f"That is no possible action. Possible: {actions.form}."
    if not isinstance(actions, tuple) or len(actions) > _FULL_LIST:
        return NO_ACTION
    return listed(actions)


@dataclass
class _Slot:
    episode: Episode
    streams: GlobalStreams | None
    actions: Actions = ()
    reward: float = 0.0
    turns: int = 0
    done: bool = False

    def random(self) -> AbstractContextManager[Any]:
        """The global generators as the episode has them, where it needs its own."""
        return nullcontext() if self.streams is None else self.streams.installed()


class Wave(Slots[_Slot]):
    """A wave of episodes (protocol `Environment`)."""

    def __init__(
        self,
        begin: Callable[[int, int], Episode],
        *,
        max_turns: int,
        global_streams: bool = False,
        free: Callable[[], None] = lambda: None,
    ) -> None:
        """
        Args:
            begin: the episode of a slot and a seed; an earlier one of the slot is closed before.
            max_turns: turns before an episode counts as failed.
            global_streams: its games draw from Python's or NumPy's global generators.
            free: called once by :meth:`close`.
        """
        super().__init__()
        self._begin, self._max_turns, self._free = begin, max_turns, free
        self._global_streams = global_streams

    def reset_many(self, seeds: Sequence[int]) -> list[Start]:
        """Start `len(seeds)` episodes, slot i with seed i."""
        self._close_episodes()
        starts = []
        for index, seed in enumerate(seeds):
            streams = GlobalStreams(seed) if self._global_streams else None
            with nullcontext() if streams is None else streams.installed():
                slot = _Slot(self._begin(index, seed), streams)
                self._slots.append(slot)
                slot.actions, slot.reward = slot.episode.actions(), slot.episode.reward
                starts.append(Start(slot.episode.goal, slot.episode.observation(), slot.actions))
        return starts

    def _step(self, slot: _Slot, action: str | None) -> Step:
        named = action is not None and (not isinstance(slot.actions, tuple) or action in slot.actions)

        def acted() -> tuple[Outcome, str, str]:
            outcome = Outcome(legal=False, reward=slot.reward)
            with slot.random():
                if action is not None and named:
                    outcome = slot.episode.act(action)
                feedback = outcome.feedback or ("" if outcome.legal else refusal(slot.actions))
                observation = slot.episode.observation()
                slot.actions = () if outcome.over else slot.episode.actions()
            return outcome, feedback, observation

        done = attempt(acted)
        if isinstance(done, Fault):
            # The game is in an unknown state: this slot ends with a reason, the others play on.
            slot.done = True
            return broke(done.code, done.details)
        outcome, feedback, observation = done
        slot.reward = outcome.reward
        reason = None
        if outcome.success:
            reason = StopReason.success
        elif outcome.over:
            reason = StopReason.turn_limit if outcome.out_of_turns else StopReason.failure
        elif slot.turns >= self._max_turns:
            reason = StopReason.turn_limit
        if reason is not None:
            observation = "\n".join(filter(None, [observation, ENDINGS[reason]]))
        return stepped(slot, reason, observation, slot.actions, feedback, legal=outcome.legal, reward=outcome.reward)

    def oracle(self, slot: int) -> str | None:
        """A good next action of a slot's game; None where none is known, and after its end."""
        state = self._slots[slot]
        if state.done:
            return None
        with state.random():
            return state.episode.oracle()

    def _close_episodes(self) -> None:
        slots, self._slots = self._slots, []
        for slot in slots:
            close("a game", slot.episode.close)  # one that cannot be closed keeps no other from starting

    def close(self) -> None:
        """Close all games."""
        self._close_episodes()
        self._free()


class LeveledWave(Wave):
    """A wave whose games say which level they are (protocol `Leveled`)."""

    def content(self, slot: int) -> str:
        """What of a slot's level a player could know by heart."""
        return self._slots[slot].episode.content


_IN_PLACE = threading.RLock()


class GlobalStreams:
    """Python's and NumPy's global generators as one episode sees them, for packages that draw from them.

    Its states are in place while its game runs and taken back after: what a game draws depends on its seed alone, never
    on the games beside it.
    """

    def __init__(self, seed: int) -> None:
        """`seed` is a number from 0 on."""
        self._python: Any = random.Random(seed).getstate()
        self._numpy: Any = np.random.RandomState(np.random.MT19937(np.random.SeedSequence(seed))).get_state()

    @contextmanager
    def installed(self) -> Iterator[None]:
        """The episode's own states while the block runs; then those of before. Other episodes wait."""
        with _IN_PLACE:
            python, numpy = random.getstate(), np.random.get_state()
            random.setstate(self._python)
            np.random.set_state(self._numpy)
            try:
                yield
            finally:
                self._python, self._numpy = random.getstate(), np.random.get_state()
                random.setstate(python)
                np.random.set_state(numpy)


class Untouched:
    """Whether the global generators were drawn from since this was made."""

    def __init__(self) -> None:
        self._before = _states()

    def __bool__(self) -> bool:
        return self._before == _states()


def _states() -> tuple[Any, ...]:
    name, keys, *rest = np.random.get_state()
    return random.getstate(), name, np.asarray(keys).tobytes(), *rest
