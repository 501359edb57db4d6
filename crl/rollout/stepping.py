"""Steps of environments beside sampling: all of them at once, in a thread, or each slot in a thread of its own."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol, runtime_checkable

from crl.protocols import Sampled, Session, Step
from crl.rollout.environments import Readable, step_or_error

Steps = Future[dict[int, Step]]
"""Steps by slot, when they are there."""


@runtime_checkable
class EndsByTime(Protocol):
    """What a session may also be: one whose turns end in the order of time, as behind a server."""

    def advance_beside(self, others: Collection[Future[Any]]) -> dict[int, Sampled]:
        """As `advance`; also returns when one of these is done, then perhaps without a turn."""


class Stepping:
    """The environment of a wave while its rows are sampled. Use it as a context: it waits for what steps at its end.

    Where turns end in the order of time (behind a server), and the environment can be asked in several threads, a row
    goes on as soon as its own step is there. Elsewhere nothing may follow from time: steps are waited for after `lag`
    further ends of turns, and at once where that is 0.
    """

    def __init__(self, environment: Readable, session: Session, slots: int, lag: int) -> None:
        """`slots`: of the wave."""
        self._environment, self._session, self._lag = environment, session, lag
        self._by_time = session if environment.steps_apart and isinstance(session, EndsByTime) else None
        self._apart = environment.steps_apart and (self._by_time is not None or lag > 0)
        self._threads = ThreadPoolExecutor(slots if self._apart else 1)
        self._under_way: dict[int, tuple[int, Steps]] = {}
        self._ends = 0

    def __enter__(self) -> Stepping:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown()

    def advance(self) -> dict[int, Sampled]:
        """Sample until turns end, or by time until a step is there: the turns that have ended."""
        self._ends += 1
        if self._by_time is None:
            return self._session.advance()
        return self._by_time.advance_beside([steps for _, steps in self._under_way.values()])

    def begin(self, actions: Mapping[int, str | None], known: Mapping[int, Step]) -> None:
        """Act in slots whose turns have just ended; what comes of `known` ones is known."""
        found: dict[int, Steps] = {slot: _there({slot: step}) for slot, step in known.items()}
        if self._apart:
            found |= {
                slot: self._threads.submit(step_or_error, self._environment, {slot: action})
                for slot, action in actions.items()
            }
        elif self._lag:
            found |= dict.fromkeys(actions, self._threads.submit(step_or_error, self._environment, actions))
        else:
            found |= dict.fromkeys(actions, _there(step_or_error(self._environment, actions)))
        self._under_way |= {slot: (self._ends + self._lag, steps) for slot, steps in sorted(found.items())}

    def due(self, *, more: bool) -> dict[int, Step]:
        """Steps of the rows that go on now, by slot; those that are due are waited for.

        `more`: turns ended when the session was advanced last. Where none did, only steps can be waited for.
        """
        if self._by_time is not None:
            due = [slot for slot, (_, steps) in self._under_way.items() if steps.done()]
        else:
            latest = self._ends if more else min(at for at, _ in self._under_way.values())
            due = [slot for slot, (at, _) in self._under_way.items() if at <= latest]
        return {slot: self._under_way.pop(slot)[1].result()[slot] for slot in due}


def _there(steps: dict[int, Step]) -> Steps:
    found: Steps = Future()
    found.set_result(steps)
    return found
