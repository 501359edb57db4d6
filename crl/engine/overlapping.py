"""Rounds that overlap: the second track of one beside the first track of the next, never more than two at a time.

Every round is run by a thread of its own and runs its stages in order. A round begins once the first track of the round
before is through and every round before that has ended; its second track begins once the round before has ended. So
the order in which stages of two rounds take turns is nobody's choice but the machine's, and what they read is fixed by
the recipe. After a failure the other round ends with the stage that it is in.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextvars import copy_context

from crl.errors import StageFailed

_TICK_SECONDS = 0.5


class OverlappingRounds:
    """Runs rounds. `interrupt` ends what their stages are doing, when the wait for them is interrupted; a round that is
    not `complete` after it ran is run once more."""

    def __init__(self, interrupt: Callable[[], None], complete: Callable[[int], bool] = lambda number: True) -> None:
        self._interrupt, self._complete = interrupt, complete
        self._changed = threading.Condition()
        self._begun: list[int] = []
        self._through: set[int] = set()
        """Rounds whose first track is through, or that have ended."""
        self._ended: set[int] = set()
        self._failure: tuple[int | None, BaseException] | None = None
        """The first one, and the round that failed; None: the wait for the rounds was interrupted."""

    def run(self, numbers: Iterable[int], run_round: Callable[[int], object]) -> None:
        """Run rounds, in order. Raises what the first that failed raised."""
        threads = []
        try:
            for number in numbers:
                # The thread sees what its maker sees: which flow run this is.
                thread = threading.Thread(target=copy_context().run, args=(self._run, number, run_round))
                self._begun.append(number)
                threads.append(thread)
                thread.start()
                self._wait(lambda: self._begun[-1] in self._through and self._ended >= set(self._begun[:-1]))
                if self._failure is not None:
                    break
            self._wait(lambda: self._ended >= set(self._begun))
        except BaseException as error:
            self._fail(None, error)
            self._interrupt()
            raise
        finally:
            for thread in threads:
                thread.join()
        if self._failure is not None:
            raise self._failure[1]

    def enter_second_track(self, number: int) -> None:
        """Called by a round before a stage of its second track: lets the next round begin, waits for the one before."""
        with self._changed:
            self._through.add(number)
            self._changed.notify_all()
            earlier = {each for each in self._begun if each < number}
            self._changed.wait_for(lambda: self._failure is not None or self._ended >= earlier)
        self.check(number)

    def check(self, number: int) -> None:
        """Raise StageFailed where another round has failed: nothing more is begun then."""
        if self._failure is not None and self._failure[0] != number:
            found, failed = f"round {number} was stopped", self._failure[0]
            raise StageFailed(
                found if failed is None else f"{found} because round {failed}, which runs beside it, failed",
                where=f"round {number}",
                next_step="`crl resume` continues both",
            )

    def _run(self, number: int, run_round: Callable[[int], object]) -> None:
        try:
            run_round(number)
            if not self._complete(number):
                run_round(number)
        except BaseException as error:
            self._fail(number, error)
        finally:
            with self._changed:
                self._through.add(number)
                self._ended.add(number)
                self._changed.notify_all()

    def _fail(self, number: int | None, error: BaseException) -> None:
        with self._changed:
            self._failure = self._failure or (number, error)
            self._changed.notify_all()

    def _wait(self, until: Callable[[], bool]) -> None:
        with self._changed:
            while not until():
                self._changed.wait(_TICK_SECONDS)  # short, so that a signal's exception reaches this thread
