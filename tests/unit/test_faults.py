"""What code of an environment raises costs its episode, whatever it is; what interrupts the run goes on its way."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from crl import errors
from crl.errors import CrlError, DiskFull, EnvironmentBroken
from crl.faults import LONGEST_DETAILS, Fault, attempt, flaw_of_actions, location_in, of_run
from crl.protocols import FreeText, ToolCalls
from crl.rollout.environments import starts_or_errors, steps_as_they_come
from tests.unit.rollout.fakes import Corridor


class Panic(BaseException):
    """As a library in another language panics."""


OURS = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, CrlError)]
"""The project's own errors."""


def _deeper() -> None:
    _deeper()


RAISES: dict[str, Callable[[], Any]] = {
    "environment_ValueError": lambda: int("x"),
    "environment_SystemExit": lambda: sys.exit("license expired"),
    "environment_KeyboardInterrupt": lambda: _raise(KeyboardInterrupt()),
    "environment_GeneratorExit": lambda: _raise(GeneratorExit()),
    "environment_CancelledError": lambda: _raise(asyncio.CancelledError("the tool's time was over")),
    "environment_StopIteration": lambda: _raise(StopIteration()),
    "environment_Panic": lambda: _raise(Panic()),
    "environment_MemoryError": lambda: _raise(MemoryError()),
    "environment_RecursionError": lambda: _deeper(),
    "environment_ExceptionGroup": lambda: _raise(ExceptionGroup("two", [ValueError(), KeyError()])),
    "environment_BaseExceptionGroup": lambda: _raise(BaseExceptionGroup("two", [SystemExit(), KeyboardInterrupt()])),
    **{f"environment_{each.__name__}": lambda each=each: _raise(each("of an environment")) for each in OURS},
}


def _raise(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize("code", RAISES)
def test_whatever_an_environment_raises_ends_its_own_slot(code: str) -> None:
    class Raises(Corridor):
        def step_many(self, actions: Any) -> Any:
            return super().step_many(actions) if 1 not in actions else RAISES[code]()

        def reset_many(self, seeds: Any) -> Any:
            return super().reset_many(seeds) if 7 not in seeds else RAISES[code]()

    rough = Raises()
    starts = starts_or_errors(rough, [3, 7])
    assert [start.error for start in starts] == [None, code]
    assert f"{code.removeprefix('environment_')}" in (starts[1].details or "")
    rough.reset_many([3, 3])
    steps = dict(steps_as_they_come(rough, {0: "right", 1: "right"}))
    assert (steps[0].error, steps[1].error) == (None, code) and steps[1].done
    assert location_in(steps[1].details) is not None and "test_faults.py" in (location_in(steps[1].details) or "")


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """As on a terminal: in the background of a script Ctrl-C is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("wrapped", [False, True])
def test_ctrl_c_ends_the_run_also_where_the_environment_wraps_it(wrapped: bool) -> None:
    def work() -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            sum(range(10**6))
        except KeyboardInterrupt as error:
            if wrapped:
                raise RuntimeError("the call was lost") from error
            raise

    for _ in range(2):  # the handler is put back
        with pytest.raises(KeyboardInterrupt):
            attempt(work)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def _terminate(note: str, number: int, frame: Any) -> None:
    raise SystemExit(143)


@pytest.mark.parametrize("handler", [functools.partial(_terminate, "x"), lambda number, frame: sys.exit(143)])
def test_a_signal_with_a_handler_of_its_own_ends_the_run(handler: Any) -> None:
    before = signal.signal(signal.SIGTERM, handler)
    try:
        with pytest.raises(SystemExit):
            attempt(lambda: signal.raise_signal(signal.SIGTERM))
        assert isinstance(attempt(lambda: sys.exit(143)), Fault)
    finally:
        signal.signal(signal.SIGTERM, before)


def _too_slow(number: int, frame: Any) -> None:
    raise TimeoutError("the simulator is too slow")


def test_a_time_limit_of_the_environments_own_is_its_fault() -> None:
    before = signal.signal(signal.SIGALRM, _too_slow)
    try:
        fault = attempt(lambda: signal.raise_signal(signal.SIGALRM))
        assert isinstance(fault, Fault) and fault.code == "environment_TimeoutError"
    finally:
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("error", [EnvironmentBroken("no"), DiskFull("full"), OSError("lost"), MemoryError()])
def test_what_is_the_runs_own_passes_however_deep(error: BaseException) -> None:
    def work() -> None:
        with of_run():
            raise error

    with pytest.raises(type(error)):
        attempt(lambda: attempt(work))


def test_a_generator_that_is_closed_while_it_waits_is_no_fault() -> None:
    class Each(Corridor):
        def step_as_completed(self, actions: Any) -> Iterator[Any]:
            yield from self.step_many(actions).items()

    corridor = Each()
    corridor.reset_many([3, 3])
    steps = steps_as_they_come(corridor, {0: "right", 1: "right"})
    next(iter(steps))
    steps.close()  # type: ignore[attr-defined]


def test_details_are_bounded_and_valid_and_end_where_the_error_is() -> None:
    def deep(left: int) -> None:
        if not left:
            raise ValueError("\ud800" + "x" * 10 * LONGEST_DETAILS)
        deep(left - 1)

    fault = attempt(lambda: deep(400))
    assert isinstance(fault, Fault) and len(fault.details) < LONGEST_DETAILS + 10
    assert fault.details.encode() and location_in("no traceback") is location_in(None) is None


def test_actions_are_of_a_kind_that_there_is() -> None:
    for good in ((), ("wait",), FreeText("any"), ToolCalls(())):
        assert flaw_of_actions(good) is None
    for odd in (["wait"], None, "wait", {"wait"}, ("wait", 1)):
        assert flaw_of_actions(odd) is not None
