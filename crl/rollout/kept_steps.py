"""What an environment answered in finished episodes, kept while a stage is unfinished.

A stage that is resumed samples its unfinished wave again, with the same rows side by side, so that every
log-probability is the same to the last bit. The environment is asked again only for episodes that were still under way:
those that were over are answered from here, so that no shell command or web page is called for a second time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from itertools import chain

from pydantic import TypeAdapter, ValidationError

from crl.faults import of_run
from crl.protocols import Environment, Start, Step
from crl.rollout.environments import step_or_error, steps_as_they_come
from crl.run.journal import JsonLines

_Answered = tuple[str | None, Step]
"""An action, and what came of it."""
_EPISODE: TypeAdapter[list[_Answered]] = TypeAdapter(list[_Answered])


class KeptSteps:
    """A wave of another environment (protocol `Environment`) that asks it nothing twice about a finished episode."""

    steps_together = True

    def __init__(self, environment: Environment, file: JsonLines, episodes: Sequence[str]) -> None:
        """
        Args:
            environment: borrowed; it is closed by who made it.
            file: one line per finished episode; of this wave alone, as it is played by one method with one policy.
            episodes: id of each slot's episode.
        """
        self._environment, self._file, self._episodes = environment, file, list(episodes)
        self._kept: dict[int, list[_Answered]] = {}
        self._played: list[list[_Answered]] = []

    @property
    def spans_families(self) -> bool:
        """Whether a wave of several task families may be played in it."""
        return getattr(self._environment, "spans_families", False)

    @property
    def steps_apart(self) -> bool:
        """Whether slots may be stepped in several threads."""
        return getattr(self._environment, "steps_apart", False)

    def reset_many(self, seeds: Sequence[int]) -> list[Start]:
        """Start one episode per seed, the kept ones too: an action may yet differ from the one that was answered."""
        with of_run():
            lines = {line.get("episode"): line.get("steps") for line in self._file.read()}
        kept = {slot: lines[episode] for slot, episode in enumerate(self._episodes) if episode in lines}
        self._kept = {}
        for slot, steps in kept.items():
            with contextlib.suppress(ValidationError):  # a line of another version: the episode is played for real
                self._kept[slot] = _EPISODE.validate_python(steps)
        self._played = [[] for _ in seeds]
        return self._environment.reset_many(seeds)

    def step_many(self, actions: Mapping[int, str | None]) -> dict[int, Step]:
        """Apply one action in each slot given; what breaks a slot is its own."""
        known = {slot: step for slot, action in actions.items() if (step := self._answered(slot, action)) is not None}
        wanted = {slot: action for slot, action in actions.items() if slot not in known}
        steps: dict[int, Step] = {}
        for slot, step in chain(known.items(), steps_as_they_come(self._environment, wanted)):
            steps[slot] = step
            self._played[slot].append((actions[slot], step))
            if step.done and slot not in known:
                self._keep(slot)
        return {slot: steps[slot] for slot in actions}

    def ended(self, slots: Sequence[int]) -> None:
        """These are over for a reason that is not the environment's, such as the actor's context limit."""
        for slot in slots:
            if slot not in self._kept and not (self._played[slot] and self._played[slot][-1][1].done):
                self._keep(slot)

    def _keep(self, slot: int) -> None:
        found = _EPISODE.dump_python(self._played[slot], mode="json", warnings=False)
        with of_run():
            self._file.append({"episode": self._episodes[slot], "steps": found})

    def _answered(self, slot: int, action: str | None) -> Step | None:
        """What was answered before; None where the episode was not finished, or went another way."""
        if slot not in self._kept:
            return None
        at = len(self._played[slot])
        if at < len(self._kept[slot]) and self._kept[slot][at][0] == action:
            return self._kept[slot][at][1]
        # A sampling engine that is not exact: what it did so far is done for real after all.
        del self._kept[slot]
        for earlier, _ in self._played[slot]:
            step_or_error(self._environment, {slot: earlier})
        return None

    def oracle(self, slot: int) -> str | None:
        """Nothing is known of a slot that is not stepped."""
        return None if slot in self._kept else self._environment.oracle(slot)

    def close(self) -> None:
        """Nothing: the environment belongs to who lent it."""
