"""Hands complete rounds to the trackers of `runtime.trackers`, in a thread beside the driver.

Which rounds a tracker has is in `<run>/trackers.jsonl`, beside the record: a resumed run writes no round twice, and one
that a tracker missed (it failed, or was added later) is written with the next. A round that was redone with another
result is written again. Another choice of options is another tracker, and one that gives itself another id has begun
anew: both get every round.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from crl.config import Runtime
from crl.config.trackers import TrackerChoice
from crl.engine.events import Event, RoundDone
from crl.report.markdown import rounds_markdown
from crl.report.success import Rate
from crl.report.summary import History, RoundSummary, random_policy
from crl.report.views import reading
from crl.run.directory import RunDirectory
from crl.run.files import canonical_json, sha256_bytes
from crl.run.head import head_after
from crl.run.journal import JsonLines
from crl.run.logs import TRACKERS as LEDGER
from crl.trackers.base import RoundMetrics, TrackedRun, Tracker

_PATIENCE_SECONDS = 60.0
"""How long the end of a run waits for trackers that still write."""


class Trackers:
    """A subscriber for :meth:`crl.engine.driver.Driver.subscribe`, and a context manager: leaving it waits for what is
    still being written, for a minute at most.

    Args:
        run: the run.
        runtime: `trackers` of it are written to.
        warn: takes one line for a person, the first time that a tracker fails.
    """

    def __init__(self, run: RunDirectory, runtime: Runtime, warn: Callable[[str], None]) -> None:
        ledger = JsonLines(Path(run.path) / LEDGER)
        self._warn = warn
        history = History(run.path)  # of all of them: they write in one thread
        self._feeds = [_Feed(run, history, choice, ledger, warn) for choice in runtime.trackers]
        self._rounds: SimpleQueue[int | None] = SimpleQueue()
        # A daemon: a server that does not answer must not keep a finished run from ending.
        self._thread = threading.Thread(target=self._work, name="trackers", daemon=True)

    def __call__(self, event: Event) -> None:
        if isinstance(event, RoundDone) and self._feeds:
            self._rounds.put(event.round)

    def __enter__(self) -> Trackers:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._rounds.put(None)
        self._thread.join(_PATIENCE_SECONDS)
        if self._thread.is_alive():
            self._warn(f"trackers still write after {_PATIENCE_SECONDS:.0f} s: the rest is written by a later run")

    def _work(self) -> None:
        while (number := self._rounds.get()) is not None:
            for feed in self._feeds:
                feed.write_until(number)
        for feed in self._feeds:
            feed.close()


class _Feed:
    """One tracker, opened when it has something to write, and what it has so far."""

    def __init__(
        self, run: RunDirectory, history: History, choice: TrackerChoice, ledger: JsonLines, warn: Callable[[str], None]
    ) -> None:
        self._run, self._history, self._choice, self._ledger, self._warn = run, history, choice, ledger, warn
        self._key = sha256_bytes(canonical_json(choice.model_dump(mode="json")))[:16]
        self._tracker: Tracker | None = None
        self._warned = False

    def write_until(self, number: int) -> None:
        """Write every round up to this one that the tracker does not have."""
        try:
            if not self._due(number):
                return
            if self._tracker is None:
                self._tracker = self._open()
            due = self._due(number)  # asked again: the tracker may have begun anew
            for round_metrics in metrics_of(self._run, self._history, due):
                self._tracker.write(round_metrics)
                self._note(round=round_metrics.round, digest=round_metrics.digest)
        except BaseException as error:  # libraries that end the interpreter are not allowed to
            self._failed(error)

    def _lines(self) -> list[dict[str, Any]]:
        return [line for line in self._ledger.read() if line.get("tracker") == self._key]

    def _due(self, number: int) -> list[int]:
        """Rounds up to this one that the tracker does not have, and this one where it has another result of it."""
        written: dict[int, str] = {}
        for line in self._lines():
            if "id" in line:
                written.clear()  # the tracker could not go on with what it had: it began anew, with nothing in it
            else:
                written[line["round"]] = line["digest"]
        due = [each for each in self._run.rounds() if each < number and each not in written]
        return due if written.get(number) == round_digest(self._run, number) else [*due, number]

    def close(self) -> None:
        """Flush; errors as for writing."""
        try:
            if self._tracker is not None:
                self._tracker.close()
        except BaseException as error:
            self._failed(error)

    def _open(self) -> Tracker:
        self._choice.check()
        earlier = next((line["id"] for line in reversed(self._lines()) if "id" in line), None)
        made = TrackedRun(
            path=Path(self._run.path).resolve(),
            experiment=self._run.experiment_name,
            method=_flat(self._run.method.model_dump(mode="json")),
            method_digest=self._run.method_digest,
            earlier=earlier,
        )
        tracker: Tracker = self._choice.load()(made, **self._choice.options)
        if tracker.id != earlier:
            self._note(id=tracker.id)
        return tracker

    def _note(self, **more: Any) -> None:
        self._ledger.append({"tracker": self._key, "kind": self._choice.kind, **more})

    def _failed(self, error: BaseException) -> None:
        if not self._warned:
            self._warned = True
            told = " ".join(f"{type(error).__name__}: {error}".split())
            self._warn(f"tracker {self._choice.kind} failed, the run goes on without it ({told})")


def _flat(value: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Nested mappings with dotted keys."""
    found: dict[str, Any] = {}
    for name, each in value.items():
        found |= _flat(each, f"{before}{name}.") if isinstance(each, Mapping) and each else {f"{before}{name}": each}
    return found


def round_digest(run: RunDirectory, number: int) -> str:
    """SHA-256 over the digests of a round's stages. Raises RecordDamaged."""
    stages = {stage: run.manifest(number, stage).digest for stage in sorted(run.complete_stages(number))}
    return sha256_bytes(canonical_json(stages))


def metrics_of(run: RunDirectory, history: History, numbers: Sequence[int]) -> Iterator[RoundMetrics]:
    """The metrics of complete rounds, in order; `history` is that of the run. Raises RecordDamaged."""
    summaries = history.summaries()
    with reading(run.path, numbers, views={"metrics"}) as connection:
        metrics = connection.sql("SELECT round, stage || '/' || name, value FROM metrics ORDER BY ALL").fetchall()
    for number in sorted(numbers):
        until = [each for each in summaries if each.round <= number]
        values = {name: value for at, name, value in metrics if at == number}
        for summary in (each for each in until if each.label == str(number)):
            values |= _of_summary(summary, random_policy(until))
        yield RoundMetrics(
            round=number,
            values=values,
            success=[row for each in until for row in each.conditions],
            tables=rounds_markdown(run.experiment_name, until),
            digest=round_digest(run, number),
            head=head_after(run.path, number),
        )


def _of_summary(each: RoundSummary, random: Rate) -> dict[str, float]:
    known = {
        "bank/entries": each.bank,
        "buffer/waiting": each.buffer,
        **{f"updates/{role}": count for role, count in each.updates.items()},
        "extractor/malformed": each.malformed / each.outputs if each.outputs else None,
        "alarms": len(each.alarms),
        **{f"bank/{kind}": count for kind, count in each.changes.items()},
        **{f"seconds/{stage}": taken for stage, taken in each.seconds.items()},
        **{f"success/{condition}": getattr(each, condition).value for condition in ("guided", "free", "synthetic")},
        **{f"held_out/{condition}": getattr(each, condition).value for condition in ("with_bank", "without_bank")},
        "held_out/random": (random if each.without_bank.episodes else each.random).value,
    }
    return {name: float(value) for name, value in known.items() if value is not None}
