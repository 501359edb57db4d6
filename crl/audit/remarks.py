"""What verification does not know: files that nobody names, and what beside the record says otherwise.

Remarks are no problems and fail nothing. Files in the bank's store that no stage names were written by an attempt that
was killed or set aside.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from crl.audit.problem import Record, on_one_line
from crl.config.models import WAYS, Ways
from crl.errors import RecordDamaged, RunDirectoryUnusable
from crl.limits import is_count
from crl.run import cache
from crl.run.decisions import DECISIONS, decided_rounds, decision_path
from crl.run.directory import is_round
from crl.run.experiment_file import load
from crl.run.journal import JOURNAL, Journal, JsonLines, stage_of
from crl.run.lease import LEASE, LeaseFile
from crl.run.logs import LOGS, NOTED, TRACKERS, Seen, differing
from crl.run.manifest import MANIFEST, Manifest, key_of
from crl.run.pruned import PRUNED, unlisted
from crl.run.retention import CHECKPOINT

_LISTS = {PRUNED: "sha256s", TRACKERS: "tracker"}
"""What each line of a list has, beside those of the journal."""
_CHOOSE_AGAIN = "Put it back from a backup, or delete it: it is chosen again when the run goes on"


def remarks(record: Record) -> list[str]:
    """What is to be said of a run beside its problems, one line each."""
    found = [*_journal(record), *_swapped(record.run_path)]
    noted = tuple(line.split()[0] for line in found)  # of a log that is noted, what else it lacks is no news
    found = [*(line for line in _logs(record) if not line.startswith(noted)), *found]
    found = [*_repairs(record), *found]
    found += [*_ways(record), *_rounds(record.run_path), *_stores(record)]
    found += [
        f"{place} was made by another user, or on another machine: it is made anew when it is needed"
        for place in cache.foreign(record.run_path)
    ]
    return [on_one_line(line) for line in found]


def _repairs(record: Record) -> Iterator[str]:
    """What people took back, had made again, and go on without."""
    for event in Journal(record.run_path).read():
        kind, keys, day = event.get("event"), event.get("stages"), str(event.get("time"))[:10]
        where = f"; it is in {event['directory']}" if isinstance(event.get("directory"), str) else ""
        if kind == "set_aside" and isinstance(keys, list) and keys:
            listed = [str(key) for key in keys]
            taken = listed[0] if len(listed) == 1 else f"{listed[0]} to {listed[-1]} ({len(listed)} stages)"
            missing = sum(1 for key in listed if not record.run_path.joinpath("rounds", key).is_dir())
            again = f"; {missing} not made again yet: {record.resume()}" if missing else "; made again since"
            yield f"{taken} taken back on {day}{where}{again}"
        elif kind == "mended" and isinstance(event.get("files"), list):
            kept = where.replace("it is", "what was damaged is")
            yield f"{', '.join(map(str, event['files']))} made again on {day}{kept}"
    for entry in record.pruned:
        if entry.path != CHECKPOINT and not (record.run_path / entry.location).exists():
            digests = ", ".join(entry.sha256s.values())
            yield f"the run goes on without {entry.location}, which was damaged (SHA-256 {digests})"


def _journal(record: Record) -> Iterator[str]:
    if not (record.run_path / JOURNAL).is_file():
        if record.stages:
            yield f"{JOURNAL} is missing: whether a stage that no other one read was deleted is not known"
        return
    events = Journal(record.run_path).read()
    if not any(isinstance(event.get("event"), str) for event in events):
        yield f"{JOURNAL} holds no event: it is damaged, or another file in its place"
        return
    begun = {stage_of(event) for event in events if event.get("event") == "stage_started"}
    unknown = [f"stage {key_of(*place)}" for place in record.manifests if place not in {*begun, *record.stale}]
    with contextlib.suppress(ValueError):
        lease = LeaseFile.load(record.run_path)
        if lease is not None and lease.token not in [event.get("token") for event in events]:
            unknown.append(f"attempt {lease.token} of {LEASE}")
    if unknown:
        more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        yield f"{JOURNAL} does not say that {unknown[0]}{more} began: it is damaged, or an older one in its place"
    for place, commit in record.committed.items():
        manifest = record.manifests.get(place)
        if manifest is None or place in record.stale or commit.digest is None or commit.token is None:
            continue
        file, token = f"rounds/{key_of(*place)}/{MANIFEST}", manifest.provenance.get("token")
        # That of a later attempt is one that was made again by an attempt that was killed before it said so.
        if isinstance(token, int) and token < commit.token:
            yield f"{file} is of attempt {token}, and {JOURNAL} says that attempt {commit.token} made it: an older one"
        elif token == commit.token and manifest.digest != commit.digest:
            yield f"{file} has digest {manifest.digest}, and {JOURNAL} says that {commit.digest} was committed"


def _logs(record: Record) -> Iterator[str]:
    """Logs that do not begin any more with what the stages of this run saw when they were committed."""
    seen: dict[str, list[Seen]] = {}
    for place, manifest in record.manifests.items():
        if place in record.stale or record.lineage.maker(*place) is not None:
            continue  # the logs of the run that made it
        for name, mark in manifest.provenance.get(NOTED, {}).items():
            if name in LOGS and isinstance(mark, dict) and is_count(mark.get("bytes")):
                seen.setdefault(name, []).append((mark["bytes"], str(mark.get("sha256")), key_of(*place)))
    for name, marks in seen.items():
        if found := differing(record.run_path / name, marks):
            yield f"{name}: {found}"


def _swapped(run_path: Path) -> Iterator[str]:
    """Lists that hold the lines of another one."""
    for name, own in _LISTS.items():
        lines = JsonLines(run_path / name).read()
        if any("event" in line for line in lines):
            yield f"{name} holds events of a journal: another file in its place"
        elif (run_path / name).is_file() and not any(own in line for line in lines):
            yield f"{name} holds no line of its kind: it is damaged, or another file in its place"
        elif name == PRUNED and unlisted(run_path):
            yield f"{name} lacks checkpoints that {JOURNAL} says were deleted: it is damaged, or an older one"


def _ways(record: Record) -> Iterator[str]:
    """Files that say how a model is computed: damaged, unknown, or not what the newest stage noted."""
    try:
        _, method = load(record.run_path)
    except (RecordDamaged, RunDirectoryUnusable):
        return  # which roles share weights is not known
    noted: dict[str, dict[str, tuple[Any, str]]] = {}
    for place, manifest in record.manifests.items():
        ways = manifest.provenance.get(WAYS)
        if place in record.stale or record.lineage.maker(*place) is not None or not isinstance(ways, dict):
            continue
        for role in ways.keys() & method.roles.keys():
            for what, way in ways[role].items() if isinstance(ways[role], dict) else ():
                noted.setdefault(method.owner(role), {})[what] = way, key_of(*place)
    folder = record.run_path / WAYS
    written = {path.name for path in folder.iterdir() if not path.name.startswith(".")} if folder.is_dir() else set()
    known = {f"{owner}.json": owner for owner in method.owners()}
    for name in sorted(written | {f"{owner}.json" for owner in noted}):
        file, owner = f"{WAYS}/{name}", known.get(name)
        if owner is None:
            yield f"{file} is unknown: the run has no weights of that name"
            continue
        was = noted.get(owner, {})
        computed = "no stage says so yet"
        if was:
            newest = max(stage for _, stage in was.values())
            computed = (
                f"stage {newest} was computed with {', '.join(f'{what} {way}' for what, (way, _) in was.items())}"
            )
        try:
            now = asdict(Ways.read(folder / name))
        except FileNotFoundError:
            yield f"{file} is missing; {computed}. It is chosen again when the run goes on"
        except (OSError, ValueError) as error:
            found = getattr(error, "strerror", None) or str(error)
            yield f"{file} is damaged: {found}; {computed}. {_CHOOSE_AGAIN}"
        else:
            if other := [f"{what} {now.get(what)}" for what, (way, _) in was.items() if now.get(what) != way]:
                yield f"{file} says {', '.join(other)}; {computed}. {_CHOOSE_AGAIN}"


def _rounds(run_path: Path) -> Iterator[str]:
    rounds = run_path / "rounds"
    for entry in sorted(rounds.iterdir()) if rounds.is_dir() else []:
        if entry.is_dir() and not entry.is_symlink() and not entry.name.startswith(".") and not is_round(entry.name):
            yield f"rounds/{entry.name} is unknown: the directory of a round has four digits or more, as in rounds/0001"
    decisions = run_path / DECISIONS
    known = {decision_path(run_path, number) for number in decided_rounds(run_path)}
    for entry in sorted(decisions.iterdir()) if decisions.is_dir() else []:
        if entry not in known and not entry.name.startswith("."):
            yield f"{DECISIONS}/{entry.name} is unknown: it decides about no round"


def _stores(record: Record) -> Iterator[str]:
    if record.unreadable:
        return  # what a manifest names that cannot be read is not known
    run_path = record.run_path
    named = {name for manifest in record.manifests.values() for name in manifest.digested.shared}
    for part in (run_path / "rounds").glob("*/.parts-*/*/"):
        try:
            named |= set(Manifest.load(part).digested.shared)
        except RecordDamaged:
            continue
    for path in sorted((run_path / "bank").rglob("*")):
        file = path.relative_to(run_path).as_posix()
        if path.is_file() and not path.is_symlink() and not path.name.startswith(".") and file not in named:
            yield f"{file} is unknown: no complete stage names it"
