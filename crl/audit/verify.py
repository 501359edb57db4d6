"""Verification: does every file of a run match what was recorded, and does each stage match what later ones read?

Problems name the file, what was expected and found, and the command that mends it. Severities: **damaged** (the
record itself: training refuses to build on it), **data** (`data.py`: what environments read, outside of the run),
**lost** (nothing left in the record names it, but the journal does: resuming makes it again), **derived** (cache,
catalog: rebuilt; evaluations that were kept beside the record), **housekeeping** (lease: the next attempt mends it).
The journal and the list of pruned checkpoints are in no digest: neither alone makes a run damaged (`remarks.py`). What
a running or killed attempt has not committed is no problem.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from crl.audit.chain import chain_problems, lost_stages, stale
from crl.audit.intact import LastIntact
from crl.audit.problem import NO_FILE, FromRows, Record, fork_again, move_away, no_recipe
from crl.audit.problem import Problem as Problem
from crl.audit.problem import Severity as Severity
from crl.bank.segments import EMBEDDINGS, SEGMENTS
from crl.config.models import WAYS
from crl.errors import RecordDamaged, RunDirectoryUnusable
from crl.paths import quoted
from crl.run import cache, experiment_file
from crl.run.branch import FORKED
from crl.run.decisions import DECISIONS, decided_rounds, decision_path, load_decision
from crl.run.directory import is_round, manifests
from crl.run.evaluations import EVALUATIONS, evaluation_faults
from crl.run.experiment_file import EXPERIMENT
from crl.run.files import sha256_bytes, sha256_or_size, too_large
from crl.run.head import heads
from crl.run.imports import IMPORTS, imported_files
from crl.run.journal import JOURNAL, Journal, committed, newest_attempt
from crl.run.lease import LEASE, LOCK, LeaseFile
from crl.run.lineage import LINEAGE, Lineage, load_lineage
from crl.run.manifest import MANIFEST, FileDigest, Manifest, StageKey, key_of
from crl.run.pruned import is_pruned, pruned
from crl.run.retention import CHECKPOINT
from crl.run.validations import VALIDATIONS, verdict_faults

_SHOWN = 5
_RECORD = (EXPERIMENT, LINEAGE, "rounds", "bank", "decisions", "imports")
"""What no link may be in."""
_RECORD_FOLDERS = ("bank", SEGMENTS, EMBEDDINGS, DECISIONS, "imports", IMPORTS)
_OTHER_FOLDERS = (EVALUATIONS, VALIDATIONS, WAYS, cache.CACHE)


def verify(run_path: Path, *, deep: bool = True, from_rows: FromRows = no_recipe) -> list[Problem]:
    """Every problem of a run, the record's first; an empty list means it is whole.

    `deep` reads and hashes every file; without it only presence and size are compared. `from_rows` (of the recipe)
    says which stages `crl mend` can make again; without it the command is `crl redo`. Raises RunDirectoryUnusable
    where there is no run, OtherFormat where its record has another format.
    """
    return problems_in(record_of(run_path, deep=deep, from_rows=from_rows))


def record_of(run_path: Path, *, deep: bool = True, from_rows: FromRows = no_recipe) -> Record:
    """What a run says about itself, read once for all that looks at it. Arguments and errors as for :func:`verify`."""
    run_path = Path(run_path)
    if not run_path.is_dir():
        raise RunDirectoryUnusable(f"there is no run directory at {run_path}", next_step="name the directory of a run")
    experiment_file.check_format(run_path)
    # The journal first: a stage that is committed meanwhile is then on the disk before it is missed.
    commits = committed(run_path)
    lineage = _readable_lineage(run_path)
    return Record(run_path, deep, manifests(run_path), pruned(run_path), commits, from_rows, lineage=lineage)


def problems_in(record: Record) -> list[Problem]:
    """As :func:`verify`, of a record that was read."""
    return [*_recorded(record), *_derived(record), *_housekeeping(record)]


def _recorded(record: Record) -> list[Problem]:
    record.stale = stale(record)
    linked = list(_links(record))
    problems = [*_experiment(record), *_no_folders(record, _RECORD_FOLDERS, Severity.damaged), *_manifests(record)]
    problems += [*linked, *_stages(record), *chain_problems(record)]
    problems += [*_shared(record), *lost_stages(record), *_foreign(record), *_decisions(record), *_imports(record)]
    problems += [*_fork_problems(record), *_stray_copies(record)]
    elsewhere = {problem.file for problem in linked}  # named once, whatever is found there
    return [problem for problem in problems if problem in linked or problem.file not in elsewhere]


def damage(run_path: Path, *, from_rows: FromRows = no_recipe, last: LastIntact | None = None) -> list[Problem]:
    """What is damaged in the record itself. With `last`, a file that was intact then and did not change is not read
    again (`intact.py`). Arguments and errors as for :func:`verify`."""
    record = record_of(run_path, from_rows=from_rows)
    if last is not None:
        record.digest_of = last.sha256
    return [problem for problem in _recorded(record) if problem.severity is Severity.damaged]


def require_intact(
    run_path: Path, *, from_rows: FromRows = no_recipe, changed: bool = False, until: int | None = None
) -> None:
    """Raise RecordDamaged, with the first problems, unless the record is whole. Derived files do not matter here, nor
    do rounds after `until`.

    With `changed`, a file that is as it was when this last found it intact is not read again (`intact.py`).
    """
    last = LastIntact(Path(run_path)) if changed else None
    problems = damage(run_path, from_rows=from_rows, last=last)
    problems = [each for each in problems if until is None or each.round is None or each.round <= until]
    if not problems:
        if last is not None:
            last.keep()
        return
    more = f"\nand {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
    raise RecordDamaged(
        "\n".join(str(problem) for problem in problems[:_SHOWN]) + more,
        expected="a record that matches its manifests; nothing is built on a damaged one",
        where=str(run_path),
        next_step=problems[0].mend,
    )


def _experiment(record: Record) -> Iterator[Problem]:
    path = record.run_path
    made = {place: record.lineage.maker(*place) for place in record.manifests}
    own = [manifest for place, manifest in record.manifests.items() if made[place] is None]
    methods = Counter(manifest.digested.method for manifest in own)
    recorded = methods.most_common(1)[0][0] if methods else "a method"
    mend = f"crl train conf/{quoted(path.absolute().name)}.yaml"
    try:
        _, method = experiment_file.load(path)
    except RunDirectoryUnusable:
        yield Problem(experiment_file.EXPERIMENT, None, None, f"method {recorded}", NO_FILE, mend)
        return
    except RecordDamaged as error:
        expected = error.expected or f"method {recorded}"
        yield Problem(experiment_file.EXPERIMENT, None, None, expected, error.found, mend)
        return
    if _has_lost_lineage(record):
        return  # which of the stages another run made, by its method, is not known
    digest = method.digest()
    if methods and digest not in methods:  # the file of another experiment, or an older one
        found, mend = f"method {digest}", move_away(path, path / experiment_file.EXPERIMENT)
        yield Problem(experiment_file.EXPERIMENT, None, None, f"method {recorded}", found, mend)
        digest = recorded
    for (number, stage), manifest in record.manifests.items():
        maker = made[number, stage]
        expected = digest if maker is None else maker.method_digest
        if manifest.digested.method != expected:
            file = f"rounds/{key_of(number, stage)}/{MANIFEST}"
            found = f"method {manifest.digested.method}"
            yield Problem(file, stage, number, f"method {expected}", found, record.redo(number, stage))


def _manifests(record: Record) -> Iterator[Problem]:
    for (number, stage), error in record.unreadable.items():
        file = f"rounds/{key_of(number, stage)}/{MANIFEST}"
        present = (record.run_path / file).is_file()
        readers = [manifest.digested.inputs.get(key_of(number, stage)) for manifest in record.manifests.values()]
        known = next((digest for digest in readers if digest), None)
        expected = error.expected or ""
        if known:
            expected = f"digest {known}"
        yield record.damaged(file, number, stage, expected, error.found if present else NO_FILE)


def _stages(record: Record) -> Iterator[Problem]:
    for (number, stage), manifest in record.manifests.items():
        if (number, stage) in record.stale:
            continue  # its files cannot be held against a manifest that is not theirs
        directory = record.run_path / "rounds" / key_of(number, stage)
        files = manifest.digested.files
        differing = {name: found for name, file in files.items() if (found := _differs(record, directory / name, file))}
        inside = {name for name in differing if name.startswith(f"{CHECKPOINT}/")}
        if NO_FILE in (differing[name] for name in inside) and _was_pruned(record, number, stage, manifest):
            differing = {name: found for name, found in differing.items() if name not in inside}
        differing = {
            name: found
            for name, found in differing.items()
            if not (found == NO_FILE and is_pruned(record.pruned, number, stage, name, manifest))
        }
        for name, found in differing.items():
            yield record.damaged(f"rounds/{key_of(number, stage)}/{name}", number, stage, files[name].sha256, found)
        # Not `rglob`: it fails where a directory vanishes.
        for path in sorted(Path(parent, name) for parent, _, names in os.walk(directory) for name in names):
            if path.relative_to(directory).as_posix() not in {*files, MANIFEST}:
                yield _unexpected(record, path, number, stage)


def _was_pruned(record: Record, number: int, stage: str, manifest: Manifest) -> bool:
    """Whether retention deleted the checkpoint of a stage: of a run that trains, maybe after the list was read."""
    if (record.run_path / "rounds" / key_of(number, stage) / CHECKPOINT).exists():
        return False
    if not is_pruned(record.pruned, number, stage, CHECKPOINT, manifest):
        record.pruned = pruned(record.run_path)
    return is_pruned(record.pruned, number, stage, CHECKPOINT, manifest)


def _shared(record: Record) -> Iterator[Problem]:
    seen: set[str] = set()
    for (number, stage), manifest in record.manifests.items():
        for relative, sha256 in manifest.digested.shared.items():
            if relative in seen or (number, stage) in record.stale:
                continue
            seen.add(relative)
            path = record.run_path / relative
            if not path.is_file():
                found = NO_FILE
            elif not record.deep or (found := too_large(path) or record.digest_of(path)) == sha256:
                continue
            yield record.damaged(relative, number, stage, sha256, found)


def _foreign(record: Record) -> Iterator[Problem]:
    """Files among the rounds that no stage wrote; what attempts have not committed starts with a dot."""
    rounds = record.run_path / "rounds"
    if rounds.exists() and not rounds.is_dir():
        yield _unexpected(record, rounds, None, None)
    for entry in sorted(rounds.iterdir()) if rounds.is_dir() else []:
        if not entry.is_dir():
            yield _unexpected(record, entry, None, None)
            continue
        if not is_round(entry.name):
            continue  # a note is all there is to say of a directory that is none of ours
        for inner in sorted(entry.iterdir()):
            if not inner.is_dir() and not inner.name.startswith("."):
                yield _unexpected(record, inner, None, None)


def _stray_copies(record: Record) -> Iterator[Problem]:
    """Copies of stages beside the stages; a round that holds nothing else is one copy."""
    rounds = {number for number, _ in record.stages}
    paths: dict[Path, StageKey] = {}
    for (number, stage), origin in record.copies.items():
        directory = record.run_path / "rounds" / f"{number:04d}"
        paths.setdefault(directory / stage if number in rounds else directory, origin)
    for path, origin in paths.items():
        place, mend = path.relative_to(record.run_path).as_posix(), move_away(record.run_path, path)
        found = (
            f"a copy of rounds/{key_of(*origin)}" if path.parent.name != "rounds" else f"a copy of round {origin[0]}"
        )
        yield Problem(place, None, None, "nothing: no stage wrote it, and none read it", found, mend)


def _decisions(record: Record) -> Iterator[Problem]:
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
        yield Problem(file, None, number, expected, found, move_away(record.run_path, path), severity)


def _imports(record: Record) -> Iterator[Problem]:
    """A bank to begin with that round 0 does not know of: it has not begun yet, or began without it."""
    if (0, "initialize") in record.unreadable:
        return  # what it began with was in there
    shared = {name for manifest in record.manifests.values() for name in manifest.digested.shared}
    begun = record.run_path.joinpath("rounds", key_of(0, "initialize")).is_dir()
    for path in imported_files(record.run_path):
        file = path.relative_to(record.run_path).as_posix()
        if file in shared:
            continue  # looked at with all shared files
        if begun:
            yield _unexpected(record, path, None, None)
            continue
        found = sha256_or_size(path) if path.is_file() else "no file"
        if found != path.stem:
            yield Problem(file, None, None, path.stem, found, move_away(record.run_path, path))


def _no_folders(record: Record, names: Iterable[str], severity: Severity) -> Iterator[Problem]:
    """What stands in the place of a folder: nothing in it is found then. Links in the record are :func:`_links`'."""
    for name in names:
        path = record.run_path / name
        if path.is_symlink() and severity is not Severity.damaged:
            found = f"a link to {path.readlink()}"
        elif path.is_symlink() or path.is_dir() or not path.exists():
            continue
        else:
            found = "a file" if path.is_file() else "a pipe or a device"
        yield Problem(name, None, None, "a folder", found, move_away(record.run_path, path), severity)


