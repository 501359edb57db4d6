"""Ctrl-C and SIGTERM, for commands that work for long: one way out, and the words that say how to go on."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import typer

from crl.cli.shared import console

INTERRUPTED, TERMINATED = 130, 143
"""Exit codes after Ctrl-C and after SIGTERM."""


class _Terminated(BaseException):
    """SIGTERM arrived: the way out is that of Ctrl-C."""


@contextmanager
def interruptible(again: Callable[[], str]) -> Iterator[None]:
    """Ctrl-C and SIGTERM unwind what is inside, then say that the command `again()` goes on with it."""

    def terminate(number: int, frame: FrameType | None) -> None:
        raise _Terminated

    # Prefect has a handler of its own while a flow runs, and hands the signal on to this one afterward.
    previous = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    except (KeyboardInterrupt, _Terminated) as error:
        console(stderr=True).print(
            f"\ninterrupted. Every complete stage is kept; continue with: {again()}", soft_wrap=True
        )
        raise typer.Exit(INTERRUPTED if isinstance(error, KeyboardInterrupt) else TERMINATED) from None
    finally:
        signal.signal(signal.SIGTERM, previous)
