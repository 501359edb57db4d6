"""What a person decided about a round, as a file: `decisions/0007.json`, written once, before the stage that needs it.

A decision speaks of what was shown: `shown` is the digest of the stages that are behind it, so a decision about other
rows (stages that were redone since) fits no more and is never applied. The file needs no lease: a person decides while
a run waits. Once the stage is committed its rows and its manifest hold all of it; the file is kept as evidence.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from crl.errors import DecisionMade, RecordDamaged, RunDirectoryUnusable
from crl.limits import read_limited
from crl.paths import quoted
from crl.run.files import aside, canonical_json, disk_errors, fsync, making, move, sha256_bytes, write_once

DECISIONS = "decisions"
_FILE = re.compile(r"^(\d{4,})\.json$")


class Decision(BaseModel):
    """Content of a decision file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    round: int = Field(ge=0)
    stage: str
    """Stage that waited for it."""
    shown: str
    """Digest of what was shown: :func:`shown_digest`."""
    approve: bool
    """False rejects everything, whatever `reject` lists."""
    reject: tuple[str, ...] = ()
    """Ids of the operations that are refused while the rest is approved."""
    person: str = Field(min_length=1)
    reason: str | None = None
    decided_at: datetime
    """UTC."""
    check: str = ""
    """SHA-256 over the rest."""

    def sealed(self) -> Decision:
        """With `check` computed."""
        return self.model_copy(update={"check": self._check()})

    def same_as(self, other: Decision) -> bool:
        """Whether both decide the same, whoever decided and when."""
        mine, theirs = ((each.shown, each.approve, each.approve and set(each.reject)) for each in (self, other))
        return mine == theirs

    def in_words(self) -> str:
        """Who decided what, and when, as a phrase."""
        what = "approved all" if self.approve else "rejected all"
        if self.approve and self.reject:
            what = f"approved all but {', '.join(self.reject)}"
        return f"{self.person} {what} at {self.decided_at:%Y-%m-%d %H:%M:%S} UTC"

    def render(self) -> bytes:
        """The bytes of the file."""
        return self.model_dump_json(indent=1).encode() + b"\n"

    def _check(self) -> str:
        return sha256_bytes(canonical_json(self.model_dump(mode="json", exclude={"check"})))


def shown_digest(stages: Mapping[str, str]) -> str:
    """Digest of what is shown to a person: of the digests of the stages behind it, by `0007/distill`."""
    return sha256_bytes(canonical_json(dict(stages)))


def decision_path(run_path: Path, round_number: int) -> Path:
    """Where the decision about a round is."""
    return Path(run_path) / DECISIONS / f"{round_number:04d}.json"


def load_decision(run_path: Path, round_number: int) -> Decision | None:
    """The decision about a round; None if there is none. Raises RecordDamaged if it is not what was written."""
    path = decision_path(run_path, round_number)
    try:
        content = read_limited(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RunDirectoryUnusable(f"{path} cannot be read: {error.strerror}") from error
    try:
        decision = Decision.model_validate_json(content)
    except ValidationError:
        found = f"{path.name} is not a decision (SHA-256 {sha256_bytes(content)})"
        raise _damaged(path, found, "the decision as it was written") from None
    if decision.check != decision._check() or decision.round != round_number or content != decision.render():
        raise _damaged(path, f"{path.name} has check {decision._check()}", decision.check or "a check")
    return decision


def write_decision(run_path: Path, decision: Decision) -> Decision:
    """Write a decision unless there is one; returns the one that holds.

    One about other rows is set aside first, under `damaged/`. Raises DecisionMade where another one was made about the
    same rows: the first holds; RecordDamaged where the one that is there cannot be read.
    """
    path = decision_path(run_path, decision.round)
    decision = decision.sealed()
    with disk_errors(path), making(path.parent), _alone(path.parent):
        earlier = load_decision(run_path, decision.round)
        if earlier is not None and earlier.shown != decision.shown:
            withdraw_decision(run_path, decision.round)
        write_once(path, decision.render())  # two people may decide in the same moment
        fsync(Path(run_path))
    holds = load_decision(run_path, decision.round)
    if holds is None:
        raise RunDirectoryUnusable(f"{path} was removed while it was written", where=str(run_path))
    if not holds.same_as(decision):
        raise DecisionMade(
            f"round {holds.round} was already decided: {holds.in_words()}"
            + (f" ({holds.reason})" if holds.reason else ""),
            expected="one decision per round; the first holds",
            where=str(path),
            next_step=f"to take it back: crl redo {quoted(run_path)} --from {holds.round:04d}/{quoted(holds.stage)}",
        )
    return holds


@contextlib.contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Wait for whoever else decides here: or a decision that holds could be set aside as one about other rows."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def withdraw_decision(run_path: Path, round_number: int) -> Path | None:
    """Set a decision aside, under `damaged/`; where it is now, None if there was none."""
    path = decision_path(run_path, round_number)
    if not path.exists():
        return None
    target = aside(Path(run_path), f"{DECISIONS}/{path.name}")
    move(path, target)
    return target


def decided_rounds(run_path: Path) -> list[int]:
    """Rounds with a decision file, readable or not, in order."""
    directory = Path(run_path) / DECISIONS
    names = [entry.name for entry in directory.iterdir()] if directory.is_dir() else []
    return sorted(int(match[1]) for name in names if (match := _FILE.match(name)))


def now() -> datetime:
    """The time of a decision made now, UTC, in whole seconds."""
    return datetime.now(UTC).replace(microsecond=0)


def _damaged(path: Path, found: str, expected: str) -> RecordDamaged:
    return RecordDamaged(
        found,
        expected=expected,
        where=str(path),
        next_step="`crl verify RUN` names the command that moves it away; then the person is asked again",
    )