def _derived(record: Record) -> Iterator[Problem]:
    yield from _no_folders(record, _OTHER_FOLDERS, Severity.derived)
    for path, why in verdict_faults(record.run_path) if record.deep else ():
        name, away = path.relative_to(record.run_path).as_posix(), move_away(record.run_path, path)
        yield Problem(name, None, None, "what Great Expectations found", why, away, Severity.derived)
    for place, error in evaluation_faults(record.run_path) if record.deep else ():
        name = place.relative_to(record.run_path).as_posix()
        away = move_away(record.run_path, place)
        yield Problem(name, None, None, error.expected or "", error.found, away, Severity.derived)
    mend = f"crl catalog {quoted(record.run_path)}"
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


def _housekeeping(record: Record) -> Iterator[Problem]:
    def problem(file: str, expected: str, found: str) -> Problem:
        return Problem(file, None, None, expected, found, record.resume(), Severity.housekeeping)

    newest = newest_attempt(record.run_path)  # before the lease: it is written before an attempt does anything
    try:
        lease = LeaseFile.load(record.run_path)
        if lease is not None and lease.token < newest:
            yield problem(LEASE, f"the lease of attempt {newest} (the journal)", f"that of attempt {lease.token}")
        if lease is None and (record.run_path / LOCK).exists():
            yield problem(LEASE, "the last attempt's lease", NO_FILE)
        if lease is not None and not (record.run_path / LOCK).exists():
            yield problem(LOCK, "an empty file", NO_FILE)
    except ValueError as error:
        yield problem(LEASE, "the lease as it was written", str(error))
    lock = record.run_path / LOCK
    if lock.exists() and not lock.is_file():
        yield problem(LOCK, "an empty file", "a folder, a pipe or a device")
    elif lock.exists() and lock.stat().st_size:
        yield problem(LOCK, f"SHA-256 {sha256_bytes(b'')} (an empty file)", sha256_or_size(lock))


