"""What the code of an environment raises: told apart from what interrupts the run, and put into words.

Code of others may end in any way: an exception, one of the project's own errors, exhausted memory, `sys.exit`, a
canceled await, a `KeyboardInterrupt` of its own. All of them cost its episode and nothing else. What a signal raises
(Ctrl-C, SIGTERM) goes on its way, and so does what is marked as the run's own (:func:`of_run`).
"""

from __future__ import annotations

import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NoReturn, TypeVar

from crl.protocols import FreeText, Step, StopReason, ToolCalls
from crl.text.unicode import valid_text

T = TypeVar("T")

_FROM_PEOPLE = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that end a run. Others are an environment's own, such as the SIGALRM of its time limit."""

_OF_RUN = "_crl_of_run"
"""Attribute of an error that costs no episode but ends the stage."""

LONGEST_DETAILS = 8000
"""Characters of a traceback that are kept: its beginning and its end."""
_FRAME = re.compile(r'^[ |]*  File "(?P<path>.*)", line (?P<line>\d+), in (?P<name>.*)$', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Fault:
    """What a call into an environment raised."""

    error: BaseException

    @property
    def code(self) -> str:
        """The reason code of an episode that ends by it."""
        code = getattr(self.error, "code", None)
        # `sys.exit` has a code too: that of a process.
        return code if isinstance(code, str) and code.startswith("environment_") else code_of(self.error)

    @property
    def details(self) -> str:
        """Its traceback; of an environment in another process, the one from there."""
        told = getattr(self.error, "details", None)
        return told if isinstance(told, str) else details_of(self.error)


def broke(code: str, details: str | None = None) -> Step:
    """The last step of a slot whose environment broke, with its reason code and what is known about it."""
    return Step("", (), False, "", True, False, 0.0, StopReason.error, code, details)


def attempt(work: Callable[[], T]) -> T | Fault:
    """What a call into an environment returns, or the fault that it raised.

    Raises what is the run's own, and what a signal raised, however the environment wrapped that.
    """
    try:
        with _interrupts_marked():
            return work()
    except BaseException as error:
        if (interruption := _interruption_in(error)) is not None:
            raise interruption from None
        if getattr(error, _OF_RUN, False):
            raise
        return Fault(error)


@contextmanager
def of_run() -> Iterator[None]:
    """What is raised inside is the run's own: a full disk, an environment that is out of order. No episode's fault."""
    try:
        yield
    except BaseException as error:
        setattr(error, _OF_RUN, True)
        raise


def close(what: str, work: Callable[[], None]) -> None:
    """Close what an environment holds. Its games are over: where it raises, the log says so and nothing is lost."""
    closed = attempt(work)
    if isinstance(closed, Fault):
        print(f"{what} could not be closed:", closed.details, sep="\n", file=sys.stderr, flush=True)


def code_of(error: BaseException) -> str:
    """The reason code of an episode whose environment raised this."""
    return f"environment_{type(error).__name__}"


def details_of(error: BaseException) -> str:
    """The traceback of an error as text, bounded, and without our own frames above the environment's."""
    frames = error.__traceback__
    while frames is not None and frames.tb_next is not None and _is_ours(frames.tb_frame):
        frames = frames.tb_next
    text = valid_text("".join(traceback.format_exception(type(error), error, frames)).strip())
    half = LONGEST_DETAILS // 2
    return text if len(text) <= LONGEST_DETAILS else f"{text[:half]}\n  …\n{text[-half:]}"


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).startswith(("crl.faults", "crl.rollout."))


def location_in(details: str | None) -> str | None:
    """Where the traceback in a text ends, as `walls.py line 31 in act`; None where there is none."""
    frames = list(_FRAME.finditer(details or ""))
    if not frames:
        return None
    last = frames[-1]
    return f"{Path(last['path']).name} line {last['line']} in {last['name']}"


def flaw_of_actions(actions: Any) -> str | None:
    """What is wrong with what an environment gives as its actions; None where nothing is."""
    if isinstance(actions, FreeText | ToolCalls):
        return None
    if not isinstance(actions, tuple):
        return f"the actions are a {type(actions).__name__}: {actions!r:.100}"
    odd = next((each for each in actions if not isinstance(each, str)), None)
    return None if odd is None else f"an action is a {type(odd).__name__}: {odd!r:.100}"


EXPECTED_ACTIONS = 'a tuple of texts (one action: `("wait",)`), `FreeText` or `ToolCalls`'
"""What an environment may give as its actions."""


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


@contextmanager
def _interrupts_marked() -> Iterator[None]:
    """Inside, a KeyboardInterrupt of Ctrl-C is known by its traceback: Python's own handler leaves none."""
    plain = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if plain:
        signal.signal(signal.SIGINT, _interrupt)
    try:
        yield
    finally:
        if plain and signal.getsignal(signal.SIGINT) is _interrupt:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _interruption_in(error: BaseException) -> BaseException | None:
    """What the handler of a signal that ends the run raised, in this error or behind it."""
    handlers = {_interrupt.__code__} | {
        code for number in _FROM_PEOPLE if (code := _code_of(signal.getsignal(number))) is not None
    }
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        if any(frame.f_code in handlers for frame, _ in traceback.walk_tb(current.__traceback__)):
            return current
        current = current.__cause__ or current.__context__
    return None


def _code_of(handler: Any) -> CodeType | None:
    """The code of a signal's handler; None of one that is not written in Python."""
    while hasattr(handler, "func"):  # functools.partial
        handler = handler.func
    return getattr(getattr(handler, "__func__", handler), "__code__", None)
