"""How long a stage will take, from how long it took in an earlier round, per unit of its work.

What is done of a stage says little about what is left of it: of a wave's episodes those that win quickly end first.
"""

from __future__ import annotations


class Pace:
    """Seconds per unit of each stage, as it last ran in this process. Nothing is known of a stage's first time."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._first: tuple[tuple[int, str], int] | None = None
        self._done = 0

    def report(self, place: tuple[int, str], done: int, total: int) -> float | None:
        """Take note of how far the stage of a round is; seconds that all of it is expected to take, or None."""
        if self._first is None or self._first[0] != place:
            self._first = (place, done)
        self._done = done
        pace = self._seconds.get(place[1])
        return None if pace is None else pace * (total - self._first[1])

    def finished(self, place: tuple[int, str], seconds: float) -> None:
        """The stage is done. What was complete before it began, in a round that is resumed, does not count."""
        if self._first is not None and self._first[0] == place and self._done > self._first[1]:
            self._seconds[place[1]] = seconds / (self._done - self._first[1])
        self._first = None

    def failed(self) -> None:
        """The attempt ended without a result."""
        self._first = None
