"""The list of checkpoints that retention deleted: `pruned.jsonl`, which verification accepts.

Each line is also a `pruned` event of the journal: a lost or damaged list is restored from there. An entry names the
manifest it was taken from, so it never excuses a checkpoint that a redone stage wrote later in the same place.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from crl.run.files import aside
from crl.run.journal import Journal
from crl.run.linelog import LineLog

PRUNED = "pruned.jsonl"


class Pruned(BaseModel):
    """One deleted checkpoint directory."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    round: int
    stage: str
    path: str
    """Inside the stage directory."""
    sha256s: dict[str, str]
    """By path inside the stage directory."""
    bytes: int
    manifest: str
    """`check` of the manifest of the stage."""


def pruned(run_path: Path) -> list[Pruned]:
    """Everything that was pruned, in order: from the list, and from the journal what the list has lost."""
    listed = _entries(LineLog(run_path / PRUNED))
    return listed + [entry for entry in _entries(Journal(run_path)) if entry not in listed]


def lost_entries(run_path: Path) -> list[Pruned]:
    """Entries that the journal knows and the list does not."""
    listed = _entries(LineLog(run_path / PRUNED))
    return [entry for entry in _entries(Journal(run_path)) if entry not in listed]


def note_pruned(run_path: Path, entry: Pruned, token: int) -> None:
    """Write an entry to the list, then to the journal."""
    LineLog(run_path / PRUNED).append(entry.model_dump(mode="json"))
    _note_in_journal(run_path, entry, token)


def restore_pruned(run_path: Path, token: int) -> None:
    """Mend list and journal: what one of them has lost it gets from the other."""
    log = LineLog(run_path / PRUNED)
    if log.fault() is not None:
        log.repair(None, aside(run_path, PRUNED))
    for entry in lost_entries(run_path):
        log.append(entry.model_dump(mode="json"))
    known = _entries(Journal(run_path))
    for entry in _entries(log):
        if entry not in known:
            _note_in_journal(run_path, entry, token)


def _note_in_journal(run_path: Path, entry: Pruned, token: int) -> None:
    more = entry.model_dump(mode="json", exclude={"round", "stage"})
    Journal(run_path).record("pruned", token=token, round_number=entry.round, stage=entry.stage, **more)


def _entries(log: LineLog) -> list[Pruned]:
    found = []
    for payload in log.read():
        if payload.get("event", "pruned") != "pruned":
            continue
        try:
            found.append(Pruned.model_validate(payload))
        except ValidationError:
            continue
    return found