def _links(record: Record) -> Iterator[Problem]:
    """Files, stages, rounds that are elsewhere, also where what is found there is right: all of the record is in the
    run, and whatever a link leads to may change unseen."""
    for path in (link for name in _RECORD for link in _links_below(record.run_path / name)):
        file, mend = path.relative_to(record.run_path), _copied(path)
        number, stage = None, None
        match file.parts:
            case ("rounds", name, inner) if is_round(name):
                number, stage, mend = int(name), inner, record.redo(int(name), inner)
        if not path.exists():  # there is no stage to take back, and no file to copy
            mend = move_away(record.run_path, path)
        expected, found = "no link: a record is whole in its run", f"a link to {path.readlink()}"
        yield Problem(file.as_posix(), stage, number, expected, found, mend)


def _links_below(place: Path) -> Iterator[Path]:
    """Links at and below a place, without following any; what attempts have not committed starts with a dot."""
    if place.is_symlink():
        yield place
        return
    for parent, directories, names in os.walk(place):
        directories[:] = sorted(name for name in directories if not name.startswith("."))
        yield from (path for name in [*directories, *sorted(names)] if (path := Path(parent, name)).is_symlink())


def _copied(link: Path) -> str:
    """The command that puts what a link leads to into its place."""
    beside = link.with_name(f"{link.name}-copied")
    return f"cp -rL {quoted(link)} {quoted(beside)} && rm {quoted(link)} && mv {quoted(beside)} {quoted(link)}"


