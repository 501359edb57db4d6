"""Verification: does every file of a run match what was recorded, and does each stage match what later ones read?

Problems name the file, what was expected and found, and the command that mends it. Three severities: **damaged** (the
record itself: training refuses to build on it), **derived** (cache, catalog: rebuilt), **housekeeping** (lease: the
next attempt mends it). The journal and the list of pruned checkpoints are in no digest and are not checked; what a
running or killed attempt has not committed is no problem.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from crl.errors import RecordDamaged, RunDirectoryUnusable
from crl.run import cache, experiment_file
from crl.run.decisions import decided_rounds, decision_path, load_decision
from crl.run.directory import complete_stages, round_numbers
from crl.run.files import sha256_bytes, sha256_file
from crl.run.imports import imported_files
from crl.run.lease import LEASE, LOCK, LeaseFile
from crl.run.manifest import MANIFEST, FileDigest, Manifest, key_of, parse_key
from crl.run.prunelog import Pruned, pruned
from crl.run.retention import CHECKPOINT, is_pruned

FromRows = Callable[[int, str], bool]
"""Whether a stage of a round is a function of recorded rows, so that its files can be made again."""
NO_FILE = "no such file"
_SHOWN = 5


def _unknown(round_number: int, stage: str) -> bool:
    return False


class Severity(StrEnum):
    """What a problem means for going on."""

    damaged = "damaged"
    derived = "derived"
    housekeeping = "housekeeping"


@dataclass(frozen=True)
class Problem:
    """One file that is not what was recorded."""

    file: str
    """Run-relative path."""
    stage: str | None
    round: int | None
    expected: str
    """A SHA-256 where there is one."""
    found: str
    mend: str
    """The exact command."""
    severity: Severity = Severity.damaged
    redo: str = ""
    """The command where `mend` is `crl mend` and that fails."""

    def __str__(self) -> str:
        note = "" if self.severity is Severity.damaged else f" ({self.severity})"
        return f"{self.file}{note}\n  expected {self.expected}\n  found    {self.found}\n  mend     {self.mend}"


@dataclass
class _Record:
    """What is known about a run while it is verified."""

    run_path: Path
    deep: bool
    manifests: dict[tuple[int, str], Manifest] = field(default_factory=dict)
    unreadable: dict[tuple[int, str], RecordDamaged] = field(default_factory=dict)
    pruned: list[Pruned] = field(default_factory=list)
    from_rows: FromRows = _unknown

    def damaged(self, file: str, round_number: int, stage: str, expected: str, found: str) -> Problem:
        """A file of a stage: made again where the stage is a function of rows, else the stage is taken back."""
        redo = self.redo(round_number, stage)
        mend = f"crl mend {_quoted(self.run_path)}" if self.from_rows(round_number, stage) else redo
        return Problem(file, stage, round_number, expected, found, mend, redo=redo)

    def redo(self, round_number: int, stage: str) -> str:
        return f"crl redo {_quoted(self.run_path)} --from {key_of(round_number, stage)}"

    def resume(self) -> str:
        return f"crl resume {_quoted(self.run_path)}"


def verify(run_path: Path, *, deep: bool = True, from_rows: FromRows = _unknown) -> list[Problem]:
    """Every problem of a run, the record's first; an empty list means it is whole.

    `deep` reads and hashes every file; without it only presence and size are compared. `from_rows` (of the recipe)
    says which stages `crl mend` can make again; without it the command is `crl redo`. Raises RunDirectoryUnusable
    where there is no run, OtherFormat where its record has another format.
    """
    run_path = Path(run_path)
    if not run_path.is_dir():
        raise RunDirectoryUnusable(f"there is no run directory at {run_path}", next_step="name the directory of a run")
    experiment_file.check_format(run_path)
    record = _Record(run_path, deep, pruned=pruned(run_path), from_rows=from_rows)
    for round_number in round_numbers(run_path):
        for stage in complete_stages(run_path, round_number):
            try:
                record.manifests[round_number, stage] = Manifest.load(run_path / "rounds" / key_of(round_number, stage))
            except RecordDamaged as error:
                record.unreadable[round_number, stage] = error
    problems = [*_experiment(record), *_manifests(record), *_stages(record), *_chain(record), *_shared(record)]
    problems += [*_foreign(record), *_decisions(record), *_imports(record)]
    return [*problems, *_derived(record), *_housekeeping(record)]


def require_intact(run_path: Path, *, deep: bool = True, from_rows: FromRows = _unknown) -> None:
    """Raise RecordDamaged, with the first problems, unless the record is whole. Derived files do not matter here."""
    found = verify(run_path, deep=deep, from_rows=from_rows)
    problems = [problem for problem in found if problem.severity is Severity.damaged]
    if not problems:
        return
    more = f"\nand {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
    raise RecordDamaged(
        "\n".join(str(problem) for problem in problems[:_SHOWN]) + more,
        expected="a record that matches its manifests; nothing is built on a damaged one",
        where=str(run_path),
        next_step=problems[0].mend,
    )


def _experiment(record: _Record) -> Iterator[Problem]:
    path = record.run_path
    methods = Counter(manifest.digested.method for manifest in record.manifests.values())
    recorded = methods.most_common(1)[0][0] if methods else "a method"
    mend = f"crl train conf/{shlex.quote(path.absolute().name)}.yaml"
    try:
        _, method = experiment_file.load(path)
    except RunDirectoryUnusable:
        yield Problem(experiment_file.EXPERIMENT, None, None, f"method {recorded}", NO_FILE, mend)
        return
    except RecordDamaged as error:
        expected = error.expected or f"method {recorded}"
        yield Problem(experiment_file.EXPERIMENT, None, None, expected, error.found, mend)
        return
    digest = method.digest()
    for (number, stage), manifest in record.manifests.items():
        if manifest.digested.method != digest:
            file = f"rounds/{key_of(number, stage)}/{MANIFEST}"
            found = f"method {manifest.digested.method}"
            yield Problem(file, stage, number, f"method {digest}", found, record.redo(number, stage))


def _manifests(record: _Record) -> Iterator[Problem]:
    for (number, stage), error in record.unreadable.items():
        file = f"rounds/{key_of(number, stage)}/{MANIFEST}"
        present = (record.run_path / file).is_file()
        readers = [manifest.digested.inputs.get(key_of(number, stage)) for manifest in record.manifests.values()]
        known = next((digest for digest in readers if digest), None)
        expected = error.expected or ""
        if known:
            expected = f"digest {known}"
        yield record.damaged(file, number, stage, expected, error.found if present else NO_FILE)


def _stages(record: _Record) -> Iterator[Problem]:
    for (number, stage), manifest in record.manifests.items():
        directory = record.run_path / "rounds" / key_of(number, stage)
        gone = is_pruned(record.pruned, number, stage, CHECKPOINT, manifest) and not (directory / CHECKPOINT).exists()
        for name, file in manifest.digested.files.items():
            if gone and name.startswith(f"{CHECKPOINT}/"):
                continue
            found = _differs(directory / name, file, deep=record.deep)
            if found is not None:
                place = f"rounds/{key_of(number, stage)}/{name}"
                yield record.damaged(place, number, stage, file.sha256, found)
        known = {*manifest.digested.files, MANIFEST}
        for path in sorted(directory.rglob("*")):
            name = path.relative_to(directory).as_posix()
            if not path.is_dir() and name not in known:
                yield _unexpected(record, path, number, stage)


def _chain(record: _Record) -> Iterator[Problem]:
    reported: set[str] = set()
    for manifest in record.manifests.values():
        for key, digest in manifest.digested.inputs.items():
            place = parse_key(key)
            if key in reported or place in record.unreadable:
                continue
            current = record.manifests.get(place)
            if current is not None and current.digest == digest:
                continue
            reported.add(key)
            reader = key_of(manifest.digested.round, manifest.digested.stage)
            expected = f"digest {digest} (read by {reader})"
            if current is None:
                yield record.damaged(f"rounds/{key}", *place, expected, "no such stage")
                continue
            file, found = f"rounds/{key}/{MANIFEST}", f"digest {current.digest}"
            yield Problem(file, place[1], place[0], expected, found, record.redo(*place))


def _shared(record: _Record) -> Iterator[Problem]:
    seen: set[str] = set()
    for (number, stage), manifest in record.manifests.items():
        for relative, sha256 in manifest.digested.shared.items():
            if relative in seen:
                continue
            seen.add(relative)
            path = record.run_path / relative
            if not path.is_file():
                found = NO_FILE
            elif not record.deep or (found := sha256_file(path)) == sha256:
                continue
            yield record.damaged(relative, number, stage, sha256, found)


def _foreign(record: _Record) -> Iterator[Problem]:
    """Files among the rounds that no stage wrote; what attempts have not committed starts with a dot."""
    rounds = record.run_path / "rounds"
    for entry in sorted(rounds.iterdir()) if rounds.is_dir() else []:
        if entry.is_file():
            yield _unexpected(record, entry, None, None)
            continue
        for inner in sorted(entry.iterdir()):
            if inner.is_file() and not inner.name.startswith("."):
                yield _unexpected(record, inner, None, None)


def _decisions(record: _Record) -> Iterator[Problem]:
    """What people decided. Once a stage holds a decision its file is only kept as evidence, and may be gone."""
    for number in decided_rounds(record.run_path):
        applied = [
            note.get("check")
            for place, manifest in record.manifests.items()
            if place[0] == number and isinstance(note := manifest.provenance.get("decision"), dict)
        ]
        path = decision_path(record.run_path, number)
        try:
            decision = load_decision(record.run_path, number)
        except RecordDamaged as error:
            expected, found = error.expected or "", error.found
        else:
            if decision is None or not applied or decision.check in applied:
                continue
            expected, found = f"check {applied[0]}, the decision that was applied", f"check {decision.check}"
        severity = Severity.housekeeping if applied else Severity.damaged
        file = path.relative_to(record.run_path).as_posix()
        yield Problem(file, None, number, expected, found, _move_away(record, path), severity)


def _imports(record: _Record) -> Iterator[Problem]:
    """A bank to begin with that round 0 does not know of: it has not begun yet, or began without it."""
    if (0, "initialise") in record.unreadable:
        return  # what it began with was in there
    shared = {name for manifest in record.manifests.values() for name in manifest.digested.shared}
    begun = record.run_path.joinpath("rounds", key_of(0, "initialise")).is_dir()
    for path in imported_files(record.run_path):
        file = path.relative_to(record.run_path).as_posix()
        if file in shared:
            continue  # looked at with all shared files
        if begun:
            yield _unexpected(record, path, None, None)
            continue
        found = sha256_file(path) if path.is_file() else "no file"
        if found != path.stem:
            yield Problem(file, None, None, path.stem, found, _move_away(record, path))


def _derived(record: _Record) -> Iterator[Problem]:
    mend = f"crl catalog {_quoted(record.run_path)}"
    faults = cache.faults(record.run_path) if record.deep else []
    for fault in faults:
        yield Problem(fault.file, None, None, fault.expected, fault.found, mend, Severity.derived)
    catalog = record.run_path / cache.CATALOG
    if catalog.is_file() and not any(fault.file == cache.CATALOG for fault in faults):
        with catalog.open("rb") as file:
            magic = file.read(12)[8:]
        if magic != b"DUCK":
            yield Problem(
                cache.CATALOG, None, None, "a DuckDB file", f"one starting with {magic!r}", mend, Severity.derived
            )


def _housekeeping(record: _Record) -> Iterator[Problem]:
    def problem(file: str, expected: str, found: str) -> Problem:
        return Problem(file, None, None, expected, found, record.resume(), Severity.housekeeping)

    try:
        lease = LeaseFile.load(record.run_path)
        if lease is None and (record.run_path / LOCK).exists():
            yield problem(LEASE, "the last attempt's lease", NO_FILE)
        if lease is not None and not (record.run_path / LOCK).exists():
            yield problem(LOCK, "an empty file", NO_FILE)
    except ValueError as error:
        yield problem(LEASE, "the lease as it was written", str(error))
    lock = record.run_path / LOCK
    if lock.exists() and lock.stat().st_size:
        yield problem(LOCK, f"SHA-256 {sha256_bytes(b'')} (an empty file)", sha256_file(lock))


def _differs(path: Path, file: FileDigest, *, deep: bool) -> str | None:
    """What is found instead of a recorded file; None where it is the one."""
    if not path.is_file():
        return NO_FILE
    size = path.stat().st_size
    if not deep:
        return None if size == file.bytes else f"{size} bytes instead of {file.bytes}"
    found = sha256_file(path)
    if found == file.sha256:
        return None
    return found if size == file.bytes else f"{found} ({size} bytes instead of {file.bytes})"


def _unexpected(record: _Record, path: Path, round_number: int | None, stage: str | None) -> Problem:
    found = sha256_file(path) if path.is_file() else "a link that leads nowhere"
    place = path.relative_to(record.run_path).as_posix()
    return Problem(place, stage, round_number, "no such file: no stage wrote it", found, _move_away(record, path))


def _move_away(record: _Record, path: Path) -> str:
    aside = record.run_path / "damaged"
    return f"mkdir -p {_quoted(aside)} && mv {_quoted(path)} {_quoted(aside)}/"


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
