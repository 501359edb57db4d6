"""Live progress of rounds: a bar on a terminal, a plain line now and then elsewhere; and one way out on Ctrl-C.

It listens to the events of `crl/engine/events.py`, decides nothing, and must never stop a run: events of a kind it does
not know are passed over.
"""

from __future__ import annotations

import signal
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, Self

import typer

from crl.cli.shared import console, progress_lines
from crl.engine import events
from crl.report.cells import seconds_text

if TYPE_CHECKING:
    from rich.console import Console

INTERRUPTED, TERMINATED = 130, 143
"""Exit codes after Ctrl-C and after SIGTERM."""
PLAIN_EVERY_SECONDS = 15.0
_LOG_LINES = 40
"""Lines of an engine's output that are shown when a stage fails: a traceback fits."""
_TOLD_AS_RATE = {"turns", "tokens"}
_WON = "won"
_COUNTS = "retrieval_counts"
"""Told on by every plan, also by one that draws nothing."""
_SHOW_LOG = {"StageFailed", "EngineDied"}
"""Errors that do not explain themselves."""


def progress_text(event: events.Progress) -> str:
    """One line about how far a stage is: done of total, rates, episodes won, other metrics.

    Won episodes are counted against all episodes of the stage: of the finished ones they would be nearly all, as who
    wins ends early.
    """
    parts = [f"{event.done} of {event.total}"] if event.total else []
    metrics = dict(event.metrics)
    for name in sorted(_TOLD_AS_RATE & metrics.keys()):
        count = metrics.pop(name)
        if count and event.working_seconds > 0:
            parts.append(f"{count / event.working_seconds:.1f} {name}/s")
    if _WON in metrics:
        parts.append(f"won {metrics.pop(_WON)} of {event.total}")
    parts += [
        f"{name.replace('_', ' ')} {_number(value)}" for name, value in list(metrics.items())[:4] if _plain(value)
    ]
    return ", ".join(parts)


def _plain(value: Any) -> bool:
    return isinstance(value, int | float | str) and not isinstance(value, bool)


def _number(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def rows_text(rows: Mapping[str, int]) -> str:
    """What a stage wrote: `16 episodes, 143 turns`."""
    return ", ".join(f"{count} {table.replace('_', ' ')}" for table, count in rows.items() if count)


_OfStage = events.StageStarted | events.Progress | events.StageDone | events.StageErrored | events.RetryScheduled
"""What happens to one stage."""


class MovingLines:
    """Lines that move on a terminal while the context is open; none elsewhere."""

    def __init__(self, out: Console | None = None) -> None:
        self._out = out or console()
        self._bar: Any = None

    def __enter__(self) -> Self:
        if self._out.is_terminal:
            self._bar = progress_lines(self._out)
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def say(self, text: str) -> None:
        """Print a line between those of the progress."""
        self._out.print(text, soft_wrap=True)


class LiveProgress(MovingLines):
    """A subscriber that shows events while its context is open. `taken`: seconds of stages that ran before, by name."""

    def __init__(
        self,
        out: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        taken: Mapping[str, float] | None = None,
    ) -> None:
        super().__init__(out)
        self._clock = clock
        self._taken = dict(taken or {})
        self._open: dict[int, int] = {}
        """Rounds under way, two where they overlap, and how many of the stages of each were complete already."""
        self._lines: dict[tuple[int, str], Any] = {}
        self._told_at = 0.0
        self._log: deque[str] = deque(maxlen=_LOG_LINES)
        self.ran = 0
        """Stages that ran while it watched; 0 after a resume that had nothing to do."""

    def __call__(self, event: events.Event) -> None:
        """Show one event."""
        getattr(self, f"_on_{type(event).__name__}", lambda event: None)(event)

    def _on_RoundStarted(self, event: events.RoundStarted) -> None:
        from crl.rounds.stage import draw_of

        self._open[event.round] = 0
        name = "preparation (round 0)" if event.round == 0 else f"round {event.round}"
        draws = Counter(draw_of(stage)[0] for stage in event.stages)
        told = (f"{stage} (up to {times} times)" if times > 1 else stage for stage, times in draws.items())
        self.say(f"{name}: {', '.join(told).replace('_', ' ')}")

    def _on_StageStarted(self, event: events.StageStarted) -> None:
        self._told_at = self._clock()
        self._log.clear()
        if self._bar is not None:
            self._close_line(event)
            self._lines[event.round, event.stage] = self._bar.add_task(f"  {self._name(event)}", total=None, metrics="")

    def _on_Progress(self, event: events.Progress) -> None:
        last = self._taken.get(event.stage)
        text = progress_text(event) + (f", {seconds_text(last)} last time" if last else "")
        line = self._lines.get((event.round, event.stage))
        if self._bar is not None and line is not None:
            self._bar.update(line, completed=event.done, total=event.total or None, metrics=text)
        elif self._clock() - self._told_at >= PLAIN_EVERY_SECONDS:
            self._told_at = self._clock()
            self.say(f"  {self._name(event)}: {text}")

    def _on_StageDone(self, event: events.StageDone) -> None:
        from crl.rounds.stage import draw_of

        self.ran += 1
        self._taken[event.stage] = event.seconds
        self._close_line(event)
        drew = any(count for table, count in event.rows.items() if table != _COUNTS)
        if draw_of(event.stage)[1] > 1 and not drew:
            return
        wrote = rows_text(event.rows)
        self.say(f"  {self._name(event):<20} {seconds_text(event.seconds):>12}{'   ' + wrote if wrote else ''}")

    def _on_StageSkipped(self, event: events.StageSkipped) -> None:
        self._open[event.round] = self._open.get(event.round, 0) + 1

    def _on_StageErrored(self, event: events.StageErrored) -> None:
        self._close_line(event)
        if event.error.get("type") in _SHOW_LOG:
            for line in self._log:
                self.say(f"    | {line}")
        self.say(f"  {self._name(event)} failed: {event.error.get('found', 'unknown error')}")

    def _on_LogLine(self, event: events.LogLine) -> None:
        self._log.append(event.text)

    def _on_RetryScheduled(self, event: events.RetryScheduled) -> None:
        self.say(f"  {self._name(event)}: attempt {event.attempt} in {seconds_text(event.delay_seconds)}")

    def _on_Waits(self, event: events.Waits) -> None:
        self.say(event.reason)

    def _on_Remark(self, event: events.Remark) -> None:
        self.say(event.text)

    def _on_RoundDone(self, event: events.RoundDone) -> None:
        if skipped := self._open.pop(event.round, 0):
            self.say(f"  {skipped} stages were complete already and did not run again")

    def _name(self, event: _OfStage) -> str:
        """The stage, with its round where two are under way."""
        name = event.stage.replace("_", " ")
        return name if len(self._open) < 2 else f"{name} (round {event.round})"

    def _close_line(self, event: _OfStage) -> None:
        line = self._lines.pop((event.round, event.stage), None)
        if self._bar is not None and line is not None:
            self._bar.remove_task(line)


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
