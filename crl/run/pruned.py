"""What a run lacks on purpose: checkpoints that retention deleted, damaged files that it goes on without.

A line in `pruned.jsonl` says so, and a `pruned` event of the journal, so that neither file alone can lose an entry.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from crl.run.journal import Journal, JsonLines
from crl.run.logs import PRUNED as PRUNED
from crl.run.manifest import Manifest, StageKey, key_of


class Pruned(BaseModel):
    """One deleted checkpoint directory, or a file that was damaged and is left out (`crl/audit/without.py`)."""

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

    @classmethod
    def of(cls, key: StageKey, path: str, manifest: Manifest) -> Pruned:
        """A file of a stage, or a directory with all that its manifest names in it."""
        named = manifest.digested.files.items()
        files = {name: file for name, file in named if name == path or name.startswith(f"{path}/")}
        return cls(
            round=key[0],
            stage=key[1],
            path=path,
            sha256s={name: file.sha256 for name, file in files.items()},
            bytes=sum(file.bytes for file in files.values()),
            manifest=manifest.check,
        )

    @property
    def location(self) -> str:
        """Run-relative path."""
        return f"rounds/{key_of(self.round, self.stage)}/{self.path}"


def pruned(run_path: Path) -> list[Pruned]:
    """Everything that was pruned, in order: from the list, and from the journal what the list lacks."""
    listed = _entries(JsonLines(run_path / PRUNED))
    return listed + [entry for entry in _entries(Journal(run_path)) if entry not in listed]


def unlisted(run_path: Path) -> list[Pruned]:
    """What the list lacks, though it is written first."""
    listed = _entries(JsonLines(run_path / PRUNED))
    return [entry for entry in _entries(Journal(run_path)) if entry not in listed]


def add_pruned(run_path: Path, entry: Pruned, token: int) -> None:
    """Write an entry to the list, then to the journal."""
    payload = entry.model_dump(mode="json")
    JsonLines(run_path / PRUNED).append(payload)
    number, stage = payload.pop("round"), payload.pop("stage")
    Journal(run_path).record("pruned", token=token, round_number=number, stage=stage, **payload)


def _entries(lines: JsonLines) -> list[Pruned]:
    found = []
    for payload in lines.read(having=None if lines.path.name == PRUNED else b'"pruned"'):
        if payload.get("event", "pruned") != "pruned":
            continue
        try:
            found.append(Pruned.model_validate(payload))
        except ValidationError:
            continue
    return found


def is_pruned(entries: Collection[Pruned], round_number: int, stage: str, path: str, manifest: Manifest) -> bool:
    """Whether a directory of a stage was deleted by retention (and not one that an earlier making of it wrote)."""
    wanted = (round_number, stage, path, manifest.check)
    return any((entry.round, entry.stage, entry.path, entry.manifest) == wanted for entry in entries)


def is_left_out(run_path: Path, relative: str) -> bool:
    """Whether a run goes on without a file of it, by its run-relative path."""
    return any(entry.location == relative for entry in pruned(run_path))
