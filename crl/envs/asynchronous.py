"""Async code driven from where nobody awaits: one event loop, in one thread of the process.

:func:`run` is for one call. :func:`run_all` is for all slots of a step: they wait side by side, so that a step takes as
long as the slowest of them and not as long as all together. An environment that uses it sets `steps_together = True`,
and `steps_apart = True` if slots may also be stepped by several threads (`rollout.environment_lag`). :func:`hold` keeps
a client open.
"""

from __future__ import annotations

import asyncio
import os
import queue
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, suppress
from functools import cache
from typing import Any, TypeVar

from crl.faults import Fault, attempt

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    """What a coroutine returns. Raises what it raises, and RuntimeError in the loop, which would wait for itself."""
    return _submitted(work).result()


def run_all(work: Mapping[int, Coroutine[Any, Any, T]]) -> Iterator[tuple[int, T | Fault]]:
    """What each coroutine returns, or the fault that it raised, by its slot and in the order in which they end."""
    ended: queue.SimpleQueue[tuple[int, Future[T]]] = queue.SimpleQueue()
    for slot, coroutine in work.items():
        _submitted(coroutine).add_done_callback(lambda future, slot=slot: ended.put((slot, future)))  # type: ignore[misc]
    for _ in range(len(work)):
        slot, future = ended.get()
        yield slot, attempt(future.result)


def hold(manager: AbstractAsyncContextManager[T]) -> tuple[T, Callable[[], None]]:
    """Enter an async context manager, such as a client, and keep it open from call to call: what it gives, and the
    function that leaves it. Both happen in one task of the loop, as many clients want. Raises what entering raises."""
    entered: Future[tuple[T, asyncio.Event]] = Future()

    async def held() -> None:
        left = asyncio.Event()
        try:
            async with manager as value:
                entered.set_result((value, left))
                await left.wait()
        except BaseException as error:
            if entered.done():
                raise
            entered.set_exception(error)

    task = _submitted(held())
    value, left = entered.result()

    def leave() -> None:
        _loop(os.getpid()).call_soon_threadsafe(left.set)
        task.result()

    return value, leave


def _submitted(work: Coroutine[Any, Any, T]) -> Future[T]:
    loop = _loop(os.getpid())
    if threading.current_thread().name == _name(os.getpid()):
        work.close()
        raise RuntimeError("async code that the loop runs cannot wait for the loop: await it")
    return asyncio.run_coroutine_threadsafe(work, loop)


@cache
def _loop(process: int) -> asyncio.AbstractEventLoop:
    """The loop of a process: one that was forked from another has a loop of its own."""
    loop = asyncio.new_event_loop()

    def forever() -> None:
        while True:
            with suppress(SystemExit, KeyboardInterrupt):  # of one task, which has it too: the others go on
                loop.run_forever()

    threading.Thread(target=forever, name=_name(process), daemon=True).start()
    return loop


def _name(process: int) -> str:
    return f"async code of process {process}"
