"""What the journal says was committed and not set aside since: verification compares the record with it.

The journal is in no digest, so one line alone proves nothing: a stage counts only if the journal also says that it was
started. A stage that `crl redo` set aside is no loss, also where redo was killed before its line in the journal.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crl.errors import RecordDamaged
from crl.run.journal import Journal
from crl.run.manifest import Manifest, key_of, parse_key

Place = tuple[int, str]
_DIGEST = re.compile(r"^[0-9a-f]{64}$")
_KEY = re.compile(r"^\d{4,}/[a-z][a-z0-9_]*$")


@dataclass(frozen=True)
class Committed:
    """The newest commit of a stage, as the journal has it."""

    digest: str | None
    """None where the line has none that could be one."""
    token: int | None
    """Of the attempt that committed it."""


def committed(run_path: Path) -> dict[Place, Committed]:
    """Stages whose last word in the journal is a commit, in the order of these."""
    started: set[Place] = set()
    found: dict[Place, Committed] = {}
    for event in Journal(run_path).read():
        kind = event.get("event")
        if kind == "set_aside":
            for taken in _places(event.get("stages")):
                found.pop(taken, None)
        place = place_of(event)
        if place is None:
            continue
        if kind == "stage_started":
            started.add(place)
        elif kind == "stage_committed" and place in started:
            digest, token = event.get("digest"), event.get("token")
            known = digest if isinstance(digest, str) and _DIGEST.match(digest) else None
            found.pop(place, None)
            found[place] = Committed(known, token if isinstance(token, int) else None)
    return found


def not_committed(run_path: Path) -> set[Place]:
    """Stages of which the journal says that they were started or failed, and not that they were committed after that.

    One that is complete nevertheless was committed by an attempt that was killed before it could say so.
    """
    found: set[Place] = set()
    for event in Journal(run_path).read():
        if (place := place_of(event)) is not None:
            if event.get("event") in ("stage_started", "stage_failed"):
                found.add(place)
            elif event.get("event") == "stage_committed":
                found.discard(place)
    return found


def place_of(event: dict[str, Any]) -> Place | None:
    """The stage that an event is about; None where it names none that could be one."""
    number, stage = event.get("round"), event.get("stage")
    if not isinstance(number, int) or not isinstance(stage, str) or not _KEY.match(key_of(number, stage)):
        return None
    return number, stage


def newest_attempt(run_path: Path) -> int:
    """The highest token of an attempt that began and did something, as two lines of the journal say; 0 for none."""
    began: set[int] = set()
    did: set[int] = set()
    for event in Journal(run_path).read():
        if isinstance(token := event.get("token"), int) and event.get("event") != "attempt_taken_over":
            (began if event.get("event") == "attempt_started" else did).add(token)
    return max(began & did, default=0)


def moved_away(run_path: Path, commits: dict[Place, Committed]) -> set[Place]:
    """Of `commits`, those that are under `damaged/`: redo was killed before its line in the journal, or is busy."""
    events = {event.get("directory"): event.get("event") for event in Journal(run_path).read()}
    found = set()
    for directory in (run_path / "damaged").glob("*/"):
        event = events.get(directory.relative_to(run_path).as_posix())
        for place, commit in commits.items() if event != "mended" else ():
            stage = directory / "rounds" / key_of(*place)
            if stage.is_dir() and _is_that(stage, commit, noted=event is not None):
                found.add(place)
    return found


def _is_that(stage: Path, commit: Committed, *, noted: bool) -> bool:
    """Whether a stage that was moved away is the one of this commit, and not one of an earlier making."""
    try:
        manifest = Manifest.load(stage)
    except RecordDamaged:
        return not noted
    return manifest.digest == commit.digest and manifest.provenance.get("token") in (commit.token, None)


def _places(keys: Any) -> list[Place]:
    if not isinstance(keys, Sequence) or isinstance(keys, str):
        return []
    return [parse_key(key) for key in keys if isinstance(key, str) and _KEY.match(key)]
