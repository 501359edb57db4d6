"""The list of checkpoints that retention deleted: `pruned.jsonl`, which verification accepts.

Each line is also a `pruned` event of the journal, so that neither file alone can lose an entry. An entry names the
manifest it was taken from, so it never excuses a checkpoint that a redone stage wrote later in the same place.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from crl.run.journal import Journal
from crl.run.jsonlines import JsonLines

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
    """Everything that was pruned, in order: from the list, and from the journal what the list lacks."""
    return _entries(JsonLines(run_path / PRUNED)) + unlisted(run_path)


def unlisted(run_path: Path) -> list[Pruned]:
    """What the list lacks, though it is written first."""
    listed = _entries(JsonLines(run_path / PRUNED))
    return [entry for entry in _entries(Journal(run_path)) if entry not in listed]


def note_pruned(run_path: Path, entry: Pruned, token: int) -> None:
    """Write an entry to the list, then to the journal."""
    payload = entry.model_dump(mode="json")
    JsonLines(run_path / PRUNED).append(payload)
    number, stage = payload.pop("round"), payload.pop("stage")
    Journal(run_path).record("pruned", token=token, round_number=number, stage=stage, **payload)


def _entries(lines: JsonLines) -> list[Pruned]:
    found = []
    for payload in lines.read():
        if payload.get("event", "pruned") != "pruned":
            continue
        try:
            found.append(Pruned.model_validate(payload))
        except ValidationError:
            continue
    return found
