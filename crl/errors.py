"""Errors for people: what was found, what was expected, where, and what to do next.

Every error the project raises on purpose derives from :class:`CrlError`. The class decides two things that callers
need: the exit code of the command line, and whether trying again may help (`transient`), which is what the Prefect
task retries on.
"""

from __future__ import annotations

from typing import Any


class CrlError(Exception):
    """Base class. `str(error)` is one readable paragraph."""

    exit_code = 1
    transient = False

    def __init__(
        self, found: str, *, expected: str | None = None, where: str | None = None, next_step: str | None = None
    ) -> None:
        self.found, self.expected, self.where, self.next_step = found, expected, where, next_step
        super().__init__(found)

    def __str__(self) -> str:
        parts = [self.found]
        if self.expected:
            parts.append(f"Expected: {self.expected}")
        if self.where:
            parts.append(f"Where: {self.where}")
        if self.next_step:
            parts.append(f"What to do: {self.next_step}")
        return "\n".join(parts)

    def payload(self) -> dict[str, Any]:
        """The error as plain data: it crosses the engine's socket and is rebuilt by :func:`from_payload`."""
        return {
            "type": type(self).__name__,
            "found": self.found,
            "expected": self.expected,
            "where": self.where,
            "next_step": self.next_step,
        }


class BadInput(CrlError):
    """Refused before work starts: config, command line, environment or model that cannot be used (exit code 2)."""

    exit_code = 2


class FrozenMethodChanged(BadInput):
    """The experiment's method differs from the one its run directory was made with."""


class RunDirectoryUnusable(BadInput):
    """The run directory, or another place to write to, cannot be created, read or written."""


class OtherFormat(BadInput):
    """A run directory or an exported bank whose rows have a different format from this version's."""


class NotEnoughDisk(BadInput):
    """The estimate of what a run will write is larger than what is free."""


class PromptTooLong(BadInput):
    """A prompt does not fit the model's context."""


class HubUnreachable(BadInput):
    """A model is not on this machine, and the Hugging Face Hub cannot be asked for it."""


class NoServer(BadInput):
    """A Prefect server is needed, but none answers."""


class ServerLost(CrlError):
    """The Prefect server ended while a flow ran; what was complete is safe."""


class PortBusy(BadInput):
    """Another program is listening on the port to be served."""


class SetupFailed(CrlError):
    """A Prefect server could not be set up, or it ended."""


class LeaseHeld(CrlError):
    """Another live attempt owns the run directory; its owner is named."""

    exit_code = 3


class ConcurrencyLimitMissing(CrlError):
    """The scheduler has no concurrency limit for an experiment: nothing would keep two of its runs apart there."""

    exit_code = 3


class ApprovalPending(CrlError):
    """A person must approve a round's bank before the run continues. Nothing is lost; nothing failed."""

    exit_code = 6


class DecisionMade(BadInput):
    """A person already decided about a round, and differently; the first decision holds."""


class StaleAttempt(CrlError):
    """This attempt lost its lease: a newer one owns the run, or the heartbeat could not be written. Nothing was
    committed."""

    exit_code = 3


class StageAlreadyComplete(CrlError):
    """A complete stage was about to be written again."""


class RecordDamaged(CrlError):
    """A file of the record is missing or differs from its manifest."""

    exit_code = 4


class DataCheckFailed(CrlError):
    """A Great Expectations suite found rows that break a rule; the stage was not committed.

    `found` names the table, the rule and the first offending rows.
    """

    exit_code = 5


class StageFailed(CrlError):
    """A stage raised something that is not one of our own errors; `found` carries its last line, `where` the stage."""


class EnvironmentBroken(CrlError):
    """An environment is out of order: it cannot be made or started, or nearly all of its episodes broke. The stage was
    not committed; it is tried again with environments that are made anew."""

    transient = True
    ADVICE = "mend the environment, or wait until it can be reached, and try again: what is complete is kept"


class EngineDied(CrlError):
    """The engine process ended (killed, out of memory); the stage can be retried in a new one."""

    transient = True


class RequestRefused(BadInput):
    """A server that samples refuses this request; it may take another one."""


class WrongWeights(CrlError):
    """A rollout server has weights other than those it was given: it scores a fixed probe differently."""


class StageTimedOut(CrlError):
    """A stage ran past its time limit and its engine was ended."""

    transient = True


class DiskFull(CrlError):
    """The disk filled up during a write. What was written before is intact."""

    transient = True


class NotDeepSpeed(CrlError):
    """An RL update did not run on a DeepSpeedEngine. A silent fallback is an error (never a warning)."""


class StudyIncomplete(CrlError):
    """Some runs of a study failed; `found` names them. The others are finished and in its table."""


def _subclasses(cls: type[CrlError]) -> dict[str, type[CrlError]]:
    found = {cls.__name__: cls}
    for child in cls.__subclasses__():
        found.update(_subclasses(child))
    return found


def from_payload(payload: dict[str, Any]) -> CrlError:
    """Rebuild an error that crossed a process boundary (the inverse of :meth:`CrlError.payload`)."""
    cls = _subclasses(CrlError).get(payload["type"], StageFailed)
    return cls(
        payload["found"],
        expected=payload.get("expected"),
        where=payload.get("where"),
        next_step=payload.get("next_step"),
    )