def _readable_lineage(run_path: Path) -> Lineage:
    """The lineage of a run; an empty one where the file is damaged, which :func:`_fork_problems` says."""
    try:
        return load_lineage(run_path)
    except RecordDamaged:
        return Lineage()


def _has_lost_lineage(record: Record) -> bool:
    """Whether the run is a fork whose lineage is missing or damaged."""
    return record.lineage.parent is None and (
        (record.run_path / LINEAGE).exists() or _forked(record.run_path) is not None
    )


def _fork_problems(record: Record) -> Iterator[Problem]:
    """A lineage that is missing or was changed; inherited stages that do not give the head that the parent had."""
    parent = record.lineage.parent
    if parent is None:
        if not _has_lost_lineage(record):
            return
        try:
            load_lineage(record.run_path)
            found = NO_FILE
        except RecordDamaged as error:
            found = error.found
        expected, mend = "the lineage of a fork, as the journal says", _forked_again(record)
        if found != NO_FILE and _forked(record.run_path) is None and (record.run_path / JOURNAL).is_file():
            expected, mend = (
                "no such file: the journal says nothing of a fork",
                move_away(record.run_path, record.run_path / LINEAGE),
            )
        yield Problem(LINEAGE, None, None, expected, found, mend)
        return
    inherited = {place: each for place, each in record.stages.items() if place[0] <= parent.round}
    if any(isinstance(each, RecordDamaged) for each in inherited.values()):
        return  # named elsewhere: the head is that of all of them
    found_head = heads(inherited).get(parent.round, "none: there is no such round")
    if found_head != parent.head:
        expected = f"head {parent.head} after round {parent.round}, that of {parent.experiment}"
        again = fork_again(record.run_path, parent)
        yield Problem("rounds", None, parent.round, expected, f"head {found_head}", again)


