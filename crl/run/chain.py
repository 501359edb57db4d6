"""The chain of manifests: does each stage match what later ones read, and which of two that disagree is the wrong one?

A manifest is vouched for by the stages that read it, and by the journal. Stages are looked at from the newest to the
oldest, so that a manifest that is wrong itself accuses nobody. Where two manifests disagree and nothing else speaks for
either, it cannot be known which one is wrong: the older stage is named. Beside the chain: links, since all of a record
is written in its run and whatever a link leads to may change unseen, and whether the lineage of a fork, and the rounds
that it was given, are as they were.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from crl.errors import RecordDamaged
from crl.paths import quoted
from crl.run.branch import FORKED
from crl.run.directory import is_round
from crl.run.experiment_file import EXPERIMENT
from crl.run.files import sha256_file
from crl.run.head import heads
from crl.run.journal import Journal
from crl.run.lineage import LINEAGE, Lineage, load_lineage
from crl.run.manifest import MANIFEST, Manifest, Place, key_of, parse_key, stage_directory
from crl.run.problem import NO_FILE, Problem, Record, fork_again, move_away

Found = tuple[str, str]
"""What was expected and what was found."""
Readers = dict[Place, dict[Place, str]]
"""By stage: who read it, and the digest it had then."""


def stale(record: Record) -> dict[Place, Found]:
    """Whole manifests that are not those of their place: of another stage, or of an earlier making."""
    found: dict[Place, Found] = {}
    readers: Readers = {}
    for place, manifest in record.manifests.items():
        for key, digest in manifest.digested.inputs.items():
            readers.setdefault(parse_key(key), {})[place] = digest
        own = (manifest.digested.round, manifest.digested.stage)
        if own != place:
            found[place] = (f"the manifest of {key_of(*place)}", f"that of {key_of(*own)}")
    for place in reversed(record.manifests):
        if place in found:
            continue
        digest = record.manifests[place].digest
        said = _said(readers, place, found)
        wrong = {reader: read for reader, read in said.items() if read != digest}
        if not said and _unread_and_older(record, place):
            found[place] = (f"digest {record.committed[place].digest} (the journal)", f"digest {digest}")
        if not wrong:
            continue
        agreed = digest in said.values() or _journal(record, place) == digest
        if agreed and not any(_vouched(record, readers, reader, found) for reader in wrong):
            for reader, read in wrong.items():
                key = key_of(*place)
                found[reader] = (f"a manifest that read {key} with digest {digest}", f"one that read digest {read}")
        else:
            reader, read = next(iter(wrong.items()))
            found[place] = (f"digest {read} (read by {key_of(*reader)})", f"digest {digest}")
    return found


def chain_problems(record: Record) -> Iterator[Problem]:
    """Manifests of `record.stale`, and stages that were read and are gone."""
    for (number, stage), (expected, found) in record.stale.items():
        file = f"rounds/{key_of(number, stage)}/{MANIFEST}"
        yield Problem(file, stage, number, expected, found, record.redo(number, stage))
    reported: set[str] = set()
    for reader, manifest in record.manifests.items():
        if reader in record.stale:
            continue
        for key, digest in manifest.digested.inputs.items():
            place = parse_key(key)
            if key in reported or place in record.unreadable or place in record.manifests:
                continue
            reported.add(key)
            expected = f"digest {digest} (read by {key_of(*reader)})"
            yield record.damaged(f"rounds/{key}", *place, expected, "no such stage")


def _said(readers: Readers, place: Place, wrong: dict[Place, Found]) -> dict[Place, str]:
    """What the stages that read this one, and are not wrong themselves, say about its digest."""
    return {reader: digest for reader, digest in readers.get(place, {}).items() if reader not in wrong}


def _vouched(record: Record, readers: Readers, place: Place, wrong: dict[Place, Found]) -> bool:
    digest = record.manifests[place].digest
    return digest in _said(readers, place, wrong).values() or _journal(record, place) == digest


def _journal(record: Record, place: Place) -> str | None:
    commit = record.committed.get(place)
    return commit.digest if commit else None


def _unread_and_older(record: Record, place: Place) -> bool:
    """Whether the journal knows another digest of a stage that nobody read, and its manifest fits nothing around it.

    The journal alone proves nothing: where files and inputs fit the manifest, a note is all there is to say.
    """
    manifest = record.manifests[place]
    if _journal(record, place) in (None, manifest.digest):
        return False
    return not _fits(record, place, manifest)


def _fits(record: Record, place: Place, manifest: Manifest) -> bool:
    for key, digest in manifest.digested.inputs.items():
        current = record.manifests.get(parse_key(key))
        if current is not None and current.digest != digest:
            return False
    directory = stage_directory(record.run_path, *place)
    present = [(directory / name, file.sha256) for name, file in manifest.digested.files.items()]
    return all(sha256_file(path) == sha256 for path, sha256 in present if path.is_file())


_RECORD = (EXPERIMENT, LINEAGE, "rounds", "bank", "decisions", "imports")


def links(record: Record) -> Iterator[Problem]:
    """Files, stages, rounds that are elsewhere, also where what is found there is right."""
    for path in (link for name in _RECORD for link in _links(record.run_path / name)):
        file, mend = path.relative_to(record.run_path), _copied(path)
        number, stage = None, None
        match file.parts:
            case ("rounds", name, inner) if is_round(name):
                number, stage, mend = int(name), inner, record.redo(int(name), inner)
        if not path.exists():  # there is no stage to take back, and no file to copy
            mend = move_away(record.run_path, path)
        expected, found = "no link: a record is whole in its run", f"a link to {path.readlink()}"
        yield Problem(file.as_posix(), stage, number, expected, found, mend)


def _links(place: Path) -> Iterator[Path]:
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


def readable_lineage(run_path: Path) -> Lineage:
    """The lineage of a run; an empty one where the file is damaged, which :func:`fork_problems` says."""
    try:
        return load_lineage(run_path)
    except RecordDamaged:
        return Lineage()


def has_lost_lineage(record: Record) -> bool:
    """Whether the run is a fork whose lineage is missing or damaged."""
    return record.lineage.parent is None and (
        (record.run_path / LINEAGE).exists() or _forked(record.run_path) is not None
    )


def fork_problems(record: Record) -> Iterator[Problem]:
    """A lineage that is missing or was changed; inherited stages that do not give the head that the parent had."""
    parent = record.lineage.parent
    if parent is None:
        if not has_lost_lineage(record):
            return
        try:
            load_lineage(record.run_path)
            found = NO_FILE
        except RecordDamaged as error:
            found = error.found
        yield Problem(LINEAGE, None, None, "the lineage of a fork, as the journal says", found, _again(record))
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


def _again(record: Record) -> str:
    """The command that makes the fork again, as far as the journal knows of what it was forked."""
    told = _forked(record.run_path) or {}
    parent, number = quoted(str(told.get("parent", "PARENT"))), quoted(str(told.get("round", "N")))
    name = quoted(f"{record.run_path.absolute().name}-again")
    return f"crl fork {parent} --round {number} --name {name}{' --keep-rollouts' if told.get('kept') else ''}"
