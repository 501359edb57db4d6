"""Slots of a slow environment stepped side by side, in threads, with a time limit for each step.

Any environment can be played so: each slot has an instance of its own, with a wave of one episode. So what a slot
answers depends on its seed and its actions alone, never on which thread was faster. A step past its limit ends its
episode with the reason code `environment_time_limit`, one that raises with the name of the exception; the others go on.

Python cannot stop a thread: an instance that is past its limit is left to its thread, which closes it when the step
returns at last, and a new one takes its place. Resets have no limit: what is planned has to start.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from crl.faults import Fault, broke, close
from crl.protocols import Environment, Start, Step, hand_on


class SideBySide:
    """A wave over one instance per slot (protocol `Environment`, and the abilities of these)."""

    steps_together = True
    """One call for all slots (`crl.rollout.environments`): what breaks one of them is its own."""
    steps_apart = True
    """Or a call for each slot, in several threads: `workers` bounds all of them."""

    def __init__(
        self,
        make: Callable[[], Environment],
        *,
        workers: int,
        step_time_limit_seconds: float | None = None,
        closing: Callable[[], None] = lambda: None,
    ) -> None:
        """
        Args:
            make: a new instance; called once for each slot of the widest wave.
            workers: slots that step at one time, at most.
            step_time_limit_seconds: longest step, from when it begins; None: no limit.
            closing: called at the end, when every instance is closed.
        """
        self._make, self._limit = make, step_time_limit_seconds
        self._places = threading.Semaphore(workers)
        self._closing = closing
        self._instances: list[Environment] = [make()]
        first = self._instances[0]
        hand_on(
            self,
            first,
            lambda ability: partial(self._ask, ability.name) if ability.of_slot else getattr(first, ability.name),
        )
        self._abandoned: set[int] = set()

    def reset_many(self, seeds: Sequence[int]) -> list[Start]:
        """Start `len(seeds)` episodes, slot i with seed i. A slot whose reset raises has no start but its reason."""
        for slot in self._abandoned:
            self._instances[slot] = self._make()
        self._abandoned.clear()
        while len(self._instances) < len(seeds):
            self._instances.append(self._make())
        calls = {slot: partial(self._instances[slot].reset_many, [seed]) for slot, seed in enumerate(seeds)}
        starts = []
        results = dict(_side_by_side(calls, self._places, None, {}))
        for result in (results[slot] for slot in calls):
            starts.append(Start.failed(*_told(result)) if isinstance(result, BaseException) else result[0])
        return starts

    def step_many(self, actions: Mapping[int, str | None]) -> dict[int, Step]:
        """Apply one action in each slot given. What raises ends its slot."""
        steps = dict(self.step_as_completed(actions))
        return {slot: steps[slot] for slot in actions}

    def step_as_completed(self, actions: Mapping[int, str | None]) -> Iterator[tuple[int, Step]]:
        """As :meth:`step_many`: each slot with its step, when it is there."""
        calls = {slot: partial(self._instances[slot].step_many, {0: action}) for slot, action in actions.items()}
        closing = {slot: self._instances[slot].close for slot in actions}
        for slot, result in _side_by_side(calls, self._places, self._limit, closing):
            if isinstance(result, BaseException):
                if isinstance(result, _Late):
                    self._abandoned.add(slot)
                yield slot, broke(*_told(result))
            else:
                yield slot, result[0]

    def oracle(self, slot: int) -> str | None:
        """The good next action that the slot's instance knows."""
        return None if slot in self._abandoned else self._instances[slot].oracle(0)

    def close(self) -> None:
        """Close every instance but those whose step has not returned yet: their threads do."""
        for slot, instance in enumerate(self._instances):
            if slot not in self._abandoned:
                close("an instance of the environment", instance.close)
        self._instances, self._abandoned = [], set()
        self._closing()

    def _ask(self, name: str, slot: int, *arguments: Any, **options: Any) -> Any:
        return getattr(self._instances[slot], name)(0, *arguments, **options)


class _Late(Exception):
    """A call took longer than its limit."""

    code = "environment_time_limit"

    def __init__(self, limit: float) -> None:
        self.details = f"no answer within {limit:g} s"
        super().__init__(self.details)


def _told(error: BaseException) -> tuple[str, str]:
    """The reason code of an episode that ended so, and what is known about it."""
    fault = Fault(error)
    return fault.code, fault.details


class _Call:
    """One call in a thread of its own. A call that was given up calls `close` when it returns."""

    def __init__(self, work: Callable[[], Any], finished: Callable[[], None], close: Callable[[], None] | None) -> None:
        self.result: Any = None
        self.began = time.monotonic()
        self._work, self._finished, self._close = work, finished, close
        self._lock, self._returned, self._given_up = threading.Lock(), False, False
        # A daemon: a step that never returns must not keep the process from ending.
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            self.result = self._work()
        except BaseException as error:
            self.result = error
        with self._lock:
            self._returned = True
        if not self._given_up:
            self._finished()
        elif self._close is not None:
            self._close()

    def give_up(self) -> bool:
        """Leave the call to its thread. False where it has returned meanwhile."""
        with self._lock:
            self._given_up = not self._returned
        return self._given_up


def _side_by_side(
    calls: Mapping[int, Callable[[], Any]],
    places: threading.Semaphore,
    limit: float | None,
    closing: Mapping[int, Callable[[], None]],
) -> Iterator[tuple[int, Any]]:
    """What each call returns or raises (as a value), as it comes. Each has one of the places while it runs."""
    waiting, running = deque(calls), dict[int, _Call]()
    finished: queue.SimpleQueue[int] = queue.SimpleQueue()
    try:
        while waiting or running:
            # Where none of these runs, others have the places.
            while waiting and places.acquire(blocking=not running):
                slot = waiting.popleft()
                try:
                    running[slot] = _Call(calls[slot], partial(finished.put, slot), closing.get(slot))
                except BaseException:  # no thread could be started
                    places.release()
                    raise
            oldest = min(call.began for call in running.values())
            try:
                slot = finished.get(timeout=None if limit is None else max(0.0, oldest + limit - time.monotonic()))
            except queue.Empty:
                assert limit is not None
                for slot, call in list(running.items()):
                    if time.monotonic() - call.began >= limit and call.give_up():
                        del running[slot]
                        places.release()
                        yield slot, _Late(limit)
            else:
                found = running.pop(slot).result
                places.release()
                yield slot, found
    finally:
        for _ in running:
            places.release()