def _forked(run_path: Path) -> dict[str, object] | None:
    return next((event for event in Journal(run_path).read() if event.get("event") == FORKED), None)


def _forked_again(record: Record) -> str:
    """The command that makes the fork again, as far as the journal knows of what it was forked."""
    told = _forked(record.run_path) or {}
    parent, number = quoted(str(told.get("parent", "PARENT"))), quoted(str(told.get("round", "N")))
    name = quoted(f"{record.run_path.absolute().name}-again")
    return f"crl fork {parent} --round {number} --name {name}{' --keep-rollouts' if told.get('kept') else ''}"


def _differs(record: Record, path: Path, file: FileDigest) -> str | None:
    """What is found instead of a recorded file; None where it is the one."""
    if not path.is_file():
        return NO_FILE
    try:
        size = path.stat().st_size
        if not record.deep or (size != file.bytes and too_large(path)):
            return None if size == file.bytes else f"{size} bytes instead of {file.bytes}"
        found = record.digest_of(path)
    except FileNotFoundError:  # it vanished in this moment
        return NO_FILE
    if found == file.sha256:
        return None
    return found if size == file.bytes else f"{found} ({size} bytes instead of {file.bytes})"


def _unexpected(record: Record, path: Path, round_number: int | None, stage: str | None) -> Problem:
    found = sha256_or_size(path) if path.is_file() else "a link that leads nowhere, a pipe or a device"
    place, mend = path.relative_to(record.run_path).as_posix(), move_away(record.run_path, path)
    return Problem(place, stage, round_number, "no such file: no stage wrote it", found, mend)
