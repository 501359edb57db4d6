"""Append-only files of JSON lines, and the one that is the journal of a run: a diary of attempts and stages.

A process that dies in the middle of an append leaves a torn last line: readers skip it, the next append starts a new
line after it. The files are beside the record (journal, list of pruned checkpoints) and are in no digest. The journal
(`journal.jsonl`) is for people and for `crl status`; it holds clock times, and the record is complete without it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from crl.errors import CrlError, RecordDamaged
from crl.limits import LINE_BYTES, LOG_BYTES, is_count, parse_json, read_limited
from crl.paths import quoted
from crl.run.files import disk_errors, fsync, open_own
from crl.run.logs import JOURNAL as JOURNAL
from crl.run.manifest import KEY, Manifest, StageKey, key_of, parse_key, stage_directory
from crl.text.unicode import valid_text

STOPPED = "stopped"
"""Event: no further round began."""
_DIGEST = re.compile(r"^[0-9a-f]{64}$")


class JsonLines:
    """One such file. Appending is safe from several processes; reading needs no lock."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, payload: Mapping[str, Any]) -> None:
        """Append one line and sync it; what JSON does not know is written as text. Raises DiskFull."""
        line = valid_text(json.dumps(dict(payload), default=str, ensure_ascii=False)).encode() + b"\n"
        with disk_errors(self.path):
            created = not self.path.exists()
            with open(self.path, "ab+", buffering=0, opener=open_own) as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                end = file.seek(0, os.SEEK_END)
                torn = end > 0 and os.pread(file.fileno(), 1, end - 1) != b"\n"
                rest = b"\n" + line if torn else line
                try:
                    while rest:
                        rest = rest[file.write(rest) :]
                    os.fsync(file.fileno())
                except OSError:
                    file.truncate(end)
                    raise
            if created:
                fsync(self.path.parent)

    def read(self, *, having: bytes | None = None) -> list[dict[str, Any]]:
        """The objects of all readable lines, in order; empty where there is no file. `having`: only of lines with these
        bytes, which is much faster where they are few. Raises RecordDamaged where it is no file, or larger than one may
        be."""
        try:
            content = read_limited(self.path, LOG_BYTES)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise RecordDamaged(
                f"{self.path.name} cannot be read: {error.strerror}",
                expected="a file of JSON lines",
                where=str(self.path),
                next_step=f"mv {quoted(self.path)} {quoted(f'{self.path}.damaged')}",
            ) from error
        found = []
        for line in content.split(b"\n"):
            if having is not None and having not in line:
                continue
            with contextlib.suppress(ValueError):
                payload = parse_json(line) if len(line) <= LINE_BYTES else None
                if isinstance(payload, dict):
                    found.append(payload)
        return found


class Journal(JsonLines):
    """Events, each with `time` (UTC, ISO 8601), `event`, `token` and, where they apply, `round`, `stage`, `error`.

    The lease writes `attempt_started`, `attempt_ended` and `attempt_taken_over`; whoever runs stages writes
    `stage_started`, `stage_committed`, `stage_failed` and `stage_skipped`, and `stopped` where no further round begins
    (`crl/rounds/guards.py`); retention `pruned`, redo `set_aside`, and
    without a lease, as token 0, the catalog `sealed`. A fork begins with `forked`, and with what was said of the stages
    that it was given (`inherited`).
    """

    def __init__(self, run_path: Path) -> None:
        super().__init__(Path(run_path) / JOURNAL)

    def record(
        self,
        event: str,
        *,
        token: int,
        round_number: int | None = None,
        stage: str | None = None,
        error: BaseException | dict[str, Any] | None = None,
        **more: Any,
    ) -> None:
        """Append one event. An error may be an exception or the payload of one."""
        payload: dict[str, Any] = {"time": datetime.now(UTC).isoformat(), "event": event, "token": token}
        if round_number is not None:
            payload["round"] = round_number
        if stage is not None:
            payload["stage"] = stage
        if isinstance(error, CrlError):
            payload["error"] = error.payload()
        elif isinstance(error, BaseException):
            # an interrupt has no words of its own, nor has a bare assertion
            bare = type(error).__name__ if isinstance(error, Exception) else "it was interrupted"
            payload["error"] = {"type": type(error).__name__, "found": str(error) or bare}
        elif error is not None:
            payload["error"] = error
        self.append({**payload, **more})


@dataclass(frozen=True)
class Committed:
    """The newest commit of a stage, as the journal has it."""

    digest: str | None
    """None where the line has none that could be one."""
    token: int | None
    """Of the attempt that committed it."""


def committed(run_path: Path) -> dict[StageKey, Committed]:
    """What the journal says was committed and not set aside since: stages whose last word is a commit, in the order of
    these. Verification compares the record with it.

    The journal is in no digest, so one line alone proves nothing: a stage counts only if it also says that the stage
    was started. One that `crl redo` set aside is no loss, also where redo was killed before its line in the journal.
    """
    started: set[StageKey] = set()
    found: dict[StageKey, Committed] = {}
    for event in Journal(run_path).read():
        kind = event.get("event")
        if kind == "set_aside":
            for taken in _places(event.get("stages")):
                found.pop(taken, None)
        place = stage_of(event)
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


def not_committed(run_path: Path) -> set[StageKey]:
    """Stages of which the journal says that they were started or failed, and not that they were committed after that.

    One that is complete nevertheless was committed by an attempt that was killed before it could say so.
    """
    found: set[StageKey] = set()
    for event in Journal(run_path).read():
        if (place := stage_of(event)) is not None:
            if event.get("event") in ("stage_started", "stage_failed"):
                found.add(place)
            elif event.get("event") == "stage_committed":
                found.discard(place)
    return found


def stage_of(event: dict[str, Any]) -> StageKey | None:
    """The stage that an event is about; None where it names none that could be one."""
    number, stage = event.get("round"), event.get("stage")
    if not is_count(number) or not isinstance(stage, str) or not KEY.match(key_of(number, stage)):
        return None
    return int(number), stage


def newest_attempt(run_path: Path) -> int:
    """The highest token of an attempt that began and did something, as two lines of the journal say; 0 for none."""
    began: set[int] = set()
    did: set[int] = set()
    for event in Journal(run_path).read():
        if is_count(token := event.get("token")) and event.get("event") != "attempt_taken_over":
            (began if event.get("event") == "attempt_started" else did).add(token)
    return max(began & did, default=0)


def moved_away(run_path: Path, commits: dict[StageKey, Committed]) -> set[StageKey]:
    """Of `commits`, those that are under `damaged/`: redo was killed before its line in the journal, or is busy."""
    events = {event.get("directory"): event.get("event") for event in Journal(run_path).read()}
    found = set()
    for directory in (run_path / "damaged").glob("*/"):
        event = events.get(directory.relative_to(run_path).as_posix())
        for place, commit in commits.items() if event != "mended" else ():
            stage = stage_directory(directory, *place)
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


def _places(keys: Any) -> list[StageKey]:
    if not isinstance(keys, Sequence) or isinstance(keys, str):
        return []
    return [parse_key(key) for key in keys if isinstance(key, str) and KEY.match(key)]
